"""Writes that have come while the partition's job was at work: its next run takes all of them.

The job syncs, applies and answers. A write behind others that it is at work for could not be
committed before it runs again, and gains nothing by an append and frames of its own
(docs/decisions/0365).

Concurrency: thread-safe; what is taken out belongs to the one that took it.
"""

import threading
from typing import NamedTuple

from rezone.datanode.commit.insync import PendingWrite, Reply
from rezone.datanode.writing.change import Change, PreparedRows
from rezone.storage.budget import Budget
from rezone.wire.errors import RezoneError

GROUP_BYTES_MAX = 1 << 20
"""Entries of so many bytes are appended, whatever else waits: they are copied into one piece."""


class Arrival(NamedTuple):
    """A write that waits for the job."""

    request: Change
    prepared: PreparedRows
    reply: Reply


class Arrivals:
    """Those of one partition, in the order they came; their bytes count in both budgets."""

    def __init__(self, budget: Budget, node_budget: Budget) -> None:
        self._budget = budget
        self._node_budget = node_budget
        self._lock = threading.Lock()
        self._waiting: list[Arrival] = []

    def __bool__(self) -> bool:
        """Whether one waits; any thread may ask."""
        return bool(self._waiting)

    def add(self, arrival: Arrival) -> None:
        """Have a write wait; OverloadedError at the limit on pending bytes."""
        size = arrival.prepared.size
        self._budget.take(size)
        try:
            self._node_budget.take(size)
        except RezoneError:
            self._budget.give(size)
            raise
        with self._lock:
            self._waiting.append(arrival)

    def take(self) -> list[Arrival]:
        """Take all out; their bytes count no more, each is to be appended or refused."""
        with self._lock:
            taken, self._waiting = self._waiting, []
        for arrival in taken:
            self._budget.give(arrival.prepared.size)
            self._node_budget.give(arrival.prepared.size)
        return taken


class EntryGroup:
    """Entries that follow the log's end and are to be appended in one piece."""

    def __init__(self) -> None:
        self._entries: list[bytes] = []
        self._size = 0
        self._writes: list[PendingWrite] = []
        self._producers: set[bytes] = set()

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._writes)

    @property
    def last(self) -> PendingWrite:
        """The last one's write; only when there is one."""
        return self._writes[-1]

    @property
    def full(self) -> bool:
        """Whether no more are to be put into this piece."""
        return self._size >= GROUP_BYTES_MAX

    def has(self, producer_id: bytes) -> bool:
        """Whether there is one of this producer: what is next of it depends on that."""
        return producer_id in self._producers

    def add(self, entry: bytes, write: PendingWrite, producer_id: bytes) -> None:
        """Put one behind the others."""
        self._entries.append(entry)
        self._size += len(entry)
        self._writes.append(write)
        self._producers.add(producer_id)

    def take(self) -> tuple[bytes, list[PendingWrite]]:
        """Take all out: their bytes, and who waits for them."""
        raw = self._entries[0] if len(self._entries) == 1 else b"".join(self._entries)
        writes = self._writes
        self._entries, self._size, self._writes, self._producers = [], 0, [], set()
        return raw, writes
