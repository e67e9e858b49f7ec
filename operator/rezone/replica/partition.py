"""One partition's replica on this node: its role, its fencing, and the job that moves it on.

The duties of each role stand in modules of their own (`leader`, `follower`, `takeover`, `write`);
here is what they share and the changes between them. What a change of role depends on is on the
disk before it takes effect: epochs and the record (ZR-17), a leadership's new branch of history,
and "dead" (DCP-10), which is stored as the role Follower beside a record that names this node.

Concurrency: `lock` guards roles, positions and everything in the duties' objects. Whoever wants
something done wakes the partition's job; the job (`pump`) is the only one that syncs and applies,
and holds `applying` meanwhile. Lock order: `applying`, `lock`, a channel's lock; `host.restream`
is called without any. `changed` is notified after each run of the job and each change of role.
What time alone can make due is looked after by `tick`, from `due` on (`look_again`).
"""

import threading
from collections import deque
from typing import Any

import msgspec
import structlog

from rezone.domain.routes import hot_standbys
from rezone.replica.closing import Closing
from rezone.replica.collector import Collector
from rezone.replica.damage import Damage
from rezone.replica.follower import FollowerDuties, stamps_of
from rezone.replica.history import with_new_branch
from rezone.replica.host import Host
from rezone.replica.indexing import IndexDuties
from rezone.replica.insync import Reply
from rezone.replica.leader import LeaderDuties
from rezone.replica.lease import NEVER, Promises
from rezone.replica.pacing import WritePacer
from rezone.replica.read import ReadQueue
from rezone.replica.scrub import Scrubber
from rezone.replica.store import PartitionStore, ResetNeededError
from rezone.replica.takeover import TakeoverProcess
from rezone.replica.transacting import Transacting
from rezone.replica.workers import Job
from rezone.replica.write import Change, PreparedRows, WriteIntake
from rezone.wire import keyspace
from rezone.wire.errors import (
    ConflictError,
    CorruptionError,
    NotLeaderError,
    NotReadyError,
    RezoneError,
    StaleEpochError,
    StaleRevisionError,
)
from rezone.wire.messages import (
    CopyProgress,
    Fence,
    LeaderAndIsr,
    NodeId,
    PartitionId,
    Role,
    StopReplica,
    StreamEnd,
    UpgradeCandidate,
    ZoneConfig,
)

_log = structlog.get_logger(__name__)

_COLLECT_PAUSE_SHARE = 0.1
"""The pause between two collections, as a share of the retention that garbage outlives anyway."""


class Partition:
    """A replica. Control calls are idempotent; each persists before it acts (ZR-13)."""

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
        self.promises = Promises(self.clock.monotonic(), store.meta.lease_ms)
        self.copies = 0
        self.sizes = (0, 0)
        self.due = float("-inf")
        self.collector = Collector(
            store,
            pause_seconds=max(
                self.settings.trim_interval_ms / 1000,
                host.config.version_retention_seconds * _COLLECT_PAUSE_SHARE,
            ),
            clock=host.clock.monotonic,
        )
        self.scrubber = Scrubber(
            store,
            self.partition_id,
            interval_seconds=self.settings.scrub_seconds,
            clock=host.clock.monotonic,
        )
        self.job = Job(f"partition {self.partition_id}", self.pump)
        self.closed = False
        self.failure = ""
        self.copy_progress: CopyProgress | None = None
        self.role = Role.LEARNER
        self.record = store.meta.leader_and_isr or LeaderAndIsr(
            leader=-1, leader_epoch=0, isr=(), coordinator_epoch=0
        )
        self.committed = min(store.meta.committed_offset, store.log_end)
        known = store.applied <= self.committed and not store.meta.needs_snapshot
        self.readable_time = self.rows_time = store.applied_time if known else 0
        self.closing = Closing(self)
        self._stamps: deque[tuple[int, int]] = deque()
        if store.log_end:
            self._stamps.append((store.log_end, store.last_commit_time))
        self.leading = LeaderDuties(self)
        self.following = FollowerDuties(self)
        self.intake = WriteIntake(self, host.budget)
        self.transacting = Transacting(self)
        self.pacer = WritePacer(self, host.budget)
        self.reads = ReadQueue(self)
        self.index = IndexDuties(self)
        self.takeover = TakeoverProcess(self)
        self.damage = Damage(self)
        self._resume()

    # --- facts -----------------------------------------------------------------------------------

    @property
    def config(self) -> ZoneConfig:
        """The zone's configuration."""
        return self.host.config

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
        """Whether writes would wait if this node stopped now, and need not if it waits a little.

        A leader can hand over to whoever else is in sync. A follower is waited for while it is in
        the in-sync set, and leaves that if enough others stay.
        """
        isr = self.record.isr
        if self.leads:
            return len({*isr} - {self.node_id}) > 0
        return self.node_id in isr and len(isr) > self.config.min_in_sync_replicas

    @property
    def hash_range(self) -> tuple[int, int]:
        """The half-open range of key hashes that are this partition's."""
        return keyspace.range_of(self.partition_id, self.config.partitions)

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
        return record.leader if record.leader not in {-1, self.node_id} else None

    def not_leader(self) -> NotLeaderError:
        """Return the error that sends a client to the leader (RM-10)."""
        leader = self.record.leader
        return NotLeaderError(
            f"node {leader} leads partition {self.partition_id}, not node {self.node_id}",
            leader=leader,
            address=self.host.address(leader),
            epoch=self.record.leader_epoch,
        )

    def not_leader_or_not_ready(self) -> RezoneError:
        """Return why a write cannot be taken now."""
        if self.role is Role.LEADER or self.record.leader == self.node_id:
            return NotReadyError(f"partition {self.partition_id} does not serve yet; retry")
        return self.not_leader()

    def touched(self, *, at_once: bool) -> None:
        """Note that the report has changed."""
        self.host.touched(at_once=at_once)

    def wake(self) -> None:
        """Have the partition's job run."""
        self.host.wake(self.job)

    # --- control ---------------------------------------------------------------------------------

    def check_fence(self, fence: Fence) -> dict[str, Any]:
        """Refuse a call of an older coordinator or trigger; return what to persist of the fence."""
        meta = self.store.meta
        if fence.coordinator_epoch < meta.coordinator_epoch:
            raise StaleEpochError(
                f"coordinator epoch {fence.coordinator_epoch} is behind {meta.coordinator_epoch}",
                coordinator_epoch=meta.coordinator_epoch,
            )
        # Revision 0 is of a call without a trigger, such as an answer to AdjustIsr.
        if fence.revision:
            self.check_revision(fence.revision)
        return {
            "coordinator_epoch": fence.coordinator_epoch,
            "revision": max(fence.revision, meta.revision),
        }

    def check_revision(self, revision: int) -> None:
        """Refuse what an older trigger than the newest one seen asks for (ZR-17)."""
        known = self.store.meta.revision
        if revision < known:
            raise StaleRevisionError(f"revision {revision} is behind {known}", revision=known)

    def _require_newest(self, leader_epoch: int, partition_epoch: int) -> None:
        """Refuse what is of an older record than the newest one known."""
        known = (self.leader_epoch, self.record.partition_epoch)
        if (leader_epoch, partition_epoch) < known:
            raise StaleEpochError(
                f"epochs {leader_epoch}/{partition_epoch} of partition {self.partition_id} are "
                f"behind {known[0]}/{known[1]}",
                leader_epoch=known[0],
                partition_epoch=known[1],
            )

    def persist_fence(self, fence: Fence, *, durable: bool = True) -> None:
        """Check a call's fence and remember it; without `durable` only until a restart."""
        self.store.update_meta(**self.check_fence(fence), durable=durable)

    def notify(self, fence: Fence, record: LeaderAndIsr) -> None:
        """Take the coordinator's record (HS-02).

        StaleEpochError or StaleRevisionError when it is older than what is known; a repeat is
        taken as done. A record that makes this node lead must find its rows here.
        """
        with self.lock:
            if self.closed:
                raise NotReadyError(f"the replica of partition {self.partition_id} is stopping")
            persisted = self.check_fence(fence)
            self._require_newest(record.leader_epoch, record.partition_epoch)
            if record.leader != self.node_id:
                self._follow(record, persisted)
            elif self.leading.state is None or record.leader_epoch > self.leader_epoch:
                self.become_leader(record, persisted=persisted)
            else:
                self._confirm(record, persisted)
            self.changed.notify_all()
        self.touched(at_once=True)
        self.host.restream(self)
        self.wake()

    def _confirm(self, record: LeaderAndIsr, persisted: dict[str, Any]) -> None:
        handing_over = self.takeover.blocks_writes or (
            self.takeover.hands_over and record.next_leader is not None
        )
        self._save(record, Role.FOLLOWER if handing_over else Role.LEADER, persisted)
        self.leading.require_state().confirm(record)
        if record.next_leader is None and not self.takeover.blocks_writes:
            self.takeover.clear()

    def _follow(self, record: LeaderAndIsr, persisted: dict[str, Any]) -> None:
        newer = record.leader_epoch > self.leader_epoch
        later = record.partition_epoch > self.record.partition_epoch
        self.following.left_out = False
        # A candidate goes on being one while its leader only changes the in-sync set.
        if newer or self.role is Role.LEADER or (later and not self.takeover.eager):
            self.takeover.clear()
        self.become_follower(record, persisted)

    def become_leader(
        self,
        record: LeaderAndIsr,
        *,
        hold_until: float | None = None,
        dead: bool = False,
        persisted: dict[str, Any] | None = None,
    ) -> None:
        """Lead with the record's epoch: a new branch of history begins at the log's end.

        Nothing is committed before `hold_until` (monotonic), by default before this replica's
        promises to earlier leaders are over. `dead`: only to hand over, as before a restart.
        ConflictError when the rows are not all here.
        """
        if self.store.meta.needs_snapshot:
            raise ConflictError(f"partition {self.partition_id} is not copied to this node yet")
        branches = with_new_branch(self.store.meta.failover_log, self.store.log_end)
        changes: dict[str, Any] = {
            "failover_log": branches,
            "partition_uuid": branches[-1].partition_uuid,
        }
        if hold_until is not None and hold_until <= self.clock.monotonic():
            changes["settled_epoch"] = record.leader_epoch
        self.takeover.clear()
        role = Role.FOLLOWER if dead else Role.LEADER
        self._save(record, role, {**(persisted or {}), **changes})
        self.role = Role.LEADER
        # Looked at only now that every lease is refused for the epoch before.
        hold_until = self.promises.until if hold_until is None else hold_until
        self.leading.begin(record, hold_until=hold_until)
        if dead:
            self.takeover.restore_dead()
            return
        self.log.info("leading", leader_epoch=record.leader_epoch, log_end=self.store.log_end)
        self.intake.release()
        self.touched(at_once=True)
        self.changed.notify_all()
        self.wake()

    def become_follower(
        self,
        record: LeaderAndIsr,
        persisted: dict[str, Any] | None = None,
        *,
        durable: bool = True,
    ) -> None:
        """Follow the record's leader; unanswered writes are sent there.

        Without `durable` the record is on the disk before the first ack to that leader: until
        then a crash makes it as if the news had not come.
        """
        role = Role.FOLLOWER if self.node_id in record.isr else Role.LEARNER
        if self.damage.reason:
            # It has led on with what it could read; now others have all of it.
            persisted = {**(persisted or {}), "needs_snapshot": True}
            self.readable_time = self.rows_time = 0
        if self.store.meta.needs_snapshot or self.damage.reason:
            role = Role.LEARNER
        self._save(record, role, persisted or {}, durable=durable)
        if self.leading.state is not None:
            self.log.info("following", leader=record.leader, leader_epoch=record.leader_epoch)
            self.leading.end(record.leader, record.leader_epoch)
            self.intake.fail_all(self.not_leader())
        self.touched(at_once=True)
        self.changed.notify_all()

    def _save(
        self,
        record: LeaderAndIsr,
        role: Role,
        changes: dict[str, Any],
        *,
        durable: bool = True,
    ) -> None:
        assert record.leader_epoch >= self.leader_epoch, "a leader epoch never falls"  # noqa: S101 - invariant
        known = (self.record.leader_epoch, self.record.partition_epoch)
        if (record.leader_epoch, record.partition_epoch) > known:
            # Every proposal was of the record before: it is answered, or refused as too old.
            changes = {**changes, "proposed": ()}
        self.store.update_meta(
            **changes,
            role=role,
            leader_epoch=record.leader_epoch,
            partition_epoch=record.partition_epoch,
            leader_and_isr=record,
            durable=durable,
        )
        if record.leader_epoch != self.record.leader_epoch:
            self.closing.forget()
        left, self.record = self.record.leader, record
        promise = self.host.promised_to(left)
        self.promises.made(promise)
        self.intake.time_floor = max(self.intake.time_floor, promise.time)
        leads = self.takeover.blocks_writes or self.takeover.hands_over
        self.role = Role.LEADER if leads else role

    def _resume(self) -> None:
        """Go on with what was known before a restart (B-09)."""
        meta = self.store.meta
        if meta.leader_and_isr is None:
            return
        self.role = Role.LEARNER if meta.needs_snapshot else meta.role or Role.LEARNER
        if self.record.leader != self.node_id or meta.needs_snapshot:
            return
        # A new branch: what had been streamed and was lost with this node is nobody's history.
        with self.lock:
            dead = self.role is not Role.LEADER
            settled = meta.settled_epoch == self.leader_epoch
            self.become_leader(self.record, hold_until=NEVER if settled else None, dead=dead)

    def mark_dead(self, *, dead: bool, durable: bool) -> None:
        """Note whether this leader may lead on after a restart, or only hand over."""
        self.store.update_meta(role=Role.FOLLOWER if dead else Role.LEADER, durable=durable)

    def redirected(self, message: StreamEnd) -> None:
        """Follow the leader an old leader has named in its StreamEnd."""
        with self.lock:
            epoch = message.leader_epoch or 0
            if message.leader is None or epoch <= self.leader_epoch or self.role is Role.LEADER:
                return
            if message.leader == self.node_id:
                return
            record = msgspec.structs.replace(
                self.record,
                leader=message.leader,
                leader_epoch=epoch,
                next_leader=None,
                next_epoch=None,
            )
            # In the middle of the write gap: the disk comes in with the new leader's answer.
            self.become_follower(record, durable=False)
        self.host.restream(self)

    def upgrade(self, request: UpgradeCandidate) -> None:
        """Lead with the next epoch if the log reaches `last_offset` (RM-05); done already is done.

        NotReadyError when rows or index entries are missing; ConflictError when this replica may
        not lead.
        """
        with self.lock:
            persisted = self.check_fence(request.fence)
            if self.role is Role.LEADER and self.leader_epoch == request.next_epoch:
                return
            if self.leader_epoch >= request.next_epoch:
                raise StaleEpochError(
                    f"the leader epoch is {self.leader_epoch}", leader_epoch=self.leader_epoch
                )
            log_end = self.store.log_end
            if request.last_offset is not None and log_end < request.last_offset:
                raise NotReadyError(
                    f"the log ends at {log_end}, before {request.last_offset}", log_end=log_end
                )
            if self.node_id not in self.record.isr:
                raise ConflictError(f"node {self.node_id} is not in sync")
            if lacks := self.index.lacks(request.index):
                raise NotReadyError(lacks)
            record = msgspec.structs.replace(
                self.record,
                leader=self.node_id,
                leader_epoch=request.next_epoch,
                next_leader=None,
                next_epoch=None,
            )
            self.become_leader(record, persisted=persisted)
        self.host.restream(self)

    def begin_empty(self, fence: Fence, record: LeaderAndIsr) -> None:
        """Lead without rows, which a person has given up; leading by that record is done.

        StaleEpochError when the record is older than what is known, ConflictError when it names
        another leader, or there are rows here.
        """
        with self.applying, self.lock:
            persisted = self.check_fence(fence)
            self._require_newest(record.leader_epoch, record.partition_epoch)
            if record.leader != self.node_id:
                raise ConflictError(f"node {record.leader} leads, not node {self.node_id}")
            if self.leads and self.leader_epoch == record.leader_epoch:
                return
            if not self.store.meta.needs_snapshot:
                raise ConflictError(f"node {self.node_id} has rows of {self.partition_id}")
            self.log.warning("beginning empty", leader_epoch=record.leader_epoch)
            self.store.reset()
            self._stamps.clear()
            self.committed = 0
            self.store.update_meta(needs_snapshot=False)
            self.become_leader(record, persisted=persisted)
        self.host.restream(self)

    def need_snapshot(self) -> None:
        """Give up the own rows: only a copy helps."""
        self.store.update_meta(needs_snapshot=True, role=Role.LEARNER)
        self.role = Role.LEARNER
        # A copy begins by dropping the rows: nothing may be read here from now on.
        self.readable_time = self.rows_time = 0
        self.touched(at_once=True)

    def snapshot_done(self) -> None:
        """Follow the log from where the copy ends."""
        with self.lock:
            self.copies += 1
            self._stamps.clear()
            self._stamps.append((self.store.log_end, self.store.last_commit_time))
            self.set_committed(self.store.log_end)
        self.touched(at_once=True)
        self.host.restream(self)
        self.wake()

    # --- positions -------------------------------------------------------------------------------

    def append(self, raw: bytes, *, tell: bool = True) -> int:
        """Append entries; return the log's end. Under the lock.

        The streams are told, unless the caller says that it will do that (`tell`).
        """
        if self.failure:
            raise NotReadyError(f"the replica has failed: {self.failure}")
        try:
            end_offset = self.store.append(raw)
        except OSError as error:
            self._failed(error)
            raise NotReadyError(f"the log cannot be written: {error}") from error
        self._stamps.extend(stamps_of(raw))
        if tell:
            for stream in self.leading.streams.values():
                stream.wake()
        return end_offset

    def set_committed(self, offset: int) -> None:
        """Take a newer commit offset; an older one changes nothing."""
        assert offset <= self.store.log_end, "committed beyond the log"  # noqa: S101 - invariant
        if offset > self.committed:
            self.committed = offset
            self.store.note_committed(offset)
            self.note_applied()

    def note_applied(self) -> None:
        """Work out up to which time reads see all that is committed.

        `rows_time` is the last row's, `readable_time` may be a later one that was closed.
        """
        if self.store.meta.needs_snapshot:
            return  # a copy begins by dropping the rows
        applied, before = min(self.committed, self.store.applied), self.readable_time
        while self._stamps and self._stamps[0][0] <= applied:
            self.rows_time = self._stamps.popleft()[1]
        self.readable_time = max(before, self.rows_time, self.closing.time_at(applied))
        if self.readable_time != before:
            self.changed.notify_all()

    def roll_back(self, offset: int) -> None:
        """Cut the log at `offset`; where the engine cannot follow, start again from nothing."""
        if offset < self.committed:
            self.log.error("rolling back committed rows", offset=offset, committed=self.committed)
        try:
            self.store.truncate(offset)
        except ResetNeededError:
            self.readable_time = self.rows_time = 0
            self.store.reset()
            self.role = Role.LEARNER
        end = self.store.log_end
        self._stamps = deque(s for s in self._stamps if s[0] <= end)
        self.committed = min(self.committed, end)

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
            if self.pacer.holds_back(request, prepared, reply):
                return
            self.write_now(request, prepared, reply, tell=not at_leisure)
            streams = list(self.leading.streams.values()) if at_leisure else []
        for stream in streams:
            stream.push()
        self.move_on(at_leisure=at_leisure)

    def write_now(
        self, request: Change, prepared: PreparedRows, reply: Reply, *, tell: bool = True
    ) -> None:
        """Append a write, or hold it while nobody leads; under the lock; `tell` the streams."""
        if self.takeover.blocks_writes or self.takeover.eager:
            self.intake.hold(request, prepared, reply)
        else:
            self.intake.append(request, prepared, reply, tell=tell)

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
        self._move_on()
        self.reads.step()
        self.touched(at_once=False)

    def _move_on(self) -> None:
        with self.applying:
            if self.closed or self.failure or self.damage.given_up:
                return
            damaged: CorruptionError | None = None
            try:
                if self.leading.state is not None:
                    self.leading.pump()
                else:
                    self.following.pump()
            except CorruptionError as error:
                damaged = error
            except (OSError, RezoneError, AssertionError) as error:
                self._failed(error)
        if damaged is not None:
            self.damage.found(damaged, at_once=True)
            if self.leading.state is not None:
                self._failed(damaged)  # alone in its set: nobody else has the rows
        with self.lock:
            self.takeover.step()
            self.pacer.release()
            self.changed.notify_all()

    def _failed(self, error: Exception) -> None:
        self.log.error("a replica has failed", error=str(error))
        self.failure = str(error) or type(error).__name__
        self.intake.fail_all(NotReadyError(f"the replica has failed: {self.failure}"))
        self.touched(at_once=True)

    def look_again(self, at: float) -> None:
        """Have `tick` called at a time of the node's clock, or before; under the lock."""
        self.due = min(self.due, at)

    def tick(self, now: float) -> None:
        """Look after what no event wakes; each duty says when to look again."""
        with self.lock:
            self.due = float("inf")
            if self.closed:
                return
            if self.leading.state is not None:
                self.leading.tick(now)
            else:
                self.following.tick(now)
            self.takeover.tick(now)
            self.pacer.release()
            self.reads.tick(now)
            self.index.tick(now)

    def keep_house(self) -> None:
        """Trim the log, estimate the size; in the node's house thread."""
        if self.closed or self.failure or self.damage.given_up:
            return
        with self.lock:
            keep_from = self._log_needed_from()
        self.store.trim(self.config.log_retention_bytes, keep_from)
        self.store.outgoing.expire()
        sizes = self.store.sizes()
        self.sizes = (sizes.versions, sizes.engine_bytes + sizes.log_bytes)

    def _log_needed_from(self) -> int:
        """Return from where on the log must stay, and note whether that is more than it may be.

        Who is in sync always gets what it lacks. Copies and those that catch up after one have
        their claim too, up to twice the limit: over the limit writers are slowed, so that it
        takes long to get there.
        """
        settings, state = self.settings, self.leading.state
        keep_from = self.committed
        claims = [*self.store.outgoing.floors(settings.copy_handover_ms / 1000)]
        if state is not None:
            keep_from = min([keep_from, *state.needed_offsets()])
            claims += state.catching_up().values()
        size = self.store.log_bytes
        self.pacer.log_full = bool(claims) and size > settings.kept_log_bytes_max
        if size > 2 * settings.kept_log_bytes_max:
            return keep_from
        return min([keep_from, *claims])

    def collect(self) -> bool:
        """Collect one slice of old versions, if due; whether there is more. In one thread."""
        if self.closed or self.failure or self.damage.given_up:
            return False
        retention_micros = self.config.version_retention_seconds * 1_000_000
        return self.collector.step(self.clock.micros() - retention_micros)

    def scrub(self) -> bool:
        """Read one slice through for damage, if due; whether there is more. In one thread."""
        if self.closed or self.failure or self.store.meta.needs_snapshot:
            return False
        return self.scrubber.step()

    def retire(self, request: StopReplica) -> None:
        """Stop because the coordinator has assigned the partition to others (ZR-11).

        StaleEpochError when a record of a later epoch is known: that may be the one by which the
        replica is here again, and it is on the disk, as every record is before anything follows
        from it. ConflictError while it leads: it must hand over first.
        """
        with self.lock:
            self.check_fence(request.fence)
            self._require_newest(request.leader_epoch, request.partition_epoch)
            if self.leads and request.leader_epoch == self.leader_epoch:
                raise ConflictError(
                    f"node {self.node_id} leads partition {self.partition_id}; hand it over, "
                    "or stop it with a higher leader epoch",
                )
            # In one hold of the lock: no later record may be taken in between, and then deleted.
            self._end()
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
