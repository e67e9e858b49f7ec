"""One data channel to one data node, shared by all requests to it.

Two threads: the sender opens the channel and sends what is queued, the reader hands every frame
to its owner. A thread that has queued a request sends it itself (`push`) while that cannot block:
to wake the sender costs more than the request. It cannot block while all that the node has not
answered fits into the smallest window of a connection, even if the node has stopped reading. So no
caller ever waits for the network, nor does the reader: if it did, a node that waits for us to read
and we for it would wait for ever.

While nothing is asked of the node, it is asked whether it is there, and the channel is given up
when it has not answered by the next time: a request must not be the first to find out. A request
that waits has deadlines of its own.

A channel that breaks takes all its requests with it: they are handed to `on_broken` once, and
the next request opens a new channel.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

import msgspec

from rezone.wire.errors import NotReadyError, RezoneError
from rezone.wire.messages import ConnectionClosed, Heartbeat, Message, ReadRequest, WriteRequest
from rezone.wire.transport.channel import CHANNEL_ERRORS, Frame

BEAT_SECONDS = 10.0
"""How often the node is asked whether it is there while there is nothing else to ask of it."""

PUSH_BYTES_MAX = 16 << 10
"""At most so many bytes may be unanswered when a thread sends that must not block.

They fit into the smallest window of a connection, and into what the kernel keeps of a connection
whose other end is gone.
"""

PUSHES_MAX = 4
"""So many requests a thread sends at most: most of them may be others'."""

HEADER_BYTES = 256
"""What a request takes on the wire beside its body, about."""


class FrameChannel(Protocol):
    """What a connection needs of `wire.channel.Channel`."""

    def send(self, message: Message, body: bytes | memoryview = b"") -> None:
        """Send one frame."""

    def receive(self) -> Frame | None:
        """Return the next frame, None at the end."""

    def cancel(self) -> None:
        """Break the channel off."""

    def close(self) -> None:
        """End the client's side; only the thread that receives may."""


class _Outgoing(NamedTuple):
    opaque: int
    message: Message
    body: bytes

    @property
    def size(self) -> int:
        return HEADER_BYTES + len(self.body)


class Connection:
    """Requests to one node in flight, at most `window` at once.

    `on_frame(message, body)` is called by the reader thread for each answer; `on_broken(opaques,
    error)` when requests are lost with a channel. `in_flight` says which opaques are sent and
    unanswered; the owner tells of answers by `answered`.
    """

    def __init__(
        self,
        address: str,
        open_channel: Callable[[], FrameChannel],
        *,
        on_frame: Callable[[Frame], None],
        on_broken: Callable[[list[int], RezoneError], None],
        window: int,
    ) -> None:
        self.address = address
        self._open_channel = open_channel
        self._on_frame = on_frame
        self._on_broken = on_broken
        self._window = window
        self._state = threading.Condition()
        self._queue: deque[_Outgoing] = deque()
        self._in_flight: dict[int, int] = {}
        self._unanswered_bytes = 0
        self._sending = False
        self._channel: FrameChannel | None = None
        self._closed = False
        self._wanted = False
        self._received = 0
        self._seen = 0
        self._seen_at_beat: int | None = None
        self._is_idle = False
        self._threads = [threading.Thread(target=self._send_loop, daemon=True)]
        self._threads[0].start()

    @property
    def received(self) -> int:
        """How many frames have come in: whether the node still answers anything."""
        return self._received

    @property
    def is_open(self) -> bool:
        """Whether there is a channel, or one is on its way."""
        return self._channel is not None

    def send(self, opaque: int, message: Message, body: bytes, *, tell: bool = True) -> None:
        """Queue a request; never blocks. The sender is told, unless the caller pushes (`tell`)."""
        with self._state:
            if not self._closed:
                self._queue.append(_Outgoing(opaque, message, body))
                if tell:
                    self._state.notify_all()
                return
        self._on_broken([opaque], NotReadyError("the client is closed", unreachable=1))

    def push(self) -> None:
        """Send what is queued here while that cannot block, the rest by the sender.

        The caller holds no lock that others wait for.
        """
        for _ in range(PUSHES_MAX):
            with self._state:
                if self._sending or not self._may_send():
                    return  # who sends looks again, and so does whoever makes room in the window
                channel = self._channel
                size = self._unanswered_bytes + self._queue[0].size
                taken = self._take() if channel is not None and size <= PUSH_BYTES_MAX else None
            if channel is None or taken is None:
                break
            try:
                self._send(channel, taken)
            except (RezoneError, *CHANNEL_ERRORS):
                # The reader sees the same break, and hands back what is lost with it.
                channel.cancel()
                break  # others may have queued meanwhile, and left it to this thread
        with self._state:
            self._state.notify_all()

    def open(self) -> None:
        """Open the channel, if it is not: requests are about to come. Never blocks."""
        with self._state:
            if self._channel is None and not self._closed:
                self._wanted = True
                self._state.notify_all()

    def answered(self, opaque: int) -> None:
        """Free the request's place in the window; a request given up is not sent any more."""
        with self._state:
            if opaque in self._in_flight:
                del self._in_flight[opaque]
            else:
                self._queue = deque(item for item in self._queue if item.opaque != opaque)
            if self._may_send():
                # Not otherwise: the sender would wake up with each answer, and find nothing.
                self._state.notify_all()

    def drop(self, reason: str) -> None:
        """Break the channel off: a node that hangs must not keep its requests."""
        with self._state:
            channel = self._channel
        if channel is not None:
            channel.cancel()
            self._broken(channel, NotReadyError(reason, unreachable=1))

    def close(self, join_seconds: float = 5.0) -> None:
        """Close the channel and end the threads."""
        with self._state:
            self._closed = True
            channel = self._channel
            self._state.notify_all()
        if channel is not None:
            channel.cancel()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(join_seconds)

    def _send_loop(self) -> None:
        while self._wait():
            channel: FrameChannel | None = None
            try:
                channel = self._connected()
                with self._state:
                    taken = self._take()
                if taken is not None:
                    self._send(channel, taken)
                elif self._is_idle:
                    self._beat(channel)
            except (RezoneError, *CHANNEL_ERRORS, StopIteration) as error:
                cause = NotReadyError(f"{self.address} does not answer: {error}", unreachable=1)
                self._broken(channel, cause)

    def _send(self, channel: FrameChannel, taken: _Outgoing) -> None:
        """Send what was taken; without the lock."""
        message = taken.message
        if isinstance(message, WriteRequest | ReadRequest):
            # A node that knows them read sends answers without a detour.
            message = msgspec.structs.replace(message, answers_seen=self._seen)
        try:
            channel.send(message, taken.body)
        finally:
            with self._state:
                self._sending = False

    def _wait(self) -> bool:
        """Wait until a request may be sent, the channel is wanted, or is to be looked at.

        False once it is closed.
        """
        with self._state:
            self._is_idle = False
            while not (self._closed or self._wanted or self._is_idle or self._is_due()):
                seconds = None if self._channel is None else BEAT_SECONDS
                self._is_idle = not self._state.wait(seconds) and not self._in_flight
            self._wanted = False
            return not self._closed

    def _is_due(self) -> bool:
        return not self._sending and self._may_send()

    def _may_send(self) -> bool:
        return bool(self._queue) and len(self._in_flight) < self._window

    def _take(self) -> _Outgoing | None:
        """Return the next request; None when there is none to be sent now; under the lock."""
        if self._closed or self._sending or not self._may_send():
            return None
        taken = self._queue.popleft()
        self._in_flight[taken.opaque] = taken.size
        self._unanswered_bytes += taken.size
        self._sending = True
        return taken

    def _beat(self, channel: FrameChannel) -> None:
        """Ask the node for a word, or give it up: it has said none since it was asked before."""
        with self._state:
            before, self._seen_at_beat = self._seen_at_beat, self._seen
        if before == self._seen_at_beat:
            self.drop(f"{self.address} has fallen silent")
        else:
            channel.send(Heartbeat())

    def _connected(self) -> FrameChannel:
        with self._state:
            if self._channel is not None:
                return self._channel
        channel = self._open_channel()
        reader = threading.Thread(target=self._receive_loop, args=(channel,), daemon=True)
        with self._state:
            self._channel = channel
            self._seen = 0
            self._seen_at_beat = None
            self._threads = [self._threads[0], reader]
        reader.start()
        return channel

    def _receive_loop(self, channel: FrameChannel) -> None:
        cause = "the node ended the channel"
        try:
            while (frame := channel.receive()) is not None:
                self._received += 1
                self._seen += 1
                self._note_read(frame[0])
                if isinstance(frame[0], ConnectionClosed):
                    cause = frame[0].reason
                    break
                self._on_frame(frame)
        except (*CHANNEL_ERRORS, msgspec.MsgspecError) as error:
            cause = str(error)
        self._broken(channel, NotReadyError(f"{self.address}: {cause}", unreachable=1))
        # Here and nowhere else: see `Channel.close`.
        channel.close()

    def _note_read(self, answer: Message) -> None:
        """Note that the node has read a request: it takes no room of the window any more.

        Of one that was given up nobody knows that, for as long as the channel stands.
        """
        opaque: int = getattr(answer, "opaque", 0)
        with self._state:
            self._unanswered_bytes -= self._in_flight.get(opaque, 0)

    def _broken(self, channel: FrameChannel | None, error: RezoneError) -> None:
        with self._state:
            if self._channel is not channel or self._closed:
                return
            self._channel = None
            lost = [*self._in_flight, *(item.opaque for item in self._queue)]
            self._in_flight.clear()
            self._unanswered_bytes = 0
            self._queue.clear()
            self._state.notify_all()
        if channel is not None:
            with contextlib.suppress(*CHANNEL_ERRORS):
                channel.cancel()
        if lost:
            self._on_broken(lost, error)
