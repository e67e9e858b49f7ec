"""When a zone needs another assignment (ZR-01..03), and how long that may wait.

A trigger is a difference, looked at again each pass: the nodes that partitions are assigned to are
not the nodes they may live on, or have another weight or failure domain than when that was
decided, or a partition has not as many replicas as the spec wants. A zone that a person has
arranged by hand is therefore left alone until one of these changes.
"""

import dataclasses
import enum
import math
from collections.abc import Sequence
from datetime import datetime, timedelta

from rezone.domain.assignment.assignments import topology_of
from rezone.domain.observed.maintenance import kept_ids
from rezone.domain.routing.topology_text import Topology
from rezone.domain.zone.data_nodes import changed_ids, eligible_ids
from rezone.resources.zone import AutoAdjustSpec
from rezone.resources.zone_status import Assignments, DataNodeState, DataNodeStatus


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
    return newest is not None and wanted not in {len(newest), keys.cancelled_partitions}


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
    assigned = _assigned(topology)
    if assigned - eligible:
        return Trigger.NODES_LEFT
    if any(len(nodes) != replicas for nodes in topology):
        return Trigger.REPLICAS_CHANGED
    # Fewer replicas than nodes: a node may rightly hold nothing, and no plan would change that.
    spare = len(topology) * replicas < len(eligible)
    if eligible - assigned and not spare:
        return Trigger.NODES_JOINED
    return Trigger.NODES_CHANGED if changed & eligible else None


@dataclasses.dataclass(frozen=True)
class Due:
    """The trigger that is due now, if any, and after how many seconds to look again.

    `frozen` are lost nodes whose time is not over, and those in maintenance: what they hold is
    left alone.
    """

    trigger: Trigger | None
    frozen: frozenset[int]
    wake_seconds: float


def usable_ids(
    nodes: Sequence[DataNodeStatus], topology: Topology, avoided: frozenset[int]
) -> frozenset[int]:
    """Return the nodes that partitions may live on; of the `avoided` ones those that hold some.

    Copies to the avoided ones have failed lately. One that holds nothing would be planned for
    again in the next pass, and the copy fail again, without an end.
    """
    if not avoided:  # as in nearly every pass: a topology may have 16,384 rows
        return eligible_ids(nodes)
    return eligible_ids(nodes) - (avoided - _assigned(topology))


def with_trigger_times(
    nodes: Sequence[DataNodeStatus], topology: Topology, now: datetime
) -> tuple[DataNodeStatus, ...]:
    """Return the nodes, each with since when it is not what `topology` takes it for.

    The time is persisted with the node, so that a restart does not begin the wait again.
    """
    assigned = _assigned(topology)
    differing = {n.id for n in nodes if n.state is DataNodeState.LOST and n.id in assigned}
    differing |= (eligible_ids(nodes) - assigned) | changed_ids(nodes)
    since = now.replace(microsecond=0)
    times = ((n, (n.trigger_time or since) if n.id in differing else None) for n in nodes)
    return tuple(
        node if node.trigger_time == time else node.model_copy(update={"trigger_time": time})
        for node, time in times
    )


def find_due(
    topology: Topology,
    nodes: Sequence[DataNodeStatus],
    settings: AutoAdjustSpec,
    *,
    replicas: int,
    now: datetime,
    avoided: frozenset[int] = frozenset(),
) -> Due:
    """Return what is due of the nodes, which have their trigger times.

    Empty nodes that are `avoided` start nothing (`usable_ids`).

    A drain and another number of replicas wait for nothing; each lost node waits for
    `scaleDownSeconds` from when it was lost, and one in maintenance until that is over. While one
    does, new and relabelled nodes wait too: they would be counted on beside a node that may be
    back soon.
    """
    waiting = _waiting(nodes, settings, now)
    frozen = kept_ids(nodes).union(waiting)
    wake = min(waiting.values(), default=math.inf)
    eligible, changed = usable_ids(nodes, topology, avoided), changed_ids(nodes)
    trigger = find_trigger(topology, eligible=eligible | frozen, replicas=replicas, changed=changed)
    if trigger in {Trigger.NODES_JOINED, Trigger.NODES_CHANGED}:
        assigned = _assigned(topology)
        asking = changed if trigger is Trigger.NODES_CHANGED else eligible - assigned
        up = min(_left(n, settings.scale_up_seconds, now) for n in nodes if n.id in asking)
        if frozen or up > 0:
            return Due(None, frozen, min(wake, up) if up > 0 else wake)
    return Due(trigger, frozen, wake)


def frozen_ids(
    nodes: Sequence[DataNodeStatus], settings: AutoAdjustSpec, now: datetime
) -> frozenset[int]:
    """Return the nodes that plans leave alone: in maintenance, or lost a moment ago."""
    return kept_ids(nodes).union(_waiting(nodes, settings, now))


def _assigned(topology: Topology) -> frozenset[int]:
    """Return the nodes that hold partitions."""
    return frozenset(node for row in topology for node in row)


def _waiting(
    nodes: Sequence[DataNodeStatus], settings: AutoAdjustSpec, now: datetime
) -> dict[int, float]:
    """Return the lost nodes whose time is not over, with the seconds that are left."""
    left = {
        node.id: _left(node, settings.scale_down_seconds, now)
        for node in nodes
        if node.state is DataNodeState.LOST and node.trigger_time is not None
    }
    return {node: seconds for node, seconds in left.items() if seconds > 0}


def _left(node: DataNodeStatus, seconds: int, now: datetime) -> float:
    """Return for how many seconds a node's difference has to last still."""
    since = node.trigger_time or now
    return max(0.0, (since + timedelta(seconds=seconds) - now).total_seconds())
