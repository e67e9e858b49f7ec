"""A foreground of a data node whose time only waiting moves, and that is as busy as a test says."""

from rezone.datanode.scheduling.foreground import Foreground
from rezone.datanode.scheduling.served import MEMORY_SECONDS


class Time:
    """A clock that only waiting moves; `at` maps moments to what happens then."""

    def __init__(self) -> None:
        self.now = 100.0
        self.events: list[tuple[float, object]] = []

    def monotonic(self) -> float:
        """Return the time."""
        return self.now

    def micros(self) -> int:
        """Return the time."""
        return int(self.now * 1e6)

    def wait(self, seconds: float) -> bool:
        """Let time pass."""
        self.now += seconds
        while self.events and self.events[0][0] <= self.now:
            self.events.pop(0)[1]()  # type: ignore[operator]
        return False


def busy(time: Time, percent: int) -> Foreground:
    """Return a foreground with a request that has been under way for long."""
    foreground = Foreground(time, lambda: percent, wait=time.wait)
    foreground.begin()
    time.now += 4 * MEMORY_SECONDS
    return foreground
