"""Rows received: what is claimed as durable, and when, and where those go that come early."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from storage_kit import Writer, bring_older, config, copy_directory, rid, stored_versions

from rezone.replica.snapshot import SnapshotBatch
from rezone.replica.store import PartitionStore
from rezone.wire.errors import ConflictError


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
        fsync = os.fsync

        def note(descriptor: int) -> None:
            if Path(f"/proc/self/fd/{descriptor}").readlink().suffix == ".sst":
                synced.append(target.incoming.state().resume_after)
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", note)
        snapshot = source.outgoing.open_rows("r", batch_bytes=300)
        loader: Any = target.incoming.begin(snapshot.header, "a1")
        parts = iter(snapshot)
        take_until_waiting(loader, parts, disk)
        assert not synced, "rows are taken while others wait for the disk"
        disk.do()
        first = target.incoming.state().resume_after
        take_until_waiting(loader, parts, disk)
        disk.do()
        assert synced == [b"", first], "each sync comes before its progress"
        loader.abort()


@pytest.mark.proves("B-05")
def test_what_a_fenced_attempt_has_received_comes_into_no_engine(tmp_path: Path) -> None:
    """Rows of a copy that was given up would stand among those of another."""
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
        target.incoming.begin(snapshot.header, "a2")
        meta = target.meta
        disks[0].do()
        assert not stored_versions(target)
        assert target.meta == meta
        assert not list((tmp_path / "b" / "staging").iterdir())
        with pytest.raises(ConflictError):
            old.write(*next(parts))
        old.abort()


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

        def refuse(descriptor: int) -> None:
            raise OSError(f"no room for {descriptor}")

        with monkeypatch.context() as broken:
            broken.setattr(os, "fsync", refuse)
            disk.do()
        for _ in range(2):  # also for a caller that tries to go on
            with pytest.raises(OSError, match="no room"):
                write_all(loader, parts)
        loader.abort()
        assert target.incoming.state().resume_after == b""
        assert not list((tmp_path / "b" / "staging").iterdir())


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
    written: list[int] = []
    with (
        opened(tmp_path / "a") as source,
        opened(tmp_path / "b", bulk_early_bytes_max=kept_bytes) as target,
    ):
        writer = fill(source)
        writer.write({rid(k): b"second" for k in range(0, 200, 5)})
        source.apply_to(source.log_end)
        want = stored_versions(source)
        target.update_meta(needs_snapshot=True)  # or the copy begins with another engine
        apply = target.engine.apply

        def noting(puts: Any, *rest: Any) -> None:
            written.append(len(puts))
            apply(puts, *rest)

        monkeypatch.setattr(target.engine, "apply", noting)
        copy_under_writes(source, writer, target)
        assert stored_versions(target) == want
        assert target.incoming.state().rows == len(want)
    assert bool(sum(written)) == (kept_bytes < 1 << 20)


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
