"""Where plaintext is spoken anybody may pretend to be a coordinator, but not one of the far future.

A node remembers the highest epoch and revision it has seen, and refuses lower ones. The true
coordinator goes above what data nodes know (decision 0271), which it can as long as there are
higher numbers. So each call may raise a number by so much that no true one is refused, and so
little that nobody gets to the last one (decision 0437):

- Coordinator epochs are acquisitions of a Lease, of which the API server counts 32 bits: by at most
  `STEP`, and by more than one only once in `PAUSE_SECONDS`. To use all of them up takes days.
- Epochs of a partition, and numbers of configurations, have 63 bits and count changes: by at most
  `CHANGES`. To use them up takes years of calls.
- Revisions have 63 bits and count the changes of a whole cluster: by at most `REVISIONS`, and by
  more than `CHANGES` only once in `PAUSE_SECONDS`, for all partitions together.

Concurrency: thread-safe.
"""

import threading
from collections.abc import Callable, Iterator

from rezone.datanode.settings import Clock
from rezone.wire.errors import ForbiddenError
from rezone.wire.messages import (
    BeginEmpty,
    Fence,
    LeaderAndIsr,
    Message,
    NotifyLeaderAndIsr,
    PartitionId,
    RefuseIsr,
    StopReplica,
    Takeover,
    UpgradeCandidate,
)

STEP = 1 << 16
"""A data node that was away for long has missed fewer acquisitions of the Lease."""

CHANGES = 1 << 24
"""A partition has fewer changes of its record in the time that a data node is away."""

REVISIONS = 1 << 40
"""A cluster has fewer changes in its life."""

PAUSE_SECONDS = 10.0

Epochs = tuple[int, int]
"""Of a partition: the leader's, and that of the record."""


class EpochSteps:
    """How far, and how often, the numbers that callers name go up."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._next = float("-inf")
        self._next_revision = float("-inf")
        self._revision = 0

    def check(self, fence: Fence, known: int) -> None:
        """Raise ForbiddenError for an epoch that cannot be the next after `known`."""
        step = fence.coordinator_epoch - known
        if step <= 1:
            return
        now = self._clock.monotonic()
        with self._lock:
            if step > STEP or now < self._next:
                raise _too_far("coordinator epoch", fence.coordinator_epoch, known, STEP)
            self._next = now + PAUSE_SECONDS

    def check_revision(self, revision: int, known: Callable[[], int]) -> None:
        """Raise ForbiddenError for a revision that cannot follow the highest of all partitions."""
        with self._lock:
            if revision - self._revision <= CHANGES:
                return
        highest = known()
        now = self._clock.monotonic()
        with self._lock:
            self._revision = max(self._revision, highest)
            step = revision - self._revision
            if step <= CHANGES:
                return
            if step > REVISIONS or now < self._next_revision:
                raise _too_far("revision", revision, self._revision, REVISIONS)
            self._revision = revision
            self._next_revision = now + PAUSE_SECONDS


def check_epochs(request: Message, known: Callable[[PartitionId], Epochs]) -> None:
    """Raise ForbiddenError for an epoch of a partition that cannot follow the one that is known."""
    for partition, leader_epoch, partition_epoch in _named(request):
        leading, record = known(partition)
        if leader_epoch - leading > CHANGES:
            raise _too_far("leader epoch", leader_epoch, leading, CHANGES)
        if partition_epoch - record > CHANGES:
            raise _too_far("partition epoch", partition_epoch, record, CHANGES)


def check_number(number: int, known: int) -> None:
    """Raise ForbiddenError for a configuration's number that cannot follow the one known."""
    if number - known > CHANGES:
        raise _too_far("configuration", number, known, CHANGES)


def _named(request: Message) -> Iterator[tuple[PartitionId, int, int]]:
    """Yield the epochs that a call names."""
    match request:
        case NotifyLeaderAndIsr():
            for each in request.partitions:
                yield each.partition, *_of_record(each.state)
        case RefuseIsr() | BeginEmpty():
            yield request.partition, *_of_record(request.state)
        case StopReplica():
            yield request.partition, request.leader_epoch, request.partition_epoch
        case Takeover() | UpgradeCandidate():
            yield request.partition, request.next_epoch, 0


def _of_record(record: LeaderAndIsr) -> Epochs:
    return max(record.leader_epoch, record.next_epoch or 0), record.partition_epoch


def _too_far(what: str, named: int, known: int, most: int) -> ForbiddenError:
    return ForbiddenError(
        f"{what} {named} is too far above {known} for a data node without TLS: by at most {most}, "
        f"and by much only once in {PAUSE_SECONDS:.0f} s"
    )
