"""A source and receivers of snapshots behind real Flight sockets, with faults to order.

Rows are (row id, value) pairs. A receiver keeps a batch only after it is whole, remembers the
last row id of the batch as its resume point, and confirms only a copy that ended with a trailer
whose count is what it got.
"""

import threading
from typing import Any, Self

import msgspec
import pyarrow as pa
from pyarrow import flight

from rezone.wire import messages
from rezone.wire.errors import NotReadyError, RezoneError, StaleRevisionError
from rezone.wire.messages import (
    BulkInsert,
    CopyState,
    CopyStateRequest,
    Message,
    SnapshotHeader,
    SnapshotTicket,
    SnapshotTrailer,
    WaitingCopies,
    WaitingCopiesRequest,
)
from rezone.wire.transport.flight import answer_action, to_flight_error

SCHEMA = pa.schema([pa.field("row_id", pa.binary()), pa.field("value", pa.binary())])
BATCH_ROWS = 10


def rows_of(count: int, size: int = 100) -> list[tuple[bytes, bytes]]:
    """Return rows in order."""
    return [(i.to_bytes(8, "big"), bytes([i % 256]) * size) for i in range(count)]


class FakeStore(flight.FlightServerBase):  # type: ignore[misc]
    """A node that holds partitions by number: a source, a receiver, or both."""

    def __init__(self, node: int = 1) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self.node = node
        self.address = f"127.0.0.1:{self.port}"
        self.lock = threading.Lock()
        self.rows: dict[int, list[tuple[bytes, bytes]]] = {}
        self.copies: dict[int, CopyState] = {}
        self.received: dict[int, list[Any]] = {}
        self.tickets: list[SnapshotTicket] = []
        self.inserts: list[BulkInsert] = []
        self.source_dies_after: list[int] = []
        self.receiver_dies_after: list[int] = []
        self.revision = 0
        self.held: set[int] = set()
        self.asked = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def do_action(self, context: Any, action: Any) -> Any:  # noqa: ARG002
        """Answer where a copy stands, and which have to wait."""
        yield from answer_action(action, self._state)

    def _state(self, request: Message) -> CopyState | WaitingCopies:
        if isinstance(request, WaitingCopiesRequest):
            self.asked += 1
            return WaitingCopies(partitions=tuple(self.held), admitted=())
        assert isinstance(request, CopyStateRequest)
        state = self.copies.get(request.partition, CopyState(partition=request.partition))
        return msgspec.structs.replace(state, admitted=request.partition not in self.held)

    def do_get(self, context: Any, ticket: Any) -> Any:  # noqa: ARG002
        """Serve a snapshot."""
        request = messages.decode(memoryview(ticket.ticket))
        assert isinstance(request, SnapshotTicket)
        self.tickets.append(request)
        dies = self.source_dies_after.pop(0) if self.source_dies_after else None
        return flight.GeneratorStream(SCHEMA, self._snapshot(request, dies))

    def _snapshot(self, request: SnapshotTicket, dies: int | None) -> Any:
        rows = [r for r in self.rows[request.partition] if r[0] > request.resume_after]
        header = SnapshotHeader(
            snapshot_id=f"s{len(self.tickets)}",
            offset=7,
            commit_time=1,
            leader_epoch=1,
            failover_log=(),
            producers=(),
            rows_estimate=len(rows),
        )
        metadata = messages.encode(header)
        sent = 0
        for number, start in enumerate(range(0, len(rows), BATCH_ROWS)):
            if dies is not None and number >= dies:
                raise to_flight_error(NotReadyError("the source died"))
            part = rows[start : start + BATCH_ROWS]
            sent += len(part)
            yield _batch(part), pa.py_buffer(metadata)
            metadata = b"mark:" + part[-1][0]
        trailer = messages.encode(SnapshotTrailer(versions=sent, bytes=0))
        yield _batch([]), pa.py_buffer(trailer)

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:  # noqa: ARG002
        """Receive a copy."""
        request = messages.decode(memoryview(descriptor.command))
        assert isinstance(request, BulkInsert)
        self.inserts.append(request)
        try:
            self._receive(request, reader, writer)
        except RezoneError as error:
            raise to_flight_error(error) from error

    def _receive(self, request: BulkInsert, reader: Any, writer: Any) -> None:
        if request.revision < self.revision:
            raise StaleRevisionError("an older trigger")
        dies = self.receiver_dies_after.pop(0) if self.receiver_dies_after else None
        partition = request.partition
        got = 0
        for number, chunk in enumerate(reader):
            if dies is not None and number >= dies:
                raise NotReadyError("the receiver died")
            metadata = bytes(memoryview(chunk.app_metadata))
            with self.lock:
                self.received.setdefault(partition, []).append(metadata)
                if number == 0:
                    assert isinstance(messages.decode(metadata), SnapshotHeader)
                if not chunk.data.num_rows:
                    trailer = messages.decode(metadata)
                    assert isinstance(trailer, SnapshotTrailer)
                    assert trailer.versions == got
                    state = self.copies[partition]
                    done = CopyState(
                        partition=partition, resume_after=state.resume_after, done=True
                    )
                    self.copies[partition] = done
                    writer.write(pa.py_buffer(messages.encode(done)))
                    return
                got += chunk.data.num_rows
                self._keep(partition, chunk.data)
                writer.write(pa.py_buffer(messages.encode(self.copies[partition])))

    def _keep(self, partition: int, batch: Any) -> None:
        known = dict(self.rows.get(partition, []))
        known.update(zip(*(c.to_pylist() for c in batch.columns), strict=True))
        self.rows[partition] = sorted(known.items())
        last = self.rows[partition][-1][0]
        self.copies[partition] = CopyState(partition=partition, resume_after=last, rows=len(known))


def _batch(rows: list[tuple[bytes, bytes]]) -> Any:
    keys, values = zip(*rows, strict=True) if rows else ((), ())
    arrays = [pa.array(keys, pa.binary()), pa.array(values, pa.binary())]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
