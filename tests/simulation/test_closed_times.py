"""Closed timestamps over restarts, by many seeds: what was read as of a time stays as it was."""

from __future__ import annotations

import collections

import pytest

from simulation.closed_times import ClosedTimes
from simulation.runs import SEEDS_COUNTED, seeds

FOUND = (27, 38, 70)
"""Without what keeps clock bound a row is written where others had read: by a leader that is
started with its clock set back; in 38 by one whose only word of a leader before the one before was
from that one's own replica.
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.proves("ZR-08")
def test_no_restart_breaks_what_was_told() -> None:
    """A leader after a restart, its clock set back, would write where others had read already."""
    counts: collections.Counter[str] = collections.Counter()
    for seed in {*seeds(SEEDS_COUNTED)[::4], *FOUND}:
        run = ClosedTimes(seed)
        if seed in FOUND:
            run.late_applies = run.damage_chance = 0.0  # as it was when that was found
        run.run()
        counts.update(run.counts)
    faults = ("starts", "damaged bounds", "recovered bounds", "late applies")
    for what in (*faults, "past", "closed", "written"):
        assert counts[what] > 0, counts
