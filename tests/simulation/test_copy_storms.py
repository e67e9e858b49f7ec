"""Copies of a partition that is written to while everything breaks, by many seeds."""

from __future__ import annotations

import collections

import pytest

from simulation.copy_storm import CopyStorm
from simulation.runs import seeds

FOUND = (4,)
"""Streams went on breaking when the storm was over: no copy ended in a minute, but for one."""


@pytest.mark.proves("B-04", "B-05")
@pytest.mark.parametrize("seed", sorted({*seeds()[::10], *FOUND}))
def test_a_copy_is_what_its_source_has_shown(seed: int) -> None:
    """Some order of deaths, resumptions and writes would leave out a row, or mix two moments."""
    run = CopyStorm(seed)
    run.run()
    assert run.counts["compared"] > 0, run.counts


def test_the_storms_reach_what_they_are_for() -> None:
    """Runs in which no copy goes on after a death, or nobody waits, would prove nothing."""
    counts: collections.Counter[str] = collections.Counter()
    for seed in range(4):
        run = CopyStorm(seed)
        run.run()
        counts.update(run.counts)
    copies = ("rows", "files", "went on", "resumed", "failed", "compared", "alike")
    deaths = ("died", "receivers died", "carriers died", "broken streams", "broken puts")
    for what in (*copies, *deaths, "joined"):
        assert counts[what] > 0, counts
