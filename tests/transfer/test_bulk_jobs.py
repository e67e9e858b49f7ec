"""Bulk jobs in real Spark on real data nodes; drivers that are killed in the middle."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from replica_cluster import FAST, Coordinator, cluster

import rezone
from rezone.client import TableClient
from rezone.transfer.bulk.exported import MANIFEST
from rezone.wire.codec.schema import Column, ColumnType, TableSchema
from rezone.wire.messages import ZoneConfig

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(400)]
TABLE = TableSchema(
    columns=(Column("id", ColumnType.INT64), Column("value", ColumnType.STRING)),
    primary_key=("id",),
)
CONFIG = ZoneConfig(zone="z", zone_uid="u", partitions=2, table=TABLE)
KILLED_SECONDS = 180.0


@pytest.fixture
def zone(tmp_path: Path) -> Iterator[Coordinator]:
    """Yield two nodes that lead a partition each."""
    with cluster(tmp_path / "nodes", 2, config=CONFIG, settings=FAST) as nodes:
        for partition in range(2):
            nodes.create(partition, (partition, 1 - partition))
        yield nodes


def rows(first: int, last: int) -> list[dict[str, Any]]:
    """Return rows of these ids."""
    return [{"id": n, "value": f"value {n}"} for n in range(first, last)]


def said(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """Return what a job has written, line by line."""
    return [json.loads(line) for line in capsys.readouterr().out.splitlines() if line[:1] == "{"]


def kill_driver(
    job: str, arguments: list[str], directory: Path, is_time: Callable[[], bool]
) -> None:
    """Start a driver as a process of its own, and kill it and its workers when it is time to."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(rezone.__path__[0]).parent),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(directory / "spark"),
        # One task at a time: that some are done, and others not, does not depend on the machine.
        "PYSPARK_SUBMIT_ARGS": "--master local[1] --conf spark.ui.enabled=false pyspark-shell",
    }
    with (directory / "driver.log").open("w") as log:
        driver = subprocess.Popen(
            [sys.executable, "-m", f"rezone.transfer.{job}", *arguments],
            env=environment,
            cwd=directory,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + KILLED_SECONDS
        while not is_time():
            assert driver.poll() is None, (directory / "driver.log").read_text()[-3000:]
            assert time.monotonic() < deadline, "the driver does nothing"
    finally:
        # Its own group, with Java and the Python workers: no cluster manager is here to end them.
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()


@pytest.mark.usefixtures("spark")
@pytest.mark.proves("SP-06", "SP-07", "SP-10")
def test_an_export_whose_driver_was_killed_goes_on_and_is_verified(
    zone: Coordinator, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A night's export would begin again, or have parts of two times."""
    from rezone.transfer import export_job, verify_job  # noqa: PLC0415

    to = tmp_path / "export"
    address = zone.nodes[0].address
    arguments = ["--bootstrap", address, "--to", str(to), "--parts", "12"]
    with TableClient(list(zone.peers.values())) as table:
        table.write(rows(0, 2000))

        def is_time() -> bool:
            return len(list((to / "_rezone/parts").glob("*"))) >= 2

        kill_driver("export_job", arguments, tmp_path, is_time)
        assert not (to / MANIFEST).exists()
        table.write([{"id": n, "value": "later"} for n in range(100)])
    assert export_job.main([*arguments, "--keep-context"]) == 0
    lines = said(capsys)
    assert lines[0]["unitsDone"] >= 2, "whole parts were written again"
    assert lines[-2]["unitsDone"] == lines[-2]["units"] == 12
    assert {"rows", "bytes", "bytesPerSecond", "skew", "secondsLeft"} < lines[-2].keys()
    assert lines[-1]["rows"] == 2000
    found = pq.read_table(to).sort_by("id").to_pylist()
    assert found == rows(0, 2000)
    compare = ["--bootstrap", address, "--with-parquet", str(to), "--tasks", "2", "--keep-context"]
    assert verify_job.main(compare) == 0
    assert said(capsys)[-1]["equal"]
    pq.write_table(pa.Table.from_pylist(rows(2000, 2001)), to / "more.parquet")
    assert verify_job.main(compare) == 1
    assert said(capsys)[-1]["differences"] == [{"key": {"id": 2000}, "is": "only other"}]


@pytest.mark.usefixtures("spark")
@pytest.mark.proves("SP-06")
def test_a_load_whose_driver_was_killed_goes_on_and_writes_each_row_once(
    zone: Coordinator, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was loaded before and written since by others would be undone."""
    from rezone.transfer import load_job  # noqa: PLC0415

    (tmp_path / "in").mkdir()
    for number in range(10):
        found = pa.Table.from_pylist(rows(number * 200, number * 200 + 200))
        pq.write_table(found, tmp_path / "in" / f"{number}.parquet")
    bad = [*rows(2000, 2003), {"id": None, "value": "without a key"}]
    pq.write_table(pa.Table.from_pylist(bad), tmp_path / "in" / "bad.parquet")
    state = tmp_path / "state"
    arguments = ["--bootstrap", zone.nodes[0].address, "--parquet", str(tmp_path / "in")]
    arguments += ["--state", str(state)]

    def is_time() -> bool:
        return len(list(state.glob("*/unit-*.json"))) >= 2

    kill_driver("load_job", arguments, tmp_path, is_time)
    with TableClient(list(zone.peers.values())) as table:
        table.write([{"id": 0, "value": "written since"}])
        assert load_job.main([*arguments, "--keep-context"]) == 1
        end = said(capsys)[-1]
        assert (end["rows"], end["units"], end["refusedRows"]) == (2003, 11, 1)
        assert end["unitsBefore"] >= 2
        assert [(each["file"], each["row"]) for each in end["refused"]] == [("bad.parquet", 4)]
        found = {row["id"]: row["value"] for row in table.scan().to_pylist()}
    assert found.pop(0) == "written since"
    assert found == {n: f"value {n}" for n in range(1, 2003)}
