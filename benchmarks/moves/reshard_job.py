"""Rows come to new partitions past the log, by a job, and through it, as leaders do by themselves.

    PYTHONPATH=operator:benchmarks python benchmarks/moves/reshard_job.py [--mb 100] [--rounds 3]
        [--payload 120] [--writers]

Three data nodes in processes of their own, each partition on all of them, and nobody writes; with
`--writers` each old partition has one, and what they keep of their writes a second is told. A
zone's partitions are changed both ways in turn; the job's tasks run in processes of their own, as
Spark's executors do, without Spark's start. For each: the rate of the rows' bytes until all are
backfilled and followed, and the processor time of all processes for a megabyte, which another's
load changes less. Rows have 30 bytes besides the payload.
"""

import argparse
import contextlib
import multiprocessing
import statistics
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

import pyarrow as pa
from harness.pausing_writers import Writer, writers
from harness.zone import SCHEMA, Zone, cpu_of, running_zone
from resharding import backfilled, rate, window
from resharding_kit import reshard

from rezone.datanode.process import SWITCH_INTERVAL_SECONDS
from rezone.transfer.copying.backfill import backfill_range, totals
from rezone.transfer.copying.reserving import Reservations
from rezone.wire.copying.backfill_plan import BackfillRange
from rezone.wire.layouts import Layout, layout_of, overlaps

_KEY_BYTES = 30
_BATCH_ROWS = 20_000
_START_SECONDS = 2.0
_RESERVE_SECONDS = 0.05


def load(zone: Zone, rows: int, payload: int) -> None:
    """Write so many rows."""
    with zone.client() as client:
        for start in range(0, rows, _BATCH_ROWS):
            ids = list(range(start, min(start + _BATCH_ROWS, rows)))
            columns: list[Any] = [
                pa.array(ids, pa.int64()),
                pa.array([f"row-{i}" for i in ids]),
                pa.array([0] * len(ids), pa.int64()),
                pa.array(["x" * payload] * len(ids)),
            ]
            client.write(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))


def run_job(zone: Zone, pool: ProcessPoolExecutor, more: int) -> tuple[Layout, int]:
    """Re-shard, and bring the rows of all ranges, each by a task; return how many were brought.

    It reserves from the first moment on: of a small zone the leaders would backfill a half before.
    Then as rarely as a job does, for each of these calls costs a millisecond of processor time.
    """
    c = zone.coordinator
    old = layout_of(c.config)
    ranges = [
        BackfillRange(hash_range.new, hash_range.old)
        for hash_range in overlaps(old, old.next(more))
    ]
    with Reservations(ranges, c.peers, every_seconds=_RESERVE_SECONDS):
        new = reshard(c, more)
    with Reservations(ranges, c.peers):
        receipts = pool.map(backfill_range, ranges, [c.peers] * len(ranges))
        return new, totals(list(receipts))[0]


@contextlib.contextmanager
def executors(count: int) -> Iterator[ProcessPoolExecutor]:
    """Start processes, which have imported what tasks need."""
    # Not forked: this process has threads of gRPC, which a fork would leave waiting.
    with ProcessPoolExecutor(count, multiprocessing.get_context("spawn")) as pool:
        list(pool.map(started, [_START_SECONDS] * count))
        yield pool


def started(seconds: float) -> None:
    """Take long enough for each process to have one."""
    time.sleep(seconds)


def executor_seconds(pool: ProcessPoolExecutor) -> float:
    """Return the processor time of the executors."""
    return sum(cpu_of(pid) for pid in pool._processes)  # noqa: SLF001 - there is no other way


class Run(NamedTuple):
    """One re-sharding: what it took, and what it left to writers."""

    seconds: float
    processor_seconds: float
    brought_share: float
    kept_share: float


def one(given: argparse.Namespace, *, by_job: bool) -> Run:
    """Re-shard a new zone."""
    rows = given.mb * 10**6 // (given.payload + _KEY_BYTES)
    with (
        running_zone(3, given.partitions, 3) as zone,
        executors(given.executors) as pool,
        contextlib.ExitStack() as writing,
    ):
        load(zone, rows, given.payload)
        made: list[Writer] = writing.enter_context(writers(zone, given)) if given.writers else []
        alone = window(made) if made else 0.0

        def used() -> float:
            return sum(zone.cpu_seconds().values()) + executor_seconds(pool)

        begun, worked = time.monotonic(), used()
        if by_job:
            new, brought = run_job(zone, pool, given.more)
        else:
            new, brought = reshard(zone.coordinator, given.more), 0
        zone.wait("all ranges are backfilled", lambda: backfilled(zone, new))
        ended = time.monotonic()
        kept = rate(made, begun, ended) / alone if made else 1.0
        return Run(ended - begun, used() - worked, brought / rows, kept)


def main() -> None:
    """Take both ways in turn; print a line for each, and the medians."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mb", type=int, default=100)
    parser.add_argument("--payload", type=int, default=120)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--more", type=int, default=6, help="partitions afterwards")
    parser.add_argument("--executors", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--writers", action="store_true")
    parser.add_argument("--rows", type=int, default=4, help="rows of one write")
    parser.add_argument("--pause-ms", type=float, default=5.0, help="a writer's pause")
    given = parser.parse_args()
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    found: dict[bool, list[tuple[float, float, float]]] = {False: [], True: []}
    for _ in range(given.rounds):
        for by_job, figures in found.items():
            run = one(given, by_job=by_job)
            speed, cost = given.mb / run.seconds, 1000 * run.processor_seconds / given.mb
            figures.append((speed, cost, run.kept_share))
            how = f"past the log ({run.brought_share:.0%} by the job)"
            kept = f", writers keep {run.kept_share:.0%}" if given.writers else ""
            how = how if by_job else "through the log"
            print(f"{how}: {speed:.1f} MB/s, {cost:.1f} ms/MB{kept}", flush=True)
    (own, own_ms, own_kept), (job, job_ms, job_kept) = (
        tuple(statistics.median(values) for values in zip(*each, strict=True))
        for each in found.values()
    )
    print(f"medians: {job:.1f} MB/s to {own:.1f}, {job / own:.1f} times; ", end="")
    print(f"{job_ms:.1f} ms/MB to {own_ms:.1f}, {own_ms / job_ms:.1f} times less processor time")
    if given.writers:
        print(f"writers keep {job_kept:.2f}; through the log {own_kept:.2f}")


if __name__ == "__main__":
    main()
