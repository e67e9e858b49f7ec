"""Indexes on real stores while machines crash, leaders change and logs are trimmed, by seeds."""

from __future__ import annotations

import collections

import pytest

from simulation.indexed import Indexed
from simulation.runs import SEEDS_COUNTED, seeds

CAUGHT = (4, 6)
"""Seeds that fail when entries of undone rows stay, a log is trimmed up to what is applied, or a
takeover waits for no index."""

RESTARTED = 214
"""In this one a new leader is restarted before anybody looks: its index is behind by what was not
flushed, which was taken for a takeover that had not waited."""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_indexes_are_what_the_rows_say() -> None:
    """Some order of crashes would leave an index without its rows, or a leader without its index.

    Or lose a row that was acknowledged, or bring one back that was rolled back.
    """
    counts: collections.Counter[str] = collections.Counter()
    for seed in {*seeds(SEEDS_COUNTED)[::16], *CAUGHT, RESTARTED}:
        run = Indexed(seed)
        if seed in CAUGHT:
            run.late_applies = 0.0  # as it was when those were caught
        run.run()
        counts.update(run.counts)
    reached = ("written", "tables", "died", "takeovers", "indexed takeovers")
    plots = ("left ahead", "lagged", "early takeovers")
    for what in (*reached, *plots, "compared", "past lookups", "read", "past", "late applies"):
        assert counts[what] > 0, counts
