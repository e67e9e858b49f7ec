"""Write gaps: how long a partition took no writes while its leader moved."""

import bisect
import dataclasses
import itertools
import statistics
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

BEFORE_SECONDS = 1.0
AFTER_SECONDS = 1.0


class WriteAck(NamedTuple):
    """An acknowledged write: when (the demo's monotonic clock), and by which leadership."""

    at: float
    leader_epoch: int


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
    """What one move cost its writers, in milliseconds.

    `handover_ms` lies between the last write that the old leader acknowledged and the first one of
    the new leader; `longest_ms` and `usual_ms` are the longest and the median time between any two
    writes while the move was seen, whatever the reason.
    """

    move: LeaderMove
    handover_ms: float
    longest_ms: float
    usual_ms: float


def gap_of(move: LeaderMove, acks: Sequence[WriteAck]) -> Gap | None:
    """Return the gap of a move, None when no writes were answered on both sides of it."""
    first = bisect.bisect_left(acks, move.seen_from - BEFORE_SECONDS, key=attrgetter("at"))
    last = bisect.bisect_right(acks, move.seen_until + AFTER_SECONDS, key=attrgetter("at"))
    near = acks[max(0, first - 1) : last + 1]
    spaces = []
    handovers = []
    for before, after in itertools.pairwise(near):
        space = (after.at - before.at) * 1000
        if move.seen_from <= after.at <= move.seen_until + AFTER_SECONDS:
            spaces.append(space)
            if after.leader_epoch > before.leader_epoch:
                handovers.append(space)
    if not handovers:
        return None
    return Gap(
        move=move,
        handover_ms=max(handovers),
        longest_ms=max(spaces),
        usual_ms=statistics.median(spaces),
    )
