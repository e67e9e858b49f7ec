"""What clients record, and the loops in which they do what they record.

A line is one JSON object; it is written whole, and whoever reads takes whole lines only: a client
that was killed may have left half of one.
"""

from __future__ import annotations

import itertools
import json
import random
import threading
from collections.abc import Iterator
from typing import Any, TextIO


class Lines:
    """Writes lines to a file; threads take turns. `number` gives each operation its own."""

    def __init__(self, target: TextIO) -> None:
        self._target = target
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)

    def number(self) -> int:
        """Return the next number."""
        return next(self._numbers)

    def put(self, **item: Any) -> None:
        """Write a line."""
        with self._lock:
            self._target.write(json.dumps(item) + "\n")
            self._target.flush()


def whole_lines(data: bytes) -> tuple[list[dict[str, Any]], int]:
    """Return the lines that are whole, and of how many bytes they are."""
    end = data.rfind(b"\n") + 1
    return [json.loads(line) for line in data[:end].splitlines()], end


class ClosedLoop(threading.Thread):
    """A thread that does one thing after the other, with pauses of about `pause_seconds`."""

    def __init__(
        self, name: str, rng: random.Random, pause_seconds: float, stop: threading.Event
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.rng = rng
        self._pause_seconds = pause_seconds
        self._stopping = stop

    def turns(self) -> Iterator[None]:
        """Yield for each turn, until told to stop."""
        while not self._stopping.wait(self.rng.uniform(0.5, 1.5) * self._pause_seconds):
            yield
