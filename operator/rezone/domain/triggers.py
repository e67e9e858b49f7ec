"""When a zone needs another assignment (ZR-01..03), and how long that may wait.

A trigger is a difference, looked at anew each pass: the nodes that partitions are assigned to are
not the nodes they may live on, or have another weight or failure domain than when that was
decided, or a partition has not as many replicas as the spec wants. A zone that a person has
arranged by hand is therefore left alone until one of these changes.
"""

import enum
from datetime import datetime, timedelta

from rezone.domain.assignments import topology_of
from rezone.domain.world import Topology
from rezone.resources.zone import AutoAdjustSpec
from rezone.resources.zone_status import Assignments


class Trigger(enum.StrEnum):
    """Why a new assignment is wanted."""

    NODES_JOINED = "NodesJoined"
    NODES_LEFT = "NodesLeft"
    NODES_CHANGED = "NodesChanged"
    REPLICAS_CHANGED = "ReplicasChanged"
    PARTITIONS_CHANGED = "PartitionsChanged"


def wants_partitions(keys: Assignments, wanted: int) -> bool:
    """Return whether a zone shall have another number of partitions than its newest assignment.

    One that was cancelled is not wanted again before `wanted` has been another number meanwhile.
    """
    newest = topology_of(keys.planned or keys.pending or keys.stable)
    return newest is not None and wanted not in {len(newest), keys.declined_partitions}


def find_trigger(
    topology: Topology,
    *,
    eligible: frozenset[int],
    replicas: int,
    changed: frozenset[int] = frozenset(),
) -> Trigger | None:
    """Return why `topology` (the newest assignment wanted) no longer fits, None when it does.

    `changed` are nodes whose weight or failure domain is not what the assignment counted on.
    """
    assigned = frozenset(node for nodes in topology for node in nodes)
    if assigned - eligible:
        return Trigger.NODES_LEFT
    if any(len(nodes) != replicas for nodes in topology):
        return Trigger.REPLICAS_CHANGED
    # Fewer replicas than nodes: a node may rightly hold nothing, and no plan would change that.
    spare = len(topology) * replicas < len(eligible)
    if eligible - assigned and not spare:
        return Trigger.NODES_JOINED
    return Trigger.NODES_CHANGED if changed & eligible else None


def due_in(
    trigger: Trigger,
    settings: AutoAdjustSpec,
    *,
    since: datetime,
    now: datetime,
    by_hand: bool,
) -> timedelta:
    """Return how long the trigger still has to last; `by_hand` (a drain, a spec) waits for nothing.

    The start is persisted in the zone's status, so that a restart does not begin the wait anew.
    """
    if by_hand or trigger in {Trigger.REPLICAS_CHANGED, Trigger.PARTITIONS_CHANGED}:
        return timedelta(0)
    left = trigger is Trigger.NODES_LEFT
    seconds = settings.scale_down_seconds if left else settings.scale_up_seconds
    return max(timedelta(0), since + timedelta(seconds=seconds) - now)
