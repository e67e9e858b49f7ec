"""Loads of Parquet files by Spark: `rezone load` beside the DataFrame writer, and Spark's Parquet.

    PYTHONPATH=operator:benchmarks python benchmarks/spark/spark_load.py [--mb 50 | --rows 100000]
        [--rounds 1] [--ways load,overwrite,writer,parquet,jdbc] [--sizes "100 bytes,1 KiB"]
        [--loads 2]

Rows of 100 bytes and of 1 KiB under random keys, in one file for each of two tasks; three nodes,
twelve partitions, three replicas each, empty at first. In turn:

- load: the load job (sorted runs), then again under another name: the zone is in use then.
- overwrite: the load job with `--overwrite`, which data nodes take past their logs as sorted files;
  of an empty zone, and then of that one. Wall time has the operator's part, done by this process.
- writer: `DataFrame.write.format("rezone")`, the ordinary write path in the order of the files.
- parquet: Spark reads the same files and writes them, unsorted, to the disk.
- jdbc: Spark reads the same files and inserts them into a table of PostgreSQL with the same key, in
  batches of 10,000 rows; one server, fsync on.

Seconds of processor time are those of all nodes until every replica has applied the rows (of the
server until it has them), and of Spark with all its processes; wall time is the job's own, without
Spark's start. The same script in the tree of another version measures that version.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from harness import jdbc
from harness.zone import Zone, cpu_of
from overwriting_kit import OverwritingOperator
from replica_cluster import Coordinator, cluster

from rezone.wire.codec.rows import arrow_schema_of
from rezone.wire.codec.schema import TableSchema
from rezone.wire.messages import ZoneConfig

_SIZES = {"100 bytes": 100, "1 KiB": 1024}
_PARTITIONS = 12
_NODES = 3
_FILES = 2
_POLL_SECONDS = 0.2
_JOB = """
import json, sys, time
from pyspark.sql import SparkSession
way, source, target, bootstrap, state, name = sys.argv[1:]
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
spark = spark.config("spark.ui.showConsoleProgress", "false")
spark = spark.config("spark.driver.extraClassPath", state if way == "jdbc" else "")
spark = spark.config("spark.log.level", "ERROR").getOrCreate()
spark.sparkContext.parallelize([1], 1).map(lambda x: x).collect()  # workers have begun
begun = time.monotonic()
if way in ("load", "overwrite"):
    from rezone.transfer import load_job
    more = ["--overwrite"] if way == "overwrite" else []
    code = load_job.main(["--bootstrap", bootstrap, "--parquet", source, "--state", state,
                          "--name", name, "--keep-context", *more])
    assert code == 0, code
elif way == "writer":
    from rezone.transfer import datasource
    datasource.register(spark)
    frame = spark.read.parquet(source)
    frame.write.format("rezone").mode("append").options(bootstrap=bootstrap).save()
elif way == "jdbc":
    properties = json.loads(name)
    spark.read.parquet(source).write.jdbc(bootstrap, target, "append", properties)
else:
    spark.read.parquet(source).write.mode("overwrite").parquet(target)
print(json.dumps({"wall": time.monotonic() - begun}), flush=True)
spark.stop()
"""


class Cost(NamedTuple):
    """What one job took, in seconds."""

    wall: float
    spark: float
    nodes: float


def _write_files(directory: Path, count: int, size: int) -> None:
    rng = random.Random(11)
    values = [rng.randbytes(size) for _ in range(1000)]
    ids = list(range(count))
    rng.shuffle(ids)
    directory.mkdir()
    for file in range(_FILES):
        mine = ids[file::_FILES]
        columns = [
            pa.array([b"%016d" % n for n in mine], pa.binary()),
            pa.array([values[n % 1000] for n in mine], pa.binary()),
        ]
        table = pa.table(columns, schema=arrow_schema_of(TableSchema()))
        pq.write_table(table, directory / f"{file}.parquet", row_group_size=1 << 17)


def _tree(pid: int) -> Iterator[int]:
    """Yield a process and all that it has started."""
    yield pid
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from _tree(int(child))


def _cpu_of_tree(pid: int) -> float:
    """Return the processor time of a process and all it has started, with those that ended."""
    return sum(cpu_of(each, ended=True) for each in _tree(pid))


def _run(arguments: list[str]) -> tuple[float, float]:
    """Run a job; return its wall time and the processor time of all its processes."""
    used: dict[int, float] = {}
    over = threading.Event()
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    with subprocess.Popen(
        [sys.executable, "-c", _JOB, *arguments], stdout=subprocess.PIPE, env=environment, text=True
    ) as process:

        def look() -> None:
            while not over.wait(_POLL_SECONDS):
                for pid in _tree(process.pid):
                    with contextlib.suppress(OSError):
                        used[pid] = cpu_of(pid)

        looking = threading.Thread(target=look)
        looking.start()
        said, _ = process.communicate()
        over.set()
        looking.join()
    assert process.returncode == 0, said
    wall: float = json.loads(said.splitlines()[-1])["wall"]
    return wall, sum(used.values())


def _settled(zone: Zone, rows: int) -> None:
    """Wait until all replicas have applied the rows."""

    def done() -> bool:
        reports = [zone.replica(node, p) for node in range(_NODES) for p in range(_PARTITIONS)]
        applied = [r.kv_applied_offset for r in reports if r is not None]
        return sum(applied) >= rows * _NODES

    zone.wait("all rows are applied", done)


def _switching(way: str, coordinator: Coordinator) -> AbstractContextManager[object]:
    """Do the operator's part of overwrites."""
    return OverwritingOperator(coordinator) if way == "overwrite" else contextlib.nullcontext()


def _of_zone(way: str, source: Path, count: int, jobs: int) -> list[Cost]:
    directory = Path(tempfile.mkdtemp(prefix="rezone-bench-"))
    config = ZoneConfig(zone="bench", zone_uid="b", partitions=_PARTITIONS, min_in_sync_replicas=2)
    found = []
    try:
        with cluster(directory, _NODES, processes=True, config=config) as coordinator:
            for partition in range(_PARTITIONS):
                coordinator.create(
                    partition, tuple((partition + i) % _NODES for i in range(_NODES))
                )
            zone = Zone(coordinator)
            try:
                zone.wait("streams", lambda: all(map(zone.streaming, range(_PARTITIONS))))
                bootstrap = ",".join(node.address for node in coordinator.nodes.values())
                for job in range(jobs):
                    before = sum(zone.cpu_seconds().values())
                    state = str(directory / "state")
                    with _switching(way, coordinator):
                        wall, spark = _run([way, str(source), "", bootstrap, state, f"{job}"])
                    if way != "overwrite":  # which ends when all replicas have the rows
                        _settled(zone, count * (job + 1))
                    found.append(Cost(wall, spark, sum(zone.cpu_seconds().values()) - before))
            finally:
                zone.close()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return found


def _of_postgres(source: Path) -> list[Cost]:
    directory = Path(tempfile.mkdtemp(prefix="rezone-bench-"))
    columns = ", ".join(f"{name} bytea" for name in arrow_schema_of(TableSchema()).names)
    try:
        postgres = jdbc.serve(directory, columns)
        try:
            key = TableSchema().primary_key[0]
            postgres.sql(f"ALTER TABLE {jdbc.TABLE} ADD PRIMARY KEY ({key})")
            before = _cpu_of_tree(postgres.pid)
            properties = json.dumps(jdbc.PROPERTIES)
            wall, spark = _run(
                ["jdbc", str(source), jdbc.TABLE, jdbc.url(postgres), jdbc.driver(), properties]
            )
            return [Cost(wall, spark, _cpu_of_tree(postgres.pid) - before)]
        finally:
            postgres.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _measure(way: str, source: Path, count: int, loads: int) -> dict[str, Cost]:
    if way == "parquet":
        with tempfile.TemporaryDirectory(prefix="rezone-bench-") as target:
            wall, spark = _run([way, str(source), target, "", "", ""])
        return {"Parquet": Cost(wall, spark, 0)}
    if way == "jdbc":
        if why := jdbc.missing():
            print(f"  without PostgreSQL: {why}")
            return {}
        return {"JDBC, PostgreSQL": _of_postgres(source)[0]}
    names: tuple[str, ...] = ("DataFrame writer",)
    if way in ("load", "overwrite"):
        names = (f"{way}, empty zone", f"{way}, used zone")[:loads]
    return dict(zip(names, _of_zone(way, source, count, len(names)), strict=True))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mb", type=int, default=50, help="values per round and size")
    parser.add_argument("--rows", type=int, help="rows per round and size, in place of --mb")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--ways", default="load,overwrite,writer,parquet,jdbc")
    parser.add_argument("--sizes", default="100 bytes,1 KiB")
    parser.add_argument("--loads", type=int, choices=(1, 2), default=2, help="into one zone")
    given = parser.parse_args()
    for name in given.sizes.split(","):
        size = _SIZES[name]
        count = given.rows or given.mb * 10**6 // size
        print(f"{count:,} rows of {name}; medians of {given.rounds}; seconds a million rows")
        print(f"  {'':22}{'wall':>8}{'spark':>8}{'nodes':>8}{'cpu':>8}", flush=True)
        found: dict[str, list[Cost]] = {}
        with tempfile.TemporaryDirectory(prefix="rezone-bench-") as directory:
            source = Path(directory) / "in"
            _write_files(source, count, size)
            for _ in range(given.rounds):
                for way in given.ways.split(","):
                    for what, cost in _measure(way, source, count, given.loads).items():
                        found.setdefault(what, []).append(cost)
                        if given.rounds == 1:
                            _print(what, [cost], count)
        if given.rounds > 1:
            for what, costs in found.items():
                _print(what, costs, count)


def _print(what: str, costs: list[Cost], count: int) -> None:
    wall, spark, nodes = (
        statistics.median(each) * 1e6 / count for each in zip(*costs, strict=True)
    )
    print(f"  {what:22}{wall:8.2f}{spark:8.2f}{nodes:8.2f}{spark + nodes:8.2f}", flush=True)


if __name__ == "__main__":
    main()
