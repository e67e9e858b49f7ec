"""Reshard entries: what a partition takes over from the log of a partition of the layout before.

While a zone is re-sharded, the leader of a new partition appends what the old ones write in its
range to its own log (docs/decisions/0120): one entry for each source entry with rows in the range.
Its kind says what the source's was; the producer's batch is the source's, so that a retried write
is known at the new partition as it was at the old one, and an end of a transaction too.
The first row is no row but a note: from which source, when the rows were committed there, and where
the reshard stream stood before and stands after. The rows' versions have that commit time; the
entry's own is one of this partition's, and not below it. An entry of a note alone says that the
source's log had nothing for the range up to there.

What was written before comes in backfill entries (docs/decisions/0155): versions with commit times
of their own, which stand in the note. The first one of a source has no versions, but what the
source knew at the position from which its log is followed: its producers, and how transactions had
ended.

Rows of before may come past the log, too (`range_ingest`): then an entry of a note alone says that
all replicas have them.

Positions change in the same step of the engine as the rows, and an entry that is undone takes its
position back. So each offset of a source counts once, whoever leads and however often it is sent.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rezone.storage.engines.base import TIME_BYTES
from rezone.storage.log.entry import (
    NO_BATCH,
    NOTE_KINDS,
    OP_DELETE,
    OP_NOTE,
    RESHARD_KINDS,
    ROWS_SCHEMA,
    Entry,
    EntryKind,
    ProducerBatch,
    build_entry,
    rows_batch,
)
from rezone.storage.snapshot.columns import VERSIONS_SCHEMA
from rezone.storage.state.producers import BackfilledProducer, state_in
from rezone.storage.state.records import decoded
from rezone.wire.errors import ConflictError, CorruptionError
from rezone.wire.messages import (
    PartitionId,
    ProducerRecord,
    ReshardPosition,
    StreamStart,
    TransactionRecord,
)

KINDS: Final[Mapping[EntryKind, EntryKind]] = {
    EntryKind.PLAIN: EntryKind.RESHARD,
    EntryKind.COMMIT: EntryKind.RESHARDED_COMMIT,
    EntryKind.ABORT: EntryKind.RESHARDED_ABORT,
    EntryKind.SEAL: EntryKind.RESHARDED_SEAL,
}
"""The kind of a reshard entry by that of the source's entry."""

_NO_ROWS: Final = rows_batch([], [], [])


class RangeEntry(NamedTuple):
    """What an entry of a source's log means for a range of hashes; offsets are the source's.

    `kind` is the source's, never of a reshard stream: plain, commit, abort or seal. `branch` is the
    source's branch of history at `end_offset`, `leader_epoch` the epoch of the entry.
    """

    rows: pa.RecordBatch
    kind: EntryKind
    batch: ProducerBatch
    base_offset: int
    end_offset: int
    commit_time: int
    branch: str
    leader_epoch: int = 0


class Stand(NamedTuple):
    """Where an entry comes to stand in the target's log.

    Its leader's epoch, the log's end and the next commit time; the entry's is that, or the last one
    of what it pulls, if that is later.
    """

    leader_epoch: int
    base_offset: int
    commit_time: int


class IngestMark(msgspec.Struct, frozen=True, array_like=True):
    """Up to which row a replica has a source's rows of before, whichever way they came.

    All up to row id `reached`, or all (`end`), as of some time since the reshard stream began.
    """

    source: PartitionId
    begun: StreamStart
    reached: bytes = b""
    end: bool = False

    def covers(self, other: "IngestMark") -> bool:
        """Return whether a replica with this mark has all that another one speaks of."""
        return self.begun == other.begun and (
            self.end or (not other.end and other.reached <= self.reached)
        )


class Note(msgspec.Struct, frozen=True, array_like=True):
    """The first row of a reshard entry; `before` is None for the first one of its source.

    Of a backfill alone: `times` are its versions' commit times (unsigned 64-bit, little-endian).
    `producers` and `transactions` are what the source knew at the position where its log begins to
    be followed. With `ingested` the rows have come past the log: a replica that lacks them must not
    take the entry.
    """

    position: ReshardPosition
    before: ReshardPosition | None
    times: bytes = b""
    producers: tuple[ProducerRecord, ...] = ()
    transactions: tuple[TransactionRecord, ...] = ()
    ingested: IngestMark | None = None


def reshard_entry(
    source: PartitionId, entry: RangeEntry, position: ReshardPosition | None, stand: Stand
) -> bytes | None:
    """Return the log entry that pulls a source's entry; None when that is pulled already.

    `position` is where the reshard stream of the source stands, None before its first entry.
    ConflictError when a part of the entry is pulled: it is not of the history that the reshard
    stream has followed.
    """
    if position is not None and entry.end_offset <= position.offset:
        return None
    if position is not None and entry.base_offset < position.offset:
        raise ConflictError(
            f"partition {source} has an entry from {entry.base_offset} to {entry.end_offset}, but "
            f"is pulled up to {position.offset}"
        )
    return _entry(
        Note(position_after(source, entry, position, stand), position),
        entry.rows,
        stand._replace(commit_time=max(stand.commit_time, entry.commit_time)),
        KINDS[entry.kind],
        entry.batch,
    )


def position_after(
    source: PartitionId, entry: RangeEntry, position: ReshardPosition | None, stand: Stand
) -> ReshardPosition:
    """Return where the reshard stream of a source stands when an entry has come to stand there."""
    after = msgspec.structs.replace(
        position or ReshardPosition(source, 0, 0, ""),
        offset=entry.end_offset,
        commit_time=entry.commit_time,
        partition_uuid=entry.branch,
        leader_epoch=entry.leader_epoch,
    )
    if entry.kind is EntryKind.SEAL:
        after = msgspec.structs.replace(after, sealed_at=stand.base_offset + 1)
    return after


def begin_entry(
    position: ReshardPosition,
    producers: tuple[ProducerRecord, ...],
    transactions: tuple[TransactionRecord, ...],
    stand: Stand,
) -> bytes:
    """Return the entry that begins to pull a source, all of whose log is there from a position.

    `transactions` are the last entries of those that had ended by then. A position of a sealed
    source has nothing to follow: its rows are all that is to come.
    """
    if position.sealed_at:
        position = msgspec.structs.replace(position, sealed_at=stand.base_offset + 1)
    note = Note(position, None, producers=producers, transactions=transactions)
    time = max(stand.commit_time, position.commit_time)
    return _entry(note, _NO_ROWS, stand._replace(commit_time=time), EntryKind.RESHARD_BACKFILL)


def backfill_entry(
    versions: pa.RecordBatch, before: ReshardPosition, after: ReshardPosition, stand: Stand
) -> bytes:
    """Return the entry of the source's next versions, without intents: whole chains, in order.

    Their schema is that of snapshots (`columns.VERSIONS_SCHEMA`); there may be none at the end.
    """
    row_ids, times, flags, values = versions.columns
    known = times.to_numpy()
    if after.sealed_at and not after.backfilling:
        # The seal came first: all is here only from this entry on.
        end_offset = stand.base_offset + 1 + versions.num_rows
        after = msgspec.structs.replace(after, sealed_at=end_offset)
    note = Note(after, before, known.astype("<u8").tobytes())
    # A version's flag is the operation that makes it.
    rows = pa.RecordBatch.from_arrays([row_ids, flags, values], schema=ROWS_SCHEMA)
    newest = int(known.max()) if len(known) else 0
    stand = stand._replace(commit_time=max(stand.commit_time, newest))
    return _entry(note, rows, stand, EntryKind.RESHARD_BACKFILL)


def ingested_entry(
    mark: IngestMark, before: ReshardPosition, after: ReshardPosition, stand: Stand
) -> bytes:
    """Return the entry that counts rows of a source which all replicas have past the log."""
    if after.sealed_at and not after.backfilling:
        after = msgspec.structs.replace(after, sealed_at=stand.base_offset + 1)
    note = Note(after, before, ingested=mark)
    return _entry(note, _NO_ROWS, stand, EntryKind.RESHARD_BACKFILL)


def _entry(
    note: Note,
    rows: pa.RecordBatch,
    stand: Stand,
    kind: EntryKind,
    batch: ProducerBatch = NO_BATCH,
) -> bytes:
    head = rows_batch([b""], [OP_NOTE], [msgspec.msgpack.encode(note)])
    batches = pa.Table.from_batches([head, rows], schema=ROWS_SCHEMA).combine_chunks()
    return build_entry(
        batches.to_batches()[0],
        leader_epoch=stand.leader_epoch,
        base_offset=stand.base_offset,
        commit_time=stand.commit_time,
        batch=batch,
        kind=kind,
    )


def resharded_to(entry: Entry) -> ReshardPosition:
    """Return where the reshard stream of a source stands after a reshard entry."""
    return note_of(entry).position


def begins_reshard(entry: Entry) -> bool:
    """Return whether a reshard entry is the first one of its source."""
    return note_of(entry).before is None


def is_resharded(entry: Entry) -> bool:
    """Return whether an entry was pulled."""
    return entry.header.kind in RESHARD_KINDS


def rows_of(entry: Entry) -> pa.RecordBatch:
    """Return an entry's rows, without a note."""
    batch = entry.batch()
    return batch.slice(1) if _has_note(entry) else batch


def _has_note(entry: Entry) -> bool:
    return entry.header.kind in NOTE_KINDS


def version_time(entry: Entry) -> int:
    """Return the commit time of the versions that an entry makes, which is no backfill."""
    return note_of(entry).position.commit_time if is_resharded(entry) else entry.header.commit_time


def version_times(entry: Entry) -> npt.NDArray[np.uint64]:
    """Return the commit time of each version that an entry makes, in the order of its rows."""
    if entry.header.kind == EntryKind.RESHARD_BACKFILL:
        times = note_of(entry).times
        if len(times) != TIME_BYTES * (entry.header.rows - 1):
            raise CorruptionError(f"the entry at {entry.header.base_offset} lacks times of rows")
        return np.frombuffer(times, "<u8").astype(np.uint64)
    rows = entry.header.rows - _has_note(entry)
    return np.full(rows, version_time(entry), np.uint64)


def earliest_time(entry: Entry) -> int:
    """Return the earliest commit time of the versions that an entry makes; its own without any."""
    if entry.header.kind != EntryKind.RESHARD_BACKFILL:
        return version_time(entry)
    return int(version_times(entry).min(initial=entry.header.commit_time))


def versions_of(entry: Entry) -> pa.RecordBatch:
    """Return the versions that an entry makes, as a snapshot has them; not of one of intents.

    CorruptionError when an operation is none.
    """
    row_ids, ops, values = rows_of(entry).columns
    # A version's flag is the operation that makes it.
    if (pc.max(ops).as_py() or 0) > OP_DELETE:
        raise CorruptionError(f"entry at {entry.header.base_offset}: unknown operation")
    columns = [row_ids, pa.array(version_times(entry)), ops, values]
    return pa.RecordBatch.from_arrays(columns, schema=VERSIONS_SCHEMA)


def producers_of(entries: Iterable[Entry]) -> list[BackfilledProducer]:
    """Return the producers that backfills bring along, by the keys of the table of producers.

    A producer's batch has the offset here at which it came, and the source's commit time.
    """
    return [
        state_in(msgspec.structs.replace(record, end_offset=entry.header.end_offset))
        for entry in entries
        if entry.header.kind == EntryKind.RESHARD_BACKFILL
        for record in note_of(entry).producers
    ]


def transactions_of(entry: Entry) -> list[TransactionRecord]:
    """Return how transactions had ended at the source that a backfill begins to pull."""
    offset = entry.header.end_offset
    records = note_of(entry).transactions
    return [msgspec.structs.replace(record, end_offset=offset) for record in records]


def note_of(entry: Entry) -> Note:
    """Return the note of a reshard entry; CorruptionError when it has none."""
    _, ops, values = entry.batch().columns
    if ops[0].as_py() != OP_NOTE:
        raise CorruptionError(f"the reshard entry at {entry.header.base_offset} has no note")
    return decoded(values[0].as_py(), Note)
