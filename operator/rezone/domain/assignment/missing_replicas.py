"""Replicas that the assignment names and the route record does not: the zone has them made.

At rest a partition's record has all nodes of its assignment. Where it lacks one, for whatever
reason, the node is added as a learner; the copy follows as for any replica without data
(`repairs.missing_copies`).
"""

import math

from rezone.domain.machines.migration_table import is_under_way
from rezone.domain.model.changes import change_of
from rezone.domain.model.world import NodeView, RouteChange, ZoneView
from rezone.domain.routing import routes
from rezone.wire.messages import LeaderAndIsr, NodeId, PartitionId

LOOK_AGAIN_SECONDS = 5.0
"""How soon a replica that is missing is looked for again: something may move its partition."""


def wake_in(view: ZoneView) -> float:
    """Return after how many seconds to look at missing replicas again, infinity without any."""
    return LOOK_AGAIN_SECONDS if missing_replicas(view) else math.inf


def missing_replicas(view: ZoneView) -> tuple[RouteChange, ...]:
    """Return the records with the nodes of their assignment that they lack.

    Nothing while the zone is paused or a rebalance is pending, and nothing for a partition that a
    migration moves: both change record and assignment in separate writes. `view` has been read in
    the order records, migrations, assignment; in another order an assignment of before a move would
    be mended.
    """
    if view.pending is not None or view.hands_off:
        return ()
    moving = {m.partition for m in view.migrations if is_under_way(m)}
    # Nearly all records name the nodes of their assignment in its order, told apart without a call.
    others = [
        (partition, record)
        for partition, record in view.routes.items()
        if record.replicas != view.assigned(partition)
    ]
    changes = (
        _completed(view, partition, record)
        for partition, record in others
        if partition not in moving and not record.sealing and not record.sealed
    )
    return tuple(change for change in changes if change is not None)


def _completed(view: ZoneView, partition: PartitionId, record: LeaderAndIsr) -> RouteChange | None:
    lacking = [
        node
        for node in view.assigned(partition) or ()
        if node not in record.replicas and _can_hold(view.nodes.get(node))
    ]
    if not lacking:
        return None
    return change_of(
        partition, record, view.coordinator_epoch, lambda r: routes.add_replicas(r, lacking)
    )


def replacement(view: ZoneView, partition: PartitionId, old: NodeId) -> NodeId | None:
    """Return the node that takes the place of `old` in a partition's assignment, None without one.

    One that is a replica already comes first, then one of a failure domain of its own, then the
    emptiest.
    """
    stay = [node for node in view.assigned(partition) or () if node != old]
    domains = {view.nodes[node].failure_domain for node in stay if node in view.nodes}
    replicas = view.routes[partition].replicas

    def order(node: NodeId) -> tuple[bool, bool, float, NodeId]:
        seen = view.nodes[node]
        shared = bool(seen.failure_domain) and seen.failure_domain in domains
        return node not in replicas, shared, len(seen.replicas) / seen.weight, node

    able = (n for n, seen in view.nodes.items() if n not in (old, *stay) and _can_hold(seen))
    return min(able, key=order, default=None)


def _can_hold(seen: NodeView | None) -> bool:
    if seen is None or not seen.reachable:
        return False
    return not (seen.lost or seen.draining or seen.leaving or seen.maintenance)
