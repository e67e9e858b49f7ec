"""The pods of a zone's data nodes, made and deleted as its status says."""

import structlog

from rezone.controller.observing.observe import Observed
from rezone.domain.assignment import assignments
from rezone.domain.observed import maintenance
from rezone.domain.observed.rollout import SeenPod
from rezone.domain.routing.route_records import RouteRecords
from rezone.domain.zone.status import Obstacle
from rezone.kube.api.errors import ForbiddenError, ForeignObjectError, InvalidWriteError, KubeError
from rezone.kube.nodes.pods import PodStore
from rezone.resources.conditions import Reason
from rezone.resources.zone import DistributionZone
from rezone.resources.zone_status import (
    Assignments,
    DataNodeState,
    DataNodeStatus,
    DistributionZoneStatus,
)

log = structlog.get_logger(__name__)


async def bring_pods(
    pods: PodStore,
    zone: DistributionZone,
    observed: Observed,
    *,
    status: DistributionZoneStatus,
    outdated: SeenPod | None,
) -> Obstacle | None:
    """Make and delete pods as decided; return what is in the way of those to be made.

    That is no reason to leave the partitions alone: a template or a pod that the API server refuses
    must not keep a dead node's leaders from being replaced.
    """
    retired = _retired(status, observed)
    kept = [n for n in status.data_nodes if n.id not in retired and _needs_pod(zone, n)]
    away = frozenset(n.id for n in kept if _is_away(n, observed))
    kept = [n for n in kept if n.id not in away]
    obstacle: Obstacle | None = None
    try:
        degraded = status.under_replicated > 0
        await pods.ensure(zone, kept, degraded=degraded, present=observed.pods, awaited=away)
    except ForeignObjectError as error:
        reason = Reason.AWAITING_DELETION if error.going else Reason.NAME_CONFLICT
        obstacle = Obstacle(reason=reason, message=str(error), lasting=not error.going)
    except (InvalidWriteError, ForbiddenError) as error:
        obstacle = Obstacle(reason=Reason.FAILED_CREATE, message=str(error))
    except KubeError as error:
        obstacle = Obstacle(reason=Reason.FAILED_CREATE, message=str(error), lasting=False)
    try:
        for node in retired:
            log.info("retiring data node", node=node)
            await pods.delete_data_node(zone, node)
        # Its successor might not be made either.
        if outdated is not None and obstacle is None:
            log.info("replacing pod", node=outdated.node)
            await pods.delete_pod(zone, outdated.node, outdated.uid)
    except KubeError as error:
        obstacle = obstacle or Obstacle(
            reason=Reason.FAILED_DELETE, message=str(error), lasting=False
        )
    return observed.template or obstacle


def assigned_ids(keys: Assignments, records: RouteRecords) -> frozenset[int]:
    """Return the data nodes that a route or an assignment names."""
    ids = {node for record in records.values() for node in record.replicas}
    for key in (keys.stable, keys.pending, keys.planned):
        if key is not None:
            ids.update(node for nodes in assignments.parse(key.replicas) for node in nodes)
    return frozenset(ids)


def _needs_pod(zone: DistributionZone, node: DataNodeStatus) -> bool:
    """Return whether a data node shall have a pod: not one that was evicted with all it had."""
    draining = node.state is DataNodeState.DRAINING
    return not (draining and zone.spec.storage.volume_claim_template is None)


def _is_away(node: DataNodeStatus, observed: Observed) -> bool:
    """Return whether a node in maintenance waits for its Kubernetes node: no pod is made then.

    Elsewhere it would begin without its rows, or take the volume away from where it comes back.
    """
    kube = observed.kube_nodes.get(node.node_name)
    return maintenance.is_asked_for(node) and (kube is None or not kube.schedulable)


def _retired(status: DistributionZoneStatus, observed: Observed) -> frozenset[int]:
    """Return the data nodes that nothing is assigned to and that the spec no longer wants.

    A pod without a data node is one more: an operator that was about to lose its Lease may have
    made it after its successor had retired the node.
    """
    assigned = assigned_ids(status.assignments, observed.routes)
    unwanted = (DataNodeState.DRAINING, DataNodeState.LOST)
    wanted = {node.id for node in status.data_nodes if node.state not in unwanted}
    seen = {node.id for node in status.data_nodes} | {pod.node_id for pod in observed.pods}
    return frozenset(seen - wanted - assigned)
