"""The indexer over each engine: entries are those of the versions, whatever has happened."""

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from storage_kit import Writer, bring_older, config, copy_directory, stored_rows, stored_versions

from rezone.storage.engines.base import FLAG_VALUE, INDEX_PREFIX, TIME_MAX
from rezone.storage.index.index_state import IndexPart, IndexState
from rezone.storage.store import PartitionStore
from rezone.storage.store_config import StoreConfig
from rezone.wire.codec.indexes import id_of, index_codec
from rezone.wire.codec.rows import RowCodec, hash_of, keys_of, row_ids
from rezone.wire.codec.schema import Column, ColumnType, Index, TableSchema
from rezone.wire.messages import EngineKind, FailoverEntry, IndexPosition

TABLE = TableSchema(
    columns=(
        Column("id", ColumnType.INT64, nullable=False),
        Column("owner", ColumnType.STRING),
        Column("age", ColumnType.INT16),
        Column("note", ColumnType.STRING),
    ),
    primary_key=("id",),
    indexes=(Index("by_owner", ("owner", "age")), Index("by_age", ("age",))),
)
CODEC = RowCodec(TABLE)
IDS = tuple(id_of(index) for index in TABLE.indexes)
BRANCH = (FailoverEntry("u1", 0),)
Row = tuple[int, str | None, int | None]


def indexed_config(kind: EngineKind, **changes: object) -> StoreConfig:
    """Return the kit's small limits for a table with indexes."""
    return config(kind, **{"table": TABLE} | changes)


@contextlib.contextmanager
def opened(directory: Path, kind: EngineKind, **changes: object) -> Iterator[PartitionStore]:
    """Yield a store with one branch of history."""
    store = PartitionStore.open(directory, indexed_config(kind, **changes))
    if not store.meta.failover_log:
        store.update_meta(failover_log=BRANCH)
    try:
        yield store
    finally:
        store.close()


def encoded(rows: list[Row]) -> dict[bytes, bytes | None]:
    """Return rows as the log has them."""
    batch = pa.RecordBatch.from_pylist(
        [{"id": i, "owner": o, "age": a, "note": f"note {i}"} for i, o, a in rows],
        schema=CODEC.arrow_schema,
    )
    keys = CODEC.encode_keys(batch)
    ids = row_ids(keys, hash_of(keys)).to_pylist()
    return dict(zip(ids, CODEC.encode_values(batch).to_pylist(), strict=True))


def put(writer: Writer, *rows: Row) -> int:
    """Append rows as one entry."""
    return writer.write(encoded(list(rows)))


def remove(writer: Writer, *ids: int) -> int:
    """Append deletes as one entry."""
    return writer.write(dict.fromkeys(encoded([(i, None, None) for i in ids])))


def decoded(ids: Any, values: Any) -> list[Row]:
    """Return typed rows."""
    batch = CODEC.decode(keys_of(ids), values)
    return [(row["id"], row["owner"], row["age"]) for row in batch.to_pylist()]


def look_up(
    store: PartitionStore,
    name: str,
    low: tuple[object, ...] = (),
    high: tuple[object, ...] = (),
    as_of: int | None = None,
    *,
    table: TableSchema = TABLE,
) -> list[Row]:
    """Return the rows of a range of an index, in slices of about three entries, six, twelve, ..."""
    codec = index_codec(table, name)
    keys = codec.range_of(low, high)
    found: list[Row] = []
    for doublings in itertools.count():
        part = store.reader.lookup(codec, keys, as_of, 3 << doublings)
        if len(part.row_ids):
            found += decoded(part.row_ids, part.values)
        if part.cursor is None:
            break
        keys = keys._replace(start=part.cursor)
    return found


def visible_rows(store: PartitionStore, as_of: int | None = None) -> list[Row]:
    """Return what a scan over all rows sees."""
    rows = stored_rows(store, as_of)
    if not rows:
        return []
    return decoded(pa.array(list(rows), pa.binary()), pa.array(list(rows.values()), pa.binary()))


def by_owner(row: Row) -> tuple[object, ...]:
    """Return the place of a row in the first index, but for rows that are equal in it."""
    _, owner, age = row
    return (owner is not None, owner or "", age is not None, age or 0)


def stored_entries(store: PartitionStore) -> int:
    """Return how many index entries the engine has."""
    end = INDEX_PREFIX + b"\xff"
    return len(
        store.engine.scan_chains(INDEX_PREFIX, end, rows_max=1 << 40, bytes_max=1 << 40).keys
    )


def check(store: PartitionStore, table: TableSchema = TABLE) -> None:
    """Each version has its entries, there are no others, and lookups say what scans say."""
    while store.indexer.step():
        pass
    position = store.indexer.position
    assert set(position.built) == {id_of(index) for index in table.indexes}
    assert not table.indexes or position.offset == store.applied
    with_value = [v for v in stored_versions(store) if v[2] == FLAG_VALUE]
    assert stored_entries(store) == len(with_value) * len(table.indexes)
    if table is not TABLE:
        check_each(store, table)
        return
    rows = visible_rows(store)
    found = look_up(store, "by_owner")
    assert sorted(found, key=repr) == sorted(rows, key=repr)
    assert [by_owner(row) for row in found] == sorted(map(by_owner, rows))
    assert sorted(look_up(store, "by_age", (1,), (2,)), key=repr) == sorted(
        [row for row in rows if row[2] in {1, 2}], key=repr
    )


def check_each(store: PartitionStore, table: TableSchema) -> None:
    """Every index finds all rows, where their present columns put them."""
    rows = sorted(visible_rows(store), key=repr)
    for index in table.indexes:
        assert sorted(look_up(store, index.name, table=table), key=repr) == rows


def test_rows_are_found_where_their_present_columns_put_them(
    tmp_path: Path, kind: EngineKind
) -> None:
    """A lookup would find what a row was, find it twice, or find what is deleted."""
    with opened(tmp_path, kind) as store:
        writer = Writer(store)
        put(writer, (1, "ann", 5), (2, "bob", 7), (3, None, 7), (4, "ann", None))
        first = store.last_commit_time
        put(writer, (1, "bob", 5))
        remove(writer, 2)
        store.apply_to(store.log_end)
        check(store)
        assert look_up(store, "by_owner", ("ann",), ("ann",)) == [(4, "ann", None)]
        assert look_up(store, "by_owner", ("bob",), ("bob",)) == [(1, "bob", 5)]
        assert look_up(store, "by_owner", (None,), (None,)) == [(3, None, 7)]
        assert look_up(store, "by_age", (5,), (6,)) == [(1, "bob", 5)]
        assert look_up(store, "by_owner", ("ann",), ("ann",), first) == [
            (4, "ann", None),
            (1, "ann", 5),
        ]


def test_an_index_follows_slice_by_slice_and_says_how_far_it_is(
    tmp_path: Path, kind: EngineKind
) -> None:
    """Nobody could wait for an index, or a lookup would be answered too early (DCP-08)."""
    with opened(tmp_path, kind) as store:
        writer = Writer(store)
        put(writer, (1, "ann", 5))
        store.apply_to(store.log_end)
        store.indexer.catch_up()
        assert store.indexer.position == IndexPosition(1, "u1", IDS)
        assert store.indexer.stop() == IndexPosition(1, "u1", IDS)
        put(writer, (2, "ann", 6))
        store.apply_to(store.log_end)
        assert not store.indexer.step()
        assert store.indexer.position == IndexPosition(1, "u1", IDS)
        assert store.indexer.lag_rows == 1
        store.indexer.resume()
        store.update_meta(failover_log=(*BRANCH, FailoverEntry("u2", 1)))
        check(store)
        assert store.indexer.position == IndexPosition(2, "u2", IDS)
        assert store.indexer.entries == 4
        assert store.indexer.entry_bytes > 0
        put(writer, *[(i, "eve", 7) for i in range(100, 300)])
        store.apply_to(store.log_end)
        store.indexer.catch_up()
        assert 200 <= store.sizes().versions <= 230, "entries are no versions of rows"


def test_a_table_without_indexes_has_no_indexer_at_work(tmp_path: Path, kind: EngineKind) -> None:
    """Every zone would pay for what it does not use, or keep its log for ever."""
    store = PartitionStore.open(tmp_path, config(kind))
    writer = Writer(store)
    writer.write({b"row": b"value"})
    store.apply_to(1)
    assert not store.indexer.step()
    assert (store.indexer.lag_rows, store.indexer.needs_log_from) == (0, 1)
    assert set(store.engine.state()) == {b"applied"}
    store.close()


@pytest.mark.proves("DCP-05")
def test_a_rollback_takes_entries_back_with_the_rows(tmp_path: Path, kind: EngineKind) -> None:
    """An index would point at a row that was rolled back."""
    with opened(tmp_path, kind) as store:
        writer = Writer(store)
        put(writer, (1, "ann", 5))
        kept = put(writer, (2, "bob", 6))
        put(writer, (1, "eve", 7), (3, "ann", 8))
        store.apply_to(store.log_end)
        store.indexer.catch_up()
        store.truncate(kept)
        assert store.indexer.position == IndexPosition(kept, "u1", IDS)
        assert store.indexer.entries == 4
        check(store)
        assert look_up(store, "by_owner", ("eve",), ("eve",)) == []
        assert look_up(store, "by_owner", ("ann",), ("ann",)) == [(1, "ann", 5)]


def test_collected_versions_take_their_entries_along(tmp_path: Path, kind: EngineKind) -> None:
    """An index would grow for ever; one that is behind would get entries of what is gone."""
    with opened(tmp_path, kind) as store:
        writer = Writer(store)
        for age in range(5):
            put(writer, (1, "ann", age), (2, "bob", 1))
        store.apply_to(store.log_end)
        store.note_committed(store.applied)
        assert store.collect(TIME_MAX, b"", 1 << 20).removed == 0, "nothing is indexed yet"
        store.indexer.catch_up()
        assert store.collect(TIME_MAX, b"", 1 << 20).removed == 8
        assert store.indexer.entries == 4
        check(store)
        remove(writer, 1)
        store.apply_to(store.log_end)
        store.indexer.catch_up()
        store.note_committed(store.applied)
        store.collect(TIME_MAX, b"", 1 << 20)
        assert stored_entries(store) == 2
        check(store)


def test_the_log_stays_for_an_index_that_is_behind(tmp_path: Path, kind: EngineKind) -> None:
    """Each pause of the indexer would end in a scan over all rows."""
    with opened(tmp_path, kind) as store:
        writer = Writer(store)
        for i in range(200):
            put(writer, (i, "ann", i))
        store.apply_to(store.log_end)
        store.trim(0, store.log_end)
        assert store.log_start == 0
        store.indexer.catch_up()
        store.trim(0, store.log_end)
        assert store.log_start > 0
        check(store)


@pytest.mark.parametrize("moment", ["before rows", "before entries", "after both"])
def test_a_crash_between_rows_and_entries_is_made_good(tmp_path: Path, moment: str) -> None:
    """An index would say that it has what a crash has taken."""
    with opened(tmp_path / "a", EngineKind.ROCKSDB) as store:
        writer = Writer(store)
        put(writer, (1, "ann", 5), (2, "bob", 6))
        store.apply_to(store.log_end)
        store.indexer.catch_up()
        store.flush()
        put(writer, (1, "bob", 5), (3, "ann", 7))
        store.sync()
        if moment != "before rows":
            store.apply_to(store.log_end)
        if moment == "after both":
            store.indexer.catch_up()
        if moment == "before entries":
            store.flush()
        copy_directory(tmp_path / "a", tmp_path / "b")
    with opened(tmp_path / "b", EngineKind.ROCKSDB) as store:
        assert store.indexer.position == IndexPosition(2, "u1", IDS)
        assert store.applied == (4 if moment == "before entries" else 2)
        store.apply_to(store.log_end)
        check(store)


def test_an_index_behind_the_log_is_made_again(tmp_path: Path) -> None:
    """What the log no longer has would never be found by the index."""
    small = {"log_segment_bytes": 1024}
    with opened(tmp_path, EngineKind.ROCKSDB, **small) as store:
        writer = Writer(store)
        for i in range(0, 3000, 100):
            put(writer, *[(j, "ann", 1) for j in range(i, i + 100)])
        store.apply_to(store.log_end)
        lost = IndexState(kept=tuple(map(IndexPart, IDS)))
        store.indexer.catch_up()
        store.trim(0, store.log_end)
        assert store.log_start > 0
        store.engine.apply((), (), lost.record())
    with opened(tmp_path, EngineKind.ROCKSDB, **small) as store:
        assert store.indexer.follow() is False
        assert store.indexer.rebuilding
        assert store.indexer.position == IndexPosition(0, ""), "half an index is none"
        put(Writer(store), (3000, "bob", 2), (1, "bob", 2))
        store.apply_to(store.log_end)
        store.note_committed(store.applied)
        assert store.collect(TIME_MAX, b"", 1 << 20).removed == 0
        assert store.indexer.step()
        assert store.indexer.step()
    with opened(tmp_path, EngineKind.ROCKSDB, **small) as store:
        assert store.indexer.rebuilding
        assert store.indexer.entries >= 2000
        check(store)
        assert not store.indexer.rebuilding


@pytest.mark.proves("DCP-08")
def test_an_index_of_another_history_is_made_again(tmp_path: Path, kind: EngineKind) -> None:
    """Its offset would be taken for one of this history, and rows of that one for found."""
    with opened(tmp_path, kind) as store:
        writer = Writer(store)
        put(writer, (1, "ann", 5), (2, "bob", 6))
        store.apply_to(store.log_end)
        store.indexer.catch_up()
        entries = stored_entries(store)
        store.update_meta(failover_log=(FailoverEntry("another", 0),))
        store.indexer.step()
        assert store.indexer.position == IndexPosition(2, "another", IDS)
        assert stored_entries(store) == entries
        check(store)


def test_a_reset_drops_the_index(tmp_path: Path, kind: EngineKind) -> None:
    """Entries of rows that are gone would stay."""
    with opened(tmp_path, kind) as store:
        writer = Writer(store)
        put(writer, (1, "ann", 5))
        store.apply_to(store.log_end)
        store.indexer.catch_up()
        store.reset()
        assert store.indexer.position == IndexPosition(0, "", IDS)
        assert stored_entries(store) == 0
        put(Writer(store), (2, "bob", 5))
        store.update_meta(failover_log=BRANCH)
        store.apply_to(store.log_end)
        check(store)


# --- copies ---------------------------------------------------------------------------------


def filled(store: PartitionStore) -> Writer:
    """Write some versions of each row."""
    writer = Writer(store)
    for age in range(3):
        put(writer, *[(i, f"owner {i % 7}", age) for i in range(100)])
    remove(writer, 3, 4)
    store.apply_to(store.log_end)
    store.indexer.catch_up()
    return writer


@pytest.mark.proves("SS-05")
@pytest.mark.parametrize("dies_after", [None, 3])
def test_a_receiver_builds_its_indexes_while_rows_come(
    tmp_path: Path, kind: EngineKind, dies_after: int | None
) -> None:
    """A new replica would scan all its rows once more before it can answer a lookup or lead."""
    with opened(tmp_path / "a", kind) as source, opened(tmp_path / "b", kind) as target:
        writer = filled(source)
        loader: Any
        if dies_after is not None:
            with source.outgoing.open_rows("r", batch_bytes=2000) as snapshot:
                loader = target.incoming.begin(snapshot.header, "a0")
                for step, item in zip(range(dies_after), snapshot, strict=False):
                    loader.write(item.batch, item.mark)
                    if step == 0:  # rows that come early, and are in memory alone at the end
                        put(writer, *[(i, "early", 8) for i in range(1, 120, 2)])
                        source.apply_to(source.log_end)
                loader.abort()
            source.note_committed(source.applied)
            source.indexer.catch_up()
            assert source.collect(TIME_MAX, b"", 1 << 20).removed
        state = target.incoming.state()
        with source.outgoing.open_rows("r", state.resume_after, batch_bytes=2000) as snapshot:
            loader = target.incoming.begin(snapshot.header, "a1")
            for step, item in enumerate(snapshot):
                loader.write(item.batch, item.mark)
                if step == 1:
                    put(writer, *[(i, "changed", 9) for i in range(0, 120, 2)])
                    source.apply_to(source.log_end)
            loader.finish(snapshot.trailer)
        assert target.indexer.position == IndexPosition(target.applied, "u1", IDS)
        assert not target.indexer.step(), "nothing is left to be done"
        check(target)
        target.append(source.read(target.log_end, 1 << 20))
        target.apply_to(target.log_end)
        check(target)
        assert target.reader.digest() == source.reader.digest()
        source.indexer.catch_up()
        assert look_up(target, "by_owner") == look_up(source, "by_owner")


@pytest.mark.proves("SS-03", "SS-05")
@pytest.mark.parametrize(("kept_bytes", "every"), [(0, 3), (1 << 20, 3), (1 << 20, 1)])
def test_rows_that_come_early_have_entries(
    tmp_path: Path, kind: EngineKind, kept_bytes: int, every: int
) -> None:
    """A new replica's lookups would lack the rows whose past had changed while they were copied.

    Where all that are left come early, no batch in scan order passes them.
    """
    early = {"bulk_early_bytes_max": kept_bytes}
    with opened(tmp_path / "a", kind) as source, opened(tmp_path / "b", kind, **early) as target:
        filled(source)
        older = encoded([(i, "before", 1) for i in range(0, 100, every)])
        came_early = 0
        with source.outgoing.open_rows("r", batch_bytes=2000) as snapshot:
            loader: Any = target.incoming.begin(snapshot.header, "a1")
            for step, item in enumerate(snapshot):
                loader.write(item.batch, item.mark)
                came_early += item.mark.early
                if step == 1:
                    bring_older(source, {row: value or b"" for row, value in older.items()})
            loader.finish(snapshot.trailer)
        assert came_early, "there is nothing to be seen"
        check(target)


@pytest.mark.proves("SS-05", "HS-07")
def test_files_bring_the_index_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of files would be done in a second, and its index in a minute."""
    kind = EngineKind.ROCKSDB
    with opened(tmp_path / "a", kind) as source, opened(tmp_path / "b", kind) as target:
        writer = filled(source)
        put(writer, (500, "not indexed yet", 1))
        source.apply_to(source.log_end)
        flush = source.engine.flush

        def write_meanwhile() -> None:
            monkeypatch.undo()
            put(writer, (501, "written while the engine was flushed", 1))
            source.apply_to(source.log_end)
            flush()

        monkeypatch.setattr(source.engine, "flush", write_meanwhile)
        with source.outgoing.open_files() as snapshot:
            loader: Any = target.incoming.begin(snapshot.header, "a1")
            for item in snapshot:
                loader.write(item.batch, item.mark)
            loader.finish(snapshot.trailer)
        assert target.applied == source.applied
        assert target.indexer.position == IndexPosition(target.applied, "u1", IDS)
        assert not target.indexer.step()
        check(target)


@pytest.mark.proves("SS-05", "B-05")
def test_a_receiver_that_dies_has_the_entries_of_the_rows_it_goes_on_behind(
    tmp_path: Path,
) -> None:
    """Rows received before the crash would never be found by an index, or more than once."""
    kind, crashes = EngineKind.ROCKSDB, []
    with opened(tmp_path / "a", kind) as source, opened(tmp_path / "b", kind) as target:
        writer = filled(source)
        with source.outgoing.open_rows("r", batch_bytes=1000) as snapshot:
            loader: Any = target.incoming.begin(snapshot.header, "a1")
            for step, item in enumerate(snapshot):
                loader.write(item.batch, item.mark)
                if step == 1:
                    put(writer, *[(i, "changed", 9) for i in range(0, 120, 2)])
                    source.apply_to(source.log_end)
                    source.note_committed(source.log_end)
                crashes.append(tmp_path / f"crash{step}")
                copy_directory(tmp_path / "b", crashes[-1])
            loader.abort()
        for crash in crashes:
            with opened(crash, kind) as again:
                assert again.incoming.state().resume_after
                copied_rows(source, again, "a2", ALL)
                assert not again.indexer.step(), "nothing is left to be done"
                check(again)
    assert len(crashes) > 5


@pytest.mark.proves("SS-05")
def test_entries_that_arrive_go_behind_their_rows_and_into_other_files(
    tmp_path: Path, kind: EngineKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of both would reach over all rows to come, which would be merged with it.

    And an entry whose row a crash has taken would stay for ever.
    """
    with opened(tmp_path / "a", kind) as source, opened(tmp_path / "b", kind) as target:
        filled(source)
        with source.outgoing.open_rows("r", batch_bytes=2000) as snapshot:
            loader: Any = target.incoming.begin(snapshot.header, "a1")
            load, flush = target.engine.load, target.engine.flush
            versions: set[bytes] = set()
            unsealed: set[bool] = set()
            entries = 0

            def noting(keys: Sequence[bytes], values: Sequence[bytes]) -> None:
                nonlocal entries
                load(keys, values)
                assert list(keys) == sorted(keys), "files would overlap"
                for key, value in zip(keys, values, strict=True):
                    unsealed.add(key.startswith(INDEX_PREFIX))
                    if not key.startswith(INDEX_PREFIX):
                        versions.add(key)
                        continue
                    entries += 1
                    length = int.from_bytes(value[1:], "little")
                    assert key[len(INDEX_PREFIX) + length :] in versions
                assert len(unsealed) == 1

            def sealing(*, wait: bool = True) -> None:
                flush(wait=wait)
                if not wait:  # the one that is waited for may come when the next rows do
                    unsealed.clear()

            monkeypatch.setattr(target.engine, "load", noting)
            monkeypatch.setattr(target.engine, "flush", sealing)
            for item in snapshot:
                loader.write(item.batch, item.mark)
            loader.finish(snapshot.trailer)
        assert entries == stored_entries(target) > 0


@pytest.mark.proves("SS-05")
def test_entries_that_arrive_count_to_what_is_received_at_a_time(tmp_path: Path) -> None:
    """Rows of few bytes and many indexes would fill the memory before any of them is durable."""
    kind = EngineKind.ROCKSDB
    with opened(tmp_path / "a", kind) as source:
        filled(source)
        with source.outgoing.open_rows("r", batch_bytes=2000) as snapshot:
            items = list(snapshot)
        rows_bytes = snapshot.trailer.bytes
        with opened(tmp_path / "b", kind, bulk_checkpoint_bytes=rows_bytes + 1) as target:
            loader: Any = target.incoming.begin(snapshot.header, "a1")
            for item in items:
                loader.write(item.batch, item.mark)
            assert loader.received.bytes == rows_bytes, "too few for a checkpoint by themselves"
            loader.abort()
            assert target.incoming.state().resume_after


# --- indexes that come and go ---------------------------------------------------------------


def with_indexes(*indexes: Index) -> TableSchema:
    """Return the table with other indexes."""
    return msgspec.structs.replace(TABLE, indexes=indexes)


OWNER, AGE = TABLE.indexes
NOTE = Index("by_note", ("note",))
AGE_ELSE = Index("by_age", ("note", "age"))
ALL = 1 << 30
TABLES = (TABLE, with_indexes(), with_indexes(OWNER, NOTE), with_indexes(AGE_ELSE))


def many(writer: Writer, start: int, end: int) -> None:
    """Write some rows by entries of a hundred."""
    for i in range(start, end, 100):
        put(writer, *[(j, f"owner {j % 7}", j % 3) for j in range(i, min(end, i + 100))])
    writer.store.apply_to(writer.store.log_end)


def built(store: PartitionStore) -> set[bytes]:
    """Return the indexes that have all rows."""
    return {*store.indexer.position.built}


def test_an_index_is_added_while_rows_are_written_and_goes_on_after_a_restart(
    tmp_path: Path,
) -> None:
    """It would lack rows of before or of meanwhile, or be begun again with each restart."""
    kind = EngineKind.ROCKSDB
    both = with_indexes(OWNER, AGE)
    with opened(tmp_path, kind, table=with_indexes(OWNER)) as store:
        writer = Writer(store)
        many(writer, 0, 3000)
        store.indexer.catch_up()
        store.indexer.redefine(both)
        store.indexer.redefine(both)
        assert built(store) == {id_of(OWNER)}
        assert store.indexer.build()
        reached = store.indexer.unbuilt[0].at
        assert reached
        many(writer, 2500, 3500)
        remove(writer, *range(100))
        store.apply_to(store.log_end)
        store.indexer.catch_up()
        assert len(look_up(store, "by_owner", table=both)) == 3400, "others are not held up"
    with opened(tmp_path, kind, table=both) as store:
        assert [part.at for part in store.indexer.unbuilt] == [reached]
        check(store)


def test_steps_of_a_build_are_as_long_as_is_said(tmp_path: Path, kind: EngineKind) -> None:
    """A step that clients meet would be as long as one at night."""
    with opened(tmp_path, kind, table=with_indexes(OWNER)) as store:
        many(Writer(store), 0, 1500)
        store.indexer.catch_up()
        store.indexer.redefine(TABLE)
        assert stored_entries(store) == 1500
        assert store.indexer.build()
        assert stored_entries(store) == 1500 + 1024
        assert store.indexer.build(lambda most: most // 8)
        assert stored_entries(store) == 1500 + 1024 + 128
        check(store)


def test_an_index_that_is_built_does_not_hold_up_collections(
    tmp_path: Path, kind: EngineKind
) -> None:
    """Old versions would pile up for as long as it takes to read all rows."""
    with opened(tmp_path, kind, table=with_indexes(OWNER)) as store:
        writer = Writer(store)
        many(writer, 0, 2000)
        many(writer, 0, 2000)
        store.indexer.redefine(TABLE)
        store.indexer.catch_up()
        assert store.indexer.build()
        store.note_committed(store.applied)
        assert store.collect(TIME_MAX, b"", 1 << 30).removed == 2000
        check(store)


def test_a_dropped_index_goes_step_by_step_and_not_its_neighbour(
    tmp_path: Path, kind: EngineKind
) -> None:
    """One step would hold up writes for as long as all of it takes, or take others along."""
    with opened(tmp_path, kind) as store:
        many(Writer(store), 0, 3000)
        store.indexer.catch_up()
        store.indexer.redefine(with_indexes(OWNER))
        assert built(store) == {id_of(OWNER)}
        steps = 1
        while store.indexer.build():
            steps += 1
            assert stored_entries(store) <= 6000 - 1000 * (steps - 1)
        assert steps >= 3
        assert store.indexer.entries == stored_entries(store) == 3000
        check(store, with_indexes(OWNER))
        size = store.indexer.entry_bytes
        store.indexer.redefine(with_indexes())
        check(store, with_indexes())
        assert (size > 0, store.indexer.entry_bytes) == (True, 0)


@pytest.mark.parametrize("again", [AGE, AGE_ELSE])
def test_a_name_that_is_dropped_and_added_again_has_no_old_entries(
    tmp_path: Path, kind: EngineKind, again: Index
) -> None:
    """Rows of meanwhile would never be found by it, and entries of before never removed."""
    with opened(tmp_path, kind) as store:
        writer = Writer(store)
        many(writer, 0, 2500)
        store.indexer.catch_up()
        store.indexer.redefine(with_indexes(OWNER))
        assert store.indexer.build()
        many(writer, 1000, 3000)
        store.indexer.catch_up()
        store.note_committed(store.applied)
        assert store.collect(TIME_MAX, b"", 1 << 30).removed >= 1000, "their entries stay"
        table = with_indexes(OWNER, again)
        store.indexer.redefine(table)
        assert id_of(again) not in built(store)
        remove(writer, *range(200))
        store.apply_to(store.log_end)
        check(store, table)


def copied_rows(source: PartitionStore, target: PartitionStore, attempt: str, batches: int) -> None:
    """Copy so many batches of rows, and go on where another attempt has ended."""
    state = target.incoming.state()
    with source.outgoing.open_rows("r", state.resume_after, batch_bytes=2000) as snapshot:
        loader: Any = target.incoming.begin(snapshot.header, attempt)
        for item, _ in zip(snapshot, range(batches), strict=False):
            loader.write(item.batch, item.mark)
        if batches < ALL:
            loader.abort()
        else:
            loader.finish(snapshot.trailer)


@pytest.mark.proves("SS-05")
@pytest.mark.parametrize("changes", [(2,), (0, 2), (1, 0), (3, 2), (1,)])
def test_indexes_may_change_while_rows_are_copied(
    tmp_path: Path, kind: EngineKind, changes: tuple[int, ...]
) -> None:
    """An index that was added would lack the rows that had come before, and pass for whole."""
    with opened(tmp_path / "a", kind) as source, opened(tmp_path / "b", kind) as target:
        filled(source)
        for number, change in enumerate(changes):
            copied_rows(source, target, f"a{number}", 3)
            assert not target.incoming.state().done
            target.indexer.redefine(TABLES[change])
        copied_rows(source, target, "last", ALL)
        assert target.incoming.state().done
        assert target.reader.digest() == source.reader.digest()
        check(target, TABLES[changes[-1]])


@pytest.mark.proves("SS-05")
@pytest.mark.parametrize("state", ["before", "building", "removing", "after"])
@pytest.mark.parametrize("wanted", [0, 1, 2, 3])
def test_files_bring_indexes_in_any_state(tmp_path: Path, state: str, wanted: int) -> None:
    """A receiver that knows other indexes than its source would take half of one for whole."""
    kind = EngineKind.ROCKSDB
    with (
        opened(tmp_path / "a", kind, table=with_indexes(AGE)) as source,
        opened(tmp_path / "b", kind, table=TABLES[wanted]) as target,
    ):
        many(Writer(source), 0, 3000)
        source.indexer.catch_up()
        if state != "before":
            source.indexer.redefine(TABLE if state != "removing" else TABLES[1])
            assert source.indexer.build()
        while state == "after" and source.indexer.build():
            pass
        with source.outgoing.open_files() as snapshot:
            loader: Any = target.incoming.begin(snapshot.header, "a1")
            for item in snapshot:
                loader.write(item.batch, item.mark)
            loader.finish(snapshot.trailer)
        check(target, TABLES[wanted])
        check(source, TABLES[1] if state == "removing" else source_table(state))


def source_table(state: str) -> TableSchema:
    """Return what the source of a copy had at its end."""
    return with_indexes(AGE) if state == "before" else TABLE


# --- everything at once ---------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 5), st.sampled_from(["a", "b", None])),
        st.tuples(st.just("remove"), st.integers(0, 5), st.none()),
        st.tuples(
            st.sampled_from(["apply", "index", "commit", "collect", "reopen", "truncate"]),
            st.integers(0, 3),
            st.none(),
        ),
        st.tuples(st.just("redefine"), st.integers(0, 3), st.none()),
    ),
    max_size=25,
)


def run(store: PartitionStore, writer: Writer, step: tuple[str, int, str | None]) -> None:
    """Take one step of a random history."""
    what, number, owner = step
    match what:
        case "put":
            put(writer, (number, owner, number % 3))
        case "remove":
            remove(writer, number)
        case "apply":
            store.apply_to(max(store.applied, store.log_end - number))
        case "index":
            store.indexer.step()
        case "commit":
            store.note_committed(store.applied)
        case "collect":
            store.collect(TIME_MAX, b"", 1 << 20)
        case "truncate":
            store.truncate(max(store.committed, store.log_end - number))


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=STEPS)
def test_any_history_leaves_the_entries_of_the_versions(
    tmp_path_factory: pytest.TempPathFactory, kind: EngineKind, steps: list[Any]
) -> None:
    """Some order of applying, indexing, undoing and collecting would leave the index wrong."""
    directory = tmp_path_factory.mktemp("store")
    store = PartitionStore.open(directory, indexed_config(kind))
    store.update_meta(failover_log=BRANCH)
    writer = Writer(store)
    table = TABLE
    for step in steps:
        if step[0] == "redefine":
            table = TABLES[step[1]]
            store.indexer.redefine(table)
        elif step[0] == "reopen":
            store.close()
            store = PartitionStore.open(directory, indexed_config(kind, table=table))
            writer.store = store
        else:
            run(store, writer, step)
    store.apply_to(store.log_end)
    check(store, table)
    store.indexer.redefine(TABLE)
    check(store)
    store.close()
