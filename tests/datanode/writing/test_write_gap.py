"""For how long no write could be committed in a leader transfer or cut-over, as data nodes tell."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from replica_cluster import Client, cluster
from resharding_kit import (
    SMALL,
    HeldDisk,
    begin_to_seal,
    create_old,
    overlaps_of,
    progress,
    reshard,
    resharded,
    zone,
)

from rezone.datanode.state.write_gap import WriteGap
from rezone.wire.messages import ReplicaReport

pytestmark = pytest.mark.proves("OB-05")
PARTITION = 0


def test_each_duration_is_taken_by_one_clock() -> None:
    """Clocks of two nodes differ by more than a gap is long."""
    old, new = WriteGap(), WriteGap()
    old.stop(7, now=1000.0)
    new.begin(7)
    assert new.is_open
    new.take(old.stopped_ms(7, now=1000.004), now=3.0)
    assert new.milliseconds(7) is None
    new.end(now=3.006, micros=99)
    new.end(now=9.0, micros=100)

    assert (new.milliseconds(7), new.ended_micros(7)) == (10, 99)


def test_what_is_known_of_other_epochs_counts_for_none() -> None:
    """A failover would get the figure of the transfer before it."""
    old, new = WriteGap(), WriteGap()
    assert not new.is_open
    old.stop(7, now=1.0)
    assert old.stopped_ms(8, now=2.0) == -1
    new.begin(8)
    new.take(old.stopped_ms(8, now=2.0), now=2.0)
    new.end(now=3.0, micros=1)
    assert (new.milliseconds(8), new.ended_micros(8)) == (None, 0)
    new.begin(9)
    new.take(5, now=4.0)
    assert new.milliseconds(8) is None


def test_a_gap_is_told_once() -> None:
    """A leader that restarts with its epoch would take all the time since for a gap."""
    old, restarted = WriteGap(), WriteGap()
    old.stop(7, now=1.0)
    assert old.stopped_ms(7, now=2.0) == 1000
    assert old.stopped_ms(7, now=3.0) == 2000, "a request that is repeated says it again"
    old.told()
    restarted.begin(7)
    restarted.take(old.stopped_ms(7, now=3600.0), now=5.0)
    restarted.end(now=6.0, micros=1)
    assert restarted.milliseconds(7) is None


def test_an_old_leader_that_comes_late_counts_up_to_when_writes_went_on() -> None:
    """It need not be in sync: the next leader goes on without it."""
    new = WriteGap()
    new.begin(7)
    new.end(now=3.0, micros=1)
    new.take(2000, now=4.0)
    assert new.milliseconds(7) == 1000
    late = WriteGap()
    late.begin(7)
    late.end(now=3.0, micros=1)
    late.take(10, now=9.0)
    assert late.milliseconds(7) == 0


@pytest.mark.slow
def test_the_next_leader_reports_the_gap_of_a_transfer(tmp_path: Path) -> None:
    """Nobody could say what a leader transfer costs those who write; a failover has no figure."""
    with cluster(tmp_path, 3) as c:
        c.create(PARTITION, (0, 1, 2))
        c.change(PARTITION, hot_standby_replica=1)
        assert c.report(0, PARTITION).write_gap_ms is None
        c.watch()
        client = Client(c)
        client.put(PARTITION, {b"a": b"1"})
        begun, micros = time.monotonic(), time.time_ns() // 1000
        c.move(PARTITION, 1)
        client.put(PARTITION, {b"a": b"2"})
        took_ms = (time.monotonic() - begun) * 1000

        def measured() -> ReplicaReport | None:
            found = c.report(1, PARTITION)
            return found if found.write_gap_ms is not None else None

        report = c.until("the gap is known", measured)
        client.close()

        assert report.write_gap_ms is not None
        assert 0 <= report.write_gap_ms <= took_ms + 1
        assert micros - 1e6 < report.write_gap_time < time.time_ns() / 1000 + 1e6
        assert c.report(0, PARTITION).write_gap_ms is None


@pytest.mark.slow
def test_a_new_partition_reports_for_how_long_its_cut_over_stopped_writes(tmp_path: Path) -> None:
    """A re-sharding could say nothing of what it costs writers; nor may it say less than it did."""
    with cluster(tmp_path, 3, config=zone(1), settings=SMALL) as c:
        create_old(c)
        client = Client(c)
        client.put(PARTITION, {b"a": b"1"})
        reshard(c, 2)
        c.until_each("backfilled", overlaps_of(c), lambda overlap: resharded(c, overlap))
        assert [progress(c, each).write_gap_ms for each in overlaps_of(c)] == [None, None]

        disk = HeldDisk(c.replica(c.records[PARTITION].leader, PARTITION))
        begun = time.monotonic()
        begin_to_seal(c, PARTITION)
        sealing = time.monotonic()
        c.until("the seal waits for the disk", lambda: disk.holds)
        stopped_ms = (time.monotonic() - sealing) * 1000
        disk.let_go()
        c.until_each("served", overlaps_of(c), lambda overlap: progress(c, overlap).sealed)
        took_ms = (time.monotonic() - begun) * 1000

        gaps = [progress(c, each).write_gap_ms for each in overlaps_of(c)]
        assert all(gap is not None and stopped_ms - 1 <= gap <= took_ms + 1 for gap in gaps)
        client.close()
