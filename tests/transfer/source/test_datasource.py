"""The data source's reader without a Spark session: what its tasks read."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from fake_cluster import FakeCluster, Partition
from replica_cluster import FAST, cluster

from rezone.client import Filter, TableClient, col
from rezone.datanode.reading.scan import scan_batches
from rezone.datanode.service import server
from rezone.transfer.source.options import encode_filter
from rezone.wire.codec.schema import Column, ColumnType, TableSchema
from rezone.wire.messages import ZoneConfig

TABLE = TableSchema(
    columns=(Column("id", ColumnType.INT64), Column("counter", ColumnType.INT32)),
    primary_key=("id",),
)


@pytest.mark.spark
@pytest.mark.proves("B-08")
def test_tasks_planned_before_a_re_sharding_read_each_row_once() -> None:
    """A job that takes hours would fail, or miss rows, when its zone is re-sharded meanwhile."""
    pytest.importorskip("pyspark.sql")
    from rezone.transfer import datasource  # noqa: PLC0415 - imports pyspark
    from rezone.transfer.source import spark_types  # noqa: PLC0415 - imports pyspark

    config = ZoneConfig(zone="z", zone_uid="u", partitions=4, table=TABLE)
    with FakeCluster(config) as cluster, TableClient(cluster.bootstrap) as client:
        client.write([{"id": n, "counter": 1} for n in range(300)])
        source = datasource.RezoneDataSource({"bootstrap": cluster.bootstrap[0]})
        reader = source.reader(spark_types.spark_schema(TABLE))
        tasks = reader.partitions()
        assert len(tasks) == 4
        cluster.begin_resharding(7)
        found: list[int] = []
        for number, task in enumerate(tasks):
            cluster.seal(3 - number)
            batches = list(reader.read(task))
            found += [row for batch in batches for row in batch.column("id").to_pylist()]
            client.write([{"id": n, "counter": 2} for n in range(300)])
        assert sorted(found) == list(range(300))
        assert len(reader.partitions()) == 7
        cluster.go_over()
        cluster.reshard(2)
        assert sum(batch.num_rows for task in tasks for batch in reader.read(task)) == 300


@pytest.mark.spark
@pytest.mark.proves("SP-02")
def test_keys_are_read_by_one_task_also_when_the_zone_was_re_sharded_since() -> None:
    """A task for each partition takes longer to be started than its few rows to be read."""
    pytest.importorskip("pyspark.sql")
    from rezone.transfer import datasource  # noqa: PLC0415 - imports pyspark
    from rezone.transfer.source import spark_types  # noqa: PLC0415 - imports pyspark

    def reader(rows: Filter) -> datasource.RezoneReader:
        given = {"bootstrap": nodes.bootstrap[0], "filter": encode_filter(rows)}
        return datasource.RezoneDataSource(given).reader(spark_types.spark_schema(TABLE))

    def ids(reader: datasource.RezoneReader, tasks: Sequence[Any]) -> list[int]:
        batches = [batch for task in tasks for batch in reader.read(task)]
        return sorted(n for batch in batches for n in batch.column("id").to_pylist())

    config = ZoneConfig(zone="z", zone_uid="u", partitions=4, table=TABLE)
    with FakeCluster(config) as nodes, TableClient(nodes.bootstrap) as client:
        client.write([{"id": n, "counter": 1} for n in range(300)])
        by_key = reader(col("id").is_in(range(250, 350)) & (col("id") != 260))
        tasks = by_key.partitions()
        assert len(tasks) == 1
        expected = [n for n in range(250, 300) if n != 260]
        assert ids(by_key, tasks) == expected
        by_scan = reader(col("id") >= 250)
        assert len(by_scan.partitions()) == 4, "of many rows one task would take all"
        assert ids(by_scan, by_scan.partitions()) == list(range(250, 300))
        nodes.begin_resharding(7)
        nodes.seal(2)
        assert ids(by_key, tasks) == expected
        nodes.go_over()
        assert ids(by_key, tasks) == expected


@pytest.mark.spark
@pytest.mark.proves("B-11")
def test_tasks_that_read_from_any_replica_leave_leaders_alone_and_see_one_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job over all rows would slow writers, and its result would be of no moment."""
    pytest.importorskip("pyspark.sql")
    from rezone.transfer import datasource  # noqa: PLC0415 - imports pyspark
    from rezone.transfer.source import spark_types  # noqa: PLC0415 - imports pyspark

    asked: list[tuple[int, int]] = []

    def scan(partition: Any, *given: Any) -> Any:
        asked.append((partition.node_id, partition.partition_id))
        return scan_batches(partition, *given)

    monkeypatch.setattr(server, "scan_batches", scan)
    config = ZoneConfig(zone="z", zone_uid="u", partitions=2, table=TABLE)
    settings = msgspec.structs.replace(FAST, lease_ms=300, apply_interval_ms=10)
    with cluster(tmp_path, 2, config=config, settings=settings) as c:
        for partition in range(2):
            c.create(partition, (partition, 1 - partition))
        with TableClient(list(c.peers.values())) as client:
            written = client.write([{"id": n, "counter": 1} for n in range(300)])
            ready = max(one.commit_time for one in written)
            followers = ((1, 0), (0, 1))
            c.until_each("up", followers, lambda at: c.replica(*at).positions.readable_time > ready)
            given = {"bootstrap": c.nodes[0].address, "readFrom": "any"}
            source = datasource.RezoneDataSource({**given, "maxStalenessSeconds": "20"})
            reader = source.reader(spark_types.spark_schema(TABLE))
            tasks = reader.partitions()
            client.write([{"id": n, "counter": 2} for n in range(600)])
            for _ in range(2):  # a repeated task reads the same
                batches = [batch for task in tasks for batch in reader.read(task)]
                assert sum(batch.num_rows for batch in batches) == 300
                assert {n for batch in batches for n in batch["counter"].to_pylist()} == {1}
        assert {*asked} == {*followers}
    wrong = ({"readFrom": "some"}, {"maxStalenessSeconds": "1"}, {"asOf": "1", "readFrom": "some"})
    for options in wrong:
        with pytest.raises(ValueError, match="readFrom"):
            datasource.RezoneDataSource({"bootstrap": "n:1", **options}).reader(
                spark_types.spark_schema(TABLE)
            )


@pytest.mark.spark
@pytest.mark.proves("PW-01")
def test_a_task_that_is_run_again_in_another_order_writes_all_of_its_rows() -> None:
    """Each attempt of a task, and each task of a job, writes with a producer of its own.

    Batches of the second attempt would be taken for repeats of the first one's, or be refused.
    """
    pytest.importorskip("pyspark.sql")
    from rezone.transfer import datasource  # noqa: PLC0415 - imports pyspark
    from rezone.transfer.source import spark_types  # noqa: PLC0415 - imports pyspark

    config = ZoneConfig(zone="z", zone_uid="u", partitions=2, table=TABLE)
    with FakeCluster(config) as cluster, TableClient(cluster.bootstrap) as client:
        source = datasource.RezoneDataSource({"bootstrap": cluster.bootstrap[0]})
        writer = source.writer(spark_types.spark_schema(TABLE), overwrite=False)
        rows = [{"id": n, "counter": n} for n in range(40)]
        batches = [pa.RecordBatch.from_pylist(rows[at : at + 10]) for at in range(0, 40, 10)]
        writer.write(iter(batches[:2]))  # the attempt dies behind these
        commit = writer.write(iter(reversed(batches)))
        assert commit.rows == 40
        assert sorted(client.scan().to_pylist(), key=lambda row: row["id"]) == rows
        epochs = {epoch for state in cluster.partitions.values() for epoch, *_ in _states(state)}
        assert epochs == {0}, "nobody was asked for an epoch"


def _states(partition: Partition) -> list[tuple[int, int, int]]:
    return list(partition.producers.values())
