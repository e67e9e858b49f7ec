"""What a call waits for, and how much all calls together may have under way."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from rezone.client.settings import ClientSettings, OutcomeUnknownError
from rezone.wire.errors import OverloadedError

Ended = Callable[[list[Any] | BaseException], None]
"""Gets the answers of a call's parts, or the first error; from whichever thread has the last."""


class Call:
    """Gathers the answers of one call's requests, and tells them when the last one is there."""

    def __init__(self, parts: int, ended: Ended) -> None:
        self._ended = ended
        self._left = parts
        self._lock = threading.Lock()
        self._results: list[Any] = []
        self._errors: list[BaseException] = []

    def expect(self, parts: int) -> None:
        """Wait for so many parts more: one that is not answered yet was cut into them."""
        with self._lock:
            self._left += parts

    def add(self, result: Any) -> None:
        """Take one part's answer, answers (a list) or error.

        The last one ends the call; the first error wins, and has the others.
        """
        with self._lock:
            self._left -= 1
            if isinstance(result, BaseException):
                self._errors.append(result)
            elif isinstance(result, list):
                self._results.extend(result)
            else:
                self._results.append(result)
            if self._left:
                return
        if self._errors:
            first, *others = self._errors
            if isinstance(first, OutcomeUnknownError):
                first.others = tuple(others)
            self._ended(first)
        else:
            self._ended(self._results)


def settling() -> tuple["Future[list[Any]]", Ended]:
    """Return a future, and what ends it as a call ends."""
    future: Future[list[Any]] = Future()
    future.set_running_or_notify_cancel()

    def ended(outcome: list[Any] | BaseException) -> None:
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    return future, ended


class Budget:
    """How many requests and bytes may be open; `take` waits for room."""

    def __init__(
        self, settings: ClientSettings, before_waiting: Callable[[], None] = lambda: None
    ) -> None:
        self._before_waiting = before_waiting
        self._requests = settings.open_requests_max
        self._bytes_max = self._bytes = settings.open_bytes_max
        self._timeout = settings.timeout_seconds
        self._room = threading.Condition()

    def is_roomy(self, requests: int) -> bool:
        """Whether there is room for so many requests of few rows, and as much again for others."""
        return self._requests > 2 * requests and self._bytes > self._bytes_max // 2

    def take(self, size: int) -> int:
        """Take room for one request and return what to give back; OverloadedError in the end."""
        size = min(size, self._bytes_max)
        if self._take(size, wait_seconds=0):
            return size
        self._before_waiting()
        if not self._take(size, wait_seconds=self._timeout):
            raise OverloadedError("the client's queue stayed full; nothing of this was sent")
        return size

    def _take(self, size: int, *, wait_seconds: float) -> bool:
        with self._room:
            if not self._room.wait_for(
                lambda: self._requests > 0 and self._bytes >= size, wait_seconds
            ):
                return False
            self._requests -= 1
            self._bytes -= size
        return True

    def exceed(self, size: int) -> int:
        """Take room for one request even where there is none; return what to give back.

        For parts of what had room and was cut again: it must go on before others can.
        """
        with self._room:
            self._requests -= 1
            self._bytes -= size
        return size

    def give(self, size: int) -> None:
        """Give back the room of one request."""
        with self._room:
            self._requests += 1
            self._bytes += size
            self._room.notify_all()
