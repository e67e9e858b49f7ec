"""What clients ask of data nodes: routes, reads, writes and transactions of one partition."""

import enum

import msgspec

from rezone.wire.messages.base import Message, NodeId, PartitionId, TraceContext
from rezone.wire.messages.records import PartitionAssignment, ZoneConfig
from rezone.wire.ranges import Count, CountOrNone, Unsigned, Unsigned32


class RoutesRequest(Message, frozen=True):
    """Ask any node for the route table it knows, of these partitions alone if there are any."""

    partitions: tuple[PartitionId, ...] = ()


class RouteTable(Message, frozen=True):
    """Where each partition is led, with the zone's config and the nodes' addresses."""

    config: ZoneConfig
    partitions: tuple[PartitionAssignment, ...]
    peers: dict[NodeId, str]


# --- data channel: client <-> data node (frames of a DoExchange named "data") ---------------


class TransactionBegin(Message, frozen=True):
    """Ask the partition's leader for the times of a new transaction; nothing of it is stored."""

    opaque: Count
    partition: PartitionId
    trace: TraceContext | None = None


class TransactionBegun(Message, frozen=True):
    """As of `read_time` all that was acknowledged is visible; `begun` is the leader's clock."""

    opaque: Count
    read_time: Count
    begun: Count


class TransactionTimes(msgspec.Struct, frozen=True, array_like=True):
    """What TransactionBegun has said, as a transaction's writes and reads carry it."""

    read_time: Count
    begun: Count


ORIGINAL_IDS_MAX = 8
"""Under so many names a write may have been sent before: one for each re-sharding that it met."""


class OriginalId(msgspec.Struct, frozen=True, array_like=True):
    """As what a batch was sent to a partition that was sealed then; it may have been applied.

    By the producer of the request, in its epoch. `digest`: of the rows (`wire.codec.producers`).
    """

    partition: PartitionId
    sequence: Unsigned
    digest: bytes


class ProducerOpen(Message, frozen=True):
    """Raise a producer's epoch: the leader of this partition gives those of this producer.

    It is the one that serves `wire.producers.home_hash`. Whoever had the epoch before is refused
    from then on at each partition that has seen the new one. `opening` is a fresh UUID for each
    client that opens, and `known_epoch` the newest epoch that it knows of, 0 at first: the epoch
    given is the next one. A higher one is there: ProducerFenced names it, and the client asks again
    with that, unless it is this opening's own, which is answered as before. So a late copy of a
    request opens nothing (docs/decisions/0287).
    """

    opaque: Count
    partition: PartitionId
    producer_id: str
    opening: str
    known_epoch: Unsigned32
    trace: TraceContext | None = None


class ProducerOpened(Message, frozen=True):
    """The epoch that nobody else has got; as durable as a write."""

    opaque: Count
    producer_epoch: Unsigned32


class WriteRequest(Message, frozen=True):
    """Write one batch to a partition; body: one Arrow IPC stream of one record batch.

    Upserts carry all columns of the zone, deletes the primary key's. A batch is all or nothing.
    `sequence` rises with each batch of the producer to the partition, from 1 in each epoch; a
    repeat of the last one is answered as before and not applied again. The same number with other
    rows is refused (SequenceReused), and so is an epoch below one that is known (ProducerFenced).
    `producer_epoch` is 0 for a producer without a name, whose id is fresh. `answers_seen` counts
    the answers that the client has read on this channel. With `transaction` the rows become intents
    of the transaction that `producer_id` names, and `sequence` counts that one's writes from 1.
    `original_ids`: the rows were a part of these batches; if one of them was applied, it is
    answered as a repeat (docs/decisions/0162).
    """

    opaque: Count
    partition: PartitionId
    producer_id: str
    sequence: Unsigned
    producer_epoch: Unsigned32 = 0
    delete: bool = False
    answers_seen: Count = 0
    transaction: TransactionTimes | None = None
    original_ids: tuple[OriginalId, ...] = ()
    trace: TraceContext | None = None


class WriteResult(Message, frozen=True):
    """The batch is on every in-sync replica's disk; `end_offset` is the offset after its rows.

    `leader_epoch` is that of the leadership that answers; a repeat may have been written under an
    earlier one. `paced_ms`: how long it had to wait for a replica to catch up (B-16).
    """

    opaque: Count
    end_offset: Count
    commit_time: Count
    leader_epoch: Unsigned32 = 0
    paced_ms: Count = 0


class TransactionEnd(Message, frozen=True):
    """Commit or abort a transaction, unless it is over; answered by TransactionResult either way.

    `sequence` of a commit is one more than that of the last write. An abort needs none, and is also
    how to ask for the outcome: after it the answer is final. `begun_in`: the transaction is of that
    partition, which was sealed since, and this one has the start of its range: only it may have to
    be heard before nothing is known of the transaction.
    """

    opaque: Count
    partition: PartitionId
    transaction: str
    sequence: Unsigned = 0
    commit: bool = False
    begun_in: PartitionId | None = None
    trace: TraceContext | None = None


class TransactionOutcome(enum.StrEnum):
    """How a transaction has ended; unknown: it wrote nothing, or nobody remembers it any more."""

    COMMITTED = "Committed"
    ABORTED = "Aborted"
    UNKNOWN = "Unknown"


class TransactionResult(Message, frozen=True):
    """How the transaction has ended, durably; the rest as in WriteResult, zeros when unknown."""

    opaque: Count
    outcome: TransactionOutcome
    end_offset: Count = 0
    commit_time: Count = 0
    leader_epoch: Unsigned32 = 0


class OwnWrites(msgspec.Struct, frozen=True, array_like=True):
    """Whose intents a read shall see: a transaction, the times it got, its writes so far."""

    transaction: str
    times: TransactionTimes
    sequence: Unsigned


class ReadRequest(Message, frozen=True):
    """Read rows by key; body: one Arrow IPC stream of one batch of the primary key's columns.

    `as_of` reads at a time instead of the newest committed state. With `max_age_ms` any replica
    answers at the newest time that it can, if that is no longer ago, by its own clock. With `own`
    the leader answers as of the transaction's read time, with its own writes on top.
    `answers_seen` as in WriteRequest.
    """

    opaque: Count
    partition: PartitionId
    as_of: Count | None = None
    own: OwnWrites | None = None
    max_age_ms: Count | None = None
    trace: TraceContext | None = None
    answers_seen: Count = 0


AGE_UNKNOWN_MS = -1
"""In place of an age that cannot be told: the time lies ahead of the clocks."""


class ReadResult(Message, frozen=True):
    """The rows found, absent keys left out; body: one Arrow IPC stream of one batch.

    They are the rows as of `as_of`: asked for that time, any replica gives the same ones.
    `age_ms`: how long ago that was by the replica's clock; 0 for the newest state, AGE_UNKNOWN_MS
    when that cannot be told.
    """

    opaque: Count
    rows: Count
    as_of: Count = 0
    age_ms: CountOrNone = 0


class LeaderMoving(Message, frozen=True):
    """News for a client that uses the leader: whom it is about to hand over to.

    Nobody else leads yet. But a client that has no connection there makes one now, and not when
    its writes wait for it. Unasked, and not promised.
    """

    address: str


class LeaderMoved(Message, frozen=True):
    """News for a client that has used the leader before: who leads now, and where (RM-10).

    Unasked, and not promised: who does not get it hears of the new leader by a refusal.
    """

    partition: PartitionId
    leader: NodeId
    address: str
    leader_epoch: Unsigned32


class ScanTicket(Message, frozen=True):
    """Scan visible rows of a partition as typed batches (DoGet), newest or as of a time.

    The first batch is empty and has `RowsAsOf` with it; other empty ones only say that the scan
    goes on. One that broke off goes on at any replica, `after` the row id of the last row that
    came, as of the time that was told. With `own` the leader answers as of the transaction's read
    time, with its own writes on top.
    """

    partition: PartitionId
    as_of: Count | None = None
    after: bytes = b""
    own: OwnWrites | None = None
    hash_start: Unsigned = 0
    hash_end_inclusive: Unsigned = (1 << 64) - 1
    batch_rows: Count = 8192
    trace: TraceContext | None = None


class RowsAsOf(Message, frozen=True):
    """Of when the rows of a scan or lookup are: asked for that time, any replica has the same ones.

    `age_ms`: how long ago that was by the replica's clock, or AGE_UNKNOWN_MS.
    """

    as_of: Count
    age_ms: CountOrNone


class IndexTicket(Message, frozen=True):
    """Look rows up by an index: typed batches (DoGet) in its order, newest or as of a time.

    Of when they are is told as for scans (`RowsAsOf`).

    `start` and `end` bound the index keys (`wire.codec.indexes`); they are of one definition of the
    index, and refused by any other. At most `limit` rows; a page goes on `after` the last row of
    the one before, which is named by its index key and row id. Of rows whose hash is not in the
    range none is returned: another partition may be asked for them. With `own` as for scans; the
    transaction's own rows come first, at most `limit` of them, too.
    """

    partition: PartitionId
    index: str
    start: bytes
    end: bytes
    limit: Count
    after: bytes = b""
    as_of: Count | None = None
    own: OwnWrites | None = None
    hash_start: Unsigned = 0
    hash_end_inclusive: Unsigned = (1 << 64) - 1
    trace: TraceContext | None = None
