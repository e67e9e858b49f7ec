"""Does what follows for the role of a replica, and for the record it stands in (`core.roles`).

What follows from a change is told to the duties of each role (`leader`, `follower`, `takeover`) and
to those who wait (`write`).

Concurrency: what others call is an `entry`, the rest runs within one.
"""

import uuid

from rezone.datanode.commit.lease import Promises
from rezone.datanode.core.roles import (
    Confirm,
    Effect,
    Emptied,
    EndStreams,
    Event,
    Follow,
    ForgetTransfer,
    HandedOver,
    Lead,
    MakeUnreadable,
    Named,
    Notified,
    Persist,
    Refuse,
    Reset,
    Resumed,
    Sees,
    Take,
    TookOver,
    Upgraded,
    step,
)
from rezone.datanode.core.transfer import Side, Transfer
from rezone.datanode.indexing.indexing import IndexDuties
from rezone.datanode.replication.follower import FollowerDuties
from rezone.datanode.replication.leader import LeaderDuties
from rezone.datanode.state.replica_state import ReplicaState
from rezone.datanode.state.runner import entry, entry_alone
from rezone.datanode.writing.write import WriteIntake
from rezone.wire.messages import (
    Fence,
    LeaderAndIsr,
    NodeId,
    Role,
    SetState,
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
        self._step(Resumed())

    # --- what the coordinator decides ------------------------------------------------------------

    @entry
    def notify(self, fence: Fence, record: LeaderAndIsr) -> None:
        """Take the coordinator's record (HS-02).

        StaleEpochError or StaleRevisionError when it is older than what is known; a repeat is
        taken as done. A record that makes this node lead must find its rows here.
        """
        replica = self._replica
        with replica.guarding():
            self._step(Notified(fence, record))
        replica.changed.notify_all()
        replica.touched(at_once=True)
        replica.restream()
        replica.wake()

    @entry
    def upgrade(self, request: UpgradeCandidate) -> None:
        """Lead with the next epoch if the log reaches `last_offset` (RM-05); done already is done.

        NotReadyError when rows or index entries are missing; ConflictError when this replica may
        not lead.
        """
        with self._replica.guarding():
            self._step(Upgraded(request, self._index.lacks(request.index)))
        self._replica.restream()

    @entry_alone
    def begin_empty(self, fence: Fence, record: LeaderAndIsr) -> None:
        """Lead without rows, which a person has given up; leading by that record is done.

        StaleEpochError when the record is older than what is known, ConflictError when it names
        another leader, or there are rows here.
        """
        with self._replica.guarding():
            self._step(Emptied(fence, record))
        self._replica.restream()

    # --- what replicas tell each other -----------------------------------------------------------

    @entry
    def stream_ended(self, message: StreamEnd) -> None:
        """Follow the leader an old leader has named in its StreamEnd."""
        if message.leader is not None:
            self._step(Named(message.leader, message.leader_epoch or 0))
            self._replica.restream()

    def hand_over(self, leader: NodeId, leader_epoch: int) -> None:
        """Follow the candidate: the disk knows that this leader is dead."""
        self._step(HandedOver(leader, leader_epoch))

    def take_over(self, message: SetState) -> None:
        """Lead by the last message of the leader before, which gives up its leases with it."""
        replica = self._replica
        replica.write_clock.raise_to(message.time_floor)
        hold_until = replica.clock.monotonic() + message.hold_ms / 1000
        # In the write gap: the disk comes in before anything is committed.
        self._step(TookOver(message, hold_until))

    # --- what follows ----------------------------------------------------------------------------

    def _step(self, event: Event) -> None:
        for effect in step(event, self._seen()):
            self._do(effect)

    def _seen(self) -> Sees:
        replica = self._replica
        return Sees(
            node=replica.node_id,
            meta=replica.store.meta,
            record=replica.record,
            role=replica.role,
            leads=replica.leads,
            transfer=replica.transfer,
            over=replica.closed or bool(replica.failure),
            log_end=replica.store.log_end,
            floor=replica.write_clock.floor,
            branch=uuid.uuid4().hex,
            now=replica.clock.monotonic(),
        )

    def _do(self, effect: Effect) -> None:
        replica = self._replica
        match effect:
            case Refuse(error):
                raise error
            case Reset():
                replica.log.warning("beginning empty")
                replica.store.reset()
                replica.positions.follow_cut()
            case Persist(changes, durable):
                replica.store.update_meta(**changes, durable=durable)
            case MakeUnreadable():
                replica.positions.make_unreadable()
            case ForgetTransfer():
                self.clear_transfer()
            case Take(record, role):
                self._take(record, role)
            case _:
                self._change(effect)

    def _change(self, effect: Confirm | Lead | EndStreams | Follow) -> None:
        replica = self._replica
        match effect:
            case Confirm(record):
                self._leading.record_came(record)
            case Lead():
                self._lead(effect)
            case EndStreams(leader, leader_epoch):
                replica.log.info("following", leader=leader, leader_epoch=leader_epoch)
                self._leading.end(leader, leader_epoch)
                self._intake.fail_all(replica.not_leader())
            case Follow(by_record):
                if by_record:
                    self._following.record_came()
                replica.touched(at_once=True)
                replica.changed.notify_all()

    def _take(self, record: LeaderAndIsr, role: Role) -> None:
        replica = self._replica
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
        replica.take_role(role)

    def _lead(self, lead: Lead) -> None:
        replica, hold_until = self._replica, lead.hold_until
        if hold_until is None:
            # Looked at only now that every lease is refused for the epoch before.
            hold_until = self.promises.until
        self._leading.begin(lead.record, hold_until=hold_until, saved=lead.saved)
        if lead.dead:
            self._restore_dead()
            return
        log_end = replica.store.log_end
        replica.log.info("leading", leader_epoch=lead.record.leader_epoch, log_end=log_end)
        self._intake.release()
        replica.touched(at_once=True)
        replica.changed.notify_all()
        replica.wake()

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
