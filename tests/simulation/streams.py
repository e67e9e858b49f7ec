"""Replication between data nodes: real duties on both ends of a simulated wire.

A stream carries entries and messages in order, one step of the world behind; a link that breaks
loses what is on it. It has the methods of `ProducerStream` that a leader calls; `Follower` does
what `ConsumerChannel` does for one partition.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from rezone.replica.lease import Promise, Rounds
from rezone.replica.positions import stamps_of
from rezone.replica.stream import ProducerStream
from rezone.wire.errors import NotReadyError, RezoneError
from rezone.wire.messages import (
    ClosedTime,
    Entries,
    FetchLog,
    LeaseGrant,
    LeaseRequest,
    Message,
    NodeId,
    SetState,
    StreamEnd,
    StreamNeedsSnapshot,
    StreamOk,
    StreamRollback,
    TakeoverState,
)
from simulation.disk import MachineDiedError

if TYPE_CHECKING:
    from rezone.replica.partition import Partition
    from simulation.node import SimulatedNode

ENTRIES_PER_STEP = 16
RETRY_SECONDS = 0.2


class _Control(NamedTuple):
    offset: int
    message: Message
    last: bool
    on_sent: Callable[[], None] | None


class SimulatedStream:
    """One partition's stream, as its leader holds it."""

    def __init__(self, leader: Partition, node: NodeId, offset: int) -> None:
        self.leader = leader
        self.node = node
        self.sent_offset = offset
        self.acked_offset = -1
        self.committed_sent = -1
        self.ended = False
        self.wire: collections.deque[Any] = collections.deque()
        self._controls: collections.deque[_Control] = collections.deque()
        settings = leader.settings
        self.rounds = Rounds(settings.lease_ms, settings.clock_drift_percent)
        self._asks = True

    @property
    def held(self) -> ProducerStream:
        """This, as what its leader takes it for."""
        return cast("ProducerStream", self)

    def cut(self) -> None:
        """End with the process that holds it: what is on the wire is lost."""
        self.ended = True
        self.wire.clear()

    def ask_lease(self) -> None:
        """Ask for a lease with the next step."""
        self._asks = True

    def wake(self) -> None:
        """Need no waking: every step looks."""

    def push(self) -> None:
        """Send with the next step."""

    def send_at(
        self,
        offset: int,
        message: Message,
        *,
        last: bool = False,
        tell: bool = True,
        on_sent: Callable[[], None] | None = None,
    ) -> None:
        """Send a message once all entries below `offset` are sent."""
        del tell  # every step looks
        self._controls.append(_Control(offset, message, last, on_sent))

    def end(
        self,
        reason: str,
        leader: NodeId | None = None,
        epoch: int | None = None,
        *,
        tell: bool = True,
    ) -> None:
        """Send StreamEnd in place of all that was still to be sent."""
        del tell  # every step looks
        if self.ended:
            return
        self.ended = True
        self._controls.clear()
        self.wire.append(
            StreamEnd(
                partition=self.leader.partition_id,
                reason=reason,
                leader=leader,
                leader_epoch=epoch,
            ),
        )

    def send(self, *, lose_active: Callable[[], bool]) -> None:
        """Put on the wire what is due; `lose_active` says whether a last message is lost."""
        if self.ended:
            return
        leader = self.leader
        epoch = leader.leader_epoch
        for _ in range(ENTRIES_PER_STEP):
            try:
                raw = leader.leading.read_log(self.sent_offset, 1)
            except RezoneError as error:
                self.end(f"the log cannot be read: {error}")
                return
            if not raw:
                break
            self._entries(epoch, raw)
            self.sent_offset = stamps_of(raw)[-1][0]
        if self.committed_sent < leader.positions.committed:
            self._entries(epoch, b"")
        clock = leader.clock
        if self._asks or self.rounds.is_due(clock.monotonic()):
            self._asks = False
            closed = leader.closing.close()
            if closed is not None:
                self.wire.append(closed)
            self.wire.append(self.rounds.ask(clock.monotonic(), clock.micros()))
        while self._controls and self._controls[0].offset <= self.sent_offset and not self.ended:
            self._send_control(self._controls.popleft(), lose_active)

    def _entries(self, epoch: int, raw: bytes) -> None:
        committed = self.leader.positions.committed
        frame = Entries(
            partition=self.leader.partition_id, leader_epoch=epoch, committed_offset=committed
        )
        self.committed_sent = committed
        self.wire.append((frame, raw))

    def _send_control(self, control: _Control, lose_active: Callable[[], bool]) -> None:
        message = control.message
        lost = (
            isinstance(message, SetState)
            and message.state is TakeoverState.ACTIVE
            and lose_active()
        )
        if not lost:
            self.wire.append(message)
        if control.last:
            self.ended = True
            self.wire.append(None)
        if control.on_sent is not None:
            control.on_sent()


class Follower:
    """The consumer's side of one partition on one node."""

    def __init__(self, node: SimulatedNode, partition: Partition) -> None:
        self._node = node
        self._partition = partition
        self._stream: SimulatedStream | None = None
        self._epoch = 0
        self._link: tuple[NodeId | None, int, int] | None = None
        self._retry_at = 0.0
        self._acks: collections.deque[tuple[SimulatedStream, FetchLog | LeaseGrant]] = (
            collections.deque()
        )

    def ack(self) -> None:
        """Send an ack; it arrives a step later."""
        if self._stream is not None and not self._stream.ended:
            self._acks.append((self._stream, self._partition.following.ack_of(0)))

    def close(self) -> None:
        """Break the stream; the leader notices."""
        stream, self._stream = self._stream, None
        if stream is None:
            return
        stream.wire.clear()
        if not stream.ended:
            stream.ended = True
            stream.leader.leading.detach_stream(stream.held)

    def step(self, now: float) -> None:
        """Make the stream fit the replica's state, and move what is on it."""
        try:
            self._step(now)
        except MachineDiedError as died:
            # The leader's machine, perhaps: this node goes on, and sees the stream end.
            self._node.network.died(died)
            if self._node.network.nodes.get(self._node.node_id) is not self._node:
                raise

    def _step(self, now: float) -> None:
        partition, network = self._partition, self._node.network
        source = partition.streams_from
        link = (source, partition.leader_epoch, partition.copies)
        if link != self._link:
            self._link = link
            self._retry_at = 0.0
            self.close()
        if source is None:
            return
        if not network.linked(self._node.node_id, source):
            self._failed(f"no connection to node {source}", now)
            return
        if self._stream is None:
            if now >= self._retry_at:
                self._open(source, now)
            return
        if self._stream.ended and not self._stream.wire:
            # The process that led is gone, and there again before this one has looked.
            self._failed("the connection broke", now)
            return
        self._deliver_acks()
        self._receive(now)
        if self._stream is not None:
            self._stream.send(lose_active=network.loses_active)

    def _failed(self, why: str, now: float) -> None:
        self.close()
        self._retry_at = now + RETRY_SECONDS
        self._partition.following.stream_failed(why)

    def _open(self, source: NodeId, now: float) -> None:
        following = self._partition.following
        request = following.stream_request(0)
        self._epoch = request.leader_epoch
        try:
            leader = self._node.network.node(source).find(self._partition.partition_id)
            stream = SimulatedStream(leader, self._node.node_id, request.high_offset)
            answer = leader.leading.open_stream(stream.held, request)
            self._answered(answer, stream)
        except RezoneError as error:
            self._failed(str(error), now)

    def _answered(self, answer: Message, stream: SimulatedStream) -> None:
        following = self._partition.following
        match answer:
            case StreamOk():
                following.stream_started(answer)
                self._stream = stream
                following.stream_failed("")
                self.ack()
            case StreamRollback():
                following.roll_back(answer.offset)
            case StreamNeedsSnapshot():
                following.snapshot_needed(answer.log_start_offset)
            case _:
                raise NotReadyError(f"{type(answer).__name__} is no answer to a stream request")

    def _deliver_acks(self) -> None:
        while self._acks:
            stream, ack = self._acks.popleft()
            if stream is not self._stream or stream.ended:
                continue
            if isinstance(ack, LeaseGrant):
                lease = stream.rounds.answered(ack)
                assert lease is not None
                stream.leader.leading.granted(stream.held, lease)
            else:
                stream.acked_offset = ack.fetch_offset
                stream.leader.leading.acked(stream.held, ack)

    def _grant(self, request: LeaseRequest) -> None:
        stream, lease_ms = self._stream, self._partition.settings.lease_ms
        assert stream is not None
        self._node.told.reach(request.time)
        until = self._node.clock.monotonic() + lease_ms / 1000
        leader = stream.leader
        self._node.promises[leader.node_id] = Promise(until, request.time)
        if self._partition.following.follows(leader.node_id, self._epoch):
            self._acks.append((stream, LeaseGrant(round=request.round, lease_ms=lease_ms)))

    def _receive(self, now: float) -> None:
        stream = self._stream
        assert stream is not None
        try:
            for _ in range(len(stream.wire)):
                if self._stream is not stream or not stream.wire:
                    return
                self._dispatch(stream.wire.popleft(), now)
        except RezoneError as error:
            self._failed(str(error), now)

    def _dispatch(self, message: Any, now: float) -> None:
        following = self._partition.following
        match message:
            case (Entries() as frame, bytes() as raw):
                following.receive(frame, memoryview(raw))
            case LeaseRequest():
                self._grant(message)
            case ClosedTime():
                following.time_closed(message)
            case SetState():
                following.state_set(message)
            case StreamEnd():
                self._failed(f"the leader has ended the stream: {message.reason}", now)
                following.stream_ended(message)
            case _:
                self._failed("the stream has ended", now)
