"""Clients that each have one operation under way, and what they and the servers take for it.

Each is a thread (`run`), or a coroutine of one event loop (`run_in_loop`).
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from harness.zone import cpu_of, percentile

WARM_SECONDS = 1.0
"""So long at the start of each run nothing is counted."""

Operation = Callable[[], object]
AsyncOperation = Callable[[], Awaitable[object]]


class Figures(NamedTuple):
    """What a number of clients got done; microseconds are processor time of one operation.

    `client_us` is the process of all clients, `servers_us` all processes of the system together;
    NaN where so many threads ran that nobody came to look at the processor times.
    """

    rate: float
    median_ms: float
    slowest_ms: float
    client_us: float
    servers_us: float


def run(
    operations: Sequence[Operation],
    seconds: float,
    servers_cpu: Callable[[], float],
    warm_seconds: float = WARM_SECONDS,
) -> Figures:
    """Run each operation again and again, in a thread of its own; the first seconds do not count.

    `servers_cpu` says how much processor time the servers have used so far. An error of an
    operation ends all threads, and is raised here.
    """
    begin = time.monotonic() + warm_seconds
    end = begin + seconds
    spent: list[list[float]] = [[] for _ in operations]
    failures: list[Exception] = []

    def work(operation: Operation, mine: list[float]) -> None:
        try:
            while not failures and (started := time.monotonic()) < end:
                operation()
                if started >= begin:
                    mine.append(time.monotonic() - started)
        except Exception as error:  # noqa: BLE001 - raised by who waits for the threads
            failures.append(error)

    threads = [
        threading.Thread(target=work, args=each, daemon=True)
        for each in zip(operations, spent, strict=True)
    ]
    for thread in threads:
        thread.start()
    used = _Used(servers_cpu)
    threading.Event().wait(begin - time.monotonic())
    used.begin()
    threading.Event().wait(end - time.monotonic())
    used.end()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return _figures(spent, seconds, used)


async def run_in_loop(
    operations: Sequence[AsyncOperation],
    seconds: float,
    servers_cpu: Callable[[], float],
    warm_seconds: float = WARM_SECONDS,
) -> Figures:
    """Run each operation again and again as `run` does, in a coroutine of its own."""
    begin = time.monotonic() + warm_seconds
    end = begin + seconds
    spent: list[list[float]] = [[] for _ in operations]

    async def work(operation: AsyncOperation, mine: list[float]) -> None:
        while (started := time.monotonic()) < end:
            await operation()
            if started >= begin:
                mine.append(time.monotonic() - started)

    used = _Used(servers_cpu)

    async def look() -> None:
        await asyncio.sleep(begin - time.monotonic())
        used.begin()
        await asyncio.sleep(end - time.monotonic())
        used.end()

    async with asyncio.TaskGroup() as group:
        group.create_task(look())
        for each in zip(operations, spent, strict=True):
            group.create_task(work(*each))
    return _figures(spent, seconds, used)


class _Used:
    """Processor time between two looks, which come late where all processors are busy."""

    def __init__(self, servers_cpu: Callable[[], float]) -> None:
        self._servers_cpu = servers_cpu
        self.seconds = self.client = self.servers = 0.0

    def begin(self) -> None:
        """Look for the first time."""
        self._look(-1)

    def end(self) -> None:
        """Look for the second time."""
        self._look(1)

    def _look(self, sign: int) -> None:
        self.seconds += sign * time.monotonic()
        self.client += sign * time.process_time()
        self.servers += sign * self._servers_cpu()


def _figures(spent: Sequence[Sequence[float]], seconds: float, used: _Used) -> Figures:
    times = [one * 1000 for mine in spent for one in mine]
    seen = used.seconds > seconds / 2 and times
    each_us = 1e6 / len(times) * seconds / used.seconds if seen else float("nan")
    return Figures(
        len(times) / seconds,
        percentile(times, 0.5),
        percentile(times, 0.99),
        used.client * each_us,
        used.servers * each_us,
    )


def cpu_of_tree(pid: int) -> float:
    """Return the CPU time of a process and of those below it that are alive, in seconds."""
    found = cpu_of(pid)
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        found += sum(cpu_of_tree(int(child)) for child in children.read_text().split())
    return found
