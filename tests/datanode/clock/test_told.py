"""The bound of what a node has told: on the disk before it counts, ahead of the clock, kept."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from replica_cluster import Client, cluster

from rezone.datanode.clock.clock_bound import DAMAGED, NAME, RECOVERED, ClockBound
from rezone.wire.errors import NotReadyError

P = 0
HOUR = 3_600_000_000
AHEAD_MS = 3_000
AHEAD = AHEAD_MS * 1000
NOW = 1_000_000_000


class HandClock:
    """A clock that is moved by hand."""

    def __init__(self, micros: int = NOW) -> None:
        self.now = micros
        self.gives = True

    def monotonic(self) -> float:
        """Return seconds."""
        return self.now / 1e6

    def micros(self) -> int:
        """Return the time of day."""
        return self.now

    def time(self) -> int:
        """Return the time of day; NotReadyError unless it `gives` one."""
        if not self.gives:
            raise NotReadyError("the node's time is not known")
        return self.now


class Record:
    """A record on a disk that may be full; `writes` counts."""

    def __init__(self) -> None:
        self.newest: bytes | None = None
        self.writes = 0
        self.full = False

    def write(self, payload: bytes) -> None:
        """Take a payload; OSError while the disk is full."""
        if self.full:
            raise OSError(28, "no space left on device")
        self.newest = payload
        self.writes += 1


@pytest.fixture
def clock() -> HandClock:
    """Give a clock."""
    return HandClock()


@pytest.fixture
def record() -> Record:
    """Give an empty record."""
    return Record()


def opened(clock: HandClock, record: Record) -> ClockBound:
    """Return a node's bound over what its disk has."""
    told = ClockBound(clock, AHEAD_MS)
    told.take_over(record)
    return told


def test_what_was_promised_counts_after_a_crash_whatever_the_clock_says(
    clock: HandClock, record: Record
) -> None:
    """A node whose clock was set back while it was down would write into what was read."""
    told = opened(clock, record)
    told.reach(NOW + 50)
    clock.now -= 10 * AHEAD
    again = opened(clock, record)
    assert again.before >= NOW + 50
    assert again.until == again.before


def test_rounds_of_leases_write_only_now_and_then(clock: HandClock, record: Record) -> None:
    """Each lease would wait for the disk."""
    told = opened(clock, record)
    for _ in range(100):
        clock.now += AHEAD // 50
        if told.is_due:
            told.keep_ahead()
        told.reach(clock.now)
    assert told.until > clock.now
    assert record.writes <= 6


def test_a_time_far_ahead_of_this_clock_is_on_the_disk_first(
    clock: HandClock, record: Record
) -> None:
    """A leader whose clock is far ahead would be promised what a crash forgets."""
    told = opened(clock, record)
    told.keep_ahead()
    told.reach(NOW + 100 * AHEAD)
    assert opened(clock, record).before >= NOW + 100 * AHEAD


def test_nothing_is_promised_that_cannot_be_written(clock: HandClock, record: Record) -> None:
    """A node with a full disk would promise what it forgets."""
    told = opened(clock, record)
    record.full = True
    with pytest.raises(OSError, match="no space"):
        told.reach(NOW)
    told.keep_ahead()
    assert told.until == 0


def test_a_time_that_was_given_up_raises_no_bound(clock: HandClock, record: Record) -> None:
    """After a restart no row could get a time below that of a clock that was wrong."""
    told = opened(clock, record)
    told.keep_ahead()
    kept = told.until
    clock.now += 30 * 24 * HOUR
    clock.gives = False
    assert told.is_due
    told.keep_ahead()
    assert (told.until, opened(clock, record).before) == (kept, kept)


def test_after_an_orderly_end_rows_do_not_get_times_ahead_of_the_clock(
    clock: HandClock, record: Record
) -> None:
    """Each update of a node would put its rows seconds into the future."""
    told = opened(clock, record)
    told.keep_ahead()
    told.reach(NOW + 50)
    told.close(NOW)
    assert opened(clock, record).before == NOW + 50


def damaged_copy(directory: Path, clock: HandClock, *reached: int) -> Path:
    """Make a bound that has reached these times, with damage in its newest record."""
    told = ClockBound(clock, AHEAD_MS)
    told.open(directory)
    for time_ in reached:
        told.reach(time_)
    path = directory / NAME
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    return path


def reopened(directory: Path, clock: HandClock) -> ClockBound:
    """Return the bound of a node that has begun again."""
    told = ClockBound(clock, AHEAD_MS)
    told.open(directory)
    return told


@pytest.mark.parametrize("error", [-30 * 24 * HOUR, 30 * 24 * HOUR])
@pytest.mark.proves("NW-05")
def test_a_damaged_bound_is_not_replaced_by_a_clock_that_nobody_has_checked(
    tmp_path: Path, clock: HandClock, error: int
) -> None:
    """Rows would get times a month ahead, or below those that were read at."""
    damaged_copy(tmp_path, clock, NOW)
    clock.now += error
    again = reopened(tmp_path, clock)
    assert again.lost
    assert again.is_due, "somebody has to look for it"
    assert again.before == 0
    assert (tmp_path / DAMAGED).exists()


def test_a_bound_that_was_lost_stays_lost_until_another_is_durable(
    tmp_path: Path, clock: HandClock
) -> None:
    """A restart before the node knows the time would begin as if nothing had been told."""
    damaged_copy(tmp_path, clock, NOW)
    reopened(tmp_path, clock).reach(5)  # as a lease that it grants meanwhile
    again = reopened(tmp_path, clock)
    assert again.lost
    assert again.recover(NOW + 7)
    assert again.before == NOW + 7
    assert reopened(tmp_path, clock).lost, "those who have to know it may not know it yet"
    again = reopened(tmp_path, clock)
    assert again.recover(NOW + 8)
    again.found()
    assert not again.lost
    assert (tmp_path / RECOVERED).exists()
    last = reopened(tmp_path, clock)
    assert not last.lost
    assert last.before >= NOW + 8


def test_what_can_be_read_of_a_damaged_bound_counts(tmp_path: Path, clock: HandClock) -> None:
    """A node that nobody can tell the time, its clock set back, would begin below what it told."""
    damaged_copy(tmp_path, clock, NOW + 20 * AHEAD, NOW + 40 * AHEAD)
    again = reopened(tmp_path, clock)
    assert again.before == NOW + 21 * AHEAD
    assert again.recover(NOW)
    assert again.before == NOW + 21 * AHEAD


def test_a_bound_is_not_found_before_it_is_on_the_disk(clock: HandClock, record: Record) -> None:
    """A crash would forget it, and what was promised by then."""
    told = opened(clock, record)
    record.full = True
    assert not told.recover(NOW)
    assert told.before == 0
    record.full = False
    assert told.recover(NOW)


@pytest.mark.proves("ZR-08")
def test_what_a_leader_inherited_outlives_restarts_of_who_may_lead_next(tmp_path: Path) -> None:
    """After a restart a replica would lead with rows in a past that others have read already.

    The time is one that no clock here has told: the leader has it of one before it, whose clock
    was an hour ahead. So nothing but the facts of the replicas can know of it.
    """
    with cluster(tmp_path, 3) as c:
        c.create(P, (0, 1, 2))
        ahead = time.time_ns() // 1000 + HOUR
        c.replica(0).write_clock.raise_to(ahead)
        c.end_streams(2, P)
        c.until("no stream", lambda: 2 not in c.replica(0).leading.streams)
        c.node(2).restream(c.replica(2))
        c.until("told with its stream", lambda: c.replica(2).store.meta.time_floor == ahead)
        assert c.replica(2).write_clock.floor == ahead
        c.move(P, 1)
        assert c.replica(1).write_clock.floor == ahead, "told with the state change"
        for node in (1, 2):
            c.until("acked", lambda: len(c.replica(1).leading.streams) == 2)
            c.nodes[node].stop()
            c.nodes[node].start()
            c.wait_up(node)
            assert c.node(node).clock_bound.before < ahead
            assert c.replica(node).write_clock.floor == ahead
        c.until("leads again", lambda: len(c.replica(1).leading.streams) == 2)
        c.move(P, 2)
        k = Client(c)
        assert k.put(P, {b"k": b"v"}).commit_time > ahead
        k.close()
