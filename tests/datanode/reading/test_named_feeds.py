"""Named feeds of real nodes: their log outlives copies and is trimmed when it is acknowledged."""

from __future__ import annotations

import collections
from pathlib import Path

import msgspec
import pytest
from replica_cluster import FAST, Coordinator, cluster
from resharding_kit import zone
from test_changes import KEYS, Changes, add, client, write_round

from rezone.client import FeedTokenError, TableClient
from rezone.datanode.disk.space import DiskSpace
from rezone.datanode.observing.diskmetrics import DiskCollector
from rezone.storage.store_config import StoreConfig
from rezone.wire.errors import ConflictError, FeedTruncatedError
from rezone.wire.messages import FeedLimits, PullSnapshot, ReadOlderLog, StopReplica, ZoneConfig

P = 0
ROUNDS = 12
WAIT_SECONDS = 60.0
QUICK = msgspec.structs.replace(FAST, trim_interval_ms=50)
STORE = StoreConfig(log_segment_bytes=2_000)
MUCH = 1 << 30
FEED = FeedLimits("billing", MUCH, 86_400)


def zone_with(*feeds: FeedLimits) -> ZoneConfig:
    """Return a zone that keeps no log but for its feeds."""
    return zone(1, log_retention_bytes=0, feeds=feeds)


def begun(c: Coordinator, table: TableClient) -> str:
    """Return a token from before all changes."""

    def token() -> str | None:
        with table.changes() as feed:
            return feed.poll(0.2).token

    found: str = c.until("it stands", token)
    return found


def came(c: Coordinator, token: str, count: int) -> tuple[Changes, str]:
    """Return so many changes behind a token, and the token behind them."""
    found: Changes = collections.defaultdict(list)
    with client(c) as table, table.changes(token) as feed:

        def enough() -> bool:
            add(found, feed.poll(0.05).changes)
            return sum(map(len, found.values())) >= count

        c.until(f"{count} changes have come", enough, WAIT_SECONDS)
        assert feed.token is not None
        return found, feed.token


def replace_all(c: Coordinator) -> None:
    """Copy the partition to nodes 2 and 3, and take it from nodes 0 and 1."""
    c.change(P, replicas=(0, 1, 2, 3))
    for node in (2, 3):
        pull = PullSnapshot(fence=c.fence(), partition=P, source=c.nodes[0].address)
        c.call(node, pull)
    c.watch()
    c.until("in sync", lambda: c.isr(P) == {0, 1, 2, 3}, WAIT_SECONDS)
    c.until(
        "log is there",
        lambda: not any(c.report(node, P).pulls_log for node in (2, 3)),
        WAIT_SECONDS,
    )
    c.move(P, 2)
    c.change(P, replicas=(2, 3), isr=(2, 3))
    for node in (0, 1):
        record = c.records[P]
        stop = StopReplica(
            fence=c.fence(),
            partition=P,
            leader_epoch=record.leader_epoch,
            partition_epoch=record.partition_epoch,
        )
        c.call(node, stop)


@pytest.mark.proves("CF-04")
@pytest.mark.slow
@pytest.mark.parametrize("named", [True, False])
def test_a_feed_that_rests_while_all_replicas_are_replaced_goes_on(
    tmp_path: Path, named: bool
) -> None:
    """Every change of data nodes would leave it behind; without a name it is told that it is."""
    config = zone_with(*[FEED] * named)
    with cluster(tmp_path, 4, config=config, settings=QUICK, store_config=STORE) as c:
        c.create(P, (0, 1))
        done: Changes = collections.defaultdict(list)
        with client(c) as table:
            token = begun(c, table)
            for number in range(ROUNDS):
                write_round(table, done, number)
        replace_all(c)
        with client(c) as table:
            write_round(table, done, ROUNDS)
        if not named:
            with pytest.raises(FeedTruncatedError):
                came(c, token, len(KEYS))
            return
        found, _ = came(c, token, sum(map(len, done.values())))
        assert found == done


@pytest.mark.proves("CF-04")
@pytest.mark.slow
def test_what_is_acknowledged_is_trimmed_and_nothing_else(tmp_path: Path) -> None:
    """A feed that goes on would hold the disk until its limits, or lose what it has not stored."""
    config = zone_with(FEED)
    with cluster(tmp_path, 2, config=config, settings=QUICK, store_config=STORE) as c:
        c.create(P, (0, 1))
        done: Changes = collections.defaultdict(list)
        with client(c) as table:
            token = begun(c, table)
            for number in range(ROUNDS):
                write_round(table, done, number)
            _, stored = came(c, token, sum(map(len, done.values())))
            size = c.replica(0).store.log_end
            assert [c.replica(node).store.log_start for node in (0, 1)] == [0, 0]
            for wrong in ("", "other"):
                with pytest.raises(ConflictError, match=r"spec\.feeds"):
                    table.acknowledge(wrong, stored)
            with pytest.raises(FeedTokenError):
                table.acknowledge(FEED.name, "none")
            table.acknowledge(FEED.name, token)
            table.acknowledge(FEED.name, stored)

            def trimmed() -> bool:
                table.acknowledge(FEED.name, stored)  # a follower may not have known the time yet
                starts = [c.replica(node).store.log_start for node in (0, 1)]
                return all(size * 0.5 < start <= size for start in starts)

            c.until("it is trimmed", trimmed)
            write_round(table, done, ROUNDS)
        found, _ = came(c, stored, len(KEYS))
        assert set(map(tuple, found.values())) == {(b"%d" % ROUNDS,)}
        with pytest.raises(FeedTruncatedError):
            came(c, token, 1)


@pytest.mark.proves("CF-04")
def test_only_the_same_committed_history_is_given(tmp_path: Path) -> None:
    """A replica of another history, or a stranger, would get entries that it must not have."""
    config = zone_with(FEED)
    with cluster(tmp_path, 1, config=config, settings=QUICK, store_config=STORE) as c:
        c.create(P, (0,))
        done: Changes = collections.defaultdict(list)
        with client(c) as table:
            for number in range(3):
                write_round(table, done, number)
        source, store = c.node(0).older_log.source, c.replica(0).store
        (branch,) = {each.partition_uuid for each in store.meta.failover_log}
        end = store.log_end
        first = source.read(ReadOlderLog(partition=P, before=end, partition_uuid=branch))
        assert 0 < first.offset < end
        assert first.entries
        none = ReadOlderLog(partition=P, before=0, partition_uuid="")
        assert source.read(none).offset == 0
        for wrong in (
            ReadOlderLog(partition=P, before=end, partition_uuid="other"),
            ReadOlderLog(partition=P, before=end, partition_uuid=branch, since=end),
            ReadOlderLog(partition=P, before=end, partition_uuid=branch, since=first.offset + 1),
        ):
            with pytest.raises(ConflictError):
                source.read(wrong)


@pytest.mark.proves("CF-04")
@pytest.mark.slow
def test_named_feeds_hold_nothing_on_a_disk_that_is_nearly_full(tmp_path: Path) -> None:
    """Writes would be refused for the sake of a feed that nobody reads."""
    config = zone_with(FEED)
    with cluster(tmp_path, 1, config=config, settings=QUICK, store_config=STORE) as c:
        c.create(P, (0,))
        done: Changes = collections.defaultdict(list)
        with client(c) as table:
            for number in range(ROUNDS):
                write_round(table, done, number)
            with table.changes(since=0) as feed:
                token = feed.token
        assert token is not None
        replica, upkeep = c.replica(0), c.replica(0).upkeep
        replica.store.flush()
        upkeep.keep_house()
        assert replica.store.log_start == 0
        assert upkeep.feed_log_bytes > 2_000
        told = {each.name: each.samples for each in DiskCollector(c.node(0)).collect()}
        (share,) = told["rezone_data_node_feed_saturation_ratio"]
        assert share.labels == {"feed": FEED.name}
        assert share.value == pytest.approx(replica.store.log_bytes / MUCH)
        free, reserve = 3_000_000, 1_000_000
        space = DiskSpace(c.node(0).clock, tmp_path, reserve, lambda _: free)
        assert not space.is_within(MUCH), "nobody has looked at the disk yet"
        c.node(0).space = space
        c.until("looked", lambda: space.free == free)
        upkeep.keep_house()
        assert replica.store.log_start == 0
        free = reserve + 1_999  # a file of the log has 2,000
        c.until("looked", lambda: space.free == free)
        assert not space.short
        upkeep.keep_house()
        assert replica.store.log_start > 0
        assert upkeep.feed_log_bytes == 0
        with pytest.raises(FeedTruncatedError):
            came(c, token, 1)
