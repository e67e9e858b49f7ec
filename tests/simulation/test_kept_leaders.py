"""An old leader is kept for a time and goes, whenever the operator dies on the way."""

from __future__ import annotations

import pytest

from simulation.cluster.world import Order, World
from simulation.scenarios.runs import die_everywhere
from simulation.scenarios.scenarios import (
    MIGRATION,
    SMALL,
    Scenario,
    at_once,
    outside,
    stable_follows,
)

KEPT_SECONDS = 4


def move_and_keep(world: World) -> None:
    """Move partition 0's leader outside its assignment; the old one stays for a time."""
    world.apply_migration(
        "m", partition=0, target=outside(world), retainOldLeaderSeconds=KEPT_SECONDS
    )


def moved_and_let_go(world: World) -> bool:
    """Hold when the move is over and the old leader is kept no longer."""
    return world.states(MIGRATION)["m"] == "Succeeded" and not nothing_is_kept(world)


def nothing_is_kept(world: World) -> list[str]:
    """Return what is wrong at the end: all replicas are where the assignment says by then."""
    status = world.zone().status
    kept = status.assignments.retained if status is not None else ()
    return [*stable_follows(world), *(f"still kept: {each}" for each in kept)]


SCENARIO = Scenario(
    "migration that keeps its old leader for a time",
    SMALL,
    (Order(at_once, move_and_keep), Order(moved_and_let_go, lambda _: None)),
    expects=nothing_is_kept,
)


@pytest.mark.proves("B-13", "OP-02")
def test_a_kept_leader_goes_in_time_whenever_the_operator_dies() -> None:
    """It would stay for ever, or be stopped while writes still wait for it."""
    die_everywhere(SCENARIO)
