"""One partition's replica on this node: its parts, its facts, and the job that moves it on.

The duties of each role stand in modules of their own (`leader`, `follower`, `takeover`, `write`),
the changes between roles in `roles`; here is what they share.

Concurrency: `lock` guards the role, positions and everything in the duties' objects. Whoever wants
something done wakes the partition's job; the job (`pump`) is the only one that syncs and applies,
and holds `applying` meanwhile. Lock order: `applying`, `lock`, a channel's lock; `host.restream`
is called without any. `changed` is notified after each run of the job and each change of role.
What time alone can make due is looked after by `tick`, from `due` on (`look_again`).
"""

import threading
import time
from collections.abc import Callable

import structlog

from rezone.datanode.clock.write_clock import WriteClock
from rezone.datanode.commit.fencing import Fencing
from rezone.datanode.commit.insync import Reply
from rezone.datanode.commit.positions import Positions
from rezone.datanode.indexing.indexing import IndexDuties
from rezone.datanode.ownership.sealing import Sealing
from rezone.datanode.ownership.serving import Serving
from rezone.datanode.reading.closing import Closing
from rezone.datanode.reading.read import ReadQueue
from rezone.datanode.replica.failing import Failing
from rezone.datanode.replica.host import Host
from rezone.datanode.replica.upkeep import Upkeep
from rezone.datanode.replication.damage import Damage
from rezone.datanode.replication.follower import FollowerDuties
from rezone.datanode.replication.leader import LeaderDuties
from rezone.datanode.replication.roles import Roles
from rezone.datanode.replication.takeover import TakeoverProcess
from rezone.datanode.resharding.importers import Importers
from rezone.datanode.resharding.importing import FILL_WEIGHT, FillWork, ImportDuties
from rezone.datanode.scheduling import lent_threads
from rezone.datanode.scheduling.admission import Admission
from rezone.datanode.scheduling.workers import Job
from rezone.datanode.writing.pacing import WritePacer
from rezone.datanode.writing.producing import PreparedOpen, Producing
from rezone.datanode.writing.transacting import Transacting
from rezone.datanode.writing.write import Change, PreparedRows, WriteIntake
from rezone.domain.routing.routes import hot_standbys
from rezone.storage.store import PartitionStore
from rezone.wire import layouts
from rezone.wire.errors import (
    ConflictError,
    CorruptionError,
    NotLeaderError,
    NotReadyError,
    ReshardedError,
    RezoneError,
)
from rezone.wire.layouts import HashRange
from rezone.wire.messages import (
    NOBODY,
    CopyProgress,
    LeaderAndIsr,
    NodeId,
    PartitionId,
    Role,
    StopReplica,
    TransactionEnd,
    ZoneConfig,
)

_log = structlog.get_logger(__name__)


class Replica:
    """A replica, put together from its parts; `roles` has what the coordinator calls."""

    def __init__(self, store: PartitionStore, host: Host) -> None:
        self.partition_id: PartitionId = store.meta.partition
        self.store = store
        self.host = host
        self.settings = host.settings
        self.clock = host.clock
        self.node_id = host.node_id
        self.log = _log.bind(node=host.node_id, partition=self.partition_id)
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.applying = threading.Lock()
        self.linking = threading.Lock()
        self.copies = 0
        self.due = float("-inf")
        self.job = Job(f"partition {self.partition_id}", self.pump)
        self.closed = False
        self.retired = False
        self.failing = Failing(self)
        self.copy_progress: CopyProgress | None = None
        self.admission = Admission(self.partition_id, host.clock.monotonic)
        self.write_clock = WriteClock(host.told.before, store.meta.time_floor)
        self.closing = Closing(self)
        self.positions = Positions(store, self.changed, self.closing.time_at)
        self.fencing = Fencing(store)
        self.roles = Roles(self)
        self.leading = LeaderDuties(self)
        self.following = FollowerDuties(self)
        self.intake = WriteIntake(self, host.budget)
        self.transacting = Transacting(self)
        self.producing = Producing(self)
        self.pacer = WritePacer(self, host.budget)
        self.reads = ReadQueue(self, host.waiting_reads)
        self.index = IndexDuties(self)
        self.takeover = TakeoverProcess(self)
        self.sealing = Sealing(self)
        self.serving = Serving(self)
        self.damage = Damage(self)
        self.importing = ImportDuties(self)
        self._fill_work = FillWork(store)
        self.importers = Importers(self.clock.monotonic, self.settings.copy_handover_ms / 1000)
        self.upkeep = Upkeep(self)
        self._ranged: tuple[ZoneConfig, HashRange] | None = None
        self.roles.resume()

    # --- facts -----------------------------------------------------------------------------------

    @property
    def config(self) -> ZoneConfig:
        """The zone's configuration."""
        return self.host.config

    @property
    def role(self) -> Role:
        """The role this replica has."""
        return self.roles.role

    @property
    def record(self) -> LeaderAndIsr:
        """Who leads, and who is in sync, by the newest record known."""
        return self.roles.record

    @property
    def failure(self) -> str:
        """Why this replica cannot go on until it is opened anew; empty when it can."""
        return self.failing.why

    @property
    def leads(self) -> bool:
        """Whether this replica leads, dead in a takeover included."""
        return self.leading.state is not None

    @property
    def leader_epoch(self) -> int:
        """The highest leader epoch seen."""
        return self.store.meta.leader_epoch

    @property
    def is_needed(self) -> bool:
        """Whether this node would be missed if it stopped now, and perhaps not if it waits.

        Writes would wait for it: a leader can hand over to whoever else is in sync, a member of the
        in-sync set leaves that if enough others stay. Where too few are in sync there may be
        replicas that soon will be. To a sealed partition nobody writes.
        """
        isr = {*self.record.isr}
        others = isr.union(self.record.replicas) - {self.node_id}
        if self.sealing.done:
            return self.holds_alone
        if self.leads:
            return bool(others)
        spared = len(isr) <= self.config.min_in_sync_replicas and others <= isr
        return self.node_id in isr and not spared

    @property
    def holds_alone(self) -> bool:
        """Whether this node alone is in sync, and there are replicas that could be.

        What was acknowledged would go with its disk. A sealed partition's rows may be wanted yet:
        its heirs read them.
        """
        return self.record.isr == (self.node_id,) != self.record.replicas

    @property
    def hash_range(self) -> HashRange:
        """The range of key hashes that are this partition's; ReshardedError when it is over."""
        config = self.config
        if self._ranged is None or self._ranged[0] is not config:
            try:
                self._ranged = config, layouts.range_in(config, self.partition_id)
            except ValueError as error:
                raise self.resharded() from error
        return self._ranged[1]

    @property
    def is_standby(self) -> bool:
        """Whether this replica is to be a hot standby."""
        return self.node_id in hot_standbys(self.record)

    @property
    def streams_from(self) -> NodeId | None:
        """The node to stream from; None for a leader, and before a snapshot has been copied."""
        record = self.record
        member = self.node_id in record.replicas or self.node_id in record.isr
        if self.role is Role.LEADER or self.closed or not member or self.store.meta.needs_snapshot:
            return None
        if self.failure:
            return None
        return record.leader if record.leader not in {NOBODY, self.node_id} else None

    def not_leader(self) -> NotLeaderError:
        """Return the error that sends a client to the leader (RM-10)."""
        leader, where = self.record.leader, f"partition {self.partition_id}"
        text = f"node {leader} leads {where}, not node {self.node_id}"
        if leader == NOBODY:
            text = f"node {self.node_id} does not lead {where} and has not been told who does"
        return NotLeaderError(
            text,
            leader=leader,
            address=self.host.address(leader),
            epoch=self.record.leader_epoch,
        )

    def resharded(self) -> ReshardedError:
        """Return the error that sends a client to the partitions of the next layout."""
        return layouts.resharded(self.config, self.partition_id)

    def not_leader_or_not_ready(self) -> RezoneError:
        """Return why a write cannot be taken now."""
        if self.role is Role.LEADER or self.record.leader == self.node_id:
            return NotReadyError(f"partition {self.partition_id} does not serve yet; retry")
        return self.not_leader()

    def touched(self, *, at_once: bool) -> None:
        """Note that the report has changed."""
        self.host.touched(self.partition_id, at_once=at_once)

    def wake(self) -> None:
        """Have the partition's job run."""
        self.host.wake(self.job)

    # --- changes ---------------------------------------------------------------------------------

    def show_copy(self, progress: CopyProgress) -> None:
        """Report how far a copy to this replica is, or why it has failed."""
        self.copy_progress = progress
        self.touched(at_once=progress.done or progress.failure is not None)

    def snapshot_done(self) -> None:
        """Follow the log from where the copy ends."""
        copy = self.store.meta.copy
        with self.lock:
            self.copies += 1
            self.positions.begin_after_copy(settled=copy is not None and copy.settled)
        self.touched(at_once=True)
        self.host.restream(self)
        self.wake()

    def append(self, raw: bytes, *, tell: bool = True) -> int:
        """Append entries; return the log's end. Under the lock.

        The streams are told, unless the caller says that it will do that (`tell`).
        """
        if self.failure:
            raise NotReadyError(f"the replica has failed: {self.failure}")
        try:
            end_offset = self.store.append(raw)
        except OSError as error:
            self.failing.failed(error)
            raise NotReadyError(f"the log cannot be written: {error}") from error
        self.positions.appended(raw)
        if tell:
            for stream in self.leading.streams.values():
                stream.wake()
        return end_offset

    # --- clients ---------------------------------------------------------------------------------

    def write(
        self,
        request: Change,
        prepared: PreparedRows,
        reply: Reply,
        *,
        at_leisure: bool = False,
    ) -> None:
        """Take a write; `reply` is called once, later or at once, unless this raises."""
        with self.lock:
            if self.closed:
                raise NotReadyError(f"partition {self.partition_id} is closing")
            self.host.space.require()
            if self.pacer.holds_back(request, prepared, reply):
                return
            self.write_now(request, prepared, reply, tell=not at_leisure)
            streams = list(self.leading.streams.values()) if at_leisure else []
        for stream in streams:
            stream.push()
        self.move_on(at_leisure=at_leisure)

    def require_may_lead(self) -> None:
        """Refuse a write before anything is made of it, where that would be for nothing.

        NotLeaderError when another replica leads and this one is not about to: a client that has
        not heard of a takeover hears of it at once.
        """
        with self.lock:
            if not self.leads and not self.takeover.eager:
                raise self.not_leader()

    def write_now(
        self, request: Change, prepared: PreparedRows, reply: Reply, *, tell: bool = True
    ) -> None:
        """Append a write, or hold it while it has to wait; under the lock; `tell` the streams."""
        if self.must_wait(request, prepared):
            self.intake.hold(request, prepared, reply)
        else:
            self.intake.append(request, prepared, reply, tell=tell)

    def must_wait(self, request: Change, prepared: PreparedRows) -> bool:
        """Whether it will soon be known who takes a write, which is not yet; under the lock.

        Nobody leads, or the leader's node does not know the time, or it is not certain that this
        leader's seal stays, or the rows' part of the range is being taken over: who sends them here
        knows that their source is sealed.
        """
        if self.takeover.blocks_writes or self.takeover.eager:
            return True
        if not self.leads:
            return False
        if not self.clock.gives:
            return True
        begun_in = request.begun_in if isinstance(request, TransactionEnd) else None
        if begun_in is not None and not self.serving.has_source(begun_in):
            return True
        if isinstance(prepared, PreparedOpen):
            home = HashRange(prepared.home, prepared.home + 1)
            return self.sealing.under_way or not self.serving.hashes(home)()
        return self.sealing.under_way or not self.serving.has_rows(prepared.rows.column(0))

    # --- the job ---------------------------------------------------------------------------------

    def move_on(self, *, at_leisure: bool) -> None:
        """Have the job run: by the calling thread, if that has time for it and it is short."""
        store = self.store
        short = store.log_end - store.applied <= self.settings.leisure_rows_max
        if at_leisure and short and not self.applying.locked():
            self.host.run_here(self.job)
        else:
            self.wake()

    def pump(self) -> None:
        """Sync, apply, commit, answer, ack: whatever is due."""
        self.damage.step()
        if self.store.filling:
            begun = time.thread_time()
            self._move_on()
            worked = (time.thread_time() - begun) * self._fill_work.share()
            self.host.foreground.owe(worked * FILL_WEIGHT)
        else:
            self._move_on()
        self.reads.step()
        self.touched(at_once=False)

    def _move_on(self) -> None:
        if self.failure:
            self.failing.leave()
        with self.applying:
            if not self._goes_on():
                return
            damaged = self._try(self._pump_role)
        lent_threads.send_now()
        with self.applying:
            if self._goes_on() and damaged is None:
                damaged = self._try(self.index.pump)
        if damaged is not None:
            self.damage.found(damaged, at_once=True)
            if self.leading.state is not None:
                self.failing.failed(damaged)  # alone in its set: nobody else has the rows
        with self.lock:
            handing_over = self.takeover.step()
            self.pacer.release()
            self.intake.release()
            self.changed.notify_all()
        if handing_over is not None:
            handing_over.push()

    def _goes_on(self) -> bool:
        return not (self.closed or self.failure or self.damage.given_up)

    def _pump_role(self) -> None:
        if self.leading.state is not None:
            self.leading.pump()
        else:
            self.following.pump()

    def _try(self, duty: Callable[[], None]) -> CorruptionError | None:
        """Do what is due; a replica that cannot has failed, but of damage the caller is told."""
        try:
            duty()
        except CorruptionError as error:
            return error
        except (OSError, RezoneError, AssertionError) as error:
            self.failing.failed(error)
        return None

    def look_again(self, at: float) -> None:
        """Have `tick` called at a time of the node's clock, or before; under the lock."""
        self.due = min(self.due, at)

    @property
    def responds(self) -> bool:
        """Whether the lock is free just now: who holds it may wait for a disk that stalls."""
        free = self.lock.acquire(blocking=False)
        if free:
            self.lock.release()
        return free

    def tick(self, now: float) -> None:
        """Look after what no event wakes; each duty says when to look again.

        Not while another thread has the lock: the thread that ticks is that of all replicas.
        """
        if not self.lock.acquire(blocking=False):
            return
        try:
            self.due = float("inf")
            if not self.closed:
                self._tick_duties(now)
        except (OSError, RezoneError, AssertionError) as error:
            self.failing.failed(error)
        finally:
            self.lock.release()

    def _tick_duties(self, now: float) -> None:
        if self.leading.state is not None:
            self.leading.tick(now)
        else:
            self.following.tick(now)
        self.takeover.tick(now)
        self.pacer.release()
        self.reads.tick(now)
        self.index.tick(now)

    # --- the end ---------------------------------------------------------------------------------

    def retire(self, request: StopReplica) -> None:
        """Stop because the coordinator has assigned the partition to others (ZR-11).

        StaleEpochError when a record of a later epoch is known: that may be the one by which the
        replica is here again, and it is on the disk, as every record is before anything follows
        from it. ConflictError while it leads: it must hand over first.
        """
        with self.lock:
            self.fencing.check(request.fence)
            self.fencing.check_record(request.leader_epoch, request.partition_epoch)
            if self.leads and request.leader_epoch == self.leader_epoch:
                raise ConflictError(
                    f"node {self.node_id} leads partition {self.partition_id}; hand it over, "
                    "or stop it with a higher leader epoch",
                )
            # In one hold of the lock: no later record may be taken in between, and then deleted.
            self._end()
            self.retired = True
        self.reads.step()

    def stop(self) -> None:
        """Answer what waits; nothing is taken any more."""
        with self.lock:
            self._end()
        self.reads.step()

    def _end(self) -> None:
        if self.closed:
            return
        self.closed = True
        self.leading.end_streams("the replica is stopping", None, None)
        self.intake.fail_all(self.not_leader_or_not_ready())
        self.pacer.fail_all(self.not_leader_or_not_ready())
        self.changed.notify_all()

    def close(self) -> None:
        """Stop, and close the store; what was appended is durable afterwards."""
        self.stop()
        with self.applying:
            try:
                self.store.close()
            except (RezoneError, OSError) as error:
                # Damage or a full disk: the next start finds what there is.
                self.log.warning("cannot close in order", error=str(error))
