"""What a replica does while it follows: takes the leader's entries, persists, acks, applies.

A plain follower applies what is committed, lazily and in large batches. A hot standby, once it
has caught up, applies every entry to the engine before it makes the log durable (HS-09): when the
leader sees its ack, the rows are already served from there. Until then it applies in slices and
reports how far it is with every ack (HS-07).

Concurrency: what a consumer channel calls is an `entry`; `pump` runs as the partition's job. The
lock guards positions, `applying` keeps truncation and application apart.
"""

from collections.abc import Callable
from typing import NamedTuple

from rezone.datanode.core.joining import Copy, FollowerLog, GiveUp, Refuse, RollBack, Truncate
from rezone.datanode.indexing.indexing import IndexDuties
from rezone.datanode.scheduling import inline_sends
from rezone.datanode.settings import heard_seconds_max
from rezone.datanode.state.replica_state import ReplicaState
from rezone.datanode.state.runner import entry, entry_alone
from rezone.storage.log.entry import RESHARD_KINDS, header_at
from rezone.storage.store import IngestedRowsMissingError, ResetNeededError
from rezone.wire.errors import StaleEpochError
from rezone.wire.messages import (
    ClosedTime,
    Entries,
    FetchLog,
    IndexPosition,
    NodeId,
    PartitionId,
    Role,
    SetState,
    StreamEnd,
    StreamOk,
    StreamRequest,
)

_STANDBY_SLICE_ROWS = 10_000
_NOTHING = (-1, -1, None, 0)
"""What is acked on a new stream."""


class FollowerAsks(NamedTuple):
    """What those are asked for that follow from what the leader says."""

    ack: Callable[[], None]
    look_at_reads: Callable[[], None]
    state_set: Callable[[SetState], None]
    time_closed: Callable[[ClosedTime], None]
    leader_named: Callable[[StreamEnd], None]


class FollowerDuties:
    """The follower's side of a partition; idle while the replica leads."""

    def __init__(self, replica: ReplicaState, index: IndexDuties, asks: FollowerAsks) -> None:
        self._replica = replica
        self.runner = replica.runner
        self._index = index
        self._asks = asks
        self._released_epoch = 0
        self.partition_id: PartitionId = replica.partition_id
        self.error = ""
        self.left_out = False
        self._silent_seconds = 0.0
        self._leader_heard: bool | None = None
        self._leader_stalled = False
        self._told_at: float | None = None
        self._acked: tuple[int, int, IndexPosition | None, int] = _NOTHING
        self._applied_at = 0.0

    # --- what a consumer channel calls -----------------------------------------------------------

    @entry
    def stream_request(self, opaque: int) -> StreamRequest:
        """Return what to ask the leader for: everything after the own log (DCP-03)."""
        replica = self._replica
        log = self._log()
        return StreamRequest(
            opaque=opaque,
            partition=self.partition_id,
            high_offset=log.log_end,
            partition_uuid=log.branch,
            leader_epoch=replica.leader_epoch,
            max_fetch_bytes=replica.settings.fetch_bytes_max,
            stopped_ms=replica.write_gap.stopped_ms(
                replica.leader_epoch, replica.clock.monotonic()
            ),
        )

    def stream_started(self, answer: StreamOk) -> None:
        """Persist the leader's failover log over the own one (DCP-04), and its epoch with it."""
        self._start(answer)
        # Not in a step, where clients' writes would wait to be sent to the leader.
        replica = self._replica
        replica.store.update_meta()
        replica.touched(at_once=True)
        replica.wake()

    @entry
    def _start(self, answer: StreamOk) -> None:
        replica = self._replica
        self._require_epoch(answer.leader_epoch)
        self._released_epoch = 0
        replica.write_gap.told()
        # No lease is granted before this is on the disk.
        lease_ms = max(replica.store.meta.lease_ms, replica.settings.lease_ms)
        replica.write_clock.raise_to(answer.time_floor)
        replica.store.update_meta(
            failover_log=answer.failover_log,
            lease_ms=lease_ms,
            time_floor=replica.write_clock.floor,
            durable=False,
        )
        self._acked = _NOTHING
        self._told_at = None
        # The record here may be the older one: nobody tells it while the operator is away.
        known = answer.partition_epoch >= replica.record.partition_epoch
        self.left_out = known and not answer.in_sync
        replica.positions.commit(min(answer.committed_offset, replica.store.log_end))

    @entry_alone
    def roll_back(self, offset: int) -> None:
        """Drop everything from `offset` on, or more where the log cannot stop there (DCP-05)."""
        replica = self._replica
        with replica.guarding():
            match self._log().step(RollBack(offset)):
                case Refuse(error):
                    raise error
                case Truncate(cut_at, loses):
                    self._truncate(cut_at, loses=loses)

    def _truncate(self, offset: int, *, loses: bool) -> None:
        """Cut the log; start over where it cannot be cut so far."""
        replica = self._replica
        store, committed = replica.store, replica.positions.committed
        replica.log.warning("rolling back", offset=offset, log_end=store.log_end)
        if loses:
            replica.log.error("rolling back committed rows", offset=offset, committed=committed)
        try:
            store.truncate(offset)
        except ResetNeededError:
            replica.start_over()
        replica.positions.follow_cut()

    @entry
    def snapshot_needed(self, log_start: int) -> None:
        """Note that the leader's log no longer reaches back to here: a copy must come first."""
        replica = self._replica
        with replica.guarding():
            if not isinstance(self._log().step(Copy(log_start)), GiveUp):
                return
            replica.log.warning("a snapshot is needed", leader_log_start=log_start)
            replica.need_snapshot()
        replica.restream()

    def _log(self) -> FollowerLog:
        replica = self._replica
        meta = replica.store.meta
        return FollowerLog(
            failover_log=meta.failover_log,
            log_end=replica.store.log_end,
            committed=replica.positions.committed,
            leads=replica.role is Role.LEADER,
            needs_copy=meta.needs_snapshot,
        )

    @entry
    def receive(self, entries: Entries, body: memoryview, *, inline: bool = False) -> None:
        """Append entries and take the commit offset."""
        replica = self._replica
        self._require_epoch(entries.leader_epoch)
        if self._told_at is not None:
            self._told_at = replica.clock.monotonic()
        store = replica.store
        if body:
            replica.services.space.require()
            # The frame's memory ends with the frame; the log keeps its recent end in memory.
            raw = bytes(body)
            try:
                replica.append(raw)
            except IngestedRowsMissingError:
                self.snapshot_needed(store.log_start)
                raise
            if replica.role is Role.FOLLOWER and not self.left_out and _is_awaited(raw):
                replica.services.foreground.followed()
        replica.positions.commit(min(entries.committed_offset, store.log_end))
        self._asks.look_at_reads()  # a standby has applied the rows before they are committed
        self._look_again()
        if body or replica.transfer.eager:
            replica.move_on(inline=inline)

    @entry
    def ack_of(self, opaque: int) -> FetchLog:
        """Return the ack of what is durable now; none of it may be lost any more."""
        replica = self._replica
        durable, applied = replica.store.durable_end, replica.store.applied
        index, ready_epoch = self._index.told, replica.transfer.ready_epoch
        self._acked = (durable, applied, index, ready_epoch)
        return FetchLog(
            partition=self.partition_id,
            fetch_offset=durable,
            max_fetch_bytes=replica.settings.fetch_bytes_max,
            kv_applied_offset=applied,
            opaque=opaque,
            leaving=replica.services.leaving or replica.services.space.short,
            index=index,
            ready_epoch=ready_epoch,
            throttle_ms=round(self._throttle_seconds * 1000),
            sync_ms=replica.services.disk_speed.sync_ms,
            slow_ms=replica.services.disk_speed.slow_ms,
            uncompared=bool(replica.store.meta.uncompared),
        )

    @property
    def _throttle_seconds(self) -> float:
        """How long the leader had better fetch nothing to backfill this replica with."""
        replica = self._replica
        return replica.services.foreground.owed_seconds if replica.store.backfilling else 0.0

    def state_set(self, message: SetState) -> None:
        """Take the producer's state change (DCP-10)."""
        self._asks.state_set(message)

    @entry
    def stream_ended(self, message: StreamEnd) -> None:
        """Follow the new leader at once when the old one names it.

        What was promised to one that has given up its leases binds no more.
        """
        self._released_epoch = message.released_epoch
        self._asks.leader_named(message)

    @property
    def is_released(self) -> bool:
        """Whether the leader of the record has given up what this replica has promised it."""
        return self._released_epoch == self._replica.record.leader_epoch

    def time_closed(self, news: ClosedTime) -> None:
        """Take a time that the leader has closed; it goes on doing so for as long as it serves."""
        if news.leader_epoch == self._replica.leader_epoch:
            self._told_at = self._replica.clock.monotonic()
        self._asks.time_closed(news)

    def follows(self, leader: NodeId, leader_epoch: int) -> bool:
        """Return whether the replica still follows exactly this leadership."""
        record = self._replica.record
        return (record.leader, record.leader_epoch) == (leader, leader_epoch)

    @entry
    def stream_failed(self, error: str) -> None:
        """Note why there is no stream, for the report; empty when there is."""
        replica = self._replica
        if error != self.error:
            self.error = error
            replica.touched(at_once=True)
        replica.changed.notify_all()

    def leader_silent(self, seconds: float) -> None:
        """Note for how long the leader has not been heard, 0 while it is."""
        replica, told_at = self._replica, self._told_at
        self._silent_seconds = seconds
        heard = seconds < heard_seconds_max(replica.settings)
        stalled_after = replica.settings.replica_lag_ms_max / 1000
        untold = told_at is not None and replica.clock.monotonic() - told_at >= stalled_after
        stalled = heard and untold
        if heard is not self._leader_heard or stalled is not self._leader_stalled:
            self._leader_heard, self._leader_stalled = heard, stalled
            replica.touched(at_once=True)

    def record_came(self) -> None:
        """Count no more that the leader has left this replica out: its next answer says that."""
        self.left_out = False

    def leader_changed(self) -> None:
        """Forget what was heard: it was of another leader."""
        self._silent_seconds, self._leader_heard = 0.0, None
        self._told_at, self._leader_stalled = None, False

    def misses_leader(self, seconds: float) -> bool:
        """Return whether there is a leader to hear, and it has been silent for so long."""
        missed = self._leader_stalled or self._silent_seconds >= seconds
        return missed and self._replica.streams_from is not None

    @property
    def leader_heard(self) -> bool | None:
        """Whether the leader is heard; None for a replica that leads, or streams from nobody."""
        return self._leader_heard if self._replica.streams_from is not None else None

    @property
    def leader_stalled(self) -> bool:
        """Whether the leader's node says that it is there, and nothing of this replica (NW-02)."""
        return self._leader_stalled and self._replica.streams_from is not None

    def _require_epoch(self, epoch: int) -> None:
        replica = self._replica
        if replica.role is Role.LEADER or epoch != replica.leader_epoch:
            raise StaleEpochError(
                f"entries of epoch {epoch}, this replica is in {replica.leader_epoch}",
                leader_epoch=replica.leader_epoch,
            )

    # --- the partition's job ---------------------------------------------------------------------

    @property
    def lags_to_apply(self) -> bool:
        """Whether there are committed rows that wait to be applied."""
        store = self._replica.store
        return store.applied < min(self._replica.positions.committed, store.log_end)

    def pump(self) -> None:
        """Apply, sync and ack: whatever of it is due; the ack leaves when no lock is held."""
        replica = self._replica
        store = replica.store
        eager = replica.is_standby or replica.transfer.eager
        log_end = store.log_end
        if eager and 0 < log_end - store.applied <= replica.settings.standby_lag_rows_max:
            store.apply_to(log_end)  # HS-09: the engine first, then the disk
        if store.durable_end < store.log_end:
            store.sync()
        if eager and store.applied < log_end:
            store.apply_to(min(log_end, store.applied + _STANDBY_SLICE_ROWS))
        elif not eager:
            self._apply_lazily()
        if replica.transfer.eager:
            self._index.pump()  # the old leader waits for it (DCP-08)
        if self._has_run(eager=eager) and not inline_sends.note(self._ack):
            self._ack()
        if eager and store.applied < store.log_end:
            replica.wake()

    @entry
    def _has_run(self, *, eager: bool) -> bool:
        """Note how far the job has come; whether the leader is to hear of that now.

        What a plain follower has applied goes with its next ack: only of a standby it matters.
        """
        replica, store = self._replica, self._replica.store
        replica.positions.note_applied()
        self._look_again()
        if eager:
            replica.transfer.note_prepared()
        applied = store.applied if eager else self._acked[1]
        here = (store.durable_end, applied, self._index.told)
        return self._acked != (*here, replica.transfer.ready_epoch)

    def _ack(self) -> None:
        self._asks.ack()

    def _apply_lazily(self) -> None:
        replica = self._replica
        settings, store = replica.settings, replica.store
        target = min(replica.positions.committed, store.log_end)
        now = replica.clock.monotonic()
        due = now - self._applied_at >= settings.apply_interval_ms / 1000
        if target > store.applied and (due or target - store.applied >= settings.apply_rows_max):
            store.apply_to(target)
            self._applied_at = now

    def apply_now(self) -> None:
        """Apply what is committed without waiting for a large batch: somebody wants to read it."""
        self._applied_at = float("-inf")
        self._replica.wake()

    def _look_again(self) -> None:
        """Have rows applied when they have waited long enough; under the partition's lock."""
        replica = self._replica
        if self.lags_to_apply:
            replica.look_again(self._applied_at + replica.settings.apply_interval_ms / 1000)

    def tick(self, now: float) -> None:
        """Wake the job when rows have waited long enough to be applied."""
        interval = self._replica.settings.apply_interval_ms / 1000
        if self.lags_to_apply and now - self._applied_at >= interval:
            self._replica.wake()
        else:
            self._look_again()


def _is_awaited(entries: bytes) -> bool:
    """Whether clients wait for these entries, by the first: for what is pulled none does."""
    header = header_at(entries, 0)
    return header is not None and header.kind not in RESHARD_KINDS
