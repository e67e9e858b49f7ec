"""A zone in memory behind real Flight sockets: the contract of a data node, kept honestly.

All nodes share the committed state, as replicas with every row in sync would. What a node may do
to a request is decided by `faults(node, request)`, called under the cluster's lock.
"""

import dataclasses
import enum
import threading
import uuid
from collections.abc import Callable
from typing import Any, Self

import msgspec
import pyarrow as pa
from pyarrow import flight

from rezone.wire import keyspace, messages, rows
from rezone.wire.channel import CHANNEL_ERRORS, Channel
from rezone.wire.errors import ConflictError, NotLeaderError, NotReadyError, RezoneError
from rezone.wire.flight import answer_action, to_flight_error
from rezone.wire.messages import (
    Failure,
    LeaderAndIsr,
    Message,
    PartitionAssignment,
    ReadRequest,
    ReadResult,
    RouteTable,
    ScanTicket,
    WriteRequest,
    WriteResult,
    ZoneConfig,
)
from rezone.wire.rows import RowCodec


class Fault(enum.Enum):
    """What a node does with one request."""

    NONE = enum.auto()
    BREAK_BEFORE = enum.auto()  # the connection dies, nothing applied
    BREAK_AFTER = enum.auto()  # applied, the connection dies with the answer
    SWALLOW_BEFORE = enum.auto()  # no answer, nothing applied
    SWALLOW_AFTER = enum.auto()  # applied, no answer
    DELAY = enum.auto()  # answered together with the next request's answer
    NOT_READY = enum.auto()
    NO_HINT = enum.auto()  # NotLeader that names nobody
    MOVE_BEFORE = enum.auto()  # the leader moves away, then the request is looked at
    MOVE_AFTER = enum.auto()  # applied, the leader moves, NotLeader is answered


class _BreakError(Exception):
    """Ends a channel."""


@dataclasses.dataclass
class Partition:
    """The committed state of a partition and every batch that was applied."""

    leader: int
    epoch: int = 1
    data: dict[bytes, bytes] = dataclasses.field(default_factory=dict)
    writers: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    applied: list[tuple[str, int, int]] = dataclasses.field(default_factory=list)
    offset: int = 0


class FakeNode(flight.FlightServerBase):  # type: ignore[misc]
    """One node: its own socket, the cluster's state."""

    def __init__(self, cluster: "FakeCluster", node: int) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self.cluster = cluster
        self.node = node
        self.requests = 0
        self.address = f"127.0.0.1:{self.port}"

    def do_action(self, context: Any, action: Any) -> Any:  # noqa: ARG002
        """Answer RoutesRequest."""
        yield from answer_action(action, lambda _: self.cluster.routes())

    def do_get(self, context: Any, ticket: Any) -> Any:  # noqa: ARG002
        """Serve a scan."""
        request = messages.decode(memoryview(ticket.ticket))
        assert isinstance(request, ScanTicket)
        try:
            table = self.cluster.scan(self, request)
        except RezoneError as error:
            raise to_flight_error(error) from error
        return flight.RecordBatchStream(table)

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:  # noqa: ARG002
        """Serve a data channel."""
        assert descriptor.path == [b"data"]
        channel = Channel(reader, writer)
        delayed: list[tuple[Message, bytes]] = []
        try:
            while (frame := channel.receive()) is not None:
                self.requests += 1
                for answer, body in self.cluster.answer(self, *frame, delayed):
                    channel.send(answer, body)
        except CHANNEL_ERRORS:
            return


class FakeCluster:
    """Nodes 1..n and the partitions they lead in turn."""

    def __init__(
        self,
        config: ZoneConfig,
        nodes: int = 2,
        faults: Callable[[FakeNode, Message], Fault] = lambda _n, _m: Fault.NONE,
    ) -> None:
        self.config = config
        self.codec = RowCodec(config.table, config.limits)
        self.faults = faults
        self.lock = threading.RLock()
        self.partitions = [Partition(1 + p % nodes) for p in range(config.partitions)]
        self.nodes = {n: FakeNode(self, n) for n in range(1, nodes + 1)}
        self.routes_asked = 0
        self.resharded = False

    @property
    def bootstrap(self) -> list[str]:
        """The addresses of all nodes."""
        return [n.address for n in self.nodes.values()]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes.values():
            node.shutdown()

    def routes(self) -> RouteTable:
        """Return the route table as it is now."""
        with self.lock:
            self.routes_asked += 1
            return RouteTable(
                config=self.config,
                partitions=tuple(
                    PartitionAssignment(
                        partition=p,
                        state=LeaderAndIsr(
                            leader=s.leader,
                            leader_epoch=s.epoch,
                            isr=tuple(self.nodes),
                            coordinator_epoch=1,
                        ),
                    )
                    for p, s in enumerate(self.partitions)
                ),
                peers={n: node.address for n, node in self.nodes.items()},
            )

    def move(self, partition: int, node: int | None = None) -> None:
        """Make another node the leader."""
        with self.lock:
            state = self.partitions[partition]
            state.leader = node or state.leader % len(self.nodes) + 1
            state.epoch += 1

    def reshard(self, partitions: int) -> None:
        """Cut the zone into another number of partitions."""
        with self.lock:
            fresh = [Partition(1 + p % len(self.nodes), epoch=1) for p in range(partitions)]
            for old in self.partitions:
                for key, value in old.data.items():
                    where = keyspace.partition_of(keyspace.hash_key(key), partitions)
                    fresh[where].data[key] = value
            for number, state in enumerate(fresh):
                # What a node would do: the duplicate tables go with the ranges.
                start, end = keyspace.range_of(number, partitions)
                for parent, old in enumerate(self.partitions):
                    low, high = keyspace.range_of(parent, len(self.partitions))
                    if low < end and start < high:
                        state.writers |= old.writers
            self.resharded = True
            self.partitions = fresh
            self.config = msgspec.structs.replace(self.config, partitions=partitions)

    def scan(self, node: FakeNode, ticket: ScanTicket) -> Any:
        """Return a partition's rows in row id order as a table of several batches."""
        with self.lock:
            self._refuse_follower(node, ticket.partition)
            data = self.partitions[ticket.partition].data
            keys = sorted(data, key=lambda k: keyspace.row_id(keyspace.hash_key(k), k))
            batch = self.codec.decode(keys, [data[k] for k in keys])
        return pa.Table.from_batches(
            pa.Table.from_batches([batch]).to_batches(max_chunksize=100),
            schema=self.codec.arrow_schema,
        )

    def _refuse_follower(self, node: FakeNode, partition: int, *, hint: bool = True) -> None:
        state = self.partitions[partition]
        if state.leader == node.node and hint:
            return
        if not hint:
            raise NotLeaderError("not the leader, and who is is not known")
        raise NotLeaderError(
            "not the leader",
            leader=state.leader,
            address=self.nodes[state.leader].address,
            epoch=state.epoch,
        )

    def answer(
        self,
        node: FakeNode,
        request: Message,
        body: memoryview,
        delayed: list[tuple[Message, bytes]],
    ) -> list[tuple[Message, bytes]]:
        """Return the frames to send now."""
        assert isinstance(request, (WriteRequest, ReadRequest))
        with self.lock:
            fault = self.faults(node, request)
            if fault is Fault.BREAK_BEFORE:
                raise flight.FlightServerError("broken before")
            if fault is Fault.SWALLOW_BEFORE:
                return []
            if fault is Fault.MOVE_BEFORE:
                self.move(request.partition)
            try:
                answer = self._carry_out(node, request, body, fault)
            except RezoneError as error:
                answer = (Failure(opaque=request.opaque, error=error.info()), b"")
            if fault is Fault.BREAK_AFTER:
                raise flight.FlightServerError("broken after")
            if fault is Fault.SWALLOW_AFTER:
                return []
            if fault is Fault.DELAY and not delayed:
                delayed.append(answer)
                return []
            answers = [*delayed, answer]
            delayed.clear()
            return answers

    def _carry_out(
        self, node: FakeNode, request: WriteRequest | ReadRequest, body: memoryview, fault: Fault
    ) -> tuple[Message, bytes]:
        if fault is Fault.NOT_READY:
            raise NotReadyError("not yet")
        self._refuse_follower(node, request.partition, hint=fault is not Fault.NO_HINT)
        if isinstance(request, ReadRequest):
            return self._read(request, body)
        answer = self._write(request, body), b""
        if fault is Fault.MOVE_AFTER:
            self.move(request.partition)
            self._refuse_follower(node, request.partition)
        return answer

    def _write(self, request: WriteRequest, body: memoryview) -> WriteResult:
        state = self.partitions[request.partition]
        uuid.UUID(request.writer_id)
        last, end = state.writers.get(request.writer_id, (0, 0))
        # A lane's batches may be refused or rightly fit after a re-shard: then a gap is no fault.
        assert request.sequence <= last + 1 or self.resharded, "a gap in the sequence"
        if request.sequence > last:
            schema = self.codec.key_schema if request.delete else self.codec.arrow_schema
            batch = rows.from_ipc(body, schema)
            self.codec.check(batch, delete=request.delete)
            keys = self.codec.encode_keys(batch)
            where = keyspace.partitions_of(rows.hash_of(keys), self.config.partitions)
            if (where != request.partition).any():
                raise ConflictError("a row of another partition", partition=request.partition)
            if request.delete:
                for key in keys.to_pylist():
                    state.data.pop(key, None)
            else:
                values = self.codec.encode_values(batch).to_pylist()
                state.data.update(zip(keys.to_pylist(), values, strict=True))
            state.offset += batch.num_rows
            end = state.offset
            state.writers[request.writer_id] = (request.sequence, end)
            state.applied.append((request.writer_id, request.sequence, batch.num_rows))
        elif request.sequence < last:
            raise RezoneError("an old sequence")
        return WriteResult(opaque=request.opaque, end_offset=end, commit_time=end)

    def _read(self, request: ReadRequest, body: memoryview) -> tuple[Message, bytes]:
        state = self.partitions[request.partition]
        array = self.codec.encode_keys(rows.from_ipc(body, self.codec.key_schema))
        where = keyspace.partitions_of(rows.hash_of(array), self.config.partitions)
        if (where != request.partition).any():
            raise ConflictError("a key of another partition", partition=request.partition)
        keys = array.to_pylist()
        found = [k for k in keys if k in state.data]
        batch = self.codec.decode(found, [state.data[k] for k in found])
        return ReadResult(opaque=request.opaque, rows=len(found)), rows.to_ipc(batch)
