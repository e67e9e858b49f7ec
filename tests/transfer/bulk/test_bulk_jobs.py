"""Bulk jobs in real Spark on real data nodes; drivers that are killed in the middle."""

import asyncio
import functools
import json
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bulk_commands_kit import (
    SECONDS,
    Called,
    all_said,
    call,
    deleted,
    drive,
    driver_account,
    stored,
    submitted,
)
from iceberg_kit import delete_positions, lake, rows_of, table_of
from overwriting_kit import OverwritingOperator
from replica_cluster import FAST, Coordinator, cluster
from resharding_kit import create_old

import rezone
from rezone.client import TableClient
from rezone.datanode.replica.replica import Replica
from rezone.storage.engines.base import behind
from rezone.transfer.bulk import comparing
from rezone.transfer.bulk.exported import MANIFEST
from rezone.wire.codec import keyspace
from rezone.wire.codec.encoded_rows import encoded_rows
from rezone.wire.codec.schema import Column, ColumnType, TableSchema
from rezone.wire.messages import ZoneConfig

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]
TABLE = TableSchema(
    columns=(Column("id", ColumnType.INT64), Column("value", ColumnType.STRING)),
    primary_key=("id",),
)
CONFIG = ZoneConfig(zone="orders", zone_uid="u", partitions=2, table=TABLE)
KILLED_SECONDS = 300.0
EXAMPLES = Path(__file__).parents[3] / "examples/spark"


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


def change_row(replica: Replica, row_id: bytes) -> int:
    """Change a row of one replica as no write does; return how many versions it has."""
    engine = replica.store.engine
    chains = engine.scan_chains(row_id, behind(row_id), rows_max=9, bytes_max=1 << 20)
    pairs = [
        (bytes(k), bytes(v)[:-1] + b"?") for k, v in zip(chains.keys, chains.values, strict=True)
    ]
    engine.apply(pairs, [], {})
    return len(pairs)


@pytest.mark.long
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


@pytest.mark.long
@pytest.mark.usefixtures("spark")
@pytest.mark.proves("SP-07", "SP-10")
def test_replicas_are_compared_in_spark(
    zone: Coordinator, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the tasks of a comparison carry would not reach workers, or its rows not come back."""
    from rezone.transfer import verify_job  # noqa: PLC0415

    with TableClient(list(zone.peers.values())) as table:
        table.write(rows(0, 500))
        batch = pa.RecordBatch.from_pylist([{"id": 77}], schema=table.codec.key_schema)
        row_id = encoded_rows(table.codec, batch).row_id_list()[0]
    compare = ["--bootstrap", zone.nodes[0].address, "--replicas", "--tasks", "4"]
    compare.append("--keep-context")
    assert verify_job.main(compare) == 0
    lines = said(capsys)
    assert lines[-1]["equal"]
    assert [(each["node"], each["rows"]) for each in lines[-1]["replicas"]] == [(0, 500), (1, 500)]
    assert {"rows", "bytes", "bytesPerSecond", "skew", "secondsLeft"} < lines[-2].keys()
    partition = keyspace.partition_of(keyspace.hash_in(row_id), CONFIG.partitions)
    leader = zone.records[partition].leader
    changed = change_row(zone.replica(1 - leader, partition), row_id)
    assert changed == 1
    assert verify_job.main(compare) == 1
    assert said(capsys)[-1]["differences"] == [
        {"key": {"id": 77}, "is": comparing.CHANGED, "node": 1 - leader, "leader": leader}
    ]


@pytest.mark.long
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


@pytest.mark.long
@pytest.mark.usefixtures("spark")
@pytest.mark.proves("SP-06")
def test_an_iceberg_table_is_loaded_by_executors(
    zone: Coordinator,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Tasks read the files of a snapshot, without its deleted rows, by what the driver sends them.

    What the driver knows of a table and its store would not be there in another process.
    """
    from rezone.transfer import export_job, load_job  # noqa: PLC0415

    lake(tmp_path / "lake", monkeypatch)
    options = ["--bootstrap", zone.nodes[0].address, "--iceberg", "lake.shop.orders"]
    options.append("--keep-context")
    with TableClient(list(zone.peers.values())) as table:
        table.write(rows(0, 500))
        assert export_job.main([*options, "--to", str(tmp_path / "export"), "--parts", "4"]) == 0
        exported = said(capsys)[-1]
        table.delete([{"id": n} for n in range(500)])
        (file, *_) = table_of("lake.shop.orders").scan().plan_files()
        location = file.file.file_path
        deleted = {row["id"] for row in pq.read_table(location.removeprefix("file://")).to_pylist()}
        delete_positions("lake.shop.orders", location, list(range(len(deleted))))
        options += ["--state", str(tmp_path / "state")]
        assert load_job.main(options) == 0
        end = said(capsys)[-1]
        left = [row for row in rows(0, 500) if row["id"] not in deleted]
        assert (end["rows"], end["table"]) == (len(left), "lake.shop.orders")
        assert table.scan().sort_by("id").to_pylist() == left
        assert load_job.main([*options, "--snapshot", exported["snapshot"]]) == 0
        assert table.scan().sort_by("id").to_pylist() == rows(0, 500)


@pytest.mark.apiserver
@pytest.mark.proves("SP-01", "SP-10")
def test_commands_run_jobs_and_show_how_they_go(
    spark: Any, zone: Coordinator, crds: Path, namespace: str, tmp_path: Path
) -> None:
    """Whoever starts a job would look at a driver's log for an hour, or take a failure for good."""
    asyncio.run(stored(crds, namespace, zone.nodes[0].address))
    account = driver_account(crds, namespace, tmp_path)
    spark.sparkContext._jvm.java.lang.System.setProperty("kubeconfig", str(account))
    known: set[str] = set()
    with TableClient(list(zone.peers.values())) as table:
        table.write(rows(0, 500))
    to = str(tmp_path / "export")

    called = functools.partial(call, crds, namespace)
    with ThreadPoolExecutor(1) as pool:

        def run(*arguments: str) -> tuple[Called, dict[str, Any]]:
            command: Future[Called] = pool.submit(called, *arguments)
            application = asyncio.run(submitted(crds, namespace, known))
            try:
                drive(application)
                return command.result(SECONDS), application
            finally:  # what follows a job of which nothing is told waits for ever
                asyncio.run(deleted(crds, namespace, application["metadata"]["name"], command))

        result, application = run("export", "orders", to, "--files", "4")
        assert result.returncode == 0, all_said(result)
        assert "500 rows as of" in all_said(result)
        assert "writing: 4 of 4 parts, 500 rows" in all_said(result)
        asked = application["spec"]["arguments"]
        name = application["metadata"]["name"]
        assert asked[asked.index("--application") + 1] == f"{namespace}/{name}"
        assert application["metadata"]["ownerReferences"][0]["name"] == "orders"
        assert "podAffinity" in application["spec"]["executor"]["affinity"]
        result, _ = run("verify", "orders", "--with-parquet", to, "-o", "json")
        assert result.returncode == 0
        assert json.loads(result.stdout)["equal"]
        with TableClient(list(zone.peers.values())) as table:
            table.delete(7)
        now = str(zone.node(0).clock.micros())
        result, _ = run("verify", "orders", "--with-parquet", to, "--as-of", now)
        assert result.returncode == 1
        assert "DIFFERENT: 499 rows" in all_said(result)
        assert "in 1 of them 1 rows; their keys: kubectl logs" in all_said(result)
    result = called("job", name)
    assert (result.returncode, "500 rows as of" in all_said(result)) == (0, True)
    assert called("job", name, "--cancel").returncode == 0
    result = called("job", name)
    assert result.returncode == 2
    assert name in all_said(result)


def run_example(path: Path) -> None:
    """Run a script; again where a Python worker had its 10 s, too few on a busy machine."""
    for _ in range(5):
        try:
            runpy.run_path(str(path), run_name="__main__")
        except Exception as error:
            if "failed to connect back" not in str(error):
                raise
        else:
            return
    pytest.fail("no Python worker has come up in time")


def zone_of(name: str, *columns: Column) -> ZoneConfig:
    """Return the config of a zone of one partition."""
    table = TableSchema(columns=(Column("id", ColumnType.INT64), *columns), primary_key=("id",))
    return ZoneConfig(zone=name, zone_uid=name, partitions=1, table=table)


@pytest.mark.long
@pytest.mark.usefixtures("spark")
def test_examples_do_what_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """People begin with a copy of an example."""
    number, money = Column("customer", ColumnType.INT64), Column("amount", ColumnType.FLOAT64)
    ordered = zone_of("orders", number, money)
    bought = zone_of("customers", Column("country", ColumnType.STRING))
    with (
        cluster(tmp_path / "orders", 1, config=ordered, settings=FAST) as orders,
        cluster(tmp_path / "customers", 1, config=bought, settings=FAST) as customers,
    ):

        def example(name: str, **variables: object) -> None:
            for variable, value in variables.items():
                monkeypatch.setenv(variable, str(value))
            run_example(EXAMPLES / f"{name}.py")

        for each in (orders, customers):
            each.create(0, (0,))
        address = orders.nodes[0].address
        monkeypatch.setenv("ORDERS", address)
        first = [{"id": n, "customer": n % 4, "amount": float(n)} for n in range(40)]
        later = [{"id": n, "customer": 1, "amount": 5.0} for n in range(40, 60)]
        (tmp_path / "in").mkdir()
        pq.write_table(pa.Table.from_pylist(first), tmp_path / "in" / "first.parquet")
        for _ in range(2):
            example("nightly_load", INCOMING=tmp_path / "in", STATE=tmp_path / "state")
        with TableClient([address]) as table, TableClient([customers.nodes[0].address]) as others:
            assert table.scan().sort_by("id").to_pylist() == first
            others.write([{"id": n, "country": "NL" if n % 2 else "DE"} for n in range(4)])
            example("verify_migration", STEP="before", DIGESTS=tmp_path / "digests.json")
            (tmp_path / "stream").mkdir()
            pq.write_table(pa.Table.from_pylist(later), tmp_path / "stream" / "later.parquet")
            example(
                "stream_into_zone",
                INCOMING=tmp_path / "stream",
                CHECKPOINT=tmp_path / "checkpoint",
                STAGING=tmp_path / "staging",
            )
            assert table.scan().sort_by("id").to_pylist() == first + later
            lake(tmp_path / "lake", monkeypatch)
            example("cdc_to_iceberg", TABLE="lake.shop.orders", CHECKPOINT=tmp_path / "cdc")
            assert rows_of("lake.shop.orders") == first + later
            example("verify_migration", STEP="after")
        example(
            "join_two_zones",
            CUSTOMERS=customers.nodes[0].address,
            RESULT=tmp_path / "result",
        )
    found = pq.read_table(tmp_path / "result").sort_by("country").to_pylist()
    assert [row["country"] for row in found] == ["DE", "NL"]
    assert [row["orders"] for row in found] == [15, 15]
    assert sum(row["amount"] for row in found) == sum(range(10, 40))


@pytest.mark.long
@pytest.mark.usefixtures("spark")
@pytest.mark.proves("SP-05")
def test_rows_are_replaced_and_what_others_write_meanwhile_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that somebody has added during the job would be gone with the old ones."""
    with (
        cluster(tmp_path / "zone", 1, config=CONFIG, settings=FAST) as zone,
        TableClient([zone.nodes[0].address]) as table,
    ):
        create_old(zone)
        zone.watch()
        table.write(rows(0, 50))
        new = [{"id": n, "value": "new"} for n in range(30, 90)]
        (tmp_path / "in").mkdir()
        pq.write_table(pa.Table.from_pylist(new), tmp_path / "in" / "new.parquet")
        others = rows(100, 110)
        monkeypatch.setenv("ORDERS", zone.nodes[0].address)
        monkeypatch.setenv("INCOMING", str(tmp_path / "in"))
        monkeypatch.setenv("STAGING", str(tmp_path / "staging"))
        monkeypatch.setenv("NAME", "nightly")
        with OverwritingOperator(zone) as operator, ThreadPoolExecutor() as pool:
            operator.go_on.clear()

            def write_meanwhile() -> None:
                assert operator.begun.wait(SECONDS)
                assert table.scan().num_rows == 50
                table.write(others)
                operator.go_on.set()

            meanwhile = pool.submit(write_meanwhile)
            run_example(EXAMPLES / "replace_rows.py")
            meanwhile.result()
        assert table.scan().sort_by("id").to_pylist() == new + others
        assert not list((tmp_path / "staging").rglob("*.run"))
