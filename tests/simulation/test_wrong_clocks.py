"""Clocks that are set by seconds or by a month while nodes run, and while they are down."""

from __future__ import annotations

import pytest

from simulation.scenarios.runs import seeds
from simulation.storms.wrong_clocks import WrongClocks


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.proves("NW-05")
@pytest.mark.parametrize("seed", seeds())
def test_no_clock_drives_the_zones_times(seed: int) -> None:
    """Clocks that were a month ahead for seconds would leave the zone's times there for good."""
    run = WrongClocks(seed)
    run.run()
    assert run.counts["written while wrong"] > 0, run.counts
