"""A zone in memory behind real Flight sockets: the contract of a data node, kept honestly.

All nodes share the committed state, as replicas with every row in sync would. What a node may do
to a request is decided by `faults(node, request)`, called under the cluster's lock.

A re-sharding is begun, each old partition sealed, and the re-sharding finished, by a test or by a
fault. What a new partition knows of producers is what its own log has and what it imported: entries
with rows in its range, and nothing else.
"""

import dataclasses
import enum
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Self

import msgspec
import pyarrow as pa
from pyarrow import flight

from rezone.wire import messages
from rezone.wire.codec import bodies, keyspace, rows
from rezone.wire.codec.filters import RowFilter
from rezone.wire.codec.producers import digest_of, home_hash
from rezone.wire.codec.rows import RowCodec
from rezone.wire.errors import (
    ConflictError,
    NotLeaderError,
    NotReadyError,
    ProducerFencedError,
    ReshardedError,
    RezoneError,
    UnknownPartitionError,
)
from rezone.wire.layouts import (
    Layout,
    generation_of,
    layout_of,
    next_layout_of,
    range_in,
    targets_of,
)
from rezone.wire.messages import (
    Failure,
    LeaderAndIsr,
    Message,
    PartitionAssignment,
    ProducerOpen,
    ProducerOpened,
    ReadRequest,
    ReadResult,
    RouteTable,
    RowsAsOf,
    ScanTicket,
    SelectTicket,
    WriteRequest,
    WriteResult,
    ZoneConfig,
)
from rezone.wire.transport.channel import CHANNEL_ERRORS, Channel
from rezone.wire.transport.flight import answer_action, to_flight_error

ProducerKey = tuple[str, int]
"""A producer's id, and the partition that it has sent a batch to."""


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
    SEAL_BEFORE = enum.auto()  # the partition is sealed, then the request is looked at
    SEAL_AFTER = enum.auto()  # applied, sealed, the connection dies with the answer


class _BreakError(Exception):
    """Ends a channel."""


class Entry(NamedTuple):
    """A batch as a log has it: its rows by key, None for a deleted one.

    `producer` is the producer's id with the partition that it has sent the batch to.
    """

    producer: ProducerKey
    epoch: int
    sequence: int
    rows: dict[bytes, bytes | None]


@dataclasses.dataclass
class Partition:
    """The committed state of a partition, its log, and every batch that was applied here."""

    leader: int
    epoch: int = 1
    data: dict[bytes, bytes] = dataclasses.field(default_factory=dict)
    producers: dict[ProducerKey, tuple[int, int, int]] = dataclasses.field(default_factory=dict)
    log: list[Entry] = dataclasses.field(default_factory=list)
    applied: list[tuple[ProducerKey, int, int]] = dataclasses.field(default_factory=list)
    offset: int = 0

    def epoch_of(self, producer_id: str) -> int:
        """Return the highest epoch of a producer."""
        found = (state[0] for (known, _), state in self.producers.items() if known == producer_id)
        return max(found, default=0)

    def append(self, entry: Entry) -> int:
        """Apply an entry and return the offset after it."""
        for key, value in entry.rows.items():
            if value is None:
                self.data.pop(key, None)
            else:
                self.data[key] = value
        self.offset += len(entry.rows)
        epoch, last, _ = self.producers.get(entry.producer, (0, 0, 0))
        newest = max((epoch, last), (entry.epoch, entry.sequence))
        self.producers[entry.producer] = (*newest, self.offset)
        self.log.append(entry)
        return self.offset


class FakeNode(flight.FlightServerBase):  # type: ignore[misc]
    """One node: its own socket, the cluster's state."""

    def __init__(self, cluster: "FakeCluster", node: int) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self.cluster = cluster
        self.node = node
        self.requests = 0
        self.address = f"127.0.0.1:{self.port}"

    def do_action(self, context: Any, action: Any) -> Any:  # noqa: ARG002
        """Answer RoutesRequest; when frozen, not before everything ends."""
        if self.node in self.cluster.frozen:
            self.cluster.thawed.wait()
        yield from answer_action(action, lambda _: self.cluster.routes())

    def do_get(self, context: Any, ticket: Any) -> Any:  # noqa: ARG002
        """Serve a scan."""
        request = messages.decode(memoryview(ticket.ticket))
        assert isinstance(request, (ScanTicket, SelectTicket))
        try:
            if isinstance(request, SelectTicket):
                table = self.cluster.select(self, request)
            else:
                table = self.cluster.scan(self, request)
        except RezoneError as error:
            raise to_flight_error(error) from error
        empty = pa.RecordBatch.from_pylist([], schema=table.schema)
        told = pa.py_buffer(messages.encode(RowsAsOf(as_of=request.as_of or 0, age_ms=0)))

        def chunks() -> Iterator[Any]:
            yield empty, told
            for number, batch in enumerate(table.to_batches()):
                if isinstance(request, ScanTicket):
                    self.cluster.before_batch(request, number)
                yield batch, None

        return flight.GeneratorStream(table.schema, chunks())

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
        self.partitions = {p: Partition(1 + p % nodes) for p in layout_of(config).ids}
        self.nodes = {n: FakeNode(self, n) for n in range(1, nodes + 1)}
        self.routes_asked = 0
        self.sealed: set[int] = set()
        self.history: list[tuple[int, Entry]] = []
        self.openings: dict[str, int] = {}
        self.refusals: dict[bytes, RezoneError] = {}
        self.digests: dict[tuple[str, int, int, int], bytes] = {}
        self.refused: dict[tuple[str, int, int], int] = {}
        self.tells_seals = True
        self.frozen: set[int] = set()
        self.thawed = threading.Event()
        self.micros: Callable[[], int] = lambda: 0
        self.before_batch: Callable[[ScanTicket, int], None] = lambda _ticket, _number: None

    @property
    def bootstrap(self) -> list[str]:
        """The addresses of all nodes."""
        return [n.address for n in self.nodes.values()]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.thawed.set()
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
                            sealed=self.tells_seals and p in self.sealed,
                        ),
                    )
                    for p, s in self.partitions.items()
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
        """Cut the zone into another number of partitions, all at once."""
        with self.lock:
            self.begin_resharding(partitions)
            self.go_over()

    def begin_resharding(self, partitions: int) -> None:
        """Make the partitions of the next layout; they serve nothing yet."""
        with self.lock:
            self.config = msgspec.structs.replace(self.config, next_partitions=partitions)
            for partition in self._targets().ids:
                self.partitions[partition] = Partition(1 + partition % len(self.nodes))

    def seal(self, partition: int) -> bool:
        """Seal an old partition and have its targets serve its range; False when it cannot be."""
        with self.lock:
            old = layout_of(self.config)
            if not self.config.next_partitions or partition not in {*old.ids} - self.sealed:
                return False
            self.sealed.add(partition)
            for part in targets_of(partition, old, self._targets()):
                target = self.partitions[part.new]
                for entry in self.partitions[partition].log:
                    inside = {
                        key: value
                        for key, value in entry.rows.items()
                        if part.start <= keyspace.hash_key(key) < part.end
                    }
                    if inside:
                        target.append(entry._replace(rows=inside))
            return True

    def finish(self) -> None:
        """Go over to the next layout: every old partition is sealed, and goes."""
        with self.lock:
            old, new = layout_of(self.config), self._targets()
            assert self.sealed == set(old.ids)
            for partition in old.ids:
                del self.partitions[partition]
            self.sealed.clear()
            self.config = msgspec.structs.replace(
                self.config,
                generation=new.generation,
                partitions=new.partitions,
                next_partitions=0,
            )

    def go_over(self) -> None:
        """Seal what is not sealed yet, and finish."""
        with self.lock:
            for partition in layout_of(self.config).ids:
                self.seal(partition)
            self.finish()

    def _targets(self) -> Layout:
        targets = next_layout_of(self.config)
        assert targets is not None
        return targets

    def _refuse_others_rows(self, partition: int, hashes: list[int]) -> None:
        """Refuse what the partition does not serve: it is over, has other rows, or not yet."""
        config = self.config
        if generation_of(partition) < config.generation or partition in self.sealed:
            raise ReshardedError(
                "re-sharded",
                partition=partition,
                generation=config.generation,
                partitions=config.partitions,
                next_partitions=config.next_partitions,
            )
        if partition not in self.partitions:
            raise UnknownPartitionError("no replica here")
        start, end = range_in(config, partition)
        if not all(start <= one < end for one in hashes):
            raise ConflictError("a row of another partition", partition=partition)
        old = layout_of(config)
        if partition not in old.ids and not all(
            old.partition_of(one) in self.sealed for one in hashes
        ):
            raise NotReadyError("not served yet")

    def scan(self, node: FakeNode, ticket: ScanTicket) -> Any:
        """Return a partition's rows in a range of hashes, in row id order, in several batches."""
        with self.lock:
            self._refuse_others_rows(
                ticket.partition, [ticket.hash_start, ticket.hash_end_inclusive]
            )
            self._refuse_follower(node, ticket.partition)
            data = self.partitions[ticket.partition].data
            places = {key: keyspace.hash_key(key) for key in data}
            ids = {
                keyspace.row_id(place, key): key
                for key, place in places.items()
                if ticket.hash_start <= place <= ticket.hash_end_inclusive
            }
            keys = [ids[row_id] for row_id in sorted(ids) if row_id > ticket.after]
            batch = self.codec.decode(keys, [data[k] for k in keys])
        return pa.Table.from_batches(
            pa.Table.from_batches([batch]).to_batches(max_chunksize=100),
            schema=self.codec.arrow_schema,
        )

    def select(self, node: FakeNode, ticket: SelectTicket) -> Any:
        """Return what passes of a partition's rows; it does not go on where it broke off."""
        scan = ScanTicket(
            partition=ticket.partition,
            hash_start=ticket.hash_start,
            hash_end_inclusive=ticket.hash_end_inclusive,
        )
        table = self.scan(node, scan).combine_chunks()
        if ticket.filter:
            columns = dict(zip(table.schema.names, table.columns, strict=True))
            table = table.filter(RowFilter(self.config.table, ticket.filter).mask(columns))
        return table.select(list(ticket.columns or table.schema.names)).slice(0, ticket.limit)

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
        assert isinstance(request, (WriteRequest, ReadRequest, ProducerOpen))
        with self.lock:
            fault = self.faults(node, request)
            if fault is Fault.BREAK_BEFORE:
                raise flight.FlightServerError("broken before")
            if fault is Fault.SWALLOW_BEFORE:
                return []
            if fault is Fault.MOVE_BEFORE and request.partition in self.partitions:
                self.move(request.partition)
            if fault is Fault.SEAL_BEFORE:
                self.seal(request.partition)
            try:
                answer = self._carry_out(node, request, body, fault)
            except RezoneError as error:
                answer = (Failure(opaque=request.opaque, error=error.info()), b"")
            if fault is Fault.SEAL_AFTER:
                self.seal(request.partition)
            if fault in (Fault.BREAK_AFTER, Fault.SEAL_AFTER):
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
        self,
        node: FakeNode,
        request: WriteRequest | ReadRequest | ProducerOpen,
        body: memoryview,
        fault: Fault,
    ) -> tuple[Message, bytes]:
        if fault is Fault.NOT_READY:
            raise NotReadyError("not yet")
        if isinstance(request, ProducerOpen):
            self._refuse_others_rows(request.partition, [home_hash(request.producer_id)])
            self._refuse_follower(node, request.partition, hint=fault is not Fault.NO_HINT)
            return self._open(request), b""
        delete = isinstance(request, ReadRequest) or request.delete
        batch = bodies.from_ipc(body, self.codec.key_schema if delete else self.codec.arrow_schema)
        keys = self.codec.encode_keys(batch)
        self._refuse_others_rows(request.partition, rows.hash_of(keys).tolist())
        self._refuse_follower(node, request.partition, hint=fault is not Fault.NO_HINT)
        if isinstance(request, ReadRequest):
            return self._read(request, keys.to_pylist())
        for sent in request.original_ids:
            name = (request.producer_id, sent.partition, request.producer_epoch, sent.sequence)
            assert self.digests.get(name, sent.digest) == sent.digest, "other rows under a name"
        answer = self._write(request, keys.to_pylist(), batch), b""
        name = (request.producer_id, request.partition, request.producer_epoch, request.sequence)
        self.digests[name] = digest_of(body, delete=request.delete)
        if fault is Fault.MOVE_AFTER:
            self.move(request.partition)
            self._refuse_follower(node, request.partition)
        return answer

    def _write(self, request: WriteRequest, keys: list[bytes], batch: Any) -> WriteResult:
        state, epoch = self.partitions[request.partition], request.producer_epoch
        uuid.UUID(request.producer_id)
        producer = (request.producer_id, request.partition)
        if epoch < state.epoch_of(request.producer_id):
            raise ProducerFencedError("opened again")
        known, last, end = state.producers.get(producer, (0, 0, 0))
        last = last if known == epoch else 0
        # After a refusal that may come again the number is taken: it ends with an unknown outcome.
        taken = max(last, self.refused.get((*producer, epoch), 0))
        assert request.sequence <= taken + 1, "a gap in the sequence"
        repeats = [
            before
            for sent in request.original_ids
            if (before := state.producers.get((request.producer_id, sent.partition)))
            and before[:2] >= (epoch, sent.sequence)
        ]
        if request.sequence < last:
            raise RezoneError("an old sequence")
        if request.sequence > last and repeats:
            # As a leader does it: the name is not taken, which the next batch must allow for.
            state.producers[producer] = (epoch, request.sequence, repeats[0][2])
            end = repeats[0][2]
        elif request.sequence > last:
            for refusal in (self.refusals[key] for key in keys if key in self.refusals):
                if refusal.retryable:
                    self.refused[*producer, epoch] = request.sequence
                raise refusal
            self.codec.check(batch, delete=request.delete)
            none: list[bytes | None] = [None] * len(keys)
            values = none if request.delete else self.codec.encode_values(batch).to_pylist()
            changes = dict(zip(keys, values, strict=True))
            entry = Entry(producer, epoch, request.sequence, changes)
            end = state.append(entry)
            self.history.append((request.partition, entry))
            state.applied.append((producer, request.sequence, batch.num_rows))
        return WriteResult(opaque=request.opaque, end_offset=end, commit_time=end)

    def _open(self, request: ProducerOpen) -> ProducerOpened:
        state, producer = self.partitions[request.partition], (request.producer_id, -1)
        epoch = state.epoch_of(request.producer_id) + 1
        if self.openings.get(request.opening) == epoch - 1:
            return ProducerOpened(opaque=request.opaque, producer_epoch=epoch - 1)
        if request.known_epoch != epoch - 1:
            raise ProducerFencedError("opened by others", producer_epoch=epoch - 1)
        state.producers[producer] = (epoch, 0, state.offset)
        self.openings[request.opening] = epoch
        return ProducerOpened(opaque=request.opaque, producer_epoch=epoch)

    def _read(self, request: ReadRequest, keys: list[bytes]) -> tuple[Message, bytes]:
        state = self.partitions[request.partition]
        found = [k for k in keys if k in state.data]
        batch = self.codec.decode(found, [state.data[k] for k in found])
        # A read that may be old gets rows that are just as old; there is only the newest version.
        now = self.micros()
        as_of = request.as_of or now - (request.max_age_ms or 0) * 1000
        told = ReadResult(request.opaque, len(found), as_of=as_of, age_ms=(now - as_of) // 1000)
        return told, bodies.to_ipc(batch)
