"""Positions of a feed as bounds: each change lies in one batch, wherever batches end."""

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rezone.client.feed import bounds
from rezone.client.feed.rows import schema_of
from rezone.client.feed.token import RangePosition
from rezone.wire.codec.keyspace import HASH_SPACE
from rezone.wire.codec.rows import RowCodec
from rezone.wire.codec.schema import Column, ColumnType, TableSchema
from rezone.wire.messages import NOBODY_GAVE

CODEC = RowCodec(
    TableSchema(columns=(Column("id", ColumnType.INT64),), primary_key=("id",)),
)


def positions(cuts: list[int], times: list[int], given_by: int = 0) -> list[RangePosition]:
    """Return positions of ranges that end at these cuts, and at the last hash."""
    starts = [0, *cuts]
    ends = [*cuts, HASH_SPACE]
    found = zip(starts, ends, times, strict=True)
    return [RangePosition(start, end, time, given_by) for start, end, time in found]


def changes(times: list[int]) -> Any:
    """Return changes of keys 0, 1, 2 ... with these commit times."""
    rows = [
        {"id": n, "_operation": "upsert", "_commit_time": time, "_partition": 0, "_offset": n}
        for n, time in enumerate(times)
    ]
    return pa.Table.from_pylist(rows, schema=schema_of(CODEC))


@pytest.mark.proves("SP-03")
def test_each_change_is_in_one_batch_wherever_batches_end() -> None:
    """A change at the end of a batch would be lost or doubled after a restart."""
    rng = random.Random(7)
    half = HASH_SPACE // 2
    for _ in range(200):
        found = changes([rng.randrange(1, 30) for _ in range(50)])
        start = positions([half], [0, 0])
        end = positions([HASH_SPACE // 3, half], [30, 30, 30])
        room = rng.randrange(1, 60)
        middle = bounds.cut(start, end, found, room)
        first = bounds.up_to(middle, CODEC, found)
        commits = found["_commit_time"].to_pylist()
        earliest = commits.count(min(commits))
        assert 0 < first.num_rows <= max(room, earliest)
        ids = set(first["id"].to_pylist())
        later = [n for n in range(50) if n not in ids]
        # Those behind the position are the others, whatever is asked for.
        behind = bounds.hashes_of(CODEC, found)
        for n in range(50):
            (at,) = [p for p in middle if p.start <= int(behind[n]) < p.end]
            assert (commits[n] > at.time) == (n in later)
        assert bounds.is_reached(start, middle)
        assert bounds.is_reached(middle, end)


def test_a_commit_stays_whole_and_ranges_that_others_give_are_not_cut() -> None:
    """Rows of one commit have one time; a time of another partition is not this one's."""
    found = changes([5, 5, 5, 9])
    start, end = positions([], [0]), positions([], [9])
    assert bounds.cut(start, end, found, 2)[0].time == 5
    assert bounds.cut(start, end, changes([1, 5, 5, 9]), 2)[0].time == 1
    assert bounds.cut(start, end, found, 2, takes_one=False) == start
    chosen = positions([], [0], given_by=NOBODY_GAVE)
    since = bounds.cut(chosen, positions([], [9], given_by=3), found, 3)
    assert since == [(0, HASH_SPACE, 5, NOBODY_GAVE)]
    assert bounds.cut(start, positions([], [9], given_by=3), found, 2)[0] == (0, HASH_SPACE, 9, 3)


@pytest.mark.proves("SP-03")
def test_bytes_are_counted_in_the_order_of_commits() -> None:
    """A batch is cut by commit times: counted in another order it has more than its limit."""
    found = changes([9, 5, 7])  # a key, the operation, three numbers
    sizes = bounds.sizes_of(found)
    assert sizes.tolist() == [8 + 6 + 24] * 3
    wide = np.array([1, 10, 100], np.int64)  # by commits 10, 100, 1
    for bytes_max, count in ((9, 0), (10, 1), (109, 1), (110, 2), (111, 3)):
        assert bounds.fitting(found, wide, bytes_max) == count
    nulls = pa.table({"text": ["ab", None, ""], "flag": [True, None, False]})
    assert bounds.sizes_of(nulls).tolist() == [3, 1, 1]
    assert bounds.fitting(changes([]), bounds.sizes_of(changes([])), 5) == 0


def test_positions_are_compared_range_by_range() -> None:
    """They are cut differently when a zone is re-sharded between them."""
    half, third = HASH_SPACE // 2, HASH_SPACE // 3
    one, other = positions([half], [10, 20]), positions([third], [15, 15])
    assert bounds.highest(one, other) == positions([third, half], [15, 15, 20])
    assert bounds.lowest(one, other) == positions([third, half], [10, 10, 15])
    assert not bounds.is_reached(one, other)
    parts = bounds.split(positions([], [10]), other, 64)
    assert [len(start) for start, _ in parts] == [2] or len(parts) == 2
    whole = [each for start, _ in parts for each in start]
    assert whole == positions([third], [10, 10])
    assert bounds.split(one, one, 4) == []
    assert len(bounds.split(positions([], [0]), positions([third, half], [1, 2, 3]), 2)) == 2
    ends = bounds.split(positions([], [1]), positions([third, half], [2, 1, 3]), 1)
    assert [start[0].start for start, _ in ends] == [0, half], "a token has no gap"


def test_a_bound_is_reached_where_no_range_of_it_is_later() -> None:
    """A range would be asked for no more though some of its changes have not come."""
    rng = random.Random(11)
    for _ in range(300):
        cuts = sorted(rng.sample(range(1, 40), 5))
        end = positions(cuts, [rng.randrange(5) for _ in range(6)])
        bound = bounds.Bound(end)
        first = rng.randrange(40)
        last, time = rng.randrange(first + 1, 42), rng.randrange(5)
        late = [p for p in end if p.time > time and p.start < last and first < p.end]
        assert bound.is_reached(first, last, time) == (not late)
