"""Hot standbys on data nodes: who is told, engine before log, and a standby that leads."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from replica_cluster import Client, Coordinator, ProcessNode, cluster
from write_load import PARTITION as P
from write_load import Load

from rezone.datanode.settings import NodeSettings
from rezone.domain.routing import route_leaders
from rezone.wire.messages import (
    FetchLog,
    LeaderAndIsr,
    NotifyLeaderAndIsr,
    PartitionAssignment,
    Role,
    RoutesRequest,
    RouteTable,
    decode,
    encode,
)

LAZY = NodeSettings(replica_lag_ms_max=60_000, apply_interval_ms=3_600_000)


def in_iss(c: Coordinator, *nodes: int) -> None:
    """Wait until exactly these are in-sync standbys, as leader and coordinator agree."""
    c.until_settled(f"iss {nodes}", lambda: c.records[P].iss == nodes)


@pytest.mark.proves("HS-02")
def test_a_notification_makes_standbys_of_the_latest_and_of_those_in_sync(tmp_path: Path) -> None:
    """A standby would not know that it is one, or all nodes but one of them would forget it."""
    with cluster(tmp_path, 4, settings=LAZY) as c:
        c.create(P, (0, 1, 2, 3))
        k = Client(c)
        k.put(P, {b"a": b"1"})
        record = c.change(P, hot_standby_replica=2, iss=(1,))
        request = NotifyLeaderAndIsr(
            fence=c.fence(),
            partitions=(PartitionAssignment(partition=P, state=record),),
            peers=c.peers,
        )
        assert decode(encode(request)) == request
        for node in c.nodes:
            (told,) = c.call(node, RoutesRequest(), RouteTable).partitions
            assert (told.state.hot_standby_replica, told.state.iss) == (2, (1,))
        assert [c.replica(n).is_standby for n in c.nodes] == [False, True, True, False]
        k.put(P, {b"b": b"1"})
        c.until("applied", lambda: all(c.report(n, P).kv_applied_offset == 2 for n in (1, 2)))
        assert c.report(3, P).kv_applied_offset < 2, "a plain follower applies lazily"
        # What it knows outlives its process: nobody has to tell it again.
        c.nodes[1].stop()
        c.nodes[1].start()
        c.wait_up(1)
        assert c.replica(1).is_standby
        k.close()


class Syncs:
    """Stands before a store's `sync` and notes what the engine has when the disk is asked."""

    def __init__(self, store: Any) -> None:
        self.seen: list[tuple[int, int, int]] = []
        self.fails = threading.Event()
        self._store = store
        self._sync: Callable[[], None] = store.sync
        store.sync = self

    def __call__(self) -> None:
        """Make the log durable, unless the disk is to fail."""
        store = self._store
        self.seen.append((store.applied, store.durable_end, store.log_end))
        if self.fails.is_set():
            raise OSError("the disk fails")
        self._sync()


@pytest.mark.proves("HS-09")
def test_a_standby_s_engine_has_the_rows_before_its_log_is_on_disk(tmp_path: Path) -> None:
    """A standby would ack rows that it still has to apply when it is to lead."""
    with cluster(tmp_path, 3, settings=LAZY) as c:
        c.create(P, (0, 1, 2))
        k = Client(c)
        k.put(P, {b"first": b"v"})
        c.change(P, hot_standby_replica=1)
        in_iss(c, 1)
        hot, cold = Syncs(c.replica(1).store), Syncs(c.replica(2).store)
        for i in range(10):
            k.put(P, {b"%d" % i: b"v"})
        c.until("hot", lambda: c.report(1, P).durable_offset == 11)
        c.until("cold", lambda: c.report(2, P).durable_offset == 11)
        due = [seen for seen in hot.seen if seen[1] < seen[2]]
        assert due
        assert all(applied == log_end for applied, _, log_end in due), hot.seen
        assert all(applied < log_end for applied, _, log_end in cold.seen), "nor does it apply all"

        # The disk fails: the row is in the engine, and not in the log.
        hot.fails.set()
        writer = Client(c)
        thread = threading.Thread(target=lambda: _ignore(writer.put, P, {b"last": b"v"}))
        thread.start()
        c.until("failed", lambda: c.report(1, P).error)
        store = c.replica(1).store
        assert (store.applied, store.durable_end, store.log_end) == (12, 11, 12)
        assert c.report(0, P).committed_offset == 11, "and the leader counts the log alone"
        c.nodes[0].stop()
        thread.join(20)
        assert not thread.is_alive()
        k.close()


@pytest.mark.proves("HS-03", "HS-07")
def test_a_new_standby_applies_its_log_part_by_part_and_says_each_time_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A standby that begins far behind would never be one, or would look stuck until it is."""
    monkeypatch.setattr("rezone.datanode.replication.follower._STANDBY_SLICE_ROWS", 3)
    settings = msgspec.structs.replace(LAZY, standby_lag_rows_max=2)
    with cluster(tmp_path, 2, settings=settings) as c:
        c.create(P, (0, 1))
        k = Client(c)
        for i in range(10):
            k.put(P, {b"%d" % i: b"v"})
        c.until("durable", lambda: c.report(1, P).durable_offset == 10)
        behind = c.report(1, P).kv_applied_offset
        told: list[int] = []
        leading = c.replica(0).leading
        acked = leading.acked

        def noting(stream: Any, ack: FetchLog, **options: Any) -> None:
            told.append(ack.kv_applied_offset)
            acked(stream, ack, **options)

        leading.acked = noting  # type: ignore[method-assign]
        c.change(P, hot_standby_replica=1)
        c.until("it has applied all", lambda: told and told[-1] == 10)
        steps = sorted({behind, *told})
        assert len(steps) > 3
        assert all(after - before <= 3 for before, after in itertools.pairwise(steps))
        k.close()


def _ignore(call: Callable[..., Any], *arguments: Any) -> None:
    try:
        call(*arguments, retry=False)
    except Exception:  # noqa: BLE001 - the write has no outcome, and is not what is looked at
        return


def test_two_standbys_stay_in_iss_over_a_change_of_the_leader(tmp_path: Path) -> None:
    """Every takeover would leave the partition without standbys until they are made again."""
    with cluster(tmp_path, 4) as c:
        c.create(P, (0, 1, 2, 3))
        k = Client(c)
        k.put(P, {b"a": b"1"})
        for node, wanted in ((1, (1,)), (2, (1, 2)), (3, (1, 2, 3))):
            c.change(P, hot_standby_replica=node)
            in_iss(c, *wanted)
        c.move(P, 3)
        k.put(P, {b"b": b"1"})
        c.until("streams", lambda: len(c.replica(3).leading.streams) == 3)
        in_iss(c, 1, 2)
        assert [c.replica(n).is_standby for n in (0, 1, 2)] == [False, True, True]
        k.close()


@pytest.mark.proves("B-06", "HS-10")
@pytest.mark.slow
def test_after_sigkill_of_the_leader_its_standby_leads_and_another_one_follows(
    tmp_path: Path,
) -> None:
    """A partition would wait for a cold engine, or lose rows that its leader had acknowledged."""
    arguments = ("--replica-lag-ms-max=400",)
    with cluster(tmp_path, 3, processes=True, arguments=arguments) as c:
        c.create(P, (0, 1, 2))
        c.change(P, hot_standby_replica=2)
        c.watch()
        c.until("in iss", lambda: c.records[P].iss == (2,))
        load = Load(c, 2)
        load.wait_for(30)
        dead = c.nodes[0]
        assert isinstance(dead, ProcessNode)
        dead.kill()
        with c.lock:
            # What the coordinator does once the lease is over; its waiting is not measured here.
            after = route_leaders.fail_over(c.records[P], {1, 2}, minimum=1)
            assert isinstance(after, LeaderAndIsr)
            assert after.leader == 2, "the standby, not the first of the in-sync set"
            c.send(P, after)
        led = c.until("it leads", lambda: c.report(2, P))
        assert led.role is Role.LEADER
        load.wait_for(10)
        c.change(P, hot_standby_replica=1)
        c.until("another one", lambda: c.records[P].iss == (1,))
        dead.start()
        c.until("it is back", lambda: c.isr(P) == {0, 1, 2})
        load.wait_for(10)
        load.stop()
        load.check()
        digests = c.until("digests", lambda: c.digests(P))
        assert len({d.digests for d in digests.values()}) == 1
        gap = load.longest_gap_ms
        print(f"\nlongest write gap over kill -9: {gap:.0f} ms")  # noqa: T201 - what it is run for
