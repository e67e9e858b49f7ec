"""Flight plumbing: typed actions on both sides, errors that keep their code, channels."""

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
from pyarrow import flight

from rezone.wire import messages
from rezone.wire.errors import UNREADABLE, ErrorInfo, NotReadyError, RezoneError, error_from
from rezone.wire.messages import Heartbeat, Message, NodeId
from rezone.wire.transport.channel import CHANNEL_ERRORS, Channel
from rezone.wire.transport.identity import node_host
from rezone.wire.transport.tls import TlsFiles, TlsSource, explained, utc_now
from rezone.wire.typed import msgpack_decoder

Reply = TypeVar("Reply", bound=Message)

_info_encoder = msgspec.msgpack.Encoder()
_info_decoder = msgpack_decoder(ErrorInfo)

# gRPC reads it with its first connection. Its own resolver goes on to servers outside the cluster
# when a name has no IPv6 address, and a call ends before they have all been silent (decision 0511).
os.environ.setdefault("GRPC_DNS_RESOLVER", "native")

_OPTIONS = [
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Not a pause: so long an attempt may take, handshakes included (grpc/grpc#33423). A node that
    # is busy or far away would never be reached within the 100 ms of the first pause.
    ("grpc.min_reconnect_backoff_ms", 500),
    # Each client has a connection of its own: a new one shall not go on with the one of another
    # client of the same address, which may be dead.
    ("grpc.use_local_subchannel_pool", 1),
    # With a time for pings the kernel breaks off what stays unacknowledged for the other time
    # (TCP_USER_TIMEOUT). The pings themselves are so rare that servers do not mind: those that
    # come within five minutes make them hang up.
    ("grpc.keepalive_time_ms", 330_000),
    ("grpc.keepalive_timeout_ms", 5_000),
]

ANSWER_SECONDS = 30.0
"""A node that has not answered twice in this time, to the smallest of calls, is not there."""

_BEATS = 2
_HEARTBEAT = flight.Action(Heartbeat.__name__, messages.encode(Heartbeat()))


def to_flight_error(error: RezoneError) -> flight.FlightServerError:
    """Return the Flight error that carries a RezoneError to the other side."""
    return flight.FlightServerError(error.message, extra_info=_info_encoder.encode(error.info()))


def from_flight_error(error: BaseException) -> RezoneError:
    """Return the RezoneError in a Flight error; a broken connection is a NotReadyError."""
    extra = getattr(error, "extra_info", b"")
    if extra:
        try:
            return error_from(_info_decoder.decode(extra))
        except UNREADABLE:
            pass
    if isinstance(error, (flight.FlightUnavailableError, flight.FlightTimedOutError)):
        return NotReadyError(f"the node does not answer: {error}", unreachable=1)
    return RezoneError(str(error))


class NodeClient:
    """Control calls, streams and channels to one data node.

    `address` is "host:port". Thread-safe. Errors arrive as RezoneError; an unreachable node as
    NotReadyError with the detail `unreachable`. With `tls` both sides show certificates, and the
    node's must have `server_name`, by default that of the zone in the caller's own certificate, or
    with `node` the name of this very data node.
    New files are used from the next call on; channels that are open stay as they are. After a call
    that was not answered in time the next one is made on a new connection.
    """

    def __init__(
        self,
        address: str,
        tls: TlsSource | None = None,
        *,
        server_name: str = "",
        node: NodeId | None = None,
    ) -> None:
        self.address = address
        self._tls = tls
        self._server_name = server_name
        self._node = node
        self._connecting = threading.Lock()
        self._files = tls.current() if tls is not None else None
        self._client: Any | None = self._connect(self._files)
        self._streams_on: Any = self._client

    def _connect(self, files: TlsFiles | None) -> Any:
        if files is None:
            return flight.connect(f"grpc://{self.address}", generic_options=_OPTIONS)
        own = files.identity
        name = self._server_name or (own.server_name if own else "")
        if name and self._node is not None:
            name = node_host(self._node, name)
        return flight.connect(
            f"grpc+tls://{self.address}",
            generic_options=_OPTIONS,
            tls_root_certs=files.authority,
            cert_chain=files.certificate,
            private_key=files.key,
            override_hostname=name or None,
        )

    def _flight(self) -> Any:
        """Return the connection, made again when there are new files."""
        files = self._tls.current() if self._tls is not None else None
        if files is not None:
            files.require_valid(utc_now())
        with self._connecting:
            if self._client is None:
                raise NotReadyError(f"the connection to {self.address} is closed")
            if files is not self._files:
                self._client = self._connect(files)
                self._files = files
            return self._client

    def _failed(self, error: BaseException) -> RezoneError:
        failed = from_flight_error(error)
        if not failed.details.get("unreachable"):
            return failed
        text = explained(failed.message, encrypted=self._tls is not None)
        return NotReadyError(text, **failed.details)

    def call(
        self,
        request: Message,
        reply: type[Reply],
        *,
        timeout_seconds: float = 5.0,
        encoded: bytes | None = None,
    ) -> Reply:
        """Make one control call and return its reply.

        `encoded` is the request's bytes, from a caller who sends it to many nodes.
        A node whose server ends meanwhile counts as unreachable: nobody cancels calls on this side.
        """
        body = messages.encode(request) if encoded is None else encoded
        action = flight.Action(type(request).__name__, body)
        options = flight.FlightCallOptions(timeout=timeout_seconds)
        try:
            results = list(self._flight().do_action(action, options=options))
        except flight.FlightCancelledError as error:
            raise NotReadyError(f"the node ends its connections: {error}", unreachable=1) from error
        except flight.FlightTimedOutError as error:
            self.renew()
            raise self._failed(error) from error
        except CHANNEL_ERRORS as error:
            raise self._failed(error) from error
        if len(results) != 1:
            raise RezoneError(f"{self.address} answered {len(results)} times")
        try:
            answer = messages.decode(memoryview(results[0].body))
        except msgspec.MsgspecError as error:
            raise RezoneError(f"{self.address} answered what cannot be read: {error}") from error
        if not isinstance(answer, reply):
            got = type(answer).__name__
            raise RezoneError(f"{self.address} answered {got}, not {reply.__name__}")
        return answer

    def get(self, ticket: Message, *, timeout_seconds: float | None = None) -> Any:
        """Open a DoGet stream; returns the Flight reader."""
        options = flight.FlightCallOptions(timeout=timeout_seconds)
        self._streams_on = self._flight()
        try:
            return self._streams_on.do_get(flight.Ticket(messages.encode(ticket)), options=options)
        except CHANNEL_ERRORS as error:
            raise self._failed(error) from error

    def put(self, descriptor: Message, schema: pa.Schema) -> tuple[Any, Any]:
        """Open a DoPut stream; returns Flight's (writer, metadata reader)."""
        command = flight.FlightDescriptor.for_command(messages.encode(descriptor))
        self._streams_on = self._flight()
        try:
            writer, reader = self._streams_on.do_put(command, schema)
        except CHANNEL_ERRORS as error:
            raise self._failed(error) from error
        return writer, reader

    def channel(self, kind: str) -> Channel:
        """Open a frame channel; `kind` is "data" or "replication"."""
        try:
            writer, reader = self._flight().do_exchange(flight.FlightDescriptor.for_path(kind))
        except CHANNEL_ERRORS as error:
            raise self._failed(error) from error
        return Channel(reader, writer)

    def is_there(self) -> bool:
        """Return whether the node answers on the connection of the last snapshot, scan or copy.

        An error is an answer. A call that was made before this process was stopped for a while may
        have ended for that; so one more is made.
        """
        options = flight.FlightCallOptions(timeout=ANSWER_SECONDS)
        for _ in range(_BEATS):
            try:
                list(self._streams_on.do_action(_HEARTBEAT, options=options))
            except CHANNEL_ERRORS as error:
                if from_flight_error(error).details.get("unreachable"):
                    continue
            return True
        return False

    def renew(self) -> None:
        """Connect again for the next call: the node is silent, and perhaps only this connection.

        Calls under way go on with the old one.
        """
        with self._connecting:
            if self._client is not None:
                self._client = self._connect(self._files)

    def close(self) -> None:
        """Refuse further calls; the connection is closed behind the last of those under way.

        Any thread may, also while others are in a call. So it is dropped and not closed: Flight
        frees at once what a call works with, and the process would die of that.
        """
        with self._connecting:
            self._client = None


def answer_action(
    action: flight.Action,
    handle: Callable[[Message], Message],
) -> Iterator[flight.Result]:
    """Serve one action: decode, handle, encode; a RezoneError keeps its code on the way."""
    try:
        request = messages.decode(memoryview(action.body))
    except msgspec.MsgspecError as error:
        raise flight.FlightServerError(f"not a message of this version: {error}") from error
    try:
        reply = handle(request)
    except RezoneError as error:
        raise to_flight_error(error) from error
    yield flight.Result(pa.py_buffer(messages.encode(reply)))
