"""Receiving a snapshot: rows into the engine by many, progress that survives (SS-08, B-05).

Batches in scan order go to the engine's memory, past any log and in ascending order, so that each
flush makes a sorted file that overlaps no other (decision 0192). Early rows are kept until the
batch that passes them, and go among its rows; those for which there is no room (`early`) are
written at once. Every `checkpoint_bytes` the index entries of these rows go there behind them, into
files of their own (decision 0201), the engine is flushed, and only then the progress persisted: up
to `resume_after` every row is durable with its entries, early ones included, because the source
sends an early row before the batch that passes it.

A second thread flushes while the next rows are written (decision 0145); the flush after
waits for it, so the rows of two at most are in memory, within the limit of all engines.

Rows may be in the engine that no progress speaks of: those since the last flush, after a crash or
of an attempt that was fenced. They are versions of the same snapshot under their own keys. The next
attempt brings them again, or the log that follows says what has become of them. An entry is never
there without its row: it is written after it, and the engine flushes in that order.

Why a copy may go on with another, newer snapshot: rows up to `resume_after` are as of the first
snapshot's offset S, rows behind it as of the newer one's S2 > S. The receiver then follows the log
from S. Every version has its own key, so replaying [S, S2) over rows that have it already changes
nothing, and rows that were deleted (and their tombstones collected) between the snapshots get
their delete from the log. This holds only if the newer source's history contains S on the same
branch, and if all up to S2 is committed: of a branch that ends between S and S2 rows would stay,
which the log that is followed from S says nothing of. Both are checked; else the copy starts over.

A retried attempt fences the one before: the old one's writes are refused, and it begins at the
persisted progress, so what was written twice is the same versions under the same keys.
"""

import threading
from concurrent.futures import Executor, Future

import msgspec
import pyarrow as pa

from rezone.storage.copies.copy_target import NO_LOCK, CopyTarget, Lock
from rezone.storage.copies.early import EarlyRows
from rezone.storage.engines.base import TIME_BYTES
from rezone.storage.index.index_entries import Arriving
from rezone.storage.snapshot.columns import content_bytes, engine_pairs, in_order
from rezone.storage.snapshot.snapshot import BatchMark
from rezone.storage.state.meta import CopyMeta, branch_end
from rezone.wire.errors import CorruptionError
from rezone.wire.messages import SnapshotHeader, SnapshotTrailer


class BulkLoader:
    """One attempt at receiving a snapshot; made by `Incoming.begin`.

    One thread writes, and `beside` makes durable what it has written. `arriving` makes the index
    entries of each batch, which go to the engine with the next progress: indexes are rebuilt while
    the rows come (SS-05).
    """

    def __init__(
        self,
        incoming: CopyTarget,
        copy: CopyMeta,
        *,
        checkpoint_bytes: int,
        early_bytes_max: int,
        slice_bytes: int,
        slice_rows: int,
        arriving: Arriving,
        beside: Executor,
    ) -> None:
        self._incoming = incoming
        # Another attempt may begin with another engine: what this one has goes to its own alone.
        self._engine = incoming.engine
        self._copy = copy
        self._checkpoint_bytes = checkpoint_bytes
        self._slice_bytes = slice_bytes
        self._slice_rows = slice_rows
        self._arriving = arriving
        self._beside = beside
        self._early = EarlyRows(early_bytes_max)
        self._checkpoint: Future[CopyMeta] | None = None
        self._lock = threading.Lock()
        self._unsaved_bytes = 0
        self._last = copy.resume_after
        self._versions = 0
        self._bytes = 0
        self._new_rows = 0
        self._new_bytes = 0

    @property
    def received(self) -> SnapshotTrailer:
        """What this attempt has received so far, durable or not."""
        return SnapshotTrailer(versions=self._versions, bytes=self._bytes)

    def write(self, batch: pa.RecordBatch, mark: BatchMark) -> None:
        """Take the next batch. A batch in scan order that was already taken is passed over.

        `ConflictError` when a newer attempt has begun, `CorruptionError` when rows are out of
        order; and whatever kept earlier batches from becoming durable.
        """
        with self._lock:
            self._incoming.check(self)
            if not mark.early and mark.last_row_id <= self._last:
                return
            if batch.num_rows:
                self._take(batch, mark)
            if not mark.early:
                self._last = mark.last_row_id
            if self._unsaved_bytes >= self._checkpoint_bytes:
                self._begin_checkpoint()

    def _take(self, batch: pa.RecordBatch, mark: BatchMark) -> None:
        keys, values = engine_pairs(batch)
        size = content_bytes(batch)
        if mark.early:
            self._take_early(keys, values)
        elif keys[0][:-TIME_BYTES] <= self._last or keys[-1][:-TIME_BYTES] > mark.last_row_id:
            raise CorruptionError("a snapshot batch is out of row order")
        else:
            self._count(batch.num_rows, size, self._arriving.take(batch))
            early = self._early.passed(mark.last_row_id)
            if early[0]:
                self._count_early(*early)
                keys, values = in_order(keys + early[0], values + early[1])
            self._store(keys, values)
        self._versions += batch.num_rows
        self._bytes += size

    def _take_early(self, keys: list[bytes], values: list[bytes]) -> None:
        """Keep early rows, or write those that have no place among the ones to come, or no room."""
        # Passed already: sent for the sake of another receiver, which is not as far.
        passed = keys[0][:-TIME_BYTES] <= self._last
        if passed or not self._early.take(keys, values):
            self._store(keys, values)
            self._count_early(keys, values)

    def _store(self, keys: list[bytes], values: list[bytes]) -> None:
        """Write versions to the engine, cut evenly; it holds the interpreter for each part."""
        size = sum(map(len, keys)) + sum(map(len, values))
        parts = max(-(-size // self._slice_bytes), -(-len(keys) // self._slice_rows))
        step = -(-len(keys) // parts)
        for at in range(0, len(keys), step):
            self._engine.make_room()
            with self._incoming.going_on(self):
                self._engine.load(keys[at : at + step], values[at : at + step])

    def _count_early(self, keys: list[bytes], values: list[bytes]) -> None:
        size = sum(len(key) - TIME_BYTES for key in keys) + sum(len(value) - 1 for value in values)
        self._count(len(keys), size, self._arriving.take_stored(keys, values))

    def _count(self, versions: int, size: int, entries_size: int) -> None:
        """Count what goes to the engine with the next progress."""
        self._new_rows += versions
        self._new_bytes += size
        self._unsaved_bytes += size + entries_size

    def _begin_checkpoint(self) -> None:
        """Have everything taken made durable beside; what was begun before that is over first."""
        self._end_checkpoint()
        progress = msgspec.structs.replace(
            self._copy,
            resume_after=self._last,
            rows=self._copy.rows + self._new_rows,
            bytes=self._copy.bytes + self._new_bytes,
        )
        self._store_entries()
        self._checkpoint = self._beside.submit(self._persist, progress)
        self._unsaved_bytes = self._new_rows = self._new_bytes = 0

    def _end_checkpoint(self) -> None:
        """Wait for the checkpoint under way, if any; raises what it has failed with, ever again."""
        if self._checkpoint is not None:
            self._copy = self._checkpoint.result()
            self._checkpoint = None

    def _store_entries(self) -> None:
        """Write the entries of all rows taken, which are in the engine, apart from any rows.

        In one file with rows they would make it reach over all that is to come (decision 0146).
        """
        entries = self._arriving.in_order()
        if not len(entries.keys):
            return
        self._engine.flush(wait=False)
        for keys, values in entries.slices():
            self._store(keys, values)
        self._engine.flush(wait=False)
        self._arriving.forget()

    def _persist(self, progress: CopyMeta) -> CopyMeta:
        """Make everything written durable, then the progress, which is returned.

        No progress when the attempt is fenced: the engine may be another copy's.
        """
        self._engine.flush()  # while the next rows are written
        with self._incoming.going_on(self):
            self._incoming.update_meta(copy=progress)
        return progress

    def finish(self, trailer: SnapshotTrailer, applying: Lock = NO_LOCK) -> None:
        """Complete the copy, `applying` held: the partition stands at the first snapshot's offset.

        `CorruptionError` when less or more arrived than the source sent; the copy then goes on
        from its persisted progress with a new attempt.
        """
        with applying, self._lock:
            self._incoming.check(self)
            if (self._versions, self._bytes) != (trailer.versions, trailer.bytes):
                raise CorruptionError(
                    f"received {self._versions} versions, {self._bytes} bytes; "
                    f"sent were {trailer.versions} versions, {trailer.bytes} bytes"
                )
            rest = self._early.rest()
            if rest[0]:
                self._count_early(*rest)
                self._store(*rest)
            self._begin_checkpoint()
            self._end_checkpoint()
            self._copy = msgspec.structs.replace(self._copy, done=True)
            self._incoming.finish_rows(self, self._copy)
            self._beside.shutdown()

    def abort(self) -> None:
        """Give this attempt up; its persisted progress stays for the next one.

        A checkpoint under way comes to its end first: what it has is good.
        """
        with self._lock:
            self._beside.shutdown()
            self._incoming.drop(self)


def continues(copy: CopyMeta, header: SnapshotHeader) -> bool:
    """Whether a snapshot may complete a copy that another one began (see the module's story)."""
    if header.offset < copy.offset or (header.offset > copy.offset and not header.settled):
        return False
    if not copy.failover_log:
        return not header.failover_log
    branch = copy.failover_log[-1].partition_uuid
    end = branch_end(header.failover_log, branch, header.offset)
    return end is not None and end >= copy.offset
