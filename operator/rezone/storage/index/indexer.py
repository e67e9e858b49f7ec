"""The indexer of one partition: follows what is applied, with an indexed offset of its own.

Entries stand in the partition's engine beside the rows (`INDEX_PREFIX`), one for each *version* of
a row that has a value, under index key, row id and commit time. So they are written blindly as
versions are: following a part of the log again changes nothing, rolling back deletes exactly the
entries of the entries rolled back, and who collects a version deletes exactly its entry. What an
entry says is checked at the row when it is looked up (`lookup`): one whose row has another
version by then is passed over. So an index that has too much is slow, never wrong; one that has
too little is known by its indexed offset, and lookups wait for that.

The indexed offset, and the partition UUID of the branch of history it lies on, change in the same
atomic step of the engine as the entries (DCP-08). An engine that comes as files brings its index
along; a row copy feeds `Arriving` (SS-05). Where the log no longer reaches back to the indexed
offset, or the offset is of another history, the entries are dropped and made again by a scan over
the rows.

Indexes come and go (`redefine`, decision 0125). One that is new follows the log at once, and a scan
brings the rows of before, slice by slice (`build`); until it is over the index is not `built`. The
entries of one that is gone are removed in such slices, and it is not begun again before they
are. Both stand in the same state, so a restart goes on where they were.

Concurrency: changes are made under the applier's mutex, a slice at a time: by the partition's job,
the node's thread that builds, or a lookup that will not wait for them. `stop` keeps everybody from
it.
"""

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from rezone.storage.applier import Applier
from rezone.storage.engines.base import INDEX_PREFIX, TIME_MAX, Chains, behind
from rezone.storage.index.index_entries import (
    Arriving,
    Entries,
    EntryMaker,
    Versions,
    joined,
    upserts_of,
)
from rezone.storage.index.index_search import Asked, Found, search
from rezone.storage.index.index_state import (
    STATE_NAME,
    IndexPart,
    IndexState,
    StateChange,
    state_of_copy,
)
from rezone.storage.log.entry import iter_entries
from rezone.storage.log.log import PartitionLog
from rezone.storage.snapshot.throttle import StepBytes, whole_steps
from rezone.storage.state.history import branch_at
from rezone.storage.state.meta import CopyMeta, PartitionMeta
from rezone.storage.state.records import decoded
from rezone.wire.codec.indexes import IndexCodec, KeyRange, range_of_id
from rezone.wire.codec.schema import IndexId, TableSchema
from rezone.wire.messages import FailoverEntry, IndexPosition

_LOG_READ_BYTES = 1 << 20
_SCAN_BYTES = 512 << 10
_ROWS_PER_SLICE = 1024
_INDEX_END = INDEX_PREFIX + b"\xff"


class Indexer:
    """Keeps the secondary indexes of one partition; does nothing where the table has none."""

    def __init__(
        self,
        table: TableSchema,
        applier: Applier,
        log: PartitionLog,
        facts: Callable[[], PartitionMeta],
    ) -> None:
        self._table = table
        self._wanted = EntryMaker.of(table)
        self._applier = applier
        self._log = log
        self._facts = facts
        self._stopped = False
        self._flushed = 0
        self.dropped = 0
        self.load()

    # --- facts -------------------------------------------------------------------------------

    @property
    def enabled(self) -> bool:
        """Whether there is anything to be indexed."""
        return bool(self._wanted.ids)

    @property
    def wanted(self) -> tuple[IndexId, ...]:
        """The ids of the table's indexes."""
        return self._wanted.ids

    @property
    def position(self) -> IndexPosition:
        """The indexed offset, its partition UUID and the built indexes.

        Nothing while all entries are made again.
        """
        state = self._state
        if state.rebuilding:
            return IndexPosition(0, "")
        built = tuple(part.id for part in state.kept if part.at is None)
        return IndexPosition(state.offset, state.partition_uuid, built)

    @property
    def unbuilt(self) -> tuple[IndexPart, ...]:
        """The table's indexes that do not have all rows yet."""
        begun = {part.id for part in self._state.kept}
        waiting = (IndexPart(index, b"") for index in self._wanted.ids if index not in begun)
        return (*self._state.unbuilt, *waiting)

    def is_unbuilt(self, index: IndexId) -> bool:
        """Whether an index does not have all rows because it is new, or not known here."""
        state = self._state
        return not state.rebuilding and IndexPart(index) not in state.kept

    @property
    def needs_log_from(self) -> int:
        """From where on the log is still to be followed."""
        return self._state.offset if self._state.kept else self._applier.state.offset

    @property
    def flushed(self) -> int:
        """Up to which offset the entries survive a crash."""
        return self._flushed if self._state.kept else self._applier.flushed

    @property
    def lag_rows(self) -> int:
        """How many applied row changes are not indexed yet; all, while entries are made again."""
        return self._applier.state.offset - self.position.offset if self._state.kept else 0

    @property
    def unfollowed_rows(self) -> int:
        """How many applied row changes are still to be followed in the log."""
        return self._applier.state.offset - self.needs_log_from

    @property
    def rebuilding(self) -> bool:
        """Whether all entries are being made again from the rows."""
        return self._state.rebuilding

    @property
    def unfinished(self) -> bool:
        """Whether `build` has something to do: not while a copy brings rows and entries."""
        copy = self._facts().copy
        copied = not self._applier.state.offset and copy is not None and not copy.done
        return not copied and bool(self._state.gone or self._state.unbuilt)

    @property
    def indexed_time(self) -> int:
        """The commit time up to which no version gets an entry any more but by a scan.

        0 while entries are made again.
        """
        if not self._state.kept:
            return TIME_MAX
        return 0 if self._state.rebuilding else self._state.commit_time

    @property
    def entries(self) -> int:
        """About how many entries there are."""
        return self._state.entries

    def versions_estimate(self) -> int:
        """Return about how many versions of rows there are: the engine counts entries too."""
        return max(0, self._applier.engine.versions_estimate() - self.entries)

    @property
    def entry_bytes(self) -> int:
        """About how many bytes the entries take."""
        return self._state.entry_bytes

    # --- which indexes there are ---------------------------------------------------------------

    def load(self) -> None:
        """Take over what the engine says; its indexes become the table's."""
        record = self._applier.engine.state().get(STATE_NAME)
        self._state = IndexState()
        if record is not None:
            self._state = decoded(record, IndexState)
        self._flushed = self._state.offset
        self._settle()

    def redefine(self, table: TableSchema) -> bool:
        """Keep the indexes of a changed table; whether it has changed. By one thread at a time.

        The caller has persisted the table: after a restart `load` does the same.
        """
        if table == self._table:
            return False
        with self._applier.mutex:
            self._table = table
            self._wanted = EntryMaker.of(table)
            self._settle()
        return True

    def _settle(self) -> None:
        """Let go of indexes that the table has no more, and begin those that are new in it.

        One that is being removed is begun when that is over: its entries cannot be told apart.
        """
        state, applied = self._state, self._applier.state
        kept = tuple(part for part in state.kept if part.id in self._wanted.ids)
        gone = state.gone + tuple(
            IndexPart(part.id, b"") for part in state.kept if part.id not in self._wanted.ids
        )
        known = {part.id for part in (*kept, *gone)}
        scanned = b"" if applied.offset else None
        new = tuple(IndexPart(index, scanned) for index in self._wanted.ids if index not in known)
        changed = msgspec.structs.replace(state, kept=kept + new, gone=gone)
        if new and not kept:
            changed = self._standing_at_applied(changed)
        self._maker = self._wanted.only([part.id for part in changed.kept])
        if len(kept) < len(state.kept):
            self.dropped += 1
        if changed != state:
            self._applier.engine.apply((), (), changed.record())
            self._state = changed

    def _standing_at_applied(self, state: IndexState) -> IndexState:
        """Return the state of indexes whose rows of before are brought by a scan."""
        applied = self._applier.state
        return msgspec.structs.replace(
            state,
            offset=applied.offset,
            commit_time=applied.commit_time,
            partition_uuid=branch_at(self._history(), applied.offset),
            rebuilding=False,
        )

    def _history(self) -> tuple[FailoverEntry, ...]:
        return self._facts().failover_log

    # --- following the log -------------------------------------------------------------------

    def stop(self) -> IndexPosition:
        """Index nothing more until `resume`, and return the last position (DCP-08)."""
        with self._applier.mutex:
            self._stopped = True
            return self.position

    def resume(self) -> None:
        """Go on after `stop`."""
        self._stopped = False

    @property
    def stopped(self) -> bool:
        """Whether it has been stopped."""
        return self._stopped

    def step(self) -> bool:
        """Do what is due next, a slice of it; whether there is more to do at once."""
        if self.unfollowed_rows:
            return self.follow() or self.unfinished
        return self.build()

    def follow(self) -> bool:
        """Index the next slice of what is applied; whether there is more."""
        with self._applier.mutex:
            if self._stopped or not self._state.kept:
                return False
            self._keep_to_history()
            if self.unfollowed_rows:
                self._follow_slice()
            return self.unfollowed_rows > 0

    def catch_up(self) -> None:
        """Follow the log as far as it is applied; entries being made again are not waited for."""
        while self.follow():
            pass

    @contextlib.contextmanager
    def flushing(self) -> Iterator[None]:
        """Note what a flush of the engine makes durable of the index."""
        reached = self._state.offset
        yield
        self._flushed = max(self._flushed, min(reached, self._state.offset))

    def _keep_to_history(self) -> None:
        """Make the entries again when they are of another history, or the log begins too late."""
        state = self._state
        too_late = state.offset < self._log.start and state.offset < self._applier.state.offset
        if too_late or state.partition_uuid != branch_at(self._history(), state.offset):
            self._begin_scan()

    def _follow_slice(self) -> None:
        end, commit_time = self._state.offset, 0
        parts: list[Versions] = []
        for entry in iter_entries(self._log.read(end, _LOG_READ_BYTES)):
            if entry.header.end_offset > self._applier.state.offset:
                break
            end, commit_time = entry.header.end_offset, entry.header.commit_time
            parts.append(upserts_of(entry))
        entries = self._maker.entries(joined(parts))
        self._write(entries, offset=end, commit_time=commit_time)

    def _write(self, entries: Entries, **changes: Any) -> None:
        """Write entries, and with the last of them what has changed of the state."""
        offset = changes.get("offset", self._state.offset)
        state = msgspec.structs.replace(
            self._state,
            **changes,
            partition_uuid=branch_at(self._history(), offset),
            entries=self._state.entries + len(entries.keys),
            entry_bytes=self._state.entry_bytes + entries.size,
        )
        # In several steps, of which the last one counts: a large one holds the interpreter.
        for keys, values in entries.slices():
            self._applier.engine.load(keys, values)
        self._applier.engine.apply((), (), state.record())
        self._state = state

    def take_past_log(self, batch: pa.RecordBatch) -> None:
        """Write the entries of versions that no log entry brings, under the applier's mutex.

        The versions, as snapshots have them, are in the engine; the indexed offset stays.
        """
        if not self._state.kept or not batch.num_rows:
            return
        arriving = Arriving(self._maker)
        arriving.take(batch)
        entries = arriving.in_order()
        for keys, values in entries.slices():
            self._applier.engine.load(keys, values)
        state = msgspec.structs.replace(
            self._state,
            entries=self._state.entries + len(entries.keys),
            entry_bytes=self._state.entry_bytes + entries.size,
        )
        self._applier.engine.apply((), (), state.record())
        self._state = state

    # --- building and removing -----------------------------------------------------------------

    def _begin_scan(self) -> None:
        """Drop all entries, and go through the rows that are applied now; the log tells the rest.

        Rows that a copy is bringing have no applied offset yet, and their entries come with them.
        """
        scanned = b"" if self._applier.state.offset else None
        state = IndexState(kept=tuple(IndexPart(part.id, scanned) for part in self._state.kept))
        state = self._standing_at_applied(state)
        self._state = msgspec.structs.replace(state, rebuilding=scanned is not None)
        self._flushed = 0
        self.dropped += 1
        engine = self._applier.engine
        engine.delete_range(INDEX_PREFIX, _INDEX_END)
        engine.apply((), (), self._state.record())
        self._settle()

    def build(self, step_bytes: StepBytes = whole_steps) -> bool:
        """Take the next step of indexes that are gone or new; whether there is more to do.

        `step_bytes` says which part of a slice that may be.
        """
        with self._applier.mutex:
            if self._stopped:
                return False
            if self._state.kept:
                self._keep_to_history()
            if not self.unfinished:
                return False
            slice_bytes = step_bytes(_SCAN_BYTES)
            if self._state.gone:
                self._remove_slice(self._state.gone[0], slice_bytes)
            else:
                self._scan_slice(self._state.unbuilt, slice_bytes)
            return self.unfinished

    def _scan_slice(self, unbuilt: tuple[IndexPart, ...], slice_bytes: int) -> None:
        """Index the next rows, in those indexes that have the fewest; up to where others are."""
        start, others = unbuilt[0].at or b"", [part.at for part in unbuilt]
        end = next((at for at in others if at != start), None)
        chains = self._slice(start, end, slice_bytes)
        reached = end if chains.end else behind(chains.last_row_id)
        kept = tuple(
            IndexPart(part.id, reached) if part.at == start else part for part in self._state.kept
        )
        maker = self._maker.only([part.id for part in unbuilt if part.at == start])
        again = self._state.rebuilding and any(part.at is not None for part in kept)
        self._write(maker.entries_of(chains.keys, chains.values), kept=kept, rebuilding=again)

    def _slice(self, start: bytes, end: bytes | None, slice_bytes: int) -> Chains:
        """Return the next chains: so many bytes, or as many rows as take about as long."""
        rows_max = max(1, _ROWS_PER_SLICE * slice_bytes // _SCAN_BYTES)
        return self._applier.engine.scan_chains(
            start, end, rows_max=rows_max, bytes_max=slice_bytes
        )

    def _remove_slice(self, part: IndexPart, slice_bytes: int) -> None:
        """Remove the next entries of an index that is gone; others may then begin."""
        keys = range_of_id(part.id)
        start = part.at or INDEX_PREFIX + keys.start
        chains = self._slice(start, INDEX_PREFIX + keys.end, slice_bytes)
        left = () if chains.end else (IndexPart(part.id, behind(chains.last_row_id)),)
        state = msgspec.structs.replace(
            self._state,
            gone=(*left, *self._state.gone[1:]),
            entries=max(0, self._state.entries - len(chains.keys)),
            entry_bytes=max(0, self._state.entry_bytes - _bytes_of(chains)),
        )
        self._applier.engine.apply((), chains.keys, state.record())
        self._state = state
        if not left:
            self._settle()

    # --- undoing and collecting --------------------------------------------------------------

    def undo(self, offset: int) -> None:
        """Take the entries from `offset` on back; the log still has them, the rows may (DCP-05).

        Under the applier's mutex and before the rows. Not durable: the undo of the rows flushes.
        """
        if not self._state.kept or self._applier.state.offset < offset:
            return
        indexed = self._state.offset
        if offset < indexed:
            self._state = msgspec.structs.replace(
                self._state,
                offset=offset,
                commit_time=self._log.stand_at(offset)[0],
                partition_uuid=branch_at(self._history(), offset),
            )
            self._applier.engine.apply((), (), self._state.record())
        self._flushed = min(self._flushed, offset)
        # All of them: after a crash the entries behind the indexed offset may be there in part.
        while data := self._log.read(offset, _LOG_READ_BYTES):
            for entry in iter_entries(data):
                rows = upserts_of(entry)
                offset = entry.header.end_offset
                self._delete(self._maker.entries(rows), counted=offset <= indexed)

    def _delete(self, entries: Entries, *, counted: bool) -> None:
        if counted:
            self._state = self._without(entries)
        for keys, _ in entries.slices():
            self._applier.engine.apply((), keys, {})
        self._applier.engine.apply((), (), self._state.record())

    def _without(self, entries: Entries) -> IndexState:
        return msgspec.structs.replace(
            self._state,
            entries=max(0, self._state.entries - len(entries.keys)),
            entry_bytes=max(0, self._state.entry_bytes - entries.size),
        )

    def collected(
        self, keys: Sequence[bytes], values: Sequence[bytes]
    ) -> tuple[list[bytes], StateChange]:
        """Return the entries that go with versions, and the state that goes with them."""
        if not self._state.kept:
            return [], {}
        entries = self._maker.entries_of(keys, values)
        self._state = self._without(entries)
        return entries.keys.to_pylist(), self._state.record()

    # --- copies ------------------------------------------------------------------------------

    def arriving(self, since: Collection[IndexId] | None) -> Arriving:
        """Return what takes the rows of a copy while they come (SS-05).

        `since`: the indexes that have had all rows of the copy so far, None at its beginning.
        """
        return Arriving(self._wanted if since is None else self._wanted.only(since))

    def arrived(self, copy: CopyMeta) -> StateChange:
        """Return the state after a copy of rows.

        An index that has had all of them is built; for one that is newer, a scan begins.
        """
        if not self.enabled and not (copy.indexes or copy.indexes_left):
            return {}
        return state_of_copy(copy, self._wanted.ids).record()

    # --- lookups -----------------------------------------------------------------------------

    def lookup(self, codec: IndexCodec, keys: KeyRange, as_of: int, rows_max: int) -> Found:
        """Return rows visible at `as_of` whose index key is in a range, of one slice of entries.

        Each row stands where its own present columns put it, once. The cursor is the `start` of
        the range of the next call.
        """
        return search(
            self._applier.engine, self._wanted, codec, Asked(keys, as_of, rows_max, _SCAN_BYTES)
        )


def _bytes_of(chains: Chains) -> int:
    return sum(map(len, chains.keys)) + sum(map(len, chains.values))
