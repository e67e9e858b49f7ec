"""The planned takeover of a partition: from its leader to an in-sync replica, in one stream.

    old leader                                   candidate
    PENDING (persisted): sends what it
      has, then Pending                    --> PENDING: applies and indexes eagerly, holds writes
    stops its indexer; waits until the     <-- acks that it is ready, with its
      candidate has indexed as much              indexed offset (DCP-08)
    DEAD: appends nothing more
      sends the rest, then Active           --> leads with the next epoch, answers held writes
    follows, answers what is left: NotLeader

The API server takes no part (DCP-09..11, HS-10): the coordinator has written the next leader and
epoch before (RM: UpdateMetadataDown) and reads the outcome from both sides' reports. Where it
can stop, and how it is mended:

- before DEAD: the old leader goes on as if nothing had been (FAILED, with the reason); but one
  that restarts then is dead already, because DEAD itself waits for no disk;
- after DEAD, before Active has left: the old leader stays dead. When the candidate's stream comes
  back, the rest and Active are sent again; else the coordinator decides, by UpgradeCandidate at
  the candidate or by a higher epoch for the old leader (RM-08);
- after Active has left and the candidate has not got it: the old leader follows already, the
  candidate does not lead; the coordinator's UpgradeCandidate or a higher epoch mends it.

What follows from what is decided by `core.transfer`, which is pure; here it is done.

Concurrency: everything here is an `entry` or runs within one; sending is the channel's business.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from rezone.datanode.core.transfer import (
    Die,
    Finish,
    Follow,
    GiveUp,
    Lead,
    LookAgain,
    Looked,
    Opened,
    Sent,
    Side,
    Ticked,
    Told,
    Transfer,
)
from rezone.datanode.indexing.indexing import IndexDuties, index_lacks
from rezone.datanode.replication.leader import LeaderDuties
from rezone.datanode.replication.roles import Roles
from rezone.datanode.replication.stream import ProducerStream
from rezone.datanode.state.replica_state import ReplicaState
from rezone.datanode.state.runner import entry
from rezone.datanode.writing.write import WriteIntake
from rezone.wire.errors import ConflictError, NotReadyError, StaleEpochError
from rezone.wire.messages import IndexPosition, NodeId, Role, SetState, TakeoverState
from rezone.wire.messages import Takeover as TakeoverRequest

_WRITES_WAIT_SHARE = 0.75
"""The share of a takeover's time, at its end, in which writes wait for the candidate (B-16)."""


class ClientNews(NamedTuple):
    """How clients hear who leads, before and after; without any lock."""

    warn: Callable[[NodeId], None]
    tell: Callable[[], None]


class TakeoverProcess:
    """What is done for a partition's part in takeovers; how far it is stands in `Transfer`."""

    def __init__(
        self,
        replica: ReplicaState,
        roles: Roles,
        leading: LeaderDuties,
        intake: WriteIntake,
        index: IndexDuties,
        *,
        clients: ClientNews,
    ) -> None:
        self._replica = replica
        self.runner = replica.runner
        self._roles = roles
        self._leading = leading
        self._intake = intake
        self._index = index
        self._clients = clients
        self._stream: ProducerStream | None = None

    def missing_rows(self, now: float) -> int | None:
        """Return what the candidate of a takeover that drags on lacks; None while it need not wait.

        It does after a part of its time: nearly all takeovers are over long before.
        """
        given = self._replica.settings.takeover_timeout_ms / 1000
        transfer = self._replica.transfer
        if not transfer.hands_over or self._stream is None:
            return None
        if now < transfer.deadline - given * _WRITES_WAIT_SHARE:
            return None
        return self._replica.store.log_end - self._stream.acked_offset

    # --- the old leader --------------------------------------------------------------------------

    def start(self, request: TakeoverRequest) -> None:
        """Begin to hand over (DCP-09); a repeat and "already done" are no errors.

        ConflictError when the candidate is not in sync, has no stream, or is not the one the
        coordinator has authorised; NotLeaderError and StaleEpochError as everywhere.
        """
        replica, record, now = self._replica, self._replica.record, self._replica.transfer
        if record.leader == request.candidate and replica.leader_epoch == request.next_epoch:
            return
        if replica.leader_epoch != request.leader_epoch:
            raise StaleEpochError(
                f"the leader epoch is {replica.leader_epoch}, not {request.leader_epoch}",
                leader_epoch=replica.leader_epoch,
            )
        if replica.role is not Role.LEADER:
            raise replica.not_leader()
        if now.side is Side.OLD and now.state in {TakeoverState.PENDING, TakeoverState.DEAD}:
            if (now.candidate, now.epoch) == (request.candidate, request.next_epoch):
                return
            raise ConflictError(f"a takeover by node {now.candidate} is under way")
        if (record.next_leader, record.next_epoch) != (request.candidate, request.next_epoch):
            raise ConflictError(
                f"node {request.candidate} with epoch {request.next_epoch} is not authorised: "
                f"next is node {record.next_leader} with epoch {record.next_epoch}",
            )
        if request.candidate not in record.isr:
            raise ConflictError(f"node {request.candidate} is not in sync")
        stream = self._leading.streams.get(request.candidate)
        if stream is None or stream.ended:
            raise ConflictError(f"node {request.candidate} has no stream of the partition")
        self._begin(request, stream)

    def _begin(self, request: TakeoverRequest, stream: ProducerStream) -> None:
        replica = self._replica
        timeout = replica.settings.takeover_timeout_ms / 1000
        attempt = Transfer(
            side=Side.OLD,
            state=TakeoverState.PENDING,
            epoch=request.next_epoch,
            candidate=request.candidate,
            deadline=replica.clock.monotonic() + timeout,
            end_offset=replica.store.log_end,
            answered=self._intake.answered,
            rows_max=replica.settings.takeover_rows_max,
            quiet_seconds=replica.settings.takeover_quiet_ms / 1000,
        )
        self._mark_dead(dead=True, durable=False)
        replica.begin_transfer(attempt)
        self._stream = stream
        replica.look_again(attempt.deadline)
        replica.log.info("handing over", candidate=attempt.candidate, next_epoch=attempt.epoch)
        stream.send_at(attempt.end_offset, self._message(TakeoverState.PENDING))
        replica.touched(at_once=True)

    def persist(self) -> None:
        """Bring the mark of a takeover that has begun to the disk, and stop the indexer (DCP-08).

        Called without the lock; writes still go on meanwhile. Later, between the last one here
        and the first one there, it would be too late: after a restart nothing may be appended
        behind the candidate's back.
        """
        replica = self._replica
        attempt, begun = self._attempt()
        if begun:
            self._clients.warn(attempt.candidate)
        with replica.guarding():
            replica.store.update_meta()
        self._note_persisted(attempt, self._index.stop() if begun else None, begun=begun)

    @entry
    def _attempt(self) -> tuple[Transfer, bool]:
        """Return the last takeover, and whether this replica is to hand over in it."""
        return self._replica.transfer, self._replica.transfer.hands_over

    @entry
    def _note_persisted(
        self, attempt: Transfer, index: IndexPosition | None, *, begun: bool
    ) -> None:
        if begun and self._replica.transfer is attempt and attempt.hands_over:
            attempt.note_indexed(index)
        elif begun:
            self._index.resume()
        attempt.note_persisted()
        self._replica.wake()

    def step(self) -> ProducerStream | None:
        """Go on when the candidate is ready and near, or give up before anything is lost by it.

        Return the stream that has the last message to send, for the caller to push.
        """
        replica, now = self._replica, self._replica.transfer
        if not now.hands_over:
            return None
        assert self._stream is not None, "a pending takeover has a stream"  # noqa: S101 - invariant
        match now.step(self._look(self._stream), replica.clock.monotonic()):
            case Die():
                self._die()
                return self._stream
            case GiveUp(reason):
                self._fail(reason)
            case LookAgain(at):
                replica.look_again(at)
        return None

    def _look(self, stream: ProducerStream) -> Looked:
        replica, transfer, intake = self._replica, self._replica.transfer, self._intake
        candidate = replica.require_leadership().follower(transfer.candidate)
        stopped = self._index.still_wanted(transfer.index)
        lacks = index_lacks(replica.store.meta.failover_log, stopped, candidate.index)
        return Looked(
            log_end=replica.store.log_end,
            acked=stream.acked_offset,
            ready_epoch=candidate.ready_epoch,
            lacks=lacks.why,
            for_good=lacks.final,
            stream_ended=stream.ended,
            unanswered=intake.unanswered,
            answered=intake.answered,
            answered_at=intake.answered_at,
        )

    def _die(self) -> None:
        replica = self._replica
        replica.write_gap.stop(replica.transfer.epoch, replica.clock.monotonic())
        self._finish_on_stream(tell=False)
        self._replica.touched(at_once=True)

    def _finish_on_stream(self, *, tell: bool = True) -> None:
        now = self._replica.transfer
        assert self._stream is not None, "who finishes has a stream"  # noqa: S101 - invariant
        self._stream.send_at(
            now.end_offset,
            self._message(TakeoverState.ACTIVE),
            last=True,
            tell=tell,
            on_sent=lambda: self._handed_over(now),
        )

    def _handed_over(self, attempt: Transfer) -> None:
        """Follow the candidate: the state change has left, and was the last message."""
        if self._follow(attempt):
            # First the clients: who writes at once is at the next leader, not here, by this.
            self._clients.tell()
            self._replica.restream()

    @entry
    def _follow(self, attempt: Transfer) -> bool:
        """Follow the candidate; False when that is not this leader's to do any more."""
        replica = self._replica
        now = replica.clock.monotonic()
        if replica.transfer is not attempt or attempt.step(Sent(), now) != Follow():
            return False
        self._index.resume()
        replica.log.info("handed over", leader=attempt.candidate, leader_epoch=attempt.epoch)
        self._roles.hand_over(attempt.candidate, attempt.epoch)
        return True

    def stream_opened(self, stream: ProducerStream) -> None:
        """Send the end of the log and Active again to a candidate that has come back."""
        replica = self._replica
        opened = Opened(stream.node)
        if replica.transfer.step(opened, replica.clock.monotonic()) == Finish():
            self._stream = stream
            self._finish_on_stream()

    def _fail(self, reason: str) -> None:
        replica, now = self._replica, self._replica.transfer
        replica.log.warning("the takeover has failed", reason=reason)
        self._mark_dead(dead=False, durable=True)
        now.fail(reason)
        self._index.resume()
        if self._stream is not None and not self._stream.ended:
            self._stream.send_at(0, self._message(TakeoverState.FAILED))
        replica.touched(at_once=True)

    def _mark_dead(self, *, dead: bool, durable: bool) -> None:
        """Note whether this leader may lead on after a restart, or only hand over."""
        role = Role.FOLLOWER if dead else Role.LEADER
        self._replica.store.update_meta(role=role, durable=durable)

    def _message(self, state: TakeoverState) -> SetState:
        replica, now = self._replica, self._replica.transfer
        state_here = replica.require_leadership()
        held_seconds = max(0.0, state_here.hold_until - replica.clock.monotonic())
        return SetState(
            partition=replica.partition_id,
            state=state,
            leader_epoch=replica.leader_epoch,
            next_epoch=now.epoch,
            isr=replica.record.isr,
            replicas=replica.record.replicas,
            end_offset=now.end_offset,
            eligible=replica.record.eligible,
            hold_ms=math.ceil(held_seconds * 1000),
            time_floor=replica.write_clock.floor,
            # Without what was dropped since: the candidate may not have heard of that yet.
            index=self._index.still_wanted(now.index),
        )

    # --- the candidate ---------------------------------------------------------------------------

    @entry
    def state_set(self, message: SetState) -> None:
        """Take the producer's state change (DCP-10); StaleEpochError when of another epoch."""
        replica = self._replica
        if replica.role is Role.LEADER or message.leader_epoch != replica.leader_epoch:
            raise StaleEpochError(
                f"a state change of epoch {message.leader_epoch}",
                leader_epoch=replica.leader_epoch,
            )
        timeout = replica.settings.takeover_timeout_ms / 1000
        attempt = Transfer(
            side=Side.NEW,
            state=message.state,
            epoch=message.next_epoch,
            candidate=replica.node_id,
            deadline=replica.clock.monotonic() + timeout,
            end_offset=message.end_offset,
        )
        replica.begin_transfer(attempt)
        replica.look_again(attempt.deadline)
        told = Told(replica.store.log_end, self._index.lacks(message.index))
        match attempt.step(told, replica.clock.monotonic()):
            case Lead():
                self._roles.take_over(message)
            case GiveUp(reason):
                attempt.fail(reason)
                given_up = message.state is TakeoverState.FAILED
                refused = NotReadyError("the takeover has failed")
                self._intake.fail_held(replica.not_leader() if given_up else refused)
        replica.touched(at_once=True)
        replica.wake()
        replica.restream()

    def tick(self, now: float) -> None:
        """Watch the deadlines of both sides, and of what is held."""
        replica, attempt = self._replica, self._replica.transfer
        match attempt.step(Ticked(), now):
            case GiveUp(reason):
                attempt.fail(reason)
                replica.touched(at_once=True)
        if attempt.hands_over:
            replica.wake()  # its job takes the step
        if attempt.eager or attempt.hands_over:
            replica.look_again(attempt.deadline)
        self._intake.tick(replica.not_leader_or_not_ready(), now)
