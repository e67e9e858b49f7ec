"""How much a data node does for clients, from two of its counts."""

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rezone.wire.messages.loads import ClientLoad, RequestLoad

SECONDS_MIN: Final = 0.2
"""Counts that lie closer together give no rate."""


@dataclass(frozen=True, kw_only=True)
class RequestRates:
    """Requests a second; how long half, and 99 of 100, took at most: None without any answered.

    The durations are those of the histogram's bucket, whose last one has no end: they say at most
    the largest bound.
    """

    ok_per_second: float
    failed_per_second: float
    p50_seconds: float | None
    p99_seconds: float | None


@dataclass(frozen=True, kw_only=True)
class ClientRates:
    """What a data node, or a zone, did between two looks; `write_throttled` adds up writes."""

    reads: RequestRates
    writes: RequestRates
    copied_bytes_per_second: float
    write_throttled: float


@dataclass(frozen=True)
class Interval:
    """Two counts of one process."""

    before: ClientLoad
    after: ClientLoad

    @property
    def seconds(self) -> float:
        """How far they lie apart."""
        return self.after.seconds - self.before.seconds


def interval_of(before: ClientLoad, after: ClientLoad) -> Interval | None:
    """Return what lies between two counts; None when they are of no one process or contradict."""
    same = before.process_id == after.process_id and before.bounds_micros == after.bounds_micros
    buckets = len(after.bounds_micros) + 1
    if not same or after.seconds - before.seconds < SECONDS_MIN:
        return None
    for each in (before.reads, before.writes, after.reads, after.writes):
        if len(each.ok) != buckets:
            return None
    return Interval(before, after)


def rates_of(intervals: Sequence[Interval]) -> ClientRates | None:
    """Return the rates of data nodes together, None without any.

    Of other buckets than most have, nothing is known: they are left out.
    """
    if not intervals:
        return None
    ((ends, _),) = Counter(each.after.bounds_micros for each in intervals).most_common(1)
    intervals = [each for each in intervals if each.after.bounds_micros == ends]
    return ClientRates(
        reads=_requests([(i.before.reads, i.after.reads, i.seconds) for i in intervals], ends),
        writes=_requests([(i.before.writes, i.after.writes, i.seconds) for i in intervals], ends),
        copied_bytes_per_second=sum(
            max(0, i.after.copied_bytes - i.before.copied_bytes) / i.seconds for i in intervals
        ),
        write_throttled=sum(
            max(0.0, i.after.write_throttled_seconds - i.before.write_throttled_seconds) / i.seconds
            for i in intervals
        ),
    )


def _requests(
    pairs: Iterable[tuple[RequestLoad, RequestLoad, float]], bounds_micros: Sequence[int]
) -> RequestRates:
    buckets = [0] * (len(bounds_micros) + 1)
    answered = failed = 0.0
    for before, after, seconds in pairs:
        between = [max(0, b - a) for a, b in zip(before.ok, after.ok, strict=True)]
        buckets = [a + b for a, b in zip(buckets, between, strict=True)]
        answered += sum(between) / seconds
        failed += max(0, after.failed - before.failed) / seconds
    return RequestRates(
        ok_per_second=answered,
        failed_per_second=failed,
        p50_seconds=quantile(buckets, bounds_micros, 0.5),
        p99_seconds=quantile(buckets, bounds_micros, 0.99),
    )


def quantile(buckets: Sequence[int], bounds_micros: Sequence[int], share: float) -> float | None:
    """Return in how many seconds this share was answered, evenly spread within its bucket."""
    wanted = share * sum(buckets)
    if not wanted:
        return None
    lower = 0
    for bound, so_far, count in zip(
        bounds_micros, itertools.accumulate(buckets), buckets, strict=False
    ):
        if so_far >= wanted:
            part = (wanted - (so_far - count)) / count
            return (lower + part * (bound - lower)) / 1e6
        lower = bound
    return lower / 1e6
