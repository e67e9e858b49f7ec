"""How many runs there are, and what one of them is.

`REZONE_SIMULATION_SEED=<n>` runs the seed n alone, `REZONE_SIMULATION_SEEDS=<n>` runs n seeds and
all crash points instead of a part of them, which takes minutes.
"""

from __future__ import annotations

import dataclasses
import os
import random
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import pytest

from simulation.cluster.world import World
from simulation.scenarios.faults import SECOND_FAULTS, mend, storm_of
from simulation.scenarios.pod_scenarios import PODS
from simulation.scenarios.scenarios import ALL as OF_ZONES
from simulation.scenarios.scenarios import Scenario
from simulation.scenarios.target_scenarios import TARGETS

ALL = (*OF_ZONES, *PODS)
EVERY_POINT = bool(os.environ.get("REZONE_SIMULATION_SEEDS"))
SEEDS_DEFAULT = 1
"""That a storm runs is shown by one seed; `make seeds`, which CI runs as well, has many."""

POINTS_STEP = 54
"""By default scenarios are killed at every 54th point, each beginning with another one; those of
pods, which repeat themselves, and of targets, which ask for a copy again and again, at every third
of these. `make seeds` has pairs of a death and another fault.
"""

RUN_SECONDS_MAX = 900.0
STORM_SECONDS_MAX = 2000.0
FAULT_SECONDS = 5.0
ALL_ENDS = frozenset({"Succeeded", "Cancelled", "Failed", "RolledBack"})


def seeds() -> list[int]:
    """Return the seeds to be run."""
    if one := os.environ.get("REZONE_SIMULATION_SEED"):
        return [int(one)]
    return list(range(int(os.environ.get("REZONE_SIMULATION_SEEDS", SEEDS_DEFAULT))))


T = TypeVar("T")


def alternately(cases: Iterable[T]) -> list[tuple[T, bool]]:
    """Return cases with a choice: yes and no by turns, or each with both for every point."""
    if EVERY_POINT:
        return [(case, choice) for case in cases for choice in (False, True)]
    return [(case, bool(number % 2)) for number, case in enumerate(cases)]


def some_now(cases: Sequence[Any], every: int = 3) -> list[Any]:
    """Return cases for pytest: of so many that are alike one; the others are long tests."""
    return [
        case
        if number % every == 0
        else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.long)
        for number, case in enumerate(cases)
    ]


def crash_points(scenario: Scenario, count: int) -> range:
    """Return at which of so many points the operator is to die: all, or some that differ."""
    if EVERY_POINT:
        return range(1, count + 1)
    step = POINTS_STEP * (3 if scenario in (*PODS, *TARGETS) else 1)
    # Scenarios that seeds do not choose from begin with their first point: some have few.
    number = ALL.index(scenario) if scenario in ALL else 0
    return range(1 + number % min(step, count), count + 1, step)


def die_everywhere(scenario: Scenario) -> None:
    """Run a scenario without a death, and with one at each of its crash points after the other."""
    with scenario.world() as world:
        world.run(RUN_SECONDS_MAX)
        scenario.check(world)
        count = world.points
    points = crash_points(scenario, count)
    assert points, f"{scenario.name} has no crash point"
    for point in points:
        with scenario.world() as world:
            world.crash_points = frozenset({point})
            world.run(RUN_SECONDS_MAX)
            scenario.check(world)
            assert any(process.dead for process in world.processes), "nobody has died"


def pair(seed: int) -> World:
    """Run a scenario with the operator's death at one point and a second fault at another."""
    rng = random.Random(f"pair {seed}")
    scenario = rng.choice(ALL)
    name = rng.choice(sorted(SECOND_FAULTS))
    with scenario.world(seed) as world:
        crash, second = rng.randrange(1, 120), rng.randrange(1, 120)
        world.crash_points = frozenset({crash})
        world.note(f"{scenario.name}: {name} at {second}")

        def strike(world: World) -> None:
            world.note(name)
            SECOND_FAULTS[name](world)
            world.loop.call_later(FAULT_SECONDS, mend, world)

        world.at_point[second] = strike
        world.run(STORM_SECONDS_MAX)
        scenario.check(world, ALL_ENDS)
        return world


def storm(seed: int) -> World:
    """Run a larger zone's scenario through a storm of faults, and until all is at rest again."""
    rng = random.Random(seed)
    scenario = larger(rng.choice([s for s in ALL if s.made]), rng)
    with scenario.world(seed) as world:
        world.note(scenario.name)
        storm_of(rng).begin(world)
        world.run(STORM_SECONDS_MAX)
        scenario.check(world, ALL_ENDS)
        return world


def larger(scenario: Scenario, rng: random.Random) -> Scenario:
    """Return a scenario on a zone of more partitions, replicas and nodes."""
    start = dataclasses.replace(
        scenario.start,
        partitions=3,
        replicas=max(scenario.start.replicas, rng.choice((2, 3))),
        nodes=max(4, scenario.start.nodes),
    )
    return dataclasses.replace(scenario, start=start)
