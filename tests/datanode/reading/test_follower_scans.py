"""Scans and lookups that followers answer: one time, every row once, whatever breaks meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from replica_cluster import FAST, Coordinator, ProcessNode, SetClock, cluster, unchecked

from rezone.client import ClientSettings, TableClient
from rezone.datanode.clock.checked_clock import CheckedClock
from rezone.datanode.reading.lookup import lookup_batches
from rezone.datanode.reading.scan import scan_batches
from rezone.datanode.service import server
from rezone.datanode.state.expiry import collected_before
from rezone.wire.codec.rows import RowCodec
from rezone.wire.codec.schema import Index, TableSchema
from rezone.wire.errors import NotReadyError, VersionsExpiredError
from rezone.wire.messages import ScanTicket, ZoneConfig

PARTITIONS = 2
TABLE = TableSchema(indexes=(Index("by_value", ("value",)),))
CONFIG = ZoneConfig(zone="t", zone_uid="u", partitions=PARTITIONS, table=TABLE)
SETTINGS = msgspec.structs.replace(FAST, lease_ms=300, apply_interval_ms=10)
OLD_SECONDS = 20.0
BATCH_ROWS = 10
ROWS = {b"k%03d" % i: b"old" for i in range(100)}
HOUR_MICROS = 3_600_000_000


@pytest.fixture(scope="module")
def c(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    """Give two partitions of three replicas, led by nodes 0 and 1."""
    with cluster(tmp_path_factory.mktemp("scans"), 3, settings=SETTINGS, config=CONFIG) as made:
        for partition in range(PARTITIONS):
            made.create(partition, tuple((partition + i) % 3 for i in range(3)))
        yield made


@pytest.fixture
def table(c: Coordinator) -> Iterator[TableClient]:
    """Give a user's client; all rows are old ones, and every replica may be read as of then."""
    with TableClient(list(c.peers.values())) as client:
        stale = {*client.scan()["key"].to_pylist()} - {*ROWS}
        client.delete([{"key": key} for key in stale])
        written = client.write(rows_of(ROWS))
        ready = max(one.commit_time for one in written)
        everywhere = [(n, p) for n in c.nodes for p in range(PARTITIONS)]
        c.until_each("up", everywhere, lambda at: c.replica(*at).positions.readable_time > ready)
        yield client


def rows_of(rows: dict[bytes, bytes]) -> list[dict[str, Any]]:
    """Return rows as they are written."""
    return [{"key": key, "value": value} for key, value in rows.items()]


def found(batches: Any) -> dict[bytes, bytes]:
    """Return the rows of a table or of batches; none may come twice."""
    batches = batches.to_batches() if hasattr(batches, "to_batches") else list(batches)
    pairs = [
        pair
        for batch in batches
        for pair in zip(batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True)
    ]
    assert len(pairs) == len(dict(pairs)), "a row came twice"
    return dict(pairs)


def change_everything(client: TableClient) -> None:
    """Overwrite, delete and add rows, before and behind wherever a scan is."""
    client.write(rows_of(dict.fromkeys(list(ROWS)[::2], b"new")))
    client.delete([{"key": key} for key in list(ROWS)[1::4]])
    client.write(rows_of({b"n%03d" % i: b"new" for i in range(50)}))


class Scans:
    """What nodes do with scans and lookups: who was asked, in small batches, and faults.

    Each of `faults` is for one scan, in the order they come: called when it has given some rows.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[int, int]] = []
        self.faults: list[Callable[[], object]] = []
        self.begun: Callable[[], object] = lambda: None
        self.go = threading.Event()
        monkeypatch.setattr(server, "scan_batches", self._scan)
        monkeypatch.setattr(server, "lookup_batches", self._lookup)

    def breaks(self) -> None:
        """Break off."""
        raise NotReadyError("broken for the test")

    def hangs(self) -> None:
        """Give nothing more, for as long as the test takes."""
        self.go.wait(20)

    def breaks_later(self) -> None:
        """Break off when the test says so."""
        assert self.go.wait(20)
        self.breaks()

    def _scan(self, partition: Any, ticket: ScanTicket, codec: Any) -> Iterator[Any]:
        self.asked.append((partition.node_id, partition.partition_id))
        self.begun()
        fault = self.faults.pop(0) if self.faults else lambda: None
        ticket = msgspec.structs.replace(ticket, batch_rows=BATCH_ROWS)
        for number, chunk in enumerate(scan_batches(partition, ticket, codec)):
            if number == 3:
                fault()
            yield chunk

    def _lookup(self, partition: Any, indexes: Any, ticket: Any, codec: Any) -> Iterator[Any]:
        self.asked.append((partition.node_id, partition.partition_id))
        self.begun()
        return lookup_batches(partition, indexes, ticket, codec)


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scans]:
    """Watch the scans of all nodes."""
    made = Scans(monkeypatch)
    yield made
    made.go.set()


def leaders(c: Coordinator) -> set[tuple[int, int]]:
    """Return who leads which partition."""
    return {(record.leader, partition) for partition, record in c.records.items()}


def test_followers_answer_scans_and_lookups_as_of_one_time_and_the_same_again(
    c: Coordinator, table: TableClient, scans: Scans
) -> None:
    """A report over all rows would be of several moments, and another one the next time."""
    scanned = table.scan_any(max_staleness_seconds=OLD_SECONDS)
    looked = table.lookup_any("by_value", (b"old",), (b"old",), as_of=scanned.as_of)
    assert scans.asked
    assert not leaders(c) & {*scans.asked}, "leaders were left alone"
    assert found(scanned.rows) == found(looked.rows.rows) == ROWS
    assert 0 <= scanned.age_seconds <= OLD_SECONDS
    change_everything(table)
    again = table.scan_any(as_of=scanned.as_of)
    assert found(again.rows) == ROWS
    assert again.as_of == scanned.as_of
    assert again.age_seconds >= scanned.age_seconds
    later = table.lookup_any("by_value", (b"old",), (b"old",), as_of=scanned.as_of)
    assert found(later.rows.rows) == ROWS
    assert found(table.scan(as_of=scanned.as_of)) == ROWS
    assert found(table.scan()) != ROWS


@pytest.mark.proves("ZR-08")
@pytest.mark.parametrize("fault", ["breaks", "hangs"])
def test_a_scan_that_ends_half_way_goes_on_at_another_replica_at_the_same_time(
    c: Coordinator, table: TableClient, scans: Scans, fault: str
) -> None:
    """A read-only transaction would fail with its replica, or give rows of two moments."""
    scans.faults = [getattr(scans, fault)]
    impatient = ClientSettings(attempt_timeout_seconds=0.5)
    with TableClient(list(c.peers.values()), settings=impatient) as client:
        begun = client.stream_any(max_staleness_seconds=OLD_SECONDS)
        first = next(begun.rows)
        change_everything(table)
        assert found([first, *begun.rows]) == ROWS
    (broken, begun_in), (other, gone_on_in), *_ = scans.asked
    assert begun_in == gone_on_in == 0
    assert broken != other, "another replica was asked"
    assert c.records[0].leader != broken


@pytest.mark.proves("ZR-08")
def test_a_scan_outlives_the_process_that_answers_it(tmp_path: Path) -> None:
    """Whoever reads all rows would begin again with each node that is lost, or miss some."""
    rows = {b"k%05d" % i: bytes(1000) for i in range(20_000)}
    with cluster(tmp_path, 2, processes=True) as c:
        c.create(0, (0, 1))
        with TableClient(list(c.peers.values())) as table:
            ready = max(one.commit_time for one in table.write(rows_of(rows)))
            begun = table.stream_any(as_of=ready)
            first = next(begun.rows)
            follower = c.nodes[1]
            assert isinstance(follower, ProcessNode)
            follower.kill()
            # What has arrived is less than all there is: the rest comes from the leader.
            assert found([first, *begun.rows]) == rows


def test_a_scan_of_a_leader_goes_on_at_the_next_one_as_of_the_same_time(
    c: Coordinator, table: TableClient, scans: Scans
) -> None:
    """Every move of a leader would break the scans that it answers, or mix two moments."""
    scans.faults = [scans.breaks_later]
    old = c.records[0].leader
    new = (old + 1) % 3
    begun = table.stream(table.segments()[0].hashes)
    first = next(begun)
    c.move(0, new)
    change_everything(table)
    scans.go.set()
    of_partition = {k: v for k, v in ROWS.items() if table.partition_of({"key": k}) == 0}
    assert found([first, *begun]) == of_partition
    assert scans.asked[0] == (old, 0)
    assert scans.asked[-1] == (new, 0)


def test_a_follower_whose_index_lacks_rows_indexes_them_before_it_answers(
    c: Coordinator, table: TableClient, scans: Scans
) -> None:
    """A lookup would miss rows that a scan of the same replica, as of the same time, has."""
    for node, partition in ((n, p) for n in c.nodes for p in range(PARTITIONS)):
        c.replica(node, partition).index._pumped_at = float("inf")
    try:
        written = table.write(rows_of({b"late": b"indexed"}))
        as_of = written[0].commit_time
        page = table.lookup_any("by_value", (b"indexed",), (b"indexed",), as_of=as_of).rows
        assert found(page.rows) == {b"late": b"indexed"}
        assert not leaders(c) & {*scans.asked}
    finally:
        for node, partition in ((n, p) for n in c.nodes for p in range(PARTITIONS)):
            c.replica(node, partition).index._pumped_at = float("-inf")


def test_leaders_answer_what_followers_do_not(
    c: Coordinator, table: TableClient, scans: Scans, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks for rows that are hardly old would get an error, or older ones."""
    for partition in range(PARTITIONS):
        for node in {*c.nodes} - {c.records[partition].leader}:
            replica = c.replica(node, partition)
            monkeypatch.setattr(replica.closed_timestamp, "heard", lambda news: None)  # noqa: ARG005
            monkeypatch.setattr(
                replica, "settings", msgspec.structs.replace(SETTINGS, hold_ms_max=1)
            )
    since = time.time_ns() // 1000
    scanned = table.scan_any(max_staleness_seconds=0.0)
    assert scanned.as_of >= since
    assert found(scanned.rows) == ROWS
    assert leaders(c) <= {*scans.asked}


class LeapingClock:
    """A client's clock that leaps when a test says so."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        """Return seconds."""
        return time.monotonic() + self.ahead


@pytest.mark.parametrize("call", ["lookup", "scan"])
def test_rows_that_became_too_old_while_they_were_read_are_read_again(
    c: Coordinator, table: TableClient, scans: Scans, call: str
) -> None:
    """Asserts that a page and a table keep their bound though a partition answers late.

    Without it they are as old as the slowest partition makes them.
    """
    del table  # the rows are there
    clock = LeapingClock()
    leaps = [60.0]

    def leap() -> None:
        clock.ahead += leaps.pop() if leaps else 0.0

    scans.begun = leap
    nodes = list(c.peers.values())
    settings = ClientSettings(
        timeout_seconds=600, attempt_timeout_seconds=600, suspect_after_seconds=600
    )
    with TableClient(nodes, settings=settings, clock=clock) as client:
        if call == "scan":
            answer = client.scan_any(max_staleness_seconds=OLD_SECONDS)
            rows = answer.rows
        else:
            bound = OLD_SECONDS
            answer = client.lookup_any("by_value", (b"old",), max_staleness_seconds=bound)
            rows = answer.rows.rows
    assert not leaps
    assert found(rows) == ROWS
    assert 0 <= answer.age_seconds <= OLD_SECONDS
    assert len(scans.asked) == 2 * PARTITIONS, "each was asked twice"


def ahead_by(hours: float) -> CheckedClock:
    """Return a clock whose time is some hours ahead."""
    return unchecked(SetClock(int(hours * HOUR_MICROS)))


def test_what_is_read_as_of_a_time_that_is_not_kept_is_refused(tmp_path: Path) -> None:
    """Rows that were changed since would be missing, and nobody would know."""
    with cluster(tmp_path, 2, settings=SETTINGS, config=CONFIG) as c:
        for partition in range(PARTITIONS):
            c.create(partition, (0, 1))
        replicas = [c.replica(n, p) for n in c.nodes for p in range(PARTITIONS)]
        with TableClient(list(c.peers.values())) as table:
            before = max(one.commit_time for one in table.write(rows_of(ROWS)))
            for replica in replicas:
                replica.clock = ahead_by(0.9)
            change_everything(table)
            assert found(table.scan_any(as_of=before).rows) == ROWS
            begun = [iter(scan_batches(c.replica(0), ScanTicket(0, as_of=before), codec(c)))]
            next(begun[0])
            for replica in replicas:
                replica.clock = ahead_by(1.05)
                assert collected_before(replica) < before, "nobody may have collected it yet"
            for refused in (
                lambda: table.scan_any(as_of=before),
                lambda: table.scan(as_of=before),
                lambda: table.read([{"key": b"k001"}], as_of=before),
                lambda: table.lookup("by_value", as_of=before),
                lambda: next(begun[0]),
            ):
                with pytest.raises(VersionsExpiredError) as told:
                    refused()
                assert int(told.value.details["oldest"]) > before
            assert table.read_time(max_staleness_seconds=7200).age_seconds <= 3600


def test_rows_that_nobody_has_changed_may_be_read_as_of_long_ago(tmp_path: Path) -> None:
    """A zone at rest could not be read as of its last change, and a scan of it would end."""
    with cluster(tmp_path, 1, config=CONFIG) as c:
        for partition in range(PARTITIONS):
            c.create(partition, (0,))
        with TableClient(list(c.peers.values())) as table:
            before = max(one.commit_time for one in table.write(rows_of(ROWS)))
            for partition in range(PARTITIONS):
                c.replica(0, partition).clock = ahead_by(3)
            c.node(0).clock_bound.reach(ahead_by(4).micros())  # its clock is as it was
            assert found(table.scan_any(as_of=before).rows) == ROWS
            begun = scan_batches(c.replica(0), ScanTicket(0), codec(c))
            next(begun)
            change_everything(table)
            assert next(begun)[0].num_rows, "it has begun just now, however old its rows are"
            assert table.read_time(max_staleness_seconds=0.0).as_of > before + 2 * HOUR_MICROS


def codec(c: Coordinator) -> RowCodec:
    """Return the row format."""
    return c.node(0).zone.codec
