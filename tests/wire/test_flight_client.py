"""What a caller hears of a node whose server ends under its call, or is slow to begin."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from rezone.wire.errors import NotReadyError
from rezone.wire.messages import Ack, ReportRequest, encode
from rezone.wire.transport.flight import NodeClient


class EndingServer(flight.FlightServerBase):  # type: ignore[misc]
    """Answers every call as a server does that is shut down meanwhile."""

    def do_action(self, _context: Any, _action: Any) -> Iterator[Any]:
        """End the call."""
        raise flight.FlightCancelledError("the server is shut down")


def test_a_call_that_ends_with_its_server_may_be_made_again() -> None:
    """A renewed certificate, for which servers are replaced, would fail what is asked just then."""
    with EndingServer("grpc://127.0.0.1:0") as server:
        client = NodeClient(f"127.0.0.1:{server.port}")
        with pytest.raises(NotReadyError) as failed:
            client.call(ReportRequest(seen=-1), Ack)
        client.close()
    assert failed.value.details.get("unreachable") == 1


class AnsweringServer(flight.FlightServerBase):  # type: ignore[misc]
    """Answers every call."""

    def do_action(self, _context: Any, _action: Any) -> Iterator[Any]:
        """Say that it is done."""
        yield flight.Result(pa.py_buffer(encode(Ack())))


def test_a_call_outlives_the_close_of_its_connection() -> None:
    """Flight would free what the call of another thread works with: a client's process would die.

    So would that of a node or an operator that stops.
    """
    with AnsweringServer("grpc://127.0.0.1:0") as server:
        client = NodeClient(f"127.0.0.1:{server.port}")
        under_way = client._flight()  # as a thread has it between two lines of a call
        client.close()
        client.close()

        assert list(under_way.do_action(flight.Action("ReportRequest", b"")))
        with pytest.raises(NotReadyError, match="is closed"):
            client.call(ReportRequest(seen=-1), Ack)


HANDSHAKE_SECONDS = 0.2
TRIES = 5
"""On a busy machine one of them may take even longer."""


@contextlib.contextmanager
def slow_to_begin(port: int) -> Iterator[int]:
    """Give a port whose connections lead to another one, each after a while."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=lead, args=listening.accept()[:1], daemon=True).start()

        def lead(there: socket.socket) -> None:
            threading.Event().wait(HANDSHAKE_SECONDS)  # what the handshakes would take
            with (
                contextlib.suppress(OSError),  # the other side may have given up by now
                there,
                socket.create_connection(("127.0.0.1", port)) as here,
            ):
                back = threading.Thread(target=pump, args=(here, there), daemon=True)
                back.start()
                pump(there, here)
                back.join()

        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        yield int(listening.getsockname()[1])
        listening.shutdown(socket.SHUT_RDWR)
        serving.join()


def pump(source: socket.socket, target: socket.socket) -> None:
    """Carry bytes until one side ends; the other side then ends, too."""
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for one in (source, target):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


def test_a_node_that_is_slow_to_begin_is_reached() -> None:
    """A node under load, or far away, would count as unreachable for as long as it is that."""
    said = []
    with EndingServer("grpc://127.0.0.1:0") as server, slow_to_begin(server.port) as port:
        for _ in range(TRIES):
            client = NodeClient(f"127.0.0.1:{port}")
            with pytest.raises(NotReadyError) as failed:
                client.call(ReportRequest(seen=-1), Ack)
            client.close()
            said.append(str(failed.value))
    assert any("the node ends its connections" in one for one in said), said
