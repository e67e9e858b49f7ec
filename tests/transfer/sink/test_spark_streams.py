"""Streams of a zone's changes in real Spark, from real data nodes."""

import contextlib
import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from feed_kit import finish, following
from replica_cluster import Coordinator
from resharding_kit import overlaps_of, progress, reshard, seal

from rezone.client import TableClient
from rezone.datanode.writing.producing import Producing
from rezone.wire.codec.schema import Column, ColumnType, TableSchema
from rezone.wire.errors import NotReadyError
from rezone.wire.layouts import layout_of
from rezone.wire.messages import ZoneConfig

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]
TABLE = TableSchema(
    columns=(Column("id", ColumnType.INT64), Column("value", ColumnType.STRING)),
    primary_key=("id",),
)
CONFIG = ZoneConfig(zone="z", zone_uid="u", partitions=2, table=TABLE)


def rows(first: int, last: int, value: str) -> list[dict[str, Any]]:
    """Return rows of these ids."""
    return [{"id": n, "value": value} for n in range(first, last)]


@pytest.mark.long
@pytest.mark.proves("SP-03")
def test_a_query_that_is_stopped_anywhere_gets_each_change_once(
    spark: Any, zone: Coordinator, tmp_path: Path
) -> None:
    """A change that is lost or doubled behind a checkpoint is never found again."""
    from rezone.transfer import datasource  # noqa: PLC0415 - imports pyspark

    datasource.register(spark)
    stream = (
        spark.readStream.format("rezone-changes")
        .options(bootstrap=zone.nodes[0].address, startFrom="snapshot", maxRowsPerBatch="150")
        .load()
    )
    batches: dict[int, Counter[tuple[Any, ...]]] = {}
    fails = [2]

    def take(frame: Any, batch: int) -> None:
        found = Counter((r["id"], r["value"], r["_operation"]) for r in frame.collect())
        assert batches.setdefault(batch, found) == found, "a batch came again with other changes"
        if batch in fails:
            fails.remove(batch)
            raise ValueError("the batch fails behind its end")

    def run() -> None:
        finish(stream.writeStream.foreachBatch(take), tmp_path / "checkpoint")

    with TableClient(list(zone.peers.values())) as table:
        table.write(rows(0, 300, "old"))
        run()
        assert batches == {0: Counter((n, "old", "upsert") for n in range(300))}
        for number in range(4):
            table.write(rows(number * 100, number * 100 + 100, f"new{number}"))
        table.delete([{"id": n} for n in range(50)])
        with pytest.raises(Exception, match="behind its end"):
            run()
        zone.move(0, 1)
        run()
        changes = sum((batches[n] for n in batches if n), Counter())
    expected = [(n, f"new{n // 100}", "upsert") for n in range(400)]
    assert changes == Counter([*expected, *((n, None, "delete") for n in range(50))])
    assert all(found.total() <= 150 for number, found in batches.items() if number)
    assert len(batches) >= 4


@pytest.mark.long
@pytest.mark.proves("SP-03")
def test_a_query_begins_with_what_is_kept_in_batches_of_so_many_bytes(
    spark: Any, zone: Coordinator, tmp_path: Path
) -> None:
    """Spark asks for the source's own limits, and refuses those that it does not know."""
    from rezone.transfer import datasource  # noqa: PLC0415 - imports pyspark

    datasource.register(spark)
    options = {"bootstrap": zone.nodes[0].address, "startFrom": "earliest", "oldRows": "true"}
    reading = spark.readStream.format("rezone-changes").options(**options)
    with pytest.raises(Exception, match="maxBytesPerBatch"):
        reading.option("maxBytesPerBatch", "1 MiB").load()
    batches: list[list[tuple[int, Any]]] = []

    def take(frame: Any, _: int) -> None:
        batches.append([(row["id"], row["_old"] and row["_old"]["id"]) for row in frame.collect()])

    with TableClient(list(zone.peers.values())) as table:
        for number in range(20):
            table.put(id=number, value="x" * 10_000)
        table.delete([{"id": 7}])
        stream = reading.option("maxBytesPerBatch", "110000").load()
        finish(stream.writeStream.foreachBatch(take), tmp_path / "checkpoint")
    changes = Counter(each for found in batches for each in found)
    assert changes == Counter([(7, 7), *((n, None) for n in range(20))])
    assert all(len(found) <= 10 for found in batches)


@pytest.mark.long
@pytest.mark.proves("SP-04", "SP-05")
def test_sinks_write_what_counts_in_a_stream_and_in_a_batch(
    spark: Any, zone: Coordinator, tmp_path: Path
) -> None:
    """Spark tells a writer of no attempt that has failed: what that has written would stay."""
    from rezone.transfer import datasource  # noqa: PLC0415 - imports pyspark

    def failing_once(batches: Iterator[Any]) -> Iterator[Any]:
        """Give rows and fail at the first attempt of a task; give others at the second."""
        import pyarrow as pa  # noqa: PLC0415 - runs in a task
        from pyspark import TaskContext  # noqa: PLC0415 - runs in a task

        attempt = TaskContext.get().attemptNumber()
        for batch in batches:
            value = pa.repeat(f"attempt {attempt}", batch.num_rows)
            yield pa.RecordBatch.from_arrays([batch["id"], value], ["id", "value"])
        if not attempt:
            raise ValueError("the first attempt fails behind its rows")

    datasource.register(spark)
    options = {"bootstrap": zone.nodes[0].address, "stagingDirectory": str(tmp_path / "staging")}
    with TableClient(list(zone.peers.values())) as table:
        frame = spark.range(0, 100, 1, 2).mapInArrow(failing_once, "id long, value string")
        frame.write.format("rezone").mode("append").options(**options).save()
        assert Counter(table.scan()["value"].to_pylist()) == Counter({"attempt 1": 100})
        stream = (
            spark.readStream.format("rezone-changes")
            .options(bootstrap=zone.nodes[0].address, startFrom="snapshot")
            .load()
            .selectExpr("id + 1000 as id", "_operation as value")
        )
        writer = stream.writeStream.format("rezone").options(**options)
        finish(writer, tmp_path / "checkpoint")
        found = Counter((row["id"] < 1000, row["value"]) for row in table.scan().to_pylist())
    assert found == Counter({(True, "attempt 1"): 100, (False, "upsert"): 100})
    assert not list((tmp_path / "staging").rglob("*.arrow"))


def writers(spark: Any) -> set[int]:
    """Return the processes of the session in which its driver writes micro-batches."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has gone
            if b"streaming_sink" in path.joinpath("cmdline").read_bytes():
                stat = path.joinpath("stat").read_text()
                parents[int(path.name)] = int(stat.rpartition(")")[2].split()[1])
    driver = spark.sparkContext._gateway.proc.pid
    found = {process for process, parent in parents.items() if parent == driver}
    return found | {process for process, parent in parents.items() if parent in found}


@pytest.mark.long
@pytest.mark.proves("SP-04")
def test_a_driver_killed_in_the_middle_of_a_batch_goes_on_behind_a_re_sharding(
    spark: Any, zone: Coordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row is one change, and what others wrote meanwhile stays.

    A repeat that partitions of the next layout do not know writes over it, or is refused for good.
    """
    from rezone.transfer import datasource  # noqa: PLC0415 - imports pyspark

    plan, held = Producing.plan_write, threading.Event()

    def one_partition(producing: Any, request: Any, prepared: Any) -> Any:
        if request.partition and request.producer_epoch and not held.is_set():
            raise NotReadyError("held for the test")
        return plan(producing, request, prepared)

    monkeypatch.setattr(Producing, "plan_write", one_partition)
    datasource.register(spark)
    (tmp_path / "in").mkdir()
    text = "\n".join(map(json.dumps, rows(0, 200, "stream")))
    (tmp_path / "in" / "rows.json").write_text(text)
    options = {"bootstrap": zone.nodes[0].address, "stagingDirectory": str(tmp_path / "staging")}
    stream = spark.readStream.schema("id long, value string").json(str(tmp_path / "in"))
    writer = stream.writeStream.format("rezone").options(**options)
    with TableClient(list(zone.peers.values())) as table, following(table) as changes:
        checkpoint = str(tmp_path / "checkpoint")
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        zone.until("a part of the batch is there", lambda: table.scan().num_rows, 300)
        for process in writers(spark):
            os.kill(process, signal.SIGKILL)
        with pytest.raises(Exception, match="terminated"):
            query.awaitTermination(240)
        held.set()
        there = sorted(table.scan()["id"].to_pylist())
        assert 0 < len(there) < 200
        table.write(rows(there[0], there[0] + 1, "theirs"))
        reshard(zone, 3)
        zone.until_each(
            "backfilled", overlaps_of(zone), lambda overlap: progress(zone, overlap).backfilled
        )
        for partition in layout_of(zone.config).ids:
            seal(zone, partition)
        zone.config = msgspec.structs.replace(
            zone.config, generation=1, partitions=3, next_partitions=0
        )
        zone.configure()
        finish(writer, tmp_path / "checkpoint")
        expected = Counter({(there[0], "theirs"): 1, **{(n, "stream"): 1 for n in range(200)}})
        zone.until("all changes are told", lambda: changes.keys() >= expected.keys())
        assert changes == expected
