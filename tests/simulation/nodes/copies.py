"""The copies of a simulated zone: the real sender, copy loop and receiver on streams that break.

A `Carrier` brings one snapshot to its receivers: a node that pulls for itself, or a third, as the
Spark task is. It repeats the steps of the real `Relay` and its `Feed`s, in an order that the seed
decides. `SourceStream` is a DoGet as a reader sees it: some batches are always under way. `Put` is
a DoPut: what was written arrives later, also after its writer has died, which nobody may notice for
a while.
"""

from __future__ import annotations

import collections
import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from rezone.datanode.copying.copies import (
    LocalSink,
    Receiver,
    current_state,
    failure_of,
    snapshot_stream,
)
from rezone.storage.snapshot.throttle import unthrottled
from rezone.wire import messages
from rezone.wire.copying.copy import CopyOptions, CopyReceipt, Feed, Relay
from rezone.wire.errors import NotReadyError, RezoneError
from rezone.wire.messages import (
    CopyFailure,
    CopyProgress,
    CopyState,
    NodeId,
    PartitionId,
    SnapshotTicket,
)
from simulation.nodes.copy_node import CopyNode
from simulation.nodes.disk import MachineDiedError

if TYPE_CHECKING:
    from rezone.datanode.replica.replica import Replica
    from rezone.storage.snapshot.checkpoints import FileSnapshot
    from rezone.storage.snapshot.snapshot import SnapshotSource
    from simulation.nodes.network import Network
    from simulation.nodes.node import SimulatedNode

AHEAD_BATCHES_MAX = 3
"""So many batches of a stream are under way to its reader at most."""

WIRE_BATCHES_MAX = 3
"""So many batches of a DoPut are under way at most: then the writer waits."""


class Chunk(NamedTuple):
    """What a Flight reader gives."""

    data: Any
    app_metadata: Any


class CopyWorld:
    """What copies need of the world; `opened` and `begun` are told what was sent and taken."""

    network: Network
    rng: random.Random
    counts: collections.Counter[str]

    def opened(self, node: CopyNode, source: SnapshotSource | FileSnapshot) -> None:
        """Note what a snapshot shows, which was opened just now."""
        raise NotImplementedError

    def begun(self, partition: Replica, chunk: Chunk) -> None:
        """Note that a receiver has taken a header."""
        raise NotImplementedError

    def taken(self, message: messages.Message) -> None:
        """Note what a receiver has taken."""
        raise NotImplementedError

    def edge(self, partition: Replica) -> None:
        """Let a receiver die at the first or the last of a copy, perhaps."""
        raise NotImplementedError

    def ended(self, partition: Replica) -> None:
        """Check a receiver that has just taken the last of a copy."""
        raise NotImplementedError

    def bury(self, died: MachineDiedError) -> None:
        """Take a node away whose machine has died."""
        raise NotImplementedError

    def breaks(self) -> bool:
        """Whether a stream breaks at this batch."""
        raise NotImplementedError

    def link(self, node: NodeId | None, other: SimulatedNode) -> bool:
        """Whether the process at a node, or elsewhere, reaches this life of another node."""
        if self.network.nodes.get(other.node_id) is not other:
            return False
        return node is None or self.network.linked(node, other.node_id)

    def reach(self, node: NodeId | None, other: NodeId) -> CopyNode:
        """Return a node; NotReadyError when it is not reached."""
        found = self.network.node(other)
        assert isinstance(found, CopyNode)
        if not self.link(node, found):
            raise NotReadyError(f"no connection to node {other}", unreachable=1)
        return found


class SourceStream(Iterator[Chunk]):
    """A DoGet under way."""

    def __init__(self, world: CopyWorld, reader: NodeId | None, node: CopyNode) -> None:
        self.node = node
        self.schema: Any = None
        self._world = world
        self._reader = reader
        self._ahead: collections.deque[Chunk] = collections.deque()
        self._batches: Any = iter(())

    def open(self, ticket: SnapshotTicket) -> None:
        """Have the node open its snapshot, as its server does."""
        node = self.node
        try:
            source = node.open_source(node.find(ticket.partition), ticket)
        except MachineDiedError as died:
            self._world.bury(died)
            raise NotReadyError(f"node {node.node_id} does not answer", unreachable=1) from died
        self._world.opened(node, source)
        self.schema = source.schema
        self._batches = snapshot_stream(source, node.foreground)

    def __next__(self) -> Chunk:
        world = self._world
        if not world.link(self._reader, self.node) or world.breaks():
            world.counts["broken streams"] += 1
            self._close_some_time()
            raise NotReadyError(f"the stream of node {self.node.node_id} broke", unreachable=1)
        wanted = world.rng.randint(1, AHEAD_BATCHES_MAX)
        while len(self._ahead) < wanted and (batch := next(self._batches, None)) is not None:
            self._ahead.append(Chunk(*batch))
        if not self._ahead:
            raise StopIteration
        return self._ahead.popleft()

    def cancel(self) -> None:
        """End the stream, which its source hears of."""
        self._batches.close()

    def _close_some_time(self) -> None:
        """Let the source hear of the break, or keep a snapshot that nobody reads any more."""
        if self._world.rng.random() < 0.5:
            self._batches.close()
        else:
            self.node.left_unread.append(self._batches)


class SourceLine:
    """A source as the copy loop calls it, in place of `NodeClient`."""

    def __init__(self, world: CopyWorld, reader: NodeId | None, source: NodeId) -> None:
        self._world = world
        self._reader = reader
        self._source = source
        self.stream: SourceStream | None = None

    def get(self, ticket: SnapshotTicket) -> SourceStream:
        """Open the stream."""
        node = self._world.reach(self._reader, self._source)
        stream = SourceStream(self._world, self._reader, node)
        stream.open(ticket)
        self.stream = stream
        return stream


class NotedReceiver(Receiver):
    """The real receiver; the world looks at what it has taken."""

    def __init__(self, world: CopyWorld, partition: Replica, attempt: str) -> None:
        super().__init__(partition, attempt, unthrottled)
        self._world = world
        self._partition = partition

    def take(self, batch: Any, metadata: Any) -> CopyState | None:
        """Take one batch."""
        first = self._loader is None
        if first or not batch.num_rows:
            self._world.edge(self._partition)
        state = super().take(batch, metadata)
        if first:
            self._world.begun(self._partition, Chunk(batch, metadata))
        self._world.taken(messages.decode(memoryview(metadata)))
        if state is not None and state.done:
            self._world.ended(self._partition)
        return state


class PullSink(LocalSink):
    """The receiver of a node that pulls."""

    def __init__(self, world: CopyWorld, partition: Replica, attempt: str) -> None:
        super().__init__(partition, attempt, partition.host.foreground)
        self.node_id = partition.node_id
        self._world = world
        self._partition = partition

    def open(self, schema: Any) -> None:
        """Begin."""
        del schema
        self._receiver = NotedReceiver(self._world, self._partition, self._attempt)
        self._receiver.begin()


class Put:
    """A DoPut under way, at the node that receives it."""

    def __init__(
        self, world: CopyWorld, node: CopyNode, partition: PartitionId, attempt: str
    ) -> None:
        self.node = node
        self.error: RezoneError | None = None
        self.state: CopyState | None = None
        self.written_to_its_end = False
        self._world = world
        self._wire: collections.deque[Chunk] = collections.deque()
        self._receiver = NotedReceiver(world, node.find(partition), attempt)
        self._receiver.begin()

    @property
    def full(self) -> bool:
        """Whether the writer has to wait."""
        return len(self._wire) >= WIRE_BATCHES_MAX

    @property
    def over(self) -> bool:
        """Whether the node has done with it."""
        return self.error is not None or not self._world.link(None, self.node)

    def write(self, chunk: Chunk) -> None:
        """Put a batch on the way."""
        self._wire.append(chunk)

    def step(self) -> None:
        """Let the node take what comes next, or end."""
        if self.over:
            return
        try:
            if self._wire:
                self.state = self._receiver.take(*self._wire.popleft()) or self.state
            elif self.written_to_its_end:
                self._end()
        except RezoneError as error:
            self._receiver.abort(str(error), failure_of(error))
            self.error = error
        except MachineDiedError as died:
            self._world.bury(died)
            self._world.counts["receivers died"] += 1

    def _end(self) -> None:
        self.error = NotReadyError("the stream has ended")
        if self.state is None or not self.state.done:
            self._receiver.abort("the stream ended before the snapshot", CopyFailure.SOURCE)


class PutSink:
    """A receiver on another node, as the copy loop sees it."""

    def __init__(
        self,
        world: CopyWorld,
        writer: NodeId | None,
        target: NodeId,
        partition: PartitionId,
        attempt: str,
    ) -> None:
        self.name = f"node {target}"
        self.bytes_per_second_max: int | None = None
        self._world = world
        self._writer = writer
        self.node_id = target
        self._partition = partition
        self._attempt = attempt
        self.put: Put | None = None

    def state(self) -> CopyState:
        """Ask where the copy stands."""
        node = self._world.reach(self._writer, self.node_id)
        # The storm's copies are all admitted: that is the coordinator's matter.
        return msgspec.structs.replace(current_state(node.find(self._partition)), admitted=None)

    def open(self, schema: Any) -> None:
        """Open the stream."""
        del schema
        node = self._world.reach(self._writer, self.node_id)
        self.put = Put(self._world, node, self._partition, self._attempt)
        node.puts.append(self.put)

    def write(self, batch: Any, metadata: Any) -> None:
        """Send one batch; waits while too many are under way."""
        put = self._reached()
        while put.full and not put.over:
            put.step()
        self._reached().write(Chunk(batch, metadata))

    def finish(self) -> CopyState:
        """Wait until the node has all."""
        put = self._reached()
        put.written_to_its_end = True
        while not put.over:
            put.step()
        if put.state is None or not put.state.done:
            raise put.error or NotReadyError(f"{self.name} does not answer", unreachable=1)
        return put.state

    def abort(self) -> None:
        """Break off; the node may hear of it late."""
        if self.put is not None and self._world.rng.random() < 0.7:
            self.put.written_to_its_end = True

    def _reached(self) -> Put:
        put = self.put
        assert put is not None
        if put.error is not None:
            raise put.error
        if not self._world.link(self._writer, put.node):
            raise NotReadyError(f"no connection to {self.name}", unreachable=1)
        if self._world.breaks():
            self._world.counts["broken puts"] += 1
            raise NotReadyError(f"the stream to {self.name} broke", unreachable=1)
        return put


class Carrier:
    """One copy under way; `holder` is the node that pulls, None for a third."""

    def __init__(
        self,
        world: CopyWorld,
        partition: PartitionId,
        source: NodeId,
        sinks: Sequence[PullSink | PutSink],
        *,
        holder: Replica | None,
        options: CopyOptions,
        name: str,
    ) -> None:
        self.holder = holder
        self.targets = [sink.node_id for sink in sinks]
        self.line = SourceLine(world, None if holder is None else holder.node_id, source)
        self.relay = Relay(
            partition,
            self.line,
            sinks,
            reader=name,
            options=options,
            cancelled=lambda: holder is not None and holder.closed,
            clock=holder.clock.monotonic if holder is not None else lambda: 0.0,
        )
        self.receipts: list[CopyReceipt] | None = None
        self._rng = world.rng
        self._reading = False
        self.begun = False
        self._told_end = False
        self._writing: list[Feed] = []

    def step(self) -> None:
        """Do one step of one of its threads."""
        steps = self._steps()
        if steps:
            self._rng.choice(steps)()
        else:
            self.receipts = self.relay.receipts
            self._tell_holder()

    def _steps(self) -> list[Callable[[], None]]:
        """Return what its threads would do next, but for those that wait."""
        if not self.begun:
            return [self._begin]
        steps: list[Callable[[], None]] = [
            lambda feed=feed: self._write(feed)  # type: ignore[misc]
            for feed in self._writing
            if not _waits(feed)
        ]
        full = any(map(_is_full, self._writing))
        if not full and self._reading:
            steps.append(self.forward)
        elif not full and not self._told_end:
            steps.append(self._end)
        return steps

    def _begin(self) -> None:
        self.begun = True
        self._reading = self.relay.begin()
        self._writing = list(self.relay.feeds.values())

    def forward(self) -> None:
        """Read the next batch."""
        self._reading = self.relay.forward()

    def _end(self) -> None:
        self._told_end = True
        self.relay.end()

    def _write(self, feed: Feed) -> None:
        if not feed.write_next():
            self._writing.remove(feed)

    def _tell_holder(self) -> None:
        """Note why there is no copy, as `Pulls` does."""
        assert self.receipts is not None
        error = self.receipts[0].error
        if self.holder is not None and error:
            self.holder.show_copy(CopyProgress(error=error, failure=CopyFailure.SOURCE))

    def die(self) -> None:
        """End with the process that it runs in; others may notice late."""
        if self.line.stream is not None:
            with contextlib.suppress(RezoneError):
                self.line.stream._close_some_time()


def _waits(feed: Feed) -> bool:
    """Whether a feed's thread would wait for its reader."""
    return feed._opened and feed._queue.empty() and not feed._abort.is_set()


def _is_full(feed: Feed) -> bool:
    """Whether the reader would wait for a feed."""
    return not feed.error and feed._queue.full()
