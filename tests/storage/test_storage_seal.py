"""The seal of a partition's log: nothing follows it, and whoever has the log knows it."""

import contextlib
from pathlib import Path

import msgspec
import pytest
from reshard_kit import NEW, WHOLE, ranged, resharded, stores
from storage_kit import FORMS, Writer, config, copy_directory, rid, stored_rows
from test_storage_indexes import TABLE, Row, look_up, put
from test_storage_transactions import apply, copy, follow, opened

from rezone.storage.log.entry import EntryKind, build_entry, note_rows
from rezone.storage.reshard.range_backfill import range_versions
from rezone.storage.reshard.reshard_entries import Stand, backfill_entry, begin_entry
from rezone.storage.store import PartitionStore
from rezone.wire.errors import ConflictError
from rezone.wire.layouts import HashRange
from rezone.wire.messages import EngineKind, SealMark


def seal_entry(store: PartitionStore) -> bytes:
    """Return the entry that a leader would seal a store with."""
    return build_entry(
        note_rows(),
        leader_epoch=1,
        base_offset=store.log_end,
        commit_time=store.last_commit_time + 10,
        kind=EntryKind.SEAL,
    )


def seal(store: PartitionStore) -> SealMark:
    """Seal a store; return the mark that everybody must find."""
    store.append(seal_entry(store))
    return SealMark(store.log_end, store.last_commit_time)


@pytest.mark.proves("B-08")
def test_nothing_follows_a_seal(tmp_path: Path, kind: EngineKind) -> None:
    """A write acknowledged after it would be in no new partition."""
    with stores(tmp_path, kind, "sealed", "batch") as (sealed, batch):
        writer = Writer(sealed)
        writer.write({rid(1): b"x"})
        mark = seal(sealed)
        end = sealed.log_end
        with pytest.raises(ConflictError, match="sealed"):
            writer.write({rid(2): b"y"})
        assert (sealed.log_end, sealed.seal) == (end, mark)
        apply(sealed)
        assert (sealed.applied, stored_rows(sealed)) == (end, {rid(1): b"x"})
        # Neither in one append, as a follower gets entries.
        joined = bytearray(seal_entry(batch))
        joined += build_entry(note_rows(), leader_epoch=1, base_offset=1, commit_time=99)
        with pytest.raises(ConflictError, match="sealed"):
            batch.append(bytes(joined))
        assert (batch.log_end, batch.seal) == (0, None)


def test_a_seal_is_in_no_index(tmp_path: Path, kind: EngineKind) -> None:
    """The indexer of a sealed partition would stand still, and a cut-over wait for it."""
    store = PartitionStore.open(tmp_path, config(kind, table=TABLE))
    with contextlib.closing(store):
        rows: list[Row] = [(i, f"owner {i % 3}", i) for i in range(4)]
        put(Writer(store), *rows)
        seal(store)
        apply(store)
        store.indexer.catch_up()
        assert store.indexer.lag_rows == 0
        assert sorted(look_up(store, "by_age")) == sorted(rows)


@pytest.mark.parametrize("applied", [False, True])
def test_a_seal_that_is_rolled_back_is_none(
    tmp_path: Path, kind: EngineKind, *, applied: bool
) -> None:
    """A partition whose leader died with its seal would refuse its clients for ever."""
    with stores(tmp_path, kind, "a") as (store,):
        writer = Writer(store)
        writer.write({rid(1): b"x"})
        cut = store.log_end
        seal(store)
        if applied:
            store.apply_to(store.log_end)
        store.truncate(cut)
        assert store.seal is None
        writer.write({rid(2): b"y"})
        apply(store)
        assert len(stored_rows(store)) == 2


@pytest.mark.proves("B-08")
@pytest.mark.parametrize("applied", [False, True])
def test_a_restart_finds_the_seal(tmp_path: Path, *, applied: bool) -> None:
    """The leader that sealed would serve on after a restart, beside the new partitions."""
    with stores(tmp_path, EngineKind.ROCKSDB, "a") as (store,):
        Writer(store).write({rid(1): b"x"})
        mark = seal(store)
        if applied:
            store.apply_to(store.log_end)
            store.flush()
        store.sync()
        copy_directory(tmp_path / "a", tmp_path / "crashed")
        with stores(tmp_path, EngineKind.ROCKSDB, "crashed") as (crashed,):
            assert crashed.seal == mark
            with pytest.raises(ConflictError, match="sealed"):
                Writer(crashed).write({rid(2): b"y"})


@pytest.mark.proves("B-08")
def test_a_copy_of_a_sealed_partition_is_sealed(tmp_path: Path, form: str) -> None:
    """A replica with an empty log would take writes when it leads one day."""
    with (
        stores(tmp_path, FORMS[form][0], "source") as (source,),
        opened(tmp_path / "copied", form) as copied,
        opened(tmp_path / "followed", form) as followed,
    ):
        Writer(source).write({rid(1): b"x"})
        apply(source)
        source.flush()
        followed.reset()
        copy(source, followed)
        assert followed.seal is None
        mark = seal(source)
        apply(source)
        source.flush()
        copied.reset()
        copy(source, copied)
        follow(source, followed)
        for store in (copied, followed):
            assert store.seal == mark
            with pytest.raises(ConflictError, match="sealed"):
                Writer(store).write({rid(2): b"y"})
        copied.reset()
        assert copied.seal is None


@pytest.mark.proves("B-08")
def test_a_seal_is_resharded_once_and_ends_the_reshard(tmp_path: Path, kind: EngineKind) -> None:
    """A new partition would serve before its last rows, or never, or seal itself."""
    with stores(tmp_path, kind, "source", "target", "next") as (source, target, following):
        Writer(source).write({rid(1): b"x"})
        resharded(source, target, WHOLE)
        before = target.reshard_position(0)
        assert before is not None
        assert before.sealed_at == 0
        mark = seal(source)
        assert resharded(source, target, WHOLE, since=before.offset) == 1
        position = target.reshard_position(0)
        assert position is not None
        assert (position.sealed_at, position.commit_time) == (target.log_end, mark.commit_time)
        assert resharded(source, target, WHOLE) == 0
        apply(target)
        assert target.reshard_position(0) == position
        assert target.seal is None
        # It goes on, and to the layout after it says nothing of the seal that it has pulled.
        Writer(target).write({rid(2): b"y"})
        kinds = {entry.kind for entry in ranged(target, HashRange(0, 1 << 64))}
        assert kinds == {EntryKind.PLAIN}
        resharded(target, following, WHOLE._replace(old=NEW.ids[0]))
        apply(following)
        assert stored_rows(following) == {rid(1): b"x", rid(2): b"y"}
        # Undone the pulled seal is to come again.
        target.truncate(before_end := position.sealed_at - 1)
        undone = target.reshard_position(0)
        assert undone == before
        assert target.log_end == before_end


@pytest.mark.proves("B-08")
def test_a_sealed_source_is_resharded_from_its_rows_alone(tmp_path: Path, kind: EngineKind) -> None:
    """A new partition that is made again after the seal would wait for it for ever."""
    with stores(tmp_path, kind, "source", "target") as (source, target):
        Writer(source).write({rid(1): b"x"})
        mark = seal(source)
        apply(source)
        begun = source.outgoing.begin_reshard()
        target.append(begin_entry(begun.position, (), (), Stand(1, 0, 1)))
        begin = target.reshard_position(0)
        assert begin is not None
        assert (begin.backfilling, begin.commit_time) == (True, mark.commit_time)
        found = range_versions(source.engine, HashRange(0, 1 << 64), b"", 1 << 20)
        after = msgspec.structs.replace(begin, backfilling=False, backfilled_to=found.reached)
        stand = Stand(1, target.log_end, target.last_commit_time + 1)
        target.append(backfill_entry(found.batch, begin, after, stand))
        apply(target)
        backfilled = target.reshard_position(0)
        assert backfilled is not None
        assert (backfilled.backfilling, backfilled.sealed_at) == (False, target.log_end)
        assert stored_rows(target) == {rid(1): b"x"}


def test_a_seal_that_a_target_takes_over_has_its_place_after_a_restart(tmp_path: Path) -> None:
    """A restarted target would not know that it serves, and refuse its clients."""
    with stores(tmp_path, EngineKind.ROCKSDB, "source", "target") as (source, target):
        Writer(source).write({rid(1): b"x"})
        seal(source)
        resharded(source, target, WHOLE)
        apply(target)
        position = target.reshard_position(0)
    again = PartitionStore.open(tmp_path / "target", config(EngineKind.ROCKSDB))
    assert again.reshard_position(0) == position
    again.close()
