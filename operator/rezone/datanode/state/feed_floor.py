"""From which offset on a replica's log stays for named feeds (docs/decisions/0502).

The floor of one feed is the latest of three offsets: behind what it has acknowledged, where the
log has its `bytes_max`, and behind what is older than its `age_seconds_max`. The log stays from the
lowest floor of all feeds on. Ages are not counted while the node does not know the time. How near a
feed is to its limits is told before it is there.

What is acknowledged is held in memory alone: a replica that is new, or was restarted, keeps as much
as the limits allow until it is told again. So an acknowledgement that is lost costs room, and never
a change.
"""

import threading
from collections.abc import Iterable, Mapping
from typing import Protocol

from rezone.wire.errors import SnapshotExpiredError
from rezone.wire.messages import FeedLimits


class KeptLog(Protocol):
    """The log of a replica."""

    @property
    def log_start(self) -> int:
        """The offset of the oldest entry kept."""
        ...

    @property
    def log_end(self) -> int:
        """The offset after the newest entry."""
        ...

    def log_bytes_from(self, offset: int) -> int:
        """Return about how many bytes the log has from an offset on."""
        ...

    def offset_after(self, time: int) -> int:
        """Return where later entries begin; SnapshotExpiredError when some may be trimmed."""
        ...

    def trimmable(self, retention_bytes: int) -> int:
        """Return the offset to which so many bytes of log would be trimmed."""
        ...


class Acknowledged:
    """Up to which commit times named feeds have had all changes of a replica, in microseconds.

    Concurrency: thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._times: dict[str, int] = {}

    def note(self, feed: str, time: int) -> None:
        """Note that a feed needs nothing up to a time; one before what is known changes nothing."""
        with self._lock:
            self._times[feed] = max(time, self._times.get(feed, 0))

    def times(self, feeds: Iterable[FeedLimits]) -> dict[str, int]:
        """Return the times of these feeds, and forget all others."""
        names = {feed.name for feed in feeds}
        with self._lock:
            self._times = {name: at for name, at in self._times.items() if name in names}
            return dict(self._times)


def feed_floor(
    feeds: Iterable[FeedLimits], acknowledged: Mapping[str, int], log: KeptLog, now: int | None
) -> int | None:
    """Return the lowest floor of all feeds; None without any.

    `now` is in microseconds since 1970, None while the node does not know the time.
    """
    floors = [_floor(feed, acknowledged.get(feed.name), log, now) for feed in feeds]
    return min(floors, default=None)


def feed_share(feed: FeedLimits, acknowledged: int | None, log: KeptLog, now: int | None) -> float:
    """Return how near a feed is to its limits: at 1 the log is trimmed without it.

    The greater one of two shares, of bytes and of age, of what it has not acknowledged; a feed that
    has acknowledged nothing is counted by bytes alone. Times are as in `feed_floor`.
    """
    behind = log.log_start
    if acknowledged is not None:
        try:
            behind = log.offset_after(acknowledged)
        except SnapshotExpiredError:
            return 1.0
    if behind >= log.log_end:
        return 0.0
    shares = [log.log_bytes_from(behind) / feed.bytes_max]
    if acknowledged is not None and now is not None:
        shares.append((now - acknowledged) / (feed.age_seconds_max * 1_000_000))
    return min(1.0, max(shares))


def _floor(feed: FeedLimits, acknowledged: int | None, log: KeptLog, now: int | None) -> int:
    times = [] if acknowledged is None else [acknowledged]
    if now is not None:
        times.append(now - feed.age_seconds_max * 1_000_000)
    floor = log.trimmable(feed.bytes_max)
    for time in times:
        try:
            floor = max(floor, log.offset_after(time))
        except SnapshotExpiredError:
            floor = max(floor, log.log_start)  # the log does not even go back so far
    return floor
