"""A look into an index: its entries, and what the rows say that they stand for.

An entry whose row has another version by then is passed over, so each row that is found stands
where its own present columns put it.
"""

from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from rezone.storage.engines.base import INDEX_PREFIX, Engine, behind
from rezone.storage.index.index_entries import EntryMaker, split_places
from rezone.storage.snapshot.columns import columns_of, visible
from rezone.wire.codec.indexes import IndexCodec, KeyRange


class Found(NamedTuple):
    """Rows of a lookup in the index's order, and where to go on; None at the end."""

    row_ids: Any
    values: Any
    cursor: bytes | None


class Asked(NamedTuple):
    """One slice of a lookup: a range of index keys as of a time, and how much of it at most."""

    keys: KeyRange
    as_of: int
    rows_max: int
    bytes_max: int


def search(engine: Engine, maker: EntryMaker, codec: IndexCodec, asked: Asked) -> Found:
    """Return the rows that are visible in a slice of an index, each once."""
    chains = engine.scan_chains(
        INDEX_PREFIX + asked.keys.start,
        INDEX_PREFIX + asked.keys.end,
        rows_max=asked.rows_max,
        bytes_max=asked.bytes_max,
    )
    cursor = None if chains.end else behind(chains.last_row_id)[len(INDEX_PREFIX) :]
    if not chains.keys:
        return Found(pa.array([], pa.binary()), pa.array([], pa.binary()), cursor)
    places, lengths = visible(columns_of(chains.keys, chains.values), asked.as_of)
    index_keys, row_ids = split_places(places, lengths)
    values = engine.newest(row_ids.to_pylist(), asked.as_of)
    present = [index for index, value in enumerate(values) if value is not None]
    there = pa.array(present, pa.int64())
    rows = pa.array([value for value in values if value is not None], pa.binary())
    row_ids, index_keys = row_ids.take(there), index_keys.take(there)
    now = maker.index_keys(codec, row_ids, rows)
    still = pc.equal(now, index_keys)
    return Found(row_ids.filter(still), rows.filter(still), cursor)
