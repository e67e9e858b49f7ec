"""Spark reading a zone: against the same rows in Parquet, and of few rows against all of them.

    PYTHONPATH=operator:benchmarks python benchmarks/spark/spark_read.py [--rows 1000000]
        [--rounds 5] [--partitions 4] [--nodes 2] [--cores 2] [--one-of 10000] [--peers postgres]

Data nodes are processes of their own, Spark runs in local mode. All rows, of about 150 bytes, are
read into nothing (`noop`): from the zone, from Parquet files on the local disk and from PostgreSQL
by JDBC (as many tasks as partitions, 10,000 rows fetched at a time), which have the same rows.
Then one of so many rows is asked for: by primary key, by an index, and by a scan of all
rows that Spark filters. A round does each once, in turn; the first round is not counted. Medians
with the least and the most, and ratios. Goals: 0.5 of Parquet's rate, 3 times JDBC's, few rows 50
times faster.
"""

import argparse
import contextlib
import importlib.util
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from harness import jdbc
from harness.peers import Postgres
from harness.zone import SCHEMA, Zone, running_zone, write_all

from rezone.client import col
from rezone.wire.codec.schema import Index

ROWS_PER_BATCH = 20_000
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
_NOISE_CHARS, _STEP = 10_000_019, 7919
KEYS_MAX = 1024
"""So many keys of a filter are read by key."""

GOAL_PARQUET, GOAL_JDBC, GOAL_FILTER = 0.5, 3.0, 50.0


def load(zone: Zone, rows: int, one_of: int) -> None:
    """Write the rows; each value of `amount` is that of one row of so many.

    Payloads differ, and do not compress: Parquet would write one that all rows have once.
    """
    noise = "".join(random.Random(rows).choices(_LETTERS, k=_NOISE_CHARS))
    with zone.client() as client:
        batches = []
        for start in range(0, rows, ROWS_PER_BATCH):
            ids = range(start, min(start + ROWS_PER_BATCH, rows))
            columns = [
                pa.array(ids, pa.int64()),
                pa.array([f"row-{n}" for n in ids]),
                pa.array([n % one_of for n in ids], pa.int64()),
                pa.array([noise[at : at + 120] for at in (n * _STEP % _NOISE_CHARS for n in ids)]),
            ]
            batches.append(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
        write_all(client, batches)


@contextlib.contextmanager
def postgres_of(given: argparse.Namespace, directory: Path) -> Iterator[Postgres | None]:
    """Run PostgreSQL with an empty table; None where it is not wanted, or not here."""
    why = jdbc.missing()
    if "postgres" not in given.peers or why:
        if "postgres" in given.peers:
            print(f"  without PostgreSQL: {why}")
        yield None
        return
    columns = "id bigint PRIMARY KEY, name text, amount bigint, payload text"
    postgres = jdbc.serve(directory, columns)
    try:
        yield postgres
    finally:
        postgres.stop()


def session(cores: int, directory: Path, jars: str) -> Any:
    """Return a Spark session in local mode."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - the other benchmarks need no Spark

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(f"local[{cores}]")
    given = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.log.level": "ERROR",
        "spark.local.dir": str(directory),
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraClassPath": jars,
    }
    for name, value in given.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def reads(
    spark: Any, zone: Zone, parquet: str, postgres: Postgres | None, given: argparse.Namespace
) -> dict[str, Callable[[], Any]]:
    """Return what is measured, each as a DataFrame that is made for each read."""
    from rezone.transfer.datasource import read_table  # noqa: PLC0415 - imports pyspark

    address = str(zone.coordinator.nodes[0].address)
    wanted = list(range(0, given.rows, given.one_of))[:KEYS_MAX]
    peers: dict[str, Callable[[], Any]] = {"parquet": lambda: spark.read.parquet(parquet)}
    if postgres is not None:
        peers["jdbc"] = lambda: jdbc.frame(spark, postgres, "id", given.rows, given.partitions)
    return {
        **peers,
        "zone": lambda: read_table(spark, address),
        "by scan": lambda: read_table(spark, address).where("amount = 0"),
        "by index": lambda: read_table(spark, address, filter=col("amount") == 0),
        "by key": lambda: read_table(spark, address, filter=col("id").is_in(wanted)),
    }


def measured(made: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each read in each round but the first."""
    seconds: dict[str, list[float]] = {name: [] for name in made}
    for number in range(rounds + 1):
        for name, frame in made.items():
            begun = time.monotonic()
            frame().write.format("noop").mode("overwrite").save()
            if number:
                seconds[name].append(time.monotonic() - begun)
    return seconds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--one-of", type=int, default=10_000)
    parser.add_argument("--peers", default="postgres", help="may be empty")
    given = parser.parse_args()
    if importlib.util.find_spec("pyspark") is None:
        print("  no pyspark is installed here: make spark-env")
        return
    directory = Path(tempfile.mkdtemp(prefix="rezone-spark-read-"))
    try:
        few, seconds = run(given, directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    tell(given.rows, few, seconds)


def run(given: argparse.Namespace, directory: Path) -> tuple[int, dict[str, list[float]]]:
    """Return how many rows a filter finds, and the seconds of each read."""
    by_amount = (Index("by_amount", ("amount",)),)
    with (
        running_zone(given.nodes, given.partitions, 1, indexes=by_amount) as zone,
        postgres_of(given, directory) as postgres,
    ):
        load(zone, given.rows, given.one_of)
        spark = session(given.cores, directory, jdbc.driver() if postgres else "")
        try:
            made = reads(spark, zone, str(directory / "rows"), postgres, given)
            made["zone"]().write.parquet(str(directory / "rows"))
            if postgres is not None:
                made["parquet"]().write.jdbc(
                    jdbc.url(postgres), jdbc.TABLE, "append", jdbc.PROPERTIES
                )
            few = made["by scan"]().count()
            if not made["by index"]().count() == few == -(-given.rows // given.one_of):
                raise SystemExit("the index has other rows than the scan")
            return few, measured(made, given.rounds)
        finally:
            spark.stop()


def tell(rows: int, few: int, seconds: dict[str, list[float]]) -> None:
    """Print medians and ratios."""
    median = {name: statistics.median(each) for name, each in seconds.items()}
    print(f"  {rows} rows, {few} of them by a filter; seconds: median (least to most)")
    for name, each in seconds.items():
        rate = f"{rows / median[name] / 1e6:6.2f} million rows/s" if "by" not in name else ""
        print(f"  {name:9} {median[name]:7.3f} ({min(each):.3f} to {max(each):.3f}) {rate}")
    print(f"  zone/parquet {median['parquet'] / median['zone']:.2f} (goal {GOAL_PARQUET})")
    if "jdbc" in median:
        print(f"  zone/jdbc {median['jdbc'] / median['zone']:.1f} (goal {GOAL_JDBC:.0f})")
    for name in ("by index", "by key"):
        print(f"  {name}/scan {median['by scan'] / median[name]:.1f} (goal {GOAL_FILTER:.0f})")


if __name__ == "__main__":
    main()
