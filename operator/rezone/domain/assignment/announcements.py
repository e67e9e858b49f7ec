"""What a written status change is worth telling people as Kubernetes events.

Events are for `kubectl describe`: few, one per change, with what a person would want to know.
A migration of a rebalance takes a second and there may be thousands, so only ends are told of
migrations, and every state of a task. All functions are pure.
"""

import dataclasses
import enum

from rezone.domain.routing.topology_text import parse
from rezone.resources.conditions import Condition, ConditionStatus, ConditionType, Reason
from rezone.resources.machine_status import MachineStatus
from rezone.resources.migration import TERMINAL_MIGRATION_STATES, MigrationState
from rezone.resources.task import TaskState
from rezone.resources.zone_status import Assignment, DataNodeState, DistributionZoneStatus


class EventReason(enum.StrEnum):
    """The events of zones; those of tasks and migrations are the names of the states entered."""

    DATA_NODE_DRAINING = "DataNodeDraining"  # its Kubernetes node is cordoned or unwanted
    DATA_NODE_LOST = "DataNodeLost"  # silent for the grace time: its replicas are rebuilt
    DATA_NODE_ACTIVE = "DataNodeActive"  # it answers and may hold replicas
    DATA_NODE_REMOVED = "DataNodeRemoved"  # nothing is assigned to it any more
    DATA_NODE_MAINTENANCE = "DataNodeMaintenance"  # its maintenance was asked for, began or ended
    POD_REPLACED = "PodReplaced"  # a rolling update replaces a data node's pod
    UPDATE_STARTED = "UpdateStarted"  # pods of an older template were seen
    UPDATE_DONE = "UpdateDone"  # all pods have the current template
    REBALANCE_STARTED = "RebalanceStarted"  # a trigger was written as the pending assignment
    REBALANCE_DONE = "RebalanceDone"  # the pending assignment has become the stable one
    UNREADABLE = "Unreadable"  # the object has what this version of the operator cannot read


@dataclasses.dataclass(frozen=True, kw_only=True)
class Announcement:
    """One event; `key` names the change, so that a repeat is the same event."""

    reason: str
    message: str
    key: str
    warning: bool = False


def of_unreadable(why: str) -> Announcement:
    """Return the event for an object that cannot be read, of whichever kind."""
    message = (
        f"{why}. The operator leaves the object as it is, and does nothing for it until that is "
        "mended, or the operator of the version that has written it is back"
    )
    return Announcement(
        reason=EventReason.UNREADABLE, message=message, key=f"Unreadable/{why}", warning=True
    )


_BAD_ENDS = frozenset({TaskState.FAILED, MigrationState.FAILED, MigrationState.ROLLED_BACK})
_TOLD_OTHERWISE = frozenset(
    {ConditionType.REBALANCING, ConditionType.RECONCILING, ConditionType.UPDATING}
)
_BAD_WHEN_TRUE = frozenset({ConditionType.STALLED, ConditionType.DEGRADED})


def of_task(before: MachineStatus | None, after: MachineStatus) -> tuple[Announcement, ...]:
    """Return an event for each state that was entered, and for what a person has to mend."""
    return (*_entered(before, after), *_stalled(before, after))


def of_migration(before: MachineStatus | None, after: MachineStatus) -> tuple[Announcement, ...]:
    """Return an event for the end, when it was reached."""
    return tuple(a for a in _entered(before, after) if a.reason in TERMINAL_MIGRATION_STATES)


def of_zone(
    before: DistributionZoneStatus | None, after: DistributionZoneStatus
) -> tuple[Announcement, ...]:
    """Return events for conditions that changed, data nodes, and beginnings and ends of moves."""
    before = before or DistributionZoneStatus()
    return (
        *_conditions(before, after),
        *_data_nodes(before, after),
        *_maintenance(before, after),
        *_moves(before, after),
        *_update(before, after),
    )


def _entered(before: MachineStatus | None, after: MachineStatus) -> list[Announcement]:
    known = before.history if before is not None else ()
    succeeded = next((c for c in after.conditions if c.type == ConditionType.SUCCEEDED), None)
    found = []
    for step in after.history:
        if step in known:
            continue
        message = step.message
        if not message and succeeded is not None and step.state == after.state:
            message = succeeded.message
        found.append(
            Announcement(
                reason=step.state,
                message=message or f"entered {step.state}",
                key=f"{step.state}/{step.time.isoformat()}",
                warning=step.state in _BAD_ENDS,
            )
        )
    return found


def _stalled(before: MachineStatus | None, after: MachineStatus) -> list[Announcement]:
    """Tell why a task that has not ended cannot go on; its end and its approval tell themselves."""
    if after.finished_time is not None:
        return []
    known = {(c.type, c.reason) for c in before.conditions} if before is not None else set()
    return [
        _of_condition(condition)
        for condition in after.conditions
        if condition.type is ConditionType.STALLED
        and condition.reason != Reason.AWAITING_APPROVAL
        and (condition.type, condition.reason) not in known
    ]


def _conditions(
    before: DistributionZoneStatus, after: DistributionZoneStatus
) -> list[Announcement]:
    """Tell conditions whose status or reason changed.

    Rebalancing is told by its task, Updating by the pods it replaces.
    """
    old = {c.type: c for c in before.conditions}
    found = []
    for condition in after.conditions:
        was = old.get(condition.type)
        same = was is not None and (was.status, was.reason) == (condition.status, condition.reason)
        if same or condition.type in _TOLD_OTHERWISE:
            continue
        found.append(_of_condition(condition))
    return found


def _of_condition(condition: Condition) -> Announcement:
    holds = condition.status is ConditionStatus.TRUE
    since = condition.last_transition_time.isoformat()
    return Announcement(
        reason=condition.reason,
        message=f"{condition.type} is {condition.status}: {condition.message or condition.reason}",
        key=f"{condition.type}/{condition.status}/{condition.reason}/{since}",
        warning=condition.type in _BAD_WHEN_TRUE and holds,
    )


_OF_NODES = {
    DataNodeState.DRAINING: (EventReason.DATA_NODE_DRAINING, False),
    DataNodeState.LOST: (EventReason.DATA_NODE_LOST, True),
    DataNodeState.ACTIVE: (EventReason.DATA_NODE_ACTIVE, False),
}


def _data_nodes(
    before: DistributionZoneStatus, after: DistributionZoneStatus
) -> list[Announcement]:
    states = {n.id: n.state for n in before.data_nodes}
    # With the counter of the zone's changes, the same node may be drained twice and told twice.
    stamp = f"{after.observed_generation}/{after.assignments.change}"
    found = []
    for node in after.data_nodes:
        if states.get(node.id) == node.state or node.state not in _OF_NODES:
            continue
        reason, warning = _OF_NODES[node.state]
        text = f"data node {node.id} on node {node.node_name or '-'} is {node.state}"
        key = f"node-{node.id}/{node.state}/{stamp}"
        found.append(Announcement(reason=reason, message=text, key=key, warning=warning))
    gone = states.keys() - {n.id for n in after.data_nodes}
    for node_id in sorted(gone):
        text = f"data node {node_id} holds nothing any more and was removed"
        key = f"node-{node_id}/gone/{stamp}"
        reason = EventReason.DATA_NODE_REMOVED
        found.append(Announcement(reason=reason, message=text, key=key))
    return found


def _maintenance(
    before: DistributionZoneStatus, after: DistributionZoneStatus
) -> list[Announcement]:
    old = {n.id: n.maintenance for n in before.data_nodes}
    found = []
    for node in after.data_nodes:
        was, now = old.get(node.id), node.maintenance
        if was is None and now is None:
            continue
        if was is not None and now is not None and was.state is now.state:
            continue
        state = now.state if now is not None else "ended"
        wanted = now or was
        since = wanted.since_time.isoformat() if wanted is not None else ""
        text = f"maintenance of data node {node.id} on node {node.node_name or '-'} is {state}"
        if now is not None and now.waiting_for:
            text = f"{text}: {now.waiting_for}"
        key = f"node-{node.id}/maintenance/{state}/{since}"
        reason = EventReason.DATA_NODE_MAINTENANCE
        found.append(Announcement(reason=reason, message=text, key=key))
    return found


def _moves(before: DistributionZoneStatus, after: DistributionZoneStatus) -> list[Announcement]:
    old, new = before.assignments.pending, after.assignments.pending
    found = []
    if old is not None and (new is None or new.revision != old.revision):
        key = f"done/{old.revision}"
        text = f"{_what(before, old)} has ended"
        found.append(Announcement(reason=EventReason.REBALANCE_DONE, message=text, key=key))
    if new is not None and (old is None or new.revision != old.revision):
        key = f"started/{new.revision}"
        text = f"{_what(after, new)} begins"
        found.append(Announcement(reason=EventReason.REBALANCE_STARTED, message=text, key=key))
    return found


def _what(status: DistributionZoneStatus, pending: Assignment) -> str:
    """Return what a pending assignment is, in words."""
    stable = status.assignments.stable
    if stable is None or stable.layout_version == pending.layout_version:
        return f"the rebalance of revision {pending.revision}"
    count = len(parse(pending.replicas))
    return f"the re-sharding of revision {pending.revision} to {count} partitions"


def _update(before: DistributionZoneStatus, after: DistributionZoneStatus) -> list[Announcement]:
    old, new = before.rollout, after.rollout
    found = []
    if old is None and new is not None:
        key = f"update/{new.started_time.isoformat()}"
        text = f"{new.outdated} data nodes have pods of an older template"
        found.append(Announcement(reason=EventReason.UPDATE_STARTED, message=text, key=key))
    if new is not None and new.pod_uid and (old is None or old.pod_uid != new.pod_uid):
        key = f"replaced/{new.pod_uid}"
        text = f"the pod of data node {new.node} is replaced"
        found.append(Announcement(reason=EventReason.POD_REPLACED, message=text, key=key))
    if old is not None and new is None:
        key = f"updated/{old.started_time.isoformat()}"
        text = "all data nodes have pods of the current template"
        found.append(Announcement(reason=EventReason.UPDATE_DONE, message=text, key=key))
    return found
