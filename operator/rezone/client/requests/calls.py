"""What a call waits for, and how much all calls together may have under way."""

import threading
from concurrent.futures import Future
from typing import Any

from rezone.client.settings import ClientSettings, OutcomeUnknownError
from rezone.wire.errors import OverloadedError


class Call:
    """Gathers the answers of one call's requests into its future."""

    def __init__(self, parts: int) -> None:
        self.future: Future[list[Any]] = Future()
        self.future.set_running_or_notify_cancel()
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

        The last one completes the future; the first error wins, and has the others.
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
            self.future.set_exception(first)
        else:
            self.future.set_result(self._results)


class Budget:
    """How many requests and bytes may be open; `take` waits for room."""

    def __init__(self, settings: ClientSettings) -> None:
        self._requests = settings.open_requests_max
        self._bytes_max = self._bytes = settings.open_bytes_max
        self._timeout = settings.timeout_seconds
        self._room = threading.Condition()

    def take(self, size: int) -> int:
        """Take room for one request and return what to give back; OverloadedError in the end."""
        size = min(size, self._bytes_max)
        with self._room:
            if not self._room.wait_for(
                lambda: self._requests > 0 and self._bytes >= size, self._timeout
            ):
                raise OverloadedError("the client's queue stayed full; nothing of this was sent")
            self._requests -= 1
            self._bytes -= size
        return size

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
