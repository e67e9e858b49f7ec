"""How bulk jobs end: by an exit code, and in their SparkApplication; without Spark."""

import argparse
import json
from typing import Any

import msgspec
import pytest
from bulk_kit import Here

from rezone.transfer.bulk import job
from rezone.transfer.bulk.resource import END_PAUSES, RESULT_ANNOTATION, Resource

PROGRESS = {"unitsDone": 1, "units": 1}


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (msgspec.ValidationError("Expected `int`"), "ValidationError: Expected `int`"),
        (msgspec.DecodeError("JSON is malformed"), "DecodeError: JSON is malformed"),
        (ZeroDivisionError("by zero"), "ZeroDivisionError: by zero"),
    ],
)
def test_a_job_that_breaks_has_no_result(
    error: Exception, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python ends with 1, and that says that two zones differ."""

    def work(*_given: Any) -> Any:
        raise error

    assert job.attempted(work, argparse.Namespace(), Here()) == (job.FAILED, {"error": told})
    monkeypatch.setattr(job, "_in_spark", work)
    assert job.run_main(argparse.ArgumentParser(), work, []) == job.FAILED


def test_the_error_of_a_task_is_the_end_of_its_stack() -> None:
    """The driver would say "Driver stacktrace:" and nothing of what is wrong."""
    message = (
        "Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times: Traceback:\n"
        '  File "x.py", line 1, in run\n{}\n\n\tat org.apache.spark.X(X.scala:1)\n\n'
        "Driver stacktrace:"
    )
    for said in ("pyarrow.lib.ArrowInvalid: no file", "rezone.wire.errors.NotReadyError"):
        assert job.error_in(message.format(said)) == said
    assert job.error_in("") == "a task failed"


class Server:
    """An API server that fails for some requests."""

    def __init__(self, fails: int) -> None:
        self.fails = fails
        self.annotations: dict[str, str] = {}
        self.asked = 0
        self.slept: list[float] = []

    def patch(self, text: str) -> None:
        """Keep annotations, or fail."""
        self.asked += 1
        if self.asked <= self.fails:
            raise ConnectionError
        self.annotations |= json.loads(text)["metadata"]["annotations"]


def test_the_end_is_told_whatever_failed_before() -> None:
    """A job that has ended well would count as one without a result."""
    server = Server(fails=8)
    resource = Resource(server.patch, sleep=server.slept.append)
    for _ in range(20):
        resource.tell(PROGRESS)
    assert server.asked == 5
    resource.end({"job": "load"})
    assert json.loads(server.annotations[RESULT_ANNOTATION]) == {"job": "load"}
    assert server.slept == list(END_PAUSES[:3])
    server = Server(fails=1000)
    Resource(server.patch, sleep=server.slept.append).end({"job": "load"})
    assert server.slept == list(END_PAUSES)
