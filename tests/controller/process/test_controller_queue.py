"""The keyed queue: one run per key, nothing put is forgotten, errors back off."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from rezone.controller.work import queue as queue_module
from rezone.controller.work.queue import KeyedQueue
from rezone.kube.api.errors import ForbiddenError, KubeError, MissingError, UnavailableError

Reconcile = Callable[[str], Awaitable[float | None]]


class Runs:
    """A reconcile that a test holds and releases, run by run."""

    def __init__(self) -> None:
        self.started: Counter[str] = Counter()
        self.running: Counter[str] = Counter()
        self.most_at_once: Counter[str] = Counter()
        self.all_at_once = 0
        self.gate = asyncio.Semaphore(0)
        self.answers: list[float | Exception | None] = []
        self._changed = asyncio.Condition()

    async def __call__(self, key: str) -> float | None:
        """Run once: until the gate opens, with the next answer."""
        self.started[key] += 1
        self.running[key] += 1
        self.most_at_once[key] = max(self.most_at_once[key], self.running[key])
        self.all_at_once = max(self.all_at_once, self.running.total())
        await self._tell()
        try:
            await self.gate.acquire()
        finally:
            self.running[key] -= 1
        await self._tell()
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def until(self, check: Callable[[], bool]) -> None:
        """Wait for a start or an end."""
        async with asyncio.timeout(5), self._changed:
            await self._changed.wait_for(check)


@pytest.fixture
async def runs() -> Runs:
    """Give the reconcile."""
    return Runs()


@pytest.fixture
async def queue(runs: Runs) -> AsyncIterator[KeyedQueue[str]]:
    """Give a queue of two slots."""
    made = KeyedQueue(runs, concurrency=2)
    yield made
    await made.close()


async def settle() -> None:
    """Let every task run until it waits."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_one_run_per_key_and_one_more_after_puts(queue: KeyedQueue[str], runs: Runs) -> None:
    """Two passes would decide on one object at once, or an event during a pass be lost."""
    queue.put("a")
    await runs.until(lambda: runs.started["a"] == 1)
    for _ in range(5):
        queue.put("a")
    await settle()
    assert runs.started["a"] == 1
    runs.gate.release()
    await runs.until(lambda: runs.started["a"] == 2)
    runs.gate.release()
    await settle()
    assert runs.started["a"] == 2, "five puts ask for one more run"
    assert runs.most_at_once["a"] == 1


async def test_keys_run_side_by_side_up_to_the_limit(queue: KeyedQueue[str], runs: Runs) -> None:
    """One slow object would hold all others up, or a thousand run at once."""
    for key in "abc":
        queue.put(key)
    await runs.until(lambda: runs.running.total() == 2)
    await settle()
    assert runs.all_at_once == 2
    # A put while a key waits for its slot is seen by the run that is to come.
    queue.put("c")
    for _ in range(3):
        runs.gate.release()
    await runs.until(lambda: runs.running.total() == 0 and runs.started["c"] == 1)
    await settle()
    assert runs.started == {"a": 1, "b": 1, "c": 1}
    assert runs.all_at_once == 2


async def test_a_run_says_when_it_is_due_again(queue: KeyedQueue[str], runs: Runs) -> None:
    """A deadline would be noticed only when something else happens."""
    runs.answers = [0.01, None]
    queue.put("a")
    runs.gate.release()
    runs.gate.release()
    await runs.until(lambda: runs.started["a"] == 2)
    await settle()
    assert not queue._timers


async def test_the_earlier_timer_wins_and_a_put_overtakes_it(
    queue: KeyedQueue[str], runs: Runs
) -> None:
    """A far deadline would push a near one away, or fire once more after the work was done."""
    queue.put("a", 1000.0)
    first = queue._timers["a"]
    queue.put("a", 2000.0)
    assert queue._timers["a"] is first
    queue.put("a", 500.0)
    assert queue._timers["a"].when() < first.when()
    assert first.cancelled()
    queue.put("a")
    assert not queue._timers
    runs.gate.release()
    await runs.until(lambda: runs.started["a"] == 1)


@pytest.mark.parametrize("error", [UnavailableError, MissingError, ForbiddenError])
async def test_what_the_api_server_answers_is_told_in_a_line(
    queue: KeyedQueue[str], runs: Runs, monkeypatch: pytest.MonkeyPatch, error: type[KubeError]
) -> None:
    """Asserts that such a failure is logged without a traceback, and backs off as others do.

    Without it each object of a cluster logs eighty lines of a HTTP client per try, while the API
    server is away or a namespace is deleted.
    """
    monkeypatch.setattr(queue_module, "BACKOFF_SECONDS_FIRST", 0.001)
    runs.answers = [error("Zone a: no connection"), None]
    told: list[dict[str, Any]] = []
    # Not by structlog's configuration: who has configured it before decides what that catches.
    log = SimpleNamespace(warning=lambda _event, **fields: told.append(fields))
    monkeypatch.setattr(queue_module, "log", log)
    queue.put("a")
    runs.gate.release()
    runs.gate.release()
    await runs.until(lambda: runs.started["a"] == 2)
    await settle()
    (line,) = told
    assert line["error"] == "Zone a: no connection"
    assert "exc_info" not in line


async def test_errors_back_off_and_success_ends_it(
    queue: KeyedQueue[str], runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failing object would be tried without pause, or be forgotten after its first error."""
    delays: list[float] = []
    schedule = KeyedQueue._schedule

    def spy(self: KeyedQueue[str], key: str, delay_seconds: float) -> None:
        delays.append(delay_seconds)
        schedule(self, key, 0.001)

    monkeypatch.setattr(KeyedQueue, "_schedule", spy)
    monkeypatch.setattr(queue_module, "BACKOFF_SECONDS_MAX", 1.0)
    broken = [RuntimeError("down")] * 4
    runs.answers = [*broken, 7.0, RuntimeError("again"), None]
    for _ in range(7):
        runs.gate.release()
    # To print a traceback with all locals takes longer than the test on a busy machine.
    with capture_logs() as logged:
        queue.put("a")
        await runs.until(lambda: runs.started["a"] == 7)
        await settle()
    assert [each["backoff"] for each in logged] == [0.2, 0.4, 0.8, 1.0, 0.2]
    assert delays == [0.2, 0.4, 0.8, 1.0, 7.0, 0.2]
    assert not queue._failures


async def test_close_cancels_and_takes_nothing_more(queue: KeyedQueue[str], runs: Runs) -> None:
    """A coordinator that lost its Lease would go on deciding."""
    queue.put("a")
    queue.put("b", 1000.0)
    await runs.until(lambda: runs.running["a"] == 1)
    await queue.close()
    assert runs.running["a"] == 0
    queue.put("a")
    queue.put("c", 0.001)
    await settle()
    assert runs.started == {"a": 1}
    assert not queue._timers
