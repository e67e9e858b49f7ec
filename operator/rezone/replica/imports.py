"""Import entries: what a partition takes over from the log of a partition of the layout before.

While a zone is re-sharded, the leader of a new partition appends what the old ones write in its
range to its own log (docs/decisions/0120): one entry for each source entry with rows in the range.
Its kind says what the source's was; writer id and sequence are the source's, so that a retried
write is known at the new partition as it was at the old one, and an end of a transaction too.
The first row is no row but a note: from which source, when the rows were committed there, and where
the import stood before and stands after. The rows' versions have that commit time; the
entry's own is one of this partition's, and not below it.

Positions change in the same step of the engine as the rows, and an entry that is undone takes its
position back. So each offset of a source counts once, whoever leads and however often it is sent.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa

from rezone.replica.entry import (
    IMPORT_KINDS,
    OP_NOTE,
    ROWS_SCHEMA,
    Entry,
    EntryKind,
    build_entry,
    rows_batch,
)
from rezone.wire.errors import ConflictError, CorruptionError
from rezone.wire.messages import ImportPosition, PartitionId

_PREFIX: Final = b"p"
_SOURCE_BYTES: Final = 8
KINDS: Final[Mapping[EntryKind, EntryKind]] = {
    EntryKind.PLAIN: EntryKind.IMPORT,
    EntryKind.COMMIT: EntryKind.IMPORTED_COMMIT,
    EntryKind.ABORT: EntryKind.IMPORTED_ABORT,
    EntryKind.SEAL: EntryKind.IMPORTED_SEAL,
}
"""The kind of an import entry by that of the source's entry."""


class RangeEntry(NamedTuple):
    """What an entry of a source's log means for a range of hashes; offsets are the source's.

    `kind` is the source's, never of an import: plain, commit, abort or seal. `branch` is the
    source's branch of history at `end_offset`.
    """

    rows: pa.RecordBatch
    kind: EntryKind
    writer_id: bytes
    sequence: int
    base_offset: int
    end_offset: int
    commit_time: int
    branch: str


class _Note(msgspec.Struct, frozen=True, array_like=True):
    """The first row of an import entry; `before` is None for the first one of its source."""

    position: ImportPosition
    before: ImportPosition | None


def import_entry(
    source: PartitionId,
    entry: RangeEntry,
    position: ImportPosition | None,
    *,
    leader_epoch: int,
    base_offset: int,
    commit_time: int,
) -> bytes | None:
    """Return the log entry that imports a source's entry; None when that is imported already.

    `position` is where the import of the source stands, None before its first entry. `commit_time`
    is this partition's next; the entry's is that or the source's, if that is later. ConflictError
    when a part of the entry is imported: it is not of the history that the import has followed.
    """
    if position is not None and entry.end_offset <= position.offset:
        return None
    if position is not None and entry.base_offset < position.offset:
        raise ConflictError(
            f"partition {source} has an entry from {entry.base_offset} to {entry.end_offset}, but "
            f"is imported up to {position.offset}"
        )
    after = ImportPosition(
        source=source,
        offset=entry.end_offset,
        commit_time=entry.commit_time,
        partition_uuid=entry.branch,
        sealed_at=base_offset + 1 if entry.kind is EntryKind.SEAL else 0,
    )
    note = msgspec.msgpack.encode(_Note(after, position))
    head = rows_batch([b""], [OP_NOTE], [note])
    batches = pa.Table.from_batches([head, entry.rows], schema=ROWS_SCHEMA).combine_chunks()
    return build_entry(
        batches.to_batches()[0],
        leader_epoch=leader_epoch,
        base_offset=base_offset,
        commit_time=max(commit_time, entry.commit_time),
        writer_id=entry.writer_id,
        sequence=entry.sequence,
        kind=KINDS[entry.kind],
    )


def is_import(entry: Entry) -> bool:
    """Return whether an entry was imported."""
    return entry.header.kind in IMPORT_KINDS


def rows_of(entry: Entry) -> pa.RecordBatch:
    """Return an entry's rows, without the note of an import or a seal."""
    batch = entry.batch()
    noted = is_import(entry) or entry.header.kind == EntryKind.SEAL
    return batch.slice(1) if noted else batch


def version_time(entry: Entry) -> int:
    """Return the commit time of the versions that an entry makes."""
    return _note_of(entry).position.commit_time if is_import(entry) else entry.header.commit_time


def _note_of(entry: Entry) -> _Note:
    _, ops, values = entry.batch().columns
    if ops[0].as_py() != OP_NOTE:
        raise CorruptionError(f"the import entry at {entry.header.base_offset} has no note")
    return msgspec.msgpack.decode(values[0].as_py(), type=_Note)


class ImportTable:
    """How far each source is imported: by what is applied, and by the whole log. Caller locks."""

    def __init__(self) -> None:
        self._applied: dict[PartitionId, ImportPosition] = {}
        self._appended: dict[PartitionId, ImportPosition] = {}

    def load(self, state: Mapping[bytes, bytes]) -> None:
        """Take everything from an engine's named state."""
        found = (
            msgspec.msgpack.decode(content, type=ImportPosition)
            for name, content in state.items()
            if name.startswith(_PREFIX) and len(name) == len(_PREFIX) + _SOURCE_BYTES
        )
        self._applied = {position.source: position for position in found}
        self._appended = dict(self._applied)

    @property
    def sources(self) -> int:
        """From how many sources there are imports."""
        return len(self._appended)

    def get(self, source: PartitionId) -> ImportPosition | None:
        """Return how far a source is imported, in the log at least; None when not at all."""
        return self._appended.get(source)

    def note(self, entries: Iterable[Entry]) -> None:
        """Take appended entries into account; those that are known change nothing."""
        for entry in entries:
            if not is_import(entry):
                continue
            position = _note_of(entry).position
            known = self._appended.get(position.source)
            if known is None or known.offset < position.offset:
                self._appended[position.source] = position

    def advance(self, entries: Iterable[Entry]) -> dict[bytes, bytes | None]:
        """Return the engine state that must change when these entries are applied."""
        changes: dict[bytes, bytes | None] = {}
        for entry in entries:
            if is_import(entry):
                position = _note_of(entry).position
                self._applied[position.source] = position
                changes.update(engine_state([position]))
        return changes

    def set_back(self, undone: Iterable[Entry]) -> dict[bytes, bytes | None]:
        """Undo applied entries, the oldest first; return the engine state that must change.

        The last one may not have been applied, and then has no position to be taken back.
        """
        before: dict[PartitionId, ImportPosition | None] = {}
        for entry in undone:
            note = _note_of(entry)
            before.setdefault(note.position.source, note.before)
        changes: dict[bytes, bytes | None] = {}
        for source, position in before.items():
            if position is not None:
                self._applied[source] = position
                changes.update(engine_state([position]))
            elif self._applied.pop(source, None) is not None:
                changes[_name(source)] = None
        return changes

    def forget_appended(self) -> None:
        """Forget what was only appended: the log was cut, and its rest will be noted again."""
        self._appended = dict(self._applied)

    def export(self) -> tuple[ImportPosition, ...]:
        """Return the applied positions, as a snapshot's header carries them."""
        return tuple(self._applied[source] for source in sorted(self._applied))


def engine_state(positions: Iterable[ImportPosition]) -> dict[bytes, bytes | None]:
    """Return the named state that stands for positions."""
    return {_name(p.source): msgspec.msgpack.encode(p) for p in positions}


def _name(source: PartitionId) -> bytes:
    return _PREFIX + source.to_bytes(_SOURCE_BYTES, "big")
