"""A file of the log that was here before a copy, brought from another replica piece by piece.

It goes before the files that there are. A piece is refused unless its entries match their
checksums and join those before; the whole is refused unless it ends exactly where the log begins,
with the commit time and the leader epoch that the log knows of the entry before its first. What is
not complete has a name that the log removes when it is opened.

Concurrency: one thread at a time.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from rezone.storage.disk import syncing
from rezone.storage.log.entry import iter_entries
from rezone.storage.log.segment import FILE_HEADER_BYTES, header_of_file
from rezone.wire.errors import ConflictError

_PARTIAL = "older.tmp"


class LogStand(NamedTuple):
    """Where a log stands: an offset, and commit time and leader epoch of the entry before it."""

    offset: int
    commit_time: int
    leader_epoch: int


class OlderFile:
    """One file under way; `begin` is where it begins, `end` where the log does."""

    def __init__(
        self,
        directory: Path,
        begin: LogStand,
        end: LogStand,
        bytes_max: int,
        prepend: Callable[[Path, LogStand, LogStand], None],
    ) -> None:
        self._directory = directory
        self._begin = begin
        self._end = end
        self._bytes_max = bytes_max
        self._prepend = prepend
        self._stand = begin
        self._partial = directory / _PARTIAL
        self._partial.write_bytes(header_of_file(*begin))
        self._bytes = FILE_HEADER_BYTES

    @property
    def offset(self) -> int:
        """Up to where its entries are here."""
        return self._stand.offset

    @property
    def is_whole(self) -> bool:
        """Whether all its entries are here."""
        return self._stand.offset == self._end.offset

    def add(self, entries: bytes) -> None:
        """Add whole entries; CorruptionError or ConflictError when they do not join."""
        self._bytes += len(entries)
        if self._bytes > self._bytes_max:
            raise ConflictError(f"a file of the log has more than {self._bytes_max} bytes")
        offset, time, epoch = self._stand
        for entry in iter_entries(entries):
            header = entry.header
            joins = header.base_offset == offset < header.end_offset <= self._end.offset
            if not joins or header.commit_time <= time or header.leader_epoch < epoch:
                raise ConflictError(f"entry at {header.base_offset} does not join {self._stand}")
            offset, time, epoch = header.end_offset, header.commit_time, header.leader_epoch
        self._stand = LogStand(offset, time, epoch)
        with self._partial.open("ab") as file:
            file.write(entries)

    def finish(self) -> None:
        """Put it before the log, durably; ConflictError when it does not end where that begins."""
        if self._stand != self._end:
            raise ConflictError(f"the file ends at {self._stand}, the log begins at {self._end}")
        with self._partial.open("rb") as file:
            syncing.sync_file(file.fileno())
        self._prepend(self._partial, self._begin, self._end)

    def drop(self) -> None:
        """Give it up."""
        self._partial.unlink(missing_ok=True)
