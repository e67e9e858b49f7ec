"""A writer for benchmarks: a process that writes so many rows a second, in batches.

    python -m harness.steady_writer ADDRESS... --per-second N

A batch is begun when its time has come; a few may be under way. When its input ends it prints how
many rows were acknowledged, and the seconds from its first batch until the last one was.
"""

import argparse
import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from harness.child import input_ended, start
from harness.zone import batch_of
from rezone.client import TableClient

_BATCHES, _BATCH_ROWS = 100, 1000
"""The same rows are written again after so many batches."""

_UNDER_WAY = 8
_END_SECONDS = 60.0


class Written(NamedTuple):
    """What a writer has done."""

    rows: int
    seconds: float


class SteadyWriter:
    """A running process that writes; `end` ends it."""

    def __init__(self, addresses: Sequence[str], per_second: int) -> None:
        self._process = start("steady_writer", [*addresses, f"--per-second={per_second}"])

    def end(self) -> Written:
        """Have it end; return what it has written."""
        answer, _ = self._process.communicate(timeout=_END_SECONDS)
        rows, seconds = answer.split()
        return Written(int(rows), float(seconds))

    def kill(self) -> None:
        """End the process in any case."""
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def steady_writer(addresses: Sequence[str], per_second: int) -> Iterator[SteadyWriter]:
    """Run a writer; it is gone at the end."""
    writer = SteadyWriter(addresses, per_second)
    try:
        yield writer
    finally:
        writer.kill()


def _write(client: TableClient, per_second: int, stop: threading.Event) -> Written:
    batches = [
        batch_of(list(range(n * _BATCH_ROWS, (n + 1) * _BATCH_ROWS)), n) for n in range(_BATCHES)
    ]
    begun = time.monotonic()
    waiting: deque[Future[Any]] = deque()
    sent = 0
    while not stop.wait(max(0.0, begun + sent * _BATCH_ROWS / per_second - time.monotonic())):
        if len(waiting) == _UNDER_WAY:
            waiting.popleft().result()
        waiting.append(client.submit_write(batches[sent % _BATCHES]))
        sent += 1
    for each in waiting:
        each.result()
    return Written(sent * _BATCH_ROWS, time.monotonic() - begun)


def main() -> None:
    """Write until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("addresses", nargs="+")
    parser.add_argument("--per-second", type=int, required=True)
    given = parser.parse_args()
    stop = input_ended()
    with TableClient(given.addresses) as client:
        written = _write(client, given.per_second, stop)
    print(written.rows, written.seconds, flush=True)


if __name__ == "__main__":
    main()
