"""One entry of a partition's log: a fixed header and an Arrow record batch.

Followers store and forward entries as the bytes they came as, so the format is that of the wire
and of the disk alike, and its checksum travels with it. All integers of the header are
little-endian:

    length u32 | crc32c u32 | leader epoch u32 | rows u32 | base offset u64 | commit time u64 |
    writer id 16 bytes | sequence u64 | kind u8 | 7 bytes of zeros | Arrow IPC record batch message

`length` counts the whole entry; the checksum covers everything after itself. An entry of n rows
at base offset b covers the offsets [b, b + n).

`kind` (`EntryKind`) tells entries of transactions from plain ones: their writer id is that of the
transaction, their sequence its own count. Intents are rows of `OP_INTENT` (`storage.intents`); a
commit carries the transaction's rows once more, as a plain write would; an abort its row ids.
Import entries are those of another partition that was re-sharded into this one
(`storage.imports`): what that one's log has after a position, its seal at last, and before all that
the rows that were there already, as fills. A seal ends a partition: nothing is written after it.
"""

import enum
import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import google_crc32c
import pyarrow as pa

from rezone.wire.errors import CorruptionError
from rezone.wire.pieces import binary_array

HEADER: Final = struct.Struct("<IIIIQQ16sQB7x")
HEADER_BYTES: Final = HEADER.size
NO_WRITER: Final = bytes(16)
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
_STAMP: Final = struct.Struct("<IIQQ16sQB7x")


class EntryKind(enum.IntEnum):
    """What an entry is: plain, of a transaction of this partition, or imported."""

    PLAIN = 0
    INTENTS = 1
    COMMIT = 2
    ABORT = 3
    IMPORT = 4
    IMPORTED_COMMIT = 5
    IMPORTED_ABORT = 6
    SEAL = 7
    IMPORTED_SEAL = 8
    IMPORT_FILL = 9


IMPORT_KINDS: Final = frozenset(
    {
        EntryKind.IMPORT,
        EntryKind.IMPORTED_COMMIT,
        EntryKind.IMPORTED_ABORT,
        EntryKind.IMPORTED_SEAL,
        EntryKind.IMPORT_FILL,
    }
)
TRANSACTION_KINDS: Final = frozenset(
    {
        EntryKind.INTENTS,
        EntryKind.COMMIT,
        EntryKind.ABORT,
        EntryKind.IMPORTED_COMMIT,
        EntryKind.IMPORTED_ABORT,
    }
)
"""Entries by which a transaction is known."""
WRITER_KINDS: Final = frozenset({EntryKind.PLAIN, EntryKind.IMPORT})
"""Entries by which a writer is known."""


class EntryHeader(NamedTuple):
    """The header of one entry; `commit_time` in microseconds, `writer_id` zeros when none.

    `kind` is an `EntryKind`, as the number that stands in the bytes.
    """

    length: int
    crc: int
    leader_epoch: int
    rows: int
    base_offset: int
    commit_time: int
    writer_id: bytes
    sequence: int
    kind: int = EntryKind.PLAIN

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
        try:
            batch = pa.ipc.read_record_batch(self.raw.slice(HEADER_BYTES), ROWS_SCHEMA)
        except (pa.ArrowInvalid, OSError) as error:
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
    writer_id: bytes = NO_WRITER,
    sequence: int = 0,
    kind: EntryKind = EntryKind.PLAIN,
) -> bytes:
    """Return the entry for `rows` (schema `ROWS_SCHEMA`, at least one row, row ids distinct).

    `commit_time` must be above that of the entry before; the log refuses it otherwise.
    """
    if rows.num_rows == 0:
        raise ValueError("an entry holds at least one row")
    stamp = _STAMP.pack(
        leader_epoch, rows.num_rows, base_offset, commit_time, writer_id, sequence, kind
    )
    body = rows.serialize()
    crc = google_crc32c.extend(google_crc32c.value(stamp), body)
    prefix = struct.pack("<II", HEADER_BYTES + body.size, crc)
    return b"".join((prefix, stamp, body))


def header_at(data: pa.Buffer | bytes, position: int) -> EntryHeader | None:
    """Return the header at `position` without any check, or None when it is cut off there."""
    if position + HEADER_BYTES > len(data):
        return None
    return EntryHeader._make(HEADER.unpack_from(data, position))


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
        if google_crc32c.value(raw.slice(_CHECKED_FROM)) != header.crc:
            raise CorruptionError(f"checksum of the log entry at byte {position} does not match")
        if expected is not None and header.base_offset != expected:
            raise CorruptionError(f"entry at {header.base_offset}, expected {expected}")
        yield Entry(header, raw)
        position, expected = position + header.length, header.end_offset
