"""Typed rows cut into requests: by partition, then by size; no loop over rows."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from rezone.client.routing.placement import PartitionIds
from rezone.wire.codec.encoded_rows import Places, encoded_rows
from rezone.wire.codec.keyspace import Hashes
from rezone.wire.codec.pieces import Ints
from rezone.wire.codec.rows import RowCodec
from rezone.wire.errors import InvalidRowError
from rezone.wire.messages import PartitionId

PartitionsOf = Callable[[Hashes], PartitionIds]
"""Which partition each of some hashes belongs to."""

Rows = Any
"""A pyarrow RecordBatch or Table, or a sequence of mappings from column to value."""


class Part(NamedTuple):
    """The rows of one request, which all belong to one partition."""

    partition: PartitionId
    rows: Any
    places: Places | None
    """Where the rows belong, if that is known of these rows alone."""

    def places_by(self, codec: RowCodec) -> Places:
        """Return where the rows belong."""
        return encoded_rows(codec, self.rows) if self.places is None else self.places


def conform(data: Rows, schema: Any) -> Any:
    """Return the rows as one record batch of exactly `schema`.

    Columns are put in order, and cast where no value changes (large_string to string, int32 to
    int64). InvalidRowError names the column that does not fit.
    """
    if isinstance(data, pa.RecordBatch) and data.schema.equals(schema):
        return data
    if isinstance(data, Sequence):
        data = _from_mappings(data, schema)
    if isinstance(data, pa.Table):
        batches = data.combine_chunks().to_batches()
        empty = pa.RecordBatch.from_pylist([], schema=data.schema)
        data = batches[0] if batches else empty
    if sorted(data.schema.names) != sorted(schema.names):
        raise InvalidRowError(f"the rows have the columns {data.schema.names}, not {schema.names}")
    return pa.RecordBatch.from_arrays(
        [_cast(data.column(f.name), f) for f in schema], schema=schema
    )


def _from_mappings(data: Sequence[Mapping[str, Any]], schema: Any) -> Any:
    unknown = {name for row in data for name in row} - set(schema.names)
    if unknown:
        raise InvalidRowError(f"the rows have columns {sorted(unknown)} that the zone has not")
    try:
        return pa.RecordBatch.from_pylist(list(data), schema=schema)
    except (pa.ArrowException, OverflowError, TypeError) as error:
        raise InvalidRowError(f"a value does not fit its column: {error}") from error


def _cast(array: Any, field: Any) -> Any:
    if array.type == field.type:
        return array
    try:
        return array.cast(field.type)
    except pa.ArrowException as error:
        raise InvalidRowError(
            f"column {field.name!r} is {array.type} and cannot be cast to the zone's "
            f"{field.type}: {error}",
            column=field.name,
        ) from error


def checked_parts(
    codec: RowCodec, batch: Any, partitions_of: PartitionsOf, *, delete: bool, bytes_max: int
) -> list[Part]:
    """Return the parts of a batch, each within the limits of one request.

    Rows of one partition keep their order: of two with the same key the later one stays last.
    InvalidRowError for the first row that breaks the schema or a limit (`RowCodec.check`).
    """
    parts = list(_split(codec, batch, partitions_of, delete=delete, bytes_max=bytes_max))
    for part in parts:
        codec.check(part.rows, delete=delete)
    return parts


def by_partition(codec: RowCodec, batch: Any, partitions_of: PartitionsOf) -> Iterator[Part]:
    """Yield the parts of a batch, of which rows keep their order; nothing is checked again."""
    yield from _gathered(codec, batch, partitions_of)


def _split(
    codec: RowCodec, batch: Any, partitions_of: PartitionsOf, *, delete: bool, bytes_max: int
) -> Iterator[Part]:
    limit, rows_max = min(bytes_max, codec.limits.batch_bytes_max), codec.limits.batch_rows_max
    fits = batch.num_rows <= rows_max and codec.surely_fits(batch, limit, delete=delete)
    for part in _gathered(codec, batch, partitions_of):
        if fits:
            yield part
            continue
        for low, high in _chunks(codec.row_sizes(part.rows, delete=delete), limit, rows_max):
            yield Part(part.partition, part.rows.slice(low, high - low), None)


def _gathered(codec: RowCodec, batch: Any, partitions_of: PartitionsOf) -> Iterator[Part]:
    """Yield the rows of each partition, in its order; of few rows little code is gone through."""
    if not batch.num_rows:
        return
    encoded = encoded_rows(codec, batch)
    where = partitions_of(encoded.hashes())
    if batch.num_rows == 1 or not (where != where[0]).any():
        yield Part(int(where[0]), batch, encoded)
        return
    if (where[1:] < where[:-1]).any():
        order = np.argsort(where, kind="stable")
        where = where[order]
        batch = batch.take(pa.array(order))
    cuts = [0, *(np.flatnonzero(np.diff(where)) + 1).tolist(), batch.num_rows]
    for start, end in itertools.pairwise(cuts):
        yield Part(int(where[start]), batch.slice(start, end - start), None)


def _chunks(sizes: Ints, bytes_max: int, rows_max: int) -> Iterator[tuple[int, int]]:
    """Yield [start, end) of pieces of at most so many bytes and rows, at least one row each."""
    ends = np.cumsum(sizes)
    start = 0
    while start < len(sizes):
        before = int(ends[start - 1]) if start else 0
        end = int(np.searchsorted(ends, before + bytes_max, side="right"))
        end = max(start + 1, min(end, start + rows_max))
        yield start, end
        start = end
