"""How long the syncs of a data node's logs and facts take, and which ones are under way.

A disk that is slow, or that does not answer at all, raises no error: whoever syncs only waits. So
each sync is noted when it begins, and who watches sees those that do not come back.

Concurrency: thread-safe; nothing here waits for a disk.
"""

import bisect
import contextlib
import itertools
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

BOUNDS_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
RECENT = 5
RECENT_SECONDS_MAX = 30.0
"""Older syncs say nothing of the disk as it is."""


class SyncTimes:
    """The syncs of one node; `clock` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._under_way: dict[int, float] = {}
        self._recent: deque[tuple[float, float]] = deque(maxlen=RECENT)
        self.counts = [0] * (len(BOUNDS_SECONDS) + 1)
        self.seconds = 0.0

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """Note a sync, however it ends."""
        number = self.begin()
        try:
            yield
        finally:
            self.end(number)

    def begin(self) -> int:
        """Note that a sync has begun; return what to name it by at its end."""
        with self._lock:
            number = next(self._numbers)
            self._under_way[number] = self._clock()
            return number

    def end(self, number: int) -> None:
        """Note that a sync has come back."""
        with self._lock:
            now = self._clock()
            seconds = now - self._under_way.pop(number)
            self._recent.append((now, seconds))
            self.counts[bisect.bisect_left(BOUNDS_SECONDS, seconds)] += 1
            self.seconds += seconds

    def longest_under_way(self, now: float) -> float:
        """Return for how many seconds the oldest sync that has not come back is under way."""
        with self._lock:
            return now - min(self._under_way.values(), default=now)

    def usual(self, now: float) -> tuple[float, int]:
        """Return how many seconds the last syncs took, their median, and how many these were."""
        with self._lock:
            known = [took for at, took in self._recent if now - at <= RECENT_SECONDS_MAX]
        return statistics.median(known or [0.0]), len(known)
