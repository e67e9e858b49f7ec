"""What the storage tests share: rows, entries, a clock that is set by hand, a model."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from at_once import AtOnce
from rezone.storage.engines.base import (
    FLAG_TOMBSTONE,
    FLAG_VALUE,
    FLAGS,
    TIME_BYTES,
    time_of,
    time_suffix,
)
from rezone.storage.log.entry import (
    OP_ABORT,
    OP_DELETE,
    OP_UPSERT,
    EntryKind,
    ProducerBatch,
    build_entry,
    rows_batch,
)
from rezone.storage.snapshot.snapshot import SnapshotBatch, SnapshotLimits
from rezone.storage.store import PartitionStore
from rezone.storage.store_config import StoreConfig
from rezone.storage.transactions.intents import commit_rows, intent_rows
from rezone.wire.codec.keyspace import hash_key, row_id
from rezone.wire.messages import EngineKind
from standing_clock import StandingClock

ENGINES = [EngineKind.ROCKSDB, EngineKind.MEMORY]
FORMS = {
    "rows": (EngineKind.ROCKSDB, 1 << 62),
    "files": (EngineKind.ROCKSDB, 0),
    "memory": (EngineKind.MEMORY, 1 << 62),
}
"""Engine, and from how many bytes on a source sends files."""

Version = tuple[bytes, int, int, bytes]  # row id, commit time, flag, value


def rid(key: bytes | int) -> bytes:
    """Return a row id."""
    data = key if isinstance(key, bytes) else b"k%d" % key
    return row_id(hash_key(data), data)


def config(kind: EngineKind = EngineKind.ROCKSDB, **changes: Any) -> StoreConfig:
    """Return small limits, so that files roll and slices are cut within a few rows."""
    small: dict[str, Any] = {
        "engine": kind,
        "log_segment_bytes": 4096,
        "log_tail_bytes": 8192,
        "apply_slice_bytes": 2048,
        "bulk_checkpoint_bytes": 1024,
        "clock": StandingClock(0.0),
        "beside": AtOnce,
        "snapshot": SnapshotLimits(slice_bytes=256, join_seconds=0.0),
    }
    return StoreConfig(**(small | changes))


def limits(**changes: object) -> SnapshotLimits:
    """Return snapshot limits with slices of a few rows and no joining."""
    return msgspec.structs.replace(SnapshotLimits(slice_bytes=256, join_seconds=0.0), **changes)


class Writer:
    """Appends entries to a store the way a leader does, and models what they mean."""

    def __init__(self, store: PartitionStore, epoch: int = 1) -> None:
        self.store = store
        self.epoch = epoch
        self.history: list[tuple[int, int, list[tuple[bytes, bytes | None]]]] = []

    def write(
        self,
        rows: Mapping[bytes, bytes | None],
        writer: bytes = bytes(16),
        sequence: int = 0,
        *named: Any,
    ) -> int:
        """Append one entry; a value of None deletes. Return the new log end.

        `named` is what names the producer's batch behind its sequence.
        """
        time = self.store.last_commit_time + 10
        base = self.store.log_end
        items = list(rows.items())
        batch = rows_batch(
            [row for row, _ in items],
            [OP_DELETE if value is None else OP_UPSERT for _, value in items],
            [value or b"" for _, value in items],
        )
        entry = build_entry(
            batch,
            leader_epoch=self.epoch,
            base_offset=base,
            commit_time=time,
            batch=ProducerBatch(writer, sequence, *named),
        )
        end = self.store.append(entry)
        self.history = [past for past in self.history if past[0] < base]
        self.history.append((base, time, items))
        return end

    def versions(self, offset: int) -> list[Version]:
        """Return all versions that the log below `offset` makes, in snapshot order."""
        made = {
            (row, time): (row, time, FLAG_TOMBSTONE if value is None else FLAG_VALUE, value or b"")
            for base, time, items in self.history
            if base < offset
            for row, value in items
        }
        return [made[key] for key in sorted(made)]

    def visible(self, offset: int) -> dict[bytes, bytes]:
        """Return the rows to be seen when everything below `offset` is applied."""
        rows: dict[bytes, bytes] = {}
        for base, _, items in self.history:
            if base < offset:
                for row, value in items:
                    if value is None:
                        rows.pop(row, None)
                    else:
                        rows[row] = value
        return dict(sorted(rows.items()))


class Transactor:
    """Appends entries of transactions the way a leader does."""

    def __init__(self, store: PartitionStore) -> None:
        self.store = store

    def intend(self, transaction: bytes, rows: dict[bytes, bytes | None], begun: int = 1) -> int:
        """Append intents; a value of None will delete. Return the new log end."""
        ops = [OP_DELETE if value is None else OP_UPSERT for value in rows.values()]
        batch = rows_batch(list(rows), ops, [value or b"" for value in rows.values()])
        return self._append(transaction, EntryKind.INTENTS, intent_rows(batch, 7, begun))

    def commit(self, transaction: bytes) -> int:
        """Append the commit of an open transaction whose intents are applied."""
        with self.store.transactions() as table:
            found = table.get(transaction)
            assert found is not None
            row_ids = found.row_ids
        intents = self.store.reader.intents(found, row_ids)
        assert sorted(intents) == row_ids, "an intent is lost"
        return self._append(transaction, EntryKind.COMMIT, commit_rows(intents))

    def abort(self, transaction: bytes) -> int:
        """Append the abort of an open transaction."""
        with self.store.transactions() as table:
            found = table.get(transaction)
            assert found is not None
            row_ids = found.row_ids
        batch = rows_batch(row_ids, [OP_ABORT] * len(row_ids), [b""] * len(row_ids))
        return self._append(transaction, EntryKind.ABORT, batch)

    def _append(self, transaction: bytes, kind: EntryKind, rows: object) -> int:
        with self.store.transactions() as table:
            found = table.get(transaction)
        entry = build_entry(
            rows,
            leader_epoch=1,
            base_offset=self.store.log_end,
            commit_time=self.store.last_commit_time + 10,
            batch=ProducerBatch(transaction, found.last.sequence + 1 if found else 1),
            kind=kind,
        )
        return self.store.append(entry)


def bring_older(store: PartitionStore, rows: Mapping[bytes, bytes], time: int = 1) -> None:
    """Apply versions of an earlier time, as the fill of a new partition does.

    The log has none of them: whoever needs it to say the same fills a partition.
    """
    applier, flag = store._applier, FLAGS[FLAG_VALUE]
    with applier.mutex:
        keys = [row + time_suffix(time) for row in sorted(rows)]
        applier._load(keys, [flag + rows[row] for row in sorted(rows)])
        applier.mid_entry = False


def stored_versions(store: PartitionStore) -> list[Version]:
    """Return every version in the engine, in snapshot order."""
    chains = store.engine.scan_chains(b"", None, rows_max=1 << 40, bytes_max=1 << 40)
    return sorted(
        (key[:-TIME_BYTES], time_of(key), value[0], value[1:])
        for key, value in zip(chains.keys, chains.values, strict=True)
    )


def stored_rows(store: PartitionStore, as_of: int | None = None) -> dict[bytes, bytes]:
    """Return every visible row, read by scans of three, six, twelve, ..."""
    rows: dict[bytes, bytes] = {}
    cursor: bytes | None = b""
    size = 3
    while cursor is not None:
        ids, values, cursor = store.reader.scan(cursor, None, as_of, size)
        size *= 2
        assert not set(ids.tolist()) & set(rows)
        rows.update(zip(ids.tolist(), values.tolist(), strict=True))
    return rows


def batch_versions(item: SnapshotBatch) -> list[Version]:
    """Return a snapshot batch's versions in the order they were sent."""
    return list(zip(*(column.to_pylist() for column in item.batch.columns), strict=True))


def copy_directory(source: Path, target: Path) -> None:
    """Copy what a crash at this moment would leave (the page cache survives a killed process).

    A compaction in the background may change the files meanwhile: the copy is then made again,
    since a crash is at one moment.
    """
    while True:
        before = sorted(source.rglob("*"))
        try:
            shutil.copytree(source, target)
        except shutil.Error:
            shutil.rmtree(target)
            continue
        if sorted(source.rglob("*")) == before:
            return
        shutil.rmtree(target)
