"""How fast a data node says its disk is: the worst of the last while, and nothing by one sync."""

from __future__ import annotations

import math

import pytest

from rezone.datanode.disk.disk_speed import SLOW_FOR_SECONDS, SLOW_SYNCS_MIN, DiskSpeed
from rezone.datanode.settings import NodeSettings
from rezone.domain.observed.disk_speed import SLOW_MS, STALL_MS, is_slow
from rezone.storage.disk.sync_times import RECENT_SECONDS_MAX, SyncTimes

WELL_SECONDS = NodeSettings().disk_well_ms / 1000


class Disk:
    """The syncs of a node on a clock moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0
        self.times = SyncTimes(lambda: self.now)
        self.speed = DiskSpeed(self.times, NodeSettings())

    def sync(self, seconds: float, times: int = 1) -> None:
        """Make syncs one after the other, each of so many seconds."""
        for _ in range(times):
            number = self.times.begin()
            self.now += seconds
            self.times.end(number)

    def look(self, seconds: float = 0.0) -> bool:
        """Let time pass, and look."""
        self.now += seconds
        return self.speed.look(self.now)


def test_one_slow_sync_says_nothing_and_some_do() -> None:
    """A moment of the disk would move all leaders, or a disk of half a second would never count."""
    disk = Disk()
    disk.sync(0.001, 5)
    disk.sync(0.5)
    assert not disk.look()
    assert disk.speed.sync_ms < SLOW_MS
    disk.sync(0.5, 2)
    assert disk.look(), "those that compare themselves with it should hear of it"
    assert disk.speed.sync_ms == 500
    assert disk.speed.slow_ms == 0, "others may be found slow in the same moment"
    assert disk.look(SLOW_FOR_SECONDS)
    assert disk.speed.slow_ms == 500


def test_a_disk_counts_as_slow_until_it_has_done_well_for_a_while() -> None:
    """Leaders would come back with each good second of it."""
    disk = Disk()
    disk.sync(0.5, SLOW_SYNCS_MIN)
    disk.look()
    disk.look(SLOW_FOR_SECONDS)
    disk.sync(0.001, 10)
    disk.look(WELL_SECONDS - 0.1)
    assert disk.speed.slow_ms == 500
    assert disk.look(0.2), "that it is well is news"
    assert (disk.speed.sync_ms, disk.speed.slow_ms) == (0, 0), "without a new sync it is unknown"
    disk.sync(0.001, 5)
    disk.look()
    assert disk.speed.sync_ms == 2


def test_a_sync_that_does_not_come_back_is_seen_while_it_is_under_way() -> None:
    """A disk that stalls returns no time to count."""
    disk = Disk()
    disk.sync(0.001, 5)
    number = disk.times.begin()
    disk.look(STALL_MS / 1000 - 0.1)
    assert disk.speed.stalled_seconds == 0
    disk.look(0.2)
    assert disk.speed.stalled_seconds == pytest.approx(1.1)
    assert disk.speed.aside_seconds == 0, "others may be about to say that theirs stall"
    assert disk.look(SLOW_FOR_SECONDS)
    assert disk.speed.slow_ms > 2_000
    assert disk.speed.aside_seconds > 2
    disk.times.end(number)
    disk.look()
    assert disk.speed.stalled_seconds == 0
    disk.look(RECENT_SECONDS_MAX + WELL_SECONDS)
    disk.look(WELL_SECONDS)
    assert disk.speed.slow_ms == 0


def test_who_is_slow_says_so_again_and_again() -> None:
    """A follower whose lock was taken for a moment would never tell its leader."""
    disk = Disk()
    disk.sync(0.5, SLOW_SYNCS_MIN)
    disk.look()
    said = [disk.look(0.1) for _ in range(40)]
    assert 3 <= sum(said) <= 5


@pytest.mark.parametrize(
    ("slow_ms", "others_ms", "slow"),
    [
        (500, [1, 500], True),
        (500, [500, 450], False),
        (500, [], False),
        (500, [0, 0], False),
        (SLOW_MS - 1, [1], False),
        (60_000, [STALL_MS], False),
        (60_000, [STALL_MS // 4], True),
    ],
    ids=["one good", "all slow", "alone", "unknown", "not slow", "all stall", "one does well"],
)
def test_a_disk_is_slow_beside_the_best_of_the_others(
    slow_ms: int, others_ms: list[int], slow: bool
) -> None:
    """Where all are slow, leaders would move from one to the next."""
    assert is_slow(slow_ms, others_ms) is slow


def test_the_times_of_syncs_are_counted() -> None:
    """The metric would show a fast disk."""
    disk = Disk()
    disk.sync(0.0015, 2)
    disk.sync(30.0)
    assert (disk.times.counts[1], disk.times.counts[-1]) == (2, 1)
    assert math.isclose(disk.times.seconds, 30.003)
