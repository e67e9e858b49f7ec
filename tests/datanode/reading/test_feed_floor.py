"""From which offset on the log stays for named feeds: a table of limits and times."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from rezone.datanode.state.feed_floor import Acknowledged, feed_floor, feed_share
from rezone.wire.errors import SnapshotExpiredError
from rezone.wire.messages import FeedLimits

MUCH = 1 << 40
SECOND = 1_000_000


class Log:
    """A log from offset 100 to 200 whose entry at each offset is of that second; a byte each."""

    log_start = 100
    log_end = 200

    def log_bytes_from(self, offset: int) -> int:
        """Return the bytes behind an offset."""
        return 200 - offset

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


@pytest.mark.proves("CF-04")
@pytest.mark.parametrize(
    ("limits", "acknowledged", "now", "share"),
    [
        ((200, 1000), 199, 10_000, 0.0),  # nothing is behind, however long ago that is
        ((200, 1000), 149, 199, 0.25),  # by bytes
        ((200, 100), 149, 199, 0.5),  # by age
        ((200, 100), 149, None, 0.25),  # the time is not known
        ((200, 100), None, 10_000, 0.5),  # told nothing: all of the log
        ((20, 1000), 149, 199, 1.0),
        ((200, 1000), 50, 199, 1.0),  # the log begins behind it
    ],
)
def test_how_near_a_feed_is_to_its_limits(
    limits: tuple[int, int], acknowledged: int | None, now: int | None, share: float
) -> None:
    """Nobody would know of a feed that stands still until its log is gone."""
    at = None if acknowledged is None else acknowledged * SECOND
    seconds = None if now is None else now * SECOND
    assert feed_share(FeedLimits("a", *limits), at, Log(), seconds) == pytest.approx(share)


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
