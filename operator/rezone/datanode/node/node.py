"""A data node: its zone, its replicas, its connections to clients and to the other nodes.

Here they are put together, begun and ended, and here is what each partition needs of its node
(`host`). What the node knows of its zone is in `known_zone`, its replicas are in `replicas`.

Concurrency: a lock guards the table of clients' channels and is never held while a partition is
called or a frame is sent. A partition's work runs on a few shared threads (`workers`), what time
alone makes due on the node's own (`node_threads`); each consumer channel has one thread, each
served channel two.
"""

import functools
import math
import os
import threading
import uuid
from collections.abc import Callable
from pathlib import Path

from rezone.datanode.clock.checked_clock import CheckedClock
from rezone.datanode.clock.clock_bound import ClockBound
from rezone.datanode.commit.lease import Promise
from rezone.datanode.commit.protocol import protocol_of
from rezone.datanode.copying.copies import Pulls
from rezone.datanode.disk.disk_speed import DiskSpeed
from rezone.datanode.disk.space import DiskSpace
from rezone.datanode.indexing.index_builds import IndexBuilds
from rezone.datanode.node.change_source import ChangeSource
from rezone.datanode.node.data import DataChannel
from rezone.datanode.node.hearing import Hearing
from rezone.datanode.node.known_zone import KnownZone
from rezone.datanode.node.links import Connect, Links, RequireNode
from rezone.datanode.node.memory import NodeMemory, SnapshotSlots
from rezone.datanode.node.node_threads import NodeThreads
from rezone.datanode.node.older_log_thread import OlderLogThread
from rezone.datanode.node.reopening import Reopening
from rezone.datanode.node.replicas import Replicas
from rezone.datanode.node.report import WHOLE_REPORT, ReportBoard
from rezone.datanode.node.reshard_pulls import ReshardPulls
from rezone.datanode.replica.replica import Replica
from rezone.datanode.resharding.ingesting import Ingesting
from rezone.datanode.resharding.overwrites import Overwrites
from rezone.datanode.resharding.reshard_source import ReshardSource
from rezone.datanode.scheduling.foreground import Foreground
from rezone.datanode.scheduling.traced import node_tracer
from rezone.datanode.scheduling.unread import Peer, Unread
from rezone.datanode.scheduling.workers import Job, JobState, Workers
from rezone.datanode.settings import Clock, NodeSettings, SystemClock
from rezone.storage.budget import Budget
from rezone.storage.disk.sync_times import SyncTimes
from rezone.storage.disk.syncing import make_directory
from rezone.storage.snapshot.checkpoints import FileSnapshot
from rezone.storage.snapshot.snapshot import SnapshotSource
from rezone.storage.store_config import StoreConfig
from rezone.wire import layouts
from rezone.wire.errors import ConflictError, LimitExceededError, NotReadyError
from rezone.wire.messages import (
    Fence,
    LeaderMoved,
    LeaderMoving,
    Message,
    NodeId,
    NodeReport,
    PartitionId,
    ReportRequest,
    RouteTable,
    SnapshotTicket,
    ZoneConfig,
)
from rezone.wire.transport.channel import Channel
from rezone.wire.transport.flight import NodeClient

TOLD_HERE_MAX = 8
"""To so many clients the thread that hands over sends the news itself, before it goes on."""


_ACK_AGAIN_SECONDS = 1.0


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
        connect: Connect = NodeClient,
    ) -> None:
        self.node_id = node_id
        self.settings = settings or NodeSettings()
        protocol_of(self.settings)  # a name that is none shall be told before anything is opened
        self.clock = CheckedClock(
            clock or SystemClock(),
            self.settings.clock_offset_ms_max,
            alone=self._goes_by_itself,
            shares_with=self._shares_with,
            changed=self.clock_changed,
        )
        self.tracer = node_tracer(self.settings, node_id, self.clock)
        self.budget = Budget(self.settings.pending_bytes_node_max, "pending writes of the node")
        self.waiting_reads = Budget(self.settings.reads_held_bytes_max, "waiting reads of the node")
        self.clock_bound = ClockBound(self.clock, self.settings.clock_bound_ahead_ms)
        self.process_id = f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.leaving = False
        self._zone_deleted = False
        self.space = DiskSpace(self.clock, directory, self.settings.disk_reserve_bytes)
        self._ack_again_at = math.inf
        self.sync_times = SyncTimes(self.clock.monotonic)
        self.disk_speed = DiskSpeed(self.sync_times, self.settings)
        self._stopping = threading.Event()
        self.unread = Unread(self.clock, self.settings.unread_ms_max, self._stopping)
        self.memory = NodeMemory(self.settings)
        self.board = ReportBoard(self.clock, self.settings, self.process_id)
        self.zone = KnownZone(node_id)
        self.foreground = Foreground(self.clock, lambda: self.zone.foreground_target_percent)
        self.pulls = Pulls(connect, self.foreground)
        self.reshard_source = ReshardSource(self.find, self.foreground, self.clock, self._stopping)
        self.ingesting = Ingesting(
            self.find, lambda partition: self.find(partition).reshard_streams, self.foreground
        )
        asked = functools.partial(self.board.touched, None, at_once=True)
        self.overwrites = Overwrites(
            lambda: self.zone.state.config, self.clock, asked, time=self.clock.known
        )
        self.change_source = ChangeSource(self.find, self.foreground, self.clock, self._stopping)
        self.reshard_pulls = ReshardPulls(self, connect)
        self.older_log = OlderLogThread(self, connect)
        self._builds = IndexBuilds(
            lambda: [each.index for each in self.partitions()],
            lambda: self.zone.table,
            self.foreground,
        )
        self._directory = directory
        self._lock = threading.Lock()
        store_config = store_config or StoreConfig()
        self.replicas = Replicas(self, directory / "partitions", store_config, self.memory)
        self.links = Links(
            self,
            lambda partition: self.find(partition).leading,
            connect=connect,
            unread=self.unread,
            unsent=self.memory.answers,
        )
        self.hearing = Hearing(self.links, self.partitions, self.settings, self._hears_others)
        self._data_channels: set[DataChannel] = set()
        self.snapshot_bytes_max = store_config.snapshot.memory_bytes_max
        self._slots = SnapshotSlots(
            self.settings.snapshots_max,
            self.settings.snapshot_wait_ms_max / 1000,
            self._stopping,
        )
        self._reopening = Reopening(self)
        self._workers = Workers(self.settings.worker_threads, f"node {node_id}")
        self.threads = self._made_threads()

    def _made_threads(self) -> NodeThreads:
        return NodeThreads(
            self.settings,
            self.clock,
            self._stopping,
            partitions=self.partitions,
            links=self.links,
            board=self.board,
            clock_bound=self.clock_bound,
            keep_bound=self.keep_bound,
            reopening=self._reopening,
            hearing=self.hearing,
            look_at_disk=self.look_at_disk,
            wake=self.wake,
            watch_senders=self.unread.run,
            longest_job=self._workers.longest_seconds,
            disk_stalls=lambda: self.disk_speed.stalled_seconds > 0,
            overwrites=self.overwrites,
        )

    # --- life ------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open what the node has on its disk and go on with it."""
        make_directory(self._directory)
        self.zone.open(self._directory)
        self.open_bound(self._directory)
        self.space.look(self.clock.monotonic())  # before replicas are opened, which go by it
        if self.zone.configured:
            self.replicas.open_found()
        for partition in self.partitions():
            self.restream(partition)
        self.threads.start()
        self._builds.start()
        self.reshard_pulls.look()
        self.older_log.look()

    def leave(self) -> None:
        """Ask to be relieved: the coordinator moves leaders off, leaders no longer count on this.

        The node serves as before meanwhile; `is_needed` says until when.
        """
        self.leaving = True
        self.board.touched(None, at_once=True)
        for partition in self.partitions():
            self.ack(partition)

    def note_zone_deleted(self, zone_uid: str) -> None:
        """Note that the zone is gone, so that nobody misses this node when it shall stop.

        Raises ConflictError when its data is of another zone.
        """
        if not self.zone.configured or self.config.zone_uid != zone_uid:
            raise ConflictError(f"node {self.node_id} is not of zone {zone_uid}")
        self._zone_deleted = True

    @property
    def is_needed(self) -> bool:
        """Whether a partition would miss this node, and others can take its place."""
        if self._zone_deleted:
            return False
        return any(partition.is_needed for partition in self.partitions())

    @property
    def holds_alone(self) -> bool:
        """Whether acknowledged rows of a partition are in sync on this node alone."""
        return any(partition.holds_alone for partition in self.partitions())

    def close(self) -> None:
        """Stop serving, make everything durable, close; safe to repeat."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        seconds = self.settings.stop_ms_max / 1000
        clients = self._clients()
        self.board.close()
        self.foreground.close()
        self._builds.close(seconds)
        self.pulls.close(seconds)
        self.reshard_pulls.close(seconds)
        self.older_log.close(seconds)
        for client in clients:
            client.close("the node is stopping")
        self.links.close(seconds)
        for partition in self.partitions():
            partition.close()
        self._workers.close(seconds)
        self.threads.join(seconds)
        if self.tracer is not None:
            self.tracer.close()
        self.zone.close()
        self.clock_bound.close(self.clock.highest)

    def hang_up(self, reason: str) -> None:
        """Ask the other sides of all channels to connect again; nothing under way is lost."""
        for client in self._clients():
            client.close(reason)
        for follower in self.links.producers():
            follower.close(reason)

    def _clients(self) -> list[DataChannel]:
        with self._lock:
            return list(self._data_channels)

    @property
    def stopping(self) -> bool:
        """Whether `close` has begun."""
        return self._stopping.is_set()

    # --- what the node knows ---------------------------------------------------------------------

    @property
    def directory(self) -> Path:
        """Where the node keeps its data."""
        return self._directory

    @property
    def config(self) -> ZoneConfig:
        """The zone's configuration."""
        return self.zone.state.config

    def configure(
        self, fence: Fence, config: ZoneConfig, peers: dict[NodeId, str], number: int = 0
    ) -> None:
        """Take and persist the zone; ConflictError when the node's data is of another one.

        StaleRevisionError when a later call of the same coordinator has come before: its sender
        believes that to be what stands here.
        """
        with self.zone.lock:
            self.zone.check_configuration(fence, config, number)
            first = not self.zone.configured
            feeds = () if first else self.config.feeds
            if first:
                self.replicas.check(fence, config)
            self.zone.configure(fence, config, peers, number)
            if first:
                self.replicas.open_found()
        self._builds.look()
        self.reshard_pulls.look()
        self.older_log.look()
        self._new_addresses(peers)
        for partition in self.partitions():
            # With fewer in-sync replicas asked for, what waits may be committed.
            partition.wake()
            if config.feeds != feeds:
                partition.touched(at_once=True)  # it may pull log now, or no longer
        self.board.touched(None, at_once=True)

    def update_peers(self, peers: dict[NodeId, str]) -> None:
        """Take the nodes' addresses; connections to changed ones are made again."""
        if self.zone.update_peers(peers):
            self._new_addresses(peers)

    def _new_addresses(self, peers: dict[NodeId, str]) -> None:
        self.links.new_addresses(peers)
        for partition in self.partitions():
            self.restream(partition)

    def address(self, node: NodeId) -> str:
        """Return a node's address, empty when unknown."""
        return self.zone.address(node)

    def routes(self) -> RouteTable:
        """Return where every partition is led, as far as this node knows."""
        return self.zone.routes(self.partitions())

    def report(self, request: ReportRequest = WHOLE_REPORT) -> NodeReport:
        """Return the state of all replicas, or of those that `request` does not know of."""
        return self.board.build(self, request)

    def partitions(self) -> list[Replica]:
        """Return all open replicas."""
        return self.replicas.all()

    def find(self, partition: PartitionId) -> Replica:
        """Return a replica; UnknownPartitionError when the node has none."""
        return self.replicas.find(partition)

    def find_for_client(self, partition: PartitionId) -> Replica:
        """Return a replica; ReshardedError for one of a layout that is over, here or not."""
        if self.zone.configured and layouts.is_over(self.config, partition):
            raise layouts.resharded(self.config, partition)
        return self.find(partition)

    # --- what partitions need of their node ------------------------------------------------------

    def wake(self, job: Job) -> None:
        """Run a job soon."""
        self._workers.wake(job)

    def run_here(self, job: Job) -> None:
        """Run a job in the calling thread, which holds no lock and has nothing better to do."""
        self._workers.run_here(job)

    def runs(self, job: Job) -> bool:
        """Whether a job runs, or will soon."""
        return job.state is not JobState.IDLE

    def touched(self, partition: PartitionId, *, at_once: bool) -> None:
        """Note that the report of a replica has changed."""
        self.board.touched(partition, at_once=at_once)

    def _hears_others(self) -> None:
        self.board.touched(None, at_once=True)

    def look_at_disk(self, now: float) -> None:
        """Say so when it is slow, or there is too little space; lead nothing while it stalls."""
        slow = self.disk_speed.look(now)
        if self.disk_speed.aside_seconds and self.is_watched:
            self._step_down_if_stalled()
        changed = slow or self.space.look(now)
        if changed:
            self.board.touched(None, at_once=True)
        if changed or now >= self._ack_again_at:
            # One that was made before the change may leave after this one, so there is another.
            self._ack_again_at = now + _ACK_AGAIN_SECONDS if changed else math.inf
            for partition in self.partitions():
                if partition.responds:
                    self.ack(partition)

    @property
    def is_watched(self) -> bool:
        """Whether somebody asks for this node's report, and can have others lead."""
        return self.board.is_read(self.settings.coordinator_silent_ms_max / 1000)

    def _step_down_if_stalled(self) -> None:
        """Have no leader wait for a disk that stalls, if those of its followers do not.

        What a follower has on its disk and this node has not shows that. All its leaders go: the
        next write to each would stall. Clients connect again: the thread that reads their requests
        may be the one that waits for the disk.
        """
        leading = [each for each in self.partitions() if each.leads and each.responds]
        if not any(each.leading.is_overtaken for each in leading):
            return
        for partition in leading:
            partition.failing.step_down_if_stalled(self.disk_speed.stalled_seconds)
        with self._lock:
            channels = list(self._data_channels)
        for channel in channels:
            channel.close("the disk stalls")

    def _goes_by_itself(self) -> bool:
        """Whether no other node has to have a row of this one before it counts."""
        if not self.zone.configured or self.config.min_in_sync_replicas != 1:
            return False
        led = [partition.record for partition in self.partitions() if partition.leads]
        return bool(led) and all(set(record.isr) <= {self.node_id} for record in led)

    def _shares_with(self) -> set[NodeId]:
        """Return the other nodes that have, or should have, replicas of this one's partitions."""
        records = [partition.record for partition in self.partitions()]
        nodes = {node for record in records for node in (*record.replicas, *record.isr)}
        return nodes - {self.node_id}

    def open_bound(self, directory: Path) -> None:
        """Take over what the node has told; while that is not known it gives no times."""
        self.clock_bound.open(directory)
        self.clock.begin_above(self.clock_bound.before)
        if self.clock_bound.lost:
            self.clock.hold_back()

    def keep_bound(self) -> None:
        """Keep the clock bound ahead of the clock, and find one if it was lost."""
        if not self.clock_bound.lost:
            self.clock_bound.keep_ahead()
            return
        latest = self._latest_time()
        if not self.clock.knows or not self.clock_bound.recover(latest):
            return
        self.clock.begin_above(self.clock_bound.before)
        for partition in self.partitions():
            partition.leading.clock_bound_found(self.clock_bound.before)
        self.clock_bound.found()
        self.clock.release()

    def _latest_time(self) -> int:
        """Return the latest time that any node can have; right while the clock `knows` it.

        Nobody has agreed with a node that goes by itself. That its clock was not set back, by more
        than what its rows show, is assumed then.
        """
        latest = self.clock.micros() + 2 * self.clock.offset_max
        if self._goes_by_itself():
            given = (each.store.last_commit_time for each in self.partitions())
            latest = max(latest, max(given, default=0) + self.settings.clock_bound_ahead_ms * 1000)
        return latest

    def clock_changed(self) -> None:
        """Say what is wrong with the clock, or not any more, and do what has waited for it."""
        self.board.touched(None, at_once=True)
        for partition in self.partitions():
            partition.wake()

    def replica_failed(self, replica: Replica) -> None:
        """Have a replica opened again that cannot go on."""
        self._reopening.failed(replica)

    def ack(self, replica: Replica) -> None:
        """Ack to the leader what is durable."""
        self.links.ack(replica.partition_id)

    def promised_to(self, leader: NodeId) -> Promise:
        """Return what a node that leads was promised."""
        return self.links.promised_to(leader)

    def restream(self, replica: Replica) -> None:
        """Make the partition's stream fit its state."""
        self.links.restream(replica)

    def warn_clients(self, replica: Replica, candidate: NodeId) -> None:
        """Tell the clients that have used the replica to whom it is about to hand over."""
        if address := self.address(candidate):
            for channel in self._users_of(replica):
                channel.warn(LeaderMoving(address=address))

    def tell_clients(self, replica: Replica) -> None:
        """Tell the clients that have used the replica who leads the partition now."""
        record = replica.record
        news = LeaderMoved(
            partition=replica.partition_id,
            leader=record.leader,
            address=self.address(record.leader),
            leader_epoch=record.leader_epoch,
        )
        for number, channel in enumerate(self._users_of(replica)):
            channel.tell(news, here=number < TOLD_HERE_MAX)

    def _users_of(self, replica: Replica) -> list[DataChannel]:
        with self._lock:
            channels = list(self._data_channels)
        return [channel for channel in channels if channel.has_used(replica.partition_id)]

    def data_channels(self) -> int:
        """Return how many clients are connected."""
        with self._lock:
            return len(self._data_channels)

    # --- channels of others ----------------------------------------------------------------------

    def serve_data(self, channel: Channel, check: Callable[[Message], None], peer: Peer) -> None:
        """Serve a client's channel to its end; `check` refuses what the client may not ask for."""
        served = DataChannel(
            channel,
            self.find_for_client,
            lambda: self.zone.codec,
            self.foreground,
            self.memory.answers,
            check=check,
            peer=peer,
            held=self.memory.requests.connection(peer.name),
            tracer=self.tracer,
        )
        with self._lock:
            self._require_room()
            self._data_channels.add(served)
        self.unread.watch(channel, peer, lambda: served.outbox.inline)
        try:
            served.run()
        finally:
            self.unread.forget(channel)
            with self._lock:
                self._data_channels.discard(served)

    def serve_replication(self, channel: Channel, peer: Peer, require_node: RequireNode) -> None:
        """Serve a follower's node to the end of its channel (DCP-01).

        Raises ForbiddenError when `require_node` does: it is not the node that it says.
        """
        with self._lock:
            self._require_room()
        self.links.serve(channel, peer, require_node)

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
        self, replica: Replica, ticket: SnapshotTicket
    ) -> SnapshotSource | FileSnapshot:
        """Open a snapshot to be read; waits while too many are."""
        return self._slots.open(
            lambda: sum(each.store.outgoing.readers for each in self.partitions()),
            lambda: replica.store.outgoing.open(ticket),
        )
