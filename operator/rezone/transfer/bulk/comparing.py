"""Two sides are compared range by range, and ranges that differ row by row, within limits."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from rezone.transfer.bulk.digests import RangeDigests, RowDigests, hashes_of
from rezone.transfer.bulk.progress import Counted, Phase, unit
from rezone.transfer.bulk.sides import Side
from rezone.transfer.bulk.units import Runner
from rezone.wire.codec.keyspace import range_of
from rezone.wire.codec.rows import ROW_ID_PREFIX_BYTES, RowCodec
from rezone.wire.codec.schema import TableSchema

NARROWED_ROWS_MAX = 200_000
"""So many rows of ranges that differ are looked at one by one, of both sides together."""

LISTED_MAX = 100
"""So many ranges, and so many rows, are listed by their bounds and keys."""

RowsById = dict[bytes, list[bytes]]
"""The digests of rows by their ids; of one id there may be several, in files."""

FIRST, OTHER, CHANGED = "only first", "only other", "changed"


class Difference(NamedTuple):
    """A row that only one side has, or that both have with other values."""

    row_id: bytes
    kind: str


@dataclasses.dataclass(frozen=True)
class Narrowed:
    """The rows that differ, in the order of row ids, and of which ranges these are all."""

    ranges: tuple[int, ...]
    differences: tuple[Difference, ...]


def digested(
    run: Runner, phase: str, sides: Sequence[Side], table: TableSchema, ranges: int
) -> list[RangeDigests]:
    """Return counts and digests of each side."""
    codec = RowCodec(table)

    def task(part: tuple[int, Any]) -> tuple[tuple[int, RangeDigests], Counted]:
        found = RangeDigests(ranges)
        for batch in sides[part[0]].batches(part[1]):
            found.add(RowDigests(codec, batch))
        return (part[0], found), unit(found.total_rows, found.bytes)

    parts = [(index, part) for index, side in enumerate(sides) for part in side.parts()]
    totals = [RangeDigests(ranges) for _ in sides]
    for index, found in run(Phase("verify", phase, len(parts)), parts, task):
        totals[index].merge(found)
    return totals


def to_narrow(first: RangeDigests, other: RangeDigests) -> tuple[int, ...]:
    """Return the ranges that differ, from the first one on, as long as they have few rows."""
    return while_few(
        (index, int(first.rows[index]) + int(other.rows[index])) for index in first.differing(other)
    )


def while_few(differing: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    """Return ranges that come with their rows, as long as these are few together."""
    chosen, total = [], 0
    for index, rows in differing:
        total += rows
        if total > NARROWED_ROWS_MAX:
            break
        chosen.append(index)
    return tuple(chosen)


def narrowed(
    run: Runner, sides: Sequence[Side], table: TableSchema, ranges: int, chosen: tuple[int, ...]
) -> Narrowed:
    """Return which rows of some ranges differ between two sides."""
    first, other = rows_in(run, sides, table, ranges, chosen)
    return Narrowed(chosen, tuple(differences_of(first, other)))


def rows_in(
    run: Runner, sides: Sequence[Side], table: TableSchema, ranges: int, chosen: tuple[int, ...]
) -> list[RowsById]:
    """Return the rows that each side has in some ranges."""
    codec = RowCodec(table)
    wanted = np.array(chosen, np.intp)
    hashes = [hashes_of(each, ranges) for each in chosen]

    def task(part: tuple[int, Any]) -> tuple[tuple[int, list[tuple[bytes, bytes]]], Counted]:
        rows, read, size = [], 0, 0
        for batch in sides[part[0]].batches(part[1]):
            found = RowDigests(codec, batch)
            here = np.flatnonzero(np.isin(found.ranges(ranges), wanted))
            ids = found.row_ids.take(here).to_pylist()
            rows += [(i, found.digests[n]) for i, n in zip(ids, here.tolist(), strict=True)]
            read, size = read + batch.num_rows, size + found.bytes
        return (part[0], rows), unit(read, size)

    parts = [
        (index, part)
        for index, side in enumerate(sides)
        for part in side.parts()
        if side.may_have(part, hashes)
    ]
    found: list[RowsById] = [{} for _ in sides]
    for index, rows in run(Phase("verify", "narrowing", len(parts)), parts, task):
        for row_id, digest in rows:
            found[index].setdefault(row_id, []).append(digest)
    return found


def differences_of(first: RowsById, other: RowsById) -> Iterable[Difference]:
    """Yield the rows in which two sides differ, in the order of row ids."""
    for row_id in sorted(first.keys() | other.keys()):
        if row_id not in other:
            yield Difference(row_id, FIRST)
        elif row_id not in first:
            yield Difference(row_id, OTHER)
        elif sorted(first[row_id]) != sorted(other[row_id]):
            yield Difference(row_id, CHANGED)


def keys_of(table: TableSchema, differences: Sequence[Difference]) -> list[dict[str, Any]]:
    """Return the primary keys of rows by column, as values of JSON."""
    if not differences:
        return []
    codec = RowCodec(table)
    encoded = [each.row_id[ROW_ID_PREFIX_BYTES:] for each in differences]
    columns = codec.decode_columns(
        pa.array(encoded, pa.binary()), None, frozenset(table.primary_key)
    )
    rows = zip(*(columns[name].to_pylist() for name in table.primary_key), strict=True)
    return [
        {name: _json(value) for name, value in zip(table.primary_key, row, strict=True)}
        for row in rows
    ]


def _json(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    return value if isinstance(value, bool | int | str) else str(value)


def bounds_of(index: int, ranges: int) -> tuple[str, str]:
    """Return the first and the last hash of a range, in hexadecimal."""
    start, end = range_of(index, ranges)
    return f"{start:016x}", f"{end - 1:016x}"
