"""What the demo's traffic did to each row and what it saw, for a checker of histories.

A write of several rows is one operation of each row. Times are of the process's monotonic clock.

Concurrency: any thread.
"""

import itertools
import threading
from collections.abc import Iterable, Mapping
from typing import NamedTuple


class RowOperation(NamedTuple):
    """One write or read of a row; `value` is the count of its writes, 0 for no row.

    Times are in nanoseconds. `return_ns` is None for a write that nobody knows the end of: it may
    take effect at any time after its call.
    """

    key: int
    write: bool
    value: int
    call_ns: int
    return_ns: int | None


class Operations:
    """Collects operations until they are taken."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._open: dict[int, tuple[Mapping[int, int], int]] = {}
        self._ended: list[RowOperation] = []

    def begin(self, writes: Mapping[int, int], call_ns: int) -> int:
        """Note that a write is sent: the count of its writes by key. Returns its number."""
        number = next(self._numbers)
        with self._lock:
            self._open[number] = writes, call_ns
        return number

    def end(self, number: int, return_ns: int | None) -> None:
        """Note when a write was acknowledged; None when it may be applied or not."""
        with self._lock:
            writes, call_ns = self._open.pop(number, ({}, 0))
            self._ended += _writes(writes, call_ns, return_ns)

    def read(
        self, keys: Iterable[int], found: Mapping[int, int], call_ns: int, return_ns: int
    ) -> None:
        """Note what a read of these keys has found."""
        with self._lock:
            self._ended += (
                RowOperation(key, False, found.get(key, 0), call_ns, return_ns)  # noqa: FBT003
                for key in keys
            )

    def take(self) -> list[RowOperation]:
        """Return what was not taken yet, and forget it; the end of open writes is unknown."""
        with self._lock:
            taken, self._ended = self._ended, []
            for writes, call_ns in self._open.values():
                taken += _writes(writes, call_ns, None)
            self._open.clear()
        return taken


def _writes(
    writes: Mapping[int, int], call_ns: int, return_ns: int | None
) -> Iterable[RowOperation]:
    return (
        RowOperation(key, True, count, call_ns, return_ns)  # noqa: FBT003 - by their places
        for key, count in writes.items()
    )
