"""Bytes that come from outside are refused by what reads them: no other exception, no crash.

`make fuzz` runs the same for long. Hypothesis keeps what it has found in `.hypothesis`.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

import google_crc32c
import msgspec
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rezone.storage.copies.fileload import check_names
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
from rezone.wire import messages
from rezone.wire.codec.bodies import from_ipc, to_ipc
from rezone.wire.codec.encoded_rows import encoded_rows
from rezone.wire.codec.ipc_header import is_compressed
from rezone.wire.codec.rows import RowCodec
from rezone.wire.codec.schema import TableSchema
from rezone.wire.errors import CorruptionError, RezoneError
from rezone.wire.messages import (
    OriginalId,
    OwnWrites,
    ReadRequest,
    SnapshotFile,
    SnapshotHeader,
    TransactionTimes,
    WriteRequest,
)
from rezone.wire.transport.channel import pack, unpack
from rezone.wire.transport.identity import Identity
from rezone.wire.transport.sockets import plain

pytestmark = pytest.mark.proves("TR-03")

EXAMPLES = int(os.environ.get("REZONE_FUZZ_EXAMPLES", "100"))
fuzzed = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=EXAMPLES <= 100,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

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


@st.composite
def changed(draw: st.DrawFn, samples: list[bytes]) -> bytes:
    """Return bytes that were good once: some set, some cut out, some put in, the end cut off."""
    data = bytearray(draw(st.sampled_from(samples)))
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(data)))
        kind = draw(st.integers(0, 4))
        if kind == 0:
            data[place : place + 1] = draw(st.binary(min_size=1, max_size=1))
        elif kind == 1:
            number = draw(st.sampled_from([0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]))
            data[place : place + 4] = struct.pack("<I", number)
        elif kind == 2:
            del data[place : place + draw(st.integers(1, 16))]
        elif kind == 3:
            data[place:place] = draw(st.binary(max_size=16))
        else:
            del data[place:]
    return bytes(data)


def hostile(*samples: bytes) -> st.SearchStrategy[bytes]:
    """Return bytes of any kind, most of them near to good ones."""
    return changed(list(samples)) | st.binary(max_size=200)


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
