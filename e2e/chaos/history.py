"""What clients did, as they record it: one line when an operation begins, one when it ends.

Times are of the machine's monotonic clock, which all processes share. A write that ended without an
answer may take effect at any time after it began; one that was refused never did.
"""

from __future__ import annotations

import enum
import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from e2e.chaos.recording import whole_lines

NEVER_NS = 2**62
"""When an operation ends that nobody knows the end of."""


class Outcome(enum.StrEnum):
    """How an operation ended."""

    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Operation:
    """One write or read of one row; `value` is what was written or read, 0 for no row."""

    client: int
    partition: int
    key: int
    write: bool
    value: int
    call_ns: int
    return_ns: int
    outcome: Outcome
    error: str = ""


class Histories:
    """The operations that clients have recorded in a directory; each line is read once."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._offsets: dict[Path, int] = defaultdict(int)
        self._begun: dict[tuple[Path, int], dict[str, Any]] = {}
        self._ended: list[Operation] = []

    def ended(self) -> Sequence[Operation]:
        """Return the operations that have ended by now."""
        for path in sorted(self._directory.glob("*.jsonl")):
            with path.open("rb") as file:
                file.seek(self._offsets[path])
                items, read = whole_lines(file.read())
            self._offsets[path] += read
            for item in items:
                self._take(path, item)
        return self._ended

    def all(self) -> list[Operation]:
        """Return all operations; the end of those that have not ended is unknown."""
        ended = self.ended()
        open_end = {"return_ns": NEVER_NS, "outcome": Outcome.UNKNOWN}
        return [*ended, *(_operation({**item, **open_end}) for item in self._begun.values())]

    def _take(self, path: Path, item: dict[str, Any]) -> None:
        name = (path, item.pop("op"))
        if "key" in item:
            self._begun[name] = item
            return
        found = _operation({**self._begun.pop(name), **item})
        if found.outcome is Outcome.UNKNOWN:
            found = replace(found, return_ns=NEVER_NS)
        self._ended.append(found)


def _operation(item: dict[str, Any]) -> Operation:
    return Operation(**{**item, "outcome": Outcome(item["outcome"])})


def longest_gaps(
    operations: Sequence[Operation], partitions: int, begin_ns: int, end_ns: int
) -> list[float]:
    """Return for each partition its longest time without an acknowledged write, in seconds.

    Counted are the times that overlap with [begin, end]; the edges count as the acknowledged
    writes before and behind them, or, where there is none, as what was given.
    """
    acknowledged: dict[int, list[int]] = defaultdict(list)
    for each in operations:
        if each.write and each.outcome is Outcome.OK:
            acknowledged[each.partition].append(each.return_ns)
    return [
        _longest(sorted(acknowledged[partition]), begin_ns, end_ns)
        for partition in range(partitions)
    ]


def _longest(times: list[int], begin: int, end: int) -> float:
    before = max((t for t in times if t <= begin), default=begin)
    behind = min((t for t in times if t >= end), default=end)
    marks = [before, *(t for t in times if begin < t < end), behind]
    return max(later - earlier for earlier, later in itertools.pairwise(marks)) / 1e9
