"""The page of evidence says what the reports say, and every old fault how to replay it."""

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.proves("TR-01")

SEEDS = {
    "test_storms": {
        "seeds": 3,
        "failed": 1,
        "simulated_seconds": 7200.0,
        "counts": {"cut": 4, "wipe": 0},
    }
}
CHAOS = {
    "seed": 7,
    "rows": [{"name": "halves", "what": "a cut", "bites": 9, "restarts": 0, "whole_seconds": None}],
    "operations": 1234,
    "acknowledged_writes": 800,
    "keys": 16,
    "transactions": {"ok": 5, "unknown": 2},
    "violations": 3,
    "problems": ["row 4 has an impossible history"],
}
REGRESSIONS = 'def test_rows_are_kept() -> None:\n    """Rows were lost.\n\n    More.\n    """\n'


def test_the_page_tells_failures_and_violations(hack: Callable[[str], Any]) -> None:
    """Evidence that hides what failed would be worse than none."""
    evidence = hack("evidence")

    text = evidence.page(evidence.recorded(SEEDS, CHAOS, "abc1234"), REGRESSIONS)

    assert "3 seeds, 2.0 simulated hours, 1 failed" in text
    assert "| storms | 3 | 1 | 2.0 | cut 4 |" in text
    assert "Real processes: 3 violations" in text
    assert "| halves: a cut | 9 | 0 | never |" in text
    assert "800 acknowledged writes" in text
    assert "7 transactions, 5 of them committed" in text
    assert "| Rows were lost. | `make test TEST_ARGS=" in text
    assert "-k test_rows_are_kept" in text
