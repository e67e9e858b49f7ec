"""What data nodes read of clients, of each other, and of files that others have made."""

from __future__ import annotations

import functools
import struct
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import google_crc32c
import msgspec
import pyarrow as pa

from hostile_bytes import Parser
from rezone.datanode.resharding.reshard_streams import _range_entry
from rezone.kube.tls.authority import Authority
from rezone.kube.tls.certificates import Issuer
from rezone.storage.applier import AppliedState, pairs_of
from rezone.storage.budget import Tally
from rezone.storage.copies.range_ingest import check_versions
from rezone.storage.engines.base import FLAG_INTENT, TIME_BYTES, Chains
from rezone.storage.index.index_state import IndexState
from rezone.storage.log.entry import (
    HEADER_BYTES,
    OP_INTENT,
    OP_NOTE,
    OP_UPSERT,
    EntryKind,
    ProducerBatch,
    build_entry,
    iter_entries,
    rows_batch,
)
from rezone.storage.log.journal import Journal, whole_records
from rezone.storage.reshard.reshard_entries import (
    IngestMark,
    Note,
    producers_of,
    transactions_of,
    version_times,
)
from rezone.storage.reshard.reshard_table import ReshardTable
from rezone.storage.snapshot.columns import VERSIONS_SCHEMA, engine_pairs, slices_of_versions
from rezone.storage.state import marks
from rezone.storage.state import meta as metas
from rezone.storage.state.producers import ProducerTable
from rezone.storage.state.records import decoded
from rezone.storage.state.seal import LogSeal
from rezone.storage.transactions.intents import newest_intents
from rezone.storage.transactions.transactions import TransactionTable, record_of
from rezone.wire import messages
from rezone.wire.codec.bodies import from_ipc, from_message, require_valid, to_ipc
from rezone.wire.codec.encoded_rows import encoded_rows
from rezone.wire.codec.ipc_header import is_compressed
from rezone.wire.codec.rows import RowCodec
from rezone.wire.codec.schema import TableSchema
from rezone.wire.errors import CorruptionError, InvalidRowError, RezoneError
from rezone.wire.layouts import WHOLE
from rezone.wire.messages import (
    OriginalId,
    OwnWrites,
    ReadRequest,
    ReshardPosition,
    SealMark,
    StreamStart,
    TransactionRecord,
    TransactionTimes,
    WriteRequest,
)
from rezone.wire.messages.resharding import CatchUpEntry
from rezone.wire.transport import anchors
from rezone.wire.transport.channel import pack, unpack
from rezone.wire.transport.flight import from_flight_error
from rezone.wire.transport.identity import Identity, Role
from rezone.wire.transport.tls import TlsFiles, TlsFilesError

CODEC = RowCodec(TableSchema())
ROWS = rows_batch([b"a", b"b"], [OP_UPSERT, OP_UPSERT], [b"1", b"2"])
BATCH = ProducerBatch(bytes(16), 3)
ENTRY = build_entry(ROWS, leader_epoch=1, base_offset=5, commit_time=9, batch=BATCH)
NEXT = build_entry(ROWS, leader_epoch=1, base_offset=7, commit_time=10, batch=BATCH)
TABLE_ROWS = pa.record_batch(
    [pa.array([b"a", b"b"], pa.binary()), pa.array([b"1", None], pa.binary())],
    schema=CODEC.arrow_schema,
)
BODY = to_ipc(TABLE_ROWS)
BODY_WITH_METADATA = to_ipc(TABLE_ROWS.replace_schema_metadata({"made": "elsewhere"}))
KEYS_BODY = to_ipc(TABLE_ROWS.select(CODEC.key_schema.names))
VERSIONS = pa.RecordBatch.from_arrays(
    [
        pa.array([bytes(8) + b"a", bytes(8) + b"b"], pa.binary()),
        pa.array([2, 1], pa.uint64()),
        pa.array([0, 1], pa.uint8()),
        pa.array([b"1", b""], pa.binary()),
    ],
    schema=VERSIONS_SCHEMA,
)
(VALUE, _) = encoded_rows(CODEC, TABLE_ROWS).values().to_pylist()
VERSIONS_MESSAGE = VERSIONS.serialize().to_pybytes()
ROWS_MESSAGE = ROWS.serialize().to_pybytes()
BEGUN = StreamStart(1, "5" * 32)
POSITION = ReshardPosition(0, 4, 3, "5" * 32, 1)
TIMES = TransactionTimes(1, 2)
WRITE = WriteRequest(
    opaque=1,
    partition=0,
    producer_id="5" * 32,
    sequence=1,
    original_ids=(OriginalId(1, 2, bytes(16)),),
    transaction=TIMES,
)
READ = ReadRequest(opaque=1, partition=0, own=OwnWrites("5" * 32, TIMES, 1))
FRAMES = (
    pack(WRITE, BODY),
    pack(READ),
)
RECORD = TransactionRecord(bytes(16), 1, EntryKind.INTENTS, 5, 6)
INTENT_HEAD = struct.pack("<QQB", 1, 1, OP_UPSERT)
OF_NO_KIND = BODY[:29] + b"\x09" + BODY[30:]
"""Its first message is none that Arrow knows, which does not verify it then."""


def read_message(data: bytes) -> None:
    """Read a message; one that can be read can be written."""
    message = messages.decode(data)
    assert messages.decode(messages.encode(message)) == message


def read_body(data: bytes, *, delete: bool) -> None:
    """Read the rows of a write."""
    batch = from_ipc(data, CODEC.key_schema if delete else CODEC.arrow_schema)
    CODEC.check(batch, delete=delete)
    encoded_rows(CODEC, batch).row_ids()


def read_versions(data: bytes, *, end: bool) -> None:
    """Read versions past the log, of the range that was asked for."""
    mark = IngestMark(0, BEGUN, reached=b"\xff" * 8, end=end)
    batch = from_message(data, VERSIONS_SCHEMA)
    check_versions(batch, WHOLE, b"", mark)
    for part in slices_of_versions(batch, 1 << 20, 1_000):
        engine_pairs(part)


def read_copied(data: bytes) -> None:
    """Read a batch of a copy, as Flight gives it: nobody has looked at it."""
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(data), VERSIONS_SCHEMA)
    except (pa.ArrowException, OSError, ValueError, EOFError):
        return
    require_valid(batch, VERSIONS_SCHEMA)
    engine_pairs(batch)


def read_entries(data: bytes, *, signed: bool = False) -> None:
    """Read log entries as they are applied; with a checksum that is right, they may be anything."""
    if signed and len(data) > HEADER_BYTES:
        crc = google_crc32c.value(data[8:])
        data = struct.pack("<II", len(data), crc) + data[8:]
    for entry in iter_entries(data):
        entry.batch().to_pylist()
        if not entry.header.kind:
            pairs_of(entry)


def entry_of(kind: EntryKind, ops: list[int], values: list[bytes]) -> Any:
    """Return an entry of these rows, whose checksum is right."""
    rows = rows_batch([b"%d" % place for place in range(len(ops))], ops, values)
    raw = build_entry(rows, leader_epoch=1, base_offset=5, commit_time=9, batch=BATCH, kind=kind)
    (entry,) = iter_entries(raw)
    return entry


def read_note(data: bytes) -> None:
    """Read the note of a backfill of one row."""
    entry = entry_of(EntryKind.RESHARD_BACKFILL, [OP_NOTE, OP_UPSERT], [data, b"1"])
    version_times(entry)
    pairs_of(entry)
    producers_of([entry])
    transactions_of(entry)


def read_intent(data: bytes) -> None:
    """Read a row of a transaction, of the log."""
    record_of(entry_of(EntryKind.INTENTS, [OP_INTENT], [data]))


def read_stored_intent(data: bytes) -> None:
    """Read a row of a transaction, of an engine."""
    stored = bytes([FLAG_INTENT]) + bytes(16) + data
    newest_intents(Chains([b"a" + bytes(TIME_BYTES)], [stored], end=True), bytes(16))


def read_producers(data: bytes) -> None:
    """Read the table of producers."""
    table = ProducerTable(10)
    table.load({b"w" + bytes(24): data})
    table.export()


def read_range_entry(data: bytes, kind: int = 0) -> None:
    """Read an entry of the log of another partition."""
    entry = CatchUpEntry(
        rows=data,
        kind=kind,
        producer_id=bytes(16),
        sequence=1,
        producer_epoch=0,
        sent_to=0,
        digest=bytes(16),
        opens=False,
        base_offset=5,
        end_offset=7,
        commit_time=9,
        branch="5" * 32,
        leader_epoch=1,
    )
    _range_entry(entry).rows.to_pylist()


def read_values(data: bytes, count: int) -> None:
    """Read rows as engines and logs have them."""
    keys = CODEC.key_bytes(TABLE_ROWS)[:1] * count
    CODEC.decode(keys, [data] * count)


def read_file(read: Callable[[Path], object], data: bytes) -> None:
    """Read a file with these bytes: disks are outside, too."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / marks.NAME
        path.write_bytes(data)
        read(path)


def journal_of(*payloads: bytes) -> bytes:
    """Return the bytes of a journal."""
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder) / "journal")
        for payload in payloads:
            journal.write(payload)
        return (Path(folder) / "journal").read_bytes()


class Failed(Exception):  # noqa: N818 - one that Flight has made
    """What Flight raises of a call that has failed."""

    def __init__(self, extra_info: bytes) -> None:
        super().__init__("failed")
        self.extra_info = extra_info


def read_error(data: bytes) -> None:
    """Read an error of another node."""
    assert isinstance(from_flight_error(Failed(data)), RezoneError)


NOW = datetime.now(UTC)
AUTHORITY = Authority.create(NOW)
FILES = Issuer(AUTHORITY, AUTHORITY.certificate).issue(
    Identity(Role.WRITER, "shop", "orders"), NOW, timedelta(days=1)
)


def read_files(data: bytes, which: str) -> None:
    """Read one of the three files of TLS."""
    files = {"authority": FILES.authority, "certificate": FILES.certificate, "key": FILES.key}
    anchors.constrained(TlsFiles.parse(**{**files, which: data}))


def state(load: Callable[[dict[bytes, bytes]], object], name: bytes) -> Callable[[bytes], object]:
    """Return what reads one named state of an engine."""
    return lambda data: load({name: data})


MARKS = marks._BODY.pack(marks._MAGIC, 1, 2, 3, 4)
MARKS += marks._CRC.pack(google_crc32c.value(MARKS))
PACK = msgspec.msgpack.encode
CORRUPT = (CorruptionError,)
MARK = IngestMark(0, BEGUN, reached=b"a", end=False)
PARSERS = {
    "frames of channels": Parser(
        lambda data: unpack(memoryview(data)), FRAMES, (msgspec.MsgspecError,)
    ),
    "messages": Parser(
        read_message, (messages.encode(WRITE), messages.encode(READ)), (msgspec.MsgspecError,)
    ),
    "bodies of upserts": Parser(
        functools.partial(read_body, delete=False), (BODY,), (RezoneError,), (OF_NO_KIND,)
    ),
    "bodies of another writer": Parser(
        functools.partial(read_body, delete=False), (BODY_WITH_METADATA,), (RezoneError,)
    ),
    "bodies of deletes": Parser(
        functools.partial(read_body, delete=True), (KEYS_BODY,), (RezoneError,)
    ),
    "headers of batches": Parser(is_compressed, (ROWS_MESSAGE[8:],), (ValueError,)),
    "versions that a job brings": Parser(
        functools.partial(read_versions, end=False),
        (VERSIONS_MESSAGE,),
        (InvalidRowError,),
        faults=(bytes(8),),  # the end of a stream
    ),
    "the last versions that a job brings": Parser(
        functools.partial(read_versions, end=True), (VERSIONS_MESSAGE,), (InvalidRowError,)
    ),
    "batches of copies": Parser(read_copied, (VERSIONS_MESSAGE,), (InvalidRowError,)),
    "log entries": Parser(read_entries, (ENTRY, ENTRY + NEXT), CORRUPT),
    "signed log entries": Parser(functools.partial(read_entries, signed=True), (ENTRY,), CORRUPT),
    "entries of other partitions": Parser(read_range_entry, (ROWS_MESSAGE,), (InvalidRowError,)),
    "entries of no kind": Parser(
        functools.partial(read_range_entry, kind=99), (), (InvalidRowError,), faults=(ROWS_MESSAGE,)
    ),
    "notes of backfills": Parser(
        read_note, (PACK(Note(POSITION, None, times=bytes(8), transactions=(RECORD,))),), CORRUPT
    ),
    "intents": Parser(read_intent, (INTENT_HEAD + b"1",), CORRUPT),
    "stored intents": Parser(read_stored_intent, (INTENT_HEAD + b"1",), CORRUPT),
    "values of a row": Parser(functools.partial(read_values, count=1), (VALUE,), (RezoneError,)),
    "values of many rows": Parser(
        functools.partial(read_values, count=100), (VALUE,), (RezoneError,)
    ),
    "what is applied": Parser(state(AppliedState.load, b"applied"), (bytes(24),), CORRUPT),
    "tables of producers": Parser(read_producers, (bytes(200),), CORRUPT),
    "seals": Parser(state(LogSeal().load, b"seal"), (PACK(SealMark(1, 2)),), CORRUPT),
    "positions of reshard streams": Parser(
        state(ReshardTable().load, b"p" + bytes(8)), (PACK(POSITION),), CORRUPT
    ),
    "marks of ingested rows": Parser(
        state(ReshardTable().load, b"ingested" + bytes(8)), (PACK(MARK),), CORRUPT
    ),
    "tables of transactions": Parser(
        state(TransactionTable(1_000, 0, Tally(1_000), Tally(1_000)).load, b"t" + bytes(24)),
        (PACK(RECORD),),
        CORRUPT,
    ),
    "states of indexes": Parser(
        lambda data: decoded(data, IndexState), (PACK(IndexState()),), CORRUPT
    ),
    "facts of partitions": Parser(
        lambda data: metas._decoded(Path("a"), data),
        (msgspec.json.encode(metas.PartitionMeta(partition_uuid="5" * 32)),),
        CORRUPT,
    ),
    "journals": Parser(
        functools.partial(read_file, Journal), (journal_of(b"one", b"two"),), CORRUPT
    ),
    "whole records of journals": Parser(
        functools.partial(read_file, lambda path: list(whole_records(path))),
        (journal_of(b"one", b"two"),),
        CORRUPT,
    ),
    "marks of disks": Parser(
        functools.partial(read_file, lambda path: marks.Marks(path.parent)),
        (MARKS,),
        CORRUPT,
    ),
    "errors": Parser(
        read_error,
        (PACK(RezoneError("a", leader=1).info()),),
        (),
        faults=(PACK({"code": "NotLeader", "message": "a", "details": {"message": 1, "self": 2}}),),
    ),
    **{
        f"TLS: {which}": Parser(
            functools.partial(read_files, which=which), (content,), (TlsFilesError,)
        )
        for which, content in (
            ("authority", FILES.authority),
            ("certificate", FILES.certificate),
            ("key", FILES.key),
        )
    },
}
