"""Secondary indexes of replicas: lookups see what was acknowledged, and moves wait for them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from replica_cluster import FAST, Client, Coordinator, ProcessNode, cluster, keys_in

from rezone.client import TableClient
from rezone.datanode.indexing.indexing import IndexDuties, Lacks, index_lacks
from rezone.datanode.reading.lookup import lookup_batches
from rezone.datanode.replication import takeover
from rezone.storage.index.indexer import Indexer
from rezone.wire.codec.indexes import id_of, index_codec
from rezone.wire.codec.keyspace import range_of
from rezone.wire.codec.schema import Index, TableSchema
from rezone.wire.errors import (
    CorruptionError,
    LimitExceededError,
    NotReadyError,
    UnknownIndexError,
)
from rezone.wire.messages import (
    Ack,
    FailoverEntry,
    IndexPosition,
    IndexTicket,
    Role,
    TakeoverState,
    UpgradeCandidate,
    ZoneConfig,
)

PARTITION = 0
TABLE = TableSchema(indexes=(Index("by_value", ("value",)),))
BUILT = (id_of(TABLE.indexes[0]),)
CONFIG = ZoneConfig(zone="test", zone_uid="uid-test", partitions=1, table=TABLE)
# Nothing is indexed but by lookups and for a takeover.
IDLE = msgspec.structs.replace(FAST, index_interval_ms=3_600_000, takeover_timeout_ms=3000)
ROWS = {b"k%d" % i: b"v%d" % (i % 3) for i in range(9)}


@pytest.fixture
def go() -> threading.Event:
    """Let the candidate index when it is set."""
    return threading.Event()


@pytest.fixture
def c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, go: threading.Event
) -> Iterator[Coordinator]:
    """Three replicas with some rows; node 1 may take over, and indexes nothing before `go`."""
    with cluster(tmp_path, 3, config=CONFIG, settings=IDLE) as coordinator:
        coordinator.create(PARTITION, (0, 1, 2))
        hold_back(indexer_of(coordinator, 1), monkeypatch, go)
        user = Client(coordinator)
        user.put(PARTITION, ROWS)
        user.close()
        look_up(coordinator, b"v0")  # now the leader has indexed
        coordinator.authorise(PARTITION, 1)
        yield coordinator


def indexer_of(coordinator: Coordinator, node: int) -> Indexer:
    """Return a node's indexer."""
    found: Indexer = coordinator.replica(node, PARTITION).store.indexer
    return found


def look_up(coordinator: Coordinator, value: bytes, **options: Any) -> list[bytes]:
    """Return the keys of a value, found by whoever leads."""
    with TableClient(list(coordinator.peers.values())) as table:
        rows = table.lookup("by_value", (value,), (value,), **options).rows
        return sorted(rows.column("key").to_pylist())


def keys_of(value: bytes) -> list[bytes]:
    """Return the keys that have a value at the start."""
    return [key for key, has in ROWS.items() if has == value]


def outcome(coordinator: Coordinator, node: int, state: TakeoverState) -> Any:
    """Wait until a node's takeover has come to a state, and return its report."""

    def there() -> Any:
        report = coordinator.report(node, PARTITION)
        return report if report.takeover is state else None

    return coordinator.until(state.value, there)


def hold_back(held: Indexer, monkeypatch: pytest.MonkeyPatch, go: threading.Event) -> None:
    """Keep an indexer from indexing until the event is set."""
    original = Indexer.follow

    def follow(indexer: Indexer) -> bool:
        return original(indexer) if indexer is not held or go.is_set() else False

    monkeypatch.setattr(Indexer, "follow", follow)


def table_of(keys: list[bytes], values: list[bytes | None]) -> Any:
    """Return rows as a table."""
    return pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})


# --- lookups --------------------------------------------------------------------------------


def test_a_lookup_of_damaged_rows_is_asked_for_again(
    c: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client would give up, though another replica leads as soon as the damage is known."""
    partition = c.replica(0, PARTITION)

    def damaged(*_: Any) -> Any:
        raise CorruptionError("for the test")

    monkeypatch.setattr(partition.store.reader, "lookup", damaged)
    start, end = index_codec(TABLE, "by_value").all
    ticket = IndexTicket(PARTITION, "by_value", start=start, end=end, limit=1)
    with pytest.raises(NotReadyError, match="damaged"):
        list(lookup_batches(partition, partition.index, ticket, c.node(0).zone.codec))


def test_a_lookup_of_a_range_of_hashes_fills_its_page_with_rows_of_it(tmp_path: Path) -> None:
    """While a zone is re-sharded a page would have rows twice, or lack some."""
    with cluster(tmp_path, 1, config=CONFIG) as c:
        c.create(PARTITION, (0,))
        user = Client(c)
        keys = {part: sorted(keys_in(part, 4, 30)) for part in range(4)}
        user.put(PARTITION, {key: b"v" for part in keys.values() for key in part})
        user.close()
        start, end = index_codec(TABLE, "by_value").all
        partition, codec = c.replica(0, PARTITION), c.node(0).zone.codec
        for first, last, limit in ((0, 3, 500), (1, 2, 50), (2, 2, 10), (3, 3, 500)):
            ticket = IndexTicket(
                PARTITION,
                "by_value",
                start=start,
                end=end,
                limit=limit,
                hash_start=range_of(first, 4)[0],
                hash_end_inclusive=range_of(last, 4)[1] - 1,
            )
            batches = lookup_batches(partition, partition.index, ticket, codec)
            found = [key for batch, _ in batches for key in batch.column("key").to_pylist()]
            asked = {key for part in range(first, last + 1) for key in keys[part]}
            assert len(found) == len(set(found)) == min(limit, len(asked))
            assert set(found) <= asked


def test_lookups_go_over_all_partitions_in_order_page_by_page(tmp_path: Path) -> None:
    """A page would miss rows, repeat them, or be in the order of hashes."""
    config = msgspec.structs.replace(CONFIG, partitions=3)
    with cluster(tmp_path, 2, config=config) as c:
        for partition in range(3):
            c.create(partition, (partition % 2, (partition + 1) % 2))
        with TableClient(list(c.peers.values())) as table:
            keys = [key for p in range(3) for key in keys_in(p, 3, 20)]
            table.write(table_of(keys, [b"v%02d" % (i % 7) for i in range(60)]))
            table.delete(table_of(keys[:5], [None] * 5).select(["key"]))
            table.write(table_of(keys[5:7], [b"v99", None]))
            want = sorted(table.scan().to_pylist(), key=lambda row: row["value"] or b"")
            found: list[Any] = []
            after: bytes | None = b""
            while after is not None:
                page = table.lookup("by_value", limit=7, after=after)
                assert page.rows.num_rows <= 7
                found += page.rows.to_pylist()
                after = page.next
            assert [row["value"] for row in found] == [row["value"] for row in want]
            assert {row["key"] for row in found} == {row["key"] for row in want}
            assert len(found) == 55
            between = table.lookup("by_value", (b"v02",), (b"v03",)).rows
            assert set(between.column("value").to_pylist()) == {b"v02", b"v03"}
            assert table.lookup("by_value", (None,), (None,)).rows.num_rows == 1
            with pytest.raises(UnknownIndexError, match=r"no index 'by_name'; .*: by_value"):
                table.lookup("by_name")
            with pytest.raises(LimitExceededError, match="from 1 to 10000"):
                table.lookup("by_value", limit=10_001)


def test_a_lookup_sees_what_was_acknowledged_before_it_came(c: Coordinator) -> None:
    """Who writes and then looks it up would not find it: indexes follow a little later."""
    with TableClient(list(c.peers.values())) as table:
        for i in range(20):
            value = b"new %d" % i
            table.write(table_of([b"k0"], [value]))
            rows = table.lookup("by_value", (value,), (value,)).rows
            assert rows.column("key").to_pylist() == [b"k0"]
            assert b"k0" not in look_up(c, b"v0")


def test_indexes_follow_of_themselves_and_say_how_far(tmp_path: Path) -> None:
    """A follower's index would stand still until its replica shall lead."""
    with cluster(tmp_path, 2, config=CONFIG) as c:
        c.create(PARTITION, (0, 1))
        user = Client(c)
        user.put(PARTITION, ROWS)
        user.close()

        def indexed() -> bool:
            found = [c.report(node, PARTITION).index for node in (0, 1)]
            return found[0] == found[1] and found[0] is not None and found[0].offset == len(ROWS)

        c.until("both have indexed", indexed)
        position = c.report(0, PARTITION).index
        assert position is not None
        assert position.partition_uuid


def test_a_lookup_that_loses_its_index_is_asked_for_again(
    c: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows would be missing while the entries are made again, and nobody would know."""
    original = Indexer.lookup
    lost: list[Indexer] = []

    def lookup(indexer: Indexer, *arguments: Any) -> Any:
        if not lost:
            lost.append(indexer)
            indexer._begin_scan()
        return original(indexer, *arguments)

    monkeypatch.setattr(Indexer, "lookup", lookup)
    assert look_up(c, b"v0") == keys_of(b"v0")
    assert lost == [indexer_of(c, 0)]


# --- takeovers ------------------------------------------------------------------------------


def test_what_an_index_lacks_is_told_by_offset_and_history() -> None:
    """A candidate whose index has other rows would lead as soon as it has enough of them."""
    history = (FailoverEntry("u1", 0), FailoverEntry("u2", 10))
    stopped = IndexPosition(12, "u2")
    assert not index_lacks(history, stopped, IndexPosition(12, "u2"))
    assert not index_lacks(history, stopped, IndexPosition(15, "u2"))
    assert not index_lacks(history, None, None)
    assert not index_lacks(history, IndexPosition(0, ""), None)
    assert index_lacks(history, stopped, None) == Lacks("index has not said how far it is")
    assert index_lacks(history, stopped, IndexPosition(11, "u2")).why.endswith("at 11, before 12")
    assert index_lacks(history, stopped, IndexPosition(12, "u1")).final
    assert index_lacks(history[:1], stopped, IndexPosition(12, "u1")).final
    built = IndexPosition(12, "u2", (b"x", b"y"))
    half = IndexPosition(12, "u2", (b"y",))
    assert index_lacks(history, built, half) == Lacks("index is not built yet in 1 of its parts")
    assert not index_lacks(history, half, built)


@pytest.mark.proves("DCP-08")
def test_a_takeover_waits_until_the_candidate_has_indexed_as_much(
    c: Coordinator, go: threading.Event
) -> None:
    """Lookups would fail at the new leader until its index has come as far as the old one's."""
    stopped = c.report(0, PARTITION).index
    assert stopped is not None
    assert stopped.offset == len(ROWS)
    assert c.report(1, PARTITION).index == IndexPosition(0, "", BUILT)
    c.takeover(PARTITION)
    user = Client(c)
    user.put(PARTITION, {b"later": b"v0"})  # writes go on meanwhile
    assert c.report(0, PARTITION).takeover is TakeoverState.PENDING
    assert not indexer_of(c, 0).step()
    assert c.report(0, PARTITION).index == stopped, "the old indexer has been stopped"
    found: list[list[bytes]] = []
    waiting = threading.Thread(target=lambda: found.append(look_up(c, b"v0")))
    waiting.start()
    go.set()
    c.replica(1, PARTITION).wake()
    outcome(c, 0, TakeoverState.ACTIVE)
    indexed = c.report(1, PARTITION).index
    assert indexed is not None
    assert indexed.offset >= stopped.offset
    assert look_up(c, b"v0") == sorted([*keys_of(b"v0"), b"later"])
    waiting.join(20)
    assert found == [sorted([*keys_of(b"v0"), b"later"])], "it has waited for the takeover's end"
    user.close()


@pytest.mark.proves("DCP-08", "DCP-11")
def test_a_candidate_whose_index_stays_behind_does_not_lead(
    c: Coordinator, go: threading.Event
) -> None:
    """A takeover would wait for ever, or leave an old leader whose indexer stands still."""
    c.takeover(PARTITION)
    failed = outcome(c, 0, TakeoverState.FAILED)
    assert failed.role is Role.LEADER
    assert failed.takeover_error == "the candidate's index is at 0, before 9 after the time given"
    assert c.report(1, PARTITION).role is Role.FOLLOWER
    user = Client(c)
    user.put(PARTITION, {b"after": b"v1"})
    assert look_up(c, b"v1") == sorted([*keys_of(b"v1"), b"after"])
    go.set()
    c.change(PARTITION, next_leader=None, next_epoch=None)
    c.move(PARTITION, 1)
    assert look_up(c, b"v1") == sorted([*keys_of(b"v1"), b"after"])
    user.close()


@pytest.mark.proves("DCP-08")
def test_a_candidate_with_an_index_of_another_history_is_refused(
    c: Coordinator, monkeypatch: pytest.MonkeyPatch, go: threading.Event
) -> None:
    """Its offset is large enough, but of rows that were rolled back elsewhere."""
    go.set()
    candidate = c.replica(1, PARTITION).index
    original = IndexDuties.told

    def told(duties: IndexDuties) -> IndexPosition | None:
        true = original.__get__(duties)
        return IndexPosition(true.offset, "another") if true and duties is candidate else true

    monkeypatch.setattr(IndexDuties, "told", property(told))
    c.takeover(PARTITION)
    failed = outcome(c, 0, TakeoverState.FAILED)
    assert failed.takeover_error == "the candidate's index is of another history"
    assert look_up(c, b"v2") == keys_of(b"v2")


@pytest.mark.proves("DCP-08", "DCP-11")
def test_a_candidate_compares_once_more_before_it_leads(
    c: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old leader that has not waited, or forgot in a restart, would make a bad leader."""
    monkeypatch.setattr(takeover, "index_lacks", lambda *_: Lacks())
    c.takeover(PARTITION)
    failed = outcome(c, 1, TakeoverState.FAILED)
    assert failed.takeover_error == "the index is at 0, before 9"
    assert failed.role is Role.FOLLOWER
    # What the coordinator does then: the old leader leads on, with a higher epoch.
    c.change(PARTITION, leader=0, leader_epoch=3, next_leader=None, next_epoch=None)
    assert look_up(c, b"v0") == keys_of(b"v0")


@pytest.mark.proves("DCP-08", "RM-05")
def test_an_upgrade_asks_for_the_index_of_the_old_leader(
    c: Coordinator, go: threading.Event
) -> None:
    """A takeover whose last message was lost would end with an index that is behind."""
    stopped = c.report(0, PARTITION).index
    c.until("all rows", lambda: c.report(1, PARTITION).log_end_offset == len(ROWS))
    upgrade = UpgradeCandidate(
        fence=c.fence(), partition=PARTITION, next_epoch=2, last_offset=len(ROWS), index=stopped
    )
    with pytest.raises(NotReadyError, match="the index is at 0, before 9"):
        c.call(1, upgrade)
    go.set()
    store = c.replica(1, PARTITION).store
    c.until("applied", lambda: store.applied == len(ROWS))
    store.indexer.catch_up()
    assert c.call(1, upgrade) == Ack()
    assert c.report(1, PARTITION).role is Role.LEADER


@pytest.mark.slow
@pytest.mark.proves("DCP-08", "DCP-10")
def test_leaders_move_between_processes_with_their_indexes(tmp_path: Path) -> None:
    """In real processes a lookup would miss what was written around a move, or around a kill."""
    with cluster(tmp_path, 3, processes=True, config=CONFIG) as c:
        c.create(PARTITION, (0, 1, 2))
        c.watch()
        with TableClient(list(c.peers.values())) as table:
            for round_, leader in enumerate((1, 2, 0)):
                keys = [b"r%d-%d" % (round_, i) for i in range(500)]
                value = b"round %d" % round_
                table.write(table_of(keys, [value] * 500))
                c.move(PARTITION, leader)
                rows = table.lookup("by_value", (value,), (value,)).rows
                assert sorted(rows.column("key").to_pylist()) == sorted(keys)
            node = c.nodes[0]
            assert isinstance(node, ProcessNode)
            node.kill()
            node.start()
            c.wait_up(0)
            c.configure()
            rows = table.lookup("by_value", limit=5000).rows
            assert rows.num_rows == 1500
            assert rows.to_pylist() == sorted(rows.to_pylist(), key=lambda r: r["value"])
