"""What a pass sees of a zone: what it asked for, and the one value that decisions are made by."""

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import datetime

from rezone.controller.coordination.runtime import ZoneRuntime
from rezone.controller.coordination.zone_config import index_names
from rezone.controller.nodes.monitor import NodeMonitor, utc_now
from rezone.controller.nodes.node_state import NodeState
from rezone.controller.nodes.verify import Comparisons
from rezone.domain.assignment.assignments import topology_of
from rezone.domain.model.world import CopyKey, MigrationView, NodeView, SparkView, ZoneView
from rezone.domain.observed.disks import slow_nodes
from rezone.domain.observed.maintenance import is_active
from rezone.domain.routing.route_records import RouteRecords
from rezone.domain.zone.data_nodes import KubeNode, Presence
from rezone.domain.zone.status import Obstacle
from rezone.kube.nodes.pods import PodView
from rezone.resources.migration import TERMINAL_MIGRATION_STATES, MigrationState, RegionMigration
from rezone.resources.task import RebalanceTask
from rezone.resources.zone import (
    ApprovalMode,
    DistributionZone,
    SparkFallback,
    TargetFailurePolicy,
)
from rezone.resources.zone_status import DataNodeState, DataNodeStatus, DistributionZoneStatus
from rezone.wire.layouts import id_of
from rezone.wire.messages import DiskTrouble, NodeId, ReplicaReport


@dataclasses.dataclass(frozen=True, kw_only=True)
class Observed:
    """What one pass has asked for; `migrations` only if the time of a kept replica is over.

    `template` says why no pod can be made of the zone's template.
    """

    now: datetime
    kube_nodes: dict[str, KubeNode]
    pods: tuple[PodView, ...]
    presence: dict[int, Presence]
    tasks: tuple[RebalanceTask, ...]
    routes: RouteRecords
    migrations: tuple[RegionMigration, ...] | None
    template: Obstacle | None = None

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
    rebalance, transfer = zone.spec.rebalance, zone.spec.transfer
    generation = keys.stable.layout_version if keys.stable else routes.layout.generation
    now = utc_now()
    nodes = node_views(status.data_nodes, runtime.monitor, now)
    runtime.copy_watch.look(nodes, now)
    forget_dropped(runtime.copies, routes, nodes)
    return ZoneView(
        name=zone.metadata.name,
        routes=routes,
        nodes=nodes,
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
        spark_threshold_bytes=transfer.spark_threshold_bytes,
        spark_timeout_seconds=transfer.spark_timeout_seconds,
        stream_without_spark=transfer.when_spark_unavailable is SparkFallback.STREAM,
        leader_lease_seconds=leader_lease_seconds,
        min_in_sync=zone.spec.min_in_sync,
        hot_standbys=zone.spec.hot_standbys,
        replace_failed_targets=rebalance.target_failure_policy is TargetFailurePolicy.REPLACE,
        hands_off=zone.spec.paused,
        copies_refused=runtime.copies_refused(),
        stalled_copies=runtime.copy_watch.stalled(
            now, deadline_seconds=rebalance.copy_progress_deadline_seconds
        ),
        avoided=runtime.copy_watch.avoided(now),
        retained=keys.retained,
        generation=generation,
        pending_generation=keys.pending.layout_version if keys.pending else generation,
        pending_filled_by=keys.pending.filled_by if keys.pending else "",
        migrations=tuple(migration_view(m, generation) for m in migrations),
        taken_names=taken_names or {},
        spark=spark,
        verified=frozenset(runtime.copies.verified),
        mismatched=frozenset(runtime.copies.differing),
        not_compared=dict(runtime.copies.failing),
        indexes=index_names(zone),
    )


def forget_dropped(
    copies: Comparisons[CopyKey], routes: RouteRecords, nodes: Mapping[NodeId, NodeView]
) -> None:
    """Forget what was found of copies that no route has any more, or that were made again since.

    A differing one is remembered until its node has stopped it: then it may be made again.
    """

    def is_out(key: CopyKey) -> bool:
        partition, node, _ = key
        return partition not in routes or node not in routes[partition].replicas

    def is_gone(key: CopyKey) -> bool:
        seen = nodes.get(key[1])
        return seen is None or (seen.reachable and key[0] not in seen.replicas)

    def is_empty(key: CopyKey) -> bool:
        report = report_of(key)
        return report is not None and report.needs_snapshot

    def is_another(key: CopyKey) -> bool:
        report = report_of(key)
        return report is not None and bool(report.needs_snapshot or report.uncompared)

    def report_of(key: CopyKey) -> ReplicaReport | None:
        seen = nodes.get(key[1])
        return seen.replicas.get(key[0]) if seen is not None and seen.reachable else None

    copies.verified -= {key for key in copies.verified if is_out(key) or is_another(key)}
    copies.differing -= {
        key for key in copies.differing if is_empty(key) or (is_out(key) and is_gone(key))
    }


def node_views(
    data_nodes: Sequence[DataNodeStatus], monitor: NodeMonitor, now: datetime
) -> dict[NodeId, NodeView]:
    """Return the data nodes of the status with what the monitor has heard of them."""
    views = {}
    answering = {
        node.id: seen.node_state
        for node in data_nodes
        if (seen := monitor.get(node.id)) is not None
        and seen.reachable
        and seen.node_state is not None
    }
    slow = slow_nodes(
        {node: node_state.slow_ms for node, node_state in answering.items()},
        {node: node_state.sync_ms for node, node_state in answering.items()},
    )
    for node in data_nodes:
        seen = monitor.get(node.id)
        node_state = answering.get(node.id)
        disk, disk_text = _disk_of(node_state, slow=node.id in slow)
        is_fresh = seen is not None and seen.is_fresh(now)
        views[node.id] = NodeView(
            node=node.id,
            address=node.address,
            reachable=node_state is not None,
            leaving=node_state is not None
            and (node_state.leaving or bool(disk) or node_state.clock_off),
            disk=disk,
            disk_text=disk_text,
            clock_text=node_state.clock_text if node_state is not None else "",
            draining=node.state is DataNodeState.DRAINING,
            lost=node.state is DataNodeState.LOST,
            maintenance=is_active(node),
            unreachable_since=monitor.silent_since(node.id),
            fresh=is_fresh,
            answers_since=seen.answers_since if seen is not None and is_fresh else None,
            hears=node_state.hears if node_state is not None else None,
            failure_domain=node.failure_domain,
            weight=node.weight,
            served_percent=node_state.served_percent if node_state is not None else None,
            overwrite=node_state.overwrite if node_state is not None else "",
            overwrite_silent=node_state is not None and node_state.overwrite_silent,
            replicas=node_state.replicas if node_state is not None else {},
        )
    return views


def _disk_of(node_state: NodeState | None, *, slow: bool) -> tuple[DiskTrouble, str]:
    if node_state is None:
        return DiskTrouble.NONE, ""
    if slow and not node_state.disk:
        return DiskTrouble.SLOW, f"syncs take {node_state.slow_ms / 1000:.1f} s"
    return node_state.disk, node_state.disk_text


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
