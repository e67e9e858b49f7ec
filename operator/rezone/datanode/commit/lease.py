"""Read leases: when a leader may answer for the newest state, though it cannot see the others.

A leader asks each node that follows it (LeaseRequest); the node promises that for `lease_ms` none
of its replicas will lead in a later epoch and commit anything (LeaseGrant). While every replica
of its maximal in-sync set has promised, the leader answers reads alone: whoever leads later comes
from that set. Without a lease it asks again and waits for answers to a round that began after the
read did. So a leader that is cut off stops answering, in time.

- The leader counts from the moment it asked, on its own monotonic clock, and less by
  `clock_drift_percent`; the follower from the moment it answered. No two clocks are compared.
- A follower that has left for a later epoch grants that partition nothing more (`left`). It
  makes the promise before it looks who has left, and a replica that leaves looks at the promise
  afterwards: so one of the two always sees the other.
- Who leads without the old leader's own word holds commits back until what it has promised is
  over (`Promises`). A planned takeover ends with the old leader's word, and holds nothing back,
  except for what the old leader itself still held back.
- A node that restarts has forgotten its promises: it takes it that it made one just before.

Concurrency: `Rounds` is guarded by its channel's lock, `Promises` by the partition's.
"""

import itertools
from collections import OrderedDict
from typing import NamedTuple

from rezone.wire.messages import LeaseGrant, LeaseRequest, NodeClock, PartitionId

ROUNDS_OPEN_MAX = 32
NEVER = float("-inf")


class Lease(NamedTuple):
    """What a follower's node has promised: asked for at, and good until, in the leader's time.

    `time`: the time of day that it has been told with the request.
    """

    asked_at: float
    until: float
    time: int

    def covers(self, now: float, since: float) -> bool:
        """Whether it vouches for a read that came at `since`, by time or because it is newer."""
        return self.until > now or self.asked_at >= since

    def merged(self, other: "Lease") -> "Lease":
        """Return both in one: a later promise never shortens an earlier one."""
        return Lease(
            max(self.asked_at, other.asked_at),
            max(self.until, other.until),
            max(self.time, other.time),
        )


NO_LEASE = Lease(NEVER, NEVER, 0)


class Promise(NamedTuple):
    """What a node has promised another: until when, and up to which time of day it was told."""

    until: float = NEVER
    time: int = 0


def round_seconds(lease_ms: int) -> float:
    """Return how long after a round of leases the next one is due; without leases never."""
    return lease_ms / 1000 / 3 if lease_ms else float("inf")


class Rounds:
    """The leader's side of one channel: which requests are on their way, and since when."""

    def __init__(self, lease_ms: int, clock_drift_percent: int) -> None:
        self._pause = round_seconds(lease_ms)
        self._share = 1 - clock_drift_percent / 100
        self._numbers = itertools.count(1)
        self._open: OrderedDict[int, tuple[float, int]] = OrderedDict()
        self._asked_at = NEVER

    def is_due(self, now: float) -> bool:
        """Whether leases should be asked for again, a good while before they run out."""
        return now - self._asked_at >= self._pause

    def ask(self, now: float, time: int, clock: NodeClock | None = None) -> LeaseRequest:
        """Begin a round at a time of day; of too many open ones the oldest is given up."""
        number = next(self._numbers)
        self._open[number] = (now, time)
        self._asked_at = now
        if len(self._open) > ROUNDS_OPEN_MAX:
            self._open.popitem(last=False)
        return LeaseRequest(round=number, time=time, clock=clock)

    def answered(self, grant: LeaseGrant) -> Lease | None:
        """Return what an answer is worth, None for one that nobody waits for any more."""
        begun = self._open.pop(grant.round, None)
        if begun is None:
            return None
        # Answers come in order: what was asked before and is not answered was lost on the way.
        while self._open and next(iter(self._open)) < grant.round:
            self._open.popitem(last=False)
        asked_at, time = begun
        return Lease(asked_at, asked_at + grant.lease_ms / 1000 * self._share, time)


class Promises:
    """The follower's side of one replica: until when others may count on it not to lead."""

    def __init__(self, opened_at: float, lease_ms: int) -> None:
        """Begin with what may have been promised before a restart, at most `lease_ms` long."""
        self._until = opened_at + lease_ms / 1000 if lease_ms else NEVER

    def made(self, promise: Promise) -> None:
        """Take in what was promised to a leader that is left."""
        self._until = max(self._until, promise.until)

    @property
    def until(self) -> float:
        """When the last promise is over."""
        return self._until


def left_of(followed: dict[PartitionId, bool]) -> tuple[PartitionId, ...]:
    """Return the partitions of a channel that are not promised: those that are not followed."""
    return tuple(sorted(partition for partition, follows in followed.items() if not follows))
