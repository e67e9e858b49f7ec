"""What a partition's disk has been made to hold, noted beside it: so that a loss shows.

A log that has lost its end reads like one that ended there, and a journal without its last record
like the one before. Both would take promises back: rows that were acknowledged, epochs that were
followed. So what has been made durable is noted in a small file of its own, without a sync of its
own: it never says more than is durable, says all of it after a crash of the process, and may be
some seconds old after one of the machine.

    magic 8 bytes | log end u64 | serial of the facts u64 | MANIFEST number u64 | its bytes u64 |
    crc32c u32

Concurrency: a lock of its own; any thread may note.
"""

import os
import struct
import threading
from pathlib import Path
from typing import Final

import google_crc32c
import structlog

from rezone.storage.disk import syncing
from rezone.storage.log.segment import Descriptor

_log = structlog.get_logger(__name__)

NAME: Final = "marks"
_MAGIC: Final = b"RZMARK01"
_BODY: Final = struct.Struct("<8sQQQQ")
_CRC: Final = struct.Struct("<I")


class Marks:
    """The file in `directory`; zeros when there is none, or none that is whole.

    - `log_end`: the log was durable up to this offset.
    - `facts`: the serial of the newest record of the journal.
    - `manifest`: number and size of the engine's MANIFEST when it was flushed last.
    """

    def __init__(self, directory: Path) -> None:
        path = directory / NAME
        self._lock = threading.Lock()
        self.log_end, self.facts, self.manifest = _read(path)
        path.touch()
        self._file = Descriptor(path)

    def log_reaches(self, offset: int) -> None:
        """Note that the log is durable up to an offset."""
        with self._lock:
            if offset > self.log_end:
                self.log_end = offset
                self._write()

    def log_is_cut(self, offset: int) -> None:
        """Note, durably before this returns, that the log is about to be cut at an offset."""
        with self._lock:
            if offset < self.log_end:
                self.log_end = offset
                self._write()
                syncing.sync_data(self._file.number)

    def facts_are_at(self, serial: int) -> None:
        """Note that a record of the journal is durable."""
        with self._lock:
            if serial > self.facts:
                self.facts = serial
                self._write()

    def engine_is_at(self, manifest: tuple[int, int]) -> None:
        """Note number and size of the engine's MANIFEST, which only grows under its number."""
        with self._lock:
            if manifest != self.manifest:
                self.manifest = manifest
                self._write()

    def _write(self) -> None:
        body = _BODY.pack(_MAGIC, self.log_end, self.facts, *self.manifest)
        os.pwrite(self._file.number, body + _CRC.pack(google_crc32c.value(body)), 0)


def _read(path: Path) -> tuple[int, int, tuple[int, int]]:
    data = path.read_bytes() if path.exists() else b""
    if not data:
        return 0, 0, (0, 0)
    body, crc = data[: _BODY.size], data[_BODY.size :]
    if len(body) < _BODY.size or crc != _CRC.pack(google_crc32c.value(body)):
        # Without it less is noticed; nothing that it stands for is lost.
        _log.warning("not whole, begun again", file=str(path))
        return 0, 0, (0, 0)
    magic, log_end, facts, number, size = _BODY.unpack(body)
    return (log_end, facts, (number, size)) if magic == _MAGIC else (0, 0, (0, 0))
