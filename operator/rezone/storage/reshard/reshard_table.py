"""How far a partition has pulled each of its sources: by what is applied, and by the whole log.

Positions change in the same step of the engine as the rows of their entries, and an entry that is
undone takes its position back (`reshard_entries`).

Rows of before that come past the log have a mark of their own, in the engine as well (`IngestMark`,
docs/decisions/0486). It begins with the reshard stream, goes with it, and is never ahead of the
rows; what is undone of a backfill takes it back.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from rezone.storage.log.entry import Entry, EntryKind
from rezone.storage.reshard.reshard_entries import IngestMark, is_resharded, note_of
from rezone.storage.state.records import decoded
from rezone.wire.messages import PartitionId, ReshardPosition, StreamStart

_PREFIX: Final = b"p"
_MARK_PREFIX: Final = b"ingested"
_SOURCE_BYTES: Final = 8


class ReshardTable:
    """How far each source is pulled: by what is applied, and by the whole log. Caller locks."""

    def __init__(self) -> None:
        self._applied: dict[PartitionId, ReshardPosition] = {}
        # With the offset after the entry that says so; 0 when the engine does.
        self._appended: dict[PartitionId, tuple[int, ReshardPosition]] = {}
        # How far rows have come past the log: in the engine, and on the disk.
        self._ingested: dict[PartitionId, IngestMark] = {}
        self._durable: dict[PartitionId, IngestMark] = {}
        # How often marks were taken back.
        self.marks_undone = 0
        # Whether rows are to come that are older than others here. Asked with every job and ack.
        self.backfilling = False
        # How many rows of backfills were appended since this was made.
        self.backfilled_rows = 0

    def load(self, state: Mapping[bytes, bytes]) -> None:
        """Take everything from an engine's named state."""
        found = (
            decoded(content, ReshardPosition)
            for name, content in state.items()
            if name.startswith(_PREFIX) and len(name) == len(_PREFIX) + _SOURCE_BYTES
        )
        self._applied = {position.source: position for position in found}
        marks = (
            decoded(content, IngestMark)
            for name, content in state.items()
            if name.startswith(_MARK_PREFIX)
        )
        self._ingested = {mark.source: mark for mark in marks}
        self._durable = dict(self._ingested)
        self.marks_undone += 1
        self.forget_appended()

    @property
    def backfills_engine(self) -> bool:
        """Whether rows of backfills have yet to be applied, though all may be in the log."""
        return any(position.backfilling for position in self._applied.values())

    @property
    def sources(self) -> int:
        """From how many sources there are reshard streams."""
        return len(self._appended)

    def get(self, source: PartitionId) -> ReshardPosition | None:
        """Return how far a source is pulled, in the log at least; None when not at all."""
        known = self._appended.get(source)
        return known[1] if known is not None else None

    def get_applied(self, source: PartitionId) -> ReshardPosition | None:
        """Return how far a source is pulled by what is applied; None when not at all."""
        return self._applied.get(source)

    def note(self, entries: Iterable[Entry]) -> None:
        """Take appended entries into account; those that are known change nothing."""
        for entry in entries:
            if not is_resharded(entry):
                continue
            position, end = note_of(entry).position, entry.header.end_offset
            known = self._appended.get(position.source)
            if known is None or known[0] < end:
                self._appended[position.source] = (end, position)
                self._note_backfilling()
                if entry.header.kind == EntryKind.RESHARD_BACKFILL:
                    self.backfilled_rows += entry.header.rows

    def advance(self, entries: Iterable[Entry]) -> dict[bytes, bytes | None]:
        """Return the engine state that must change when these entries are applied."""
        changes: dict[bytes, bytes | None] = {}
        for entry in entries:
            if is_resharded(entry):
                note = note_of(entry)
                position, source = note.position, note.position.source
                self._applied[source] = position
                changes.update(engine_state([position]))
                if note.before is None and position.backfilling:
                    start = StreamStart(position.offset, position.partition_uuid)
                    changes.update(self._mark(source, IngestMark(source, start)))
                elif not position.backfilling and source in self._ingested:
                    changes.update(self._mark(source, None))
        return changes

    def set_back(self, undone: Iterable[Entry]) -> dict[bytes, bytes | None]:
        """Undo applied entries, the oldest first; return the engine state that must change.

        The last one may not have been applied, and then has no position to be taken back.
        """
        before: dict[PartitionId, ReshardPosition | None] = {}
        for entry in undone:
            note = note_of(entry)
            before.setdefault(note.position.source, note.before)
        changes: dict[bytes, bytes | None] = {}
        for source, position in before.items():
            changes.update(self._set_mark_back(source, position))
            if position is not None:
                self._applied[source] = position
                changes.update(engine_state([position]))
            elif self._applied.pop(source, None) is not None:
                changes[_name(source)] = None
        return changes

    # --- rows that come past the log --------------------------------------------------------------

    def mark(self, source: PartitionId) -> IngestMark | None:
        """Return up to which row all of a source's are in the engine; None where none may come.

        That is before the reshard stream begins here, and when the backfill is over.
        """
        position, mark = self._applied.get(source), self._ingested.get(source)
        if position is None or mark is None or not position.backfilling:
            return None
        reached = max(position.backfilled_to, mark.reached)
        return msgspec.structs.replace(mark, reached=reached)

    def ingested(self, mark: IngestMark) -> dict[bytes, bytes | None]:
        """Note how far rows have come; return the engine state that must change behind them."""
        return self._mark(mark.source, mark)

    def flushed(self, mark: IngestMark, marks_undone: int) -> None:
        """Note that a mark is on the disk, unless any were taken back since the flush began."""
        if self.marks_undone == marks_undone:
            self._durable[mark.source] = mark

    def has_durable(self, mark: IngestMark) -> bool:
        """Return whether all rows that a mark speaks of are on the disk."""
        durable = self._durable.get(mark.source)
        return durable is not None and durable.covers(mark)

    def _mark(self, source: PartitionId, mark: IngestMark | None) -> dict[bytes, bytes | None]:
        name = _MARK_PREFIX + source.to_bytes(_SOURCE_BYTES, "big")
        if mark is None:
            self._ingested.pop(source, None)
            self._durable.pop(source, None)
            return {name: None}
        known = self._durable.get(source)
        if known is not None and not mark.covers(known):
            del self._durable[source]
        self._ingested[source] = mark
        return {name: msgspec.msgpack.encode(mark)}

    def _set_mark_back(
        self, source: PartitionId, position: ReshardPosition | None
    ) -> dict[bytes, bytes | None]:
        """Let a mark go no further than the backfill does that is not undone.

        The rows of undone entries are removed, also those that had come past the log as well.
        """
        mark = self._ingested.get(source)
        if mark is None:
            return {}
        self.marks_undone += 1
        if position is None:
            return self._mark(source, None)
        reached = min(mark.reached, position.backfilled_to)
        return self._mark(source, IngestMark(source, mark.begun, reached))

    def forget_appended(self) -> None:
        """Forget what was only appended: the log was cut, and its rest will be noted again."""
        self._appended = {source: (0, position) for source, position in self._applied.items()}
        self._note_backfilling()

    def _note_backfilling(self) -> None:
        self.backfilling = any(position.backfilling for _, position in self._appended.values())

    def export(self) -> tuple[ReshardPosition, ...]:
        """Return the applied positions, as a snapshot's header carries them."""
        return tuple(self._applied[source] for source in sorted(self._applied))


def engine_state(positions: Iterable[ReshardPosition]) -> dict[bytes, bytes | None]:
    """Return the named state that stands for positions."""
    return {_name(p.source): msgspec.msgpack.encode(p) for p in positions}


def _name(source: PartitionId) -> bytes:
    return _PREFIX + source.to_bytes(_SOURCE_BYTES, "big")
