"""Engine files with right digests that were made to hurt, sent to a real data node."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
import xxhash
from replica_cluster import Client, Coordinator, ProcessNode

from hostile_tables import hostile
from rezone.wire import messages
from rezone.wire.copying.copy import Relay, copy_partition
from rezone.wire.copying.sink import FlightSink
from rezone.wire.messages import (
    AdmitCopies,
    AdmittedCopy,
    BulkInsert,
    FileChunk,
    SnapshotTicket,
    ZoneConfig,
)
from rezone.wire.transport.flight import NodeClient

pytestmark = [pytest.mark.slow, pytest.mark.proves("TR-03")]

P = 0
SEEDS = (3, 7, 14, 23, 37)
"""Of changes that are known to end a process that reads the table, whatever rows are in it."""


class Part(NamedTuple):
    """One batch of a snapshot's stream, as Flight gives it."""

    data: Any
    app_metadata: Any


class Stream:
    """A snapshot's stream whose tables are changed, and their digests with them."""

    def __init__(self, stream: Any, seed: int) -> None:
        self.schema = stream.schema
        self._stream = stream
        self._seed = seed

    def __iter__(self) -> Iterator[Part]:
        for chunk in self._stream:
            mark = messages.decode(chunk.app_metadata) if chunk.app_metadata else None
            if isinstance(mark, FileChunk) and mark.name.endswith(".sst"):
                assert mark.offset == 0
                table = hostile(chunk.data.column(0)[0].as_py(), self._seed)
                digest = xxhash.xxh3_128_digest(table)
                batch = pa.record_batch(
                    [pa.array([table], chunk.data.schema.field(0).type)], schema=chunk.data.schema
                )
                changed = FileChunk(name=mark.name, offset=0, digest=digest)
                yield Part(batch, pa.py_buffer(messages.encode(changed)))
            else:
                yield Part(chunk.data, chunk.app_metadata)

    def __next__(self) -> Part:
        self._parts = getattr(self, "_parts", None) or iter(self)
        return next(self._parts)

    def cancel(self) -> None:
        """End the stream."""
        self._stream.cancel()


class Source:
    """A data node whose tables are hostile."""

    def __init__(self, client: NodeClient, seed: int) -> None:
        self._client = client
        self._seed = seed

    def get(self, ticket: SnapshotTicket) -> Stream:
        """Open the snapshot's stream."""
        return Stream(self._client.get(ticket), self._seed)


@contextlib.contextmanager
def two_processes(directory: Path) -> Iterator[Coordinator]:
    """Run two nodes, the second a learner without rows; they copy files."""
    files = "--file-snapshot-bytes-min=1"
    nodes = [ProcessNode(i, directory / f"node{i}", files) for i in range(2)]
    c = Coordinator(nodes, ZoneConfig(zone="z", zone_uid="uid-test", partitions=1))
    with c.running():
        for number in c.nodes:
            c.wait_up(number)
        c.create(P, (0,))
        yield c


def test_files_that_end_a_process_are_refused_and_the_node_serves_on(tmp_path: Path) -> None:
    """Each copy is refused with a reason; the process is the same; a good copy is taken then.

    RocksDB in the node's own process dies of such files, and again after each restart.
    """
    with two_processes(tmp_path) as c:
        c.watch()
        client = Client(c)
        for i in range(20):
            client.put(P, {b"%d-%d" % (i, j): b"v" * 50 for j in range(50)})
        c.change(P, replicas=(0, 1))
        node = c.nodes[1]
        assert isinstance(node, ProcessNode)
        assert node.process is not None
        errors = []
        for seed in SEEDS:
            source = Source(NodeClient(c.nodes[0].address), seed)
            (receipt,) = copy_partition(Relay(P, source, [admitted(c)], reader="test"))
            assert node.process.poll() is None, "the node has died"
            assert receipt.files
            if not receipt.error:
                continue
            errors.append(receipt.error)
            assert c.report(1, P).needs_snapshot
        assert any("ended with -11" in each for each in errors), errors
        good = NodeClient(c.nodes[0].address)
        (receipt,) = copy_partition(Relay(P, good, [admitted(c)], reader="test"))
        assert not receipt.error
        c.until("joined", lambda: c.isr(P) == {0, 1})
        digests = c.until("digests", lambda: c.digests(P))
        assert len({d.digests for d in digests.values()}) == 1
        client.close()


def admitted(c: Coordinator) -> FlightSink:
    """Return node 1 as a receiver of a push, which is admitted."""
    copy = AdmittedCopy(P, 0)
    c.call(1, AdmitCopies(fence=c.fence(), admitted=(copy,), held=(), seconds=60.0))
    descriptor = BulkInsert(
        partition=P, snapshot_source=0, attempt=uuid.uuid4().hex, revision=c.fence().revision
    )
    return FlightSink("node 1", NodeClient(c.nodes[1].address), descriptor)
