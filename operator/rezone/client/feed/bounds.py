"""Positions of a change feed as bounds: which changes lie between two of them. Pure.

A position says for ranges of hashes up to which commit time all changes have come. So a change lies
behind one position and not behind another by its key's hash and its commit time alone, whoever
tells it and however the zone is cut by then.
"""

import bisect
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rezone.client.feed.rows import COMMIT_TIME
from rezone.client.feed.token import RangePosition
from rezone.wire.codec.rows import RowCodec, hash_of
from rezone.wire.messages import NOBODY_GAVE

Positions = Sequence[RangePosition]
"""In the order of hashes and without a gap."""


class Overlap(NamedTuple):
    """A range of hashes with its position in one and in another sequence."""

    start: int
    end: int
    one: RangePosition
    other: RangePosition

    def at(self, position: RangePosition) -> RangePosition:
        """Return this range at the time of one of the two."""
        return position._replace(start=self.start, end=self.end)


def overlaps(one: Positions, other: Positions) -> Iterator[Overlap]:
    """Yield the ranges that both have, cut where one of them is."""
    left, right = 0, 0
    while left < len(one) and right < len(other):
        start = max(one[left].start, other[right].start)
        end = min(one[left].end, other[right].end)
        if start < end:
            yield Overlap(start, end, one[left], other[right])
        left, right = left + (one[left].end == end), right + (other[right].end == end)
        if start >= end:
            raise ValueError("positions of other ranges of hashes")


def highest(one: Positions, other: Positions) -> list[RangePosition]:
    """Return for each range the later position."""
    return [
        each.at(each.one if each.one.time >= each.other.time else each.other)
        for each in overlaps(one, other)
    ]


def lowest(one: Positions, other: Positions) -> list[RangePosition]:
    """Return for each range the earlier position."""
    return [
        each.at(each.one if each.one.time <= each.other.time else each.other)
        for each in overlaps(one, other)
    ]


def is_reached(bound: Positions, now: Positions) -> bool:
    """Whether all changes up to a bound have come."""
    return all(each.one.time <= each.other.time for each in overlaps(bound, now))


class Bound:
    """Where changes end for who wants no more, range by range."""

    def __init__(self, end: Positions) -> None:
        self._end = end
        self._starts = [each.start for each in end]

    def is_reached(self, start: int, end: int, time: int) -> bool:
        """Whether all changes of some hashes have come that are wanted."""
        first = max(0, bisect.bisect_right(self._starts, start) - 1)
        for each in itertools.islice(self._end, first, None):
            if each.start >= end:
                break
            if each.time > time:
                return False
        return True

    def latest(self, start: int, end: int) -> int:
        """Return the latest time of which changes of some hashes are wanted."""
        return max(each.time for each in self._end if each.start < end and start < each.end)


def hashes_of(codec: RowCodec, changes: Any) -> npt.NDArray[np.uint64]:
    """Return the hash of each change's key; `changes` is a table."""
    found = [hash_of(codec.encode_keys(batch)) for batch in changes.to_batches()]
    return np.concatenate(found) if found else np.array([], np.uint64)


def times_of(changes: Any) -> npt.NDArray[np.int64]:
    """Return the commit time of each change; `changes` is a table."""
    found: npt.NDArray[np.int64] = changes[COMMIT_TIME].to_numpy()
    return found


def sizes_of(changes: Any) -> npt.NDArray[np.int64]:
    """Return how many bytes the values of each change are; `changes` is a table."""
    sizes = np.zeros(changes.num_rows, np.int64)
    for column in changes.columns:
        sizes += _sizes(column)
    return sizes


def _sizes(column: Any) -> Any:
    if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        return pc.fill_null(pc.binary_length(column), 0).to_numpy()
    if pa.types.is_struct(column.type):
        fields = range(column.type.num_fields)
        return sum(_sizes(pc.struct_field(column, [each])) for each in fields)
    return max(column.type.bit_width // 8, 1)


def fitting(changes: Any, sizes: npt.NDArray[np.int64], bytes_max: int) -> int:
    """Return how many of the changes, in the order of commits, are at most so many bytes."""
    ends = np.cumsum(sizes[np.argsort(times_of(changes), kind="stable")])
    return int(np.searchsorted(ends, bytes_max, side="right"))


def up_to(bound: Positions, codec: RowCodec, changes: Any) -> Any:
    """Return the changes that lie up to a bound."""
    if not changes.num_rows:
        return changes
    times = np.array([each.time for each in bound], np.int64)
    if times_of(changes).max() <= times.min():
        return changes
    starts = np.array([each.start for each in bound], np.uint64)
    at = np.searchsorted(starts, hashes_of(codec, changes), side="right") - 1
    return changes.filter(np.asarray(times_of(changes) <= times[at]))


def cut(
    before: Positions, after: Positions, changes: Any, rows_max: int, *, takes_one: bool = True
) -> list[RangePosition]:
    """Return a position between two of a feed, with at most `rows_max` of the changes between.

    A commit is not cut: with `takes_one` the first one is taken, however large it is. More are
    taken where others give a range by then.
    """
    times = np.sort(times_of(changes))
    if len(times) <= rows_max:
        return list(after)
    last = int(times[max(rows_max, 1) - 1])
    if times[rows_max] == last:  # the commit would be cut
        fits = int(np.searchsorted(times, last))
        if not fits and not takes_one:
            return list(before)
        last = int(times[max(fits - 1, 0)])
    found = []
    for each in overlaps(before, after):
        time = min(max(each.one.time, last), each.other.time)
        if each.one.given_by == each.other.given_by:
            found.append(each.at(each.other)._replace(time=time))
        elif each.one.given_by == NOBODY_GAVE:  # a later time that a caller chooses
            found.append(each.at(each.one)._replace(time=time))
        else:
            found.append(each.at(each.other))
    return found


def split(start: Positions, end: Positions, parts: int) -> list[tuple[Positions, Positions]]:
    """Cut what lies between two positions into at most so many neighbouring parts."""
    both = [each for each in overlaps(start, end) if each.one.time < each.other.time]
    if not both:
        return []
    size = -(-len(both) // parts)
    found: list[tuple[list[RangePosition], list[RangePosition]]] = []
    for each in both:
        ends_before = found[-1][1][-1].end if found else None
        if ends_before != each.start or len(found[-1][0]) >= size:
            found.append(([], []))
        found[-1][0].append(each.at(each.one))
        found[-1][1].append(each.at(each.other))
    return [(one, other) for one, other in found]
