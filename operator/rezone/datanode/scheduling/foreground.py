"""Copies are throttled by what clients take: what is left of a node's time for readers and writers.

A copy is cut into steps of a few milliseconds, short ones while clients are there, and rests after
each by how much of the time these take (`served`):

- Clients that take most of the time are slower for each thing beside them. Rests are then in
  proportion to the processor time of the step, so that all copies of a node together, out and in,
  take no more of one core than the zone leaves them: with `rebalance.foregroundTargetPercent` at 80
  a fifth (decision 0095). That is also a floor: a copy always gets on (B-16). A pause of some
  milliseconds ends no rest: the next request would meet a step.
- Clients that leave the node idle for half of the time keep their rate beside a copy that does not
  rest: what a request loses to a short step fits in before the next (decision 0194).
- Without clients copies go as fast as they can, a fifth of a second after the last.

What counts is that requests are under way, not which time they take: a write that waits for its
replicas is work of other nodes and of the disk, which a copy delays as well. So rows that come from
a leader elsewhere count too: its clients wait until they are on this disk.

Concurrency: thread-safe. A request costs two short holds of one lock.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from rezone.datanode.scheduling.requests import (
    Counts,
    Operation,
    Request,
    RequestCounters,
    Result,
    result_of_code,
)
from rezone.datanode.scheduling.served import Served
from rezone.datanode.settings import Clock
from rezone.wire.errors import RezoneError

SHORT_STEP_BYTES = 256 << 10
"""A step while clients are served: well under a millisecond of each thread that has to do with it.

A longer one is a burst on all cores, sender, network and receiver together, which every request
that meets it waits out, however long the rest after it.
"""

LIGHT_STEP_BYTES = 512 << 10
"""A step beside clients that take so little of the time that copies do not rest."""

LULL_SECONDS = 0.25
"""Steps are long again when nothing was under way for so long. Not after a pause already: the
next request would find the copy in the middle of a long one."""

LIGHT_SHARE = 0.5
BUSY_SHARE = 0.65
"""While clients are served for the first part of the time or less, copies do not rest; from the
second on they rest in full, in between by as much as it is more."""

LOOK_SECONDS = 0.002
"""How often a copy that rests looks whether it still has to."""

REST_SECONDS_MAX = 0.25
"""After one step, however long it was: whoever waits for the copy must not take it for dead."""

OWED_SECONDS_MAX = 1.0
"""The most that work which cannot rest may put off other steps: they get on, whatever it does."""

Item = TypeVar("Item")


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
        self._served = Served(clock.monotonic())
        self._counters = RequestCounters()
        self._free_at = 0.0
        self.rested_seconds = 0.0

    @property
    def under_way(self) -> int:
        """How many requests are not answered yet."""
        return self._served.under_way

    def begin(self) -> float:
        """Note a request that has come; return when, by the monotonic clock."""
        with self._lock:
            now = self._clock.monotonic()
            self._served.begin(now)
            return now

    def end(self, request: Request | None = None, result: Result = Result.OK) -> float:
        """Note that it is answered, and count it by its result; return when."""
        with self._lock:
            now = self._clock.monotonic()
            self._served.end(now)
            if request is not None and request.operation is not None:
                self._counters.note(request.operation, result, now - request.begun)
            return now

    def count(self, operation: Operation, result: Result, seconds: float = 0.0) -> None:
        """Count a request that has ended, and that copies need not give way to."""
        with self._lock:
            self._counters.note(operation, result, seconds)

    @property
    def requests(self) -> dict[Operation, Counts]:
        """How many requests have ended so far, by operation."""
        with self._lock:
            return self._counters.counts()

    def followed(self) -> None:
        """Note rows of a leader elsewhere, whose clients wait for this node."""
        with self._lock:
            self._served.followed(self._clock.monotonic())

    def serving(self, items: Iterator[Item], operation: Operation | None = None) -> Iterator[Item]:
        """Pass a stream on; making each item is a request.

        The stream as a whole counts as one request of `operation`. Its duration is the time that
        items took to be made: how fast the client reads is not the node's.
        """
        done = object()
        spent = 0.0
        while True:
            begun = self.begin()
            item: object = done
            result = Result.FAILED
            try:
                item = next(items, done)
                result = Result.OK
            except RezoneError as error:
                result = result_of_code(error.code)
                raise
            finally:
                ended = item is done
                spent += self.end(Request(operation, begun - spent) if ended else None, result)
                spent -= begun
            if ended:
                return
            try:
                yield item  # type: ignore[misc]
            except GeneratorExit:
                # Without the lock: a garbage collection may come here while this thread has it.
                self._counters.cancelled(operation)
                raise

    def close(self) -> None:
        """Let every copy go."""
        self._closed.set()

    @property
    def served_share(self) -> float:
        """For how much of the time clients were served lately, 0 to 1."""
        with self._lock:
            return self._served.share(self._clock.monotonic())

    def step_bytes(self, most: int) -> int:
        """Return how many bytes a copy's next step may have, so many at most."""
        with self._lock:
            now = self._clock.monotonic()
            if not self._percent() or not self._served.lately(now, LULL_SECONDS):
                return most
            return min(most, SHORT_STEP_BYTES if self._throttle_per_work(now) else LIGHT_STEP_BYTES)

    def throttle_by(self, worked_seconds: float, rest_seconds_max: float = math.inf) -> None:
        """Wait after a step of a copy that took so much processor time, by what clients take.

        The rests of several copies follow each other: their shares add up to that of one. Who
        cannot wait for those of many waits `rest_seconds_max`.
        """
        with self._lock:
            begun = self._clock.monotonic()
            rest = min(REST_SECONDS_MAX, worked_seconds * self._throttle_per_work(begun))
            if not rest:
                return
            until = min(max(begun, self._free_at) + rest, begun + rest_seconds_max)
            self._free_at = max(self._free_at, until)
        now = begun
        while now < until and not self._wait(min(until - now, LOOK_SECONDS)):
            with self._lock:
                now = self._clock.monotonic()
                if not self._throttle_per_work(now):
                    break
        with self._lock:
            self.rested_seconds += now - begun

    def owe(self, worked_seconds: float) -> None:
        """Note work for copies that could not rest by itself; the next steps of all rest for it.

        A replica that is being backfilled must take what its leader sends it.
        """
        with self._lock:
            now = self._clock.monotonic()
            free_at = max(now, self._free_at) + worked_seconds * self._throttle_per_work(now)
            self._free_at = max(self._free_at, min(free_at, now + OWED_SECONDS_MAX))

    @property
    def owed_seconds(self) -> float:
        """How long a step of a copy would have to rest now for those before it."""
        with self._lock:
            now = self._clock.monotonic()
            return max(0.0, self._free_at - now) if self._throttle_per_work(now) else 0.0

    def _throttle_per_work(self, now: float) -> float:
        """Return how long copies rest at present for a second of processor time."""
        use = (self._served.share(now) - LIGHT_SHARE) / (BUSY_SHARE - LIGHT_SHARE)
        rests = self._percent() / 100 * min(1.0, max(0.0, use))
        return rests / (1.0 - rests)


class Requests:
    """Those of one connection: what has begun on it ends with it, whoever has forgotten it.

    Concurrency: thread-safe.
    """

    def __init__(self, foreground: Foreground) -> None:
        self._foreground = foreground
        self._lock = threading.Lock()
        self._closed = False
        self.count = 0

    def begin(self) -> float:
        """Note a request that has come; return when, by the monotonic clock."""
        with self._lock:
            if self._closed:
                return 0.0
            self.count += 1
            return self._foreground.begin()

    def end(self, request: Request, result: Result) -> None:
        """Note that one is answered, and count it; nothing once the connection has ended."""
        with self._lock:
            if self.count:
                self.count -= 1
                self._foreground.end(request, result)

    def close(self) -> None:
        """End all: nobody waits for them any more."""
        with self._lock:
            self._closed = True
            while self.count:
                self.count -= 1
                self._foreground.end()


class CopySteps:
    """One copy's steps, all by the thread that makes this: short ones, a rest after each.

    `weight` is what a step costs in all, as a multiple of this thread's processor time, and
    `rest_seconds_max` for how long one may rest.
    """

    def __init__(
        self,
        foreground: Foreground,
        weight: float = 1.0,
        *,
        rest_seconds_max: float = math.inf,
        worked: Callable[[], float] = time.thread_time,
    ) -> None:
        self._foreground = foreground
        self._weight = weight
        self._rest_seconds_max = rest_seconds_max
        self._worked = worked
        self._begun = worked()

    def step_bytes(self, most: int) -> int:
        """Return how many bytes the next step may have."""
        return self._foreground.step_bytes(most)

    def throttle(self) -> None:
        """End a step."""
        worked = (self._worked() - self._begun) * self._weight
        self._foreground.throttle_by(worked, self._rest_seconds_max)
        self._begun = self._worked()
