"""What a data node is sent in log entries and of engine files is refused where it would do harm.

All parsers are given changed bytes by `tests/hostile`.
"""

from __future__ import annotations

import struct
from pathlib import Path

import google_crc32c
import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostile_bytes import fuzzed
from rezone.storage.copies.fileload import check_names
from rezone.storage.log.entry import (
    HEADER_BYTES,
    OP_UPSERT,
    ROWS_SCHEMA,
    build_entry,
    iter_entries,
    rows_batch,
)
from rezone.wire.errors import CorruptionError
from rezone.wire.messages import SnapshotFile, SnapshotHeader
from rezone.wire.transport.identity import Identity
from rezone.wire.transport.sockets import plain

pytestmark = pytest.mark.proves("TR-03")

ROWS = rows_batch([b"a", b"b"], [OP_UPSERT, OP_UPSERT], [b"1", b"2"])
HEADER = SnapshotHeader(
    snapshot_id="s",
    offset=1,
    commit_time=1,
    leader_epoch=1,
    failover_log=(),
    producers=(),
    rows_estimate=1,
)


def signed(entry: bytes, body: bytes) -> bytes:
    """Return an entry with another body, and the checksum of that."""
    head = entry[8:HEADER_BYTES]
    crc = google_crc32c.value(head + body)
    return struct.pack("<II", HEADER_BYTES + len(body), crc) + head + body


@pytest.mark.parametrize("offsets", [(0, 1, 1 << 30), (0, 1 << 30, 2), (0, -1, 2)])
def test_rows_that_point_out_of_an_entry(offsets: tuple[int, int, int]) -> None:
    """Asserts that an entry whose offsets lead out of its bytes is refused before it is used.

    Its checksum is right. Arrow follows the offsets, and the process dies of a bad address, or
    stores whatever its memory has there. A quick look at the first and the last offset finds only
    the first case.
    """
    entry = build_entry(ROWS, leader_epoch=1, base_offset=0, commit_time=1)
    body = entry[HEADER_BYTES:]
    good, bad = struct.pack("<iii", 0, 1, 2), struct.pack("<iii", *offsets)
    assert body.count(good) == 2
    (read,) = iter_entries(signed(entry, body.replace(good, bad)))
    with pytest.raises(CorruptionError, match="Arrow"):
        read.batch()


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
    (entry,) = iter_entries(signed(built, packed))
    with pytest.raises(CorruptionError, match="compressed"):
        entry.batch()


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
