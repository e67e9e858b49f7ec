"""The requests by which a node's new partitions pull their sources; what is asked is theirs.

However many partitions pull, there is one thread for each node that leads sources, which follows
all of their logs by one request at a time, and a few that fetch rows, range after range in turn.
They exist while there is something for them to do; another thread looks for that while the zone
has a next layout. Each does nothing but repeat one of `sort`, `follow` and `backfill`, which end
with one request at most: a simulation calls them by itself.

Fetching rows keeps to the zone's rate of copies, of which each node with leaders of new partitions
takes an even share, and is throttled while clients are served. Following logs does neither: it is
replication.

Concurrency: a lock guards the tables; no request is made, and no partition called, under it.
"""

import contextlib
import functools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from rezone.datanode.node.known_zone import KnownZone
from rezone.datanode.replica.replica import Replica
from rezone.datanode.resharding.reshard_source import ReshardSource
from rezone.datanode.resharding.reshard_streams import BACKFILL_WEIGHT, ReshardStream
from rezone.datanode.scheduling.foreground import CopySteps, Foreground
from rezone.datanode.settings import NodeSettings
from rezone.wire import layouts
from rezone.wire.errors import NotReadyError, RezoneError
from rezone.wire.messages import (
    BackfillVersions,
    BeginReshard,
    CatchUpRange,
    CatchUps,
    Message,
    NodeId,
    PartitionId,
    ReshardBackfill,
    ReshardBegun,
    ReshardCatchUp,
)
from rezone.wire.transport.flight import NodeClient
from rezone.wire.transport.ratelimit import RateLimit

_LOOK_SECONDS = 0.1
_WAIT_SECONDS = 0.005
"""How soon to look again at ranges of which too much is not committed yet."""
_POLL_OTHERS_MS_MAX = 10
_BACKFILL_TIMEOUT_SECONDS = 30.0
_CATCH_UP_GRACE_SECONDS = 3.0

Reply = TypeVar("Reply", bound=Message)


class ReshardHost(Protocol):
    """What is needed of the node."""

    node_id: NodeId
    settings: NodeSettings
    zone: KnownZone
    foreground: Foreground
    reshard_source: ReshardSource

    def partitions(self) -> list[Replica]:
        """Return all open replicas."""
        ...

    def find(self, partition: PartitionId) -> Replica:
        """Return a replica; UnknownPartitionError when the node has none."""
        ...


class ReshardPulls:
    """The reshard streams of one node; `look` begins what is due."""

    def __init__(self, host: ReshardHost, connect: Callable[[str], NodeClient]) -> None:
        self._host = host
        self._connect = connect
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._woken = threading.Event()
        self._threads: dict[str, threading.Thread] = {}
        self._clients: dict[NodeId, NodeClient] = {}
        self._by_leader: dict[NodeId, list[ReshardStream]] = {}
        self._not_backfilled: deque[tuple[NodeId, ReshardStream]] = deque()
        self._fetching: set[ReshardStream] = set()
        self.fetched_bytes = 0
        self._rate_share = 0
        self._rate = RateLimit(lambda: self._rate_share)
        source = host.reshard_source
        self._own_answers: dict[type[Message], Callable[[Any], Message]] = {
            BeginReshard: source.begin,
            ReshardBackfill: source.backfill,
            ReshardCatchUp: source.catch_up,
        }

    # --- life ------------------------------------------------------------------------------------

    def look(self) -> None:
        """Look whether there is something to pull: the zone's configuration has changed."""
        self._woken.set()
        zone = self._host.zone
        if not self._host.settings.reshard_threads:
            return
        if zone.configured and layouts.next_layout_of(zone.state.config) is not None:
            self._start("reshard streams", self._look_on)

    def close(self, timeout_seconds: float) -> None:
        """End all requests and threads."""
        self._closed.set()
        self._woken.set()
        with self._lock:
            clients, threads = list(self._clients.values()), list(self._threads.values())
        for client in clients:
            with contextlib.suppress(Exception):
                client.close()
        for thread in threads:
            thread.join(timeout_seconds)

    def _start(self, name: str, run: Callable[[], None]) -> None:
        """Start a thread unless it runs."""
        with self._lock:
            running = self._threads.get(name)
            if self._closed.is_set() or (running is not None and running.is_alive()):
                return
            thread = threading.Thread(target=run, name=name, daemon=True)
            self._threads[name] = thread
            thread.start()

    def _look_on(self) -> None:
        """Sort the ranges by who leads their sources, again and again, and see that they go on."""
        while not self._closed.is_set():
            self._woken.clear()
            if not self.sort():
                self._woken.wait()
                continue
            for leader in self.leaders:
                self._start(
                    f"reshard streams from {leader}", functools.partial(self._follow_on, leader)
                )
            if self._not_backfilled:
                for number in range(self._host.settings.reshard_threads):
                    self._start(f"backfills {number}", self._backfill_on)
            self._woken.wait(_LOOK_SECONDS)

    def sort(self) -> bool:
        """Sort the ranges by who leads their sources; whether the zone has a next layout."""
        self._sort(self._streams())
        self._rate_share = self._share_of_rate()
        return layouts.next_layout_of(self._host.zone.state.config) is not None

    @property
    def leaders(self) -> tuple[NodeId, ...]:
        """Who leads sources whose logs are to be followed."""
        return tuple(self._by_leader)

    def _streams(self) -> list[ReshardStream]:
        new = layouts.next_layout_of(self._host.zone.state.config)
        if new is None:
            return []
        targets = [each for each in self._host.partitions() if each.partition_id in new.ids]
        return [stream for target in targets for stream in target.reshard_streams.streams()]

    def _sort(self, streams: Sequence[ReshardStream]) -> None:
        by_leader: dict[NodeId, list[ReshardStream]] = {}
        not_backfilled: list[tuple[NodeId, ReshardStream]] = []
        for stream in streams:
            leader = self._leader_of(stream)
            if leader is None or stream.ended:
                continue
            by_leader.setdefault(leader, []).append(stream)
            if not stream.backfilled:
                not_backfilled.append((leader, stream))
        with self._lock:
            self._by_leader = by_leader
            # In the order in which they had their turns.
            turns = {stream: turn for turn, (_, stream) in enumerate(self._not_backfilled)}
            not_backfilled.sort(key=lambda each: turns.get(each[1], len(turns)))
            self._not_backfilled = deque(not_backfilled)

    # --- who leads a source ----------------------------------------------------------------------

    def _leader_of(self, stream: ReshardStream) -> NodeId | None:
        """Return who leads a source by the newest of what is known."""
        known = [stream.leader_hint]
        record = self._host.zone.record(stream.source)
        if record is not None:
            known.append((record.leader_epoch, record.leader))
        with contextlib.suppress(RezoneError):
            own = self._host.find(stream.source).record
            known.append((own.leader_epoch, own.leader))
        _, leader = max(known)
        return leader if leader >= 0 else None

    def _call(
        self, node: NodeId, request: Message, reply: type[Reply], timeout_seconds: float
    ) -> Reply:
        if node != self._host.node_id:
            return self._client(node).call(request, reply, timeout_seconds=timeout_seconds)
        answer = self._own_answers[type(request)](request)
        assert isinstance(answer, reply)  # noqa: S101 - each request has its answer
        return answer

    def _client(self, node: NodeId) -> NodeClient:
        address = self._host.zone.address(node)
        if not address:
            raise NotReadyError(f"the address of node {node} is not known")
        with self._lock:
            client = self._clients.get(node)
            if client is None or client.address != address:
                # An old one is dropped and not closed: another thread may be in a call on it.
                client = self._clients[node] = self._connect(address)
            return client

    # --- following logs --------------------------------------------------------------------------

    def _follow_on(self, leader: NodeId) -> None:
        """Follow the logs of all sources that a node leads, until there are none."""
        while not self._closed.is_set() and self._by_leader.get(leader):
            if not self.follow(leader):
                self._closed.wait(_WAIT_SECONDS)

    def follow(self, leader: NodeId) -> bool:
        """Ask a node once for what the logs of its sources have; whether there was what to ask."""
        streams = self._by_leader.get(leader, ())
        asked = [(stream, at) for stream in streams if (at := stream.next_catch_up()) is not None]
        if asked:
            self._ask(leader, asked)
        return bool(asked)

    def _ask(self, leader: NodeId, asked: list[tuple[ReshardStream, CatchUpRange]]) -> None:
        settings = self._host.settings
        all_asked = len(asked) == len(self._by_leader.get(leader, ()))
        # Those that wait for their own commits are not waited for long.
        poll_ms_max = settings.reshard_poll_ms if all_asked else _POLL_OTHERS_MS_MAX
        request = ReshardCatchUp(
            ranges=tuple(at for _, at in asked),
            bytes_max=settings.reshard_chunk_bytes,
            timeout_ms=min(settings.reshard_poll_ms, poll_ms_max),
            linger_ms=settings.reshard_linger_ms,
        )
        seconds = settings.reshard_poll_ms / 1000 + _CATCH_UP_GRACE_SECONDS
        try:
            catch_ups = self._call(leader, request, CatchUps, seconds).catch_ups
        except RezoneError as error:
            for stream, _ in asked:
                stream.failed(stream.catch_up, error)
            self._woken.set()
            return
        for (stream, at), catch_up in zip(asked, catch_ups, strict=True):
            try:
                stream.caught_up(at, catch_up)
            except RezoneError as error:
                stream.failed(stream.catch_up, error)
            if catch_up.error is not None:
                self._woken.set()

    # --- rows ------------------------------------------------------------------------------------

    def _backfill_on(self) -> None:
        """Fetch rows for one range after the other, until all are backfilled."""
        while not self._closed.is_set() and self._not_backfilled:
            if not self.backfill():
                self._closed.wait(_WAIT_SECONDS)

    def backfill(self) -> bool:
        """Fetch the next rows of the range whose turn it is; whether there is one."""
        turn = self._next_turn()
        if turn is None:
            return False
        leader, stream, request = turn
        try:
            self._fetch(leader, stream, request)
        except RezoneError as error:
            stream.failed(stream.backfill, error)
            self._woken.set()
        finally:
            with self._lock:
                self._fetching.discard(stream)
        return True

    def _fetch(
        self, leader: NodeId, stream: ReshardStream, request: BeginReshard | ReshardBackfill
    ) -> None:
        seconds = _BACKFILL_TIMEOUT_SECONDS
        if isinstance(request, BeginReshard):
            stream.begun(self._call(leader, request, ReshardBegun, seconds))
            return
        reply = self._call(leader, request, BackfillVersions, seconds)
        with self._lock:
            self._rate.owe(len(reply.versions))
            self.fetched_bytes += len(reply.versions)
        # The reading has rested by itself, also where the source is on this node.
        steps = CopySteps(self._host.foreground, BACKFILL_WEIGHT)
        stream.backfilled_with(request, reply)
        if reply.end:
            self._woken.set()
        steps.throttle()

    def _next_turn(self) -> tuple[NodeId, ReshardStream, BeginReshard | ReshardBackfill] | None:
        """Return whose turn it is, and its request; None when nobody may go on now."""
        with self._lock:
            if self._rate.owed_seconds > 0:
                return None
            turns = [turn for turn in self._not_backfilled if turn[1] not in self._fetching]
        most = self._host.settings.reshard_chunk_bytes
        size = self._host.foreground.step_bytes(most)
        for turn in turns:
            leader, stream = turn
            request = stream.next_backfill(size)
            if request is not None and self._takes(turn):
                return leader, stream, request
        return None

    def _takes(self, turn: tuple[NodeId, ReshardStream]) -> bool:
        """Put a range to the end of the queue; whether no other thread has taken it."""
        with self._lock:
            if turn[1] in self._fetching:
                return False
            self._fetching.add(turn[1])
            with contextlib.suppress(ValueError):
                self._not_backfilled.remove(turn)
                self._not_backfilled.append(turn)
            return True

    def _share_of_rate(self) -> int:
        """Return this node's share of the zone's bytes per second for copies; 0 is no limit."""
        zone = self._host.zone
        config = zone.state.config
        new = layouts.next_layout_of(config)
        if not config.copy_bytes_per_second_max or new is None:
            return config.copy_bytes_per_second_max
        leaders = {record.leader for p in new.ids if (record := zone.record(p)) is not None}
        return max(1, config.copy_bytes_per_second_max // max(1, len(leaders)))
