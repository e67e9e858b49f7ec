"""Which changes of a status become events."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime

import pytest

from rezone.domain.assignment.announcements import EventReason, of_migration, of_task, of_zone
from rezone.resources.conditions import ConditionType, Reason, condition_of, set_condition
from rezone.resources.machine_status import MachineStatus, Transition
from rezone.resources.zone_status import (
    Assignment,
    Assignments,
    DataNodeState,
    DataNodeStatus,
    DistributionZoneStatus,
    RolloutStatus,
)

NOW = datetime(2026, 11, 1, tzinfo=UTC)


def machine(*states: str) -> MachineStatus:
    """Return the status of a machine that went through these states."""
    history = tuple(Transition(state=s, time=NOW.replace(minute=n)) for n, s in enumerate(states))
    return MachineStatus(state=states[-1] if states else "", history=history)


def zone(
    *nodes: tuple[int, DataNodeState], pending: int = 0, ready: Reason | None = None
) -> DistributionZoneStatus:
    """Return a zone's status."""
    made = DistributionZoneStatus(
        data_nodes=tuple(DataNodeStatus(id=n, pod_name=f"z-{n}", state=s) for n, s in nodes),
        assignments=Assignments(
            pending=Assignment(replicas="0,1", revision=pending) if pending else None,
            change=pending,
        ),
    )
    if ready is None:
        return made
    holds = ready is Reason.AVAILABLE
    told = condition_of(ConditionType.READY, holds, ready, "why", generation=1, now=NOW)
    return made.model_copy(update={"conditions": set_condition(made.conditions, told)})


def test_every_state_of_a_task_is_told_once() -> None:
    """`kubectl describe` would not tell where a rebalance was, or tell it in every pass."""
    before, after = machine("Planned"), machine("Planned", "Approved", "AwaitingReplicas")
    told = of_task(before, after)
    assert [a.reason for a in told] == ["Approved", "AwaitingReplicas"]
    assert of_task(after, after) == ()
    assert [a.reason for a in of_task(None, before)] == ["Planned"]
    assert len({a.key for a in told}) == 2


def stalled(status: MachineStatus, reason: Reason) -> MachineStatus:
    """Return the status of a machine that cannot go on without somebody."""
    told = condition_of(
        ConditionType.STALLED, value=True, reason=reason, message="why", generation=1, now=NOW
    )
    return status.model_copy(update={"conditions": (told,)})


def test_what_a_person_has_to_mend_for_a_task_is_told_once() -> None:
    """A task that waits for a person would be found by its status alone, or tell it each pass."""
    before = machine("Planned", "Transferring")
    after = stalled(before, Reason.NAME_CONFLICT)
    (told,) = of_task(before, after)
    assert (told.reason, told.warning) == (Reason.NAME_CONFLICT, True)
    assert "why" in told.message
    assert of_task(after, after) == ()
    assert of_task(before, stalled(before, Reason.AWAITING_APPROVAL)) == ()
    ended = stalled(machine("Planned", "Failed"), Reason.FAILED)
    ended = ended.model_copy(update={"finished_time": NOW})
    assert [a.reason for a in of_task(machine("Planned"), ended)] == ["Failed"]


@pytest.mark.parametrize(
    ("end", "warning"), [("Succeeded", False), ("RolledBack", True), ("Failed", True)]
)
def test_only_the_end_of_a_migration_is_told(end: str, warning: bool) -> None:
    """Thousands of short migrations would cost the API server more in events than in work."""
    steps = ("SelectCandidate", "OpenCandidate")
    assert of_migration(None, machine(*steps)) == ()
    (told,) = of_migration(machine(*steps), machine(*steps, end))
    assert (told.reason, told.warning) == (end, warning)


def test_changes_of_a_zone_are_told() -> None:
    """A lost data node or the begin of a move would be found in the status only."""
    before = zone((0, DataNodeState.ACTIVE), (1, DataNodeState.ACTIVE), ready=Reason.AVAILABLE)
    lost = zone((0, DataNodeState.LOST), (1, DataNodeState.ACTIVE), ready=Reason.NO_LEADER)
    told = {a.reason: a for a in of_zone(before, lost)}
    assert set(told) == {EventReason.DATA_NODE_LOST, Reason.NO_LEADER}
    assert told[EventReason.DATA_NODE_LOST].warning
    moving = zone((1, DataNodeState.ACTIVE), pending=7, ready=Reason.NO_LEADER)
    reasons = {a.reason for a in of_zone(lost, moving)}
    assert reasons == {EventReason.DATA_NODE_REMOVED, EventReason.REBALANCE_STARTED}
    done = zone((1, DataNodeState.ACTIVE), ready=Reason.AVAILABLE)
    reasons = {a.reason for a in of_zone(moving, done)}
    assert reasons == {EventReason.REBALANCE_DONE, Reason.AVAILABLE}
    assert of_zone(done, done) == ()
    assert {a.reason for a in of_zone(None, done)} == {
        EventReason.DATA_NODE_ACTIVE,
        Reason.AVAILABLE,
    }


def test_a_warning_condition_is_a_warning() -> None:
    """A stalled zone would look like any other change."""
    told = condition_of(
        ConditionType.STALLED,
        value=True,
        reason=Reason.NOT_ENOUGH_DATA_NODES,
        message="2 of 3",
        generation=1,
        now=NOW,
    )
    status = DistributionZoneStatus(conditions=(told,))
    (event,) = of_zone(None, status)
    assert event.warning
    assert "2 of 3" in event.message


def test_an_update_is_told_with_every_pod_it_replaces() -> None:
    """Nobody would know why a pod was deleted, and by whom."""
    started = RolloutStatus(started_time=NOW, outdated=2)
    first = started.model_copy(update={"node": 1, "pod_uid": "a"})
    second = started.model_copy(update={"node": 2, "pod_uid": "b", "updated": 1})
    steps = [None, started, first, first, second, None]
    statuses = [DistributionZoneStatus(rollout=r) for r in steps]
    told = [a for pair in itertools.pairwise(statuses) for a in of_zone(*pair)]
    assert [a.reason for a in told] == [
        "UpdateStarted",
        "PodReplaced",
        "PodReplaced",
        "UpdateDone",
    ]
    assert "data node 2" in told[2].message
    assert len({a.key for a in told}) == len(told)


def test_a_re_sharding_is_called_one() -> None:
    """`kubectl describe` would tell of a rebalance, and not that the partitions change."""
    first = Assignment(replicas="0;1;2", revision=1)
    second = Assignment(replicas="0;1;2;0;1", revision=2, layout_version=1)
    idle = DistributionZoneStatus(assignments=Assignments(stable=first, change=1))
    busy = DistributionZoneStatus(assignments=Assignments(stable=first, pending=second, change=2))
    done = DistributionZoneStatus(assignments=Assignments(stable=second, change=2))
    (begun,), (ended,) = of_zone(idle, busy), of_zone(busy, done)
    assert begun.message == "the re-sharding of revision 2 to 5 partitions begins"
    assert ended.message == "the re-sharding of revision 2 to 5 partitions has ended"
