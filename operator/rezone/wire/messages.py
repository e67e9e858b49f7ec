"""Every message between parts, in one place.

Control calls are Flight actions: the action's type is the message's tag, its body the message.
Data and replication channels are frames on a DoExchange (`wire.channel`): a message as header,
and raw bytes as body where the message says so. All messages are msgpack, tagged by name, and
tolerate unknown fields so that versions can be mixed during an upgrade.

Offsets count row changes of one partition: an entry of n rows at base offset b covers
[b, b + n). Every *_offset is exclusive at its end ("next") unless it says otherwise.
Times are microseconds since 1970 in UTC, made unique and rising per partition by its leader.
"""

import enum
import functools
import operator
from typing import Any

import msgspec

from rezone.wire.errors import ErrorInfo
from rezone.wire.schema import IndexId, RowLimits, TableSchema

NodeId = int
PartitionId = int


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


class Message(msgspec.Struct, frozen=True, omit_defaults=True, tag=True, kw_only=True):
    """The base of all messages; the tag is the class name."""


class Fence(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What every control call carries: who sent it and by which trigger.

    A replica persists the highest of each before it acts and refuses lower ones.
    """

    coordinator_epoch: int
    revision: int = 0


class FailoverEntry(msgspec.Struct, frozen=True, array_like=True):
    """One line of the failover log: a branch of history and its first offset (DCP-04)."""

    partition_uuid: str
    first_offset: int


class IndexPosition(msgspec.Struct, frozen=True, array_like=True):
    """How far a replica's indexes are: all below `offset`, of the branch `partition_uuid` (DCP-08).

    Offset 0 while they are made anew. `built` are the ids of those that have all rows below it
    (`wire.indexes`): one that was added is not among them at first.
    """

    offset: int
    partition_uuid: str
    built: tuple[IndexId, ...] = ()


class IndexBuild(msgspec.Struct, frozen=True, array_like=True):
    """An index that a replica builds, by its id: about which part of the rows it has."""

    index: IndexId
    percent: int


FIRST_PARTITION_EPOCH = 1
"""The partition epoch of a new partition's record: all its replicas are empty and in sync."""


class LeaderAndIsr(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Who leads a partition and who is in sync (HS-01: version 2; version 1 is still read).

    `replicas` are all that hold or shall hold the partition, learners included: a replica that is
    not in `isr` catches up and joins by AdjustIsr. `partition_epoch` rises with every change of
    this record; it is the compare value of AdjustIsr. `next_leader` and `next_epoch` pre-authorize
    a takeover (RM: UpdateMetadataDown): the old leader may hand over to exactly that replica.
    `eligible` have left `isr` since it is below the zone's `minInSyncReplicas`, and still hold
    every acknowledged row, because nothing is committed meanwhile (`domain.routes`).
    `sealing` authorizes the leader to seal its log, so that the partitions of the next layout serve
    its range; `sealed`: it has, and they do (`domain.route_seals`).
    """

    version: int = 2
    leader: NodeId
    leader_epoch: int
    isr: tuple[NodeId, ...]
    coordinator_epoch: int
    partition_epoch: int = 0
    replicas: tuple[NodeId, ...] = ()
    hot_standby_replica: NodeId | None = None
    iss: tuple[NodeId, ...] = ()
    next_leader: NodeId | None = None
    next_epoch: int | None = None
    eligible: tuple[NodeId, ...] = ()
    sealing: bool = False
    sealed: bool = False


class ZoneConfig(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a data node must know of its zone; sent by `ConfigureNode`, persisted by the node.

    `partitions` and `generation` are the zone's layout; `next_partitions` is the count of the
    layout after it while the zone is re-sharded, 0 when it is not (`wire.layouts`). That one's
    generation is `next_generation`, or when this is 0 the one after `generation`: a re-sharding
    that was cancelled has used its generation up, for its ids must never mean other ranges.
    """

    zone: str
    zone_uid: str
    partitions: int
    generation: int = 0
    next_partitions: int = 0
    next_generation: int = 0
    table: TableSchema = TableSchema()
    limits: RowLimits = RowLimits()
    copy_bytes_per_second_max: int = 0
    foreground_percent: int = 80
    engine: EngineKind = EngineKind.ROCKSDB
    replicas: int = 1
    min_in_sync_replicas: int = 1
    log_retention_bytes: int = 256 << 20
    version_retention_seconds: int = 3600


# --- control calls: coordinator -> data node ------------------------------------------------


class ConfigureNode(Message, frozen=True):
    """Give the node its zone and the addresses of all its peers ("host:port" by node id).

    `number` rises with every such call of a coordinator, so that a late one is known as such.
    """

    fence: Fence
    config: ZoneConfig
    peers: dict[NodeId, str]
    number: int = 0


class PartitionAssignment(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One partition of a NotifyLeaderAndIsr."""

    partition: PartitionId
    state: LeaderAndIsr


class NotifyLeaderAndIsr(Message, frozen=True):
    """Tell a node the state of partitions (HS-02); it opens replicas that are new to it.

    Sent to every node of the zone for every changed partition, so that each can route (ZR-12).
    """

    fence: Fence
    partitions: tuple[PartitionAssignment, ...]
    peers: dict[NodeId, str]


class AwaitReplica(Message, frozen=True):
    """Ask whether the replicas of these partitions are open on the node (ZR-06)."""

    fence: Fence
    partitions: tuple[PartitionId, ...]


class AwaitReplicaReply(Message, frozen=True):
    """The partitions that are open."""

    open: tuple[PartitionId, ...]


class StopReplica(Message, frozen=True):
    """Stop the replica and delete its data; done already is an answer, not an error (ZR-13).

    `partition_epoch` is that of the record without the replica: a later one may have it again.
    """

    fence: Fence
    partition: PartitionId
    leader_epoch: int
    partition_epoch: int


class BeginEmpty(Message, frozen=True):
    """Have a replica that has no rows lead without them: a person has given them up.

    `state` is the record that makes it the leader; without this call it would refuse that.
    """

    fence: Fence
    partition: PartitionId
    state: LeaderAndIsr


class PullSnapshot(Message, frozen=True):
    """Copy the partition from `source` ("host:port") node to node; answered when started."""

    fence: Fence
    partition: PartitionId
    source: str
    bytes_per_second_max: int = 0


class Takeover(Message, frozen=True):
    """Hand the partition from this leader to `candidate` with `next_epoch` (DCP-09, RM-04).

    Answered at once: success means the takeover has started or is already done; its outcome is
    in the node's reports.
    """

    fence: Fence
    partition: PartitionId
    leader_epoch: int
    candidate: NodeId
    next_epoch: int


class Seal(Message, frozen=True):
    """Have the leader end its partition: the partitions of the next layout serve its range.

    Answered when it has begun, or is done; the leader's report says what comes of it. Refused
    unless its record authorizes it (`sealing`), in this leader epoch.
    """

    fence: Fence
    partition: PartitionId
    leader_epoch: int


class UpgradeCandidate(Message, frozen=True):
    """Replay to `last_offset` and lead with `next_epoch` (RM-05); done already is success.

    `index` is where the old leader's indexer was stopped, if that is known (DCP-08).
    """

    fence: Fence
    partition: PartitionId
    next_epoch: int
    last_offset: int | None = None
    index: IndexPosition | None = None


class DigestRequest(Message, frozen=True):
    """Digest the rows visible as of `as_of` in `ranges` even cuts of the hashes (B-04).

    `hashes`: only from the first to the last of these, both included; None: all the partition's.
    """

    partition: PartitionId
    as_of: int | None = None
    ranges: int = 16
    hashes: tuple[int, int] | None = None


class DigestReply(Message, frozen=True):
    """One hex digest and one row count per range, and the offset up to which rows were applied."""

    digests: tuple[str, ...]
    rows: tuple[int, ...]
    as_of: int
    applied_offset: int


class WaitForPersistence(Message, frozen=True):
    """Wait until `offset` is durable here (DCP-07); answers success or timeout."""

    partition: PartitionId
    offset: int
    timeout_ms: int = 1000


class WaitForPersistenceReply(Message, frozen=True):
    """Whether the offset became durable in time."""

    persisted: bool
    durable_offset: int


class ReportRequest(Message, frozen=True):
    """Ask for what has changed since version `seen` of the report of `process_id`.

    Answered when there is something, at the latest in time. With 0, or when the node runs as
    another process by now, the answer is the whole report, at once.
    """

    seen: int = 0
    process_id: str = ""
    timeout_ms: int = 1000


class CopyProgress(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How far a snapshot has come in at a receiver; `rows_total` is the source's estimate."""

    rows: int = 0
    bytes: int = 0
    rows_total: int = 0
    done: bool = False
    error: str = ""


class SealState(enum.StrEnum):
    """What a leader knows of the seal that ends its partition (docs/decisions/0120).

    `UNKNOWN`: it does not lead, or a follower that does not follow it yet may have a seal in its
    log. `NONE`: there is none, and nobody has one who might lead. `SEALED`: it is committed.
    """

    UNKNOWN = "unknown"
    NONE = "none"
    SEALED = "sealed"


class ImportProgress(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How far a leader has imported one source, a partition of the layout before.

    `begun`: its log has something of the source, committed or not. `rows` were there when its range
    was read, `filled` says that all of it is; `lag_rows` are those of the source's log that are not
    imported yet, None while nothing is known of that. `broken`: the source's log does not lead on
    from where the import stands. `sealed`: the import of the source's seal is committed, so this
    partition serves the source's part of its range. `time`: when filled, all that the source has
    committed up to this commit time is here.
    """

    source: PartitionId
    begun: bool = False
    rows: int = 0
    filled: bool = False
    time: int = 0
    lag_rows: int | None = None
    broken: bool = False
    sealed: bool = False
    error: str = ""


class IsrProposal(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A leader's AdjustIsr request (HS-04), carried in its report until it is answered."""

    new_isr: tuple[NodeId, ...]
    new_iss: tuple[NodeId, ...] = ()
    leader_epoch: int
    partition_epoch: int
    coordinator_epoch: int


class ReplicaReport(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The state of one replica as its node sees it.

    `leader_epoch` is the highest it has heard of, `last_epoch` that of its log's last row.
    `damage`: what was found not to match its checksum. A leader says so while it can still hand
    over; any other replica needs a copy by then.
    """

    partition: PartitionId
    role: Role
    leader: NodeId
    leader_epoch: int
    partition_epoch: int
    revision: int = 0
    last_epoch: int = 0
    log_end_offset: int = 0
    durable_offset: int = 0
    committed_offset: int = 0
    kv_applied_offset: int = 0
    index: IndexPosition | None = None
    index_builds: tuple[IndexBuild, ...] = ()
    needs_snapshot: bool = False
    takeover: TakeoverState = TakeoverState.NONE
    takeover_epoch: int = 0
    takeover_error: str = ""
    copy: CopyProgress | None = None
    proposal: IsrProposal | None = None
    follower_offsets: dict[NodeId, int] = {}
    follower_applied: dict[NodeId, int] = {}
    rows_estimate: int = 0
    bytes_estimate: int = 0
    error: str = ""
    damage: str = ""
    paced_rows_per_second: int = 0
    seal: SealState = SealState.UNKNOWN
    imports: tuple[ImportProgress, ...] = ()


class NodeReport(Message, frozen=True):
    """A node's replicas: all of them, or those that have changed after version `since`.

    `version` rises with every change of the content and begins anew with `process_id`; `since` is
    0 in a whole report. `gone`: replicas that were dropped after `since`. `leaving`: the node was
    told to stop, and serves until others have taken its place.
    """

    node: NodeId
    zone_uid: str
    version: int
    coordinator_epoch: int
    replicas: tuple[ReplicaReport, ...]
    process_id: str
    leaving: bool = False
    since: int = 0
    gone: tuple[PartitionId, ...] = ()


class AddStream(Message, frozen=True):
    """Have a replica stream its partition from the leader (DCP-02).

    Answered when the handshake is done, or the time is over; of several calls whichever is done
    first is answered first, and `opaque` says which it was.
    """

    fence: Fence
    opaque: int
    partition: PartitionId
    timeout_ms: int = 5_000


class AddStreamReply(Message, frozen=True):
    """Whether the stream runs, else why not (yet)."""

    opaque: int
    partition: PartitionId
    streaming: bool
    error: str = ""


class StreamStatistics(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a node counts of one stream; offsets and rows are of the producing side alone.

    `missing_rows` is the takeover estimate (DCP-06): how many rows the consumer has not acked.
    """

    partition: PartitionId
    active: bool
    frames: int
    bytes: int
    sent_offset: int = 0
    acked_offset: int = 0
    in_flight_bytes: int = 0
    missing_rows: int = 0


class ConnectionStatistics(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A replication connection under its name, which is the same on both sides (DCP-01)."""

    name: str
    peer: NodeId
    producing: bool
    streams: tuple[StreamStatistics, ...]


class StatisticsRequest(Message, frozen=True):
    """Ask for the statistics of a node's replication connections and streams (DCP-14)."""


class NodeStatistics(Message, frozen=True):
    """The connections of a node in the order of their names."""

    node: NodeId
    connections: tuple[ConnectionStatistics, ...]


class Ack(Message, frozen=True):
    """The request was carried out, or had been before."""


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

    opaque: int
    partition: PartitionId


class TransactionBegun(Message, frozen=True):
    """As of `read_time` all that was acknowledged is visible; `begun` is the leader's clock."""

    opaque: int
    read_time: int
    begun: int


class TransactionTimes(msgspec.Struct, frozen=True, array_like=True):
    """What TransactionBegun has said, as a transaction's writes and reads carry it."""

    read_time: int
    begun: int


SENT_AS_MAX = 8
"""Under so many names a write may have been sent before: one for each re-sharding that it met."""


class SentAs(msgspec.Struct, frozen=True, array_like=True):
    """As what a batch was sent to a partition that was sealed then; it may have been applied."""

    writer_id: str
    sequence: int


class WriteRequest(Message, frozen=True):
    """Write one batch to a partition; body: one Arrow IPC stream of one record batch.

    Upserts carry all columns of the zone, deletes the primary key's. A batch is all or nothing.
    `sequence` rises by one per batch of the writer in the partition; a repeat of the last one is
    answered as before and not applied again. `answers_seen` counts the answers that the client has
    read on this channel. With `transaction` the rows become intents of the transaction that
    `writer_id` names, and `sequence` counts that one's writes from 1. `sent_as`: the rows were a
    part of these batches; if one of them was applied, it is answered as a repeat
    (docs/decisions/0162).
    """

    opaque: int
    partition: PartitionId
    writer_id: str
    sequence: int
    delete: bool = False
    answers_seen: int = 0
    transaction: TransactionTimes | None = None
    sent_as: tuple[SentAs, ...] = ()


class WriteResult(Message, frozen=True):
    """The batch is on every in-sync replica's disk; `end_offset` is the offset after its rows.

    `leader_epoch` is that of the leadership that answers; a repeat may have been written under an
    earlier one. `paced_ms`: how long it had to wait for a replica to catch up (B-16).
    """

    opaque: int
    end_offset: int
    commit_time: int
    leader_epoch: int = 0
    paced_ms: int = 0


class TransactionEnd(Message, frozen=True):
    """Commit or abort a transaction, unless it is over; answered by TransactionResult either way.

    `sequence` of a commit is one more than that of the last write. An abort needs none, and is also
    how to ask for the outcome: after it the answer is final. `begun_in`: the transaction is of that
    partition, which was sealed since, and this one has the start of its range: only it may have to
    be heard before nothing is known of the transaction.
    """

    opaque: int
    partition: PartitionId
    transaction: str
    sequence: int = 0
    commit: bool = False
    begun_in: PartitionId | None = None


class TransactionOutcome(enum.StrEnum):
    """How a transaction has ended; unknown: it wrote nothing, or nobody remembers it any more."""

    COMMITTED = "Committed"
    ABORTED = "Aborted"
    UNKNOWN = "Unknown"


class TransactionResult(Message, frozen=True):
    """How the transaction has ended, durably; the rest as in WriteResult, zeros when unknown."""

    opaque: int
    outcome: TransactionOutcome
    end_offset: int = 0
    commit_time: int = 0
    leader_epoch: int = 0


class OwnWrites(msgspec.Struct, frozen=True, array_like=True):
    """Whose intents a read shall see: a transaction, the times it got, its writes so far."""

    transaction: str
    times: TransactionTimes
    sequence: int


class ReadRequest(Message, frozen=True):
    """Read rows by key; body: one Arrow IPC stream of one batch of the primary key's columns.

    `as_of` reads at a time instead of the newest committed state. With `max_age_ms` any replica
    answers at the newest time that it can, if that is no longer ago, by its own clock. With `own`
    the leader answers as of the transaction's read time, with its own writes on top.
    """

    opaque: int
    partition: PartitionId
    as_of: int | None = None
    own: OwnWrites | None = None
    max_age_ms: int | None = None


class ReadResult(Message, frozen=True):
    """The rows found, absent keys left out; body: one Arrow IPC stream of one batch.

    They are the rows as of `as_of`: asked for that time, any replica gives the same ones.
    `age_ms`: how long ago that was by the replica's clock; 0 for the newest state.
    """

    opaque: int
    rows: int
    as_of: int = 0
    age_ms: int = 0


class Failure(Message, frozen=True):
    """A request failed; `opaque` says which."""

    opaque: int
    error: ErrorInfo


class LeaderMoved(Message, frozen=True):
    """News for a client that has used the leader before: who leads now, and where (RM-10).

    Unasked, and not promised: who does not get it hears of the new leader by a refusal.
    """

    partition: PartitionId
    leader: NodeId
    address: str
    leader_epoch: int


# --- replication channel: consumer (follower's node) <-> producer (leader's node) -----------


class OpenConnection(Message, frozen=True):
    """First frame of a replication channel: its name, the same on both sides (DCP-01)."""

    name: str
    node: NodeId
    zone_uid: str


class ConnectionClosed(Message, frozen=True):
    """The serving side's last frame on any channel: its state is gone, the other side hangs up."""

    reason: str


class StreamRequest(Message, frozen=True):
    """Ask for a partition's log from `high_offset` on (DCP-03).

    `max_fetch_bytes` is the credit until the first ack: entries may follow the answer at once.
    """

    opaque: int
    partition: PartitionId
    high_offset: int
    partition_uuid: str
    leader_epoch: int
    max_fetch_bytes: int = 0


class StreamOk(Message, frozen=True):
    """The stream runs (DCP-04); the consumer persists the failover log over its own.

    `in_sync`: the leader's record, of `partition_epoch`, counts the consumer as in sync.
    `time_floor`: who leads later gives its rows later times (microseconds).
    """

    opaque: int
    partition: PartitionId
    leader_epoch: int
    failover_log: tuple[FailoverEntry, ...]
    committed_offset: int
    in_sync: bool = True
    partition_epoch: int = 0
    time_floor: int = 0


class StreamRollback(Message, frozen=True):
    """Roll back to at least `offset` and ask again (DCP-05)."""

    opaque: int
    partition: PartitionId
    offset: int


class StreamNeedsSnapshot(Message, frozen=True):
    """The log no longer reaches back to the consumer's offset; it must copy a snapshot first."""

    opaque: int
    partition: PartitionId
    log_start_offset: int


class StreamRefused(Message, frozen=True):
    """The stream cannot be made; the error says why (not leader, stale epoch, limit)."""

    opaque: int
    partition: PartitionId
    error: ErrorInfo


class LeaseRequest(Message, frozen=True):
    """A leader's node asks for read leases, for all partitions of the channel at once.

    `time`: up to this one it may have been read at; who leads later gives no write such a time.
    """

    round: int
    time: int


class LeaseGrant(Message, frozen=True):
    """None of the consumer's replicas will commit as a later leader for `lease_ms`.

    That is promised for every stream of the channel but those of the partitions in `left`: their
    streams do not run, or their replicas follow another leader by now.
    """

    round: int
    lease_ms: int
    left: tuple[PartitionId, ...] = ()


class Entries(Message, frozen=True):
    """Log entries, whole and in order; body: their raw bytes."""

    partition: PartitionId
    leader_epoch: int
    committed_offset: int


class CommitOffset(msgspec.Struct, frozen=True, array_like=True):
    """One stream of a CommitOffsets."""

    partition: PartitionId
    leader_epoch: int
    committed_offset: int


class CommitOffsets(Message, frozen=True):
    """New commit offsets of streams that have had no entries since."""

    streams: tuple[CommitOffset, ...]


class ClosedTime(msgspec.Struct, frozen=True, array_like=True):
    """One stream of a ClosedTimes: all rows that will ever have a time up to `time`.

    They stand below `end_offset`; they can be read where that is committed and applied.
    """

    partition: PartitionId
    leader_epoch: int
    end_offset: int
    time: int


class ClosedTimes(Message, frozen=True):
    """Times that a leader has closed, of streams without newer rows; with each round of leases."""

    streams: tuple[ClosedTime, ...]


class FetchLog(Message, frozen=True):
    """What the consumer holds durably, and how much more it takes (HS-03).

    `opaque` is that of the stream's request: an ack of an earlier stream counts for nothing.
    `leaving`: the consumer is about to stop, and had better not be waited for. `index` is said by
    the candidate of a takeover alone (DCP-08), as is `ready_epoch`: the epoch it waits to lead in.
    `rest_ms`, of a replica that is being filled: for how long its node's clients come first.
    """

    partition: PartitionId
    fetch_offset: int
    max_fetch_bytes: int
    kv_applied_offset: int
    opaque: int = 0
    leaving: bool = False
    index: IndexPosition | None = None
    ready_epoch: int = 0
    rest_ms: int = 0


class SetState(Message, frozen=True):
    """The producer's state change (DCP-10): Pending, then, as the very last message, Active.

    With Active the producer gives up its read leases. `hold_ms`: how long it would itself still
    have held commits back, because a leader before it may have leases. `time_floor`: the latest
    time that was read at; every later write gets a later one. `index`, with Active: where the
    producer's indexer was stopped; the consumer's is there, or it does not lead (DCP-08).
    """

    partition: PartitionId
    state: TakeoverState
    leader_epoch: int
    next_epoch: int
    isr: tuple[NodeId, ...]
    replicas: tuple[NodeId, ...]
    end_offset: int
    eligible: tuple[NodeId, ...] = ()
    hold_ms: int = 0
    time_floor: int = 0
    index: IndexPosition | None = None


class CloseStream(Message, frozen=True):
    """End a stream (DCP-12); the consumer refuses what is still on the wire."""

    partition: PartitionId


class StreamEnd(Message, frozen=True):
    """The last message of a stream; `leader`/`leader_epoch` name the new leader when known."""

    partition: PartitionId
    reason: str
    leader: NodeId | None = None
    leader_epoch: int | None = None


# --- snapshots: DoGet tickets and DoPut descriptors ------------------------------------------


class SnapshotFile(msgspec.Struct, frozen=True, array_like=True):
    """A file of an engine and its bytes, or how many bytes of its beginning there are."""

    name: str
    bytes: int


class HeldFiles(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The files, whole or in part, that a receiver of a file snapshot holds durably (B-05).

    Files of one engine (`engine_id`) with the same name and size are the same file: engines write
    each once and give no name twice. `snapshot_id` is that of the last attempt.
    """

    engine_id: str
    snapshot_id: str
    files: tuple[SnapshotFile, ...] = ()


class SnapshotTicket(Message, frozen=True):
    """Read a partition's snapshot as a DoGet stream; its source chooses the form.

    Rows (SS-01..03) begin after row id `resume_after`. Files are sent only in a format that all
    receivers can open (`formats`), and without the parts that all of them have (`held`).
    The first batch's metadata is a SnapshotHeader, the last (empty) batch's a SnapshotTrailer.
    """

    partition: PartitionId
    reader: str
    resume_after: bytes = b""
    batch_bytes: int = 2 << 20
    formats: tuple[str, ...] = ()
    held: HeldFiles | None = None


class TransactionRecord(msgspec.Struct, frozen=True, array_like=True):
    """One log entry of a transaction, as replicas remember it (`replica.transactions`).

    `kind` is that of the entry. What follows after `commit_time` is of intents alone: as of when
    the transaction reads, when it began, the bytes they take, and the rows they are on.
    """

    transaction: bytes
    sequence: int
    kind: int
    end_offset: int
    commit_time: int
    read_time: int = 0
    begun: int = 0
    size: int = 0
    row_ids: tuple[bytes, ...] = ()


class ImportPosition(msgspec.Struct, frozen=True, array_like=True):
    """How far a partition has taken over another one, of the layout before (`replica.imports`).

    All below `offset` of the source, an offset on its branch `partition_uuid`; `commit_time` and
    `leader_epoch` are those of the last row there. `filling`: of the rows that were there before,
    only those up to row id `filled_to` are here; `rows` counts their versions so far. `sealed_at`:
    the offset in the importing log from which on all is here, the source's seal included; 0 before
    the seal.
    """

    source: PartitionId
    offset: int
    commit_time: int
    partition_uuid: str
    leader_epoch: int = 0
    filling: bool = False
    filled_to: bytes = b""
    rows: int = 0
    sealed_at: int = 0


class SealMark(msgspec.Struct, frozen=True, array_like=True):
    """The seal of a partition: the offset after it, where its log ends, and its commit time."""

    end_offset: int
    commit_time: int


class ImportedPart(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The part of a source's range that a partition of the next layout imports.

    `first_hash` and `last_hash` are both included. `leader_epoch` is one that the source has had: a
    leader of an earlier one does not know enough to answer. The source's log is kept from
    `keep_from` on; None while the import has not begun.
    """

    source: PartitionId
    heir: PartitionId
    first_hash: int
    last_hash: int
    leader_epoch: int = 0
    keep_from: int | None = None


class BeginImport(Message, frozen=True):
    """Ask a source's leader from where its log is to be followed."""

    part: ImportedPart


class ImportBegun(Message, frozen=True):
    """From where to follow the log, and what is known there of writers and ended transactions.

    `writers` are as in a SnapshotHeader, `transactions` the last entries of those that are over.
    With `sealed_at` the position is where the source's log ends for good.
    """

    position: ImportPosition
    writers: tuple[tuple[str, int, int, int], ...] = ()
    transactions: tuple[TransactionRecord, ...] = ()


class FillImport(Message, frozen=True):
    """Ask a source's leader for the versions of a part, behind row id `after`."""

    part: ImportedPart
    after: bytes = b""
    bytes_max: int = 1 << 20


class FilledVersions(Message, frozen=True):
    """Committed versions as one Arrow IPC record batch message, their schema that of snapshots.

    All rows of the part up to row id `reached` have come; `end`: no more follow.
    """

    versions: bytes
    reached: bytes
    end: bool


class TailedPart(msgspec.Struct, frozen=True, array_like=True):
    """From where a part's log is read on: an offset, and the branch of the row below it."""

    part: ImportedPart
    offset: int
    partition_uuid: str


class TailImports(Message, frozen=True):
    """Ask a node what is committed at the sources it leads; answered when there is something.

    At the latest in time; about `bytes_max` for all parts together. More is waited for while there
    is no seal, for `linger_ms` from the first news on.
    """

    parts: tuple[TailedPart, ...]
    bytes_max: int = 1 << 20
    timeout_ms: int = 0
    linger_ms: int = 0


class TailEntry(msgspec.Struct, frozen=True, array_like=True):
    """An entry of a source's log as `replica.imports.RangeEntry`; `rows` is an IPC message."""

    rows: bytes
    kind: int
    writer_id: bytes
    sequence: int
    base_offset: int
    end_offset: int
    commit_time: int
    branch: str
    leader_epoch: int


class ImportTail(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a source's log has for one part, in the order of the request.

    `reached`: up to where it was read; None with an `error`. `committed` is the source's commit
    offset. When all up to that was read, no row with a commit time up to `time` will follow.
    """

    entries: tuple[TailEntry, ...] = ()
    reached: ImportPosition | None = None
    committed: int = 0
    time: int = 0
    error: ErrorInfo | None = None


class ImportTails(Message, frozen=True):
    """One tail for each part that was asked for."""

    tails: tuple[ImportTail, ...]


class SnapshotHeader(Message, frozen=True):
    """What the receiver must keep of the source.

    `offset`: every change below it is in the snapshot; the receiver follows the log from there.
    `writers` is the source's duplicate table (writer id, last sequence, its end offset, time),
    `transactions` what it knows of transactions, open ones and others.
    `format` names the form: empty for rows, else that of the engine files in `files`, which are
    those of the engine `engine_id` and hold these tables too. `imports`: how far the source itself
    has taken over partitions of the layout before; `seal`: it ends with it.
    """

    snapshot_id: str
    offset: int
    commit_time: int
    leader_epoch: int
    failover_log: tuple[FailoverEntry, ...]
    writers: tuple[tuple[str, int, int, int], ...]
    rows_estimate: int
    format: str = ""
    engine_id: str = ""
    files: tuple[SnapshotFile, ...] = ()
    transactions: tuple[TransactionRecord, ...] = ()
    imports: tuple[ImportPosition, ...] = ()
    seal: SealMark | None = None


class FileChunk(Message, frozen=True):
    """Metadata of a part of a file: where it belongs, and the 16 bytes of its XXH3-128."""

    name: str
    offset: int
    digest: bytes


class SnapshotBatch(Message, frozen=True):
    """Metadata of each batch between header and trailer.

    `early` batches hold rows whose past was about to change and that therefore left the scan order
    (SS-03); all others are in row-id order, and after one all rows up to `last_row_id` have
    been sent.
    """

    early: bool = False
    last_row_id: bytes = b""


class SnapshotTrailer(Message, frozen=True):
    """The end of a snapshot: how many versions and bytes were sent in all.

    Of a file snapshot: no versions, and the bytes of all its files, sent or held already.
    """

    versions: int
    bytes: int


class BulkInsert(Message, frozen=True):
    """Descriptor of a DoPut that feeds a snapshot to a receiver; batches and metadata as sent.

    `revision` is that of the trigger that wants the copy. It fences alone: the coordinator that
    started the copy may be gone while the copy goes on.
    """

    partition: PartitionId
    snapshot_source: NodeId
    attempt: str
    revision: int


class CopyState(Message, frozen=True):
    """Where a receiver stands: what a copy that died half-way goes on from (B-05).

    `formats` are the formats of engine files that it can open; none once it has begun with rows.
    `bytes_per_second_max` is the zone's limit for all copies as the node knows it; 0 is none.
    """

    partition: PartitionId
    resume_after: bytes = b""
    done: bool = False
    rows: int = 0
    bytes: int = 0
    formats: tuple[str, ...] = ()
    held: HeldFiles | None = None
    bytes_per_second_max: int | None = None


class CopyStateRequest(Message, frozen=True):
    """Ask a receiver where its copy of the partition stands."""

    partition: PartitionId


class ScanTicket(Message, frozen=True):
    """Scan visible rows of a partition as typed batches (DoGet), newest or as of a time.

    The first batch is empty and has `RowsAsOf` with it; other empty ones only say that the scan
    goes on. One that broke off goes on at any replica, `after` the row id of the last row that
    came, as of the time that was told. With `own` the leader answers as of the transaction's read
    time, with its own writes on top.
    """

    partition: PartitionId
    as_of: int | None = None
    after: bytes = b""
    own: OwnWrites | None = None
    hash_start: int = 0
    hash_end_inclusive: int = (1 << 64) - 1
    batch_rows: int = 8192


class RowsAsOf(Message, frozen=True):
    """Of when the rows of a scan or lookup are: asked for that time, any replica has the same ones.

    `age_ms`: how long ago that was by the replica's clock.
    """

    as_of: int
    age_ms: int


class IndexTicket(Message, frozen=True):
    """Look rows up by an index: typed batches (DoGet) in its order, newest or as of a time.

    Of when they are is told as for scans (`RowsAsOf`).

    `start` and `end` bound the index keys (`wire.indexes`); they are of one definition of the
    index, and refused by any other. At most `limit` rows; a page goes on `after` the last row of
    the one before, which is named by its index key and row id. Of rows whose hash is not in the
    range none is returned: another partition may be asked for them. With `own` as for scans; the
    transaction's own rows come first, at most `limit` of them, too.
    """

    partition: PartitionId
    index: str
    start: bytes
    end: bytes
    limit: int
    after: bytes = b""
    as_of: int | None = None
    own: OwnWrites | None = None
    hash_start: int = 0
    hash_end_inclusive: int = (1 << 64) - 1


def _leaves(kind: type[Message]) -> list[type[Message]]:
    return [kind, *(leaf for child in kind.__subclasses__() for leaf in _leaves(child))]


ALL_MESSAGES: tuple[type[Message], ...] = tuple(_leaves(Message)[1:])

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(
    type=functools.reduce(operator.or_, ALL_MESSAGES),
)


def encode(message: Message) -> bytes:
    """Return the message as msgpack."""
    return _encoder.encode(message)


def decode(data: bytes | memoryview) -> Message:
    """Return the message in `data`; `msgspec.ValidationError` when it is none of this module's."""
    message: Message = _decoder.decode(data)
    return message
