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

Concurrency: everything here runs under the partition's lock; sending is the channel's business.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from rezone.datanode.indexing.indexing import IndexDuties, index_lacks
from rezone.datanode.replication.leader import LeaderDuties
from rezone.datanode.replication.roles import Roles
from rezone.datanode.replication.stream import ProducerStream
from rezone.datanode.state.replica_state import ReplicaState
from rezone.datanode.state.transfer import Side, Transfer
from rezone.datanode.writing.write import WriteIntake
from rezone.wire.errors import ConflictError, NotReadyError, StaleEpochError
from rezone.wire.messages import NodeId, Role, SetState, TakeoverState
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
        with replica.lock:
            attempt, begun = replica.transfer, replica.transfer.hands_over
        if begun:
            self._clients.warn(attempt.candidate)
        with replica.guarding():
            replica.store.update_meta()
        index = self._index.stop() if begun else None
        with replica.lock:
            if begun and replica.transfer is attempt and attempt.hands_over:
                attempt.note_indexed(index)
            elif begun:
                self._index.resume()
            attempt.note_persisted()
        replica.wake()

    def step(self) -> ProducerStream | None:
        """Go on when the candidate is ready and near, or give up before anything is lost by it.

        Return the stream that has the last message to send, for the caller to push.
        """
        replica, now = self._replica, self._replica.transfer
        if not now.hands_over:
            return None
        assert self._stream is not None, "a pending takeover has a stream"  # noqa: S101 - invariant
        missing = replica.store.log_end - self._stream.acked_offset
        candidate = replica.require_leadership().follower(now.candidate)
        ready = now.persisted and candidate.ready_epoch == now.epoch
        stopped = self._index.still_wanted(now.index)
        lacks = index_lacks(replica.store.meta.failover_log, stopped, candidate.index)
        if self._stream.ended:
            self._fail("the candidate's stream has ended")
        elif lacks.final:
            self._fail(f"the candidate's {lacks}")
        elif ready and not lacks and missing <= replica.settings.takeover_rows_max:
            if self._waits_for_answers():
                return None
            self._die()
            return self._stream
        elif replica.clock.monotonic() > now.deadline:
            why = f"candidate's {lacks}" if lacks else f"candidate still misses {missing} rows"
            self._fail(f"the {why} after the time given")
        return None

    def _waits_for_answers(self) -> bool:
        """Whether a better moment is near: the one behind an answer, with no other write under way.

        A write that this leader cannot answer any more makes its way to the next one, and is there
        before that has its followers. Behind an answer the client has something else to do first.
        Where nobody has written lately any moment is good; writers that overlap leave none, and
        are waited for no longer than `takeover_quiet_ms`.
        """
        replica, attempt = self._replica, self._replica.transfer
        intake, now = self._intake, replica.clock.monotonic()
        quiet_seconds = replica.settings.takeover_quiet_ms / 1000
        quiet_until = attempt.wait_quietly(now + quiet_seconds)
        answering = attempt.note_answered(intake.answered)
        written_lately = now - intake.answered_at < quiet_seconds
        good = not intake.unanswered and (answering or not written_lately)
        if good or now >= quiet_until:
            return False
        replica.look_again(quiet_until)
        return True

    def _die(self) -> None:
        replica = self._replica
        replica.transfer.die(replica.store.log_end)
        self._finish_on_stream(tell=False)
        replica.touched(at_once=True)

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
        replica = self._replica
        with replica.lock:
            if replica.transfer is not attempt or attempt.state is not TakeoverState.DEAD:
                return
            attempt.succeed()
            record = msgspec.structs.replace(
                replica.record,
                leader=attempt.candidate,
                leader_epoch=attempt.epoch,
                next_leader=None,
                next_epoch=None,
            )
            self._index.resume()
            replica.log.info("handed over", leader=record.leader, leader_epoch=attempt.epoch)
            # The disk knows that this leader is dead; the new epoch comes in with the first stream.
            self._roles.become_follower(record, durable=False)
        # First the clients: who writes at once is at the next leader, not here, by this.
        self._clients.tell()
        replica.restream()

    def stream_opened(self, stream: ProducerStream) -> None:
        """Send the end of the log and Active again to a candidate that has come back."""
        transfer = self._replica.transfer
        if transfer.blocks_writes and stream.node == transfer.candidate:
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

    def state_set(self, message: SetState) -> None:
        """Take the producer's state change (DCP-10); StaleEpochError when of another epoch."""
        replica = self._replica
        with replica.lock:
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
            if message.state is TakeoverState.ACTIVE:
                self._lead(message)
            elif message.state is TakeoverState.FAILED:
                attempt.fail("the leader has given up")
                self._intake.fail_held(replica.not_leader())
            replica.touched(at_once=True)
        replica.wake()
        replica.restream()

    def _lead(self, message: SetState) -> None:
        replica, attempt = self._replica, self._replica.transfer
        log_end = replica.store.log_end
        if log_end != message.end_offset:
            attempt.fail(f"the log ends at {log_end}, the leader's at {message.end_offset}")
            self._intake.fail_held(NotReadyError("the takeover has failed"))
            return
        if lacks := self._index.lacks(message.index):
            attempt.fail(lacks)
            self._intake.fail_held(NotReadyError("the takeover has failed"))
            return
        record = msgspec.structs.replace(
            replica.record,
            leader=replica.node_id,
            leader_epoch=message.next_epoch,
            isr=message.isr,
            replicas=message.replicas,
            eligible=message.eligible,
            next_leader=None,
            next_epoch=None,
        )
        # The old leader has given up its leases with its last message.
        hold_until = replica.clock.monotonic() + message.hold_ms / 1000
        replica.write_clock.raise_to(message.time_floor)
        # In the write gap: the disk comes in before anything is committed.
        self._roles.become_leader(record, hold_until=hold_until, durable=False)

    def tick(self, now: float) -> None:
        """Watch the deadlines of both sides, and of what is held."""
        replica, attempt = self._replica, self._replica.transfer
        if attempt.eager and now > attempt.deadline:
            attempt.fail("the leader's state change did not come in time")
            replica.touched(at_once=True)
        if attempt.hands_over:
            replica.wake()  # its job takes the step
        if attempt.eager or attempt.hands_over:
            replica.look_again(attempt.deadline)
        self._intake.tick(replica.not_leader_or_not_ready(), now)
