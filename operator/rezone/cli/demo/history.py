"""What happened while the demo wrote, in order of time: what its picture is drawn from."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rezone.cli.demo.gaps import WriteAck


class Happened(NamedTuple):
    """Something that the demo did: when (its monotonic clock), and in words."""

    at: float
    what: str


class Reign(NamedTuple):
    """One leadership of a partition, from its first answered write to the next one's."""

    node: int | None
    begin: float
    end: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class History:
    """`leaders` has the data node of each partition's leader epochs; `acks` rise in time."""

    begun: float
    ended: float
    acks: Mapping[int, Sequence[WriteAck]]
    leaders: Mapping[tuple[int, int], int]
    happened: Sequence[Happened] = ()

    @property
    def seconds(self) -> float:
        """How long it lasted; never 0."""
        return max(self.ended - self.begun, 1e-3)


def reigns(history: History, partition: int) -> list[Reign]:
    """Return who led a partition when, by the epochs of the writes that were answered."""
    found: list[Reign] = []
    epoch: int | None = None
    for ack in history.acks.get(partition, ()):
        if ack.leader_epoch == epoch:
            continue
        if found:
            found[-1] = found[-1]._replace(end=ack.at)
        epoch = ack.leader_epoch
        begin = ack.at if found else history.begun
        node = history.leaders.get((partition, epoch))
        found.append(Reign(node, begin, history.ended))
    return found


def partitions_of(history: History) -> list[int]:
    """Return all partitions that are known of, also those that never answered."""
    return sorted({*history.acks, *(partition for partition, _ in history.leaders)})


def gaps_over(history: History, partition: int, seconds: float) -> list[tuple[float, float]]:
    """Return from when to when a partition answered no write for longer than that."""
    return [
        (before, after)
        for before, after in itertools.pairwise(_answers(history, partition))
        if after - before > seconds
    ]


def _answers(history: History, partition: int) -> list[float]:
    """Return when writes were answered, with the begin and the end: silence lasts to there."""
    times = [ack.at for ack in history.acks.get(partition, ())]
    return [history.begun, *times, max([history.ended, *times[-1:]])]


def writes_a_second(history: History, buckets: int) -> list[float]:
    """Return how many writes a second were answered in each of equal parts of the time."""
    counts = [0] * buckets
    for acks in history.acks.values():
        for ack in acks:
            counts[_bucket(history, ack.at, buckets)] += 1
    return [count * buckets / history.seconds for count in counts]


def longest_gaps_ms(history: History, buckets: int) -> list[float]:
    """Return the longest time between two answers of any partition, by the part that it ends in."""
    longest = [0.0] * buckets
    for partition in partitions_of(history):
        for before, after in itertools.pairwise(_answers(history, partition)):
            place = _bucket(history, after, buckets)
            longest[place] = max(longest[place], (after - before) * 1000)
    return longest


def _bucket(history: History, at: float, buckets: int) -> int:
    place = int((at - history.begun) / history.seconds * buckets)
    return min(max(place, 0), buckets - 1)
