"""The format of secondary indexes: the bytes of index columns, ordered as their values are.

An entry is found by its *index key*: the index's number (one byte), then each column as a marker
(0 for null, which comes first; 1 for a value) and the value's bytes. Values of one width stand as
in a primary key. In texts and binaries a zero byte is followed by 0xff and the end is 0 and 1, so
that no value's bytes begin with another's and their order is that of the values. Behind the index
key stands the row id: entries of equal columns are ordered by it, and none of two rows are equal.

No function loops over rows in Python. Thread-safe: nothing here has state that changes.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rezone.wire.errors import UnknownIndexError
from rezone.wire.pieces import as_binary, fixed_pieces, join, nulls_of
from rezone.wire.rows import ARROW_TYPES, FIXED, ordered_bytes
from rezone.wire.schema import Column, TableSchema

_ZERO, _ESCAPED, _END = b"\x00", b"\x00\xff", b"\x00\x01"


class KeyRange(NamedTuple):
    """The half-open range [start, end) of index keys, row ids behind them included."""

    start: bytes
    end: bytes


class IndexCodec:
    """Encodes the columns of one index; made by `index_codecs`."""

    def __init__(self, number: int, name: str, columns: Sequence[Column]) -> None:
        self.name = name
        self.columns = tuple(column.name for column in columns)
        self._prefix = bytes([number])
        self._columns = columns

    def encode(self, arrays: Mapping[str, Any], rows: int) -> Any:
        """Return the index key of each row, from the index's columns, as a BinaryArray."""
        pieces: list[Any] = [_repeated(self._prefix, rows)]
        for column in self._columns:
            pieces += _pieces_of(column, arrays[column.name])
        return join(pieces, rows)

    def range_of(self, low: Sequence[Any], high: Sequence[Any]) -> KeyRange:
        """Return the range from `low` to `high`, both inclusive.

        Each is a tuple of values for the index's first columns; a shorter one stands for all
        values of the others, so the empty one has no bound. ValueError when a value does not fit.
        """
        return KeyRange(self._bound(low), _behind(self._bound(high)))

    def _bound(self, values: Sequence[Any]) -> bytes:
        if len(values) > len(self._columns):
            raise ValueError(
                f"{len(values)} values for the {len(self._columns)} columns of index {self.name!r}"
            )
        pieces: list[Any] = [_repeated(self._prefix, 1)]
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


def index_codecs(table: TableSchema) -> tuple[IndexCodec, ...]:
    """Return the codecs of a table's indexes, in their order."""
    by_name = {column.name: column for column in table.columns}
    return tuple(
        IndexCodec(number, index.name, [by_name[name] for name in index.columns])
        for number, index in enumerate(table.indexes)
    )


def index_codec(table: TableSchema, name: str) -> IndexCodec:
    """Return the codec of an index by its name; UnknownIndexError when the table has none such."""
    for codec in index_codecs(table):
        if codec.name == name:
            return codec
    known = ", ".join(index.name for index in table.indexes) or "none"
    raise UnknownIndexError(f"the zone has no index {name!r}; its indexes: {known}")


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
