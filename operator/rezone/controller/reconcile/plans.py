"""Makes the plan of a RebalanceTask: asks the planner for what the task's type wants."""

from rezone.controller.nodes.monitor import utc_now
from rezone.controller.observing.passes import ZonePass
from rezone.domain.planner import plan as planner
from rezone.domain.rebalance.estimates import COPY_BYTES_PER_SECOND_GUESSED, seconds_for
from rezone.domain.rebalance.run import NoPlan, Planned
from rezone.domain.zone.data_nodes import eligible_ids, planner_nodes
from rezone.domain.zone.triggers import frozen_ids
from rezone.resources.conditions import Reason
from rezone.resources.task import PlanSummary, RebalanceTask, TaskType
from rezone.resources.zone_status import DistributionZoneStatus


def make_plan(task: RebalanceTask, seen: ZonePass) -> Planned | NoPlan:
    """Return the plan for a task as the zone is now, or why there is none."""
    try:
        request = _request(task, seen)
        made = planner.plan(request)
        pending = seen.view.pending if task.spec.revision else None
        if pending is not None and pending != made.target and not seen.view.resharding:
            # What a task of the operator's carries out was decided when it became pending.
            made = planner.described(request, pending, made)
    except planner.NotPlaceableError as error:
        return NoPlan(Reason.NOT_ENOUGH_DATA_NODES, str(error))
    except ValueError as error:
        return NoPlan(Reason.INVALID_SPEC, str(error))
    rate = seen.zone.spec.rebalance.max_bytes_per_second
    return Planned(
        made.target,
        PlanSummary(
            hash=made.hash,
            moves=made.copies,
            moves_lower_bound=made.lower_bound,
            leader_moves=len(made.leader_moves),
            bytes_estimate=made.bytes_moved,
            seconds_estimate=seconds_for(made.bytes_moved, rate, COPY_BYTES_PER_SECOND_GUESSED),
            reasons=planner.reasons_of(made.moves),
        ),
    )


def _request(task: RebalanceTask, seen: ZonePass) -> planner.PlanRequest:
    request = _zone_request(seen, task.spec.revision)
    match task.spec.type:
        case TaskType.DRAIN:
            return planner.drain(request, task.spec.nodes)
        case TaskType.LEADERS:
            return planner.leaders_only(request)
        case TaskType.MOVES:
            return planner.explicit_moves(
                request,
                {move.partition: move.replicas for move in task.spec.moves},
            )
        case TaskType.ZONE | TaskType.RESHARD:
            return request


def _zone_request(seen: ZonePass, revision: int) -> planner.PlanRequest:
    view = seen.view
    status = seen.zone.status or DistributionZoneStatus()
    nodes, settings = status.data_nodes, seen.zone.spec.data_nodes.auto_adjust
    frozen = frozen_ids(nodes, settings, utc_now())
    sizes = []
    leaders = []
    for partition in view.layout.ids:
        leader = view.routes[partition].leader
        leaders.append(leader)
        report = view.report(partition, leader)
        sizes.append(report.bytes_estimate if report is not None else 0)
    return planner.PlanRequest(
        # Those that there are: another number in the spec is a re-sharding's, which may wait.
        partitions=view.layout.partitions,
        replicas=seen.zone.spec.replicas,
        nodes=planner_nodes(nodes, eligible_ids(nodes), frozen),
        current=view.stable,
        leaders=tuple(leaders),
        partition_bytes=tuple(sizes),
        revision=revision,
    )
