"""The Flight server of a data node: calls, snapshots, scans, bulk inserts and channels.

With TLS a peer must show a certificate of the same authority, and each thing it asks for is
checked by its name (`guard`) before anything else happens.

Concurrency: Flight has a thread for each call under way; all state is the node's.
"""

import contextlib
from collections.abc import Iterator
from typing import Any, Self

import msgspec
import pyarrow as pa
import structlog
from pyarrow import flight

from rezone.datanode.copying.copies import Receiver, failure_of, snapshot_stream
from rezone.datanode.node.node import DataNode
from rezone.datanode.reading.lookup import lookup_batches
from rezone.datanode.reading.scan import scan_batches
from rezone.datanode.reading.select import select_batches, selected_schema
from rezone.datanode.scheduling.error_log import UNEXPECTED
from rezone.datanode.scheduling.foreground import CopySteps
from rezone.datanode.scheduling.requests import Result, operation_of, result_of_code
from rezone.datanode.scheduling.unread import Peer, Unread
from rezone.datanode.service.control import Control
from rezone.datanode.service.door import Door
from rezone.datanode.service.epoch_bounds import check_bounds
from rezone.datanode.service.guard import Guard, guard_of
from rezone.datanode.service.intake import CALL_BYTES, Taken
from rezone.datanode.settings import Clock
from rezone.datanode.writing.owner import Owner
from rezone.domain.access.roles import Act, act_of
from rezone.wire import messages
from rezone.wire.errors import RezoneError
from rezone.wire.messages import (
    BulkInsert,
    CopyFailure,
    CopyState,
    Fence,
    IndexTicket,
    Message,
    NodeId,
    ScanTicket,
    SelectTicket,
    SnapshotTicket,
)
from rezone.wire.transport.anchors import constrained
from rezone.wire.transport.channel import CHANNEL_ERRORS, Channel
from rezone.wire.transport.flight import answer_action, to_flight_error
from rezone.wire.transport.identity import Identity, Role
from rezone.wire.transport.sockets import cut_off, probe_callers
from rezone.wire.transport.tls import TlsFiles, TlsFilesError

_log = structlog.get_logger(__name__)

_ACTS = {kind.__name__: act_of(kind) for kind in messages.ALL_MESSAGES}


class NodeServer(flight.FlightServerBase):  # type: ignore[misc]
    """Serves a node at `listen` ("host:port"; port 0 is any free one, see `port`).

    Without `files` it speaks plaintext and lets everybody in.
    """

    def __init__(
        self,
        node: DataNode,
        listen: str,
        files: TlsFiles | None = None,
        door: Door | None = None,
    ) -> None:
        self._node = node
        self._door = door or Door(node.settings, node.clock)
        self._control = Control(node)
        self._here: Identity | None = None
        if files is None:
            super().__init__(f"grpc://{listen}")
        else:
            self._here = node_identity(files, node.node_id)
            super().__init__(
                f"grpc+tls://{listen}",
                tls_certificates=[(files.certificate, files.key)],
                verify_client=True,
                root_certificates=constrained(files),
            )
        probe_callers(self.port)

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        """Name the calls."""
        with _telling_callers():
            guard_of(self._here, context).require(Act.ROUTES)
        return [
            (kind.__name__, (kind.__doc__ or "").split("\n")[0]) for kind in self._control.kinds
        ]

    def do_action(self, context: Any, action: flight.Action) -> Iterator[flight.Result]:
        """Answer one call."""
        guard = guard_of(self._here, context)
        with _telling_callers():
            # By its type alone: what a stranger sends is not decoded. The body has a type as well.
            guard.require(_ACTS.get(action.type, Act.CONTROL))
        self._door.welcome(context.peer())(CALL_BYTES + len(action.body))

        def handle(request: Message) -> Message:
            with _telling_callers(), self._counted(request, always=True):
                guard.check(request)
                self._check_epoch(request)
                with self._traced(request):
                    return self._control.handle(request)

        return answer_action(action, handle)

    def _traced(self, request: Message) -> contextlib.AbstractContextManager[None]:
        tracer = self._node.tracer
        return contextlib.nullcontext() if tracer is None else tracer.reading(request)

    def _check_epoch(self, request: Message) -> None:
        """Refuse what no coordinator can be, where certificates do not tell who is one."""
        fence = getattr(request, "fence", None)
        if self._here is not None or not isinstance(fence, Fence):
            return
        check_bounds(request, fence, self._node.clock.micros())

    def do_get(self, context: Any, ticket: flight.Ticket) -> Any:
        """Stream a snapshot, a scan or a lookup."""
        with _telling_callers():
            guard = guard_of(self._here, context)
            guard.require(Act.ROUTES)
            self._door.welcome(context.peer())(CALL_BYTES + len(ticket.ticket))
            request = _decode(ticket.ticket)
            with self._counted(request, always=False):
                guard.check(request)
                peer = self._peer_of(context)
                return self._stream(_of_owner(request, guard.owner), peer)

    @contextlib.contextmanager
    def _counted(self, request: Message, *, always: bool) -> Iterator[None]:
        """Count a client's request when it is refused, or `always`; a stream counts at its end."""
        begun, result = self._node.clock.monotonic(), Result.FAILED
        try:
            yield
            result = Result.OK
        except RezoneError as error:
            result = result_of_code(error.code)
            raise
        finally:
            operation = operation_of(request)
            if operation is not None and (always or result is not Result.OK):
                seconds = self._node.clock.monotonic() - begun
                self._node.foreground.count(operation, result, seconds)

    def _stream(self, request: Message, peer: Peer) -> Any:
        if isinstance(request, SnapshotTicket):
            partition = self._node.find(request.partition)
            source = self._node.open_source(partition, request)
            stream = snapshot_stream(source, self._node.foreground)
            return flight.GeneratorStream(source.schema, self._timed(stream, peer))
        if isinstance(request, ScanTicket | IndexTicket):
            partition = self._node.find_for_client(request.partition)
            codec = self._node.zone.codec
            if isinstance(request, ScanTicket):
                rows = scan_batches(partition, request, codec)
            else:
                rows = lookup_batches(partition, partition.index, request, codec)
            served = self._served(rows, request)
            return flight.GeneratorStream(codec.arrow_schema, self._timed(served, peer))
        if isinstance(request, SelectTicket):
            partition = self._node.find_for_client(request.partition)
            codec = self._node.zone.codec
            schema = selected_schema(codec, request.columns)
            rows = select_batches(partition, partition.index, request, codec)
            served = self._served(rows, request)
            return flight.GeneratorStream(schema, self._timed(served, peer))
        raise RezoneError(f"{type(request).__name__} is not a ticket")

    def _served(self, rows: Iterator[Any], request: Message) -> Iterator[Any]:
        """Pass rows on to a client: they are counted, and traced if it asks for that."""
        tracer = self._node.tracer
        if tracer is not None:
            rows = tracer.streaming(request, rows)
        return self._node.foreground.serving(rows, operation_of(request))

    def _timed(self, stream: Iterator[Any], peer: Peer) -> Iterator[Any]:
        """Pass a stream on; its caller is cut off when it takes nothing of it for too long."""
        timed = _TimedStream(stream, self._node.unread, self._node.clock)
        most = self._node.settings.stream_unread_ms_max / 1000
        self._node.unread.watch(timed.given, peer, seconds_max=most)
        return timed

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Take a snapshot in (BulkInsert); answers with CopyState as it becomes durable."""
        with _telling_callers():
            guard = guard_of(self._here, context)
            guard.require(Act.ROUTES)
            taken = self._door.welcome(context.peer())
            taken(CALL_BYTES + len(descriptor.command))
            request = _decode(descriptor.command)
            guard.check(request)
            self._receive(request, reader, writer, taken)

    def _receive(self, request: Message, reader: Any, writer: Any, taken: Taken) -> None:
        if not isinstance(request, BulkInsert):
            raise RezoneError(f"{type(request).__name__} is not a bulk insert")
        partition = self._node.find(request.partition)
        # Not the coordinator's epoch: a copy outlives the coordinator that started it, and the next
        # one goes on with it. What makes a copy outdated is a newer trigger (B-05).
        partition.calls.check_revision(request.revision)
        partition.admission.require()
        receiver = Receiver(partition, request.attempt, CopySteps(self._node.foreground).throttle)
        receiver.begin()
        state: CopyState | None = None
        try:
            for chunk in reader:
                taken(_size(chunk))
                state = receiver.take(chunk.data, chunk.app_metadata)
                if state is not None:
                    writer.write(pa.py_buffer(messages.encode(state)))
        except BaseException as error:
            receiver.abort(str(error), failure_of(error))
            raise
        if state is None or not state.done:
            receiver.abort("the stream ended before the snapshot", CopyFailure.SOURCE)

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Serve a channel: "data" for clients, "replication" for followers' nodes."""
        with _telling_callers():
            guard = guard_of(self._here, context)
            kind = descriptor.path[0].decode(errors="replace") if descriptor.path else ""
            guard.require(Act.ROUTES)
            taken = self._door.welcome(context.peer())
            taken(CALL_BYTES)
            self._exchange(kind, guard, self._peer_of(context), Channel(reader, writer, taken))

    def _exchange(self, kind: str, guard: Guard, peer: Peer, channel: Channel) -> None:
        if kind == "data":
            # Any role of the zone may open one: a refused request has a clear answer, while a
            # channel that is refused looks to a client like a node that is away.
            self._node.serve_data(channel, guard.check, peer)
        elif kind == "replication":
            guard.require(Act.REPLICATE)
            self._node.serve_replication(channel, peer, guard.require_node)
        else:
            raise RezoneError(f"{kind!r} is no kind of channel")

    def _peer_of(self, context: Any) -> Peer:
        """Return who is at the other end of a call, to be cut off if need be."""
        address: str = context.peer()
        name = _name_of(context) if self._here is not None else ""
        known = name or address.rpartition(":")[0]
        return self._node.unread.peer(known, lambda: cut_off(self.port, address), name)


_END = object()


class _Given:
    """Since when a stream's caller has what it has not taken yet (monotonic); None for nothing."""

    def __init__(self, now: float) -> None:
        self.sending_since: float | None = now

    def taken(self) -> None:
        """Note that its caller asks for more."""
        self.sending_since = None

    def give(self, now: float) -> None:
        """Note that there is something for its caller."""
        self.sending_since = now


class _TimedStream:
    """Notes since when its caller has been given what it has not taken: the schema at first.

    Flight tells nobody of a stream's end: it only lets go of it. So nobody else may hold the
    stream, which would keep its snapshot: what is looked at is its note.
    """

    def __init__(self, items: Iterator[Any], unread: Unread, clock: Clock) -> None:
        self._items = items
        self._unread = unread
        self._clock = clock
        self.given = _Given(clock.monotonic())

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        self.given.taken()
        with _telling_callers():
            item = next(self._items, _END)
        if item is _END:
            raise StopIteration
        self.given.give(self._clock.monotonic())
        return item

    def __del__(self) -> None:
        self._unread.forget(self.given)


def node_identity(files: TlsFiles, node: NodeId) -> Identity:
    """Return a data node's identity by its files; TlsFilesError when they are not of it.

    Files that do not say which data node they are of are good for each.
    """
    found = files.identity
    if found is None or found.role is not Role.DATA_NODE:
        raise TlsFilesError(f"{files.name or 'nobody'} is no name of a data node")
    if found.node not in (None, node):
        raise TlsFilesError(f"{files.name} is not the name of data node {node}")
    if files.fault:
        raise TlsFilesError(f"the certificate of {files.name} cannot be used: {files.fault}")
    constrained(files)
    return found


def _name_of(context: Any) -> str:
    name: bytes = context.peer_identity()
    return name.decode(errors="replace")


def _of_owner(request: Message, owner: Owner) -> Message:
    """Return a request that sees no intents but those of its own caller."""
    if isinstance(request, ScanTicket | IndexTicket) and request.own is not None:
        return msgspec.structs.replace(request, own=owner.own(request.own))
    return request


def _size(chunk: Any) -> int:
    """Return the bytes of a message of an insert."""
    data, metadata = chunk.data, chunk.app_metadata
    batch = 0 if data is None else data.nbytes
    return batch + (0 if metadata is None else metadata.size)


def _decode(data: bytes) -> Message:
    return messages.decode(data)


@contextlib.contextmanager
def _telling_callers() -> Iterator[None]:
    """Tell a caller what is wrong, but nothing of the code: that is for the log alone."""
    try:
        yield
    except RezoneError as error:
        raise to_flight_error(error) from None
    except CHANNEL_ERRORS:
        raise
    except msgspec.MsgspecError as error:
        text = f"not a message of this version: {error}"
        raise flight.FlightServerError(text) from None
    except Exception:  # noqa: BLE001 - told with its trace, in the log
        UNEXPECTED.failed("a call")
        text = "internal error; the data node's log says more"
        raise to_flight_error(RezoneError(text)) from None
