"""Scans and lookups: the rows of a range of hashes, from whoever serves it.

A range is asked for segment by segment (`placement`). Each stream tells first of when its rows are.
One that breaks off goes on at another replica, as of that time, behind the last row that came; so
the rows are those of one time and come once, whatever happens to leaders, followers and
layouts meanwhile. When others serve the range by then, what is left of it is cut again.

Rows of the newest state come from leaders. Those as of a time may come from followers, which are
asked first then (`anywhere`); the leader's answer is the one that counts.

Concurrency: any thread may read; each stream belongs to the thread that iterates over it.
"""

import contextlib
import dataclasses
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from rezone.client.requests.dispatch import Dispatcher
from rezone.client.requests.traced_streams import StreamTrace
from rezone.client.settings import ClientSettings
from rezone.wire import messages
from rezone.wire.codec.encoded_rows import encoded_rows
from rezone.wire.codec.keyspace import hash_in
from rezone.wire.codec.rows import RowCodec
from rezone.wire.errors import (
    CorruptionError,
    NotLeaderError,
    NotReadyError,
    ReshardedError,
    RezoneError,
)
from rezone.wire.layouts import HashRange, Segment
from rezone.wire.messages import (
    IndexTicket,
    NodeId,
    OwnWrites,
    PartitionId,
    RowsAsOf,
    ScanTicket,
    SelectedUpTo,
    SelectTicket,
)
from rezone.wire.transport.fetch import Fetch

Ticket = ScanTicket | IndexTicket | SelectTicket


@dataclasses.dataclass(frozen=True)
class Rest:
    """What is left of a range: its hashes, of which time its rows are, behind which row id.

    No time: the newest of whoever is asked. `cursor`: where a selection goes on.
    """

    hashes: HashRange
    as_of: int | None
    after: bytes = b""
    cursor: bytes = b""


class Own(NamedTuple):
    """A transaction that reads: its partition, and what it has written."""

    partition: PartitionId
    writes: OwnWrites


class OneReplica(NamedTuple):
    """The one replica that may be asked: of which partition, on which data node."""

    partition: PartitionId
    node: NodeId


class Streams:
    """Streams rows; routes must have been fetched before."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        settings: ClientSettings,
        *,
        clock: Callable[[], float],
        fetch_routes: Callable[[], object],
    ) -> None:
        self._dispatcher = dispatcher
        self._settings = settings
        self._clock = clock
        self._fetch_routes = fetch_routes

    def scan(
        self,
        codec: RowCodec,
        hashes: HashRange,
        as_of: int | None = None,
        *,
        anywhere: bool = False,
        own: Own | None = None,
        replica: OneReplica | None = None,
    ) -> Iterator[Any]:
        """Yield the rows of a range of hashes as record batches, in the order of row ids.

        `own`: as a transaction sees them. `replica`: from no other one, which needs `as_of`. Raises
        ReshardedError for both when others serve the range by now.
        """
        asked = own or replica
        only, node = asked and asked.partition, replica and replica.node
        with self.trace("scan") as trace:
            walk = Walk(self, trace, hashes, as_of, anywhere=anywhere, only=only, node=node)
            for segment, rest in walk:
                ticket = ScanTicket(
                    partition=segment.partition,
                    as_of=rest.as_of,
                    after=rest.after,
                    own=own and own.writes,
                    hash_start=segment.start,
                    hash_end_inclusive=segment.end - 1,
                )
                with walk.trying(segment.partition):
                    for batch in walk.batches(ticket):
                        walk.came_to(_last_row_id(codec, batch))
                        yield batch

    def lookup(
        self,
        hashes: HashRange,
        ticket: Callable[[Segment, int | None], IndexTicket],
        as_of: int | None = None,
        *,
        trace: StreamTrace,
        anywhere: bool = False,
        only: PartitionId | None = None,
    ) -> list[Any]:
        """Return what a lookup finds in a range of hashes; each segment is asked as a whole.

        Others may read other ranges of the same lookup meanwhile: `trace` is of all.

        ReshardedError when others serve it than the `only` partition that may be asked.
        """
        walk = Walk(self, trace, hashes, as_of, anywhere=anywhere, only=only)
        found: list[Any] = []
        for segment, rest in walk:
            with walk.trying(segment.partition):
                found += list(walk.batches(ticket(segment, rest.as_of)))
        return found

    def select(
        self,
        ticket: Callable[[Segment], SelectTicket | None],
        hashes: HashRange,
        as_of: int | None,
        *,
        anywhere: bool,
    ) -> Iterator[Any]:
        """Yield what a selection finds in a range of hashes, as record batches.

        `ticket` says what to ask who serves a segment, None for one that has no such rows; where it
        goes on is put into it.
        """
        with self.trace("select") as trace:
            walk = Walk(self, trace, hashes, as_of, anywhere=anywhere, only=None)
            for segment, rest in walk:
                asked = ticket(segment)
                if asked is None:
                    continue
                asked = msgspec.structs.replace(asked, as_of=rest.as_of, cursor=rest.cursor)
                with walk.trying(segment.partition):
                    yield from walk.batches(asked)

    # --- what a walk asks ---------------------------------------------------------------------

    @property
    def deadline(self) -> float:
        """When a segment that gives nothing from now on is given up, by the client's clock."""
        return self._clock() + self._settings.timeout_seconds

    def is_past(self, deadline: float) -> bool:
        """Whether a deadline is over."""
        return self._clock() >= deadline

    def cut(self, hashes: HashRange) -> tuple[Segment, ...]:
        """Return who serves which part of a range."""
        return self._dispatcher.placement.segments(hashes)

    def follower(self, partition: PartitionId, besides: set[str]) -> str | None:
        """Return the address of a follower that may be asked, if there is another one."""
        return self._dispatcher.follower(partition, besides)

    def leader(self, partition: PartitionId) -> str:
        """Return the address of the leader; NotReadyError when it is not known."""
        leader = self._dispatcher.leader(partition)
        if leader is None:
            raise NotReadyError(f"no leader is known for partition {partition}")
        return leader.address

    def address(self, node: NodeId) -> str:
        """Return the address of a node; NotReadyError when it is not known."""
        address = self._dispatcher.address(node)
        if address is None:
            raise NotReadyError(f"no address is known of data node {node}")
        return address

    def trace(self, operation: str) -> StreamTrace:
        """Return the spans of a stream that begins."""
        return StreamTrace(self._dispatcher.tracer, operation)

    def open(self, address: str, ticket: Ticket) -> Fetch:
        """Ask a node."""
        node = self._dispatcher.node(address)

        def is_there() -> bool:
            # What is asked next must not wait for what this connection has to send again.
            node.renew()
            return False

        return Fetch(lambda: node.get(ticket), self._settings.attempt_timeout_seconds, is_there)

    def learn(self, partition: PartitionId, error: RezoneError, attempt: int) -> None:
        """Take over what an error says of routes; when that is not enough, fetch them."""
        if isinstance(error, ReshardedError) and self._dispatcher.reshard(partition, error):
            return
        named = isinstance(error, NotLeaderError) and self._dispatcher.correct(partition, error)
        if not named or attempt > self._settings.redirects_max:
            self._dispatcher.pause(attempt)
            self._fetch_routes()


class Walk:
    """One reading of a range: iterate over the segments, and read each within `trying`.

    A segment whose reading has failed comes again, or what is left of it. It is tried until the
    timeout after it has given something, and as often as there are replicas. With `only` no
    other partition is asked: ReshardedError when others serve a part of the range. With `node` no
    other node is: what has failed is tried there again.
    """

    def __init__(
        self,
        streams: Streams,
        trace: StreamTrace,
        hashes: HashRange,
        as_of: int | None,
        *,
        anywhere: bool,
        only: PartitionId | None,
        node: NodeId | None = None,
    ) -> None:
        self._streams = streams
        self._trace = trace
        self._anywhere = anywhere
        self._only = only
        self._node = node
        self._left = deque([Rest(hashes, as_of)])
        self._rest = self._left[0]
        self._refused: set[str] = set()
        self._asked_follower = False
        self._attempt = 0
        self._deadline = streams.deadline

    def __iter__(self) -> Iterator[tuple[Segment, Rest]]:
        """Yield a segment and what is left of it, until all is read."""
        while self._left:
            yield self._next()

    def _next(self) -> tuple[Segment, Rest]:
        rest = self._left.popleft()
        segment, *others = self._streams.cut(rest.hashes)
        if self._only not in (None, segment.partition):
            raise ReshardedError(f"partition {self._only} was re-sharded")
        self._left.extendleft(
            dataclasses.replace(rest, hashes=one.hashes) for one in reversed(others)
        )
        self._rest = dataclasses.replace(rest, hashes=segment.hashes)
        return segment, self._rest

    def batches(self, ticket: Ticket) -> Iterator[Any]:
        """Yield the batches that have rows; what they tell of their time is kept."""
        address = self._chosen(ticket.partition)
        with self._trace.asking(ticket) as asking:
            chunks = self._streams.open(address, asking.ticket)
            try:
                for chunk in chunks:
                    if chunk.app_metadata is not None:
                        self._told(_message_in(chunk.app_metadata), ticket)
                    if chunk.data is not None and chunk.data.num_rows:
                        asking.rows += chunk.data.num_rows
                        yield chunk.data
                        self._went_well()  # counted from when more was asked for
            finally:
                chunks.cancel()

    def _chosen(self, partition: PartitionId) -> str:
        """Return the address of who is asked now."""
        if self._node is not None:
            return self._streams.address(self._node)
        follower = None
        if self._anywhere:
            follower = self._streams.follower(partition, self._refused)
        self._asked_follower = follower is not None
        address = follower or self._streams.leader(partition)
        self._refused.add(address)  # asked again when the leader was, and has failed too
        return address

    def _told(self, told: messages.Message, ticket: Ticket) -> None:
        if isinstance(told, SelectedUpTo) and isinstance(ticket, SelectTicket):
            self._rest = dataclasses.replace(self._rest, cursor=told.cursor)
            if not ticket.index:
                end = self._rest.hashes.end
                hashes = HashRange(min(hash_in(told.cursor), end - 1), end)
                self._rest = dataclasses.replace(self._rest, hashes=hashes)
            self._went_well()
            return
        if not isinstance(told, RowsAsOf):
            raise CorruptionError(f"the node has answered {type(told).__name__} beside rows")
        self._rest = dataclasses.replace(self._rest, as_of=told.as_of)

    def came_to(self, row_id: bytes) -> None:
        """Note the last row that came: what follows is all that is left."""
        self._rest = dataclasses.replace(
            self._rest,
            hashes=HashRange(hash_in(row_id), self._rest.hashes.end),
            after=row_id,
        )

    @contextlib.contextmanager
    def trying(self, partition: PartitionId) -> Iterator[None]:
        """Read one segment, of a partition; what has failed is tried again, or raised."""
        try:
            yield
        except RezoneError as error:
            self._failed(partition, error)
        else:
            self._refused.clear()
            self._went_well()

    def _went_well(self) -> None:
        self._attempt = 0
        self._deadline = self._streams.deadline

    def _failed(self, partition: PartitionId, error: RezoneError) -> None:
        final = not error.retryable and not self._asked_follower
        final = final or (self._only is not None and isinstance(error, ReshardedError))
        if final or self._streams.is_past(self._deadline):
            raise error
        self._left.appendleft(self._rest)
        if self._asked_follower and not isinstance(error, ReshardedError):
            return
        self._attempt += 1
        self._refused.clear()
        self._streams.learn(partition, error, self._attempt)


def _message_in(metadata: Any) -> messages.Message:
    """Return what came beside rows; CorruptionError when it is no message."""
    try:
        return messages.decode(memoryview(metadata))
    except msgspec.MsgspecError as error:
        raise CorruptionError(f"what came beside rows cannot be read: {error}") from error


def _last_row_id(codec: RowCodec, batch: Any) -> bytes:
    return encoded_rows(codec, batch.slice(batch.num_rows - 1)).row_id_list()[0]
