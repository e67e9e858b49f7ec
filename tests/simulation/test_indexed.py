"""Indexes on real stores while machines crash, leaders change and logs are trimmed, by seeds."""

from __future__ import annotations

import pytest

from simulation.scenarios.runs import seeds
from simulation.storms.indexed import Indexed

CAUGHT = (4, 6)
"""Seeds that fail when entries of undone rows stay, a log is trimmed up to what is applied, or a
takeover waits for no index."""

RESTARTED = 214
"""In this one a new leader is restarted before anybody looks: its index is behind by what was not
flushed, which was taken for a takeover that had not waited."""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", sorted({*seeds(), *CAUGHT, RESTARTED}))
def test_indexes_are_what_the_rows_say(seed: int) -> None:
    """Some order of crashes would leave an index without its rows, or a leader without its index.

    Or lose a row that was acknowledged, or bring one back that was rolled back.
    """
    run = Indexed(seed)
    if seed in CAUGHT:
        run.late_applies = 0.0  # as it was when those were caught
    run.run()
    assert run.counts["compared"] > 0, run.counts
