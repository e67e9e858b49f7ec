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

from rezone.wire.codec.column_bytes import FIXED, LENGTH_BYTES, WIDTHS
from rezone.wire.codec.pieces import bits, nulls_of
from rezone.wire.codec.schema import Column, ColumnType


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
