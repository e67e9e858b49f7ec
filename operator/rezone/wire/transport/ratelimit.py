"""A limit on bytes per second that may change while it holds somebody back (B-03)."""

import time
from collections.abc import Callable

_LOOK_SECONDS = 0.5  # how long a change may go unnoticed
_SLEEP_SECONDS_MIN = 0.001  # a clock may not tell less: what is owed would never be slept off


class RateLimit:
    """A token bucket of one second's worth of bytes; clock and sleep are injected.

    `bytes_per_second` is a number, or returns the present one; 0 is no limit. One thread spends.
    """

    def __init__(
        self,
        bytes_per_second: int | Callable[[], int],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._limit = bytes_per_second
        self._clock = clock
        self._sleep = sleep
        self._tokens = float(self.bytes_per_second)
        self._then = clock()

    @property
    def bytes_per_second(self) -> int:
        """The limit at present."""
        return self._limit() if callable(self._limit) else self._limit

    def spend(self, size: int, *, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Account for `size` bytes; sleeps off what is over the rate.

        That may take long: `meanwhile` is called at least once a second. Raises what it raises.
        """
        self._earn()
        self._tokens -= size
        while (rate := self.bytes_per_second) > 0 and self._tokens < 0:
            owed = max(_SLEEP_SECONDS_MIN, -self._tokens / rate)
            self._sleep(min(_LOOK_SECONDS, owed))
            self._earn()
            meanwhile()
        if rate <= 0:
            self._tokens = 0.0  # nothing is owed: a limit that comes later counts from then on

    @property
    def owed_seconds(self) -> float:
        """For how long to wait until nothing is owed, at the present rate."""
        self._earn()
        rate = self.bytes_per_second
        return max(0.0, -self._tokens / rate) if rate > 0 else 0.0

    def owe(self, size: int) -> None:
        """Account for `size` bytes without waiting: for a thread that looks before it goes on."""
        self._earn()
        self._tokens = self._tokens - size if self.bytes_per_second > 0 else 0.0

    def _earn(self) -> None:
        now, rate = self._clock(), self.bytes_per_second
        self._tokens = min(float(rate), self._tokens + (now - self._then) * rate)
        self._then = now
