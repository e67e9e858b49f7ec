"""Rows received: what is claimed as durable, and when, and where those go that come early."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from storage_kit import Writer, bring_older, config, copy_directory, rid, stored_versions

from rezone.storage.copies.bulk import continues
from rezone.storage.engines.base import TIME_MAX
from rezone.storage.engines.rocks_settings import RocksResources, RocksSettings
from rezone.storage.snapshot.snapshot import SnapshotBatch
from rezone.storage.state.meta import CopyMeta
from rezone.storage.store import PartitionStore
from rezone.wire.errors import ConflictError
from rezone.wire.messages import FailoverEntry, SnapshotHeader


class ByHand(Executor):
    """Keeps each job until the test does it: a disk that takes as long as it pleases."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Keep the job."""
        future: Future[Any] = Future()

        def do() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except Exception as error:  # noqa: BLE001 - as any executor does
                future.set_exception(error)

        self.waiting.append(do)
        return future

    def do(self) -> None:
        """Do the job that waits; there must be one."""
        (job,) = self.waiting
        self.waiting.clear()
        job()


@contextmanager
def opened(path: Path, **changes: Any) -> Iterator[PartitionStore]:
    """Open a store, and close it after use."""
    store = PartitionStore.open(path, config(**changes))
    try:
        yield store
    finally:
        store.close()


def fill(store: PartitionStore, rows: int = 200) -> Writer:
    """Write rows and apply them."""
    writer = Writer(store)
    writer.write({rid(k): b"a%d" % k + b"x" * 20 for k in range(rows)})
    store.apply_to(store.log_end)
    return writer


def take_until_waiting(loader: Any, parts: Iterator[SnapshotBatch], disk: ByHand) -> None:
    """Give parts to the loader until it wants some made durable, and one more."""
    while not disk.waiting:
        part = next(parts)
        loader.write(part.batch, part.mark)
    part = next(parts)
    loader.write(part.batch, part.mark)


def write_all(loader: Any, parts: Iterator[SnapshotBatch]) -> None:
    """Give the rest of the parts to the loader."""
    for part in parts:
        loader.write(part.batch, part.mark)


def complete(source: PartitionStore, path: Path) -> int:
    """Open what a crash has left, complete the copy, compare it; return the parts it took."""
    with opened(path) as again:
        held = [v for v in stored_versions(again) if v[0] <= again.incoming.state().resume_after]
        after = again.incoming.state().resume_after
        assert held == [v for v in stored_versions(source) if v[0] <= after]
        with source.outgoing.open_rows("again", after, batch_bytes=300) as snapshot:
            loader: Any = again.incoming.begin(snapshot.header, "again")
            sent = 0
            for part in snapshot:
                loader.write(part.batch, part.mark)
                sent += 1
            loader.finish(snapshot.trailer)
        assert stored_versions(again) == stored_versions(source)
        again.destroy()
    return sent


@pytest.mark.proves("B-05")
def test_who_dies_before_the_sync_goes_on_from_what_was_durable_before(tmp_path: Path) -> None:
    """A receiver would go on after rows that it had received, and not yet on its disk."""
    disk = ByHand()
    with (
        opened(tmp_path / "a") as source,
        opened(tmp_path / "b", beside=lambda: disk) as target,
    ):
        fill(source)
        snapshot = source.outgoing.open_rows("r", batch_bytes=300)
        loader: Any = target.incoming.begin(snapshot.header, "a1")
        parts = iter(snapshot)
        took = []
        for number in range(3):
            before = target.incoming.state()
            take_until_waiting(loader, parts, disk)
            copy_directory(tmp_path / "b", tmp_path / f"unsynced{number}")
            assert target.incoming.state() == before, "progress is claimed before the sync"
            took.append(complete(source, tmp_path / f"unsynced{number}"))
            disk.do()
            assert target.incoming.state().resume_after > before.resume_after
            copy_directory(tmp_path / "b", tmp_path / f"synced{number}")
            took.append(complete(source, tmp_path / f"synced{number}"))
        # Whoever dies unsynced has what was synced before, and no more of it.
        assert took[1] == took[2] > took[3] == took[4] > took[5]
        loader.abort()


@pytest.mark.proves("B-05")
def test_progress_waits_for_the_sync_and_the_next_rows_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy would stand still for the disk, or claim what a power cut takes away."""
    disk = ByHand()
    synced: list[bytes] = []
    with opened(tmp_path / "a") as source, opened(tmp_path / "b", beside=lambda: disk) as target:
        fill(source)
        target.update_meta(needs_snapshot=True)  # or the copy begins with another engine
        flush = target.engine.flush

        def note() -> None:
            synced.append(target.incoming.state().resume_after)
            flush()

        snapshot = source.outgoing.open_rows("r", batch_bytes=300)
        loader: Any = target.incoming.begin(snapshot.header, "a1")
        parts = iter(snapshot)
        monkeypatch.setattr(target.engine, "flush", note)
        take_until_waiting(loader, parts, disk)
        assert not synced, "rows are taken while others wait for the disk"
        disk.do()
        first = target.incoming.state().resume_after
        take_until_waiting(loader, parts, disk)
        disk.do()
        assert synced == [b"", first], "each sync comes before its progress"
        loader.abort()


@pytest.mark.proves("B-05")
def test_a_fenced_attempt_claims_nothing_and_writes_no_more(tmp_path: Path) -> None:
    """A copy would go on after rows that only another attempt had received."""
    disks = [ByHand(), ByHand()]
    given = iter(disks)
    with (
        opened(tmp_path / "a") as source,
        opened(tmp_path / "b", beside=lambda: next(given)) as target,
    ):
        fill(source)
        snapshot = source.outgoing.open_rows("r", batch_bytes=300)
        old: Any = target.incoming.begin(snapshot.header, "a1")
        parts = iter(snapshot)
        take_until_waiting(old, parts, disks[0])
        new: Any = target.incoming.begin(snapshot.header, "a2")
        meta, held = target.meta, stored_versions(target)
        disks[0].do()
        assert target.meta == meta
        with pytest.raises(ConflictError):
            old.write(*next(parts))
        assert stored_versions(target) == held
        old.abort()
        new.abort()


@pytest.mark.proves("B-05")
def test_who_is_fenced_within_a_batch_writes_no_more_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row would come back that was deleted and collected since the copy's end."""
    loaded: list[bytes] = []
    with opened(tmp_path / "a") as source, opened(tmp_path / "b", apply_slice_bytes=64) as target:
        fill(source)
        snapshot = source.outgoing.open_rows("r", batch_bytes=300)
        old: Any = target.incoming.begin(snapshot.header, "a1")
        load = target.engine.load

        def fenced_after(keys: Sequence[bytes], values: Sequence[bytes]) -> None:
            load(keys, values)
            loaded.extend(keys)
            target.incoming.begin(snapshot.header, "a2").abort()

        monkeypatch.setattr(target.engine, "load", fenced_after)
        part = next(snapshot)
        with pytest.raises(ConflictError):
            old.write(part.batch, part.mark)
        assert 0 < len(loaded) < part.batch.num_rows
        old.abort()


@pytest.mark.proves("B-05")
def test_what_a_fenced_attempt_has_received_comes_into_no_other_engine(tmp_path: Path) -> None:
    """Rows of a copy that was given up would stand among those of another."""
    disk = ByHand()
    with opened(tmp_path / "a") as source, opened(tmp_path / "b", beside=lambda: disk) as target:
        fill(source)
        snapshot = source.outgoing.open_rows("r", batch_bytes=300)
        old: Any = target.incoming.begin(snapshot.header, "a1")
        parts = iter(snapshot)
        take_until_waiting(old, parts, disk)
        target.reset()
        disk.do()
        with pytest.raises(ConflictError):
            old.write(*next(parts))
        assert not stored_versions(target)
        assert target.meta.copy is None
        old.abort()


def test_rows_received_take_no_more_memory_than_all_engines_may(tmp_path: Path) -> None:
    """Copies that come faster than the disk takes them would fill the node's memory."""
    resources = RocksResources(block_cache_bytes=1 << 20, write_buffers_bytes=4 << 20)
    limited = {
        "rocks": RocksSettings(resources=resources),
        "bulk_checkpoint_bytes": 1 << 30,
        "apply_slice_bytes": 64 << 10,
    }
    with opened(tmp_path / "a") as source, opened(tmp_path / "b", **limited) as target:
        writer = Writer(source)
        for first in range(0, 6_000, 600):
            writer.write({rid(k): bytes(1000) for k in range(first, first + 600)})
        source.apply_to(source.log_end)
        snapshot = source.outgoing.open_rows("r", batch_bytes=256 << 10)
        loader: Any = target.incoming.begin(snapshot.header, "a1")
        most = 0
        for part in snapshot:
            loader.write(part.batch, part.mark)
            most = max(most, resources.unflushed_bytes)
        assert 1 << 20 < most < 0.85 * (4 << 20), "RocksDB itself acts from 7/8 on"
        loader.finish(snapshot.trailer)
        assert stored_versions(target) == stored_versions(source)


@pytest.mark.proves("B-05")
def test_no_progress_is_claimed_before_the_engine_has_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash a copy would go on behind rows that the engine has lost."""
    disk = ByHand()
    with opened(tmp_path / "a") as source, opened(tmp_path / "b", beside=lambda: disk) as target:
        fill(source)
        snapshot = source.outgoing.open_rows("r", batch_bytes=300)
        loader: Any = target.incoming.begin(snapshot.header, "a1")
        take_until_waiting(loader, iter(snapshot), disk)

        def refuse() -> None:
            raise OSError("no room")

        with monkeypatch.context() as broken:
            broken.setattr(target.engine, "flush", refuse)
            disk.do()
        assert target.incoming.state().resume_after == b""
        loader.abort()


A, B = FailoverEntry("a", 0), FailoverEntry("b", 10)


@pytest.mark.proves("B-05")
@pytest.mark.parametrize(
    ("begun_at", "begun_of", "offset", "history", "goes_on"),
    [
        (10, (A,), 20, (A,), True),
        (10, (A,), 20, (A, B), True),
        (11, (A,), 20, (A, B), False),
        (10, (A,), 9, (A,), False),
        (15, (A, B), 20, (A,), False),
        (0, (), 20, (A,), False),
        (0, (), 0, (), True),
    ],
)
def test_a_copy_goes_on_by_a_snapshot_of_its_own_history_alone(
    begun_at: int,
    begun_of: tuple[FailoverEntry, ...],
    offset: int,
    history: tuple[FailoverEntry, ...],
    *,
    goes_on: bool,
) -> None:
    """Its first rows would be of a branch that was given up, its others of the one that stands."""
    copy = CopyMeta(
        attempt="a1",
        snapshot_id="s1",
        offset=begun_at,
        commit_time=1,
        leader_epoch=1,
        failover_log=begun_of,
    )
    header = SnapshotHeader(
        snapshot_id="s2",
        offset=offset,
        commit_time=2,
        leader_epoch=1,
        failover_log=history,
        producers=(),
        rows_estimate=0,
        settled=True,
    )
    assert continues(copy, header) == goes_on
    # What is not committed may be undone, and the log that is followed would not say so.
    unsettled = msgspec.structs.replace(header, settled=False)
    assert continues(copy, unsettled) == (goes_on and offset == begun_at)


@pytest.mark.proves("B-05")
def test_a_sync_that_fails_ends_the_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy would be called done although the disk has refused a part of it."""
    disk = ByHand()
    with opened(tmp_path / "a") as source, opened(tmp_path / "b", beside=lambda: disk) as target:
        fill(source)
        snapshot = source.outgoing.open_rows("r", batch_bytes=300)
        loader: Any = target.incoming.begin(snapshot.header, "a1")
        parts = iter(snapshot)
        take_until_waiting(loader, parts, disk)

        def refuse() -> None:
            raise OSError("no room for rows")

        with monkeypatch.context() as broken:
            broken.setattr(target.engine, "flush", refuse)
            disk.do()
        for _ in range(2):  # also for a caller that tries to go on
            with pytest.raises(OSError, match="no room"):
                write_all(loader, parts)
        loader.abort()
        assert target.incoming.state().resume_after == b""


def copy_under_writes(
    source: PartitionStore,
    writer: Writer,
    target: PartitionStore,
    crash: Callable[[int], object] = lambda _: None,
) -> None:
    """Copy while rows ahead of the scan change and go, and their past too: those go early.

    `crash` looks after each part.
    """
    with source.outgoing.open_rows("r", batch_bytes=300) as snapshot:
        loader: Any = target.incoming.begin(snapshot.header, "a1")
        for number, part in enumerate(snapshot):
            loader.write(part.batch, part.mark)
            if number % 4 == 1:
                rows: dict[bytes, bytes | None] = {rid(k): b"c" for k in range(number, 200, 9)}
                source.apply_to(writer.write(rows | {rid(number): None, rid(300 + number): b"n"}))
                bring_older(source, {rid(k): b"filled" for k in range(number, 200, 7)})
            crash(number)
        loader.finish(snapshot.trailer)


@pytest.mark.proves("SS-03", "SS-08")
@pytest.mark.parametrize("kept_bytes", [0, 1200, 1 << 20])
def test_early_rows_go_among_the_rows_around_them(
    tmp_path: Path, kept_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine would merge everything with the file of a few rows from everywhere, or lose them.

    Those for which there is no room are written at once.
    """
    written: list[bytes] = []
    with (
        opened(tmp_path / "a") as source,
        opened(tmp_path / "b", bulk_early_bytes_max=kept_bytes) as target,
    ):
        writer = fill(source)
        writer.write({rid(k): b"second" for k in range(0, 200, 5)})
        source.apply_to(source.log_end)
        want = stored_versions(source)
        target.update_meta(needs_snapshot=True)  # or the copy begins with another engine
        load = target.engine.load

        def noting(keys: Sequence[bytes], values: Sequence[bytes]) -> None:
            written.extend(keys)
            load(keys, values)

        monkeypatch.setattr(target.engine, "load", noting)
        copy_under_writes(source, writer, target)
        assert stored_versions(target) == want
        assert target.incoming.state().rows == len(want)
    assert (written == sorted(written)) == (kept_bytes == 1 << 20)


@pytest.mark.proves("B-05", "SS-03")
@pytest.mark.parametrize("kept_bytes", [0, 1200, 1 << 20])
def test_early_rows_survive_a_crash_of_their_receiver(tmp_path: Path, kept_bytes: int) -> None:
    """Rows that had come early, and were in memory alone, would be missing in the copy."""
    early = {"bulk_early_bytes_max": kept_bytes}
    with opened(tmp_path / "a") as source, opened(tmp_path / "b", **early) as target:
        writer = fill(source)
        want = stored_versions(source)

        def crash(number: int) -> None:
            if number % 5 == 2:
                copy_directory(tmp_path / "b", tmp_path / "crash")
                with opened(tmp_path / "crash") as again:
                    after = again.incoming.state().resume_after
                    held = [v for v in stored_versions(again) if v[0] <= after]
                    assert held == [v for v in want if v[0] <= after]
                    again.destroy()

        copy_under_writes(source, writer, target, crash)
        assert stored_versions(target) == want


@pytest.mark.proves("B-05")
def test_nothing_is_collected_while_a_copy_may_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy whose last step was cut would go on beside rows that are not its snapshot's."""
    with opened(tmp_path / "a") as source, opened(tmp_path / "b") as target:
        fill(source)
        fill(source)
        snapshot = source.outgoing.open_rows("r")
        loader: Any = target.incoming.begin(snapshot.header, "a1")
        write_all(loader, iter(snapshot))
        persist = target.update_meta

        def dies(**changes: Any) -> Any:
            if "needs_snapshot" in changes:
                raise OSError("the machine dies")
            return persist(**changes)

        with monkeypatch.context() as patch:
            patch.setattr(target, "update_meta", dies)
            with pytest.raises(OSError, match="dies"):
                loader.finish(snapshot.trailer)
        assert target.last_commit_time > 0
        assert target.collect(TIME_MAX, b"", 1 << 20).removed == 0
        assert source.collect(TIME_MAX, b"", 1 << 20).removed == 0, "its snapshot is being read"
    with opened(tmp_path / "b") as again:
        assert again.collect(TIME_MAX, b"", 1 << 20).removed == 0
