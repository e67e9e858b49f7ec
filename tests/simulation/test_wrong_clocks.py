"""Clocks that are set by seconds or by a month while nodes run, and while they are down."""

from __future__ import annotations

import collections

import pytest

from simulation.runs import SEEDS_COUNTED, seeds
from simulation.wrong_clocks import WrongClocks


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.proves("NW-05")
def test_no_clock_drives_the_zones_times() -> None:
    """Clocks that were a month ahead for seconds would leave the zone's times there for good."""
    counts: collections.Counter[str] = collections.Counter()
    for seed in seeds(SEEDS_COUNTED)[::4]:
        run = WrongClocks(seed)
        run.run()
        counts.update(run.counts)
    faults = ("set", "wrong starts", "pairs", "damaged bounds", "recovered bounds")
    for what in (*faults, "past", "ages", "written", "written while wrong"):
        assert counts[what] > 0, counts
