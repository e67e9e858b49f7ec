"""Overwrites of a zone under storms: drivers die, are replaced, or never come again."""

from __future__ import annotations

import pytest

from simulation.scenarios.runs import seeds
from simulation.storms.overwriting import storm


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.proves("SP-05")
@pytest.mark.parametrize("seed", seeds()[::10])
def test_as_of_each_time_a_zone_has_one_content(seed: int) -> None:
    """Some order of deaths would show old rows and new ones as of one time, or lose a row."""
    counts = storm(seed)
    assert counts["as of, old"] > 0, counts
