"""Replication between data nodes: real duties on both ends of a simulated wire.

A stream carries entries and messages in order, one step of the world behind; a link that breaks
loses what is on it, and both ends see it. On a silent one nothing arrives, as long as it is, and
each end has to find out by itself: what is on the wire comes later if none has, and otherwise the
end that has not given up is half-open. A stream has the methods of `ProducerStream` that a leader
calls; `Follower` does what `ConsumerChannel` does for one partition.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from rezone.datanode.clock.checked_clock import Exchange
from rezone.datanode.commit.lease import Promise, Rounds
from rezone.datanode.commit.positions import stamps_of
from rezone.datanode.replication.stream import ProducerStream
from rezone.wire.errors import NotReadyError, RezoneError
from rezone.wire.messages import (
    ClosedTime,
    Entries,
    FetchLog,
    Heartbeat,
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
from rezone.wire.transport.liveness import Liveness
from simulation.nodes.disk import MachineDiedError

if TYPE_CHECKING:
    from rezone.datanode.replica.replica import Replica
    from simulation.nodes.node import SimulatedNode

ENTRIES_PER_STEP = 16
RETRY_SECONDS = 0.2


class _Control(NamedTuple):
    offset: int
    message: Message
    last: bool
    on_sent: Callable[[], None] | None


class SimulatedStream:
    """One partition's stream, as its leader holds it."""

    def __init__(self, leader: Replica, node: NodeId, offset: int) -> None:
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
        self.times = Exchange(leader.host.clock, node)
        self._asks = True
        self.liveness = _liveness_of(leader)
        self.half_open = False

    @property
    def held(self) -> ProducerStream:
        """This, as what its leader takes it for."""
        return cast("ProducerStream", self)

    def give_up(self) -> None:
        """End at the leader alone: what says so to the other end is lost."""
        self.half_open = True
        self.ended = True
        self.wire.clear()
        self.leader.leading.detach_stream(self.held)

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
        released_epoch: int = 0,
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
                released_epoch=released_epoch,
            ),
        )

    def send(self, *, lose_active: Callable[[], bool]) -> None:
        """Put on the wire what is due; `lose_active` says whether a last message is lost."""
        if self.ended:
            return
        leader = self.leader
        if self.stalled:
            self._beat_and_ask()
            return
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
        self._beat_and_ask()
        while self._controls and self._controls[0].offset <= self.sent_offset and not self.ended:
            self._send_control(self._controls.popleft(), lose_active)

    @property
    def stalled(self) -> bool:
        """Whether the leader's node does nothing but say that it is there."""
        host = cast("SimulatedNode", self.leader.host)
        return host.node_id in host.network.stalled

    def _beat_and_ask(self) -> None:
        leader, now = self.leader, self.leader.clock.monotonic()
        if self.wire:
            self.liveness.told(now)
        if self.liveness.beat_is_due(now):
            self.wire.append(Heartbeat())
        if self._asks or self.rounds.is_due(now):
            self._asks = False
            closed = None if self.stalled else leader.closed_timestamp.close()
            if closed is not None:
                self.wire.append(closed)
            clock = leader.host.clock
            time = clock.micros() if clock.gives else 0
            self.wire.append(self.rounds.ask(now, time, self.times.say()))

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

    def __init__(self, node: SimulatedNode, partition: Replica) -> None:
        self._node = node
        self._partition = partition
        self._stream: SimulatedStream | None = None
        self._epoch = 0
        self._link: tuple[NodeId | None, int, int] | None = None
        self._retry_at = 0.0
        self._acks: collections.deque[tuple[SimulatedStream, FetchLog | LeaseGrant | Heartbeat]] = (
            collections.deque()
        )
        self._liveness = _liveness_of(partition)
        self._heard_at = node.clock.monotonic()
        self._left: list[SimulatedStream] = []

    def ack(self) -> None:
        """Send an ack; it arrives a step later."""
        if self._stream is not None and not self._stream.ended:
            self._acks.append((self._stream, self._partition.following.ack_of(0)))

    def close(self) -> None:
        """Break the stream; the leader notices, unless what tells it is lost."""
        stream, self._stream = self._stream, None
        if stream is None:
            return
        if self._is_silent(stream) and not stream.ended:
            self._left.append(stream)
            return
        _end(stream)

    def _is_silent(self, stream: SimulatedStream) -> bool:
        return self._node.network.is_silent(self._node.node_id, stream.leader.node_id)

    def stand_still(self, now: float) -> None:
        """Let the leader's end find out that this one's process hangs."""
        if (stream := self._stream) is not None and not stream.ended:
            stream.send(lose_active=self._node.network.loses_active)
            self._look_at_leaders_end(stream, now)

    def look_at_leader(self, now: float) -> None:
        """Tell the replica for how long its leader has been silent."""
        quiet = self._liveness.quiet_seconds(now)
        if self._stream is not None:
            self._heard_at = max(self._heard_at, now - quiet)
        if self._partition.streams_from is not None:
            self._partition.following.leader_silent(now - self._heard_at)

    def hears(self, now: float, seconds_max: float) -> NodeId | None:
        """Return the leader if it has said something within so many seconds."""
        stream = self._stream
        heard = stream is not None and self._liveness.quiet_seconds(now) < seconds_max
        return stream.leader.node_id if stream is not None and heard else None

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
        self._watch_left(now)
        source = partition.streams_from
        link = (source, partition.leader_epoch, partition.copies)
        if link != self._link:
            self._link = link
            self._retry_at, self._heard_at = 0.0, now
            self.close()
        if source is None:
            return
        if not network.linked(self._node.node_id, source):
            self._failed(f"no connection to node {source}", now)
            return
        if self._stream is None:
            if now >= self._retry_at and not network.is_silent(self._node.node_id, source):
                self._open(source, now)
            return
        self._move(self._stream, source, now)

    def _move(self, stream: SimulatedStream, source: NodeId, now: float) -> None:
        """Let both ends say and hear what the link lets through in a moment."""
        network, own = self._node.network, self._node.node_id
        hears = not stream.half_open and network.arrives(source, own)
        if hears and stream.ended and not stream.wire:
            # The process that led is gone, and there again before this one has looked.
            self._failed("the connection broke", now)
            return
        if not stream.half_open and network.arrives(own, source):
            self._deliver_acks()
        elif source not in network.hung:
            self._look_at_leaders_end(stream, now)
        if hears:
            self._receive(now)
        elif self._liveness.is_silent(now):
            self._failed("the leader is silent", now)
        if self._stream is not None and source not in network.hung:
            self._stream.send(lose_active=network.loses_active)

    def _watch_left(self, now: float) -> None:
        """Let leaders find out about streams that were broken in a silence."""
        for stream in self._left:
            self._look_at_leaders_end(stream, now)
        self._left = [stream for stream in self._left if not stream.ended]

    @staticmethod
    def _look_at_leaders_end(stream: SimulatedStream, now: float) -> None:
        if not stream.ended and stream.liveness.is_silent(now):
            stream.give_up()

    def _failed(self, why: str, now: float) -> None:
        self.close()
        self._retry_at = now + RETRY_SECONDS
        self._partition.following.stream_failed(why)

    def _open(self, source: NodeId, now: float) -> None:
        following = self._partition.following
        for left in self._left:
            _end(left)  # the new connection has the same name
        self._left.clear()
        request = following.stream_request(0)
        self._epoch = request.leader_epoch
        try:
            leader = self._node.network.node(source).find(self._partition.partition_id)
            stream = SimulatedStream(leader, self._node.node_id, request.high_offset)
            answer = leader.leading.open_stream(stream.held, request)
            self._answered(answer, stream)
        except (RezoneError, OSError) as error:
            self._failed(str(error), now)

    def _answered(self, answer: Message, stream: SimulatedStream) -> None:
        following = self._partition.following
        match answer:
            case StreamOk():
                following.stream_started(answer)
                self._stream = stream
                self._times = Exchange(self._node.clock, stream.leader.node_id)
                self._liveness = _liveness_of(self._partition)
                self._begin_listening(stream)
                following.stream_failed("")
                self.ack()
            case StreamRollback():
                following.roll_back(answer.offset)
            case StreamNeedsSnapshot():
                following.snapshot_needed(answer.log_start_offset)
            case _:
                raise NotReadyError(f"{type(answer).__name__} is no answer to a stream request")

    def _begin_listening(self, stream: SimulatedStream) -> None:
        now = self._node.clock.monotonic()
        self._liveness.listens(now)
        stream.liveness.listens(now)

    def _deliver_acks(self) -> None:
        while self._acks:
            stream, ack = self._acks.popleft()
            if stream is not self._stream or stream.ended:
                continue
            now = self._node.clock.monotonic()
            stream.liveness.heard(now)
            stream.liveness.listens(now)
            if stream.stalled:
                continue  # whatever it is, the last ack tells all of it
            if isinstance(ack, LeaseGrant):
                knew = stream.leader.host.clock.gives
                stream.times.heard(ack.clock)
                stream._asks |= stream.leader.host.clock.gives and not knew
                lease = stream.rounds.answered(ack)
                if lease is not None:
                    stream.leader.leading.granted(stream.held, lease)
            elif isinstance(ack, FetchLog):
                stream.acked_offset = ack.fetch_offset
                stream.leader.leading.acked(stream.held, ack)

    def _grant(self, request: LeaseRequest) -> None:
        stream, lease_ms = self._stream, self._partition.settings.lease_ms
        assert stream is not None
        self._times.heard(request.clock)
        self._node.clock.require_near(request.time)
        self._node.clock_bound.reach(request.time)
        until = self._node.clock.monotonic() + lease_ms / 1000
        leader = stream.leader
        self._node.promises[leader.node_id] = Promise(until, request.time)
        if self._partition.following.follows(leader.node_id, self._epoch):
            grant = LeaseGrant(round=request.round, lease_ms=lease_ms, clock=self._times.say())
            self._acks.append((stream, grant))

    def _receive(self, now: float) -> None:
        stream = self._stream
        assert stream is not None
        try:
            for _ in range(len(stream.wire)):
                if self._stream is not stream or not stream.wire:
                    return
                self._liveness.heard(now)
                self._liveness.listens(now)
                self._dispatch(stream.wire.popleft(), now)
        except (RezoneError, OSError) as error:
            self._failed(str(error), now)

    def _dispatch(self, message: Any, now: float) -> None:
        following = self._partition.following
        match message:
            case (Entries() as frame, bytes() as raw):
                following.receive(frame, memoryview(raw))
            case LeaseRequest():
                self._grant(message)
            case Heartbeat():
                if self._stream is not None:
                    self._acks.append((self._stream, message))
            case ClosedTime():
                following.time_closed(message)
            case SetState():
                following.state_set(message)
            case StreamEnd():
                self._failed(f"the leader has ended the stream: {message.reason}", now)
                following.stream_ended(message)
            case _:
                self._failed("the stream has ended", now)


def _end(stream: SimulatedStream) -> None:
    """Break a stream so that both ends see it."""
    stream.wire.clear()
    if not stream.ended:
        stream.ended = True
        stream.leader.leading.detach_stream(stream.held)


def _liveness_of(partition: Replica) -> Liveness:
    """Return an end's view of the other, at its beginning."""
    settings = partition.settings
    return Liveness(
        partition.clock.monotonic(),
        heartbeat_ms=settings.heartbeat_ms,
        silent_ms_max=settings.channel_silent_ms_max,
    )
