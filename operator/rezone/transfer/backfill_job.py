"""The PySpark job that a SparkApplication runs to backfill a re-sharding (SP-01, B-08).

    backfill_job.py --plan /etc/rezone/plan/plan.json
    backfill_job.py --plan-json '{"nodes": {"0": "host:port"}, "ranges": [[16384, 0]]}'

The driver has data nodes leave all ranges to the job (`reserving`). One task for each range: it
brings the rows that a new partition has of an old one to all replicas of the new one (`backfill`).
A range whose task fails, or that no task brings, is backfilled by its leader, as would be without
a job. So a task returns its error on its last try, for Spark would stop all others with it. The
last line of the output is one JSON object; the exit code is 0 only when all ranges have their rows.
"""

import argparse
import functools
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rezone.transfer.copy_job import (
    REPORTED_ERRORS_MAX,
    RETRY_PAUSE_SECONDS_MAX,
    add_plan,
    read_plan,
    task_failures_max,
)
from rezone.transfer.copying.backfill import RangeReceipt, backfill_range, totals
from rezone.transfer.copying.reserving import Reservations
from rezone.wire.copying import backfill_plan
from rezone.wire.copying.backfill_plan import BackfillPlan, BackfillRange
from rezone.wire.errors import RezoneError
from rezone.wire.messages import NodeId


def run_task(
    hash_range: BackfillRange,
    nodes: Mapping[NodeId, str],
    *,
    attempt_number: int,
    failures_max: int,
    sleep: Callable[[float], object] = time.sleep,
    backfill: Callable[[BackfillRange, Mapping[NodeId, str]], RangeReceipt] = backfill_range,
) -> RangeReceipt:
    """Bring the rows of a range; RezoneError unless this is the task's last try."""
    if attempt_number:
        # Spark repeats at once; some tries in a second would not outlive a node's restart.
        sleep(min(2.0 ** (attempt_number - 1), RETRY_PAUSE_SECONDS_MAX))
    try:
        return backfill(hash_range, nodes)
    except RezoneError as error:
        if attempt_number + 1 < failures_max:
            raise
        return RangeReceipt(hash_range=hash_range, error=str(error))


def summary(receipts: Sequence[RangeReceipt], seconds: float) -> dict[str, Any]:
    """Return what the job's last line says."""
    failed = [receipt for receipt in receipts if receipt.error]
    rows, size = totals(receipts)
    return {
        "ranges": len(receipts),
        "failed": len(failed),
        "rows": rows,
        "bytes": size,
        "seconds": round(seconds, 3),
        "errors": [
            {"target": r.hash_range.target, "source": r.hash_range.source, "error": r.error}
            for r in failed[:REPORTED_ERRORS_MAX]
        ],
    }


def _tasks(
    ranges: Iterator[BackfillRange], nodes: Mapping[NodeId, str], failures_max: int
) -> Iterator[RangeReceipt]:
    from pyspark import TaskContext  # noqa: PLC0415 - the task's own process

    attempt = TaskContext.get().attemptNumber()
    for hash_range in ranges:
        yield run_task(hash_range, nodes, attempt_number=attempt, failures_max=failures_max)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job and return its exit code: 0 all there, 1 some are not, 2 the plan is wrong."""
    parser = argparse.ArgumentParser(prog="backfill_job", description="Backfill a re-sharding.")
    add_plan(parser)
    plan = read_plan(parser.prog, parser.parse_args(arguments), backfill_plan.loads)
    if plan is None:
        return 2
    started = time.monotonic()
    with Reservations(plan.ranges, plan.nodes):
        receipts = _in_spark(plan)
    result = summary(receipts, time.monotonic() - started)
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()
    return 1 if result["failed"] else 0


def _in_spark(plan: BackfillPlan) -> list[RangeReceipt]:
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - a wrong plan needs no Spark

    context = SparkContext.getOrCreate(SparkConf().setAppName("rezone-backfill"))
    configured = context.getConf().get("spark.task.maxFailures")
    run = functools.partial(
        _tasks, nodes=plan.nodes, failures_max=task_failures_max(context.master, configured)
    )
    try:
        ranges = context.parallelize(list(plan.ranges), len(plan.ranges))
        receipts: list[RangeReceipt] = ranges.mapPartitions(run).collect()
    finally:
        context.stop()
    return receipts


if __name__ == "__main__":
    # Loaded by its name: what tasks run is then found in the workers' PYTHONPATH, where
    # functions of __main__ would travel by value.
    from rezone.transfer import backfill_job  # noqa: PLW0406

    sys.exit(backfill_job.main())
