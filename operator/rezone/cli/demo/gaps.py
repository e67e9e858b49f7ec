"""Write gaps: the longest time between two successful writes of a partition while it moved."""

import bisect
import dataclasses
import itertools
import statistics
from collections.abc import Sequence

BEFORE_SECONDS = 1.0
AFTER_SECONDS = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class LeaderMove:
    """One RegionMigration as the demo saw it pass, by the demo's monotonic clock."""

    name: str
    partition: int
    source: int
    target: int
    seen_from: float
    seen_until: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gap:
    """The longest gap at one move, beside the usual time between two writes then."""

    move: LeaderMove
    longest_ms: float
    usual_ms: float


def gap_of(move: LeaderMove, acks: Sequence[float]) -> Gap | None:
    """Return the gap of a move, None when too few writes were answered around it."""
    first = bisect.bisect_left(acks, move.seen_from - BEFORE_SECONDS)
    last = bisect.bisect_right(acks, move.seen_until + AFTER_SECONDS)
    times = acks[max(0, first - 1) : last + 1]
    spaces = [(after - before) * 1000 for before, after in itertools.pairwise(times)]
    inside = [
        space
        for space, at in zip(spaces, times[1:], strict=False)
        if move.seen_from <= at <= move.seen_until + AFTER_SECONDS
    ]
    if not inside:
        return None
    return Gap(move=move, longest_ms=max(inside), usual_ms=statistics.median(inside))
