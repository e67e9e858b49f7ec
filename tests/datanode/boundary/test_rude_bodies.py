"""Bodies that are small on the wire and large in memory: refused before they are either."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest
from besieged_node import besieged_node, write_request
from pyarrow import flight
from replica_cluster import SCHEMA, batch_of
from secure_cluster import of_zone, secure_cluster

from rezone.storage.snapshot.columns import VERSIONS_SCHEMA
from rezone.wire import messages
from rezone.wire.codec.bodies import from_ipc, to_ipc
from rezone.wire.errors import ForbiddenError, InvalidRowError, RezoneError
from rezone.wire.messages import (
    BulkInsert,
    Failure,
    Message,
    NodeReport,
    ReportRequest,
    RoutesRequest,
    RouteTable,
    ScanTicket,
)
from rezone.wire.transport.flight import NodeClient, from_flight_error
from rezone.wire.transport.identity import Role

BODY_BYTES_MAX = 1 << 20
UNPACKED_BYTES = 512 << 20


def compressed(batch: pa.RecordBatch, codec: str) -> bytes:
    """Return a batch as an IPC stream with compressed buffers."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def bomb() -> bytes:
    """Return a row of half a gigabyte in a few bytes."""
    value = pa.array([bytes(UNPACKED_BYTES)], pa.binary())
    return compressed(
        pa.record_batch([pa.array([b"k"], pa.binary()), value], schema=SCHEMA), "zstd"
    )


@pytest.mark.slow
@pytest.mark.proves("TR-03")
def test_a_small_body_does_not_fill_the_memory(tmp_path: Path) -> None:
    """A few such requests at a time would end the process."""
    body = bomb()
    assert len(body) < BODY_BYTES_MAX
    with besieged_node(tmp_path) as node, node.honest() as table:
        node.write(table)
        peak = node.peak_bytes()
        client = node.c.as_(of_zone(Role.WRITER))
        channel = client.channel("data")
        watchdog = threading.Timer(20, channel.cancel)
        watchdog.start()
        channel.send(write_request(1), body)
        answer: tuple[Message, memoryview] | None = channel.receive()
        watchdog.cancel()
        channel.close()
        client.close()
        assert answer is not None
        assert isinstance(answer[0], Failure)
        assert answer[0].error.code == InvalidRowError.code
        assert "compressed" in answer[0].error.message
        assert node.peak_bytes() - peak < UNPACKED_BYTES // 4
        node.write(table)


@pytest.mark.proves("TR-03")
@pytest.mark.parametrize("codec", ["zstd", "lz4"])
@pytest.mark.parametrize("metadata", [None, {"another": "schema"}])
def test_compressed_bodies_are_refused(codec: str, metadata: dict[str, str] | None) -> None:
    """What a body takes in memory would not be known from what it takes on the wire."""
    batch = batch_of({b"key": bytes(10_000)})
    if metadata:
        batch = batch.replace_schema_metadata(metadata)
    with pytest.raises(InvalidRowError, match="compressed"):
        from_ipc(compressed(batch, codec), SCHEMA)
    assert from_ipc(to_ipc(batch), SCHEMA).num_rows == 1


@pytest.mark.proves("TR-03")
def test_no_change_of_a_body_is_worse_than_refused() -> None:
    """A byte that was changed on purpose would end the thread that reads it, or the process."""
    body = to_ipc(batch_of({b"key": b"value"}))
    for place in range(len(body)):
        for value in (0, 1, 127, 255):
            changed = bytearray(body)
            changed[place] = value
            try:
                from_ipc(bytes(changed), SCHEMA)
            except InvalidRowError:
                continue


@pytest.mark.proves("TR-03")
def test_nothing_of_a_stranger_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A certificate of another zone would be good for gigabytes and half a minute of decoding."""
    with secure_cluster(tmp_path, 1) as c:
        stranger = c.as_(of_zone(Role.ADMIN, "another"))
        reader = c.as_(of_zone(Role.READER))
        decoded: list[int] = []
        decode = messages.decode

        def counting(data: bytes | memoryview) -> Message:
            decoded.append(len(data))
            return decode(data)

        monkeypatch.setattr(messages, "decode", counting)
        with pytest.raises(ForbiddenError):
            stranger.call(RoutesRequest(), RouteTable)
        with pytest.raises(RezoneError, match="may not"):
            scan(stranger)
        with pytest.raises(RezoneError, match="may not"):
            put(stranger)
        with pytest.raises(ForbiddenError):
            reader.call(ReportRequest(), NodeReport)
        assert decoded == [], "of a role that may not ask for it, either"
        stranger.close()
        reader.close()


def scan(client: NodeClient) -> None:
    """Read what a scan says first."""
    try:
        client.get(ScanTicket(partition=0)).read_chunk()
    except flight.FlightError as error:
        raise from_flight_error(error) from error


def put(client: NodeClient) -> None:
    """Begin to fill a replica, and wait for what is said to that."""
    what = BulkInsert(partition=0, snapshot_source=0, attempt="a", revision=1)
    try:
        writer, answers = client.put(what, VERSIONS_SCHEMA)
        answers.read()
        writer.close()
    except flight.FlightError as error:
        raise from_flight_error(error) from error
