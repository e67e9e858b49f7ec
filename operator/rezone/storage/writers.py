"""The duplicate table: the last batch of each writer, so that a retried write applies once.

Two layers. `applied` stands in the engine and changes in the same step as the rows; `appended`
is what the log holds beyond that, rebuilt from entry headers when the log is opened or cut. A
lookup asks `appended` first: a retry may come before its first try has been applied.

The table has a limit, and forgets who wrote longest ago. But nobody is forgotten who has written a
moment before: a retry of that batch would be applied a second time. So when only such writers are
left the leader refuses those that are new (docs/decisions/0213).
"""

import struct
import uuid
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from rezone.storage.entry import NO_WRITER, WRITER_KINDS, EntryHeader, EntryKind

_RECORD: Final = struct.Struct(">QQQ")
_PREFIX: Final = b"w"
_EVICT_TO: Final = 0.9
WRITER_BYTES: Final = 200
"""What one writer takes in memory: its key, its record, their places in a dictionary."""


class WriterState(NamedTuple):
    """The last batch of a writer: its sequence, the offset after it, its commit time."""

    sequence: int
    end_offset: int
    commit_time: int


FilledWriter = tuple[bytes, WriterState]
"""A writer that a fill has brought along (`imports.writers_of`), by its key."""


def writer_key(writer_id: str) -> bytes:
    """Return the 16 bytes of a writer's UUID as entries carry it."""
    return uuid.UUID(writer_id).bytes


def writer_name(key: bytes) -> str:
    """Return the UUID text of an entry's writer id."""
    return str(uuid.UUID(bytes=key))


class WriterTable:
    """The last batches of a partition's writers; at most about `writers_max` are remembered.

    Beyond that the ones that wrote longest ago are forgotten, but none whose last batch has a
    commit time within `keep_micros` of the log's newest. The caller locks.
    """

    def __init__(self, writers_max: int, keep_micros: int = 0) -> None:
        self.writers_max = writers_max
        self._keep_micros = keep_micros
        self._applied: dict[bytes, bytes] = {}
        self._appended: dict[bytes, WriterState] = {}
        # Before that time too few are old enough: a full table is not gone through for each batch.
        self._old_from = 0

    def __len__(self) -> int:
        """Return how many writers are held, those twice that have a batch to apply."""
        return len(self._applied) + len(self._appended)

    def has_room(self, now: int) -> bool:
        """Whether one more writer may write at `now`, in microseconds since 1970."""
        if len(self) < self.writers_max:
            return True
        if now > self._old_from:
            self._old_from = self._keep_micros + min(self._times().values(), default=now)
        return now > self._old_from

    def _times(self) -> dict[bytes, int]:
        """Return when each writer has written last."""
        return {writer: _RECORD.unpack(record)[2] for writer, record in self._applied.items()}

    def load(self, state: Mapping[bytes, bytes]) -> None:
        """Take the applied layer from an engine's named state."""
        self._applied = {
            name[len(_PREFIX) :]: record
            for name, record in state.items()
            if name.startswith(_PREFIX)
        }
        self._appended = {}

    def get(self, writer: bytes) -> WriterState | None:
        """Return the last batch of a writer, applied or not."""
        return self._appended.get(writer) or self._last_applied(writer)

    def _last_applied(self, writer: bytes) -> WriterState | None:
        record = self._applied.get(writer)
        return WriterState._make(_RECORD.unpack(record)) if record is not None else None

    def note(self, headers: Iterable[EntryHeader]) -> None:
        """Take appended entries into account."""
        for header in headers:
            if _is_of_writer(header) and _counts(header, self.get(header.writer_id)):
                self._appended[header.writer_id] = _state_of(header)

    def note_filled(self, filled: Iterable[FilledWriter]) -> None:
        """Take the writers of appended fills into account; of a writer that is known, the later."""
        for writer, state in filled:
            if _is_later(state.sequence, self.get(writer)):
                self._appended[writer] = state

    def rebuild(self, headers: Iterable[EntryHeader]) -> None:
        """Replace the appended layer by what these entries say."""
        self._appended = {}
        self.note(headers)

    def advance(
        self, headers: Iterable[EntryHeader], filled: Iterable[FilledWriter] = ()
    ) -> dict[bytes, bytes | None]:
        """Move entries to the applied layer; return the engine state that must change with it."""
        changes: dict[bytes, bytes | None] = {}
        newest = 0
        for header in headers:
            newest = header.commit_time
            if _is_of_writer(header) and _counts(header, self._last_applied(header.writer_id)):
                self._apply(header.writer_id, _state_of(header), changes)
        for writer, state in filled:
            if _is_later(state.sequence, self._last_applied(writer)):
                self._apply(writer, state, changes)
        if len(self._applied) > self.writers_max and newest > self._old_from:
            changes.update(self._evict(newest))
        return changes

    def _apply(self, writer: bytes, state: WriterState, changes: dict[bytes, bytes | None]) -> None:
        self._applied[writer] = changes[_PREFIX + writer] = _RECORD.pack(*state)
        newest = self._appended.get(writer)
        if newest is not None and newest.end_offset <= state.end_offset:
            del self._appended[writer]

    def _evict(self, now: int) -> dict[bytes, bytes | None]:
        """Forget who is old enough at `now`, the oldest first and no more than need be."""
        times = self._times()
        by_age = sorted(times, key=times.__getitem__)
        spare = by_age[: len(by_age) - int(self.writers_max * _EVICT_TO)]
        evicted = [writer for writer in spare if times[writer] + self._keep_micros < now]
        for writer in evicted:
            del self._applied[writer]
        if len(evicted) < len(spare):
            self._old_from = times[spare[-1]] + self._keep_micros
        return {_PREFIX + writer: None for writer in evicted}

    def set_back(
        self,
        undone: Iterable[EntryHeader],
        kept: Iterable[EntryHeader],
        offset: int,
        time: int,
        *,
        filled: Iterable[FilledWriter] = (),
    ) -> dict[bytes, bytes | None]:
        """Undo entries in the applied layer; return the engine state that must change with it.

        `kept` are the headers of the log that stays, below `offset`; `filled` are the writers of
        fills that are undone, which come before all else of their source. Where a writer's batch
        before is no longer in it, its sequence still follows from the undone ones: a writer sends
        a batch only when the one before was answered, so nobody will ask for that one's offset.
        """
        first: dict[bytes, int] = {}
        for writer, filled_state in filled:
            first.setdefault(writer, filled_state.sequence)
        for header in undone:
            if _is_of_writer(header):
                first.setdefault(header.writer_id, header.sequence)
        affected = {
            writer
            for writer in first
            if (state := self._last_applied(writer)) is not None and state.end_offset > offset
        }
        restored: dict[bytes, WriterState] = {}
        if affected:
            for header in kept:
                if header.writer_id in affected and header.end_offset <= offset:
                    restored[header.writer_id] = _state_of(header)
        changes: dict[bytes, bytes | None] = {}
        for writer in affected:
            state = restored.get(writer)
            if state is None and first[writer] > 0:
                state = WriterState(first[writer] - 1, offset, time)
            if state is None:
                del self._applied[writer]
                changes[_PREFIX + writer] = None
            else:
                self._applied[writer] = changes[_PREFIX + writer] = _RECORD.pack(*state)
        return changes

    def export(self) -> tuple[tuple[str, int, int, int], ...]:
        """Return the applied layer as a snapshot's header carries it."""
        return tuple(
            (writer_name(writer), *_RECORD.unpack(record))
            for writer, record in self._applied.items()
        )

    def take_over(self, rows: Iterable[tuple[str, int, int, int]]) -> dict[bytes, bytes | None]:
        """Replace everything by a snapshot's table; return the engine state for it."""
        changes: dict[bytes, bytes | None] = {_PREFIX + writer: None for writer in self._applied}
        self._applied = {writer_key(name): _RECORD.pack(*state) for name, *state in rows}
        self._appended = {}
        changes.update((_PREFIX + writer, record) for writer, record in self._applied.items())
        return changes


def _is_of_writer(header: EntryHeader) -> bool:
    return header.kind in WRITER_KINDS and header.writer_id != NO_WRITER


def _counts(header: EntryHeader, known: WriterState | None) -> bool:
    """Whether an entry has a later batch of its writer than is known.

    Sources of one partition may both know a writer of the layout before theirs, one of them a later
    batch: the earlier one without rows in its range (docs/decisions/0162).
    """
    return header.kind != EntryKind.IMPORT or _is_later(header.sequence, known)


def _is_later(sequence: int, known: WriterState | None) -> bool:
    return known is None or known.sequence < sequence


def _state_of(header: EntryHeader) -> WriterState:
    return WriterState(header.sequence, header.end_offset, header.commit_time)
