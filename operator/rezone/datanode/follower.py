"""What a replica does while it follows: takes the leader's entries, persists, acks, applies.

A plain follower applies what is committed, lazily and in large batches. A hot standby, once it
has caught up, applies every entry to the engine before it makes the log durable (HS-09): when the
leader sees its ack, the rows are already served from there. Until then it applies in slices and
reports how far it is with every ack (HS-07).

Concurrency: what a consumer channel calls comes from that channel's thread; `pump` runs as the
partition's job. The partition's lock guards positions, its `applying` lock keeps truncation and
application apart.
"""

from typing import TYPE_CHECKING

from rezone.datanode.settings import heard_seconds_max
from rezone.storage.entry import IMPORT_KINDS, header_at
from rezone.storage.history import branch_at, branch_start
from rezone.storage.store import ResetNeededError
from rezone.wire.errors import ConflictError, StaleEpochError
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

if TYPE_CHECKING:
    from rezone.datanode.partition import Partition

_STANDBY_SLICE_ROWS = 10_000
_NOTHING = (-1, -1, None, 0)
"""What is acked on a new stream."""


class FollowerDuties:
    """The follower's side of a partition; idle while the replica leads."""

    def __init__(self, partition: "Partition") -> None:
        self._partition = partition
        self.partition_id: PartitionId = partition.partition_id
        self.error = ""
        self.left_out = False
        self._silent_seconds = 0.0
        self._leader_heard: bool | None = None
        self._leader_stalled = False
        self._told_at: float | None = None
        self._acked: tuple[int, int, IndexPosition | None, int] = _NOTHING
        self._applied_at = 0.0

    # --- what a consumer channel calls -----------------------------------------------------------

    def stream_request(self, opaque: int) -> StreamRequest:
        """Return what to ask the leader for: everything after the own log (DCP-03)."""
        partition = self._partition
        with partition.lock:
            log_end = partition.store.log_end
            return StreamRequest(
                opaque=opaque,
                partition=self.partition_id,
                high_offset=log_end,
                partition_uuid=branch_at(partition.store.meta.failover_log, log_end),
                leader_epoch=partition.leader_epoch,
                max_fetch_bytes=partition.settings.fetch_bytes_max,
            )

    def stream_started(self, answer: StreamOk) -> None:
        """Persist the leader's failover log over the own one (DCP-04), and its epoch with it."""
        partition = self._partition
        with partition.lock:
            self._require_epoch(answer.leader_epoch)
            partition.roles.stream_started()
            # No lease is granted before this is on the disk.
            lease_ms = max(partition.store.meta.lease_ms, partition.settings.lease_ms)
            partition.write_clock.raise_to(answer.time_floor)
            partition.store.update_meta(
                failover_log=answer.failover_log,
                lease_ms=lease_ms,
                time_floor=partition.write_clock.floor,
                durable=False,
            )
            self._acked = _NOTHING
            self._told_at = None
            # The record here may be the older one: nobody tells it while the operator is away.
            known = answer.partition_epoch >= partition.record.partition_epoch
            self.left_out = known and not answer.in_sync
            partition.positions.commit(min(answer.committed_offset, partition.store.log_end))
        # Not under the lock, where clients' writes would wait to be sent to the leader.
        partition.store.update_meta()
        partition.touched(at_once=True)
        partition.wake()

    def roll_back(self, offset: int) -> None:
        """Drop everything from `offset` on, or more where the log cannot stop there (DCP-05).

        A leader that does not know the newest branch here can only answer 0. What it shares with
        this replica may still be all that came before that branch: so the branch goes, and the
        next request asks with the one before.
        """
        partition = self._partition
        with partition.applying, partition.lock, partition.failing.guarding():
            if partition.role is Role.LEADER:
                raise ConflictError("a leader does not roll back")
            store = partition.store
            offset = max(offset, branch_start(store.meta.failover_log, store.log_end))
            partition.log.warning("rolling back", offset=offset, log_end=store.log_end)
            committed = partition.positions.committed
            if offset < committed:
                partition.log.error(
                    "rolling back committed rows", offset=offset, committed=committed
                )
            try:
                store.truncate(offset)
            except ResetNeededError:
                partition.roles.start_over()
            partition.positions.follow_cut()

    def snapshot_needed(self, log_start: int) -> None:
        """Note that the leader's log no longer reaches back to here: a copy must come first."""
        partition = self._partition
        with partition.lock, partition.failing.guarding():
            if partition.role is Role.LEADER or partition.store.meta.needs_snapshot:
                return
            partition.log.warning("a snapshot is needed", leader_log_start=log_start)
            partition.roles.need_snapshot()
        partition.host.restream(partition)

    def receive(self, entries: Entries, body: memoryview, *, at_leisure: bool = False) -> None:
        """Append entries and take the commit offset."""
        partition = self._partition
        with partition.lock:
            self._require_epoch(entries.leader_epoch)
            if self._told_at is not None:
                self._told_at = partition.clock.monotonic()
            store = partition.store
            if body:
                partition.host.space.require()
                # The frame's memory ends with the frame; the log keeps its recent end in memory.
                raw = bytes(body)
                partition.append(raw)
                if partition.role is Role.FOLLOWER and not self.left_out and _is_awaited(raw):
                    partition.host.foreground.followed()
            partition.positions.commit(min(entries.committed_offset, store.log_end))
            partition.reads.look()  # a standby has applied the rows before they are committed
            self._look_again()
        if body or partition.takeover.eager:
            partition.move_on(at_leisure=at_leisure)

    def ack_of(self, opaque: int) -> FetchLog:
        """Return the ack of what is durable now; none of it may be lost any more."""
        partition = self._partition
        with partition.lock:
            durable, applied = partition.store.durable_end, partition.store.applied
            index, ready_epoch = partition.index.told, partition.takeover.ready_epoch
            self._acked = (durable, applied, index, ready_epoch)
            return FetchLog(
                partition=self.partition_id,
                fetch_offset=durable,
                max_fetch_bytes=partition.settings.fetch_bytes_max,
                kv_applied_offset=applied,
                opaque=opaque,
                leaving=partition.host.leaving or partition.host.space.short,
                index=index,
                ready_epoch=ready_epoch,
                rest_ms=round(self._rest_seconds * 1000),
                sync_ms=partition.host.disk_speed.sync_ms,
                slow_ms=partition.host.disk_speed.slow_ms,
                uncompared=bool(partition.store.meta.uncompared),
            )

    @property
    def _rest_seconds(self) -> float:
        """How long the leader had better fetch nothing to fill this replica with."""
        partition = self._partition
        return partition.host.foreground.owed_seconds if partition.store.filling else 0.0

    def state_set(self, message: SetState) -> None:
        """Take the producer's state change (DCP-10)."""
        self._partition.takeover.state_set(message)

    def stream_ended(self, message: StreamEnd) -> None:
        """Follow the new leader at once when the old one names it."""
        self._partition.roles.stream_ended(message)

    def time_closed(self, news: ClosedTime) -> None:
        """Take a time that the leader has closed; it goes on doing so for as long as it serves."""
        if news.leader_epoch == self._partition.leader_epoch:
            self._told_at = self._partition.clock.monotonic()
        self._partition.closing.heard(news)

    def follows(self, leader: NodeId, leader_epoch: int) -> bool:
        """Return whether the replica still follows exactly this leadership."""
        record = self._partition.record
        return (record.leader, record.leader_epoch) == (leader, leader_epoch)

    def stream_failed(self, error: str) -> None:
        """Note why there is no stream, for the report; empty when there is."""
        partition = self._partition
        if error != self.error:
            self.error = error
            partition.touched(at_once=True)
        with partition.lock:
            partition.changed.notify_all()

    def leader_silent(self, seconds: float) -> None:
        """Note for how long the leader has not been heard, 0 while it is."""
        partition, told_at = self._partition, self._told_at
        self._silent_seconds = seconds
        heard = seconds < heard_seconds_max(partition.settings)
        stalled_after = partition.settings.replica_lag_ms_max / 1000
        untold = told_at is not None and partition.clock.monotonic() - told_at >= stalled_after
        stalled = heard and untold
        if heard is not self._leader_heard or stalled is not self._leader_stalled:
            self._leader_heard, self._leader_stalled = heard, stalled
            partition.touched(at_once=True)

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
        return missed and self._partition.streams_from is not None

    @property
    def leader_heard(self) -> bool | None:
        """Whether the leader is heard; None for a replica that leads, or streams from nobody."""
        return self._leader_heard if self._partition.streams_from is not None else None

    @property
    def leader_stalled(self) -> bool:
        """Whether the leader's node says that it is there, and nothing of this replica (NW-02)."""
        return self._leader_stalled and self._partition.streams_from is not None

    def _require_epoch(self, epoch: int) -> None:
        partition = self._partition
        if partition.role is Role.LEADER or epoch != partition.leader_epoch:
            raise StaleEpochError(
                f"entries of epoch {epoch}, this replica is in {partition.leader_epoch}",
                leader_epoch=partition.leader_epoch,
            )

    # --- the partition's job ---------------------------------------------------------------------

    @property
    def lags_to_apply(self) -> bool:
        """Whether there are committed rows that wait to be applied."""
        store = self._partition.store
        return store.applied < min(self._partition.positions.committed, store.log_end)

    def pump(self) -> None:
        """Apply, sync and ack: whatever of it is due."""
        partition = self._partition
        store = partition.store
        eager = partition.is_standby or partition.takeover.eager
        log_end = store.log_end
        if eager and 0 < log_end - store.applied <= partition.settings.standby_lag_rows_max:
            store.apply_to(log_end)  # HS-09: the engine first, then the disk
        if store.durable_end < store.log_end:
            store.sync()
        if eager and store.applied < log_end:
            store.apply_to(min(log_end, store.applied + _STANDBY_SLICE_ROWS))
        elif not eager:
            self._apply_lazily()
        if partition.takeover.eager:
            partition.index.pump()  # the old leader waits for it (DCP-08)
        with partition.lock:
            partition.positions.note_applied()
            self._look_again()
            if eager:
                partition.takeover.prepared()
            here = (store.durable_end, store.applied, partition.index.told)
            news = self._acked != (*here, partition.takeover.ready_epoch)
        if news:
            partition.host.ack(partition)
        partition.index.pump()
        if eager and store.applied < store.log_end:
            partition.wake()

    def _apply_lazily(self) -> None:
        partition = self._partition
        settings, store = partition.settings, partition.store
        target = min(partition.positions.committed, store.log_end)
        now = partition.clock.monotonic()
        due = now - self._applied_at >= settings.apply_interval_ms / 1000
        if target > store.applied and (due or target - store.applied >= settings.apply_rows_max):
            store.apply_to(target)
            self._applied_at = now

    def apply_now(self) -> None:
        """Apply what is committed without waiting for a large batch: somebody wants to read it."""
        self._applied_at = float("-inf")
        self._partition.wake()

    def _look_again(self) -> None:
        """Have rows applied when they have waited long enough; under the partition's lock."""
        partition = self._partition
        if self.lags_to_apply:
            partition.look_again(self._applied_at + partition.settings.apply_interval_ms / 1000)

    def tick(self, now: float) -> None:
        """Wake the job when rows have waited long enough to be applied."""
        interval = self._partition.settings.apply_interval_ms / 1000
        if self.lags_to_apply and now - self._applied_at >= interval:
            self._partition.wake()
        else:
            self._look_again()


def _is_awaited(entries: bytes) -> bool:
    """Whether clients wait for these entries, by the first: for what is imported none does."""
    header = header_at(entries, 0)
    return header is not None and header.kind not in IMPORT_KINDS
