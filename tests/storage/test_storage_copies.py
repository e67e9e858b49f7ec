"""Both forms of snapshot, rows and engine files, as a receiver of either sees them.

The contract's tests run over both forms, and rows of either engine, with the same steps: what the
source sends goes to the loader unseen. What is the files' own stands below.
"""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from storage_kit import (
    Writer,
    config,
    copy_directory,
    rid,
    stored_rows,
    stored_versions,
)

from rezone.datanode.copying.copies import snapshot_stream
from rezone.datanode.scheduling import foreground as replica_foreground
from rezone.datanode.scheduling.foreground import Foreground
from rezone.datanode.settings import SystemClock
from rezone.storage.engines.base import TIME_MAX
from rezone.storage.snapshot.checkpoints import CheckpointLimits
from rezone.storage.store import PartitionStore
from rezone.wire.copying.ticket import ticket_for
from rezone.wire.errors import ConflictError, CorruptionError, SnapshotExpiredError
from rezone.wire.messages import (
    CopyState,
    EngineKind,
    FailoverEntry,
    HeldFiles,
    SnapshotFile,
    SnapshotTrailer,
)
from standing_clock import StandingClock

FORMS = {"rows": 1 << 62, "files": 0, "rows of the Memory engine": 1 << 62}
"""From how many bytes on a source sends files."""

DURABLE = ("rows", "files")


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    """Each form."""
    chosen: str = request.param
    return chosen


@contextlib.contextmanager
def opened(path: Path, form: str = "files", **changes: Any) -> Iterator[PartitionStore]:
    """Open a store that sends in a form, and close it after use."""
    limits = CheckpointLimits(bytes_min=FORMS[form], join_seconds=0.0)
    limits = msgspec.structs.replace(limits, **changes.pop("checkpoints", {}))
    kind = EngineKind.ROCKSDB if form in DURABLE else EngineKind.MEMORY
    store = PartitionStore.open(
        path, config(kind, checkpoints=limits, file_checkpoint_bytes=1024, **changes)
    )
    try:
        yield store
    finally:
        store.close()


def fill(store: PartitionStore, rows: int = 100) -> Writer:
    """Write rows of which some have a second version or are deleted, over several files."""
    writer = Writer(store)
    for start in range(0, rows, 40):
        numbers = range(start, min(start + 40, rows))
        writer.write({rid(k): b"a%d" % k + b"x" * 20 for k in numbers}, b"w" * 16, start + 1)
        writer.write({rid(k): None if k % 2 else b"b%d" % k for k in numbers if k % 3 == 0})
        store.apply_to(store.log_end)
        store.flush()
    return writer


def open_for(source: PartitionStore, *targets: PartitionStore) -> Any:
    """Open the source's snapshot for where its receivers stand."""
    states = [target.incoming.state() for target in targets]
    return source.outgoing.open(ticket_for(0, states, reader="r", batch_bytes=300))


def run_copy(
    source: PartitionStore,
    target: PartitionStore,
    attempt: str,
    stop_after: int | None = None,
    meanwhile: Callable[[int], object] = lambda _: None,
) -> int:
    """Copy with one attempt from where the target stands; return the parts sent."""
    sent = 0
    with open_for(source, target) as snapshot:
        loader: Any = target.incoming.begin(snapshot.header, attempt)
        for item in snapshot:
            if sent == stop_after:
                loader.abort()
                return sent
            loader.write(item.batch, item.mark)
            if not getattr(item.mark, "early", False):
                loader.write(item.batch, item.mark)  # sent twice
            sent += 1
            meanwhile(sent)
        loader.finish(snapshot.trailer)
    return sent


def parts_of(source: PartitionStore) -> int:
    """Return how many parts a whole snapshot has."""
    formats = (source.engine.file_format,)
    with source.outgoing.open(
        ticket_for(0, [CopyState(partition=0, formats=formats)], reader="c", batch_bytes=300)
    ) as snapshot:
        return sum(1 for _ in snapshot)


def follow(source: PartitionStore, target: PartitionStore) -> None:
    """Follow the source's log to its end, as a replica does after its copy."""
    while target.log_end < source.log_end:
        target.append(source.read(target.log_end, 1 << 20))
    target.apply_to(target.log_end)


# --- the contract ---------------------------------------------------------------------------


@pytest.mark.proves("HS-07", "B-04", "SS-08")
def test_a_copy_under_writes_is_the_source_at_its_offset(tmp_path: Path, form: str) -> None:
    """A copied replica would differ from its source, or lose whom it knows as writers."""
    with opened(tmp_path / "a", form) as source, opened(tmp_path / "b", form) as target:
        log = (FailoverEntry("u1", 0), FailoverEntry("u2", 10_000))
        source.update_meta(failover_log=log)
        target.update_meta(needs_snapshot=True)
        writer = fill(source)
        offset, want = source.applied, writer.versions(source.applied)
        with open_for(source, target) as snapshot:
            assert bool(snapshot.header.format) == (form == "files")
            loader: Any = target.incoming.begin(snapshot.header, "a1")
            for step, item in enumerate(snapshot):
                loader.write(item.batch, item.mark)
                if step == 3:
                    source.apply_to(writer.write({rid(k): b"new" for k in range(120)}))
            loader.finish(snapshot.trailer)
        assert stored_versions(target) == want
        assert (target.log_start, target.log_end, target.applied) == (offset, offset, offset)
        assert target.meta.failover_log == log[:1], "a later branch is not the snapshot's history"
        assert target.producer(b"w" * 16, 0)[1] == source.producer(b"w" * 16, 0)[1]
        assert not target.meta.needs_snapshot
        state = target.incoming.state()
        assert state.done
        assert form == "files" or state.rows == len(want)
        follow(source, target)
        assert target.reader.digest() == source.reader.digest()
        with pytest.raises(ConflictError) as caught:
            target.incoming.begin(snapshot.header, "a2")
        assert caught.value.details == {"done": 1}


@pytest.mark.proves("B-05")
@pytest.mark.parametrize("stops", [(10,), (60, 10), (15, 30, 5), (0, 2)])
def test_a_copy_that_died_goes_on(tmp_path: Path, form: str, stops: tuple[int, ...]) -> None:
    """A copy that died would begin again each time, or end with a mixture of moments.

    `stops`: after how many percent of the parts each attempt dies.
    """
    with opened(tmp_path / "a", form) as source, opened(tmp_path / "b", form) as target:
        writer = fill(source, rows=240)
        first, whole = source.applied, parts_of(source)
        for number, percent in enumerate(stops):
            run_copy(source, target, f"a{number}", whole * percent // 100)
            source.apply_to(writer.write({rid(k): b"c%d" % number for k in range(0, 240, 7)}))
            source.apply_to(writer.write({rid(k): None for k in range(0, 240, 5)}))
            source.apply_to(writer.write({rid(300 + number): b"new"}))
            source.note_committed(source.applied)
            source.collect(TIME_MAX, b"", 1 << 19)
        sent = run_copy(source, target, "last")
        if max(stops) > 20:
            assert sent < whole
        if form != "files":
            assert target.applied == first, "the log is followed from the first snapshot"
        follow(source, target)
        assert stored_rows(target) == writer.visible(source.log_end)
        assert target.reader.digest() == source.reader.digest()


@pytest.mark.proves("B-05")
@pytest.mark.parametrize("form", DURABLE)
def test_a_crash_of_the_receiver_loses_no_progress_it_has_reported(
    tmp_path: Path, form: str
) -> None:
    """A receiver that is killed would go on after parts that it does not have."""
    with opened(tmp_path / "a", form) as source, opened(tmp_path / "b", form) as target:
        writer = fill(source, rows=120)

        def crash(sent: int) -> None:
            if sent % 9 == 0:
                copy_directory(tmp_path / "b", tmp_path / "crash")
                with opened(tmp_path / "crash", form) as again:
                    assert again.incoming.state() == target.incoming.state()
                    rest = run_copy(source, again, f"after-{sent}")
                    assert rest <= parts_of(source)
                    follow(source, again)
                    assert again.reader.digest() == source.reader.digest()
                    again.destroy()

        run_copy(source, target, "a1", meanwhile=crash)
        copy_directory(tmp_path / "b", tmp_path / "done")
        with opened(tmp_path / "done", form) as again:
            assert again.incoming.state().done
            assert stored_versions(again) == writer.versions(source.applied)


def test_parts_are_small_while_clients_are_served(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request would wait while megabytes are read, sent and taken in."""
    for kind in ("SHORT_STEP_BYTES", "LIGHT_STEP_BYTES"):
        monkeypatch.setattr(replica_foreground, kind, 100)
    with opened(tmp_path / "a", form) as source, opened(tmp_path / "b", form) as target:
        fill(source)
        node = Foreground(SystemClock(), lambda: 80, wait=lambda _: False)

        def sizes() -> list[int]:
            stream = snapshot_stream(open_for(source, target), node)
            return [batch.nbytes for batch, _ in stream if batch.num_rows]

        whole = sizes()
        node.begin()
        small = sizes()
    assert sum(small) >= sum(whole), "nothing may be left out"
    assert len(small) > len(whole) + 5
    assert sorted(small)[len(small) // 2] < 200 < max(whole)


@pytest.mark.proves("B-05")
def test_a_snapshot_that_begins_too_late_is_refused(tmp_path: Path) -> None:
    """A stream that was asked for before the copy started over would leave out its first rows."""
    with opened(tmp_path / "a", "rows") as source, opened(tmp_path / "b", "rows") as target:
        fill(source, rows=240)
        run_copy(source, target, "a1", parts_of(source) // 2)
        assert target.incoming.state().resume_after
        with open_for(source, target) as late:
            target.reset()
            with pytest.raises(ConflictError, match="leaves out rows"):
                target.incoming.begin(late.header, "late")
        assert target.incoming.state() == CopyState(
            partition=0, formats=(target.engine.file_format,)
        )
        run_copy(source, target, "a2")
        assert target.reader.digest() == source.reader.digest()


def test_a_newer_attempt_fences_the_older(tmp_path: Path, form: str) -> None:
    """A zombie task would write into a copy that another one has taken over."""
    with opened(tmp_path / "a", form) as source, opened(tmp_path / "b", form) as target:
        writer = fill(source)
        old_snapshot = open_for(source, target)
        old = target.incoming.begin(old_snapshot.header, "old")
        item = next(iter(old_snapshot))
        old.write(item.batch, item.mark)
        new_snapshot = open_for(source, target)
        new = target.incoming.begin(new_snapshot.header, "new")
        with pytest.raises(ConflictError):
            old.write(item.batch, item.mark)
        with pytest.raises(ConflictError):
            old.finish(old.received)
        old.abort()
        for item in new_snapshot:
            new.write(item.batch, item.mark)
        new.finish(new_snapshot.trailer)
        assert stored_versions(target) == writer.versions(source.applied)
        with pytest.raises(ConflictError):
            new.write(item.batch, item.mark)
        old_snapshot.close()
        new_snapshot.close()


def test_a_stream_that_lost_a_part_is_not_taken_for_whole(tmp_path: Path, form: str) -> None:
    """A stream that lost a part would make a replica without its rows."""
    with opened(tmp_path / "a", form) as source, opened(tmp_path / "b", form) as target:
        fill(source)
        with open_for(source, target) as snapshot:
            items = list(snapshot)
            loader: Any = target.incoming.begin(snapshot.header, "a1")
            for item in items[:-1]:
                loader.write(item.batch, item.mark)
            with pytest.raises(CorruptionError):
                loader.finish(snapshot.trailer)
            assert not target.incoming.state().done
            loader.write(items[-1].batch, items[-1].mark)
            with pytest.raises(CorruptionError):
                loader.finish(SnapshotTrailer(versions=7, bytes=7))
            loader.finish(snapshot.trailer)
            assert target.reader.digest() == source.reader.digest()


def test_a_copy_of_an_empty_partition(tmp_path: Path, form: str) -> None:
    """A new zone's partitions could not be moved."""
    with opened(tmp_path / "a", form) as source, opened(tmp_path / "b", form) as target:
        Writer(target).write({rid(1): b"old"})
        target.apply_to(target.log_end)
        run_copy(source, target, "a1")
        assert (target.applied, target.log_end, stored_versions(target)) == (0, 0, [])
        assert target.incoming.state().done
        target.update_meta(needs_snapshot=True)
        assert not target.incoming.state().done, "what was copied before is lost"
        run_copy(source, target, "a2")
        assert target.incoming.state().done


@pytest.mark.parametrize("form", DURABLE)
def test_a_copied_replica_is_a_source(tmp_path: Path, form: str) -> None:
    """A partition could be moved only once."""
    with opened(tmp_path / "a", form) as source, opened(tmp_path / "b", form) as middle:
        writer = fill(source)
        run_copy(source, middle, "a1")
        with opened(tmp_path / "c", form) as target:
            run_copy(middle, target, "a2")
            assert stored_versions(target) == writer.versions(source.applied)
            follower = Writer(target)
            follower.write({rid(1): b"more"})
            target.apply_to(target.log_end)
            assert stored_rows(target)[rid(1)] == b"more"
        with opened(tmp_path / "c", form) as again:
            assert stored_rows(again)[rid(1)] == b"more"


def test_a_rollback_below_a_snapshot_ends_it(tmp_path: Path, form: str) -> None:
    """A receiver would get rows that are nobody's history."""
    with opened(tmp_path / "a", form) as source, opened(tmp_path / "b", form) as target:
        writer = fill(source)
        before = source.log_end
        source.apply_to(writer.write({rid(k): b"undone" for k in range(50)}))
        snapshot = open_for(source, target)
        parts = iter(snapshot)
        next(parts)
        source.truncate(before)
        with pytest.raises(SnapshotExpiredError):
            for _ in parts:
                pass
        snapshot.close()


# --- what is the files' own -----------------------------------------------------------------


@pytest.mark.proves("SS-06")
def test_one_read_serves_receivers_that_stand_apart(tmp_path: Path) -> None:
    """Two receivers of one read would get parts they cannot use, or miss some."""
    with opened(tmp_path / "a") as source, opened(tmp_path / "b") as ahead:
        writer = fill(source, rows=240)
        run_copy(source, ahead, "a1", 25)
        assert ahead.incoming.state().held is not None
        with opened(tmp_path / "c") as fresh, open_for(source, ahead, fresh) as snapshot:
            loaders = [ahead.incoming.begin(snapshot.header, "a2")]
            loaders.append(fresh.incoming.begin(snapshot.header, "f1"))
            for item in snapshot:
                for loader in loaders:
                    loader.write(item.batch, item.mark)
            for loader in loaders:
                loader.finish(snapshot.trailer)
            for target in (ahead, fresh):
                assert stored_versions(target) == writer.versions(source.applied)


def test_a_receiver_that_cannot_open_files_makes_it_rows_for_all(tmp_path: Path) -> None:
    """A Memory replica, or one of another release, could not be copied to."""
    with opened(tmp_path / "a") as source, opened(tmp_path / "b") as rocks:
        writer = fill(source)
        memory = PartitionStore.open(tmp_path / "m", config(EngineKind.MEMORY))
        with open_for(source, rocks, memory) as snapshot:
            assert not snapshot.header.format
        run_copy(source, memory, "a1")
        assert stored_versions(memory) == writer.versions(source.applied)
        memory.close()
        run_copy(source, rocks, "a1", 3)
        other = msgspec.structs.replace(rocks.incoming.state(), formats=("rocksdb-1/0.0.1",))
        with source.outgoing.open(ticket_for(0, [other], reader="r", batch_bytes=300)) as snapshot:
            assert not snapshot.header.format
            assert snapshot.header.offset == source.applied
            # Begun with files, it starts over with rows.
            loader: Any = rocks.incoming.begin(snapshot.header, "rows")
            for item in snapshot:
                loader.write(item.batch, item.mark)
            loader.finish(snapshot.trailer)
        assert stored_versions(rocks) == writer.versions(source.applied)
        assert not list((tmp_path / "b").glob("engine-*"))


def test_who_has_begun_with_rows_goes_on_with_rows(tmp_path: Path) -> None:
    """A copy of rows would be thrown away when its source grows over the limit for files."""
    with opened(tmp_path / "a", "rows") as source, opened(tmp_path / "b") as target:
        fill(source)
        run_copy(source, target, "a1", 6)
        state = target.incoming.state()
        assert state.resume_after
        assert not state.formats


@pytest.mark.proves("B-05")
def test_files_that_the_engine_still_has_are_not_sent_again(tmp_path: Path) -> None:
    """A restart of the source would make every copy from it start again."""
    with opened(tmp_path / "b") as target:
        with opened(tmp_path / "a") as source:
            # Files so few that the engine merges none of them: that would make them others.
            writer = fill(source, rows=120)
            run_copy(source, target, "a1", 40)
            held = target.incoming.state().held
            assert held is not None
            assert held.files
        (tmp_path / "a" / "checkpoints" / "of-a-crash").mkdir(parents=True)
        with opened(tmp_path / "a") as source:
            assert not list((tmp_path / "a").glob("checkpoints/*")), "cleaned at the start"
            with open_for(source, target) as snapshot:
                sent = {item.mark.name for item in snapshot}
                whole = {f.name for f in held.files if f in snapshot.header.files}
            assert whole
            assert not sent & whole
            run_copy(source, target, "a2")
            assert stored_versions(target) == writer.versions(source.applied)


def test_files_of_another_engine_are_not_mixed_in(tmp_path: Path) -> None:
    """Two engines give the same names to different files: a copy of both would be neither."""
    with opened(tmp_path / "a") as source, opened(tmp_path / "b") as target:
        writer = fill(source, rows=240)
        with opened(tmp_path / "a2") as twin:
            run_copy(source, twin, "t")
            run_copy(source, target, "a1", 40)
            held = target.incoming.state().held
            assert held is not None
            with open_for(twin, target) as snapshot:
                assert snapshot.header.engine_id != held.engine_id
                sent = {item.mark.name for item in snapshot}
                assert sent == {file.name for file in snapshot.header.files if file.bytes}
            run_copy(twin, target, "a2")
        assert stored_versions(target) == writer.versions(source.applied)
        assert len(list((tmp_path / "b").glob("engine*"))) == 1


def test_damage_on_the_way_or_at_the_source_is_found(tmp_path: Path) -> None:
    """A flipped bit would become part of a replica."""
    with opened(tmp_path / "a") as source, opened(tmp_path / "b") as target:
        fill(source)
        with open_for(source, target) as snapshot:
            loader: Any = target.incoming.begin(snapshot.header, "a1")
            items = list(snapshot)
            data = bytearray(items[0].batch.column(0)[0].as_py())
            data[7] ^= 1
            flipped = pa.RecordBatch.from_arrays(
                [pa.array([bytes(data)], pa.binary())], schema=items[0].batch.schema
            )
            with pytest.raises(CorruptionError, match="damaged"):
                loader.write(flipped, items[0].mark)
            with pytest.raises(CorruptionError, match="belong"):
                loader.write(items[1].batch, items[1].mark)
            beyond = msgspec.structs.replace(items[0].mark, name="999999.sst")
            with pytest.raises(CorruptionError, match="belong"):
                loader.write(items[0].batch, beyond)
            loader.abort()
        # Digests are right and the files are not a database: the copy starts over.
        header = msgspec.structs.replace(snapshot.header, offset=snapshot.header.offset - 1)
        loader = target.incoming.begin(header, "a2")
        for item in items:
            loader.write(item.batch, item.mark)
        with pytest.raises(CorruptionError, match="stand at"):
            loader.finish(snapshot.trailer)
        assert target.incoming.state().held is None
        run_copy(source, target, "a3")
        assert target.reader.digest() == source.reader.digest()


@pytest.mark.parametrize("name", ["../meta.json", "/etc/passwd", "a/1.sst", "LOCK", "1.sst\n"])
def test_names_that_are_no_engine_files_are_refused(tmp_path: Path, name: str) -> None:
    """A peer could write any file of the node."""
    with opened(tmp_path / "a") as source, opened(tmp_path / "b") as target:
        with open_for(source, target) as snapshot:
            header = msgspec.structs.replace(
                snapshot.header, files=(SnapshotFile(name, 5), *snapshot.header.files)
            )
        with pytest.raises(CorruptionError):
            target.incoming.begin(header, "a1")


@pytest.mark.parametrize("lost", ["all", "an end"])
def test_progress_without_its_files_is_no_progress(tmp_path: Path, lost: str) -> None:
    """Files that were lost would leave a copy that is complete but for its beginning."""
    with opened(tmp_path / "a") as source, opened(tmp_path / "b") as target:
        fill(source, rows=240)
        run_copy(source, target, "a1", 60)
        copy = target.meta.copy
        assert copy is not None
        if lost == "all":
            shutil.rmtree(tmp_path / "b" / copy.directory)
        else:
            for path in (tmp_path / "b" / copy.directory).glob("*.sst"):
                os.truncate(path, 10)
        with open_for(source, target) as snapshot:
            loader: Any = target.incoming.begin(snapshot.header, "a2")
            item = next(i for i in snapshot if i.mark.offset > 10)
            with pytest.raises(CorruptionError, match="belong"):
                loader.write(item.batch, item.mark)
            loader.abort()
        run_copy(source, target, "a3")
        assert target.reader.digest() == source.reader.digest()


@pytest.mark.proves("SS-06")
def test_checkpoints_are_shared_and_kept_only_for_a_while(tmp_path: Path) -> None:
    """Checkpoints would fill the disk with files that the engine has long replaced."""
    clock = StandingClock(0.0)
    limits = {"join_seconds": 1.0, "linger_seconds": 10.0, "reader_idle_seconds_max": 30.0}
    with opened(tmp_path / "a", checkpoints=limits, clock=clock) as source:
        writer = fill(source)
        first = source.outgoing.open_files()
        assert source.outgoing.open_files().header == first.header, "joined"
        clock.now = 2.0
        later = source.outgoing.open_files()
        assert later.header.snapshot_id != first.header.snapshot_id
        held = HeldFiles(engine_id=first.header.engine_id, snapshot_id=first.header.snapshot_id)
        assert source.outgoing.open_files(held).header == first.header, "a copy goes on"
        assert len(list((tmp_path / "a" / "checkpoints").iterdir())) == 2
        later.close()
        clock.now = 12.5
        source.outgoing.expire()
        assert [d.name for d in (tmp_path / "a" / "checkpoints").iterdir()] == [
            first.header.snapshot_id
        ]
        clock.now = 33.0
        source.outgoing.expire()
        with pytest.raises(SnapshotExpiredError):
            list(first)
        clock.now = 44.0
        source.outgoing.expire()
        assert not list((tmp_path / "a" / "checkpoints").iterdir())
        del writer


def test_room_that_only_checkpoints_hold_is_bounded(tmp_path: Path) -> None:
    """A slow copy of a partition that is rewritten would take its room twice and more."""
    with opened(tmp_path / "a", checkpoints={"pinned_bytes_max": 4096}) as source:
        fill(source)
        snapshot = source.outgoing.open_files()
        source.outgoing.expire()
        pinned = source.outgoing.pinned_bytes()
        assert pinned <= 4096, "the engine has the same files"
        assert next(iter(snapshot))
        source.reset()  # ends the snapshots of an engine whose files go
        with pytest.raises(SnapshotExpiredError):
            list(snapshot)
        fill(source)
        snapshot = source.outgoing.open_files()
        for path in (tmp_path / "a" / "engine").glob("*.sst"):
            path.unlink()  # as a compaction does
        assert source.outgoing.pinned_bytes() > 4096
        source.outgoing.expire()
        assert source.outgoing.pinned_bytes() == 0
        with pytest.raises(SnapshotExpiredError, match="room"):
            list(snapshot)


def test_rows_are_sent_where_the_engine_makes_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition on a file system without links could not be copied, or half a one would stay."""

    def refuse(directory: Path) -> None:
        directory.mkdir()
        (directory / "half").touch()
        raise OSError("no links here")

    with opened(tmp_path / "a") as source, opened(tmp_path / "b") as target:
        fill(source)
        monkeypatch.setattr(source.engine, "checkpoint", refuse)
        with open_for(source, target) as snapshot:
            assert not snapshot.header.files
        run_copy(source, target, "a1")
        assert target.reader.digest() == source.reader.digest()
        assert not list((tmp_path / "a" / "checkpoints").iterdir())
