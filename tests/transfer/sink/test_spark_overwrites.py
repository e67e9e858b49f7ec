"""A zone is overwritten from real Spark, at real data nodes: wholly, or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from overwriting_kit import OverwritingOperator
from replica_cluster import Coordinator

import rezone
from rezone.client import TableClient
from rezone.wire.codec.schema import Column, ColumnType, TableSchema
from rezone.wire.messages import ZoneConfig

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]
TABLE = TableSchema(
    columns=(Column("id", ColumnType.INT64), Column("value", ColumnType.STRING)),
    primary_key=("id",),
)
CONFIG = ZoneConfig(zone="z", zone_uid="u", partitions=2, table=TABLE)
KILLED_SECONDS = 300.0
DRIVER = """
import sys
from pyspark.sql import SparkSession
from rezone.transfer import datasource

bootstrap, staging, name = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
datasource.register(spark)
frame = spark.range(0, 300, 1, 2).selectExpr("id", "concat('new ', id) as value")
frame.write.format("rezone").mode("overwrite").options(
    bootstrap=bootstrap, stagingDirectory=staging, overwriteName=name
).save()
"""


def old_rows() -> list[dict[str, Any]]:
    """Return the rows that are there before."""
    return [{"id": n, "value": f"old {n}"} for n in range(200, 400)]


def content(zone: Coordinator) -> list[dict[str, Any]]:
    """Return all rows of the zone."""
    with TableClient(list(zone.peers.values())) as table:
        found: list[dict[str, Any]] = table.scan().sort_by("id").to_pylist()
    return found


@pytest.fixture
def filled(zone: Coordinator) -> Coordinator:
    """Give the zone with old rows."""
    zone.watch()
    with TableClient(list(zone.peers.values())) as table:
        table.write(old_rows())
    return zone


class Writer:
    """Writes frames of one session over a zone."""

    def __init__(self, spark: Any, zone: Coordinator, staging: Path) -> None:
        from rezone.transfer import datasource  # noqa: PLC0415 - imports pyspark

        datasource.register(spark)
        self._spark = spark
        self.staging = staging
        self._options = {
            "bootstrap": zone.nodes[0].address,
            "stagingDirectory": str(staging),
        }

    def overwrite(self, frame: Any, **options: str) -> None:
        """Write a frame in mode overwrite."""
        given = {k: v for k, v in (self._options | options).items() if v}
        frame.write.format("rezone").mode("overwrite").options(**given).save()

    def frame(self, count: int, value: str = "new") -> Any:
        """Return a frame of two tasks."""
        rows = self._spark.range(0, count, 1, 2)
        return rows.selectExpr("id", f"concat('{value} ', id) as value")

    def staged(self) -> list[str]:
        """Return the files that are left in the staging directory."""
        return [str(path) for path in self.staging.rglob("*") if path.is_file()]


@pytest.fixture
def writer(spark: Any, filled: Coordinator, tmp_path: Path) -> Writer:
    """Give a writer to the zone."""
    return Writer(spark, filled, tmp_path / "staging")


def attempts(failing: int) -> Any:
    """Return a function of tasks whose first attempts give rows, and fail behind them."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa  # noqa: PLC0415 - runs in a task
        from pyspark import TaskContext  # noqa: PLC0415 - runs in a task

        attempt = TaskContext.get().attemptNumber()
        for batch in batches:
            value = pa.repeat(f"attempt {attempt}", batch.num_rows)
            ids = pa.compute.add(batch["id"], 10_000 if attempt < failing else 0)
            yield pa.RecordBatch.from_arrays([ids, value], ["id", "value"])
        if attempt < failing:
            raise ValueError("the attempt fails behind its rows")

    return run


@pytest.mark.proves("SP-05")
def test_a_zone_is_overwritten_wholly_or_not_at_all(
    filled: Coordinator, writer: Writer, spark: Any
) -> None:
    """Old rows would stay, or those of attempts and jobs that have failed be there."""
    one, two = spark.range(0, 300, 1, 1), spark.range(0, 300, 1, 2)
    with OverwritingOperator(filled) as operator:
        with pytest.raises(Exception, match="fails behind its rows"):
            writer.overwrite(one.mapInArrow(attempts(9), "id long, value string"))
        with pytest.raises(Exception, match="one key"):
            writer.overwrite(writer.frame(10).union(writer.frame(10)))
        assert not operator.asked
        assert content(filled) == old_rows()
        assert writer.staged() == []
        writer.overwrite(two.mapInArrow(attempts(1), "id long, value string"))
        assert content(filled) == [{"id": n, "value": "attempt 1"} for n in range(300)]
        assert writer.staged() == []
        writer.overwrite(writer.frame(50).limit(0))
        assert content(filled) == []
    assert len(operator.asked) == 2


def run_and_kill(zone: Coordinator, directory: Path, operator: OverwritingOperator) -> None:
    """Run a driver as a process of its own, and kill it when its overwrite has begun."""
    script = directory / "driver.py"
    script.write_text(DRIVER)
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(rezone.__path__[0]).parent),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(directory / "spark"),
        "PYSPARK_SUBMIT_ARGS": "--master local[2] --conf spark.ui.enabled=false pyspark-shell",
    }
    arguments = [zone.nodes[0].address, str(directory / "staging"), "nightly"]
    with (directory / "driver.log").open("w") as log:
        driver = subprocess.Popen(
            [sys.executable, str(script), *arguments],
            env=environment,
            cwd=directory,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + KILLED_SECONDS
        while not operator.begun.wait(0.1):
            assert driver.poll() is None, (directory / "driver.log").read_text()[-3000:]
            assert time.monotonic() < deadline, "the driver does nothing"
    finally:
        # Its own group, with Java and the Python workers: no cluster manager is here to end them.
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()


@pytest.mark.proves("SP-05")
def test_a_driver_that_comes_again_by_its_name_finishes_what_a_killed_one_has_begun(
    filled: Coordinator, writer: Writer, tmp_path: Path
) -> None:
    """The zone would wait for ten minutes, or have rows of both jobs."""
    with OverwritingOperator(filled) as operator:
        operator.go_on.clear()
        run_and_kill(filled, tmp_path, operator)
        assert content(filled) == old_rows()
        with TableClient(list(filled.peers.values())) as table:
            table.write([{"id": 9_000, "value": "others"}])
        assert len(content(filled)) == 201
        operator.go_on.set()
        writer.overwrite(writer.frame(300), overwriteName="nightly")
        new = [{"id": n, "value": f"new {n}"} for n in range(300)]
        assert content(filled) == [*new, {"id": 9_000, "value": "others"}]
        assert len(operator.asked) == 1
        (note,) = writer.staged()
        assert note.endswith("overwrite-nightly/note.json")
