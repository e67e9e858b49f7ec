"""Disks whose syncs take long or do not come back: others lead, and nobody bounces."""

from __future__ import annotations

import math

import pytest

from rezone.resources.conditions import ConditionType, Reason
from rezone.wire.messages import NodeId
from simulation.failing_disks import FailingDisks
from simulation.runs import seeds
from simulation.slow_disks import SlowDisks

SLOW_SECONDS = (0.5, 4.0, math.inf)
WELL_SECONDS = 75.0
"""A disk counts as slow for 30 s after the last slow sync, and that is known for another 30 s."""

GAP_SECONDS_MAX = 3.0
"""A stall is seen after a second, and a follower's is told after another one."""

RATE_MIN = 0.7
"""Of the rate before, though a slow node leads and follows for the first of twelve seconds."""


def leader_of_most(run: SlowDisks) -> NodeId:
    """Return the node that leads most partitions."""
    return max(sorted(run.world.network.nodes), key=lambda node: len(run.leads(node)))


def degraded(run: SlowDisks) -> tuple[str, str]:
    """Return why the zone is degraded, and the text; empty when it is not."""
    status = run.world.zone().status
    found = status.conditions if status is not None else ()
    of = [c for c in found if c.type == ConditionType.DEGRADED and c.status == "True"]
    return (of[0].reason, of[0].message) if of else ("", "")


def whole(run: SlowDisks) -> bool:
    """Whether all replicas are in sync."""
    return all({*r.isr} == {*r.replicas} for r in run.world.checks.routes.values())


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seconds", SLOW_SECONDS)
@pytest.mark.proves("NW-04")
def test_a_slow_disk_leads_nothing_and_holds_nobody_up_until_it_is_well(seconds: float) -> None:
    """The zone would write at half its rate, or not at all where a sync does not come back."""
    with SlowDisks(1) as run:
        run.run(5.0)
        before, node = run.writers.rate, leader_of_most(run)
        led, moves = len(run.leads(node)), run.leader_moves()
        run.delay(seconds, node)
        run.writers.begin()
        run.run(12.0)
        assert run.writers.rate > RATE_MIN * before
        assert run.writers.gap < GAP_SECONDS_MAX
        assert (len(run.leads(node)), run.leader_moves() - moves) == (0, led)
        reason, message = degraded(run)
        assert (reason, f"data node {node}:" in message) == (Reason.DISK_SLOW, True), message
        run.delay(0.0, node)
        run.run(WELL_SECONDS, writing=False)
        assert whole(run), run.world.checks.routes
        assert (degraded(run), run.leader_moves() - moves) == (("", ""), led)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seconds", [0.05, 0.5, 4.0])
@pytest.mark.proves("NW-04")
def test_where_all_disks_are_slow_nobody_steps_down(seconds: float) -> None:
    """Leaders would move from one slow disk to the next, each time with a gap."""
    with SlowDisks(1) as run:
        nodes, moves = [*run.world.network.nodes], run.leader_moves()
        run.delay(seconds, *nodes)
        run.run(15.0)
        run.delay(0.0, *nodes)
        run.run(WELL_SECONDS, writing=False)
        assert run.leader_moves() == moves, run.world.checks.routes
        assert whole(run), run.world.checks.routes


@pytest.mark.timeout(600)
@pytest.mark.proves("NW-04")
def test_a_disk_that_is_slow_now_and_then_gets_no_leader_back_in_between() -> None:
    """A leader would come and go with each good moment of it."""
    with SlowDisks(1) as run:
        node, moves = leader_of_most(run), run.leader_moves()
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
def test_no_write_is_lost_and_no_read_is_stale_with_disks_that_are_slow_at_random() -> None:
    """A leader that stands aside has appended what its followers may have, and has no sync back."""
    stalls = 0
    for seed in seeds()[::4]:
        run = FailingDisks(seed, slow=True)
        run.run()
        stalls += run.counts["stalled"]
        assert run.counts["written"] > 0, run.counts
    assert stalls > 0
