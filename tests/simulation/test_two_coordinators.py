"""Two coordinators side by side: one has lost its Lease, does not know it, and goes on acting.

It polls the same data nodes and carries out the same plans, and hears of what its successor does
only when it reads or writes itself. The compare-and-set of all that is written keeps it from
undoing that; calls of it that come late are the subject of `test_fencing`.
"""

from __future__ import annotations

import pytest

from simulation.cluster.world import World
from simulation.scenarios.runs import ALL, ALL_ENDS, RUN_SECONDS_MAX, alternately, some_now
from simulation.scenarios.scenarios import Scenario

SECONDS = 20.0
POINTS = (3, 10)
"""After how many writes and calls the second one begins: before there is a plan, and within it."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def name_of(case: object) -> str | None:
    """Return a scenario's name for pytest."""
    return case.name.replace(" ", "-") if isinstance(case, Scenario) else None


def go_on_blindly(world: World) -> None:
    """Let another coordinator begin, and the old one hear of nothing that this one does."""
    old = world.processes[-1]
    world.split(SECONDS)
    old.cut_watch(SECONDS)


@pytest.mark.proves("OP-02")
@pytest.mark.parametrize(("scenario", "within"), some_now(alternately(ALL)), ids=name_of)
def test_an_old_coordinator_that_goes_on_changes_nothing(
    scenario: Scenario, *, within: bool
) -> None:
    """Epochs would fall, a replica in sync be deleted, or each undo for ever what the other did."""
    with scenario.world() as world:
        world.at_point[POINTS[within]] = go_on_blindly
        world.run(RUN_SECONDS_MAX)
        assert len(world.processes) == 2, "there was no second coordinator"
        scenario.check(world, ALL_ENDS)
