"""Flight plumbing: typed actions on both sides, errors that keep their code, channels."""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
from pyarrow import flight

from rezone.wire import messages
from rezone.wire.channel import CHANNEL_ERRORS, Channel
from rezone.wire.errors import ErrorInfo, NotReadyError, RezoneError, error_from
from rezone.wire.messages import Message

Reply = TypeVar("Reply", bound=Message)

_info_encoder = msgspec.msgpack.Encoder()
_info_decoder = msgspec.msgpack.Decoder(ErrorInfo)


def to_flight_error(error: RezoneError) -> flight.FlightServerError:
    """Return the Flight error that carries a RezoneError to the other side."""
    return flight.FlightServerError(error.message, extra_info=_info_encoder.encode(error.info()))


def from_flight_error(error: BaseException) -> RezoneError:
    """Return the RezoneError in a Flight error; a broken connection is a NotReadyError."""
    extra = getattr(error, "extra_info", b"")
    if extra:
        try:
            return error_from(_info_decoder.decode(extra))
        except msgspec.MsgspecError:
            pass
    if isinstance(error, (flight.FlightUnavailableError, flight.FlightTimedOutError)):
        return NotReadyError(f"the node does not answer: {error}", unreachable=1)
    return RezoneError(str(error))


class NodeClient:
    """Control calls, streams and channels to one data node.

    `address` is "host:port". Thread-safe. Errors arrive as RezoneError; an unreachable node as
    NotReadyError with the detail `unreachable`.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._client = flight.connect(
            f"grpc://{address}",
            generic_options=[
                ("grpc.max_reconnect_backoff_ms", 500),
                ("grpc.initial_reconnect_backoff_ms", 100),
                ("grpc.min_reconnect_backoff_ms", 100),
            ],
        )

    def call(self, request: Message, reply: type[Reply], *, timeout_seconds: float = 5.0) -> Reply:
        """Make one control call and return its reply."""
        action = flight.Action(type(request).__name__, messages.encode(request))
        options = flight.FlightCallOptions(timeout=timeout_seconds)
        try:
            results = list(self._client.do_action(action, options=options))
        except CHANNEL_ERRORS as error:
            raise from_flight_error(error) from error
        answer = messages.decode(memoryview(results[0].body))
        if not isinstance(answer, reply):
            got = type(answer).__name__
            raise RezoneError(f"{self.address} answered {got}, not {reply.__name__}")
        return answer

    def get(self, ticket: Message, *, timeout_seconds: float | None = None) -> Any:
        """Open a DoGet stream; returns the Flight reader."""
        options = flight.FlightCallOptions(timeout=timeout_seconds)
        try:
            return self._client.do_get(flight.Ticket(messages.encode(ticket)), options=options)
        except CHANNEL_ERRORS as error:
            raise from_flight_error(error) from error

    def put(self, descriptor: Message, schema: pa.Schema) -> tuple[Any, Any]:
        """Open a DoPut stream; returns Flight's (writer, metadata reader)."""
        command = flight.FlightDescriptor.for_command(messages.encode(descriptor))
        try:
            writer, reader = self._client.do_put(command, schema)
        except CHANNEL_ERRORS as error:
            raise from_flight_error(error) from error
        return writer, reader

    def channel(self, kind: str) -> Channel:
        """Open a frame channel; `kind` is "data" or "replication"."""
        try:
            writer, reader = self._client.do_exchange(flight.FlightDescriptor.for_path(kind))
        except CHANNEL_ERRORS as error:
            raise from_flight_error(error) from error
        return Channel(reader, writer)

    def close(self) -> None:
        """Close the connection; calls under way fail."""
        self._client.close()


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
