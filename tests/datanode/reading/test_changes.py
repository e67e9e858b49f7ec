"""Change feeds of real nodes: through a leader transfer and a re-sharding, and what is refused."""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from replica_cluster import Coordinator, ProcessNode, cluster
from resharding_kit import (
    begin_to_seal,
    create_old,
    cut_over,
    overlaps_of,
    progress,
    reshard,
    zone,
)

from rezone.client import ChangeFeed, ClientSettings, FeedTokenError, TableClient
from rezone.client.feed.token import decode_token, encode_token
from rezone.datanode.node import old_rows
from rezone.datanode.node.change_source import ChangeSource
from rezone.datanode.scheduling.foreground import Foreground
from rezone.datanode.settings import SystemClock
from rezone.datanode.state.followed import FollowedFrom
from rezone.datanode.state.reshard_targets import Notifier
from rezone.storage.store_config import StoreConfig
from rezone.wire.codec.changes import changes_from
from rezone.wire.errors import (
    FeedTruncatedError,
    LimitExceededError,
    NotReadyError,
    OverloadedError,
    TransactionConflictError,
    TransactionEndedError,
    UnknownPartitionError,
)
from rezone.wire.layouts import WHOLE, layout_of
from rezone.wire.messages import AskedRange, FollowChanges, SealState
from rezone.wire.messages.changes import NOBODY_GAVE

KEYS = [b"key-%d" % n for n in range(24)]
WAIT_SECONDS = 40.0

SETTINGS = ClientSettings(changes_poll_seconds=0.1)
Changes = dict[bytes, list[bytes | None]]
"""By key the values in the order of their commits, None of a delete."""


def client(c: Coordinator) -> TableClient:
    """Return a client whose feeds end soon."""
    return TableClient(list(c.peers.values()), settings=SETTINGS)


@pytest.mark.proves("CF-01")
def test_time_goes_on_where_one_replica_leads_alone_and_nobody_writes(tmp_path: Path) -> None:
    """A feed would have no token before the first write, and no resolved time after the last."""
    with cluster(tmp_path, 1, config=zone(1)) as c:
        c.create(0, (0,))
        with client(c) as table, table.changes() as feed:
            c.until("there is a token", lambda: feed.poll(0.2).token)
            before = feed.resolved_time

            def later() -> bool:
                feed.poll(0.2)
                return feed.resolved_time > before

            c.until("its time goes on", later)


class Counting:
    """Counts rows up one after the other, deletes one now and then, and knows all it has done."""

    def __init__(self, addresses: list[str]) -> None:
        self._table = TableClient(addresses)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.done: Changes = collections.defaultdict(list)
        self.count = 0
        self.failure: BaseException | None = None
        self._thread.start()

    def _run(self) -> None:
        try:
            for number in itertools.count():
                if self._stop.is_set():
                    return
                self._change(KEYS[number % len(KEYS)], number)
                self.count += 1
        except BaseException as error:  # noqa: BLE001 - told to the test
            self.failure = error

    def _change(self, key: bytes, number: int) -> None:
        if number % 7 == 6:
            self._table.delete([{"key": key}])
            self.done[key].append(None)
            return
        value = b"%d" % number
        if number % 5 == 4:
            self._commit(key, value)
        else:
            self._table.write([{"key": key, "value": value}])
        self.done[key].append(value)

    def _commit(self, key: bytes, value: bytes) -> None:
        while True:
            # A seal or a leader transfer aborts a transaction that it meets, or refuses one that
            # reads as of a time before it: nothing was applied.
            with (
                contextlib.suppress(TransactionEndedError, TransactionConflictError),
                self._table.transaction({"key": key}) as tx,
            ):
                tx.write([{"key": key, "value": value}])
                tx.commit()
                return

    def is_at(self, count: int) -> bool:
        """Whether so much was changed."""
        if self.failure is not None:
            raise self.failure
        return self.count >= count

    def stop(self) -> None:
        """End, and raise what has gone wrong."""
        self._stop.set()
        self._thread.join(WAIT_SECONDS)
        self._table.close()
        if self.failure is not None:
            raise self.failure


@contextlib.contextmanager
def counting(c: Coordinator) -> Iterator[Counting]:
    """Count meanwhile."""
    found = Counting(list(c.peers.values()))
    try:
        yield found
    finally:
        found.stop()


def add(came: Changes, changes: Any) -> int:
    """Take over a batch of changes; return how many there are."""
    for row in changes.to_pylist():
        assert (row["_operation"] == "delete") == (row["value"] is None)
        if "_old" in row and came[row["key"]]:
            before = came[row["key"]][-1]
            assert row["_old"] == (before and {"key": row["key"], "value": before})
        came[row["key"]].append(row["value"])
    return int(changes.num_rows)


def follow(c: Coordinator, feed: ChangeFeed, came: Changes, count: int) -> None:
    """Follow until so many changes have come in all."""

    def enough() -> bool:
        add(came, feed.poll(0.05).changes)
        return sum(map(len, came.values())) >= count

    c.until(f"{count} changes have come", enough, WAIT_SECONDS)


def go_over(c: Coordinator, counted: Counting, feed: ChangeFeed, came: Changes) -> str:
    """Re-shard the zone while it is followed; return a token from before the first seal."""
    old, new = layout_of(c.config), reshard(c, 3)
    c.until_each("backfilled", overlaps_of(c), lambda overlap: progress(c, overlap).backfilled)
    follow(c, feed, came, counted.count)
    token = feed.token
    assert token is not None
    for partition in old.ids:
        begin_to_seal(c, partition)
        c.until("it is sealed", functools.partial(_is_sealed, c, partition))
        follow(c, feed, came, counted.count + 10)
    c.config = msgspec.structs.replace(
        c.config, generation=new.generation, partitions=new.partitions, next_partitions=0
    )
    c.configure()
    return token


def _is_sealed(c: Coordinator, partition: int) -> bool:
    return c.report(c.records[partition].leader, partition).seal is SealState.SEALED


@pytest.mark.long
@pytest.mark.proves("CF-02")
@pytest.mark.slow
def test_each_change_comes_once_through_a_transfer_and_a_re_sharding(tmp_path: Path) -> None:
    """A follower would lose a change, have it twice, or have the changes of a key in another order.

    Also one who begins again at the new layout, with a token from before the old one's end.
    """
    with cluster(tmp_path, 3, processes=True, config=zone(2), arguments=CALM) as c:
        create_old(c)
        with counting(c) as counted, client(c) as table:
            came: Changes = collections.defaultdict(list)
            with table.changes(since=0, old_rows=True) as feed:
                follow(c, feed, came, 40)
                c.move(0, 1)
                follow(c, feed, came, counted.count + 20)
                token = feed.token
            before = {key: len(values) for key, values in came.items()}
            with table.changes(token, from_followers=True, old_rows=True) as feed:
                late = go_over(c, counted, feed, came)
                follow(c, feed, came, counted.count + 10)
                counted.stop()
                follow(c, feed, came, counted.count)
                assert feed.poll(0.0).changes.num_rows == 0
            assert came == counted.done
            assert len(before) == len(KEYS)
            with client(c) as other, other.changes(late, old_rows=True) as feed:
                again: Changes = collections.defaultdict(list)
                behind = 1 + sum(map(len, again.values()))
                follow(c, feed, again, behind)
                target = {key: values[-1] for key, values in counted.done.items()}
                c.until("it is as far", functools.partial(_is_at, feed, again, target))
            for key, values in again.items():
                assert values == counted.done[key][-len(values) :]


def _is_at(feed: ChangeFeed, came: Changes, last: dict[bytes, bytes | None]) -> bool:
    add(came, feed.poll(0.05).changes)
    return all(came[key] and came[key][-1] == value for key, value in last.items())


CALM = ("--replica-lag-ms-max=20000",)


def test_a_snapshot_and_the_changes_since_then_are_all_rows(tmp_path: Path) -> None:
    """A row written between the two would be missing, or a feed could not say where it stands."""
    with cluster(tmp_path, 2) as c:
        c.create(0, (0, 1))
        with client(c) as table:
            table.write([{"key": key, "value": b"before"} for key in KEYS])
            snapshot = table.changes_from_snapshot()
            with snapshot.feed as feed:
                table.delete([{"key": KEYS[0]}])
                (acked,) = table.write([{"key": KEYS[1], "value": b"after"}])
                rows = [row for batch in snapshot.rows for row in batch.to_pylist()]
                assert {row["key"]: row["value"] for row in rows} == dict.fromkeys(KEYS, b"before")
                came: Changes = collections.defaultdict(list)
                follow(c, feed, came, 2)
                assert came == {KEYS[0]: [None], KEYS[1]: [b"after"]}
                resolved = c.until("it is complete", lambda: feed.poll(0.1).resolved_time)
                assert resolved > snapshot.as_of
                c.until("all", lambda: feed.poll(0.1).resolved_time >= acked.commit_time)
                token = feed.token
            assert token is not None
            with table.changes(token) as feed:
                assert feed.poll(0.1).changes.num_rows == 0
            with table.changes() as feed:
                c.until("it stands", lambda: feed.poll(0.1).token)
                table.write([{"key": b"new", "value": b"1"}])
                came = collections.defaultdict(list)
                follow(c, feed, came, 1)
                assert came[b"new"] == [b"1"]
            with pytest.raises(ValueError, match="one of"):
                table.changes(token, earliest=True)
            for wrong in ("", "x", token[:-8], "B" + token[1:]):
                with pytest.raises(FeedTokenError):
                    table.changes(wrong)


def test_a_token_older_than_the_log_says_what_to_do(tmp_path: Path) -> None:
    """A follower would wait for ever, or go on with a gap."""
    small = StoreConfig(log_segment_bytes=2_000)
    config = msgspec.structs.replace(zone(1), log_retention_bytes=4_000)
    with cluster(tmp_path, 2, config=config, store_config=small) as c:
        c.create(0, (0, 1))
        with client(c) as table:
            for number in range(40):
                table.write([{"key": b"k", "value": b"%0500d" % number}])
            for node in c.nodes:
                replica = c.replica(node)
                c.until("trimmed", functools.partial(_trimmed, replica))
            with (
                table.changes(since=1) as feed,
                pytest.raises(FeedTruncatedError, match="changes_from_snapshot"),
            ):
                c.until("it is refused", lambda: feed.poll(0.1).changes.num_rows)
            with table.changes(earliest=True) as feed:
                begin = feed.poll(WAIT_SECONDS)
                assert begin.changes.num_rows == 0
                came: Changes = collections.defaultdict(list)
                c.until("the newest", lambda: add(came, feed.poll(0.1).changes) and _has_39(came))
                kept = came[b"k"]
                assert kept == [b"%0500d" % number for number in range(40 - len(kept), 40)]
            assert 1 < len(kept) < 40
            with table.changes(begin.token) as feed:
                again: Changes = collections.defaultdict(list)
                follow(c, feed, again, len(kept))
                assert again == came


def _has_39(came: Changes) -> bool:
    return came[b"k"][-1] == b"%0500d" % 39


def test_the_earliest_changes_of_a_new_partition_are_its_own(tmp_path: Path) -> None:
    """Who began with what it has pulled would be refused, or take rows of backfills for changes."""
    with cluster(tmp_path, 2, config=zone(1)) as c:
        c.create(0, (0, 1))
        with client(c) as table:
            table.write([{"key": key, "value": b"before"} for key in KEYS])
            reshard(c, 2)
            c.until_each("backfilled", overlaps_of(c), lambda each: progress(c, each).backfilled)
            begin_to_seal(c, 0)
            c.until("it is sealed", functools.partial(_is_sealed, c, 0))
            c.config = msgspec.structs.replace(
                c.config, generation=1, partitions=2, next_partitions=0
            )
            c.configure()
            table.write([{"key": key, "value": b"after"} for key in KEYS])
        with client(c) as table, table.changes(earliest=True) as feed:
            came: Changes = collections.defaultdict(list)
            follow(c, feed, came, len(KEYS))
            assert came == {key: [b"after"] for key in KEYS}


@pytest.mark.proves("CF-02")
@pytest.mark.parametrize("known", [True, False])
def test_who_rests_over_a_whole_re_sharding_goes_on(tmp_path: Path, known: bool) -> None:
    """A stream that asks every few minutes would begin with a snapshot after each re-sharding.

    Where nobody has followed, nothing is brought along, and the feed is told that it is too late.
    """
    with cluster(tmp_path, 2, config=zone(1)) as c:
        c.create(0, (0, 1))
        done: Changes = collections.defaultdict(list)
        with client(c) as table:
            token = c.until("it stands", lambda: _begun(table))
            for number in range(3):
                write_round(table, done, number)
            if not known:
                for node in c.nodes:
                    c.replica(node).followed = FollowedFrom(lambda: 0.0, 1.0)
            reshard(c, 3)
            write_round(table, done, 3)
            c.until_each("backfilled", overlaps_of(c), lambda each: progress(c, each).backfilled)
            write_round(table, done, 4)
            cut_over(c)
            write_round(table, done, 5)
        with client(c) as table, table.changes(token, old_rows=True) as feed:
            came: Changes = collections.defaultdict(list)
            if known:
                follow(c, feed, came, sum(map(len, done.values())))
                assert came == done
                assert feed.poll(0.2).changes.num_rows == 0
            else:
                with pytest.raises(FeedTruncatedError):
                    c.until("it is refused", lambda: add(came, feed.poll(0.1).changes))


@pytest.mark.long
@pytest.mark.proves("CF-02")
@pytest.mark.slow
def test_who_rests_goes_on_where_the_new_leader_was_killed(tmp_path: Path) -> None:
    """What a killed leader has pulled for followers would be lost with it, or come twice."""
    with cluster(tmp_path, 3, processes=True, config=zone(1), arguments=CALM) as c:
        create_old(c)
        done: Changes = collections.defaultdict(list)
        with client(c) as table:
            token = c.until("it stands", lambda: _begun(table))
            for number in range(3):
                write_round(table, done, number)
            reshard(c, 1)
            (overlap,) = overlaps_of(c)
            c.until("pulled", lambda: progress(c, overlap).backfilled, WAIT_SECONDS)
            target, source = c.records[overlap.new].leader, c.records[overlap.old].leader
            killed = c.nodes[target]
            assert isinstance(killed, ProcessNode)
            killed.kill()
            other = 3 - target - source
            epoch = c.records[overlap.new].leader_epoch + 1
            c.change(overlap.new, leader=other, leader_epoch=epoch, isr=(other, source))
            c.watch()
            c.until("it goes on", lambda: progress(c, overlap).backfilled, WAIT_SECONDS)
            killed.start()
            write_round(table, done, 3)
            begin_to_seal(c, overlap.old)
            c.until("sealed", lambda: _is_sealed(c, overlap.old), WAIT_SECONDS)
            c.config = msgspec.structs.replace(c.config, generation=1, next_partitions=0)
            c.configure()
            write_round(table, done, 4)
        with client(c) as table, table.changes(token) as feed:
            came: Changes = collections.defaultdict(list)
            follow(c, feed, came, sum(map(len, done.values())))
            assert came == done
            assert feed.poll(0.2).changes.num_rows == 0


@pytest.mark.proves("CF-02")
def test_who_does_not_know_yet_what_it_was_made_of_answers_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replaced leader that has just begun took all for its own: what it had pulled was lost."""
    with cluster(tmp_path, 1, config=zone(1)) as c:
        c.create(0, (0,))
        with client(c) as table:
            table.write([{"key": key, "value": b"before"} for key in KEYS])
            reshard(c, 1)
            (overlap,) = overlaps_of(c)
            c.until("backfilled", lambda: progress(c, overlap).backfilled)
            known = c.replica(0, 0).positions.readable_time
            table.write([{"key": key, "value": b"pulled"} for key in KEYS])
            begin_to_seal(c, 0)
            c.until("it is sealed", functools.partial(_is_sealed, c, 0))
            c.config = msgspec.structs.replace(c.config, generation=1, next_partitions=0)
            c.configure()
            table.write([{"key": key, "value": b"after"} for key in KEYS])
        replica, last = c.replica(0, overlap.new), WHOLE.end - 1
        for given_by in (0, NOBODY_GAVE):
            asked = AskedRange(
                partition=overlap.new, first_hash=0, last_hash=last, time=known, given_by=given_by
            )
            with monkeypatch.context() as stale:
                stale.setattr(replica.store, "applied_reshards", lambda: ())
                (answer,) = c.node(0).change_source.follow(FollowChanges(ranges=(asked,))).ranges
            assert answer.error is not None
            assert answer.error.code == NotReadyError.code
            (answer,) = c.node(0).change_source.follow(FollowChanges(ranges=(asked,))).ranges
            assert answer.error is None
            values = changes_from(answer.rows).column("value").to_pylist()
            assert len(values) == 2 * len(KEYS), "what was pulled, and its own"


def write_round(table: TableClient, done: Changes, number: int) -> None:
    """Write all rows, or delete them, and note it."""
    if number == 1:
        table.delete([{"key": key} for key in KEYS])
    else:
        table.write([{"key": key, "value": b"%d" % number} for key in KEYS])
    for key in KEYS:
        done[key].append(None if number == 1 else b"%d" % number)


@pytest.mark.proves("CF-01")
def test_a_change_has_the_row_before_it(tmp_path: Path) -> None:
    """Who keeps sums by a column of the rows would subtract another value than was there."""
    with cluster(tmp_path, 2, config=zone(1)) as c:
        c.create(0, (0, 1))
        with client(c) as table:
            start = table.read_time(max_staleness_seconds=0).as_of
            table.write([{"key": b"k", "value": b"1"}, {"key": b"l", "value": b"1"}])
            table.write([{"key": b"k", "value": b"2"}])
            table.delete([{"key": b"k"}])
            with table.transaction({"key": b"k"}) as tx:
                tx.write([{"key": b"k", "value": b"3"}])
                tx.commit()
            table.delete([{"key": b"none"}])
            for from_followers in (False, True):
                with table.changes(
                    since=start, old_rows=True, from_followers=from_followers
                ) as feed:
                    came = rows_of(c, feed, 6)
                old = {
                    key: [row["_old"] and row["_old"]["value"] for row in came if row["key"] == key]
                    for key in (b"k", b"l", b"none")
                }
                assert old == {b"k": [None, b"1", b"2", None], b"l": [None], b"none": [None]}
            with table.changes(since=start) as feed:
                assert "_old" not in rows_of(c, feed, 6)[0]


def rows_of(c: Coordinator, feed: ChangeFeed, count: int) -> list[dict[str, Any]]:
    """Follow until so many changes have come; return them."""
    came: list[dict[str, Any]] = []

    def enough() -> bool:
        came.extend(feed.poll(0.05).changes.to_pylist())
        return len(came) >= count

    c.until(f"{count} changes have come", enough, WAIT_SECONDS)
    return came


@pytest.mark.proves("CF-01")
def test_rows_before_changes_that_are_not_kept_are_told(tmp_path: Path) -> None:
    """A follower would take a row whose versions were collected for one that was never there."""
    config = msgspec.structs.replace(zone(1), version_retention_seconds=1)
    with cluster(tmp_path, 2, config=config) as c:
        c.create(0, (0, 1))
        with client(c) as table:
            for value in (b"1", b"2", b"3"):
                table.write([{"key": b"k", "value": value}])

            def refused() -> str:
                with table.changes(since=1, old_rows=True) as feed:
                    try:
                        feed.poll(0.5)
                    except FeedTruncatedError as error:
                        return error.message
                return ""

            assert "without old rows" in c.until("they are not kept", refused, WAIT_SECONDS)
            with table.changes(since=1) as feed:
                assert [row["value"] for row in rows_of(c, feed, 3)] == [b"1", b"2", b"3"]
            before = table.read_time(max_staleness_seconds=0).as_of
            with table.changes(earliest=True, old_rows=True) as feed:
                begin = feed.poll(WAIT_SECONDS)
                assert not begin.changes.num_rows
                assert begin.resolved_time >= before - 900_000, "it is too old when it is read"
                table.write([{"key": b"k", "value": b"4"}])
                assert rows_of(c, feed, 1)[-1]["_old"] == {"key": b"k", "value": b"3"}


@pytest.mark.proves("CF-01")
def test_the_rows_before_one_commit_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A delete of many large rows would have a data node hold all of them in memory."""
    monkeypatch.setattr(old_rows, "OLD_BYTES_MAX", 10_000)
    with cluster(tmp_path, 2, config=zone(1)) as c:
        c.create(0, (0, 1))
        with client(c) as table:
            keys = [{"key": b"%d" % n} for n in range(100)]
            table.write([{**key, "value": bytes(200)} for key in keys])
            token = c.until("begun", lambda: _begun(table))
            table.delete(keys)
            with (
                table.changes(token, old_rows=True) as feed,
                pytest.raises(LimitExceededError, match="without old rows"),
            ):
                feed.poll(WAIT_SECONDS)
            with table.changes(token) as feed:
                rows_of(c, feed, 100)


@pytest.mark.proves("CF-01")
def test_a_feed_of_times_has_the_time_of_each_change(tmp_path: Path) -> None:
    """A batch in Spark would end somewhere else than after as many changes as it may have."""
    with cluster(tmp_path, 2, config=zone(1)) as c:
        c.create(0, (0, 1))
        with client(c) as table:
            token = c.until("begun", lambda: _begun(table))
            for number, key in enumerate(KEYS):
                table.write([{"key": key, "value": b"%d" % number}])
            table.delete([{"key": key} for key in KEYS[:5]])
            with table.transaction({"key": KEYS[5]}) as tx:
                tx.write([{"key": key, "value": b"late"} for key in KEYS[5:12]])
            last = table.read_time(max_staleness_seconds=0).as_of
            every = times_until(c, table.changes(token), last)
            assert every.total() == len(KEYS) + 12
            # As after a re-sharding: a partition's range in two, which are not equally far.
            (whole,) = decode_token(c.config.zone_uid, token)
            middle = (whole.start + whole.end) // 2
            late = whole._replace(start=middle, time=sorted(every)[len(every) // 2])
            cut = encode_token(c.config.zone_uid, [whole._replace(end=middle), late])
            some = times_until(c, table.changes(cut), last)
            assert 12 < some.total() < every.total()
            assert times_until(c, table.changes(token, times_only=True), last) == every
            assert times_until(c, table.changes(cut, times_only=True), last) == some


def times_until(c: Coordinator, feed: ChangeFeed, last: int) -> collections.Counter[int]:
    """Return how many changes each commit has, up to a time."""
    came: collections.Counter[int] = collections.Counter()

    def enough() -> bool:
        came.update(feed.poll(0.05).changes["_commit_time"].to_pylist())
        return feed.resolved_time >= last

    with feed:
        c.until("all have come", enough, WAIT_SECONDS)
    return came


@pytest.mark.proves("CF-02")
def test_where_changes_begin_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever begins to follow would wait for a second before a first word.

    So would whoever asks for numbers alone, for each answer.
    """
    with cluster(tmp_path, 1, config=zone(1)) as c:
        c.create(0, (0,))
        first, end = c.replica(0, 0).hash_range
        asked = AskedRange(partition=0, first_hash=first, last_hash=end - 1)
        request = FollowChanges(ranges=(asked,), timeout_ms=1000)

        def begins() -> bool:
            (answer,) = c.node(0).change_source.follow(request).ranges
            return answer.error is None

        c.until("it knows its time", begins)
        with client(c) as table:
            table.write([{"key": b"k", "value": b"1"}])

        def wait(_notifier: Notifier, _seconds: float) -> None:
            raise AssertionError("it waits for news")

        monkeypatch.setattr(Notifier, "wait", wait)
        assert begins()
        counts = msgspec.structs.replace(
            request, ranges=(msgspec.structs.replace(asked, time=1, given_by=0),), counts_only=True
        )
        (answer,) = c.node(0).change_source.follow(counts).ranges
        assert [each.changes for each in answer.commits] == [1]
        later = msgspec.structs.replace(asked, time=1 << 60, given_by=0)
        with pytest.raises(AssertionError, match="waits"):
            c.node(0).change_source.follow(msgspec.structs.replace(counts, ranges=(later,)))


def _begun(table: TableClient) -> str | None:
    with table.changes() as feed:
        return feed.poll(1.0).token


def _trimmed(replica: Any) -> bool:
    replica.upkeep.keep_house()
    return bool(replica.store.log_start)


def test_followers_at_a_node_are_bounded() -> None:
    """Each holds a thread: many of them would keep a node from all else."""

    def find(number: int) -> Any:
        raise UnknownPartitionError(f"no partition {number}")

    clock = SystemClock()
    foreground = Foreground(clock, lambda: 0)
    request = FollowChanges(ranges=(AskedRange(partition=7, first_hash=0, last_hash=1, time=1),))
    source = ChangeSource(find, foreground, clock, threading.Event(), 1)
    (answer,) = source.follow(request).ranges
    assert answer.error is not None
    assert answer.error.code == UnknownPartitionError.code
    with pytest.raises(OverloadedError):
        ChangeSource(find, foreground, clock, threading.Event(), 0).follow(request)
