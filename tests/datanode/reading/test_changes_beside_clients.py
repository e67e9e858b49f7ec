"""What feeds leave to the clients of a data node: real replicas, a clock that only rests move."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from foreground_kit import Time, busy
from replica_cluster import Client, Coordinator, cluster

from rezone.datanode.node.change_source import REST_SECONDS_MAX, ChangeSource
from rezone.datanode.scheduling.foreground import SHORT_STEP_BYTES, Foreground
from rezone.wire.messages import AskedRange, FollowChanges, RangeChanges

P = 0
ROWS, ROW_BYTES = 64, 16 << 10


def asked(
    c: Coordinator, foreground: Foreground, time: Time, *, counts_only: bool = False
) -> RangeChanges:
    """Return what node 0 answers to a follower of all changes of a partition."""
    source = ChangeSource(c.node(0).find, foreground, time, threading.Event())
    first, end = c.replica(0, P).hash_range
    each = AskedRange(partition=P, first_hash=first, last_hash=end - 1, time=1, given_by=P)
    request = FollowChanges(ranges=(each,), bytes_max=1 << 30, counts_only=counts_only)
    (answer,) = source.follow(request).ranges
    assert answer.error is None
    return answer


def with_rows(c: Coordinator) -> None:
    """Have a partition whose log is longer than the short steps beside clients are."""
    c.create(P, (0, 1))
    k = Client(c)
    for number in range(ROWS):
        k.put(P, {b"%d" % number: bytes(ROW_BYTES)})
    k.close()


@pytest.mark.proves("CF-03")
def test_an_answer_beside_clients_is_short_and_rests(tmp_path: Path) -> None:
    """Who follows with megabytes at a time would take the processor from those who write."""
    with cluster(tmp_path, 2) as c:
        with_rows(c)
        time = Time()
        alone = Foreground(time, lambda: 80, wait=time.wait)
        whole = asked(c, alone, time)
        assert len(whole.rows) > ROWS * ROW_BYTES
        assert not whole.more
        assert alone.rested_seconds == 0.0
        beside = busy(time, 80)
        part = asked(c, beside, time)
        assert SHORT_STEP_BYTES <= len(part.rows) < SHORT_STEP_BYTES + 2 * ROW_BYTES
        assert part.more
        assert 0.0 < beside.rested_seconds <= REST_SECONDS_MAX


@pytest.mark.proves("CF-03")
def test_changes_are_counted_in_steps_beside_clients(tmp_path: Path) -> None:
    """An answer without rows has read its log all the same."""
    with cluster(tmp_path, 2) as c:
        with_rows(c)
        time = Time()
        whole = asked(c, Foreground(time, lambda: 80, wait=time.wait), time, counts_only=True)
        assert not whole.rows
        assert [each.changes for each in whole.commits] == [1] * ROWS
        part = asked(c, busy(time, 80), time, counts_only=True)
        assert SHORT_STEP_BYTES <= len(part.commits) * ROW_BYTES < SHORT_STEP_BYTES + 2 * ROW_BYTES
        assert part.more


@pytest.mark.proves("CF-03")
def test_an_answer_waits_for_others_rests_within_bounds(tmp_path: Path) -> None:
    """Many followers at one node would wait for each other until none of them gets an answer."""
    with cluster(tmp_path, 2) as c:
        with_rows(c)
        time = Time()
        foreground = busy(time, 80)
        for _ in range(8):
            foreground.owe(1.0)
        before = time.now
        asked(c, foreground, time)
        assert time.now - before == pytest.approx(REST_SECONDS_MAX, abs=0.01)
        assert foreground.owed_seconds < 0.01, "copies wait no longer for it"
