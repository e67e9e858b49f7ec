"""Where a change feed is: which partition is asked for each range, and what its answers mean. Pure.

A range is asked of the partition that gave its position, until that one says that it has ended, or
is gone; then of those that have its range. A range is cut where those cut it, and joined again when
both ranges are equally far.
"""

import dataclasses
from collections.abc import Sequence

from rezone.client.feed.token import RangePosition
from rezone.client.routing.placement import Placement
from rezone.wire import layouts
from rezone.wire.layouts import HashRange, Segment
from rezone.wire.messages import NOBODY_GAVE, AskedRange, PartitionId, RangeChanges


@dataclasses.dataclass
class FollowedRange:
    """One range of hashes; without a `time` its changes begin when it is first asked for.

    Or with the first ones that are kept (`earliest`).
    `partition` is asked for it. `ended`: the one that gave the position has nothing more.
    `offset` is where the log of the partition asked is read on, where that is known. While a
    request for the range is `in_flight` it stays as it is.
    """

    start: int
    end: int
    time: int | None
    given_by: PartitionId = NOBODY_GAVE
    partition: PartitionId = NOBODY_GAVE
    ended: bool = False
    offset: int | None = None
    in_flight: bool = False
    earliest: bool = False

    @property
    def asked(self) -> AskedRange:
        """What is asked of the partition."""
        return AskedRange(
            partition=self.partition,
            first_hash=self.start,
            last_hash=self.end - 1,
            time=self.time,
            earliest=self.earliest and self.time is None,
            given_by=self.given_by,
            offset=self.offset,
        )


class FeedPositions:
    """The ranges of one feed, in order and without a gap."""

    def __init__(self, positions: Sequence[FollowedRange]) -> None:
        self.ranges = list(positions)

    @classmethod
    def at(cls, positions: Sequence[RangePosition]) -> "FeedPositions":
        """Stand where a token says."""
        return cls([FollowedRange(*position) for position in positions])

    @classmethod
    def since(
        cls, segments: Sequence[Segment], time: int | None, *, earliest: bool = False
    ) -> "FeedPositions":
        """Stand at one time in these segments, before what comes from now on, or is kept."""
        return cls(
            [FollowedRange(each.start, each.end, time, earliest=earliest) for each in segments]
        )

    @property
    def have_begun(self) -> bool:
        """Whether each range has a position."""
        return all(each.time is not None for each in self.ranges)

    def positions(self) -> list[RangePosition] | None:
        """Return the position of each range; None before all have one."""
        found: list[RangePosition] = []
        for each in self.ranges:
            if each.time is None:
                return None
            found.append(RangePosition(each.start, each.end, each.time, each.given_by))
        return found

    def assign(self, placement: Placement) -> list[FollowedRange]:
        """Say whom to ask for each range; return those for which newer routes must tell it."""
        unknown: list[FollowedRange] = []
        assigned: list[FollowedRange] = []
        for each in self.ranges:
            if each.in_flight:
                assigned.append(each)
                continue
            segments = _whom_to_ask(each, placement)
            if not segments:
                unknown.append(each)
                assigned.append(each)
                continue
            assigned += [_asking(each, segment) for segment in segments]
        self.ranges = _joined(assigned)
        return unknown

    @staticmethod
    def took(asked: FollowedRange, answer: RangeChanges) -> None:
        """Stand where an answer ends."""
        asked.time = answer.time if asked.time is None else max(asked.time, answer.time)
        asked.offset = answer.offset
        if answer.own:
            asked.given_by, asked.ended = asked.partition, answer.ended

    @staticmethod
    def gone(asked: FollowedRange, placement: Placement) -> None:
        """Note that nobody has the partition asked any more; others go on where it has ended."""
        if placement.is_over(asked.partition):
            asked.ended = True


def _whom_to_ask(followed: FollowedRange, placement: Placement) -> Sequence[Segment]:
    """Return the partitions to ask for a range; none when that is not known yet."""
    hashes = HashRange(followed.start, followed.end)
    giver = followed.given_by
    if giver == NOBODY_GAVE or not placement.knows(giver):
        return placement.segments(hashes)
    if not followed.ended:
        return (Segment(followed.start, followed.end, giver),)
    if giver not in placement.layout.ids or placement.next_layout is None:
        return ()
    sealed = placement.sealed | {giver}
    return layouts.segments(placement.layout, placement.next_layout, sealed, hashes)


def _asking(followed: FollowedRange, segment: Segment) -> FollowedRange:
    if segment.partition == followed.partition and segment.hashes == (followed.start, followed.end):
        return followed
    offset = followed.offset if segment.partition == followed.partition else None
    return dataclasses.replace(
        followed,
        start=segment.start,
        end=segment.end,
        partition=segment.partition,
        offset=offset,
    )


def _joined(ranges: list[FollowedRange]) -> list[FollowedRange]:
    """Join neighbours of one partition that are equally far."""
    found: list[FollowedRange] = []
    for each in ranges:
        last = found[-1] if found else None
        if last is not None and _are_one(last, each):
            last.end = each.end
        else:
            found.append(each)
    return found


def _are_one(one: FollowedRange, other: FollowedRange) -> bool:
    if one.in_flight or other.in_flight:
        return False
    own = one.given_by == one.partition == other.partition == other.given_by
    return own and (one.time, one.ended, one.offset) == (other.time, other.ended, other.offset)
