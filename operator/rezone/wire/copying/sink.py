"""Receivers of a copy as the copy loop sees them, and those on other nodes.

Concurrency: all calls but `state` come from one thread. A receiver on another node has a thread
more, which reads its acknowledgements.
"""

import contextlib
import threading
from typing import Any, Protocol

import msgspec

from rezone.wire import messages
from rezone.wire.errors import NotReadyError, RezoneError
from rezone.wire.messages import BulkInsert, CopyState, CopyStateRequest
from rezone.wire.transport.channel import CHANNEL_ERRORS
from rezone.wire.transport.fetch import BEAT_SECONDS
from rezone.wire.transport.flight import NodeClient, from_flight_error

ABORT_SECONDS = 5.0
"""How long an aborted receiver may take to end its side; after that it is left alone."""


class Sink(Protocol):
    """A receiver of a copy. All calls but `state` come from one thread.

    `bytes_per_second_max` is the zone's limit as the receiver knows it; None when it does not.
    """

    name: str
    bytes_per_second_max: int | None

    def state(self) -> CopyState:
        """Return where the receiver stands."""

    def open(self, schema: Any) -> None:
        """Begin; `schema` is the snapshot stream's."""

    def write(self, batch: Any, metadata: Any) -> None:
        """Take one batch with its metadata; either may be None."""

    def finish(self) -> CopyState:
        """Say that all was written and wait until the receiver has it."""

    def abort(self) -> None:
        """End without the rest; the receiver keeps its resume point."""


class FlightSink:
    """A receiver on another node, fed by DoPut."""

    def __init__(self, name: str, node: NodeClient, descriptor: BulkInsert) -> None:
        self.name = name
        self.bytes_per_second_max: int | None = None
        self._node = node
        self._descriptor = descriptor
        self._writer: Any = None
        self._reader: Any = None
        self._acks: threading.Thread | None = None
        self._last: CopyState | None = None
        self._error: RezoneError | None = None

    def state(self) -> CopyState:
        """Ask the node where its copy stands."""
        request = CopyStateRequest(partition=self._descriptor.partition)
        state = self._node.call(request, CopyState)
        self.bytes_per_second_max = state.bytes_per_second_max
        return state

    def open(self, schema: Any) -> None:
        """Open the DoPut stream."""
        self._writer, self._reader = self._node.put(self._descriptor, schema)
        # Acknowledgements must be read as they come: unread ones would fill the window and
        # stop the receiver.
        self._acks = threading.Thread(
            target=self._read_acks, name=f"rezone-acks-{self.name}", daemon=True
        )
        self._acks.start()

    def write(self, batch: Any, metadata: Any) -> None:
        """Send one batch as it came."""
        try:
            if batch is None:
                self._writer.write_metadata(metadata)
            elif metadata is None:
                self._writer.write_batch(batch)
            else:
                self._writer.write_with_metadata(batch, metadata)
        except CHANNEL_ERRORS as error:
            raise self._cause(error) from error

    def finish(self) -> CopyState:
        """End the stream and return the receiver's last CopyState."""
        try:
            self._writer.done_writing()
        except CHANNEL_ERRORS as error:
            raise self._cause(error) from error
        self._wait_for_end()
        if self._error is not None:
            raise self._error
        try:
            self._writer.close()
        except CHANNEL_ERRORS as error:
            # A refusal before the first batch is heard only here.
            if self._last is None or not self._last.done:
                raise self._cause(error) from error
        if self._last is None or not self._last.done:
            raise NotReadyError(f"{self.name} ended the copy without confirming it")
        return self._last

    def _wait_for_end(self) -> None:
        """Wait for the receiver's last word, for as long as it is there."""
        assert self._acks is not None  # noqa: S101 - `open` comes first
        while self._acks.is_alive():
            self._acks.join(BEAT_SECONDS)
            if self._acks.is_alive() and not self._node.is_there():
                raise NotReadyError(f"{self.name} has fallen silent", unreachable=1)

    def abort(self) -> None:
        """Break off; without a trailer the receiver does not take the copy for whole."""
        if self._writer is None or self._acks is None:
            return
        with contextlib.suppress(*CHANNEL_ERRORS):
            # Not close() at once: it waits for a lock that the reading thread holds until the
            # receiver ends, which it does only when it is told that no more comes.
            self._writer.done_writing()
            self._acks.join(ABORT_SECONDS)
            if not self._acks.is_alive():
                self._writer.close()

    def _read_acks(self) -> None:
        try:
            while (ack := self._reader.read()) is not None:
                message = messages.decode(memoryview(ack))
                if isinstance(message, CopyState):
                    self._last = message
                    self.bytes_per_second_max = message.bytes_per_second_max
        except (*CHANNEL_ERRORS, msgspec.MsgspecError) as error:
            self._error = from_flight_error(error)

    def _cause(self, error: BaseException) -> RezoneError:
        """Return why the receiver ended: its own word, which a failed write does not carry."""
        if self._acks is not None:
            self._acks.join(1.0)
        return self._error or from_flight_error(error)
