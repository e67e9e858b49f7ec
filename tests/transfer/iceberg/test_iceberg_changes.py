"""A zone's change feed in Iceberg tables, by real Spark from real data nodes."""

from pathlib import Path
from typing import Any

import pytest
from feed_kit import finish
from iceberg_kit import lake, rows_of, table_of
from replica_cluster import Coordinator

from rezone.client import TableClient
from rezone.wire.codec.schema import Column, ColumnType, TableSchema
from rezone.wire.messages import ZoneConfig

pytest.importorskip("pyiceberg")
pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]
TABLE = TableSchema(
    columns=(
        Column("id", ColumnType.INT64),
        Column("part", ColumnType.STRING),
        Column("value", ColumnType.STRING),
    ),
    primary_key=("id", "part"),
)
CONFIG = ZoneConfig(zone="orders", zone_uid="u", partitions=2, table=TABLE)
CURRENT, LOG = "lake.shop.orders", "lake.shop.order_changes"


def rows(first: int, last: int, value: str) -> list[dict[str, Any]]:
    """Return rows of these ids."""
    return [{"id": n, "part": f"p{n % 2}", "value": value} for n in range(first, last)]


def keys(first: int, last: int) -> list[dict[str, Any]]:
    """Return the keys of these ids."""
    return [{"id": n, "part": f"p{n % 2}"} for n in range(first, last)]


@pytest.mark.long
@pytest.mark.proves("SP-03", "CF-02")
def test_a_table_follows_a_zone_and_a_repeated_batch_changes_nothing(
    spark: Any, zone: Coordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One table has the zone's rows by now, one each change once, over batches that come again.

    A driver that died behind its commit begins the batch again: its changes would be there twice.
    """
    from rezone.transfer import datasource  # noqa: PLC0415 - imports pyspark
    from rezone.transfer.iceberg.changes import append_changes, merge_changes  # noqa: PLC0415

    lake(tmp_path / "lake", monkeypatch)
    datasource.register(spark)
    merge, append = merge_changes(CURRENT, key=TABLE.primary_key), append_changes(LOG)

    def apply(batch: Any, batch_id: int) -> None:
        for _ in range(2):
            merge(batch, batch_id)
            append(batch, batch_id)

    def follow() -> None:
        source = spark.readStream.format("rezone-changes").options(
            bootstrap=zone.nodes[0].address, startFrom="snapshot", maxRowsPerBatch="1000"
        )
        finish(source.load().writeStream.foreachBatch(apply), tmp_path / "checkpoint")

    with TableClient(list(zone.peers.values())) as table:
        table.write(rows(0, 100, "first"))
        follow()
        assert rows_of(CURRENT) == rows(0, 100, "first")
        table.write(rows(50, 60, "between"))
        table.write(rows(50, 120, "second"))
        table.delete(keys(0, 20))
        table.write(rows(10, 20, "back"))
        follow()
        expected = [*rows(10, 20, "back"), *rows(20, 50, "first"), *rows(50, 120, "second")]
        assert rows_of(CURRENT) == expected
        found = table_of(LOG).scan().to_arrow().to_pylist()
        assert len(found) == 100 + 10 + 70 + 20 + 10
        assert sum(each["_operation"] == "delete" for each in found) == 20
        snapshots = len(table_of(CURRENT).snapshots())
        table.delete(keys(10, 120))
        follow()
    assert rows_of(CURRENT) == []
    assert len(table_of(CURRENT).snapshots()) > snapshots
