"""What is known of partitions and zones: the coordinator's records and the settings of a zone."""

import enum

import msgspec

from rezone.wire.codec.schema import IndexId, RowLimits, TableSchema
from rezone.wire.messages.base import NodeId, PartitionId
from rezone.wire.ranges import Count, Unsigned, Unsigned32


class Role(enum.StrEnum):
    """What a replica is for its partition."""

    LEADER = "Leader"
    FOLLOWER = "Follower"
    LEARNER = "Learner"


class TakeoverState(enum.StrEnum):
    """The states a planned takeover passes, in DCP-10's order."""

    NONE = "None"
    PENDING = "Pending"
    DEAD = "Dead"
    ACTIVE = "Active"
    FAILED = "Failed"


class EngineKind(enum.StrEnum):
    """The storage engines."""

    ROCKSDB = "RocksDB"
    MEMORY = "Memory"


class FailoverEntry(msgspec.Struct, frozen=True, array_like=True):
    """One line of the failover log: a branch of history and its first offset (DCP-04)."""

    partition_uuid: str
    first_offset: Count


class IndexPosition(msgspec.Struct, frozen=True, array_like=True):
    """How far a replica's indexes are: all below `offset`, of the branch `partition_uuid` (DCP-08).

    Offset 0 while they are made again. `built` are the ids of those that have all rows below it
    (`wire.codec.indexes`): one that was added is not among them at first.
    """

    offset: Count
    partition_uuid: str
    built: tuple[IndexId, ...] = ()


class IndexBuild(msgspec.Struct, frozen=True, array_like=True):
    """An index that a replica builds, by its id: about which part of the rows it has."""

    index: IndexId
    percent: Count


FIRST_PARTITION_EPOCH = 1
"""The partition epoch of a new partition's record: all its replicas are empty and in sync."""


class LeaderAndIsr(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Who leads a partition and who is in sync (HS-01: version 2; version 1 is still read).

    `replicas` are all that hold or shall hold the partition, learners included: a replica that is
    not in `isr` catches up and joins by AdjustIsr. `partition_epoch` rises with every change of
    this record; it is the compare value of AdjustIsr. `next_leader` and `next_epoch` pre-authorize
    a takeover (RM: UpdateMetadataDown): the old leader may hand over to exactly that replica.
    `eligible` have left `isr` since it is below the zone's `minInSyncReplicas`, and still hold
    every acknowledged row, because nothing is committed meanwhile (`domain.routing.routes`).
    `sealing` authorizes the leader to seal its log, so that the partitions of the next layout serve
    its range; `sealed`: it has, and they do (`domain.routing.route_seals`).
    """

    version: Count = 2
    leader: NodeId
    leader_epoch: Unsigned32
    isr: tuple[NodeId, ...]
    coordinator_epoch: Count
    partition_epoch: Count = 0
    replicas: tuple[NodeId, ...] = ()
    hot_standby_replica: NodeId | None = None
    iss: tuple[NodeId, ...] = ()
    next_leader: NodeId | None = None
    next_epoch: Unsigned32 | None = None
    eligible: tuple[NodeId, ...] = ()
    sealing: bool = False
    sealed: bool = False


class FeedLimits(msgspec.Struct, frozen=True, array_like=True):
    """A named feed: for it the log of each partition stays, within these limits."""

    name: str
    bytes_max: Count
    age_seconds_max: Count


class ZoneConfig(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a data node must know of its zone; sent by `ConfigureNode`, persisted by the node.

    `partitions` and `generation` are the zone's layout; `next_partitions` is the count of the
    layout after it while the zone is re-sharded, 0 when it is not (`wire.layouts`). That one's
    generation is `next_generation`, or when this is 0 the one after `generation`: a re-sharding
    that was cancelled has used its generation up, for its ids must never mean other ranges.
    With `next_filled_by` a job brings the rows of the next layout, and its partitions serve nothing
    before the switch (docs/decisions/0500); `filled_by` has brought those of the last overwrite,
    and `cancelled_overwrite` was cancelled. Partitions of `readable_generation` and later ones are
    read as of `readable_from` or later, those of before as of `old_readable_from` or later.
    `maintenance` are data nodes that are away for a while: more of the log is kept for them.
    `former_partitions` (0 if unknown) and `former_generation` are the layout that this one has come
    from. Data nodes note them when they learn that it is gone; the operator does not say them.
    `feeds` are those that the log is kept for until they have acknowledged it.
    """

    zone: str
    zone_uid: str
    partitions: Count
    generation: Count = 0
    next_partitions: Count = 0
    next_generation: Count = 0
    next_filled_by: str = ""
    filled_by: str = ""
    cancelled_overwrite: str = ""
    readable_from: Count = 0
    readable_generation: Count = 0
    old_readable_from: Count = 0
    former_partitions: Count = 0
    former_generation: Count = 0
    table: TableSchema = TableSchema()
    limits: RowLimits = RowLimits()
    copy_bytes_per_second_max: Count = 0
    foreground_target_percent: Count = 80
    engine: EngineKind = EngineKind.ROCKSDB
    replicas: Count = 1
    min_in_sync_replicas: Count = 1
    log_retention_bytes: Count = 256 << 20
    version_retention_seconds: Count = 3600
    maintenance: tuple[NodeId, ...] = ()
    feeds: tuple[FeedLimits, ...] = ()


class PartitionAssignment(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One partition of a NotifyLeaderAndIsr."""

    partition: PartitionId
    state: LeaderAndIsr


class ProducerRecord(msgspec.Struct, frozen=True, array_like=True):
    """A producer's last batch to one partition, as replicas know it (`storage.state.producers`).

    `sent_to` is that partition: this one, or one of a layout before. Sequence 0: none of the epoch.
    `digest` is that of its rows as they were sent.
    """

    producer_id: bytes
    sent_to: PartitionId
    epoch: Unsigned32
    sequence: Unsigned
    end_offset: Count
    commit_time: Count
    digest: bytes


class TransactionRecord(msgspec.Struct, frozen=True, array_like=True):
    """One log entry of a transaction, as replicas know it (`storage.transactions`).

    `kind` is that of the entry. What follows after `commit_time` is of intents alone: as of when
    the transaction reads, when it began, the bytes they take, and the rows they are on.
    """

    transaction: bytes
    sequence: Unsigned
    kind: Count
    end_offset: Count
    commit_time: Count
    read_time: Count = 0
    begun: Count = 0
    size: Count = 0
    row_ids: tuple[bytes, ...] = ()
