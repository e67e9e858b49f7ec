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
    threading.Event().wait(begin - time.monotonic())
    first = _look(servers_cpu)
    threading.Event().wait(end - time.monotonic())
    last = _look(servers_cpu)
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return _figures(spent, seconds, first, last)


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

    async def looks() -> "tuple[_Look, _Look]":
        await asyncio.sleep(begin - time.monotonic())
        first = _look(servers_cpu)
        await asyncio.sleep(end - time.monotonic())
        return first, _look(servers_cpu)

    async with asyncio.TaskGroup() as group:
        looking = group.create_task(looks())
        for each in zip(operations, spent, strict=True):
            group.create_task(work(*each))
    return _figures(spent, seconds, *looking.result())


class _Look(NamedTuple):
    """What the clock and the processor times say; late where all processors are busy."""

    at: float
    client: float
    servers: float


def _look(servers_cpu: Callable[[], float]) -> _Look:
    return _Look(time.monotonic(), time.process_time(), servers_cpu())


def _figures(
    spent: Sequence[Sequence[float]], seconds: float, first: _Look, last: _Look
) -> Figures:
    times = [one * 1000 for mine in spent for one in mine]
    seen = last.at - first.at
    known = times and seen > seconds / 2
    each_us = 1e6 / len(times) * seconds / seen if known else float("nan")
    return Figures(
        len(times) / seconds,
        percentile(times, 0.5),
        percentile(times, 0.99),
        (last.client - first.client) * each_us,
        (last.servers - first.servers) * each_us,
    )


def cpu_of_tree(pid: int) -> float:
    """Return the CPU time of a process and of those below it that are alive, in seconds."""
    found = cpu_of(pid)
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        found += sum(cpu_of_tree(int(child)) for child in children.read_text().split())
    return found
