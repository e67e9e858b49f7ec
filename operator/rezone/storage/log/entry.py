"""One entry of a partition's log: a fixed header and an Arrow record batch.

Followers store and forward entries as the bytes they came as, so the format is that of the wire
and of the disk alike, and its checksum travels with it. All integers of the header are
little-endian:

    length u32 | crc32c u32 | leader epoch u32 | rows u32 | base offset u64 | commit time u64 |
    producer id 16 bytes | sequence u64 | producer epoch u32 | sent to u32 | digest 16 bytes |
    kind u8 | opens u8 | 6 bytes of zeros | Arrow IPC record batch message

`length` counts the whole entry; the checksum covers everything after itself. An entry of n rows
at base offset b covers the offsets [b, b + n).

From producer id to digest it names the producer's batch (`ProducerBatch`); `opens` marks the first
entry of its epoch in this log.

`kind` (`EntryKind`) tells entries of transactions from plain ones: their producer id is that of the
transaction, their sequence its own count. Intents are rows of `OP_INTENT`
(`storage.transactions.intents`); a commit carries the transaction's rows once more, as a plain
write would; an abort its row ids. Reshard entries are those of another partition that was
re-sharded into this one (`storage.reshard`): what that one's log has after a
position, its seal at last, and before all that the rows that were there already, as backfills. A
seal ends a partition: nothing is written after it. A producer's open raises its epoch and has no
rows but a note.
"""

import enum
import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import google_crc32c
import pyarrow as pa

from rezone.wire.codec.bodies import from_message
from rezone.wire.codec.pieces import binary_array
from rezone.wire.errors import CorruptionError, InvalidRowError

HEADER: Final = struct.Struct("<IIIIQQ16sQII16sBB6x")
HEADER_BYTES: Final = HEADER.size
NO_PRODUCER: Final = bytes(16)
NO_DIGEST: Final = bytes(16)
PRODUCER_EPOCH_MAX: Final = (1 << 32) - 1
SEQUENCE_MAX: Final = (1 << 64) - 1
ROWS_SCHEMA: Final = pa.schema(
    [
        pa.field("row_id", pa.binary(), nullable=False),
        pa.field("op", pa.uint8(), nullable=False),
        pa.field("value", pa.binary(), nullable=False),
    ]
)

OP_UPSERT: Final = 0
OP_DELETE: Final = 1
OP_INTENT: Final = 2
OP_ABORT: Final = 3
OP_NOTE: Final = 4

# The checksum covers everything after the crc field: from the leader epoch on.
_CHECKED_FROM: Final = 8
_STAMP: Final = struct.Struct("<IIQQ16sQII16sBB6x")


class EntryKind(enum.IntEnum):
    """What an entry is: plain, of a transaction of this partition, or pulled."""

    PLAIN = 0
    INTENTS = 1
    COMMIT = 2
    ABORT = 3
    RESHARD = 4
    RESHARDED_COMMIT = 5
    RESHARDED_ABORT = 6
    SEAL = 7
    RESHARDED_SEAL = 8
    RESHARD_BACKFILL = 9
    PRODUCER_OPEN = 10


RESHARD_KINDS: Final = frozenset(
    {
        EntryKind.RESHARD,
        EntryKind.RESHARDED_COMMIT,
        EntryKind.RESHARDED_ABORT,
        EntryKind.RESHARDED_SEAL,
        EntryKind.RESHARD_BACKFILL,
    }
)
TRANSACTION_KINDS: Final = frozenset(
    {
        EntryKind.INTENTS,
        EntryKind.COMMIT,
        EntryKind.ABORT,
        EntryKind.RESHARDED_COMMIT,
        EntryKind.RESHARDED_ABORT,
    }
)
"""Entries by which a transaction is known."""
PRODUCER_KINDS: Final = frozenset({EntryKind.PLAIN, EntryKind.RESHARD, EntryKind.PRODUCER_OPEN})
"""Entries by which a producer is known."""
NOTE_KINDS: Final = RESHARD_KINDS | {EntryKind.SEAL, EntryKind.PRODUCER_OPEN}
"""Entries whose first row is a note and makes no version."""


class ProducerBatch(NamedTuple):
    """What names a batch of a producer (KIP-98): the same names are the same batch.

    `sent_to` is the partition that the producer has sent it to: each counts its own sequence from 1
    in each epoch. `digest` is that of the rows as they were sent. `opens`: no entry of the log had
    so high an epoch of the producer before. Of a transaction's entry the id is the transaction's.
    """

    producer_id: bytes
    sequence: int
    epoch: int = 0
    sent_to: int = 0
    digest: bytes = NO_DIGEST
    opens: bool = False


NO_BATCH: Final = ProducerBatch(NO_PRODUCER, 0)


class EntryHeader(NamedTuple):
    """The header of one entry; `commit_time` in microseconds, `producer_id` zeros when none.

    From `producer_id` to `digest`, and `opens`, as in `ProducerBatch`. `kind` is an `EntryKind`, as
    the number that stands in the bytes.
    """

    length: int
    crc: int
    leader_epoch: int
    rows: int
    base_offset: int
    commit_time: int
    producer_id: bytes
    sequence: int
    producer_epoch: int = 0
    sent_to: int = 0
    digest: bytes = NO_DIGEST
    kind: int = EntryKind.PLAIN
    opens: int = 0

    @property
    def batch(self) -> ProducerBatch:
        """The producer's batch that the entry has."""
        return ProducerBatch(
            self.producer_id,
            self.sequence,
            self.producer_epoch,
            self.sent_to,
            self.digest,
            bool(self.opens),
        )

    @property
    def end_offset(self) -> int:
        """The offset after the entry's last row."""
        return self.base_offset + self.rows


class Entry(NamedTuple):
    """One entry whose checksum has been verified; `raw` is a view of it, header included."""

    header: EntryHeader
    raw: pa.Buffer

    def batch(self) -> pa.RecordBatch:
        """Return the rows, schema `ROWS_SCHEMA`, without a copy; `CorruptionError` when not one."""
        content = self.raw.slice(HEADER_BYTES)
        try:
            # Other data nodes have sent it: its checksum does not say that it is good.
            batch = from_message(content, ROWS_SCHEMA)
        except InvalidRowError as error:
            raise CorruptionError(f"entry at {self.header.base_offset}: {error}") from error
        if batch.num_rows != self.header.rows:
            raise CorruptionError(f"entry at {self.header.base_offset}: row count differs")
        return batch


def rows_batch(
    row_ids: Sequence[bytes], ops: Sequence[int], values: Sequence[bytes]
) -> pa.RecordBatch:
    """Return rows as the record batch an entry holds; a delete's value is empty."""
    op_bytes = [None, pa.py_buffer(bytes(ops))]
    columns = [
        binary_array(row_ids),
        pa.Array.from_buffers(pa.uint8(), len(ops), op_bytes),
        binary_array(values),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ROWS_SCHEMA)


def build_entry(
    rows: pa.RecordBatch,
    *,
    leader_epoch: int,
    base_offset: int,
    commit_time: int,
    batch: ProducerBatch = NO_BATCH,
    kind: EntryKind = EntryKind.PLAIN,
) -> bytes:
    """Return the entry for `rows` (schema `ROWS_SCHEMA`, at least one row, row ids distinct).

    `commit_time` must be above that of the entry before; the log refuses it otherwise.
    """
    if rows.num_rows == 0:
        raise ValueError("an entry holds at least one row")
    stamp = _STAMP.pack(
        leader_epoch,
        rows.num_rows,
        base_offset,
        commit_time,
        batch.producer_id,
        batch.sequence,
        batch.epoch,
        batch.sent_to,
        batch.digest,
        kind,
        batch.opens,
    )
    body = rows.serialize()
    crc = google_crc32c.extend(google_crc32c.value(stamp), body)
    prefix = struct.pack("<II", HEADER_BYTES + body.size, crc)
    return b"".join((prefix, stamp, body))


def note_rows() -> pa.RecordBatch:
    """Return the rows of an entry that is a note and no more."""
    return rows_batch([b""], [OP_NOTE], [b""])


def header_at(data: pa.Buffer | bytes, position: int) -> EntryHeader | None:
    """Return the header at `position` without any check, or None when it is cut off there."""
    if position + HEADER_BYTES > len(data):
        return None
    return EntryHeader._make(HEADER.unpack_from(data, position))


def is_sound(header: EntryHeader, raw: pa.Buffer | bytes) -> bool:
    """Return whether the bytes of one entry, its header among them, match its checksum."""
    return bool(google_crc32c.value(raw[_CHECKED_FROM:]) == header.crc)


def iter_entries(data: bytes | memoryview | pa.Buffer) -> Iterator[Entry]:
    """Yield the whole entries in `data`, each checked; `CorruptionError` at the first bad one.

    Offsets must join: an entry begins where the one before ends.
    """
    buffer = data if isinstance(data, pa.Buffer) else pa.py_buffer(data)
    position, expected = 0, None
    while position < buffer.size:
        header = header_at(buffer, position)
        if header is None or not (
            HEADER_BYTES < header.length <= buffer.size - position and header.rows > 0
        ):
            raise CorruptionError(f"no whole log entry at byte {position} of {buffer.size}")
        raw = buffer.slice(position, header.length)
        if not is_sound(header, raw):
            raise CorruptionError(f"checksum of the log entry at byte {position} does not match")
        if expected is not None and header.base_offset != expected:
            raise CorruptionError(f"entry at {header.base_offset}, expected {expected}")
        yield Entry(header, raw)
        position, expected = position + header.length, header.end_offset
