"""One stream from a node, read a little ahead by a thread of its own.

So whoever waits for it can stop waiting: a node that hangs, or is cut off, ends no stream. The
thread it leaves behind ends when the connection does.

Concurrency: one thread iterates and closes; the other one reads.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from rezone.wire.channel import CHANNEL_ERRORS
from rezone.wire.errors import NotReadyError, RezoneError
from rezone.wire.flight import from_flight_error

AHEAD_MAX = 2
"""So many batches are read before they are asked for."""


class Fetch:
    """The chunks of a Flight stream that `get` opens; close it.

    NotReadyError when nothing comes for `silent_seconds_max`; any other error as the node sent it.
    """

    def __init__(self, get: Callable[[], Any], silent_seconds_max: float) -> None:
        self._get = get
        self._silent_seconds_max = silent_seconds_max
        self._state = threading.Condition()
        self._chunks: deque[Any] = deque()
        self._reader: Any = None
        self._error: RezoneError | None = None
        self._over = False
        self._closed = False
        threading.Thread(target=self._read, name="rezone-fetch", daemon=True).start()

    def __iter__(self) -> Iterator[Any]:
        """Yield the chunks as they come."""
        while True:
            with self._state:
                if not self._state.wait_for(
                    lambda: self._chunks or self._over, self._silent_seconds_max
                ):
                    raise NotReadyError(
                        f"the node has sent nothing for {self._silent_seconds_max} s", unreachable=1
                    )
                if not self._chunks:
                    if self._error is not None:
                        raise self._error
                    return
                chunk = self._chunks.popleft()
                self._state.notify_all()
            yield chunk

    def close(self) -> None:
        """Let the stream go."""
        with self._state:
            self._closed = True
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
            closed = self._closed
        if closed:
            reader.cancel()
        for chunk in reader:
            with self._state:
                self._state.wait_for(lambda: len(self._chunks) < AHEAD_MAX or self._closed)
                if self._closed:
                    return
                self._chunks.append(chunk)
                self._state.notify_all()
