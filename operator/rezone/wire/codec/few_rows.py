"""The row format for few rows: the bytes that `rows` makes by kernels, made by a loop.

`encoded_rows` decides which of them does it.

A small write comes to processes that have slept since the last one. Their caches are cold, so what
counts is how much code is gone through once, and each kernel of Arrow or numpy brings its own
(docs/decisions/0206). Here values are cut out of Arrow's buffers as bytes, which stand there as
in the format, and put together.

A batch need not have been checked: bad offsets give wrong bytes, or an error.
"""

import struct
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from rezone.wire.codec.column_bytes import ARROW_TYPES, FIXED, LENGTH_BYTES, WIDTHS
from rezone.wire.codec.pieces import binary_array, bits, nulls_of
from rezone.wire.codec.schema import Column, ColumnType
from rezone.wire.errors import CorruptionError

_LENGTH = struct.Struct("<I")


def key_bytes(columns: Sequence[Column], raw: int, batch: Any) -> list[bytes]:
    """Return the encoded keys, of which none may be null; column `raw` has no length before it."""
    pieces = []
    for index, column in enumerate(columns):
        values = _values(column, batch.column(column.name))
        if column.type in FIXED:
            values = [_ordered(column, value) for value in values]
        elif index != raw:
            values = [len(value).to_bytes(LENGTH_BYTES, "big") + value for value in values]
        pieces.append(values)
    return pieces[0] if len(pieces) == 1 else list(map(b"".join, zip(*pieces, strict=True)))


def value_bytes(columns: Sequence[Column], batch: Any) -> list[bytes]:
    """Return the encoded values, of these columns."""
    bitmaps = [0] * batch.num_rows
    fixed: list[list[bytes]] = []
    variable: list[list[bytes]] = []
    for index, column in enumerate(columns):
        array = batch.column(column.name)
        values = _values(column, array)
        if array.null_count:
            nothing = bytes(WIDTHS.get(column.type, 0))
            for row in nulls_of(array).nonzero()[0].tolist():
                values[row] = nothing
                bitmaps[row] |= 1 << index
        (fixed if column.type in FIXED else variable).append(values)
    bitmap_bytes = (len(columns) + 7) // 8
    heads = [bitmap.to_bytes(bitmap_bytes, "little") for bitmap in bitmaps]
    lengths = [[len(v).to_bytes(LENGTH_BYTES, "little") for v in values] for values in variable]
    return list(map(b"".join, zip(heads, *fixed, *lengths, *variable, strict=True)))


def key_columns(columns: Sequence[Column], raw: int, keys: Sequence[bytes]) -> list[Any]:
    """Return the columns of encoded keys as Arrow arrays; column `raw` has no length before it.

    CorruptionError when the bytes are not of these columns.
    """
    # What stands behind the raw column is of fixed widths.
    rest = sum(WIDTHS[column.type] for column in columns[raw + 1 :]) if raw >= 0 else 0
    pieces: list[list[bytes]] = [[] for _ in columns]
    for key in keys:
        at = 0
        for index, column in enumerate(columns):
            if column.type in FIXED:
                end = at + WIDTHS[column.type]
            elif index == raw:
                end = len(key) - rest
            else:
                start = at + LENGTH_BYTES
                end = start + int.from_bytes(key[at:start], "big")
                at = start
            if not at <= end <= len(key):
                raise CorruptionError("a length in an encoded key points outside of it")
            pieces[index].append(key[at:end])
            at = end
        if at != len(key):
            raise CorruptionError("an encoded key has bytes after its last column")
    for index, column in enumerate(columns):
        if column.type in FIXED:
            pieces[index] = [_unordered(column, value) for value in pieces[index]]
    return [_array(column, each, 0) for column, each in zip(columns, pieces, strict=True)]


def value_columns(columns: Sequence[Column], values: Sequence[bytes]) -> list[Any]:
    """Return the other columns of encoded values as Arrow arrays.

    CorruptionError when the bytes are not of these columns.
    """
    head = (len(columns) + 7) // 8
    nulls = [int.from_bytes(value[:head], "little") for value in values]
    found: list[list[bytes]] = [[] for _ in columns]
    variable = [n for n, column in enumerate(columns) if column.type not in FIXED]
    for index, column in enumerate(columns):
        if column.type in FIXED:
            width = WIDTHS[column.type]
            found[index] = [value[head : head + width] for value in values]
            head += width
    ends = head + LENGTH_BYTES * len(variable)
    for value in values:
        if len(value) < ends:
            raise CorruptionError("an encoded row is shorter than its fixed part")
        at = ends
        for place, index in enumerate(variable):
            (length,) = _LENGTH.unpack_from(value, head + place * LENGTH_BYTES)
            found[index].append(value[at : at + length])
            at += length
        if at > len(value):
            raise CorruptionError("a length in an encoded value points outside of it")
        if at != len(value):
            raise CorruptionError("an encoded value has bytes after its last column")
    # One number for each column: which rows have nothing in it.
    missing = [
        sum((row >> index & 1) << place for place, row in enumerate(nulls))
        for index in range(len(columns))
    ]
    return [_array(*each) for each in zip(columns, found, missing, strict=True)]


def _array(column: Column, values: Sequence[bytes], nulls: int) -> Any:
    """Return the Arrow array of values as they stand in its buffers; `nulls`: a bit for each."""
    count = len(values)
    bitmap_bytes = (count + 7) // 8
    validity = None
    if nulls:
        validity = pa.py_buffer((~nulls & ((1 << count) - 1)).to_bytes(bitmap_bytes, "little"))
    if column.type is ColumnType.BOOL:
        true = sum((value != b"\0") << place for place, value in enumerate(values))
        buffers = [validity, pa.py_buffer(true.to_bytes(bitmap_bytes, "little"))]
    elif column.type in FIXED:
        buffers = [validity, pa.py_buffer(b"".join(values))]
    else:
        buffers = [validity, *binary_array(values).buffers()[1:]]
    return pa.Array.from_buffers(ARROW_TYPES[column.type], count, buffers)


def _values(column: Column, array: Any) -> list[bytes]:
    """Return what stands in Arrow's buffers for each value; anything where it is null."""
    count = len(array)
    if not count:
        return []
    _, data, *more = array.buffers()
    if column.type is ColumnType.BOOL:
        raw = bits(data, array.offset, count).tobytes()
        return [raw[i : i + 1] for i in range(count)]
    if column.type in FIXED:
        width = WIDTHS[column.type]
        raw = bytes(memoryview(data)[array.offset * width : (array.offset + count) * width])
        return [raw[i : i + width] for i in range(0, count * width, width)]
    offsets = struct.unpack_from(f"<{count + 1}i", data, array.offset * 4)
    first = offsets[0]
    raw = bytes(memoryview(more[0])[first : offsets[-1]]) if more[0] is not None else b""
    return [raw[offsets[i] - first : offsets[i + 1] - first] for i in range(count)]


def _ordered(column: Column, value: bytes) -> bytes:
    """Return a fixed-width value big-endian, with the sign flipped if it has one."""
    if column.type is ColumnType.BOOL:
        return value
    flipped = int.from_bytes(value, "little") ^ (1 << (8 * len(value) - 1))
    return flipped.to_bytes(len(value), "big")


def _unordered(column: Column, value: bytes) -> bytes:
    """Return what `_ordered` was given."""
    if column.type is ColumnType.BOOL:
        return value
    number = int.from_bytes(value, "big") ^ (1 << (8 * len(value) - 1))
    return number.to_bytes(len(value), "little")
