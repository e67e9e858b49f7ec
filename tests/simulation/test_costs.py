"""How many writes to the API server a migration and a rebalance cost."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
from types import ModuleType
from typing import Any

import pytest

from rezone.controller.reconcile import zone, zone_mending
from simulation.scenarios.runs import RUN_SECONDS_MAX
from simulation.scenarios.scenarios import (
    JOIN,
    MIGRATIONS,
    MOVE,
    REPLICAS_UP,
    ROTATE,
    Scenario,
    Start,
)

MIGRATION_WRITES_MAX = 10
REBALANCE_WRITES_MAX = 30
ROTATED = 24
ROTATION_WRITES_MAX = 18


def writes_of(scenario: Scenario) -> collections.Counter[str]:
    """Return the writes a scenario costs, but for what a new operator writes at its start."""
    with scenario.world() as world:
        world.run(RUN_SECONDS_MAX)
        return collections.Counter(
            {
                what: count
                for what, count in world.server.writes.items()
                if what.split()[1] not in ("Event", "Service", "PodDisruptionBudget", "Pod")
            },
        )


# That the aim is kept is the point; no promise has a number for it.
@pytest.mark.parametrize("scenario", MIGRATIONS[:4], ids=lambda s: s.name.replace(" ", "-"))
def test_a_migration_costs_few_writes(scenario: Scenario) -> None:
    """A thousand leaders could not move in a minute: each write is a round trip (aim: 10)."""
    found = writes_of(scenario)
    own = {k: n for k, n in found.items() if k.split()[1] in ("RegionMigration", "ConfigMap")}
    assert sum(own.values()) <= MIGRATION_WRITES_MAX, found


@pytest.mark.parametrize(
    "scenario", [JOIN, MOVE, REPLICAS_UP], ids=lambda s: s.name.replace(" ", "-")
)
def test_a_rebalance_costs_few_writes(scenario: Scenario) -> None:
    """Each pass would write something that the pass before has written already."""
    found = writes_of(scenario)
    assert sum(found.values()) <= REBALANCE_WRITES_MAX, found
    assert found["create RebalanceTask"] <= 1, found


def test_leaders_that_need_no_copy_cost_less_than_a_write_each() -> None:
    """A thousand leaders would take minutes: each had an object and six writes of its own."""
    many = dataclasses.replace(ROTATE, start=Start(partitions=ROTATED))
    found = writes_of(many)
    own = ("RebalanceTask", "RegionMigration", "ConfigMap")
    assert sum(n for k, n in found.items() if k.split()[1] in own) <= ROTATION_WRITES_MAX, found
    assert found["create RegionMigration"] == 0, found


def test_others_have_a_turn_between_the_parts_of_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """The passes of all other zones, and the Lease, would wait for one over a large zone."""
    waiting = set[str]()
    seen = set[str]()

    def part(module: ModuleType, name: str) -> None:
        work = getattr(module, name)

        def counted(*given: Any, **named: Any) -> Any:
            assert not waiting, f"{name} runs in the same turn as {waiting}"
            waiting.add(name)
            seen.add(name)
            asyncio.get_running_loop().call_soon(waiting.discard, name)
            return work(*given, **named)

        monkeypatch.setattr(module, name, counted)

    decided = ["plan_data_nodes", "ZonePlanning", "decide_rollout", "zone_conditions"]
    mended = ["repairs", "missing_copies", "strays"]
    for name in decided:
        part(zone, name)
    for name in mended:
        part(zone_mending, name)
    with JOIN.world() as world:
        world.run(RUN_SECONDS_MAX)
    assert seen == {*decided, *mended}
