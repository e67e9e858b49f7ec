"""A few threads that run keyed jobs: one job never runs twice at once, and no wake is lost.

Concurrency: `wake` may be called from any thread and never blocks. A job that is woken while it
runs is run again afterwards, so a job needs only to look at the state and do what is due.
"""

import enum
import queue
import threading
import time
from collections.abc import Callable

from rezone.datanode.scheduling import inline_sends
from rezone.datanode.scheduling.error_log import UNEXPECTED

IDLE_SECONDS = 0.001
"""A thread that has waited this long for its last frame may run a job before it waits again."""

_TURNS_MAX = 3


class JobState(enum.Enum):
    """Where a job is; `AGAIN` is one that was woken while it ran."""

    IDLE = enum.auto()
    QUEUED = enum.auto()
    RUNNING = enum.auto()
    AGAIN = enum.auto()


class Job:
    """Something to be run whenever it is woken; `name` is for the logs.

    `state` changes under the lock of the workers that run it.
    """

    __slots__ = ("name", "run", "state")

    def __init__(self, name: str, run: Callable[[], None]) -> None:
        self.name = name
        self.run = run
        self.state = JobState.IDLE

    def take(self, state: JobState) -> bool:
        """Go from idle into a state; whether it was idle. One that runs is to run again."""
        idle = self.state is JobState.IDLE
        if idle:
            self.state = state
        elif self.state is JobState.RUNNING:
            self.state = JobState.AGAIN
        return idle

    def begin(self) -> None:
        """Run: it was taken from the queue."""
        self.state = JobState.RUNNING

    def end(self, again: JobState) -> JobState:
        """Return its state after a run: `again` if it was woken while it ran, else idle."""
        self.state = again if self.state is JobState.AGAIN else JobState.IDLE
        return self.state


class Workers:
    """A bounded set of threads for jobs."""

    def __init__(self, threads: int, name: str) -> None:
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._running: dict[Job, float] = {}
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}-{i}", daemon=True)
            for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def wake(self, job: Job) -> None:
        """Have the job run once more after this call."""
        if self._take(job, JobState.QUEUED):
            self._queue.put(job)

    def run_here(self, job: Job) -> None:
        """Have the job run once more: by this thread, or by the one that runs it already.

        For a thread without locks that has nothing better to do: waking another one for a short
        job costs as much as the job.
        """
        if self._take(job, JobState.RUNNING):
            self._run(job, _TURNS_MAX)

    def _take(self, job: Job, state: JobState) -> bool:
        """Put an idle job into a state; whether it was idle."""
        with self._lock:
            return job.take(state)

    def longest_seconds(self) -> float:
        """Return for how long the job has run that has run for longest, 0 while none does."""
        now = time.monotonic()
        return max((now - begun for begun in list(self._running.values())), default=0.0)

    def close(self, timeout_seconds: float) -> None:
        """Let queued jobs finish and end the threads; a job that hangs is left behind."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join(timeout_seconds)

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            with self._lock:
                job.begin()
            self._run(job, 1)

    def _run(self, job: Job, turns: int) -> None:
        """Run a job that is marked as running, again at once while it is woken meanwhile."""
        while True:
            turns -= 1
            self._running[job] = time.monotonic()
            try:
                with inline_sends.scope():
                    job.run()
            except Exception:  # noqa: BLE001 - told with its trace
                # A job owns its errors; one that escapes must not end the thread of all others.
                UNEXPECTED.failed(f"job {job.name}")
            self._running.pop(job, None)
            with self._lock:
                state = job.end(JobState.RUNNING if turns else JobState.QUEUED)
            if state is JobState.QUEUED:
                self._queue.put(job)
            if state is not JobState.RUNNING:
                return
