"""Rows of before that come past the log, over each engine: each once, whatever dies in between."""

import contextlib
import random
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from reshard_kit import (
    BRANCH,
    NEW,
    OLD,
    WHOLE,
    TargetUnderTest,
    check_versions,
    resharded,
    stores,
)
from storage_kit import Writer, config, copy_directory, rid, stored_rows, stored_versions
from test_storage_backfills import (
    backfill,
    begin,
    position_of,
    reshard_some,
    reshard_the_rest,
    some_rows,
    stand,
)
from test_storage_indexes import TABLE, look_up, put, visible_rows
from test_storage_transactions import apply

from rezone.storage.copies.range_ingest import check_versions as check_asked
from rezone.storage.engines.base import FLAG_INTENT, STATE_PREFIX
from rezone.storage.reshard.range_backfill import RangeVersions, range_versions
from rezone.storage.reshard.reshard_entries import IngestMark, ingested_entry
from rezone.storage.snapshot.columns import VERSIONS_SCHEMA
from rezone.storage.store import IngestedRowsMissingError, PartitionStore
from rezone.wire.errors import ConflictError, InvalidRowError, NotReadyError
from rezone.wire.layouts import HashRange, Overlap, sources_of
from rezone.wire.messages import EngineKind, StreamStart


def next_versions(
    source: PartitionStore, part: Overlap, mark: IngestMark, bytes_max: int = 300
) -> tuple[RangeVersions, IngestMark]:
    """Return what a source has behind a mark, and the mark behind that."""
    found = range_versions(source.engine, HashRange(part.start, part.end), mark.reached, bytes_max)
    return found, IngestMark(mark.source, mark.begun, found.reached, found.end)


def ingest(
    source: PartitionStore, target: PartitionStore, part: Overlap, bytes_max: int = 300
) -> IngestMark:
    """Take the next rows of a part past the log, durably; return how far that is."""
    known = target.range_ingest.standing(part.old)
    assert known is not None
    found, mark = next_versions(source, part, known, bytes_max)
    check_asked(found.batch, HashRange(part.start, part.end), known.reached, mark)
    target.range_ingest.take(found.batch, known.reached, mark)
    target.range_ingest.make_durable(mark)
    return mark


def counted(target: PartitionStore, mark: IngestMark) -> bytes:
    """Return the entry that counts what has come past the log."""
    before = position_of(target, mark.source)
    after = msgspec.structs.replace(before, backfilling=not mark.end, backfilled_to=mark.reached)
    return ingested_entry(mark, before, after, stand(target))


def count(target: PartitionStore, mark: IngestMark) -> None:
    """Append that entry."""
    target.append(counted(target, mark))


class Target(TargetUnderTest):
    """One that crashes, too: what no flush has brought to the disk is lost."""

    def flips(self) -> bool:
        """Return true or false."""
        return self._rng.random() < 0.5

    def crash(self) -> None:
        """Go on with what the disk has."""
        if self._kind is not EngineKind.ROCKSDB:
            return
        self.store.sync()
        crashed = self._path.with_name(f"{self._path.name}+")
        copy_directory(self._path, crashed)
        self.store.abandon()
        self._path = crashed
        self.store = PartitionStore.open(crashed, config(self._kind))


def ingest_some(source: PartitionStore, target: Target, part: Overlap) -> None:
    """Take some rows past the log where that may be, and count them now and then."""
    store, position = target.store, target.store.reshard_position(part.old)
    if position is None or not position.backfilling:
        return
    if store.range_ingest.standing(part.old) is None:
        return
    mark = ingest(source, store, part)
    if target.flips() and (mark.end or mark.reached > position.backfilled_to):
        count(store, mark)


@pytest.mark.proves("B-05", "B-08", "SP-01")
@pytest.mark.parametrize("seed", range(6))
def test_ingested_and_followed_it_has_what_its_sources_have(
    tmp_path: Path, kind: EngineKind, seed: int
) -> None:
    """A row would be lost by entries that are undone, restarts and crashes between the batches.

    Rows come by the log and past it, in turn.
    """
    rng = random.Random(seed)
    parts = list(sources_of(rng.choice(NEW.ids), OLD, NEW))
    with stores(tmp_path, kind, "a", "b") as sources:
        writers = [Writer(source) for source in sources]
        for source in sources:
            source.update_meta(failover_log=BRANCH)
        target = Target(tmp_path / "target", kind, rng)
        for turn in range(120):
            step, part = rng.randrange(12), rng.choice(parts)
            source = sources[part.old]
            if turn < 12 or step <= 1:
                which = rng.choice([0, 1])
                writers[which].write(some_rows(rng, turn))
                apply(sources[which])
            elif step <= 3:
                reshard_some(source, target.store, part, rng)
            elif step <= 7:
                ingest_some(source, target, part)
            elif step == 8:
                target.crash()
            else:
                target.suffer(step - 9)
            target.note_end()
        for part in parts:
            reshard_the_rest(sources[part.old], target.store, part)
        target.store.apply_to(target.store.log_end)
        check_versions(target.store, writers, parts)
        target.store.close()


@pytest.mark.proves("SP-01")
def test_rows_past_the_log_are_what_its_own_backfill_would_have_brought(
    tmp_path: Path, kind: EngineKind
) -> None:
    """The engine would have other versions than by the log, or some of them not when it is over."""
    with stores(tmp_path, kind, "source", "target") as (source, target):
        source.update_meta(failover_log=BRANCH)
        writer = Writer(source)
        for turn in range(10):
            writer.write(some_rows(random.Random(turn), turn))
        apply(source)
        begin(source, target, WHOLE)
        apply(target)
        log_bytes = target.log_bytes
        while position_of(target).backfilling:
            count(target, ingest(source, target, WHOLE))
            apply(target)
        assert stored_versions(target) == writer.versions(1 << 60)
        rows = sum(len(content) for _, _, _, content in stored_versions(target))
        assert target.log_bytes - log_bytes < 10 * 1000 + rows
        assert target.range_ingest.standing(0) is None


@pytest.mark.proves("B-05", "SP-01")
def test_a_crash_loses_the_mark_with_the_rows_that_it_speaks_of(tmp_path: Path) -> None:
    """Rows that only memory had would count as there, and the job would leave them out."""
    with stores(tmp_path, EngineKind.ROCKSDB, "source", "target") as (source, target):
        source.update_meta(failover_log=BRANCH)
        Writer(source).write({rid(turn): b"x" * 20 for turn in range(40)})
        apply(source)
        begin(source, target, WHOLE)
        apply(target)
        durable = ingest(source, target, WHOLE)
        found, mark = next_versions(source, WHOLE, durable)
        target.range_ingest.take(found.batch, durable.reached, mark)
        assert target.range_ingest.standing(0) == mark
        assert not target.range_ingest.has_durable(mark)
        with pytest.raises(IngestedRowsMissingError):
            count(target, mark)
        target.sync()
        copy_directory(tmp_path / "target", tmp_path / "crashed")
        with stores(tmp_path, EngineKind.ROCKSDB, "crashed") as (crashed,):
            assert crashed.range_ingest.standing(0) == durable
            assert crashed.range_ingest.has_durable(durable)
            assert len(stored_versions(crashed)) == len(
                [v for v in stored_versions(source) if v[0] <= durable.reached]
            )


@pytest.mark.proves("SP-01")
def test_a_replica_without_the_rows_refuses_the_entry_that_counts_them(
    tmp_path: Path, kind: EngineKind
) -> None:
    """It would be in sync without them, and lose them for all when it leads."""
    with stores(tmp_path, kind, "source", "target", "follower") as (source, target, follower):
        source.update_meta(failover_log=BRANCH)
        Writer(source).write({rid(turn): b"x" * 20 for turn in range(40)})
        apply(source)
        begin(source, target, WHOLE)
        apply(target)
        mark = ingest(source, target, WHOLE)
        count(target, mark)
        raw = target.read(0, 1 << 20)
        with pytest.raises(IngestedRowsMissingError, match="rows of partition 0 were ingested"):
            follower.append(raw)
        assert follower.log_end == 0
        follower.append(target.read(0, 1))
        with pytest.raises(NotReadyError):
            ingest_at(source, follower, mark)
        apply(follower)
        ingest_at(source, follower, mark)
        follower.append(target.read(follower.log_end, 1 << 20))
        apply(follower)
        apply(target)
        assert stored_versions(follower) == stored_versions(target) != []


def ingest_at(source: PartitionStore, replica: PartitionStore, mark: IngestMark) -> None:
    """Have a replica take all rows up to a mark."""
    found = range_versions(source.engine, HashRange(0, 1 << 64), b"", 1 << 20)
    ids = found.batch.column(0).to_pylist()
    batch = found.batch.slice(0, sum(row <= mark.reached for row in ids))
    replica.range_ingest.take(batch, b"", mark)
    replica.range_ingest.make_durable(mark)


@pytest.mark.proves("B-05", "SP-01")
def test_what_is_undone_of_a_backfill_takes_the_mark_back(tmp_path: Path, kind: EngineKind) -> None:
    """Rows that an undone entry had brought would count as there, below others past the log."""
    with stores(tmp_path, kind, "source", "target") as (source, target):
        source.update_meta(failover_log=BRANCH)
        Writer(source).write({rid(turn): b"x" * 20 for turn in range(40)})
        apply(source)
        begin(source, target, WHOLE)
        begun = target.log_end
        backfill(source, target, WHOLE)
        apply(target)
        mark = ingest(source, target, WHOLE)
        target.truncate(begun)
        known = target.range_ingest.standing(0)
        assert known is not None
        assert known.reached == b""
        assert not target.range_ingest.has_durable(mark)
        found, after = next_versions(source, WHOLE, mark)
        with pytest.raises(NotReadyError, match="are missing below"):
            target.range_ingest.take(found.batch, mark.reached, after)
        with pytest.raises(ConflictError, match="not all rows"):
            target.range_ingest.make_durable(mark)


@pytest.mark.proves("B-08", "SP-01")
def test_rows_of_another_reshard_stream_are_refused(tmp_path: Path, kind: EngineKind) -> None:
    """Rows read before the log is followed from would lack what was written in between."""
    with stores(tmp_path, kind, "source", "target") as (source, target):
        source.update_meta(failover_log=BRANCH)
        writer = Writer(source)
        writer.write({rid(turn): b"x" * 20 for turn in range(40)})
        apply(source)
        assert target.range_ingest.standing(0) is None
        begin(source, target, WHOLE)
        apply(target)
        first = ingest(source, target, WHOLE)
        target.truncate(0)
        assert target.range_ingest.standing(0) is None
        writer.write({rid(1): b"later"})
        apply(source)
        begin(source, target, WHOLE)
        apply(target)
        found, mark = next_versions(source, WHOLE, IngestMark(0, first.begun))
        with pytest.raises(ConflictError, match="from another offset on"):
            target.range_ingest.take(found.batch, b"", mark)
        assert not target.range_ingest.has_durable(first)


@pytest.mark.proves("B-08", "SP-01")
def test_rows_that_come_late_are_refused_when_tombstones_may_be_collected(
    tmp_path: Path, kind: EngineKind
) -> None:
    """A row that was deleted since would live again."""
    with stores(tmp_path, kind, "source", "target") as (source, target):
        source.update_meta(failover_log=BRANCH)
        writer = Writer(source)
        writer.write({rid(1): b"x"})
        apply(source)
        begin(source, target, WHOLE)
        apply(target)
        known = target.range_ingest.standing(0)
        assert known is not None
        late, mark = next_versions(source, WHOLE, known)
        writer.write({rid(1): None})
        apply(source)
        resharded(source, target, WHOLE, since=position_of(target).offset)
        apply(target)
        target.note_committed(target.log_end)
        target.collect(target.last_commit_time, b"", 1 << 20)
        target.range_ingest.take(late.batch, b"", mark)
        target.range_ingest.make_durable(mark)
        count(target, mark)
        apply(target)
        assert stored_rows(target) == {}
        target.note_committed(target.log_end)
        target.collect(target.last_commit_time, b"", 1 << 20)
        assert stored_versions(target) == []
        with pytest.raises(NotReadyError):
            target.range_ingest.take(late.batch, b"", mark)


@pytest.mark.proves("SP-01")
def test_indexes_have_rows_that_came_past_the_log(tmp_path: Path, kind: EngineKind) -> None:
    """A lookup would miss them: the index follows the log, which has none of them."""
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
            begin(source, target, WHOLE)
            apply(target)
            while position_of(target).backfilling:
                count(target, ingest(source, target, WHOLE))
                apply(target)
            target.indexer.catch_up()
            assert sorted(look_up(target, "by_age")) == sorted(visible_rows(target))
            assert len(look_up(target, "by_age", as_of=early)) == 12
            assert target.indexer.entries == 18 * len(TABLE.indexes)


def versions(*rows: tuple[bytes, int, int, bytes]) -> pa.RecordBatch:
    """Return versions as they travel."""
    named = [dict(zip(VERSIONS_SCHEMA.names, row, strict=True)) for row in rows]
    return pa.RecordBatch.from_pylist(named, schema=VERSIONS_SCHEMA)


LOW, HIGH = rid(1), rid(2)
if LOW > HIGH:
    LOW, HIGH = HIGH, LOW


@pytest.mark.parametrize(
    ("rows", "after", "reached", "why"),
    [
        ([(HIGH, 5, 0, b""), (LOW, 5, 0, b"")], b"", HIGH, "out of row order"),
        ([(LOW, 5, FLAG_INTENT, b"")], b"", HIGH, "none of a committed row"),
        ([(LOW, 5, 77, b"")], b"", HIGH, "none of a committed row"),
        ([(LOW, 5, 0, b"")], LOW, HIGH, "not asked for"),
        ([(STATE_PREFIX + b"meta", 5, 0, b"")], b"", STATE_PREFIX + b"z", "not asked for"),
        ([(HIGH, 5, 0, b"")], b"", LOW, "beyond where they are said to end"),
    ],
)
def test_versions_that_were_not_asked_for_are_refused(
    rows: list[tuple[bytes, int, int, bytes]], after: bytes, reached: bytes, why: str
) -> None:
    """Rows of nobody's range would be in a partition, or intents that no transaction ends."""
    mark = IngestMark(0, StreamStart(0, "u0"), reached)
    with pytest.raises(InvalidRowError, match=why):
        check_asked(versions(*rows), HashRange(0, 1 << 64), after, mark)


def test_versions_beyond_their_range_of_hashes_are_refused() -> None:
    """A partition would have rows that are another's."""
    low, high = int.from_bytes(LOW[:8], "big"), int.from_bytes(HIGH[:8], "big")
    batch = versions((LOW, 5, 0, b""), (HIGH, 5, 1, b""))
    mark = IngestMark(0, StreamStart(0, "u0"), HIGH)
    check_asked(batch, HashRange(low, high + 1), b"", mark)
    for hashes in (HashRange(low + 1, high + 1), HashRange(low, high)):
        with pytest.raises(InvalidRowError, match="not asked for"):
            check_asked(batch, hashes, b"", mark)
    check_asked(versions(), HashRange(low, high), b"", mark)
