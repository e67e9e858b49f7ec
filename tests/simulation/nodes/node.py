"""A simulated data node: real stores, journals, control and partitions on a disk that crashes.

`SimulatedNode` is `DataNode` without its threads: a step of the world runs the jobs that are due,
ticks the partitions and moves their streams. Its `Replicas` are the real ones; what is simulated is
below them (`disk`, `file_engine`) and around the node (`streams`, `pulled`).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from at_once import AtOnce
from rezone.controller.nodes.node_state import NodeState, with_answer
from rezone.controller.nodes.report_delta import has_changed
from rezone.datanode.clock.checked_clock import CheckedClock
from rezone.datanode.clock.clock_bound import ClockBound
from rezone.datanode.commit.lease import Promise
from rezone.datanode.disk.disk_speed import DiskSpeed
from rezone.datanode.disk.space import DiskSpace
from rezone.datanode.indexing.index_builds import IndexBuilds
from rezone.datanode.node.change_source import ChangeSource
from rezone.datanode.node.hearing import Hearing
from rezone.datanode.node.known_zone import KnownZone
from rezone.datanode.node.memory import NodeMemory, SnapshotSlots
from rezone.datanode.node.node import DataNode
from rezone.datanode.node.older_log_thread import OlderLogThread
from rezone.datanode.node.reopening import Reopening
from rezone.datanode.node.replicas import Replicas
from rezone.datanode.node.report import ReportBoard, replica_report
from rezone.datanode.node.reshard_pulls import ReshardPulls
from rezone.datanode.reading.closed_timestamp import ClosedAlone
from rezone.datanode.reading.read import readable
from rezone.datanode.replica.replica import Replica
from rezone.datanode.resharding.ingesting import Ingesting
from rezone.datanode.resharding.overwrites import Overwrites
from rezone.datanode.resharding.reshard_source import ReshardSource
from rezone.datanode.scheduling.foreground import Foreground
from rezone.datanode.scheduling.workers import Job
from rezone.datanode.service.control import Control
from rezone.datanode.settings import Clock, NodeSettings
from rezone.storage.budget import Budget
from rezone.storage.disk.sync_times import SyncTimes
from rezone.storage.engines.base import Engine
from rezone.storage.snapshot.snapshot import SnapshotLimits
from rezone.storage.store_config import StoreConfig
from rezone.wire.errors import NotReadyError, RezoneError
from rezone.wire.messages import (
    DigestReply,
    DigestRequest,
    Message,
    NodeId,
    NodeReport,
    PartitionId,
    ReportRequest,
)
from rezone.wire.transport.flight import NodeClient
from simulation.loop import Later
from simulation.nodes.disk import MachineDiedError, TrackedDisk
from simulation.nodes.file_engine import FileEngine
from simulation.nodes.peers import SimulatedPeers
from simulation.nodes.pulled import Pulls
from simulation.nodes.streams import Follower, SimulatedStream

if TYPE_CHECKING:
    from simulation.nodes.network import Network

# Threads import nothing here: what is pulled is moved step by step (`reshard_pulls`), or not at
# all.
SETTINGS = NodeSettings(replica_lag_ms_max=6_000, takeover_timeout_ms=2_000, reshard_threads=0)
ROW_BYTES = 1000
"""What the coordinator hears of a row's size."""

LOG_SEGMENT_BYTES = 1024
LOG_TAIL_BYTES = 2048
SLICE_BYTES = 512
"""So a copy comes in several batches, each durable by itself."""

FLUSH_CHANCE = 0.02
"""How often a store is flushed in a step, and how often an engine flushes at a write by itself."""

HOUSE_CHANCE = 0.05
BUILD_CHANCE = 0.15
BUILD_BYTES = 256
"""How much of an index is built in a step, and how often: replicas are at it for different times,
so that leaders have built what their candidates have not."""

JOB_ROUNDS_MAX = 50

_processes = itertools.count(1)


class NodeSyncTimes(SyncTimes):
    """The times of a node's syncs: stores take no time for them, a slow disk's are its jobs'."""

    def __init__(self, machine: TrackedDisk, clock: Clock) -> None:
        super().__init__(clock.monotonic)
        self._machine = machine

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """Note a sync of a disk that is well."""
        if self._machine.sync_seconds:
            yield
        else:
            with super().timed():
                yield


class SimulatedReplicas(Replicas):
    """The replicas of a simulated node: each has somebody who streams to it."""

    def __init__(self, node: SimulatedNode, directory: Path, config: StoreConfig) -> None:
        super().__init__(node, directory, config, node.memory)
        self._node = node

    def get(self, partition: PartitionId) -> Replica | None:
        """Return a replica, if it is open."""
        return self._open.get(partition)

    def _make(
        self,
        partition: PartitionId,
        *,
        learner: bool,
        durable_end: int | None = None,
        time_floor: int = 0,
    ) -> Replica:
        opened = super()._make(
            partition, learner=learner, durable_end=durable_end, time_floor=time_floor
        )
        if (before := self._node.followers.get(partition)) is not None:
            before.close()
        apply_late = functools.partial(self._apply_late, opened, opened.store.apply_to)
        opened.store.apply_to = apply_late  # type: ignore[method-assign]
        self._node.followers[partition] = Follower(self._node, opened)
        return opened

    def _apply_late(self, partition: Replica, apply: Callable[[int], int], offset: int) -> int:
        """Apply rows, as a partition's job does, when the disk and copies let it."""
        return apply(offset) if self._node.may_apply(partition) else partition.store.applied

    def drop(self, partition: Replica) -> None:
        """Stop a replica and delete its data."""
        follower = self._node.followers.pop(partition.partition_id, None)
        if follower is not None:
            follower.close()
        super().drop(partition)
        self._node.machine.spoiled.discard(partition.partition_id)
        self._node.network.dropped(self._node.node_id, partition)


class SimulatedNode(DataNode):
    """One life of a data node's process.

    `may_apply` is asked before rows are applied, and may let others go on meanwhile; only those of
    a follower may wait for another time.
    """

    def __init__(
        self,
        node_id: NodeId,
        machine: TrackedDisk,
        address: str,
        network: Network,
        *,
        clock: Clock,
        rng: random.Random,
        settings: NodeSettings | None = None,
        connect: Callable[[str], NodeClient] = NodeClient,
        may_apply: Callable[[Replica], bool] = lambda _: True,
    ) -> None:
        self.node_id = node_id
        self.machine = machine
        self._rng = rng
        self.may_apply = may_apply
        self.place = address
        self.network = network
        self.settings = settings or SETTINGS
        self.clock = CheckedClock(clock, self.settings.clock_offset_ms_max)
        self.clock.alone = self._goes_by_itself
        self.clock.shares_with = self._shares_with
        self.budget = Budget(self.settings.pending_bytes_node_max, "pending writes")
        self.waiting_reads = Budget(self.settings.reads_held_bytes_max, "waiting reads")
        self.clock_bound = ClockBound(self.clock, self.settings.clock_bound_ahead_ms)
        self.process_id = f"process-{next(_processes)}"
        self.leaving = False
        self._zone_deleted = False
        self._ack_again_at = math.inf
        self.space = DiskSpace(self.clock, machine.root, 0)
        self.memory = NodeMemory(self.settings)
        self.board = ReportBoard(self.clock, self.settings, self.process_id)
        self.pulls = Pulls(self)  # type: ignore[assignment]
        # Nobody waits for a place: nothing happens meanwhile.
        self._slots = SnapshotSlots(self.settings.snapshots_max, 0.0, threading.Event())
        self.overwrites = Overwrites(
            lambda: self.zone.state.config,
            self.clock,
            lambda: self.board.touched(None, at_once=True),
        )
        self.foreground = Foreground(self.clock, lambda: 0)
        self._builds = IndexBuilds(
            lambda: [each.index for each in self.partitions()],
            lambda: self.zone.table,
            self.foreground,
        )
        self.reshard_source = ReshardSource(
            self.find, self.foreground, self.clock, threading.Event()
        )
        self.ingesting = Ingesting(
            self.find, lambda partition: self.find(partition).reshard_streams, self.foreground
        )
        self.change_source = ChangeSource(self.find, self.foreground, self.clock, threading.Event())
        self.older_log = OlderLogThread(self, connect)
        self.control = Control(self)
        self.zone = KnownZone(node_id)
        self.reshard_pulls = ReshardPulls(self, connect)
        self.promises: dict[NodeId, Promise] = {}
        self._jobs: dict[Job, None] = {}
        self._syncing: dict[Job, tuple[float, int]] = {}
        self.sync_times = NodeSyncTimes(machine, clock)
        self.disk_speed = DiskSpeed(self.sync_times, self.settings)
        self.tracer = None
        self._reopening = Reopening(self)
        self._clock_bound_job = Job("clock bound", self.keep_bound)
        self.followers: dict[PartitionId, Follower] = {}
        self._polls: list[tuple[ReportRequest, Later]] = []
        # What a coordinator knows that has heard of a version, for `_report_checked`.
        self._heard: dict[int, NodeState] = {}
        self.closed_alone = ClosedAlone(self.partitions, self.settings.lease_ms)
        self.hearing = Hearing(
            SimulatedPeers(self), self.partitions, self.settings, self._hears_others
        )
        self._open_disk()
        self.clock.changed = self.clock_changed
        if self.zone.configured:
            self.replicas.open_found()

    def new_id(self) -> str:
        """Return a name that was not given before."""
        return self._rng.randbytes(8).hex()

    def _step_down_if_stalled(self) -> None:
        self._lock, self._data_channels = threading.Lock(), set()  # clients have no connections
        super()._step_down_if_stalled()

    def _open_disk(self) -> None:
        """Take over what is on the disk."""
        directory = self.machine.root
        self.zone.open(directory)
        self.open_bound(directory)
        self.replicas = SimulatedReplicas(self, directory / "partitions", self.store_config())

    def store_config(self) -> StoreConfig:
        """Return what the stores have in common."""
        return StoreConfig(
            log_segment_bytes=LOG_SEGMENT_BYTES,
            log_tail_bytes=LOG_TAIL_BYTES,
            snapshot=SnapshotLimits(slice_bytes=SLICE_BYTES),
            bulk_checkpoint_bytes=SLICE_BYTES,
            clock=self.clock.monotonic,
            new_id=self.new_id,
            beside=AtOnce,
            open_engine=self._open_engine,
        )

    def _open_engine(self, _kind: object, directory: Path, _rocks: object) -> Engine:
        return FileEngine(directory, self.new_id, lambda: self._rng.random() < FLUSH_CHANCE)

    def _new_addresses(self, peers: dict[NodeId, str]) -> None:
        """Need nothing: links are looked up at every step."""

    # --- what partitions need of their node ------------------------------------------------------

    def wake(self, job: Job) -> None:
        """Run a job in this step or the next."""
        self._jobs[job] = None

    def runs(self, job: Job) -> bool:
        """Whether a job runs in this step, or waits for a slow disk."""
        return job in self._jobs or job in self._syncing

    def ack(self, partition: Replica) -> None:
        """Ack to the leader."""
        follower = self.followers.get(partition.partition_id)
        if follower is not None:
            follower.ack()

    @property
    def is_watched(self) -> bool:
        """Whether there is a coordinator, as there always is."""
        return True

    def promised_to(self, leader: NodeId) -> Promise:
        """Return what a node that leads was promised."""
        return self.promises.get(leader, Promise())

    def restream(self, partition: Replica) -> None:
        """Need nothing: streams are made to fit at every step."""
        del partition

    def warn_clients(self, partition: Replica, candidate: NodeId) -> None:
        """Need nothing: clients have no connections."""
        del partition, candidate

    def tell_clients(self, partition: Replica) -> None:
        """Need nothing: clients hear of leaders by refusals."""
        del partition

    # --- the world's step ------------------------------------------------------------------------

    def step(self, now: float) -> None:
        """Do what the node's threads would, now and then what they do in the background."""
        self._end_syncs(now)
        for partition in self.partitions():
            size = partition.store.log_end
            partition.upkeep.sizes = (size, size * ROW_BYTES)
            if partition.due <= now:
                partition.tick(now)
        self.look_at_disk(now)
        self.clock.look(now)
        if self.clock.knows and self.clock_bound.is_due:
            self.wake(self._clock_bound_job)
        self._reopening.tick(now)
        self.pulls.step()  # type: ignore[attr-defined]
        for number in list(self.followers):
            follower = self.followers.get(number)
            if follower is not None:
                follower.step(now)
        self._run_jobs()
        self.hearing.tick(now)
        self.closed_alone.tick(now)
        self._work_beside()
        self.overwrites.tick()
        self.board.tick(now)
        self.flush()

    def stand_still(self, now: float) -> None:
        """Let a moment pass in which the process hangs."""
        for follower in self.followers.values():
            follower.stand_still(now)

    def _work_beside(self) -> None:
        self._builds.redefine()
        for partition in self.partitions():
            with contextlib.suppress(OSError):  # the node's threads say so and go on
                self._tidy_up(partition)

    def _tidy_up(self, partition: Replica) -> None:
        if self._rng.random() < FLUSH_CHANCE:
            partition.store.flush()
        if self._rng.random() < HOUSE_CHANCE:
            partition.upkeep.keep_house()
        if partition.index.unfinished and self._rng.random() < BUILD_CHANCE:
            partition.index.build(lambda most: min(most, BUILD_BYTES))

    def _run_jobs(self) -> None:
        for _ in range(JOB_ROUNDS_MAX):
            if not self._jobs:
                return
            jobs, self._jobs = self._jobs, {}
            for job in jobs:
                if not self._waits_for_disk(job):
                    job.run()

    def _waits_for_disk(self, job: Job) -> bool:
        """Whether a job's sync is under way, or begins now, on a disk that is slow."""
        if job in self._syncing:
            return True
        if not self.machine.sync_seconds or not self._would_sync(job):
            return False
        self._syncing[job] = (self.clock.monotonic(), self.sync_times.begin())
        return True

    def _would_sync(self, job: Job) -> bool:
        if job is self._reopening._job:
            return True
        replica = next((each for each in self.partitions() if each.job is job), None)
        if replica is None or replica.failure:
            return False
        return replica.store.durable_end < replica.store.log_end

    def _end_syncs(self, now: float) -> None:
        """Go on with jobs whose sync has come back; a replica is opened after its last one."""
        for job, (begun, number) in list(self._syncing.items()):
            opens = job is self._reopening._job and len(self._syncing) > 1
            if now - begun >= self.machine.sync_seconds and not opens:
                del self._syncing[job]
                self.sync_times.end(number)
                job.run()

    def stop(self) -> None:
        """End in order."""
        for partition in self.partitions():
            partition.close()
        self.zone.close()
        self.clock_bound.close(self.clock.highest)
        self.kill(machine_dies=False)

    def kill(self, *, machine_dies: bool) -> None:
        """End without any order; with the machine goes what was not synced."""
        for follower in self.followers.values():
            try:
                follower.close()
            except MachineDiedError as died:
                self.network.died(died)  # a leader's
        for partition in self.partitions():
            for stream in list(partition.leading.streams.values()):
                cast("SimulatedStream", stream).cut()
        self.followers.clear()
        self.pulls.end()  # type: ignore[attr-defined]
        self.replicas = SimulatedReplicas(self, self.machine.root, StoreConfig())
        if machine_dies:
            self.machine.crash()
        else:
            self.machine.kill()

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
            if later is overdue or self.board.has_changes(request):
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
        newest = request.as_of is None and partition.leads
        as_of = partition.positions.rows_time if request.as_of is None else request.as_of
        if (newest and not readable(partition, None)()) or not readable(partition, as_of)():
            partition.leading.ask_leases()
            raise NotReadyError("not to be read yet")
        reply = self.control.digest(msgspec.structs.replace(request, as_of=as_of))
        if request.partition in self.machine.spoiled:
            reply = msgspec.structs.replace(reply, digests=("wrong",) * len(reply.digests))
        return reply
