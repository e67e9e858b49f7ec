"""Disks whose syncs take long or do not come back: others lead, and nobody bounces."""

from __future__ import annotations

import pytest

from simulation.scenarios.runs import seeds
from simulation.scenarios.slow_disks import (
    SLOW_SECONDS,
    SlowDisks,
    check_all_slow,
    check_one_slow,
    storm,
)

LONG = pytest.mark.long


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "seconds", [SLOW_SECONDS[0], *(pytest.param(s, marks=LONG) for s in SLOW_SECONDS[1:])]
)
@pytest.mark.proves("NW-04")
def test_a_slow_disk_leads_nothing_and_holds_nobody_up_until_it_is_well(seconds: float) -> None:
    """The zone would write at half its rate, or not at all where a sync does not come back."""
    with SlowDisks(1) as run:
        run.run(5.0)
        check_one_slow(run, run.leader_of_most(), seconds)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "seconds", [pytest.param(0.05, marks=LONG), 0.5, pytest.param(4.0, marks=LONG)]
)
@pytest.mark.proves("NW-04")
def test_where_all_disks_are_slow_nobody_steps_down(seconds: float) -> None:
    """Leaders would move from one slow disk to the next, each time with a gap."""
    with SlowDisks(1) as run:
        check_all_slow(run, seconds)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.proves("NW-04")
def test_a_disk_that_is_slow_now_and_then_gets_no_leader_back_in_between() -> None:
    """A leader would come and go with each good moment of it."""
    with SlowDisks(1) as run:
        node, moves = run.leader_of_most(), run.leader_moves()
        led = len(run.leads(node))
        for _ in range(4):
            run.delay(0.5, node)
            run.run(4.0)
            run.delay(0.0, node)
            run.run(20.0, writing=False)
        assert (len(run.leads(node)), run.leader_moves() - moves) == (0, led)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.proves("NW-04")
@pytest.mark.parametrize("seed", seeds()[::4])
def test_no_write_is_lost_and_no_read_is_stale_with_disks_that_are_slow_at_random(
    seed: int,
) -> None:
    """A leader that steps down has appended what its followers may have, and has no sync back."""
    storm(seed)
