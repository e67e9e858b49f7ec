"""A snapshot of an Iceberg table as the source of a load.

pyiceberg says which files a snapshot has, which of their rows are deleted, and what a column is
called in each of them. Its own scan holds a data file, of hundreds of megabytes, in memory as a
whole. So the files are read as other Parquet files are: units of some row groups, in batches of a
fixed number of rows, less those that are deleted. They are the same batches each time.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rezone.transfer.bulk.parquet import (
    ParquetUnit,
    check_columns,
    read_batches,
    read_groups,
    units_in,
)
from rezone.transfer.bulk.sources import Source
from rezone.transfer.iceberg.tables import FOOTERS_AT_ONCE, IcebergTable

DELETED = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False),
        pa.field("pos", pa.int64(), nullable=False),
    ]
)
"""What a file of deleted rows says of each: the data file, and the row's place in it."""


class FileColumn(NamedTuple):
    """A column of the table in one file: its name there, or the one value that all rows have."""

    column: str
    name: str | None
    value: Any = None


class DeleteFile(NamedTuple):
    """Positions of deleted rows: in a Parquet file, or in a vector of a Puffin file."""

    location: str
    is_vector: bool


class SnapshotUnit(NamedTuple):
    """Some row groups of a data file."""

    number: int
    name: str
    groups: ParquetUnit
    columns: tuple[FileColumn, ...]
    deletes: tuple[DeleteFile, ...]


class SnapshotReader(NamedTuple):
    """Reads units of a snapshot; `io` is pyiceberg's, with what it knows of the store."""

    io: Any

    def read(self, unit: SnapshotUnit, schema: Any) -> Iterator[tuple[int, Any]]:
        """Yield batches, each with the number of its first row; deleted rows are not counted."""
        del schema
        deleted = _deleted(self.io, unit)
        names = [each.name for each in unit.columns if each.name is not None]
        position = unit.groups.first_row
        with self.io.new_input(unit.name).open() as file:
            for batch in read_groups(file, unit.groups, names):
                first, last = np.searchsorted(deleted, [position, position + batch.num_rows])
                found = batch
                if first < last:
                    kept = np.ones(batch.num_rows, np.bool_)
                    kept[deleted[first:last] - position] = False
                    found = batch.filter(pa.array(kept))
                if found.num_rows:
                    yield 1 + position - int(first), _columns(found, unit.columns)
                position += batch.num_rows


def source_of(name: str, snapshot_id: int | None, schema: Any) -> tuple[Source, int]:
    """Return a snapshot of a table, the newest or another, and its id.

    Raises ValueError where there is no catalog, table or snapshot, where columns are not those of
    the schema, and where the snapshot has files that cannot be read.
    """
    table = IcebergTable(name).load()
    if table is None:
        raise ValueError(f"there is no table {name}")
    found = table.snapshot_by_id(snapshot_id) if snapshot_id else table.current_snapshot()
    if found is None:
        raise ValueError(
            f"{name} has no snapshot {snapshot_id}, or not any more: name another one"
            if snapshot_id
            else f"{name} has no snapshot: nothing was ever written to it"
        )
    # The newest one has the table's columns, also where these were changed since it was written.
    is_newest = found == table.current_snapshot()
    scan = table.scan(snapshot_id=None if is_newest else found.snapshot_id)
    columns = scan.projection()
    _check_schema(name, columns, schema)
    tasks = _planned(name, scan)
    with ThreadPoolExecutor(FOOTERS_AT_ONCE, "rezone-footers") as pool:
        read = list(pool.map(lambda task: _file_units(table, columns, task), tasks))
    units = [
        unit._replace(number=number)
        for number, unit in enumerate(unit for units in read for unit in units)
    ]
    cut = [(unit.name, unit.groups.first_group, unit.groups.groups) for unit in units]
    identity = [str(table.metadata.table_uuid), found.snapshot_id, columns.schema_id, cut]
    source = Source(len(tasks), units, SnapshotReader(table.io), identity)
    return source, int(found.snapshot_id)


def _check_schema(name: str, columns: Any, schema: Any) -> None:
    """Raise ValueError when a table has other columns, or types of which no value ever fits."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow  # noqa: PLC0415 - an extra

    check_columns(name, [field.name for field in columns.fields], schema)
    found = schema_to_pyarrow(columns, include_field_ids=False)
    for field in schema:
        try:
            pa.nulls(0, found.field(field.name).type).cast(field.type)
        except pa.ArrowException as error:
            kind = columns.find_field(field.name).field_type
            raise ValueError(
                f"{name} has {field.name!r} as {kind}, of which no value is {field.type}"
            ) from error


def _planned(name: str, scan: Any) -> list[Any]:
    """Return the data files of a scan with their deletes, by location."""
    try:
        tasks = sorted(scan.plan_files(), key=lambda task: str(task.file.file_path))
    except (ValueError, NotImplementedError) as error:
        # pyiceberg has no words of its own for what it cannot read.
        raise ValueError(f"{name} cannot be read, compact it first: {error}") from error
    for task in tasks:
        if task.file.file_format != "PARQUET":
            raise ValueError(f"{task.file.file_path} is {task.file.file_format}, not Parquet")
    return tasks


def _file_units(table: Any, columns: Any, task: Any) -> list[SnapshotUnit]:
    """Return the units of a data file, all with number 0."""
    location = task.file.file_path
    with table.io.new_input(location).open() as file:
        metadata = pq.read_metadata(file)
    found = _file_columns(table, columns, task.file, metadata.schema.to_arrow_schema())
    deletes = sorted(
        DeleteFile(each.file_path, each.file_format == "PUFFIN") for each in task.delete_files
    )
    return [
        SnapshotUnit(0, location, groups, found, tuple(deletes))
        for groups in units_in(location, metadata)
    ]


def _file_columns(table: Any, columns: Any, file: Any, stored: Any) -> tuple[FileColumn, ...]:
    """Return what each column of a table is in one of its files, by the columns' ids.

    A column that a file has not is that of its partition, the column's default, or null.
    """
    from pyiceberg.io.pyarrow import pyarrow_to_schema  # noqa: PLC0415 - an extra
    from pyiceberg.transforms import IdentityTransform  # noqa: PLC0415 - an extra

    known = pyarrow_to_schema(stored, table.name_mapping())
    spec = table.specs()[file.spec_id]
    constants = {
        field.source_id: file.partition[at]
        for at, field in enumerate(spec.fields)
        if isinstance(field.transform, IdentityTransform)
    }
    return tuple(
        FileColumn(field.name, name)
        if (name := known.find_column_name(field.field_id)) is not None
        else FileColumn(field.name, None, _constant(field, constants))
        for field in columns.fields
    )


def _constant(field: Any, constants: dict[int, Any]) -> Any:
    """Return the value of a column that a file has not, as one of Arrow."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow  # noqa: PLC0415 - an extra

    value = constants.get(field.field_id, field.initial_default)
    return pa.array([value], schema_to_pyarrow(field.field_type))[0]


def _columns(batch: Any, columns: tuple[FileColumn, ...]) -> Any:
    """Return the rows of a file with the table's columns."""
    return pa.RecordBatch.from_arrays(
        [
            batch.column(each.name)
            if each.name is not None
            else pa.repeat(each.value, batch.num_rows)
            for each in columns
        ],
        names=[each.column for each in columns],
    )


def _deleted(io: Any, unit: SnapshotUnit) -> Any:
    """Return the positions of a file's deleted rows, in order."""
    found = [np.empty(0, np.int64)]
    for each in unit.deletes:
        read = _of_vector if each.is_vector else _of_positions
        found.append(read(io, each.location, unit.name).to_numpy())
    return np.unique(np.concatenate(found))


def _of_positions(io: Any, location: str, name: str) -> Any:
    """Return the positions that a file has of a data file."""
    found = [pa.array([], pa.int64())]
    with io.new_input(location).open() as file:
        for batch in read_batches(file, list(DELETED.names)):
            rows = batch.cast(DELETED)
            found.append(rows["pos"].filter(pc.equal(rows["file_path"], name)))
    return pa.chunked_array(found)


def _of_vector(io: Any, location: str, name: str) -> Any:
    from pyiceberg.table.deletion_vector import (  # noqa: PLC0415 - an extra
        deletion_vectors_from_puffin_file,
    )
    from pyiceberg.table.puffin import PuffinFile  # noqa: PLC0415 - an extra

    with io.new_input(location).open() as file:
        vectors = deletion_vectors_from_puffin_file(PuffinFile(file.read()))
    return next(each for each in vectors if each.referenced_data_file == name).to_vector()
