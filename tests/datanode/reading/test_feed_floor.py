"""From which offset on the log stays for named feeds: a table of limits and times."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from rezone.datanode.state.feed_floor import Acknowledged, feed_floor
from rezone.wire.errors import SnapshotExpiredError
from rezone.wire.messages import FeedLimits

MUCH = 1 << 40
SECOND = 1_000_000


class Log:
    """A log from offset 100 to 200 whose entry at each offset is of that second; a byte each."""

    log_start = 100

    def offset_after(self, time: int) -> int:
        """Return where later entries begin."""
        if time < 99 * SECOND:
            raise SnapshotExpiredError("trimmed")
        return min(200, time // SECOND + 1)

    def trimmable(self, retention_bytes: int) -> int:
        """Return where so many bytes begin."""
        return max(100, 200 - retention_bytes)


@pytest.mark.proves("CF-04")
@pytest.mark.parametrize(
    ("feeds", "acknowledged", "now", "floor"),
    [
        ((), {}, 199, None),
        ((FeedLimits("a", MUCH, 1000),), {}, 199, 100),  # not told: all that the limits allow
        ((FeedLimits("a", MUCH, 1000),), {"a": 150}, 199, 151),
        ((FeedLimits("a", MUCH, 1000),), {"b": 150}, 199, 100),  # another one's
        ((FeedLimits("a", MUCH, 1000),), {"a": 500}, 199, 200),
        ((FeedLimits("a", 30, 1000),), {}, 199, 170),  # its bytes
        ((FeedLimits("a", 30, 1000),), {"a": 180}, 199, 181),
        ((FeedLimits("a", MUCH, 20),), {}, 199, 180),  # its age
        ((FeedLimits("a", MUCH, 20),), {}, None, 100),  # no ages while the time is not known
        ((FeedLimits("a", 30, 20),), {"a": 120}, 199, 180),
        ((FeedLimits("a", MUCH, 20), FeedLimits("b", 90, 1000)), {}, 199, 110),  # the lowest
        ((FeedLimits("a", MUCH, 1000), FeedLimits("b", MUCH, 1000)), {"a": 150}, 199, 100),
    ],
)
def test_the_log_stays_from_the_lowest_floor_on(
    feeds: tuple[FeedLimits, ...],
    acknowledged: Mapping[str, int],
    now: int | None,
    floor: int | None,
) -> None:
    """A feed would lose its log within its limits, or hold a disk beyond them."""
    times = {name: time * SECOND for name, time in acknowledged.items()}
    seconds = None if now is None else now * SECOND
    assert feed_floor(feeds, times, Log(), seconds) == floor


def test_an_acknowledgement_only_rises_and_goes_with_its_feed() -> None:
    """A late one would bring back what is trimmed; names that are gone would be kept for ever."""
    feeds = (FeedLimits("a", 1, 1), FeedLimits("b", 1, 1))
    told = Acknowledged()
    told.note("a", 7)
    told.note("a", 5)
    told.note("b", 3)
    assert told.times(feeds) == {"a": 7, "b": 3}
    assert told.times(feeds[1:]) == {"b": 3}
    assert told.times(feeds) == {"b": 3}
