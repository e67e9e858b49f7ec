"""Backfills of new partitions are throttled while clients are served at every node, and end."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from replica_cluster import Coordinator, cluster
from resharding_kit import (
    SMALL,
    backfill_by_hand,
    backfill_old,
    begin_by_hand,
    create_old,
    overlaps_of,
    reshard,
    resharded,
    seal,
    stream_to_backfill,
    zone,
)

from rezone.datanode.observing.reshard_metrics import ReshardCollector
from rezone.datanode.replica.replica import Replica
from rezone.datanode.resharding.reshard_streams import BackfillWork, ReshardStream
from rezone.datanode.scheduling.foreground import BUSY_SHARE, SHORT_STEP_BYTES
from rezone.storage.log.entry import EntryKind
from rezone.wire.errors import ConflictError
from rezone.wire.messages import ReshardCatchUp

_IDLE = msgspec.structs.replace(SMALL, reshard_threads=0)


def serve(c: Coordinator) -> None:
    """Have a request under way at each node that is not answered, for long already."""
    c.until_each("answered", c.nodes, lambda node: c.node(node).foreground.under_way == 0)
    for node in c.nodes:
        c.node(node).foreground.begin()
    c.until_each("busy", c.nodes, lambda n: c.node(n).foreground.served_share > BUSY_SHARE)


@pytest.mark.proves("B-08", "B-16")
def test_a_backfill_rests_at_its_source_and_its_target_and_ends_while_clients_go_on(
    tmp_path: Path,
) -> None:
    """Clients would get what a re-sharding leaves them; or it would never end."""
    whole = msgspec.structs.replace(SMALL, reshard_chunk_bytes=1 << 20)
    with cluster(tmp_path, 2, config=zone(1), settings=whole) as c:
        create_old(c)
        backfill_old(c, 8_000)
        serve(c)
        (target,) = reshard(c, 1).ids
        (overlap,) = overlaps_of(c)
        c.until("pulled", lambda: resharded(c, overlap))
        for node in c.nodes:
            assert c.node(node).foreground.rested_seconds > 0
            assert c.node(node).foreground.under_way == 1
        backfills = [
            header
            for header in c.replica(1, target).store._log.headers(0)
            if header.kind == EntryKind.RESHARD_BACKFILL
        ]
        assert c.node(1).reshard_pulls.fetched_bytes > 2 * SHORT_STEP_BYTES
        assert len(backfills) > 2
        assert all(header.length < 2 * SHORT_STEP_BYTES for header in backfills), "bursts"


@pytest.mark.proves("B-16")
def test_what_followers_of_a_backfill_do_is_rested_for_by_its_leader(tmp_path: Path) -> None:
    """The followers' nodes would give their clients nothing, whatever share these are to keep."""
    with cluster(tmp_path, 2, config=zone(1), settings=_IDLE) as c:
        create_old(c)
        backfill_old(c, 200)
        (target,) = reshard(c, 1).ids
        leader, clients = c.replica(1, target), c.node(0).foreground
        hash_range = begin_by_hand(c, leader)
        request = c.until("it may be asked", lambda: hash_range.next_backfill(1_000))
        backfilled = c.node(0).reshard_source.backfill(request)
        serve(c)
        clients.owe(1_000.0)
        owed_until = leader.clock.monotonic() + clients.owed_seconds / 2
        hash_range.backfilled_with(request, backfilled)
        c.until("told", lambda: leader.backfill_after > owed_until)
        leader.backfill_after = float("inf")
        assert hash_range.next_backfill(1_000) is None
        leader.backfill_after = float("-inf")
        c.until("it goes on", lambda: hash_range.next_backfill(1_000) is not None)
        for node in c.nodes:
            c.node(node).foreground.end()
        backfill_by_hand(c, hash_range)


def test_work_of_replicas_counts_as_that_of_copies_while_they_are_backfilled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What takes most time of a backfill, syncs and writes to engines, would not be rested for."""
    with cluster(tmp_path, 2, config=zone(1), settings=_IDLE) as c:
        create_old(c)
        backfill_old(c, 100)
        (target,) = reshard(c, 1).ids
        owed: dict[int, list[float]] = {node: [] for node in c.nodes}
        for node, worked in owed.items():
            monkeypatch.setattr(c.node(node).foreground, "owe", worked.append)
        leader = c.replica(1, target)
        backfill_by_hand(c, stream_to_backfill(c, leader))
        c.until_each("owed", c.nodes, lambda node: sum(owed[node]) > 0)
        c.until("applied", lambda: leader.store.applied == leader.store.log_end)
        before = len(owed[1])
        leader.wake()
        c.until("idle", lambda: leader.store.log_end == leader.positions.committed)
        assert len(owed[1]) == before, "it has all that it is backfilled with"


@pytest.mark.proves("B-16")
def test_following_a_log_is_not_rested_for_by_the_backfill_beside_it(tmp_path: Path) -> None:
    """Writers that never pause would put a backfill off for ever: it would owe what they cost."""
    with cluster(tmp_path, 1, config=zone(1), settings=_IDLE) as c:
        create_old(c)
        backfill_old(c, 100)
        (target,) = reshard(c, 1).ids
        leader, source = c.replica(0, target), c.node(0).reshard_source
        hash_range = begin_by_hand(c, leader)
        work = BackfillWork(leader.store)
        assert work.share() == 1.0, "the entry that begins a backfill"
        request = c.until("it may be asked", lambda: hash_range.next_backfill(1_000))
        reply = source.backfill(request)
        hash_range.backfilled_with(request, reply)
        assert work.share() == 1.0
        backfill_old(c, 50)
        c.until("followed", lambda: follow(c, leader, hash_range))
        assert work.share() == 0.0
        assert work.share() == 0.0, "nothing came since"
        backfill_by_hand(c, hash_range)
        assert work.share() == 1.0


def follow(c: Coordinator, leader: Replica, stream: ReshardStream) -> bool:
    """Take what the source's log has by now; whether anything came."""
    before = leader.store.log_end
    at = stream.next_catch_up()
    if at is not None:
        request = ReshardCatchUp(ranges=(at,), bytes_max=100_000, timeout_ms=0, linger_ms=0)
        (catch_up,) = c.node(0).reshard_source.catch_up(request).catch_ups
        stream.caught_up(at, catch_up)
    return leader.store.log_end > before


def test_how_far_reshards_are_is_told_in_metrics(tmp_path: Path) -> None:
    """Nobody could see that a re-sharding gets on, or be alerted that a range is broken."""
    with cluster(tmp_path, 1, config=zone(1), settings=_IDLE) as c:
        create_old(c)
        backfill_old(c, 100)
        targets = reshard(c, 2).ids
        c.until_each("open", targets, lambda p: c.replica(0, p).reshard_streams.streams())
        ranges = [c.replica(0, p).reshard_streams.streams()[0] for p in targets]
        c.until_each(
            "may begin", ranges, lambda hash_range: hash_range.next_backfill(100) is not None
        )
        assert metrics_of(c)["Backfilling"] == 2
        backfill_by_hand(c, ranges[0])
        c.node(0).reshard_pulls.fetched_bytes += 7
        found = metrics_of(c)
        assert (found["Backfilling"], found["Following"]) == (1, 1)
        assert 0 < found["rezone_data_node_reshard_backfilled_rows"] < 100
        assert found["rezone_data_node_reshard_fetched_bytes_total"] == 7
        ranges[1].failed(ranges[1].catch_up, ConflictError("another history"))
        ranges[0]._core.lag_rows = 5
        found = metrics_of(c)
        assert (found["Broken"], found["rezone_data_node_reshard_lag_rows"]) == (1, 5)
        assert found["rezone_data_node_sealed_partitions"] == 0
        seal(c, 0)
        assert metrics_of(c)["rezone_data_node_sealed_partitions"] == 1


def metrics_of(c: Coordinator) -> dict[str, float]:
    """Return what a node measures of reshard streams, phases by their names."""
    samples = [s for family in ReshardCollector(c.node(0)).collect() for s in family.samples]
    return {sample.labels.get("phase", sample.name): sample.value for sample in samples}
