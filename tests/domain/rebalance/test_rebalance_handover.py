"""RebalanceTask: leaders that move in batches, without a RegionMigration for each."""

from typing import Any

import pytest
from rebalance_case import Case, Result, only
from worlds import child, record, text

from rezone.domain.model import world
from rezone.resources.task import Handover, RebalanceTaskStatus
from rezone.resources.task import TaskState as S
from rezone.wire.messages import LeaderAndIsr

SIZE = 8
SOURCE = ((0, 1, 2),) * SIZE
TARGET = ((1, 2, 0),) * SIZE


def rotating(**settings: Any) -> Case:
    """Return a task whose eight partitions shall be led by node 1 instead of node 0."""
    case = Case(S.SWITCHING)
    case.world.routes = [record()] * SIZE
    case.world.settings |= {"stable": SOURCE, "max_concurrent_handovers": 4} | settings
    case.world.pend(TARGET)
    case.status |= {"source": text(SOURCE), "target": text(TARGET)}
    return case


def go_on(case: Case, **changes: LeaderAndIsr) -> Result:
    """Decide, keep the status and what was written; `changes` are then written too ("p3")."""
    decision = case.decide()
    case.status["handovers"] = decision.status.handovers
    for action in decision.actions:
        if isinstance(action, world.ChangeRoutes):
            for change in action.changes:
                case.world.routes[change.partition] = change.state
    for name, state in changes.items():
        case.world.routes[int(name[1:])] = state
    return decision


def batch(*partitions: int) -> tuple[Handover, ...]:
    """Return a batch of partitions that were led in epoch 4."""
    return tuple(Handover(partition=partition, leader_epoch=4) for partition in partitions)


def moved(epoch: int = 5) -> LeaderAndIsr:
    """Return a partition's route after its takeover."""
    return record(leader=1, leader_epoch=epoch)


def rolled_back() -> LeaderAndIsr:
    """Return a partition's route after a takeover that failed."""
    return record(leader_epoch=6)


@pytest.mark.proves("RM-02")
def test_a_batch_is_persisted_and_authorized_in_one_write() -> None:
    """A thousand leaders would cost six writes each, or a crash would leave one half-way."""
    case = rotating()
    decision = go_on(case)
    assert decision.status.handovers == batch(0, 1, 2, 3)
    changes = only(decision, world.ChangeRoutes).changes
    assert [(c.partition, c.state.next_leader, c.state.next_epoch) for c in changes] == [
        (p, 1, 5) for p in range(4)
    ]
    calls = [a for a in decision.actions if isinstance(a, world.RequestTakeover)]
    assert [(c.partition, c.source, c.candidate, c.leader_epoch, c.next_epoch) for c in calls] == [
        (p, 0, 1, 4, 5) for p in range(4)
    ]
    assert isinstance(decision.actions[0], world.ChangeRoutes), "asked before it is authorized"
    assert len(decision.actions) == 5
    assert go_on(case).actions == ()


def test_a_lost_write_of_the_routes_is_repeated() -> None:
    """A coordinator that died between the status and the routes would leave its batch for ever."""
    case = rotating()
    case.status["handovers"] = batch(0, 1)
    changes = only(case.decide(), world.ChangeRoutes).changes
    assert [c.partition for c in changes if c.partition < 2] == [0, 1]


def test_a_batch_is_filled_up_when_half_of_it_is_done() -> None:
    """Each leader that has moved would cost a write of the task's status."""
    case = rotating()
    go_on(case, p0=moved())
    assert go_on(case, p1=moved()).status.handovers == batch(1, 2, 3)
    decision = go_on(case)
    assert decision.status.handovers == batch(2, 3, 4, 5)
    assert [c.partition for c in only(decision, world.ChangeRoutes).changes] == [4, 5]


@pytest.mark.proves("RM-08", "B-14")
def test_a_handover_that_was_rolled_back_is_tried_again_by_a_migration() -> None:
    """It would be tried again for ever, without a reason and without a pause."""
    case = rotating()
    go_on(case, p2=rolled_back())
    decision = go_on(case)
    made = only(decision, world.EnsureMigration)
    assert (made.name, made.partition, made.target) == ("t-p2", 2, 1)
    assert batch(2)[0] in decision.status.handovers, "forgotten before its migration exists"
    case.world.migrations = [child("t-p2", 2, "DowngradeLeader")]
    decision = go_on(case)
    assert batch(2)[0] not in decision.status.handovers
    case.world.migrations = [child("t-p2", 2, "Failed")]
    made = only(go_on(case), world.EnsureMigration)
    assert made.name == "t-p2-1", "handed over again although that had failed"


def copied(case: Case) -> None:
    """Let node 1's replicas be copies that no stable assignment has yet."""
    case.world.settings["stable"] = ((0, 3, 2),) * SIZE
    case.status["source"] = text(((0, 3, 2),) * SIZE)
    case.world.verified = {(p, 1, 4) for p in range(SIZE)}


def lagging(case: Case) -> None:
    """Let node 1's engines be far behind, with no hot standby."""
    case.world.reports = {(p, 1): {"kv_applied_offset": 0} for p in range(SIZE)}
    case.world.reports |= {(p, 0): {"log_end_offset": 5000} for p in range(SIZE)}


def silent(case: Case) -> None:
    """Let the leader be silent, with node 1 as a hot standby."""
    case.world.routes = [record(iss=(1,))] * SIZE
    case.world.silent = {0: 0.1}


def taken_over(case: Case) -> None:
    """Let takeovers by node 2 be authorized already."""
    case.world.routes = [record(next_leader=2, next_epoch=5)] * SIZE


@pytest.mark.parametrize(
    "tweak",
    [
        copied,
        lagging,
        lambda case: case.world.settings.update(max_concurrent_handovers=0),
        silent,
        taken_over,
    ],
    ids=["copied", "lagging", "off", "leader silent", "another takeover"],
)
@pytest.mark.proves("B-04", "DCP-06")
def test_all_else_moves_by_a_migration(tweak: Any) -> None:
    """A copy that nobody compared could lead, or writes would wait for a long takeover."""
    case = rotating()
    tweak(case)
    decision = case.decide()
    assert decision.status.handovers == ()
    assert any(isinstance(a, world.EnsureMigration) for a in decision.actions)


def test_a_partition_that_a_person_moves_just_now_is_left_alone() -> None:
    """Two takeovers of one partition would be begun."""
    case = rotating()
    case.world.migrations = [child("m", 0, "OpenCandidate", owner_task="")]
    assert batch(0)[0] not in case.decide().status.handovers


def test_paused_tasks_begin_no_handover() -> None:
    """A pause would stop copies only."""
    assert rotating(paused=True).decide().actions == ()


@pytest.mark.proves("ZR-18", "B-15")
def test_a_cancel_waits_for_leaders_on_their_way() -> None:
    """A leader would move after the task has ended as cancelled."""
    case = rotating()
    go_on(case)
    case.state = S.CANCELLING
    case.world.settings["cancel_revision"] = 2
    assert case.decide().actions == ()
    for partition in range(4):
        case.world.routes[partition] = moved()
    assert only(case.decide(), world.ClearPending).revision == 2
    case.world.settings |= {"pending": None, "pending_revision": 0, "cancel_revision": None}
    decision = case.decide()
    assert (decision.status.state, decision.status.handovers) == (S.CANCELLED, ())


def test_a_batch_that_was_stored_as_text_is_read() -> None:
    """The first operator with lists would read no task of the one before, and forget its batch."""
    found = RebalanceTaskStatus.model_validate({"handovers": "0@4 17@4"})
    assert found.handovers == batch(0, 17)
    assert RebalanceTaskStatus.model_validate(found.dump()).handovers == batch(0, 17)
    assert RebalanceTaskStatus.model_validate({"handovers": ""}).handovers == ()
