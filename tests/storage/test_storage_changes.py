"""What a log means for a change feed: committed changes of a range, whoever's log it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from reshard_kit import NEW, OLD, stores
from storage_kit import rid

from rezone.storage.log.entry import EntryKind, ProducerBatch, build_entry, iter_entries, rows_batch
from rezone.storage.log_changes import Position, Reading
from rezone.storage.reshard.range_changes import range_entries
from rezone.storage.reshard.reshard_entries import Stand, begin_entry, reshard_entry
from rezone.storage.store import PartitionStore
from rezone.wire.codec.changes import changes_from
from rezone.wire.codec.keyspace import hash_in
from rezone.wire.errors import CorruptionError, FeedTruncatedError
from rezone.wire.layouts import WHOLE, HashRange
from rezone.wire.messages import NOBODY_GAVE, EngineKind, FailoverEntry, ReshardPosition

HEIR = NEW.ids[0]
BRANCH = (FailoverEntry("u0", 0),)
TRANSACTION = ProducerBatch(b"t" * 16, 1)


def write(
    store: PartitionStore,
    rows: dict[bytes, bytes],
    time: int,
    kind: EntryKind = EntryKind.PLAIN,
    op: int = 0,
) -> None:
    """Append an entry of these rows."""
    batch = rows_batch([rid(key) for key in rows], [op] * len(rows), list(rows.values()))
    named = ProducerBatch(b"", 0) if kind is EntryKind.PLAIN else TRANSACTION
    raw = build_entry(
        batch,
        leader_epoch=1,
        base_offset=store.log_end,
        commit_time=time,
        batch=named._replace(producer_id=named.producer_id.ljust(16, b"\0")),
        kind=kind,
    )
    store.append(raw)


def read(
    store: PartitionStore, reading: Reading, *, old_rows: bool = False
) -> list[tuple[int, bytes]]:
    """Return (time, value) of what a reading finds in a whole log."""
    for entry in iter_entries(store.read(store.log_start, 1 << 20)):
        reading.take(entry)
    data = reading.rows()
    if not data:
        return []
    batch = changes_from(data, old_rows=old_rows)
    return list(zip(batch.column(3).to_pylist(), batch.column(2).to_pylist(), strict=True))


def test_rows_of_transactions_come_when_they_commit(tmp_path: Path) -> None:
    """A follower would see rows of a transaction that is aborted, or torn."""
    with stores(tmp_path, EngineKind.MEMORY, "a") as (store,):
        write(store, {b"k": b"plain"}, 10)
        write(store, {b"k": bytes(17) + b"intent"}, 20, EntryKind.INTENTS, op=2)
        write(store, {b"k": b"commit"}, 30, EntryKind.COMMIT)
        write(store, {b"k": b""}, 40, EntryKind.ABORT, op=3)
        found = read(store, Reading(0, WHOLE, Position(0, 0), ()))
        assert found == [(10, b"plain"), (30, b"commit")]
        later = Reading(0, WHOLE, Position(10, 0), ())
        assert read(store, later) == [(30, b"commit")]
        assert later.position == (40, 0)


def test_only_rows_of_the_range_come(tmp_path: Path) -> None:
    """Followers of two ranges would both have a row."""
    with stores(tmp_path, EngineKind.MEMORY, "a") as (store,):
        write(store, {b"%d" % n: b"%d" % n for n in range(20)}, 10)
        half = HashRange(0, 1 << 63)
        found = read(store, Reading(0, half, Position(0, 0), ()))
        wanted = [b"%d" % n for n in range(20) if hash_in(rid(b"%d" % n)) < half.end]
        assert 0 < len(wanted) < 20
        assert [value for _, value in found] == wanted


@pytest.mark.proves("CF-01")
def test_rows_before_changes_are_asked_for_by_range_and_time(tmp_path: Path) -> None:
    """A follower would be told the row after a change, or pay for rows of other ranges."""
    asked: list[tuple[list[bytes], int]] = []

    def before(row_ids: list[bytes], time: int) -> list[bytes | None]:
        asked.append((row_ids, time))
        return [None if time == 10 else b"before" for _ in row_ids]

    with stores(tmp_path, EngineKind.MEMORY, "a") as (store,):
        half = HashRange(0, 1 << 63)
        keys = [b"%d" % n for n in range(20)]
        for time in (10, 20):
            write(store, dict.fromkeys(keys, b"%d" % time), time)
        reading = Reading(0, half, Position(0, 0), (), before)
        read(store, reading, old_rows=True)
        inside = [rid(key) for key in keys if hash_in(rid(key)) < half.end]
        assert asked == [(inside, 10), (inside, 20)]
        batch = changes_from(reading.rows(), old_rows=True)
        assert batch.column(5).to_pylist() == [None] * len(inside) + [b"before"] * len(inside)
        with pytest.raises(CorruptionError):
            changes_from(reading.rows()[:-8], old_rows=True)


def resharded(
    source: PartitionStore, target: PartitionStore, begun: int
) -> tuple[ReshardPosition, ...]:
    """Pull a whole source as one that began at an offset did; return how far that is."""
    time = source.last_commit_time if begun else 0
    start = ReshardPosition(0, begun, time, "u0")
    target.append(begin_entry(start, (), (), Stand(1, target.log_end, time + 5)))
    data = source.read(begun, 1 << 20)
    for entry in range_entries(iter_entries(data), WHOLE, BRANCH):
        stand = Stand(1, target.log_end, target.last_commit_time + 1000)
        raw = reshard_entry(0, entry, target.reshard_position(0), stand)
        assert raw is not None
        target.append(raw)
    found = target.reshard_position(0)
    assert found is not None
    return (found,)


def test_a_target_goes_on_where_a_source_was_left(tmp_path: Path) -> None:
    """A follower that was behind the seal would miss what the source committed, or have it twice.

    Resharded rows come with their times at the source, and then the target's own, in one order.
    """
    with stores(tmp_path, EngineKind.MEMORY, "old", "new") as (old, new):
        for time in (10, 20, 30):
            write(old, {b"k": b"%d" % time}, time)
        position = resharded(old, new, 0)
        write(new, {b"k": b"own"}, 9000)
        found = read(new, Reading(HEIR, WHOLE, Position(10, 0), position))
        assert found == [(20, b"20"), (30, b"30"), (9000, b"own")]
        # Who has the position from the target itself has all that was pulled.
        assert read(new, Reading(HEIR, WHOLE, Position(10, HEIR), position)) == [(9000, b"own")]


@pytest.mark.parametrize("given_by", [0, NOBODY_GAVE])
def test_what_came_as_a_backfill_is_no_change(tmp_path: Path, given_by: int) -> None:
    """A follower from before a reshard stream would take a part of the changes for all of them."""
    with stores(tmp_path, EngineKind.MEMORY, "old", "new") as (old, new):
        write(old, {b"k": b"10"}, 10)
        write(old, {b"k": b"20"}, 20)
        begun = old.log_end
        position = resharded(old, new, begun)
        write(old, {b"k": b"30"}, 30)
        with pytest.raises(FeedTruncatedError, match="changes_from_snapshot") as refused:
            read(new, Reading(HEIR, WHOLE, Position(10, given_by), position))
        assert refused.value.details == {"partition": HEIR, "time": 10, "oldest": 20}
        assert read(new, Reading(HEIR, WHOLE, Position(20, given_by), position)) == []


def test_a_range_of_two_sources_has_no_order() -> None:
    """A follower would lose what the one wrote with earlier times than the other."""
    sources = tuple(ReshardPosition(n, 5, 100, "u", sealed_at=9) for n in OLD.ids)
    with pytest.raises(FeedTruncatedError):
        Reading(HEIR, WHOLE, Position(50, NOBODY_GAVE), sources)
    assert not Reading(HEIR, WHOLE, Position(50, 0), sources).own
    assert Reading(HEIR, WHOLE, Position(100, NOBODY_GAVE), sources).own
