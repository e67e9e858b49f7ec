"""The RocksDB engine (rocksdict, raw mode).

RocksDB's own write-ahead log is off: the partition's log is the log. A crash loses what is still
in a memtable, and RocksDB writes memtables out in order, so the database is then as it was after
some earlier step and its applied offset says which. Rows and state share one column family on
purpose: they are flushed together, and a partition has one memtable, not two.

Concurrency: rocksdict calls are thread-safe, but an iterator keeps the database (and its lock
file) alive after `close`. So each read is counted and `close` waits for the running ones, for a
bounded time.
`write`, `checkpoint` and opening hold the interpreter lock for their whole time, `flush` does not.
"""

import contextlib
import importlib.metadata
import itertools
import re
import threading
import uuid
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import rocksdict
import structlog

from rezone.storage.disk import syncing
from rezone.storage.engines.base import (
    FLAG_INTENT,
    FLAG_VALUE,
    INDEX_PREFIX,
    STATE_PREFIX,
    TIME_BYTES,
    Chains,
    OnDamage,
    rows_end,
    time_of,
    time_suffix,
)
from rezone.storage.engines.rocks_settings import MERGE_BYTES_MAX, RocksSettings, options_of
from rezone.wire.errors import CorruptionError, NotReadyError

_log = structlog.get_logger()

_ROWS_PER_CALL_MAX = 1024
_KEY_BYTES_ABOUT = 32
# A slice of a scan takes milliseconds, a flush on a busy disk seconds; what takes longer than this
# waits for a disk that has gone, and whoever closes holds locks that others wait for.
_CLOSE_SECONDS_MAX = 30.0
_CURRENT_FILE = "CURRENT"
_IDENTITY_FILE = "IDENTITY"
_ID_FILE = "rezone-engine-id"
_ID = re.compile(rb"[0-9a-f]{32}")
# As RocksDB's errors begin; the last is the text of EIO.
_DAMAGE = ("Corruption:", "No such file or directory", "Input/output error")
FILE_FORMAT = f"rocksdb-1/{importlib.metadata.version('rocksdict')}"
"""This module's key format, and the library: RocksDB opens older files, not newer ones."""


class RocksEngine:
    """One partition's RocksDB."""

    durable = True
    file_format = FILE_FORMAT

    def __init__(self, directory: Path, settings: RocksSettings) -> None:
        self._has_room = settings.has_room
        # One merge that fills the disk makes RocksDB refuse all writes until it is opened again,
        # and then the same merge would begin.
        self._merging = settings.merging and settings.has_room(0)
        self.options = options_of(settings)
        self.options.set_disable_auto_compactions(not self._merging)
        self.on_damage: OnDamage = lambda _: None
        self._directory = directory
        if any(directory.glob("*.sst")) and not (directory / _CURRENT_FILE).exists():
            # RocksDB would begin a new database there, and remove the files of the old one.
            raise CorruptionError(f"{directory}: {_CURRENT_FILE} is missing")
        try:
            self._db = rocksdict.Rdict(str(directory), self.options)
        except Exception as error:  # rocksdict raises bare Exception
            raise _named(error, directory) from error
        self._resources = settings.resources
        self.engine_id = _engine_id(directory)
        self._no_wal = rocksdict.WriteOptions()
        self._no_wal.disable_wal = True
        self._counting = threading.RLock()
        self._idle = threading.Condition(self._counting)
        self._readers = 0
        self._closing = False
        self._closed = False
        if self._resources is not None:
            self._resources.add(self)
        self._row_bytes = 1024.0  # running mean of a version's size, to size the next slice

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        with self._counting:
            if self._closing:
                raise NotReadyError("the partition's storage is closed")
            self._readers += 1
        try:
            yield
        except Exception as error:
            if type(error) is not Exception:  # rocksdict raises bare Exception
                raise
            # Into no variable: the cycle would keep iterators, and with them the database, open.
            raise self._told(error) from error
        finally:
            with self._counting:
                self._readers -= 1
                if self._closing:
                    self._idle.notify_all()

    def _told(self, error: Exception) -> CorruptionError | OSError:
        named = _named(error, self._directory)
        if isinstance(named, CorruptionError):
            self.on_damage(CorruptionError(named.message))
        return named

    def apply(
        self,
        puts: Sequence[tuple[bytes, bytes]],
        deletes: Sequence[bytes],
        state: Mapping[bytes, bytes | None],
    ) -> None:
        """Write versions, delete keys and change named state in one write batch."""
        batch = rocksdict.WriteBatch(raw_mode=True)
        put = batch.put
        for key, value in puts:
            put(key, value)
        for key in deletes:
            batch.delete(key)
        for name, content in state.items():
            if content is None:
                batch.delete(STATE_PREFIX + name)
            else:
                batch.put(STATE_PREFIX + name, content)
        with self._reading():
            self._db.write(batch, self._no_wal)

    def load(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Write versions in one write batch, filled in C."""
        batch = rocksdict.WriteBatch(raw_mode=True)
        deque(map(batch.put, keys, values), maxlen=0)
        with self._reading():
            self._db.write(batch, self._no_wal)

    def state(self) -> dict[bytes, bytes]:
        """Return all named state."""
        with self._reading():
            items = self._db.items(from_key=STATE_PREFIX, read_opt=_until(INDEX_PREFIX))
            found = {key[len(STATE_PREFIX) :]: value for key, value in items}
            del items
            last = STATE_PREFIX + max(found) if found else STATE_PREFIX
            self._require_end(last, _until(INDEX_PREFIX))
        return found

    def newest(self, row_ids: Sequence[bytes], as_of: int) -> list[bytes | None]:
        """Return each row's newest value at `as_of`; one seek a row."""
        suffix = time_suffix(as_of)
        with self._reading():
            cursor = self._db.iter()
            found = [_visible(cursor, row, suffix) for row in row_ids]
            del cursor
        return found

    def newest_times(self, row_ids: Sequence[bytes]) -> list[int]:
        """Return the commit time of each row's newest version that is no intent; one seek a row."""
        with self._reading():
            cursor = self._db.iter()
            found = [_newest_time(cursor, row) for row in row_ids]
            del cursor
        return found

    def scan_chains(
        self, start: bytes, end: bytes | None, *, rows_max: int, bytes_max: int
    ) -> Chains:
        """Return whole chains in order, until a limit is reached."""
        with self._reading():
            options = _until(rows_end(start, end))
            # Who reads everything must not push out of the cache what others read again and again.
            options.fill_cache(False)  # noqa: FBT003 - RocksDB's signature
            items = self._db.items(from_key=start, read_opt=options)
            keys, values, complete = self._collect(items, rows_max, bytes_max)
            if not complete:
                last_row = keys[-1][:-TIME_BYTES]
                complete = True
                for key, value in items:
                    if key[:-TIME_BYTES] != last_row:
                        complete = False
                        break
                    keys.append(key)
                    values.append(value)
            del items
            if complete:
                self._require_end(keys[-1] if keys else start, options)
        return Chains(keys, values, end=complete)

    def _require_end(self, last: bytes, options: rocksdict.ReadOptions) -> None:
        """Make sure that an iterator over items ended there because nothing follows.

        It ends at a damaged block just as at its end, and says nothing.
        """
        cursor = self._db.iter(options)
        cursor.seek(last)
        if cursor.valid() and cursor.key() == last:
            cursor.next()
        cursor.status()
        if cursor.valid():
            raise CorruptionError(f"{self._directory}: rows after {last.hex()} cannot be read")
        del cursor

    def _collect(
        self, items: Iterator[tuple[bytes, bytes]], rows_max: int, bytes_max: int
    ) -> tuple[list[bytes], list[bytes], bool]:
        """Take versions until a limit; the last value says whether none are left.

        Versions are taken many per call into C; how many follows from the mean size so far.
        """
        keys: list[bytes] = []
        values: list[bytes] = []
        size = 0
        while size < bytes_max and len(keys) < rows_max:
            wanted = int((bytes_max - size) / self._row_bytes) + 1
            wanted = min(wanted, rows_max - len(keys), _ROWS_PER_CALL_MAX)
            taken = list(itertools.islice(items, wanted))
            if taken:
                # Two comprehensions: zip(*taken) takes seven times as long.
                keys += [key for key, _ in taken]
                chunk = [value for _, value in taken]
                chunk_bytes = sum(map(len, chunk)) + _KEY_BYTES_ABOUT * len(chunk)
                values += chunk
                size += chunk_bytes
                self._row_bytes = (self._row_bytes + chunk_bytes / len(chunk)) / 2
            if len(taken) < wanted:
                return keys, values, True
        return keys, values, False

    def chains_of(self, row_ids: Sequence[bytes], since: int = 0) -> Chains:
        """Return the versions of these rows from a time on; one seek a row."""
        suffix = time_suffix(since)
        keys: list[bytes] = []
        values: list[bytes] = []
        with self._reading():
            cursor = self._db.iter()
            for row in row_ids:
                cursor.seek(row)
                last = row + suffix
                while cursor.valid() and (key := cursor.key()) <= last and key[:-TIME_BYTES] == row:
                    keys.append(key)
                    values.append(cursor.value())
                    cursor.next()
                cursor.status()
            del cursor
        return Chains(keys, values, end=True)

    def delete_range(self, start: bytes, end: bytes) -> None:
        """Delete all versions in [start, end) by one range tombstone."""
        with self._reading():
            self._db.delete_range(start, rows_end(start, end), self._no_wal)

    def make_room(self) -> None:
        """Have room in the memory that all engines share."""
        if self._resources is not None:
            self._resources.make_room()

    def look_at_room(self) -> None:
        """Stop merging files without room on the disk; go on when what is to be merged fits."""
        pending = self._property("rocksdb.estimate-pending-compaction-bytes")
        merging = self._has_room(0 if self._merging else min(pending, MERGE_BYTES_MAX))
        if merging == self._merging:
            return
        with self._reading():
            self._db.set_options({"disable_auto_compactions": str(not merging).lower()})
        self._merging = merging

    def unflushed_bytes(self, *, flushing: bool = True) -> int:
        """Return the memory of memtables, of those being flushed too or not; 0 once closed."""
        name = "cur-size-all-mem-tables" if flushing else "cur-size-active-mem-table"
        try:
            return self._property(f"rocksdb.{name}")
        except NotReadyError:
            return 0

    def flush(self, *, wait: bool = True) -> None:
        """Write the memtable out; wait for it, or only begin."""
        with self._reading():
            self._db.flush(wait)

    def checkpoint(self, directory: Path) -> None:
        """Have RocksDB make `directory` and link its files there.

        OSError when `directory` exists, or the file system refuses it or the links.
        """
        with self._reading():
            # RocksDB flushes before a checkpoint, and before that waits for merges where another
            # file would slow writers down, even with nothing to flush. This flush waits for them
            # without the interpreter lock.
            self._db.flush()
            rocksdict.Checkpoint(self._db).create_checkpoint(str(directory))
            # RocksDB leaves it out. Whoever opens the files without it writes it again, and waits
            # for the disk twice more with the interpreter lock held.
            (directory / _IDENTITY_FILE).hardlink_to(self._directory / _IDENTITY_FILE)

    def manifest(self) -> tuple[int, int]:
        """Return number and bytes of the MANIFEST that CURRENT names."""
        return manifest_of(self._directory)

    def versions_estimate(self) -> int:
        """Return RocksDB's estimate of its keys."""
        return self._property("rocksdb.estimate-num-keys")

    def bytes_estimate(self) -> int:
        """Return the live bytes of files, and those of memtables."""
        return self._property("rocksdb.estimate-live-data-size") + self._property(
            "rocksdb.cur-size-active-mem-table"
        )

    def memory_bytes(self) -> int:
        """Return the memory of memtables and table readers; the shared cache is not counted."""
        return self._property("rocksdb.size-all-mem-tables") + self._property(
            "rocksdb.estimate-table-readers-mem"
        )

    def _property(self, name: str) -> int:
        with self._reading():
            return int(self._db.property_int_value(name) or 0)

    def close(self) -> None:
        """Wait for running readers, then close the database; once more after an OSError.

        OSError when they go on for too long. The database is left to them then: beside an iterator
        it would stay open, and locked, anyway. What the disk refuses to take now is in the
        partition's log; the database is closed all the same.
        """
        with self._counting:
            self._closing = True
            if not self._idle.wait_for(lambda: self._readers == 0, _CLOSE_SECONDS_MAX):
                raise OSError(f"{self._directory}: {self._readers} readers do not end")
            if self._closed:
                return
            self._closed = True
        if self._resources is not None:
            self._resources.remove(self)
        try:
            self._db.close()
        except Exception as error:
            if type(error) is not Exception:  # rocksdict raises bare Exception
                raise
            _log.warning("closed without a sync", directory=str(self._directory), error=str(error))


def _engine_id(directory: Path) -> str:
    """Return the engine's name, made when it has none yet.

    RocksDB's own identity will not do: it travels with a checkpoint, and then two databases give
    the same names to different files.
    """
    path = directory / _ID_FILE
    if not path.exists() or not _ID.fullmatch(path.read_bytes()):
        syncing.write_whole(path, uuid.uuid4().hex.encode())
    return path.read_text()


def manifest_of(directory: Path) -> tuple[int, int]:
    """Return number and bytes of a database's MANIFEST; zeros where there is none to be found.

    Also at the moment when another one has taken its place.
    """
    try:
        name = (directory / _CURRENT_FILE).read_text().strip()
        return int(name.rpartition("-")[2]), (directory / name).stat().st_size
    except (OSError, ValueError):
        return 0, 0


def _named(error: Exception, directory: Path) -> CorruptionError | OSError:
    """Return RocksDB's error by its meaning: damage, or something that may pass."""
    text = str(error).strip()
    damaged = any(word in text for word in _DAMAGE)
    return (CorruptionError if damaged else OSError)(f"{directory}: {text}")


def _until(end: bytes) -> rocksdict.ReadOptions:
    options = rocksdict.ReadOptions()
    options.set_iterate_upper_bound(end)
    return options


def _visible(cursor: Any, row: bytes, suffix: bytes) -> bytes | None:
    cursor.seek(row + suffix)
    while cursor.valid():
        if cursor.key()[:-TIME_BYTES] != row:
            return None
        value: bytes = cursor.value()
        if value[0] != FLAG_INTENT:
            return value[1:] if value[0] == FLAG_VALUE else None
        cursor.next()
    cursor.status()
    return None


def _newest_time(cursor: Any, row: bytes) -> int:
    cursor.seek(row)
    while cursor.valid() and (key := cursor.key())[:-TIME_BYTES] == row:
        if cursor.value()[0] != FLAG_INTENT:
            return time_of(key)
        cursor.next()
    cursor.status()
    return 0
