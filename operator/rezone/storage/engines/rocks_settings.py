"""How RocksDB is set up: what each database gets, and what all databases of a node share.

Concurrency: the shared part is thread-safe.
"""

import contextlib
import threading
import weakref
from collections.abc import Callable
from typing import Protocol

import msgspec
import rocksdict

from rezone.wire.errors import NotReadyError

_ARENA_BLOCK_BYTES = 64 << 10
_WRITEBACK_BYTES = 1 << 20
_FLUSH_SHARE = 0.5
_WAIT_SHARE = 0.75  # RocksDB flushes whoever writes from 7/8 on

MERGE_BYTES_MAX = 25 * (64 << 20)
"""What one merge of files writes at most before it deletes what it has read: RocksDB's default."""


def _always(_: int) -> bool:
    return True


class Flushable(Protocol):
    """An engine, as far as sharing goes."""

    def unflushed_bytes(self, *, flushing: bool = True) -> int:
        """Return the memory of memtables, of those being flushed too or not; 0 once closed."""
        ...

    def flush(self, *, wait: bool = True) -> None:
        """Write the memtable out; wait for it, or only begin."""
        ...


class RocksResources:
    """What all engines of a node share: block cache and the memory for unflushed rows.

    RocksDB would flush whoever writes when that memory is nearly full, however little it has, and
    take its rows meanwhile. So engines ask for room before that, and the one with the most gives.
    """

    def __init__(self, *, block_cache_bytes: int, write_buffers_bytes: int) -> None:
        self.cache = rocksdict.Cache(block_cache_bytes)
        # Never stall a writer inside RocksDB: it would hold the interpreter lock meanwhile.
        self.write_buffers = rocksdict.WriteBufferManager(write_buffers_bytes, allow_stall=False)
        self._flush_from = int(write_buffers_bytes * _FLUSH_SHARE)
        self._wait_from = int(write_buffers_bytes * _WAIT_SHARE)
        self._engines: weakref.WeakSet[Flushable] = weakref.WeakSet()
        self._lock = threading.Lock()

    def add(self, engine: Flushable) -> None:
        """Take part in the sharing, until it is closed."""
        with self._lock:
            self._engines.add(engine)

    def remove(self, engine: Flushable) -> None:
        """Forget an engine."""
        with self._lock:
            self._engines.discard(engine)

    @property
    def unflushed_bytes(self) -> int:
        """The memory of all unflushed rows."""
        return int(self.write_buffers.get_usage())

    def make_room(self) -> None:
        """Flush the engines with the most unflushed rows while all together have too many.

        Half of the memory begins a flush; only from three quarters on is it waited for.
        """
        while (used := self.unflushed_bytes) >= self._flush_from:
            with self._lock:
                engines = list(self._engines)
            wait = used >= self._wait_from
            sizes = [(e.unflushed_bytes(flushing=wait), n) for n, e in enumerate(engines)]
            size, number = max(sizes, default=(0, 0))
            if size <= _ARENA_BLOCK_BYTES:
                return
            with contextlib.suppress(NotReadyError):
                engines[number].flush(wait=wait)
            if not wait:
                return


class RocksSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one partition's database; a node with 256 partitions has 256 of each.

    `write_buffer_bytes`: a database with so many unflushed rows flushes them by itself. It is more
    than a copy has between two flushes, or each would make two files. `resources` limits the sum.
    `manifest_bytes_max`: how long the list of all changes of files gets, 0.2 KiB a flush, until
    RocksDB begins another one with what is there then, 0.1 KiB a file. Opening reads it and a
    checkpoint copies it, both with the interpreter lock held: 5 and 0.7 ms a mebibyte.
    `has_room` says whether the disk has room for so many bytes more. Not `merging`: the last merge
    of files has filled the disk, and none begins until what is to be merged fits.
    """

    write_buffer_bytes: int = 64 << 20
    compression: str = "none"
    open_files_max: int = 64
    manifest_bytes_max: int = 1 << 20
    resources: RocksResources | None = None
    has_room: Callable[[int], bool] = _always
    merging: bool = True


def options_of(settings: RocksSettings) -> rocksdict.Options:
    """Return what a partition's database is opened with."""
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(create_if_missing=True)
    options.set_write_buffer_size(settings.write_buffer_bytes)
    # A part of which is taken by each of 256 databases as soon as it has one row.
    options.set_arena_block_size(_ARENA_BLOCK_BYTES)
    # A flush begins at once while those of a copy's rows and of their index entries are under way.
    # With fewer it would wait for the first, and take rows along that come meanwhile.
    options.set_max_write_buffer_number(6)
    # Each sealed memtable gets a file of its own, however many wait: entries none with rows.
    options.set_atomic_flush(atomic_flush=True)
    # The kernel writes out each file as it grows: the syncs of logs on that disk need not wait.
    options.set_bytes_per_sync(_WRITEBACK_BYTES)
    options.set_max_background_jobs(2)
    options.set_max_compaction_bytes(MERGE_BYTES_MAX)
    options.set_max_open_files(settings.open_files_max)
    options.set_max_manifest_file_size(settings.manifest_bytes_max)
    # Else opening a database starts and ends 16 threads, with the interpreter lock held.
    options.set_max_file_opening_threads(1)
    options.set_compression_type(getattr(rocksdict.DBCompressionType, settings.compression)())
    options.set_keep_log_file_num(1)
    options.set_max_log_file_size(1 << 20)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    table = rocksdict.BlockBasedOptions()
    table.set_block_size(16 << 10)
    table.set_format_version(5)
    if settings.resources is not None:
        table.set_block_cache(settings.resources.cache)
        # Else they are beside the cache, and grow with the rows.
        table.set_cache_index_and_filter_blocks(True)
        options.set_write_buffer_manager(settings.resources.write_buffers)
    options.set_block_based_table_factory(table)
    return options
