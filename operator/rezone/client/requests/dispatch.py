"""Requests to whoever leads a partition, until one of them is answered for good.

A request is sent to the cached leader. What happens then:

- NotLeader that names another node: the cache is corrected and the request goes there at once,
  at most `redirects_max` times in a row (two stale nodes may name each other).
- NotLeader without a name, an unknown partition, a broken channel, no answer in time: routes are
  fetched from any node, and the request goes out again when they changed, at the latest after
  the pause.
- Resharded, or known to be: the cache is corrected, and the request is done with that error. It
  means that the placement names others now: who asks cuts again by it, without a pause.
- Other retryable errors: a pause, then again.
- A node that answers nothing for a while is suspected: others are asked who leads by now
  (`suspects`).
- RowLocked to the first attempt of a request that calls share: done, for its sender to split it.
- A request that any replica may answer (`anywhere`) goes to a follower first, and to the leader
  when that gives an error.
- Any other error, the deadline, or an id that no layout has: the request is done.

A leader that hands over says so (`LeaderMoved`), so that most requests after it are not refused;
before it does it says to whom (`LeaderMoving`), so that none of them waits for a connection.

Concurrency: one lock guards the cache, the open requests and the pauses; it is never held while
anything waits for the network. Threads: two per node (`connection`), one for pauses and
deadlines, one that fetches routes. `done` of a request is called once, without the lock, never
from within `submit`.
"""

import contextlib
import heapq
import itertools
import random
import threading
from collections.abc import Callable, Collection, Sequence

from rezone.client.connections.connection import Connection
from rezone.client.connections.nodes import Nodes
from rezone.client.requests.gathering import Gathering
from rezone.client.requests.request import Request
from rezone.client.requests.suspects import Suspects
from rezone.client.requests.traced import RequestTracer
from rezone.client.requests.turns import Turns
from rezone.client.routing.placement import Placement
from rezone.client.routing.routes import Leader, RouteCache
from rezone.client.settings import ClientSettings, backoff, closed_error
from rezone.wire.errors import (
    ForbiddenError,
    NotLeaderError,
    NotReadyError,
    ReshardedError,
    RezoneError,
    RowLockedError,
    UnknownPartitionError,
    error_from,
)
from rezone.wire.layouts import HashRange
from rezone.wire.messages import (
    Failure,
    LeaderMoved,
    LeaderMoving,
    NodeId,
    PartitionId,
    ProducerOpened,
    ReadResult,
    RoutesRequest,
    RouteTable,
    TransactionBegun,
    TransactionResult,
    WriteResult,
    ZoneConfig,
)
from rezone.wire.transport.channel import Frame
from rezone.wire.transport.flight import NodeClient

FORGET_AFTER_PAUSES = 4
"""After so many pauses in a row the cached epoch is suspected too, and any news is taken."""

_ANSWERS = (
    WriteResult,
    ReadResult,
    ProducerOpened,
    TransactionBegun,
    TransactionResult,
    Failure,
)


class Dispatcher:
    """Sends requests to leaders and repeats them until they are done; thread-safe."""

    def __init__(
        self,
        routes: RouteCache,
        settings: ClientSettings,
        *,
        clock: Callable[[], float],
        rng: random.Random,
        connect: Callable[[str], NodeClient] = NodeClient,
        tracer: RequestTracer | None = None,
        gathering: Gathering,
    ) -> None:
        self.tracer = tracer
        self._gathering = gathering
        self._routes = routes
        self._settings = settings
        self._clock = clock
        self._rng = rng
        self._lock = threading.Condition()
        self._open: dict[int, Request] = {}
        self._parked: list[tuple[float, int, Request]] = []
        self._numbers = itertools.count(1)
        self._nodes = Nodes(
            connect,
            on_frame=self._on_frame,
            on_broken=self._on_broken,
            window=settings.window_requests_per_node,
        )
        self._closed = False
        self._stale = False
        self._suspects = Suspects(settings.suspect_after_seconds)
        self._turns: list[Turns] = []
        self.refreshes = 0
        self._threads = [
            threading.Thread(target=self._watch_loop, name="rezone-watch", daemon=True),
            threading.Thread(target=self._refresh_loop, name="rezone-refresh", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, request: Request) -> bool:
        """Take a request; its `done` will be called from another thread. False when closed."""
        request.deadline = request.deadline or self._clock() + self._settings.timeout_seconds
        if self.tracer is not None:
            self.tracer.begin(request)
        with self._lock:
            if self._closed:
                return False
            connection = self._route(request, tell=False)
        if connection is not None:
            self._gathering.begin(connection.push)
        return True

    def turns(self) -> Turns:
        """Return turns of a kind of request at the nodes that lead."""
        turns = Turns(self._leader_address, self._clock)
        self._turns.append(turns)
        return turns

    @property
    def config(self) -> ZoneConfig | None:
        """The zone's config; None before routes were fetched."""
        return self._routes.config  # a value, replaced as a whole: no lock

    @property
    def placement(self) -> Placement:
        """Who serves which hash, by the routes that were fetched; there must have been some."""
        placement = self._routes.placement  # a value, replaced as a whole: no lock
        assert placement is not None  # noqa: S101 - who asks has fetched the config with them
        return placement

    def target_of(self, partition: PartitionId) -> PartitionId | None:
        """Return who serves the start of a partition's range; None when that is not known."""
        with self._lock:
            hashes, placement = self._routes.range_of(partition), self._routes.placement
        if hashes is None or placement is None:
            return None
        return placement.segments(HashRange(hashes.start, hashes.start + 1))[0].partition

    def leader(self, partition: PartitionId) -> Leader | None:
        """Return the cached leader of a partition."""
        with self._lock:
            return self._routes.leader(partition)

    def _leader_address(self, partition: PartitionId) -> str:
        leader = self.leader(partition)
        return leader.address if leader is not None else ""

    def follower(self, partition: PartitionId, besides: Collection[str]) -> str | None:
        """Return the address of one of a partition's followers, at random; None without one."""
        with self._lock:
            known = [one for one in self._routes.followers(partition) if one not in besides]
            return self._rng.choice(known) if known else None

    def address(self, node: NodeId) -> str | None:
        """Return where a node is reached, None when that is not known."""
        with self._lock:
            return self._routes.address(node)

    def addresses(self) -> list[str]:
        """Return where all nodes are that are known."""
        with self._lock:
            return self._routes.addresses()

    def correct(self, partition: PartitionId, error: NotLeaderError) -> Leader | None:
        """Correct the cache by a NotLeader answer; returns the leader it names if that is news."""
        with self._lock:
            return self._routes.correct(partition, error)

    def reshard(self, partition: PartitionId, error: ReshardedError) -> bool:
        """Correct the placement by a Resharded answer; False when routes must be fetched for it."""
        with self._lock:
            return self._routes.reshard(partition, error)

    def pause(self, attempt: int) -> None:
        """Wait the jittered pause before a repeat; RezoneError when the client is closed."""
        with self._lock:
            seconds = backoff(self._settings, attempt, self._rng)
            if self._lock.wait_for(lambda: self._closed, seconds):
                raise closed_error()

    def node(self, address: str) -> NodeClient:
        """Return the connection for calls and streams to an address."""
        return self._nodes.client(address)

    def fetch_routes(self, partitions: Sequence[PartitionId] = ()) -> RouteTable:
        """Fetch the route table from the first node that answers; NotReadyError when none does.

        With `partitions` only their part of it. Nodes that were silent are asked last.
        """
        addresses = self._to_ask()
        error: RezoneError = NotReadyError("no node to ask")
        for address in addresses:
            try:
                return self._routes_of(address, partitions)
            except RezoneError as failed:
                error = failed
        if isinstance(error, ForbiddenError):
            raise error  # asking again would change nothing
        raise NotReadyError(f"none of {addresses} answers with routes; the last said: {error}")

    def fetch_all_routes(self) -> list[RouteTable]:
        """Fetch the route table of each node that answers, of those as well that others name."""
        found, asked = list[RouteTable](), set[str]()
        while left := [each for each in self._to_ask() if each not in asked]:
            asked.update(left)
            for address in left:
                with contextlib.suppress(RezoneError):
                    found.append(self._routes_of(address))
        return found

    def _to_ask(self) -> list[str]:
        with self._lock:
            addresses = self._routes.addresses()
            self._rng.shuffle(addresses)
            return self._suspects.silent_last(addresses)

    def _routes_of(self, address: str, partitions: Sequence[PartitionId] = ()) -> RouteTable:
        table = self.node(address).call(
            RoutesRequest(partitions=tuple(partitions)),
            RouteTable,
            timeout_seconds=self._settings.routes_timeout_seconds,
        )
        self._take_routes(table)
        return table

    def close(self) -> None:
        """End all threads; open requests are done with an error."""
        with self._lock:
            self._closed = True
            parked = (one for _, number, one in self._parked if one.parked == number)
            left = {*self._open.values(), *parked}
            self._open.clear()
            self._parked.clear()
            self._lock.notify_all()
        self._nodes.close()
        for request in left:
            request.done(closed_error())
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(self._settings.routes_timeout_seconds + 1)

    # --- one attempt; the lock is held ------------------------------------------------------

    def _route(self, request: Request, *, tell: bool = True) -> Connection | None:
        """Queue a request where it belongs, or park it; return the connection that it waits at.

        The sender is told, unless the caller pushes (`tell`).
        """
        request.refusal = self._routes.refusal(request.partition)
        if request.refusal is not None:
            # Ended by the thread that watches: never from within `submit`.
            self._park_until(request, self._clock())
            return None
        leader = self._routes.leader(request.partition)
        if leader is None:
            self._park(request, refresh=True)
            return None
        followers = self._routes.followers(request.partition)
        first = request.anywhere and request.attempts == 0 and followers
        address = self._rng.choice(followers) if first else leader.address
        connection = self._nodes.connection(address)
        now = self._clock()
        request.opaque = next(self._numbers)
        request.attempts += 1
        request.parked = 0
        request.attempt_ends = min(now + self._settings.attempt_timeout_seconds, request.deadline)
        request.sent_at = request.silent_since = now
        request.suspicions = 0
        request.connection = connection
        request.frames_before = request.frames_seen = connection.received
        self._open[request.opaque] = request
        connection.send(request.opaque, request.message(request.opaque), request.body, tell=tell)
        return connection

    def _park(self, request: Request, *, refresh: bool) -> None:
        request.redirects = 0
        request.pauses += 1
        if request.pauses % FORGET_AFTER_PAUSES == 0:
            self._routes.forget(request.partition)
        self._stale = self._stale or refresh
        due = self._clock() + backoff(self._settings, request.pauses, self._rng)
        self._park_until(request, min(due, request.deadline))

    def _park_until(self, request: Request, due: float) -> None:
        request.parked = next(self._numbers)
        heapq.heappush(self._parked, (due, request.parked, request))
        self._lock.notify_all()

    # --- answers ----------------------------------------------------------------------------

    def _take_open(self, opaque: int) -> Request | None:
        request = self._open.pop(opaque, None)
        if request is not None and request.connection is not None:
            request.connection.answered(opaque)
        return request

    def _on_frame(self, frame: Frame) -> None:
        message, _ = frame
        if isinstance(message, LeaderMoving):
            self._nodes.connection(message.address).open()
            return
        if isinstance(message, LeaderMoved):
            with self._lock:
                self._routes.moved(message)
            return
        if not isinstance(message, _ANSWERS):
            return
        with self._lock:
            request = self._take_open(message.opaque)
        if request is None:
            return
        if isinstance(message, Failure):
            self._on_error(request, error_from(message.error))
        else:
            request.done(frame)

    def _on_broken(self, opaques: list[int], error: RezoneError) -> None:
        for opaque in opaques:
            with self._lock:
                request = self._open.pop(opaque, None)
            if request is not None:
                self._on_error(request, error)

    def _on_error(self, request: Request, error: RezoneError) -> None:
        with self._lock:
            if isinstance(error, ReshardedError):
                error = self._taken_over(request.partition, error)
            request.last_error = error
            again = error.retryable and not isinstance(error, ReshardedError)
            again = again and not _is_of_one_call(request, error)
            if again and not self._closed and self._clock() < request.deadline:
                self._repeat(request, error)
                return
        request.done(error)

    def _taken_over(self, partition: PartitionId, error: ReshardedError) -> RezoneError:
        """Return the error when it is known who serves instead; else one that is asked again.

        Who gets a Resharded finds others in the placement, or would ask in a loop.
        """
        if self._routes.reshard(partition, error):
            return error
        return UnknownPartitionError(f"of a layout that is not known yet: {error}")

    def _repeat(self, request: Request, error: RezoneError) -> None:
        refused_by = request.connection.address if request.connection else ""
        if request.anywhere and request.attempts == 1:
            self._route(request)
            return
        if isinstance(error, NotLeaderError):
            self._routes.correct(request.partition, error)
            leader = self._routes.leader(request.partition)
            request.redirects += 1
            if (
                leader is not None
                and leader.address != refused_by
                and request.redirects <= self._settings.redirects_max
            ):
                self._route(request)
                return
            self._park(request, refresh=True)
            return
        lost = bool(error.details.get("unreachable"))
        self._park(request, refresh=lost or error.code == "UnknownPartition")

    # --- pauses and deadlines ---------------------------------------------------------------

    def _watch_loop(self) -> None:
        shortest = min(self._settings.attempt_timeout_seconds, self._settings.suspect_after_seconds)
        sweep_every = shortest / 4
        next_sweep = self._clock() + sweep_every
        while True:
            with self._lock:
                now = self._clock()
                if self._closed:
                    return
                wake = next_sweep
                if self._parked:
                    wake = min(wake, self._parked[0][0])
                if wake > now:
                    self._lock.wait(wake - now)
                    continue
                late = self._release_parked(now)
            for request in late:
                unknown = NotReadyError(f"partition {request.partition} has no known leader")
                request.done(request.refusal or request.last_error or unknown)
            if now >= next_sweep:
                next_sweep = now + sweep_every
                self._sweep(now)
                for turns in self._turns:
                    turns.look()

    def _release_parked(self, now: float) -> list[Request]:
        late = []
        while self._parked and self._parked[0][0] <= now:
            _, number, request = heapq.heappop(self._parked)
            if request.parked != number:
                # Routes have freed it before; by now it may wait for the end of another pause.
                continue
            if now >= request.deadline or request.refusal is not None:
                request.parked = 0
                late.append(request)
            else:
                self._route(request)
        return late

    def _sweep(self, now: float) -> None:
        with self._lock:
            late = [r for r in self._open.values() if now >= r.attempt_ends]
            for request in late:
                self._take_open(request.opaque)
            self._suspects.look(self._open.values(), now)
            if self._suspects:
                self._lock.notify_all()
        hanging: set[Connection] = set()
        for request in late:
            connection = request.connection
            if connection is not None and connection.received == request.frames_before:
                hanging.add(connection)
            where = connection.address if connection else "?"
            self._on_error(request, NotReadyError(f"{where} gave no answer", unreachable=1))
        for connection in hanging:
            connection.drop(f"{connection.address} answers nothing")

    # --- routes -----------------------------------------------------------------------------

    def _take_routes(self, table: RouteTable) -> None:
        with self._lock:
            changed = self._routes.merge(table)
            self.refreshes += 1
            if self._closed:
                return
            for _, number, request in list(self._parked) if changed else ():
                if request.parked == number and request.partition in changed:
                    self._route(request)
            for request in [r for r in self._open.values() if self._is_in_vain(r)]:
                # Its answer may come yet: then nobody waits for it, as after an attempt's end.
                self._take_open(request.opaque)
                self._route(request)

    def _is_in_vain(self, request: Request) -> bool:
        """Return whether a request waits at a silent node that is not known to lead any more."""
        leader = self._routes.leader(request.partition)
        at = request.connection
        return request.suspicions > 0 and not (leader and at and leader.address == at.address)

    def _refresh_loop(self) -> None:
        failures = 0
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._closed or self._stale or self._suspects)
                if self._closed:
                    return
                suspected = self._suspects.take()
                # The whole table answers the suspects, too.
                partitions = () if self._stale else suspected
                self._stale = False
            try:
                self.fetch_routes(partitions)
                failures = 0
            except RezoneError:
                failures += 1
                with self._lock:
                    # Parked requests ask again after their pause; this one keeps a zone without
                    # any node from being asked in a tight loop meanwhile.
                    pause = backoff(self._settings, failures, self._rng)
                    self._lock.wait_for(lambda: self._closed, pause)


def _is_of_one_call(request: Request, error: RezoneError) -> bool:
    """Whether it may be one of the calls in a request alone that is refused, surely with no effect.

    After more attempts than one it is not known what has become of those before.
    """
    return request.shared and request.attempts == 1 and isinstance(error, RowLockedError)
