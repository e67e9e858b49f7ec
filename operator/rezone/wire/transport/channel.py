"""Frames in both directions over one Flight DoExchange: message header plus raw body.

A frame is the metadata of a Flight message without data: header length (4 bytes, little-endian),
header (msgpack, `wire.messages`), body. Bodies travel as they are, which is what lets followers
store and forward a leader's log entries byte by byte.

Concurrency: any thread may send; one thread at a time receives. gRPC allows one reader beside
one writer on a call, so a lock serialises senders and none is needed between the directions.
"""

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyarrow import flight

from rezone.wire import messages
from rezone.wire.errors import LimitExceededError
from rezone.wire.messages import Message
from rezone.wire.transport.frame_sizes import FRAME_BYTES_MAX

_LENGTH_BYTES = 4

Frame = tuple[Message, memoryview]


def pack(message: Message, body: bytes | memoryview = b"") -> bytes:
    """Return one frame; LimitExceededError when it is over FRAME_BYTES_MAX."""
    header = messages.encode(message)
    if len(header) + len(body) > FRAME_BYTES_MAX:
        raise LimitExceededError(
            f"a frame of {len(header) + len(body)} bytes is over the limit of {FRAME_BYTES_MAX}; "
            "send smaller batches",
        )
    return b"".join((len(header).to_bytes(_LENGTH_BYTES, "little"), header, body))


def unpack(frame: memoryview) -> Frame:
    """Return message and body of a frame; the body is a view into the frame."""
    end = _LENGTH_BYTES + int.from_bytes(frame[:_LENGTH_BYTES], "little")
    return messages.decode(frame[_LENGTH_BYTES:end]), frame[end:]


class Channel:
    """One end of a frame channel, client's or server's.

    `receive` returns None when the other side has ended; both raise `pyarrow.flight.FlightError`
    or OSError-like Arrow errors when the connection breaks: see CHANNEL_ERRORS. `taken` is told
    the size of each frame that was received.
    """

    def __init__(
        self, reader: Any, writer: Any, taken: Callable[[int], None] = lambda _: None
    ) -> None:
        self._reader = reader
        self._taken = taken
        self._writer = writer
        self._sending = threading.Lock()
        self._closed = False
        self.waited_seconds = 0.0
        self.sending_since: float | None = None

    def send(self, message: Message, body: bytes | memoryview = b"") -> None:
        """Send one frame; blocks while the connection's window is full, see `sending_since`."""
        self.send_packed(pack(message, body))

    def send_packed(self, frame: bytes) -> None:
        """Send a frame that is packed already; blocks as `send` does."""
        buffer = pa.py_buffer(frame)
        with self._sending:
            self.sending_since = time.monotonic()
            try:
                self._writer.write_metadata(buffer)
            finally:
                self.sending_since = None

    def receive(self) -> Frame | None:
        """Return the next frame, or None at the end; `waited_seconds` is how long it took."""
        begun = time.monotonic()
        try:
            chunk = self._reader.read_chunk()
        except StopIteration:
            return None
        self.waited_seconds = time.monotonic() - begun
        if chunk.app_metadata is None:
            raise flight.FlightServerError("a frame without metadata: no channel of this version")
        frame = memoryview(chunk.app_metadata)
        self._taken(len(frame))
        return unpack(frame)

    def close(self) -> None:
        """End the client's side; harmless when the connection is already gone.

        Only the thread that receives may: both the end of a read and this finish the gRPC call,
        and finishing it twice at the same time aborts the process. Others `cancel`.
        """
        with self._sending:
            if self._closed or not hasattr(self._writer, "done_writing"):
                return
            self._closed = True
            # Both even after a failure: Arrow complains on stderr about a stream never closed.
            for end in (self._writer.done_writing, self._writer.close):
                with contextlib.suppress(*CHANNEL_ERRORS):
                    end()

    def cancel(self) -> None:
        """Break the client's side off at once; a thread in `receive` gets an error."""
        if hasattr(self._reader, "cancel"):
            self._reader.cancel()


CHANNEL_ERRORS = (flight.FlightError, pa.ArrowException, OSError)
"""What a broken connection raises, whichever layer notices it first."""
