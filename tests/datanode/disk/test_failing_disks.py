"""Disks of real data nodes that refuse to write or to sync for a while: no restart is needed.

The refusals come from where the log writes and syncs; what else is on the disk goes on.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import msgspec
import pytest
from replica_cluster import Client, Coordinator, cluster

from rezone.datanode.node.node import DataNode
from rezone.datanode.replica.replica import Replica
from rezone.datanode.settings import NodeSettings
from rezone.domain.routing import route_leaders
from rezone.storage.disk import syncing
from rezone.wire.errors import NoSpaceError, NotReadyError
from rezone.wire.messages import DiskTrouble, NodeReport, ReportRequest, Role, ZoneConfig

P = 0
NODES = (0, 1, 2)
SETTINGS = NodeSettings(reconnect_ms_max=200, reopen_ms_min=50, reopen_ms_max=500, lease_ms=500)
CONFIG = ZoneConfig(zone="t", zone_uid="uid-test", partitions=1, replicas=3, min_in_sync_replicas=2)
ALONE = ZoneConfig(zone="t", zone_uid="uid-test", partitions=1, replicas=1)


class BadDisk:
    """Refuses what the log below a directory writes (`writes`) or syncs, while it is `bad`."""

    def __init__(self, directory: Path, error: int, *, writes: bool) -> None:
        self.directory = str(directory)
        self.error = error
        self.writes = writes
        self.bad = threading.Event()
        self.refused = threading.Event()

    def refuse(self, descriptor: int) -> None:
        """Raise what the disk says of a file of this node."""
        path = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        if self.bad.is_set() and path.startswith(self.directory):
            self.refused.set()
            raise OSError(self.error, os.strerror(self.error), path)


@contextlib.contextmanager
def patched(disk: BadDisk, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put the disk's refusals where the log writes or syncs."""
    sync, write = syncing.sync_data, os.pwrite

    def sync_data(descriptor: int) -> None:
        if not disk.writes:
            disk.refuse(descriptor)
        sync(descriptor)

    def pwrite(descriptor: int, data: bytes, position: int) -> int:
        if disk.writes:
            disk.refuse(descriptor)
        return write(descriptor, data, position)

    with monkeypatch.context() as patch:
        patch.setattr(syncing, "sync_data", sync_data)
        patch.setattr(os, "pwrite", pwrite)
        yield


def fail_over(c: Coordinator) -> bool:
    """Do as the coordinator does with a leader that says it has failed; whether one has."""
    reports = {n: c.report(n, P) for n in NODES}
    if not reports[c.records[P].leader].failed:
        return False
    able = [n for n, report in reports.items() if not report.failed]
    with c.lock:
        after = route_leaders.fail_over(c.records[P], able, minimum=2)
        if after is not None and after is not c.records[P]:
            c.send(P, after, *able)
    return True


def all_in_sync(c: Coordinator) -> bool:
    """Whether every replica is open, in sync and has the same log."""
    replicas = [c.replica(n) for n in NODES]
    ends = {replica.store.durable_end for replica in replicas}
    return c.isr(P) == {*NODES} and len(ends) == 1 and not any(r.failure for r in replicas)


@pytest.mark.parametrize(
    ("error", "writes", "trouble"),
    [
        (errno.ENOSPC, True, DiskTrouble.FULL),
        (errno.EROFS, True, DiskTrouble.FAILED),
        (errno.EIO, False, DiskTrouble.FAILED),
    ],
    ids=["full", "read-only", "sync"],
)
@pytest.mark.proves("NW-04")
def test_a_leader_that_cannot_write_leads_no_more_and_comes_back(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: int,
    writes: bool,
    trouble: DiskTrouble,
) -> None:
    """It led on for ever: no write was taken, and more space changed nothing without a kill."""
    disk = BadDisk(tmp_path / "node0", error, writes=writes)
    with patched(disk, monkeypatch), cluster(tmp_path, 3, settings=SETTINGS, config=CONFIG) as c:
        c.create(P, NODES)
        k = Client(c)
        k.put(P, {b"before": b"1"})
        disk.bad.set()
        with pytest.raises(NotReadyError):
            k.put(P, {b"refused": b"1"}, retry=False)
        c.until("node 0 says that it has failed", lambda: c.report(0, P).failed)
        said = c.report(0, P)
        assert (said.disk, said.role) == (trouble, Role.FOLLOWER)
        c.until("another leads", lambda: fail_over(c) and c.report(c.records[P].leader, P))
        k.put(P, {b"meanwhile": b"2"})
        assert c.records[P].leader != 0
        disk.bad.clear()
        c.watch()
        c.until("node 0 is back", lambda: all_in_sync(c))
        assert k.get(P, [b"before", b"meanwhile"]) == {b"before": b"1", b"meanwhile": b"2"}
        k.put(P, {b"after": b"3"})
    assert disk.refused.is_set()


@pytest.mark.proves("NW-04")
def test_a_leader_that_cannot_write_gives_up_its_read_leases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one would take no write until they are over: here for ten minutes."""
    disk = BadDisk(tmp_path / "node0", errno.EIO, writes=False)
    settings = msgspec.structs.replace(SETTINGS, lease_ms=600_000)
    with patched(disk, monkeypatch), cluster(tmp_path, 3, settings=settings, config=CONFIG) as c:
        c.create(P, NODES)
        k = Client(c)
        k.put(P, {b"before": b"1"})
        assert k.get(P, [b"before"]) == {b"before": b"1"}
        disk.bad.set()
        with pytest.raises(NotReadyError):
            k.put(P, {b"refused": b"1"}, retry=False)
        followers = [c.replica(n) for n in (1, 2)]
        c.until_each("told", followers, lambda each: each.following.is_released)
        c.until("another leads", lambda: fail_over(c) and c.report(c.records[P].leader, P))
        k.put(P, {b"meanwhile": b"2"})
        disk.bad.clear()


@pytest.mark.proves("NW-04")
def test_a_follower_that_cannot_write_leaves_the_set_and_writes_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each write would wait for it until it has lagged for ten seconds."""
    disk = BadDisk(tmp_path / "node2", errno.ENOSPC, writes=True)
    with patched(disk, monkeypatch), cluster(tmp_path, 3, settings=SETTINGS, config=CONFIG) as c:
        c.create(P, NODES)
        c.watch()
        k = Client(c)
        k.put(P, {b"before": b"1"})
        disk.bad.set()
        k.put(P, {b"meanwhile": b"2"}, seconds=5)
        c.until("it has left", lambda: c.isr(P) == {0, 1})
        disk.bad.clear()
        c.until("node 2 is back", lambda: all_in_sync(c))


@pytest.mark.proves("NW-04")
def test_after_a_failed_sync_only_what_was_durable_before_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel may have dropped what it could not write, and later syncs say that all is well."""
    disk = BadDisk(tmp_path / "node0", errno.EIO, writes=False)
    with patched(disk, monkeypatch), cluster(tmp_path, 1, settings=SETTINGS, config=ALONE) as c:
        c.create(P, (0,))
        k = Client(c)
        k.put(P, {b"durable": b"1"})
        before = c.replica(0)
        disk.bad.set()
        with pytest.raises(NotReadyError):
            k.put(P, {b"lost": b"1"}, retry=False)
        assert (before.store.durable_end, before.store.log_end) == (1, 2)
        disk.bad.clear()
        c.until("it leads again", lambda: c.report(0, P).role is Role.LEADER)
        assert c.replica(0) is not before
        assert c.replica(0).store.log_end == 1
        assert k.get(P, [b"durable", b"lost"]) == {b"durable": b"1"}


@pytest.mark.proves("NW-04")
def test_below_its_reserve_a_node_gives_way_and_takes_no_rows_but_serves_reads(
    tmp_path: Path,
) -> None:
    """It would write until nothing goes any more, not even a handover."""
    with cluster(tmp_path, 3, settings=SETTINGS, config=CONFIG) as c:
        c.create(P, NODES)
        c.watch()
        k = Client(c)
        k.put(P, {b"before": b"1"})
        reserve = c.node(0).space.reserve
        for node in (0, 2):
            c.node(node).space._free = lambda _: reserve * 3 // 4
        c.until("it says so", lambda: c.call(0, ReportRequest(), NodeReport).disk)
        c.until("node 2 is not counted on", lambda: c.isr(P) == {0, 1})
        k.put(P, {b"meanwhile": b"2"})
        c.node(0).space._free = lambda _: reserve // 4
        c.until("it looks again", lambda: c.node(0).space.free < reserve // 2)
        with pytest.raises(NoSpaceError):
            k.put(P, {b"refused": b"1"}, retry=False)
        assert k.get(P, [b"before", b"meanwhile"]) == {b"before": b"1", b"meanwhile": b"2"}
        c.move(P, 1)
        k.put(P, {b"after": b"3"})
        for node in (0, 2):
            c.node(node).space._free = lambda _: reserve * 2
        c.until("all are in sync again", lambda: all_in_sync(c))


def merges(replica: Replica) -> bool:
    """Whether the engine of a replica merges its files by itself."""
    engine: Any = replica.store.engine
    return bool(engine._merging)


@pytest.mark.proves("NW-04")
def test_a_replica_merges_its_files_by_the_room_of_the_node(tmp_path: Path) -> None:
    """One whose merge has filled the disk would fail each time it is opened, and serve no reads."""
    settings = msgspec.structs.replace(SETTINGS, trim_interval_ms=600_000)
    with cluster(tmp_path, 1, settings=settings, config=ALONE) as c:
        c.create(P, (0,))
        space, before = c.node(0).space, c.replica(0)
        assert merges(before)
        space._free = lambda _: 0
        c.until("it has looked", lambda: not space.has_room(0))
        before.upkeep.keep_house()
        assert not merges(before)
        space._free = lambda _: 1 << 40
        c.until("it has looked again", lambda: space.has_room(1 << 30))
        before.fail(OSError(errno.ENOSPC, "ENOSPC"))
        c.until("it is open again", lambda: c.replica(0) is not before)
        assert not merges(c.replica(0)), "the merge that has filled the disk begins again"
        c.replica(0).upkeep.keep_house()
        assert merges(c.replica(0))


def test_a_replica_that_is_opened_again_commits_above_all_times_it_was_read_at(
    tmp_path: Path,
) -> None:
    """With a clock set back meanwhile, a row would appear at a time that was answered without."""
    with cluster(tmp_path, 1) as c:
        c.create(P, (0,))
        client = Client(c)
        client.put(P, {b"a": b"1"})
        old = c.replica(0)
        with old.lock:
            floor = old.clock.micros() + 5_000_000
            old.write_clock.raise_to(floor)
        old.fail(OSError(errno.EIO, "EIO"))
        c.until("it leads again", lambda: c.replica(0) is not old and c.replica(0).leads)
        assert client.put(P, {b"a": b"2"}).commit_time > floor


def test_a_leader_hears_twice_that_a_disk_has_changed() -> None:
    """An ack that was made before may leave last, and a follower would never be in sync again."""
    changes = iter([True, False, False, False])
    acked: list[Any] = []
    node: Any = SimpleNamespace(
        disk_speed=SimpleNamespace(look=lambda _: False, aside_seconds=0),
        space=SimpleNamespace(look=lambda _: next(changes)),
        board=MagicMock(),
        partitions=lambda: [SimpleNamespace(responds=True)],
        ack=acked.append,
        _ack_again_at=math.inf,
    )
    counts = []
    for now in (10.0, 10.5, 11.0, 20.0):
        DataNode.look_at_disk(node, now)
        counts.append(len(acked))
    assert counts == [1, 1, 2, 2]
