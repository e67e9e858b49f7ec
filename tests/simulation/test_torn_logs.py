"""Logs whose last entries a crash has left in their length, and not in all of their sectors."""

from __future__ import annotations

import pytest

from simulation.scenarios.runs import seeds
from simulation.storms.indexed import Indexed


class TornLogs(Indexed):
    """The storm of a table with indexes, on disks that keep a file's length more than its bytes."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        for machine in self.machines.values():
            machine.whole_chance, machine.unwritten_chance = 0.5, 0.25


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", seeds())
def test_what_a_crash_has_torn_is_no_entry(seed: int) -> None:
    """Recovery by lengths and offsets alone would count entries whose rows are zeros."""
    run = TornLogs(seed)
    run.run()
    assert run.counts["died"] > 0, run.counts
