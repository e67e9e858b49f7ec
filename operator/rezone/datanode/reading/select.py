"""Selections: of one partition the rows that pass a filter, some of their columns, some of them.

Of each slice only the filter's columns are decoded, then the rows that pass. So what a slice costs
that has none is its reading. Where the filter says which keys may pass, only those are read, many
for a slice; where the caller names a range of an index, only what that has.

Concurrency: runs in its caller's Flight thread.
"""

import bisect
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from rezone.datanode.indexing.indexing import IndexDuties
from rezone.datanode.reading.scan import (
    Chunk,
    empty_of,
    hashes_of,
    reading_at,
    time_to_read_at,
    told_first,
)
from rezone.datanode.state.expiry import Kept
from rezone.datanode.state.replica_state import ReplicaState
from rezone.storage.engines.base import behind
from rezone.storage.snapshot.digest import hash_bound, in_range
from rezone.wire import messages
from rezone.wire.codec.filter_plans import ids_that_pass
from rezone.wire.codec.filters import RowFilter
from rezone.wire.codec.indexes import KeyRange, index_codec
from rezone.wire.codec.keyspace import hash_in
from rezone.wire.codec.pieces import ByteStrings
from rezone.wire.codec.rows import RowCodec, keys_of
from rezone.wire.errors import InvalidFilterError, UnknownIndexError
from rezone.wire.layouts import HashRange
from rezone.wire.messages import SelectedUpTo, SelectTicket

_SLICE_ROWS = 8192
_INDEX_ROWS = 1024
"""Each of these is read by itself."""

_KEYS_AT_ONCE = 32
_SLICE_BYTES = 512 << 10
"""A slice of single keys has so many bytes, and the values of the last keys read at once."""

_BEHIND_ALL = b"\xff" * 10
"""Above every row id: no key is so long."""


class _Slice(NamedTuple):
    """Some rows as they are stored, and where the next ones begin."""

    row_ids: ByteStrings
    values: ByteStrings
    cursor: bytes


class Selection:
    """What is asked of the rows; InvalidFilterError when that does not fit the table."""

    def __init__(self, codec: RowCodec, ticket: SelectTicket) -> None:
        self.codec = codec
        self.filter = RowFilter(codec.table, ticket.filter) if ticket.filter else None
        self.schema = selected_schema(codec, ticket.columns)

    def rows_of(self, found: _Slice) -> Any:
        """Return the rows of a slice that pass, as a typed batch."""
        row_ids, values = found.row_ids, found.values
        if self.filter is not None and len(row_ids):
            columns = self.codec.decode_columns(keys_of(row_ids), values, self.filter.columns)
            passing = self.filter.mask(columns).fill_null(False)  # noqa: FBT003 - Arrow's signature
            mask = passing.to_numpy(zero_copy_only=False)
            row_ids, values = row_ids.chosen(mask), values.chosen(mask)
        if not len(row_ids):
            return empty_of(self.schema)
        names = frozenset(self.schema.names)
        columns = self.codec.decode_columns(keys_of(row_ids), values, names)
        return pa.RecordBatch.from_arrays(
            [columns[name] for name in self.schema.names], schema=self.schema
        )

    def row_ids(self, hashes: HashRange, cursor: bytes) -> list[bytes] | None:
        """Return those of a range, from a row id on, that may pass, in order; None when any may."""
        ids = ids_that_pass(self.codec, self.filter) if self.filter is not None else None
        if ids is None:
            return None
        inside = [each for each in ids if hashes.start <= hash_in(each) < hashes.end]
        return inside[bisect.bisect_left(inside, cursor) :]


def selected_schema(codec: RowCodec, columns: tuple[str, ...]) -> Any:
    """Return the schema of a selection's rows; InvalidFilterError for a column that is not there.

    No columns: all.
    """
    schema = codec.arrow_schema
    unknown = [name for name in columns if name not in schema.names]
    if unknown or len(set(columns)) < len(columns):
        raise InvalidFilterError(f"the columns asked for are not the table's, each once: {unknown}")
    return pa.schema([schema.field(name) for name in columns]) if columns else schema


def select_batches(
    replica: ReplicaState, indexes: IndexDuties, ticket: SelectTicket, codec: RowCodec
) -> Iterator[Chunk]:
    """Yield the rows that pass as typed batches, each with where the stream would go on.

    InvalidFilterError before anything is waited for; UnknownIndexError and IndexNotBuiltError
    before any row.
    """
    selection = Selection(codec, ticket)
    hashes = hashes_of(replica, ticket)
    kept = time_to_read_at(replica, ticket.as_of, hashes)
    left = ticket.limit
    yield told_first(replica, kept.as_of, selection.schema)
    if ticket.index:
        slices = _by_index(replica, indexes, ticket, selection, kept)
    elif (ids := selection.row_ids(hashes, ticket.cursor)) is not None:
        slices = _by_key(replica, ids, kept)
    else:
        slices = _by_scan(replica, ticket, kept)
    for found in slices:
        batch = selection.rows_of(found)
        if left is not None:
            batch = batch.slice(0, left)
            left -= batch.num_rows
        yield batch, pa.py_buffer(messages.encode(SelectedUpTo(cursor=found.cursor)))
        if left == 0:
            return


def _by_scan(replica: ReplicaState, ticket: SelectTicket, kept: Kept) -> Iterator[_Slice]:
    hashes = hashes_of(replica, ticket)
    cursor, bound = hash_bound(hashes.start), hash_bound(hashes.end)
    if cursor is not None:
        cursor = max(cursor, ticket.cursor)
    while cursor is not None and (bound is None or cursor < bound):
        with reading_at(replica, kept):
            row_ids, values, cursor = replica.store.reader.scan(
                cursor, bound, kept.as_of, _SLICE_ROWS
            )
        yield _Slice(row_ids, values, cursor or bound or _BEHIND_ALL)


def _by_key(replica: ReplicaState, row_ids: list[bytes], kept: Kept) -> Iterator[_Slice]:
    at = 0
    while at < len(row_ids):
        rows: list[bytes] = []
        values: list[bytes] = []
        size = 0
        while at < len(row_ids) and size < _SLICE_BYTES:
            asked = row_ids[at : at + _KEYS_AT_ONCE]
            with reading_at(replica, kept):
                newest = replica.store.reader.newest(asked, kept.as_of)
            for row, value in zip(asked, newest, strict=True):
                if value is not None:
                    rows.append(row)
                    values.append(value)
                    size += len(row) + len(value)
            at += len(asked)
        yield _Slice(ByteStrings.of(rows), ByteStrings.of(values), behind(row_ids[at - 1]))


def _by_index(
    replica: ReplicaState,
    indexes: IndexDuties,
    ticket: SelectTicket,
    selection: Selection,
    kept: Kept,
) -> Iterator[_Slice]:
    index = index_codec(selection.codec.table, ticket.index)
    keys = KeyRange(ticket.index_start, ticket.index_end)
    if not index.holds(keys):
        raise UnknownIndexError(
            f"index {ticket.index!r} is defined otherwise here; fetch the routes again",
            index=ticket.index,
        )
    hashes = hashes_of(replica, ticket)
    applied = replica.store.applied
    dropped = indexes.wait_for(index, applied)
    cursor: bytes | None = max(keys.start, ticket.cursor)
    while cursor is not None and cursor < keys.end:
        with reading_at(replica, kept):
            found = replica.store.reader.lookup(
                index, KeyRange(cursor, keys.end), kept.as_of, _INDEX_ROWS
            )
        # It may have begun to be made again, was rolled back, or dropped.
        indexes.require(index, applied, dropped)
        inside = in_range(found.row_ids, hashes)
        cursor = found.cursor
        rows, values = found.row_ids.filter(inside), found.values.filter(inside)
        yield _Slice(ByteStrings.of(rows), ByteStrings.of(values), cursor or keys.end)
