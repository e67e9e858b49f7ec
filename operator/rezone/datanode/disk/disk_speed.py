"""What a data node says of how fast its disk is, so that others can compare it with theirs.

`sync_ms` is the worst of the last while (`disk_well_ms`): a disk that is slow now and then counts
as slow all the time, so leaders do not come and go with it. `slow_ms` is the same number once it
has been high for a moment. Whoever compares takes one node's `slow_ms` and the others' `sync_ms`:
where all disks become slow together, nobody is first.

Concurrency: `look` is called by one thread, the rest by any.
"""

import math

from rezone.datanode.settings import NodeSettings
from rezone.domain.observed.disk_speed import SLOW_MS, STALL_MS
from rezone.storage.disk.sync_times import SyncTimes

SLOW_SYNCS_MIN = 3
"""One slow sync or two say nothing of a disk."""

SLOW_FOR_SECONDS = 1.0
SAY_SECONDS = 1.0
ASIDE_SECONDS = 0.5
"""For so long those that a stalled disk is compared with may say that theirs stall as well."""


class DiskSpeed:
    """The speed of one node's disk, from the times of its syncs."""

    def __init__(self, times: SyncTimes, settings: NodeSettings) -> None:
        self._times = times
        self._well_seconds = settings.disk_well_ms / 1000
        self._worst_at = float("-inf")
        self._slow_since = float("inf")
        self._said_at = float("-inf")
        self.stalled_seconds = 0.0
        self.sync_ms = 0
        self.slow_ms = 0

    def look(self, now: float) -> bool:
        """Look at the syncs; whether others should hear of it: while it is slow now and then."""
        stalled = self._times.longest_under_way(now)
        self.stalled_seconds = stalled if stalled * 1000 >= STALL_MS else 0.0
        usual, count = self._times.usual(now)
        if count < SLOW_SYNCS_MIN and usual * 1000 >= SLOW_MS:
            usual, count = 0.0, 0
        seconds = max(self.stalled_seconds, usual)
        present = max(1, math.ceil(seconds * 1000)) if seconds or count else 0
        if present >= min(SLOW_MS, self.sync_ms):
            self.sync_ms, self._worst_at = max(self.sync_ms, present), now
        elif now - self._worst_at > self._well_seconds:
            self.sync_ms = present
        return self._says(now)

    @property
    def aside_seconds(self) -> float:
        """For how long a sync has been under way that no leader should wait for any more, or 0."""
        stalled = self.stalled_seconds
        return stalled if stalled * 1000 >= STALL_MS + ASIDE_SECONDS * 1000 else 0.0

    def _says(self, now: float) -> bool:
        if self.sync_ms < SLOW_MS:
            self._slow_since = float("inf")
        else:
            self._slow_since = min(self._slow_since, now)
        before = self.slow_ms
        self.slow_ms = self.sync_ms if now - self._slow_since >= SLOW_FOR_SECONDS else 0
        again = self._slow_since <= now and now - self._said_at >= SAY_SECONDS
        if not again and bool(before) == bool(self.slow_ms):
            return False
        self._said_at = now
        return True
