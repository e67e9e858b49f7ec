"""The leader's side of a replication channel: many partitions' logs over one connection.

One `ProducerChannel` per consumer node (DCP-01, DCP-13). The consumer asks for streams and acks
what it holds on disk; entries are pushed as soon as they are in the log, before the leader's own
sync, as far as the stream's credit reaches.

Concurrency: the connection's Flight thread reads; one sender thread of the channel writes all
that leaves, so that messages of a stream keep their order. A lock of the channel guards the
streams' send state. Lock order: a partition's lock before a channel's; the sender holds neither
while it reads the log or sends.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from rezone.replica.entry import header_at
from rezone.wire.channel import CHANNEL_ERRORS, Channel
from rezone.wire.errors import LimitExceededError, NotReadyError, RezoneError
from rezone.wire.messages import (
    CloseStream,
    ConnectionClosed,
    Entries,
    FetchLog,
    Message,
    NodeId,
    PartitionId,
    StreamEnd,
    StreamOk,
    StreamRefused,
    StreamRequest,
)

_log = structlog.get_logger(__name__)

DEFER_SECONDS_MAX = 1.0


class Source(Protocol):
    """What a producer needs of the partition it streams."""

    partition_id: PartitionId

    @property
    def committed(self) -> int:
        """The commit offset."""
        ...

    def read_log(self, offset: int, bytes_max: int) -> bytes:
        """Return whole raw entries from `offset` on; empty at the end."""
        ...

    def open_stream(self, stream: "ProducerStream", request: StreamRequest) -> Message:
        """Answer a stream request; the stream is attached when the answer is StreamOk."""
        ...

    def will_lead(self, leader_epoch: int) -> bool:
        """Return whether this replica is about to lead in exactly this epoch."""
        ...

    def detach_stream(self, stream: "ProducerStream") -> None:
        """Forget a stream that has ended."""
        ...

    def acked(self, stream: "ProducerStream", ack: FetchLog) -> None:
        """Take a follower's ack."""
        ...


def _refusal(request: StreamRequest, error: RezoneError) -> StreamRefused:
    return StreamRefused(opaque=request.opaque, partition=request.partition, error=error.info())


@dataclass(slots=True)
class _Deferred:
    """A stream request that waits for a takeover; its deadline is set by the first tick."""

    request: StreamRequest
    deadline: float | None = None


@dataclass(slots=True)
class _Control:
    """A message to be sent when the stream has reached `offset`; nothing follows a `last` one."""

    offset: int
    message: Message
    last: bool
    on_sent: Callable[[], None] | None


@dataclass(eq=False)
class ProducerStream:
    """One partition on one channel; the counters are its statistics (DCP-14)."""

    channel: "ProducerChannel"
    source: Source
    node: NodeId
    opaque: int
    leader_epoch: int
    sent_offset: int
    acked_offset: int
    credit_bytes: int = 0
    in_flight_bytes: int = 0
    committed_sent: int = -1
    bytes_sent: int = 0
    frames_sent: int = 0
    answered: bool = False
    ended: bool = False
    queued: bool = False
    _in_flight: deque[tuple[int, int]] = field(default_factory=deque)
    _controls: deque[_Control] = field(default_factory=deque)

    def wake(self) -> None:
        """Have the sender look at the stream: there are entries, credit or a new commit offset."""
        self.channel.wake(self)

    def send_at(
        self,
        offset: int,
        message: Message,
        *,
        last: bool = False,
        on_sent: Callable[[], None] | None = None,
    ) -> None:
        """Send a message once all entries below `offset` are sent; `last` ends the stream."""
        self.channel.add_control(self, _Control(offset, message, last, on_sent))

    def end(self, reason: str, leader: NodeId | None = None, epoch: int | None = None) -> None:
        """Send StreamEnd at once, in place of all that was still to be sent."""
        self.channel.end_stream(self, reason, leader, epoch)

    def note_ack(self, ack: FetchLog) -> None:
        """Count an ack and its credit; under the channel's lock."""
        self.acked_offset = ack.fetch_offset
        self.credit_bytes = ack.max_fetch_bytes
        while self._in_flight and self._in_flight[0][0] <= ack.fetch_offset:
            self.in_flight_bytes -= self._in_flight.popleft()[1]

    def note_sent(self, end_offset: int, size: int) -> None:
        """Count entries that leave; under the channel's lock."""
        self.sent_offset = end_offset
        self._in_flight.append((end_offset, size))
        self.in_flight_bytes += size
        self.bytes_sent += size
        self.frames_sent += 1

    def add(self, control: _Control) -> None:
        """Queue a message behind the entries; under the channel's lock."""
        self._controls.append(control)

    def take_control(self) -> _Control | None:
        """Return the next message that is due; under the channel's lock."""
        if self._controls and self._controls[0].offset <= self.sent_offset:
            return self._controls.popleft()
        return None

    def replace_controls(self, control: _Control) -> None:
        """Drop what was still to be sent for one last message; under the channel's lock."""
        self._controls.clear()
        self._controls.append(control)


class ProducerChannel:
    """One consumer node's connection to this node."""

    def __init__(
        self,
        name: str,
        node: NodeId,
        channel: Channel,
        find: Callable[[PartitionId], Source],
        *,
        streams_max: int,
        frame_bytes_max: int,
    ) -> None:
        self.name = name
        self.node = node
        self._channel = channel
        self._find = find
        self._streams_max = streams_max
        self._frame_bytes_max = frame_bytes_max
        self._streams: dict[PartitionId, ProducerStream] = {}
        self._deferred: dict[PartitionId, _Deferred] = {}
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._ready: deque[ProducerStream] = deque()
        self._answers: deque[tuple[Message, ProducerStream | None]] = deque()
        self._closed = False

    def run(self) -> None:
        """Serve the connection until the other side ends it; runs in its Flight thread."""
        sender = threading.Thread(target=self._send_all, name=f"send {self.name}", daemon=True)
        sender.start()
        try:
            while (frame := self._channel.receive()) is not None:
                if not self._closed:
                    self._handle(frame[0])
        except CHANNEL_ERRORS as error:
            _log.info("a replication channel has broken", channel=self.name, error=str(error)[:200])
        finally:
            self.close("the connection has ended")
            sender.join()

    def close(self, reason: str) -> None:
        """Tear the channel's streams down at once and ask the other side to hang up (DCP-01)."""
        with self._work:
            if self._closed:
                return
            self._closed = True
            streams = list(self._streams.values())
            self._streams.clear()
            for stream in streams:
                stream.ended = True
            self._ready.clear()
            self._answers.clear()
            self._answers.append((ConnectionClosed(reason=reason), None))
            self._work.notify()
        for stream in streams:
            stream.source.detach_stream(stream)

    def statistics(self) -> list[ProducerStream]:
        """Return the streams, for their counters (DCP-14)."""
        with self._lock:
            return list(self._streams.values())

    # --- called by partitions and streams, from any thread ---------------------------------------

    def wake(self, stream: ProducerStream) -> None:
        """Queue a stream for the sender."""
        with self._work:
            self._enqueue(stream)

    def add_control(self, stream: ProducerStream, control: _Control) -> None:
        """Queue a message that has its place after the stream's entries."""
        with self._work:
            stream.add(control)
            self._enqueue(stream)

    def end_stream(
        self, stream: ProducerStream, reason: str, leader: NodeId | None, epoch: int | None
    ) -> None:
        """End a stream with StreamEnd (DCP-12: it goes into the send queue, the stream is dead)."""
        message = StreamEnd(
            partition=stream.source.partition_id, reason=reason, leader=leader, leader_epoch=epoch
        )
        with self._work:
            if not stream.ended:
                stream.replace_controls(_Control(0, message, last=True, on_sent=None))
                self._enqueue(stream)

    def _enqueue(self, stream: ProducerStream) -> None:
        if not stream.queued and not stream.ended and not self._closed:
            stream.queued = True
            self._ready.append(stream)
            self._work.notify()

    # --- the reading thread ----------------------------------------------------------------------

    def _handle(self, message: Message) -> None:
        match message:
            case StreamRequest():
                self._open(message)
            case FetchLog():
                self._ack(message)
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
            old = self._streams.pop(request.partition, None)
            if old is not None:
                old.ended = True
        if old is not None:
            # A second request takes the place of the first stream, as a second open does.
            old.source.detach_stream(old)
        try:
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
            answer = source.open_stream(stream, request)
        except RezoneError as error:
            if self._defer(request):
                return
            answer = _refusal(request, error)
        with self._work:
            self._answers.append((answer, None))
            if isinstance(answer, StreamOk):
                # Answers go out before whatever a stream has to send.
                stream.answered = True
                stream.credit_bytes = request.max_fetch_bytes
                self._enqueue(stream)
            else:
                self._streams.pop(request.partition, None)
            self._work.notify()

    def _defer(self, request: StreamRequest) -> bool:
        """Keep a request until the takeover is done that its sender has heard of already.

        The old leader names its successor in the moment it hands over; refusing whoever is
        quicker than the state change would cost a retry's pause in the middle of the write gap.
        """
        try:
            if not self._find(request.partition).will_lead(request.leader_epoch):
                return False
        except RezoneError:
            return False
        with self._lock:
            self._streams.pop(request.partition, None)
            self._deferred[request.partition] = _Deferred(request)
        return True

    def resume(self, partition: PartitionId) -> None:
        """Answer the request that was kept for a partition, if there is one."""
        with self._lock:
            deferred = self._deferred.pop(partition, None)
        if deferred is not None:
            self._open(deferred.request)

    def tick(self, now: float) -> None:
        """Refuse requests that were kept too long: their takeover has not come to its end."""
        with self._work:
            for deferred in self._deferred.values():
                deferred.deadline = deferred.deadline or now + DEFER_SECONDS_MAX
            late = [d.request for d in self._deferred.values() if (d.deadline or now) < now]
            for request in late:
                del self._deferred[request.partition]
                error = NotReadyError("the takeover has not ended")
                self._answers.append((_refusal(request, error), None))
                self._work.notify()

    def _ack(self, ack: FetchLog) -> None:
        with self._work:
            stream = self._streams.get(ack.partition)
            if stream is None or stream.ended or ack.opaque != stream.opaque:
                return
            stream.note_ack(ack)
        stream.source.acked(stream, ack)
        self.wake(stream)

    # --- the sender thread -----------------------------------------------------------------------

    def _send_all(self) -> None:
        try:
            while True:
                with self._work:
                    while not (self._answers or self._ready or self._closed):
                        self._work.wait()
                    answer = self._answers.popleft() if self._answers else None
                    stream = None
                    if answer is None:
                        if self._closed:
                            return
                        stream = self._ready.popleft()
                        stream.queued = False
                if answer is not None:
                    self._channel.send(answer[0])
                elif stream is not None and self._send_of(stream):
                    self.wake(stream)
        except CHANNEL_ERRORS as error:
            _log.info(
                "cannot send on a replication channel", channel=self.name, error=str(error)[:200]
            )
            self.close("the connection has broken")
            # Should the break be one-sided, the other side must still hear that this is over.
            with contextlib.suppress(*CHANNEL_ERRORS):
                self._channel.send(ConnectionClosed(reason="the connection has broken"))

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
        try:
            raw = (
                stream.source.read_log(offset, min(room, self._frame_bytes_max))
                if room > 0
                else b""
            )
        except RezoneError as error:
            stream.end(f"the log cannot be read: {error}")
            return True
        if not raw and committed <= stream.committed_sent:
            return False
        if raw:
            end_offset = end_of(raw)
            with self._lock:
                stream.note_sent(end_offset, len(raw))
        stream.committed_sent = committed
        self._channel.send(
            Entries(
                partition=stream.source.partition_id,
                leader_epoch=stream.leader_epoch,
                committed_offset=committed,
            ),
            raw,
        )
        return bool(raw)

    def _send_control(self, stream: ProducerStream, control: _Control) -> None:
        if control.last:
            with self._lock:
                stream.ended = True
                if self._streams.get(stream.source.partition_id) is stream:
                    del self._streams[stream.source.partition_id]
        self._channel.send(control.message)
        if control.last:
            stream.source.detach_stream(stream)
        if control.on_sent is not None:
            control.on_sent()


def end_of(raw: bytes) -> int:
    """Return the offset after the last of these whole entries; unchecked, the log has done that."""
    position, end_offset = 0, 0
    while (header := header_at(raw, position)) is not None:
        position += header.length
        end_offset = header.end_offset
    return end_offset
