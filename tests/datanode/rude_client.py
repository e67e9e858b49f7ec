"""A client that speaks Flight over raw HTTP/2: it opens no window, and sends what it likes."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    DataReceived,
    Event,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes

from rezone.wire.messages import Message
from rezone.wire.transport.channel import pack
from rezone.wire.transport.tls import TlsFiles

_SERVICE = "/arrow.flight.protocol.FlightService"
_READ_BYTES = 1 << 16
_PATH_TYPE = 1


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def protobuf_field(number: int, value: bytes) -> bytes:
    """Return a length-delimited field of a protobuf message."""
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def flight_data(metadata: bytes = b"", *, path: str = "", body: bytes = b"") -> bytes:
    """Return one FlightData message, behind the five bytes that gRPC puts before each."""
    descriptor = b"\x08" + _varint(_PATH_TYPE) + protobuf_field(3, path.encode())
    message = b"".join(
        (
            protobuf_field(1, descriptor) if path else b"",
            protobuf_field(3, metadata) if metadata else b"",
            protobuf_field(1000, body) if body else b"",
        )
    )
    return grpc_message(message)


def grpc_message(message: bytes, *, compressed: bool = False) -> bytes:
    """Return a message as gRPC frames it."""
    return bytes([compressed]) + len(message).to_bytes(4, "big") + message


class RudeClient:
    """One connection; `window` is how many bytes the other side may send on each stream."""

    def __init__(self, address: str, files: TlsFiles, name: str, *, window: int = 0) -> None:
        host, port = address.rsplit(":", 1)
        self._socket = connect_tls((host, int(port)), files, name)
        self._http = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self._http.local_settings = self._http.local_settings.__class__(
            client=True, initial_values={SettingCodes.INITIAL_WINDOW_SIZE: window}
        )
        self._authority = name
        self.received = 0
        self.events: list[Event] = []
        self._http.initiate_connection()
        self._flush()

    def open_data_channel(self, *headers: tuple[str, str]) -> int:
        """Open a data channel; return its stream."""
        return self.open("DoExchange", flight_data(path="data"), *headers)

    def open(self, method: str, first: bytes, *headers: tuple[str, str]) -> int:
        """Call a method of Flight with a first message; return the stream."""
        stream = int(self._http.get_next_available_stream_id())
        self._http.send_headers(
            stream,
            [
                (":method", "POST"),
                (":scheme", "https"),
                (":path", f"{_SERVICE}/{method}"),
                (":authority", self._authority),
                ("te", "trailers"),
                ("content-type", "application/grpc"),
                *headers,
            ],
        )
        self.send_bytes(stream, first)
        return stream

    def send(self, stream: int, message: Message, body: bytes | memoryview = b"") -> None:
        """Send one frame of a channel."""
        self.send_bytes(stream, flight_data(pack(message, body)))

    def send_bytes(self, stream: int, data: bytes, seconds: float = 10.0) -> None:
        """Send bytes as the other side's window lets; TimeoutError when it stays closed."""
        until = time.monotonic() + seconds
        while data:
            room = min(
                self._http.local_flow_control_window(stream), self._http.max_outbound_frame_size
            )
            if room <= 0:
                if time.monotonic() > until:
                    raise TimeoutError("the node reads nothing")
                self.read(0.05)
                continue
            part, data = data[:room], data[room:]
            self._http.send_data(stream, part)
            self._flush()

    def grant(self, stream: int, size: int) -> None:
        """Let the other side send so many bytes more."""
        self._http.increment_flow_control_window(size, stream)
        self._http.increment_flow_control_window(size)
        self._flush()

    def read(self, seconds: float) -> bool:
        """Take what comes within so many seconds; whether the connection stands."""
        ready, _, _ = select.select([self._socket], [], [], seconds)
        if not ready and not self._socket.pending():
            return True
        try:
            data = self._socket.recv(_READ_BYTES)
        except OSError:
            return False
        if not data:
            return False
        self.received += len(data)
        with contextlib.suppress(ProtocolError):
            self.events.extend(self._http.receive_data(data))
        self._flush()
        return True

    def until(self, condition: Callable[[], bool], seconds: float = 10.0) -> bool:
        """Read until something is so; whether it became so in time."""
        until = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > until or not self.read(0.05):
                return condition()
        return True

    def is_cut_off(self, seconds: float) -> bool:
        """Whether the other side ends the connection, or all streams, within so many seconds."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if not self.read(0.05):
                return True
        return False

    def ended(self) -> bool:
        """Whether a stream was ended by the other side."""
        return any(isinstance(event, StreamEnded | StreamReset) for event in self.events)

    def answered(self) -> bool:
        """Whether anything was answered, or the stream has ended."""
        return self.ended() or any(isinstance(event, DataReceived) for event in self.events)

    def statuses(self) -> list[str]:
        """Return the statuses of gRPC that ended streams have been told."""
        ends = (e for e in self.events if isinstance(e, ResponseReceived | TrailersReceived))
        told = (header for end in ends for header in end.headers or [])
        return [str(value) for name, value in told if str(name) == "grpc-status"]

    def streams_max(self) -> int:
        """Return how many streams at a time the other side has allowed."""
        return int(self._http.remote_settings.max_concurrent_streams)

    def close(self) -> None:
        """Go without a word."""
        self._socket.close()

    def _flush(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.sendall(self._http.data_to_send())


def connect_tls(address: tuple[str, int], files: TlsFiles, name: str) -> ssl.SSLSocket:
    """Return a connection with a certificate, as gRPC makes one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=files.authority.decode())
    load_files(context, files)
    context.set_alpn_protocols(["h2"])
    plain = socket.create_connection(address, 10)
    return context.wrap_socket(plain, server_hostname=name)


def load_files(context: ssl.SSLContext, files: TlsFiles) -> None:
    """Show this certificate; Python takes it from a file only."""
    with tempfile.NamedTemporaryFile() as both:
        both.write(files.certificate + b"\n" + files.key)
        both.flush()
        context.load_cert_chain(both.name)


@contextlib.contextmanager
def rude_client(
    address: str, files: TlsFiles, name: str, *, window: int = 0
) -> Iterator[RudeClient]:
    """Connect, and hang up at the end."""
    client = RudeClient(address, files, name, window=window)
    try:
        yield client
    finally:
        client.close()
