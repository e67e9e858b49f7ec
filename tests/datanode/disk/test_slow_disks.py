"""Disks of real data nodes whose syncs take long or do not come back, and then do."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from replica_cluster import Client, cluster
from test_failing_disks import CONFIG, NODES, SETTINGS, P, all_in_sync, fail_over

from rezone.datanode.observing.readiness import unready_reason
from rezone.datanode.replication.leader import LeaderDuties
from rezone.domain.observed.disk_speed import SLOW_MS
from rezone.storage.disk import syncing
from rezone.wire.messages import DiskTrouble, NodeReport, NoteCompared, ReportRequest, Role

WELL_SOON = msgspec.structs.replace(SETTINGS, disk_well_ms=200, replica_lag_ms_max=600_000)
"""Nobody leaves a set here because of an ack that is owed."""

SLOW_SECONDS = SLOW_MS / 1000 + 0.05


class SlowDisk:
    """Holds up each sync of a log below a directory, at most `seconds`, until it is well."""

    def __init__(self, directory: Path) -> None:
        self.directory = str(directory)
        self.seconds: float | None = None
        self.is_slow = threading.Event()
        self.well = threading.Event()

    def hold_up(self, descriptor: int) -> None:
        """Wait as long as the disk takes for a file of this node."""
        path = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        if self.is_slow.is_set() and path.startswith(self.directory):
            self.well.wait(self.seconds)

    def mend(self) -> None:
        """Let all syncs come back."""
        self.is_slow.clear()
        self.well.set()


@contextlib.contextmanager
def slow_disk(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowDisk]:
    """Put a disk's slowness where the log syncs."""
    disk, sync = SlowDisk(directory), syncing.sync_data

    def sync_data(descriptor: int) -> None:
        disk.hold_up(descriptor)
        sync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(syncing, "sync_data", sync_data)
        try:
            yield disk
        finally:
            disk.mend()


@pytest.mark.proves("NW-04")
def test_a_leader_whose_sync_does_not_come_back_stands_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its partitions would take no write for as long as the disk stalls, beside two that do well.

    Leases are long, so the next leader takes writes only because they were given up.
    """
    settings = msgspec.structs.replace(WELL_SOON, lease_ms=600_000)
    with (
        cluster(tmp_path, 3, settings=settings, config=CONFIG) as c,
        slow_disk(tmp_path / "node0", monkeypatch) as disk,
    ):
        c.create(P, NODES)
        k = Client(c)
        k.put(P, {b"before": b"1"})
        disk.is_slow.set()
        writer = threading.Thread(target=k.put, args=(P, {b"meanwhile": b"2"}), daemon=True)
        writer.start()
        c.until("node 0 steps down", lambda: c.report(0, P).failed)
        said = c.report(0, P)
        assert (said.disk, said.role) == (DiskTrouble.SLOW, Role.FOLLOWER)
        assert "the disk stalls" in unready_reason(c.node(0))
        assert c.node(0).threads.alive
        c.until("another leads", lambda: fail_over(c) and c.report(c.records[P].leader, P))
        assert c.records[P].leader != 0
        writer.join(20)
        assert not writer.is_alive(), "the write was never answered"
        disk.mend()
        c.watch()
        c.until("node 0 is back", lambda: all_in_sync(c))
        assert k.get(P, [b"before", b"meanwhile"]) == {b"before": b"1", b"meanwhile": b"2"}
        # The thread of the sync that has come back at last may not have run yet.
        c.until("node 0 is ready", lambda: not unready_reason(c.node(0)))


@pytest.mark.proves("NW-04", "B-04")
def test_a_leader_that_only_uncompared_copies_could_replace_does_not_step_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody may lead in its place: it failed, opened again and failed, and no copy was compared.

    As soon as one of them has been compared it steps down.
    """
    with (
        cluster(tmp_path, 3, settings=WELL_SOON, config=CONFIG) as c,
        slow_disk(tmp_path / "node0", monkeypatch) as disk,
    ):
        c.create(P, NODES)
        k = Client(c)
        k.put(P, {b"before": b"1"})
        for node in (1, 2):
            c.replica(node).store.update_meta(uncompared="snapshot")
            c.node(node).ack(c.replica(node))
        leading, speed = c.replica(0).leading, c.node(0).disk_speed
        c.until("it knows of the copies", lambda: not leading.can_be_replaced)
        disk.is_slow.set()
        writer = threading.Thread(target=k.put, args=(P, {b"meanwhile": b"2"}), daemon=True)
        writer.start()
        c.until("the disk stalls", lambda: speed.aside_seconds and _is_behind(leading))
        c.node(0).look_at_disk(c.node(0).clock.monotonic())
        assert not c.report(0, P).failed
        c.call(1, NoteCompared(fence=c.fence(), partition=P, uncompared="snapshot"))
        c.until("node 0 steps down", lambda: c.report(0, P).failed)
        assert c.report(0, P).disk is DiskTrouble.SLOW
        disk.mend()
        writer.join(20)
        assert not writer.is_alive(), "the write was never answered"


def _is_behind(leading: LeaderDuties) -> bool:
    """Whether a follower has on its disk what its leader has not."""
    durable = leading._replica.store.durable_end
    state = leading._replica.leadership
    return state is not None and any(f.durable > durable for f in state.followers.values())


@pytest.mark.proves("NW-04")
def test_a_follower_whose_sync_does_not_come_back_leaves_the_set_until_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each write would wait for it, until it has owed an ack for too long: here for ten minutes."""
    with (
        cluster(tmp_path, 3, settings=WELL_SOON, config=CONFIG) as c,
        slow_disk(tmp_path / "node2", monkeypatch) as disk,
    ):
        c.create(P, NODES)
        c.watch()
        k = Client(c)
        for number in range(5):
            k.put(P, {b"before": b"%d" % number})
        disk.is_slow.set()
        k.put(P, {b"meanwhile": b"2"}, seconds=20)
        c.until("it has left", lambda: c.isr(P) == {0, 1})
        assert c.records[P].leader == 0
        disk.mend()
        c.until("node 2 is back", lambda: all_in_sync(c))


@pytest.mark.proves("NW-04")
def test_a_node_whose_syncs_are_slow_says_so_and_hands_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All writes would take as long as its syncs, and nobody would know of which disk."""
    with (
        cluster(tmp_path, 3, settings=WELL_SOON, config=CONFIG) as c,
        slow_disk(tmp_path / "node0", monkeypatch) as disk,
    ):
        c.create(P, NODES)
        c.watch()
        k = Client(c)
        disk.seconds = SLOW_SECONDS
        disk.is_slow.set()

        def said() -> NodeReport | None:
            k.put(P, {b"k": b"v"})
            report: NodeReport = c.call(0, ReportRequest(seen=-1), NodeReport)
            return report if report.slow_ms else None

        slow = c.until("it says so", said)
        assert slow.sync_ms >= slow.slow_ms >= SLOW_MS
        assert c.records[P].isr == NODES, "a slow leader counts on its followers"
        c.move(P, 1)
        k.put(P, {b"after": b"1"})
        c.until("the next leader does not wait for it", lambda: c.isr(P) == {1, 2})
        disk.mend()

        def back() -> bool:
            k.put(P, {b"k": b"w"})
            return all_in_sync(c)

        c.until("node 0 is back", back)
