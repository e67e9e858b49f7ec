"""The duplicate table: the last batch of each writer, so that a retried write applies once.

Two layers. `applied` stands in the engine and changes in the same step as the rows; `appended`
is what the log holds beyond that, rebuilt from entry headers when the log is opened or cut. A
lookup asks `appended` first: a retry may come before its first try has been applied.
"""

import struct
import uuid
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from rezone.replica.entry import NO_WRITER, WRITER_KINDS, EntryHeader, EntryKind

_RECORD: Final = struct.Struct(">QQQ")
_PREFIX: Final = b"w"
_EVICT_TO: Final = 0.9


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

    Beyond that the ones that wrote longest ago are forgotten. The caller locks.
    """

    def __init__(self, writers_max: int) -> None:
        self._writers_max = writers_max
        self.applied: dict[bytes, WriterState] = {}
        self._appended: dict[bytes, WriterState] = {}

    def load(self, state: Mapping[bytes, bytes]) -> None:
        """Take the applied layer from an engine's named state."""
        self.applied = {
            name[len(_PREFIX) :]: WriterState._make(_RECORD.unpack(record))
            for name, record in state.items()
            if name.startswith(_PREFIX)
        }
        self._appended = {}

    def get(self, writer: bytes) -> WriterState | None:
        """Return the last batch of a writer, applied or not."""
        return self._appended.get(writer) or self.applied.get(writer)

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
        for header in headers:
            if _is_of_writer(header) and _counts(header, self.applied.get(header.writer_id)):
                self._apply(header.writer_id, _state_of(header), changes)
        for writer, state in filled:
            if _is_later(state.sequence, self.applied.get(writer)):
                self._apply(writer, state, changes)
        if len(self.applied) > self._writers_max:
            changes.update(self._evict())
        return changes

    def _apply(self, writer: bytes, state: WriterState, changes: dict[bytes, bytes | None]) -> None:
        self.applied[writer] = state
        changes[_PREFIX + writer] = _RECORD.pack(*state)
        newest = self._appended.get(writer)
        if newest is not None and newest.end_offset <= state.end_offset:
            del self._appended[writer]

    def _evict(self) -> dict[bytes, bytes | None]:
        by_age = sorted(self.applied, key=lambda writer: self.applied[writer].commit_time)
        evicted = by_age[: len(by_age) - int(self._writers_max * _EVICT_TO)]
        for writer in evicted:
            del self.applied[writer]
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
            if (state := self.applied.get(writer)) is not None and state.end_offset > offset
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
                del self.applied[writer]
            else:
                self.applied[writer] = state
            changes[_PREFIX + writer] = _RECORD.pack(*state) if state else None
        return changes

    def export(self) -> tuple[tuple[str, int, int, int], ...]:
        """Return the applied layer as a snapshot's header carries it."""
        return tuple((writer_name(writer), *state) for writer, state in self.applied.items())

    def take_over(self, rows: Iterable[tuple[str, int, int, int]]) -> dict[bytes, bytes | None]:
        """Replace everything by a snapshot's table; return the engine state for it."""
        changes: dict[bytes, bytes | None] = {_PREFIX + writer: None for writer in self.applied}
        self.applied = {writer_key(name): WriterState(*state) for name, *state in rows}
        self._appended = {}
        for writer, state in self.applied.items():
            changes[_PREFIX + writer] = _RECORD.pack(*state)
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
