"""The indexer of one partition: follows what is applied, with an indexed offset of its own.

Entries stand in the partition's engine beside the rows (`INDEX_PREFIX`), one for each *version* of
a row that has a value, under index key, row id and commit time. So they are written blindly as
versions are: following a part of the log again changes nothing, rolling back deletes exactly the
entries of the entries rolled back, and who collects a version deletes exactly its entry. What an
entry says is checked at the row when it is looked up (`lookup`): one whose row has another
version by then is passed over. So an index that has too much is slow, never wrong; one that has
too little is known by its indexed offset, and lookups wait for that.

The indexed offset, and the partition UUID of the branch of history it lies on, change in the
same atomic step of the engine as the entries (DCP-08). An engine that comes as files brings its
index along; a row copy feeds `Arriving` (SS-05). Where the log no longer reaches back to the
indexed offset, or the offset is of another history, the entries are dropped and made anew by a scan
over the rows, slice by slice; it goes on where it was after a restart.

Concurrency: changes are made under the applier's mutex, a slice at a time, by whoever calls
`step`: the partition's job, or a lookup that will not wait for it. `stop` keeps everybody from it.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from rezone.replica.applier import Applier
from rezone.replica.columns import columns_of, visible
from rezone.replica.engines.base import (
    INDEX_PREFIX,
    behind,
)
from rezone.replica.entry import iter_entries
from rezone.replica.history import branch_at
from rezone.replica.index_entries import (
    Arriving,
    Entries,
    EntryMaker,
    Versions,
    joined,
    split_places,
    upserts_of,
)
from rezone.replica.log import PartitionLog
from rezone.wire.indexes import IndexCodec, KeyRange
from rezone.wire.messages import FailoverEntry, IndexPosition
from rezone.wire.schema import TableSchema

_STATE_NAME = b"index"
_LOG_READ_BYTES = 1 << 20
_SCAN_BYTES = 512 << 10
_ROWS_PER_SLICE = 4096
_INDEX_END = INDEX_PREFIX + b"\xff"

StateChange = dict[bytes, bytes | None]


class IndexState(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What stands beside the entries; `definition` names what they were made from.

    `entries` and `entry_bytes` are counted, and may be a little off after a crash. `scanned` is
    where a scan under way stands, which brings what is below `offset`; None when it is over.
    """

    definition: str
    offset: int = 0
    commit_time: int = 0
    partition_uuid: str = ""
    entries: int = 0
    entry_bytes: int = 0
    scanned: bytes | None = None

    def record(self) -> StateChange:
        """Return the named state for the engine."""
        return {_STATE_NAME: msgspec.msgpack.encode(self)}


class Found(NamedTuple):
    """Rows of a lookup in the index's order, and where to go on; None at the end."""

    row_ids: Any
    values: Any
    cursor: bytes | None


class Indexer:
    """Keeps the secondary indexes of one partition; does nothing where the table has none."""

    def __init__(
        self,
        table: TableSchema,
        applier: Applier,
        log: PartitionLog,
        history: Callable[[], tuple[FailoverEntry, ...]],
    ) -> None:
        self._maker = EntryMaker(table)
        self._applier = applier
        self._log = log
        self._history = history
        self._stopped = False
        self._flushed = 0
        self.load()

    # --- facts -------------------------------------------------------------------------------

    @property
    def enabled(self) -> bool:
        """Whether there is anything to be indexed."""
        return self._maker.enabled

    @property
    def position(self) -> IndexPosition:
        """The indexed offset and its partition UUID; nothing while the entries are made anew."""
        state = self._state
        if state.scanned is not None:
            return IndexPosition(0, "")
        return IndexPosition(state.offset, state.partition_uuid)

    @property
    def needs_log_from(self) -> int:
        """From where on the log is still to be followed."""
        return self._state.offset if self.enabled else self._applier.state.offset

    @property
    def flushed(self) -> int:
        """Up to which offset the entries survive a crash."""
        return self._flushed if self.enabled else self._applier.flushed

    @property
    def lag_rows(self) -> int:
        """How many applied row changes are not indexed yet."""
        return self._applier.state.offset - self.position.offset if self.enabled else 0

    @property
    def scanning(self) -> bool:
        """Whether the entries are being made anew from the rows."""
        return self._state.scanned is not None

    @property
    def indexed_time(self) -> int:
        """The commit time up to which every version has its entry; 0 while they are made anew."""
        return 0 if self.scanning else self._state.commit_time

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

    def load(self) -> None:
        """Take over what the engine says; an index of another definition is made anew."""
        record = self._applier.engine.state().get(_STATE_NAME)
        self._state = IndexState(definition=self._maker.definition)
        if record is not None:
            self._state = msgspec.msgpack.decode(record, type=IndexState)
        self._flushed = self._state.offset
        if self.enabled and self._state.definition != self._maker.definition:
            self._begin_scan()

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
        """Index the next slice of what is applied; whether there is more to do at once."""
        if not self.enabled:
            return False
        with self._applier.mutex:
            if self._stopped:
                return False
            self._keep_to_history()
            if self._state.scanned is not None:
                self._scan_slice(self._state.scanned)
            elif self._state.offset < self._applier.state.offset:
                self._follow_slice()
            return self.scanning or self._state.offset < self._applier.state.offset

    def catch_up(self) -> None:
        """Follow the log as far as it is applied; entries being made anew are not waited for."""
        while not self.scanning and self.step():
            pass

    @contextlib.contextmanager
    def flushing(self) -> Iterator[None]:
        """Note what a flush of the engine makes durable of the index."""
        reached = self._state.offset
        yield
        self._flushed = max(self._flushed, min(reached, self._state.offset))

    def _keep_to_history(self) -> None:
        """Make the entries anew when they are of another history, or the log begins too late."""
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
            parts.append(upserts_of(entry.batch(), commit_time))
        entries = self._maker.entries(joined(parts))
        self._write(entries, offset=end, commit_time=commit_time)

    def _write(self, entries: Entries, **changes: Any) -> None:
        offset = changes.get("offset", self._state.offset)
        state = msgspec.structs.replace(
            self._state,
            **changes,
            partition_uuid=branch_at(self._history(), offset),
            entries=self._state.entries + len(entries.keys),
            entry_bytes=self._state.entry_bytes + entries.size,
        )
        # In several steps, of which the last one counts: a large one holds the interpreter.
        for pairs in entries.slices():
            self._applier.engine.apply(pairs, (), {})
        self._applier.engine.apply((), (), state.record())
        self._state = state

    # --- making anew -------------------------------------------------------------------------

    def _begin_scan(self) -> None:
        """Drop all entries, and go through the rows that are applied now; the log tells the rest.

        Rows that a copy is bringing have no applied offset yet, and their entries come with them.
        """
        applied = self._applier.state
        self._state = IndexState(
            definition=self._maker.definition,
            offset=applied.offset,
            commit_time=applied.commit_time,
            partition_uuid=branch_at(self._history(), applied.offset),
            scanned=b"" if applied.offset else None,
        )
        self._flushed = 0
        engine = self._applier.engine
        engine.delete_range(INDEX_PREFIX, _INDEX_END)
        engine.apply((), (), self._state.record())

    def _scan_slice(self, start: bytes) -> None:
        chains = self._applier.engine.scan_chains(
            start, None, rows_max=_ROWS_PER_SLICE, bytes_max=_SCAN_BYTES
        )
        scanned = None if chains.end else behind(chains.last_row_id)
        self._write(self._maker.entries_of(chains.keys, chains.values), scanned=scanned)

    # --- undoing and collecting --------------------------------------------------------------

    def undo(self, offset: int) -> None:
        """Take the entries from `offset` on back; the log still has them, the rows may (DCP-05).

        Under the applier's mutex and before the rows. Not durable: the undo of the rows flushes.
        """
        if not self.enabled or self._applier.state.offset < offset:
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
                rows = upserts_of(entry.batch(), entry.header.commit_time)
                offset = entry.header.end_offset
                self._delete(self._maker.entries(rows), counted=offset <= indexed)

    def _delete(self, entries: Entries, *, counted: bool) -> None:
        if counted:
            self._state = self._without(entries)
        for pairs in entries.slices():
            self._applier.engine.apply((), [key for key, _ in pairs], {})
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
        if not self.enabled:
            return [], {}
        entries = self._maker.entries_of(keys, values)
        self._state = self._without(entries)
        return entries.keys.to_pylist(), self._state.record()

    # --- copies ------------------------------------------------------------------------------

    def arriving(self) -> "Arriving":
        """Return what takes the rows of a copy while they come (SS-05)."""
        return Arriving(self._maker)

    def arrived(self, offset: int, commit_time: int, partition_uuid: str) -> StateChange:
        """Return the state after a copy whose every row `arriving` has been given."""
        if not self.enabled:
            return {}
        state = IndexState(
            definition=self._maker.definition,
            offset=offset,
            commit_time=commit_time,
            partition_uuid=partition_uuid,
        )
        return state.record()

    # --- lookups -----------------------------------------------------------------------------

    def lookup(self, codec: IndexCodec, keys: KeyRange, as_of: int, rows_max: int) -> Found:
        """Return rows visible at `as_of` whose index key is in a range, of one slice of entries.

        Each row stands where its own present columns put it, once. The cursor is the `start` of
        the range of the next call.
        """
        engine = self._applier.engine
        chains = engine.scan_chains(
            INDEX_PREFIX + keys.start,
            INDEX_PREFIX + keys.end,
            rows_max=rows_max,
            bytes_max=_SCAN_BYTES,
        )
        cursor = None if chains.end else behind(chains.last_row_id)[len(INDEX_PREFIX) :]
        if not chains.keys:
            return Found(pa.array([], pa.binary()), pa.array([], pa.binary()), cursor)
        places, lengths = visible(columns_of(chains.keys, chains.values), as_of)
        index_keys, row_ids = split_places(places, lengths)
        values = engine.newest(row_ids.to_pylist(), as_of)
        present = [index for index, value in enumerate(values) if value is not None]
        there = pa.array(present, pa.int64())
        rows = pa.array([value for value in values if value is not None], pa.binary())
        row_ids, index_keys = row_ids.take(there), index_keys.take(there)
        now = self._maker.index_keys(codec, row_ids, rows)
        still = pc.equal(now, index_keys)
        return Found(row_ids.filter(still), rows.filter(still), cursor)
