"""Where plaintext is spoken anybody may pretend to be a coordinator, but not one of the far future.

A node remembers the highest epoch and revision it has seen, and refuses lower ones. The true
coordinator goes above what data nodes know (decision 0271), which it can as long as there are
higher numbers, and as long as each data node lets it. So no number may be above a bound that goes
up with the time of day alone (decision 0437): all data nodes have the same one, over restarts and
without a word to each other. What is forged at one of them is at most a moment away from what all
others let in, and nobody gets to the last number within years.

No operator comes near a bound by itself, so none is refused where a machine's clock is wrong; one
that has gone above a forged number waits a second at most.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from rezone.wire.errors import ForbiddenError
from rezone.wire.messages import (
    BeginEmpty,
    ConfigureNode,
    Fence,
    LeaderAndIsr,
    Message,
    NotifyLeaderAndIsr,
    RefuseIsr,
    StopReplica,
    Takeover,
    UpgradeCandidate,
)

BEGAN_SECONDS = 1_767_225_600
"""The beginning of 2026 in UTC: there was no operator before."""


@dataclass(frozen=True)
class Bound:
    """How high a number may be: `first` in 2026, and `each_second` more since."""

    first: int
    each_second: int

    def at(self, micros: int) -> int:
        """Return the highest number at a time, in microseconds since 1970."""
        return self.first + self.each_second * max(0, micros // 1_000_000 - BEGAN_SECONDS)


LEADERS = Bound(first=1 << 16, each_second=1)
"""Coordinators and leaders, which do not change once a second for years: a Lease counts 31 bits of
the first, the log has 32 of the second. The last one is reached after 68 years."""

CHANGES = Bound(first=1 << 40, each_second=1 << 24)
"""What a whole cluster writes, as revisions do, or less: 63 bits, which last for 17,000 years."""


def check_bounds(request: Message, fence: Fence, now: int) -> None:
    """Raise ForbiddenError for a number that no coordinator can have reached by now.

    `now` is in microseconds since 1970.
    """
    _check("coordinator epoch", fence.coordinator_epoch, LEADERS, now)
    _check("revision", fence.revision, CHANGES, now)
    for leader_epoch, partition_epoch in _epochs(request):
        _check("leader epoch", leader_epoch, LEADERS, now)
        _check("partition epoch", partition_epoch, CHANGES, now)
    if isinstance(request, ConfigureNode):
        _check("configuration", request.number, CHANGES, now)


def _check(what: str, number: int, bound: Bound, now: int) -> None:
    most = bound.at(now)
    if number > most:
        raise ForbiddenError(
            f"{what} {number} is too high for a data node without TLS: at most {most} now, and "
            f"{bound.each_second} more each second"
        )


def _epochs(request: Message) -> Iterator[tuple[int, int]]:
    """Yield the leader's epochs and those of records that a call names."""
    match request:
        case NotifyLeaderAndIsr():
            for each in request.partitions:
                yield _of_record(each.state)
        case RefuseIsr() | BeginEmpty():
            yield _of_record(request.state)
        case StopReplica():
            yield request.leader_epoch, request.partition_epoch
        case Takeover() | UpgradeCandidate():
            yield request.next_epoch, 0


def _of_record(record: LeaderAndIsr) -> tuple[int, int]:
    return max(record.leader_epoch, record.next_epoch or 0), record.partition_epoch
