"""Data nodes, in this process or in their own, and a coordinator that plays the operator's part.

`Coordinator` holds the records as the API server would and sends them; it answers AdjustIsr
proposals only when told to (`settle`, or its watching thread), so that tests decide when a set
changes. Nothing here sleeps: waits are for reports, with a deadline.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from loaded_process import LoadedProcess
from rezone.controller.nodes.node_state import NodeState, request_after, with_answer
from rezone.datanode.clock.checked_clock import CheckedClock
from rezone.datanode.node.node import DataNode
from rezone.datanode.replica.replica import Replica
from rezone.datanode.service.server import NodeServer
from rezone.datanode.settings import Clock, NodeSettings, SystemClock
from rezone.domain.routing import routes
from rezone.local.controlplane import free_ports
from rezone.storage.store_config import StoreConfig
from rezone.wire.codec.bodies import from_ipc, to_ipc
from rezone.wire.codec.keyspace import hash_keys, partitions_of
from rezone.wire.codec.producers import digest_of
from rezone.wire.codec.rows import arrow_schema_of
from rezone.wire.errors import (
    ConflictError,
    NotReadyError,
    ProducerFencedError,
    RezoneError,
    error_from,
)
from rezone.wire.messages import (
    FIRST_PARTITION_EPOCH,
    Ack,
    ConfigureNode,
    ConnectionClosed,
    DigestReply,
    DigestRequest,
    Failure,
    Fence,
    LeaderAndIsr,
    Message,
    NodeReport,
    NotifyLeaderAndIsr,
    OriginalId,
    OwnWrites,
    PartitionAssignment,
    ProducerOpen,
    ProducerOpened,
    ReadRequest,
    ReadResult,
    ReplicaReport,
    ReportRequest,
    Role,
    Takeover,
    TakeoverState,
    TransactionBegin,
    TransactionBegun,
    TransactionEnd,
    TransactionResult,
    TransactionTimes,
    WriteRequest,
    WriteResult,
    ZoneConfig,
)
from rezone.wire.transport.channel import CHANNEL_ERRORS, Channel
from rezone.wire.transport.flight import NodeClient

_UNENDED: list[NodeServer] = []
_GIVEN_PORTS: set[int] = set()
OPERATOR = Path(__file__).parents[2] / "operator"
DEADLINE_SECONDS = 20.0
# A process imports its libraries first: more than 20 s where images are being built beside it.
START_SECONDS = 60.0
SCHEMA = arrow_schema_of(ZoneConfig(zone="z", zone_uid="u", partitions=1).table)
FAST = NodeSettings(replica_lag_ms_max=400, takeover_timeout_ms=3000, reconnect_ms_max=200)


def free_port() -> int:
    """Return a port that nobody listens on, and that no other node got; restarted ones keep theirs.

    Not one that the system gives to outgoing connections: of those there are many meanwhile.
    """
    while (port := free_ports(1)[0]) in _GIVEN_PORTS:
        pass
    _GIVEN_PORTS.add(port)
    return port


T = TypeVar("T")


class HandClock(SystemClock):
    """The machine's clock, which a test can set ahead, and stop."""

    def __init__(self) -> None:
        self._ahead_seconds = 0.0
        self._stopped_at: tuple[float, int] | None = None

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        return self._stopped_at[0] if self._stopped_at else self._now()[0]

    def micros(self) -> int:
        """Return microseconds since 1970 in UTC."""
        return self._stopped_at[1] if self._stopped_at else self._now()[1]

    def advance(self, seconds: float) -> None:
        """Set it ahead."""
        self._ahead_seconds += seconds

    def stop(self) -> None:
        """Let it stand still: what waits for a time waits for ever."""
        self._stopped_at = self._now()

    def go_on(self) -> None:
        """Let it go again, with the time it has missed."""
        self._stopped_at = None

    def _now(self) -> tuple[float, int]:
        ahead = self._ahead_seconds
        return super().monotonic() + ahead, super().micros() + int(ahead * 1e6)


class SetClock(SystemClock):
    """The machine's clock, whose time of day a test can set: to be `ahead` by so much."""

    def __init__(self, ahead_micros: int = 0) -> None:
        self.ahead = ahead_micros

    def micros(self) -> int:
        """Return microseconds since 1970 in UTC."""
        return super().micros() + self.ahead


def unchecked(machine: Clock) -> CheckedClock:
    """Return a node's clock that nobody else's is compared with."""
    clock = CheckedClock(machine, NodeSettings().clock_offset_ms_max)
    clock.alone = lambda: True
    clock.look(clock.monotonic())
    return clock


class LocalNode:
    """A node in this process."""

    def __init__(
        self,
        node_id: int,
        directory: Path,
        settings: NodeSettings,
        store_config: StoreConfig | None = None,
        clock: Clock | None = None,
        *,
        alone: bool = False,
    ) -> None:
        self.node_id = node_id
        self.directory = directory
        self.settings = settings
        self.store_config = store_config
        self.clock = clock
        self.alone = alone
        self.address = f"127.0.0.1:{free_port()}"
        self.node: DataNode | None = None
        self.server: NodeServer | None = None

    def start(self) -> None:
        """Open and serve."""
        self.node = DataNode(
            self.node_id,
            self.directory,
            settings=self.settings,
            clock=self.clock,
            store_config=self.store_config,
        )
        if self.alone:
            # Followers that a test makes by hand do not say what time they have.
            self.node.clock.alone = lambda: True
        self.node.open()
        self.server = NodeServer(self.node, self.address)

    def stop(self) -> None:
        """Close as SIGTERM would."""
        if self.node is None or self.server is None:
            return
        self.node.close()
        # Waits for open channels; their other sides have been told to hang up.
        ending = threading.Thread(target=self.server.shutdown, daemon=True)
        ending.start()
        ending.join(1)
        if ending.is_alive():
            # Its end would wait for the open channel: better it never ends.
            _UNENDED.append(self.server)
        self.node = None

    def end(self) -> None:
        """Stop; no other node is waited for anyway."""
        self.stop()


class ProcessNode:
    """A node in a process of its own, to be killed.

    It is forked from one that is `loaded`. Benchmarks start what users start, and say so.
    """

    loaded = True
    module = "rezone.datanode"

    def __init__(self, node_id: int, directory: Path, *arguments: str) -> None:
        self.node_id = node_id
        self.directory = directory
        self.arguments = arguments
        self.environment: dict[str, str] = {}
        self.address = f"127.0.0.1:{free_port()}"
        self.process: subprocess.Popen[bytes] | LoadedProcess | None = None

    def start(self) -> None:
        """Start the process; it serves when `Coordinator.wait_up` has seen it."""
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / "log.txt"
        arguments = [
            f"--node-id={self.node_id}",
            f"--data-dir={self.directory / 'data'}",
            f"--listen={self.address}",
            "--health-port=0",
            *self.arguments,
        ]
        environment = {**os.environ, "PYTHONPATH": str(OPERATOR), **self.environment}
        if self.loaded:
            self.process = LoadedProcess(
                "rezone.datanode.process", "main", [arguments], environment, path
            )
            return
        command = [sys.executable, "-m", self.module, *arguments]
        with path.open("ab") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def kill(self) -> None:
        """SIGKILL."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """Stop in order, without waiting for others to take its place: SIGTERM, and another one."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        self.stop()

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        if self.process is None:
            return 0
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGUSR1)  # its threads' stacks, into its log
            self.process.wait(1)
            raise
        finally:
            if self.process.poll() is None:
                self.kill()


class Coordinator:
    """The operator's part, by hand."""

    def __init__(self, nodes: Iterable[LocalNode | ProcessNode], config: ZoneConfig) -> None:
        self.nodes = {node.node_id: node for node in nodes}
        self.config = config
        self.epoch = 1
        self.revision = 1
        self.records: dict[int, LeaderAndIsr] = {}
        self.lock = threading.RLock()
        self.users: list[Client] = []
        self._clients: dict[int, NodeClient] = {}
        self._connecting = threading.Lock()
        self._stop = threading.Event()
        self._watcher: threading.Thread | None = None

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Start and configure all nodes; stop them at the end."""
        try:
            for node in self.nodes.values():
                node.start()
            self.configure()
            yield
        finally:
            self.close()
            for node in self.nodes.values():
                node.end()

    @property
    def peers(self) -> dict[int, str]:
        """The addresses."""
        return {n: node.address for n, node in self.nodes.items()}

    def fence(self) -> Fence:
        """Return the present coordinator's fence."""
        return Fence(coordinator_epoch=self.epoch, revision=self.revision)

    def client(self, node: int) -> NodeClient:
        """Return a connection to a node."""
        with self._connecting:
            if node not in self._clients:
                self._clients[node] = self.connect(self.nodes[node].address)
            return self._clients[node]

    def connect(self, address: str) -> NodeClient:
        """Make a connection."""
        return NodeClient(address)

    def node(self, node: int) -> DataNode:
        """Return a node that runs in this process."""
        local = self.nodes[node]
        assert isinstance(local, LocalNode)
        assert local.node is not None
        return local.node

    def replica(self, node: int, partition: int = 0) -> Replica:
        """Return a replica of a node that runs in this process."""
        return self.node(node).find(partition)

    def call(self, node: int, request: Message, reply: type[Any] = Ack) -> Any:
        """One control call."""
        return self.client(node).call(request, reply)

    def until(self, what: str, check: Callable[[], Any], seconds: float = DEADLINE_SECONDS) -> Any:
        """Wait until `check` is true; woken by any change of any node's report."""
        deadline = time.monotonic() + seconds
        heard: dict[int, NodeState] = {}
        while True:
            with contextlib.suppress(NotReadyError):
                if result := check():
                    return result
            assert time.monotonic() < deadline, f"{what}: not within {seconds} s: {self.dump()}"
            for node in self.nodes:
                try:
                    request = request_after(heard.get(node), timeout_ms=10)
                    heard[node] = with_answer(None, self.call(node, request, NodeReport))
                except RezoneError:
                    continue

    def until_each(self, what: str, each: Iterable[T], check: Callable[[T], Any]) -> None:
        """Wait until `check` is true of one after the other."""
        for one in each:
            self.until(f"{what}: {one}", functools.partial(check, one))

    def until_settled(self, what: str, check: Callable[[], Any]) -> None:
        """Wait as `until` does, and answer what is proposed meanwhile."""

        def settled() -> Any:
            self.settle()
            return check()

        self.until(what, settled)

    def dump(self) -> str:
        """All reports, for a failed wait."""
        lines = [str(self.records)]
        for node in self.nodes:
            try:
                lines.append(str(self.call(node, ReportRequest(seen=-1), NodeReport).replicas))
            except RezoneError as error:
                lines.append(f"node {node}: {error}")
        return "\n".join(lines)

    def configure(self) -> None:
        """Send ConfigureNode to all; they may still be starting."""
        for node in self.nodes:
            self.wait_up(node)
            self.call(node, ConfigureNode(fence=self.fence(), config=self.config, peers=self.peers))

    def wait_up(self, node: int) -> None:
        """Wait until a node's server answers."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self.call(node, ReportRequest(seen=-1), NodeReport)
            except NotReadyError as error:
                if not error.details.get("unreachable"):
                    return
                assert time.monotonic() < deadline, f"node {node} does not come up"
                with contextlib.suppress(OSError):
                    host, port = self.nodes[node].address.split(":")
                    socket.create_connection((host, int(port)), 0.05).close()
                threading.Event().wait(0.02)  # a poll for a foreign process's port
                # Not closed: the watcher may be in a call on it, and would crash the process.
                self._clients.pop(node, None)
            else:
                return

    def create(self, partition: int, replicas: tuple[int, ...], leader: int | None = None) -> None:
        """Make a partition: all replicas in sync and empty, then confirmed as open."""
        self.send(
            partition,
            LeaderAndIsr(
                leader=replicas[0] if leader is None else leader,
                leader_epoch=1,
                isr=replicas,
                replicas=replicas,
                coordinator_epoch=self.epoch,
                partition_epoch=FIRST_PARTITION_EPOCH,
            ),
        )
        self.change(partition)

    def change(self, partition: int, **changes: Any) -> LeaderAndIsr:
        """Change a record, raise its partition epoch, send it."""
        with self.lock:
            record = self.records[partition]
            changes.setdefault("partition_epoch", record.partition_epoch + 1)
            changes.setdefault("coordinator_epoch", self.epoch)
            record = msgspec.structs.replace(record, **changes)
            self.send(partition, record)
            return record

    def send(self, partition: int, record: LeaderAndIsr, *only: int) -> None:
        """Send a record to all nodes that answer."""
        with self.lock:
            self.records[partition] = record
        request = NotifyLeaderAndIsr(
            fence=self.fence(),
            partitions=(PartitionAssignment(partition=partition, state=record),),
            peers=self.peers,
        )
        for node in only or tuple(self.nodes):
            try:
                self.call(node, request)
            except NotReadyError as error:
                if not error.details.get("unreachable"):
                    raise

    def report(self, node: int, partition: int) -> ReplicaReport:
        """One replica's report; NotReadyError while it does not answer or is not there."""
        report: NodeReport = self.call(node, ReportRequest(seen=-1), NodeReport)
        for replica in report.replicas:
            if replica.partition == partition:
                return replica
        raise NotReadyError(f"node {node} has no replica of partition {partition}")

    def end_streams(self, node: int, partition: int = 0) -> None:
        """End a partition's streams on one node's side, as a replica does that is stopped."""
        self.node(node).links.unlink(partition)
        replica = self.replica(node, partition)
        with replica.lock:
            replica.leading.end_streams("ended here", None, None)

    def stream_again(self, node: int, partition: int = 0) -> None:
        """Have a follower ask its leader for a stream, as it does by itself for each record."""
        self.node(node).restream(self.replica(node, partition))

    def has_replica(self, node: int, partition: int) -> bool:
        """Whether a node answers and has a replica of a partition."""
        try:
            self.report(node, partition)
        except NotReadyError:
            return False
        return True

    def settle(self) -> None:
        """Answer every standing proposal by a compare-and-set, as the operator does."""
        for node in self.nodes:
            try:
                report = self.call(node, ReportRequest(seen=-1), NodeReport)
            except RezoneError:
                continue
            for replica in report.replicas:
                self._adopt(node, replica)
                self._refresh(node, replica)
                if replica.proposal is not None:
                    self._answer(replica)

    def _adopt(self, node: int, replica: ReplicaReport) -> None:
        """Persist a takeover that has happened (RM: UpdateMetadataUp)."""
        with self.lock:
            record = self.records.get(replica.partition)
            if (
                record is not None
                and replica.role is Role.LEADER
                and replica.leader_epoch == record.next_epoch
                and node == record.next_leader
            ):
                self.change(
                    replica.partition,
                    leader=node,
                    leader_epoch=replica.leader_epoch,
                    next_leader=None,
                    next_epoch=None,
                )

    def _refresh(self, node: int, replica: ReplicaReport) -> None:
        """Send the record again to a node that missed it."""
        with self.lock:
            record = self.records.get(replica.partition)
            known = (replica.leader_epoch, replica.partition_epoch)
            if record is not None and known < (record.leader_epoch, record.partition_epoch):
                self.send(replica.partition, record, node)

    def _answer(self, replica: ReplicaReport) -> None:
        proposal = replica.proposal
        assert proposal is not None
        with self.lock:
            record = self.records[replica.partition]
            if (proposal.leader_epoch, proposal.partition_epoch) != (
                record.leader_epoch,
                record.partition_epoch,
            ):
                return
            # By the operator's rule: who may lead at this moment would lead out of sync.
            answer = routes.adjust_isr(record, proposal, self.epoch, minimum=1)
            if not isinstance(answer, routes.Refusal):
                self.change(replica.partition, isr=proposal.new_isr, iss=proposal.new_iss)

    def watch(self) -> None:
        """Answer proposals in the background until `close`."""

        def run() -> None:
            while not self._stop.wait(0.02):
                with contextlib.suppress(RezoneError, *CHANNEL_ERRORS):
                    self.settle()

        self._watcher = threading.Thread(target=run, daemon=True)
        self._watcher.start()

    def isr(self, partition: int) -> set[int]:
        """Return the confirmed set."""
        with self.lock:
            return set(self.records[partition].isr)

    def authorise(self, partition: int, candidate: int) -> LeaderAndIsr:
        """UpdateMetadataDown: allow a takeover, with the next epoch."""
        record = self.records[partition]
        return self.change(partition, next_leader=candidate, next_epoch=record.leader_epoch + 1)

    def takeover(self, partition: int) -> None:
        """Send Takeover to the old leader."""
        record = self.records[partition]
        assert record.next_leader is not None
        assert record.next_epoch is not None
        self.call(
            record.leader,
            Takeover(
                fence=self.fence(),
                partition=partition,
                leader_epoch=record.leader_epoch,
                candidate=record.next_leader,
                next_epoch=record.next_epoch,
            ),
        )

    def move(self, partition: int, candidate: int) -> None:
        """Make a whole takeover.

        The old leader is asked until it agrees, and again when it has given up, as the operator
        does pass by pass: while the candidate's stream is being made again, after either of them
        was killed or the clock was set ahead, it does either.
        """
        leader = self.records[partition].leader

        def authorised() -> bool:
            with self.lock:
                if candidate in self.records[partition].isr:
                    self.authorise(partition, candidate)
                    return True
            self.settle()
            return False

        def agreed() -> bool:
            try:
                self.takeover(partition)
            except ConflictError:
                return False
            return True

        self.until(f"node {candidate} is in sync", authorised)
        self.until(f"node {candidate} may take over", agreed)

        def led() -> bool:
            if self.report(candidate, partition).role is Role.LEADER:
                return True
            if self.report(leader, partition).takeover is TakeoverState.FAILED:
                agreed()
            return False

        self.until(f"node {candidate} leads", led)
        self.settle()

    def digests(self, partition: int, as_of: int | None = None) -> dict[int, DigestReply]:
        """Return the digest of every replica, as of the leader's time."""
        record = self.records[partition]
        first = self.call(
            record.leader, DigestRequest(partition=partition, as_of=as_of), DigestReply
        )
        request = DigestRequest(partition=partition, as_of=first.as_of)
        return {node: self.call(node, request, DigestReply) for node in record.replicas}

    def close(self) -> None:
        """End the watcher and the connections."""
        self._stop.set()
        if self._watcher is not None:
            self._watcher.join(5)
        for connection in self._clients.values():
            connection.close()
        for user in self.users:
            user.close()


class Client:
    """Writes and reads one batch at a time, and follows the leader as a client must."""

    def __init__(
        self, coordinator: Coordinator, producer_id: str | None = None, producer_epoch: int = 0
    ) -> None:
        self.coordinator = coordinator
        self.producer_id = producer_id or uuid.uuid4().hex
        self.producer_epoch = producer_epoch
        self.sequence = 0
        self.retries = 0
        self._opaque = 0
        self._channels: dict[str, tuple[NodeClient, Channel]] = {}
        coordinator.users.append(self)
        self._leaders: dict[int, str] = {}

    def put(self, partition: int, rows: dict[bytes, bytes], **options: Any) -> WriteResult:
        """Write rows; retried until it is acknowledged or the error is not to be retried."""
        self.sequence += 1
        return self.send(partition, self.sequence, rows, **options)

    def send(
        self,
        partition: int,
        sequence: int,
        rows: dict[bytes, bytes],
        *,
        delete: bool = False,
        original_ids: tuple[OriginalId, ...] = (),
        retry: bool = True,
        seconds: float = DEADLINE_SECONDS,
    ) -> WriteResult:
        """Write with a sequence of one's own."""
        if delete:
            batch = pa.record_batch([pa.array(list(rows), pa.binary())], names=["key"])
        else:
            batch = batch_of(rows)
        body = to_ipc(batch)

        def request(opaque: int) -> Message:
            return WriteRequest(
                opaque=opaque,
                partition=partition,
                producer_id=self.producer_id,
                sequence=sequence,
                producer_epoch=self.producer_epoch,
                delete=delete,
                original_ids=original_ids,
            )

        result, _ = self._call(partition, request, body, retry=retry, seconds=seconds)
        assert isinstance(result, WriteResult)
        return result

    def open(self, partition: int, **options: Any) -> int:
        """Open the producer at the partition that gives its epochs; write with its epoch then."""
        opening, known_epoch = str(uuid.uuid4()), 0
        while True:
            try:
                epoch = self.ask_epoch(partition, opening, known_epoch, **options)
            except ProducerFencedError as error:
                known_epoch = int(error.details["producer_epoch"])
                continue
            self.producer_epoch, self.sequence = epoch, 0
            return epoch

    def ask_epoch(self, partition: int, opening: str, known_epoch: int, **options: Any) -> int:
        """Send one request to open the producer; return the epoch that it is answered with."""

        def request(opaque: int) -> Message:
            return ProducerOpen(
                opaque=opaque,
                partition=partition,
                producer_id=self.producer_id,
                opening=opening,
                known_epoch=known_epoch,
            )

        result, _ = self._call(partition, request, b"", retry=True, **options)
        assert isinstance(result, ProducerOpened)
        return result.producer_epoch

    def get(
        self,
        partition: int,
        keys: Iterable[bytes],
        *,
        as_of: int | None = None,
        node: int | None = None,
        retry: bool = True,
        own: OwnWrites | None = None,
    ) -> dict[bytes, bytes]:
        """Read keys, of a certain node if told."""
        keys_batch = pa.record_batch([pa.array(list(keys), pa.binary())], names=["key"])

        def request(opaque: int) -> Message:
            return ReadRequest(opaque=opaque, partition=partition, as_of=as_of, own=own)

        address = None if node is None else self.coordinator.nodes[node].address
        result, body = self._call(
            partition, request, to_ipc(keys_batch), retry=retry, address=address
        )
        assert isinstance(result, ReadResult)
        batch = from_ipc(body, SCHEMA)
        return dict(zip(batch[0].to_pylist(), batch[1].to_pylist(), strict=True))

    def begin(self, partition: int, *, retry: bool = True) -> Transaction:
        """Begin a transaction."""

        def request(opaque: int) -> Message:
            return TransactionBegin(opaque=opaque, partition=partition)

        begun, _ = self._call(partition, request, b"", retry=retry)
        assert isinstance(begun, TransactionBegun)
        times = TransactionTimes(begun.read_time, begun.begun)
        return Transaction(self, partition, times)

    def _call(
        self,
        partition: int,
        request: Callable[[int], Message],
        body: bytes,
        *,
        retry: bool,
        seconds: float = DEADLINE_SECONDS,
        address: str | None = None,
    ) -> tuple[Message, memoryview]:
        deadline = time.monotonic() + seconds
        while True:
            target = address or self._leaders.get(partition) or self._guess(partition)
            try:
                return self._once(target, request, body)
            except RezoneError as error:
                if not retry or not error.retryable or time.monotonic() > deadline:
                    raise
                self.retries += 1
                leader = str(error.details.get("address", ""))
                self._leaders[partition] = leader if leader and leader != target else ""
                if not leader or leader == target:
                    threading.Event().wait(0.005)  # the client's pause between retries

    def _guess(self, partition: int) -> str:
        record = self.coordinator.records[partition]
        return self.coordinator.nodes[record.leader].address

    def _once(
        self, address: str, request: Callable[[int], Message], body: bytes
    ) -> tuple[Message, memoryview]:
        self._opaque += 1
        try:
            if address not in self._channels:
                client = self.connect(address)
                self._channels[address] = (client, client.channel("data"))
            channel = self._channels[address][1]
            channel.send(request(self._opaque), body)
            frame = self._answer(channel)
        except (*CHANNEL_ERRORS, NotReadyError) as error:
            self._drop(address)
            raise NotReadyError(f"{address}: {error}", unreachable=1) from error
        if isinstance(frame[0], Failure):
            raise error_from(frame[0].error)
        return frame

    def _answer(self, channel: Channel) -> tuple[Message, memoryview]:
        while True:
            frame = channel.receive()
            if frame is None or isinstance(frame[0], ConnectionClosed):
                raise NotReadyError("the node hangs up", unreachable=1)
            if getattr(frame[0], "opaque", None) == self._opaque:
                return frame

    def _drop(self, address: str) -> None:
        if address in self._channels:
            client, channel = self._channels.pop(address)
            channel.cancel()  # the other end may wait for a disk
            channel.close()
            client.close()

    def connect(self, address: str) -> NodeClient:
        """Make a connection to a node."""
        return NodeClient(address)

    def close(self) -> None:
        """Close all channels."""
        for address in list(self._channels):
            self._drop(address)


class Transaction:
    """A transaction of a client, request by request."""

    def __init__(
        self, client: Client, partition: int, times: TransactionTimes, known_as: str | None = None
    ) -> None:
        self.client = client
        self.partition = partition
        self.times = times
        self.id = known_as or uuid.uuid4().hex
        self.sequence = 0

    def put(self, rows: dict[bytes, bytes], **options: Any) -> WriteResult:
        """Write rows as intents."""
        self.sequence += 1
        return self.send(self.sequence, batch_of(rows), **options)

    def delete(self, keys: Iterable[bytes]) -> WriteResult:
        """Delete rows as intents."""
        self.sequence += 1
        batch = pa.record_batch([pa.array(list(keys), pa.binary())], names=["key"])
        return self.send(self.sequence, batch, delete=True)

    def send(
        self, sequence: int, batch: Any, *, delete: bool = False, retry: bool = True
    ) -> WriteResult:
        """Write intents with a sequence of one's own."""

        def request(opaque: int) -> Message:
            return WriteRequest(
                opaque=opaque,
                partition=self.partition,
                producer_id=self.id,
                sequence=sequence,
                delete=delete,
                transaction=self.times,
            )

        result, _ = self.client._call(self.partition, request, to_ipc(batch), retry=retry)
        assert isinstance(result, WriteResult)
        return result

    def get(self, keys: Iterable[bytes], **options: Any) -> dict[bytes, bytes]:
        """Read keys as the transaction sees them."""
        own = OwnWrites(self.id, self.times, self.sequence)
        return self.client.get(self.partition, keys, own=own, **options)

    def commit(self, **options: Any) -> TransactionResult:
        """Commit."""
        return self.end(commit=True, **options)

    def end(
        self, *, commit: bool = False, retry: bool = True, begun_in: int | None = None
    ) -> TransactionResult:
        """Commit or abort."""

        def request(opaque: int) -> Message:
            return TransactionEnd(
                opaque=opaque,
                partition=self.partition,
                transaction=self.id,
                sequence=self.sequence + 1,
                commit=commit,
                begun_in=begun_in,
            )

        result, _ = self.client._call(self.partition, request, b"", retry=retry)
        assert isinstance(result, TransactionResult)
        return result


def batch_of(rows: dict[bytes, bytes]) -> Any:
    """Rows of keys and values as a batch of the default table."""
    return pa.RecordBatch.from_arrays(
        [pa.array(list(rows), pa.binary()), pa.array(list(rows.values()), pa.binary())],
        schema=SCHEMA,
    )


def original_id(partition: int, sequence: int, rows: dict[bytes, bytes]) -> OriginalId:
    """Return as what rows were sent to a partition before."""
    return OriginalId(partition, sequence, digest_of(to_ipc(batch_of(rows)), delete=False))


def keys_in(partition: int, partitions: int, count: int, prefix: str = "k") -> list[bytes]:
    """Return the first `count` keys "<prefix><number>" that belong to a partition."""
    found: list[bytes] = []
    number = 0
    while len(found) < count:
        some = [f"{prefix}{i}".encode() for i in range(number, number + 256)]
        number += 256
        where = partitions_of(hash_keys(some), partitions)
        found += [key for key, p in zip(some, where, strict=True) if int(p) == partition]
    return found[:count]


@contextlib.contextmanager
def cluster(
    directory: Path,
    count: int = 3,
    *,
    processes: bool = False,
    process: type[ProcessNode] = ProcessNode,
    settings: NodeSettings = FAST,
    config: ZoneConfig | None = None,
    arguments: tuple[str, ...] = (),
    store_config: StoreConfig | None = None,
    clock: Clock | None = None,
    clocks: Sequence[Clock] = (),
) -> Iterator[Coordinator]:
    """Nodes 0..count-1, configured; stopped at the end.

    `clock` is that of all nodes in here, `clocks` has one for each.
    """
    config = config or ZoneConfig(zone="test", zone_uid="uid-test", partitions=1)
    nodes: list[LocalNode | ProcessNode] = [
        process(i, directory / f"node{i}", *arguments)
        if processes
        else LocalNode(
            i,
            directory / f"node{i}",
            settings,
            store_config,
            clocks[i] if clocks else clock,
            alone=count == 1,
        )
        for i in range(count)
    ]
    coordinator = Coordinator(nodes, config)
    with coordinator.running():
        yield coordinator
