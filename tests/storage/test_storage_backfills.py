"""Backfills over each engine: the rows a source had before come with their times, and come once."""

import contextlib
import random
from pathlib import Path

import msgspec
import pytest
from reshard_kit import (
    BRANCH,
    NEW,
    OLD,
    T1,
    T2,
    T3,
    W1,
    W2,
    WHOLE,
    TargetUnderTest,
    check_versions,
    resharded,
    stores,
)
from storage_kit import (
    FORMS,
    Transactor,
    Writer,
    config,
    copy_directory,
    rid,
    stored_rows,
    stored_versions,
)
from test_storage_indexes import TABLE, look_up, put, visible_rows
from test_storage_transactions import apply, copy, follow, opened

from rezone.storage.engines.base import FLAG_INTENT
from rezone.storage.log.entry import EntryKind, build_entry, iter_entries, rows_batch
from rezone.storage.reshard.range_backfill import range_versions
from rezone.storage.reshard.range_changes import range_entries
from rezone.storage.reshard.reshard_entries import Stand, backfill_entry, begin_entry
from rezone.storage.store import PartitionStore
from rezone.wire.errors import ConflictError
from rezone.wire.layouts import HashRange, Overlap, sources_of
from rezone.wire.messages import EngineKind, ReshardPosition


def stand(target: PartitionStore, ahead: int = 1) -> Stand:
    """Where the target's next entry comes to stand."""
    return Stand(1, target.log_end, target.last_commit_time + ahead)


def begin(
    source: PartitionStore,
    target: PartitionStore,
    hash_range: Overlap,
    followed: int | None = None,
) -> None:
    """Begin to pull a range, as the target's leader does; `followed` from a time on."""
    begun = source.outgoing.begin_reshard(followed, 1 << 20)
    position = msgspec.structs.replace(begun.position, source=hash_range.old)
    target.append(begin_entry(position, begun.producers, begun.transactions, stand(target)))


def backfill(
    source: PartitionStore, target: PartitionStore, hash_range: Overlap, bytes_max: int = 300
) -> bool:
    """Append the next backfill of a range; whether that was all."""
    before = target.reshard_position(hash_range.old)
    assert before is not None
    hashes = HashRange(hash_range.start, hash_range.end)
    found = range_versions(source.engine, hashes, before.backfilled_to, bytes_max)
    after = msgspec.structs.replace(
        before,
        backfilling=not found.end,
        backfilled_to=found.reached,
        rows=before.rows + found.batch.num_rows,
    )
    target.append(backfill_entry(found.batch, before, after, stand(target)))
    return found.end


def backfill_all(source: PartitionStore, target: PartitionStore, hash_range: Overlap) -> None:
    """Begin and backfill a range."""
    begin(source, target, hash_range)
    while not backfill(source, target, hash_range):
        pass


def reshard_some(
    source: PartitionStore, target: PartitionStore, hash_range: Overlap, rng: random.Random
) -> None:
    """Do what is next for a range, or what may be done beside it."""
    position = target.reshard_position(hash_range.old)
    if position is None:
        newest = source.last_commit_time
        begin(source, target, hash_range, rng.choice([None, 0, rng.randrange(newest + 2)]))
    elif position.backfilling and rng.random() < 0.7:
        backfill(source, target, hash_range)
    else:
        resharded(source, target, hash_range, since=position.offset, most=rng.randrange(1, 6))


def reshard_the_rest(source: PartitionStore, target: PartitionStore, hash_range: Overlap) -> None:
    """Do all that is left to be done for a range."""
    if target.reshard_position(hash_range.old) is None:
        begin(source, target, hash_range)
    while position_of(target, hash_range.old).backfilling:
        backfill(source, target, hash_range)
    resharded(source, target, hash_range, since=position_of(target, hash_range.old).offset)


def some_rows(rng: random.Random, turn: int) -> dict[bytes, bytes | None]:
    """Rows to write and to delete."""
    names = rng.sample(range(60), rng.randrange(1, 9))
    return {rid(name): rng.choice([None, b"%d" % turn]) for name in names}


def position_of(store: PartitionStore, source: int = 0) -> ReshardPosition:
    """How far a source is pulled; it is."""
    found = store.reshard_position(source)
    assert found is not None
    return found


@pytest.mark.proves("B-05", "B-08")
@pytest.mark.parametrize("seed", range(5))
def test_backfilled_and_followed_it_has_what_its_sources_have(
    tmp_path: Path, kind: EngineKind, seed: int
) -> None:
    """A row would be lost or doubled by writes, undone entries and restarts between the chunks."""
    rng = random.Random(seed)
    ranges = list(sources_of(rng.choice(NEW.ids), OLD, NEW))
    with stores(tmp_path, kind, "a", "b") as sources:
        writers = [Writer(source) for source in sources]
        for source in sources:
            source.update_meta(failover_log=BRANCH)
        target = TargetUnderTest(tmp_path / "target", kind, rng)
        for turn in range(80):
            step, hash_range = rng.randrange(8), rng.choice(ranges)
            source = sources[hash_range.old]
            if turn < 12 or step <= 1:
                which = rng.choice([0, 1])
                writers[which].write(some_rows(rng, turn))
                apply(sources[which])
            elif step <= 4:
                reshard_some(source, target.store, hash_range, rng)
            else:
                target.suffer(step - 5)
            target.note_end()
        for hash_range in ranges:
            reshard_the_rest(sources[hash_range.old], target.store, hash_range)
        target.store.apply_to(target.store.log_end)
        check_versions(target.store, writers, ranges)
        target.store.close()


@pytest.mark.proves("B-08")
def test_what_was_known_where_the_log_is_followed_from_comes_first(
    tmp_path: Path, kind: EngineKind
) -> None:
    """A write or commit whose answer was lost before the backfill would be applied twice."""
    with stores(tmp_path, kind, "source", "target") as (source, target):
        source.update_meta(failover_log=BRANCH)
        Writer(source).write({rid(1): b"x"}, W1, 4)
        tx = Transactor(source)
        for transaction, row in ((T1, 2), (T2, 3), (T3, 4)):
            tx.intend(transaction, {rid(row): b"t"})
        apply(source)
        tx.commit(T1)
        tx.abort(T2)
        apply(source)
        backfill_all(source, target, WHOLE)
        state = target.producer(W1, 0)[1]
        assert state is not None
        assert state.sequence == 4
        apply(target)
        assert target.producer(W1, 0)[1] == state
        with source.transactions() as table:
            there = {transaction: table.get(transaction) for transaction in (T1, T2)}
        with target.transactions() as table:
            for transaction, its in there.items():
                mine = table.get(transaction)
                assert mine is not None
                assert its is not None
                assert (mine.is_open, mine.last.kind) == (False, its.last.kind)
            assert table.get(T3) is None, "an open transaction is the source's alone"
        assert stored_rows(target) == {rid(1): b"x", rid(2): b"t"}
        assert all(version[2] != FLAG_INTENT for version in stored_versions(target))
        # What goes on at the source comes by the log, and how the open one ends.
        Writer(source).write({rid(1): b"y"}, W1, 5)
        tx.commit(T3)
        resharded(source, target, WHOLE, since=position_of(target).offset)
        apply(target)
        assert stored_rows(target) == {rid(1): b"y", rid(2): b"t", rid(4): b"t"}
        later = target.producer(W1, 0)[1]
        assert later is not None
        assert later.sequence == 5
        target.truncate(0)
        assert target.reshard_position(0) is None
        assert stored_versions(target) == []
        undone = target.producer(W1, 0)[1]
        assert undone is not None
        assert undone.sequence == 3, "the batch that is undone would count as known"
        with target.transactions() as table:
            assert table.get(T1) is None


@pytest.mark.proves("CF-02")
def test_the_log_is_followed_from_where_somebody_follows_it(
    tmp_path: Path, kind: EngineKind
) -> None:
    """Changes of before would be missing, or what was pulled itself be taken for the source's."""
    with stores(tmp_path, kind, "source", "target") as (source, target):
        source.update_meta(failover_log=BRANCH)
        writer, tx = Writer(source), Transactor(source)
        ends, times = [0], [0]
        for sequence in range(1, 6):
            ends.append(writer.write({rid(sequence): b"%d" % sequence}, W1, sequence))
            times.append(source.last_commit_time)
        tx.intend(T1, {rid(9): b"t"})
        apply(source)
        tx.commit(T1)
        apply(source)

        def begins(since: int | None, bytes_max: int = 1 << 20) -> int:
            return source.outgoing.begin_reshard(since, bytes_max).position.offset

        assert begins(None) == source.applied
        assert begins(source.last_commit_time) == source.applied
        assert [begins(time) for time in times] == ends
        floors = (None, 0, ends[3], source.applied, 10_000)
        stands = [source.outgoing.begin_reshard(None, 0, floor).position for floor in floors]
        assert [each.offset for each in stands] == [
            *(source.applied, 0, ends[3], source.applied, source.applied)
        ]
        assert stands[2].commit_time == times[3]
        both = source.outgoing.begin_reshard(times[4], 1 << 20, ends[3])
        assert both.position.offset == ends[3], "the earlier one is the one that counts"
        begin(source, target, WHOLE, times[2])
        backfill(source, target, WHOLE, 1 << 20)
        resharded(source, target, WHOLE, since=ends[2])
        apply(target)
        state = target.producer(W1, 0)[1]
        assert state is not None
        assert state.sequence == 5, "a batch that is pulled late must not count as the last"
        with target.transactions() as table:
            found = table.get(T1)
            assert found is not None
            assert (found.is_open, len(found.records)) == (False, 1)
        theirs = [each for each in stored_versions(source) if each[2] != FLAG_INTENT]
        assert stored_versions(target) == theirs
        # What the target has pulled is not given on to the ones after it.
        assert target.outgoing.begin_reshard(0, 1 << 20).position.offset == target.applied


def test_no_more_of_the_log_is_pulled_than_may_be(tmp_path: Path) -> None:
    """A re-sharding would pull all that is kept because somebody is far behind."""
    small = msgspec.structs.replace(config(), log_segment_bytes=1_000)
    with contextlib.closing(PartitionStore.open(tmp_path / "source", small)) as source:
        source.update_meta(failover_log=BRANCH)
        writer = Writer(source)
        for number in range(30):
            writer.write({rid(number): bytes(300)})
        apply(source)
        found = source.outgoing.begin_reshard(0, 4_000).position
        assert 0 < found.offset < source.applied
        assert len(source.read(found.offset, 1 << 20)) <= 4_000
        assert source.outgoing.begin_reshard(0, 1 << 20).position.offset == 0


@pytest.mark.proves("B-08")
def test_two_sources_may_know_the_same_writers_and_transactions(
    tmp_path: Path, kind: EngineKind
) -> None:
    """After a second re-sharding a retry could be taken for an older one, or no copy be opened."""
    with stores(tmp_path, kind, "a", "b", "target") as (first, second, target):
        for source, sequence in ((first, 7), (second, 3)):
            source.update_meta(failover_log=BRANCH)
            Writer(source).write({rid(1): b"x"}, W2, sequence)
            tx = Transactor(source)
            tx.intend(T1, {rid(2): b"t"})
            apply(source)
            tx.commit(T1)
            apply(source)
        halves = [Overlap(0, 1 << 63, 0, NEW.ids[0]), Overlap(1 << 63, 1 << 64, 1, NEW.ids[0])]
        for source, hash_range in zip((first, second), halves, strict=True):
            backfill_all(source, target, hash_range)
        apply(target)
        state = target.producer(W2, 0)[1]
        assert state is not None
        assert state.sequence == 7
        target.flush()
        with target.transactions() as table:
            found = table.get(T1)
            assert found is not None
            assert len(found.records) == 1
        # Long after, both are forgotten; once each.
        last = Writer(target)
        target.append(
            build_entry(
                rows_batch([rid(9)], [0], [b"z"]),
                leader_epoch=1,
                base_offset=target.log_end,
                commit_time=target.last_commit_time + 1_000_000_000,
            )
        )
        target.note_committed(target.log_end)
        apply(last.store)
        with target.transactions() as table:
            assert table.get(T1) is None


@pytest.mark.proves("B-05", "B-08")
def test_a_backfill_travels_with_the_partition_and_goes_on_there(tmp_path: Path, form: str) -> None:
    """The next leader would backfill again, or believe that it has rows which never came."""
    engine = FORMS[form][0]
    with (
        stores(tmp_path, engine, "source") as (source,),
        opened(tmp_path / "target", form) as target,
        opened(tmp_path / "follower", form) as follower,
    ):
        source.update_meta(failover_log=BRANCH)
        writer = Writer(source)
        for turn in range(30):
            writer.write({rid(turn): b"x" * 20}, W1, turn + 1)
        apply(source)
        begin(source, target, WHOLE)
        backfill(source, target, WHOLE)
        apply(target)
        target.flush()
        follower.reset()
        copy(target, follower)
        kept = position_of(follower)
        assert kept == position_of(target)
        assert kept.backfilling
        assert 0 < kept.rows < 30
        backfill(source, target, WHOLE)
        end = follower.log_end
        follow(target, follower)
        apply(target)
        assert position_of(follower) == position_of(target) != kept
        assert stored_versions(follower) == stored_versions(target)
        follower.truncate(end)
        assert position_of(follower) == kept
        while not backfill(source, follower, WHOLE):
            pass
        apply(follower)
        assert stored_versions(follower) == stored_versions(source)
        assert position_of(follower).rows == 30, "rows came twice"


def test_a_restart_knows_how_far_the_backfill_is(tmp_path: Path) -> None:
    """After a crash durable backfills that are not applied would come again, or never."""
    with stores(tmp_path, EngineKind.ROCKSDB, "source", "target") as (source, target):
        source.update_meta(failover_log=BRANCH)
        Writer(source).write({rid(turn): b"x" * 20 for turn in range(30)}, W1, 3)
        apply(source)
        begin(source, target, WHOLE)
        backfill(source, target, WHOLE)
        target.sync()
        copy_directory(tmp_path / "target", tmp_path / "crashed")
        with stores(tmp_path, EngineKind.ROCKSDB, "crashed") as (crashed,):
            assert crashed.applied == 0
            assert position_of(crashed) == position_of(target)
            assert crashed.producer(W1, 0)[1] == target.producer(W1, 0)[1]


@pytest.mark.proves("B-08")
def test_nothing_is_collected_while_older_versions_may_come(
    tmp_path: Path, kind: EngineKind
) -> None:
    """A tombstone would be gone before the deleted row comes, which would then live again."""
    with stores(tmp_path, kind, "source", "target") as (source, target):
        source.update_meta(failover_log=BRANCH)
        writer = Writer(source)
        writer.write({rid(1): b"x"})
        apply(source)
        begin(source, target, WHOLE)
        before = range_versions(source.engine, HashRange(0, 1 << 64), b"", 1 << 20)
        writer.write({rid(1): None})
        resharded(source, target, WHOLE, since=position_of(target).offset)
        apply(target)
        target.note_committed(target.log_end)
        target.collect(target.last_commit_time, b"", 1 << 20)
        position = position_of(target)
        after = msgspec.structs.replace(position, backfilling=False, backfilled_to=before.reached)
        target.append(backfill_entry(before.batch, position, after, stand(target)))
        target.note_committed(target.log_end)
        target.collect(target.last_commit_time, b"", 1 << 20)  # the last rows are in the log alone
        apply(target)
        assert stored_rows(target) == {}
        target.collect(target.last_commit_time, b"", 1 << 20)
        assert stored_versions(target) == []


def test_a_seal_comes_to_every_range_and_says_where_it_stands(
    tmp_path: Path, kind: EngineKind
) -> None:
    """A new partition without a row of its own would never begin to serve, or do so too early."""
    with stores(tmp_path, kind, "source", "target", "third") as (source, target, third):
        source.update_meta(failover_log=BRANCH)
        Writer(source).write({rid(1): b"x"})
        apply(source)
        nowhere = Overlap((1 << 64) - 1, 1 << 64, 0, NEW.ids[2])
        backfill_all(source, target, nowhere)
        source.append(
            build_entry(
                rows_batch([b""], [4], [b""]),
                leader_epoch=2,
                base_offset=source.log_end,
                commit_time=source.last_commit_time + 5,
                kind=EntryKind.SEAL,
            )
        )
        unsealed = target.log_end
        assert resharded(source, target, nowhere, since=position_of(target).offset) == 1
        apply(target)
        position = position_of(target)
        assert (position.offset, position.sealed_at) == (source.log_end, target.log_end)
        assert (position.commit_time, position.leader_epoch) == (source.last_commit_time, 2)
        assert stored_versions(target) == []
        # Nor is what was pulled given on to those who follow from before.
        writer = Writer(target, epoch=2)
        writer.write({rid(2): b"y"})
        apply(target)
        assert target.outgoing.begin_reshard(0, 1 << 20).position.offset == position.sealed_at
        # In the re-sharding after this one an old seal means nothing.
        third_range = WHOLE._replace(old=NEW.ids[2])
        raw = target.read(unsealed, 1)
        assert list(range_entries(iter_entries(raw), HashRange(0, 1 << 64), BRANCH)) == []
        with pytest.raises(ConflictError, match="being backfilled"):
            resharded(target, third, third_range)
        target.truncate(unsealed)
        assert position_of(target).sealed_at == 0


def test_indexes_have_backfilled_rows_at_their_own_times(tmp_path: Path, kind: EngineKind) -> None:
    """A lookup would miss rows of before the backfill, or find them as of a wrong time."""
    with stores(tmp_path, kind, "source") as (source,):
        source.update_meta(failover_log=BRANCH)
        writer = Writer(source)
        put(writer, *[(i, f"owner {i % 3}", i) for i in range(12)])
        early = source.last_commit_time
        put(writer, *[(i, "nobody", i + 50) for i in range(6)])
        apply(source)
        target = PartitionStore.open(tmp_path / "target", config(kind, table=TABLE))
        with contextlib.closing(target):
            target.update_meta(failover_log=BRANCH)
            backfill_all(source, target, WHOLE)
            apply(target)
            target.indexer.catch_up()
            now = look_up(target, "by_age")
            assert sorted(now) == sorted(visible_rows(target))
            assert len(look_up(target, "by_age", as_of=early)) == 12
            entries = target.indexer.entries
            assert entries == 18 * len(TABLE.indexes)
            target.truncate(0)
            assert look_up(target, "by_age") == []
            backfill_all(source, target, WHOLE)
            apply(target)
            target.indexer.catch_up()
            assert (look_up(target, "by_age"), target.indexer.entries) == (now, entries)
