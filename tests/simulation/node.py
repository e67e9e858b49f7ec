"""A simulated data node: the real node's fencing, control and partitions on a disk in memory.

`SimulatedNode` is `DataNode` without its threads: a step of the world runs the jobs that are due,
ticks the partitions and moves their streams.
"""

from __future__ import annotations

import hashlib
import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rezone.controller.heard import Heard, with_answer
from rezone.controller.news import has_changed
from rezone.replica.budget import Budget
from rezone.replica.control import Control
from rezone.replica.foreground import Foreground
from rezone.replica.import_pulls import ImportPulls
from rezone.replica.import_source import ImportSource
from rezone.replica.index_builds import IndexBuilds
from rezone.replica.known_zone import KnownZone
from rezone.replica.lease import Promise
from rezone.replica.memory import NodeMemory
from rezone.replica.node import DataNode
from rezone.replica.partition import Partition
from rezone.replica.read import readable
from rezone.replica.replicas import Replicas
from rezone.replica.report import ReportBoard, replica_report
from rezone.replica.settings import NodeSettings
from rezone.replica.store_config import StoreConfig
from rezone.replica.told import ToldTimes
from rezone.replica.workers import Job
from rezone.wire.errors import ConflictError, NotReadyError, RezoneError
from rezone.wire.flight import NodeClient
from rezone.wire.messages import (
    CopyProgress,
    DigestReply,
    DigestRequest,
    Fence,
    Message,
    NodeId,
    NodeReport,
    PartitionId,
    PullSnapshot,
    ReportRequest,
    Role,
    ZoneConfig,
)
from simulation.loop import Later, VirtualLoop
from simulation.storage import MemoryStore, NodeDisk, Snapshot, Survives, memory_of, nothing
from simulation.streams import Follower, SimulatedStream

if TYPE_CHECKING:
    from simulation.network import Network

# Threads import nothing here: what is imported is moved step by step (`imports`), or not at all.
SETTINGS = NodeSettings(replica_lag_ms_max=2_000, takeover_timeout_ms=2_000, import_threads=0)
COPY_STEPS = 6
ROW_BYTES = 1000
JOB_ROUNDS_MAX = 50

_processes = itertools.count(1)


class Copy:
    """One attempt to bring a snapshot to a replica, whoever carries it: the node itself, Spark."""

    def __init__(self, target: SimulatedNode, partition: Partition, source: NodeId) -> None:
        self.target = target
        self.partition = partition
        self.source = source
        self.snapshot: Snapshot | None = None
        self.ended = False
        self.error = ""

    def step(self) -> None:
        """Carry a part; it goes on where an earlier attempt has ended (B-05)."""
        if self.ended:
            return
        try:
            self._carry()
        except RezoneError as error:
            self.fail(str(error))

    def fail(self, error: str) -> None:
        """End without the rest."""
        self.ended, self.error = True, error
        state = self.target.disk.copied.get(self.partition.partition_id, 0)
        self.partition.copy_progress = CopyProgress(bytes=state, error=error)
        self.partition.touched(at_once=True)

    def _carry(self) -> None:
        target, number = self.target, self.partition.partition_id
        if not target.network.linked(target.node_id, self.source):
            raise NotReadyError(f"no connection to node {self.source}")
        origin = target.network.node(self.source).find(number)
        if self.partition.closed or not self.partition.store.meta.needs_snapshot:
            raise ConflictError(f"partition {number} needs no copy", done=1)
        if self.partition.role is Role.LEADER or origin.store.meta.needs_snapshot:
            raise ConflictError(f"partition {number} cannot be copied")
        if self.snapshot is None:
            self.snapshot = memory_of(origin).snapshot()
        done = target.disk.copied.get(number, 0) + 1
        target.disk.copied[number] = done
        progress = CopyProgress(bytes=done, rows=done, done=done >= COPY_STEPS)
        self.partition.copy_progress = progress
        if done >= COPY_STEPS:
            self.ended = True
            del target.disk.copied[number]
            memory_of(self.partition).take(self.snapshot)
            self.partition.snapshot_done()
        self.partition.touched(at_once=progress.done)


class Pulls:
    """The copies a node makes for itself; a repeat joins the one under way."""

    def __init__(self, node: SimulatedNode) -> None:
        self._node = node
        self.running: dict[PartitionId, Copy] = {}

    def start(self, partition: Partition, request: PullSnapshot) -> None:
        """Start unless that is under way or done."""
        running = self.running.get(partition.partition_id)
        if running is not None and not running.ended:
            return
        if not partition.store.meta.needs_snapshot:
            return
        source = self._node.network.id_at(request.source)
        if source is None:
            raise NotReadyError(f"nobody is at {request.source}")
        self.running[partition.partition_id] = Copy(self._node, partition, source)

    def step(self) -> None:
        """Carry on."""
        for copy in self.running.values():
            copy.step()


class MemoryReplicas(Replicas):
    """The replicas of a node on a disk in memory, which loses no facts."""

    def __init__(self, node: SimulatedNode) -> None:
        super().__init__(node, Path(), StoreConfig(), node.memory)
        self._node = node

    def check(self, fence: Fence, config: ZoneConfig) -> None:
        """Need nothing: replicas and what the node knows are lost together."""

    def open_found(self) -> None:
        """Open what is on the disk."""
        for number in sorted(self._node.disk.stores):
            self._make(number, learner=False)

    def _make(self, partition: PartitionId, *, learner: bool) -> Partition:
        node = self._node
        store = node.disk.stores.get(partition)
        if store is None:
            store = node.disk.stores[partition] = MemoryStore(partition)
            store.update_meta(needs_snapshot=learner)
        opened = Partition(store, node)  # type: ignore[arg-type]
        self._open[partition] = opened
        node.followers[partition] = Follower(node, opened)
        node.board.touched(partition, at_once=True)
        return opened

    def drop(self, partition: Partition) -> None:
        """Stop a replica and delete its data."""
        node, number = self._node, partition.partition_id
        self._open.pop(number, None)
        partition.stop()
        follower = node.followers.pop(number, None)
        if follower is not None:
            follower.close()
        node.disk.stores.pop(number, None)
        node.disk.copied.pop(number, None)
        node.board.touched(number, at_once=True)
        node.network.dropped(node.node_id, partition)


class SimulatedNode(DataNode):
    """One life of a data node's process."""

    def __init__(
        self,
        node_id: NodeId,
        disk: NodeDisk,
        address: str,
        network: Network,
        loop: VirtualLoop,
        *,
        settings: NodeSettings | None = None,
        connect: Callable[[str], NodeClient] = NodeClient,
    ) -> None:
        self.node_id = node_id
        self.disk = disk
        self.place = address
        self.network = network
        self.settings = settings or SETTINGS
        self.clock = loop
        self.budget = Budget(self.settings.pending_bytes_node_max, "pending writes")
        self.waiting_reads = Budget(self.settings.reads_held_bytes_max, "waiting reads")
        self.told = ToldTimes(loop, self.settings.told_ahead_ms)
        self.process_id = f"process-{next(_processes)}"
        self.leaving = False
        self.memory = NodeMemory(self.settings)
        self.board = ReportBoard(loop, self.settings, self.process_id)
        self.pulls = Pulls(self)  # type: ignore[assignment]
        self.foreground = Foreground(loop, lambda: 0)
        self._builds = IndexBuilds(self.partitions, lambda: None, self.foreground)
        self.import_source = ImportSource(self.find, self.foreground, loop, threading.Event())
        self.control = Control(self)
        self.zone = KnownZone(node_id)
        self.imports = ImportPulls(self, connect)
        self.promises: dict[NodeId, Promise] = {}
        self._jobs: dict[Job, None] = {}
        self._told_job = Job("told times", self.told.keep_ahead)
        self.followers: dict[PartitionId, Follower] = {}
        self._polls: list[tuple[ReportRequest, Later]] = []
        # What a coordinator knows that has heard of a version, for `_report_checked`.
        self._heard: dict[int, Heard] = {}
        self._open_disk()
        if self.zone.configured:
            self.replicas.open_found()

    def _open_disk(self) -> None:
        """Take over what is on the disk."""
        self.told.take_over(self.disk.told)
        self.replicas = MemoryReplicas(self)
        self.zone.take_over(self.disk)

    def _new_addresses(self, peers: dict[NodeId, str]) -> None:
        """Need nothing: links are looked up at every step."""

    # --- what partitions need of their node ------------------------------------------------------

    def wake(self, job: Job) -> None:
        """Run a job in this step or the next."""
        self._jobs[job] = None

    def ack(self, partition: Partition) -> None:
        """Ack to the leader."""
        follower = self.followers.get(partition.partition_id)
        if follower is not None:
            follower.ack()

    def promised_to(self, leader: NodeId) -> Promise:
        """Return what a node that leads was promised."""
        return self.promises.get(leader, Promise())

    def restream(self, partition: Partition) -> None:
        """Need nothing: streams are made to fit at every step."""
        del partition

    def warn_clients(self, partition: Partition, candidate: NodeId) -> None:
        """Need nothing: clients have no connections."""
        del partition, candidate

    def tell_clients(self, partition: Partition) -> None:
        """Need nothing: clients hear of leaders by refusals."""
        del partition

    # --- the world's step ------------------------------------------------------------------------

    def step(self, now: float) -> None:
        """Do what the node's threads would."""
        for partition in self.partitions():
            size = partition.store.log_end
            partition.upkeep.sizes = (size, size * ROW_BYTES)
            if partition.due <= now:
                partition.tick(now)
        if self.told.is_due:
            self.wake(self._told_job)
        self.pulls.step()  # type: ignore[attr-defined]
        for number in list(self.followers):
            follower = self.followers.get(number)
            if follower is not None:
                follower.step(now)
        self._run_jobs()
        self.board.tick(now)
        self.flush()

    def _run_jobs(self) -> None:
        for _ in range(JOB_ROUNDS_MAX):
            if not self._jobs:
                return
            jobs, self._jobs = self._jobs, {}
            for job in jobs:
                job.run()

    def kill(self, survives: Survives = nothing) -> None:
        """End without any order: of what was not synced no more than `survives` is there again."""
        for follower in self.followers.values():
            follower.close()
        for partition in self.partitions():
            for stream in list(partition.leading.streams.values()):
                cast("SimulatedStream", stream).cut()
        self.followers.clear()
        self._lose(survives)

    def _lose(self, survives: Survives) -> None:
        """Lose what is in memory, and what was not synced but for what survives."""
        self.replicas = MemoryReplicas(self)
        self.disk.crash(survives)

    # --- calls -----------------------------------------------------------------------------------

    def answer(self, request: Message, later: Later) -> None:
        """Answer a call, a report perhaps later."""
        if isinstance(request, ReportRequest):
            self._polls.append((request, later))
            self.flush()
            return
        handle = self._digest if isinstance(request, DigestRequest) else self.control.handle
        try:
            reply: Any = handle(request)  # type: ignore[arg-type]
        except RezoneError as error:
            later.fail(error)
        else:
            later.answer(reply)
        self._run_jobs()
        self.flush()

    def flush(self, *, overdue: Later | None = None) -> None:
        """Answer the polls for which there is news, and the one whose time is over."""
        waiting, self._polls = self._polls, []
        for request, later in waiting:
            if later is overdue or self.board.has_news(request):
                later.answer(self._report_checked(request))
            else:
                self._polls.append((request, later))

    def _report_checked(self, request: ReportRequest) -> NodeReport:
        """Return the answer to a poll; on top of what the caller knows it must tell everything.

        But for what counts as progress from the next job or tick on.
        """
        answer = self.report(request)
        held = with_answer(self._heard.get(answer.since), answer)
        self._heard[answer.version] = held
        for partition in self.partitions():
            number = partition.partition_id
            if partition.job in self._jobs or number in self.board._progress:
                continue
            told, present = held.replicas[number], replica_report(partition)
            assert not has_changed(told, present), f"not told: {told} is {present} by now"
        assert len(held.replicas) == len(self.partitions()), "a replica came or went untold"
        return answer

    def _digest(self, request: DigestRequest) -> DigestReply:
        """Digest rows up to a time as the real call does; NotReadyError where that one waits."""
        partition = self.find(request.partition)
        store = memory_of(partition)
        leading = partition.leading.state
        if request.as_of is None and leading is not None and not readable(partition, None)():
            raise NotReadyError("not serving yet")
        as_of = request.as_of
        if as_of is None:
            as_of = partition.positions.rows_time
        if leading is None and as_of > partition.positions.readable_time:
            partition.following.apply_now()
            raise NotReadyError("not applied yet")
        rows = [r for r, time in zip(store.rows, store.times, strict=True) if time <= as_of]
        digest = hashlib.sha256(b"".join(rows)).hexdigest()
        return DigestReply(
            digests=(digest,), rows=(len(rows),), as_of=as_of, applied_offset=store.applied
        )
