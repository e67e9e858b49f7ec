"""One file of a partition's log: a small header and whole entries behind each other.

The file's header says where the log stood before its first entry (offset, commit time, leader
epoch), so that a log trimmed down to one empty file still knows. Files are found by a sparse
index (one mark per 64 KiB) that is kept while appending, and built by walking the entry headers
when an older file is first read.
"""

import bisect
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import google_crc32c
import pyarrow as pa

from rezone.storage.disk import syncing
from rezone.storage.log.entry import HEADER_BYTES, EntryHeader, header_at, is_sound
from rezone.wire.errors import ConflictError, CorruptionError, SnapshotExpiredError

SUFFIX: Final = ".log"
_FILE_HEADER: Final = struct.Struct("<8sQQI")
_CRC: Final = struct.Struct("<I")
FILE_HEADER_BYTES: Final = _FILE_HEADER.size + _CRC.size
_MAGIC: Final = b"RZLOG003"
_MARK_EVERY_BYTES: Final = 64 << 10
_WALK_BYTES: Final = 1 << 20


def header_of_file(base: int, time_before: int, epoch_before: int) -> bytes:
    """Return how a file begins whose first entry has this offset."""
    head = _FILE_HEADER.pack(_MAGIC, base, time_before, epoch_before)
    return head + _CRC.pack(google_crc32c.value(head))


class Descriptor:
    """A file descriptor that closes when its last user drops it.

    A reader or a sync may still use it while the log has moved on to the next file.
    """

    def __init__(self, path: Path) -> None:
        self.number = os.open(path, os.O_RDWR)

    def __del__(self) -> None:
        number, self.number = getattr(self, "number", -1), -1
        if number >= 0:
            os.close(number)


class Segment:
    """One log file; `size` in bytes, `end` the offset after its last entry."""

    def __init__(self, path: Path, base: int, time_before: int, epoch_before: int) -> None:
        self.path = path
        self.base = base
        self.time_before = time_before
        self.epoch_before = epoch_before
        self.end = base
        self.size = FILE_HEADER_BYTES
        self._marks: list[int] = []
        self._positions: list[int] = []
        self._indexed = True

    @classmethod
    def create(cls, directory: Path, base: int, time_before: int, epoch_before: int) -> "Segment":
        """Make a new empty file, durable under its name, or not there at all."""
        path = directory / f"{base:020d}{SUFFIX}"
        syncing.write_whole(path, header_of_file(base, time_before, epoch_before))
        return cls(path, base, time_before, epoch_before)

    @classmethod
    def load(cls, path: Path) -> "Segment":
        """Open an existing file; its entries are not looked at yet."""
        with path.open("rb") as file:
            head = file.read(FILE_HEADER_BYTES)
        body = head[: _FILE_HEADER.size]
        if len(head) < FILE_HEADER_BYTES or _CRC.pack(google_crc32c.value(body)) != head[-4:]:
            raise CorruptionError(f"{path.name}: the file's header does not match its checksum")
        magic, base, time_before, epoch_before = _FILE_HEADER.unpack(body)
        if magic != _MAGIC:
            raise CorruptionError(f"{path.name}: not a log file of this version")
        segment = cls(path, base, time_before, epoch_before)
        segment._indexed = False
        segment.size = path.stat().st_size
        return segment

    def recover(self, durable: int) -> EntryHeader | None:
        """Find the end of the whole, checked entries, cut the rest off; return the last header.

        Only for the newest file: what a crash tore is at its end, behind `durable`. Below that
        it was damaged: CorruptionError, and the file stays as it is.
        """
        data = self.path.read_bytes()
        self._marks, self._positions, self._indexed = [], [], True
        self.size, self.end, last = FILE_HEADER_BYTES, self.base, None
        while (header := _valid_at(data, self.size, self.end)) is not None:
            self.note(header)
            last = header
        if self.size < len(data):
            if self.end < durable:
                raise CorruptionError(
                    f"{self.path.name}: whole until offset {self.end}, it was until {durable}"
                )
            self.cut(self.size)
        return last

    def note(self, header: EntryHeader) -> None:
        """Extend size, end and index by an entry that stands at the end of the file."""
        if not self._positions or self.size - self._positions[-1] >= _MARK_EVERY_BYTES:
            self._marks.append(header.base_offset)
            self._positions.append(self.size)
        self.size += header.length
        self.end = header.end_offset

    def cut(self, size: int) -> None:
        """Shorten the file to `size` bytes, durably."""
        with self.path.open("r+b") as file:
            file.truncate(size)
            file.flush()
            syncing.sync_file(file.fileno())

    def cut_at(self, offset: int) -> None:
        """Remove the entries from `offset` on; `ConflictError` when no entry begins there."""
        position = self.position_of(offset)
        self.cut(position)
        self.size, self.end = position, offset
        keep = bisect.bisect_left(self._marks, offset)
        del self._marks[keep:], self._positions[keep:]

    def position_of(self, offset: int) -> int:
        """Return where the entry with this base offset begins (or the end)."""
        if offset == self.end and self._indexed:
            return self.size
        for position, header in self.walk(offset):
            if header.base_offset == offset:
                return position
            break
        if offset == self.end:
            return self.size
        raise ConflictError(f"offset {offset} is not the beginning of a log entry")

    def header_before(self, offset: int) -> EntryHeader | None:
        """Return the header of the entry that ends at `offset`, None at the file's base."""
        if offset == self.base:
            return None
        for _, header in self.walk(offset - 1):
            if header.end_offset == offset:
                return header
            break
        raise ConflictError(f"offset {offset} is not the end of a log entry")

    def offset_after(self, time: int) -> int:
        """Return where the first entry with a later commit time begins; the end without any."""
        self._build_index()

        def time_of_mark(number: int) -> int:
            header = header_at(self.read_at(self._positions[number], HEADER_BYTES), 0)
            if header is None:
                raise CorruptionError(f"{self.path.name}: no log entry at a mark")
            return header.commit_time

        at = bisect.bisect_right(range(len(self._marks)), time, key=time_of_mark) - 1
        if at < 0:
            return self.base
        later = (h for _, h in self._headers(self._positions[at]) if h.commit_time > time)
        first = next(later, None)
        return self.end if first is None else first.base_offset

    def walk(self, offset: int) -> Iterator[tuple[int, EntryHeader]]:
        """Yield (position, header) from the entry that contains `offset` on."""
        self._build_index()
        at = bisect.bisect_right(self._marks, offset) - 1
        if at < 0:
            return
        yield from (
            (position, header)
            for position, header in self._headers(self._positions[at])
            if header.end_offset > offset
        )

    def _headers(self, position: int) -> Iterator[tuple[int, EntryHeader]]:
        """Yield (position, header) of the entries from `position` on, without their bodies."""
        window, window_at = pa.py_buffer(b""), position
        while position < self.size:
            header = header_at(window, position - window_at)
            if header is None:
                wanted = min(_WALK_BYTES, self.size - position)
                window, window_at = pa.py_buffer(self.read_at(position, wanted)), position
                header = header_at(window, 0)
            if header is None or header.length <= HEADER_BYTES or header.rows == 0:
                raise CorruptionError(f"{self.path.name}: no log entry at byte {position}")
            yield position, header
            position += header.length
            if position - window_at > window.size:
                window, window_at = pa.py_buffer(b""), position

    def _build_index(self) -> None:
        if self._indexed:
            return
        size, end = self.size, self.base
        marks: list[int] = []
        positions: list[int] = []
        for position, header in self._headers(FILE_HEADER_BYTES):
            if header.base_offset != end:
                raise CorruptionError(f"{self.path.name}: a gap before offset {end}")
            if not positions or position - positions[-1] >= _MARK_EVERY_BYTES:
                marks.append(header.base_offset)
                positions.append(position)
            end = header.end_offset
        if end != self.end:
            raise CorruptionError(f"{self.path.name}: ends at {end}, {self.end} comes next")
        self._marks, self._positions, self._indexed = marks, positions, True
        self.size = size

    def read_at(self, position: int, size: int) -> bytes:
        """Return up to `size` bytes at `position`."""
        try:
            with self.path.open("rb", buffering=0) as file:
                return os.pread(file.fileno(), size, position)
        except FileNotFoundError as error:
            raise SnapshotExpiredError(f"{self.path.name} has been trimmed") from error


def _valid_at(data: bytes, position: int, expected: int) -> EntryHeader | None:
    """Return the header of the whole, checked entry at `position`, None when there is none.

    A file of small entries has a hundred thousand of them, and each is looked at before its data
    node serves again.
    """
    header = header_at(data, position)
    if header is None or header.base_offset != expected:
        return None
    if not (HEADER_BYTES < header.length <= len(data) - position and header.rows > 0):
        return None
    return header if is_sound(header, data[position : position + header.length]) else None
