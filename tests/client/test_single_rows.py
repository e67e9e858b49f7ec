"""Single rows by their columns and by the values of their keys."""

import random
from collections.abc import Iterator

import pytest
from fake_cluster import FakeCluster

from rezone.client import TableClient
from rezone.wire.codec.schema import Column, ColumnType, TableSchema
from rezone.wire.errors import InvalidRowError
from rezone.wire.messages import ZoneConfig

TABLE = TableSchema(
    columns=(
        Column("region", ColumnType.STRING),
        Column("id", ColumnType.INT64),
        Column("owner", ColumnType.STRING),
        Column("note", ColumnType.STRING),
    ),
    primary_key=("region", "id"),
)


def table_of(schema: TableSchema) -> Iterator[TableClient]:
    """Yield a client of a cluster."""
    config = ZoneConfig(zone="z", zone_uid="u", partitions=2, table=schema)
    with (
        FakeCluster(config) as cluster,
        TableClient(cluster.bootstrap, rng=random.Random(1)) as client,
    ):
        yield client


@pytest.fixture
def table() -> Iterator[TableClient]:
    """Yield a table with a key of two columns."""
    yield from table_of(TABLE)


def test_a_row_is_put_read_and_deleted(table: TableClient) -> None:
    """What people write first; a row is replaced whole, and a second deletion is no error."""
    ack = table.put(region="eu", id=7, owner="ann", note="new")
    assert ack.rows == 1
    assert table.get("eu", 7) == {"region": "eu", "id": 7, "owner": "ann", "note": "new"}
    assert table.get("us", 7) is None
    table.put(region="eu", id=7, owner="bob")
    assert table.get("eu", 7) == {"region": "eu", "id": 7, "owner": "bob", "note": None}
    table.delete("eu", 7)
    assert table.get("eu", 7) is None
    assert table.delete("eu", 7)[0].rows == 1


def test_a_text_key_is_one_value() -> None:
    """A text is a sequence as well, and must not be taken for rows of letters."""
    for table in table_of(TableSchema((Column("name", ColumnType.STRING),), ("name",))):
        table.put(name="ann")
        assert table.get("ann") == {"name": "ann"}
        table.delete("ann")
        table.put(name="bob")
        table.delete([{"name": "bob"}])
        assert table.scan().num_rows == 0


def test_wrong_rows_and_keys_are_refused(table: TableClient) -> None:
    """The error names the key, or the column, and nothing is sent."""
    for ask in (lambda: table.get("eu"), lambda: table.delete("eu", 7, 8), table.get):
        with pytest.raises(InvalidRowError, match=r"the primary key is \['region', 'id'\]"):
            ask()
    with pytest.raises(InvalidRowError, match="nope"):
        table.put(region="eu", id=7, nope=1)
    with pytest.raises(InvalidRowError, match="'id' is null"):
        table.put(region="eu", owner="ann")
