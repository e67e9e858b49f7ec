"""A driver that copies without Spark, for tests that are about the operator around it.

It stands in for `spark-submit` on a driver's PATH, does what the copy job does, or the one that
backfills a re-sharding, and begins in a second. That the real drivers do the same between real data
nodes is for test_spark_copies and test_backfill_job.
"""

import functools
import pathlib
import stat
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from rezone.transfer.copying.backfill import backfill_range
from rezone.transfer.copying.dispatch import Receivers, dispatch
from rezone.transfer.copying.reserving import Reservations
from rezone.transfer.copying.stream import copy_entry
from rezone.wire.copying import backfill_plan
from rezone.wire.copying import plan as copyplan
from rezone.wire.copying.backfill_plan import BackfillPlan
from rezone.wire.copying.copy import CopyReceipt
from rezone.wire.copying.plan import PartitionCopy


def install(directory: pathlib.Path) -> pathlib.Path:
    """Make the program `spark-submit` in a directory, which is to come first on PATH."""
    directory.mkdir(parents=True, exist_ok=True)
    program = directory / "spark-submit"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{pathlib.Path(__file__)}" "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return directory


def main(arguments: Sequence[str]) -> int:
    """Carry the plan out; 0 when every receiver has its copy, or every range its rows."""
    text = arguments[arguments.index("--plan-json") + 1]
    if any(each.endswith("backfill_job.py") for each in arguments):
        return backfill(backfill_plan.loads(text))
    plan = copyplan.loads(text)

    def copy(entry: PartitionCopy) -> list[CopyReceipt]:
        return copy_entry(entry, attempt="quick")

    with Receivers() as receivers:
        receipts = dispatch(plan, receivers.ready, copy)
    return 1 if any(receipt.error for receipt in receipts) else 0


def backfill(plan: BackfillPlan) -> int:
    """Bring the rows of all ranges, some at a time."""
    bring = functools.partial(backfill_range, nodes=plan.nodes)
    with Reservations(plan.ranges, plan.nodes), ThreadPoolExecutor(2) as pool:
        list(pool.map(bring, plan.ranges))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
