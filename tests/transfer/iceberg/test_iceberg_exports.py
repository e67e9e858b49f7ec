"""Exports to Iceberg tables, from real data nodes; the job's units run in this process, twice."""

import argparse
import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bulk_kit import Here, attempt, client
from iceberg_kit import lake, rows_of, table_of
from replica_cluster import FAST, Coordinator, cluster

from rezone.transfer.bulk import job
from rezone.transfer.export_job import export
from rezone.transfer.iceberg import exports, tables
from rezone.wire.codec.rows import arrow_schema_of
from rezone.wire.codec.schema import Column, ColumnType, TableSchema
from rezone.wire.messages import ZoneConfig

pytest.importorskip("pyiceberg")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
KINDS = (
    ("tiny", ColumnType.INT8, -8),
    ("small", ColumnType.INT16, 16),
    ("whole", ColumnType.INT32, 32),
    ("single", ColumnType.FLOAT32, 0.5),
    ("double", ColumnType.FLOAT64, 0.1),
    ("text", ColumnType.STRING, "text"),
    ("bytes", ColumnType.BINARY, b"\0bytes"),
    ("day", ColumnType.DATE32, dt.date(2026, 11, 27)),
    ("seen", ColumnType.TIMESTAMP_US, dt.datetime(2026, 11, 27, 3, 4, 5, 6)),  # noqa: DTZ001
    ("yes", ColumnType.BOOL, True),
)
TABLE = TableSchema(
    columns=(Column("id", ColumnType.INT64), *(Column(name, kind) for name, kind, _ in KINDS)),
    primary_key=("id",),
)
NAME = "lake.shop.orders"


def rows(first: int, last: int, text: str = "text") -> list[dict[str, Any]]:
    """Return rows of these ids with a value of each type, every third of nulls."""
    full = {name: value for name, _, value in KINDS} | {"text": text}
    return [{"id": n, **(dict.fromkeys(full) if n % 3 == 0 else full)} for n in range(first, last)]


@pytest.fixture
def zone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Coordinator]:
    """Yield a node that leads two partitions, beside a catalog."""
    lake(tmp_path / "lake", monkeypatch)
    monkeypatch.setattr(tables, "PAUSE_SECONDS", 0)
    config = ZoneConfig(zone="orders", zone_uid="u", partitions=2, table=TABLE)
    with cluster(tmp_path / "nodes", 1, config=config, settings=FAST) as nodes:
        for partition in range(2):
            nodes.create(partition, (0,))
        yield nodes


def exported(zone: Coordinator, to: Path, **more: Any) -> tuple[int, Any]:
    """Export the zone to a directory and the table."""
    given = {"zone": None, "tls_directory": None, "as_of": None, "iceberg": NAME, **more}
    address = zone.nodes[0].address
    given |= {"bootstrap": address, "to": str(to), "parts": 4}
    return attempt(export, argparse.Namespace(**given), Here())


@pytest.mark.proves("SP-06", "BK-06")
def test_each_export_is_one_snapshot_whoever_repeats_it(zone: Coordinator, tmp_path: Path) -> None:
    """A table has the zone's rows as of its latest export, each once, and says the time.

    A repeated job that committed again would double the rows, or set the table back.
    """
    with client(zone) as table:
        table.write(rows(0, 200))
        code, first = exported(zone, tmp_path / "first")
        assert (code, first["rows"], first["table"]) == (0, 200, NAME)
        assert rows_of(NAME) == rows(0, 200)
        table.write(rows(0, 10, "later"))
        table.delete([{"id": n} for n in range(100, 200)])
    code, second = exported(zone, tmp_path / "second")
    assert code == 0
    found = table_of(NAME)
    assert found.properties[exports.AS_OF] == str(second["asOf"])
    assert found.properties[exports.ZONE] == "orders"
    assert found.schema().identifier_field_names() == {"id"}
    assert rows_of(NAME) == [*rows(0, 10, "later"), *rows(10, 100)]
    assert exported(zone, tmp_path / "second") == (
        0,
        second | {"again": True, "seconds": pytest.approx(1, abs=60)},
    )
    assert len(table_of(NAME).snapshots()) == 2
    old = table_of(NAME).scan(snapshot_id=int(first["snapshot"])).to_arrow()
    assert old.sort_by("id").to_pylist() == rows(0, 200)
    code, said = exported(zone, tmp_path / "first")
    assert code == job.FAILED
    assert "later than" in said["error"]


@pytest.mark.proves("SP-06")
def test_an_export_that_meets_others_is_committed_once(
    zone: Coordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two drivers that commit one export at a time, one finds it made.

    A commit that was tried again by pyiceberg, without a look, would add the files twice.
    """
    with client(zone) as table:
        table.write(rows(0, 50))
    read, others = tables.data_files, [1]

    def behind_another(*given: Any) -> list[Any]:
        found = read(*given)
        if others.pop() if others else 0:
            assert exported(zone, tmp_path / "to")[0] == 0
        return found

    monkeypatch.setattr(exports, "data_files", behind_another)
    code, said = exported(zone, tmp_path / "to")
    assert (code, said["rows"]) == (0, 50)
    assert len(table_of(NAME).snapshots()) == 1
    assert rows_of(NAME) == rows(0, 50)


def test_tables_of_others_are_refused_before_anything_is_exported(
    zone: Coordinator, tmp_path: Path
) -> None:
    """An export into somebody's table would replace its rows."""
    schema = arrow_schema_of(TABLE)
    table = tables.IcebergTable(NAME).load_or_create(schema)
    table.append(schema.empty_table())
    code, said = exported(zone, tmp_path / "to")
    assert code == job.FAILED
    assert f"{NAME} has rows that are of no export" in said["error"]
    with table.transaction() as transaction:
        transaction.set_properties({exports.ZONE_UID: "other", exports.ZONE: "other"})
    code, said = exported(zone, tmp_path / "to")
    assert "exports of another zone, 'other'" in said["error"]
    assert not (tmp_path / "to").exists()
    code, said = exported(zone, tmp_path / "to", iceberg="orders")
    assert "is no CATALOG.NAMESPACE.TABLE" in said["error"]
