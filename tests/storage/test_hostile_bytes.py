"""Bytes that come from outside are refused by what reads them: no other exception, no crash.

`tests/hostile_bytes.py` says how; texts that the operator and jobs read are in
`tests/kube/test_hostile_texts.py`.
"""

from __future__ import annotations

import struct
from pathlib import Path

import google_crc32c
import msgspec
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hostile_bytes import fuzzed, hostile
from rezone.datanode.resharding.ingesting import _batch_of
from rezone.storage.copies.fileload import check_names
from rezone.storage.copies.range_ingest import check_versions
from rezone.storage.log.entry import (
    HEADER_BYTES,
    OP_UPSERT,
    ROWS_SCHEMA,
    ProducerBatch,
    build_entry,
    iter_entries,
    rows_batch,
)
from rezone.storage.log.journal import Journal
from rezone.storage.reshard.reshard_entries import IngestMark
from rezone.storage.snapshot.columns import VERSIONS_SCHEMA, engine_pairs, slices_of_versions
from rezone.wire import messages
from rezone.wire.codec.bodies import from_ipc, to_ipc
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
    SnapshotFile,
    SnapshotHeader,
    StreamStart,
    TransactionTimes,
    WriteRequest,
)
from rezone.wire.transport.channel import pack, unpack
from rezone.wire.transport.identity import Identity
from rezone.wire.transport.sockets import plain

pytestmark = pytest.mark.proves("TR-03")

CODEC = RowCodec(TableSchema())
ROWS = rows_batch([b"a", b"b"], [OP_UPSERT, OP_UPSERT], [b"1", b"2"])
ENTRY = build_entry(
    ROWS, leader_epoch=1, base_offset=5, commit_time=9, batch=ProducerBatch(bytes(16), 3)
)
BODY = to_ipc(
    pa.record_batch(
        [pa.array([b"a", b"b"], pa.binary()), pa.array([b"1", None], pa.binary())],
        schema=CODEC.arrow_schema,
    )
)
VERSIONS = pa.RecordBatch.from_arrays(
    [
        pa.array([bytes(8) + b"a", bytes(8) + b"b"], pa.binary()),
        pa.array([2, 1], pa.uint64()),
        pa.array([0, 1], pa.uint8()),
        pa.array([b"1", b""], pa.binary()),
    ],
    schema=VERSIONS_SCHEMA,
)
BEGUN = StreamStart(1, "5" * 32)
HEADER = SnapshotHeader(
    snapshot_id="s",
    offset=1,
    commit_time=1,
    leader_epoch=1,
    failover_log=(),
    producers=(),
    rows_estimate=1,
)
TIMES = TransactionTimes(1, 2)
FRAMES = [
    pack(
        WriteRequest(
            opaque=1,
            partition=0,
            producer_id="5" * 32,
            sequence=1,
            original_ids=(OriginalId(1, 2, bytes(16)),),
            transaction=TIMES,
        ),
        BODY,
    ),
    pack(ReadRequest(opaque=1, partition=0, own=OwnWrites("5" * 32, TIMES, 1))),
]


@fuzzed
@given(hostile(*FRAMES))
def test_frames_of_channels(data: bytes) -> None:
    """A frame ends its channel at most."""
    try:
        unpack(memoryview(data))
    except msgspec.MsgspecError:
        return


@fuzzed
@given(hostile(*(frame[4:] for frame in FRAMES)))
def test_messages(data: bytes) -> None:
    """A message that can be read can be written."""
    try:
        message = messages.decode(data)
    except msgspec.MsgspecError:
        return
    assert messages.decode(messages.encode(message)) == message


@fuzzed
@given(hostile(BODY), st.booleans())
def test_bodies_and_their_rows(data: bytes, delete: bool) -> None:
    """A body is rows of the table, or refused."""
    schema = CODEC.key_schema if delete else CODEC.arrow_schema
    try:
        batch = from_ipc(data, schema)
        CODEC.check(batch, delete=delete)
        encoded_rows(CODEC, batch).row_ids()
    except RezoneError:
        return


@fuzzed
@given(hostile(ROWS.serialize().to_pybytes()[8:]))
def test_headers_of_batches(data: bytes) -> None:
    """A header is compressed, is not, or is none."""
    try:
        is_compressed(data)
    except ValueError:
        return


@fuzzed
@example(data=bytes(8), end=False)  # the end of a stream
@given(data=hostile(VERSIONS.serialize().to_pybytes()), end=st.booleans())
def test_versions_that_a_job_brings(data: bytes, *, end: bool) -> None:
    """Versions past the log are those of the range that was asked for, or refused."""
    mark = IngestMark(0, BEGUN, reached=b"\xff" * 8, end=end)
    try:
        batch = _batch_of(data)
        check_versions(batch, WHOLE, b"", mark)
    except InvalidRowError:
        return
    for part in slices_of_versions(batch, 1 << 20, 1_000):
        engine_pairs(part)


@fuzzed
@given(hostile(ENTRY, ENTRY + ENTRY), st.booleans())
def test_log_entries(data: bytes, signed: bool) -> None:
    """An entry with a checksum that is right may still be anything."""
    if signed and len(data) > HEADER_BYTES:
        crc = google_crc32c.value(data[8:])
        data = struct.pack("<II", len(data), crc) + data[8:]
    try:
        for entry in iter_entries(data):
            entry.batch()
    except CorruptionError:
        return


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_compressed_log_entries(codec: str) -> None:
    """What another data node sends would take as much memory as it says, and not as it has."""
    options = pa.ipc.IpcWriteOptions(compression=codec)
    large = rows_batch([b"a"], [OP_UPSERT], [bytes(100_000)])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, ROWS_SCHEMA, options=options) as writer:
        writer.write_batch(large)
    stream = pa.BufferReader(sink.getvalue())
    pa.ipc.read_schema(pa.ipc.read_message(stream))
    packed = pa.ipc.read_message(stream).serialize().to_pybytes()
    built = build_entry(large, leader_epoch=1, base_offset=0, commit_time=1)
    head = bytearray(built[:HEADER_BYTES])
    crc = google_crc32c.value(bytes(head[8:]) + packed)
    head[:8] = struct.pack("<II", HEADER_BYTES + len(packed), crc)
    (entry,) = iter_entries(bytes(head) + packed)
    with pytest.raises(CorruptionError, match="compressed"):
        entry.batch()


@fuzzed
@given(data=st.data())
def test_journals(tmp_path: Path, data: st.DataObject) -> None:
    """A file of a node's own may have been changed on its disk."""
    path = tmp_path / "journal"
    path.unlink(missing_ok=True)
    journal = Journal(path)
    for payload in (b"one", b"two"):
        journal.write(payload)
    path.write_bytes(data.draw(hostile(path.read_bytes())))
    try:
        assert Journal(path).newest in {None, b"one", b"two"}
    except CorruptionError:
        return


@fuzzed
@given(
    st.lists(
        st.text(max_size=30)
        | st.sampled_from(["../000001.sst", "000001.sst/..", "CURRENT", "000001.sst\n", "a.json"]),
        max_size=3,
    )
)
def test_names_of_engine_files(names: list[str]) -> None:
    """A file of a snapshot would be written anywhere, or over what is the node's."""
    header = msgspec.structs.replace(HEADER, files=tuple(SnapshotFile(name, 1) for name in names))
    try:
        check_names(header)
    except CorruptionError:
        return
    assert all(Path(name).name == name and name not in {".", ".."} for name in names)
    assert all(name.isascii() and name.isprintable() for name in names)


@fuzzed
@given(st.text(max_size=80) | st.sampled_from(["ipv6:%5B::1%5D:1", "unix:", "ipv4:", ":"]))
def test_names_of_callers(name: str) -> None:
    """A name in a certificate is of somebody or nobody, and an address is text."""
    found = Identity.parse(name)
    assert found is None or Identity.parse(found.uri) == found
    plain(name)
