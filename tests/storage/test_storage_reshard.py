"""Reshard entries over each engine: a new partition has its range of the old ones, once."""

import contextlib
import random
from pathlib import Path

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
    inside,
    ranged,
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
from test_storage_indexes import TABLE, Row, look_up, put, remove, visible_rows
from test_storage_transactions import apply, copy, follow, opened

from rezone.storage.engines.base import INDEX_PREFIX
from rezone.storage.log.entry import NO_PRODUCER
from rezone.storage.reshard.reshard_entries import Stand, reshard_entry
from rezone.storage.store import PartitionStore
from rezone.wire.errors import ConflictError
from rezone.wire.layouts import HashRange, Overlap, sources_of
from rezone.wire.messages import EngineKind


@pytest.mark.proves("B-08")
@pytest.mark.parametrize("seed", range(8))
def test_a_new_partition_has_its_range_whatever_happens(
    tmp_path: Path, kind: EngineKind, seed: int
) -> None:
    """A row would be lost or doubled when entries are sent twice, undone, or a node restarts."""
    rng = random.Random(seed)
    target_id = rng.choice(NEW.ids)
    parts = list(sources_of(target_id, OLD, NEW))
    with stores(tmp_path, kind, "a", "b") as sources:
        writers = [Writer(source) for source in sources]
        target = TargetUnderTest(tmp_path / "target", kind, rng)
        for _ in range(60):
            step = rng.randrange(7)
            part = rng.choice(parts)
            if step <= 1:
                rows = {
                    rid(rng.randrange(40)): rng.choice([None, b"%d" % rng.randrange(9)])
                    for _ in range(rng.randrange(1, 9))
                }
                rng.choice(writers).write(rows)
            elif step <= 3:
                source = sources[part.old]
                position = target.store.reshard_position(part.old)
                since = position.offset if position and rng.random() < 0.7 else 0
                resharded(source, target.store, part, since=since, most=rng.randrange(1, 6))
            else:
                target.suffer(step - 4)
            target.note_end()
        for part in parts:
            resharded(sources[part.old], target.store, part)
        target.store.apply_to(target.store.log_end)
        check_versions(target.store, writers, parts)
        ranges = [(sources[part.old], HashRange(part.start, part.end)) for part in parts]
        entries = sum(len(ranged(source, hashes)) for source, hashes in ranges)
        assert len(ranged(target.store, HashRange(0, 1 << 64))) == entries, "an entry is twic"
        for part in parts:
            assert resharded(sources[part.old], target.store, part) == 0, "a repeat is pulled"
        target.store.close()


@pytest.mark.proves("B-04", "B-08")
def test_both_sides_are_equal_as_of_any_time(tmp_path: Path, kind: EngineKind) -> None:
    """A read as of a time before the cut-over would change by it, and copies never be verified."""
    with stores(tmp_path, kind, "source", "target") as (source, target):
        writer = Writer(source)
        times = []
        for turn in range(12):
            writer.write({rid(key): b"%d" % turn for key in range(turn, turn + 9)})
            writer.write({rid(turn): None})
            times.append(source.last_commit_time)
        apply(source)
        part = next(iter(sources_of(NEW.ids[0], OLD, NEW)))
        resharded(source, target, part, ahead=1)  # its clock is behind the source's
        apply(target)
        for time in times:
            args = (time, part.start, part.end)
            assert target.reader.digest(*args) == source.reader.digest(*args)
            rows = [
                v for v in stored_rows(source, time).items() if inside([(v[0], 0, 0, b"")], part)
            ]
            assert stored_rows(target, time) == dict(rows)
        assert any(target.reader.digest(times[-1])[1])


@pytest.mark.proves("B-08")
def test_a_retried_write_is_known_at_each_new_partition_that_has_a_part(
    tmp_path: Path, kind: EngineKind
) -> None:
    """A write whose answer was lost at the cut-over would be applied over somebody else's."""
    with stores(tmp_path, kind, "source", "low", "high") as (source, low, high):
        writer = Writer(source)
        writer.write({rid(key): b"1" for key in range(20)}, W1, 4)
        below = next(rid(k) for k in range(99) if rid(k)[0] < 0x80)
        writer.write({below: b"2"}, W2, 7)
        halves = [
            Overlap(0, 1 << 63, 0, NEW.ids[0]),
            Overlap(1 << 63, 1 << 64, 0, NEW.ids[1]),
        ]
        for target, part in zip((low, high), halves, strict=True):
            resharded(source, target, part)
        known = [(h.producer(W1, 0)[1], h.producer(W2, 0)[1]) for h in (low, high)]
        apply(low)
        assert (low.producer(W1, 0)[1], low.producer(W2, 0)[1]) == known[0]
        sequences = [[s and s.sequence for s in pair] for pair in known]
        assert sequences == [[4, 7], [4, None]]
        # What is undone is known no more, and comes again with the same entries.
        low.truncate(0)
        undone = low.producer(W2, 0)[1]
        assert undone is not None
        assert undone.sequence == 6
        assert resharded(source, low, halves[0]) == 2


@pytest.mark.proves("B-08")
def test_of_transactions_come_committed_rows_and_how_they_ended(
    tmp_path: Path, kind: EngineKind
) -> None:
    """Intents would stay for ever, or a commit whose answer was lost be unknown."""
    with stores(tmp_path, kind, "source", "target", "other") as (source, target, other):
        tx = Transactor(source)
        tx.intend(T1, {rid(1): b"a", rid(2): None})
        tx.intend(T2, {rid(3): b"b"})
        tx.intend(T3, {rid(4): b"c"})
        apply(source)
        tx.commit(T1)
        tx.abort(T2)
        apply(source)
        committed = source.last_commit_time - 10
        resharded(source, target, WHOLE)
        apply(target)
        assert stored_rows(target) == {rid(1): b"a"}
        assert [v[1] for v in stored_versions(target)] == [committed] * 2
        with source.transactions() as table:
            there = {transaction: table.get(transaction) for transaction in (T1, T2)}
        with target.transactions() as table:
            for transaction, its in there.items():
                mine = table.get(transaction)
                assert mine is not None
                assert its is not None
                assert (mine.is_open, mine.last.kind) == (False, its.last.kind)
                assert mine.last.commit_time == its.last.commit_time
            assert table.get(T3) is None
            assert not table.all_open()
        # A range without rows of it hears of the end too: it may be asked.
        nowhere = Overlap((1 << 64) - 1, 1 << 64, 0, NEW.ids[2])
        resharded(source, other, nowhere)
        apply(other)
        with other.transactions() as table:
            assert table.get(T1) is not None
        assert stored_rows(other) == {}


@pytest.mark.proves("B-08")
def test_of_a_writer_that_two_sources_know_the_later_batch_stays(
    tmp_path: Path, kind: EngineKind
) -> None:
    """After a second re-sharding a batch retried over both would be applied a second time."""
    with stores(tmp_path, kind, "a", "b", "target") as (first, second, target):
        for source, sequence in ((first, 7), (second, 3)):
            Writer(source).write({rid(1): b"x"}, W1, sequence)
        for number, source in enumerate((first, second)):
            resharded(source, target, WHOLE._replace(old=number))
            appended = target.producer(W1, 0)[1]
            assert appended is not None
            assert appended.sequence == 7
        apply(target)
        target.flush()
        assert target.producer(W1, 0)[1] == appended
        assert target.reshard_position(1) is not None


@pytest.mark.proves("B-08")
def test_positions_and_writers_travel_to_the_followers_of_a_new_partition(
    tmp_path: Path, form: str
) -> None:
    """The next leader would import everything again, or know nothing of retried writes."""
    engine = FORMS[form][0]
    with (
        stores(tmp_path, engine, "source") as (source,),
        opened(tmp_path / "target", form) as target,
        opened(tmp_path / "follower", form) as follower,
    ):
        writer = Writer(source)
        for turn in range(8):
            writer.write({rid(turn): b"x"}, W1, turn + 1)
        resharded(source, target, WHOLE, most=5)
        apply(target)
        target.flush()
        follower.reset()
        copy(target, follower)
        assert follower.reshard_position(0) == target.reshard_position(0)
        # What comes by the log counts as soon as it is appended, and undoing it takes it back.
        resharded(source, target, WHOLE)
        kept = follower.log_end
        follow(target, follower)
        apply(target)
        assert follower.reshard_position(0) == target.reshard_position(0)
        state = follower.producer(W1, 0)[1]
        assert state is not None
        assert state.sequence == 8
        assert stored_versions(follower) == stored_versions(target)
        follower.truncate(kept)
        position = follower.reshard_position(0)
        assert position is not None
        assert position.offset == 5


def test_a_restart_knows_what_only_the_log_has_resharded(tmp_path: Path) -> None:
    """After a crash entries that are durable, and not applied, would be pulled a second time."""
    with stores(tmp_path, EngineKind.ROCKSDB, "source", "target") as (source, target):
        writer = Writer(source)
        for turn in range(6):
            writer.write({rid(turn): b"x"}, W1, turn + 1)
        resharded(source, target, WHOLE)
        target.apply_to(6)  # three entries of a note and a row each
        target.flush()
        target.sync()
        copy_directory(tmp_path / "target", tmp_path / "crashed")
        with stores(tmp_path, EngineKind.ROCKSDB, "crashed") as (crashed,):
            assert crashed.applied == 6
            assert crashed.reshard_position(0) == target.reshard_position(0)
            assert crashed.producer(W1, 0)[1] == target.producer(W1, 0)[1]
            assert resharded(source, crashed, WHOLE) == 0


def test_resharded_entries_are_a_source_s_entries_in_the_next_re_sharding(
    tmp_path: Path, kind: EngineKind
) -> None:
    """Two re-shardings one after the other would give rows the time of the first one's copy."""
    with stores(tmp_path, kind, "a", "b", "c") as (first, second, third):
        writer = Writer(first)
        writer.write({rid(1): b"x", rid(2): None}, W1, 3)
        tx = Transactor(first)
        tx.intend(T1, {rid(5): b"y"})
        apply(first)
        tx.commit(T1)
        apply(first)
        resharded(first, second, WHOLE)
        apply(second)
        resharded(second, third, WHOLE._replace(old=NEW.ids[0]))
        apply(third)
        assert stored_versions(third) == stored_versions(second)
        state = third.producer(W1, 0)[1]
        assert state is not None
        assert state.sequence == 3
        with third.transactions() as table:
            found = table.get(T1)
            assert found is not None
            assert not found.is_open


def test_an_entry_that_is_resharded_in_part_is_refused(tmp_path: Path, kind: EngineKind) -> None:
    """A source with another history would mix its rows with those of before."""
    with stores(tmp_path, kind, "source", "target") as (source, target):
        Writer(source).write({rid(1): b"x"})
        Writer(source).write({rid(2): b"y", rid(3): b"z"})
        resharded(source, target, WHOLE, most=1)
        position = target.reshard_position(0)
        (entry,) = ranged(source, HashRange(0, 1 << 64), 1)
        moved = entry._replace(base_offset=0)
        with pytest.raises(ConflictError, match="pulled up to 1"):
            reshard_entry(0, moved, position, Stand(1, 2, 9))


def test_what_is_of_no_row_in_the_range_is_left_out(tmp_path: Path, kind: EngineKind) -> None:
    """Each of many new partitions would have the whole log of the old one."""
    with stores(tmp_path, kind, "source") as (source,):
        row = rid(1)
        Writer(source).write({row: b"x"}, NO_PRODUCER, 0)
        at = int.from_bytes(row[:8], "big")
        assert len(ranged(source, HashRange(at, at + 1))) == 1
        assert ranged(source, HashRange(at + 1, 1 << 64)) == []
        assert ranged(source, HashRange(0, at)) == []


def test_indexes_have_resharded_rows_at_their_own_times(tmp_path: Path, kind: EngineKind) -> None:
    """A lookup as of a time before the cut-over would miss rows, or old entries never go."""
    with stores(tmp_path, kind, "source") as (source,):
        writer = Writer(source)
        rows: list[Row] = [(i, f"owner {i % 3}", i) for i in range(12)]
        put(writer, *rows)
        early = source.last_commit_time
        put(writer, *[(i, "nobody", age) for i, _, age in rows[:6]])
        remove(writer, 11)
        target = PartitionStore.open(tmp_path / "target", config(kind, table=TABLE))
        with contextlib.closing(target):
            target.update_meta(failover_log=BRANCH)
            resharded(source, target, WHOLE)
            apply(target)
            target.indexer.catch_up()
            now = look_up(target, "by_age")
            assert sorted(now) == sorted(visible_rows(target))
            assert sorted(look_up(target, "by_age", as_of=early)) == sorted(rows)
            entries = target.indexer.entries
            # Undone and pulled again it has the same entries.
            target.truncate(0)
            assert look_up(target, "by_age") == []
            resharded(source, target, WHOLE)
            apply(target)
            target.indexer.catch_up()
            assert (look_up(target, "by_age"), target.indexer.entries) == (now, entries)


def test_versions_are_not_collected_before_they_are_indexed(
    tmp_path: Path, kind: EngineKind
) -> None:
    """An index entry would come when its version is gone, and stay for ever."""
    with stores(tmp_path, kind, "a", "b") as sources:
        for source in sources:
            writer = Writer(source)
            put(writer, *[(i, "first", i) for i in range(8)])
            put(writer, *[(i, "second", i) for i in range(8)])
        target = PartitionStore.open(tmp_path / "target", config(kind, table=TABLE))
        with contextlib.closing(target):
            target.update_meta(failover_log=BRANCH)
            resharded(sources[1], target, WHOLE._replace(old=1, start=1 << 63))
            apply(target)
            target.indexer.catch_up()
            resharded(sources[0], target, WHOLE._replace(end=1 << 63))
            apply(target)
            late = target.last_commit_time
            target.collect(late, b"", 1 << 20)
            target.indexer.catch_up()
            target.collect(late, b"", 1 << 20)
            assert len(stored_versions(target)) == 8
            end = INDEX_PREFIX + b"\xff"
            entries = target.engine.scan_chains(INDEX_PREFIX, end, rows_max=999, bytes_max=1 << 20)
            assert len(entries.keys) == 16
