"""Checks that simulated runs reach the events that they exist for.

Which seed reaches an event changes with every change of the product, so a fixed set of seeds
breaks without a fault. Seeds run until each event has happened; only too many of them fail.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Collection, Iterable

from simulation.data_plane import DataPlane

SEEDS_MAX = 32
"""An event that one of seven seeds reaches is missed by all of these once in 140 times."""


def assert_reached(
    events: Collection[str],
    kinds: Collection[Callable[[int], DataPlane]],
    seeds: Iterable[int] = range(SEEDS_MAX),
) -> None:
    """Run a seed of each kind after the other, until each event was counted at least once.

    Raises AssertionError when an event is still missing after the last seed.
    """
    counts: collections.Counter[str] = collections.Counter()
    missing = set(events)
    for seed in seeds:
        for kind in kinds:
            run = kind(seed)
            run.run()
            counts.update(run.counts)
        missing = {event for event in events if not counts[event]}
        if not missing:
            return
    raise AssertionError(f"never reached: {sorted(missing)}; reached: {dict(counts)}")
