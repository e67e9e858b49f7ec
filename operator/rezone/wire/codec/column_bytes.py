"""How the values of one column stand in encoded rows and in index entries (`rows`, `indexes`)."""

from typing import Any

import numpy as np
import pyarrow as pa

from rezone.wire.codec.pieces import Bytes, ByteStrings, Ints, bits, gather, nulls_of
from rezone.wire.codec.schema import Column, ColumnType

LENGTH_BYTES = 4
"""The length before a value of any length, where its end does not follow from others."""

ARROW_TYPES: dict[ColumnType, Any] = {
    ColumnType.BOOL: pa.bool_(),
    ColumnType.INT8: pa.int8(),
    ColumnType.INT16: pa.int16(),
    ColumnType.INT32: pa.int32(),
    ColumnType.INT64: pa.int64(),
    ColumnType.FLOAT32: pa.float32(),
    ColumnType.FLOAT64: pa.float64(),
    ColumnType.STRING: pa.string(),
    ColumnType.BINARY: pa.binary(),
    ColumnType.DATE32: pa.date32(),
    ColumnType.TIMESTAMP_US: pa.timestamp("us"),
}
FIXED: dict[ColumnType, str] = {
    ColumnType.BOOL: "u1",
    ColumnType.INT8: "i1",
    ColumnType.INT16: "i2",
    ColumnType.INT32: "i4",
    ColumnType.INT64: "i8",
    ColumnType.FLOAT32: "f4",
    ColumnType.FLOAT64: "f8",
    ColumnType.DATE32: "i4",
    ColumnType.TIMESTAMP_US: "i8",
}
"""The types of one width, by numpy's names for them; the others are of any length."""

WIDTHS: dict[ColumnType, int] = {kind: np.dtype(name).itemsize for kind, name in FIXED.items()}
"""Their widths in bytes."""


def key_width(column: Column) -> int:
    """Return how many bytes of a key a column has whatever its value: itself, or its length."""
    return WIDTHS.get(column.type, LENGTH_BYTES)


def fixed_values(column: Column, array: Any) -> Any:
    """Return the values of a fixed-width column, zero where null."""
    data = array.buffers()[1]
    dtype = np.dtype(FIXED[column.type])
    if not len(array):
        return np.zeros(0, dtype)
    if column.type is ColumnType.BOOL:
        values: Any = bits(data, array.offset, len(array))
    else:
        values = np.frombuffer(data, dtype, len(array), array.offset * dtype.itemsize)
    if array.null_count:
        values = np.where(nulls_of(array), np.zeros(1, dtype), values)
    return values


def from_fixed(column: Column, values: Any, validity: Any) -> Any:
    """Return the Arrow array of a fixed-width column's values, as `fixed_values` gives them."""
    if column.type is ColumnType.BOOL:
        data = np.packbits(values, bitorder="little")
    else:
        data = np.ascontiguousarray(values)
    return pa.Array.from_buffers(
        ARROW_TYPES[column.type], len(values), [validity, pa.py_buffer(data)]
    )


def ordered_bytes(column: Column, array: Any) -> Bytes:
    """Return big-endian bytes with the sign flipped, shape (rows, width)."""
    values = fixed_values(column, array)
    dtype = values.dtype
    if dtype.kind == "i":
        unsigned = np.dtype(f"u{dtype.itemsize}")
        values = values.view(unsigned) ^ unsigned.type(1 << (8 * dtype.itemsize - 1))
        values = values.astype(unsigned.newbyteorder(">"))
    raw: Bytes = np.ascontiguousarray(values).view(np.uint8)
    return raw.reshape(len(array), dtype.itemsize)


def key_column(column: Column, keys: ByteStrings, bound: tuple[Ints, Ints]) -> Any:
    """Return the Arrow array of one column of encoded keys, between the offsets of `bound`."""
    start, end = bound
    if column.type not in FIXED:
        return ByteStrings(keys.data, start, end).array(ARROW_TYPES[column.type])
    dtype = np.dtype(FIXED[column.type])
    raw = gather(keys.data, start, keys.ends, dtype.itemsize)
    if dtype.kind == "i":
        unsigned = np.dtype(f"u{dtype.itemsize}")
        values = raw.view(unsigned.newbyteorder(">")).ravel().astype(unsigned)
        values ^= unsigned.type(1 << (8 * dtype.itemsize - 1))
        return from_fixed(column, values.view(dtype), None)
    return from_fixed(column, raw.ravel(), None)
