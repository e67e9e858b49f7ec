"""Loads of Iceberg tables into real data nodes; the job's units run in this process, twice."""

import datetime as dt
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bulk_kit import Here, attempt, client, load_arguments
from iceberg_kit import delete_positions, lake, rows_of, table_of
from replica_cluster import FAST, Coordinator, cluster

from rezone.transfer.bulk import job, parquet
from rezone.transfer.iceberg import loads, tables
from rezone.transfer.load_job import load
from rezone.wire.codec.rows import arrow_schema_of
from rezone.wire.codec.schema import Column, ColumnType, TableSchema
from rezone.wire.messages import ZoneConfig

pytest.importorskip("pyiceberg")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
TABLE = TableSchema(
    columns=(
        Column("id", ColumnType.INT64),
        Column("text", ColumnType.STRING),
        Column("day", ColumnType.DATE32),
        Column("number", ColumnType.INT64),
    ),
    primary_key=("id",),
)
SCHEMA = arrow_schema_of(TABLE)
DAY = dt.date(2026, 11, 27)
NAME = "lake.shop.orders"


@pytest.fixture
def zone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Coordinator]:
    """Yield a node that leads two partitions, beside a catalog."""
    lake(tmp_path / "lake", monkeypatch)
    config = ZoneConfig(zone="orders", zone_uid="u", partitions=2, table=TABLE)
    with cluster(tmp_path / "nodes", 1, config=config, settings=FAST) as nodes:
        for partition in range(2):
            nodes.create(partition, (0,))
        yield nodes


def rows(first: int, last: int, text: str = "text") -> list[dict[str, Any]]:
    """Return rows of these ids."""
    return [
        {"id": n, "text": text if n % 3 else None, "day": DAY, "number": -n}
        for n in range(first, last)
    ]


def appended(found: list[dict[str, Any]]) -> str:
    """Append rows to the table as one data file of small row groups; return its location."""
    target = tables.IcebergTable(NAME)
    table = target.load_or_create(SCHEMA, ("id",))
    folder = Path(table.location().removeprefix("file://")) / "data"
    folder.mkdir(exist_ok=True)
    path = folder / f"{len(table.snapshots())}.parquet"
    pq.write_table(pa.Table.from_pylist(found, SCHEMA), path, row_group_size=100)
    table.add_files([f"file://{path}"])
    return f"file://{path}"


def snapshot() -> int:
    """Return the id of the table's newest snapshot."""
    return int(table_of(NAME).current_snapshot().snapshot_id)


def loaded(zone: Coordinator, directory: Path, run: Here | None = None, **more: Any) -> Any:
    """Load the table."""
    given = {"iceberg": NAME, "refused_max": 10, **more}
    return attempt(load, load_arguments(zone, directory, **given), run)


def found(zone: Coordinator) -> list[dict[str, Any]]:
    """Return the zone's rows by id."""
    with client(zone) as table:
        return list(table.scan().sort_by("id").to_pylist())


@pytest.mark.proves("SP-06")
def test_a_snapshot_is_loaded_less_its_deleted_rows(
    zone: Coordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The zone has the rows of the newest snapshot, or of an older one, and no others.

    Rows that another engine has deleted by position would come back.
    """
    monkeypatch.setattr(parquet, "UNIT_BYTES", 1)  # each row group by itself
    location = appended(rows(0, 350))
    appended(rows(400, 450))
    old = snapshot()
    delete_positions(NAME, location, [0, 99, 100, *range(200, 300), 349])
    delete_positions(NAME, location, [0, 7])
    deleted = {0, 7, 99, 100, *range(200, 300), 349}
    code, said = loaded(zone, tmp_path)
    assert (code, said["rows"], said["files"], said["units"]) == (0, 400 - len(deleted), 2, 5)
    assert (said["table"], said["snapshot"]) == (NAME, str(snapshot()))
    left = [row for row in rows(0, 350) if row["id"] not in deleted] + rows(400, 450)
    assert found(zone) == left == rows_of(NAME)
    code, said = loaded(zone, tmp_path, snapshot=old)
    assert (code, said["rows"], said["unitsBefore"]) == (0, 400, 0)
    assert found(zone) == rows(0, 350) + rows(400, 450)


@pytest.mark.proves("SP-06")
def test_a_load_that_dies_goes_on_with_its_snapshot(
    zone: Coordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit to the table during a load would begin it again, over what others wrote since."""
    monkeypatch.setattr(parquet, "UNIT_BYTES", 1)
    appended(rows(0, 400))
    first = snapshot()
    code, said = loaded(zone, tmp_path, Here(dies_after=2))
    assert (code, "DiedError" in said["error"]) == (job.FAILED, True)
    appended(rows(400, 500))
    later = {"id": 1, "text": "later", "day": None, "number": None}
    with client(zone) as table:
        table.write([later])
    code, said = loaded(zone, tmp_path)
    assert (code, said["snapshot"], said["rows"], said["unitsBefore"]) == (0, str(first), 400, 2)
    assert found(zone) == [rows(0, 1)[0], later, *rows(2, 400)]
    code, said = loaded(zone, tmp_path)  # the load has ended: this is one of the newest snapshot
    assert (code, said["snapshot"], said["rows"]) == (0, str(snapshot()), 500)
    assert found(zone) == rows(0, 500)
    code, said = loaded(zone, tmp_path)
    assert (code, said["rows"], said["unitsBefore"]) == (0, 500, 5)


@pytest.mark.proves("SP-06")
def test_columns_are_found_by_their_ids(zone: Coordinator, tmp_path: Path) -> None:
    """Columns that were renamed, added, made wider or are partitions' have their values.

    By names a renamed column would be null in old files, and a new one of an old name have its
    values.
    """
    from pyiceberg.schema import Schema  # noqa: PLC0415 - an extra
    from pyiceberg.transforms import IdentityTransform  # noqa: PLC0415
    from pyiceberg.types import DateType, IntegerType, LongType, NestedField, StringType  # noqa: PLC0415

    schema = Schema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(2, "text", StringType()),
        NestedField(3, "day", DateType()),
        NestedField(4, "amount", IntegerType()),
    )
    catalog = tables.IcebergTable(NAME)._catalog
    catalog.create_namespace("shop")
    table = catalog.create_table("shop.orders", schema)
    with table.update_spec() as update:
        update.add_field("day", IdentityTransform(), "day")
    old = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("text", pa.string()),
            pa.field("day", pa.date32()),
            pa.field("amount", pa.int32()),
        ]
    )
    first = [{"id": n, "text": f"old {n}", "day": DAY, "amount": n} for n in range(5)]
    table.append(pa.Table.from_pylist(first, old))
    # Tables that were made of Hive's have no column of their partition in files.
    (task,) = table.scan().plan_files()
    path = task.file.file_path.removeprefix("file://")
    pq.write_table(pq.read_table(path, partitioning=None).drop_columns(["day"]), path)
    with table.update_schema() as change:
        change.delete_column("text")
        change.rename_column("amount", "number")
        change.update_column("amount", LongType())
    with table.update_schema() as change:
        change.add_column("text", StringType())
    wanted = [{"id": n, "text": None, "day": DAY, "number": n} for n in range(5)]
    second = [{"id": 9, "text": "new", "day": None, "number": 1 << 40}]
    table.append(pa.Table.from_pylist(second, table.schema().as_arrow()))
    code, said = loaded(zone, tmp_path)
    assert (code, said["rows"]) == (0, 6)
    assert found(zone) == wanted + second
    # The newest snapshot has the columns that the table has by now, another one those of its time.
    with table.update_schema() as change:
        change.rename_column("number", "amount")
    code, said = loaded(zone, tmp_path, name="renamed")
    assert "missing ['number'], unknown ['amount']" in said["error"]


def test_rows_that_do_not_fit_are_told_by_their_number_among_those_left(
    zone: Coordinator, tmp_path: Path
) -> None:
    """A number that counted deleted rows in one batch, and not in the next, would lead nowhere."""
    bad = rows(0, 50)
    bad[30]["text"] = "x" * (2 << 20)
    location = appended(bad)
    delete_positions(NAME, location, [3, 4, 40])
    code, said = loaded(zone, tmp_path)
    assert (code, said["rows"]) == (1, 46)
    assert [(each["file"], each["row"]) for each in said["refused"]] == [(location, 29)]


@pytest.mark.parametrize("given", ["positions", "vector"])
def test_deleted_rows_are_those_of_the_file(given: str, tmp_path: Path) -> None:
    """A file of deletes has those of other data files, too."""
    from pyiceberg.io.pyarrow import PyArrowFileIO  # noqa: PLC0415 - an extra
    from pyroaring import BitMap  # noqa: PLC0415 - comes with it

    path = tmp_path / "deletes"
    if given == "positions":
        locations = ["other", "data", "data", "other"]
        pq.write_table(pa.table({"file_path": locations, "pos": [1, 9, 3, 4]}), path)
    else:
        write_vectors(path, {"other": BitMap([1, 4]), "data": BitMap([3, 9])})
    deletes = (loads.DeleteFile(str(path), given == "vector"),)
    groups = parquet.ParquetUnit("data", 0, 1, 0, 20)
    unit = loads.SnapshotUnit(0, "data", groups, (), deletes * 2)
    assert loads._deleted(PyArrowFileIO(), unit).tolist() == [3, 9]


def write_vectors(path: Path, vectors: dict[str, Any]) -> None:
    """Write deletion vectors as format version 3 has them: a Puffin file."""
    content, blobs = b"PFA1", []
    for location, bitmap in vectors.items():
        vector = b"\xd1\xd3\x39\x64" + (1).to_bytes(8, "little") + bytes(4) + bitmap.serialize()
        blob = len(vector).to_bytes(4, "big") + vector + bytes(4)
        blobs.append(
            {
                "type": "deletion-vector-v1",
                "fields": [],
                "snapshot-id": 1,
                "sequence-number": 1,
                "offset": len(content),
                "length": len(blob),
                "properties": {"referenced-data-file": location},
            }
        )
        content += blob
    footer = json.dumps({"blobs": blobs}).encode()
    content += b"PFA1" + footer + len(footer).to_bytes(4, "little") + bytes(4) + b"PFA1"
    path.write_bytes(content)


def test_what_cannot_be_loaded_is_told_before_anything_is_written(
    zone: Coordinator, tmp_path: Path
) -> None:
    """A load would end in the middle, or with an error of pyiceberg that names no table."""
    from pyiceberg.types import ListType, LongType  # noqa: PLC0415 - an extra

    def error(**more: Any) -> str:
        code, said = loaded(zone, tmp_path, **more)
        assert code == job.FAILED
        return str(said["error"])

    assert "there is no catalog 'sea': set PYICEBERG_CATALOG__SEA__URI" in error(iceberg="sea.a.b")
    assert "'orders' is no CATALOG.NAMESPACE.TABLE" in error(iceberg="orders")
    assert f"there is no table {NAME}" in error()
    table = tables.IcebergTable(NAME).load_or_create(SCHEMA, ("id",))
    assert f"{NAME} has no snapshot: nothing was ever written to it" in error()
    appended(rows(0, 10))
    assert f"{NAME} has no snapshot 7, or not any more" in error(snapshot=7)
    assert "--snapshot is one of a table" in error(iceberg=None, parquet="x", snapshot=7)
    table = table_of(NAME)
    with table.update_schema() as change:
        change.rename_column("number", "amount")
    assert "missing ['number'], unknown ['amount']" in error()
    with table.update_schema() as change:
        change.delete_column("amount")
        change.add_column("number", ListType(1, LongType()))
    assert f"{NAME} has 'number' as list<long>, of which" in error()
    assert not found(zone)
