"""Closed timestamps over restarts, by many seeds: what was read as of a time stays as it was."""

from __future__ import annotations

import pytest

from simulation.scenarios.runs import seeds
from simulation.storms.closed_times import ClosedTimes

FOUND = (27, 38, 70)
"""Without what keeps clock bound a row is written where others had read: by a leader that is
started with its clock set back; in 38 by one whose only word of a leader before the one before was
from that one's own replica.
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.proves("ZR-08")
@pytest.mark.parametrize("seed", sorted({*seeds(), *FOUND}))
def test_no_restart_breaks_what_was_told(seed: int) -> None:
    """A leader after a restart, its clock set back, would write where others had read already."""
    run = ClosedTimes(seed)
    if seed in FOUND:
        run.late_applies = run.damage_chance = 0.0  # as it was when that was found
    run.run()
    assert run.counts["written"] > 0, run.counts
