"""The row format: typed record batches to encoded keys and values, and back.

A zone stores bytes; what they mean is decided here and nowhere else. Part of the format:

- **Key**: the primary key's columns in the key's order. Integers, dates and times are big-endian
  with the sign bit flipped, booleans one byte. Every binary or string column but the last one
  has a length of 4 bytes, big-endian, before it; the last one stands raw. So a key of one string
  or binary column is that column's bytes, and no two keys have the same encoding.
- **Value**: the other columns in the table's order: a bitmap (bit i set: column i is null), the
  fixed-width columns little-endian (null as zeros), a length of 4 bytes, little-endian, for each
  variable column, then the variable columns' bytes. Equal rows have equal bytes, which is what
  lets replicas be compared by digests (B-04).
- **Row id**: `keyspace.row_id`, which orders the rows of a partition.

No function loops over many rows in Python except `hash_of` of keys of several lengths; `pieces`
says how.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rezone.wire.codec import few_rows, keyspace
from rezone.wire.codec.bodies import check_schema, require_arrow
from rezone.wire.codec.column_bytes import (
    ARROW_TYPES,
    FIXED,
    LENGTH_BYTES,
    fixed_values,
    from_fixed,
    key_column,
    key_width,
    ordered_bytes,
)
from rezone.wire.codec.hashing import BYTES_MAX, xxh64
from rezone.wire.codec.pieces import (
    FEW_ROWS,
    ByteStrings,
    Ints,
    as_binary,
    as_list,
    fixed_pieces,
    gather,
    join,
    lengths_of,
    nulls_of,
    offsets_of,
    refuse_corrupt,
    validity_of,
)
from rezone.wire.codec.schema import KEY_TYPES, Column, Index, RowLimits, TableSchema
from rezone.wire.errors import CorruptionError, InvalidRowError

ROW_ID_PREFIX_BYTES = 10
KEY_BYTES_MAX = (1 << 16) - 1
"""What the length field of a row id can say."""

_ROW_ID_PREFIX = np.dtype([("hash", ">u8"), ("length", ">u2")])


def arrow_schema_of(table: TableSchema) -> Any:
    """Return the Arrow schema of a table's rows; key columns are never nullable."""
    keys = set(table.primary_key)
    return pa.schema(
        pa.field(c.name, ARROW_TYPES[c.type], nullable=c.nullable and c.name not in keys)
        for c in table.columns
    )


class RowCodec:
    """Encodes and decodes the rows of one table.

    `arrow_schema` is the schema of upserts, scans and reads; `key_schema`, the primary key's
    columns in the key's order, that of deletes and reads by key. Thread-safe: it has no state
    that changes. ValueError when the table or the limits make no sense.
    """

    def __init__(self, table: TableSchema, limits: RowLimits | None = None) -> None:
        limits = limits or RowLimits()
        by_name = {c.name: c for c in table.columns}
        _refuse_bad_table(table, limits, by_name)
        self.table = table
        self.limits = limits
        self.arrow_schema: Any = arrow_schema_of(table)
        self.key_schema: Any = pa.schema([self.arrow_schema.field(n) for n in table.primary_key])
        self._never_null = [field.name for field in self.arrow_schema if not field.nullable]
        self._keys = [by_name[name] for name in table.primary_key]
        self._values = [c for c in table.columns if c.name not in table.primary_key]
        variable = [i for i, c in enumerate(self._keys) if c.type not in FIXED]
        self._raw_key = variable[-1] if variable else -1
        self._key_width = sum(key_width(c) for c in self._keys) - (LENGTH_BYTES if variable else 0)
        self._head = _head_dtype(self._values)
        self._variable = [i for i, c in enumerate(self._values) if c.type not in FIXED]
        self._width = self._key_width + self._head.itemsize
        self._never_large = min(
            limits.key_bytes_max - LENGTH_BYTES, limits.value_bytes_max, limits.batch_bytes_max
        )
        self._indexes = [(x, [by_name[name] for name in x.columns]) for x in table.indexes]

    def row_sizes(self, batch: Any, *, delete: bool) -> Ints:
        """Return the bytes of each row's key and value as encoded."""
        sizes = self._sizes(batch, self._keys, self._key_width)
        if not delete:
            sizes += self._sizes(batch, self._values, self._head.itemsize)
        return sizes

    def surely_fits(self, batch: Any, bytes_max: int, *, delete: bool) -> bool:
        """Whether keys and values have no more bytes encoded; soon told, False when not certain."""
        return self._has_at_most(batch, bytes_max) or (
            sum(self._size_bounds(batch, delete=delete)) <= bytes_max
        )

    def check(self, batch: Any, *, delete: bool) -> None:
        """Refuse a batch that breaks the schema or a limit, whole, with InvalidRowError.

        An upsert carries all columns in the table's order, a delete the primary key's in the
        key's order. The message names the column, the row's index and the limit.
        """
        expected = self.key_schema if delete else self.arrow_schema
        check_schema(batch.schema, expected)
        if batch.num_rows > self.limits.batch_rows_max:
            raise InvalidRowError(
                f"the batch has {batch.num_rows} rows, the limit is {self.limits.batch_rows_max}; "
                "send smaller batches",
                limit=self.limits.batch_rows_max,
            )
        require_arrow(batch)  # what a hostile client sends must not reach the kernels
        for name in self._never_null if not delete else self.key_schema.names:
            column = batch.column(name)
            if column.null_count:
                row = int(np.flatnonzero(nulls_of(column))[0])
                raise InvalidRowError(
                    f"column {name!r} is null in row {row}, but is not nullable",
                    column=name,
                    row=row,
                )
        self._check_sizes(batch, delete=delete)

    def key_bytes(self, batch: Any) -> list[bytes]:
        """Return the encoded primary keys of few rows; anything for one that is null."""
        return few_rows.key_bytes(self._keys, self._raw_key, batch)

    def value_bytes(self, batch: Any) -> list[bytes]:
        """Return the encoded other columns of few checked rows."""
        return few_rows.value_bytes(self._values, batch)

    def encode_keys(self, batch: Any) -> Any:
        """Return the encoded primary keys of a checked batch, as a BinaryArray."""
        pieces: list[Any] = []
        for index, column in enumerate(self._keys):
            array = batch.column(column.name)
            if column.type in FIXED:
                pieces.append(fixed_pieces(ordered_bytes(column, array)))
                continue
            if index != self._raw_key:
                pieces.append(
                    fixed_pieces(lengths_of(array).astype(">u4").view(np.uint8), LENGTH_BYTES)
                )
            pieces.append(as_binary(array))
        return join(pieces, batch.num_rows)

    def encode_values(self, batch: Any) -> Any:
        """Return the encoded other columns of a checked batch, as a BinaryArray without nulls."""
        rows = batch.num_rows
        head = np.zeros(rows, dtype=self._head)
        columns = [batch.column(c.name) for c in self._values]
        if any(array.null_count for array in columns):
            nulls = np.stack([nulls_of(array) for array in columns], axis=1)
            head["nulls"] = np.packbits(nulls, axis=1, bitorder="little")
        pieces = []
        for index, (column, array) in enumerate(zip(self._values, columns, strict=True)):
            if column.type in FIXED:
                head[f"v{index}"] = fixed_values(column, array)
            else:
                filled = pc.fill_null(as_binary(array), b"") if array.null_count else array
                head[f"n{index}"] = lengths_of(filled)
                pieces.append(as_binary(filled))
        if not self._head.itemsize:
            return join([], rows)
        return join([fixed_pieces(head.view(np.uint8), self._head.itemsize), *pieces], rows)

    def decode(self, keys: Any, values: Any) -> Any:
        """Return the typed record batch of encoded keys and values (ByteStrings, arrays or lists).

        CorruptionError when the bytes are not of this table's format. Few rows are decoded by a
        loop (`few_rows`), which gives the same.
        """
        if len(keys) != len(values):
            raise ValueError(f"{len(keys)} keys for {len(values)} values")
        if len(keys) <= FEW_ROWS:
            columns = self._decode_few(as_list(keys), as_list(values))
        else:
            columns = self._decode_keys(ByteStrings.of(keys)) | self._decode_values(
                ByteStrings.of(values)
            )
        return pa.RecordBatch.from_arrays(
            [columns[name] for name in self.arrow_schema.names],
            schema=self.arrow_schema,
        )

    def _decode_few(self, keys: list[bytes], values: list[bytes]) -> dict[str, Any]:
        columns = [*self._keys, *self._values]
        arrays = few_rows.key_columns(self._keys, self._raw_key, keys)
        arrays += few_rows.value_columns(self._values, values)
        return {column.name: array for column, array in zip(columns, arrays, strict=True)}

    def decode_columns(self, keys: Any, values: Any, names: frozenset[str]) -> dict[str, Any]:
        """Return some columns of encoded keys and values by name; errors as `decode`."""
        columns: dict[str, Any] = {}
        if not names.isdisjoint(self.key_schema.names):
            columns |= self._decode_keys(ByteStrings.of(keys))
        if not names <= columns.keys():
            columns |= self._decode_values(ByteStrings.of(values), names)
        return columns

    def _has_at_most(self, batch: Any, bytes_max: int) -> bool:
        """Whether its buffers say so; a slice of a large batch has the buffers of that."""
        return bool(batch.num_rows * self._width + batch.get_total_buffer_size() <= bytes_max)

    def _size_bounds(self, batch: Any, *, delete: bool) -> tuple[int, int]:
        """Return what all keys, and all values, have encoded at most."""
        keys = batch.num_rows * self._key_width + _span(batch, self._keys)
        if delete:
            return keys, 0
        return keys, batch.num_rows * self._head.itemsize + _span(batch, self._values)

    def _check_sizes(self, batch: Any, *, delete: bool) -> None:
        limits = self.limits
        if self._has_at_most(batch, self._never_large):
            return
        keys_bound, values_bound = self._size_bounds(batch, delete=delete)
        bound = keys_bound + values_bound
        # An index entry is of the same columns; the key's last length is not in the key.
        entries_bound = bound + LENGTH_BYTES if self._indexes and not delete else 0
        if (
            max(keys_bound, entries_bound) <= limits.key_bytes_max
            and values_bound <= limits.value_bytes_max
            and bound <= limits.batch_bytes_max
        ):
            return
        keys = self._sizes(batch, self._keys, self._key_width)
        self._refuse_large(batch, self._keys, keys, limits.key_bytes_max, "key")
        total = int(keys.sum())
        if not delete:
            values = self._sizes(batch, self._values, self._head.itemsize)
            self._refuse_large(batch, self._values, values, limits.value_bytes_max, "value")
            total += int(values.sum())
            for index, columns in self._indexes:
                indexed = self._sizes(batch, columns, sum(key_width(c) for c in columns))
                what = f"entry in index {index.name!r}"
                self._refuse_large(batch, columns, indexed, limits.key_bytes_max, what)
        if total > limits.batch_bytes_max:
            raise InvalidRowError(
                f"the batch has {total} bytes of keys and values, the limit is "
                f"{limits.batch_bytes_max}; send smaller batches",
                limit=limits.batch_bytes_max,
            )

    @staticmethod
    def _sizes(batch: Any, columns: Sequence[Column], width: int) -> Ints:
        sizes = np.full(batch.num_rows, width, dtype=np.int64)
        for column in columns:
            if column.type not in FIXED:
                sizes += lengths_of(batch.column(column.name))
        return sizes

    @staticmethod
    def _refuse_large(
        batch: Any, columns: Sequence[Column], sizes: Ints, limit: int, what: str
    ) -> None:
        over = np.flatnonzero(sizes > limit)
        if not over.size:
            return
        row = int(over[0])
        variable = [c.name for c in columns if c.type not in FIXED] or [columns[0].name]
        largest = max(variable, key=lambda name: int(_lengths_or_zero(batch.column(name))[row]))
        raise InvalidRowError(
            f"the {what} of row {row} has {int(sizes[row])} bytes encoded, the limit is {limit} "
            f"(its largest column is {largest!r})",
            column=largest,
            row=row,
            limit=limit,
        )

    def _decode_keys(self, keys: ByteStrings) -> dict[str, Any]:
        data, at, ends = keys.data, keys.starts, keys.ends
        # The raw column's length is what the others leave, and those after it are fixed or none.
        rest = self._key_width
        bounds: list[tuple[Ints, Ints]] = []
        for index, column in enumerate(self._keys):
            if column.type in FIXED:
                size: Any = np.int64(key_width(column))
                rest -= key_width(column)
            elif index == self._raw_key:
                size = ends - at - rest
            else:
                size = gather(data, at, ends, LENGTH_BYTES).view(">u4").ravel().astype(np.int64)
                at = at + LENGTH_BYTES
                rest -= LENGTH_BYTES
            bounds.append((at, at + size))
            at = at + size
            refuse_corrupt(bounds[-1][0], at, ends, "key")
        if not np.array_equal(at, ends):
            raise CorruptionError("an encoded key has bytes after its last column")
        return {
            column.name: key_column(column, keys, bound)
            for column, bound in zip(self._keys, bounds, strict=True)
        }

    def _decode_values(
        self, values: ByteStrings, wanted: frozenset[str] | None = None
    ) -> dict[str, Any]:
        rows, width, ends = len(values), self._head.itemsize, values.ends
        heads = gather(values.data, values.starts, ends, width)
        head: Any = heads.view(self._head).ravel() if width else np.zeros(rows, dtype=self._head)
        columns: dict[str, Any] = {}
        nulls: dict[int, Any] = {}
        if self._values and head["nulls"].any():
            bits = np.unpackbits(head["nulls"], axis=1, bitorder="little")
            nulls = {int(i): bits[:, i] for i in np.flatnonzero(bits.any(axis=0))}
        at = values.starts + width
        for index, column in enumerate(self._values):
            validity = validity_of(nulls[index]) if index in nulls else None
            needed = wanted is None or column.name in wanted
            if column.type in FIXED:
                if needed:
                    columns[column.name] = from_fixed(column, head[f"v{index}"], validity)
                continue
            end = at + head[f"n{index}"]
            refuse_corrupt(at, end, ends, "value")
            if needed:
                found = ByteStrings(values.data, at, end)
                columns[column.name] = found.array(ARROW_TYPES[column.type], validity)
            at = end
        if not np.array_equal(at, ends):
            raise CorruptionError("an encoded value has bytes after its last column")
        return columns


def hash_of(keys: Any) -> keyspace.Hashes:
    """Return the hash of each encoded key, as `keyspace.hash_keys`; any for one that is null.

    A client asks where a row belongs before its batch is checked.
    """
    strings = ByteStrings.of(keys)
    data, starts, ends = strings.data, strings.starts, strings.ends
    lengths = ends - starts
    if len(lengths) > FEW_ROWS and lengths[0] <= BYTES_MAX and (lengths == lengths[0]).all():
        return xxh64(data, starts, ends, keyspace.HASH_SEED)
    raw = data.tobytes()
    # Slices of one bytes object are three times as fast as Arrow's to_pylist.
    pairs = zip(starts.tolist(), ends.tolist(), strict=True)
    return keyspace.hash_keys([raw[start:end] for start, end in pairs])


def row_ids(keys: Any, hashes: keyspace.Hashes) -> Any:
    """Return the row id of each encoded key, as `keyspace.row_id`, in a BinaryArray."""
    prefix = np.empty(len(keys), dtype=_ROW_ID_PREFIX)
    prefix["hash"] = hashes
    prefix["length"] = lengths_of(keys)
    return join([fixed_pieces(prefix.view(np.uint8), ROW_ID_PREFIX_BYTES), keys], len(keys))


def keys_of(ids: Any) -> ByteStrings:
    """Return the encoded keys in row ids (ByteStrings, a BinaryArray or a list)."""
    whole = ByteStrings.of(ids)
    return ByteStrings(whole.data, whole.starts + ROW_ID_PREFIX_BYTES, whole.ends)


def _span(batch: Any, columns: Sequence[Column]) -> int:
    """Return the bytes that the values of some columns have which are of any length, at most."""
    offsets = (offsets_of(batch.column(c.name)) for c in columns if c.type not in FIXED)
    return sum(int(each[-1]) - int(each[0]) for each in offsets)


def _refuse_bad_table(table: TableSchema, limits: RowLimits, by_name: dict[str, Column]) -> None:
    if len(by_name) != len(table.columns):
        raise ValueError("two columns of the table have the same name")
    if not table.primary_key or len(set(table.primary_key)) != len(table.primary_key):
        raise ValueError("the primary key needs at least one column, and each once")
    for name in table.primary_key:
        if name not in by_name:
            raise ValueError(f"the primary key's column {name!r} is not a column of the table")
        if by_name[name].type not in KEY_TYPES:
            raise ValueError(f"column {name!r}: a primary key cannot be {by_name[name].type}")
    for index in table.indexes:
        _refuse_bad_index(index, by_name)
    if len({index.name for index in table.indexes}) != len(table.indexes):
        raise ValueError("two indexes of the table have the same name")
    if limits.key_bytes_max > KEY_BYTES_MAX:
        raise ValueError(f"key_bytes_max cannot be over {KEY_BYTES_MAX}")


def _refuse_bad_index(index: Index, by_name: dict[str, Column]) -> None:
    if not index.columns or len(set(index.columns)) != len(index.columns):
        raise ValueError(f"index {index.name!r} needs at least one column, and each once")
    for name in index.columns:
        if name not in by_name:
            raise ValueError(f"index {index.name!r}: {name!r} is not a column of the table")
        if by_name[name].type not in KEY_TYPES:
            raise ValueError(f"index {index.name!r}: {name!r} cannot be {by_name[name].type}")


def _head_dtype(values: Sequence[Column]) -> np.dtype[Any]:
    if not values:
        return np.dtype([])
    fields: list[Any] = [("nulls", "u1", ((len(values) + 7) // 8,))]
    fields += [(f"v{i}", f"<{FIXED[c.type]}") for i, c in enumerate(values) if c.type in FIXED]
    fields += [(f"n{i}", "<u4") for i, c in enumerate(values) if c.type not in FIXED]
    return np.dtype(fields)


def _lengths_or_zero(array: Any) -> npt.NDArray[np.int32]:
    if pa.types.is_binary(array.type) or pa.types.is_string(array.type):
        return lengths_of(array)
    return np.zeros(len(array), np.int32)
