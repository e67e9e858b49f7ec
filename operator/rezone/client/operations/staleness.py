"""A bound on how old rows may be, kept until the caller gets them.

Nodes say how old their answers are. But a call's answer is as of one time, that of its oldest part,
and it waits for its slowest part. So its age counts when the whole is there: what is too old by
then is read again, at a newer time.

Concurrency: any thread may call.
"""

import math
from collections.abc import Callable
from typing import TypeVar

from rezone.client.operations.reads import AgedRows, ReadTime
from rezone.client.requests.dispatch import Dispatcher
from rezone.client.settings import ClientSettings, StaleRowsError

READS_MAX = 5
"""So often is a call read in all: a bound that it does not keep by then is below what it takes."""
WAY_SHARE = 0.1
"""This part of a bound is left for the way of the answers, at first."""

Aged = TypeVar("Aged", AgedRows, ReadTime)


class Staleness:
    """Reads within bounds; StaleRowsError when a bound is not kept before time or tries end."""

    def __init__(
        self, dispatcher: Dispatcher, settings: ClientSettings, *, clock: Callable[[], float]
    ) -> None:
        self._dispatcher = dispatcher
        self._settings = settings
        self._clock = clock

    def read(
        self,
        max_staleness_seconds: float | None,
        as_of: int | None,
        read: Callable[[int | None], Aged],
    ) -> Aged:
        """Read as of a time that is given, or within a bound; ValueError unless exactly one is.

        `read` takes how old rows may be at the nodes that answer, in milliseconds, None for a time
        that is given. A bound of 0 asks for the newest rows of one time. They are not older than
        the call; how old that makes them has no limit.
        """
        if (max_staleness_seconds is None) == (as_of is None):
            raise ValueError("give either max_staleness_seconds or as_of")
        if max_staleness_seconds is None:
            return read(None)
        if not 0 <= max_staleness_seconds < math.inf:
            raise ValueError(f"max_staleness_seconds is {max_staleness_seconds}, not a time")
        return self._within(max_staleness_seconds, read) if max_staleness_seconds else read(0)

    def _within(self, bound: float, read: Callable[[int | None], Aged]) -> Aged:
        deadline = self._clock() + self._settings.timeout_seconds
        spare = bound * WAY_SHARE
        attempt = 0
        while True:
            begun = self._clock()
            found = read(round((bound - spare) * 1000))
            if found.age_seconds <= bound:
                return found
            attempt += 1
            if attempt >= READS_MAX or self._clock() >= deadline:
                raise StaleRowsError(bound, found.age_seconds)
            # A leader gives rows that are just as old as it was asked for.
            spare = min(bound, 2 * (self._clock() - begun))
            self._dispatcher.pause(attempt)
