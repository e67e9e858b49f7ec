"""The data channel: a client's writes and reads, each answered under its opaque number.

Concurrency: the channel's Flight thread reads frames, checks writes and appends them; it never
waits for a commit. Answers come from any thread and go through the channel's own sender thread,
so that a client that does not read its answers stops nobody but itself.
"""

import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import structlog

from rezone.replica.insync import Reply
from rezone.replica.read import read_keys
from rezone.replica.write import prepare
from rezone.wire.channel import CHANNEL_ERRORS, Channel
from rezone.wire.errors import RezoneError
from rezone.wire.messages import (
    ConnectionClosed,
    Failure,
    Message,
    ReadRequest,
    ReadResult,
    WriteRequest,
    WriteResult,
)
from rezone.wire.rows import RowCodec, to_ipc

if TYPE_CHECKING:
    from rezone.replica.partition import Partition

_log = structlog.get_logger(__name__)


class DataChannel:
    """One client's channel; `find` raises UnknownPartitionError."""

    def __init__(
        self,
        channel: Channel,
        find: Callable[[int], "Partition"],
        codec: Callable[[], RowCodec],
    ) -> None:
        self._channel = channel
        self._find = find
        self._codec = codec
        self._answers: queue.SimpleQueue[tuple[Message, bytes] | None] = queue.SimpleQueue()

    def run(self) -> None:
        """Serve the channel until the client ends it."""
        sender = threading.Thread(target=self._send_all, name="answers", daemon=True)
        sender.start()
        try:
            while (frame := self._channel.receive()) is not None:
                self._handle(*frame)
        except CHANNEL_ERRORS as error:
            _log.debug("a data channel has broken", error=str(error))
        except msgspec.MsgspecError as error:
            _log.warning("not a frame of this version on a data channel", error=str(error))
        finally:
            self._answers.put(None)
            sender.join()

    def close(self, reason: str) -> None:
        """Ask the client to hang up: the node is stopping."""
        self._answers.put((ConnectionClosed(reason=reason), b""))

    def _handle(self, message: Message, body: memoryview) -> None:
        opaque = getattr(message, "opaque", 0)
        try:
            match message:
                case WriteRequest():
                    partition = self._find(message.partition)
                    prepared = prepare(message, body, self._codec(), partition.hash_range)
                    partition.write(message, prepared, self._reply_to(opaque))
                case ReadRequest():
                    codec = self._codec()
                    rows = read_keys(self._find(message.partition), message, body, codec)
                    self._answers.put((ReadResult(opaque=opaque, rows=rows.num_rows), to_ipc(rows)))
                case _:
                    error = RezoneError(f"{type(message).__name__} is no request of a data channel")
                    self._answers.put((Failure(opaque=opaque, error=error.info()), b""))
        except RezoneError as error:
            self._answers.put((Failure(opaque=opaque, error=error.info()), b""))

    def _reply_to(self, opaque: int) -> Reply:
        def reply(outcome: WriteResult | RezoneError) -> None:
            if isinstance(outcome, RezoneError):
                self._answers.put((Failure(opaque=opaque, error=outcome.info()), b""))
            else:
                self._answers.put((outcome, b""))

        return reply

    def _send_all(self) -> None:
        broken = False
        while (answer := self._answers.get()) is not None:
            if broken:
                continue
            try:
                self._channel.send(*answer)
            except (RezoneError, *CHANNEL_ERRORS) as error:
                # The reading thread notices the break; what is left has nobody to go to.
                broken = True
                _log.debug("cannot answer on a data channel", error=str(error))
