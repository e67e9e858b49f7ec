"""What a pass sees of a zone: what it asked for, and the one value that decisions are made by."""

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import datetime

from rezone.controller.monitor import NodeMonitor
from rezone.controller.runtime import ZoneRuntime
from rezone.controller.zone_config import index_names
from rezone.domain.assignments import topology_of
from rezone.domain.data_nodes import KubeNode, Presence
from rezone.domain.route_records import RouteRecords
from rezone.domain.world import MigrationView, NodeView, SparkView, ZoneView
from rezone.kube.pods import PodView
from rezone.resources.migration import TERMINAL_MIGRATION_STATES, MigrationState, RegionMigration
from rezone.resources.task import RebalanceTask
from rezone.resources.zone import ApprovalMode, DistributionZone
from rezone.resources.zone_status import DataNodeState, DataNodeStatus, DistributionZoneStatus
from rezone.wire.layouts import id_of
from rezone.wire.messages import NodeId


@dataclasses.dataclass(frozen=True, kw_only=True)
class Observed:
    """What one pass has asked for; `migrations` only if the time of a kept replica is over."""

    now: datetime
    kube_nodes: dict[str, KubeNode]
    pods: tuple[PodView, ...]
    presence: dict[int, Presence]
    tasks: tuple[RebalanceTask, ...]
    routes: RouteRecords
    migrations: tuple[RegionMigration, ...] | None

    @property
    def outdated(self) -> frozenset[int]:
        """Return the data nodes whose pods run an older template."""
        return frozenset(pod.node_id for pod in self.pods if pod.outdated)


def build_view(
    zone: DistributionZone,
    runtime: ZoneRuntime,
    *,
    routes: RouteRecords,
    migrations: Sequence[RegionMigration],
    taken_names: Mapping[str, str] | None = None,
    spark: SparkView | None,
    leader_lease_seconds: float,
) -> ZoneView:
    """Return what is known of the zone now; `routes` as this coordinator last saw them."""
    status = zone.status or DistributionZoneStatus()
    keys = status.assignments
    rebalance = zone.spec.rebalance
    generation = keys.stable.generation if keys.stable else routes.layout.generation
    return ZoneView(
        name=zone.metadata.name,
        routes=routes,
        nodes=node_views(status.data_nodes, runtime.monitor),
        stable=topology_of(keys.stable),
        pending=topology_of(keys.pending),
        pending_revision=keys.pending.revision if keys.pending else 0,
        planned=topology_of(keys.planned),
        change=keys.change,
        cancel_revision=keys.cancel.revision if keys.cancel else None,
        coordinator_epoch=runtime.coordinator_epoch,
        paused=rebalance.paused,
        manual_approval=rebalance.approval is ApprovalMode.MANUAL,
        max_concurrent_migrations=rebalance.max_concurrent_migrations,
        max_migrations_per_node=rebalance.max_migrations_per_node,
        max_concurrent_handovers=rebalance.max_concurrent_handovers,
        spark_threshold_bytes=zone.spec.transfer.spark_threshold_bytes,
        leader_lease_seconds=leader_lease_seconds,
        min_in_sync=zone.spec.min_in_sync,
        hot_standbys=zone.spec.hot_standbys,
        kept=keys.kept,
        generation=generation,
        pending_generation=keys.pending.generation if keys.pending else generation,
        migrations=tuple(migration_view(m, generation) for m in migrations),
        taken_names=taken_names or {},
        spark=spark,
        verified=frozenset(runtime.copies.verified),
        mismatched=frozenset(runtime.copies.differing),
        not_compared=dict(runtime.copies.failing),
        indexes=index_names(zone),
    )


def node_views(
    data_nodes: Sequence[DataNodeStatus],
    monitor: NodeMonitor,
) -> dict[NodeId, NodeView]:
    """Return the data nodes of the status with what the monitor has heard of them."""
    views = {}
    for node in data_nodes:
        seen = monitor.get(node.id)
        heard = seen.heard if seen is not None and seen.reachable else None
        views[node.id] = NodeView(
            node=node.id,
            address=node.address,
            reachable=heard is not None,
            leaving=heard is not None and heard.leaving,
            draining=node.state is DataNodeState.DRAINING,
            lost=node.state is DataNodeState.LOST,
            unreachable_since=monitor.silent_since(node.id),
            failure_domain=node.failure_domain,
            weight=node.weight,
            replicas=heard.replicas if heard is not None else {},
        )
    return views


def migration_view(migration: RegionMigration, generation: int) -> MigrationView:
    """Return a RegionMigration as decisions see it; `generation` is that of the zone's layout."""
    status = migration.status
    state = status.state if status is not None else ""
    context = status.context if status is not None else None
    return MigrationView(
        name=migration.metadata.name,
        partition=context.partition
        if context is not None
        else id_of(generation, migration.spec.partition),
        target=migration.spec.target,
        state=state,
        terminal=state in TERMINAL_MIGRATION_STATES,
        succeeded=state == MigrationState.SUCCEEDED,
        owner_task=owner_task_of(migration),
        source=context.from_node if context is not None else None,
        candidate=context.to_node if context is not None else None,
        error=_error_of(migration),
        ended=status.finished_time if status is not None else None,
    )


def owner_task_of(migration: RegionMigration) -> str:
    """Return the name of the RebalanceTask that a RegionMigration is a child of, "" for none."""
    owners = [o.name for o in migration.metadata.owner_references if o.kind == "RebalanceTask"]
    return owners[0] if owners else ""


def _error_of(migration: RegionMigration) -> str:
    last = migration.status.last_error if migration.status is not None else None
    return last.message if last is not None else ""
