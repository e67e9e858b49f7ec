"""What stands in for threads that wait for each other: in one thread others go on meanwhile."""

from __future__ import annotations

import functools
import random
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class Waiting(threading.Condition):
    """A condition; while somebody waits, `meanwhile` lets so many seconds pass and others go on."""

    def __init__(self, meanwhile: Callable[[float], None]) -> None:
        super().__init__(threading.RLock())
        self._meanwhile = meanwhile

    def wait(self, timeout: float | None = None) -> bool:
        """Let others go on."""
        assert timeout is not None, "nobody would wake it"
        self._meanwhile(timeout)
        return True


class Beside(Executor):
    """A helper thread: it works at once, or not before somebody waits for it.

    `begins` is called before each job.
    """

    def __init__(self, rng: random.Random, begins: Callable[[], None]) -> None:
        self._rng = rng
        self._begins = begins
        self._jobs: list[_Job] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Take a job."""
        job = _Job(functools.partial(fn, *args, **kwargs), self._begins)
        self._jobs.append(job)
        if self._rng.random() < 0.5:
            job.work()
        return job

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT002 - as the base class
        """Wait for all jobs."""
        del wait, cancel_futures
        for job in self._jobs:
            job.work()


class _Job(Future[Any]):
    def __init__(self, task: Callable[[], Any], begins: Callable[[], None]) -> None:
        super().__init__()
        self._task = task
        self._begins = begins

    def work(self) -> None:
        """Do the job, unless it is done."""
        if self.done():
            return
        self._begins()
        try:
            self.set_result(self._task())
        except Exception as error:  # noqa: BLE001 - as any executor does
            self.set_exception(error)

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the job."""
        self.work()
        return super().result(timeout)
