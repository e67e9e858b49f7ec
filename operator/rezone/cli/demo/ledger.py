"""What the demo's writers were promised: the book that the proof is checked against.

Every batch is entered before it is sent and again when it is acknowledged. A row's value carries
the count of its last write, so that a lost, a stale and a doubled write can all be told apart: the
first two by the row, the last by the offsets of the partitions (one per row change).
"""

import dataclasses
import threading


@dataclasses.dataclass(frozen=True)
class Book:
    """The ledger at one moment.

    `acknowledged[key]` is the number of the last acknowledged write of a row; `possible[key]` the
    highest one that was ever sent. `rows_acknowledged` counts row changes with an answer,
    `rows_unknown` those whose answer never came.
    """

    acknowledged: dict[int, int]
    possible: dict[int, int]
    rows_acknowledged: int
    rows_unknown: int


class Ledger:
    """Thread-safe; each key belongs to one writer, whose batches end one after the other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._acknowledged: dict[int, int] = {}
        self._possible: dict[int, int] = {}
        self._rows_acknowledged = 0
        self._rows_unknown = 0

    def sent(self, writes: dict[int, int]) -> None:
        """Enter a batch: the number of the write by key."""
        with self._lock:
            self._possible.update(writes)

    def acknowledged(self, writes: dict[int, int]) -> None:
        """Enter that a batch was acknowledged."""
        with self._lock:
            self._acknowledged.update(writes)
            self._rows_acknowledged += len(writes)

    def unknown(self, writes: dict[int, int]) -> None:
        """Enter that nobody knows whether a batch was applied."""
        with self._lock:
            self._rows_unknown += len(writes)

    def promised(self, keys: list[int]) -> dict[int, int]:
        """Return the number of the last acknowledged write of each key, as of now."""
        with self._lock:
            return {key: self._acknowledged[key] for key in keys if key in self._acknowledged}

    def some_keys(self, start: int, count: int) -> list[int]:
        """Return up to `count` acknowledged keys, from somewhere that `start` decides."""
        with self._lock:
            keys = list(self._acknowledged)
        if not keys:
            return []
        start %= len(keys)
        return keys[start : start + count]

    def book(self) -> Book:
        """Return a copy of everything."""
        with self._lock:
            return Book(
                dict(self._acknowledged),
                dict(self._possible),
                self._rows_acknowledged,
                self._rows_unknown,
            )
