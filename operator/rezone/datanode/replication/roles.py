"""The role of a replica, the record it stands in, and the changes of both.

What a change depends on is on the disk before it takes effect: epochs and the record (ZR-17), a
leadership's new branch of history, and "dead" (DCP-10), which is stored as the role Follower
beside a record that names this node. What follows from a change is told to the duties of each
role (`leader`, `follower`, `takeover`) and to those who wait (`write`).

Concurrency: what others call is an `entry`, the rest runs within one.
"""

from typing import Any

import msgspec

from rezone.datanode.commit.lease import NEVER, Promises
from rezone.datanode.core.transfer import Side, Transfer
from rezone.datanode.indexing.indexing import IndexDuties
from rezone.datanode.replication.follower import FollowerDuties
from rezone.datanode.replication.leader import LeaderDuties
from rezone.datanode.state.replica_state import ReplicaState
from rezone.datanode.state.runner import entry, entry_alone
from rezone.datanode.writing.write import WriteIntake
from rezone.storage.state.history import with_new_branch
from rezone.wire.errors import ConflictError, NotReadyError, StaleEpochError
from rezone.wire.messages import (
    Fence,
    LeaderAndIsr,
    Role,
    StreamEnd,
    TakeoverState,
    UpgradeCandidate,
)


class Roles:
    """The role and the record of one replica. Control calls are idempotent (ZR-13)."""

    def __init__(
        self,
        replica: ReplicaState,
        leading: LeaderDuties,
        following: FollowerDuties,
        intake: WriteIntake,
        index: IndexDuties,
    ) -> None:
        self._replica = replica
        self.runner = replica.runner
        self._leading = leading
        self._following = following
        self._intake = intake
        self._index = index
        self.promises = Promises(replica.clock.monotonic(), replica.store.meta.lease_ms)

    @entry
    def resume(self) -> None:
        """Go on with what was known before a restart (B-09)."""
        replica = self._replica
        meta = replica.store.meta
        if meta.leader_and_isr is None:
            return
        replica.take_role(Role.LEARNER if meta.needs_snapshot else meta.role or Role.LEARNER)
        if replica.record.leader != replica.node_id or meta.needs_snapshot:
            return
        # A new branch: what had been streamed and was lost with this node is nobody's history.
        dead = replica.role is not Role.LEADER
        settled = meta.settled_epoch == replica.leader_epoch
        self.become_leader(replica.record, hold_until=NEVER if settled else None, dead=dead)

    # --- what the coordinator decides ------------------------------------------------------------

    @entry
    def notify(self, fence: Fence, record: LeaderAndIsr) -> None:
        """Take the coordinator's record (HS-02).

        StaleEpochError or StaleRevisionError when it is older than what is known; a repeat is
        taken as done. A record that makes this node lead must find its rows here.
        """
        replica = self._replica
        with replica.guarding():
            if replica.closed or replica.failure:
                raise NotReadyError(
                    f"the replica of partition {replica.partition_id} is stopping, or has failed"
                )
            persisted = replica.fencing.check(fence)
            replica.fencing.check_record(record.leader_epoch, record.partition_epoch)
            if record.leader != replica.node_id:
                self._follow(record, persisted)
            elif not replica.leads or record.leader_epoch > replica.leader_epoch:
                self.become_leader(record, persisted=persisted)
            else:
                self._confirm(record, persisted)
            replica.changed.notify_all()
        replica.touched(at_once=True)
        replica.restream()
        replica.wake()

    def _confirm(self, record: LeaderAndIsr, persisted: dict[str, Any]) -> None:
        replica = self._replica
        transfer = replica.transfer
        handing_over = transfer.blocks_writes or (
            transfer.hands_over and record.next_leader is not None
        )
        self._save(record, Role.FOLLOWER if handing_over else Role.LEADER, persisted)
        self._leading.record_came(record)
        if record.next_leader is None and not transfer.blocks_writes:
            self.clear_transfer()

    def _follow(self, record: LeaderAndIsr, persisted: dict[str, Any]) -> None:
        replica = self._replica
        newer = record.leader_epoch > replica.leader_epoch
        later = record.partition_epoch > replica.record.partition_epoch
        self._following.record_came()
        # A candidate goes on being one while its leader only changes the in-sync set.
        if newer or replica.role is Role.LEADER or (later and not replica.transfer.eager):
            self.clear_transfer()
        self.become_follower(record, persisted)

    @entry
    def upgrade(self, request: UpgradeCandidate) -> None:
        """Lead with the next epoch if the log reaches `last_offset` (RM-05); done already is done.

        NotReadyError when rows or index entries are missing; ConflictError when this replica may
        not lead.
        """
        replica = self._replica
        with replica.guarding():
            persisted = replica.fencing.check(request.fence)
            epoch = replica.leader_epoch
            if replica.role is Role.LEADER and epoch == request.next_epoch:
                return
            if epoch >= request.next_epoch:
                raise StaleEpochError(f"the leader epoch is {epoch}", leader_epoch=epoch)
            log_end = replica.store.log_end
            if request.last_offset is not None and log_end < request.last_offset:
                raise NotReadyError(
                    f"the log ends at {log_end}, before {request.last_offset}", log_end=log_end
                )
            if replica.node_id not in replica.record.isr:
                raise ConflictError(f"node {replica.node_id} is not in sync")
            if lacks := self._index.lacks(request.index):
                raise NotReadyError(lacks)
            record = msgspec.structs.replace(
                replica.record,
                leader=replica.node_id,
                leader_epoch=request.next_epoch,
                next_leader=None,
                next_epoch=None,
            )
            self.become_leader(record, persisted=persisted)
        replica.restream()

    @entry_alone
    def begin_empty(self, fence: Fence, record: LeaderAndIsr) -> None:
        """Lead without rows, which a person has given up; leading by that record is done.

        StaleEpochError when the record is older than what is known, ConflictError when it names
        another leader, or there are rows here.
        """
        replica = self._replica
        with replica.guarding():
            persisted = replica.fencing.check(fence)
            replica.fencing.check_record(record.leader_epoch, record.partition_epoch)
            node = replica.node_id
            if record.leader != node:
                raise ConflictError(f"node {record.leader} leads, not node {node}")
            if replica.leads and replica.leader_epoch == record.leader_epoch:
                return
            if not replica.store.meta.needs_snapshot:
                raise ConflictError(f"node {node} has rows of {replica.partition_id}")
            replica.log.warning("beginning empty", leader_epoch=record.leader_epoch)
            replica.store.reset()
            replica.positions.follow_cut()
            replica.store.update_meta(needs_snapshot=False, uncompared="")
            self.become_leader(record, persisted=persisted)
        replica.restream()

    # --- what replicas tell each other -----------------------------------------------------------

    @entry
    def stream_ended(self, message: StreamEnd) -> None:
        """Follow the leader an old leader has named in its StreamEnd."""
        replica = self._replica
        epoch = message.leader_epoch or 0
        known = epoch <= replica.leader_epoch
        if message.leader is None or known or replica.role is Role.LEADER:
            return
        if message.leader == replica.node_id:
            return
        record = msgspec.structs.replace(
            replica.record,
            leader=message.leader,
            leader_epoch=epoch,
            next_leader=None,
            next_epoch=None,
        )
        # In the middle of the write gap: the disk comes in with the new leader's answer.
        self.become_follower(record, durable=False)
        replica.restream()

    # --- takeovers -------------------------------------------------------------------------------

    def clear_transfer(self) -> None:
        """Forget the takeover: the coordinator has decided again."""
        self._replica.begin_transfer(Transfer())
        self._index.resume()

    def _restore_dead(self) -> None:
        """Be dead again after a restart; who the candidate is stands in the partition's record."""
        replica, record = self._replica, self._replica.record
        replica.begin_transfer(
            Transfer(
                side=Side.OLD,
                state=TakeoverState.DEAD,
                epoch=record.next_epoch or 0,
                candidate=-1 if record.next_leader is None else record.next_leader,
                end_offset=replica.store.log_end,
                index=self._index.stop(),
            )
        )

    # --- the changes -----------------------------------------------------------------------------

    def become_leader(
        self,
        record: LeaderAndIsr,
        *,
        hold_until: float | None = None,
        dead: bool = False,
        persisted: dict[str, Any] | None = None,
        durable: bool = True,
    ) -> None:
        """Lead with the record's epoch: a new branch of history begins at the log's end.

        Nothing is committed before `hold_until` (monotonic), by default before this replica's
        promises to earlier leaders are over. `dead`: only to hand over, as before a restart.
        Without `durable` the epoch is on the disk before anything is committed in it: until then a
        crash makes it as if this replica had not led, as it does with all that was streamed.
        ConflictError when the rows are not all here.
        """
        replica = self._replica
        store = replica.store
        if store.meta.needs_snapshot:
            raise ConflictError(f"partition {replica.partition_id} is not copied to this node yet")
        branches = with_new_branch(store.meta.failover_log, store.log_end)
        changes: dict[str, Any] = {
            "failover_log": branches,
            "partition_uuid": branches[-1].partition_uuid,
        }
        if hold_until is not None and hold_until <= replica.clock.monotonic():
            changes["settled_epoch"] = record.leader_epoch
        self.clear_transfer()
        role = Role.FOLLOWER if dead else Role.LEADER
        self._save(record, role, {**(persisted or {}), **changes}, durable=durable)
        replica.take_role(Role.LEADER)
        # Looked at only now that every lease is refused for the epoch before.
        hold_until = self.promises.until if hold_until is None else hold_until
        self._leading.begin(record, hold_until=hold_until, saved=durable)
        if dead:
            self._restore_dead()
            return
        replica.log.info("leading", leader_epoch=record.leader_epoch, log_end=store.log_end)
        self._intake.release()
        replica.touched(at_once=True)
        replica.changed.notify_all()
        replica.wake()

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
        replica = self._replica
        role = Role.FOLLOWER if replica.node_id in record.isr else Role.LEARNER
        damaged = bool(replica.store.meta.damage)
        if damaged:
            # It has led on with what it could read; now others have all of it.
            persisted = {**(persisted or {}), "needs_snapshot": True}
            replica.positions.make_unreadable()
        if replica.store.meta.needs_snapshot or damaged:
            role = Role.LEARNER
        self._save(record, role, persisted or {}, durable=durable)
        if replica.leads:
            replica.log.info("following", leader=record.leader, leader_epoch=record.leader_epoch)
            self._leading.end(record.leader, record.leader_epoch)
            self._intake.fail_all(replica.not_leader())
        replica.touched(at_once=True)
        replica.changed.notify_all()

    def _save(
        self,
        record: LeaderAndIsr,
        role: Role,
        changes: dict[str, Any],
        *,
        durable: bool = True,
    ) -> None:
        replica = self._replica
        assert record.leader_epoch >= replica.leader_epoch, "a leader epoch never falls"  # noqa: S101 - invariant
        known = (replica.record.leader_epoch, replica.record.partition_epoch)
        if (record.leader_epoch, record.partition_epoch) > known:
            # Every proposal was of the record before: it is answered, or refused as too old.
            changes = {**changes, "proposed": ()}
        replica.store.update_meta(
            **changes,
            time_floor=replica.write_clock.floor,
            role=role,
            leader_epoch=record.leader_epoch,
            partition_epoch=record.partition_epoch,
            leader_and_isr=record,
            durable=durable,
        )
        before, released = replica.record, self._following.is_released
        # First the record, then the look at what was promised: who grants does it the other way
        # round, so that no promise is made behind this look.
        replica.take_record(record)
        promise = replica.services.promised_to(before.leader)
        if record.leader_epoch != before.leader_epoch:
            replica.closed_until.forget()
            self._following.leader_changed()
            if not released:
                self.promises.made(promise)
        replica.write_clock.raise_to(promise.time)
        leads = replica.transfer.blocks_writes or replica.transfer.hands_over
        replica.take_role(Role.LEADER if leads else role)
