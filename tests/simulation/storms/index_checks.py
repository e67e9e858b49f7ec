"""A table with indexes for storms, and what must hold of a replica's indexes at any time."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from rezone.datanode.replica.replica import Replica
from rezone.storage.engines.base import INDEX_PREFIX
from rezone.storage.index.index_entries import EntryMaker
from rezone.wire.codec.indexes import IndexCodec, index_codecs
from rezone.wire.codec.rows import RowCodec, hash_of, row_ids
from rezone.wire.codec.schema import Column, ColumnType, Index, TableSchema
from simulation.nodes.file_engine import INDEX_END
from simulation.nodes.received import Versions, versions_of

SLICE_ENTRIES = 50
INDEXES = (Index("by_place", ("place",)), Index("by_name", ("name", "place")))
COLUMNS = (
    Column("key", ColumnType.BINARY, nullable=False),
    Column("place", ColumnType.INT64),
    Column("name", ColumnType.BINARY),
)
_ALL = 1 << 62


def table_of(*indexes: Index) -> TableSchema:
    """Return the table with some of its indexes."""
    return TableSchema(columns=COLUMNS, primary_key=("key",), indexes=indexes)


class TableRows:
    """What rows of the table are in its log and engine."""

    def __init__(self) -> None:
        self._codec = RowCodec(table_of())

    def ids(self, names: Sequence[bytes]) -> list[bytes]:
        """Return the ids of rows with these keys."""
        keys = self._codec.encode_keys(self._batch(list(names)))
        found: list[bytes] = row_ids(keys, hash_of(keys)).to_pylist()
        return found

    def value(self, place: int, name: bytes) -> bytes:
        """Return a row's value."""
        encoded: bytes = self._codec.encode_values(self._batch([b""], place, name))[0].as_py()
        return encoded

    def _batch(self, keys: list[bytes], place: int = 0, name: bytes = b"") -> pa.RecordBatch:
        columns = (
            pa.array(keys, pa.binary()),
            pa.array([place] * len(keys), pa.int64()),
            pa.array([name] * len(keys), pa.binary()),
        )
        return pa.RecordBatch.from_arrays(list(columns), schema=self._codec.arrow_schema)


def kept_table(partition: Replica) -> TableSchema:
    """Return the table whose indexes a replica keeps: perhaps not the newest one."""
    wanted = partition.store.indexer.wanted
    kept = [c for c in index_codecs(table_of(*INDEXES)) if c.id in wanted]
    return table_of(*(index for index in INDEXES if index.name in {c.name for c in kept}))


def is_indexed(partition: Replica) -> bool:
    """Whether a replica has indexes that are as far as its rows."""
    store = partition.store
    indexer, position = store.indexer, store.indexer.position
    if not indexer.enabled or indexer.rebuilding or position.offset != store.applied:
        return False
    return not store.meta.needs_snapshot and store.applied > 0


def check_entries(partition: Replica, sure: Versions | None = None) -> None:
    """Assert that there is an entry of each version in each index, and no other.

    `sure` are the versions whose entries must be there, None for all that are there.
    """
    engine = partition.store.engine
    here = versions_of(partition.store)
    wanted = _entries_of(partition, here if sure is None else sure)
    found = engine.scan_chains(INDEX_PREFIX, INDEX_END, rows_max=_ALL, bytes_max=_ALL)
    lacking = wanted - set(found.keys)
    strange = set(found.keys) - (wanted if sure is None else _entries_of(partition, here))
    told = f"node {partition.node_id} has {len(strange)} entries of no version and lacks"
    assert not lacking | strange, f"{told} {len(lacking)}"


def _entries_of(partition: Replica, versions: Versions) -> set[bytes]:
    pairs = sorted(versions.items())
    maker = EntryMaker.of(kept_table(partition))
    entries = maker.entries_of([key for key, _ in pairs], [value for _, value in pairs])
    return set(entries.keys.to_pylist())


def look_up(partition: Replica, codec: IndexCodec, as_of: int | None) -> dict[bytes, bytes]:
    """Return all rows that an index has, each once."""
    found: dict[bytes, bytes] = {}
    keys = codec.all
    while True:
        part = partition.store.reader.lookup(codec, keys, as_of, SLICE_ENTRIES)
        rows = dict(zip(part.row_ids.to_pylist(), part.values.to_pylist(), strict=True))
        assert not rows.keys() & found.keys(), "a row is found twice"
        found |= rows
        if part.cursor is None:
            return found
        keys = keys._replace(start=part.cursor)


def rows_of(partition: Replica, as_of: int | None) -> dict[bytes, bytes]:
    """Return all rows."""
    found, values, cursor = partition.store.reader.scan(b"", None, as_of, _ALL)
    assert cursor is None
    return dict(zip(found.tolist(), values.tolist(), strict=True))
