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
SOAK = {
    **CHAOS,
    "rows": [
        {
            "name": "disk-full in round 2",
            "what": "no space",
            "seconds": 30.0,
            "bites": 1,
            "gaps": [0.1, 2.34],
            "restarts": 0,
            "whole_seconds": 4.2,
            "faults": {},
        },
        {
            "name": "storm 2",
            "what": "2 faults and changes",
            "seconds": 240.0,
            "bites": 9,
            "gaps": [7.0],
            "restarts": 3,
            "whole_seconds": None,
            "faults": {"node-killed": 2, "resharded": 1},
        },
    ],
}
REGRESSIONS = 'def test_rows_are_kept() -> None:\n    """Rows were lost.\n\n    More.\n    """\n'


def test_the_page_tells_failures_and_violations(hack: Callable[[str], Any]) -> None:
    """Evidence that hides what failed would be worse than none."""
    evidence = hack("evidence")

    text = evidence.page(evidence.recorded({}, SEEDS, CHAOS, "abc1234"), REGRESSIONS)

    assert "3 seeds, 2.0 simulated hours, 1 failed" in text
    assert "| storms | 3 | 1 | 2.0 | cut 4 |" in text
    assert "Real processes: 3 violations" in text
    assert "| halves: a cut | 9 | 0 | never |" in text
    assert "800 acknowledged writes" in text
    assert "7 transactions, 5 of them committed" in text
    assert "| Rows were lost. | `make test TEST_ARGS=" in text
    assert "-k test_rows_are_kept" in text


def test_a_soak_is_kept_beside_the_rest(hack: Callable[[str], Any]) -> None:
    """An hour of faults would be forgotten with the next run of the others, or replace them."""
    evidence = hack("evidence")
    kept = evidence.with_soak(evidence.recorded({}, SEEDS, CHAOS, "abc1234"), SOAK, "def5678")

    text = evidence.page(evidence.recorded(kept, SEEDS, CHAOS, "0123abc"), REGRESSIONS)

    assert "Real processes: 3 violations" in text
    assert "Soak: 4 minutes of faults, 3 violations" in text
    assert "at commit `def5678`" in text
    assert "* row 4 has an impossible history" in text
    assert "| disk-full | 1 |" in text
    assert "| node-killed | 2 |" in text
    assert "| disk-full in round 2 | 30 | 1 | 2.3 | 4 | 0 |" in text
    assert "| storm 2 | 240 | 9 | 7.0 | never | 3 |" in text
