"""The format of secondary indexes: the bytes of index columns, ordered as their values are.

An entry is found by its *index key*: the index's id (8 bytes), then each column as a marker
(0 for null, which comes first; 1 for a value) and the value's bytes. Values of one width stand as
in a primary key. In texts and binaries a zero byte is followed by 0xff and the end is 0 and 1, so
that no value's bytes begin with another's and their order is that of the values. Behind the index
key stands the row id: entries of equal columns are ordered by it, and none of two rows are equal.

The id is a hash of the index's name and columns, so that nobody has to hand ids out, and an index
that is dropped and made again with other columns has other entries: a range or a page of one
definition is never taken for one of another (`IndexCodec.holds`).

No function loops over rows in Python. Thread-safe: nothing here has state that changes.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from rezone.wire.codec.column_bytes import ARROW_TYPES, FIXED, ordered_bytes
from rezone.wire.codec.pieces import as_binary, fixed_pieces, join, nulls_of
from rezone.wire.codec.schema import Column, Index, IndexId, TableSchema
from rezone.wire.errors import UnknownIndexError

ID_BYTES = 8
"""The bytes of an index's id."""

_ZERO, _ESCAPED, _END = b"\x00", b"\x00\xff", b"\x00\x01"
_ID_MASK = (1 << (8 * ID_BYTES - 1)) - 1


class KeyRange(NamedTuple):
    """The half-open range [start, end) of index keys, row ids behind them included."""

    start: bytes
    end: bytes


class IndexCodec:
    """Encodes the columns of one index; made by `index_codecs`."""

    def __init__(self, index: Index, columns: Sequence[Column]) -> None:
        self.name = index.name
        self.columns = index.columns
        self.id = id_of(index)
        self.all = range_of_id(self.id)
        self._columns = columns

    def holds(self, keys: KeyRange) -> bool:
        """Whether a range lies in this index: not when it was made for another definition."""
        return self.all.start <= keys.start and keys.end <= self.all.end

    def encode(self, arrays: Mapping[str, Any], rows: int) -> Any:
        """Return the index key of each row, from the index's columns, as a BinaryArray."""
        pieces: list[Any] = [_repeated(self.id, rows)]
        for column in self._columns:
            pieces += _pieces_of(column, arrays[column.name])
        return join(pieces, rows)

    def range_of(self, low: Sequence[Any], high: Sequence[Any]) -> KeyRange:
        """Return the range from `low` to `high`, both inclusive.

        Each is a tuple of values for the index's first columns; a shorter one stands for all
        values of the others, so the empty one has no bound. ValueError when a value does not fit.
        """
        return KeyRange(self._bound(low), _behind(self._bound(high)))

    def range_of_beginning(self, low: Sequence[Any], beginning: str | bytes) -> KeyRange:
        """Return the range in which a text or binary column has values with this beginning.

        It is the one behind the columns that are equal to `low`.
        """
        bound = self._bound([*low, beginning])[: -len(_END)]
        return KeyRange(bound, _behind(bound))

    def _bound(self, values: Sequence[Any]) -> bytes:
        if len(values) > len(self._columns):
            raise ValueError(
                f"{len(values)} values for the {len(self._columns)} columns of index {self.name!r}"
            )
        pieces: list[Any] = [_repeated(self.id, 1)]
        for column, value in zip(self._columns, values, strict=False):
            try:
                array = pa.array([value], ARROW_TYPES[column.type])
            except (pa.ArrowException, TypeError, OverflowError) as error:
                raise ValueError(
                    f"column {column.name!r} of index {self.name!r}: {error}"
                ) from error
            pieces += _pieces_of(column, array)
        bound: bytes = join(pieces, 1)[0].as_py()
        return bound


def id_of(index: Index) -> IndexId:
    """Return the id of an index: equal for equal names and columns alone, and below 0x80."""
    hashed = xxhash.xxh64_intdigest(msgspec.json.encode((index.name, index.columns)))
    return (hashed & _ID_MASK).to_bytes(ID_BYTES, "big")


def range_of_id(index_id: IndexId) -> KeyRange:
    """Return the range of everything that begins with an index's id."""
    return KeyRange(index_id, _behind(index_id))


def index_codecs(table: TableSchema) -> tuple[IndexCodec, ...]:
    """Return the codecs of a table's indexes, in their order."""
    by_name = {column.name: column for column in table.columns}
    return tuple(
        IndexCodec(index, [by_name[name] for name in index.columns]) for index in table.indexes
    )


def index_codec(table: TableSchema, name: str) -> IndexCodec:
    """Return the codec of an index by its name; UnknownIndexError when the table has none such."""
    for codec in index_codecs(table):
        if codec.name == name:
            return codec
    known = ", ".join(index.name for index in table.indexes) or "none"
    raise UnknownIndexError(f"the zone has no index {name!r}; its indexes: {known}", index=name)


def _pieces_of(column: Column, array: Any) -> list[Any]:
    """Return a column's bytes, to be joined row by row."""
    markers = (1 - nulls_of(array)).astype(np.uint8)
    if column.type in FIXED:
        parts = [markers[:, np.newaxis], ordered_bytes(column, array)]
        return [fixed_pieces(np.concatenate(parts, axis=1))]
    filled = pc.fill_null(as_binary(array), b"") if array.null_count else as_binary(array)
    escaped = pc.replace_substring(filled, pattern=_ZERO, replacement=_ESCAPED)
    return [fixed_pieces(markers, 1), escaped, _repeated(_END, len(array))]


def _repeated(part: bytes, rows: int) -> Any:
    return fixed_pieces(np.frombuffer(part * rows, np.uint8), len(part))


def _behind(bound: bytes) -> bytes:
    """Return the least bytes that are above everything that begins with `bound`."""
    kept = bound.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1])
