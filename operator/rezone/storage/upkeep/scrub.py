"""Reading a replica through now and then, so that damage is found while there are other copies.

What is read is checked by whoever reads it: blocks by RocksDB, log entries by the log. Both tell
the partition of damage themselves (`on_damage`). What stands in the block cache is not read from
the disk; it is read often, and would be noticed by the next reader after it has left the cache.

Concurrency: one thread, the node's collecting one.
"""

from collections.abc import Callable

from rezone.storage.engines.base import behind
from rezone.storage.log.entry import iter_entries
from rezone.storage.store import PartitionStore
from rezone.wire.errors import CorruptionError, SnapshotExpiredError

SLICES_PER_TURN = 64
"""After so many slices other partitions have their turn."""

_ROWS_MAX = 4096
_SPREAD = 2_654_435_761


class Scrubber:
    """Reads one partition through every `interval_seconds` (0: never), slice by slice."""

    def __init__(
        self,
        store: PartitionStore,
        partition: int,
        *,
        interval_seconds: float,
        clock: Callable[[], float],
        slice_bytes: int = 1 << 19,
    ) -> None:
        self._store = store
        self._interval = interval_seconds
        self._clock = clock
        self._slice_bytes = slice_bytes
        self._slices = 0
        self._rows: bytes | None = None
        self._log: int | None = None
        # Partitions take their turns over the whole interval, from the start on.
        share = (partition * _SPREAD % (1 << 32)) / (1 << 32)
        self._due = clock() + interval_seconds * share if interval_seconds else float("inf")

    def step(self) -> bool:
        """Read one slice, if due; whether the next one may follow at once."""
        if self._rows is None and self._log is None:
            if self._clock() < self._due:
                return False
            self._due = self._clock() + self._interval
            self._rows = b""
        try:
            self._read()
        except CorruptionError:
            self._rows = self._log = None
            raise
        self._slices += 1
        going_on = self._rows is not None or self._log is not None
        return going_on and self._slices % SLICES_PER_TURN != 0

    def _read(self) -> None:
        store = self._store
        if self._rows is not None:
            self._rows = self._read_rows(self._rows)
            self._log = None if self._rows is not None else store.log_start
        elif self._log is not None:
            self._log = self._read_log(self._log)

    def _read_rows(self, start: bytes) -> bytes | None:
        engine = self._store.engine
        if not engine.durable:
            return None
        chains = engine.scan_chains(start, None, rows_max=_ROWS_MAX, bytes_max=self._slice_bytes)
        return None if chains.end else behind(chains.last_row_id)

    def _read_log(self, offset: int) -> int | None:
        try:
            data = self._store.read(offset, self._slice_bytes)
        except SnapshotExpiredError:
            return self._store.log_start  # trimmed meanwhile
        if not data:
            return None
        *_, last = iter_entries(data)
        return last.header.end_offset
