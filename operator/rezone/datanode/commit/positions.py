"""How far a replica is: which rows are committed, and up to which time they may be read.

Concurrency: guarded by the partition's lock; its condition is notified when reads see more.
"""

import threading
from collections import deque
from collections.abc import Callable

from rezone.storage.log.entry import header_at
from rezone.storage.store import PartitionStore


class Positions:
    """The positions of one replica; times are commit times in microseconds.

    `rows_time` is the last row's that can be read, `readable_time` may be a later one that was
    closed: `closed_until` says that for an applied offset.
    """

    def __init__(
        self,
        store: PartitionStore,
        changed: threading.Condition,
        closed_until: Callable[[int], int],
    ) -> None:
        self._store = store
        self._changed = changed
        self._closed_until = closed_until
        self.committed = min(store.meta.committed_offset, store.log_end)
        known = store.applied <= self.committed and not store.meta.needs_snapshot
        self.readable_time = self.rows_time = store.applied_time if known else 0
        self._stamps: deque[tuple[int, int]] = deque()
        if store.log_end:
            self._stamps.append((store.log_end, store.last_commit_time))

    def appended(self, raw: bytes) -> None:
        """Note whole entries that are in the log now."""
        self._stamps.extend(stamps_of(raw))

    def commit(self, offset: int) -> None:
        """Take a newer commit offset; an older one changes nothing."""
        assert offset <= self._store.log_end, "committed beyond the log"  # noqa: S101 - invariant
        if offset > self.committed:
            self.committed = offset
            self._store.note_committed(offset)
            self.note_applied()

    def note_applied(self) -> None:
        """Work out up to which time reads see all that is committed."""
        if self._store.meta.needs_snapshot:
            return  # a copy begins by dropping the rows
        applied, before = min(self.committed, self._store.applied), self.readable_time
        while self._stamps and self._stamps[0][0] <= applied:
            self.rows_time = self._stamps.popleft()[1]
        self.readable_time = max(before, self.rows_time, self._closed_until(applied))
        if self.readable_time != before:
            self._changed.notify_all()

    def make_unreadable(self) -> None:
        """Let nothing be read from now on: the rows are about to be dropped."""
        self.readable_time = self.rows_time = 0

    def follow_cut(self) -> None:
        """Fall back to the end of a log that has been cut or dropped."""
        end = self._store.log_end
        self._stamps = deque(stamp for stamp in self._stamps if stamp[0] <= end)
        self.committed = min(self.committed, end)

    def begin_after_copy(self, *, settled: bool) -> None:
        """Stand where a copy ends, which is where the log begins.

        Where that is not known to be committed (`settled`), the leader will say it, or nobody.
        """
        self._stamps.clear()
        self._stamps.append((self._store.log_end, self._store.last_commit_time))
        if settled:
            self.commit(self._store.log_end)


def stamps_of(raw: bytes) -> list[tuple[int, int]]:
    """Return (end offset, commit time) of each of these whole entries."""
    position, stamps = 0, []
    while (header := header_at(raw, position)) is not None:
        stamps.append((header.end_offset, header.commit_time))
        position += header.length
    return stamps
