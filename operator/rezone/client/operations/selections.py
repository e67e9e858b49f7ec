"""Selections as a client asks for them: of which partitions, by which index, and how many rows.

Each segment is asked by an index where one serves the filter; where that is still being built, or
is not there, by a scan. Segments are asked one after the other, those that have keys of the filter
at the same time.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa

from rezone.client.operations.filters import Filter
from rezone.client.operations.lookups import LOOKUPS_AT_ONCE
from rezone.client.requests.streams import Streams
from rezone.wire.codec.filter_plans import ids_that_pass, index_range
from rezone.wire.codec.filters import RowFilter
from rezone.wire.codec.keyspace import hash_in
from rezone.wire.codec.rows import RowCodec
from rezone.wire.errors import IndexNotBuiltError, InvalidFilterError, UnknownIndexError
from rezone.wire.layouts import HashRange, Segment
from rezone.wire.messages import SelectTicket


class Selection:
    """Which rows and columns are asked for; no `columns` for all, no `limit` for any number.

    InvalidFilterError where that does not fit the table, ValueError for a negative limit.
    """

    def __init__(
        self,
        codec: RowCodec,
        rows: Filter | None,
        columns: Sequence[str] | None,
        limit: int | None,
    ) -> None:
        if limit is not None and limit < 0:
            raise ValueError(f"a limit of {limit} rows")
        unknown = [name for name in columns or () if name not in codec.arrow_schema.names]
        if unknown or len(set(columns or ())) < len(columns or ()) or columns == []:
            raise InvalidFilterError(f"columns are asked for that are not the table's: {unknown}")
        self._terms = rows.terms if rows is not None else ()
        self._columns = tuple(columns or ())
        self._limit = limit
        checked = RowFilter(codec.table, self._terms) if self._terms else None
        ids = ids_that_pass(codec, checked) if checked is not None else None
        self._hashes = [hash_in(each) for each in ids] if ids is not None else None
        by_key = checked is None or ids is not None
        self._index = None if by_key or checked is None else index_range(codec, checked)
        names = self._columns or codec.arrow_schema.names
        self.schema = pa.schema([codec.arrow_schema.field(name) for name in names])

    @property
    def found_by(self) -> str:
        """How data nodes find the rows: by key, by an index where that is built, or by a scan."""
        if self._hashes is not None:
            return f"key ({len(self._hashes)})"
        return f"index {self._index.name}" if self._index is not None else "scan"

    @property
    def is_of_keys(self) -> bool:
        """Whether the filter says which keys may pass: so many rows at most."""
        return self._hashes is not None

    def may_have(self, hashes: HashRange) -> bool:
        """Whether a range of hashes may have rows that pass."""
        if self._hashes is None:
            return True
        return any(hashes.start <= each < hashes.end for each in self._hashes)

    def rows(
        self, streams: Streams, ranges: Sequence[HashRange], as_of: int | None, *, anywhere: bool
    ) -> Iterator[Any]:
        """Yield record batches of these ranges of hashes, one after the other."""
        if self.is_of_keys and self._limit is None and len(ranges) > 1:
            yield from self._at_once(streams, ranges, as_of, anywhere=anywhere)
            return
        left = self._limit
        for hashes in ranges:
            if left == 0:
                return
            for batch in self._range(streams, hashes, as_of, left, anywhere=anywhere):
                found = batch if left is None else batch.slice(0, left)
                if left is not None:
                    left -= found.num_rows
                yield found
                if left == 0:
                    return

    def _at_once(
        self, streams: Streams, ranges: Sequence[HashRange], as_of: int | None, *, anywhere: bool
    ) -> Iterator[Any]:
        def rows_of(hashes: HashRange) -> list[Any]:
            return list(self._range(streams, hashes, as_of, None, anywhere=anywhere))

        with ThreadPoolExecutor(min(len(ranges), LOOKUPS_AT_ONCE)) as pool:
            for found in pool.map(rows_of, ranges):
                yield from found

    def _range(
        self,
        streams: Streams,
        hashes: HashRange,
        as_of: int | None,
        limit: int | None,
        *,
        anywhere: bool,
    ) -> Iterator[Any]:
        began = False
        if self._index is not None:
            try:
                for batch in streams.select(
                    self._ticket(limit, by_index=True), hashes, as_of, anywhere=anywhere
                ):
                    began = True
                    yield batch
            except (IndexNotBuiltError, UnknownIndexError):
                if began:
                    raise
            else:
                return
        yield from streams.select(
            self._ticket(limit, by_index=False), hashes, as_of, anywhere=anywhere
        )

    def _ticket(
        self, limit: int | None, *, by_index: bool
    ) -> Callable[[Segment], SelectTicket | None]:
        found = self._index if by_index else None

        def ticket(segment: Segment) -> SelectTicket | None:
            if not self.may_have(segment.hashes):
                return None
            return SelectTicket(
                partition=segment.partition,
                filter=self._terms,
                columns=self._columns,
                limit=limit,
                hash_start=segment.start,
                hash_end_inclusive=segment.end - 1,
                index=found.name if found else "",
                index_start=found.keys.start if found else b"",
                index_end=found.keys.end if found else b"",
            )

        return ticket
