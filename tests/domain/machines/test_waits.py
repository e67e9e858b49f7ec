"""How long machines have waited for what, and what transfers cost writers, as statuses tell."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec
import pytest
from migration_case import Case as Migration
from rebalance_case import MOVED
from rebalance_case import Case as Rebalance
from worlds import NEW, NOW, World, record

from rezone.domain.machines.rebalance_table import TABLE
from rezone.domain.machines.statuses import enter
from rezone.domain.machines.waits import waits_until, with_waiting
from rezone.domain.observed.write_gaps import unavailability
from rezone.resources.machine_status import Transition, WaitedFor, WaitingReason
from rezone.resources.migration import MigrationState
from rezone.resources.task import (
    PARTITION_GAPS_MAX,
    TERMINAL_TASK_STATES,
    RebalanceTaskStatus,
    TaskState,
)
from rezone.wire.messages import Role

pytestmark = pytest.mark.proves("OB-05")
COPYING, LIMIT = WaitingReason.COPYING, WaitingReason.LIMIT


def after(seconds: float) -> datetime:
    """Return a time after the usual one."""
    return NOW + timedelta(seconds=seconds)


def entered(state: TaskState) -> RebalanceTaskStatus:
    """Return the status of a task that has just come into a state."""
    return RebalanceTaskStatus(state=state, history=(Transition(state=state, time=NOW),))


def test_waits_are_added_up_by_reason() -> None:
    """After an hour nobody could tell what a rebalance had waited for."""
    status = with_waiting(entered(TaskState.TRANSFERRING), "Limit: 1", LIMIT, after(12))
    assert status.waiting_since_time == NOW
    status = with_waiting(status, "Copying: 1", COPYING, after(60.9))
    status = with_waiting(status, "Copying: 2", COPYING, after(90))
    status = with_waiting(status, "Limit: 2", LIMIT, after(100))
    assert status.waits == (
        WaitedFor(reason=LIMIT, seconds=60),
        WaitedFor(reason=COPYING, seconds=40),
    )
    assert [each.seconds for each in waits_until(status, after(115))] == [75, 40]
    status = enter(status, TABLE, TaskState.SWITCHING, after(130))
    assert (status.waiting_for, status.waiting_reason) == ("", None)
    assert status.waiting_since_time is None
    assert waits_until(status, after(999)) == (
        WaitedFor(reason=LIMIT, seconds=90),
        WaitedFor(reason=COPYING, seconds=40),
    )


def test_a_wait_that_begins_late_in_a_state_counts_from_there() -> None:
    """An hour of copying would be told as an hour of waiting for a limit."""
    status = with_waiting(entered(TaskState.TRANSFERRING), "Limit: 1", LIMIT, after(3600))
    assert waits_until(status, after(3610)) == (WaitedFor(reason=LIMIT, seconds=10),)
    fast = with_waiting(status, "", None, after(3590))
    assert fast.waits == (WaitedFor(reason=LIMIT, seconds=0),)


def micros(time: datetime) -> int:
    """Return microseconds since 1970."""
    return int(time.timestamp() * 1_000_000)


def test_a_task_that_ends_tells_what_its_transfers_have_cost() -> None:
    """A person would have to have watched the metrics to know how long writers were stopped."""
    case = Rebalance(TaskState.STOPPING_REDUNDANT)
    case.world.settings |= {"stable": NEW, "pending": None, "pending_revision": 0}
    done = {"replicas": (1, 2, 3), "isr": (1, 2, 3)}
    case.world.routes[0] = msgspec.structs.replace(MOVED, **done)
    case.status["started_time"] = NOW
    measured = {"write_gap_ms": 7, "write_gap_time": micros(after(1))}
    case.world.reports[0, 1] = measured
    case.world.reports[1, 1] = {**measured, "write_gap_ms": 900}  # it was not the task's to move

    found = end_of(case).write_unavailability
    assert found is not None
    assert (found.transfers, found.max_milliseconds, found.total_milliseconds) == (1, 7, 7)
    assert [(gap.partition, gap.milliseconds) for gap in found.longest] == [(0, 7)]

    case.world.reports[0, 1] = {**measured, "write_gap_time": micros(after(-1))}
    assert end_of(case).write_unavailability is None


@pytest.mark.proves("OB-03")
def test_a_task_that_goes_on_tells_what_its_transfers_have_cost_so_far() -> None:
    """Who watches a rebalance would learn that it stops writers for long when it is too late."""
    case = Rebalance(TaskState.SWITCHING)
    case.world.routes[0] = MOVED
    case.status["started_time"] = NOW
    case.world.reports[0, 1] = {"write_gap_ms": 7, "write_gap_time": micros(after(1))}

    status = case.decide().status

    assert status.state not in TERMINAL_TASK_STATES
    assert status.progress.leader_moves_done == 1
    assert status.write_unavailability is not None
    assert status.write_unavailability.max_milliseconds == 7


def end_of(case: Rebalance) -> RebalanceTaskStatus:
    """Return the status with which the task ends."""
    status = case.decide().status
    assert status.state == TaskState.SUCCEEDED, status.waiting_for
    return status


def test_a_leader_transfer_tells_what_it_has_cost() -> None:
    """The same for a leader that a person has moved; what another epoch has cost is not told."""
    case = Migration(MigrationState.UPGRADE_CANDIDATE)
    case.world.takes_over()
    case.world.reported(0, 1, role=Role.LEADER, write_gap_ms=4, write_gap_time=1)
    assert case.decide().status.write_unavailable_milliseconds is None
    case = Migration(MigrationState.CLOSE_OLD_LEADER)
    case.context = {"route_version": 9, "leader_epoch": 4, "next_epoch": 5}
    case.world.routes[0] = MOVED
    case.world.reported(0, 1, write_gap_ms=4, write_gap_time=1)
    assert case.decide().status.write_unavailable_milliseconds == 4
    case.context["next_epoch"] = 3
    assert case.decide().status.write_unavailable_milliseconds is None


def test_the_longest_gaps_alone_are_named() -> None:
    """A zone of 16,384 partitions would have a status too large to be stored."""
    world = World(routes=[record(leader=n % 3) for n in range(100)])
    for partition in range(100):
        world.reports[partition, partition % 3] = {
            "write_gap_ms": partition,
            "write_gap_time": micros(after(1)),
        }
    found = unavailability(world.view(), range(100), NOW)
    assert found is not None
    assert (found.transfers, found.total_milliseconds, found.max_milliseconds) == (100, 4950, 99)
    assert len(found.longest) == PARTITION_GAPS_MAX
    assert found.longest[0].partition == 99
