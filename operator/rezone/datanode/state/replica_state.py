"""What the parts of a replica share: its facts, and what each of them may ask of the whole.

A part gets this, never the `Replica` that puts all of them together: so none can reach another one
but those that it was given. What a part alone knows is a field of the part.

Concurrency: the `runner` has the lock, which guards all that changes here, and everything in the
parts. The replica's job is the only one that syncs and applies, and holds `applying` for that. Lock
order: `applying`, `lock`, a channel's lock. `changed` is notified after each run of the job and
each change of role.
"""

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TypeVar

import structlog

from rezone.datanode.clock.write_clock import WriteClock, latest_promise
from rezone.datanode.commit.fencing import Fencing
from rezone.datanode.commit.positions import Positions
from rezone.datanode.commit.protocol import Leadership
from rezone.datanode.core.closed_timestamp import ClosedUntil
from rezone.datanode.core.transfer import Transfer
from rezone.datanode.scheduling.admission import Admission
from rezone.datanode.scheduling.workers import Job
from rezone.datanode.state.feed_floor import Acknowledged, feed_floor, feed_share
from rezone.datanode.state.followed import FollowedFrom
from rezone.datanode.state.node_services import NodeServices
from rezone.datanode.state.reshard_targets import ReshardTargets
from rezone.datanode.state.runner import Runner, entry
from rezone.datanode.state.serving import Serving
from rezone.datanode.state.write_gap import WriteGap
from rezone.domain.routing.routes import hot_standbys
from rezone.storage.store import PartitionStore
from rezone.wire import layouts
from rezone.wire.errors import (
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
    ZoneConfig,
)

_log = structlog.get_logger(__name__)
T = TypeVar("T")


class ReplicaState(ABC):
    """One replica as its parts see it; `pump` is its job's run.

    `due` is when what time alone can make due is to be looked after, before `backfill_after` no
    rows are to be pulled (both monotonic); `copies` counts the copies that have ended here.
    """

    def __init__(
        self, store: PartitionStore, services: NodeServices, pump: Callable[[], None]
    ) -> None:
        self.partition_id: PartitionId = store.meta.partition
        self.store = store
        self.services = services
        self.settings = services.settings
        self.clock = services.clock
        self.node_id = services.node_id
        self.log = _log.bind(node=self.node_id, partition=self.partition_id)
        self.runner = Runner(self)
        self.lock = self.runner.lock
        self.applying = self.runner.applying
        self.changed = threading.Condition(self.lock)
        self.job = Job(f"partition {self.partition_id}", pump)
        self.due = float("-inf")
        self.copies = 0
        self.backfill_after = float("-inf")
        self.closed = False
        self.failure = ""
        self.role = Role.LEARNER
        self.record = store.meta.leader_and_isr or LeaderAndIsr(
            leader=NOBODY, leader_epoch=0, isr=(), coordinator_epoch=0
        )
        self.leadership: Leadership | None = None
        self.transfer = Transfer()
        self.write_gap = WriteGap()
        self.seal_gap = WriteGap()
        self.copy_progress: CopyProgress | None = None
        self.admission = Admission(self.partition_id, self.clock.monotonic)
        self.write_clock = WriteClock(services.clock_bound.before, store.meta.time_floor)
        self.closed_until = ClosedUntil()
        self.positions = Positions(store, self.changed, self.closed_until.time_at)
        self.fencing = Fencing(store)
        self.serving = Serving(store, self.positions, lambda: services.config, lambda: self.leads)
        self.reshard_targets = ReshardTargets(
            self.clock.monotonic, self.settings.copy_handover_ms / 1000
        )
        self.followed = FollowedFrom(
            self.clock.monotonic, self.settings.follower_pause_ms_max / 1000
        )
        self.acknowledged = Acknowledged()
        self._log_pulled = -1
        self._ranged: tuple[ZoneConfig, HashRange] | None = None

    # --- facts -----------------------------------------------------------------------------------

    @property
    def config(self) -> ZoneConfig:
        """The zone's configuration."""
        return self.services.config

    @property
    def leads(self) -> bool:
        """Whether this replica leads, dead in a takeover included."""
        return self.leadership is not None

    @property
    def leader_epoch(self) -> int:
        """The highest leader epoch seen."""
        return self.store.meta.leader_epoch

    @property
    def is_sealed(self) -> bool:
        """Whether the seal is committed: for good, and at every replica that may lead."""
        seal = self.store.seal
        return seal is not None and seal.end_offset <= self.positions.committed

    @property
    def is_sealing(self) -> bool:
        """Whether there is a seal that may still be undone: nothing is written, nobody refused."""
        return self.store.seal is not None and not self.is_sealed

    @property
    def is_needed(self) -> bool:
        """Whether this node would be missed if it stopped now, and perhaps not if it waits.

        Writes would wait for it: a leader can hand over to whoever else is in sync, a member of the
        in-sync set leaves that if enough others stay. Where too few are in sync there may be
        replicas that soon will be. To a sealed partition nobody writes.
        """
        isr = {*self.record.isr}
        others = isr.union(self.record.replicas) - {self.node_id}
        if self.is_sealed:
            return self.holds_alone
        if self.leads:
            return bool(others)
        spared = len(isr) <= self.config.min_in_sync_replicas and others <= isr
        return self.node_id in isr and not spared

    @property
    def holds_alone(self) -> bool:
        """Whether this node alone is in sync, and there are replicas that could be.

        What was acknowledged would go with its disk. A sealed partition's rows may be wanted yet:
        its targets read them.
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
    def log_floor(self) -> int | None:
        """From which offset on the log stays for named feeds; None without any."""
        feeds = self.config.feeds
        if not feeds:
            return None
        return feed_floor(feeds, self.acknowledged.times(feeds), self.store, self.clock.known())

    @property
    def feed_shares(self) -> dict[str, float]:
        """How near each named feed is to its limits here, 1 where it has reached one."""
        feeds, now = self.config.feeds, self.clock.known()
        times = self.acknowledged.times(feeds)
        return {
            each.name: feed_share(each, times.get(each.name), self.store, now) for each in feeds
        }

    @property
    def pulls_log(self) -> bool:
        """Whether named feeds may need log from before the last copy that is not here yet."""
        if not self.config.feeds or self.store.meta.needs_snapshot:
            return False
        return self._log_pulled != self.copies

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

    # --- refusals --------------------------------------------------------------------------------

    def require_leadership(self) -> Leadership:
        """Return the leadership; NotLeaderError when another replica leads."""
        if self.leadership is None:
            raise self.not_leader()
        return self.leadership

    def not_leader(self) -> NotLeaderError:
        """Return the error that sends a client to the leader (RM-10)."""
        leader, where = self.record.leader, f"partition {self.partition_id}"
        text = f"node {leader} leads {where}, not node {self.node_id}"
        if leader == NOBODY:
            text = f"node {self.node_id} does not lead {where} and has not been told who does"
        return NotLeaderError(
            text,
            leader=leader,
            address=self.services.address(leader),
            epoch=self.record.leader_epoch,
        )

    def resharded(self) -> ReshardedError:
        """Return the error that sends a client to the partitions of the next layout."""
        return layouts.resharded(self.config, self.partition_id)

    @property
    def readable_from(self) -> int:
        """The earliest time as of which it may be read: before it others had the rows."""
        return layouts.readable_from(self.config, self.partition_id)

    def not_leader_or_not_ready(self) -> RezoneError:
        """Return why a write cannot be taken now."""
        if self.role is Role.LEADER or self.record.leader == self.node_id:
            return NotReadyError(f"partition {self.partition_id} does not serve yet; retry")
        return self.not_leader()

    # --- times that may be promised --------------------------------------------------------------

    def promisable(self) -> int:
        """Return the latest time that may be promised: no later row gets it, or an earlier one.

        0 where nothing may be promised: by a follower, or when others are about to write. Under the
        lock. A promise binds once it is made to the write clock (`raise_to`).
        """
        leadership = self.leadership
        if leadership is None or not leadership.serving or self.transfer.blocks_writes:
            return 0
        if self.store.seal is not None:
            return 0  # later times are those of other partitions
        # What all who may lead next know of, also after a restart.
        told = min(leadership.announced_time, self.services.clock_bound.until)
        return latest_promise(self.clock.known(), told)

    # --- changes of what is shared ---------------------------------------------------------------

    def take_record(self, record: LeaderAndIsr) -> None:
        """Stand in this record, which is on the disk; under the lock, as all changes here."""
        self.record = record

    def take_role(self, role: Role) -> None:
        """Have this role from now on."""
        self.role = role

    def lead_with(self, leadership: Leadership | None) -> None:
        """Lead with the state of a new leadership, or no more."""
        self.leadership = leadership

    def begin_transfer(self, transfer: Transfer) -> None:
        """Have a part in another takeover; one without a side is none."""
        self.transfer = transfer

    def backfill_later(self, at: float) -> None:
        """Pull no rows before this time: a follower's node has clients that come first."""
        self.backfill_after = max(self.backfill_after, at)

    def need_snapshot(self) -> None:
        """Give up the own rows: only a copy helps."""
        self.store.update_meta(needs_snapshot=True, role=Role.LEARNER)
        self.role = Role.LEARNER
        # A copy begins by dropping the rows: nothing may be read here from now on.
        self.positions.make_unreadable()
        self.touched(at_once=True)

    def start_over(self) -> None:
        """Drop all rows at once, where the log cannot be cut as far as it must be."""
        self.positions.make_unreadable()
        self.store.reset()
        self.role = Role.LEARNER

    def show_copy(self, progress: CopyProgress) -> None:
        """Report how far a copy to this replica is, or why it has failed; takes the lock itself."""
        self.copy_progress = progress
        self.touched(at_once=progress.done or progress.failure is not None)

    def log_pulled(self, copies: int) -> None:
        """Note that no more log is to be had from before the copy of this number."""
        self._log_pulled = copies
        self.touched(at_once=True)

    @entry
    def snapshot_done(self) -> None:
        """Follow the log from where the copy ends."""
        copy = self.store.meta.copy
        self.copies += 1
        self.positions.begin_after_copy(settled=copy is not None and copy.settled)
        self.touched(at_once=True)
        self.restream()
        self.wake()

    def append(self, raw: bytes) -> int:
        """Append entries, to be sent after the step; return the log's end. Under the lock."""
        if self.failure:
            raise NotReadyError(f"the replica has failed: {self.failure}")
        try:
            end_offset = self.store.append(raw)
        except OSError as error:
            self.fail(error)
            raise NotReadyError(f"the log cannot be written: {error}") from error
        self.positions.appended(raw)
        self.runner.send()
        return end_offset

    def note_failure(self, why: str) -> None:
        """Be of no use from now on."""
        self.failure = why

    @contextlib.contextmanager
    def guarding(self) -> Iterator[None]:
        """Fail where the disk does; NotReadyError for whoever has asked, who asks again."""
        try:
            yield
        except OSError as error:
            self.fail(error)
            raise NotReadyError(f"the replica has failed: {error}") from error

    # --- what the job and the report are asked for -----------------------------------------------

    def touched(self, *, at_once: bool) -> None:
        """Note that the report has changed."""
        self.runner.touched(at_once=at_once)

    def wake(self) -> None:
        """Have the replica's job run."""
        self.runner.run(inline=False)

    def move_on(self, *, inline: bool) -> None:
        """Have the job run: by the calling thread, if that has time for it and it is short."""
        self.runner.run(inline=inline)

    def answer(self, reply: Callable[[T], None], outcome: T) -> None:
        """Have a reply called with an outcome."""
        self.runner.answer(reply, outcome)

    def restream(self) -> None:
        """Make the stream from the leader fit the state; without any lock, or after the step."""
        self.runner.restream()

    # --- what the runner does after a step -------------------------------------------------------

    @abstractmethod
    def do_send(self, *, inline: bool) -> None:
        """Have the streams to followers send what was appended."""

    def do_touched(self, *, at_once: bool) -> None:
        """Note that the report has changed."""
        self.services.touched(self.partition_id, at_once=at_once)

    @abstractmethod
    def do_restream(self) -> None:
        """Make the stream from the leader fit the state; without any lock."""

    def do_run(self, *, inline: bool) -> None:
        """Have the job run."""
        if not inline:
            self.services.wake(self.job)
            return
        short = self.store.log_end - self.store.applied <= self.settings.inline_rows_max
        if short and not self.applying.locked():
            self.services.run_here(self.job)
        else:
            self.services.wake(self.job)

    def look_again(self, at: float) -> None:
        """Have `tick` called at a time of the node's clock, or before; under the lock."""
        self.due = min(self.due, at)

    # --- what the whole does for a part ----------------------------------------------------------

    @abstractmethod
    def fail(self, error: Exception) -> None:
        """Go on with nothing, because of this; under any of the replica's locks."""

    @abstractmethod
    def ask_leases(self) -> None:
        """Ask all followers for leases now; under the lock."""

    @abstractmethod
    def apply_now(self) -> None:
        """Apply what is committed without waiting for more: somebody wants to read it."""
