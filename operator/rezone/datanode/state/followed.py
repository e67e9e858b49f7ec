"""From when on those who follow a replica's changes may still ask for them.

Nothing is kept for a follower by itself: each request says from which time on it wants changes. So
of the requests lately made the earliest time is where somebody may go on who pauses now. It is a
bound and no promise: who asks another replica, or pauses for longer, is not known here.

Concurrency: thread-safe.
"""

import threading
from collections.abc import Callable


class FollowedFrom:
    """The earliest time that was asked for within `pause_seconds`, and up to twice as long ago."""

    def __init__(self, clock: Callable[[], float], pause_seconds: float) -> None:
        self._clock = clock
        self._pause_seconds = pause_seconds
        self._lock = threading.Lock()
        self._begun = float("-inf")
        self._earliest: int | None = None
        self._before: int | None = None

    def note(self, time: int) -> None:
        """Note that changes behind a time, in microseconds since 1970, were asked for."""
        with self._lock:
            self._turn()
            self._earliest = time if self._earliest is None else min(self._earliest, time)

    @property
    def time(self) -> int | None:
        """The earliest of these times; None when nobody has asked for so long."""
        with self._lock:
            self._turn()
            asked = [time for time in (self._before, self._earliest) if time is not None]
            return min(asked, default=None)

    def _turn(self) -> None:
        """Begin another window when this one is over; forget the one before."""
        now = self._clock()
        age = now - self._begun
        if age >= self._pause_seconds:
            self._before = self._earliest if age < 2 * self._pause_seconds else None
            self._earliest = None
            self._begun = now
