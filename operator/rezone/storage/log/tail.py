"""The newest entries of a log in memory: followers that keep up never cause a read of the disk."""

import bisect
from collections import deque
from typing import NamedTuple

from rezone.wire.errors import ConflictError


class _Chunk(NamedTuple):
    """The bytes of one append, and where each of its entries begins."""

    bases: list[int]
    positions: list[int]
    data: bytes
    end: int


class Tail:
    """A bounded memory of recent appends; the caller locks."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._chunks: deque[_Chunk] = deque()
        self.bytes = 0

    def add(self, bases: list[int], positions: list[int], data: bytes, end: int) -> None:
        """Remember one append; the oldest are forgotten beyond the limit."""
        self._chunks.append(_Chunk(bases, positions, data, end))
        self.bytes += len(data)
        self._forget()

    def limit(self, bytes_max: int) -> None:
        """Remember no more than so many bytes from now on."""
        self._bytes_max = bytes_max
        self._forget()

    def clear(self) -> None:
        """Forget everything."""
        self._chunks.clear()
        self.bytes = 0

    def _forget(self) -> None:
        while self.bytes > self._bytes_max:
            self.bytes -= len(self._chunks.popleft().data)

    def read(self, offset: int, bytes_max: int) -> bytes | None:
        """Return whole entries from `offset` on, at least one; None when not remembered."""
        if not self._chunks or offset < self._chunks[0].bases[0]:
            return None
        # Followers are at the end or near it: search from there.
        at = len(self._chunks) - 1
        while self._chunks[at].bases[0] > offset:
            at -= 1
        parts: list[bytes] = []
        room = bytes_max
        first = True
        while at < len(self._chunks):
            chunk = self._chunks[at]
            part, whole = _cut(chunk, offset, room, at_least_one=first)
            parts.append(part)
            room -= len(part)
            if not whole:
                break
            offset, first, at = chunk.end, False, at + 1
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _cut(chunk: _Chunk, offset: int, room: int, *, at_least_one: bool) -> tuple[bytes, bool]:
    """Return the chunk's entries from `offset` that fit, and whether they reach its end."""
    index = bisect.bisect_left(chunk.bases, offset)
    if index == len(chunk.bases) or chunk.bases[index] != offset:
        raise ConflictError(f"offset {offset} is not the beginning of a log entry")
    start = chunk.positions[index]
    if len(chunk.data) - start <= room:
        return chunk.data[start:], True
    stop = bisect.bisect_right(chunk.positions, start + room) - 1
    if stop <= index and at_least_one:
        stop = index + 1
    if stop >= len(chunk.positions):
        return chunk.data[start:], True
    return chunk.data[start : chunk.positions[max(stop, index)]], False
