"""Cut-overs while data nodes die, lag and lose sight of each other, by many seeds."""

from __future__ import annotations

import pytest

from simulation.scenarios.runs import seeds
from simulation.storms.cut_over import CutOver

FOUND = (1003,)
"""Followers held on to streams of a leader's last life, which nobody had seen go: no quorum came.
"""


@pytest.mark.proves("B-08")
@pytest.mark.parametrize("seed", sorted({*seeds()[::10], *FOUND}))
def test_nothing_is_lost_doubled_or_served_by_both(seed: int) -> None:
    """Some order of failovers around a seal would lose a row, or have two partitions serve it."""
    run = CutOver(seed)
    run.run()
    assert run.counts["source"] > 0, run.counts
