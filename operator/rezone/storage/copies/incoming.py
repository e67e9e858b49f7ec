"""The receiving half of a partition's copies: which attempt may go on, and how a copy ends.

A copy comes as rows (`bulk`) or as engine files (`fileload`); both go on after a crash from
progress in the meta, and both end with an engine at the snapshot's offset and a log that begins
there. What a crash may cut: the log is begun again before the meta says that the copy is done, so
a log that begins above what the engine has applied belongs to a copy that did not end.

Concurrency: an attempt begins and ends under the applier's mutex; a newer attempt, a reset or the
end of the copy fences the one before (`check`).
"""

import contextlib
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from rezone.storage.applier import AppliedState, Applier
from rezone.storage.copies.bulk import BulkLoader, continues
from rezone.storage.copies.copy_target import ReceivingStore
from rezone.storage.copies.fileload import FileLoader, check_names, still_held
from rezone.storage.disk.syncing import sync_directory
from rezone.storage.engines.base import Engine
from rezone.storage.index.indexer import Indexer
from rezone.storage.log.log import PartitionLog
from rezone.storage.reshard import reshard_table
from rezone.storage.state import seal
from rezone.storage.state.meta import CopyMeta
from rezone.storage.state.producers import ProducerTable
from rezone.storage.store_config import StoreConfig
from rezone.storage.transactions import transactions
from rezone.wire.errors import ConflictError, CorruptionError
from rezone.wire.messages import CopyState, HeldFiles, SnapshotHeader

Loader = BulkLoader | FileLoader


class Incoming:
    """What a partition's store does to receive a copy."""

    def __init__(
        self,
        store: ReceivingStore,
        directory: Path,
        config: StoreConfig,
        *,
        applier: Applier,
        log: PartitionLog,
        producers: ProducerTable,
        changed: threading.Condition,
        indexer: Indexer,
    ) -> None:
        self._store = store
        self._directory = directory
        self._config = config
        self._applier = applier
        self._log = log
        self._producers = producers
        self._changed = changed
        self._indexer = indexer
        self._loader: Loader | None = None

    @property
    def engine(self) -> Engine:
        """The engine that rows go to."""
        return self._applier.engine

    def update_meta(self, **changes: Any) -> None:
        """Persist progress."""
        self._store.update_meta(**changes)

    def clear(self) -> None:
        """Remove what is of no attempt that may go on: after a crash or a reset."""
        copy = self._store.meta.copy
        kept = {self._store.meta.engine, copy.directory if copy and not copy.done else ""}
        for directory in self._directory.glob("engine*"):
            if directory.name not in kept:
                shutil.rmtree(directory)

    def forget(self) -> None:
        """Fence the attempt under way, if any."""
        self._loader = None

    # --- the beginning of an attempt ---------------------------------------------------------

    def begin(self, header: SnapshotHeader, attempt: str) -> Loader:
        """Begin or go on receiving a snapshot; the attempt before is fenced off (SS-08, B-05).

        The source must have been asked for what `state` says, and nothing may have changed since.
        Without a copy under way the partition is reset first. Indexes are whole when the copy is
        done (SS-05).
        `ConflictError` with detail `done` when the copy is complete, with detail `restart` when
        this snapshot cannot complete what another began: the copy then starts from nothing; and
        when the snapshot begins behind where the copy stands.
        """
        with self._applier.mutex:
            copy = self.copy()
            if copy is not None and copy.done:
                raise ConflictError("the copy is done", done=1)
            if header.format:
                self._loader = self._begin_files(header, attempt, copy)
            else:
                self._loader = self._begin_rows(header, attempt, copy)
            return self._loader

    def _begin_rows(self, header: SnapshotHeader, attempt: str, copy: CopyMeta | None) -> Loader:
        if copy is not None and copy.format:
            copy = None  # begun with files
        if header.resume_after > (copy.resume_after if copy is not None else b""):
            # Asked for what another attempt had, which has ended or started over meanwhile.
            raise ConflictError("this snapshot leaves out rows that are missing here; ask again")
        if copy is not None and not continues(copy, header):
            self._store.reset()
            why = "older, of another history, or not committed yet"
            raise ConflictError(f"no continuation of the copy begun here: {why}", restart=1)
        self._loader = None
        arriving = self._indexer.arriving(None if copy is None else copy.indexes)
        if copy is None:
            self._store.reset()
            state = self._producers.take_over(header.producers)
            state.update(transactions.engine_state(header.transactions))
            state.update(reshard_table.engine_state(header.reshard_positions))
            state.update(seal.engine_state(header.seal))
            self.engine.apply((), (), state)
            self.engine.flush()  # before the meta says that a copy is under way
            copy = _copy_of(header, attempt)
        dropped = tuple(index for index in copy.indexes if index not in arriving.ids)
        copy = msgspec.structs.replace(
            copy,
            attempt=attempt,
            indexes=arriving.ids,
            indexes_left=copy.indexes_left + dropped,
            settled=copy.settled or header.settled,
        )
        self.update_meta(copy=copy)
        return BulkLoader(
            self,
            copy,
            checkpoint_bytes=self._config.bulk_checkpoint_bytes,
            early_bytes_max=self._config.bulk_early_bytes_max,
            slice_bytes=self._config.apply_slice_bytes,
            slice_rows=self._config.apply_slice_rows,
            arriving=arriving,
            beside=self._config.beside(),
        )

    def _begin_files(self, header: SnapshotHeader, attempt: str, copy: CopyMeta | None) -> Loader:
        if header.format != self.engine.file_format:
            raise ConflictError(f"files of {header.format} cannot be opened here", restart=1)
        check_names(header)
        self._loader = None
        if copy is None or copy.engine_id != header.engine_id:
            # Files of another engine are of no use, and neither are rows.
            self._store.reset()
            copy = _copy_of(header, attempt, directory=f"engine-{self._config.new_id()}")
        directory = self._directory / copy.directory
        directory.mkdir(exist_ok=True)
        files = still_held(copy, header, directory)
        copy = _copy_of(header, attempt, directory=copy.directory)
        copy = msgspec.structs.replace(copy, files=files, bytes=sum(f.bytes for f in files))
        self.update_meta(copy=copy)
        return FileLoader(
            self,
            copy,
            header,
            directory,
            checkpoint_bytes=self._config.file_checkpoint_bytes,
            beside=self._config.beside(),
        )

    def check(self, loader: object) -> None:
        """Refuse a loader that another attempt, a reset or the end of the copy has fenced off."""
        if self._loader is not loader:
            raise ConflictError("another attempt at this copy has begun, or it is done")

    def has_after(self, loader: Loader) -> bool:
        """Return whether another attempt is under way than a loader's."""
        return self._loader not in (None, loader)

    @contextlib.contextmanager
    def going_on(self, loader: object) -> Iterator[None]:
        """Let no other attempt begin meanwhile; refuse as `check` does."""
        with self._applier.mutex:
            self.check(loader)
            yield

    def drop(self, loader: object) -> None:
        """Forget a loader that was given up."""
        if self._loader is loader:
            self._loader = None

    # --- the end of a copy -------------------------------------------------------------------

    def finish_rows(self, loader: object, copy: CopyMeta) -> None:
        """Take over what the loader has brought; its last step, in an order a crash may cut."""
        with self._applier.mutex:
            self.check(loader)
            state = AppliedState(copy.offset, copy.commit_time, copy.leader_epoch)
            index = self._indexer.arrived(copy)
            with self._changed:
                self.engine.apply((), (), {**state.record(), **index})
                self.engine.flush()
                self._log.restart(*state)
                self._applier.load()
                self._indexer.load()
                self._loader = None
            self.update_meta(
                copy=copy,
                failover_log=copy.failover_log,
                needs_snapshot=False,
                damage="",
                uncompared=copy.snapshot_id,
            )
            self._store.forget_damaged()

    def finish_files(self, loader: object, copy: CopyMeta) -> None:
        """Open the files as the partition's engine; CorruptionError starts the copy over."""
        with self._applier.mutex:
            self.check(loader)
            sync_directory(self._directory)
            try:
                engine, state = self._open(copy)
            except CorruptionError:
                self._store.reset()
                raise
            old_directory = self._store.meta.engine
            with self._changed:
                old, self._applier.engine = self._applier.engine, engine
                self._log.restart(*state)
                self._applier.load()
                self._indexer.load()
                self._loader = None
            self.update_meta(
                copy=msgspec.structs.replace(copy, files=(), directory=""),
                engine=copy.directory,
                failover_log=copy.failover_log,
                needs_snapshot=False,
                damage="",
                uncompared=copy.snapshot_id,
            )
            self._store.forget_damaged()
            old.close()
            shutil.rmtree(self._directory / old_directory, ignore_errors=True)

    def try_files(self, loader: object, copy: CopyMeta) -> None:
        """Have another process open the files first; without any lock, as it reads all of them.

        CorruptionError when they do not pass: the copy starts over.
        """
        if self._config.try_files is None:
            return
        directory = self._directory / copy.directory
        try:
            size = sum(path.stat().st_size for path in directory.iterdir())
            self._config.try_files(directory, size)
        except (CorruptionError, FileNotFoundError):
            with self._applier.mutex:
                self.check(loader)
                self._store.reset()
            raise

    def _open(self, copy: CopyMeta) -> tuple[Engine, AppliedState]:
        engine = self._store.open_engine_in(self._directory / copy.directory)
        try:
            state = _standing_at(copy, engine)
        except BaseException:
            engine.close()
            raise
        return engine, state

    # --- facts -------------------------------------------------------------------------------

    def copy(self) -> CopyMeta | None:
        """Return the copy's progress; one that was done and is needed again counts as none."""
        meta = self._store.meta
        return (
            None if meta.copy is not None and meta.copy.done and meta.needs_snapshot else meta.copy
        )

    def state(self) -> CopyState:
        """Return where the copy stands durably, if any (B-05), and what it can be made of."""
        copy, file_format = self.copy(), self.engine.file_format
        formats = (file_format,) if file_format else ()
        if copy is None:
            return CopyState(partition=self._store.meta.partition, formats=formats)
        held = None
        if copy.format and not copy.done:
            held = HeldFiles(
                engine_id=copy.engine_id, snapshot_id=copy.snapshot_id, files=copy.files
            )
        return CopyState(
            partition=self._store.meta.partition,
            resume_after=copy.resume_after,
            done=copy.done,
            rows=copy.rows,
            bytes=copy.bytes,
            formats=() if copy.resume_after else formats,
            held=held,
        )


def _copy_of(header: SnapshotHeader, attempt: str, directory: str = "") -> CopyMeta:
    return CopyMeta(
        attempt=attempt,
        snapshot_id=header.snapshot_id,
        offset=header.offset,
        commit_time=header.commit_time,
        leader_epoch=header.leader_epoch,
        failover_log=header.failover_log,
        format=header.format,
        engine_id=header.engine_id,
        directory=directory,
        settled=header.settled,
    )


def _standing_at(copy: CopyMeta, engine: Engine) -> AppliedState:
    state = AppliedState.load(engine.state())
    if state != (copy.offset, copy.commit_time, copy.leader_epoch):
        raise CorruptionError(f"the files stand at {state}, not where their header says")
    return state
