"""A replica's disk in memory: what was synced survives a crash, what was not does not.

It has the methods of `rezone.replica.store.PartitionStore` that a partition calls. `rows` is the
log by offsets: an entry stands at its first one, followed by nothing for each other row of it. The
engine is the log's applied part, made when somebody reads a row.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator
from typing import Any, cast

import msgspec

from rezone.replica.applier import pairs_of
from rezone.replica.budget import Tally
from rezone.replica.engines.base import OnDamage
from rezone.replica.engines.memory import MemoryEngine
from rezone.replica.entry import EntryKind, header_at, iter_entries
from rezone.replica.meta import PartitionMeta, branches_until
from rezone.replica.partition import Partition
from rezone.replica.row_reader import RowReader
from rezone.replica.store import ResetNeededError
from rezone.replica.transactions import TransactionTable
from rezone.wire.errors import CorruptionError
from rezone.wire.messages import FailoverEntry, IndexPosition, NodeId, PartitionId, SealMark

READ_ENTRIES_MAX = 8
TRANSACTIONS_MAX = 10_000
KEEP_MICROS = 60_000_000


Survives = Callable[[int], int]
"""Given to how many places a log may be cut by a crash, the number of one; 0 is what was synced."""


def nothing(places: int) -> int:
    """Let nothing survive that was not synced."""
    del places
    return 0


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """The rows of a partition at an offset, and their history."""

    rows: tuple[bytes, ...]
    branches: tuple[FailoverEntry, ...]


class NoIndexes:
    """The indexer of a table without indexes; those have tests of their own."""

    enabled = False
    stopped = False
    made_anew = False
    unfinished = False
    lag_rows = 0
    unfollowed_rows = 0
    position = IndexPosition(0, "")
    wanted: tuple[bytes, ...] = ()
    unbuilt: tuple[bytes, ...] = ()

    def resume(self) -> None:
        """Do nothing, as a real one would."""


class _Uncounted(Tally):
    """What a node's open transactions hold, in a disk that is copied: a lock cannot be."""

    def __deepcopy__(self, memo: object) -> _Uncounted:
        return self


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
        self._engine: MemoryEngine | None = None
        self._engine_end = 0
        self._looked_at = b""
        self._seal: SealMark | None = None
        self._forget_transactions()

    @property
    def on_damage(self) -> OnDamage:
        """Whom to tell of damage: nobody is ever told, and an image of the disk holds nobody."""
        return lambda _: None

    @on_damage.setter
    def on_damage(self, told: OnDamage) -> None:
        del told

    @property
    def filling(self) -> bool:
        """Whether it lacks rows of other partitions: here the world imports them."""
        return False

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

    @property
    def seal(self) -> SealMark | None:
        """The seal that the log ends with."""
        # It has one row, so its entry is the last thing of all; asked far more often than appended.
        last = self.rows[-1] if self.rows else b""
        if last is not self._looked_at:
            self._looked_at, self._seal = last, _seal_of(last)
        return self._seal

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
            self.rows += [whole, *[b""] * (header.rows - 1)]
            self.times += [header.commit_time] * header.rows
            if header.kind:
                self._table.note(iter_entries(whole))
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
        before, self.applied = self.applied, max(self.applied, min(offset, self.log_end))
        self._advance(before)
        return self.applied

    def _advance(self, before: int) -> None:
        raws = list(filter(None, self.rows[before : self.applied]))
        headers = [header for raw in raws if (header := header_at(raw, 0))]
        if any(header.kind for header in headers):
            entries = (entry for raw in raws for entry in iter_entries(raw))
            self._table.advance(entries, self._committed)

    @property
    def engine(self) -> MemoryEngine:
        """The rows that are applied."""
        if self._engine is None:
            self._engine, self._engine_end = MemoryEngine(), 0
        for raw in filter(None, self.rows[self._engine_end : self.applied]):
            (entry,) = iter_entries(raw)
            self._engine.apply(pairs_of(entry), (), {})
        self._engine_end = self.applied
        return self._engine

    @property
    def reader(self) -> RowReader:
        """The real reads, of these rows."""
        return RowReader(self, self.indexer)  # type: ignore[arg-type]

    @contextlib.contextmanager
    def transactions(self) -> Iterator[TransactionTable]:
        """Give the table of transactions."""
        yield self._table

    @property
    def has_open_transactions(self) -> bool:
        """Whether any transaction is open."""
        return self._table.open_count > 0

    def _forget_transactions(self) -> None:
        """Begin with what the log says of them."""
        self._engine = None
        self._table = TransactionTable(TRANSACTIONS_MAX, KEEP_MICROS, _Uncounted(sys.maxsize))
        self._table.note(e for raw in filter(None, self.rows) for e in iter_entries(raw))
        self._advance(0)

    @property
    def last_epoch(self) -> int:
        """The leader epoch of the last entry."""
        last = next(filter(None, reversed(self.rows)), None)
        header = header_at(last, 0) if last is not None else None
        return header.leader_epoch if header is not None else 0

    def truncate(self, offset: int) -> None:
        """Undo everything from `offset` on."""
        if offset < self.log_start:
            raise ResetNeededError(f"the log begins at {self.log_start}")
        self.started_over = self.started_over or (offset == 0 and bool(self.rows))
        del self.rows[offset:], self.times[offset:]
        self.applied = min(self.applied, offset)
        self.durable_end = min(self.durable_end, offset)
        self._committed = min(self._committed, offset)
        self._engine = None
        self._table.set_back(offset)
        self.update_meta()

    def reset(self) -> None:
        """Drop everything but epochs and revision."""
        self.started_over = self.started_over or bool(self.rows)
        self.rows, self.times = [], []
        self.log_start = self.durable_end = self.applied = self._committed = 0
        self._forget_transactions()
        self.update_meta(needs_snapshot=True, failover_log=(), partition_uuid="")

    def writer_state(self, writer_id: bytes) -> None:
        """Know no writer: every write of the simulation is a new one."""
        del writer_id

    def has_room_for_writer(self, now: int) -> bool:
        """Have room: none is remembered."""
        del now
        return True

    def trim_log(self) -> None:
        """Forget the log that is applied, as after the retention."""
        self.log_start = min(self.applied, self._committed)

    def crash(self, survives: Survives) -> None:
        """Lose what was not synced, but for some of the first entries: a torn one is cut off."""
        ends = [n for n in range(self.durable_end + 1, self.log_end) if self.rows[n]]
        ends = [self.durable_end, *ends, self.log_end]
        self.durable_end = ends[survives(len(ends))]
        del self.rows[self.durable_end :], self.times[self.durable_end :]
        self.applied = min(self.applied, self.durable_end)
        self.meta = self._durable_meta
        self._committed = min(self.meta.committed_offset, self.durable_end)
        self._forget_transactions()

    def snapshot(self) -> Snapshot:
        """Return the applied rows."""
        return Snapshot(
            tuple(self.rows[: self.applied]),
            branches_until(self.meta.failover_log, self.applied),
        )

    def take(self, snapshot: Snapshot) -> None:
        """Stand where a snapshot stood; its log begins there."""
        self.reset()
        for raw in filter(None, snapshot.rows):
            self.append(raw)
        self.log_start = self.durable_end = self.applied = self.log_end
        self._advance(0)
        self.update_meta(needs_snapshot=False, failover_log=snapshot.branches)

    def close(self) -> None:
        """Close in order: nothing is lost."""
        self.sync()
        self.update_meta()


def _seal_of(raw: bytes) -> SealMark | None:
    """Return the seal that an entry is, if it is one."""
    header = header_at(raw, 0) if raw else None
    if header is None or header.kind != EntryKind.SEAL:
        return None
    return SealMark(header.end_offset, header.commit_time)


def memory_of(partition: Partition) -> MemoryStore:
    """Return a simulated replica's store; a partition takes it for a real one."""
    return cast("MemoryStore", partition.store)


@dataclasses.dataclass
class DiskRecord:
    """A journal: of its records only the newest counts."""

    newest: bytes | None = None

    def write(self, payload: bytes) -> None:
        """Make this the newest record."""
        self.newest = payload


@dataclasses.dataclass
class NodeDisk:
    """What a data node has on its disk; `copied` is how far its copies have come (B-05).

    `newest` and `write` are the journal of what it knows of its zone.
    """

    node: NodeId
    newest: bytes | None = None
    told: DiskRecord = dataclasses.field(default_factory=DiskRecord)
    stores: dict[PartitionId, MemoryStore] = dataclasses.field(default_factory=dict)
    copied: dict[PartitionId, int] = dataclasses.field(default_factory=dict)

    def write(self, payload: bytes) -> None:
        """Make this the newest record."""
        self.newest = payload

    def crash(self, survives: Survives) -> None:
        """Lose what was not synced, but for what survives."""
        for store in self.stores.values():
            store.crash(survives)
