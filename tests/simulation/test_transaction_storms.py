"""Transactions while everything breaks: all or nothing, isolated, and as clients were told."""

from __future__ import annotations

import collections
import random
from unittest import mock

import msgspec
import pytest

from simulation.cluster.checks import unfinished
from simulation.cluster.world import World
from simulation.nodes import node
from simulation.scenarios.faults import storm_of
from simulation.scenarios.runs import ALL, STORM_SECONDS_MAX, larger, seeds
from simulation.storms.transactions import Traffic

AGE_MS_MAX = 8_000
CALM_SECONDS = 5.0
SCENARIOS = [s for s in ALL if s.made]


def storm(seed: int) -> collections.Counter[str]:
    """Run transactions through a storm of faults and some rebalance.

    Returns how often they have ended how, and how often each fault has happened.
    """
    rng = random.Random(f"transactions {seed}")
    scenario = larger(rng.choice(SCENARIOS), rng)
    settings = msgspec.structs.replace(node.SETTINGS, transaction_ms_max=AGE_MS_MAX)
    with mock.patch.object(node, "SETTINGS", settings), scenario.world(seed) as world:
        world.note(scenario.name)
        weather = storm_of(rng)
        traffic = Traffic(world, weather.seconds + CALM_SECONDS)
        weather.begin(world)

        def left(world: World) -> list[str]:
            return [*unfinished(world), *traffic.unfinished()]

        world.run(STORM_SECONDS_MAX, left)
        counts = traffic.check()
        counts.update(world.counts)
        return counts


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.proves("ZR-08")
@pytest.mark.parametrize("seed", seeds()[::4])
def test_transactions_in_storms(seed: int) -> None:
    """Some order of faults would commit by half, twice, or over what another one has written."""
    ended = storm(seed)
    assert ended["Committed"] > 0, ended
