"""Which replicas and leaders a rebalance leaves where they are: those it cannot do without."""

from __future__ import annotations

from datetime import timedelta

import pytest
from rebalance_case import Case, late, moved, only
from worlds import NEW, OLD, record, text

from rezone.domain.machines.statuses import QUIET_SECONDS
from rezone.domain.model import world
from rezone.resources.task import TaskState as S


def withdrawing(target: tuple[int, ...], leader: int, **fields: object) -> Case:
    """Return a task that cancels a move of partition 0 that has switched to node 3."""
    case = Case(S.CANCELLING)
    new = (target, OLD[1])
    case.world.pend(new)
    case.world.nodes = 6
    case.status["target"] = text(new)
    case.spec["cancel"] = True
    case.world.settings["cancel_revision"] = 2
    case.world.routes[0] = record(leader=leader, leader_epoch=5, **fields)
    return case


@pytest.mark.proves("ZR-11")
def test_replicas_stay_while_those_to_come_are_lost() -> None:
    """One replica would be left in sync: writes stop below the minimum, one disk holds the rows."""
    case = Case(S.STOPPING_REDUNDANT)
    target = ((3, 4, 5), OLD[1])
    case.world.nodes = 6
    case.world.settings |= {"stable": target, "pending": None, "pending_revision": 0}
    there = (0, 1, 2, 3, 4, 5)
    case.world.routes[0] = record(leader=3, leader_epoch=5, replicas=there, isr=(0, 1, 2, 3))
    case.world.routes[1] = record(leader=1, replicas=OLD[1], isr=OLD[1])
    case.world.lost, case.world.silent = {4, 5}, {4: 999.0, 5: 999.0}
    case.status["target"] = text(target)
    assert not [a for a in case.decide().actions if isinstance(a, world.ChangeRoutes)]


def test_a_leader_goes_back_to_a_node_that_keeps_it() -> None:
    """Migrations to a node in maintenance fail at once, and after five a person is needed."""
    everybody = {"replicas": (0, 1, 2, 3), "isr": (0, 1, 2, 3)}
    case = withdrawing((3, 1, 2), 3, **everybody)
    case.world.maintenance = {0}
    assert only(case.decide(), world.EnsureMigration).target == 1


def test_no_leader_goes_to_a_node_that_gives_its_leaders_away() -> None:
    """With its disk full it would give the leader up at once, and get it again, without end."""
    case = Case(S.SWITCHING)
    case.world.leaving = {1}
    decided = case.decide()
    assert not decided.actions
    assert "node 1 shall lead" in decided.status.waiting_for


def test_a_cancel_ends_while_a_relieved_partition_lacks_a_dropped_copy() -> None:
    """The old replica is stopped and cannot come back: it would be waited for for ever."""
    case = withdrawing((0, 3, 4), 0, replicas=(0, 4), isr=(0, 4))
    case.status["copies_dropped"] = 1
    decided = case.decide()
    assert "node 1 is not in sync" not in decided.status.waiting_for


@pytest.mark.proves("CF-04")
def test_replaced_replicas_stay_until_named_feeds_have_their_log_elsewhere() -> None:
    """Only they have what a feed has not acknowledged: it would begin with a snapshot."""
    case = Case(S.STOPPING_REDUNDANT)
    moved(case)
    case.world.settings |= {"stable": NEW, "pending": None, "pending_revision": 0}
    case.world.reports[0, 3] = {"pulls_log": True}
    case.now += timedelta(seconds=QUIET_SECONDS)
    decided = case.decide()
    assert not [a for a in decided.actions if isinstance(a, world.ChangeRoutes)]
    assert decided.status.waiting_for.startswith("PullingLog: 1 (partition 0: node 3")
    case.world.reports[0, 3] = {}
    assert only(case.decide(), world.ChangeRoutes)
    # Not for ever: the zone is left with replicas that it does not need otherwise.
    case.world.reports[0, 3] = {"pulls_log": True}
    late(case)
    assert case.decide().status.state != S.STOPPING_REDUNDANT
