"""Carries out what only a re-sharding asks for, and plans it.

Records of a layout are written and deleted together with the zone's cache of them, so what a pass
decides on is what stands in the API server.
"""

from rezone.controller.coordination.coordinator import Coordinator
from rezone.controller.coordination.runtime import ZoneRuntime
from rezone.controller.nodes.verify import verify_range
from rezone.controller.observing.passes import ZonePass
from rezone.domain.assignment import assignments
from rezone.domain.model.resharding_view import CreateTargets, DropLayout, VerifyRange
from rezone.domain.rebalance.estimates import BACKFILL_BYTES_PER_SECOND_GUESSED, seconds_for
from rezone.domain.rebalance.run import NoPlan, Planned
from rezone.domain.resharding.observe import RangeKey
from rezone.domain.resharding.plan import OldZone, plan_for
from rezone.domain.routing import routes
from rezone.resources.conditions import Reason
from rezone.resources.task import PlanSummary, RebalanceTask
from rezone.resources.zone import DistributionZone
from rezone.wire.layouts import Layout, generation_of


def make_resharding_plan(task: RebalanceTask, seen: ZonePass) -> Planned | NoPlan:
    """Return the plan that leads to the zone's pending assignment, as the zone is now."""
    view, status = seen.view, seen.zone.status
    pending = status.assignments.pending if status is not None else None
    if pending is None or view.stable is None:
        return NoPlan(Reason.PLAN_STALE, "the zone has no pending assignment any more")
    target = assignments.parse(pending.replicas)
    records = view.routes.of(view.generation)
    reports = [view.report(p, r.leader) for p, r in zip(view.layout.ids, records, strict=True)]
    old = OldZone(
        layout=view.layout,
        topology=view.stable,
        leaders=tuple(record.leader for record in records),
        partition_bytes=tuple(r.bytes_estimate if r is not None else 0 for r in reports),
    )
    layout = Layout(pending.layout_version, len(target))
    made = plan_for(old, layout, target, task.spec.revision)
    rate = seen.zone.spec.rebalance.max_bytes_per_second
    summary = PlanSummary(
        hash=made.hash,
        moves=made.replicas,
        moves_lower_bound=made.replicas,
        leader_moves=layout.partitions,
        bytes_estimate=made.bytes_copied,
        seconds_estimate=seconds_for(made.bytes_copied, rate, BACKFILL_BYTES_PER_SECOND_GUESSED),
    )
    return Planned(target, summary)


class ReshardingActs:
    """Carries out actions for the re-sharding of one zone."""

    def __init__(
        self, coordinator: Coordinator, zone: DistributionZone, runtime: ZoneRuntime
    ) -> None:
        self._c = coordinator
        self._zone = zone
        self._runtime = runtime

    async def carry_out(self, action: CreateTargets | DropLayout | VerifyRange) -> None:
        """Carry out one action; a repeat changes nothing."""
        store = self._runtime.route_store(self._c.kube, self._zone)
        match action:
            case VerifyRange():
                self._verify_in_background(action)
                return
            case CreateTargets(generation=generation) if self._is_held(generation):
                # Their records were forgotten, not never made: the zone's pass learns them.
                pass
            case CreateTargets(generation=generation, nodes=nodes):
                records = [routes.initial(each, self._c.epoch) for each in nodes]
                await self._runtime.create_layout(store, records, generation)
            case DropLayout(generation=generation):
                await self._runtime.delete_layout(store, generation)
        self._c.wake_zone(self._runtime.key)

    def _is_held(self, generation: int) -> bool:
        """Return whether a data node has, or may have, a partition of a layout."""
        held = self._runtime.monitor.replicas().values()
        known = any(generation_of(p) == generation for reports in held for p in reports)
        return known or not self._runtime.has_met_data_nodes()

    def _verify_in_background(self, action: VerifyRange) -> None:
        """Start a comparison, at most one per range; its outcome wakes the zone."""
        overlap, runtime = action.overlap, self._runtime
        key: RangeKey = (overlap.old, overlap.new, action.leader_epoch)
        source = runtime.monitor.get(action.source)
        target = runtime.monitor.get(action.target)
        most = self._zone.spec.rebalance.max_concurrent_migrations
        full = len(runtime.ranges.under_way) >= most
        if source is None or target is None or full or not runtime.ranges.is_due(key):
            return
        runtime.compare_in_background(
            runtime.ranges,
            key,
            lambda: verify_range(self._c.executor, overlap, source, target),
            lambda: self._c.wake_zone(runtime.key),
        )
