"""Copies have a deadline for progress, from when they were asked for."""

from datetime import timedelta
from typing import Any

import pytest
from worlds import NOW, World, record

from rezone.domain.model.world import Copy
from rezone.domain.observed.copy_watch import CopyWatch
from rezone.resources.conditions import Reason
from rezone.wire.messages import CopyFailure, CopyProgress

DEADLINE = 600.0
KEY = (0, 3)


class Watched:
    """One copy of partition 0 to node 3, asked for every ten seconds and looked at."""

    def __init__(self, *, streams: bool = True) -> None:
        self.watch = CopyWatch()
        self.now = NOW
        self.streams = streams
        self.asks = True
        self.report: dict[str, Any] | None = {"needs_snapshot": True}
        self.silent = False
        self.others: set[int] = set()

    def wait(self, seconds: float, *, grows: int = 0, **copy: Any) -> bool:
        """Let time pass; returns whether the copy counts as stalled then."""
        for _ in range(int(seconds // 10)):
            self.now += timedelta(seconds=10)
            if self.asks:
                copies = [Copy(partition=0, source=0, targets=(3,))]
                self.watch.asked(copies, self.now, streams=self.streams)
            if copy and self.report is not None:
                copy["bytes"] = copy.get("bytes", 0) + grows
                self.report["copy"] = CopyProgress(**copy)
            world = World(routes=[record(), record(), record()])
            world.reports = {KEY: self.report} if self.report is not None else {}
            world.reports |= {(partition, 3): {} for partition in self.others}
            world.silent = {3: 1.0} if self.silent else {}
            self.watch.look(world.view().nodes, self.now)
        return KEY in self.watch.stalled(self.now, deadline_seconds=DEADLINE)


@pytest.mark.proves("B-14")
def test_a_copy_that_fails_again_and_again_stalls_with_its_reason() -> None:
    """Attempts without new bytes are no progress.

    Otherwise a receiver with a full disk would be asked for ever.
    """
    copy = Watched()
    assert not copy.wait(300, bytes=5)
    assert not copy.wait(290, bytes=5, error="No space", failure=CopyFailure.NO_SPACE)
    assert copy.wait(100, bytes=5, error="No space", failure=CopyFailure.NO_SPACE)
    found = copy.watch.stalled(copy.now, deadline_seconds=DEADLINE)[KEY]
    assert (found.reason, found.error) == (Reason.NO_SPACE, "No space")
    assert copy.watch.avoided(copy.now) == {3}
    copy.report = None
    copy.asks = False
    assert not copy.wait(600), "its replica is gone"
    assert copy.watch.avoided(copy.now) == {3}, "full nodes would take turns"
    assert not copy.wait(3600)
    assert copy.watch.avoided(copy.now) == frozenset()


def test_bytes_that_arrive_extend_the_deadline() -> None:
    """A slow copy is none that stands still.

    Otherwise a large partition could never be copied over a slow line.
    """
    copy = Watched()
    assert not copy.wait(3000, grows=1, bytes=1)
    assert copy.wait(700, bytes=301)


def test_a_copy_that_starts_over_for_ever_stalls() -> None:
    """The same bytes again and again are no progress, after a few times.

    Otherwise a copy that fills the disk and starts over would never be found out.
    """
    copy = Watched()
    stalled = [copy.wait(100, bytes=received) for received in (9, 1) * 12]
    assert not any(stalled[:8])
    assert stalled[-1]


@pytest.mark.parametrize("rests", ["in a pause", "behind Spark's other copies"])
def test_a_copy_that_is_not_asked_for_has_all_the_time(rests: str) -> None:
    """The deadline counts while the copy may run.

    Otherwise a pause, or a limit, would count as a fault of the receiver.
    """
    copy = Watched(streams=rests == "in a pause")
    if copy.streams:
        copy.wait(500, bytes=5)
        copy.asks = False
        assert not copy.wait(3000, bytes=5)
        copy.asks = True
        assert not copy.wait(590, bytes=5)
        assert copy.wait(60, bytes=5)
    else:
        assert not copy.wait(3000)
        assert not copy.wait(590, bytes=5)
        assert copy.wait(60, bytes=5)


def test_a_copy_that_is_done_is_not_watched() -> None:
    """What was copied has no deadline any more, nor has a silent node's one that stood still.

    Otherwise a replica that needs a copy again later would count as failed at once.
    """
    copy = Watched()
    copy.wait(500, bytes=5)
    copy.report = {"needs_snapshot": False}
    copy.wait(10)
    copy.report = {"needs_snapshot": True}
    assert not copy.wait(590, bytes=5)


def test_a_copy_to_a_full_node_has_its_time_once_more_when_a_replica_has_left() -> None:
    """Room that came to be restarts the deadline of the copies that waited for it.

    Otherwise a copy would count as failed in the moment in which it can be made.
    """
    copy = Watched()
    full: dict[str, Any] = {"bytes": 5, "error": "full", "failure": CopyFailure.NO_SPACE}
    copy.others = {1, 2}
    assert copy.wait(700, **full)
    copy.others = {1}
    assert not copy.wait(590, **full)
    assert copy.wait(100, **full)
    copy.others = set()
    assert copy.wait(100, bytes=5, error="broken", failure=CopyFailure.SOURCE)


@pytest.mark.parametrize("streams", [True, False])
def test_a_pause_does_not_count(streams: bool) -> None:
    """After an hour's pause every target would have failed, and be avoided for another hour."""
    copy = Watched(streams=streams)
    assert not copy.wait(100, bytes=100)
    copy.asks = False
    copy.wait(3600, bytes=100)
    copy.asks = True
    assert not copy.wait(10, bytes=100)
