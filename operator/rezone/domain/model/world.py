"""What the state machines see, and what they ask for: plain values, so that deciding is pure.

A controller observes a `ZoneView`, a machine decides on it, the controller carries the `Action`s
out. Every action is safe to repeat: its effect is checked against the view of the next pass, and
nothing that a machine needs later is remembered outside its persisted status.
"""

import dataclasses
import functools
from collections.abc import Callable, ItemsView, Iterable, Mapping
from datetime import datetime

from rezone.domain.model.resharding_view import ReshardingAction
from rezone.domain.routing.route_records import RouteRecords
from rezone.domain.routing.topology_text import Topology
from rezone.resources.conditions import Reason
from rezone.resources.zone_status import RetainedReplica
from rezone.wire.codec.schema import IndexId
from rezone.wire.layouts import Layout, generation_of, index_of
from rezone.wire.messages import (
    DiskTrouble,
    IndexPosition,
    IsrProposal,
    LeaderAndIsr,
    NodeId,
    PartitionId,
    ReplicaReport,
    Role,
)

CopyKey = tuple[PartitionId, NodeId, int]
"""A compared copy: its partition, its node, and the leader epoch of the record then."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class NodeView:
    """A data node as the coordinator sees it.

    `reachable`: it answers; `unreachable_since` stands while it does not. `leaving` nodes are
    about to stop, or give way because of their `disk` or clock; `draining` ones give everything
    away; `lost` ones are given up (their pod or Kubernetes node is gone for good). Those in
    `maintenance` lead nothing and keep what they hold.
    `fresh`: its last answer came a moment ago, and it has answered since `answers_since`. `hears`
    are the data nodes that it exchanges frames with, None when that is not known.
    `served_percent`: for how much of the time it has served clients lately, None while unknown.
    `overwrite` is the one that a driver asks it for, `overwrite_silent`: none has for long.
    """

    node: NodeId
    address: str
    reachable: bool
    leaving: bool = False
    disk: DiskTrouble = DiskTrouble.NONE
    disk_text: str = ""
    clock_text: str = ""
    draining: bool = False
    lost: bool = False
    maintenance: bool = False
    unreachable_since: datetime | None = None
    fresh: bool = False
    answers_since: datetime | None = None
    hears: frozenset[NodeId] | None = None
    failure_domain: str = ""
    weight: int = 1
    served_percent: int | None = None
    overwrite: str = ""
    overwrite_silent: bool = False
    replicas: Mapping[PartitionId, ReplicaReport] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MigrationView:
    """An existing RegionMigration object of the zone.

    `source` is the leader it moves away from and `candidate` who shall lead, once that is known;
    `error` is why it did not succeed, and `ended` when it came to its end.
    """

    name: str
    partition: PartitionId
    target: NodeId | None
    state: str
    terminal: bool
    succeeded: bool
    owner_task: str = ""
    source: NodeId | None = None
    candidate: NodeId | None = None
    error: str = ""
    ended: datetime | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class SparkView:
    """The SparkApplication of an owner: its name and kubeflow's application state ("" = absent).

    `error` is what kubeflow says of it; of one that is absent, why it could not be created.
    `taken` says whose object has the name, or that of the plan, when that is not the task's; with
    `going` it was an earlier task's, and goes away without anybody's doing.
    """

    name: str
    state: str
    error: str = ""
    taken: str = ""
    going: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class StalledCopy:
    """A copy that was asked for and has made no progress for so long; `error` is its last one."""

    reason: Reason
    seconds: float
    error: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ZoneView:
    """One observation of a zone; `routes` are its persisted records by partition id.

    `generation` is that of the layout that `stable` is of, `pending_generation` that of `pending`:
    a higher one while the zone is re-sharded. `pending_filled_by` is the overwrite whose job brings
    the rows of `pending`, if any.

    `verified` are the copies whose digest equalled their source's in this process's life, as
    (partition, node, the source's leader epoch) (B-04); `mismatched` are those whose did not,
    `not_compared` those that could not be compared the last time, and why.
    `min_in_sync` is the smallest in-sync set with which rows are committed, `hot_standbys` how many
    each partition shall have while nothing moves. `replace_failed_targets`: a task whose targets
    fail has the next plan made with other ones. `stalled_copies` are those whose progress deadline
    has passed, and `avoided` the nodes where that was so lately. `kept` are the replicas beside the
    assignment.
    A SparkApplication that copies nothing for `spark_timeout_seconds` is given up for streams, if
    `stream_without_spark`, or waited for by a person.
    `hands_off`: the operator changes no leader and no replica by itself (`spec.paused`).
    `copies_refused` says why copies may not begin: other zones' copies on the same machines.
    `indexes` are the names of the zone's indexes. `taken_names` says of migrations that the task
    has asked for in the pass before whose object has their name.
    """

    name: str
    routes: RouteRecords
    nodes: Mapping[NodeId, NodeView]
    stable: Topology | None
    pending: Topology | None
    pending_revision: int
    planned: Topology | None
    change: int
    cancel_revision: int | None
    coordinator_epoch: int
    paused: bool
    manual_approval: bool
    max_concurrent_migrations: int
    max_migrations_per_node: int
    max_concurrent_handovers: int
    spark_threshold_bytes: int
    leader_lease_seconds: float
    min_in_sync: int
    generation: int = 0
    pending_generation: int = 0
    pending_filled_by: str = ""
    hot_standbys: int = 0
    replace_failed_targets: bool = True
    hands_off: bool = False
    copies_refused: Mapping[PartitionId, str] = dataclasses.field(default_factory=dict)
    stalled_copies: Mapping[tuple[PartitionId, NodeId], StalledCopy] = dataclasses.field(
        default_factory=dict
    )
    avoided: frozenset[NodeId] = frozenset()
    retained: tuple[RetainedReplica, ...] = ()
    migrations: tuple[MigrationView, ...] = ()
    taken_names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    spark: SparkView | None = None
    verified: frozenset[CopyKey] = frozenset()
    mismatched: frozenset[CopyKey] = frozenset()
    not_compared: Mapping[CopyKey, str] = dataclasses.field(default_factory=dict)
    indexes: Mapping[IndexId, str] = dataclasses.field(default_factory=dict)
    spark_timeout_seconds: int = 300
    stream_without_spark: bool = True

    def report(self, partition: PartitionId, node: NodeId) -> ReplicaReport | None:
        """Return what a reachable node says of its replica, None when it has or says nothing."""
        view = self.nodes.get(node)
        if view is None or not view.reachable:
            return None
        return view.replicas.get(partition)

    def leader_report(self, partition: PartitionId) -> ReplicaReport | None:
        """Return what a partition's leader says in the epoch of its record, None when it does not.

        KeyError when there is no record.
        """
        record = self.routes[partition]
        report = self.report(partition, record.leader)
        if report is None or report.role is not Role.LEADER:
            return None
        return report if report.leader_epoch == record.leader_epoch else None

    @property
    def layout(self) -> Layout:
        """The layout that `stable` is of; without partitions while there are no records of it."""
        found = (each for each in self.routes.layouts if each.generation == self.generation)
        return next(found, Layout(self.generation, 0))

    @property
    def resharding(self) -> bool:
        """Whether what is pending is another layout."""
        return self.pending is not None and self.pending_generation != self.generation

    def assigned(self, partition: PartitionId) -> tuple[NodeId, ...] | None:
        """Return where a partition has its place: by `stable`, or by the layout to come.

        None for one that neither has, as those of a layout that is over.
        """
        return self._places.get(partition)

    # A pass asks the following of each of 16,384 partitions, several times: computed once.

    @functools.cached_property
    def _places(self) -> Mapping[PartitionId, tuple[NodeId, ...]]:
        tables = {self.generation: self.stable or ()}
        if self.resharding:
            tables[self.pending_generation] = self.pending or ()
        return {
            partition: nodes
            for generation, table in tables.items()
            for partition, nodes in zip(Layout(generation, len(table)).ids, table, strict=True)
        }

    @functools.cached_property
    def without_data(self) -> Mapping[PartitionId, frozenset[NodeId]]:
        """The reachable nodes that say that they lack a partition's rows; no entry for no node."""
        return self._nodes_that_say(lambda replicas: [p for p, r in replicas if r.needs_snapshot])

    @functools.cached_property
    def damaged(self) -> Mapping[PartitionId, frozenset[NodeId]]:
        """The reachable nodes that say that their replica is damaged; no entry for no node."""
        return self._nodes_that_say(lambda replicas: [p for p, r in replicas if r.damage])

    def _nodes_that_say(
        self, of: Callable[[ItemsView[PartitionId, ReplicaReport]], Iterable[PartitionId]]
    ) -> Mapping[PartitionId, frozenset[NodeId]]:
        found: dict[PartitionId, set[NodeId]] = {}
        for node, seen in self.nodes.items():
            if seen.reachable:
                for partition in of(seen.replicas.items()):
                    found.setdefault(partition, set()).add(node)
        return {partition: frozenset(nodes) for partition, nodes in found.items()}

    def target(self, partition: PartitionId) -> tuple[NodeId, ...] | None:
        """Return where a rebalance that is pending brings a partition; None without one."""
        if self.pending is None or generation_of(partition) != self.pending_generation:
            return None
        index = index_of(partition)
        moves = not self.resharding and index < len(self.pending)
        return self.pending[index] if moves else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChangeRoutes:
    """Write route records by compare-and-set: each only if its partition epoch is as expected.

    Those that do not match are left alone; the next pass sees why. Nodes are notified after.
    """

    changes: tuple["RouteChange", ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RouteChange:
    """One record: `state.partition_epoch` is `expected_epoch` + 1.

    Of one that was `learned` from data nodes it may be higher (`domain.assignment.outdated`).
    """

    partition: PartitionId
    expected_epoch: int
    state: LeaderAndIsr
    learned: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Copy:
    """One partition to be copied from a source to all targets that need a snapshot (SS-06)."""

    partition: PartitionId
    source: NodeId
    targets: tuple[NodeId, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnsureSparkApplication:
    """Create the SparkApplication `name` for these copies, unless it exists."""

    name: str
    copies: tuple[Copy, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeleteSparkApplication:
    """Delete the SparkApplication; absent already is fine."""

    name: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class PullSnapshots:
    """Have targets copy node to node, without Spark."""

    copies: tuple[Copy, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdmitCopies:
    """Say to the receivers of these copies which Spark may begin, and which are `held` (B-03)."""

    admitted: tuple[Copy, ...]
    held: tuple[Copy, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class VerifyCopy:
    """Compare the digests of a copy and its source at one time (B-04)."""

    partition: PartitionId
    source: NodeId
    target: NodeId
    leader_epoch: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnsureMigration:
    """Create the RegionMigration `name` as a child of the task, unless it exists."""

    name: str
    partition: PartitionId
    target: NodeId


@dataclasses.dataclass(frozen=True, kw_only=True)
class CancelMigration:
    """Ask a child migration to cancel by its spec."""

    name: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class RefuseProposal:
    """Tell a leader why its proposal is not carried out (HS-05); `state` is what stands."""

    partition: PartitionId
    node: NodeId
    proposal: IsrProposal
    state: LeaderAndIsr
    reason: str
    message: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class StopReplica:
    """Stop and delete a replica that the record of these epochs does not name (ZR-11)."""

    partition: PartitionId
    node: NodeId
    leader_epoch: int
    partition_epoch: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class RequestTakeover:
    """Send Takeover to the old leader (RM-04, DCP-09)."""

    partition: PartitionId
    source: NodeId
    candidate: NodeId
    leader_epoch: int
    next_epoch: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class RequestUpgrade:
    """Send UpgradeCandidate to the candidate (RM-05): the old leader is gone."""

    partition: PartitionId
    candidate: NodeId
    next_epoch: int
    last_offset: int | None = None
    index: IndexPosition | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class BeginEmpty:
    """Have a replica without rows begin the partition again, as the record's leader."""

    partition: PartitionId
    node: NodeId
    state: LeaderAndIsr


@dataclasses.dataclass(frozen=True, kw_only=True)
class WritePending:
    """ZR-04 on the zone: a person's task asks for its target, or a task for its next plan."""

    target: Topology
    revision: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class WriteStable:
    """ZR-10 on the zone, only while pending has `revision`.

    `readable_from`: of an overwrite, the earliest commit time as of which it may be read.
    """

    revision: int
    target: Topology
    readable_from: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class WriteCancel:
    """ZR-19 on the zone: the pair (old, new), only while pending has `revision`."""

    revision: int
    old: Topology
    new: Topology


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClearPending:
    """The end of a cancel: pending gives way to planned or nothing, cancel is removed.

    `ended` is where the partitions live then, None where that is as `stable` says.
    """

    revision: int
    ended: Topology | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class SettleLeader:
    """Have `stable` follow a leader that a person has moved to a node outside of it.

    With a `replacement`, both leaders have a place in it, and the old one's goes to that node.
    Those of `replicas` that have no place in it then are kept from `since` until `until`, None
    without end.
    """

    partition: PartitionId
    old_leader: NodeId
    new_leader: NodeId
    replacement: NodeId | None = None
    replicas: tuple[NodeId, ...]
    migration: str
    since: datetime
    until: datetime | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class NotifyFailureDetector:
    """RM-05: the leader may be gone; the failover detector shall look at the partition."""

    partition: PartitionId


Action = (
    ChangeRoutes
    | EnsureSparkApplication
    | DeleteSparkApplication
    | PullSnapshots
    | AdmitCopies
    | VerifyCopy
    | EnsureMigration
    | CancelMigration
    | RefuseProposal
    | StopReplica
    | RequestTakeover
    | RequestUpgrade
    | BeginEmpty
    | WritePending
    | WriteStable
    | WriteCancel
    | ClearPending
    | SettleLeader
    | NotifyFailureDetector
    | ReshardingAction
)
