"""A job brings other rows than the old partitions have: the old ones or the new, whoever reads."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from overwriting_kit import drop_old, seal_all, switch
from replica_cluster import Client, Coordinator, batch_of, cluster, keys_in
from resharding_kit import (
    SMALL,
    create_old,
    overlaps_of,
    placed,
    progress,
    resharded,
    scan,
    zone,
)
from test_reshard_streams import kill

from rezone.datanode.resharding import overwrites
from rezone.datanode.resharding.overwrites import ASKED_SECONDS, OVERWRITE_SILENT_SECONDS
from rezone.transfer.copying import backfill, new_rows
from rezone.transfer.copying.backfill import RangeBackfill
from rezone.transfer.copying.new_rows import NewRows
from rezone.wire.codec.encoded_rows import encoded_rows
from rezone.wire.codec.rows import RowCodec
from rezone.wire.codec.schema import TableSchema
from rezone.wire.copying.backfill_plan import BackfillRange
from rezone.wire.errors import (
    ConflictError,
    FeedTruncatedError,
    LimitExceededError,
    NotReadyError,
    ReshardedError,
    TransactionConflictError,
    VersionsExpiredError,
    error_from,
)
from rezone.wire.layouts import Layout, Overlap, layout_of, next_layout_of
from rezone.wire.messages import (
    AskedRange,
    AskOverwrite,
    BackfillClaim,
    BackfillVersions,
    ChangesFound,
    FollowChanges,
    NodeReport,
    OverwriteProgress,
    OwnWrites,
    PullSnapshot,
    ReportRequest,
)

QUICK = msgspec.structs.replace(SMALL, hold_ms_max=300)
OLD_ROWS = {p: dict.fromkeys(keys_in(p, 2, 300), b"old") for p in (0, 1)}
KEPT = keys_in(0, 2, 301)[300]
"""A row that somebody else writes meanwhile; the job has another one of that key."""

NEW_ROWS = {key: b"new" for p in (0, 1) for key in keys_in(p, 2, 250, prefix="n")}
NEW_ROWS |= {keys_in(0, 2, 1)[0]: b"new", KEPT: b"new"}
AFTER = NEW_ROWS | {KEPT: b"kept"}


@pytest.fixture(autouse=True)
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have chunks and units of some rows, so that there are many."""
    monkeypatch.setattr(new_rows, "CHUNK_BYTES", 3_000)
    monkeypatch.setattr(backfill, "UNIT_BYTES", 9_000)
    monkeypatch.setattr(backfill, "PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(backfill, "PAUSE_SECONDS_MAX", 0.4)


def rows_at(time: int) -> NewRows:
    """Return the rows of the job as data nodes take them."""
    encoded = encoded_rows(RowCodec(TableSchema()), batch_of(NEW_ROWS))
    return NewRows(encoded.row_ids(), encoded.values(), time)


def begin_overwrite(c: Coordinator) -> int:
    """Fill the zone, read its time, and tell the nodes of the overwrite; return the time."""
    create_old(c)
    client = Client(c)
    times = [client.put(p, rows).commit_time for p, rows in OLD_ROWS.items()]
    c.config = msgspec.structs.replace(c.config, next_partitions=3, next_filled_by="job")
    c.configure()
    new = next_layout_of(c.config)
    assert new is not None
    for index, partition in enumerate(new.ids):
        c.create(partition, placed(c, index + 1))
    c.watch()
    c.until_each("streams have begun", overlaps_of(c), lambda each: progress(c, each).begun)
    client.put(0, {KEPT: b"kept"})
    return max(times)


def bring(c: Coordinator, rows: NewRows | Slowly) -> list[threading.Thread]:
    """Begin to bring the rows of all ranges."""
    tasks = [
        RangeBackfill(
            BackfillRange(each.new, each.old), c.peers, patience_seconds=120.0, read=rows.read
        )
        for each in overlaps_of(c)
    ]
    threads = [threading.Thread(target=task.run, daemon=True) for task in tasks]
    for thread in threads:
        thread.start()
    return threads


def wait_brought(c: Coordinator, threads: list[threading.Thread]) -> None:
    """Wait until all rows are there."""
    for thread in threads:
        thread.join(240)
        assert not thread.is_alive()
    c.until_each("all rows are there", overlaps_of(c), lambda each: resharded(c, each))


def keys_at(c: Coordinator, node: int, layout: Layout, as_of: int) -> list[bytes]:
    """Return all keys of a layout at a node as of a time."""
    return sorted(k for p in layout.ids for k in scan(c, node, p, as_of=as_of))


def scan_leaders(c: Coordinator, layout: Layout) -> list[bytes]:
    """Return the newest keys of a layout, of each partition from its leader."""
    return sorted(key for p in layout.ids for key in scan(c, c.records[p].leader, p))


@pytest.mark.proves("SP-05")
def test_readers_have_the_old_rows_until_the_switch_and_the_new_ones_after_it(
    tmp_path: Path,
) -> None:
    """A reader would see both, or neither, or a time at which both are to be had."""
    with cluster(tmp_path, 3, config=zone(2), settings=QUICK) as c:
        time = begin_overwrite(c)
        old = sorted({k for rows in OLD_ROWS.values() for k in rows} | {KEPT})
        assert scan_leaders(c, layout_of(c.config)) == old
        rows = rows_at(time)
        wait_brought(c, bring(c, rows))
        assert sum(progress(c, each).rows for each in overlaps_of(c)) == len(NEW_ROWS)
        wait_brought(c, bring(c, rows))  # a driver that comes again changes nothing
        assert scan_leaders(c, layout_of(c.config)) == old
        new = next_layout_of(c.config)
        assert new is not None
        readable_from = seal_all(c)
        for partition in new.ids:
            for options in ({}, {"as_of": time}):
                with pytest.raises(NotReadyError):
                    scan(c, c.records[partition].leader, partition, **options)
        assert keys_at(c, 0, layout_of(c.config), time) == sorted(set(old) - {KEPT})
        switch(c, readable_from)
        check_after(c, new, readable_from)
        for partition in layout_of(c.config).ids:
            assert scan(c, 1, partition, as_of=time)
            with pytest.raises(ReshardedError):
                scan(c, 1, partition, as_of=readable_from)
        drop_old(c)
        check_after(c, new, readable_from)


def check_after(c: Coordinator, new: Layout, readable_from: int) -> None:
    """Check that every replica has the new rows, and nobody any as of an earlier time."""
    client, ids = Client(c), new.ids
    assert scan_leaders(c, new) == sorted(AFTER)
    for node in c.nodes:
        readable = functools.partial(can_read, c, node, new, readable_from)
        c.until("it is readable", readable)
        assert keys_at(c, node, new, as_of=readable_from) == sorted(AFTER)
        for partition in ids:
            with pytest.raises(VersionsExpiredError):
                scan(c, node, partition, as_of=readable_from - 1)
    found = {
        k: v for p in ids for k, v in client.get(p, rows_of(new, p), as_of=readable_from).items()
    }
    assert found == AFTER
    for partition in ids:
        written = client.put(partition, {rows_of(new, partition)[0]: b"later"})
        assert written.commit_time > readable_from
        begun = client.begin(partition)
        assert begun.times.read_time >= readable_from


def can_read(c: Coordinator, node: int, layout: Layout, as_of: int) -> bool:
    """Whether a node answers as of a time."""
    with contextlib.suppress(NotReadyError):
        keys_at(c, node, layout, as_of)
        return True
    return False


def rows_of(layout: Layout, partition: int) -> list[bytes]:
    """Return the new keys that belong to a partition."""
    index = partition - layout.ids.start
    some = set(keys_in(index, layout.partitions, 700)) | set(
        keys_in(index, layout.partitions, 400, prefix="n")
    )
    return sorted(some & set(AFTER))


@pytest.mark.proves("SP-05")
def test_transactions_and_feeds_of_before_do_not_go_on_over_the_switch(tmp_path: Path) -> None:
    """A transaction would read rows that nobody had, a feed miss what was replaced."""
    with cluster(tmp_path, 1, config=zone(2), settings=QUICK) as c:
        time = begin_overwrite(c)
        client = Client(c)
        before = client.begin(0)
        wait_brought(c, bring(c, rows_at(time)))
        switch(c, seal_all(c))
        new = next_layout_of(c.config)
        assert new is not None
        partition = new.ids[0]
        own = OwnWrites(transaction=before.id, times=before.times, sequence=0)
        with pytest.raises(TransactionConflictError):
            client.get(partition, rows_of(new, partition)[:1], own=own)
        low, high = c.replica(0, partition).hash_range

        def follow(since: int | None) -> ChangesFound:
            asked = AskedRange(
                partition=partition,
                first_hash=low,
                last_hash=high - 1,
                time=since,
                given_by=partition,
            )
            found: ChangesFound = c.call(0, FollowChanges((asked,), timeout_ms=0), ChangesFound)
            return found

        (refused,) = follow(time).ranges
        assert refused.error is not None
        assert isinstance(error_from(refused.error), FeedTruncatedError)
        (begun,) = follow(None).ranges
        assert begun.time >= c.config.readable_from
        written = client.put(partition, {rows_of(new, partition)[0]: b"later"})
        assert written.commit_time > begun.time


@pytest.mark.proves("B-05", "SP-05")
@pytest.mark.parametrize("victim", ["source", "follower"])
def test_a_node_that_is_killed_meanwhile_loses_no_row(
    tmp_path: Path, victim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that only memory had would be gone, or nobody would bring them again."""
    for name, value in (("POLL_MS", "100"), ("MARK_ROWS", "200")):
        monkeypatch.setenv(f"REZONE_NODE_RESHARD_{name}", value)
    arguments = ("--replica-lag-ms-max=400",)
    with cluster(tmp_path, 3, config=zone(2), processes=True, arguments=arguments) as c:
        time = begin_overwrite(c)
        overlap = overlaps_of(c)[0]
        rows = Slowly(rows_at(time))
        threads = bring(c, rows)
        leader, source = c.records[overlap.new].leader, c.records[overlap.old].leader
        node = source if victim == "source" else 3 - leader - source

        c.until("some rows are there", lambda: progress(c, overlap).rows > 0)
        kill(c, node)
        c.nodes[node].start()
        c.wait_up(node)
        rows.go_on.set()
        wait_brought(c, threads)
        switch(c, seal_all(c))
        new = next_layout_of(c.config)
        assert new is not None
        c.until("all is there", lambda: settled(c, new) == sorted(AFTER))


class Slowly:
    """Rows of which each range has two chunks until they may go on."""

    def __init__(self, rows: NewRows) -> None:
        self._rows = rows
        self._read: dict[tuple[int, int], int] = {}
        self.go_on = threading.Event()

    def read(self, claim: BackfillClaim, after: bytes) -> BackfillVersions:
        """Return the next rows."""
        key = (claim.hash_range.target, claim.hash_range.source)
        self._read[key] = self._read.get(key, 0) + 1
        if self._read[key] > 3:
            self.go_on.wait(60)
        return self._rows.read(claim, after)


def settled(c: Coordinator, layout: Layout) -> list[bytes]:
    """Return the newest keys, none while a partition has no leader."""
    try:
        return scan_leaders(c, layout)
    except NotReadyError:
        return []


@pytest.mark.proves("SP-05")
def test_a_replica_that_was_copied_meanwhile_says_that_it_lacks_rows(tmp_path: Path) -> None:
    """Its mark is gone, nobody can bring it rows, and the overwrite would wait for ever."""
    with cluster(tmp_path, 3, config=zone(1), settings=QUICK) as c:
        create_old(c)
        Client(c).put(0, {b"a": b"old"})
        c.config = msgspec.structs.replace(c.config, next_partitions=1, next_filled_by="job")
        c.configure()
        (overlap,) = overlaps_of(c)
        c.create(overlap.new, (1, 2))
        c.watch()
        for node in (1, 2):
            c.until("it has begun", functools.partial(mark, c, node, overlap))
        c.change(overlap.new, replicas=(1, 2, 0))
        c.until("it needs a copy", lambda: needs_copy(c, overlap.new))
        pull = PullSnapshot(fence=c.fence(), partition=overlap.new, source=c.nodes[1].address)
        c.call(0, pull)
        c.until("it says so", lambda: c.report(0, overlap.new).lost_marks == (0,))
        for node in (1, 2):
            assert not c.report(node, overlap.new).lost_marks


def needs_copy(c: Coordinator, partition: int) -> bool:
    """Whether node 0 has an empty replica."""
    with contextlib.suppress(NotReadyError):
        return c.report(0, partition).needs_snapshot
    return False


def mark(c: Coordinator, node: int, overlap: Overlap) -> object:
    """Return how far rows have come to a replica past its log."""
    return c.replica(node, overlap.new).store.range_ingest.standing(overlap.old)


@contextlib.contextmanager
def asked(path: Path, **changes: object) -> Iterator[tuple[Coordinator, Callable[..., object]]]:
    """Have a node that may be asked for overwrites."""
    with cluster(path, 1, config=zone(2, **changes), settings=QUICK) as c:

        def ask(name: str, *, begin: bool = True) -> object:
            return c.call(0, AskOverwrite(name=name, begin=begin), OverwriteProgress)

        yield c, ask


@pytest.mark.proves("SP-05")
def test_a_node_says_which_overwrite_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would begin it, or it would be begun again when it is done."""
    with asked(tmp_path, filled_by="done") as (c, ask):
        node = c.node(0)

        def report() -> NodeReport:
            return node.board.build(node, ReportRequest())

        ask("mine", begin=False)
        assert report().overwrite == ""
        answer = ask("done")
        assert isinstance(answer, OverwriteProgress)
        assert answer.filled_by == "done"
        assert report().overwrite == ""
        ask("mine")
        assert report().overwrite == "mine"
        monkeypatch.setattr(overwrites, "ASKED_SECONDS", 0.0)
        assert (report().overwrite, report().overwrite_silent) == ("", False)
        monkeypatch.setattr(overwrites, "OVERWRITE_SILENT_SECONDS", 0.0)
        assert report().overwrite_silent
        assert ASKED_SECONDS < OVERWRITE_SILENT_SECONDS
        for name in ("", "x" * 201):
            with pytest.raises(LimitExceededError):
                ask(name)


@pytest.mark.proves("SP-05")
@pytest.mark.parametrize("by", ["", "another"])
def test_an_overwrite_is_refused_while_the_zone_gets_another_layout(
    tmp_path: Path, by: str
) -> None:
    """The driver would stage all rows, and wait for something that does not begin."""
    with asked(tmp_path, next_partitions=2, next_filled_by=by) as (_, ask):
        for begins in (False, True):
            with pytest.raises(ConflictError):
                ask("mine", begin=begins)


@pytest.mark.proves("SP-05")
def test_one_that_is_done_is_told_so_while_old_partitions_stand(tmp_path: Path) -> None:
    """Its driver would take the switch for another's re-sharding, and fail."""
    with asked(tmp_path, next_partitions=2, filled_by="mine") as (_, ask):
        answer = ask("mine")
        assert isinstance(answer, OverwriteProgress)
        assert answer.filled_by == "mine"


@pytest.mark.proves("SP-05")
def test_an_overwrite_that_was_cancelled_is_not_asked_for_again(tmp_path: Path) -> None:
    """Its driver would wait for ever, or begin again what a person has ended."""
    with asked(tmp_path, cancelled_overwrite="mine") as (_, ask):
        with pytest.raises(ConflictError, match="cancelled"):
            ask("mine")
        ask("another")
