"""The PySpark job that a SparkApplication runs to copy partitions (OP-04, SS-06, B-05).

    copy_job.py --plan /etc/rezone/plan.json
    copy_job.py --plan-json '[{"partition": 0, ...}]'

One Spark job of one task per partition, begun when its receivers admit it (`dispatch`). A task
moves the data itself, from the source's snapshot stream to every receiver, so Spark adds nothing
per byte; what Spark gives is placement, parallelism, retries and a driver that survives none of it:
receivers know how far they are, and a task or a whole job that died goes on there. The plan's
format is that of `wire.copying.plan`.

A task whose copy failed for any receiver raises in the end, so that Spark tries it again; on its
last try it returns its receipts instead, because Spark would otherwise stop the copies of all
other partitions with it. The last line of the output is one JSON object; the exit code is 0
only when every receiver of every partition has its copy.
"""

import argparse
import dataclasses
import functools
import json
import pathlib
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from rezone.transfer.copying.dispatch import Receivers, dispatch
from rezone.transfer.copying.stream import copy_entry
from rezone.wire.copying import plan as copyplan
from rezone.wire.copying.copy import CopyOptions, CopyReceipt
from rezone.wire.copying.plan import PartitionCopy

TASK_FAILURES_DEFAULT = 4
RETRY_PAUSE_SECONDS_MAX = 30.0
REPORTED_ERRORS_MAX = 20

PlanT = TypeVar("PlanT")


class CopyFailedError(Exception):
    """Raised by a task so that Spark tries it again; the text says which receivers failed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobOptions:
    """What each task is told. `task_failures_max` is how often Spark tries a task in all."""

    application: str
    task_failures_max: int = TASK_FAILURES_DEFAULT
    batch_bytes: int = 2 << 20
    retry_pause_seconds: float = 1.0


def task_failures_max(master: str, configured: str | None) -> int:
    """Return how often Spark tries a task: local[N] never repeats, local[N,F] tries F times."""
    local = re.fullmatch(r"local(?:\[\s*[\d*]+\s*(?:,\s*(\d+)\s*)?\])?", master)
    if local:
        return int(local.group(1) or 1)
    return int(configured or TASK_FAILURES_DEFAULT)


def run_task(
    entry: PartitionCopy,
    options: JobOptions,
    *,
    attempt_number: int,
    attempt_id: int,
    sleep: Callable[[float], object] = time.sleep,
    copy: Callable[..., list[CopyReceipt]] = copy_entry,
) -> list[CopyReceipt]:
    """Copy one partition; CopyFailedError unless all receivers have it or this is the last try.

    Receivers that hold the copy are no failure: `dispatch` tries again when they admit it.
    """
    if attempt_number:
        # Spark repeats at once; four tries in a second would not outlive a node's restart.
        pause = options.retry_pause_seconds * 2.0 ** (attempt_number - 1)
        sleep(min(pause, RETRY_PAUSE_SECONDS_MAX))
    receipts = copy(
        entry,
        attempt=f"{options.application}/{entry.partition}/{attempt_id}",
        options=CopyOptions(batch_bytes=options.batch_bytes),
    )
    failed = [receipt for receipt in receipts if receipt.error and not receipt.held]
    if failed and attempt_number + 1 < options.task_failures_max:
        texts = "; ".join(f"{r.target}: {r.error}" for r in failed)
        raise CopyFailedError(f"partition {entry.partition}: {texts}")
    return receipts


def run_job(context: Any, entry: PartitionCopy, options: JobOptions) -> list[CopyReceipt]:
    """Run the Spark job of one partition and return its receipts."""

    def task(entries: Iterator[PartitionCopy]) -> Iterator[CopyReceipt]:
        from pyspark import TaskContext  # noqa: PLC0415 - the task's own process

        task_context = TaskContext.get()
        for each in entries:
            yield from run_task(
                each,
                options,
                attempt_number=task_context.attemptNumber(),
                attempt_id=task_context.taskAttemptId(),
            )

    receipts: list[CopyReceipt] = context.parallelize([entry], 1).mapPartitions(task).collect()
    return receipts


def summary(
    receipts: Sequence[CopyReceipt],
    seconds: float,
    copy_seconds: float,
) -> dict[str, Any]:
    """Return what the job's last line says; `copy_seconds` is without Spark's start."""
    failed = [r for r in receipts if r.error]
    return {
        "copies": len(receipts),
        "failed": len(failed),
        "skipped": sum(r.skipped for r in receipts),
        "resumed": sum(r.resumed for r in receipts),
        "rows": sum(r.rows for r in receipts),
        "bytes": sum(r.bytes for r in receipts),
        "seconds": round(seconds, 3),
        "copy_seconds": round(copy_seconds, 3),
        "errors": [
            {"partition": r.partition, "target": r.target, "error": r.error}
            for r in failed[:REPORTED_ERRORS_MAX]
        ],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job and return its exit code: 0 all copied, 1 some failed, 2 the plan is wrong."""
    parser = _parser()
    given = parser.parse_args(arguments)
    plan = read_plan(parser.prog, given, copyplan.loads)
    if plan is None:
        return 2
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - a wrong plan needs no Spark

    started = time.monotonic()
    # No session: starting Spark's SQL takes as long as all the rest, and nothing here asks it.
    context = SparkContext.getOrCreate(SparkConf().setAppName("rezone-copy"))
    options = JobOptions(
        application=context.applicationId,
        task_failures_max=task_failures_max(
            context.master, context.getConf().get("spark.task.maxFailures")
        ),
        batch_bytes=given.batch_bytes,
        retry_pause_seconds=given.retry_pause_seconds,
    )
    copying = time.monotonic()
    try:
        with Receivers() as receivers:
            receipts = dispatch(
                plan, receivers.ready, functools.partial(run_job, context, options=options)
            )
        copy_seconds = time.monotonic() - copying
    finally:
        if not given.keep_context:
            context.stop()
    result = summary(receipts, time.monotonic() - started, copy_seconds)
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()
    return 1 if result["failed"] else 0


def add_plan(parser: argparse.ArgumentParser) -> None:
    """Have a job take its plan as a file or as an argument."""
    plan = parser.add_mutually_exclusive_group(required=True)
    plan.add_argument("--plan", help="path of the plan")
    plan.add_argument("--plan-json", help="the plan itself, JSON or base64 of gzipped JSON")


def read_plan(job: str, given: argparse.Namespace, loads: Callable[[str], PlanT]) -> PlanT | None:
    """Return the plan a job was given; None when it is wrong, which is said on standard error."""
    try:
        return loads(given.plan_json or pathlib.Path(given.plan).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{job}: {error}\n")
        return None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="copy_job", description="Copy partitions between nodes.")
    add_plan(parser)
    parser.add_argument("--batch-bytes", type=int, default=2 << 20)
    parser.add_argument("--retry-pause-seconds", type=float, default=1.0)
    parser.add_argument("--keep-context", action="store_true", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    # Loaded by its name: what tasks run is then found in the workers' PYTHONPATH, where
    # functions of __main__ would travel by value.
    from rezone.transfer import copy_job  # noqa: PLW0406

    sys.exit(copy_job.main())
