"""From log to engine and back: applying, undoing and collecting versions of one partition.

One at a time applies, undoes or loads (`mutex`); the partition's condition is held per slice of
about a megabyte or two thousand rows, so nobody else waits longer than that. An entry larger
than a slice is written in several steps; the applied offset moves with the last of them, and
reads look no further than the applied commit time, so an entry shows whole or not at all.
Its keys and values are made by kernels of Arrow, slice by slice (docs/decisions/0450).

What a crash leaves is right in each case: the engine's state names the applied offset of the
same step, and everything beyond it is written again from the log.
- An entry in several steps is made durable in the log first: parts of an entry that the log
  lost could not be told from rows.
- An undo lowers the applied offset in its first step, is flushed, and only then is the log cut.
"""

import itertools
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from rezone.storage.engines.base import (
    FLAG_INTENT,
    FLAG_TOMBSTONE,
    FLAGS,
    TIME_BYTES,
    TIME_MAX,
    Chains,
    Engine,
    Pairs,
    behind,
    slices_of,
    time_of,
    time_suffix,
)
from rezone.storage.log.entry import RESHARD_KINDS, Entry, EntryHeader, EntryKind, iter_entries
from rezone.storage.log.log import PartitionLog
from rezone.storage.reshard.reshard_entries import (
    earliest_time,
    producers_of,
    rows_of,
    version_time,
    versions_of,
)
from rezone.storage.reshard.reshard_table import ReshardTable
from rezone.storage.snapshot.columns import engine_pairs, slices_of_versions
from rezone.storage.snapshot.snapshot import Snapshots
from rezone.storage.state.producers import ProducerTable
from rezone.storage.state.records import unpacked
from rezone.storage.state.seal import LogSeal
from rezone.storage.transactions.intents import owner_of
from rezone.storage.transactions.transactions import TransactionTable
from rezone.wire.errors import ConflictError, CorruptionError

_STATE = struct.Struct(">QQQ")
_STATE_NAME = b"applied"
_LOG_READ_BYTES = 4 << 20
_BY_ROWS = frozenset({EntryKind.INTENTS, EntryKind.ABORT})
"""Entries whose values are no row's bytes behind a flag."""

CollectEntries = Callable[
    [Sequence[bytes], Sequence[bytes]], tuple[list[bytes], dict[bytes, bytes | None]]
]


class AppliedState(NamedTuple):
    """Up to where the log is in the engine: offset, and the last entry's commit time and epoch."""

    offset: int
    commit_time: int
    leader_epoch: int

    @classmethod
    def load(cls, state: dict[bytes, bytes]) -> "AppliedState":
        """Return what the engine's named state says."""
        record = state.get(_STATE_NAME)
        return cls(*unpacked(_STATE, record)) if record else cls(0, 0, 0)

    def record(self) -> dict[bytes, bytes | None]:
        """Return the named state for the engine."""
        return {_STATE_NAME: _STATE.pack(*self)}


class Collected(NamedTuple):
    """One slice of a collection: where to go on (None at the end) and versions removed.

    `next_time` is the earliest bound at which more of the slice can be removed, TIME_MAX for never.
    """

    cursor: bytes | None
    removed: int
    next_time: int


class Applier:
    """The one that changes the engine of a partition."""

    def __init__(
        self,
        engine: Engine,
        log: PartitionLog,
        producers: ProducerTable,
        snapshots: Snapshots,
        changed: threading.Condition,
        *,
        transactions: TransactionTable,
        reshard_table: ReshardTable,
        seal: LogSeal,
        slice_bytes: int,
        slice_rows: int,
        committed: Callable[[], int],
    ) -> None:
        self.mutex = threading.RLock()
        self.engine = engine
        self._log = log
        self._producers = producers
        self._transactions = transactions
        self._reshard_table = reshard_table
        self._seal = seal
        self._committed = committed
        self._snapshots = snapshots
        self._changed = changed
        self._slice_bytes = slice_bytes
        self._slice_rows = slice_rows
        self.mid_entry = False
        self.flushed = 0
        self.changed_from = 0
        self.load()

    def load(self) -> None:
        """Take over what the engine says it has applied."""
        state = self.engine.state()
        self.state = AppliedState.load(state)
        self._producers.load(state)
        self._transactions.load(state)
        self._reshard_table.load(state)
        self._seal.load(state)
        self.flushed = self.state.offset
        # Whatever versions the engine came with, nobody has looked at them yet.
        self.changed_from = 0

    def apply_to(self, offset: int) -> int:
        """Apply the whole entries below `offset`; return the applied offset."""
        with self.mutex:
            while self.state.offset < offset:
                data = self._log.read(self.state.offset, _LOG_READ_BYTES)
                entries = [e for e in iter_entries(data) if e.header.end_offset <= offset]
                if not entries:
                    break
                for group in self._groups(entries):
                    self._apply_group(group)
            return self.state.offset

    def _groups(self, entries: list[Entry]) -> Iterator[list[Entry]]:
        """Cut entries into groups of about a slice; one that is larger stands alone."""
        group: list[Entry] = []
        size = rows = 0
        for entry in entries:
            rows += _rows(entry.header)
            size += entry.header.length
            if group and (size > self._slice_bytes or rows > self._slice_rows):
                yield group
                group, size, rows = [], entry.header.length, _rows(entry.header)
            group.append(entry)
        if group:
            yield group

    def _apply_group(self, group: list[Entry]) -> None:
        headers = [entry.header for entry in group]
        if any(header.kind for header in headers):
            with self._changed:
                self._transactions.note(group)
                self._reshard_table.note(group)
        if len(group) == 1 and self._is_large(headers[0]):
            self._log.sync()
            for part in self._sliced_entry(group[0]):
                self._load(*part)
            self._write([], group)
        else:
            self._write([pair for entry in group for pair in pairs_of(entry)], group)

    def _is_large(self, header: EntryHeader) -> bool:
        """Whether an entry is cut; not for a little more than a slice."""
        return header.length > 2 * self._slice_bytes or _rows(header) > 2 * self._slice_rows

    def _sliced(self, pairs: Pairs) -> Iterator[Pairs]:
        return slices_of(pairs, self._slice_bytes, self._slice_rows)

    def _sliced_entry(self, entry: Entry) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """Yield the keys and values of a large entry, in its order, cut into slices."""
        if entry.header.kind in _BY_ROWS:
            for part in self._sliced(pairs_of(entry)):
                yield [key for key, _ in part], [value for _, value in part]
            return
        for versions in slices_of_versions(versions_of(entry), self._slice_bytes, self._slice_rows):
            yield engine_pairs(versions)

    def _load(self, keys: list[bytes], values: list[bytes]) -> None:
        """Write a slice of an entry that is not complete with it."""
        self.engine.make_room()
        with self._changed:
            self._prepare(keys)
            self.mid_entry = True
            self.engine.load(keys, values)

    def load_past_log(self, keys: list[bytes], values: list[bytes]) -> None:
        """Write a slice of versions that no entry brings, under the mutex."""
        self.engine.make_room()
        with self._changed:
            self._prepare(keys)
            self.engine.load(keys, values)
            self.changed_from = 0  # of any time

    def _prepare(self, keys: list[bytes]) -> None:
        """Have snapshots keep what they need of rows that change."""
        self._snapshots.wait_for_room()
        if self._snapshots.active:
            self._snapshots.before_change(keys)

    def _write(self, pairs: Pairs, finished: list[Entry]) -> None:
        """Write the last versions of some entries, and that these are applied."""
        self.engine.make_room()
        with self._changed:
            self._prepare([key for key, _ in pairs])
            headers = [entry.header for entry in finished]
            # Most entries are plain, and change nothing but the table of producers.
            special = [entry for entry in finished if entry.header.kind]
            last = headers[-1]
            state = AppliedState(last.end_offset, last.commit_time, last.leader_epoch)
            changes = self._producers.advance(headers, producers_of(special))
            changes.update(self._transactions.advance(finished, self._committed()))
            changes.update(self._reshard_table.advance(special))
            changes.update(self._seal.advance(entry.header for entry in special))
            self.engine.apply(pairs, (), {**changes, **state.record()})
            self.state = state
            self.mid_entry = False
            first = next((each.commit_time for each in headers if not each.kind), TIME_MAX)
            self.changed_from = min(self.changed_from, first, *map(earliest_time, special))
            self._changed.notify_all()

    def undo(self, offset: int) -> None:
        """Take the entries from `offset` on out of the engine, durably; the log still has them.

        Deletes exactly their versions, so what they covered shows again.
        """
        with self.mutex:
            before = self.state.offset
            if before < offset:
                return
            time, epoch = self._log.stand_at(offset)
            state = AppliedState(offset, time, epoch)
            with self._changed:
                self._snapshots.close_beyond(offset, "the partition was rolled back")
                undone = [h for h in self._log.headers(offset) if h.base_offset <= before]
                kept = itertools.takewhile(
                    lambda header: header.end_offset <= offset, self._log.headers(self._log.start)
                )
                resharded = [
                    self._entry_at(h.base_offset) for h in undone if h.kind in RESHARD_KINDS
                ]
                changes = self._producers.set_back(
                    undone, kept, offset, time, backfilled=producers_of(resharded)
                )
                changes.update(self._transactions.set_back(offset))
                changes.update(self._reshard_table.set_back(resharded))
                changes.update(self._seal.set_back(offset))
                self.engine.apply((), (), {**changes, **state.record()})
                self.state = state
            for entry in self._entries(offset, before):
                for part in self._sliced(pairs_of(entry)):
                    self._delete([key for key, _ in part])
            self.mid_entry = False
            self.engine.flush()
            self.flushed = offset

    def _entry_at(self, offset: int) -> Entry:
        return next(iter_entries(self._log.read(offset, 1)))

    def _entries(self, offset: int, last_base: int) -> Iterator[Entry]:
        """Yield the entries from `offset` on that begin at or before `last_base`.

        Inclusive: the entry at the applied offset may be in the engine in part.
        """
        while data := self._log.read(offset, _LOG_READ_BYTES):
            for entry in iter_entries(data):
                if entry.header.base_offset > last_base:
                    return
                yield entry
                offset = entry.header.end_offset

    def _delete(self, keys: list[bytes]) -> None:
        self.engine.make_room()
        with self._changed:
            self._prepare(keys)
            self.engine.apply((), keys, {})

    def flush(self) -> int:
        """Make what is applied durable; return the offset up to which it is."""
        reached = self.state.offset
        self.engine.flush()
        self.flushed = max(self.flushed, min(reached, self.state.offset))
        return self.flushed

    def collect(
        self, before_time: int, cursor: bytes, bytes_max: int, indexed: CollectEntries
    ) -> Collected:
        """Remove versions that no read at or after `before_time` can see, one slice.

        With them goes what `indexed` says of them: their entries in indexes, and named state.
        While a snapshot runs nothing is removed: it promises the chains as they were.
        """
        with self.mutex, self._changed:
            self._snapshots.expire_idle()
            if self._snapshots.active:
                return Collected(cursor, 0, TIME_MAX)
            chains = self.engine.scan_chains(cursor, None, rows_max=4096, bytes_max=bytes_max)
            superseded, next_time = collectable(chains, before_time, self._is_over)
            if superseded:
                gone = set(superseded)
                values = [
                    value
                    for key, value in zip(chains.keys, chains.values, strict=True)
                    if key in gone
                ]
                entries, state = indexed(superseded, values)
                self.engine.apply((), [*superseded, *entries], state)
            after = None if chains.end else behind(chains.last_row_id)
            return Collected(after, len(superseded), next_time)

    def _is_over(self, transaction: bytes) -> bool:
        return self._transactions.is_over(transaction, self._committed())

    def begin_collection(self) -> None:
        """Count from now on which versions a complete collection may have come too early for."""
        with self._changed:
            self.changed_from = TIME_MAX

    def committed_time(self, committed: int) -> int:
        """Return the commit time up to which nothing will ever be undone."""
        offset = max(min(committed, self.state.offset), self._log.start)
        if offset == self.state.offset:
            return self.state.commit_time
        try:
            return self._log.stand_at(offset)[0]
        except (ConflictError, CorruptionError):
            return 0


def _rows(header: EntryHeader) -> int:
    return header.end_offset - header.base_offset


def collectable(
    chains: Chains, before_time: int, is_over: Callable[[bytes], bool]
) -> tuple[list[bytes], int]:
    """Return the engine keys that reads at or after `before_time` cannot see.

    Of each chain the newest version at or below that time stays, unless it is a tombstone: then
    its absence says the same. Intents stay while their transaction is open (`is_over`). Beside
    the keys: the earliest time at which others of these may follow, TIME_MAX when none ever will.
    """
    floor = time_suffix(before_time)
    removable: list[bytes] = []
    # The one above a version is what will cover it; the largest suffix is the earliest time.
    row, covered, above, soonest = b"", False, b"", b""
    for key, value in zip(chains.keys, chains.values, strict=True):
        if key[:-TIME_BYTES] != row:
            row, covered, above = key[:-TIME_BYTES], False, b""
        if value[0] == FLAG_INTENT:
            if is_over(owner_of(value)):
                removable.append(key)
            else:
                soonest = max(soonest, key[-TIME_BYTES:])
            continue
        suffix, deleted = key[-TIME_BYTES:], value[0] == FLAG_TOMBSTONE
        if covered or (deleted and suffix >= floor):
            removable.append(key)
        else:
            soonest = max(soonest, above, suffix if deleted else b"")
        covered, above = suffix >= floor, suffix
    return removable, time_of(soonest) if soonest else TIME_MAX


def pairs_of(entry: Entry) -> Pairs:
    """Return the entry's rows as engine keys and values; an abort has none."""
    if entry.header.kind == EntryKind.ABORT:
        return []
    if entry.header.kind == EntryKind.RESHARD_BACKFILL:
        return list(zip(*engine_pairs(versions_of(entry)), strict=True))
    row_ids, ops, values = rows_of(entry).columns
    suffix = time_suffix(version_time(entry))
    owner = entry.header.producer_id if entry.header.kind == EntryKind.INTENTS else b""
    try:
        flags = [FLAGS[op] + owner for op in ops.to_pylist()]
    except IndexError as error:
        raise CorruptionError(f"entry at {entry.header.base_offset}: unknown operation") from error
    return [
        (row_id + suffix, flag + value)
        for row_id, flag, value in zip(row_ids.to_pylist(), flags, values.to_pylist(), strict=True)
    ]
