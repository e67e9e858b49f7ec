"""Snapshots of a partition while it is written to, without a copy on the disk first (SS-01..07).

One scan goes through the version chains in row-id order and remembers `last_row_id`. Rows that are
changed before the scan has reached them are noted in `overwritten_row_ids`. What the snapshot shows
of them mostly stays where it is, because a change is a version more: the scan leaves out the newer
ones, and whoever writes reads nothing for the snapshot's sake (decision 0182). Where a version
comes or goes that is no newer than the snapshot (the backfill of a new partition brings such ones),
the chain is queued as it was, to be sent early, and the scan skips the row. So each row is sent
exactly once, and what is sent is the state at the snapshot's start.

Order of batches: an early row is sent before the batch in scan order that passes its row id.
A receiver that has durably stored everything up to such a batch can therefore go on after its
`last_row_id` with another snapshot.

Concurrency: the partition's one condition guards all state here. The scan holds it for a slice
at a time; turning slices into Arrow batches happens outside. Readers pull: whoever finds its
queue empty makes the next step for all readers of the scan (SS-06). Memory is bounded (SS-07):
a step waits while another reader's queue is full, and `wait_for_room` holds back the applier
while a scan's overwritten rows or early chains are at their limit. Who stops pulling for too
long loses its snapshot, so a dead reader blocks neither.
"""

import bisect
import heapq
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import NamedTuple, Self

import msgspec
import pyarrow as pa

from rezone.storage.engines.base import TIME_BYTES, Chains, Engine, behind, time_suffix
from rezone.storage.snapshot.columns import (
    VERSIONS_SCHEMA,
    columns_of,
    content_bytes,
    versions_batch,
)
from rezone.storage.snapshot.throttle import StepBytes, Throttle, unthrottled, whole_steps
from rezone.wire.errors import SnapshotExpiredError
from rezone.wire.messages import SnapshotHeader, SnapshotTrailer

_ROWS_PER_SLICE_MAX = 2048
_ROW_OVERHEAD_BYTES = 100
_WAIT_SECONDS = 0.1  # how often a waiting thread looks again for readers that died


class SnapshotLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one scan; `join_seconds` is how long after its start readers may still join."""

    overwritten_bytes_max: int = 8 << 20
    early_bytes_max: int = 8 << 20
    queue_bytes_max: int = 8 << 20
    join_seconds: float = 0.1
    join_bytes_max: int = 8 << 20
    reader_idle_seconds_max: float = 60.0
    slice_bytes: int = 512 << 10

    @property
    def memory_bytes_max(self) -> int:
        """What one scan may hold in all, but for the batch in the making."""
        kept = max(self.queue_bytes_max, self.join_bytes_max)
        return self.overwritten_bytes_max + self.early_bytes_max + kept


class BatchMark(msgspec.Struct, frozen=True, omit_defaults=True):
    """What travels beside a snapshot batch: `early` rows, or rows in scan order.

    After a batch in scan order all rows up to `last_row_id` have been sent.
    """

    early: bool
    last_row_id: bytes


class SnapshotBatch(NamedTuple):
    """Versions (schema `VERSIONS_SCHEMA`), whole chains, oldest to newest, and their mark."""

    batch: pa.RecordBatch
    mark: BatchMark


class _Scan:
    """One pass over the rows, for one or more readers. All but `_build` needs the condition."""

    def __init__(
        self, engine: Engine, header: SnapshotHeader, after: bytes, end: bytes | None, opened: float
    ) -> None:
        self.engine = engine
        self.header = header
        self.after = after
        self.end = end
        self.opened = opened
        self.last_row_id = after
        self.scanned = False
        self.finished = False
        self.stepping = False
        self.newest = time_suffix(header.commit_time)
        self.overwritten: set[bytes] = set()
        # The same rows as a heap: a slice looks at those that it has come past, and at no other.
        self.upcoming: list[bytes] = []
        self.taken: set[bytes] = set()
        self.overwritten_bytes = 0
        self.early: list[Chains] = []
        self.early_bytes = 0
        self.readers: list[SnapshotSource] = []
        self.history: list[SnapshotBatch] | None = []
        self.history_bytes = 0
        self.versions = 0
        self.bytes = 0

    def before_change(self, keys: Sequence[bytes]) -> None:
        """Note the rows that are about to change and that the scan has yet to reach.

        `keys` are those of the versions that come or go. One that is newer than the snapshot
        leaves in place what the snapshot shows; only where an older one is, the chain is saved.
        """
        if self.scanned:
            return
        rows = {key[:-TIME_BYTES] for key in keys}
        fresh = {row for row in rows if self._is_ahead(row)} - self.overwritten
        self.overwritten |= fresh
        for row in fresh:
            heapq.heappush(self.upcoming, row)
        self.overwritten_bytes += sum(map(_row_cost, fresh))
        older = {key[:-TIME_BYTES] for key in keys if key[-TIME_BYTES:] >= self.newest}
        older = {row for row in older if self._is_ahead(row)} - self.taken
        if older:
            self._take_early(older)

    def _is_ahead(self, row: bytes) -> bool:
        return row > self.last_row_id and (self.end is None or row < self.end)

    def _take_early(self, rows: set[bytes]) -> None:
        """Queue the chains of rows to be sent early, as the snapshot shows them."""
        self.taken |= rows
        found = self.engine.chains_of(sorted(rows))
        shown = [key[-TIME_BYTES:] >= self.newest for key in found.keys]
        if any(shown):
            chains = found.only(shown)
            self.early.append(chains)
            self.early_bytes += _chains_bytes(chains)

    def next_slice(self, slice_bytes: int) -> Chains:
        """Scan the next chains, without those already sent early, and move on past them."""
        # Row ids are above the empty string, so `behind` is right for the very first slice too.
        start = behind(self.last_row_id) if self.last_row_id else b""
        chains = self.engine.scan_chains(
            start, self.end, rows_max=_ROWS_PER_SLICE_MAX, bytes_max=slice_bytes
        )
        if chains.keys:
            self.last_row_id = chains.last_row_id
        if chains.end:
            self.scanned = True
        if self.overwritten:
            chains = self._as_of_snapshot(chains)
        return chains

    def _as_of_snapshot(self, chains: Chains) -> Chains:
        """Leave out rows that were sent early, and versions of others that came since."""
        passed = self._passed()
        keep = [True] * len(chains.keys) if passed else []
        for row in passed:
            at = bisect.bisect_left(chains.keys, row)
            while at < len(keep) and (key := chains.keys[at])[:-TIME_BYTES] == row:
                keep[at] = key[-TIME_BYTES:] >= self.newest and row not in self.taken
                at += 1
        self.taken.difference_update(passed)
        return chains if all(keep) else chains.only(keep)

    def _passed(self) -> list[bytes]:
        """Return the overwritten rows that the scan has come past, and forget them.

        At its end these are all: rows that were new and have been undone again are never met.
        """
        passed = []
        while self.upcoming and (self.scanned or self.upcoming[0] <= self.last_row_id):
            passed.append(heapq.heappop(self.upcoming))
        self.overwritten.difference_update(passed)
        self.overwritten_bytes -= sum(map(_row_cost, passed))
        return passed

    @property
    def kept_bytes(self) -> int:
        """What readers have not taken, and what those that join would get."""
        joining = self.history_bytes if self.history is not None else 0
        return max([joining, *(reader.queue_bytes for reader in self.readers)])

    def take_early(self) -> list[Chains]:
        """Return the chains queued to be sent early, and forget them."""
        early, self.early, self.early_bytes = self.early, [], 0
        return early

    def full(self, limits: SnapshotLimits) -> bool:
        """Whether the applier must wait."""
        return not self.finished and (
            self.overwritten_bytes >= limits.overwritten_bytes_max
            or self.early_bytes >= limits.early_bytes_max
        )

    def hand_out(self, batches: list[SnapshotBatch], limits: SnapshotLimits, now: float) -> None:
        """Give batches to every reader, and keep them for readers that may still join."""
        size = sum(item.batch.nbytes for item in batches)
        self.versions += sum(item.batch.num_rows for item in batches)
        self.bytes += sum(content_bytes(item.batch) for item in batches)
        for reader in self.readers:
            reader.queue.extend(batches)
            reader.queue_bytes += size
        if self.history is not None:
            self.history.extend(batches)
            self.history_bytes += size
        self.close_join(limits, now)

    def close_join(self, limits: SnapshotLimits, now: float) -> None:
        """Forget what was kept for joining readers when their time or room is over."""
        late = now - self.opened >= limits.join_seconds
        if late or self.history_bytes > limits.join_bytes_max:
            self.history = None


class SnapshotSource(Iterator[SnapshotBatch]):
    """One reader's snapshot: an iterator of batches, with `header` before and `trailer` after.

    Raises `SnapshotExpiredError` when it was closed, by `close`, by a reset or truncation of the
    partition below the snapshot, or because it was not read for too long. `step_bytes` is asked
    before each batch that this reader makes, `throttle` called after each slice of the scan for it.
    """

    schema = VERSIONS_SCHEMA

    def __init__(self, snapshots: "Snapshots", scan: _Scan, reader: str, batch_bytes: int) -> None:
        self._snapshots = snapshots
        self._scan = scan
        self.reader = reader
        self.header = scan.header
        self.queue: deque[SnapshotBatch] = deque(scan.history or ())
        self.queue_bytes = scan.history_bytes if scan.history else 0
        self.batch_bytes = batch_bytes
        self.closed_because = ""
        self.waiting = False
        self.step_bytes: StepBytes = whole_steps
        self.throttle: Throttle = unthrottled
        self.seen_at = 0.0

    def __next__(self) -> SnapshotBatch:
        return self._snapshots.next_batch(self, self._scan)

    def throttle_by(self, step_bytes: StepBytes, throttle: Throttle) -> None:
        """Have these say how large steps may be, and rest between them."""
        self.step_bytes, self.throttle = step_bytes, throttle

    @property
    def trailer(self) -> SnapshotTrailer:
        """The counts of everything sent; right once the iteration has ended."""
        return SnapshotTrailer(versions=self._scan.versions, bytes=self._scan.bytes)

    def close(self) -> None:
        """Give the snapshot up; the applier no longer waits for it. Safe to repeat."""
        self._snapshots.remove(self, "it was closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Snapshots:
    """All running snapshots of one partition."""

    def __init__(
        self,
        changed: threading.Condition,
        limits: SnapshotLimits,
        clock: Callable[[], float],
        new_id: Callable[[], str],
    ) -> None:
        self._changed = changed
        self._limits = limits
        self._clock = clock
        self._new_id = new_id
        self._scans: list[_Scan] = []
        self._ended: list[tuple[float, int]] = []
        self.waited_seconds = 0.0

    def open(
        self,
        engine: Engine,
        make_header: Callable[[str], SnapshotHeader],
        *,
        reader: str,
        after: bytes,
        end: bytes | None,
        batch_bytes: int,
    ) -> SnapshotSource:
        """Begin a snapshot of rows in (after, end), or join one that just began (SS-06)."""
        with self._changed:
            now = self._clock()
            self.expire_idle()
            scan = self._joinable(after, end, now)
            if scan is None:
                scan = _Scan(engine, make_header(self._new_id()), after, end, now)
                self._scans.append(scan)
            source = SnapshotSource(self, scan, reader, batch_bytes)
            source.seen_at = now
            scan.readers.append(source)
            return source

    def _joinable(self, after: bytes, end: bytes | None, now: float) -> _Scan | None:
        for scan in self._scans:
            scan.close_join(self._limits, now)
            if scan.history is not None and (scan.after, scan.end) == (after, end):
                return scan
        return None

    @property
    def active(self) -> bool:
        """Whether any scan has still to reach rows."""
        return any(not scan.scanned for scan in self._scans)

    @property
    def scans(self) -> int:
        """How many scans are under way."""
        return len(self._scans)

    def floors(self, handover_seconds: float) -> list[int]:
        """Return the offsets of running scans, and of those that ended lately."""
        with self._changed:
            since = self._clock() - handover_seconds
            self._ended = [(at, offset) for at, offset in self._ended if at >= since]
            return [scan.header.offset for scan in self._scans] + [o for _, o in self._ended]

    def memory_bytes(self) -> int:
        """Return what overwritten row ids, early chains and queues take."""
        with self._changed:
            return sum(
                scan.overwritten_bytes + scan.early_bytes + scan.kept_bytes for scan in self._scans
            )

    def before_change(self, keys: Sequence[bytes]) -> None:
        """Tell all scans which versions are about to come or go; needs the condition."""
        for scan in self._scans:
            scan.before_change(keys)

    def wait_for_room(self) -> None:
        """Return when no scan is at its limit (SS-07); needs the condition, which it releases."""
        while any(scan.full(self._limits) for scan in self._scans):
            self.expire_idle()
            if any(scan.full(self._limits) for scan in self._scans):
                begun = self._clock()
                self._changed.wait(_WAIT_SECONDS)
                self.waited_seconds += self._clock() - begun

    def expire_idle(self) -> None:
        """Close snapshots whose reader has stopped pulling; needs the condition."""
        now = self._clock()
        for reader in [reader for scan in self._scans for reader in scan.readers]:
            idle = now - reader.seen_at
            if not reader.waiting and idle > self._limits.reader_idle_seconds_max:
                self.remove(reader, f"it was not read for {idle:.0f} s")

    def remove(self, source: SnapshotSource, reason: str) -> None:
        """Take one reader out; a scan without readers ends."""
        with self._changed:
            if not source.closed_because:
                source.closed_because = reason
                source.queue.clear()
                source.queue_bytes = 0
            for scan in list(self._scans):
                if source in scan.readers:
                    scan.readers.remove(source)
                if not scan.readers:
                    scan.finished = True
                    self._scans.remove(scan)
                    self._ended.append((self._clock(), scan.header.offset))
            self._changed.notify_all()

    def close_beyond(self, offset: int, reason: str) -> None:
        """Close the snapshots whose start is above `offset`; needs the condition."""
        for scan in list(self._scans):
            if scan.header.offset > offset:
                for reader in list(scan.readers):
                    self.remove(reader, reason)

    def next_batch(self, source: SnapshotSource, scan: _Scan) -> SnapshotBatch:
        """Return the next batch for a reader, making a step of the scan when it has none."""
        while True:
            with self._changed:
                source.seen_at = self._clock()
                if source.closed_because:
                    raise SnapshotExpiredError(f"the snapshot is gone: {source.closed_because}")
                if source.queue:
                    item = source.queue.popleft()
                    source.queue_bytes -= item.batch.nbytes
                    self._changed.notify_all()
                    return item
                if scan.finished:
                    self.remove(source, "it was read to its end")
                    raise StopIteration
                if not self._may_step(source, scan):
                    continue
                scan.stepping = True
            self._step(scan, source)

    def _may_step(self, source: SnapshotSource, scan: _Scan) -> bool:
        """Whether this reader makes the next step; waits a while when not."""
        crowded = any(r.queue_bytes >= self._limits.queue_bytes_max for r in scan.readers)
        if not scan.stepping and not crowded:
            return True
        self.expire_idle_others(source)
        source.waiting = True
        self._changed.wait(_WAIT_SECONDS)
        source.waiting = False
        return False

    def expire_idle_others(self, source: SnapshotSource) -> None:
        """Close idle snapshots other than the caller's own; needs the condition."""
        source.waiting = True
        self.expire_idle()
        source.waiting = False

    def _step(self, scan: _Scan, source: SnapshotSource) -> None:
        batches: list[SnapshotBatch] = []
        done = failed = True
        try:
            batches, done = self._scan_batches(scan, source)
            failed = False
        finally:
            with self._changed:
                scan.stepping = False
                if failed:  # the scan has moved on past rows that nobody got
                    for reader in list(scan.readers):
                        self.remove(reader, "the scan failed")
                scan.hand_out(batches, self._limits, self._clock())
                scan.finished = scan.finished or done
                self._changed.notify_all()

    def _scan_batches(
        self, scan: _Scan, source: SnapshotSource
    ) -> tuple[list[SnapshotBatch], bool]:
        """Scan slices until a batch is full; return early rows, the batch, and if that is all.

        Rests after each, but not while the applier waits for this scan: it would wait longer.
        """
        keys: list[bytes] = []
        values: list[bytes] = []
        size = 0
        before = scan.last_row_id
        batch_bytes = source.step_bytes(source.batch_bytes)
        slice_bytes = min(self._limits.slice_bytes, batch_bytes)
        while True:
            with self._changed:
                chains = scan.next_slice(slice_bytes)
                size += _chains_bytes(chains)
                last = scan.last_row_id
                full = scan.scanned or size >= batch_bytes
                # In the same hold as the last slice: every row that this batch passes and that
                # was overwritten before is then in `early`, and goes out first.
                early = scan.take_early() if full else []
                awaited = scan.full(self._limits)
            if not awaited:
                source.throttle()
            keys.extend(chains.keys)
            values.extend(chains.values)
            if full:
                break
        batches = []
        if early:
            pairs = sorted(
                pair for item in early for pair in zip(item.keys, item.values, strict=True)
            )
            early_keys = [key for key, _ in pairs]
            early_values = [value for _, value in pairs]
            batches.append(_build(early_keys, early_values, BatchMark(True, before)))  # noqa: FBT003
        if keys:
            batches.append(_build(keys, values, BatchMark(False, last)))  # noqa: FBT003
        return batches, chains.end


def _build(keys: list[bytes], values: list[bytes], mark: BatchMark) -> SnapshotBatch:
    return SnapshotBatch(versions_batch(columns_of(keys, values)), mark)


def _row_cost(row: bytes) -> int:
    return len(row) + _ROW_OVERHEAD_BYTES


def _chains_bytes(chains: Chains) -> int:
    return sum(map(len, chains.keys)) + sum(map(len, chains.values))
