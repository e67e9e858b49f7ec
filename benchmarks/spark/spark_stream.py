"""A zone's changes as a stream of Spark: how fast a query catches up, and how far behind it runs.

    PYTHONPATH=operator:benchmarks python benchmarks/spark/spark_stream.py [--rows 1000000]
        [--rounds 3] [--per-second 20000] [--seconds 20] [--partitions 8] [--cores 2]

Three data nodes are processes of their own, all replicas are on disk; Spark runs in local mode.

- Catching up: rows of about 150 bytes are changed once each, then a query reads all these changes
  with `Trigger.AvailableNow`; beside it, in the same round, the feed by one `TableClient` in this
  process, and a query of the same rows in files of Parquet, in batches of as many rows. Changes a
  second, from the query's start to its end. The first round is not counted.
- Beside a writer, a process of its own with so many rows a second: changes a second that batches
  had, and how long after their commits the batch that has them was done, the median of all changes
  and what one of a hundred exceeds. The query has run for some batches when counting begins.
"""

import argparse
import importlib.util
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from harness.steady_writer import steady_writer
from harness.zone import Zone, running_zone
from spark_read import load, session

BATCH_ROWS = 200_000
WARM_BATCHES = 5
_DEADLINE_SECONDS = 120.0


class Batch(NamedTuple):
    """A micro-batch that is done: when, and delays of its changes in seconds."""

    at: float
    changes: int
    median: float
    slowest: float


def drain(frame: Any, directory: Path) -> float:
    """Run a query over all there is; return its seconds."""
    begun = time.monotonic()
    query = (
        frame.writeStream.format("noop")
        .option("checkpointLocation", tempfile.mkdtemp(dir=directory))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return time.monotonic() - begun


def follow(zone: Zone, changes: int) -> float:
    """Take so many changes, the earliest first, by a client's feed; return the seconds."""
    begun = time.monotonic()
    with zone.client() as client, client.changes(earliest=True) as feed:
        while changes > 0:
            changes -= feed.poll(1.0).changes.num_rows
    return time.monotonic() - begun


def catch_up(zone: Zone, spark: Any, directory: Path, given: argparse.Namespace) -> None:
    """Measure and print how fast all changes come."""
    bootstrap = str(zone.coordinator.nodes[0].address)
    files = str(directory / "rows")
    options = {"bootstrap": bootstrap, "startFrom": "earliest", "maxRowsPerBatch": BATCH_ROWS}
    batch = spark.read.format("rezone").option("bootstrap", bootstrap).load()
    batch.repartition(max(1, given.rows // BATCH_ROWS)).write.parquet(files)

    def parquet() -> Any:
        stream = spark.readStream.schema(batch.schema).option("maxFilesPerTrigger", 1)
        return stream.parquet(files)

    ways: dict[str, Callable[[], float]] = {
        "stream": lambda: drain(
            spark.readStream.format("rezone-changes").options(**options).load(), directory
        ),
        "feed": lambda: follow(zone, given.rows),
        "parquet": lambda: drain(parquet(), directory),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(given.rounds + 1):
        for name, way in ways.items():
            seconds = way()
            if number:
                rates[name].append(given.rows / seconds)
    print(f"{given.rows} changes, catching up; changes/s: median (least to most)")
    for name, each in rates.items():
        print(f"  {name:8} {statistics.median(each):9,.0f} ({min(each):,.0f} to {max(each):,.0f})")


class Followed:
    """Counts what batches have."""

    def __init__(self) -> None:
        self._batches: list[Batch] = []
        self._came = threading.Condition()

    def take(self, frame: Any, _number: int) -> None:
        """Read a micro-batch, and note it."""
        asked = "percentile_approx(_commit_time, array(0.01, 0.5), 1000)"
        count, times = frame.selectExpr("count(*)", asked).first()
        now = time.time()
        if count:
            slowest, median = (now - each / 1e6 for each in times)
            with self._came:
                self._batches.append(Batch(time.monotonic(), count, median, slowest))
                self._came.notify_all()

    def wait(self, batches: int) -> None:
        """Wait for so many; AssertionError when they do not come."""
        with self._came:
            assert self._came.wait_for(lambda: len(self._batches) >= batches, _DEADLINE_SECONDS)

    def of(self, begin: float, end: float) -> list[Batch]:
        """Return the batches that were done meanwhile."""
        with self._came:
            return [each for each in self._batches if begin <= each.at < end]


def beside_writer(zone: Zone, spark: Any, directory: Path, given: argparse.Namespace) -> None:
    """Measure and print how far a query is behind a writer."""
    addresses = [str(node.address) for node in zone.coordinator.nodes.values()]
    followed = Followed()
    changes = spark.readStream.format("rezone-changes").option("bootstrap", addresses[0]).load()
    query = (
        changes.writeStream.foreachBatch(followed.take)
        .option("checkpointLocation", tempfile.mkdtemp(dir=directory))
        .start()
    )
    try:
        with steady_writer(addresses, given.per_second) as writer:
            followed.wait(WARM_BATCHES)
            begun = time.monotonic()
            threading.Event().wait(given.seconds)
            batches = followed.of(begun, time.monotonic())
            written = writer.end()
    finally:
        query.stop()
    span = batches[-1].at - batches[0].at
    rate = sum(each.changes for each in batches[1:]) / span
    print(
        f"beside {written.rows / written.seconds:,.0f} rows/s of a writer: {rate:,.0f} changes/s, "
        f"{len(batches)} batches; median of their medians of delay "
        f"{statistics.median(each.median for each in batches):.2f} s, of what 1 % exceeds "
        f"{statistics.median(each.slowest for each in batches):.2f} s, at most "
        f"{max(each.slowest for each in batches):.2f} s"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--per-second", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--cores", type=int, default=2)
    given = parser.parse_args()
    if importlib.util.find_spec("pyspark") is None:
        print("  no pyspark is installed here: make spark-env")
        return
    directory = Path(tempfile.mkdtemp(prefix="rezone-spark-stream-"))
    try:
        with running_zone(3, given.partitions, 3) as zone:
            load(zone, given.rows, given.rows)
            spark = session(given.cores, directory, "")
            from rezone.transfer.datasource import register  # noqa: PLC0415 - imports pyspark

            register(spark)
            try:
                catch_up(zone, spark, directory, given)
                beside_writer(zone, spark, directory, given)
            finally:
                spark.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
