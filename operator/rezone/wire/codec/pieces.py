"""Arrow arrays as bytes: what the row format and the index format are put together from.

The trick both ways: Arrow's offsets may be drawn anywhere in a buffer, so the pieces of all rows
are one array of `rows * pieces` elements over the same bytes, and `take` reorders them in C. No
function here loops over rows in Python, except where they are few (`FEW_ROWS`).
"""

import itertools
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rezone.wire.errors import CorruptionError

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]

_BINARY = pa.binary()

FEW_ROWS = 32
"""Up to so many rows a loop in Python costs less than the call of a kernel.

Most of all in a process that has slept since the last write: its caches are cold, and what counts
is how much code is run through once.
"""


def bits(buffer: Any, offset: int, length: int) -> Bytes:
    """Return `length` bits from bit `offset` on, one byte each."""
    first = offset // 8
    raw = np.frombuffer(buffer, np.uint8, (offset + length + 7) // 8 - first, first)
    start = offset - first * 8
    return np.unpackbits(raw, bitorder="little")[start : start + length]


def nulls_of(array: Any) -> Bytes:
    """Return one byte per element, 1 where it is null."""
    validity = array.buffers()[0]
    if validity is None or not array.null_count:
        return np.zeros(len(array), np.uint8)
    return 1 - bits(validity, array.offset, len(array))


def validity_of(nulls: Bytes) -> Any:
    """Return the validity buffer of an array whose elements are null where there is a 1."""
    return pa.py_buffer(np.packbits(1 - nulls, bitorder="little"))


def as_binary(array: Any) -> Any:
    """Return a string array as the bytes it is."""
    return array if array.type == pa.binary() else array.view(pa.binary())


def offsets_of(array: Any) -> npt.NDArray[np.int32]:
    """Return where a binary or string array's elements begin in its bytes, and the last ends."""
    buffer = array.buffers()[1]
    if buffer is None or not buffer.size:
        return np.zeros(len(array) + 1, np.int32)
    return np.frombuffer(buffer, np.int32, len(array) + 1, array.offset * 4)


def lengths_of(array: Any) -> npt.NDArray[np.int32]:
    """Return the byte lengths of a binary or string array; a null counts 0."""
    offsets = offsets_of(array)
    lengths = offsets[1:] - offsets[:-1]
    return np.where(nulls_of(array), np.int32(0), lengths) if array.null_count else lengths


class ByteStrings:
    """Byte strings that lie in one buffer, each from its start to its end; none is null.

    What is behind one is skipped without a copy of the others: keys in row ids, values behind their
    flags, the versions that show.
    """

    __slots__ = ("data", "ends", "starts")

    def __init__(self, data: Bytes, starts: Ints, ends: Ints) -> None:
        self.data = data
        self.starts = starts
        self.ends = ends

    @classmethod
    def of(cls, strings: Any) -> "ByteStrings":
        """Return the elements of a binary array or a list of bytes; such strings as they are."""
        if isinstance(strings, cls):
            return strings
        array = pa.array(strings, pa.binary()) if isinstance(strings, list) else strings
        offsets = offsets_of(array).astype(np.int64)
        base = offsets[0]
        count = int(offsets[-1] - base)
        data = np.zeros(0, np.uint8)
        if count:
            data = np.frombuffer(array.buffers()[2], np.uint8, count, base)
        offsets -= base
        return cls(data, offsets[:-1], offsets[1:])

    def __len__(self) -> int:
        return len(self.starts)

    def chosen(self, which: npt.NDArray[Any]) -> "ByteStrings":
        """Return those at some places, or those for which a mask has True."""
        return ByteStrings(self.data, self.starts[which], self.ends[which])

    def array(self, kind: Any = _BINARY, validity: Any = None) -> Any:
        """Return them as an Arrow array of `kind`, binary or string."""
        rows = len(self)
        if not rows:
            return pa.array([], kind)
        bounds = np.empty(rows * 2, np.int32)
        # Every other element is one of these, those between reach from one's end to the next.
        bounds[0::2], bounds[1::2] = self.starts, self.ends
        buffers = [None, pa.py_buffer(bounds), pa.py_buffer(self.data)]
        pieces = pa.Array.from_buffers(_BINARY, len(bounds) - 1, buffers)
        wanted = pieces.take(pa.array(np.arange(0, rows * 2, 2)))
        return pa.Array.from_buffers(kind, rows, [validity, *wanted.buffers()[1:]])

    def tolist(self) -> list[bytes]:
        """Return them one by one."""
        bounds = zip(self.starts.tolist(), self.ends.tolist(), strict=True)
        return [self.data[start:end].tobytes() for start, end in bounds]


def gather(data: Bytes, at: Ints, ends: Ints, width: int) -> Bytes:
    """Return `width` bytes from each place, shape (rows, width)."""
    if np.any(at + width > ends):
        raise CorruptionError("an encoded row is shorter than its fixed part")
    if not width or not len(at):
        return np.zeros((len(at), width), np.uint8)
    windows = np.lib.stride_tricks.sliding_window_view(data, width)
    gathered: Bytes = np.ascontiguousarray(windows[at])
    return gathered


def refuse_corrupt(start: Ints, end: Ints, limit: Ints, what: str) -> None:
    """Raise CorruptionError where a part would begin behind its end, or end behind `limit`."""
    if np.any(end < start) or np.any(end > limit):
        raise CorruptionError(f"a length in an encoded {what} points outside of it")


def fixed_pieces(raw: Bytes, width: int | None = None) -> Any:
    """Return a BinaryArray over bytes that come in pieces of one width."""
    width = raw.shape[1] if width is None else width
    rows = raw.size // width
    offsets = np.arange(0, (rows + 1) * width, width, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(raw).ravel())]
    return pa.Array.from_buffers(pa.binary(), rows, buffers)


def join(pieces: list[Any], rows: int) -> Any:
    """Return, row by row, the pieces one after the other; null where one of them is."""
    if not pieces:
        offsets = pa.py_buffer(np.zeros(rows + 1, np.int32))
        return pa.Array.from_buffers(pa.binary(), rows, [None, offsets, pa.py_buffer(b"")])
    if len(pieces) == 1:
        return pieces[0]
    if rows <= FEW_ROWS:
        parts = zip(*(piece.to_pylist() for piece in pieces), strict=True)
        return pa.array([None if None in row else b"".join(row) for row in parts], pa.binary())
    return pc.binary_join_element_wise(*pieces, pa.scalar(b"", pa.binary()))


def binary_array(values: Sequence[bytes]) -> Any:
    """Return a BinaryArray of some bytes; faster than Arrow's conversion for few of them."""
    ends = itertools.accumulate(map(len, values), initial=0)
    offsets = pa.py_buffer(struct.pack(f"<{len(values) + 1}i", *ends))
    buffers = [None, offsets, pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)


def as_list(items: Any) -> list[bytes]:
    """Return byte strings, or a BinaryArray without nulls, as a list; lists as they are."""
    if isinstance(items, list):
        return items
    found: list[bytes] = items.tolist() if isinstance(items, ByteStrings) else items.to_pylist()
    return found
