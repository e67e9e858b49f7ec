"""The leader's side of a replication channel: many partitions' logs over one connection.

One `ProducerChannel` per consumer node (DCP-01, DCP-13). The consumer asks for streams and acks
what it holds on disk; entries are pushed as soon as they are in the log, before the leader's own
sync, as far as the stream's credit reaches. Commit offsets that no entries carry go together.

Concurrency: the connection's Flight thread reads; what leaves goes through one `Outbox`, so that
messages of a stream keep their order: by the thread that has entries while little is on its way
(`push`), else by the outbox's own. A lock of the channel guards the streams' send state. Lock
order: a partition's lock before a channel's; who sends holds neither while it reads the log or
sends.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import structlog

from rezone.datanode.clock.checked_clock import CheckedClock, Exchange
from rezone.datanode.commit.lease import Rounds
from rezone.datanode.replication.sent_frames import SentFrames
from rezone.datanode.replication.stream import Control, ProducerStream, Source, end_of
from rezone.datanode.scheduling.outbox import Outbox
from rezone.datanode.scheduling.unread import Peer
from rezone.datanode.scheduling.workers import IDLE_SECONDS
from rezone.datanode.settings import NodeSettings
from rezone.wire.errors import LimitExceededError, NotReadyError, RezoneError
from rezone.wire.messages import (
    ClosedTimes,
    CloseStream,
    CommitOffsets,
    ConnectionClosed,
    Entries,
    FetchLog,
    Heartbeat,
    LeaseGrant,
    LeaseRequest,
    Message,
    NodeId,
    PartitionId,
    StreamEnd,
    StreamOk,
    StreamRefused,
    StreamRequest,
)
from rezone.wire.transport.channel import CHANNEL_ERRORS, Channel, Frame, pack
from rezone.wire.transport.liveness import Liveness

_log = structlog.get_logger(__name__)

DEFER_SECONDS_MAX = 1.0

PUSH_BYTES_MAX = 32 << 10
"""At most so many bytes may be unread behind and with what a thread sends that must not block.

Half of the smallest window of a connection: they fit even if the consumer has stopped reading.
"""


def _refusal(request: StreamRequest, error: RezoneError) -> StreamRefused:
    return StreamRefused(opaque=request.opaque, partition=request.partition, error=error.info())


@dataclass(slots=True)
class _Deferred:
    """A stream request that waits for a takeover; its deadline is set by the first tick."""

    request: StreamRequest
    deadline: float | None = None

    def is_late(self, now: float) -> bool:
        """Whether it has waited for too long; it is counted from the first call on."""
        if self.deadline is None:
            self.deadline = now + DEFER_SECONDS_MAX
        return self.deadline < now


class ProducerChannel:
    """One consumer node's connection to this node."""

    def __init__(
        self,
        name: str,
        node: NodeId,
        channel: Channel,
        find: Callable[[PartitionId], Source],
        *,
        settings: NodeSettings,
        clock: CheckedClock,
        beats: bool = True,
        peer: Peer | None = None,
    ) -> None:
        self.name = name
        self.node = node
        self._channel = channel
        self._find = find
        self._peer = peer
        self._streams_max = settings.streams_max
        self._push_rows_max = settings.inline_rows_max
        self._frame_bytes_max = settings.frame_bytes_max
        self._clock = clock
        self._times = Exchange(clock, node)
        self._rounds = Rounds(settings.lease_ms, settings.clock_drift_percent)
        self._liveness = Liveness(
            clock.monotonic(),
            heartbeat_ms=settings.heartbeat_ms,
            silent_ms_max=settings.channel_silent_ms_max,
        )
        self._beats = beats
        self._asks = False
        self._greeted = not beats
        self._streams: dict[PartitionId, ProducerStream] = {}
        self._deferred: dict[PartitionId, _Deferred] = {}
        self._lock = threading.Lock()
        self.outbox = Outbox(
            f"send {name}", send_next=self._send_next, may_send_here=self._may_push
        )
        self._frames = SentFrames()
        self._is_large = False
        self._waiting_frame: bytes | None = None
        self._ready: deque[ProducerStream] = deque()
        self._answers: deque[Message] = deque()
        self._closed = False

    def run(self) -> None:
        """Serve the connection until the other side ends it; runs in its Flight thread."""
        self.outbox.start()
        try:
            while (frame := self._next_frame()) is not None:
                if not self._closed:
                    self._handle(frame[0])
        except CHANNEL_ERRORS as error:
            _log.info("a replication channel has broken", channel=self.name, error=str(error)[:200])
        except msgspec.MsgspecError as error:
            _log.warning("not a frame of this version", channel=self.name, error=str(error)[:200])
        finally:
            self.close("the connection has ended")
            self.outbox.close()

    def close(self, reason: str) -> None:
        """Tear the channel's streams down at once and ask the other side to hang up (DCP-01)."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            streams = list(self._streams.values())
            self._streams.clear()
            for stream in streams:
                stream.close()
            self._ready.clear()
            self._answers.clear()
            self._answers.append(ConnectionClosed(reason=reason))
        self.outbox.ask()
        for stream in streams:
            stream.source.detach_stream(stream)

    def hears(self, now: float, seconds_max: float) -> bool:
        """Whether the consumer has said something within so many seconds."""
        heard = self._liveness.quiet_seconds(now) < seconds_max
        return heard and self._beats and not self._closed

    def statistics(self) -> list[ProducerStream]:
        """Return the streams, for their counters (DCP-14)."""
        with self._lock:
            return list(self._streams.values())

    # --- called by partitions and streams, from any thread ---------------------------------------

    def wake(self, stream: ProducerStream, *, here: bool = False) -> None:
        """Queue a stream for the sender, which may be the calling thread: `here`, or unlocked."""
        with self._lock:
            self._enqueue(stream)
        if here:
            self.outbox.ask(here=True)
        else:
            self.outbox.ask_unlocked()

    def push(self) -> None:
        """Send what streams have queued, by the calling thread while that cannot block."""
        with self._lock:
            queued = bool(self._ready)
        if queued:
            self.outbox.ask(here=True)

    def add_control(self, stream: ProducerStream, control: Control, *, tell: bool) -> None:
        """Queue a message that has its place after the stream's entries; `tell` the sender."""
        with self._lock:
            stream.add(control)
            self._enqueue(stream)
        if tell:
            self.outbox.ask()

    def end_stream(self, stream: ProducerStream, message: StreamEnd, *, tell: bool) -> None:
        """End a stream with StreamEnd (DCP-12: it goes into the send queue, the stream is dead)."""
        with self._lock:
            if stream.ended:
                return
            stream.replace_controls(Control(0, message, last=True, on_sent=None))
            self._enqueue(stream)
        if tell:
            self.outbox.ask()

    def _enqueue(self, stream: ProducerStream) -> None:
        if not self._closed and stream.enqueue():
            self._ready.append(stream)

    def _forget(self, stream: ProducerStream) -> None:
        """Take a stream out of the table; under the lock."""
        stream.close()
        if self._streams.get(stream.source.partition_id) is stream:
            del self._streams[stream.source.partition_id]

    def ask_lease(self) -> None:
        """Begin another round of leases; calls that come before it has begun share it."""
        with self._lock:
            self._asks = True
        self.outbox.ask()

    # --- the reading thread ----------------------------------------------------------------------

    def _next_frame(self) -> Frame | None:
        self._liveness.listens(self._clock.monotonic())
        frame = self._channel.receive()
        self._liveness.heard(self._clock.monotonic())
        return frame

    def _handle(self, message: Message) -> None:
        match message:
            case StreamRequest():
                self._open(message)
            case FetchLog():
                self._ack(message)
            case LeaseGrant():
                self._granted(message)
            case Heartbeat():
                pass  # it was heard
            case CloseStream():
                with self._lock:
                    self._deferred.pop(message.partition, None)
                    stream = self._streams.get(message.partition)
                if stream is not None:
                    stream.end("closed by the consumer")
            case _:
                _log.warning("unexpected on a replication channel", message=type(message).__name__)

    def _open(self, request: StreamRequest) -> None:
        with self._lock:
            self._deferred.pop(request.partition, None)
            old = self._streams.get(request.partition)
            if old is not None:
                self._forget(old)
        if old is not None:
            # A second request takes the place of the first stream, as a second open does.
            old.source.detach_stream(old)
        try:
            answer = self._answer_to(request)
        except RezoneError:
            if self._defer(request):
                return
            # The takeover may have come to its end between the two looks.
            answer = self._second_answer_to(request)
        with self._lock:
            self._answers.append(answer)
            stream = self._streams.get(request.partition)
            if stream is not None and isinstance(answer, StreamOk):
                # Answers go out before whatever a stream has to send.
                stream.start(request.max_fetch_bytes, answer.committed_offset)
                self._enqueue(stream)
                # Behind the answer, so that the promise is for this stream too.
                self._asks = True
            else:
                self._streams.pop(request.partition, None)
            few = stream is None or stream.lacks <= self._push_rows_max
        self.outbox.ask(here=few)

    def _answer_to(self, request: StreamRequest) -> Message:
        """Return the source's answer; with StreamOk the stream is in the table, unanswered."""
        if len(self._streams) >= self._streams_max:
            raise LimitExceededError(
                f"channel {self.name} has {self._streams_max} streams, which is the limit",
                limit=self._streams_max,
            )
        source = self._find(request.partition)
        stream = ProducerStream(
            channel=self,
            source=source,
            node=self.node,
            opaque=request.opaque,
            leader_epoch=request.leader_epoch,
            sent_offset=request.high_offset,
            acked_offset=request.high_offset,
        )
        with self._lock:
            # Before it is attached: a wake must find it. Unanswered it sends nothing.
            self._streams[request.partition] = stream
        try:
            answer = source.open_stream(stream, request)
        except RezoneError:
            with self._lock:
                self._streams.pop(request.partition, None)
            raise
        with self._lock:
            closed = self._closed
            if closed:
                self._forget(stream)
        if closed:
            source.detach_stream(stream)  # `close` has come before it was attached
        return answer

    def _second_answer_to(self, request: StreamRequest) -> Message:
        try:
            return self._answer_to(request)
        except RezoneError as error:
            return _refusal(request, error)

    def _defer(self, request: StreamRequest) -> bool:
        """Keep a request until the takeover is done that its sender has heard of already.

        The old leader names its successor in the moment it hands over; refusing whoever is
        quicker than the state change would cost a retry's pause in the middle of the write gap.
        It is kept before it is known whether it is to be: who leads in between answers it.
        """
        with self._lock:
            self._deferred[request.partition] = _Deferred(request)
        with contextlib.suppress(RezoneError):
            if self._find(request.partition).will_lead(request.leader_epoch):
                return True
        with self._lock:
            return self._deferred.pop(request.partition, None) is None

    def resume(self, partition: PartitionId) -> None:
        """Answer the request that was kept for a partition, if there is one."""
        with self._lock:
            deferred = self._deferred.pop(partition, None)
        if deferred is not None:
            self._open(deferred.request)

    def tick(self, now: float) -> None:
        """Ask for leases in time; refuse requests whose takeover has not come to its end.

        A channel whose other side has been silent for too long is given up: a machine that is
        lost says nothing, and its connection may stand for minutes.
        """
        if self._beats and self._liveness.is_silent(now):
            self.close("the follower's node does not answer")
            return
        with self._lock:
            lease_due = bool(self._streams) and self._rounds.is_due(now)
            self._asks = self._asks or lease_due
            late = [d.request for d in self._deferred.values() if d.is_late(now)]
            for request in late:
                del self._deferred[request.partition]
                error = NotReadyError("the takeover has not ended")
                self._answers.append(_refusal(request, error))
            # The first at once: who only looks for somebody to follow hears that it is heard.
            beats = not self._closed and (not self._greeted or self._beat_is_due(now))
            self._greeted = True
            if beats:
                self._answers.append(Heartbeat())
        if lease_due:
            self._close_times()
        if late or lease_due or beats:
            self.outbox.ask_unlocked()

    def _beat_is_due(self, now: float) -> bool:
        return self._beats and self._liveness.beat_is_due(now)

    def _close_times(self) -> None:
        """Close times of all streams, without the channel's lock: partitions take theirs."""
        with self._lock:
            streams = [stream for stream in self._streams.values() if stream.answered]
        closed = (stream.source.close_time() for stream in streams)
        if news := tuple(time for time in closed if time is not None):
            with self._lock:
                self._answers.append(ClosedTimes(streams=news))

    def _ack(self, ack: FetchLog) -> None:
        with self._lock:
            stream = self._streams.get(ack.partition)
            if stream is None or stream.ended or ack.opaque != stream.opaque:
                return
            # No consumer has what it was not sent: what this one says counts for nothing.
            beyond = ack.fetch_offset > stream.sent_offset
            had_room = stream.in_flight_bytes < stream.credit_bytes
            if not beyond:
                self._frames.read(stream.note_ack(ack))
        if beyond:
            stream.end("an ack of what was not sent")
            return
        inline = self._channel.waited_seconds >= IDLE_SECONDS
        stream.source.acked(stream, ack, inline=inline)
        # Entries that had room went out when they were appended.
        if not had_room or stream.sent_offset < stream.source.log_end:
            self.wake(stream)

    def _granted(self, grant: LeaseGrant) -> None:
        knew = self._clock.gives
        self._times.heard(grant.clock)
        if self._clock.gives and not knew:
            self.ask_lease()  # with a time
        with self._lock:
            lease = self._rounds.answered(grant)
            self._frames.granted(grant.round)
            left = frozenset(grant.left)
            streams = [s for p, s in self._streams.items() if s.answered and p not in left]
        if lease is not None:
            for stream in streams:
                stream.source.granted(stream, lease)

    # --- who sends -------------------------------------------------------------------------------

    def _may_push(self) -> bool:
        trusted = self._peer is None or self._peer.trusted
        has_room = not self._is_large and self._waiting_frame is None
        return trusted and has_room and self._frames.unread_bytes < PUSH_BYTES_MAX

    def _send_next(self) -> bool:
        """Send one frame; whether there was one, or a stream to look at."""
        if self._waiting_frame is not None:
            return self._send_waiting()
        with self._lock:
            message, stream = self._take_next()
        if message is None and stream is None:
            return False
        try:
            if message is not None:
                self._send(message)
            elif stream is not None and self._send_of(stream):
                with self._lock:
                    self._enqueue(stream)
        except CHANNEL_ERRORS as error:
            self._broken(error)
        self._liveness.told(self._clock.monotonic())
        return True

    def _send(self, message: Message) -> None:
        """Send a frame without entries, or leave it to the outbox's thread if it is too large."""
        frame = pack(message)
        with self._lock:
            if isinstance(message, LeaseRequest):
                self._frames.asked(message.round)
            self._frames.sent(len(frame))
            fits = not self.outbox.inline or self._frames.unread_bytes <= PUSH_BYTES_MAX
        if fits:
            self._channel.send_packed(frame)
        else:
            self._waiting_frame = frame

    def _send_waiting(self) -> bool:
        """Send the frame that was too large for another thread; by the outbox's own."""
        frame, self._waiting_frame = self._waiting_frame, None
        try:
            if frame is not None:
                self._channel.send_packed(frame)
        except CHANNEL_ERRORS as error:
            self._broken(error)
        self._liveness.told(self._clock.monotonic())
        return True

    def _take_next(self) -> tuple[Message | None, ProducerStream | None]:
        """Take what is to be sent next, if anything; under the channel's lock."""
        if self._answers:
            return self._answers.popleft(), None
        if self._closed:
            return None, None
        if self._asks:
            self._asks = False
            return self._next_round(), None
        if not self._ready:
            return None, None
        stream = self._ready.popleft()
        stream.dequeue()
        return None, stream

    def _next_round(self) -> LeaseRequest:
        clock, time = self._clock, self._clock.micros()
        # Behind it: another time may be taken as soon as the node gives none.
        time = time if clock.gives else 0
        return self._rounds.ask(clock.monotonic(), time, self._times.say())

    def _broken(self, error: Exception) -> None:
        if not self._closed:
            _log.info(
                "cannot send on a replication channel", channel=self.name, error=str(error)[:200]
            )
        # Should the break be one-sided, the other side hears by this that it is over.
        self.close("the connection has broken")

    def _send_of(self, stream: ProducerStream) -> bool:
        """Send one frame of a stream; whether there may be more."""
        with self._lock:
            if stream.ended or not stream.answered:
                return False
            control = stream.take_control()
            room = stream.credit_bytes - stream.in_flight_bytes
            offset = stream.sent_offset
        if control is not None:
            self._send_control(stream, control)
            return not control.last
        if stream.credit_bytes == 0:
            return False
        committed = stream.source.committed
        inline = self.outbox.inline
        most = PUSH_BYTES_MAX if inline else self._frame_bytes_max
        try:
            raw = stream.source.read_log(offset, min(room, most)) if room > 0 else b""
        except RezoneError as error:
            stream.end(f"the log cannot be read: {error}")
            return True
        self._is_large = inline and self._frames.unread_bytes + len(raw) > PUSH_BYTES_MAX
        if self._is_large:
            return True  # the outbox's own thread sends it
        if raw:
            self._send_entries(stream, raw, committed)
        elif committed > stream.committed_sent:
            self._send_commits(stream, committed)
        return bool(raw)

    def _send_entries(self, stream: ProducerStream, raw: bytes, committed: int) -> None:
        end_offset = end_of(raw)
        message = Entries(
            partition=stream.source.partition_id,
            leader_epoch=stream.leader_epoch,
            committed_offset=committed,
        )
        frame = pack(message, raw)
        with self._lock:
            if stream.ended:
                return
            self._frames.sent(len(frame))
            stream.note_sent(end_offset, len(raw), self._frames.total)
        stream.note_committed(committed)
        self._channel.send_packed(frame)

    def _send_commits(self, stream: ProducerStream, committed: int) -> None:
        """Send a commit offset, and those of all queued streams with nothing else to send."""
        with self._lock:
            others = [s for s in self._ready if s.idle]
            for other in others:
                other.dequeue()
            if others:
                self._ready = deque(s for s in self._ready if s.queued)
        stream.note_committed(committed)
        news = [stream.commit_offset()]
        for other in others:
            if other.source.committed > other.committed_sent:
                other.note_committed(other.source.committed)
                news.append(other.commit_offset())
        self._send(CommitOffsets(streams=tuple(news)))

    def _send_control(self, stream: ProducerStream, control: Control) -> None:
        if control.last:
            with self._lock:
                self._forget(stream)
        self._send(control.message)
        if control.last:
            stream.source.detach_stream(stream)
        if control.on_sent is not None:
            control.on_sent()
