"""The durable state of one partition on one data node: log, engine, meta, snapshots.

A partition is one directory: `log/`, `engine/` (or what the meta names), `meta.journal`, `marks`,
`checkpoints/` for file snapshots.
Followers and leaders append to the log and sync it; the committed part is applied to the engine
later, in large slices. Order of locks: a loader's lock, the applier's mutex, the partition's
condition, the log's lock; each may be taken while holding those before it, never the other way.

Concurrency: thread-safe. One thread at a time may append (truncate, reset and trim count as
appending) and one may apply; reads, scans, snapshots and `sync` run beside them.
"""

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from rezone.storage.applier import Applier, Collected
from rezone.storage.copies.incoming import Incoming
from rezone.storage.copies.outgoing import Outgoing
from rezone.storage.copies.range_ingest import RangeIngest
from rezone.storage.disk import partition_directory
from rezone.storage.disk.syncing import make_directory, sync_directory
from rezone.storage.engines.base import TIME_MAX, Engine, OnDamage
from rezone.storage.engines.rocks import manifest_of
from rezone.storage.index.indexer import Indexer
from rezone.storage.log.entry import Entry, EntryKind, iter_entries
from rezone.storage.log.log import PartitionLog
from rezone.storage.log.older_file import LogStand, OlderFile
from rezone.storage.reshard.reshard_entries import note_of, producers_of
from rezone.storage.reshard.reshard_table import ReshardTable
from rezone.storage.row_reader import RowReader
from rezone.storage.snapshot.snapshot import Snapshots
from rezone.storage.state.facts import Facts
from rezone.storage.state.meta import PartitionMeta
from rezone.storage.state.producers import (
    PRODUCER_BYTES,
    ProducerState,
    ProducerTable,
    producer_key,
)
from rezone.storage.state.seal import LogSeal
from rezone.storage.store_config import StoreConfig
from rezone.storage.transactions.transactions import TransactionTable
from rezone.wire.errors import ConflictError, CorruptionError
from rezone.wire.messages import PartitionId, ReshardPosition, SealMark

_OLDER_FILE_FACTOR = 4
_OLDER_FILE_BYTES = 16 << 20
"""A file that comes from another replica has so many bytes more than that multiple at most."""


class ResetNeededError(ConflictError):
    """Raised when a rollback goes below the kept log: the way on is `reset` and a snapshot."""


class IngestedRowsMissingError(ConflictError):
    """Raised for an entry whose rows have come past the log, and not to here: a copy must come."""


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
        self._changed = config.condition()
        self._closed = False
        make_directory(directory)
        self._on_damage: OnDamage = lambda _: None
        self._facts = Facts(
            directory,
            PartitionMeta(partition=config.partition),
            lambda: self._log.durable_end,
            config.sync_times,
        )
        self._log = PartitionLog(
            directory / "log",
            segment_bytes=config.log_segment_bytes,
            tail_bytes=config.log_tail_bytes,
            durable=self._facts.known_durable,
            sync_times=config.sync_times,
        )
        self._log.on_damage = self._damaged
        self._snapshots = Snapshots(self._changed, config.snapshot, config.clock, config.new_id)
        self._producers = ProducerTable(
            config.producers_max, int(config.producer_seconds_min * 1_000_000)
        )
        self._transactions = TransactionTable(
            config.transactions_known_max,
            int(config.transaction_seconds_max * 1_000_000),
            config.open_intents,
            config.ended_transactions,
        )
        self._reshard_table = ReshardTable()
        self._seal = LogSeal()
        engine = self._open_engine()
        try:
            self._begin(engine)
        except BaseException:
            self._transactions.close()
            engine.close()
            raise

    def _begin(self, engine: Engine) -> None:
        """Put the parts together around the engine, and bring them to one state."""
        self._applier = Applier(
            engine,
            self._log,
            self._producers,
            self._snapshots,
            self._changed,
            transactions=self._transactions,
            reshard_table=self._reshard_table,
            seal=self._seal,
            slice_bytes=self._config.apply_slice_bytes,
            slice_rows=self._config.apply_slice_rows,
            committed=lambda: self._facts.committed,
        )
        self.indexer = Indexer(self._config.table, self._applier, self._log, lambda: self.meta)
        self.reader = RowReader(self, self.indexer)
        self.outgoing = Outgoing(
            self._directory,
            self._config,
            applier=self._applier,
            log=self._log,
            snapshots=self._snapshots,
            producers=self._producers,
            transactions=self._transactions,
            reshard_table=self._reshard_table,
            seal=self._seal,
            indexer=self.indexer,
            changed=self._changed,
            history=lambda: self.meta.failover_log,
            committed=lambda: self.committed,
        )
        self.incoming = Incoming(
            self,
            self._directory,
            self._config,
            applier=self._applier,
            log=self._log,
            producers=self._producers,
            changed=self._changed,
            indexer=self.indexer,
        )
        self.range_ingest = RangeIngest(
            self._applier,
            self.indexer,
            self._reshard_table,
            self._changed,
            self.flush,
            slice_bytes=self._config.apply_slice_bytes,
            slice_rows=self._config.apply_slice_rows,
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

    def _open_engine(self) -> Engine:
        directory = self._directory / self.meta.engine
        number, size = manifest_of(directory)
        if number == self._facts.marks.manifest[0] and size < self._facts.marks.manifest[1]:
            # RocksDB would take an older state for the newest, and remove the files of the newest.
            raise CorruptionError(f"{directory}: the end of MANIFEST-{number:06d} is gone")
        return self.open_engine_in(directory)

    def open_engine_in(self, directory: Path) -> Engine:
        """Open an engine of this partition's kind, whose damage is this partition's."""
        engine = self._config.open_engine(self._config.engine, directory, self._config.rocks)
        engine.on_damage = self._damaged
        return engine

    def tell_damage(self, told: OnDamage) -> None:
        """Have damage that is found told to `told`, which is called under any locks."""
        self._on_damage = told

    def _damaged(self, error: CorruptionError) -> None:
        self._on_damage(error)

    def _recover(self) -> None:
        self.incoming.clear()
        if self.meta.resetting:
            self.reset()
        copy = self.meta.copy
        if copy is not None and not self.engine.durable:
            self.update_meta(copy=None)
        state = self._applier.state
        if max(state.offset, self._log.end) < self._facts.known_durable:
            raise CorruptionError(
                f"{self._directory}: the log ends at {self._log.end}, the engine at "
                f"{state.offset}; durable were {self._facts.known_durable}"
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
            self._producers.rebuild(self._log.headers(state.offset))
            self._note_special(state.offset)
        if self.meta.serial and not self.meta.needs_snapshot:
            self.forget_damaged()

    def forget_damaged(self) -> None:
        """Remove what was quarantined as damaged: the partition is whole again."""
        partition_directory.forget_damaged(self._directory)

    # --- facts ------------------------------------------------------------------------------

    @property
    def engine(self) -> Engine:
        """The engine; only for reading outside of this package's own modules."""
        return self._applier.engine

    @property
    def meta(self) -> PartitionMeta:
        """The durable facts; `committed_offset` in it may be behind `committed`."""
        return self._facts.meta

    def update_meta(self, *, durable: bool = True, **changes: Any) -> PartitionMeta:
        """Change fields of the meta; durably before this returns, or with the next change."""
        return self._facts.update(durable=durable, **changes)

    @property
    def log_start(self) -> int:
        """The offset of the oldest entry kept."""
        return self._log.start

    @property
    def log_file_bytes(self) -> int:
        """About how many bytes a file of the log has."""
        return self._config.log_segment_bytes

    @property
    def log_start_time(self) -> int:
        """The time from which `offset_after` goes on: all later entries are kept."""
        return self._log.start_time

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
        return self._facts.committed

    def note_committed(self, offset: int) -> None:
        """Remember a committed offset; it reaches the disk with the next change of the meta."""
        self._facts.committed = max(self._facts.committed, offset)

    def sizes(self) -> StoreSizes:
        """Return estimates of what the partition takes."""
        engine = self.engine
        return StoreSizes(
            versions=self.indexer.versions_estimate(),
            engine_bytes=engine.bytes_estimate(),
            log_bytes=self._log.size,
            memory_bytes=engine.memory_bytes()
            + self._log.memory_bytes
            + self.outgoing.memory_bytes(),
        )

    # --- log --------------------------------------------------------------------------------

    def append(self, entries: bytes | memoryview) -> int:
        """Append whole raw entries at `log_end`; return the new one. Not durable before `sync`.

        All or nothing: `CorruptionError` for a bad checksum, `ConflictError` when offsets do not
        join, a leader epoch falls, a commit time does not rise, or the log is sealed.
        `IngestedRowsMissingError` for an entry of rows that came past the log, and not to here.
        """
        sealed = self._seal.mark is not None
        headers = self._log.append(entries, sealed=sealed, check=self._require_ingested)
        with self._changed:
            self._producers.note(headers)
            if any(header.kind for header in headers):
                self._note_entries(list(iter_entries(entries)))
        return self._log.end

    def _require_ingested(self, entries: Sequence[Entry]) -> None:
        """Refuse entries of rows that are not on the disk here."""
        for entry in entries:
            if entry.header.kind == EntryKind.RESHARD_BACKFILL:
                mark = note_of(entry).ingested
                if mark is not None and not self.range_ingest.has_durable(mark):
                    raise IngestedRowsMissingError(
                        f"entry at {entry.header.base_offset}: rows of partition {mark.source} "
                        "were ingested at other replicas and not at this one"
                    )

    def sync(self) -> int:
        """Make what was appended durable; return `durable_end`. Concurrent calls share one sync."""
        end = self._log.sync()
        self._facts.marks.log_reaches(end)
        return end

    def read(self, offset: int, bytes_max: int) -> bytes:
        """Return whole raw entries from `offset` on, at least one, about `bytes_max`; b"" at end.

        `ConflictError` when no entry begins there; `SnapshotExpiredError` (detail `log_start`)
        when the log no longer reaches back to it.
        """
        return self._log.read(offset, bytes_max)

    def offset_after(self, time: int) -> int:
        """Return where the first log entry with a later commit time begins, the end without any.

        `SnapshotExpiredError` (detail `log_time`) when later ones may have been trimmed.
        """
        return self._log.offset_after(time)

    def stand_before(self, offset: int) -> LogStand:
        """Return where the log's file begins that has the entry before `offset`.

        `SnapshotExpiredError` when that entry was trimmed, or there is none.
        """
        return self._log.stand_before(offset)

    def receive_older(self, begin: LogStand) -> OlderFile:
        """Begin to receive the log's file that goes before its oldest one."""
        bytes_max = _OLDER_FILE_FACTOR * self._config.log_segment_bytes + _OLDER_FILE_BYTES
        return self._log.receive_older(begin, bytes_max)

    def log_bytes_from(self, offset: int) -> int:
        """Return about how many bytes the log has from an offset on."""
        return self._log.bytes_from(offset)

    def trimmable(self, retention_bytes: int) -> int:
        """Return the offset to which so many bytes of log would be trimmed."""
        return self._log.trimmable(retention_bytes)

    def truncate(self, offset: int) -> None:
        """Remove the log from `offset` on and undo it in the engine, durably (DCP-05).

        `offset` is the beginning of an entry. `ResetNeededError` below `log_start`, or below where
        the last copy stood: what came before it was never undone here.
        """
        copy = self.meta.copy
        first = max(self._log.start, copy.offset if copy is not None and copy.done else 0)
        if offset < first:
            raise ResetNeededError(f"the log can be undone from {first} on, {offset} is below")
        self.outgoing.end_beyond(offset, "the partition was rolled back")
        with self._applier.mutex:
            if offset == self._log.end:
                return
            self._log.stand_at(offset)  # refuses an offset inside an entry before anything is done
            if offset < self._facts.committed:
                self._facts.committed = offset
                self.update_meta()
            self.indexer.undo(offset)
            self._applier.undo(offset)
            self._facts.marks.log_is_cut(offset)
            self._log.truncate(offset)
            with self._changed:
                self._producers.rebuild(self._log.headers(self.applied))
                self._transactions.set_back(offset)
                self._reshard_table.forget_appended()
                self._seal.forget_appended()
                self._note_special(self.applied)

    def reset(self) -> None:
        """Drop everything but epochs and revision: empty engine, empty log at 0 (RM: start over).

        A crash in between is completed when the store is opened again. A store in which nothing
        ever was is left as it is: opening another engine takes milliseconds, in which the whole
        node stands still, and every first copy of a replica begins here.
        """
        self.outgoing.end_all("the partition was reset")
        with self._applier.mutex:
            if self._is_reset():
                self.incoming.forget()
                self.incoming.clear()
                return
            self._facts.committed = 0
            self.update_meta(resetting=True, copy=None, needs_snapshot=True, committed_offset=0)
            self._facts.marks.log_is_cut(0)
            with self._changed:
                self.outgoing.end_all("the partition was reset")
                self.incoming.forget()
                self.engine.close()
                shutil.rmtree(self._directory / self.meta.engine, ignore_errors=True)
                self._log.restart(0, 0, 0)
                self._applier.engine = self._open_engine()
                self._applier.load()
                self.indexer.load()
            self.incoming.clear()
            # Else a crash may take the new engine with its name, or bring the old one back.
            sync_directory(self._directory)
            self.update_meta(resetting=False, failover_log=(), partition_uuid="")

    def _is_reset(self) -> bool:
        """Whether everything is as `reset` leaves it."""
        meta, log = self.meta, self._log
        left = PartitionMeta(needs_snapshot=True)
        facts = ("copy", "needs_snapshot", "resetting", "failover_log", "partition_uuid", "damage")
        if any(getattr(meta, fact) != getattr(left, fact) for fact in facts) or self.committed:
            return False
        if (log.start, log.end, log.last_time, log.last_epoch) != (0, 0, 0, 0):
            return False
        rows = self.engine.scan_chains(b"", None, rows_max=1, bytes_max=1)
        return not rows.keys and not self.engine.state()

    @property
    def log_bytes(self) -> int:
        """The bytes of the log's files."""
        return self._log.size

    def limit_tail(self, bytes_max: int) -> None:
        """Hold so many bytes of recent log entries at most, and what the configuration allows."""
        self._log.limit_tail(min(bytes_max, self._config.log_tail_bytes))

    @property
    def tail_bytes(self) -> int:
        """The bytes of recent log entries held in memory."""
        return self._log.memory_bytes

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
        if offset < self._log.start:
            return True  # another reader came upon it as well, and this one is told later
        end = self._log.end_of_file(offset)
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
        self._facts.marks.engine_is_at(self.engine.manifest())
        return reached

    @contextlib.contextmanager
    def transactions(self) -> Iterator[TransactionTable]:
        """Give the table of transactions, locked; what is in the log counts, applied or not."""
        with self._changed:
            yield self._transactions

    @property
    def has_open_transactions(self) -> bool:
        """Whether any transaction is open; without a lock, so as of about now."""
        return self._transactions.open_count > 0

    def reshard_position(self, source: PartitionId) -> ReshardPosition | None:
        """Return how far the log has pulled another partition's; None when not at all."""
        with self._changed:
            return self._reshard_table.get(source)

    def applied_reshards(self) -> tuple[ReshardPosition, ...]:
        """Return how far each partition that was pulled is applied."""
        with self._changed:
            return self._reshard_table.export()

    def applied_reshard(self, source: PartitionId) -> ReshardPosition | None:
        """Return how far another partition's is pulled and applied; None when not at all."""
        with self._changed:
            return self._reshard_table.get_applied(source)

    @property
    def backfilling(self) -> bool:
        """Whether rows that other partitions had before are to come; without a lock, about now."""
        return self._reshard_table.backfilling

    @property
    def backfilled_rows(self) -> int:
        """How many backfilled rows the log has taken since it was opened; also without a lock."""
        return self._reshard_table.backfilled_rows

    @property
    def seal(self) -> SealMark | None:
        """The seal that the log ends with, committed or not; None while it goes on."""
        return self._seal.mark

    def _note_special(self, offset: int) -> None:
        """Take into account what the log holds from `offset` on beside rows and producers."""
        for header in self._log.headers(offset):
            if header.kind != EntryKind.PLAIN:
                self._note_entries(list(iter_entries(self._log.read(header.base_offset, 1))))

    def _note_entries(self, entries: list[Entry]) -> None:
        self._producers.note_backfilled(producers_of(entries))
        self._transactions.note(entries)
        self._reshard_table.note(entries)
        self._seal.note(entry.header for entry in entries)

    def producer(
        self, producer_id: bytes, sent_to: PartitionId
    ) -> tuple[int, ProducerState | None]:
        """Return a producer's highest epoch, 0 without one, and its last batch to a partition.

        By the whole log and what was before it.
        """
        with self._changed:
            known = self._producers.get(producer_key(producer_id, sent_to))
            return self._producers.epoch(producer_id), known

    def next_producer_epoch(self, producer_id: bytes) -> int:
        """Return the epoch that the next opening of a producer gives."""
        with self._changed:
            return self._producers.next_epoch(producer_id)

    def limit_producers(self, bytes_max: int) -> None:
        """Remember so many bytes of producers at most, and what the configuration allows."""
        with self._changed:
            self._producers.producers_max = min(
                bytes_max // PRODUCER_BYTES, self._config.producers_max
            )

    def limit_ended(self, bytes_max: int) -> None:
        """Let transactions begin while it has fewer bytes of ended ones, whatever others have."""
        with self._changed:
            self._transactions.ended_share = bytes_max

    def has_room_for_producer(self, now: int) -> bool:
        """Whether a producer that is not known may write at `now`, in microseconds since 1970."""
        with self._changed:
            return self._producers.has_room(now)

    @property
    def producer_bytes(self) -> int:
        """The bytes of what is remembered of producers."""
        return len(self._producers) * PRODUCER_BYTES

    def collect(self, before_time: int, cursor: bytes, bytes_max: int) -> Collected:
        """Remove versions that reads at or after `before_time` cannot see, one slice from `cursor`.

        Never what an undo of uncommitted entries could need; nothing while a snapshot runs, or
        while what is here is a part of one: another attempt may go on with it.
        """
        if self.meta.needs_snapshot:
            return Collected(cursor, 0, TIME_MAX)
        bound = min(before_time, self._applier.committed_time(self._facts.committed))
        if self.indexer.enabled:
            # The entry of a version that is not indexed yet would come when the version is gone.
            bound = min(bound, self.indexer.indexed_time)
            if self._reshard_table.sources and self.indexer.lag_rows:
                bound = 0  # what is pulled comes with any time
        with self._changed:
            if self._reshard_table.backfilling or self._reshard_table.backfills_engine:
                bound = 0  # a tombstone may be removed before what it covers has come
        return self._applier.collect(bound, cursor, bytes_max, self.indexer.collected)

    def begin_collection(self) -> None:
        """Note the start of a complete collection: `changed_from` counts from here on."""
        self._applier.begin_collection()

    @property
    def changed_from(self) -> int:
        """The earliest commit time applied since then: 0 when unknown, TIME_MAX without any."""
        return self._applier.changed_from

    # --- end --------------------------------------------------------------------------------

    def close(self) -> None:
        """Flush and close; snapshots end, what was appended is made durable. Safe to repeat.

        OSError when the engine has readers that do not end: the next call closes it, once they do.
        """
        self.outgoing.end_all("the partition was closed")
        with self._applier.mutex:
            try:
                if not self._closed:
                    self._closed = True
                    self.sync()
                    self.flush()
                    self.update_meta()
            finally:
                self._stop()

    def _stop(self) -> None:
        with self._changed:
            self.outgoing.end_all("the partition was closed")
            self.incoming.forget()
            self._transactions.close()
        # At each call: one that ran out of time has left it open.
        self.engine.close()

    def abandon(self) -> None:
        """Close without writing anything: what is in memory counts for nothing. Safe to repeat.

        OSError as `close`.
        """
        self.outgoing.end_all("the partition is opened again")
        with self._applier.mutex:
            self._closed = True
            self._stop()

    def distrust(self, durable_end: int) -> None:
        """Drop what a failed sync may have lost, though it can be read still.

        The log from `durable_end` on, and what is held in memory of the facts alone: those are
        written again, to another file.
        """
        self._facts.write_again()
        if self._log.start <= durable_end < self._log.end:
            self.truncate(durable_end)

    def destroy(self) -> None:
        """Close and delete the partition's directory. Safe to repeat.

        OSError, and nothing is deleted, when the engine has readers that do not end.
        """
        self.outgoing.end_all("the partition was destroyed")
        with self._applier.mutex:
            self._closed = True
            self._stop()
            partition_directory.remove(self._directory)
