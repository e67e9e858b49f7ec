"""The files of a load, cut into units that give the same batches whenever they are read."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
from pyarrow import csv

from rezone.transfer.bulk.directory import Directory, files_of
from rezone.transfer.bulk.parquet import (
    ROWS_PER_BATCH,
    ParquetUnit,
    check_columns,
    read_unit,
    units_of,
)

CSV_BLOCK_BYTES = 4 << 20


class LoadUnit(Protocol):
    """A part of what a load reads: its number, and the name of the file that it is of."""

    @property
    def number(self) -> int:
        """Counted from 0."""

    @property
    def name(self) -> str:
        """As refused rows name it."""


class Reader(Protocol):
    """Reads units, anywhere."""

    def read(self, unit: Any, schema: Any) -> Iterator[tuple[int, Any]]:
        """Yield batches of a unit, each with the number of its first row in the file, from 1."""


class Source(NamedTuple):
    """What a load reads; `identity` has what makes it another load when it is another."""

    files: int
    units: Sequence[LoadUnit]
    reader: Reader
    identity: Sequence[Any]


class FileUnit(NamedTuple):
    """A part of a file: some row groups of Parquet, or all of a CSV file."""

    number: int
    name: str
    parquet: ParquetUnit | None


class Files(NamedTuple):
    """Reads units of files below a directory."""

    uri: str

    def read(self, unit: FileUnit, schema: Any) -> Iterator[tuple[int, Any]]:
        """See Reader."""
        directory = Directory(self.uri)
        if unit.parquet is None:
            row, found = 1, _read_csv(directory, unit.name, schema)
        else:
            row, found = 1 + unit.parquet.first_row, read_unit(directory, unit.parquet)
        for batch in found:
            yield row, batch
            row += batch.num_rows


def source_of(uri: str, kind: str, schema: Any) -> Source:
    """Return the units of all files. Raises ValueError when one has not the schema's columns."""
    directory, files = files_of(uri, f".{kind}")
    found: list[tuple[str, ParquetUnit | None]] = []
    for file in files:
        if kind == "parquet":
            found += [(file.name, unit) for unit in units_of(directory, file.name, schema)]
        else:
            with _open_csv(directory, file.name, schema) as reader:
                check_columns(file.name, reader.schema.names, schema)
            found.append((file.name, None))
    units = [FileUnit(index, name, unit) for index, (name, unit) in enumerate(found)]
    return Source(len(files), units, Files(directory.uri), [directory.uri, files, units])


def _read_csv(directory: Directory, name: str, schema: Any) -> Iterator[Any]:
    with _open_csv(directory, name, schema) as reader:
        blocks = iter(reader)
        while True:
            try:
                block = next(blocks, None)
            except pa.ArrowInvalid as error:
                raise _unread(name, error) from error
            if block is None:
                return
            for at in range(0, block.num_rows, ROWS_PER_BATCH):
                yield block.slice(at, ROWS_PER_BATCH)


def _open_csv(directory: Directory, name: str, schema: Any) -> Any:
    """Open a CSV file with a header; all values are text, an empty one without quotes is null."""
    text = csv.ConvertOptions(
        column_types={each: pa.string() for each in schema.names},
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        null_values=[""],
    )
    reading = csv.ReadOptions(use_threads=False, block_size=CSV_BLOCK_BYTES)
    parsing = csv.ParseOptions(newlines_in_values=True)
    stream = directory.files.open_input_stream(directory.path(name))
    try:
        return csv.open_csv(
            stream, read_options=reading, parse_options=parsing, convert_options=text
        )
    except pa.ArrowInvalid as error:
        stream.close()
        raise _unread(name, error) from error


def _unread(name: str, error: Exception) -> ValueError:
    """Return why a file cannot be read, without the line: it has a row's values."""
    why = re.sub(r"(got \d+): .*", r"\1", str(error), flags=re.DOTALL)
    return ValueError(f"{name} is no CSV file of UTF-8 text: {why}")
