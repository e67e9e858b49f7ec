"""Parquet files in units: some row groups of one file, read as rows of a table.

Rows are read in the order of the file and in slices of a fixed number, so a unit that is read again
gives the same batches.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from rezone.transfer.bulk.directory import Directory

ROWS_PER_BATCH = 16_384
UNIT_BYTES = 128 << 20
"""Row groups of a file go together until they have so many bytes, uncompressed."""


class ParquetUnit(NamedTuple):
    """Row groups of a file, and how many rows stand before them."""

    name: str
    first_group: int
    groups: int
    first_row: int
    rows: int


class UnfitColumnsError(ValueError):
    """Raised when a file has not the columns of the table; names them."""


def units_of(directory: Directory, name: str, schema: Any) -> Iterator[ParquetUnit]:
    """Yield the units of a file. Raises ValueError when it is no Parquet file of these columns."""
    try:
        with directory.files.open_input_file(directory.path(name)) as file:
            metadata = pq.read_metadata(file)
    except pa.ArrowInvalid as error:
        raise ValueError(f"{name} is no Parquet file: {error}") from error
    check_columns(name, metadata.schema.to_arrow_schema().names, schema)
    yield from units_in(name, metadata)


def units_in(name: str, metadata: Any) -> Iterator[ParquetUnit]:
    """Yield the units of a file by its footer."""
    first, row, rows, size = 0, 0, 0, 0
    for group in range(metadata.num_row_groups):
        found = metadata.row_group(group)
        rows, size = rows + found.num_rows, size + found.total_byte_size
        if size >= UNIT_BYTES or group + 1 == metadata.num_row_groups:
            yield ParquetUnit(name, first, group + 1 - first, row, rows)
            first, row, rows, size = group + 1, row + rows, 0, 0


def read_unit(directory: Directory, unit: ParquetUnit) -> Iterator[Any]:
    """Yield the record batches of a unit, with the columns that the file has."""
    with directory.files.open_input_file(directory.path(unit.name)) as file:
        yield from read_groups(file, unit)


def read_groups(file: Any, unit: ParquetUnit, columns: list[str] | None = None) -> Iterator[Any]:
    """Yield the record batches of a unit of an open file, with all columns or some."""
    groups = list(range(unit.first_group, unit.first_group + unit.groups))
    yield from read_batches(file, columns, groups)


def read_batches(
    file: Any, columns: list[str] | None = None, groups: list[int] | None = None
) -> Iterator[Any]:
    """Yield the record batches of an open file, of all row groups or some.

    Not by a dataset, by which `pq.read_table` reads: a thread of Arrow's meets what is damaged, and
    who waits for that thread waits without end.
    """
    yield from pq.ParquetFile(file).iter_batches(
        ROWS_PER_BATCH, row_groups=groups, columns=columns, use_threads=False
    )


def check_columns(name: str, found: list[str], schema: Any) -> None:
    """Return when a file has the columns of a schema and no others; else UnfitColumnsError."""
    missing = [each for each in schema.names if each not in found]
    unknown = [each for each in found if each not in schema.names]
    if missing or unknown or len(found) != len(set(found)):
        raise UnfitColumnsError(
            f"{name} has the columns {found}, the zone {schema.names}: "
            f"missing {missing}, unknown {unknown}; rename or drop columns first"
        )
