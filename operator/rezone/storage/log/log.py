"""The log of one partition: append, group commit, read, truncate and trim.

Concurrency: one appender at a time (truncate, restart and trim count as one); any number of
readers and of callers of `sync`. One lock guards positions; `fdatasync` runs outside of it, and
callers that wait for the same bytes share one.

Durability: a new file is begun only when the one before is durable, so a crash can tear nothing
but the end of the newest file. Recovery cuts it at the first entry that is not whole or whose
checksum fails, if that is behind what is known to have been durable. A failed `fdatasync` is
final: the kernel may have dropped what it could not write, so the log refuses everything until
it is opened again. Damage that a read comes upon is told to `on_damage`, with the offset.
"""

import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from rezone.storage.disk import syncing
from rezone.storage.disk.sync_times import SyncTimes
from rezone.storage.engines.base import OnDamage
from rezone.storage.log.entry import (
    HEADER_BYTES,
    Entry,
    EntryHeader,
    EntryKind,
    header_at,
    iter_entries,
)
from rezone.storage.log.older_file import LogStand, OlderFile
from rezone.storage.log.segment import SUFFIX, Descriptor, Segment
from rezone.storage.log.tail import Tail
from rezone.wire.errors import ConflictError, CorruptionError, NotReadyError, SnapshotExpiredError

# Reads below this look at the first entry's header before, so that it comes in one piece.
_GLANCE_BYTES = 4096


class PartitionLog:
    """The log files of one directory, as one sequence of entries [start, end)."""

    def __init__(
        self,
        directory: Path,
        *,
        segment_bytes: int,
        tail_bytes: int,
        durable: int = 0,
        sync_times: SyncTimes | None = None,
    ) -> None:
        """Open what is there; `durable`: it was whole until this offset at least.

        CorruptionError when it is not any more; it is left as it is then.
        """
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._sync_times = sync_times or SyncTimes()
        self._lock = threading.Lock()
        self._synced = threading.Condition(self._lock)
        self._syncing = False
        self._generation = 0
        self._failed = ""
        self._tail = Tail(tail_bytes)
        self.on_damage: OnDamage = lambda _: None
        self._segments = self._load(durable)
        self._active = Descriptor(self._segments[-1].path)
        self.durable_end = self.end

    def _load(self, durable: int) -> list[Segment]:
        for partial in self._directory.glob("*.tmp"):
            partial.unlink()
        paths = sorted(self._directory.glob(f"*{SUFFIX}"))
        if not paths:
            self.last_time, self.last_epoch = 0, 0
            return [Segment.create(self._directory, 0, 0, 0)]
        segments = [Segment.load(path) for path in paths]
        for segment, following in itertools.pairwise(segments):
            segment.end = following.base
        newest = segments[-1]
        last = newest.recover(durable)
        # What the crash left may not be durable yet: make it so before it counts as that.
        descriptor = Descriptor(newest.path)
        syncing.sync_data(descriptor.number)
        self.last_time = last.commit_time if last else newest.time_before
        self.last_epoch = last.leader_epoch if last else newest.epoch_before
        return segments

    @property
    def start(self) -> int:
        """The offset of the oldest entry kept."""
        return self._segments[0].base

    @property
    def start_time(self) -> int:
        """The commit time of the entry before the oldest one kept, in microseconds; 0 without."""
        return self._segments[0].time_before

    @property
    def end(self) -> int:
        """The offset after the newest entry."""
        return self._segments[-1].end

    @property
    def size(self) -> int:
        """The bytes of all files."""
        with self._lock:
            return sum(segment.size for segment in self._segments)

    def bytes_from(self, offset: int) -> int:
        """Return the bytes of the files that have entries from an offset on."""
        with self._lock:
            return sum(segment.size for segment in self._segments if segment.end > offset)

    @property
    def memory_bytes(self) -> int:
        """The bytes of recent entries held in memory."""
        return self._tail.bytes

    def limit_tail(self, bytes_max: int) -> None:
        """Hold no more than so many bytes of recent entries in memory."""
        with self._lock:
            self._tail.limit(bytes_max)

    def append(
        self,
        data: bytes | memoryview,
        *,
        sealed: bool = False,
        check: Callable[[Sequence[Entry]], None] = lambda _: None,
    ) -> list[EntryHeader]:
        """Append whole entries that begin at `end`; return their headers. Not durable yet.

        `CorruptionError` for a bad checksum, `ConflictError` when offsets do not join, the leader
        epoch falls or a commit time does not rise, or an entry would follow a seal, such as one
        that the log is `sealed` with; and what `check` raises. Nothing is appended then.
        """
        kept = data if isinstance(data, bytes) else bytes(data)
        entries = list(iter_entries(kept))
        headers = [entry.header for entry in entries]
        check(entries)
        if not headers:
            return headers
        with self._lock:
            self._check_usable()
            self._check_joins(headers, sealed=sealed)
            if self._segments[-1].size >= self._segment_bytes:
                self._roll()
            segment = self._segments[-1]
            _write_fully(self._active.number, kept, segment.size)
            start = segment.size
            positions = []
            for header in headers:
                positions.append(segment.size - start)
                segment.note(header)
            bases = [header.base_offset for header in headers]
            self._tail.add(bases, positions, kept, segment.end)
            self.last_time, self.last_epoch = headers[-1].commit_time, headers[-1].leader_epoch
        return headers

    def _check_usable(self) -> None:
        if self._failed:
            raise NotReadyError(f"the log failed and must be opened again: {self._failed}")

    def _check_joins(self, headers: list[EntryHeader], *, sealed: bool) -> None:
        offset, time, epoch = self.end, self.last_time, self.last_epoch
        for header in headers:
            if sealed:
                raise ConflictError(f"entry at {header.base_offset}, but the log is sealed")
            if header.base_offset != offset:
                raise ConflictError(f"entry at {header.base_offset}, but the log ends at {offset}")
            if header.leader_epoch < epoch:
                raise ConflictError(f"leader epoch falls from {epoch} to {header.leader_epoch}")
            if header.commit_time <= time:
                raise ConflictError(f"commit time {header.commit_time} is not above {time}")
            offset, time, epoch = header.end_offset, header.commit_time, header.leader_epoch
            sealed = header.kind == EntryKind.SEAL

    def _roll(self) -> None:
        self._fdatasync(self._active)
        self.durable_end = self.end
        created = Segment.create(self._directory, self.end, self.last_time, self.last_epoch)
        self._segments.append(created)
        self._active = Descriptor(created.path)

    def _fdatasync(self, descriptor: Descriptor) -> None:
        try:
            with self._sync_times.timed():
                syncing.sync_data(descriptor.number)
        except OSError as error:
            self._failed = str(error)
            raise

    def sync(self) -> int:
        """Make everything appended so far durable; return the durable end. Calls share the work."""
        with self._lock:
            target, generation = self.end, self._generation
            while self.durable_end < target and self._generation == generation:
                self._check_usable()
                if self._syncing:
                    self._synced.wait()
                else:
                    self._sync_now()
            return self.durable_end

    def _sync_now(self) -> None:
        """Sync once with the lock released meanwhile; others wait for the outcome."""
        descriptor, reached, generation = self._active, self.end, self._generation
        self._syncing = True
        self._lock.release()
        try:
            self._fdatasync(descriptor)
        finally:
            self._lock.acquire()
            self._syncing = False
            self._synced.notify_all()
        # A truncation meanwhile makes `reached` meaningless; the next round finds out again.
        if generation == self._generation:
            self.durable_end = max(self.durable_end, reached)

    def read(self, offset: int, bytes_max: int) -> bytes:
        """Return whole entries from `offset` on, at least one, about `bytes_max`; b"" at the end.

        `ConflictError` when no entry begins there, `SnapshotExpiredError` when it was trimmed.
        """
        with self._lock:
            if offset == self.end:
                return b""
            segment = self._segment_of(offset)
            if (recent := self._tail.read(offset, bytes_max)) is not None:
                return recent
            with self._noticing(offset):
                position = segment.position_of(offset)
            size = segment.size
        with self._noticing(offset):
            return _read_entries(segment, position, min(bytes_max, size - position))

    @contextlib.contextmanager
    def _noticing(self, offset: int) -> Iterator[None]:
        try:
            yield
        except CorruptionError as error:
            damage = CorruptionError(error.message, log_offset=offset)
            self.on_damage(damage)
            raise damage from error

    def _segment_of(self, offset: int) -> Segment:
        if offset < self.start:
            raise SnapshotExpiredError(
                f"the log begins at {self.start}, not at {offset}", log_start=self.start
            )
        if offset >= self.end:
            raise ConflictError(f"the log ends at {self.end}, before {offset}")
        return next(s for s in reversed(self._segments) if s.base <= offset)

    def headers(self, offset: int) -> Iterator[EntryHeader]:
        """Yield the headers from the entry at `offset` on; the caller keeps appends away."""
        for segment in list(self._segments):
            if segment.end > offset or segment is self._segments[-1]:
                for _, header in segment.walk(max(offset, segment.base)):
                    yield header

    def stand_at(self, offset: int) -> tuple[int, int]:
        """Return (commit time, leader epoch) of the entry that ends at `offset`.

        `ConflictError` when none ends there, `SnapshotExpiredError` when it was trimmed.
        """
        with self._lock:
            if offset == self.end:
                return self.last_time, self.last_epoch
            segment = self._segment_of(offset)
            header = segment.header_before(offset)
            if header is None:
                return segment.time_before, segment.epoch_before
            return header.commit_time, header.leader_epoch

    def offset_after(self, time: int) -> int:
        """Return where the first entry with a later commit time begins; the end without any.

        `SnapshotExpiredError` (details `log_start` and `log_time`, the commit time before it) when
        entries with later times may have been trimmed.
        """
        with self._lock:
            if self.last_time <= time:
                return self.end
            oldest = self._segments[0]
            if time < oldest.time_before:
                raise SnapshotExpiredError(
                    f"the log begins behind time {oldest.time_before}, after {time}",
                    log_start=oldest.base,
                    log_time=oldest.time_before,
                )
            segment = next(s for s in reversed(self._segments) if s.time_before <= time)
            with self._noticing(segment.base):
                return segment.offset_after(time)

    def truncate(self, offset: int) -> None:
        """Remove the entries from `offset` on, durably; it must be the beginning of one."""
        time, epoch = self.stand_at(offset)
        with self._lock:
            if offset == self.end:
                return
            self._segment_of(offset).position_of(offset)  # refuses before anything is removed
            self._generation += 1
            while self._segments[-1].base > offset:
                self._segments.pop().path.unlink()
            syncing.sync_directory(self._directory)
            self._segments[-1].cut_at(offset)
            self._active = Descriptor(self._segments[-1].path)
            self._tail.clear()
            self.last_time, self.last_epoch = time, epoch
            self.durable_end = min(self.durable_end, offset)
            self._synced.notify_all()

    def restart(self, offset: int, time: int, epoch: int) -> None:
        """Drop all entries and begin again at `offset`, after an entry of that time and epoch."""
        with self._lock:
            self._generation += 1
            # Newest first: a crash in between leaves a shorter log, never one with a gap.
            for segment in reversed(self._segments):
                segment.path.unlink()
            syncing.sync_directory(self._directory)
            self._segments = [Segment.create(self._directory, offset, time, epoch)]
            self._active = Descriptor(self._segments[-1].path)
            self._tail.clear()
            self.last_time, self.last_epoch, self.durable_end = time, epoch, offset
            self._synced.notify_all()

    def trimmable(self, retention_bytes: int) -> int:
        """Return the offset to which the retention would trim, were nothing else in the way."""
        with self._lock:
            size = sum(segment.size for segment in self._segments)
            offset = self.start
            for segment in self._segments[:-1]:
                if size <= retention_bytes:
                    break
                size -= segment.size
                offset = segment.end
            return offset

    def trim(self, keep_from: int) -> None:
        """Remove the oldest files that hold nothing from `keep_from` on; the newest one stays."""
        with self._lock:
            removed = False
            while len(self._segments) > 1 and self._segments[0].end <= keep_from:
                self._segments.pop(0).path.unlink()
                removed = True
            if removed:
                syncing.sync_directory(self._directory)

    def stand_before(self, offset: int) -> LogStand:
        """Return where the file begins that has the entry before `offset`.

        `SnapshotExpiredError` when that entry was trimmed, or there is none.
        """
        with self._lock:
            segment = self._segment_of(offset - 1)
            return LogStand(segment.base, segment.time_before, segment.epoch_before)

    def receive_older(self, begin: LogStand, bytes_max: int) -> OlderFile:
        """Begin to receive the file that goes before the oldest one; the last one is given up."""
        with self._lock:
            oldest = self._segments[0]
            end = LogStand(oldest.base, oldest.time_before, oldest.epoch_before)
        return OlderFile(self._directory, begin, end, bytes_max, self._prepend)

    def _prepend(self, partial: Path, begin: LogStand, end: LogStand) -> None:
        """Take a durable file in before the oldest one; ConflictError unless that begins there."""
        path = self._directory / f"{begin.offset:020d}{SUFFIX}"
        with self._lock:
            self._check_usable()
            oldest = self._segments[0]
            if (oldest.base, oldest.time_before, oldest.epoch_before) != end:
                raise ConflictError(f"the log begins at {oldest.base} by now, not at {end.offset}")
            made = Segment.load(partial)
            made.end = end.offset
            made.path = path
            partial.rename(path)
            self._segments.insert(0, made)
            syncing.sync_directory(self._directory)

    def end_of_file(self, offset: int) -> int | None:
        """Return where the file ends that holds an offset; None for the newest one."""
        with self._lock:
            segment = self._segment_of(offset)
            return None if segment is self._segments[-1] else segment.end


def _write_fully(descriptor: int, data: bytes, position: int) -> None:
    """Write all of `data`; a part left by a failure is overwritten by the next append."""
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, position)
        view, position = view[written:], position + written


def _read_entries(segment: Segment, position: int, size: int) -> bytes:
    """Return whole, checked entries at `position`, at least one, at most about `size` bytes."""
    head = segment.read_at(position, HEADER_BYTES) if size < _GLANCE_BYTES else b""
    if (header := header_at(head, 0)) is not None:
        size = max(size, header.length)
    data = segment.read_at(position, size)
    if (header := header_at(data, 0)) is not None and header.length > len(data):
        data = segment.read_at(position, header.length)
    whole = 0
    while (header := header_at(data, whole)) is not None and header.length <= len(data) - whole:
        if header.length == 0:
            raise CorruptionError(f"{segment.path.name}: no log entry at byte {position + whole}")
        whole += header.length
    if whole == 0:
        raise CorruptionError(f"{segment.path.name}: no whole log entry at byte {position}")
    data = data[:whole]
    for _ in iter_entries(pa.py_buffer(data)):
        pass  # what was damaged on the disk is never served
    return data
