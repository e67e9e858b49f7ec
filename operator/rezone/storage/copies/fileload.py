"""Receiving a file snapshot: parts of files into a new engine's directory (HS-07, B-05).

The files come into a directory of their own beside the engine, `engine-<id>`. When all are there
and durable, the engine in it is opened, must stand where the snapshot's header says, and takes
the place of the old one by one change of the meta, which names the partition's engine directory.

Each part carries its digest and is checked before it is written. What is durable is persisted as
progress; another attempt goes on there, with the same checkpoint or, file by file, with a newer
one of the same engine: then the copy stands at the newer one's offset, because the newest
manifest says which files and which log position belong together.

Concurrency: one thread writes; another one (`beside`) makes durable what was written before, so
that the disk and the network are busy at the same time. The writing thread alone changes the meta.
"""

import os
import re
import threading
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from pathlib import Path

import msgspec
import pyarrow as pa
import xxhash

from rezone.storage.copies.copy_target import NO_LOCK, CopyTarget, Lock
from rezone.storage.disk import syncing
from rezone.storage.disk.writeback import begin_writeback
from rezone.storage.state.meta import CopyMeta
from rezone.wire.errors import CorruptionError
from rezone.wire.messages import FileChunk, SnapshotFile, SnapshotHeader, SnapshotTrailer

FILES_MAX = 100_000
_NAME = re.compile(
    r"[0-9]{1,20}\.(sst|log)|(MANIFEST|OPTIONS)-[0-9]{1,20}|CURRENT|IDENTITY|[a-z-]{1,40}\.json"
)


class FileLoader:
    """One attempt at receiving a file snapshot; made by `Incoming.begin`."""

    def __init__(
        self,
        incoming: CopyTarget,
        copy: CopyMeta,
        header: SnapshotHeader,
        directory: Path,
        *,
        checkpoint_bytes: int,
        beside: Executor,
    ) -> None:
        self._incoming = incoming
        self._copy = copy
        self._rows = header.rows_estimate
        self._directory = directory
        self._checkpoint_bytes = checkpoint_bytes
        self._sizes = {file.name: file.bytes for file in header.files}
        self._have = {file.name: file.bytes for file in copy.files}
        self._unsynced: set[str] = set()
        self._unsynced_bytes = 0
        self._lock = threading.Lock()
        self._beside = beside
        self._syncing: tuple[Future[None], dict[str, int]] | None = None
        self._open: tuple[str, int] | None = None

    @property
    def copy(self) -> CopyMeta:
        """The progress that is durable."""
        return self._copy

    @property
    def received(self) -> SnapshotTrailer:
        """What there is so far, durable or not; rows as if they lay evenly in the bytes."""
        done, total = sum(self._have.values()), sum(self._sizes.values())
        return SnapshotTrailer(versions=self._rows * done // max(total, 1), bytes=done)

    def write(self, batch: pa.RecordBatch, mark: FileChunk) -> None:
        """Take the next part of a file; one that is there already is passed over.

        `ConflictError` when a newer attempt has begun, `CorruptionError` when the part is damaged
        or not where the file goes on.
        """
        with self._lock:
            self._incoming.check(self)
            if batch.num_rows != 1:
                raise CorruptionError(f"{mark.name}: {batch.num_rows} parts at a time, not one")
            part = memoryview(batch.column(0)[0].as_buffer())
            have, size = self._have.get(mark.name, 0), self._sizes.get(mark.name)
            if size is None or mark.offset > have or mark.offset + len(part) > size:
                raise CorruptionError(f"{mark.name}: bytes at {mark.offset} do not belong there")
            if mark.offset + len(part) <= have:
                return
            if xxhash.xxh3_128_digest(part) != mark.digest:
                raise CorruptionError(f"{mark.name}: the part at byte {mark.offset} is damaged")
            self._put(mark, part)
            if self._unsynced_bytes >= self._checkpoint_bytes:
                self._begin_sync()

    def _put(self, mark: FileChunk, part: memoryview) -> None:
        descriptor, at = self._descriptor(mark.name), mark.offset
        while part:
            written = os.pwrite(descriptor, part, at)
            part, at = part[written:], at + written
            self._unsynced_bytes += written
        begin_writeback(descriptor, mark.offset, at - mark.offset)
        self._unsynced.add(mark.name)
        self._have[mark.name] = at

    def _descriptor(self, name: str) -> int:
        if self._open is None or self._open[0] != name:
            self._close()
            self._open = (name, os.open(self._directory / name, os.O_CREAT | os.O_WRONLY, 0o644))
        return self._open[1]

    def _close(self) -> None:
        if self._open is not None:
            os.close(self._open[1])
            self._open = None

    def _begin_sync(self) -> None:
        """Have what was written made durable, and note as progress what was before."""
        self._end_sync()
        paths = [self._directory / name for name in sorted(self._unsynced)]
        self._syncing = (self._beside.submit(_sync, paths, self._directory), dict(self._have))
        self._unsynced, self._unsynced_bytes = set(), 0

    def _end_sync(self) -> None:
        """Wait for what is under way beside, and persist the progress it has made durable."""
        if self._syncing is None:
            return
        future, have = self._syncing
        self._syncing = None
        future.result()
        files = tuple(SnapshotFile(name, size) for name, size in sorted(have.items()))
        trailer = self.received
        self._copy = msgspec.structs.replace(
            self._copy, files=files, rows=trailer.versions, bytes=sum(have.values())
        )
        self._incoming.update_meta(copy=self._copy)

    def finish(self, trailer: SnapshotTrailer, applying: Lock = NO_LOCK) -> None:
        """Complete the copy: the partition stands at the snapshot's offset.

        The files are synced and tried before `applying` is held: a trial may take minutes. Raises
        `CorruptionError` when files are missing; the copy then goes on with a new attempt. Also
        when they do not pass the trial (docs/decisions/0436), or do not open as the engine that was
        announced: then it starts over.
        """
        self._complete(trailer)
        self._incoming.try_files(self, self._copy)
        with applying, self._lock:
            self._incoming.check(self)
            self._copy = msgspec.structs.replace(self._copy, rows=self._rows, done=True)
            self._incoming.finish_files(self, self._copy)

    def _complete(self, trailer: SnapshotTrailer) -> None:
        """Bring all files to the disk."""
        with self._lock:
            self._incoming.check(self)
            missing = [
                name for name, size in self._sizes.items() if self._have.get(name, 0) != size
            ]
            total = sum(self._sizes.values())
            if missing or trailer.bytes != total:
                raise CorruptionError(
                    f"sent were {trailer.bytes} bytes of {total}; {missing} files are not whole"
                )
            for name in [name for name, size in self._sizes.items() if not size]:
                self._descriptor(name)  # an empty file has no parts
            self._begin_sync()
            self._end_sync()
            self._close()
            self._beside.shutdown()

    def abort(self) -> None:
        """Give this attempt up; its persisted progress stays for the next one."""
        with self._lock:
            self._close()
            self._beside.shutdown()
            self._incoming.drop(self)


def check_names(header: SnapshotHeader) -> None:
    """Refuse a header whose files could be anything else than an engine's: CorruptionError."""
    if len(header.files) > FILES_MAX:
        raise CorruptionError(f"a snapshot of {len(header.files)} files, over {FILES_MAX}")
    for file in header.files:
        if not _NAME.fullmatch(file.name) or file.bytes < 0:
            raise CorruptionError(f"{file.name!r} is no file of an engine")


def still_held(copy: CopyMeta, header: SnapshotHeader, directory: Path) -> tuple[SnapshotFile, ...]:
    """Return what an earlier attempt has left that this snapshot can use; removes the rest.

    The progress may say more than there is: after a reset the directory is gone.
    """
    sizes = {file.name: file.bytes for file in header.files}
    known = {file.name: file.bytes for file in copy.files} if copy.files else {}
    kept: list[SnapshotFile] = []
    for path in directory.iterdir():
        held = min(known.get(path.name, 0), path.stat().st_size)
        if path.suffix == ".sst" and 0 < held <= sizes.get(path.name, 0):
            kept.append(SnapshotFile(path.name, held))
        else:
            path.unlink()
    return tuple(sorted(kept, key=lambda file: file.name))


def _sync(paths: Sequence[Path], directory: Path) -> None:
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            syncing.sync_data(descriptor)
        finally:
            os.close(descriptor)
    syncing.sync_directory(directory)
