"""The durable state of one partition on one data node: log, engine, meta, snapshots.

A partition is one directory: `log/`, `engine/` (or what the meta names), `meta.journal`, `marks`,
`staging/` for bulk inserts, `checkpoints/` for file snapshots.
Followers and leaders append to the log and sync it; the committed part is applied to the engine
later, in large slices. Order of locks: a loader's lock, the applier's mutex, the partition's
condition, the log's lock; each may be taken while holding those before it, never the other way.

Concurrency: thread-safe. One thread at a time may append (truncate, reset and trim count as
appending) and one may apply; reads, scans, snapshots and `sync` run beside them.
"""

import contextlib
import itertools
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import structlog

from rezone.replica.applier import Applier, Collected
from rezone.replica.checkpoints import CheckpointLimits, Checkpoints, FileSnapshot
from rezone.replica.columns import columns_of, visible
from rezone.replica.digest import cuts, digest_range, hash_bound
from rezone.replica.engines import open_engine
from rezone.replica.engines.base import Engine, OnDamage, behind
from rezone.replica.engines.rocks import RocksSettings, manifest_of
from rezone.replica.entry import EntryKind, iter_entries
from rezone.replica.foreground import Rest, no_rest
from rezone.replica.incoming import Incoming, Loader
from rezone.replica.indexer import Found, Indexer
from rezone.replica.intents import Intent, newest_intents
from rezone.replica.log import PartitionLog
from rezone.replica.marks import Marks
from rezone.replica.meta import JOURNAL_NAME, MetaFile, PartitionMeta, branch_end, branches_until
from rezone.replica.segment import sync_directory
from rezone.replica.snapshot import SnapshotLimits, Snapshots, SnapshotSource
from rezone.replica.transactions import Transaction, TransactionTable
from rezone.replica.writers import WriterState, WriterTable
from rezone.wire.errors import ConflictError, CorruptionError
from rezone.wire.indexes import IndexCodec, KeyRange
from rezone.wire.keyspace import HASH_SPACE
from rezone.wire.messages import (
    CopyState,
    EngineKind,
    HeldFiles,
    SnapshotHeader,
    SnapshotTicket,
)
from rezone.wire.schema import TableSchema

_SCAN_BYTES = 512 << 10
_log = structlog.get_logger(__name__)


class ResetNeededError(ConflictError):
    """Raised when a rollback goes below the kept log: the way on is `reset` and a snapshot."""


def damaged_name(directory: Path) -> Path:
    """Return where a partition's files stand that were found damaged when it was opened."""
    return directory.with_name(f"{directory.name}.damaged")


def _new_id() -> str:
    return uuid.uuid4().hex


class StoreConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one partition's storage; sizes in bytes, times in seconds.

    `transactions_known_max` and `transaction_seconds_max` say how many transactions are remembered,
    and for how long after their end: for as long as a transaction may be open at most.
    The engine is written to in slices of `apply_slice_bytes` or `apply_slice_rows`: it holds the
    interpreter for each, which is about a millisecond then.
    `clock` (monotonic) and `new_id` are injected so that tests decide about time and ids.
    """

    partition: int = 0
    engine: EngineKind = EngineKind.ROCKSDB
    rocks: RocksSettings = RocksSettings()
    log_segment_bytes: int = 32 << 20
    log_tail_bytes: int = 4 << 20
    apply_slice_bytes: int = 1 << 20
    apply_slice_rows: int = 2_000
    snapshot: SnapshotLimits = SnapshotLimits()
    checkpoints: CheckpointLimits = CheckpointLimits()
    bulk_checkpoint_bytes: int = 32 << 20
    file_checkpoint_bytes: int = 64 << 20
    writers_max: int = 10_000
    transactions_known_max: int = 50_000
    transaction_seconds_max: float = 60.0
    table: TableSchema = TableSchema()
    clock: Callable[[], float] = time.monotonic
    new_id: Callable[[], str] = _new_id


class StoreSizes(msgspec.Struct, frozen=True, kw_only=True):
    """Estimates of what a partition takes: versions, and bytes of engine, log and memory."""

    versions: int
    engine_bytes: int
    log_bytes: int
    memory_bytes: int


class PartitionStore:
    """The storage of one partition; made by `open`."""

    def __init__(self, directory: Path, config: StoreConfig) -> None:
        self._directory = directory
        self._config = config
        self._changed = threading.Condition(threading.RLock())
        self._meta_lock = threading.Lock()
        self._closed = False
        directory.mkdir(parents=True, exist_ok=True)
        self.on_damage: OnDamage = lambda _: None
        self._marks = Marks(directory)
        self._meta = MetaFile(directory, PartitionMeta(partition=config.partition))
        if self._meta.value.serial < self._marks.facts:
            raise CorruptionError(f"{directory}: the newest facts are gone from {JOURNAL_NAME}")
        self._committed = self._meta.value.committed_offset
        self._log = PartitionLog(
            directory / "log",
            segment_bytes=config.log_segment_bytes,
            tail_bytes=config.log_tail_bytes,
            durable=self._known_durable,
        )
        self._log.on_damage = self._damaged
        self._snapshots = Snapshots(self._changed, config.snapshot, config.clock, config.new_id)
        self._checkpoints = Checkpoints(directory / "checkpoints", config.checkpoints, config.clock)
        self._writers = WriterTable(config.writers_max)
        self._transactions = TransactionTable(
            config.transactions_known_max, int(config.transaction_seconds_max * 1_000_000)
        )
        engine = self._open_engine()
        try:
            self._begin(engine)
        except BaseException:
            engine.close()
            raise

    def _begin(self, engine: Engine) -> None:
        """Put the parts together around the engine, and bring them to one state."""
        self._applier = Applier(
            engine,
            self._log,
            self._writers,
            self._snapshots,
            self._changed,
            transactions=self._transactions,
            slice_bytes=self._config.apply_slice_bytes,
            slice_rows=self._config.apply_slice_rows,
            committed=lambda: self._committed,
        )
        self.indexer = Indexer(
            self._config.table, self._applier, self._log, lambda: self.meta.failover_log
        )
        self._incoming = Incoming(
            self,
            self._directory,
            self._config,
            applier=self._applier,
            log=self._log,
            writers=self._writers,
            changed=self._changed,
            indexer=self.indexer,
        )
        self._recover()

    @classmethod
    def open(cls, directory: Path, config: StoreConfig) -> "PartitionStore":
        """Open or create the partition in `directory`; recovers whatever a crash left.

        The log's torn end is cut. Nothing is applied: call `apply_to` with what is known to be
        committed. `CorruptionError` when what should be durable does not match its checksum or is
        gone; then nothing has been changed.
        """
        return cls(directory, config)

    @property
    def _known_durable(self) -> int:
        """The offset that the log or the engine must reach, if nothing was lost."""
        return max(self._marks.log_end, self._meta.value.committed_offset)

    def _open_engine(self) -> Engine:
        directory = self._directory / self.meta.engine
        number, size = manifest_of(directory)
        if number == self._marks.manifest[0] and size < self._marks.manifest[1]:
            # RocksDB would take an older state for the newest, and remove the files of the newest.
            raise CorruptionError(f"{directory}: the end of MANIFEST-{number:06d} is gone")
        return self.open_engine_in(directory)

    def open_engine_in(self, directory: Path) -> Engine:
        """Open an engine of this partition's kind, whose damage is this partition's."""
        engine = open_engine(self._config.engine, directory, self._config.rocks)
        engine.on_damage = self._damaged
        return engine

    def _damaged(self, error: CorruptionError) -> None:
        self.on_damage(error)

    def _recover(self) -> None:
        self._incoming.clear()
        if self._meta.value.resetting:
            self.reset()
        copy = self._meta.value.copy
        if copy is not None and not self.engine.durable:
            self.update_meta(copy=None)
        state = self._applier.state
        if max(state.offset, self._log.end) < self._known_durable:
            raise CorruptionError(
                f"{self._directory}: the log ends at {self._log.end}, the engine at "
                f"{state.offset}; durable were {self._known_durable}"
            )
        if state.offset > self._log.end:
            # The engine has flushed rows whose log was lost, or a copy ended just before its log
            # was begun. The engine is exactly the history up to `state.offset`: begin there.
            self._log.restart(*state)
        if state.offset < self._log.start:
            if self.engine.durable and not self.meta.needs_snapshot:
                raise CorruptionError(
                    f"{self._directory}: the engine ends at {state.offset}, the log begins at "
                    f"{self._log.start}"
                )
            self.update_meta(needs_snapshot=True)
        else:
            self._writers.rebuild(self._log.headers(state.offset))
            self._note_transactions(state.offset)
        if self.meta.serial and not self.meta.needs_snapshot:
            self.forget_damaged()

    def forget_damaged(self) -> None:
        """Remove what was set aside as damaged: the partition is whole again."""
        shutil.rmtree(damaged_name(self._directory), ignore_errors=True)

    # --- facts ------------------------------------------------------------------------------

    @property
    def engine(self) -> Engine:
        """The engine; only for reading outside of this package's own modules."""
        return self._applier.engine

    @property
    def meta(self) -> PartitionMeta:
        """The durable facts; `committed_offset` in it may be behind `committed`."""
        return self._meta.value

    def update_meta(self, *, durable: bool = True, **changes: Any) -> PartitionMeta:
        """Change fields of the meta; durably before this returns, or with the next change."""
        with self._meta_lock:
            # Never more than is durable: a log that ends below it has been damaged.
            durable_end = self._log.durable_end
            changes.setdefault("committed_offset", min(self._committed, durable_end))
            updated = self._meta.update(durable=durable, **changes)
            self._marks.facts_are_at(self._meta.saved_serial)
            return updated

    @property
    def log_start(self) -> int:
        """The offset of the oldest entry kept."""
        return self._log.start

    @property
    def log_end(self) -> int:
        """The offset after the newest entry."""
        return self._log.end

    @property
    def durable_end(self) -> int:
        """The offset up to which the log survives a crash of the machine."""
        return self._log.durable_end

    @property
    def applied(self) -> int:
        """The offset up to which the log is in the engine."""
        return self._applier.state.offset

    @property
    def applied_time(self) -> int:
        """The commit time of the last applied entry: the newest time that can be read at."""
        return self._applier.state.commit_time

    @property
    def last_commit_time(self) -> int:
        """The commit time of the newest entry, of the log or of the snapshot before it."""
        return self._log.last_time

    @property
    def last_epoch(self) -> int:
        """The leader epoch of the newest entry, of the log or of the snapshot before it."""
        return self._log.last_epoch

    @property
    def committed(self) -> int:
        """The highest committed offset noted."""
        return self._committed

    def note_committed(self, offset: int) -> None:
        """Remember a committed offset; it reaches the disk with the next change of the meta."""
        self._committed = max(self._committed, offset)

    def epoch_end(self, partition_uuid: str) -> int | None:
        """Return where a branch of history ends here, None when it is unknown (DCP-05)."""
        return branch_end(self.meta.failover_log, partition_uuid, self.log_end)

    def sizes(self) -> StoreSizes:
        """Return estimates of what the partition takes."""
        engine = self.engine
        return StoreSizes(
            versions=self._versions_estimate(),
            engine_bytes=engine.bytes_estimate(),
            log_bytes=self._log.size,
            memory_bytes=engine.memory_bytes()
            + self._log.memory_bytes
            + self._snapshots.memory_bytes(),
        )

    def _versions_estimate(self) -> int:
        """Return about how many versions of rows there are: the engine counts entries too."""
        return max(0, self.engine.versions_estimate() - self.indexer.entries)

    # --- log --------------------------------------------------------------------------------

    def append(self, entries: bytes | memoryview) -> int:
        """Append whole raw entries at `log_end`; return the new one. Not durable before `sync`.

        All or nothing: `CorruptionError` for a bad checksum, `ConflictError` when offsets do not
        join, a leader epoch falls or a commit time does not rise.
        """
        headers = self._log.append(entries)
        with self._changed:
            self._writers.note(headers)
            if any(header.kind for header in headers):
                self._transactions.note(iter_entries(entries))
        return self._log.end

    def sync(self) -> int:
        """Make what was appended durable; return `durable_end`. Concurrent calls share one sync."""
        end = self._log.sync()
        self._marks.log_reaches(end)
        return end

    def read(self, offset: int, bytes_max: int) -> bytes:
        """Return whole raw entries from `offset` on, at least one, about `bytes_max`; b"" at end.

        `ConflictError` when no entry begins there; `SnapshotExpiredError` (detail `log_start`)
        when the log no longer reaches back to it.
        """
        return self._log.read(offset, bytes_max)

    def check_log(self, offset: int, bytes_max: int) -> int | None:
        """Read entries from `offset` on as from the disk; return where to go on, None at the end.

        Errors as `read`.
        """
        data = self._log.read(offset, bytes_max)
        if not data:
            return None
        *_, last = iter_entries(data)
        return last.header.end_offset

    def truncate(self, offset: int) -> None:
        """Remove the log from `offset` on and undo it in the engine, durably (DCP-05).

        `offset` is the beginning of an entry. `ResetNeededError` below `log_start`.
        """
        if offset < self._log.start:
            raise ResetNeededError(f"the log begins at {self._log.start}, above {offset}")
        self._end_snapshots(offset, "the partition was rolled back")
        with self._applier.mutex:
            if offset == self._log.end:
                return
            self._log.stand_at(offset)  # refuses an offset inside an entry before anything is done
            if offset < self._committed:
                self._committed = offset
                self.update_meta()
            self.indexer.undo(offset)
            self._applier.undo(offset)
            self._marks.log_is_cut(offset)
            self._log.truncate(offset)
            with self._changed:
                self._writers.rebuild(self._log.headers(self.applied))
                self._transactions.set_back(offset)

    def reset(self) -> None:
        """Drop everything but epochs and revision: empty engine, empty log at 0 (RM: start over).

        A crash in between is completed when the store is opened again.
        """
        self._end_snapshots(-1, "the partition was reset")
        with self._applier.mutex:
            self._committed = 0
            self.update_meta(resetting=True, copy=None, needs_snapshot=True, committed_offset=0)
            self._marks.log_is_cut(0)
            with self._changed:
                self._end_snapshots(-1, "the partition was reset")
                self._incoming.forget()
                self.engine.close()
                shutil.rmtree(self._directory / self.meta.engine, ignore_errors=True)
                self._log.restart(0, 0, 0)
                self._applier.engine = self._open_engine()
                self._applier.load()
                self.indexer.load()
            self._incoming.clear()
            self.update_meta(resetting=False, failover_log=(), partition_uuid="")

    def trim(self, retention_bytes: int, keep_from: int) -> None:
        """Remove old log files beyond the retention, never anything from `keep_from` on.

        Only what the engine holds durably, and its indexes too, is removed; it is flushed first
        when that is in the way.
        """
        used = min(self.applied, self.indexer.needs_log_from)
        target = min(self._log.trimmable(retention_bytes), keep_from, used)
        if target <= self._log.start:
            return
        if target > min(self._applier.flushed, self.indexer.flushed):
            self.flush()
        self._log.trim(min(target, self._applier.flushed, self.indexer.flushed))

    def give_up_log(self, offset: int) -> bool:
        """Remove the log up to the end of a damaged file; whether the engine has all of that.

        Who still needs it gets a snapshot in its place.
        """
        end = self._log.end_of_file(max(offset, self._log.start))
        if end is None or min(self.applied, self.indexer.needs_log_from) < end:
            return False
        self.flush()
        self._log.trim(min(end, self._applier.flushed, self.indexer.flushed))
        return self._log.start >= end

    # --- rows -------------------------------------------------------------------------------

    def apply_to(self, offset: int) -> int:
        """Apply the log up to `offset` (whole entries); return the applied offset.

        Slowed, never failed, while a snapshot's memory is at its limit (SS-07).
        """
        return self._applier.apply_to(offset)

    def flush(self) -> int:
        """Make the engine durable; return the applied offset that survives."""
        with self.indexer.flushing():
            reached = self._applier.flush()
        self._marks.engine_is_at(self.engine.manifest())
        return reached

    def lookup(self, codec: IndexCodec, keys: KeyRange, as_of: int | None, rows_max: int) -> Found:
        """Return visible rows by an index, one slice; see `Indexer.lookup`.

        Right as far as is indexed: the caller waits for that.
        """
        return self.indexer.lookup(codec, keys, self._time(as_of), rows_max)

    def newest(self, row_ids: list[bytes], as_of: int | None = None) -> list[bytes | None]:
        """Return each row's value, newest or as of a time; None where there is none."""
        return self.engine.newest(row_ids, self._time(as_of))

    @contextlib.contextmanager
    def transactions(self) -> Iterator[TransactionTable]:
        """Give the table of transactions, locked; what is in the log counts, applied or not."""
        with self._changed:
            yield self._transactions

    @property
    def has_open_transactions(self) -> bool:
        """Whether any transaction is open; without a lock, so as of about now."""
        return self._transactions.open_count > 0

    def _note_transactions(self, offset: int) -> None:
        """Take into account what the log holds of transactions from `offset` on."""
        for header in self._log.headers(offset):
            if header.kind != EntryKind.PLAIN:
                self._transactions.note(iter_entries(self._log.read(header.base_offset, 1)))

    def intents(self, transaction: Transaction, row_ids: Iterable[bytes]) -> dict[bytes, Intent]:
        """Return what an open transaction will do to these rows, as far as it is applied."""
        first = transaction.records[0]
        chains = self.engine.chains_of(sorted(row_ids), since=first.commit_time)
        return newest_intents(chains, first.transaction)

    def _time(self, as_of: int | None) -> int:
        """Bound a read by what is applied, so that an entry shows whole or not at all."""
        applied = self.applied_time
        return applied if as_of is None else min(as_of, applied)

    def scan(
        self, start_row_id: bytes, end_row_id: bytes | None, as_of: int | None, rows_max: int
    ) -> tuple[list[bytes], list[bytes], bytes | None]:
        """Return up to about `rows_max` visible rows of [start, end) and where to go on (or None).

        The cursor is the `start_row_id` of the next call; give the same `as_of` to see one state.
        """
        row_ids, values, cursor = self.scan_arrays(start_row_id, end_row_id, as_of, rows_max)
        return row_ids.to_pylist(), values.to_pylist(), cursor

    def scan_arrays(
        self, start_row_id: bytes, end_row_id: bytes | None, as_of: int | None, rows_max: int
    ) -> tuple[Any, Any, bytes | None]:
        """Do as `scan`, with Arrow binary arrays of row ids and values instead of lists."""
        bound = self._time(as_of)
        cursor: bytes | None = start_row_id
        while cursor is not None:
            chains = self.engine.scan_chains(
                cursor, end_row_id, rows_max=rows_max, bytes_max=_SCAN_BYTES
            )
            cursor = None if chains.end else behind(chains.last_row_id)
            if chains.keys:
                row_ids, values = visible(columns_of(chains.keys, chains.values), bound)
                if len(row_ids):
                    return row_ids, values, cursor
        return pa.array([], pa.binary()), pa.array([], pa.binary()), None

    def writer_state(self, writer_id: bytes) -> WriterState | None:
        """Return (sequence, end offset, commit time) of a writer's last batch in the log or before.

        `writer_id` is the 16 bytes of entry headers; see `writers.writer_key`.
        """
        with self._changed:
            return self._writers.get(writer_id)

    def collect(self, before_time: int, cursor: bytes, bytes_max: int) -> Collected:
        """Remove versions that reads at or after `before_time` cannot see, one slice from `cursor`.

        Never what an undo of uncommitted entries could need; nothing while a snapshot runs.
        """
        bound = min(before_time, self._applier.committed_time(self._committed))
        if self.indexer.enabled:
            # The entry of a version that is not indexed yet would come when the version is gone.
            bound = min(bound, self.indexer.indexed_time)
        return self._applier.collect(bound, cursor, bytes_max, self.indexer.collected)

    def begin_collection(self) -> None:
        """Note the start of a complete collection: `changed_from` counts from here on."""
        self._applier.begin_collection()

    @property
    def changed_from(self) -> int:
        """The earliest commit time applied since then: 0 when unknown, TIME_MAX without any."""
        return self._applier.changed_from

    def digest(
        self,
        as_of: int | None = None,
        start_hash: int = 0,
        end_hash: int = HASH_SPACE,
        ranges: int = 16,
        rest: Rest = no_rest,
    ) -> tuple[list[str], list[int]]:
        """Return hex digest and row count of each of `ranges` even cuts of a hash range (B-04).

        `rest` is called after each slice that is read.
        """
        bound = self._time(as_of)
        bounds = cuts(start_hash, end_hash, ranges)
        results = [
            digest_range(self.engine, bound, hash_bound(low) or b"", hash_bound(high), rest)
            for low, high in itertools.pairwise(bounds)
        ]
        return [digest for digest, _ in results], [rows for _, rows in results]

    # --- snapshots --------------------------------------------------------------------------

    def open_snapshot(
        self,
        reader: str,
        resume_after: bytes = b"",
        batch_bytes: int = 2 << 20,
        *,
        end_row_id: bytes | None = None,
    ) -> SnapshotSource:
        """Open a snapshot of the applied state, rows after `resume_after` (SS-01..03, SS-06).

        `end_row_id` bounds it to a range of rows, for a copy of a part of the partition.
        """
        with self._changed:
            # An entry that is half applied belongs to no offset: wait for its end.
            while self._applier.mid_entry:
                self._changed.wait(0.1)
            return self._snapshots.open(
                self.engine,
                self._snapshot_header,
                reader=reader,
                after=resume_after,
                end=end_row_id,
                batch_bytes=batch_bytes,
            )

    def open_source(self, ticket: SnapshotTicket) -> "SnapshotSource | FileSnapshot":
        """Open a snapshot in the form that suits all its receivers.

        Files, when they can open those of this engine and the partition is worth it; else rows.
        """
        engine = self.engine
        large = engine.bytes_estimate() >= self._config.checkpoints.bytes_min
        if engine.file_format and engine.file_format in ticket.formats and large:
            try:
                return self.open_files(ticket.held, ticket.batch_bytes)
            except OSError as error:
                _log.warning("no file snapshot, rows instead", error=str(error))
        return self.open_snapshot(ticket.reader, ticket.resume_after, ticket.batch_bytes)

    def open_files(self, held: HeldFiles | None = None, chunk_bytes: int = 2 << 20) -> FileSnapshot:
        """Open a file snapshot of the applied state, of what is not `held` (HS-07, SS-06).

        OSError when the file system makes no links.
        """
        found = self._checkpoints.reopen(held, chunk_bytes)
        if found is not None:
            return found
        self.indexer.catch_up()
        self.engine.flush()  # most of it, while everything else goes on
        with self._applier.mutex, self._changed:
            # The files bring the index along: it must stand where they do, for no log is sent.
            self.indexer.catch_up()
            # Again, because this one releases the interpreter and the checkpoint does not.
            self.engine.flush()
            header = self._snapshot_header(self._config.new_id())
            return self._checkpoints.make(self.engine, header, held, chunk_bytes)

    def snapshot_floors(self, handover_seconds: float) -> list[int]:
        """Return the offsets from which receivers of snapshots will follow the log.

        Of snapshots under way, and of those that ended no longer ago than this.
        """
        return [*self._snapshots.floors(handover_seconds), *self._checkpoints.floors()]

    @property
    def log_bytes(self) -> int:
        """The bytes of the log's files."""
        return self._log.size

    def expire_snapshots(self) -> None:
        """Remove checkpoints that are idle, too old or take too much room; called now and then."""
        self._checkpoints.expire()

    def limit_tail(self, bytes_max: int) -> None:
        """Hold so many bytes of recent log entries at most, and what the configuration allows."""
        self._log.limit_tail(min(bytes_max, self._config.log_tail_bytes))

    @property
    def tail_bytes(self) -> int:
        """The bytes of recent log entries held in memory."""
        return self._log.memory_bytes

    @property
    def snapshots_read(self) -> int:
        """How many scans and file snapshots are read."""
        return self._snapshots.scans + self._checkpoints.readers

    def snapshot_memory_bytes(self) -> int:
        """Return what the snapshots that are read hold in memory (SS-07)."""
        return self._snapshots.memory_bytes()

    @property
    def snapshot_waited_seconds(self) -> float:
        """How long applying has waited because that memory was at its limit."""
        return self._snapshots.waited_seconds

    def pinned_bytes(self) -> int:
        """Return the disk room of files that only checkpoints still hold."""
        return self._checkpoints.pinned_bytes()

    def _snapshot_header(self, snapshot_id: str) -> SnapshotHeader:
        state = self._applier.state
        return SnapshotHeader(
            snapshot_id=snapshot_id,
            offset=state.offset,
            commit_time=state.commit_time,
            leader_epoch=state.leader_epoch,
            failover_log=branches_until(self.meta.failover_log, state.offset),
            writers=self._writers.export(),
            transactions=self._transactions.export(state.offset),
            rows_estimate=self._versions_estimate(),
        )

    def bulk_loader(self, header: SnapshotHeader, attempt: str) -> Loader:
        """Begin or go on receiving a snapshot; the attempt before is fenced off (SS-08, B-05).

        The source must have been asked for what `copy_state` says. Without a copy under way the
        partition is reset first. Indexes are whole when the copy is done (SS-05).
        `ConflictError` with detail `done` when the copy is complete, with detail `restart` when
        this snapshot cannot complete what another began: the copy then starts from nothing.
        """
        return self._incoming.begin(header, attempt)

    def copy_state(self) -> CopyState:
        """Return where the copy stands durably; empty without one (B-05)."""
        return self._incoming.state()

    # --- end --------------------------------------------------------------------------------

    def close(self) -> None:
        """Flush and close; snapshots end, what was appended is made durable. Safe to repeat."""
        self._end_snapshots(-1, "the partition was closed")
        with self._applier.mutex:
            if self._closed:
                return
            self._closed = True
            try:
                self.sync()
                self.flush()
                self.update_meta()
            finally:
                self._stop()

    def _stop(self) -> None:
        with self._changed:
            self._end_snapshots(-1, "the partition was closed")
            self._incoming.forget()
        self.engine.close()

    def _end_snapshots(self, offset: int, reason: str) -> None:
        """End the snapshots that start above `offset`; frees an applier that waits for them.

        So it comes before taking the applier's mutex, which that applier holds.
        """
        with self._changed:
            self._snapshots.close_beyond(offset, reason)
            self._checkpoints.close_beyond(offset, reason)

    def destroy(self) -> None:
        """Close and delete the partition's directory. Safe to repeat."""
        self._end_snapshots(-1, "the partition was destroyed")
        with self._applier.mutex:
            if not self._closed:
                self._closed = True
                self._stop()
            if self._directory.exists():
                # Renamed first: a crash must not leave half a partition under its name.
                trash = self._directory.with_name(self._directory.name + ".trash")
                shutil.rmtree(trash, ignore_errors=True)
                self._directory.rename(trash)
                sync_directory(self._directory.parent)
                shutil.rmtree(trash)
            self.forget_damaged()
