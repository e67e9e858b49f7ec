"""Batches that another node has made to hurt are refused; calls that answer anything are errors."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight
from replica_cluster import cluster
from test_copies import FORMS, P, learner, sink

from rezone.wire import messages
from rezone.wire.copying.copy import Relay, copy_partition
from rezone.wire.errors import RezoneError
from rezone.wire.messages import Ack, FileChunk, Heartbeat, SnapshotBatch, SnapshotTicket
from rezone.wire.transport.flight import NodeClient

pytestmark = pytest.mark.proves("TR-03")


class Part:
    """One batch of a snapshot's stream, as Flight gives it."""

    def __init__(self, data: Any, app_metadata: Any) -> None:
        self.data, self.app_metadata = data, app_metadata


class Stream:
    """A snapshot's stream whose rows have nulls that their schema does not have."""

    def __init__(self, stream: Any) -> None:
        self.schema = stream.schema
        self._stream = stream

    def __next__(self) -> Part:
        chunk = next(self._stream)
        mark = messages.decode(chunk.app_metadata) if chunk.app_metadata else None
        batch = chunk.data
        if isinstance(mark, SnapshotBatch | FileChunk) and batch.num_rows:
            columns = [pa.nulls(batch.num_rows, each.type) for each in batch.columns]
            batch = pa.RecordBatch.from_arrays(columns, schema=batch.schema)
        return Part(batch, chunk.app_metadata)

    def cancel(self) -> None:
        """End the stream."""
        self._stream.cancel()


class Source:
    """A data node whose batches are hostile."""

    def __init__(self, client: NodeClient) -> None:
        self._client = client

    def get(self, ticket: SnapshotTicket) -> Stream:
        """Open the snapshot's stream."""
        return Stream(self._client.get(ticket))


@pytest.mark.parametrize("form", FORMS)
def test_a_copy_of_bad_batches_is_refused(tmp_path: Path, form: str) -> None:
    """Asserts that a batch of a copy is looked at as a whole before it is used.

    Flight does not: offsets that lead out of a batch would end the receiver's process.
    """
    with cluster(tmp_path, 3, store_config=FORMS[form]) as c:
        k = learner(c)
        source = Source(NodeClient(c.nodes[0].address))
        (receipt,) = copy_partition(Relay(P, source, [sink(c)], reader="test"))
        assert "has nulls" in receipt.error
        k.close()


class Anything(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types for Flight
    """A data node that answers every call with the same bodies."""

    def __init__(self, bodies: list[bytes]) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._bodies = bodies

    def do_action(self, context: Any, action: Any) -> list[Any]:
        """Answer."""
        del context, action
        return [flight.Result(body) for body in self._bodies]


@contextlib.contextmanager
def answering(bodies: list[bytes]) -> Iterator[NodeClient]:
    """Give a client of a node that answers so."""
    server = Anything(bodies)
    thread = threading.Thread(target=server.serve)
    thread.start()
    client = NodeClient(f"127.0.0.1:{server.port}")
    try:
        yield client
    finally:
        client.close()
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    "bodies", [[], [b"\xc1"], [b""], [messages.encode(Heartbeat())], [messages.encode(Ack())] * 2]
)
def test_an_answer_of_anything_is_an_error_of_that_node(bodies: list[bytes]) -> None:
    """Asserts RezoneError for no answer, one that is no message or of another kind, and for two.

    Whatever else came out of a call would end the operator's pass of all zones, not of this node.
    """
    with answering(bodies) as client, pytest.raises(RezoneError):
        client.call(Heartbeat(), Ack)
