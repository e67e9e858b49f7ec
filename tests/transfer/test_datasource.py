"""The data source's reader without a Spark session: what its tasks read."""

import pytest
from fake_cluster import FakeCluster

from rezone.client import TableClient
from rezone.wire.messages import ZoneConfig
from rezone.wire.schema import Column, ColumnType, TableSchema

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

    config = ZoneConfig(zone="z", zone_uid="u", partitions=4, table=TABLE)
    with FakeCluster(config) as cluster, TableClient(cluster.bootstrap) as client:
        client.write([{"id": n, "counter": 1} for n in range(300)])
        source = datasource.RezoneDataSource({"bootstrap": cluster.bootstrap[0]})
        reader = source.reader(datasource.spark_schema(TABLE))
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
