"""What the new partitions of a re-sharding ask their sources for, and get (decision 0120)."""

import msgspec

from rezone.wire.errors import ErrorInfo
from rezone.wire.messages.base import Message, NodeId, PartitionId
from rezone.wire.messages.records import ProducerRecord, TransactionRecord
from rezone.wire.ranges import Count, CountOrNone, Unsigned, Unsigned32


class ReshardPosition(msgspec.Struct, frozen=True, array_like=True):
    """How far a partition has taken over one of the layout before (`storage.reshard`).

    All below `offset` of the source, an offset on its branch `partition_uuid`; `commit_time` and
    `leader_epoch` are those of the last row there. `backfilling`: of the rows that were there
    before, only those up to row id `backfilled_to` are here; `rows` counts their versions so far.
    `sealed_at`: the offset in the target's log from which on all is here, the source's seal
    included; 0 before the seal.
    """

    source: PartitionId
    offset: Count
    commit_time: Count
    partition_uuid: str
    leader_epoch: Unsigned32 = 0
    backfilling: bool = False
    backfilled_to: bytes = b""
    rows: Count = 0
    sealed_at: Count = 0


class StreamStart(msgspec.Struct, frozen=True, array_like=True):
    """From where a source's log is followed: an offset, and the branch of history there."""

    offset: Count
    partition_uuid: str


class SealMark(msgspec.Struct, frozen=True, array_like=True):
    """The seal of a partition: the offset after it, where its log ends, and its commit time."""

    end_offset: Count
    commit_time: Count


class ReshardRange(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a partition of the next layout pulls of a source's range.

    `first_hash` and `last_hash` are both included. `leader_epoch` is one that the source has had: a
    leader of an earlier one does not know enough to answer. The source's log is kept from
    `keep_from` on; None while the reshard stream has not begun.
    """

    source: PartitionId
    target: PartitionId
    first_hash: Unsigned
    last_hash: Unsigned
    leader_epoch: Unsigned32 = 0
    keep_from: Count | None = None


class BeginReshard(Message, frozen=True):
    """Ask a source's leader from where its log is to be followed."""

    hash_range: ReshardRange


class ReshardBegun(Message, frozen=True):
    """From where to follow the log, and what is known there of producers and ended transactions.

    `producers` are as in a SnapshotHeader, `transactions` the last entries of those that are over.
    With `sealed_at` the position is where the source's log ends for good.
    """

    position: ReshardPosition
    producers: tuple[ProducerRecord, ...] = ()
    transactions: tuple[TransactionRecord, ...] = ()


class ReshardBackfill(Message, frozen=True):
    """Ask a source's leader for the versions of a range, behind row id `after`.

    The source must have applied its log up to offset `applied`: who asks has the rest by the log.
    """

    hash_range: ReshardRange
    after: bytes = b""
    bytes_max: Count = 1 << 20
    applied: Count = 0


class BackfillVersions(Message, frozen=True):
    """Committed versions as one Arrow IPC record batch message, their schema that of snapshots.

    All rows of the range up to row id `reached` have come; `end`: no more follow.
    """

    versions: bytes
    reached: bytes
    end: bool


class CatchUpRange(msgspec.Struct, frozen=True, array_like=True):
    """From where a range's log is read on: an offset, and the branch of the row below it."""

    hash_range: ReshardRange
    offset: Count
    partition_uuid: str


class ReshardCatchUp(Message, frozen=True):
    """Ask a node what is committed at the sources it leads; answered when there is something.

    At the latest in time; about `bytes_max` for all ranges together. More is waited for while there
    is no seal, for `linger_ms` from the first news on.
    """

    ranges: tuple[CatchUpRange, ...]
    bytes_max: Count = 1 << 20
    timeout_ms: Count = 0
    linger_ms: Count = 0


class CatchUpEntry(msgspec.Struct, frozen=True, array_like=True):
    """An entry of a source's log as `reshard_entries.RangeEntry`; `rows` is an IPC message."""

    rows: bytes
    kind: Count
    producer_id: bytes
    sequence: Unsigned
    producer_epoch: Unsigned32
    sent_to: PartitionId
    digest: bytes
    opens: bool
    base_offset: Count
    end_offset: Count
    commit_time: Count
    branch: str
    leader_epoch: Unsigned32


class RangeCatchUp(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a source's log has for one range, in the order of the request.

    `reached`: up to where it was read; None with an `error`. `committed` is the source's commit
    offset. When all up to that was read, no row with a commit time up to `time` will follow.
    `stopped_ms`: with the seal, for how long the source's leader has taken no writes; -1 where
    that is not known.
    """

    entries: tuple[CatchUpEntry, ...] = ()
    reached: ReshardPosition | None = None
    committed: Count = 0
    time: Count = 0
    error: ErrorInfo | None = None
    stopped_ms: CountOrNone = -1


class CatchUps(Message, frozen=True):
    """One answer for each range that was asked for."""

    catch_ups: tuple[RangeCatchUp, ...]


class ClaimBackfill(Message, frozen=True):
    """Ask a new partition's leader which rows of a source to ingest next (docs/decisions/0486).

    For some seconds from then on the leader backfills nothing of that source by itself.
    """

    target: PartitionId
    source: PartitionId


class ReserveBackfills(Message, frozen=True):
    """Have a node leave the rows of these ranges to a job that has not come to them yet.

    `ranges` are pairs of a new partition and a source. For some seconds from then on the node
    backfills none of them by itself that it leads and of which no row was claimed; a range of which
    one was is its task's own, for as long as that claims more.
    """

    ranges: tuple[tuple[PartitionId, PartitionId], ...]


class BackfillsReserved(Message, frozen=True):
    """How many bytes of versions all jobs have brought to the node since it has started."""

    ingested_bytes: Count


class BackfillClaim(Message, frozen=True):
    """What to ingest: the versions of `hash_range` behind row id `after`, at all of `replicas`.

    The source must have applied its log up to `applied`. `begun` and `leader_epoch` name the
    reshard stream and the leadership that all this is of. `backfilled`: there is nothing to ingest.
    """

    hash_range: ReshardRange
    begun: StreamStart
    leader_epoch: Count
    replicas: tuple[NodeId, ...] = ()
    after: bytes = b""
    applied: Count = 0
    bytes_per_second_max: Count = 0
    backfilled: bool = False


class IngestVersions(Message, frozen=True):
    """Have a replica of a new partition take versions past its log.

    `versions`, `reached` and `end` are those of a BackfillVersions, which was asked for behind
    `after`. With `durable` all that it has ingested of the source is on its disk when it answers.
    """

    target: PartitionId
    source: PartitionId
    begun: StreamStart
    leader_epoch: Count
    after: bytes
    reached: bytes
    end: bool
    versions: bytes
    durable: bool = False


class CommitIngested(Message, frozen=True):
    """Have a new partition's leader count the rows up to `reached`, which all replicas have.

    `rows` is how many versions were ingested since the last time, for the progress alone.
    """

    target: PartitionId
    source: PartitionId
    begun: StreamStart
    leader_epoch: Count
    reached: bytes
    end: bool
    rows: Count = 0


class AskOverwrite(Message, frozen=True):
    """Ask for the overwrite `name` of the zone, again and again while it lives (decision 0500).

    Without `begin` only how far it is. A name is used once: the zone remembers the last one.
    """

    name: str
    begin: bool = True


class OverwriteProgress(Message, frozen=True):
    """How far a node knows the overwrites of its zone to be.

    `filled_by` is the last one that is done, `next_filled_by` the one whose partitions take rows;
    both are empty before any. The layouts are as in `ZoneConfig`. `time` is the node's: all that it
    writes later has a later commit time. It is 0 while the node does not know the time.
    """

    partitions: Count
    generation: Count = 0
    next_partitions: Count = 0
    next_generation: Count = 0
    next_filled_by: str = ""
    filled_by: str = ""
    time: Count = 0
