"""Copies of a partition that is written to while everything breaks, by many seeds."""

from __future__ import annotations

import pytest

from simulation.copy_storm import CopyStorm
from simulation.coverage import assert_reached
from simulation.runs import seeds

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


def test_the_storms_reach_what_they_are_for() -> None:
    """Runs in which no copy goes on after a death, or nobody waits, would prove nothing.

    Nor would copies of a table whose writers never outrun a scan (SS-07), without early rows
    (SS-03), indexes or open transactions, and of sources that are never behind or ahead.
    """
    copies = ("rows", "files", "went on", "resumed", "failed", "compared", "alike")
    deaths = ("died", "receivers died", "carriers died", "broken streams", "broken puts")
    waits = ("waits for room", "waits for early rows", "early")
    copied = ("indexed", "with open transactions", "backfilled", "Committed", "Aborted")
    sources = ("joined", "late applies", "of late sources", "of what is not committed")
    assert_reached((*copies, *deaths, *waits, *copied, *sources), [CopyStorm])


def test_nothing_breaks_in_a_calm() -> None:
    """Copies of many batches would not end in time: seed 4 failed so, of storms of 30 seconds."""
    run = CopyStorm(4)
    broke = [run.breaks() for _ in range(2_000)]
    run.calm()
    still = [run.breaks() for _ in range(2_000)]
    run.close()
    assert (any(broke), any(still)) == (True, False)
