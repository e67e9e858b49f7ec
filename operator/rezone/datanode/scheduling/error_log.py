"""What should not happen is counted, and told in the log at a bounded rate; threads survive it.

A peer that is refused a thousand times a second, or a duty that fails at each tick, must not fill
the log. Each subject is told once in `SAY_SECONDS`, with how often it was not told since.

Concurrency: thread-safe.
"""

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import structlog

_log = structlog.get_logger(__name__)

SAY_SECONDS = 10.0
_SUBJECTS_MAX = 256


class ErrorLog:
    """One kind of them; `total` is how many there were."""

    def __init__(self, event: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.total = 0
        self._event = event
        self._clock = clock
        self._lock = threading.Lock()
        self._said: dict[str, tuple[float, int]] = {}

    def note(self, subject: str, **fields: Any) -> None:
        """Count one, and tell of it if its subject was not told of lately."""
        untold = self._count(subject)
        if untold is not None:
            _log.warning(self._event, subject=subject, untold=untold, **fields)

    def surviving(self, duty: str) -> "_Surviving":
        """Return what keeps an exception from ending its thread: the duty is done the next time."""
        return _Surviving(self, duty)

    def failed(self, duty: str) -> None:
        """Tell of the exception that is handled now, with where it comes from."""
        untold = self._count(duty)
        if untold is not None:
            _log.exception(self._event, subject=duty, untold=untold)

    def _count(self, subject: str) -> int | None:
        """Return how many were not told of since the last one that was; None for one more."""
        now = self._clock()
        with self._lock:
            self.total += 1
            since, untold = self._said.pop(subject, (float("-inf"), 0))
            if now - since < SAY_SECONDS:
                self._said[subject] = since, untold + 1
                return None
            if len(self._said) >= _SUBJECTS_MAX:
                self._said.pop(next(iter(self._said)))
            self._said[subject] = now, 0
            return untold


class _Surviving:
    def __init__(self, error_log: ErrorLog, duty: str) -> None:
        self._error_log = error_log
        self._duty = duty

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> bool:
        if kind is None or not issubclass(kind, Exception):
            return False
        self._error_log.failed(self._duty)
        return True


UNEXPECTED = ErrorLog("an exception that nobody expects")
"""Of this process: each is a fault of the product, and one of its threads has gone on."""

REFUSED = ErrorLog("refused")
"""Of this process: what callers have asked for that their certificates are not good for."""
