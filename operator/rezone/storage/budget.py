"""Accounts of bytes with a limit, which the partitions of a node share.

Concurrency: thread-safe.
"""

import threading

from rezone.wire.errors import OverloadedError

_ROOM_WAIT_SECONDS = 0.05
"""What goes wakes who waits for room; so long at most, as a caller may have ended meanwhile."""


class Budget:
    """Bytes of a bounded kind, safe from any thread."""

    def __init__(self, limit: int, what: str) -> None:
        self.limit = limit
        self.used = 0
        self._what = what
        self._lock = threading.Lock()

    def take(self, size: int) -> None:
        """Take bytes; OverloadedError when they would pass the limit and something is taken."""
        with self._lock:
            # One batch larger than the limit must still be able to pass, or it never could.
            if self.used and self.used + size > self.limit:
                raise OverloadedError(
                    f"{self._what} hold {self.used} bytes, the limit is {self.limit}; retry later",
                    limit=self.limit,
                )
            self.used += size

    def give(self, size: int) -> None:
        """Give bytes back."""
        with self._lock:
            self.used -= size
        assert self.used >= 0, f"{self._what}: more given back than taken"  # noqa: S101 - invariant


class Tally:
    """Bytes that nobody may refuse, of which more may be asked for only below the limit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._lock = threading.RLock()
        self._has_room = threading.Condition(self._lock)

    def add(self, size: int) -> None:
        """Note bytes that have come."""
        with self._lock:
            self.used += size

    def remove(self, size: int) -> None:
        """Note bytes that have gone."""
        with self._lock:
            was_full = self.full
            self.used -= size
            if was_full:
                self._has_room.notify_all()

    def has_room(self, size: int) -> bool:
        """Whether so many bytes more stay within the limit."""
        return self.used + size <= self.limit

    @property
    def full(self) -> bool:
        """Whether the limit is reached."""
        return self.used >= self.limit

    def wait_for_room(self) -> None:
        """Return when there is room, or after a moment: the caller looks whether it still asks."""
        with self._lock:
            if self.full:
                self._has_room.wait(_ROOM_WAIT_SECONDS)
