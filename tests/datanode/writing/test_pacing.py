"""Writers slowed for a replica that catches up: the rule by itself, and a leader that obeys it."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replica_cluster import FAST, Client, Coordinator, LocalNode, cluster
from resharding_kit import in_background

from rezone.datanode.observing.copymetrics import CopyCollector
from rezone.datanode.replica.replica import Replica
from rezone.datanode.settings import NodeSettings
from rezone.datanode.writing.pacing import CatchUpRate
from rezone.storage.snapshot.snapshot import SnapshotLimits
from rezone.storage.store_config import StoreConfig
from rezone.wire.errors import NotReadyError
from rezone.wire.messages import WriteResult, ZoneConfig

P = 0
STEP_SECONDS = 0.1
SETTINGS = NodeSettings()
SLOW = msgspec.structs.replace(
    FAST, catch_up_rows_min=400, takeover_rows_max=40, kept_log_bytes_max=0
)


class Race:
    """A replica that takes `capacity` rows per second, and writers that offer `offered`."""

    def __init__(self, offered: int, capacity: int, lag: int) -> None:
        self.rate = CatchUpRate(SETTINGS)
        self.offered, self.capacity = offered, capacity
        self.log_end, self.durable = float(lag), 0.0
        self.now = 0.0
        self.limit: float | None = None
        self.slowest = float("inf")

    @property
    def lag(self) -> float:
        """The rows that the replica still lacks."""
        return self.log_end - self.durable

    def step(self) -> None:
        """Let a tenth of a second pass."""
        self.limit = self.rate.look(
            self.now, int(self.log_end), {1: int(self.durable)}, log_full=False
        )
        brought = self.offered if self.limit is None else min(self.offered, self.limit)
        self.slowest = min(self.slowest, self.limit or self.slowest)
        self.now += STEP_SECONDS
        self.log_end += brought * STEP_SECONDS
        self.durable = min(self.log_end, self.durable + self.capacity * STEP_SECONDS)


@pytest.mark.proves("B-16")
@settings(deadline=None)
@given(
    offered=st.integers(1, 200_000),
    capacity=st.integers(2_000, 100_000),
    lag=st.integers(0, 2_000_000),
)
def test_whoever_is_faster_than_the_floor_catches_up(offered: int, capacity: int, lag: int) -> None:
    """A partition under heavy writes could never be moved: its copy would fall behind for ever."""
    race = Race(offered, capacity, lag)
    # What is left to the replica of its own rate, and a window without knowledge of it.
    gained = capacity * (1 - SETTINGS.catch_up_percent_max / 100)
    gained = min(gained, capacity - SETTINGS.catch_up_rows_min)
    first = SETTINGS.catch_up_window_ms / 1000 + STEP_SECONDS
    bound = first + (lag + first * offered) / gained * 1.2 + 2
    while race.lag > SETTINGS.takeover_rows_max and race.now <= bound:
        race.step()
    assert race.lag <= SETTINGS.takeover_rows_max
    assert race.slowest >= SETTINGS.catch_up_rows_min


@pytest.mark.proves("B-16")
def test_writers_are_slowed_only_as_far_as_it_needs() -> None:
    """A move would cost writers more than it must, or an ill replica would stop them."""
    gentle = Race(offered=10_000, capacity=50_000, lag=100_000)
    for _ in range(30):
        gentle.step()
    assert gentle.lag == 0
    assert gentle.slowest >= 34_000, "70 % of what the replica takes is above what they offer"
    ill = Race(offered=30_000, capacity=10, lag=100_000)
    for _ in range(30):
        ill.step()
    assert ill.limit == SETTINGS.catch_up_rows_min
    gone = ill.rate.look(ill.now, 10**9, {}, log_full=False)
    assert gone is None, "a replica that is not there slows nobody"


def leader_of(c: Coordinator) -> Replica:
    """Return the replica of the leader, which is in this process."""
    node = c.nodes[c.records[P].leader]
    assert isinstance(node, LocalNode)
    assert node.node is not None
    return node.node.find(P)


def metrics_of(c: Coordinator) -> dict[str, float]:
    """Return what the leader's node measures of copies."""
    node = c.nodes[c.records[P].leader]
    assert isinstance(node, LocalNode)
    assert node.node is not None
    samples = [s for family in CopyCollector(node.node).collect() for s in family.samples]
    return {sample.name: sample.value for sample in samples}


def keep_log_for_a_copy(leader: Replica) -> None:
    """Have the leader keep its log for a copy: more of it than SLOW allows."""
    leader.store.outgoing.open_rows("a copy")
    leader.upkeep.keep_house()
    assert leader.pacer.log_full


@pytest.mark.proves("B-16")
@pytest.mark.parametrize("form", ["rows", "files"])
def test_the_log_stays_for_a_copy_until_its_receiver_follows(tmp_path: Path, form: str) -> None:
    """A copy that takes longer than the log is kept would be followed by another, for ever."""
    config = ZoneConfig(zone="z", zone_uid="u", partitions=1, log_retention_bytes=4096)
    store_config = StoreConfig(log_segment_bytes=4096)
    with cluster(tmp_path, 1, config=config, store_config=store_config) as c:
        c.create(P, (0,))
        k, leader = Client(c), leader_of(c)
        k.put(P, {b"a": b"1"})
        store = leader.store
        opened = (
            store.outgoing.open_files
            if form == "files"
            else partial(store.outgoing.open_rows, "reader")
        )
        with opened() as snapshot:
            for i in range(20):
                k.put(P, {b"%d" % i: b"v" * 1000})
            leader.upkeep.keep_house()
            assert leader.store.log_start <= snapshot.header.offset
        leader.upkeep.keep_house()
        assert leader.store.log_start <= snapshot.header.offset, "its receiver will follow now"
        # More than the limit is kept for nobody who is not in sync.
        leader.settings = msgspec.structs.replace(FAST, kept_log_bytes_max=4096)
        leader.upkeep.keep_house()
        assert leader.store.log_start > snapshot.header.offset


@pytest.mark.proves("B-07")
def test_the_log_stays_for_a_node_in_maintenance(tmp_path: Path) -> None:
    """More of the log stays while a replica's node is in maintenance, up to a limit.

    The node would be copied again when it is back, though its data is there.
    """
    config = ZoneConfig(zone="z", zone_uid="u", partitions=1, log_retention_bytes=4096)
    store_config = StoreConfig(log_segment_bytes=4096)
    with cluster(tmp_path, 2, config=config, store_config=store_config) as c:
        c.create(P, (0, 1))
        k, leader = Client(c), leader_of(c)
        c.config = msgspec.structs.replace(config, maintenance=(1,))
        c.configure()
        for i in range(20):
            k.put(P, {b"%d" % i: b"v" * 1000})
        leader.upkeep.keep_house()
        assert leader.store.log_start == 0
        leader.settings = msgspec.structs.replace(FAST, maintenance_log_bytes_max=8192)
        leader.upkeep.keep_house()
        assert leader.store.log_start > 0
        assert leader.store.log_bytes > 4096


@pytest.mark.proves("B-16")
def test_a_slowed_write_waits_and_says_so(tmp_path: Path) -> None:
    """Slowed writers would see errors, or not know why they wait."""
    with cluster(tmp_path, 2, settings=SLOW) as c:
        c.create(P, (0, 1))
        k = Client(c)
        leader = leader_of(c)
        assert k.put(P, {b"before": b"1"}).paced_ms == 0
        keep_log_for_a_copy(leader)
        rows = {b"%d" % i: b"v" for i in range(40)}
        begun = time.monotonic()
        waits = [k.put(P, rows).paced_ms for _ in range(4)]
        assert k.retries == 0
        # At 400 rows/s the debt of 40 rows is a tenth of a second; what is slow anyway pays of it.
        assert time.monotonic() - begun >= 0.2
        assert sum(waits) == pytest.approx(leader.pacer.waited_seconds * 1000, abs=len(waits))
        assert c.report(0, P).paced_rows_per_second == 400
        assert metrics_of(c)["rezone_data_node_write_throttled_partitions"] == 1
        assert metrics_of(c)["rezone_data_node_write_throttled_seconds_total"] > 0
        assert leader.pacer.waited_seconds > 0
        leader.settings = FAST  # the log may grow again
        leader.upkeep.keep_house()
        k.put(P, rows)
        assert k.put(P, rows).paced_ms == 0
        assert c.report(0, P).paced_rows_per_second == 0
        assert k.get(P, [b"7"]) == {b"7": b"v"}


@pytest.mark.proves("B-16", "ZR-13")
def test_what_waits_is_answered_when_leadership_goes(tmp_path: Path) -> None:
    """A write would wait for ever at a replica that no longer leads, or be lost without a word."""
    slower = msgspec.structs.replace(SLOW, catch_up_rows_min=1)
    with cluster(tmp_path, 2, settings=slower) as c, ThreadPoolExecutor(4) as pool:
        c.create(P, (0, 1))
        leader = leader_of(c)
        k = Client(c)
        k.put(P, {b"x": b"1"})
        keep_log_for_a_copy(leader)
        clients = [Client(c) for _ in range(4)]
        writes = [
            pool.submit(each.put, P, {b"k%d-%d" % (i, j): b"1" for j in range(100)})
            for i, each in enumerate(clients)
        ]
        c.until("some wait", lambda: len(leader.pacer._waiting) >= 3)
        assert leader.pacer.waiting_bytes > 0
        c.move(P, 1)
        # One batch went into debt before the others had to wait.
        assert sorted(write.result(10).leader_epoch for write in writes) == [1, 2, 2, 2]
        assert leader.pacer.waiting_bytes == 0
        assert len(k.get(P, [b"k%d-99" % i for i in range(4)])) == 4


@pytest.mark.proves("B-16")
def test_what_waits_is_answered_when_the_replica_stops(tmp_path: Path) -> None:
    """A client would wait for a node that is gone until its own patience ends."""
    slower = msgspec.structs.replace(SLOW, catch_up_rows_min=1)
    with cluster(tmp_path, 1, settings=slower) as c:
        c.create(P, (0,))
        leader, k = leader_of(c), Client(c)
        keep_log_for_a_copy(leader)
        k.put(P, {b"%d" % i: b"1" for i in range(100)})
        waiting, answers = in_background(lambda: Client(c).put(P, {b"x": b"1"}, retry=False))
        c.until("it waits", lambda: leader.pacer.waiting_bytes)
        leader.stop()
        waiting.join(10)
        (answer,) = answers
        assert isinstance(answer, NotReadyError)
        assert leader.pacer.waiting_bytes == 0


@pytest.mark.proves("B-16")
def test_writers_wait_for_a_candidate_that_would_miss_more_than_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A takeover would drag on for as long as writers are faster than its candidate."""
    settings = msgspec.structs.replace(FAST, takeover_rows_max=5)
    with cluster(tmp_path, 1, settings=settings) as c:
        c.create(P, (0,))
        leader, k = leader_of(c), Client(c)
        missing = 4
        monkeypatch.setattr(leader.takeover, "missing_rows", lambda _now: missing)
        assert k.put(P, {b"a": b"1"}).paced_ms == 0, "it may miss as much"
        waiting, answers = in_background(lambda: k.put(P, {b"b": b"1", b"c": b"1"}))
        c.until("they wait", lambda: leader.pacer.waiting_bytes)
        missing = 3
        waiting.join(10)
        (answer,) = answers
        assert isinstance(answer, WriteResult)
        assert answer.paced_ms > 0


@pytest.mark.proves("B-16", "DCP-06")
def test_a_takeover_comes_to_an_end_under_a_flood(tmp_path: Path) -> None:
    """A partition that is written to without pause could not change its leader."""
    with cluster(tmp_path, 2, settings=SLOW) as c, ThreadPoolExecutor(8) as pool:
        c.create(P, (0, 1))
        stop = threading.Event()

        def flood(number: int) -> int:
            k, count = Client(c), 0
            while not stop.is_set():
                k.put(P, {b"%d-%d" % (number, i): b"v" for i in range(30)})
                count += 1
            return count

        writers = [pool.submit(flood, i) for i in range(8)]
        try:
            for candidate in (1, 0, 1):
                c.move(P, candidate)
        finally:
            stop.set()
        assert all(writer.result(20) > 0 for writer in writers)


@pytest.mark.proves("SS-07")
def test_what_a_snapshot_holds_is_measured(tmp_path: Path) -> None:
    """Nobody would see that a slow reader of a snapshot is what slows the writes."""
    limits = SnapshotLimits(overwritten_bytes_max=2_000, early_bytes_max=2_000)
    with cluster(tmp_path, 1, store_config=StoreConfig(snapshot=limits)) as c:
        c.create(P, (0,))
        k, leader = Client(c), leader_of(c)
        rows = {b"%d" % i: b"v" * 100 for i in range(100)}
        k.put(P, rows)
        assert metrics_of(c)["rezone_data_node_snapshot_memory_bytes"] == 0
        snapshot = leader.store.outgoing.open_rows("slow")
        with ThreadPoolExecutor(1) as pool:
            # The first one fills what a snapshot may hold, the second must wait for its reader.
            k.put(P, rows)
            figures = metrics_of(c)
            assert figures["rezone_data_node_snapshots"] == 1
            assert figures["rezone_data_node_snapshot_memory_bytes"] > 4_000
            waiting = pool.submit(k.put, P, {b"7": b"w"})
            c.until("waits", lambda: leader.store.outgoing.waited_seconds > 0)
            assert not waiting.done()
            snapshot.close()
            waiting.result(10)
        figures = metrics_of(c)
        assert figures["rezone_data_node_snapshots"] == 0
        assert figures["rezone_data_node_snapshot_memory_bytes"] == 0
        assert figures["rezone_data_node_snapshot_waited_seconds_total"] > 0
        pinned = leader.store.outgoing.open_files()
        assert figures["rezone_data_node_snapshot_pinned_bytes"] == 0
        pinned.close()
