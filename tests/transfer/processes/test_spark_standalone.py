"""A standalone cluster: a master and two workers as processes, and real data nodes."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from feed_kit import finish
from replica_cluster import Coordinator
from spark_processes import SparkProcess, speculating, standalone

from rezone.client import TableClient
from rezone.wire.codec.schema import Column, ColumnType, TableSchema
from rezone.wire.messages import ZoneConfig

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1500)]
TABLE = TableSchema(
    columns=(Column("id", ColumnType.INT64), Column("value", ColumnType.STRING)),
    primary_key=("id",),
)
CONFIG = ZoneConfig(zone="z", zone_uid="u", partitions=2, table=TABLE)


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[SparkProcess]]]:
    """Yield the master's URL and two workers."""
    pytest.importorskip("pyspark.sql")
    with standalone(tmp_path_factory.mktemp("standalone"), 2) as found:
        yield found


@pytest.fixture(scope="module")
def session(workers: tuple[str, list[SparkProcess]]) -> Iterator[Any]:
    """Yield a session with an executor at each worker, and speculation."""
    with speculating(workers[0]) as found:
        yield found


def hanging_once(directory: str) -> Any:
    """Return a function of tasks: the first of all hangs behind its rows, and says where it is."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa  # noqa: PLC0415 - runs in a task
        from pyspark import TaskContext  # noqa: PLC0415 - runs in a task

        try:
            marker = os.open(f"{directory}/hangs", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            marker = None
        for batch in batches:
            value = pa.repeat("hung" if marker else "whole", batch.num_rows)
            yield pa.RecordBatch.from_arrays([batch["id"], value], ["id", "value"])
        if marker is not None and TaskContext.get() is not None:
            os.write(marker, os.environ["WORKER"].encode() + b"\n")
            os.close(marker)
            threading.Event().wait(600)

    return run


@pytest.mark.long
@pytest.mark.proves("SP-09", "SP-05")
def test_all_of_it_runs_on_executors_of_which_one_dies(
    session: Any, workers: tuple[str, list[SparkProcess]], zone: Coordinator, tmp_path: Path
) -> None:
    """What works in one process may need what executors do not have, or write what died."""
    from rezone.transfer import datasource, verify_job  # noqa: PLC0415 - imports pyspark
    from rezone.transfer.lookup import lookup  # noqa: PLC0415 - imports pyspark

    datasource.register(session, push_filters=True)
    address = zone.nodes[0].address
    options = {"bootstrap": address, "stagingDirectory": str(tmp_path / "staging")}
    rows = session.range(0, 400, 1, 4).mapInArrow(
        hanging_once(str(tmp_path)), "id long, value string"
    )
    marker = tmp_path / "hangs"

    def kill() -> None:
        zone.until("a task hangs", lambda: marker.exists() and marker.read_text()[1:], 300)
        workers[1][int(marker.read_text())].kill()

    killer = threading.Thread(target=kill)
    killer.start()
    rows.write.format("rezone").mode("append").options(**options).save()
    killer.join()
    with TableClient(list(zone.peers.values())) as table:
        assert Counter(table.scan()["value"].to_pylist()) == Counter(whole=400)
        frame = session.read.format("rezone").option("bootstrap", address).load()
        assert frame.where("id < 10 and value like 'w%'").count() == 10
        keys = session.range(395, 405).withColumnRenamed("id", "key")
        assert lookup(keys, address, on={"key": "id"}).count() == 5
        changes = session.readStream.format("rezone-changes").options(
            bootstrap=address, startFrom="snapshot"
        )
        copied = changes.load().selectExpr("id + 1000 as id", "_operation as value")
        writer = copied.where("id < 1400").writeStream.format("rezone").options(**options)
        finish(writer, tmp_path / "checkpoint")
        found = Counter(table.scan()["value"].to_pylist())
    assert found == Counter(whole=400, upsert=400)
    saved = str(tmp_path / "digests.json")
    common = ["--bootstrap", address, "--keep-context", "--ranges", "64", "--tasks", "4"]
    assert verify_job.main([*common, "--save", saved]) == 0
    assert verify_job.main([*common, "--with-digests", saved]) == 0
