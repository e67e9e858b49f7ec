"""Copies of a partition that is written to while everything breaks, by many seeds."""

from __future__ import annotations

import pytest

from simulation.scenarios.runs import seeds
from simulation.storms.copy_storm import CopyStorm

UNAPPLIED_BACKFILLS = (201, 254)
"""In these a tombstone was collected when the last backfilled rows were in the log and not in the
engine: what it had deleted was there again."""


@pytest.mark.proves("B-04", "B-05")
@pytest.mark.parametrize("seed", [*seeds()[::10], *UNAPPLIED_BACKFILLS])
def test_a_copy_is_what_its_source_has_shown(seed: int) -> None:
    """Some order of deaths, resumptions and writes would leave out a row, or mix two moments."""
    run = CopyStorm(seed)
    run.run()
    assert run.counts["compared"] > 0, run.counts


def test_nothing_breaks_in_a_calm() -> None:
    """Copies of many batches would not end in time: seed 4 failed so, of storms of 30 seconds."""
    run = CopyStorm(4)
    broke = [run.breaks() for _ in range(2_000)]
    run.calm()
    still = [run.breaks() for _ in range(2_000)]
    run.close()
    assert (any(broke), any(still)) == (True, False)
