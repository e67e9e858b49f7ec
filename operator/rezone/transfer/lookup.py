"""Rows of a DataFrame joined with rows of a zone by primary key, without a scan (SP-08).

    from rezone.transfer.lookup import lookup
    lookup(clicks, "users.shop.svc:7400", on={"user_id": "id"}, columns=["name"], how="left")

Tasks read the rows of the keys that they have, 1024 different ones at a time. The other side of a
join by Spark would be the whole zone. Works for batch and for streaming DataFrames.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType

from rezone.client import TableClient
from rezone.transfer.source.options import SourceOptions
from rezone.transfer.source.spark_types import spark_schema
from rezone.wire.codec.rows import RowCodec
from rezone.wire.codec.schema import TableSchema

KEYS_PER_READ = 1024
"""How many different keys a task reads at once: so many rows of the zone are in its memory."""

Joining = Literal["inner", "left"]


def lookup(
    frame: DataFrame,
    bootstrap: str,
    *,
    on: Mapping[str, str] | Sequence[str],
    columns: Sequence[str] | None = None,
    how: Joining = "inner",
    at_one_time: bool = False,
    **options: str,
) -> DataFrame:
    """Return the rows of a DataFrame with columns of the zone's row of the same primary key.

    `on`: the DataFrame's column for each column of the primary key, {"user_id": "id"}, or names
    that both have. Types must be the same. `columns`: those of the zone to add, by default all that
    are not of the key; other names than the DataFrame's. Without a row in the zone, and with a null
    in the key, a row is left out ("inner"), or has nulls ("left").

    Each key is read at its newest committed state. With `at_one_time`, or the option `asOf`, all
    keys are read as of one time, chosen by this call: not for streams. `options` are those of
    reads: `zone`, `tlsDirectory`, `readFrom`, `maxStalenessSeconds`, `asOf`.

    Raises ValueError for columns, types and options that do not fit, and RezoneError when the zone
    does not answer; a query fails with a RezoneError when it does not answer later.
    """
    if how not in ("inner", "left"):
        raise ValueError(f'how is {how!r}, not "inner" or "left"')
    given = SourceOptions.read({**options, "bootstrap": bootstrap})
    with given.client() as client:
        keys, added = _checked(frame.schema, client.config.table, on, columns)
        if at_one_time and given.as_of is None:
            now = client.read_time(max_staleness_seconds=0).as_of
            given = dataclasses.replace(given, as_of=now, max_staleness_seconds=None)
    if frame.isStreaming and given.as_of is not None:
        raise ValueError("a stream has no one time: leave at_one_time and asOf out")
    joining = _Joining(given, keys, tuple(added.fieldNames()), how == "left")
    return frame.mapInArrow(joining, StructType([*frame.schema.fields, *added.fields]))


def _checked(
    frame: StructType,
    table: TableSchema,
    on: Mapping[str, str] | Sequence[str],
    columns: Sequence[str] | None,
) -> tuple[tuple[str, ...], StructType]:
    """Return the DataFrame's columns of the key, in the key's order, and the fields to add."""
    on = [on] if isinstance(on, str) else on
    on = on if isinstance(on, Mapping) else {name: name for name in on}
    by_key = {key: ours for ours, key in on.items()}
    if len(by_key) != len(on):
        raise ValueError(f"on names a column of the primary key twice: {dict(on)}")
    if sorted(by_key) != sorted(table.primary_key):
        raise ValueError(f"on has {sorted(by_key)}, the primary key is {list(table.primary_key)}")
    zone = spark_schema(table)
    for key, ours in by_key.items():
        found = frame[ours].dataType if ours in frame.fieldNames() else None
        if found != zone[key].dataType:
            wanted = zone[key].dataType.simpleString()
            has = found.simpleString() if found is not None else "no such column"
            raise ValueError(f"column {ours!r} must be {wanted} as {key!r} is: cast it ({has})")
    if columns is None:
        columns = [name for name in zone.fieldNames() if name not in table.primary_key]
    if len(set(columns)) != len(columns):
        raise ValueError(f"columns names one twice: {list(columns)}")
    if unknown := set(columns) - set(zone.fieldNames()):
        raise ValueError(f"the zone has no {sorted(unknown)}")
    if twice := set(columns) & set(frame.fieldNames()):
        raise ValueError(f"both sides have {sorted(twice)}: rename those of the DataFrame")
    added = StructType([StructField(name, zone[name].dataType) for name in columns])
    return tuple(by_key[key] for key in table.primary_key), added


@dataclasses.dataclass(frozen=True)
class _Joining:
    """What a task does with its batches."""

    options: SourceOptions
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    is_left: bool

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the joined rows of batches."""
        with self.options.client() as client:
            for batch in batches:
                if batch.num_rows:
                    yield from self._joined(client, batch)

    def _joined(self, client: TableClient, batch: Any) -> Iterator[Any]:
        codec = client.codec
        whole, keys = _keys_in(codec, batch, self.keys)
        encoded = codec.encode_keys(keys).dictionary_encode()
        numbers = encoded.indices.to_numpy(zero_copy_only=False)
        firsts = np.unique(numbers, return_index=True)[1]  # numbers rise as keys appear
        for low in range(0, len(firsts), KEYS_PER_READ):
            asked = keys.take(pa.array(firsts[low : low + KEYS_PER_READ]))
            found = self._read(client, asked)
            inside = (numbers >= low) & (numbers < low + KEYS_PER_READ)
            places = pc.index_in(
                encoded.dictionary.take(pa.array(numbers[inside])),
                value_set=codec.encode_keys(found),
            )
            yield from self._taken(batch, whole[inside], found, places)
        if self.is_left and len(whole) < batch.num_rows:
            rest = np.setdiff1d(np.arange(batch.num_rows), whole, assume_unique=True)
            nothing = pa.RecordBatch.from_pylist([], schema=codec.arrow_schema)
            yield from self._taken(batch, rest, nothing, pa.nulls(len(rest), pa.int32()))

    def _read(self, client: TableClient, keys: Any) -> Any:
        """Return the zone's rows of some keys as one batch."""
        given = self.options
        if given.anywhere:
            found = client.read_any(
                keys, as_of=given.as_of, max_staleness_seconds=given.max_staleness_seconds
            ).rows
        else:
            found = client.read(keys, as_of=given.as_of)
        return pa.RecordBatch.from_arrays(
            [column.combine_chunks() for column in found.columns], schema=found.schema
        )

    def _taken(self, batch: Any, rows: Any, found: Any, places: Any) -> Iterator[Any]:
        """Yield rows of a batch beside the rows found at places; null: there is none."""
        if not self.is_left:
            there = places.is_valid()
            rows, places = rows[there.to_numpy(zero_copy_only=False)], places.filter(there)
        if not len(rows):
            return
        ours = batch.take(pa.array(rows))
        theirs = [found.column(name).take(places) for name in self.columns]
        yield pa.RecordBatch.from_arrays(
            [*ours.columns, *theirs], names=[*ours.schema.names, *self.columns]
        )


def _keys_in(codec: RowCodec, batch: Any, names: Sequence[str]) -> tuple[Any, Any]:
    """Return which rows have a key that a zone can have, and their keys."""
    arrays = [
        batch.column(name).cast(field.type)
        for name, field in zip(names, codec.key_schema, strict=True)
    ]
    whole = np.ones(batch.num_rows, np.bool_)
    for array in arrays:
        whole &= array.is_valid().to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(whole)
    taken = [array.take(pa.array(rows)) for array in arrays]
    keys = pa.RecordBatch.from_arrays(taken, schema=codec.key_schema)
    fits = codec.row_sizes(keys, delete=True) <= codec.limits.key_bytes_max
    return rows[fits], keys.filter(pa.array(fits))
