"""Messages that are small on the wire and large in memory, or that never end."""

from __future__ import annotations

import functools
import os
import resource
import subprocess
import sys
import zlib
from pathlib import Path

import pyarrow as pa
import pytest
from besieged_node import Besieged, besieged_node
from pyarrow import flight
from replica_cluster import OPERATOR, batch_of
from rude_client import RudeClient, flight_data, grpc_message, protobuf_field
from secure_cluster import of_zone

from rezone.wire.transport import receive_limits
from rezone.wire.transport.identity import Role

pytestmark = [
    pytest.mark.slow,
    pytest.mark.proves("TR-03"),
    pytest.mark.skipif(
        not (receive_limits.library_path().exists() or os.environ.get("CI")),
        reason="g++ is missing (Debian: apt-get install g++), and make env after it",
    ),
]

UNPACKED_BYTES = 512 << 20
MORE_BYTES = 160 << 20
"""So much more than before a data node may have while it is attacked, two of Flight's messages."""

SECONDS = 60.0


def limit_memory(node: Besieged) -> None:
    """Let the process have some more memory, and measure what it takes from here on."""
    assert node.node.process is not None
    home = Path(f"/proc/{node.node.process.pid}")
    (home / "clear_refs").write_text("5")  # its peak is what it has now
    (line,) = [a for a in (home / "status").read_text().splitlines() if a.startswith("VmData")]
    most = (int(line.split()[1]) << 10) + 2 * MORE_BYTES
    resource.prlimit(node.node.process.pid, resource.RLIMIT_DATA, (most, most))


@functools.cache
def gzip_bomb() -> bytes:
    """Return a message of half a megabyte of which gzip makes half a gigabyte."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    parts = [packer.compress(protobuf_field(1000, bytes(UNPACKED_BYTES))), packer.flush()]
    return grpc_message(b"".join(parts), compressed=True)


@pytest.mark.parametrize("method", ["DoAction", "DoGet", "DoPut", "DoExchange"])
def test_gzip_is_not_unpacked(tmp_path: Path, method: str) -> None:
    """A reader of another zone is enough for it: who calls is asked after a message is unpacked."""
    packed = gzip_bomb()
    with besieged_node(tmp_path) as node, node.honest() as table:
        node.write(table)
        limit_memory(node)
        before = node.peak_bytes()
        with node.rude(of_zone(Role.READER, "another"), window=1 << 20) as rude:
            stream = rude.open(method, b"", ("grpc-encoding", "gzip"))
            rude.send_bytes(stream, packed, SECONDS)
            assert rude.until(rude.ended, SECONDS)
        node.write(table)
        assert node.peak_bytes() - before < MORE_BYTES


def batch_bomb() -> bytes:
    """Return messages of Flight: a schema, and a batch that is half a gigabyte when unpacked."""
    batch = pa.record_batch([pa.array([bytes(UNPACKED_BYTES)], pa.binary())], names=["value"])
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    messages = pa.ipc.MessageReader.open_stream(sink.getvalue())
    return b"".join(
        grpc_message(
            protobuf_field(2, message.metadata.to_pybytes())
            + protobuf_field(1000, message.body.to_pybytes() if message.body else b"")
        )
        for message in messages
    )


def test_a_compressed_batch_takes_no_more_than_all_may(tmp_path: Path) -> None:
    """Flight reads what is sent on a channel as a batch before the data node sees it."""
    packed = batch_bomb()
    assert len(packed) < 1 << 20
    with besieged_node(tmp_path) as node, node.honest() as table:
        node.write(table)
        limit_memory(node)
        before = node.peak_bytes()
        with node.rude(window=1 << 20) as rude:
            stream = rude.open("DoExchange", flight_data(path="data"))
            rude.send_bytes(stream, packed, SECONDS)
            assert rude.until(rude.ended, SECONDS)
        node.write(table)
        assert node.peak_bytes() - before < MORE_BYTES


RESOURCE_EXHAUSTED = "8"


def test_a_message_over_the_limit_ends_its_call(tmp_path: Path) -> None:
    """Asserts that a whole message of more than a frame is refused, and no other call suffers.

    Without it a call is handed up to 4 GiB at once.
    """
    packed = flight_data(body=bytes(receive_limits.MESSAGE_BYTES_MAX))
    with besieged_node(tmp_path) as node, node.honest() as table, node.rude(window=1 << 20) as rude:
        stream = rude.open("DoExchange", flight_data(path="data"))
        rude.send_bytes(stream, packed, SECONDS)
        assert rude.until(rude.ended, SECONDS)
        assert rude.statuses() == [RESOURCE_EXHAUSTED]
        node.write(table)


def test_a_connection_has_few_calls_at_a_time(tmp_path: Path) -> None:
    """Asserts that a data node allows `CALLS_MAX` streams of a connection.

    Without it one connection takes as many threads as it likes.
    """
    with besieged_node(tmp_path) as node, node.rude(window=1 << 20) as rude:
        allowed = receive_limits.CALLS_MAX
        assert rude.until(lambda: rude.streams_max() == allowed, SECONDS), rude.streams_max()


CLAIMED_BYTES = 1 << 30
PART_BYTES = 64 << 20


def begin_message(rude: RudeClient, size: int) -> bool:
    """Send the beginning of a message that is said to be much larger; whether all was taken."""
    stream = rude.open("DoExchange", flight_data(path="data"))
    rude.send_bytes(stream, b"\0" + CLAIMED_BYTES.to_bytes(4, "big"))
    for _ in range(size >> 20):
        try:
            rude.send_bytes(stream, bytes(1 << 20), SECONDS)
        except TimeoutError:
            return False
        if not rude.read(0):
            return False
    return not rude.is_cut_off(3.0)


def test_messages_that_are_not_whole_are_kept_up_to_a_limit(tmp_path: Path) -> None:
    """What has come is kept by gRPC up to 4 GiB, as its limit is for whole messages."""
    with (
        besieged_node(tmp_path, unfinished_bytes_max=str(PART_BYTES)) as node,
        node.honest() as table,
        node.rude(window=1 << 20) as little,
        node.rude(window=1 << 20) as most,
    ):
        node.write(table)
        limit_memory(node)
        before = node.peak_bytes()
        assert begin_message(little, PART_BYTES >> 2)
        assert not begin_message(most, 4 * PART_BYTES), "it could send on for ever"
        node.write(table)
        assert not little.is_cut_off(0.5), "who has sent little is cut off as well"
        assert node.peak_bytes() - before < MORE_BYTES
        assert node.metric("rezone_data_node_refused_total") > 0


def test_what_is_taken_is_not_counted(tmp_path: Path) -> None:
    """An honest writer would be cut off after so many bytes, whether they were taken or not."""
    limit, value = 16 << 20, bytes(1 << 20)
    with besieged_node(tmp_path, unfinished_bytes_max=str(limit)) as node, node.honest() as table:
        for part in range(4 * limit // (4 * len(value))):
            table.write(batch_of({b"%d" % (part << 2 | i): value[:-64] for i in range(4)}))
        assert node.metric("rezone_data_node_refused_total") == 0


def test_the_command_of_the_image_loads_the_limits(tmp_path: Path) -> None:
    """Whatever imports Flight before them would leave a data node without limits."""
    command = [sys.executable, "-m", "rezone.cli.main", "data-node", "--node-id=0"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("REZONE_")}
    with subprocess.Popen(
        [*command, f"--data-dir={tmp_path}", "--listen=127.0.0.1:0", "--health=127.0.0.1:0"],
        env={**environment, "PYTHONPATH": str(OPERATOR)},
        stdout=subprocess.PIPE,
        text=True,
    ) as node:
        assert node.stdout is not None
        lines = []
        for line in node.stdout:
            lines.append(line)
            if '"serving"' in line:
                break
        node.kill()
    assert '"serving"' in lines[-1], lines
    assert not [line for line in lines if receive_limits.LIBRARY in line]


def test_limits_that_would_not_hold_are_no_limits() -> None:
    """This process has Flight already: a node in it would count on limits that nobody keeps."""
    assert flight.FlightServerBase
    with pytest.raises(receive_limits.ReceiveLimitsError, match="before"):
        receive_limits.load()
    assert not receive_limits.are_kept()
