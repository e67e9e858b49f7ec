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

import enum
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from rezone.datanode.indexing.indexing import index_lacks
from rezone.datanode.replication.stream import ProducerStream
from rezone.wire.errors import ConflictError, NotReadyError, StaleEpochError
from rezone.wire.messages import IndexPosition, NodeId, Role, SetState, TakeoverState
from rezone.wire.messages import Takeover as TakeoverRequest

if TYPE_CHECKING:
    from rezone.datanode.replica.replica import Replica


_WRITES_WAIT_SHARE = 0.75
"""The share of a takeover's time, at its end, in which writes wait for the candidate (B-16)."""


class Side(enum.Enum):
    """Which end of a takeover this replica is."""

    NONE = enum.auto()
    OLD = enum.auto()
    NEW = enum.auto()


@dataclass
class _Attempt:
    """One takeover as one side sees it."""

    side: Side = Side.NONE
    state: TakeoverState = TakeoverState.NONE
    epoch: int = 0
    error: str = ""
    candidate: NodeId = -1
    stream: ProducerStream | None = None
    deadline: float = 0.0
    quiet_until: float | None = None
    answered: int = 0
    end_offset: int = 0
    prepared: bool = False
    persisted: bool = False
    index: IndexPosition | None = None

    @property
    def is_dead(self) -> bool:
        """Whether the old leader appends nothing more and has not handed over yet."""
        return self.side is Side.OLD and self.state is TakeoverState.DEAD

    @property
    def is_eager(self) -> bool:
        """Whether the candidate waits for the state change."""
        return self.side is Side.NEW and self.state is TakeoverState.PENDING

    @property
    def hands_over(self) -> bool:
        """Whether the old leader still leads."""
        return self.side is Side.OLD and self.state is TakeoverState.PENDING

    def note_prepared(self) -> None:
        """Note that the candidate's job has run."""
        self.prepared = self.is_eager

    def note_indexed(self, index: IndexPosition | None) -> None:
        """Note where the old leader's indexer has stopped."""
        self.index = index

    def note_persisted(self) -> None:
        """Note that the takeover is on the old leader's disk."""
        self.persisted = True

    def wait_quietly(self, until: float) -> float:
        """Return until when a good moment is waited for; the first call says that."""
        if self.quiet_until is None:
            self.quiet_until = until
        return self.quiet_until

    def note_answered(self, answered: int) -> bool:
        """Note how many writes have been answered; whether that is more than before."""
        more = answered > self.answered
        self.answered = answered
        return more

    def die(self, end_offset: int) -> None:
        """End the old leader's log."""
        self.state, self.end_offset = TakeoverState.DEAD, end_offset

    def resume_on(self, stream: ProducerStream) -> None:
        """Go on with another stream of the candidate."""
        self.stream = stream

    def succeed(self) -> None:
        """Note that the candidate has been told to lead."""
        self.state = TakeoverState.ACTIVE

    def fail(self, reason: str) -> None:
        """End without a new leader."""
        self.state, self.error = TakeoverState.FAILED, reason


class TakeoverProcess:
    """A partition's part in takeovers, the last one's outcome included."""

    def __init__(self, replica: "Replica") -> None:
        self._replica = replica
        self._now = _Attempt()

    @property
    def state(self) -> TakeoverState:
        """How far the takeover has come."""
        return self._now.state

    @property
    def epoch(self) -> int:
        """The epoch the candidate is to lead with."""
        return self._now.epoch

    @property
    def error(self) -> str:
        """Why it failed."""
        return self._now.error

    @property
    def blocks_writes(self) -> bool:
        """Whether this replica is the old leader and dead: writes are held, reads wait."""
        return self._now.is_dead

    @property
    def eager(self) -> bool:
        """Whether this replica is about to lead: it applies at once and holds writes."""
        return self._now.is_eager

    @property
    def ready_epoch(self) -> int:
        """The epoch this replica waits to lead in, its job having run for that; 0 for none."""
        return self._now.epoch if self.eager and self._now.prepared else 0

    def prepared(self) -> None:
        """Note that the job has run since this replica is a candidate; under the lock.

        The old leader waits for it, while writes go on there: whatever a candidate does first
        would stand in the write gap, and one that does nothing at all is noticed in time.
        """
        self._now.note_prepared()

    @property
    def hands_over(self) -> bool:
        """Whether this replica is the old leader and still leads; after a restart it is dead."""
        return self._now.hands_over

    def missing_rows(self, now: float) -> int | None:
        """Return what the candidate of a takeover that drags on lacks; None while it need not wait.

        It does after a part of its time: nearly all takeovers are over long before.
        """
        given = self._replica.settings.takeover_timeout_ms / 1000
        if not self.hands_over or self._now.stream is None:
            return None
        if now < self._now.deadline - given * _WRITES_WAIT_SHARE:
            return None
        return self._replica.store.log_end - self._now.stream.acked_offset

    def clear(self) -> None:
        """Forget the takeover: the coordinator has decided anew."""
        self._now = _Attempt()
        self._replica.index.resume()

    def restore_dead(self) -> None:
        """Be dead again after a restart; who the candidate is stands in the partition's record."""
        record = self._replica.record
        self._now = _Attempt(
            side=Side.OLD,
            state=TakeoverState.DEAD,
            epoch=record.next_epoch or 0,
            candidate=-1 if record.next_leader is None else record.next_leader,
            end_offset=self._replica.store.log_end,
            index=self._replica.index.stop(),
        )

    # --- the old leader --------------------------------------------------------------------------

    def start(self, request: TakeoverRequest) -> None:
        """Begin to hand over (DCP-09); a repeat and "already done" are no errors.

        ConflictError when the candidate is not in sync, has no stream, or is not the one the
        coordinator has authorised; NotLeaderError and StaleEpochError as everywhere.
        """
        replica, record, now = self._replica, self._replica.record, self._now
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
        stream = replica.leading.streams.get(request.candidate)
        if stream is None or stream.ended:
            raise ConflictError(f"node {request.candidate} has no stream of the partition")
        self._begin(request, stream)

    def _begin(self, request: TakeoverRequest, stream: ProducerStream) -> None:
        replica = self._replica
        timeout = replica.settings.takeover_timeout_ms / 1000
        attempt = _Attempt(
            side=Side.OLD,
            state=TakeoverState.PENDING,
            epoch=request.next_epoch,
            candidate=request.candidate,
            stream=stream,
            deadline=replica.clock.monotonic() + timeout,
            end_offset=replica.store.log_end,
            answered=replica.intake.answered,
        )
        replica.roles.mark_dead(dead=True, durable=False)
        self._now = attempt
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
            attempt, begun = self._now, self.hands_over
        if begun:
            replica.host.warn_clients(replica, attempt.candidate)
        with replica.failing.guarding():
            replica.store.update_meta()
        index = replica.index.stop() if begun else None
        with replica.lock:
            if begun and self._now is attempt and self.hands_over:
                attempt.note_indexed(index)
            elif begun:
                replica.index.resume()
            attempt.note_persisted()
        replica.wake()

    def step(self) -> ProducerStream | None:
        """Go on when the candidate is ready and near, or give up before anything is lost by it.

        Return the stream that has the last message to send, for the caller to push.
        """
        replica, now = self._replica, self._now
        if not self.hands_over:
            return None
        assert now.stream is not None, "a pending takeover has a stream"  # noqa: S101 - invariant
        missing = replica.store.log_end - now.stream.acked_offset
        candidate = replica.leading.require_state().follower(now.candidate)
        ready = now.persisted and candidate.ready_epoch == now.epoch
        stopped = replica.index.still_wanted(now.index)
        lacks = index_lacks(replica.store.meta.failover_log, stopped, candidate.index)
        if now.stream.ended:
            self._fail("the candidate's stream has ended")
        elif lacks.final:
            self._fail(f"the candidate's {lacks}")
        elif ready and not lacks and missing <= replica.settings.takeover_rows_max:
            if self._waits_for_answers():
                return None
            self._die()
            return now.stream
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
        replica, attempt = self._replica, self._now
        intake, now = replica.intake, replica.clock.monotonic()
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
        self._now.die(replica.store.log_end)
        self._finish_on_stream(tell=False)
        replica.touched(at_once=True)

    def _finish_on_stream(self, *, tell: bool = True) -> None:
        now = self._now
        assert now.stream is not None, "who finishes has a stream"  # noqa: S101 - invariant
        now.stream.send_at(
            now.end_offset,
            self._message(TakeoverState.ACTIVE),
            last=True,
            tell=tell,
            on_sent=lambda: self._handed_over(now),
        )

    def _handed_over(self, attempt: _Attempt) -> None:
        """Follow the candidate: the state change has left, and was the last message."""
        replica = self._replica
        with replica.lock:
            if self._now is not attempt or attempt.state is not TakeoverState.DEAD:
                return
            attempt.succeed()
            record = msgspec.structs.replace(
                replica.record,
                leader=attempt.candidate,
                leader_epoch=attempt.epoch,
                next_leader=None,
                next_epoch=None,
            )
            replica.index.resume()
            replica.log.info("handed over", leader=record.leader, leader_epoch=attempt.epoch)
            # The disk knows that this leader is dead; the new epoch comes in with the first stream.
            replica.roles.become_follower(record, durable=False)
        # First the clients: who writes at once is at the next leader, not here, by this.
        replica.host.tell_clients(replica)
        replica.host.restream(replica)

    def stream_opened(self, stream: ProducerStream) -> None:
        """Send the end of the log and Active again to a candidate that has come back."""
        now = self._now
        if self.blocks_writes and stream.node == now.candidate:
            now.resume_on(stream)
            self._finish_on_stream()

    def _fail(self, reason: str) -> None:
        replica, now = self._replica, self._now
        replica.log.warning("the takeover has failed", reason=reason)
        replica.roles.mark_dead(dead=False, durable=True)
        now.fail(reason)
        replica.index.resume()
        if now.stream is not None and not now.stream.ended:
            now.stream.send_at(0, self._message(TakeoverState.FAILED))
        replica.touched(at_once=True)

    def _message(self, state: TakeoverState) -> SetState:
        replica, now = self._replica, self._now
        state_here = replica.leading.require_state()
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
            index=replica.index.still_wanted(now.index),
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
            self._now = _Attempt(
                side=Side.NEW,
                state=message.state,
                epoch=message.next_epoch,
                candidate=replica.node_id,
                deadline=replica.clock.monotonic() + timeout,
                end_offset=message.end_offset,
            )
            replica.look_again(self._now.deadline)
            if message.state is TakeoverState.ACTIVE:
                self._lead(message)
            elif message.state is TakeoverState.FAILED:
                self._now.fail("the leader has given up")
                replica.intake.fail_held(replica.not_leader())
            replica.touched(at_once=True)
        replica.wake()
        replica.host.restream(replica)

    def _lead(self, message: SetState) -> None:
        replica, attempt = self._replica, self._now
        log_end = replica.store.log_end
        if log_end != message.end_offset:
            attempt.fail(f"the log ends at {log_end}, the leader's at {message.end_offset}")
            replica.intake.fail_held(NotReadyError("the takeover has failed"))
            return
        if lacks := replica.index.lacks(message.index):
            attempt.fail(lacks)
            replica.intake.fail_held(NotReadyError("the takeover has failed"))
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
        replica.roles.become_leader(record, hold_until=hold_until, durable=False)

    def tick(self, now: float) -> None:
        """Watch the deadlines of both sides, and of what is held."""
        replica, attempt = self._replica, self._now
        if self.eager and now > attempt.deadline:
            attempt.fail("the leader's state change did not come in time")
            replica.touched(at_once=True)
        if self.hands_over:
            replica.wake()  # its job takes the step
        if self.eager or self.hands_over:
            replica.look_again(attempt.deadline)
        replica.intake.tick(replica.not_leader_or_not_ready(), now)
