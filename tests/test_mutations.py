"""The list of mutations: what `make check` finds wrong with it, and when a result is stale."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
FITTING = {
    "ids": ["OP-08"],
    "what": "nothing is planned",
    "file": "operator/rezone/domain/planner/plan.py",
    "old": "def plan(request: PlanRequest) -> Plan:",
    "new": "def planned(request: PlanRequest) -> Plan:",
    "tests": ["tests/test_mutations.py::test_a_mutation_that_does_not_fit_any_more_is_told"],
}


@pytest.fixture
def script(hack: Callable[[str], Any]) -> Any:
    """Return hack/mutations.py."""
    return hack("mutations")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, ""),
        ({"old": "no such text"}, "its text is 0 times in"),
        ({"old": "import"}, "times in operator/rezone/domain/planner/plan.py, not once"),
        ({"file": "operator/rezone/nowhere.py"}, "its text is 0 times in"),
        ({"new": FITTING["old"]}, "it changes nothing"),
        ({"ids": ["OP-99"]}, "there is no promise OP-99"),
        ({"tests": ["tests/test_nowhere.py"]}, "there is no test tests/test_nowhere.py"),
        ({"tests": ["tests/test_mutations.py::test_no"]}, "there is no test"),
    ],
)
def test_a_mutation_that_does_not_fit_any_more_is_told(
    script: Any, changes: dict[str, Any], told: str
) -> None:
    """`make check` names an entry whose text, promise or test is gone.

    The page would go on saying that a place is proved which is not there any more.
    """
    found = [p for p in script.problems({"m": FITTING | changes}, {}) if p.startswith("m: ")]
    assert bool(found) == bool(told)
    assert all(told in problem for problem in found)


def test_a_kept_promise_without_a_mutation_is_told(script: Any) -> None:
    """`make check` names each kept promise that nothing breaks, unless the list says why.

    A promise would count as proved by tests that cannot fail.
    """
    mutations, excused = script.load()
    without = {n: m for n, m in mutations.items() if "B-07" not in m["ids"]}
    told = "B-07 is kept, and no mutation breaks it"
    assert told in script.problems(without, excused)
    assert told not in script.problems(without, {**excused, "B-07": "why"})


def test_a_result_is_of_the_mutation_as_it_was_run(script: Any) -> None:
    """A changed text or list of tests makes another result necessary; other words do not.

    The page would show a result of something else.
    """
    key = script.key(FITTING)
    assert script.key(FITTING | {"what": "other words"}) == key
    assert script.key(FITTING | {"new": "x"}) != key
    assert script.key(FITTING | {"tests": ["tests/test_tidy.py"]}) != key
