"""A small file of records of which only the newest counts: a change is one write and one sync.

    magic 8 bytes | record | record | ...
    record: length u32 | crc32c of the payload u32 | crc32c of the 8 bytes before u32 | payload

Integers are little-endian. A file is made beside and renamed, durably, with one record in it;
then records are appended and made durable one by one. It is made again when it has grown to
`bytes_max`, and when an append has failed: what the kernel did with that one is not known.

What a crash tears is the last record, and it shows: the file ends inside of it, or a sector of it
was never written and is zero. Such a record was never promised to anybody, and the one before
counts. Anything else that does not match its checksum was damaged later: CorruptionError,
because to go on with an older record would be to take promises back.

Concurrency: the caller keeps calls apart.
"""

import itertools
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import google_crc32c

from rezone.storage.disk import syncing
from rezone.storage.disk.sync_times import SyncTimes
from rezone.storage.log.segment import Descriptor
from rezone.wire.errors import CorruptionError

_MAGIC: Final = b"RZJRN001"
_BODY: Final = struct.Struct("<II")
_CRC: Final = struct.Struct("<I")
_HEADER_BYTES: Final = _BODY.size + _CRC.size
_SECTOR_BYTES: Final = 512


class Journal:
    """The file at `path`; `newest` is the payload that counts, None before the first one."""

    def __init__(
        self, path: Path, *, bytes_max: int = 64 << 10, sync_times: SyncTimes | None = None
    ) -> None:
        self._path = path
        self._sync_times = sync_times or SyncTimes()
        self._bytes_max = bytes_max
        self._size = 0
        # None: the next record begins a new file.
        self._file: Descriptor | None = None
        self.newest: bytes | None = None
        if path.exists():
            data = path.read_bytes()
            self.newest, self._size = _read(path, data)
            if self._size == len(data):
                self._file = Descriptor(path)

    def write(self, payload: bytes) -> None:
        """Make this the newest record, durably before this returns.

        OSError when that fails: a crash then leaves this one or the one before.
        """
        record = _record(payload)
        with self._sync_times.timed():
            if self._file is None or self._size + len(record) > self._bytes_max:
                self._begin(record)
            else:
                self._append(self._file, record)
        self.newest = payload

    def begin_again(self) -> None:
        """Have the next record begin another file."""
        self._file = None

    def _append(self, file: Descriptor, record: bytes) -> None:
        self._file = None
        written = os.pwrite(file.number, record, self._size)
        if written != len(record):
            raise OSError(f"{self._path}: {written} of {len(record)} bytes were written")
        syncing.sync_data(file.number)
        self._size += written
        self._file = file

    def _begin(self, record: bytes) -> None:
        self._file = None
        syncing.write_whole(self._path, _MAGIC + record)
        self._size = len(_MAGIC) + len(record)
        self._file = Descriptor(self._path)


def _record(payload: bytes) -> bytes:
    body = _BODY.pack(len(payload), google_crc32c.value(payload))
    return b"".join((body, _CRC.pack(google_crc32c.value(body)), payload))


def whole_records(path: Path) -> Iterator[bytes]:
    """Yield the payload of each whole record of a file that may be damaged, the oldest first."""
    data, position = path.read_bytes(), 0
    while position < len(data):
        begin, length = position + _HEADER_BYTES, _length_at(data, position)
        body = data[begin : begin + length] if length is not None else b""
        crc = google_crc32c.value(body)
        if length == len(body) and crc == _BODY.unpack_from(data, position)[1]:
            yield body
            position = begin + length
        else:
            position += 1


def _read(path: Path, data: bytes) -> tuple[bytes, int]:
    """Return the newest whole payload and where it ends."""
    if not data.startswith(_MAGIC):
        raise CorruptionError(f"{path}: not a journal of this version")
    position, newest = len(_MAGIC), None
    while position < len(data):
        begin, length = position + _HEADER_BYTES, _length_at(data, position)
        end = begin + (length or 0)
        body = data[begin:end]
        if length is not None and end <= len(data):
            crc = _BODY.unpack_from(data, position)[1]
            if google_crc32c.value(body) == crc:
                position, newest = end, body
                continue
        if not _torn(data, position, end):
            raise CorruptionError(f"{path}: the record at byte {position} fails its checksum")
        break
    if newest is None:
        # A file gets its name with its first record whole on the disk.
        raise CorruptionError(f"{path}: no whole record")
    return newest, position


def _length_at(data: bytes, position: int) -> int | None:
    """Return the length in the header at `position`, None when none is there."""
    header = data[position : position + _HEADER_BYTES]
    if len(header) < _HEADER_BYTES:
        return None
    body = header[: _BODY.size]
    if _CRC.pack(google_crc32c.value(body)) != header[_BODY.size :]:
        return None
    return int.from_bytes(body[:4], "little")


def _torn(data: bytes, begin: int, end: int) -> bool:
    """Return whether a crash explains that the bytes of [begin, end) are no whole record."""
    if end > len(data):
        return True
    pieces = [begin, *range((begin // _SECTOR_BYTES + 1) * _SECTOR_BYTES, end, _SECTOR_BYTES), end]
    if all(any(data[a:b]) for a, b in itertools.pairwise(pieces)):
        return False
    # Only the last record can be torn.
    return all(_length_at(data, at) is None for at in range(end, len(data)))
