"""What leaders and followers say to each other: connections, streams, leases, takeovers."""

import msgspec

from rezone.wire.errors import ErrorInfo
from rezone.wire.messages.base import Message, NodeId, PartitionId
from rezone.wire.messages.records import FailoverEntry, IndexPosition, TakeoverState
from rezone.wire.ranges import Count, CountOrNone, Unsigned32

# --- replication channel: consumer (follower's node) <-> producer (leader's node) -----------


class OpenConnection(Message, frozen=True):
    """First frame of a replication channel: its name, the same on both sides (DCP-01).

    `beats`: the consumer knows heartbeats, and answers them.
    """

    name: str
    node: NodeId
    zone_uid: str
    beats: bool = False


class ConnectionClosed(Message, frozen=True):
    """The serving side's last frame on any channel: its state is gone, the other side hangs up."""

    reason: str


class StreamRequest(Message, frozen=True):
    """Ask for a partition's log from `high_offset` on (DCP-03).

    `max_fetch_bytes` is the credit until the first ack: entries may follow the answer at once.
    `stopped_ms`: how long ago the consumer has stopped to lead, for this very leader; -1 of others.
    """

    opaque: Count
    partition: PartitionId
    high_offset: Count
    partition_uuid: str
    leader_epoch: Unsigned32
    max_fetch_bytes: Count = 0
    stopped_ms: CountOrNone = -1


class StreamOk(Message, frozen=True):
    """The stream runs (DCP-04); the consumer persists the failover log over its own.

    `in_sync`: the leader's record, of `partition_epoch`, counts the consumer as in sync.
    `time_floor`: who leads later gives its rows later times (microseconds).
    """

    opaque: Count
    partition: PartitionId
    leader_epoch: Unsigned32
    failover_log: tuple[FailoverEntry, ...]
    committed_offset: Count
    in_sync: bool = True
    partition_epoch: Count = 0
    time_floor: Count = 0


class StreamRollback(Message, frozen=True):
    """Roll back to at least `offset` and ask again (DCP-05)."""

    opaque: Count
    partition: PartitionId
    offset: Count


class StreamNeedsSnapshot(Message, frozen=True):
    """The log no longer reaches back to the consumer's offset; it must copy a snapshot first."""

    opaque: Count
    partition: PartitionId
    log_start_offset: Count


class StreamRefused(Message, frozen=True):
    """The stream cannot be made; the error says why (not leader, stale epoch, limit)."""

    opaque: Count
    partition: PartitionId
    error: ErrorInfo


class NodeClock(msgspec.Struct, frozen=True, array_like=True):
    """What a node's clock says, in microseconds: the times that it gives, and its time of day.

    `agreed`: others had the same time since it began. `stamp` is its monotonic clock, `echo` the
    last stamp of the other end, 0 before there is one, which it had got `held` before.
    """

    time: Count
    wall: Count
    agreed: bool
    stamp: Count
    echo: Count = 0
    held: Count = 0


class LeaseRequest(Message, frozen=True):
    """A leader's node asks for read leases, for all partitions of the channel at once.

    `time`: up to this one it may have been read at; who leads later gives no write such a time. 0
    while the node does not know the time.
    """

    round: Count
    time: Count
    clock: NodeClock | None = None


class LeaseGrant(Message, frozen=True):
    """None of the consumer's replicas will commit as a later leader for `lease_ms`.

    That is promised for every stream of the channel but those of the partitions in `left`: their
    streams do not run, or their replicas follow another leader by now.
    """

    round: Count
    lease_ms: Count
    left: tuple[PartitionId, ...] = ()
    clock: NodeClock | None = None


class Entries(Message, frozen=True):
    """Log entries, whole and in order; body: their raw bytes."""

    partition: PartitionId
    leader_epoch: Unsigned32
    committed_offset: Count


class CommitOffset(msgspec.Struct, frozen=True, array_like=True):
    """One stream of a CommitOffsets."""

    partition: PartitionId
    leader_epoch: Unsigned32
    committed_offset: Count


class CommitOffsets(Message, frozen=True):
    """New commit offsets of streams that have had no entries since."""

    streams: tuple[CommitOffset, ...]


class ClosedTime(msgspec.Struct, frozen=True, array_like=True):
    """One stream of a ClosedTimes: all rows that will ever have a time up to `time`.

    They stand below `end_offset`; they can be read where that is committed and applied.
    """

    partition: PartitionId
    leader_epoch: Unsigned32
    end_offset: Count
    time: Count


class ClosedTimes(Message, frozen=True):
    """Times that a leader has closed; with each round of leases, for as long as it serves."""

    streams: tuple[ClosedTime, ...]


class FetchLog(Message, frozen=True):
    """What the consumer holds durably, and how much more it takes (HS-03).

    `opaque` is that of the stream's request: an ack of an earlier stream counts for nothing.
    `leaving`: the consumer is about to stop, and had better not be waited for. `index` is said by
    the candidate of a takeover alone (DCP-08), as is `ready_epoch`: the epoch it waits to lead in.
    `throttle_ms`, of a replica that is being backfilled: for how long its node's clients come
    first. `sync_ms`: how long the syncs of the consumer's disk take, 0 while that is unknown;
    `slow_ms`: the same while it is long. `uncompared`: it is a copy that nobody has compared with
    its source, so it must not lead (B-04).
    """

    partition: PartitionId
    fetch_offset: Count
    max_fetch_bytes: Count
    kv_applied_offset: Count
    opaque: Count = 0
    leaving: bool = False
    index: IndexPosition | None = None
    ready_epoch: Unsigned32 = 0
    throttle_ms: Count = 0
    sync_ms: Count = 0
    slow_ms: Count = 0
    uncompared: bool = False


class SetState(Message, frozen=True):
    """The producer's state change (DCP-10): Pending, then, as the very last message, Active.

    With Active the producer gives up its read leases. `hold_ms`: how long it would itself still
    have held commits back, because a leader before it may have leases. `time_floor`: the latest
    time that was read at; every later write gets a later one. `index`, with Active: where the
    producer's indexer was stopped; the consumer's is there, or it does not lead (DCP-08).
    """

    partition: PartitionId
    state: TakeoverState
    leader_epoch: Unsigned32
    next_epoch: Unsigned32
    isr: tuple[NodeId, ...]
    replicas: tuple[NodeId, ...]
    end_offset: Count
    eligible: tuple[NodeId, ...] = ()
    hold_ms: Count = 0
    time_floor: Count = 0
    index: IndexPosition | None = None


class CloseStream(Message, frozen=True):
    """End a stream (DCP-12); the consumer refuses what is still on the wire."""

    partition: PartitionId


class StreamEnd(Message, frozen=True):
    """The last message of a stream; `leader`/`leader_epoch` name the new leader when known.

    `released_epoch`: the producer has given up its read leases of this epoch, the stream's.
    """

    partition: PartitionId
    reason: str
    leader: NodeId | None = None
    leader_epoch: Unsigned32 | None = None
    released_epoch: Unsigned32 = 0
