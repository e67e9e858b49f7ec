"""What data nodes tell the coordinator, and what they count."""

import enum

import msgspec

from rezone.wire.messages.base import Message, NodeId, PartitionId
from rezone.wire.messages.records import IndexBuild, IndexPosition, Role, TakeoverState
from rezone.wire.ranges import Count, CountOrNone


class ReportRequest(Message, frozen=True):
    """Ask for what has changed since version `seen` of the report of `process_id`.

    Answered when there is something, at the latest in time. With 0, or when the node runs as
    another process by now, the answer is the whole report, at once.
    """

    seen: CountOrNone = 0
    process_id: str = ""
    timeout_ms: CountOrNone = 1000


class CopyFailure(enum.StrEnum):
    """Why the last attempt of a copy has failed, as its receiver sees it."""

    NO_SPACE = "NoSpace"  # the receiver's disk, or its quota, is full
    CORRUPTION = "Corruption"  # what came does not match its digests, or the copy is not whole
    RECEIVER = "Receiver"  # anything else at the receiver
    SOURCE = "Source"  # the source does not answer, refuses, or broke off


class CopyProgress(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How far a snapshot has come in at a receiver; `rows_total` is the source's estimate.

    `error` and `failure` tell of the last attempt, until another one has received something.
    """

    rows: CountOrNone = 0
    bytes: CountOrNone = 0
    rows_total: CountOrNone = 0
    done: bool = False
    error: str = ""
    failure: CopyFailure | None = None


class DiskTrouble(enum.StrEnum):
    """What is wrong with a data node's disk (NW-04); the values are the zone's reasons.

    `FULL`: there is no space, or less than the reserve. `FAILED`: writing fails for another reason.
    `SLOW`: its syncs take long beside those of others, or do not come back.
    """

    NONE = ""
    FULL = "DiskFull"
    FAILED = "DiskFailed"
    SLOW = "DiskSlow"


class SealState(enum.StrEnum):
    """What a leader knows of the seal that ends its partition (docs/decisions/0120).

    `UNKNOWN`: it does not lead, or a follower that does not follow it yet may have a seal in its
    log. `NONE`: there is none, and nobody has one who might lead. `SEALED`: it is committed.
    """

    UNKNOWN = "unknown"
    NONE = "none"
    SEALED = "sealed"


class ReshardProgress(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How far a leader has pulled one source, a partition of the layout before.

    `begun`: its log has something of the source, committed or not. `rows` were there when its range
    was read, `backfilled` says that all of it is; `lag_rows` are those of the source's log that are
    not pulled yet, None while nothing is known of that. `broken`: the source's log does not lead on
    from where the reshard stream stands. `sealed`: the reshard stream of the source's seal is
    committed, so this partition serves the source's part of its range. `time`: when backfilled, all
    that the source has committed up to this commit time is here. `write_gap_ms`: for how long the
    cut-over stopped writes to the range, known with `sealed`; None where it is not known.
    `sealed_time`: with `sealed`, a commit time that is not before the seal's, here and there.
    """

    source: PartitionId
    begun: bool = False
    rows: CountOrNone = 0
    backfilled: bool = False
    time: CountOrNone = 0
    lag_rows: CountOrNone | None = None
    broken: bool = False
    sealed: bool = False
    error: str = ""
    write_gap_ms: CountOrNone | None = None
    sealed_time: CountOrNone = 0


class IsrProposal(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A leader's AdjustIsr request (HS-04), carried in its report until it is answered."""

    new_isr: tuple[NodeId, ...]
    new_iss: tuple[NodeId, ...] = ()
    leader_epoch: CountOrNone
    partition_epoch: CountOrNone
    coordinator_epoch: CountOrNone


class ReplicaReport(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The state of one replica as its node sees it.

    `leader_epoch` is the highest it has heard of, `last_epoch` that of its log's last row. Of a
    leader `led_from_offset` is where its log ended when it began to lead: the rows before are those
    of earlier leaders.
    `write_gap_ms`: of a leader that was transferred to, for how long no write could be committed,
    up to `write_gap_time` (microseconds since 1970); None while that is not known.
    `proposal_error`: the code with which the proposal was refused, empty while it is not answered.
    `leader_heard`: of a replica that follows, whether it hears its leader and is heard (NW-02);
    None of a leader, and of one that does not say. `leader_stalled`: it has heard heartbeats alone
    for `replica_lag_ms_max`, and nothing of this replica, though leaders close times.
    `damage`: what was found not to match its checksum. A leader says so while it can still hand
    over; any other replica needs a copy by then. `failed`: it can neither lead nor follow until it
    has been opened again, which its node tries again and again; `disk` says so where the disk is
    why. `uncompared`: it was copied, and nobody has compared that copy with its source yet.
    `lost_marks`: the sources of an overwrite of which it takes no rows any more, so that the
    partition has to begin again. `pulls_log`: what named feeds need of the log before its copy is
    not here yet, as far as others still have it.
    """

    partition: PartitionId
    role: Role
    leader: NodeId
    leader_epoch: CountOrNone
    partition_epoch: CountOrNone
    revision: CountOrNone = 0
    last_epoch: CountOrNone = 0
    led_from_offset: CountOrNone | None = None
    log_end_offset: CountOrNone = 0
    durable_offset: CountOrNone = 0
    committed_offset: CountOrNone = 0
    kv_applied_offset: CountOrNone = 0
    index: IndexPosition | None = None
    index_builds: tuple[IndexBuild, ...] = ()
    needs_snapshot: bool = False
    takeover: TakeoverState = TakeoverState.NONE
    takeover_epoch: CountOrNone = 0
    takeover_error: str = ""
    copy: CopyProgress | None = None
    proposal: IsrProposal | None = None
    proposal_error: str = ""
    write_gap_ms: CountOrNone | None = None
    write_gap_time: CountOrNone = 0
    follower_offsets: dict[NodeId, CountOrNone] = {}
    follower_applied: dict[NodeId, CountOrNone] = {}
    rows_estimate: CountOrNone = 0
    bytes_estimate: CountOrNone = 0
    error: str = ""
    damage: str = ""
    failed: bool = False
    leader_heard: bool | None = None
    leader_stalled: bool = False
    disk: DiskTrouble = DiskTrouble.NONE
    paced_rows_per_second: CountOrNone = 0
    seal: SealState = SealState.UNKNOWN
    reshard_progress: tuple[ReshardProgress, ...] = ()
    uncompared: str = ""
    lost_marks: tuple[PartitionId, ...] = ()
    pulls_log: bool = False


class NodeReport(Message, frozen=True):
    """A node's replicas: all of them, or those that have changed after version `since`.

    `version` rises with every change of the content and begins again with `process_id`; `since` is
    0 in a whole report. `gone`: replicas that were dropped after `since`. `leaving`: the node was
    told to stop, and serves until others have taken its place. `disk`: so it does because of its
    disk, as `disk_text` says; it goes on when that is well. `sync_ms`: the longest that its disk's
    syncs usually took lately, 0 while that is unknown; `slow_ms`: the same while it is long.
    `clock_text` says what is wrong with its clock; with `clock_off` it knows no time, and others
    had better lead. `hears`: the data nodes with which it exchanges frames, in both directions;
    None of a node that does not say. `served_percent`: for how much of the time it has served
    clients lately, which is no change of the content; None of a node that does not say.
    `overwrite`: the name of the overwrite that a driver has asked it for in the last seconds;
    `overwrite_silent`: none has for `OVERWRITE_SILENT_SECONDS`.
    """

    node: NodeId
    zone_uid: str
    version: CountOrNone
    coordinator_epoch: CountOrNone
    replicas: tuple[ReplicaReport, ...]
    process_id: str
    leaving: bool = False
    disk: DiskTrouble = DiskTrouble.NONE
    disk_text: str = ""
    clock_off: bool = False
    clock_text: str = ""
    sync_ms: CountOrNone = 0
    slow_ms: CountOrNone = 0
    since: CountOrNone = 0
    gone: tuple[PartitionId, ...] = ()
    hears: tuple[NodeId, ...] | None = None
    served_percent: Count | None = None
    overwrite: str = ""
    overwrite_silent: bool = False


class StreamStatistics(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a node counts of one stream; offsets and rows are of the producing side alone.

    `missing_rows` is the takeover estimate (DCP-06): how many rows the consumer has not acked.
    """

    partition: PartitionId
    active: bool
    frames: CountOrNone
    bytes: CountOrNone
    sent_offset: CountOrNone = 0
    acked_offset: CountOrNone = 0
    in_flight_bytes: CountOrNone = 0
    missing_rows: CountOrNone = 0


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
