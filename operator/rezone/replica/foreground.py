"""Copies give way to clients: what is left of a node's time for readers and writers.

A copy is cut into steps of a few milliseconds. While clients are served, each step is followed by
a rest in proportion to the processor time of the step, so that all copies of a node together,
out and in, take no more of one core than the zone leaves them: with
`rebalance.foregroundPercent` at 80 a fifth (decision 0095). That is also a floor: a copy always
gets on (B-16). When the clients pause, copies go as fast as they can.

What counts is that requests are under way, not which time they take: a write that waits for its
replicas is work of other nodes and of the disk, which a copy delays as well. So rows that come from
a leader elsewhere count too: its clients wait until they are on this disk.

Concurrency: thread-safe. A request costs two short holds of one lock.
"""

import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from rezone.replica.settings import Clock

SHORT_STEP_BYTES = 256 << 10
"""A step while clients are served: well under a millisecond of each thread that has to do with it.

A longer one is a burst on all cores, sender, network and receiver together, which every request
that meets it waits out, however long the rest after it.
"""

PAUSE_SECONDS = 0.002
"""Clients pause when nothing was under way for so long; one that asks again at once takes less."""

FOLLOWED_SECONDS = 0.005
"""So long a leader's clients count from the coming of rows: until they are durable and, in a steady
stream of writes, the next ones are here."""

REST_SECONDS_MAX = 0.25
"""After one step, however long it was: whoever waits for the copy must not take it for dead."""

OWED_SECONDS_MAX = 1.0
"""The most that work which cannot rest may put off other steps: they get on, whatever it does."""

Item = TypeVar("Item")
Rest = Callable[[], None]
"""Called by a copy between two of its steps, without any lock; returns when it may go on."""

StepBytes = Callable[[int], int]
"""Asked by a copy before a step: how many bytes it may have at present, so many at most."""


def no_rest() -> None:
    """Go on at once."""


def whole_steps(most: int) -> int:
    """Take all that a step may have."""
    return most


class Foreground:
    """The requests under way on a node, and the copies that wait for them.

    `percent` is the zone's setting at present; 0 lets copies take whatever they get. `wait` (for
    so many seconds, or until what it returns is true) is injected as the clock is.
    """

    def __init__(
        self,
        clock: Clock,
        percent: Callable[[], int],
        *,
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        self._clock = clock
        self._percent = percent
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._wait = wait or self._closed.wait
        self._under_way = 0
        self._last = float("-inf")
        self._free_at = 0.0
        self.rested_seconds = 0.0

    @property
    def under_way(self) -> int:
        """How many requests are not answered yet."""
        return self._under_way

    def begin(self) -> None:
        """Note a request that has come."""
        with self._lock:
            self._under_way += 1

    def end(self) -> None:
        """Note that it is answered."""
        with self._lock:
            assert self._under_way > 0, "more requests answered than came"  # noqa: S101 - invariant
            self._under_way -= 1
            self._last = max(self._last, self._clock.monotonic())

    def followed(self) -> None:
        """Note rows of a leader elsewhere, whose clients wait for this node."""
        with self._lock:
            self._last = max(self._last, self._clock.monotonic() + FOLLOWED_SECONDS)

    def serving(self, items: Iterator[Item]) -> Iterator[Item]:
        """Pass a stream on; making each item is a request."""
        done = object()
        while True:
            self.begin()
            try:
                item = next(items, done)
            finally:
                self.end()
            if item is done:
                return
            yield item  # type: ignore[misc]

    def close(self) -> None:
        """Let every copy go."""
        self._closed.set()

    @property
    def gives_way(self) -> bool:
        """Whether a copy would have to rest now."""
        return bool(self._percent()) and self._served(self._clock.monotonic())

    def give_way(self, worked_seconds: float) -> None:
        """Wait after a step of a copy that took so much processor time, while clients are served.

        The rests of several copies follow each other: their shares add up to that of one.
        """
        percent = self._percent()
        with self._lock:
            begun = self._clock.monotonic()
            if not percent or not self._served(begun):
                return
            rest = min(REST_SECONDS_MAX, worked_seconds * percent / (100 - percent))
            until = self._free_at = max(begun, self._free_at) + rest
        now = begun
        while now < until and not self._wait(min(until - now, PAUSE_SECONDS)):
            now = self._clock.monotonic()
            if not self._served(now):
                break
        with self._lock:
            self.rested_seconds += now - begun

    def owe(self, worked_seconds: float) -> None:
        """Note work for copies that could not rest by itself; the next steps of all rest for it.

        A replica that is being filled must take what its leader sends it.
        """
        percent = self._percent()
        with self._lock:
            now = self._clock.monotonic()
            if not percent or not self._served(now):
                return
            free_at = max(now, self._free_at) + worked_seconds * percent / (100 - percent)
            self._free_at = max(self._free_at, min(free_at, now + OWED_SECONDS_MAX))

    @property
    def owed_seconds(self) -> float:
        """How long a step of a copy would have to rest now for those before it."""
        with self._lock:
            now = self._clock.monotonic()
            served = bool(self._percent()) and self._served(now)
            return max(0.0, self._free_at - now) if served else 0.0

    def _served(self, now: float) -> bool:
        return self._under_way > 0 or now - self._last < PAUSE_SECONDS


class CopySteps:
    """One copy's steps, all by the thread that makes this: short ones, a rest after each.

    `weight` is what a step costs in all, as a multiple of this thread's processor time.
    """

    def __init__(
        self,
        foreground: Foreground,
        weight: float = 1.0,
        *,
        worked: Callable[[], float] = time.thread_time,
    ) -> None:
        self._foreground = foreground
        self._weight = weight
        self._worked = worked
        self._begun = worked()

    def step_bytes(self, most: int) -> int:
        """Return how many bytes the next step may have."""
        return min(most, SHORT_STEP_BYTES) if self._foreground.gives_way else most

    def rest(self) -> None:
        """End a step."""
        self._foreground.give_way((self._worked() - self._begun) * self._weight)
        self._begun = self._worked()
