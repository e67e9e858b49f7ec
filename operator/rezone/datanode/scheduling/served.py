"""When clients of a node are served, and how much of the time.

They are while a request is under way, and a moment after it: who asks again at once has not
paused. That moment counts for the share of time only if a request does come in it, so clients that
ask now and then take little of the time, and one that asks as fast as it can takes all.

Concurrency: none of its own; `Foreground` guards it by its lock.
"""

import math

PAUSE_SECONDS = 0.002
"""Clients pause when nothing was under way for so long; one that asks again at once takes less."""

FOLLOWED_SECONDS = 0.005
"""So long a leader's clients count from the coming of rows: until they are durable and, in a steady
stream of writes, the next ones are here."""

MEMORY_SECONDS = 0.25
"""Of what was longer ago than this the share holds about a third: some tens of a light client's
requests, and well below the time for which a busy one may find the node as if it were alone."""


class Served:
    """What is known of the requests under way; all moments by one monotonic clock, in seconds."""

    def __init__(self, now: float) -> None:
        self.under_way = 0
        self._until = float("-inf")
        self._seen = now
        self._share = 0.0

    def begin(self, now: float) -> None:
        """Note a request that has come."""
        self._look(now)
        self.under_way += 1

    def end(self, now: float) -> None:
        """Note that it is answered."""
        assert self.under_way > 0, "more requests answered than came"  # noqa: S101 - invariant
        self._look(now)
        self.under_way -= 1
        self._until = max(self._until, now)

    def followed(self, now: float) -> None:
        """Note rows of a leader elsewhere, whose clients wait for this node."""
        self._look(now)
        self._until = max(self._until, now + FOLLOWED_SECONDS)

    def lately(self, now: float, seconds: float = PAUSE_SECONDS) -> bool:
        """Whether clients are served, or were within so long."""
        return self.under_way > 0 or now - self._until < seconds

    def share(self, now: float) -> float:
        """Return for how much of the time clients were served lately, 0 to 1."""
        self._look(now)
        return self._share

    def _look(self, now: float) -> None:
        """Take the time up to now into the share.

        But not a gap that may still be short: when it was, it counts with what ended it.
        """
        self._pass(now if self.under_way else min(now, self._until), 1.0)
        if not self.lately(now):
            self._pass(now, 0.0)

    def _pass(self, until: float, busy: float) -> None:
        if until > self._seen:
            kept = math.exp((self._seen - until) / MEMORY_SECONDS)
            self._share = self._share * kept + busy * (1.0 - kept)
            self._seen = until
