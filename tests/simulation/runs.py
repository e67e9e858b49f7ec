"""How many runs there are, and what one of them is.

`REZONE_SIMULATION_SEED=<n>` runs the seed n alone, `REZONE_SIMULATION_SEEDS=<n>` runs n seeds and
all crash points instead of a part of them, which takes minutes.
"""

from __future__ import annotations

import dataclasses
import os
import random
from collections.abc import Iterator

from simulation.edge_scenarios import EDGES
from simulation.faults import SECOND_FAULTS, mend, storm_of
from simulation.pod_scenarios import PODS
from simulation.scenarios import ALL as OF_ZONES
from simulation.scenarios import Scenario
from simulation.target_scenarios import TARGETS
from simulation.world import World

ALL = (*OF_ZONES, *PODS)
SEEDS_DEFAULT = 20
STORMS_DEFAULT = 8
"""So many of the runs that a seed has to itself, and that begin with a zone's coordinator."""

POINTS_STEP = 9
"""By default each scenario is killed at every ninth point, each beginning with another one; those
of pods, which repeat themselves, and of edges, which die by themselves, at every fourth of these;
those of targets, which ask for a copy again and again, at every eighth.
"""

RUN_SECONDS_MAX = 900.0
STORM_SECONDS_MAX = 2000.0
FAULT_SECONDS = 5.0
ALL_ENDS = frozenset({"Succeeded", "Cancelled", "Failed", "RolledBack"})


def seeds(default: int = SEEDS_DEFAULT) -> list[int]:
    """Return the seeds to be run, by default so many."""
    if one := os.environ.get("REZONE_SIMULATION_SEED"):
        return [int(one)]
    return list(range(int(os.environ.get("REZONE_SIMULATION_SEEDS", default))))


def crash_points(scenario: Scenario) -> Iterator[int]:
    """Yield crash points without end: the scenario says when it was not reached any more."""
    long = bool(os.environ.get("REZONE_SIMULATION_SEEDS"))
    # Pods are replaced one after the other, so the same points come again and again.
    seldom = 8 if scenario in TARGETS else 4 if scenario in (*PODS, *EDGES) else 1
    step = 1 if long else POINTS_STEP * seldom
    # Scenarios that seeds do not choose from begin with their first point: some have few.
    number = ALL.index(scenario) if scenario in ALL else 0
    point = 1 if long else 1 + number % step
    while True:
        yield point
        point += step


def crash_at(scenario: Scenario, point: int) -> bool:
    """Run a scenario with the operator's death at a point; returns whether it came to that."""
    with scenario.world() as world:
        world.crash_points = frozenset({point})
        world.run(RUN_SECONDS_MAX)
        scenario.check(world)
        reached = world.points >= point
        assert not reached or any(process.dead for process in world.processes), "nobody has died"
        return reached


def die_everywhere(scenario: Scenario) -> None:
    """Kill the operator at one crash point after the other, until there is none left."""
    deaths = 0
    for point in crash_points(scenario):
        if not crash_at(scenario, point):
            break
        deaths += 1
    assert deaths, f"{scenario.name} ends before its first crash point"


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
