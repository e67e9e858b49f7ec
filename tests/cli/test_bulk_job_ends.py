"""What commands of bulk jobs make of what stands in a SparkApplication: anybody may annotate."""

import json

import pytest
from click.testing import CliRunner

from rezone.cli.jobs.commands import verify
from rezone.cli.jobs.follow import FAILED, end_of, progress_line
from rezone.cli.jobs.states import meaning_for_job
from rezone.domain.observed.spark_states import STATES
from rezone.kube.jobs.bulk_jobs import SAID_CHARACTERS_MAX, JobView, said_in

VERIFIED = {"job": "verify", "first": {"rows": 3, "asOf": 1, "digest": "d"}, "ranges": 16}
ESCAPE = "\x1b]0;title\x07"
FIRST = {"rows": 3, "asOf": 1, "digest": ESCAPE}
LOADED = {"job": "load", "rows": 5, "files": 2}
OVERWRITTEN, LEFT = ({**LOADED, "overwritten": each} for each in (True, False))


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
        ({**OVERWRITTEN, "refusedRows": 0}, 0, "5 rows of 2 files are all rows of the zone now"),
        ({**LEFT, "refusedRows": 4}, 1, "nothing of the zone has changed, 4 were refused; which"),
        ({**LEFT, "refusedRows": 0}, FAILED, "none that this version knows"),
        ({**LOADED, "overwritten": 1, "refusedRows": 0}, FAILED, "none that this version knows"),
        ({"error": "ValueError: no"}, FAILED, "orders-1: ValueError: no"),
        (None, FAILED, "is COMPLETED: exited; the same command goes on"),
        ({}, FAILED, "none that this version knows"),
        ({"job": "verify", "first": 7, "equal": True}, FAILED, "none that this version knows"),
        ({**VERIFIED, "equal": False}, FAILED, "none that this version knows"),
        ({"job": "load", "rows": "many", "files": []}, FAILED, "none that this version knows"),
        ({"job": ["load"]}, FAILED, "none that this version knows"),
        ({**VERIFIED, "equal": "false"}, FAILED, "none that this version knows"),
        ({**LOADED, "refusedRows": []}, FAILED, "none that this version knows"),
        ({**LOADED, "rows": 10**400, "refusedRows": 0}, FAILED, "none that this version knows"),
        ({"error": ["x"]}, FAILED, "none that this version knows"),
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
    assert progress_line({"skew": 2.5, "secondsLeft": 3}).endswith(", skew 2.50, about 3 s left")
    for number in ("1" + "0" * 400, "1e400", "NaN", "-1", "true"):
        keys = ("units", "rows", "bytes", "bytesPerSecond", "skew", "secondsLeft")
        found = said_in(json.dumps(dict.fromkeys(keys, "N")).replace('"N"', number))
        assert found is not None
        assert "0 rows, 0.0 MB, 0.0 MB/s" in progress_line(found)


@pytest.mark.parametrize("result", [None, {"error": ESCAPE}, {**VERIFIED, "first": FIRST}])
def test_what_others_write_gives_a_terminal_no_orders(result: object) -> None:
    """An annotation would change the terminal of whoever looks at the job."""
    odd = JobView(
        "orders-1",
        f"FAILED{ESCAPE}",
        ESCAPE * 1000,
        f"orders-1-driver{ESCAPE}",
        {"phase": ESCAPE},
        result if isinstance(result, dict) else None,
    )
    said = end_of(odd, "ns")[1] + progress_line(odd.progress or {})
    assert "title" in said
    assert "\x1b" not in said
    assert len(said) < 10_000


def test_states_are_told_as_those_of_a_job() -> None:
    """Who loads files would wait for another application, which comes for copies alone."""
    for state in STATES:
        meaning = meaning_for_job(state)
        assert "nothing arrives" not in meaning.says
        assert "another application" not in meaning.says
    assert meaning_for_job("SUBMITTED").advice


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--replicas", "--with-zone", "copy"), "compare with one of"),
        (("--replicas", "--with-digests", "/x"), "--with-digests, --replicas"),
        (("--replicas", "--save", "/x"), "not of its --replicas"),
    ],
)
def test_replicas_are_compared_with_nothing_else(options: tuple[str, ...], said: str) -> None:
    """A job would be submitted that compares something else than was asked for."""
    found = CliRunner().invoke(verify, ["orders", "--image", "i", *options])
    assert found.exit_code == 2
    assert said in found.output
