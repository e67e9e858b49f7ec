"""Versions as columns: chains are told apart, and what is no version is refused."""

from __future__ import annotations

import itertools
import random

import pytest

from rezone.storage.engines.base import FLAG_INTENT, FLAG_TOMBSTONE, FLAG_VALUE, time_suffix
from rezone.storage.snapshot.columns import columns_of, visible
from rezone.wire.errors import CorruptionError

HASH = bytes(7) + b"h"


@pytest.mark.parametrize(
    "row_ids",
    [
        [HASH + b"a", HASH + b"b", HASH + b"ba", b"z" * 9],
        [b"", b"a", b"ab", HASH + b"c"],
        [b"a" * 8],
    ],
    ids=["of one hash", "shorter than a hash", "one"],
)
@pytest.mark.parametrize("seed", range(5))
def test_what_shows_is_the_newest_version_of_each_row(row_ids: list[bytes], seed: int) -> None:
    """Two rows taken for one lose a row, and one taken for two shows an old version."""
    random_ = random.Random(seed)
    pairs: list[tuple[bytes, bytes]] = []
    wanted: dict[bytes, bytes | None] = {}
    as_of = 6
    for row in sorted(row_ids):
        times = sorted(random_.sample(range(1, 10), random_.randint(1, 5)), reverse=True)
        for time in times:
            flag = random_.choice((FLAG_VALUE, FLAG_VALUE, FLAG_TOMBSTONE, FLAG_INTENT))
            pairs.append((row + time_suffix(time), bytes([flag]) + b"%d" % time))
            if time <= as_of and flag != FLAG_INTENT:
                wanted.setdefault(row, b"%d" % time if flag == FLAG_VALUE else None)
    keys, values = [key for key, _ in pairs], [value for _, value in pairs]
    columns = columns_of(keys, values)
    firsts = [True, *(one[:-8] != other[:-8] for one, other in itertools.pairwise(keys))]
    assert columns.starts().tolist() == firsts
    found, contents = visible(columns, as_of)
    shown = dict(zip(found.tolist(), contents.tolist(), strict=True))
    assert shown == {row: value for row, value in wanted.items() if value is not None}


@pytest.mark.parametrize(
    ("keys", "values"),
    [([b"short"], [b"\1"]), ([bytes(9), b"\1" * 7], [b"\1", b"\1"]), ([bytes(9)], [b""])],
    ids=["a key", "the second key", "a value"],
)
def test_what_is_no_version_is_refused(keys: list[bytes], values: list[bytes]) -> None:
    """Arrow takes bounds as they are: it would read before or behind the bytes."""
    with pytest.raises(CorruptionError):
        columns_of(keys, values)
