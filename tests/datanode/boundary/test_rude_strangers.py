"""Who has connected and makes no call: not for long, not too many, never the last descriptors."""

from __future__ import annotations

import contextlib
import http.server
import resource
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from besieged_node import Besieged, besieged_node, row, write_request
from rude_client import grpc_message, protobuf_field

from rezone.datanode.observing.bounded_http import BoundedHTTPServer
from rezone.datanode.service.door import Door
from rezone.datanode.settings import NodeSettings, SystemClock
from rezone.wire import messages
from rezone.wire.errors import NotReadyError
from rezone.wire.messages import ScanTicket
from rezone.wire.transport.callers import Passed

DESCRIPTORS = 300
STRANGERS = 400
SECONDS = 30.0


@contextlib.contextmanager
def idle_connections(address: str, count: int) -> Iterator[list[socket.socket]]:
    """Connect, and say nothing; as many as are let."""
    host, port = address.split(":")
    with contextlib.ExitStack() as stack:
        found: list[socket.socket] = []
        for _ in range(count):
            with contextlib.suppress(OSError):
                made = socket.create_connection((host, int(port)), 1)
                found.append(stack.enter_context(made))
        yield found


def is_ended(connection: socket.socket, seconds: float = SECONDS) -> bool:
    """Whether the other side ends the connection in time."""
    connection.settimeout(seconds)
    try:
        while connection.recv(1000):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


class Waiting:
    """Connections on which no call is made; there are descriptors enough."""

    def __init__(self) -> None:
        self.addresses: list[str] = []
        self.cut_off: list[str] = []

    def look(self) -> list[str]:
        """Return who is connected."""
        return list(self.addresses)

    def cut(self, address: str) -> None:
        """End one."""
        self.addresses.remove(address)
        self.cut_off.append(address)

    def passed(self) -> dict[str, Passed]:
        """Nothing has passed."""
        return {}

    def left(self) -> int:
        """Many are left."""
        return 1_000_000

    def limit(self) -> int:
        """Return how many there may be."""
        return 1_000_000


def limit_descriptors(node: Besieged) -> None:
    """Let the node have few."""
    assert node.node.process is not None
    limits = (DESCRIPTORS, DESCRIPTORS)
    resource.prlimit(node.node.process.pid, resource.RLIMIT_NOFILE, limits)


def write_in_time(node: Besieged) -> None:
    """Write as a new client, which waits behind the others for its turn to be let in."""
    until = time.monotonic() + SECONDS
    while True:
        try:
            with node.honest() as table:
                return node.write(table)
        except NotReadyError:
            assert time.monotonic() < until, "nobody is let in any more"


@pytest.mark.slow
@pytest.mark.proves("TR-03")
def test_idle_connections_take_no_descriptors_from_others(tmp_path: Path) -> None:
    """The node could open no file and take no client while they stay, which is for ever."""
    limits = {"stranger_ms_max": "600000", "strangers_address_max": "1000"}
    with besieged_node(tmp_path, **limits) as node, node.honest() as first:
        limit_descriptors(node)
        node.write(first)
        with idle_connections(node.node.address, STRANGERS):
            write_in_time(node)
            assert node.health() == 200
            assert node.metric("rezone_data_node_failed_partitions") == 0
            assert node.metric("rezone_data_node_refused_total") > 0
            node.write(first)


@pytest.mark.slow
@pytest.mark.proves("TR-03")
def test_strangers_are_soon_gone_and_callers_stay(tmp_path: Path) -> None:
    """A handshake that takes for ever holds memory and descriptors without any certificate."""
    with (
        besieged_node(tmp_path, stranger_ms_max="2000") as node,
        node.rude(window=1 << 16) as caller,
        node.rude() as mute,
        node.honest() as table,
    ):
        stream = caller.open_data_channel()
        caller.send(stream, write_request(1), row())
        with idle_connections(node.node.address, 20) as idle:
            assert all(is_ended(one) for one in idle), "a handshake may take so long"
        assert mute.is_cut_off(SECONDS), "a certificate alone is no call"
        node.write(table)
        assert not caller.is_cut_off(1), "who has made a call may stay"


@pytest.mark.slow
@pytest.mark.proves("TR-03")
def test_strangers_of_one_address_are_few(tmp_path: Path) -> None:
    """One machine would take what is there for the strangers of all."""
    limits = {"stranger_ms_max": "600000", "strangers_address_max": "20"}
    with (
        besieged_node(tmp_path, **limits) as node,
        node.honest() as table,
        idle_connections(node.node.address, 60) as idle,
    ):
        assert all(is_ended(one) for one in idle[:30])
        assert not is_ended(idle[-1], 1), "the newest may be an honest client's"
        node.write(table)


@pytest.mark.proves("TR-03")
def test_the_oldest_stranger_goes_first() -> None:
    """An honest client that comes behind many strangers would be cut off before its first call."""
    door = Door(NodeSettings(strangers_address_max=3), SystemClock())
    connections = Waiting()
    for second in range(6):
        connections.addresses.append(f"10.0.0.1:{second}")
        door.look(connections, float(second))
    assert connections.cut_off == ["10.0.0.1:0", "10.0.0.1:1", "10.0.0.1:2"]


@pytest.mark.slow
@pytest.mark.proves("TR-03")
def test_a_scan_that_nobody_reads_ends(tmp_path: Path) -> None:
    """It would hold its thread and its rows for as long as its caller is connected."""
    with besieged_node(tmp_path, stream_unread_ms_max="1000") as node, node.honest() as table:
        node.write(table)
        with node.rude() as rude:
            ticket = protobuf_field(1, messages.encode(ScanTicket(partition=0)))
            rude.open("DoGet", grpc_message(ticket))
            assert rude.is_cut_off(SECONDS)
        assert node.metric("rezone_data_node_cut_off_total") == 1
        assert sum(1 for _ in table.scan()) > 0


@pytest.mark.slow
@pytest.mark.proves("TR-03")
def test_a_probe_is_answered_beside_idle_connections(tmp_path: Path) -> None:
    """The kubelet would restart a node whose health port others keep busy."""
    with besieged_node(tmp_path) as node:
        address = f"127.0.0.1:{node.health_port}"
        with idle_connections(address, 100) as idle:
            assert node.health() == 200
            assert all(is_ended(one, 5) for one in idle[:60])


@pytest.mark.proves("TR-03")
def test_a_request_that_comes_slowly_has_a_deadline() -> None:
    """A byte now and then would hold a thread for ever."""

    class Server(BoundedHTTPServer):
        seconds_max = 1.0

    server = Server(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    with socket.create_connection(("127.0.0.1", server.server_port)) as slow:
        ended = threading.Event()
        until = time.monotonic() + SECONDS
        while not ended.wait(0.2) and time.monotonic() < until:
            try:
                slow.sendall(b"G")
            except OSError:
                ended.set()
        assert ended.is_set()
    server.shutdown()
    server.server_close()
    serving.join(SECONDS)
