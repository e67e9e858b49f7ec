"""How much room a data node's disk has left: below a reserve the node gives way to others.

At the reserve it says so. Its leaders hand over as if it were to stop, and leaders elsewhere count
on its replicas no longer; all of that is written from the reserve. Below half of it the node takes
no more rows. Reads, handovers, truncation and growing of the volume go on. When there is a quarter
more than the reserve, all is as before, without a restart. The engine needs room to become smaller:
a merge of files writes what it has merged before it deletes that, so none begins below half of it.

Concurrency: `look` is called by one thread, the rest by any.
"""

import os
from collections.abc import Callable
from pathlib import Path

from rezone.datanode.settings import Clock
from rezone.wire.errors import NoSpaceError

LOOK_SECONDS = 0.5
_ENOUGH_SHARE = 1.25
_REFUSAL_SHARE = 0.5
_RESERVE_SHARE_MAX = 0.1
"""Of a small disk no more than this part is kept free."""


def free_bytes(directory: Path) -> int:
    """Return the bytes that this process may still write below a directory."""
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


def total_bytes(directory: Path) -> int:
    """Return how many bytes the file system of a directory has."""
    found = os.statvfs(directory)
    return found.f_blocks * found.f_frsize


class DiskSpace:
    """The room below `directory`; `reserve_bytes` 0: it is not looked at.

    The reserve is so large, but no more than a tenth of the disk.
    """

    def __init__(
        self,
        clock: Clock,
        directory: Path,
        reserve_bytes: int,
        free: Callable[[Path], int] = free_bytes,
        total: Callable[[Path], int] = total_bytes,
    ) -> None:
        self._clock = clock
        self._directory = directory
        self._reserve_max = reserve_bytes
        self._free = free
        self._total = total
        self.reserve = reserve_bytes
        self._look_at = float("-inf")
        self.free = 0
        self.short = False
        self._refuses = False

    def look(self, now: float) -> bool:
        """Look from time to time; whether it is short of space is news."""
        if not self._reserve_max or now < self._look_at:
            return False
        self._look_at = now + LOOK_SECONDS
        try:
            self.free = self._free(self._directory)
            most = int(self._total(self._directory) * _RESERVE_SHARE_MAX)  # a volume may grow
        except OSError:
            return False  # who writes finds out what is wrong
        self.reserve = min(self._reserve_max, most)
        self._refuses = self.free < self.reserve * _REFUSAL_SHARE
        before = self.short
        self.short = self.free < self.reserve * (_ENOUGH_SHARE if before else 1.0)
        return self.short != before

    def is_within(self, bytes_more: int) -> bool:
        """Return whether less than the reserve and so many bytes more was free at the last look."""
        known = self._look_at > float("-inf")
        return known and self.free < self.reserve + bytes_more

    def has_room(self, bytes_more: int) -> bool:
        """Return whether so many bytes more would leave enough to take rows, at the last look."""
        known = self._look_at > float("-inf")
        return not known or self.free >= self.reserve * _REFUSAL_SHARE + bytes_more

    @property
    def why(self) -> str:
        """What is short, for people; empty while nothing is."""
        if not self.short:
            return ""
        return f"less than the reserve of {self.reserve >> 20} MiB is free"

    def require(self) -> None:
        """Raise NoSpaceError where rows would take what is kept for everything else."""
        if self._refuses:
            raise NoSpaceError(f"no rows are taken: {self.free >> 20} MiB are free")
