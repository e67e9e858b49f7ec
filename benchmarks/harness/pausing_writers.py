"""Writers of one partition each, with a pause between an answer and the next write."""

import argparse
import bisect
import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator

from harness.zone import Zone, batch_of, ids_by_partition, settle
from rezone.client import TableClient

AROUND_SECONDS = 0.05
"""For how long around an event their answers are looked at."""
_HURRIED_ACKS = 3
"""After so many acks the usual pause is over that the first of them may have had."""


class WriterFailedError(Exception):
    """Raised to who waits for a writer whose write has failed; the cause is that error."""


class Writer:
    """One partition's writer: one write on its way at a time."""

    def __init__(self, write: Callable[[int], object], pause_seconds: float) -> None:
        self.acks: list[float] = []
        self.pause_seconds = pause_seconds
        self._write = write
        self._stop = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for number in itertools.count():
            if self._stop.is_set():
                return
            try:
                self._write(number)
            except Exception as error:  # noqa: BLE001 - raised by who waits for acks
                self._failure = error
                return
            self.acks.append(time.monotonic())
            time.sleep(self.pause_seconds)

    def wait(self, check: Callable[[], bool], pause_seconds: float) -> None:
        """Wait until acks make `check` true; raises WriterFailedError when no more will come."""
        while not check():
            if self._failure is not None:
                raise WriterFailedError(f"a write has failed: {self._failure!r}") from self._failure
            settle(pause_seconds)

    def hurry(self, pause_seconds: float) -> None:
        """Write with a shorter pause; returns when it does."""
        self.pause_seconds = pause_seconds
        enough = len(self.acks) + _HURRIED_ACKS
        self.wait(lambda: len(self.acks) >= enough, pause_seconds)

    def stop(self) -> None:
        """End after the write under way."""
        self._stop.set()
        self._thread.join()


@contextlib.contextmanager
def writers(zone: Zone, given: argparse.Namespace) -> Iterator[list[Writer]]:
    """Run a writer for every partition."""
    keys = ids_by_partition(zone.partitions, given.rows)
    with zone.client() as client:
        made = [Writer(writes_of(client, ids), given.pause_ms / 1000) for ids in keys]
        try:
            yield made
        finally:
            for writer in made:
                writer.stop()


def writes_of(client: TableClient, ids: list[int]) -> Callable[[int], object]:
    """Return what writes these rows, each time with another content."""
    return lambda number: client.write(batch_of(ids, number))


def spaces_ms(writer: Writer, begun: float) -> list[float]:
    """Return the times between the acks around a move that began then and is over."""
    over = time.monotonic()
    writer.wait(lambda: bool(writer.acks) and writer.acks[-1] >= over, AROUND_SECONDS)
    acks = writer.acks[bisect.bisect_left(writer.acks, begun - AROUND_SECONDS / 2) - 1 :]
    return [(b - a) * 1000 for a, b in itertools.pairwise(acks)]
