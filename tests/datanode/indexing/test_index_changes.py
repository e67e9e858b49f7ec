"""Indexes that are added to a zone in use, and dropped from it."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from replica_cluster import FAST, Client, Coordinator, ProcessNode, cluster

from rezone.client import TableClient
from rezone.datanode.reading import lookup
from rezone.datanode.scheduling.foreground import BUSY_SHARE, SHORT_STEP_BYTES, Foreground
from rezone.storage.index.indexer import Indexer
from rezone.storage.snapshot.throttle import StepBytes, whole_steps
from rezone.wire.codec.indexes import id_of
from rezone.wire.codec.schema import Index, TableSchema
from rezone.wire.errors import IndexNotBuiltError, StaleEpochError, UnknownIndexError
from rezone.wire.messages import ConfigureNode, Fence, Role, TakeoverState, ZoneConfig

PARTITION = 0
BY_VALUE = Index("by_value", ("value",))
BY_BOTH = Index("by_both", ("value", "key"))
ELSE = Index("by_value", ("key", "value"))
CONFIG = ZoneConfig(zone="test", zone_uid="uid-test", partitions=1)
IDLE = msgspec.structs.replace(FAST, takeover_timeout_ms=1000)
SEED = random.SystemRandom().randrange(1 << 32)
ROWS = {b"k%04d" % i: b"v%d" % (i % 3) for i in range(1500)}


def with_indexes(*indexes: Index, partitions: int = 1) -> ZoneConfig:
    """Return the zone with these indexes."""
    table = TableSchema(indexes=indexes)
    return msgspec.structs.replace(CONFIG, table=table, partitions=partitions)


@pytest.fixture
def go() -> Iterator[threading.Event]:
    """Let node 1 build when it is set."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, go: threading.Event
) -> Iterator[Coordinator]:
    """Three replicas with some rows and one index; node 1 builds no other before `go`."""
    with cluster(tmp_path, 3, config=with_indexes(BY_VALUE), settings=IDLE) as coordinator:
        coordinator.create(PARTITION, (0, 1, 2))
        original, held = Indexer.build, indexer_of(coordinator, 1)

        def build(indexer: Indexer, step_bytes: StepBytes = whole_steps) -> bool:
            return original(indexer, step_bytes) if indexer is not held or go.is_set() else False

        monkeypatch.setattr(Indexer, "build", build)
        user = Client(coordinator)
        user.put(PARTITION, ROWS)
        user.close()
        stores = [coordinator.replica(node).store for node in range(3)]
        coordinator.until("applied", lambda: {s.applied for s in stores} == {len(ROWS)})
        yield coordinator


def indexer_of(coordinator: Coordinator, node: int) -> Indexer:
    """Return a node's indexer."""
    return coordinator.replica(node).store.indexer


def change(coordinator: Coordinator, *indexes: Index, partitions: int = 1) -> None:
    """Give the zone these indexes, as the operator does."""
    coordinator.config = with_indexes(*indexes, partitions=partitions)
    coordinator.configure()


def built(coordinator: Coordinator, node: int, partition: int = PARTITION) -> set[bytes]:
    """Return the indexes that a replica has built."""
    index = coordinator.report(node, partition).index
    return set() if index is None else {*index.built}


def wait_built(coordinator: Coordinator, nodes: tuple[int, ...], *indexes: Index) -> None:
    """Wait until replicas have exactly these indexes."""
    want = {id_of(index) for index in indexes}
    coordinator.until("built", lambda: all(built(coordinator, node) == want for node in nodes))


def table_of(rows: dict[bytes, bytes]) -> Any:
    """Return rows as a table."""
    columns = {"key": list(rows), "value": list(rows.values())}
    return pa.table({name: pa.array(rows, pa.binary()) for name, rows in columns.items()})


def keys_by(table: TableClient, index: str, *bound: bytes) -> list[bytes]:
    """Return the keys of rows with equal columns."""
    return sorted(table.lookup(index, bound, bound, limit=5000).rows.column("key").to_pylist())


def test_an_index_is_added_while_rows_are_written(c: Coordinator) -> None:
    """Rows of before, of meanwhile or of after would not be found; or another index would wait."""
    with TableClient(list(c.peers.values())) as table:
        change(c, BY_VALUE, BY_BOTH)
        for i in range(50):
            table.write(table_of({b"new%d" % i: b"v0", b"k%04d" % (3 * i): b"moved"}))
        assert len(keys_by(table, "by_value", b"v0")) == 500
        wait_built(c, (0, 2), BY_VALUE, BY_BOTH)
        assert keys_by(table, "by_both", b"v0") == keys_by(table, "by_value", b"v0")
        assert len(keys_by(table, "by_both", b"moved")) == 50


def test_an_index_that_is_not_built_yet_is_refused_with_its_progress(
    c: Coordinator, go: threading.Event
) -> None:
    """Rows would be missing without a word, or a client would hang for as long as it takes."""
    c.authorise(PARTITION, 1)
    c.move(PARTITION, 1)
    change(c, BY_VALUE, BY_BOTH)
    with TableClient(list(c.peers.values())) as table:
        with pytest.raises(IndexNotBuiltError, match="partition 0 has 0 % of it") as e:
            table.lookup("by_both")
        assert e.value.details == {"index": "by_both", "percent": 0}
        assert len(keys_by(table, "by_value", b"v0")) == 500
        c.until("told", lambda: c.report(1, PARTITION).index_builds)
        assert c.report(1, PARTITION).index_builds[0].index == id_of(BY_BOTH)
        go.set()
        wait_built(c, (1,), BY_VALUE, BY_BOTH)
        assert not c.report(1, PARTITION).index_builds
        assert len(keys_by(table, "by_both", b"v0")) == 500


def test_a_dropped_index_is_none_and_its_name_may_mean_another(c: Coordinator) -> None:
    """Lookups would be answered from what is being removed, or by the old columns."""
    with TableClient(list(c.peers.values())) as table:
        old = table.lookup("by_value", (b"v1",), limit=2)
        assert old.next is not None
        change(c, ELSE)
        wait_built(c, (0, 2), ELSE)
        assert keys_by(table, "by_value", b"k0001") == [b"k0001"]
        assert keys_by(table, "by_value", b"v1") == [], "its first column is the key"
        with pytest.raises(ValueError, match="begin again"):
            table.lookup("by_value", limit=2, after=old.next)
        change(c)
        with pytest.raises(UnknownIndexError, match="its indexes: none"):
            table.lookup("by_value")
        indexers = [indexer_of(c, node) for node in (0, 2)]
        c.until("removed", lambda: not any(indexer.unfinished for indexer in indexers))
        assert [(indexer.entries, indexer.entry_bytes) for indexer in indexers] == [(0, 0)] * 2


def test_a_lookup_of_an_index_that_is_dropped_meanwhile_is_not_answered(
    c: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would end early and pass for all there is, or be told that the index is being built."""
    original, dropped = Indexer.lookup, threading.Event()

    def look_up(indexer: Indexer, *arguments: Any) -> Any:
        if not dropped.is_set():
            dropped.set()
            change(c)
            c.until("dropped", lambda: indexer.enabled is False)
        return original(indexer, *arguments)

    monkeypatch.setattr(Indexer, "lookup", look_up)
    with TableClient(list(c.peers.values())) as table, pytest.raises(UnknownIndexError):
        table.lookup("by_value")
    assert dropped.is_set()


def test_a_node_that_was_away_learns_of_the_change(c: Coordinator) -> None:
    """Its replica would lack the index for ever, or keep entries that nobody follows."""
    c.nodes[2].stop()
    c.config = with_indexes(BY_BOTH)
    for node in (0, 1):
        c.call(node, ConfigureNode(fence=c.fence(), config=c.config, peers=c.peers))
    c.until("left", lambda: in_sync(c, 2))
    with TableClient([c.peers[0]]) as table:
        table.write(table_of({b"meanwhile": b"v9"}))
    c.nodes[2].start()
    c.wait_up(2)
    assert built(c, 2) == {id_of(BY_VALUE)}
    c.configure()
    c.send(PARTITION, c.records[PARTITION])
    wait_built(c, (2,), BY_BOTH)
    c.until("in sync", lambda: in_sync(c))
    c.move(PARTITION, 2)
    with TableClient(list(c.peers.values())) as table:
        assert keys_by(table, "by_both", b"v9") == [b"meanwhile"]


def test_a_change_stands_on_the_disk_before_anything_is_built(c: Coordinator) -> None:
    """A node that dies would come back without the index, and nobody would tell it again."""
    change(c, BY_VALUE, BY_BOTH)
    c.nodes[1].stop()
    c.nodes[1].start()
    c.wait_up(1)
    # Nobody configures it; and it is another indexer than the one that is held.
    wait_built(c, (1,), BY_VALUE, BY_BOTH)


def test_an_older_coordinator_changes_no_index(c: Coordinator) -> None:
    """Two coordinators would drop and build by turns."""
    c.epoch = 2
    change(c, BY_VALUE, BY_BOTH)
    wait_built(c, (0,), BY_VALUE, BY_BOTH)
    late = ConfigureNode(
        fence=Fence(coordinator_epoch=1), config=with_indexes(BY_VALUE), peers=c.peers
    )
    with pytest.raises(StaleEpochError):
        c.call(0, late)
    assert built(c, 0) == {id_of(BY_VALUE), id_of(BY_BOTH)}


@pytest.mark.proves("DCP-08")
def test_no_leader_moves_to_a_replica_that_has_not_built_what_it_has(
    c: Coordinator, go: threading.Event
) -> None:
    """Lookups that were answered would be refused after a move."""
    change(c, BY_VALUE, BY_BOTH)
    wait_built(c, (0, 2), BY_VALUE, BY_BOTH)
    c.authorise(PARTITION, 1)
    c.takeover(PARTITION)

    def failed() -> Any:
        report = c.report(0, PARTITION)
        return report if report.takeover is TakeoverState.FAILED else None

    report = c.until("failed", failed)
    assert report.role is Role.LEADER
    assert report.takeover_error == (
        "the candidate's index is not built yet in 1 of its parts after the time given"
    )
    go.set()
    wait_built(c, (1,), BY_VALUE, BY_BOTH)
    c.change(PARTITION, next_leader=None, next_epoch=None)
    c.move(PARTITION, 1)
    with TableClient(list(c.peers.values())) as table:
        assert len(keys_by(table, "by_both", b"v0")) == 500


def test_a_takeover_does_not_wait_for_an_index_that_was_dropped(
    c: Coordinator, go: threading.Event
) -> None:
    """A move would fail for what nobody wants any more."""
    change(c, BY_VALUE, BY_BOTH)
    wait_built(c, (0,), BY_VALUE, BY_BOTH)
    c.authorise(PARTITION, 1)
    c.takeover(PARTITION)
    assert c.report(0, PARTITION).takeover is TakeoverState.PENDING
    c.config = with_indexes(BY_VALUE)
    # The candidate has not heard of it yet, and learns nothing wrong from the last message.
    c.call(0, ConfigureNode(fence=c.fence(), config=c.config, peers=c.peers))
    c.until("leads", lambda: c.report(1, PARTITION).role is Role.LEADER)
    assert not go.is_set()


def test_lookups_are_requests_of_clients_and_do_not_ask_for_routes(
    c: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies would not give way to them, and each would cost two round trips."""
    foreground = c.node(0).foreground
    under_way: list[int] = []
    original = lookup.lookup_batches

    def look_up(*arguments: Any) -> Iterator[Any]:
        for batch in original(*arguments):
            under_way.append(foreground.under_way)
            yield batch

    monkeypatch.setattr("rezone.datanode.service.server.lookup_batches", look_up)
    with TableClient(list(c.peers.values())) as table:
        keys_by(table, "by_value", b"v0")
        fetched = table._dispatcher.refreshes
        for _ in range(3):
            assert len(keys_by(table, "by_value", b"v0")) == 500
        assert table._dispatcher.refreshes == fetched
        c.move(PARTITION, 2)
        assert len(keys_by(table, "by_value", b"v0")) == 500
        assert table._dispatcher.refreshes <= fetched + 1
    assert under_way[:4] == [1, 1, 1, 1]


def test_builds_give_way_to_clients_here_and_to_those_of_a_leader_elsewhere(
    c: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writers would get what three builds leave them: the leader's, and those of its followers."""
    asked: set[Foreground] = set()
    followed = Foreground.followed

    def note(foreground: Foreground) -> None:
        asked.add(foreground)
        followed(foreground)

    monkeypatch.setattr(Foreground, "followed", note)
    nodes = [c.node(number).foreground for number in range(3)]
    user = Client(c)

    def counted() -> bool:
        user.put(PARTITION, {b"one more": b"v0"})
        return in_sync(c) and asked == set(nodes[1:])

    c.until("rows count where they are followed", counted)
    user.close()

    sizes: list[int] = []
    build = Indexer.build

    def noting(indexer: Indexer, step_bytes: StepBytes = whole_steps) -> bool:
        sizes.append(step_bytes(1 << 30))
        return build(indexer, step_bytes)

    monkeypatch.setattr(Indexer, "build", noting)
    for foreground in nodes:
        foreground.begin()
    c.until_each("busy", nodes, lambda foreground: foreground.served_share > BUSY_SHARE)
    change(c, BY_VALUE, BY_BOTH)
    wait_built(c, (0, 2), BY_VALUE, BY_BOTH)
    assert set(sizes) == {SHORT_STEP_BYTES}
    assert all(nodes[number].rested_seconds > 0 for number in (0, 2))


def in_sync(c: Coordinator, count: int = 3) -> bool:
    """Answer what is proposed; whether so many are in sync."""
    c.settle()
    return len(c.isr(PARTITION)) == count


@pytest.mark.long
@pytest.mark.slow
def test_processes_are_killed_while_indexes_come_and_go(tmp_path: Path) -> None:
    """Half of an index would pass for all of it, or would never be whole."""
    rng = random.Random(SEED)
    sets = [(BY_VALUE,), (BY_VALUE, BY_BOTH), (BY_BOTH,), (ELSE, BY_BOTH), ()]
    with cluster(tmp_path, 3, processes=True, config=with_indexes(BY_VALUE)) as c:
        c.create(PARTITION, (0, 1, 2))
        written: dict[bytes, bytes] = {}
        with TableClient(list(c.peers.values())) as table:
            for round_ in range(6):
                rows = {b"r%d-%d" % (round_, i): b"v%d" % (i % 5) for i in range(3000)}
                written |= rows
                table.write(table_of(rows))
                indexes = sets[rng.randrange(len(sets))] if round_ < 5 else (BY_VALUE, BY_BOTH)
                change(c, *indexes)
                number = rng.randrange(3)
                for _ in range(rng.randrange(20)):  # to kill it somewhere in the middle
                    c.report(number, PARTITION)
                victim = c.nodes[number]
                assert isinstance(victim, ProcessNode)
                victim.kill()
                victim.start()
                c.wait_up(number)
                c.configure()
                c.send(PARTITION, c.records[PARTITION])
                c.until(f"in sync, seed {SEED}", lambda: in_sync(c))
            wait_built(c, (0, 1, 2), BY_VALUE, BY_BOTH)
            for leader in (1, 2, 0):
                if leader != c.records[PARTITION].leader:
                    c.move(PARTITION, leader)
                want = sorted(key for key, value in written.items() if value == b"v3")
                assert keys_by(table, "by_value", b"v3") == want
                assert keys_by(table, "by_both", b"v3") == want
