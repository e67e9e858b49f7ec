"""What a bulk job says while it runs: units, rows, bytes, rate, skew and time left."""

import dataclasses
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

LOOK_SECONDS = 1.0


class Counted(NamedTuple):
    """What units that have ended have read or written; `bytes_max` is the largest one's."""

    units: int = 0
    rows: int = 0
    bytes: int = 0
    bytes_max: int = 0

    def plus(self, other: "Counted") -> "Counted":
        """Return both together."""
        largest = max(self.bytes_max, other.bytes_max)
        units, rows, size = (a + b for a, b in zip(self[:3], other[:3], strict=True))
        return Counted(units, rows, size, largest)


def unit(rows: int, size: int) -> Counted:
    """Return what one unit counts."""
    return Counted(1, rows, size, size)


@dataclasses.dataclass(frozen=True)
class Phase:
    """One pass over units of a job; `before` was done by an earlier run."""

    job: str
    name: str
    units: int
    before: int = 0

    def said(self, counted: Counted, seconds: float) -> dict[str, Any]:
        """Return the progress as its fields stand in the custom resource."""
        done, left = counted.units + self.before, self.units - self.before - counted.units
        mean = counted.bytes / counted.units if counted.units else 0.0
        return {
            "job": self.job,
            "phase": self.name,
            "unitsDone": done,
            "units": self.units,
            "rows": counted.rows,
            "bytes": counted.bytes,
            "bytesPerSecond": int(counted.bytes / seconds) if seconds > 0 else 0,
            "skew": round(counted.bytes_max / mean, 2) if mean else None,
            "secondsLeft": round(seconds / counted.units * left) if counted.units else None,
        }


Tell = Callable[[dict[str, Any]], object]


def write_line(said: dict[str, Any]) -> None:
    """Write what is said as a line of JSON to the driver's output."""
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


@contextmanager
def told(phase: Phase, counted: Callable[[], Counted], tells: Sequence[Tell]) -> Iterator[None]:
    """Tell of a phase at its beginning, each second in which something has changed, at its end."""
    begun, ended = time.monotonic(), threading.Event()

    def tell(found: Counted) -> None:
        said = phase.said(found, time.monotonic() - begun)
        for each in tells:
            each(said)

    def follow() -> None:
        before = counted()
        while not ended.wait(LOOK_SECONDS):
            if (now := counted()) != before:
                before = now
                tell(now)

    tell(counted())
    thread = threading.Thread(target=follow, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        tell(counted())
