"""A data node: its zone, its partitions, its connections to the other nodes.

What the node knows of its zone is in `node.journal`, so that after a restart it opens everything it
has and goes on without the coordinator (B-09). It knows the record of every partition of the
zone, its own or not: any node can tell a client where to go (ZR-12, RM-10).

Concurrency: a lock guards the tables here and is never held while a partition is called or a
frame is sent. A partition's work runs on a few shared threads (`workers`); one thread ticks, one
keeps house, one collects old versions; each consumer channel has one thread, each served channel
two.
"""

import os
import shutil
import threading
import uuid
from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog

from rezone.replica.checkpoints import FileSnapshot
from rezone.replica.copies import Pulls
from rezone.replica.data import DataChannel
from rezone.replica.foreground import Foreground
from rezone.replica.insync import Budget
from rezone.replica.journal import Journal
from rezone.replica.lag import Lag
from rezone.replica.lease import Promise
from rezone.replica.links import Links
from rezone.replica.memory import NodeMemory, SnapshotSlots
from rezone.replica.meta import MetaFile, PartitionMeta
from rezone.replica.partition import Partition
from rezone.replica.producer import ProducerChannel
from rezone.replica.protocol import protocol_of
from rezone.replica.report import ReportBoard
from rezone.replica.setaside import is_replica, open_store
from rezone.replica.settings import Clock, NodeSettings, SystemClock
from rezone.replica.snapshot import SnapshotSource
from rezone.replica.store_config import StoreConfig
from rezone.replica.workers import Job, Workers
from rezone.replica.write import warm_up
from rezone.wire.channel import Channel
from rezone.wire.errors import (
    ConflictError,
    CorruptionError,
    LimitExceededError,
    NotReadyError,
    RezoneError,
    StaleEpochError,
    StaleRevisionError,
    UnknownPartitionError,
)
from rezone.wire.flight import NodeClient
from rezone.wire.messages import (
    Fence,
    LeaderAndIsr,
    NodeId,
    NodeReport,
    PartitionAssignment,
    PartitionId,
    RouteTable,
    SnapshotTicket,
    ZoneConfig,
)
from rezone.wire.rows import RowCodec

_log = structlog.get_logger(__name__)
_ALIVE_SECONDS = 10.0
JOURNAL_NAME = "node.journal"


class NodeState(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a node remembers of its zone over a restart; `records` are hints for routing only."""

    config: ZoneConfig
    peers: dict[NodeId, str]
    coordinator_epoch: int = 0
    configured_by: int = 0
    configured_number: int = 0
    records: tuple[PartitionAssignment, ...] = ()


class DataNode:
    """The partitions of one zone on one node; made, then `open`ed, then served by `server`.

    `connect` makes a connection to another node by its address.
    """

    def __init__(
        self,
        node_id: NodeId,
        directory: Path,
        *,
        settings: NodeSettings | None = None,
        clock: Clock | None = None,
        store_config: StoreConfig | None = None,
        connect: Callable[[str], NodeClient] = NodeClient,
    ) -> None:
        self.node_id = node_id
        self.settings = settings or NodeSettings()
        protocol_of(self.settings)  # a name that is none shall be told before anything is opened
        self.clock: Clock = clock or SystemClock()
        self.budget = Budget(self.settings.pending_bytes_node_max, "pending writes of the node")
        self.process_id = f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.leaving = False
        self.memory = NodeMemory(self.settings)
        self.board = ReportBoard(self.clock, self.settings)
        self.foreground = Foreground(self.clock, self._foreground_percent)
        self.pulls = Pulls(connect, self.foreground)
        self._directory = directory
        self._store_config = store_config or StoreConfig()
        self._lock = threading.RLock()
        self._journal: Journal | None = None
        self._state: NodeState | None = None
        self._codec: RowCodec | None = None
        self._partitions: dict[PartitionId, Partition] = {}
        self._opening: dict[PartitionId, threading.Lock] = {}
        self._records: dict[PartitionId, LeaderAndIsr] = {}
        self.links = Links(
            self,
            lambda partition: self.find(partition).leading,
            connect=connect,
        )
        self._data_channels: set[DataChannel] = set()
        self._stopping = threading.Event()
        self._slots = SnapshotSlots(
            self.settings.snapshots_max,
            self.settings.snapshot_wait_ms_max / 1000,
            self._stopping,
        )
        self._ticked_at = self.clock.monotonic()
        self.lag = Lag()
        self._workers = Workers(self.settings.worker_threads, f"node {node_id}")
        self._threads = [
            threading.Thread(target=self._tick_all, name="tick", daemon=True),
            threading.Thread(target=self._keep_house, name="house", daemon=True),
            threading.Thread(target=self._collect, name="collect", daemon=True),
        ]

    # --- life ------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open what the node has on its disk and go on with it."""
        warm_up()
        self._directory.mkdir(parents=True, exist_ok=True)
        state = self._load()
        if state is not None:
            self._take_state(state)
            self._records = {a.partition: a.state for a in state.records}
            self._open_partitions()
        for partition in self.partitions():
            self.restream(partition)
        for thread in self._threads:
            thread.start()

    def _load(self) -> NodeState | None:
        """Return what is known of the zone, None for nothing.

        What is damaged is kept beside it, and the coordinator tells the node its zone again.
        """
        path = self._directory / JOURNAL_NAME
        try:
            self._journal = Journal(path)
            data = self._journal.newest
            return msgspec.json.decode(data, type=NodeState) if data is not None else None
        except (CorruptionError, msgspec.MsgspecError) as error:
            _log.error("the node's facts are damaged: it waits to be told its zone", why=str(error))
            path.rename(path.with_name(f"{path.name}.damaged"))
            self._journal = Journal(path)
            return None

    def _open_partitions(self) -> None:
        for directory in self._replica_directories():
            if is_replica(directory):
                self._open_partition(int(directory.name), learner=False)
            else:
                shutil.rmtree(directory)

    def _replica_directories(self) -> list[Path]:
        found = sorted((self._directory / "partitions").glob("[0-9]*"))
        return [directory for directory in found if directory.name.isdecimal()]

    def _check_replicas(self, fence: Fence, config: ZoneConfig) -> None:
        """Check a call against replicas that were found without the node's facts.

        ConflictError when they are of another zone, StaleEpochError when they know a later epoch.
        """
        for directory in self._replica_directories():
            try:
                meta = MetaFile(directory, PartitionMeta()).value
            except CorruptionError:
                continue  # set aside when it is opened
            if meta.zone_uid not in {"", config.zone_uid}:
                raise ConflictError(
                    f"node {self.node_id} holds data of zone {meta.zone_uid}",
                    zone_uid=meta.zone_uid,
                )
            if fence.coordinator_epoch < meta.coordinator_epoch:
                raise StaleEpochError(
                    f"coordinator epoch {fence.coordinator_epoch} is behind "
                    f"{meta.coordinator_epoch}",
                    coordinator_epoch=meta.coordinator_epoch,
                )

    def leave(self) -> None:
        """Ask to be relieved: the coordinator moves leaders off, leaders no longer count on this.

        The node serves as before meanwhile; `is_needed` says until when.
        """
        self.leaving = True
        self.board.touched(at_once=True)
        for partition in self.partitions():
            self.ack(partition)

    @property
    def is_needed(self) -> bool:
        """Whether a partition would miss this node, and others can take its place."""
        return any(partition.is_needed for partition in self.partitions())

    def close(self) -> None:
        """Stop serving, make everything durable, close; safe to repeat."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        seconds = self.settings.stop_ms_max / 1000
        with self._lock:
            channels: list[DataChannel | ProducerChannel] = [*self._data_channels]
            partitions = list(self._partitions.values())
        self.board.close()
        self.foreground.close()
        self.pulls.close(seconds)
        for channel in [*channels, *self.links.producers()]:
            channel.close("the node is stopping")
        for consumer in self.links.consumers():
            consumer.close(seconds)
        for partition in partitions:
            partition.close()
        self._workers.close(seconds)
        for thread in self._threads:
            if thread.is_alive():
                thread.join(seconds)
        with self._lock:
            if self._state is not None:
                self._save()

    def hang_up(self, reason: str) -> None:
        """Ask the other sides of all channels to connect anew; nothing under way is lost."""
        with self._lock:
            channels: list[DataChannel | ProducerChannel] = [*self._data_channels]
        for channel in [*channels, *self.links.producers()]:
            channel.close(reason)

    @property
    def alive(self) -> bool:
        """Whether the node's own thread has run lately."""
        return self.clock.monotonic() - self._ticked_at < _ALIVE_SECONDS

    @property
    def stopping(self) -> bool:
        """Whether `close` has begun."""
        return self._stopping.is_set()

    # --- what the node knows ---------------------------------------------------------------------

    @property
    def configured(self) -> bool:
        """Whether the node knows its zone."""
        return self._state is not None

    @property
    def state(self) -> NodeState:
        """The node's zone; NotReadyError before the first ConfigureNode."""
        if self._state is None:
            raise NotReadyError(f"node {self.node_id} has not been configured yet")
        return self._state

    @property
    def config(self) -> ZoneConfig:
        """The zone's configuration."""
        return self.state.config

    @property
    def codec(self) -> RowCodec:
        """The row format of the zone."""
        if self._codec is None:
            raise NotReadyError(f"node {self.node_id} has not been configured yet")
        return self._codec

    def configure(
        self, fence: Fence, config: ZoneConfig, peers: dict[NodeId, str], number: int = 0
    ) -> None:
        """Take and persist the zone; ConflictError when the node's data is of another one.

        StaleRevisionError when a later call of the same coordinator has come before: its sender
        believes that to be what stands here.
        """
        epoch = fence.coordinator_epoch
        with self._lock:
            self.check_fence(fence)
            known = self._state
            same = known is not None and known.configured_by == epoch
            if known is not None and same and number < known.configured_number:
                raise StaleRevisionError(
                    f"configuration {number} is behind {known.configured_number}",
                    number=known.configured_number,
                )
            if self._state is not None and self._state.config.zone_uid != config.zone_uid:
                raise ConflictError(
                    f"node {self.node_id} holds data of zone {self._state.config.zone_uid}",
                    zone_uid=self._state.config.zone_uid,
                )
            if known is None:
                self._check_replicas(fence, config)
            self._take_state(
                NodeState(
                    config=config,
                    peers=peers,
                    coordinator_epoch=epoch,
                    configured_by=epoch,
                    configured_number=number,
                )
            )
            self._save()
            if known is None:
                self._open_partitions()
        self._new_addresses(peers)
        for partition in self.partitions():
            # With fewer in-sync replicas asked for, what waits may be committed.
            partition.wake()
        self.board.touched(at_once=True)

    def _foreground_percent(self) -> int:
        return self._state.config.foreground_percent if self._state is not None else 0

    def check_fence(self, fence: Fence) -> None:
        """Refuse calls of a coordinator older than one seen before, over restarts too."""
        with self._lock:
            known = self._state.coordinator_epoch if self._state is not None else 0
            if fence.coordinator_epoch < known:
                raise StaleEpochError(
                    f"coordinator epoch {fence.coordinator_epoch} is behind {known}",
                    coordinator_epoch=known,
                )
            if self._state is not None and fence.coordinator_epoch > known:
                self._state = msgspec.structs.replace(
                    self._state, coordinator_epoch=fence.coordinator_epoch
                )
                self._save()

    def _take_state(self, state: NodeState) -> None:
        self._codec = RowCodec(state.config.table, state.config.limits)
        self._state = state

    def _save(self) -> None:
        """Write what is known of the zone, durably before this returns."""
        records = tuple(
            PartitionAssignment(partition=p, state=s) for p, s in sorted(self._records.items())
        )
        assert self._journal is not None, "an open node has a journal"  # noqa: S101 - invariant
        self._journal.write(
            msgspec.json.encode(msgspec.structs.replace(self.state, records=records))
        )

    def update_peers(self, peers: dict[NodeId, str]) -> None:
        """Take the nodes' addresses; connections to changed ones are made anew."""
        with self._lock:
            if peers == self.state.peers:
                return
            self._state = msgspec.structs.replace(self.state, peers=peers)
            self._save()
        self._new_addresses(peers)

    def _new_addresses(self, peers: dict[NodeId, str]) -> None:
        self.links.new_addresses(peers)
        for partition in self.partitions():
            self.restream(partition)

    def address(self, node: NodeId) -> str:
        """Return a node's address, empty when unknown."""
        return self._state.peers.get(node, "") if self._state is not None else ""

    def routes(self) -> RouteTable:
        """Return where every partition is led, as far as this node knows."""
        with self._lock:
            records = dict(self._records)
            partitions = list(self._partitions.values())
        for partition in partitions:
            # A takeover changes a leader before the coordinator says so.
            if partition.record.leader_epoch >= 0 and partition.record.leader >= 0:
                records[partition.partition_id] = partition.record
        return RouteTable(
            config=self.config,
            partitions=tuple(
                PartitionAssignment(partition=p, state=s) for p, s in sorted(records.items())
            ),
            peers=self.state.peers,
        )

    def note_record(self, partition: PartitionId, record: LeaderAndIsr) -> None:
        """Remember a partition's record for routing; StaleEpochError when a later one is known."""
        with self._lock:
            known = self._records.get(partition)
            if known is not None and (record.leader_epoch, record.partition_epoch) < (
                known.leader_epoch,
                known.partition_epoch,
            ):
                raise StaleEpochError(
                    f"epochs {record.leader_epoch}/{record.partition_epoch} of partition "
                    f"{partition} are behind {known.leader_epoch}/{known.partition_epoch}",
                    leader_epoch=known.leader_epoch,
                    partition_epoch=known.partition_epoch,
                )
            self._records[partition] = record

    def report(self) -> NodeReport:
        """Return the state of all replicas."""
        return self.board.build(self)

    # --- partitions ------------------------------------------------------------------------------

    def partitions(self) -> list[Partition]:
        """Return all open replicas."""
        with self._lock:
            return list(self._partitions.values())

    def find(self, partition: PartitionId) -> Partition:
        """Return a replica; UnknownPartitionError when the node has none."""
        with self._lock:
            found = self._partitions.get(partition)
        if found is None:
            raise UnknownPartitionError(
                f"node {self.node_id} has no replica of partition {partition}",
                partition=partition,
            )
        return found

    def open_replica(self, partition: PartitionId, *, learner: bool) -> Partition:
        """Return the replica, opened and empty when it is new; a learner first needs a copy."""
        with self._lock:
            lock = self._opening.setdefault(partition, threading.Lock())
        with lock:
            with self._lock:
                found = self._partitions.get(partition)
            return found or self._open_partition(partition, learner=learner)

    def _open_partition(self, partition: PartitionId, *, learner: bool) -> Partition:
        config = msgspec.structs.replace(
            self._store_config,
            partition=partition,
            engine=self.config.engine,
            table=self.config.table,
            rocks=self.memory.rocks_settings(self._store_config.rocks),
            transaction_seconds_max=self.settings.transaction_ms_max / 1000,
        )
        directory = self._directory / "partitions" / str(partition)
        new = not MetaFile.exists(directory)
        store = open_store(directory, config)
        if new and not store.meta.damage:
            store.update_meta(needs_snapshot=learner)
        if store.meta.zone_uid != self.config.zone_uid:
            store.update_meta(zone_uid=self.config.zone_uid)
        opened = Partition(store, self)
        with self._lock:
            self._partitions[partition] = opened
        self.memory.share_tails(self.partitions())
        self.board.touched(at_once=True)
        return opened

    def drop_replica(self, partition: Partition) -> None:
        """Stop a replica and delete its data."""
        with self._lock:
            self._partitions.pop(partition.partition_id, None)
        self.memory.share_tails(self.partitions())
        partition.stop()
        self.restream(partition)
        with partition.applying:
            partition.store.destroy()
        self.board.touched(at_once=True)

    # --- what partitions need of their node ------------------------------------------------------

    def wake(self, job: Job) -> None:
        """Run a job soon."""
        self._workers.wake(job)

    def run_here(self, job: Job) -> None:
        """Run a job in the calling thread, which holds no lock and has nothing better to do."""
        self._workers.run_here(job)

    def touched(self, *, at_once: bool) -> None:
        """Note that the report has changed."""
        self.board.touched(at_once=at_once)

    def ack(self, partition: Partition) -> None:
        """Ack to the leader what is durable."""
        self.links.ack(partition.partition_id)

    def promised_to(self, leader: NodeId) -> Promise:
        """Return what a node that leads was promised."""
        return self.links.promised_to(leader)

    def restream(self, partition: Partition) -> None:
        """Make the partition's stream fit its state."""
        self.links.restream(partition)

    def data_channels(self) -> int:
        """Return how many clients are connected."""
        with self._lock:
            return len(self._data_channels)

    # --- channels of others ----------------------------------------------------------------------

    def serve_data(self, channel: Channel) -> None:
        """Serve a client's channel to its end."""
        served = DataChannel(
            channel, self.find, lambda: self.codec, self.foreground, self.memory.answers
        )
        with self._lock:
            self._require_room()
            self._data_channels.add(served)
        try:
            served.run()
        finally:
            with self._lock:
                self._data_channels.discard(served)

    def serve_replication(self, channel: Channel) -> None:
        """Serve a follower's node to the end of its channel (DCP-01)."""
        with self._lock:
            self._require_room()
        self.links.serve(channel)

    def _require_room(self) -> None:
        if self._stopping.is_set():
            raise NotReadyError(f"node {self.node_id} is stopping")
        connections = len(self._data_channels) + len(self.links.producers())
        if connections >= self.settings.connections_max:
            raise LimitExceededError(
                f"node {self.node_id} has {connections} connections, which is the limit",
                limit=self.settings.connections_max,
            )

    def open_source(
        self, partition: Partition, ticket: SnapshotTicket
    ) -> SnapshotSource | FileSnapshot:
        """Open a snapshot to be read; waits while too many are."""
        return self._slots.open(
            lambda: sum(each.store.outgoing.readers for each in self.partitions()),
            lambda: partition.store.outgoing.open(ticket),
        )

    @property
    def snapshot_bytes_max(self) -> int:
        """What one snapshot may hold in memory."""
        return self._store_config.snapshot.memory_bytes_max

    # --- the node's own threads ------------------------------------------------------------------

    def _tick_all(self) -> None:
        interval = self.settings.tick_interval_ms / 1000
        wanted = self.clock.monotonic() + interval
        while not self._stopping.wait(interval):
            now = self._ticked_at = self.clock.monotonic()
            self.lag.note(now - wanted)
            for partition in self.partitions():
                if partition.due <= now:
                    partition.tick(now)
            for consumer in self.links.consumers():
                consumer.tick(now)
            for producer in self.links.producers():
                producer.tick(now)
            self.board.tick(now)
            wanted = self.clock.monotonic() + interval

    def _keep_house(self) -> None:
        while not self._stopping.wait(self.settings.trim_interval_ms / 1000):
            for partition in self.partitions():
                try:
                    partition.keep_house()
                except (RezoneError, OSError) as error:
                    _log.warning(
                        "cannot tidy up", partition=partition.partition_id, error=str(error)
                    )

    def _collect(self) -> None:
        while not self._stopping.wait(self.settings.trim_interval_ms / 1000):
            for partition in self.partitions():
                for step in (partition.collect, partition.scrub):
                    try:
                        self._slowly(step)
                    except (RezoneError, OSError) as error:
                        _log.warning(
                            "cannot collect or scrub",
                            partition=partition.partition_id,
                            error=str(error),
                        )

    def _slowly(self, step: Callable[[], bool]) -> None:
        """Make a due pass; it takes a small share of the time, whoever else waits."""
        rest = 100 / self.settings.collect_percent_max - 1
        while True:
            begun = self.clock.monotonic()
            more = step()
            if self._stopping.wait((self.clock.monotonic() - begun) * rest) or not more:
                return
