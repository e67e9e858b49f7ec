"""A replica's disk in memory: what was synced survives a crash, what was not does not.

It has the methods of `rezone.replica.store.PartitionStore` that a partition calls. The engine is
the log's applied part: a row is an entry, an offset its index.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec

from rezone.replica.entry import header_at
from rezone.replica.meta import PartitionMeta, branches_until
from rezone.replica.node import NodeState
from rezone.replica.store import ResetNeededError
from rezone.wire.errors import CorruptionError
from rezone.wire.messages import FailoverEntry, IndexPosition, NodeId, PartitionId

READ_ENTRIES_MAX = 8


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """The rows of a partition at an offset, and their history."""

    rows: tuple[bytes, ...]
    branches: tuple[FailoverEntry, ...]


class NoIndexes:
    """The indexer of a table without indexes; those have tests of their own."""

    enabled = False
    stopped = False
    scanning = False
    lag_rows = 0
    position = IndexPosition(0, "")

    def resume(self) -> None:
        """Do nothing, as a real one would."""


class MemoryStore:
    """The storage of one replica."""

    def __init__(self, partition: PartitionId) -> None:
        self.indexer = NoIndexes()
        self.meta = self._durable_meta = PartitionMeta(partition=partition)
        self.rows: list[bytes] = []
        self.times: list[int] = []
        self.log_start = 0
        self.durable_end = 0
        self.applied = 0
        # Whether it has ever dropped all that it had.
        self.started_over = False
        self._committed = 0

    @property
    def log_end(self) -> int:
        """The offset after the last entry."""
        return len(self.rows)

    @property
    def applied_time(self) -> int:
        """The time of the last row applied."""
        return self.times[self.applied - 1] if self.applied else 0

    @property
    def last_commit_time(self) -> int:
        """The time of the last entry."""
        return self.times[-1] if self.times else 0

    def update_meta(self, *, durable: bool = True, **changes: Any) -> PartitionMeta:
        """Change facts, durably unless said otherwise; the commit offset goes along."""
        changes.setdefault("committed_offset", self._committed)
        self.meta = msgspec.structs.replace(self.meta, **changes)
        if durable:
            self._durable_meta = self.meta
        return self.meta

    def note_committed(self, offset: int) -> None:
        """Remember the commit offset for the next write of the meta."""
        self._committed = offset

    def append(self, raw: bytes) -> int:
        """Append whole entries."""
        position = 0
        while (header := header_at(raw, position)) is not None:
            if header.base_offset != self.log_end:
                raise CorruptionError(f"entry at {header.base_offset}, expected {self.log_end}")
            whole = raw if header.length == len(raw) else raw[position : position + header.length]
            self.rows.append(whole)
            self.times.append(header.commit_time)
            position += header.length
        return self.log_end

    def sync(self) -> int:
        """Make the log durable."""
        self.durable_end = self.log_end
        return self.durable_end

    def read(self, offset: int, bytes_max: int) -> bytes:
        """Return whole entries from `offset` on; at least one, if there is one."""
        count = max(1, min(READ_ENTRIES_MAX, bytes_max >> 16))
        return b"".join(self.rows[offset : offset + count])

    def apply_to(self, offset: int) -> int:
        """Apply the log."""
        self.applied = max(self.applied, min(offset, self.log_end))
        return self.applied

    def truncate(self, offset: int) -> None:
        """Undo everything from `offset` on."""
        if offset < self.log_start:
            raise ResetNeededError(f"the log begins at {self.log_start}")
        self.started_over = self.started_over or (offset == 0 and bool(self.rows))
        del self.rows[offset:], self.times[offset:]
        self.applied = min(self.applied, offset)
        self.durable_end = min(self.durable_end, offset)
        self._committed = min(self._committed, offset)
        self.update_meta()

    def reset(self) -> None:
        """Drop everything but epochs and revision."""
        self.started_over = self.started_over or bool(self.rows)
        self.rows, self.times = [], []
        self.log_start = self.durable_end = self.applied = self._committed = 0
        self.update_meta(needs_snapshot=True, failover_log=(), partition_uuid="")

    has_open_transactions = False
    """There are none: every write of the simulation is a plain one."""

    def writer_state(self, writer_id: bytes) -> None:
        """Know no writer: every write of the simulation is a new one."""
        del writer_id

    def trim_log(self) -> None:
        """Forget the log that is applied, as after the retention."""
        self.log_start = min(self.applied, self._committed)

    def crash(self) -> None:
        """Lose what was not synced."""
        del self.rows[self.durable_end :], self.times[self.durable_end :]
        self.applied = min(self.applied, self.durable_end)
        self.meta = self._durable_meta
        self._committed = min(self.meta.committed_offset, self.durable_end)

    def snapshot(self) -> Snapshot:
        """Return the applied rows."""
        return Snapshot(
            tuple(self.rows[: self.applied]),
            branches_until(self.meta.failover_log, self.applied),
        )

    def take(self, snapshot: Snapshot) -> None:
        """Stand where a snapshot stood; its log begins there."""
        self.reset()
        for raw in snapshot.rows:
            self.append(raw)
        self.log_start = self.durable_end = self.applied = self.log_end
        self.update_meta(needs_snapshot=False, failover_log=snapshot.branches)

    def close(self) -> None:
        """Close in order: nothing is lost."""
        self.sync()
        self.update_meta()


@dataclasses.dataclass
class NodeDisk:
    """What a data node has on its disk; `copied` is how far its copies have come (B-05)."""

    node: NodeId
    state: NodeState | None = None
    stores: dict[PartitionId, MemoryStore] = dataclasses.field(default_factory=dict)
    copied: dict[PartitionId, int] = dataclasses.field(default_factory=dict)

    def crash(self) -> None:
        """Lose what was not synced."""
        for store in self.stores.values():
            store.crash()
