"""What rows are verified against what: a zone as of one time, or Parquet files.

Both give the same bytes for the same row, those of the first zone's table.
"""

import bisect
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from rezone.client.requests.batches import conform
from rezone.transfer.bulk.digests import hashes_of
from rezone.transfer.bulk.directory import Directory, files_of
from rezone.transfer.bulk.exact import exact
from rezone.transfer.bulk.parquet import ParquetUnit, read_unit, units_of
from rezone.transfer.source.options import SourceOptions
from rezone.wire.codec.rows import arrow_schema_of
from rezone.wire.codec.schema import TableSchema
from rezone.wire.layouts import HashRange


class TablesDifferError(ValueError):
    """Raised when two zones have other columns or keys; says which."""


class Side(Protocol):
    """Rows that can be read in parts."""

    def parts(self) -> list[Any]:
        """Return the parts, each for a task."""

    def batches(self, part: Any) -> Iterator[Any]:
        """Yield the rows of a part as batches of the table."""

    def may_have(self, part: Any, ranges: Sequence[HashRange]) -> bool:
        """Whether a part may have rows of some ranges of hashes, which are in their order."""


@dataclasses.dataclass(frozen=True)
class ZoneSide:
    """A zone as of one time, read from any replica; as rows of `table`."""

    options: SourceOptions
    as_of: int
    table: TableSchema
    tasks: int

    def parts(self) -> list[Any]:
        """Return even ranges of hashes, at least as many as there are partitions."""
        with self.options.client() as client:
            count = max(self.tasks, len(client.segments()))
        return [(index, count) for index in range(count)]

    def batches(self, part: Any) -> Iterator[Any]:
        """Yield the rows of a range. Raises VersionsExpiredError when the time is too old."""
        schema = arrow_schema_of(self.table)
        with self.options.client() as client:
            for batch in client.stream_any(hashes_of(*part), as_of=self.as_of).rows:
                yield conform(batch, schema)

    def may_have(self, part: Any, ranges: Sequence[HashRange]) -> bool:
        """Whether the ranges overlap with the part's."""
        return overlaps(hashes_of(*part), ranges)


@dataclasses.dataclass(frozen=True)
class ParquetSide:
    """Parquet files below a directory, as rows of `table`; ValueError when they do not fit."""

    uri: str
    table: TableSchema

    def parts(self) -> list[Any]:
        """Return row groups of files, with the directory that these are in."""
        schema = arrow_schema_of(self.table)
        directory, found = files_of(self.uri, ".parquet")
        return [
            (directory.uri, unit)
            for file in found
            for unit in units_of(directory, file.name, schema)
        ]

    def batches(self, part: Any) -> Iterator[Any]:
        """Yield the rows of some row groups. Raises InvalidRowError when a value does not fit."""
        uri, unit = part
        schema = arrow_schema_of(self.table)
        for batch in read_unit(Directory(uri), ParquetUnit(*unit)):
            yield exact(batch, schema)

    def may_have(self, part: Any, ranges: Sequence[HashRange]) -> bool:
        """Any file may have any row."""
        del part, ranges
        return True


def overlaps(hashes: HashRange, ranges: Sequence[HashRange]) -> bool:
    """Return whether hashes overlap with any of some ranges, which are in their order."""
    after = bisect.bisect_right(ranges, hashes.start, key=lambda each: each.end)
    return after < len(ranges) and ranges[after].start < hashes.end


def now_of(options: SourceOptions) -> int:
    """Return a zone's time by now, behind which are all rows acknowledged so far."""
    with options.client() as client:
        return client.read_time(max_staleness_seconds=0).as_of


def check_tables(first: TableSchema, other: TableSchema) -> None:
    """Return when rows of both tables can be compared; else TablesDifferError."""
    columns, others = ({c.name: c.type.value for c in t.columns} for t in (first, other))
    if columns != others or first.primary_key != other.primary_key:
        raise TablesDifferError(
            f"the tables differ: {columns} with the key {first.primary_key}, "
            f"{others} with the key {other.primary_key}"
        )
