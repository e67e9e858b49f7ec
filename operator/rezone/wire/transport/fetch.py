"""One stream from a node, read a little ahead by a thread of its own.

So whoever waits for it can stop waiting: a node that hangs, or is cut off, ends no stream. The
thread it leaves behind ends when the connection does.

How long a node may send nothing depends on who waits. A client goes on with another replica after
a moment. A copy waits for as long as the source is there: it may be slow, make files ready, or give
way to clients, and its next batch may be on its way for long.

Concurrency: one thread iterates and cancels; the other one reads.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Self

from rezone.wire.errors import NotReadyError, RezoneError
from rezone.wire.messages import SnapshotTicket
from rezone.wire.transport.channel import CHANNEL_ERRORS
from rezone.wire.transport.flight import NodeClient, from_flight_error

AHEAD_MAX = 2
"""So many batches are read before they are asked for."""

BEAT_SECONDS = 5.0
"""After so long without a batch, or without a word, a node is asked whether it is there."""


class Fetch(Iterator[Any]):
    """The chunks of a Flight stream that `get` opens; cancel it.

    When nothing comes for `silent_seconds_max` the caller's `is_there` is asked: NotReadyError when
    it says no, and nothing has come meanwhile. Any other error as the node sent it.
    """

    def __init__(
        self,
        get: Callable[[], Any],
        silent_seconds_max: float,
        is_there: Callable[[], bool],
        ahead_max: int = AHEAD_MAX,
    ) -> None:
        self._get = get
        self._is_there = is_there
        self._silent_seconds_max = silent_seconds_max
        self._ahead_max = ahead_max
        self._state = threading.Condition()
        self._chunks: deque[Any] = deque()
        self._reader: Any = None
        self._error: RezoneError | None = None
        self._over = False
        self._cancelled = False
        threading.Thread(target=self._read, name="rezone-fetch", daemon=True).start()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        """Return the next chunk when it has come."""
        self._wait_for(lambda: bool(self._chunks))
        with self._state:
            if not self._chunks:
                if self._error is not None:
                    raise self._error
                raise StopIteration
            chunk = self._chunks.popleft()
            self._state.notify_all()
        return chunk

    @property
    def schema(self) -> Any:
        """The stream's schema, when it has been opened."""
        self._wait_for(lambda: self._reader is not None)
        if self._reader is None and self._error is not None:
            raise self._error
        return self._reader.schema

    def _wait_for(self, has_come: Callable[[], bool]) -> None:
        """Wait until something has come, or the stream is over."""

        def has_ended() -> bool:
            return self._over or has_come()

        while True:
            with self._state:
                if self._state.wait_for(has_ended, self._silent_seconds_max):
                    return
            if not self._is_there() and not has_ended():
                raise NotReadyError("the node has fallen silent", unreachable=1)

    def cancel(self) -> None:
        """Let the stream go."""
        with self._state:
            self._cancelled = True
            reader = self._reader
            self._state.notify_all()
        if reader is not None:
            reader.cancel()

    def _read(self) -> None:
        error: RezoneError | None = None
        try:
            self._pass_on(self._get())
        except RezoneError as failed:
            error = failed
        except CHANNEL_ERRORS as failed:
            error = from_flight_error(failed)
        with self._state:
            self._error = error
            self._over = True
            self._state.notify_all()

    def _pass_on(self, reader: Any) -> None:
        with self._state:
            self._reader = reader
            cancelled = self._cancelled
            self._state.notify_all()
        if cancelled:
            reader.cancel()
        for chunk in reader:
            with self._state:
                self._state.wait_for(lambda: len(self._chunks) < self._ahead_max or self._cancelled)
                if self._cancelled:
                    return
                self._chunks.append(chunk)
                self._state.notify_all()


class WatchedSource:
    """A source of snapshots that must answer while a copy waits for it; any other may be for ever.

    To be asked is enough where the node is gone: the kernel then breaks the connection off, because
    nothing of it is acknowledged.
    """

    def __init__(self, node: NodeClient) -> None:
        self._node = node

    def get(self, ticket: SnapshotTicket) -> Fetch:
        """Open the snapshot's stream; what fails is raised where it is read."""
        return Fetch(lambda: self._node.get(ticket), BEAT_SECONDS, self._node.is_there, ahead_max=1)
