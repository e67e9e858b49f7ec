"""Whether transactions saw snapshots: a checker by the times that they say themselves.

A transaction says as of when it reads (`read_time`) and when its rows were committed
(`commit_time`). Snapshot isolation then says of each key on its own:

- a read finds the version with the latest commit time up to its read time;
- two transactions that write a key do not overlap: the later one reads as of the earlier one's
  commit time or later;
- what was acknowledged before a transaction began lies before its read time.

Since all keys of a transaction are judged by one read time and one commit time, a transaction that
is seen in part, a lost update and a stale snapshot each break one of these. Values are unique, so
that a value tells its transaction. A transaction of unknown end may have committed at any time
after its read time: a read of its value is possible, and so is one that does not find it.
"""

from __future__ import annotations

import bisect
import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from e2e.chaos.history import Outcome
from e2e.chaos.recording import whole_lines

ABSENT = 0
"""What a key holds that nobody has written."""


@dataclass(frozen=True)
class Seen:
    """One transaction as its client saw it; `commit_time` is None unless it is known to be over.

    `read_time` and `commit_time` are what the data node said, in microseconds since 1970;
    `begin_ns` and `end_ns` are of the machine's monotonic clock.
    """

    client: int
    reads: Mapping[int, int]
    writes: Mapping[int, int]
    read_time: int
    begin_ns: int
    end_ns: int | None = None
    outcome: Outcome = Outcome.UNKNOWN
    commit_time: int | None = None


@dataclass(frozen=True, order=True)
class _Version:
    time: int
    value: int
    by: Seen = field(compare=False)


def read_transactions(directory: Path) -> list[Seen]:
    """Return the transactions that clients have recorded; one without an end is of unknown end."""
    found: list[Seen] = []
    for path in sorted(directory.glob("transactions-*.jsonl")):
        begun: dict[int, dict[str, Any]] = {}
        items, _ = whole_lines(path.read_bytes())
        for item in items:
            number = item.pop("op")
            begun[number] = begun.get(number, {}) | item
        found += [_seen(item) for item in begun.values()]
    return found


def _seen(item: dict[str, Any]) -> Seen:
    # The keys of a row are text in JSON.
    reads, writes = ({int(k): v for k, v in item.pop(name).items()} for name in ("reads", "writes"))
    outcome = Outcome(item.pop("outcome", Outcome.UNKNOWN))
    return Seen(**item, reads=reads, writes=writes, outcome=outcome)


def violations(transactions: Sequence[Seen]) -> list[str]:
    """Return what no snapshot isolation allows, a line each; empty when all is right."""
    committed = [each for each in transactions if each.commit_time is not None]
    maybe = {
        value: each
        for each in transactions
        if each.outcome is Outcome.UNKNOWN
        for value in each.writes.values()
    }
    by_key: dict[int, list[_Version]] = defaultdict(list)
    for each in committed:
        for key, value in each.writes.items():
            by_key[key].append(_Version(each.commit_time or 0, value, each))
    found: list[str] = []
    for key, versions in by_key.items():
        versions.sort()
        found += _lost_updates(key, versions)
    readers = [each for each in transactions if each.outcome is not Outcome.FAILED]
    for key in {key for each in readers for key in each.reads}:
        history = _History(key, by_key.get(key, []), maybe)
        for each in readers:
            if key in each.reads:
                found += history.wrong(each)
    return found


def _lost_updates(key: int, versions: Sequence[_Version]) -> Iterator[str]:
    for earlier, later in itertools.pairwise(versions):
        if later.by.read_time < earlier.time:
            yield (
                f"key {key}: {later.value} was committed at {later.time} by a transaction that "
                f"read as of {later.by.read_time}, before {earlier.value} of {earlier.time}"
            )


class _History:
    """The versions of one key, and what a read of it may find."""

    def __init__(self, key: int, versions: list[_Version], maybe: Mapping[int, Seen]) -> None:
        self._key = key
        self._versions = versions
        self._times = [each.time for each in versions]
        self._by_value = {each.value: each for each in versions}
        self._maybe = maybe
        acknowledged = sorted((each.by.end_ns or 0, each.time) for each in versions)
        self._ends = [end for end, _ in acknowledged]
        self._latest = list(itertools.accumulate((time for _, time in acknowledged), max))

    def wrong(self, reader: Seen) -> Iterator[str]:
        """Yield what is wrong with what a transaction read of the key."""
        before = bisect.bisect_left(self._ends, reader.begin_ns)
        if before and self._latest[before - 1] > reader.read_time:
            yield (
                f"key {self._key}: a transaction read as of {reader.read_time}, though a commit at "
                f"{self._latest[before - 1]} had been acknowledged before it began"
            )
        value = reader.reads[self._key]
        place = bisect.bisect_right(self._times, reader.read_time)
        newest = self._versions[place - 1] if place else None
        if value != (newest.value if newest else ABSENT) and not self._may_be(reader, newest):
            yield (
                f"key {self._key}: {value} was read as of {reader.read_time}, not "
                f"{newest.value if newest else ABSENT} of {newest.time if newest else 0}"
            )

    def _may_be(self, reader: Seen, newest: _Version | None) -> bool:
        """Whether the value is of a transaction of unknown end that may be the newest version."""
        writer = self._maybe.get(reader.reads[self._key])
        if writer is None or writer is reader or self._key not in writer.writes:
            return False
        # Its commit time lies behind its read time; it has not overlapped with the one before it.
        since = newest.time if newest else 0
        return since <= writer.read_time < reader.read_time
