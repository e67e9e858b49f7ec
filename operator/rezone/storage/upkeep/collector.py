"""When a partition's old versions are worth a pass over its whole key space, and the pass itself.

Writes are blind (decision 0003), so nobody knows what a write has covered; but a version can only
become removable when the time reads may still ask for passes that of a newer version. So a pass
also finds out at which time the next one has something to do, and a partition that is not written
to is never looked at again. After a restart or a copy that time is unknown: one pass finds it.

Concurrency: one thread, the node's collecting one.
"""

from collections.abc import Callable

from rezone.storage.engines.base import TIME_MAX
from rezone.storage.store import PartitionStore


class Collector:
    """Collects one partition's old versions in slices.

    `pause_seconds` gives the least time between two passes: garbage may lie about for as long. A
    slice of `slice_bytes` is looked at in one go, with the partition's storage locked.
    """

    def __init__(
        self,
        store: PartitionStore,
        *,
        pause_seconds: Callable[[], float],
        clock: Callable[[], float],
        slice_bytes: int = 1 << 19,
    ) -> None:
        self._slice_bytes = slice_bytes
        self._store = store
        self._pause_seconds = pause_seconds
        self._clock = clock
        self._cursor: bytes | None = None
        self._known = TIME_MAX
        self._found = TIME_MAX
        self._not_before = float("-inf")

    def step(self, before_time: int) -> bool:
        """Collect one slice, if anything is due; whether the next one may follow at once."""
        if self._cursor is None and not self._begin(before_time):
            return False
        assert self._cursor is not None, "a pass has a place"  # noqa: S101 - invariant
        collected = self._store.collect(before_time, self._cursor, self._slice_bytes)
        if collected.cursor == self._cursor:
            return False  # a snapshot is being read: go on from here when it has ended
        self._found = min(self._found, collected.next_time)
        self._cursor = collected.cursor
        if self._cursor is None:
            self._known = self._found
            self._not_before = self._clock() + self._pause_seconds()
        return self._cursor is not None

    def _begin(self, before_time: int) -> bool:
        if self._clock() < self._not_before:
            return False
        if min(self._known, self._store.changed_from) > before_time:
            return False
        self._store.begin_collection()
        self._cursor, self._found = b"", TIME_MAX
        return True
