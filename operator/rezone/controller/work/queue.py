"""The keyed queue: one reconcile per object at a time, woken by events, deadlines and errors.

Kopf runs handlers of one object side by side and remembers edges; here a handler only puts a
key in. A key that is put while its reconcile runs is run once more afterwards, however often it
was put. A reconcile returns after how many seconds it wants to be woken at the latest, or None.
An error is retried with exponential backoff; the backoff ends with the first success.

Concurrency: one event loop; at most `concurrency` reconciles at once, never two of one key.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import structlog

from rezone.kube.api.errors import KubeError

Key = TypeVar("Key", bound=Hashable)

BACKOFF_SECONDS_FIRST = 0.2
BACKOFF_SECONDS_MAX = 30.0

log = structlog.get_logger(__name__)


class KeyedQueue(Generic[Key]):
    """Runs `reconcile(key)` for keys that were put; see the module for its rules."""

    def __init__(
        self,
        reconcile: Callable[[Key], Awaitable[float | None]],
        *,
        concurrency: int = 8,
    ) -> None:
        self._reconcile = reconcile
        self._slots = asyncio.Semaphore(concurrency)
        self._running: dict[Key, asyncio.Task[None]] = {}
        self._again: set[Key] = set()
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._failures: dict[Key, int] = {}
        self._closed = False

    def put(self, key: Key, delay_seconds: float = 0.0) -> None:
        """Ask for a reconcile of `key`, now or, at the latest, after a delay."""
        if self._closed:
            return
        if delay_seconds > 0:
            self._schedule(key, delay_seconds)
            return
        self._cancel_timer(key)
        if key in self._running:
            self._again.add(key)
            return
        self._running[key] = asyncio.get_running_loop().create_task(self._run(key))

    @property
    def depth(self) -> int:
        """How many keys wait for a reconcile or are in one; those that wait for a time are not."""
        return len(self._running)

    async def close(self) -> None:
        """Take no more keys and wait for the reconciles under way to be cancelled."""
        self._closed = True
        for key in list(self._timers):
            self._cancel_timer(key)
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _schedule(self, key: Key, delay_seconds: float) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + delay_seconds
        timer = self._timers.get(key)
        if timer is not None and timer.when() <= due:
            return
        self._cancel_timer(key)
        self._timers[key] = loop.call_at(due, self.put, key)

    def _cancel_timer(self, key: Key) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

    async def _run(self, key: Key) -> None:
        async with self._slots:
            # Puts from here on may have missed this pass: they ask for another one.
            self._again.discard(key)
            delay = await self._attempt(key)
        del self._running[key]
        if key in self._again:
            self._again.discard(key)
            self.put(key)
        elif delay is not None:
            self.put(key, max(delay, 0.001))

    async def _attempt(self, key: Key) -> float | None:
        try:
            delay: float | None = await self._reconcile(key)
        except KubeError as error:
            # The API server is away, an object is wrong, or it has changed or gone under the pass,
            # as when its namespace is deleted: a traceback would say no more.
            backoff = self._count_failure(key)
            log.warning("reconcile failed", key=str(key), backoff=backoff, error=str(error))
            return backoff
        except Exception:
            backoff = self._count_failure(key)
            log.exception("reconcile failed", key=str(key), backoff=backoff)
            return backoff
        self._failures.pop(key, None)
        return delay

    def _count_failure(self, key: Key) -> float:
        """Count one more failure in a row; return after how many seconds to try again."""
        failures = self._failures.get(key, 0) + 1
        self._failures[key] = failures
        return min(BACKOFF_SECONDS_FIRST * 2.0 ** (failures - 1), BACKOFF_SECONDS_MAX)
