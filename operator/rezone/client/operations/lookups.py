"""Lookups by a secondary index over all partitions: what each is asked, and one page of it all.

Partitions are ranges of key hashes, so an index is in all of them: each gives the first rows of
the range, and the page is the first of those together. A place in an index names no partition, so
a page may be followed by one of other partitions, when the zone was re-sharded in between.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from rezone.wire.codec.encoded_rows import encoded_rows
from rezone.wire.codec.indexes import index_codec
from rezone.wire.codec.rows import RowCodec
from rezone.wire.layouts import Segment
from rezone.wire.messages import IndexTicket, OwnWrites

LOOKUPS_AT_ONCE = 8
"""How many partitions one lookup asks at a time."""


class IndexPage(NamedTuple):
    """Rows in the order of an index, as a table; `next` is where the next page begins.

    None when there is none; a page behind a full one may still turn out to be empty.
    """

    rows: Any
    next: bytes | None


class Lookup:
    """One page of a lookup; ValueError when bounds, limit or `after` make no sense.

    UnknownIndexError when the table has no such index.
    """

    def __init__(
        self,
        codec: RowCodec,
        index: str,
        *,
        low: Sequence[Any],
        high: Sequence[Any],
        limit: int,
        after: bytes,
    ) -> None:
        if limit < 1:
            raise ValueError(f"a page of {limit} rows")
        self._codec = codec
        self._index = index_codec(codec.table, index)
        self._keys = self._index.range_of(low, high)
        if after and not after.startswith(self._index.id):
            raise ValueError(f"`after` is of another index than {index!r} is now: begin again")
        self._after = after
        self._limit = limit

    def ticket(
        self, segment: Segment, as_of: int | None, own: OwnWrites | None = None
    ) -> IndexTicket:
        """Return what to ask who serves a segment: all the rows of the page could be its."""
        return IndexTicket(
            partition=segment.partition,
            hash_start=segment.start,
            hash_end_inclusive=segment.end - 1,
            index=self._index.name,
            start=self._keys.start,
            end=self._keys.end,
            limit=self._limit,
            after=self._after,
            as_of=as_of,
            own=own,
        )

    def page(self, batches: list[Any]) -> IndexPage:
        """Return the first rows of what all partitions have found."""
        found = pa.Table.from_batches(batches, schema=self._codec.arrow_schema)
        if not found.num_rows:
            return IndexPage(found, None)
        batch = found.combine_chunks().to_batches()[0]
        places = self._places(batch)
        order = pc.array_sort_indices(places)
        chosen = order.slice(0, self._limit)
        full = found.num_rows >= self._limit
        last: bytes = places[chosen[-1].as_py()].as_py()
        return IndexPage(pa.Table.from_batches([batch.take(chosen)]), last if full else None)

    def _places(self, batch: Any) -> Any:
        """Return each row's index key with its row id behind."""
        columns = {name: batch.column(name) for name in self._index.columns}
        ids = encoded_rows(self._codec, batch).row_ids()
        index_keys = self._index.encode(columns, batch.num_rows)
        return pc.binary_join_element_wise(index_keys, ids, pa.scalar(b"", pa.binary()))
