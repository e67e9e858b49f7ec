"""An old leader is kept for a time and goes, whenever the operator dies on the way."""

from __future__ import annotations

import pytest

from simulation.runs import crash_at, crash_points
from simulation.scenarios import SMALL, Scenario, at_once, later, outside, stable_follows
from simulation.world import Order, World

KEPT_SECONDS = 4


def move_and_keep(world: World) -> None:
    """Move partition 0's leader outside its assignment; the old one stays for a time."""
    world.apply_migration("m", partition=0, target=outside(world), oldLeaderSeconds=KEPT_SECONDS)


def nothing_is_kept(world: World) -> list[str]:
    """Return what is wrong at the end: all replicas are where the assignment says by then."""
    status = world.zone().status
    kept = status.assignments.kept if status is not None else ()
    return [*stable_follows(world), *(f"still kept: {each}" for each in kept)]


SCENARIO = Scenario(
    "migration that keeps its old leader for a time",
    SMALL,
    (Order(at_once, move_and_keep), Order(later(1.0), lambda _: None)),
    expects=nothing_is_kept,
)


@pytest.mark.proves("B-13", "OP-02")
def test_a_kept_leader_goes_in_time_whenever_the_operator_dies() -> None:
    """It would stay for ever, or be stopped while writes still wait for it."""
    for point in crash_points(SCENARIO):
        if not crash_at(SCENARIO, point):
            break
