"""An asyncio loop whose time is a number: it jumps to the next timer when nothing else is due.

Concurrency: one thread. `call_soon_threadsafe` is `call_soon`, because nothing else ever calls.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, ClassVar

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
_START_MICROS = int(START.timestamp() * 1e6)


class DeadlockError(AssertionError):
    """Raised when nothing is due and nothing will ever be."""


class _Selector:
    """Takes the place of a selector: waiting for events is the passing of time."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        """Let the time pass."""
        if timeout is None:
            raise DeadlockError("nothing is due any more")
        self._loop.advance(timeout)
        return []


class VirtualLoop(asyncio.BaseEventLoop):
    """The loop; also the clock of all that lives in it."""

    passed_seconds: ClassVar[float] = 0.0
    """How much time has passed in all loops of this process."""

    def __init__(self) -> None:
        super().__init__()
        self._elapsed = 0.0
        self._selector = _Selector(self)
        self._clock_resolution = 1e-6

    def time(self) -> float:
        """Return the seconds since the beginning."""
        return self._elapsed

    def advance(self, seconds: float) -> None:
        """Move the clock."""
        self._elapsed += seconds
        VirtualLoop.passed_seconds += seconds

    def now(self) -> dt.datetime:
        """Return the time of day."""
        return START + dt.timedelta(seconds=self._elapsed)

    def monotonic(self) -> float:
        """Return the seconds as a data node's clock tells them."""
        return self._elapsed

    def micros(self) -> int:
        """Return the time as a data node's clock tells it."""
        return _START_MICROS + round(self._elapsed * 1e6)

    def _process_events(self, event_list: list[Any]) -> None:
        del event_list

    def _write_to_self(self) -> None:
        pass


class Later:
    """A call's answer that will come: what a simulated client returns in place of blocking."""

    def __init__(self) -> None:
        self.future: Future[Any] = Future()

    def answer(self, value: Any) -> None:
        """Give the answer, unless nobody waits any more."""
        if not self.future.done():
            self.future.set_result(value)

    def fail(self, error: BaseException) -> None:
        """Give an error."""
        if not self.future.done():
            self.future.set_exception(error)


class InlineExecutor(Executor):
    """Runs calls where they are submitted; those of simulated clients end later."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Start the call."""
        later = fn(*args, **kwargs)
        assert isinstance(later, Later), f"{fn} would block"
        return later.future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT002 - as the base class
        """Do nothing: nothing runs here."""
