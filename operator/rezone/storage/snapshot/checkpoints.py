"""File snapshots of a partition: links to its engine's files, sent as they are (SS, HS-07).

A checkpoint is a directory of hard links, so making one copies nothing. What it costs is the room
of files that the engine has replaced since: the file system counts a file's links, so that room
is known exactly (`pinned_bytes`) and bounded.

A checkpoint outlives its readers for a while: a copy that died goes on with the same files
(B-05). When it is gone, the files that the engine still has are recognised by engine, name and
size, and only the others are sent. Readers that come soon share one checkpoint; each reads the
files itself, from the page cache (decision 0065).

Concurrency: one lock guards the tables; a reader's own thread reads its files outside of it.
"""

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from rezone.storage.engines.base import Engine
from rezone.storage.snapshot.throttle import StepBytes, Throttle, unthrottled, whole_steps
from rezone.wire.copying.ticket import FILES_SCHEMA
from rezone.wire.errors import SnapshotExpiredError
from rezone.wire.messages import (
    FileChunk,
    HeldFiles,
    SnapshotFile,
    SnapshotHeader,
    SnapshotTrailer,
)

# Read last: while a copy lacks it, no engine takes the directory for a database.
_LAST_FILE = "CURRENT"


class CheckpointLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of a partition's checkpoints.

    - `bytes_min`: an engine smaller than this is sent as rows: opening files costs more.
    - `join_seconds`: how long after it was made a checkpoint is shared with readers that come.
    - `linger_seconds`: how long it is kept without a reader, for one that comes back.
    - `reader_idle_seconds_max`: who takes nothing for so long is gone.
    - `age_seconds_max`: how long it is kept at all.
    - `pinned_bytes_max`: the room that only checkpoints hold, beyond the engine's own.
    """

    bytes_min: int = 16 << 20
    join_seconds: float = 0.1
    linger_seconds: float = 60.0
    reader_idle_seconds_max: float = 60.0
    age_seconds_max: float = 6 * 3600.0
    pinned_bytes_max: int = 16 << 30


class FileBatch(NamedTuple):
    """A part of a file (schema `FILES_SCHEMA`) and its place."""

    batch: pa.RecordBatch
    mark: FileChunk


class _Checkpoint:
    """One directory of links and who reads it."""

    def __init__(self, directory: Path, header: SnapshotHeader, made: float) -> None:
        self.directory = directory
        self.header = header
        self.made = made
        self.left = made
        self.readers: set[FileSnapshot] = set()


class FileSnapshot:
    """One reader's file snapshot: an iterator of parts, `header` before and `trailer` after.

    Raises `SnapshotExpiredError` when its checkpoint has been removed meanwhile. `step_bytes` is
    asked before each part, `throttle` called after it.
    """

    schema = FILES_SCHEMA

    def __init__(
        self,
        checkpoints: "Checkpoints",
        checkpoint: _Checkpoint,
        held: HeldFiles | None,
        chunk_bytes: int,
    ) -> None:
        self._checkpoints = checkpoints
        self._checkpoint = checkpoint
        self.header = checkpoint.header
        self._chunk_bytes = chunk_bytes
        self.closed_because = ""
        self.step_bytes: StepBytes = whole_steps
        self.throttle: Throttle = unthrottled
        self.seen_at = checkpoint.made
        known = held.files if held and held.engine_id == self.header.engine_id else ()
        self._held = {file.name: file.bytes for file in known}

    def throttle_by(self, step_bytes: StepBytes, throttle: Throttle) -> None:
        """Have these say how large steps may be, and rest between them."""
        self.step_bytes, self.throttle = step_bytes, throttle

    @property
    def trailer(self) -> SnapshotTrailer:
        """The bytes of all files."""
        return SnapshotTrailer(versions=0, bytes=sum(file.bytes for file in self.header.files))

    def __iter__(self) -> Iterator[FileBatch]:
        """Yield what the receivers do not have, file by file."""
        for file in self.header.files:
            at = self._held.get(file.name, 0) if _immutable(file.name) else 0
            if at < file.bytes:
                yield from self._read(file, at)

    def _read(self, file: SnapshotFile, at: int) -> Iterator[FileBatch]:
        try:
            opened = (self._checkpoint.directory / file.name).open("rb", buffering=0)
        except FileNotFoundError as error:
            self._checkpoints.seen(self)
            raise SnapshotExpiredError("the snapshot is gone: its files are removed") from error
        with opened:
            os.posix_fadvise(opened.fileno(), at, 0, os.POSIX_FADV_SEQUENTIAL)
            while at < file.bytes:
                self._checkpoints.seen(self)
                size = min(self.step_bytes(self._chunk_bytes), file.bytes - at)
                data: Any = np.empty(size, np.uint8)
                _read_fully(opened.fileno(), data, at, file.name)
                digest = xxhash.xxh3_128_digest(data)
                yield FileBatch(_batch(data), FileChunk(name=file.name, offset=at, digest=digest))
                at += len(data)
                self.throttle()

    def close(self) -> None:
        """End this reader; the checkpoint stays for a while. Safe to repeat."""
        self._checkpoints.leave(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Checkpoints:
    """The checkpoints of one partition, in a directory that is emptied when it is opened."""

    def __init__(
        self,
        directory: Path,
        limits: CheckpointLimits,
        clock: Callable[[], float],
    ) -> None:
        self._directory = directory
        self._limits = limits
        self._clock = clock
        self._lock = threading.Lock()
        self._made: list[_Checkpoint] = []
        shutil.rmtree(directory, ignore_errors=True)

    def reopen(self, held: HeldFiles | None, chunk_bytes: int) -> FileSnapshot | None:
        """Return a snapshot of the checkpoint the receivers began with, or of a very young one."""
        with self._lock:
            for checkpoint in self._made:
                if held and held.snapshot_id == checkpoint.header.snapshot_id:
                    return self._attach(checkpoint, held, chunk_bytes)
            newest = self._made[-1] if self._made else None
            if newest and self._clock() - newest.made < self._limits.join_seconds:
                return self._attach(newest, held, chunk_bytes)
        return None

    def make(
        self, engine: Engine, header: SnapshotHeader, held: HeldFiles | None, chunk_bytes: int
    ) -> FileSnapshot:
        """Make a checkpoint of the engine, which stands at the header's offset and is flushed.

        OSError when the file system cannot; the caller then sends rows.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        directory = self._directory / header.snapshot_id
        try:
            engine.checkpoint(directory)
            paths = sorted(directory.iterdir(), key=lambda p: (p.name == _LAST_FILE, p.name))
            files = tuple(SnapshotFile(path.name, path.stat().st_size) for path in paths)
        except OSError:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        header = msgspec.structs.replace(
            header, format=engine.file_format, engine_id=engine.engine_id, files=files
        )
        with self._lock:
            checkpoint = _Checkpoint(directory, header, self._clock())
            self._made.append(checkpoint)
            return self._attach(checkpoint, held, chunk_bytes)

    def _attach(
        self, checkpoint: _Checkpoint, held: HeldFiles | None, chunk_bytes: int
    ) -> FileSnapshot:
        reader = FileSnapshot(self, checkpoint, held, chunk_bytes)
        reader.seen_at = self._clock()
        checkpoint.readers.add(reader)
        return reader

    def seen(self, reader: FileSnapshot) -> None:
        """Note that a reader goes on; SnapshotExpiredError when it may not."""
        with self._lock:
            if reader.closed_because:
                raise SnapshotExpiredError(f"the snapshot is gone: {reader.closed_because}")
            reader.seen_at = self._clock()

    def leave(self, reader: FileSnapshot) -> None:
        """Take a reader out."""
        with self._lock:
            self._dismiss(reader, "it was closed")

    def _dismiss(self, reader: FileSnapshot, reason: str) -> None:
        reader.closed_because = reader.closed_because or reason
        for checkpoint in self._made:
            if reader in checkpoint.readers:
                checkpoint.readers.discard(reader)
                checkpoint.left = self._clock()

    def expire(self) -> None:
        """Remove what is idle, too old, or takes too much room, the oldest first."""
        with self._lock:
            now, limits = self._clock(), self._limits
            for checkpoint in list(self._made):
                for reader in list(checkpoint.readers):
                    if now - reader.seen_at > limits.reader_idle_seconds_max:
                        self._dismiss(reader, "it was not read for too long")
                unused = not checkpoint.readers and now - checkpoint.left > limits.linger_seconds
                if unused or now - checkpoint.made > limits.age_seconds_max:
                    self._remove(checkpoint, "it is too old")
            while self._made and self._pinned() > limits.pinned_bytes_max:
                idle = [checkpoint for checkpoint in self._made if not checkpoint.readers]
                self._remove((idle or self._made)[0], "its files take too much room")

    def close_beyond(self, offset: int, reason: str) -> None:
        """Remove the checkpoints that stand above `offset`."""
        with self._lock:
            for checkpoint in [c for c in self._made if c.header.offset > offset]:
                self._remove(checkpoint, reason)

    def _remove(self, checkpoint: _Checkpoint, reason: str) -> None:
        for reader in list(checkpoint.readers):
            self._dismiss(reader, reason)
        self._made.remove(checkpoint)
        shutil.rmtree(checkpoint.directory, ignore_errors=True)

    @property
    def readers(self) -> int:
        """How many file snapshots are read."""
        with self._lock:
            return sum(len(checkpoint.readers) for checkpoint in self._made)

    def floors(self) -> list[int]:
        """Return the offsets of the checkpoints that may still be received."""
        with self._lock:
            return [checkpoint.header.offset for checkpoint in self._made]

    def pinned_bytes(self) -> int:
        """Return the room of files that only checkpoints still hold."""
        with self._lock:
            return self._pinned()

    def _pinned(self) -> int:
        links: dict[int, tuple[int, int]] = {}
        sizes: dict[int, int] = {}
        for checkpoint in self._made:
            for file in checkpoint.header.files:
                try:
                    found = (checkpoint.directory / file.name).stat()
                except FileNotFoundError:
                    continue
                ours, _ = links.get(found.st_ino, (0, 0))
                links[found.st_ino] = (ours + 1, found.st_nlink)
                sizes[found.st_ino] = found.st_size
        return sum(sizes[inode] for inode, (ours, all_) in links.items() if ours >= all_)


def _immutable(name: str) -> bool:
    """Whether a file of this name never changes, so that a part held of it is good."""
    return name.endswith(".sst")


def _read_fully(descriptor: int, data: Any, at: int, name: str) -> None:
    view = memoryview(data)
    while view:
        count = os.preadv(descriptor, [view], at)
        if count == 0:
            raise OSError(f"{name} ends at byte {at}, before its size")
        view, at = view[count:], at + count


def _batch(data: Any) -> pa.RecordBatch:
    offsets = pa.py_buffer(np.array([0, len(data)], np.int32))
    value = pa.Array.from_buffers(pa.binary(), 1, [None, offsets, pa.py_buffer(data)])
    return pa.RecordBatch.from_arrays([value], schema=FILES_SCHEMA)
