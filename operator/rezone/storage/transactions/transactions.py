"""What a replica knows of a partition's transactions: which are open, and how others have ended.

A transaction is what its entries in the log say: any number of intent entries, then one commit or
abort. Each entry makes one record here. Records of applied entries stand in the engine too, one
name each, and change in the same step as the rows; so undoing a suffix of the log is deleting
exactly the records of its entries, and a copy takes them along (`SnapshotHeader.transactions`,
or in the engine's files).

Two things are forgotten, and only when the end they depend on is committed, which is never undone:
the row ids of a transaction that is over, and, `keep_micros` of the log's time after that, how it
ended. A first write may come late by no more than its transaction may be old, so no repeat can
open a transaction that has been forgotten. All of it is bounded by limits that the leader enforces
(`replica.transacting`): on what is open, and on what is over. The latter count `ENDED_BYTES` each.
Half of what the node may hold of them is for whoever comes first. The other half is shared evenly
by its partitions: those that nobody writes to remember theirs for good, and must not keep others
from beginning new ones (docs/decisions/0213).
"""

import dataclasses
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from rezone.storage.budget import Tally
from rezone.storage.log.entry import TRANSACTION_KINDS, Entry, EntryKind
from rezone.storage.reshard.reshard_entries import transactions_of, version_time
from rezone.storage.state.records import decoded
from rezone.storage.transactions.intents import ID_BYTES, times_of
from rezone.wire.messages import TransactionRecord

_PREFIX: Final = b"t"
_RECORD_OVERHEAD_BYTES: Final = 64
ENDED_BYTES: Final = 400
"""What one that is over takes in memory: its record, and its places in tables and queues."""
_ENDS: Final[Mapping[EntryKind, EntryKind]] = {
    EntryKind.RESHARDED_COMMIT: EntryKind.COMMIT,
    EntryKind.RESHARDED_ABORT: EntryKind.ABORT,
}


@dataclasses.dataclass(slots=True)
class Transaction:
    """A transaction as its entries in the log tell it; never without records."""

    records: list[TransactionRecord]

    @property
    def last(self) -> TransactionRecord:
        """Its newest entry."""
        return self.records[-1]

    @property
    def is_open(self) -> bool:
        """Whether it has neither committed nor aborted."""
        return self.last.kind == EntryKind.INTENTS

    @property
    def begun(self) -> int:
        """When it began, by its leader's clock, in microseconds; what its age counts from."""
        return self.records[0].begun

    @property
    def read_time(self) -> int:
        """The commit time as of which it reads."""
        return self.records[0].read_time

    @property
    def row_ids(self) -> list[bytes]:
        """The rows it has intents on, sorted."""
        return sorted({row for record in self.records for row in record.row_ids})

    @property
    def size(self) -> int:
        """The bytes of its intents and of what is known of them."""
        return sum(record.size for record in self.records)


class TransactionTable:
    """The transactions of one partition, applied or only in the log. The caller locks."""

    def __init__(
        self, known_max: int, keep_micros: int, node_open: Tally, node_ended: Tally
    ) -> None:
        self._known_max = known_max
        self._node_open = node_open
        self._node_ended = node_ended
        self.ended_share = 0
        self.ended_bytes = 0
        self._keep_micros = keep_micros
        self._known: dict[bytes, Transaction] = {}
        self._holders: dict[bytes, bytes] = {}
        self._open: dict[bytes, Transaction] = {}
        self.open_bytes = 0
        # Those that are over, in the order in which they ended: all, and those with row ids still.
        self._over: deque[bytes] = deque()
        self._unshrunk: deque[bytes] = deque()

    # --- questions --------------------------------------------------------------------------

    def get(self, transaction: bytes) -> Transaction | None:
        """Return a transaction; None when it is not known, or not known any more."""
        return self._known.get(transaction)

    def all_open(self) -> list[Transaction]:
        """Return the open transactions."""
        return list(self._open.values())

    def node_has_room(self, size: int) -> bool:
        """Whether open transactions of the node may have so many bytes more."""
        return self._node_open.has_room(size)

    @property
    def open_count(self) -> int:
        """How many transactions are open."""
        return len(self._open)

    @property
    def full(self) -> bool:
        """Whether too many are remembered to let another one begin."""
        if len(self._known) >= self._known_max:
            return True
        return self.ended_bytes >= self.ended_share and self._node_ended.full

    def holder(self, row_ids: Iterable[bytes], but: bytes = b"") -> bytes | None:
        """Return an open transaction, other than `but`, that has an intent on one of the rows."""
        holders = self._holders
        if holders:
            for row in row_ids:
                if holders.get(row, but) != but:
                    return holders[row]
        return None

    def is_over(self, transaction: bytes, committed: int) -> bool:
        """Whether a transaction has ended for good, so that its intents mean nothing any more."""
        found = self._known.get(transaction)
        return found is None or (not found.is_open and found.last.end_offset <= committed)

    # --- the log ----------------------------------------------------------------------------

    def note(self, entries: Iterable[Entry]) -> None:
        """Take appended entries into account; those that are known change nothing.

        A standby may come to apply an entry before the thread that has appended it says so here.
        """
        for entry in entries:
            header = entry.header
            if header.kind == EntryKind.RESHARD_BACKFILL:
                for record in transactions_of(entry):
                    # Two sources may both have it from a re-sharding before.
                    if record.transaction not in self._known:
                        self._add(record)
            if header.kind not in TRANSACTION_KINDS:
                continue
            found = self._known.get(header.producer_id)
            if found is None or found.last.end_offset < header.end_offset:
                self._add(record_of(entry))
        self._count_ended()

    def advance(self, entries: Iterable[Entry], committed: int) -> dict[bytes, bytes | None]:
        """Return the engine state that must change when these entries are applied.

        What is known of transactions whose end is `committed` shrinks with it.
        """
        changes: dict[bytes, bytes | None] = {}
        newest = 0
        for entry in entries:
            newest = entry.header.commit_time
            for record in self._records_at(entry) if entry.header.kind else ():
                changes[_name(record)] = msgspec.msgpack.encode(record)
                if record.kind != EntryKind.INTENTS:
                    self._ended(record)
        changes.update(self._shrink(committed))
        changes.update(self._forget(newest, committed))
        self._count_ended()
        return changes

    def _records_at(self, entry: Entry) -> Iterator[TransactionRecord]:
        """Yield what is known by an entry that has been noted, and by none before it."""
        header = entry.header
        transactions = [header.producer_id] if header.kind in TRANSACTION_KINDS else []
        if header.kind == EntryKind.RESHARD_BACKFILL:
            transactions = [record.transaction for record in transactions_of(entry)]
        for transaction in transactions:
            found = self._known.get(transaction)
            records = found.records if found is not None else ()
            yield from (r for r in records if r.end_offset == header.end_offset)

    def set_back(self, offset: int) -> dict[bytes, bytes | None]:
        """Forget the entries from `offset` on; return the engine state that must change with it."""
        changes: dict[bytes, bytes | None] = {}
        kept: list[TransactionRecord] = []
        for found in self._known.values():
            for record in found.records:
                if record.end_offset > offset:
                    changes[_name(record)] = None
                else:
                    kept.append(record)
        if changes:
            self._replace(kept, applied=frozenset(self._over))
        return changes

    # --- engine and copies ------------------------------------------------------------------

    def load(self, state: Mapping[bytes, bytes]) -> None:
        """Take everything from an engine's named state."""
        self._replace(
            decoded(content, TransactionRecord)
            for name, content in state.items()
            if name.startswith(_PREFIX) and len(name) == len(_PREFIX) + ID_BYTES + 8
        )

    def ended(self, offset: int) -> tuple[TransactionRecord, ...]:
        """Return the last records of those that have ended below `offset`, in that order."""
        over = [
            found.last
            for found in self._known.values()
            if not found.is_open and found.last.end_offset <= offset
        ]
        return tuple(sorted(over, key=lambda record: record.end_offset))

    def export(self, offset: int) -> tuple[TransactionRecord, ...]:
        """Return the records of entries below `offset`, as a snapshot's header carries them."""
        return tuple(
            record
            for found in self._known.values()
            for record in found.records
            if record.end_offset <= offset
        )

    def _replace(
        self, records: Iterable[TransactionRecord], applied: frozenset[bytes] | None = None
    ) -> None:
        """Know these records alone; of these transactions the end is applied, None: of all."""
        self.close()
        for record in sorted(records, key=lambda record: record.end_offset):
            self._add(record)
            # An end that is only noted is counted when it is applied, and must not be twice.
            over = applied is None or record.transaction in applied
            if over and record.kind != EntryKind.INTENTS:
                self._ended(record)
        self._count_ended()

    def close(self) -> None:
        """Forget everything, also in the node's accounts."""
        self._known, self._holders, self._open = {}, {}, {}
        self._over, self._unshrunk = deque(), deque()
        self._node_open.remove(self.open_bytes)
        self.open_bytes = 0
        self._count_ended()

    def _count_ended(self) -> None:
        size = (len(self._known) - len(self._open)) * ENDED_BYTES
        if size != self.ended_bytes:
            self._node_ended.add(size - self.ended_bytes)
            self.ended_bytes = size

    def _ended(self, record: TransactionRecord) -> None:
        self._over.append(record.transaction)
        self._unshrunk.append(record.transaction)

    def _add(self, record: TransactionRecord) -> None:
        found = self._known.setdefault(record.transaction, Transaction([]))
        found.records.append(record)
        if found.is_open:
            self._open[record.transaction] = found
            self.open_bytes += record.size
            self._node_open.add(record.size)
            self._holders.update(dict.fromkeys(record.row_ids, record.transaction))
            return
        if self._open.pop(record.transaction, None) is not None:
            self.open_bytes -= found.size
            self._node_open.remove(found.size)
        for row in found.row_ids:
            if self._holders.get(row) == record.transaction:
                del self._holders[row]

    def _shrink(self, committed: int) -> dict[bytes, bytes | None]:
        """Forget the row ids of what is over for good."""
        changes: dict[bytes, bytes | None] = {}
        while self._unshrunk:
            found = self._known[self._unshrunk[0]]
            if found.last.end_offset > committed:
                break
            self._unshrunk.popleft()
            changes.update((_name(record), None) for record in found.records[:-1])
            del found.records[:-1]
        return changes

    def _forget(self, newest: int, committed: int) -> dict[bytes, bytes | None]:
        """Forget the endings that are old enough, by the time of the newest entry."""
        changes: dict[bytes, bytes | None] = {}
        while self._over:
            last = self._known[self._over[0]].last
            if last.end_offset > committed or last.commit_time + self._keep_micros >= newest:
                break
            del self._known[self._over.popleft()]
            changes[_name(last)] = None
        return changes


def record_of(entry: Entry) -> TransactionRecord:
    """Return the record of a transaction's entry; one that was pulled is an end like any other."""
    header = entry.header
    record = TransactionRecord(
        transaction=header.producer_id,
        sequence=header.sequence,
        kind=_ENDS.get(EntryKind(header.kind), EntryKind(header.kind)),
        end_offset=header.end_offset,
        commit_time=version_time(entry),
    )
    if header.kind != EntryKind.INTENTS:
        return record
    row_ids, _, values = entry.batch().columns
    read_time, begun = times_of(values[0].as_py())
    return msgspec.structs.replace(
        record,
        read_time=read_time,
        begun=begun,
        size=header.length + _RECORD_OVERHEAD_BYTES,
        row_ids=tuple(row_ids.to_pylist()),
    )


def engine_state(records: Iterable[TransactionRecord]) -> dict[bytes, bytes | None]:
    """Return the named state that stands for records, for an engine that has none yet."""
    return {_name(record): msgspec.msgpack.encode(record) for record in records}


def _name(record: TransactionRecord) -> bytes:
    return _PREFIX + record.transaction + record.sequence.to_bytes(8, "big")
