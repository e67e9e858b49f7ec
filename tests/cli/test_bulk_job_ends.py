"""What commands of bulk jobs make of what stands in a SparkApplication: anybody may annotate."""

import pytest

from rezone.cli.jobs.follow import FAILED, end_of, progress_line
from rezone.kube.bulk_jobs import SAID_CHARACTERS_MAX, JobView, said_in

VERIFIED = {"job": "verify", "first": {"rows": 3, "asOf": 1, "digest": "d"}, "ranges": 16}
LOADED = {"job": "load", "rows": 5, "files": 2}


def view(result: object, state: str = "COMPLETED") -> JobView:
    """Return a job with a result."""
    found = result if isinstance(result, dict) else None
    return JobView("orders-1", state, "exited", "orders-1-driver", None, found)


@pytest.mark.parametrize(
    ("result", "code", "said"),
    [
        (VERIFIED, 0, "3 rows as of 1"),
        ({**VERIFIED, "equal": True}, 0, "the same: 3 rows"),
        ({**LOADED, "refusedRows": 0}, 0, "5 rows of 2 files are loaded"),
        ({**LOADED, "refusedRows": 4}, 1, "4 were refused; which and why: kubectl logs"),
        ({"error": "ValueError: no"}, FAILED, "orders-1: ValueError: no"),
        (None, FAILED, "is COMPLETED: exited; the same command goes on"),
        ({}, FAILED, "none that this version knows"),
        ({"job": "verify", "first": 7, "equal": True}, FAILED, "none that this version knows"),
        ({**VERIFIED, "equal": False}, FAILED, "none that this version knows"),
        ({"job": "load", "rows": "many", "files": []}, FAILED, "none that this version knows"),
        ({"job": ["load"]}, FAILED, "none that this version knows"),
    ],
)
def test_only_a_whole_result_is_a_result(result: object, code: int, said: str) -> None:
    """A zone would count as verified by an annotation that says nothing of it."""
    found, text = end_of(view(result), "ns")
    assert (found, said in text) == (code, True), text


def test_annotations_have_limits_and_are_printed_whatever_they_are() -> None:
    """Somebody's annotation would end the command with a stack, or take its memory."""
    assert said_in('{"a": 1}') == {"a": 1}
    for text in (None, "", "[1]", "{", "x" * (SAID_CHARACTERS_MAX + 1), "[" * 50_000):
        assert said_in(text) is None
    line = progress_line({"phase": ["x" * 1000], "units": "many", "rows": None, "secondsLeft": 2.5})
    assert "0 of 0 parts, 0 rows" in line
    assert len(line) < 200
