"""Lookups by a secondary index: rows of one partition in the order of the index.

A lookup waits as a read does (`read`), then until the indexes have everything that was applied
when it came: so it sees what was acknowledged before. All of its rows are as of one time. One that
was cut for another definition of the index is refused: its caller has older routes than this node,
or newer ones.

Concurrency: runs in its caller's Flight thread.
"""

from collections.abc import Iterator

from rezone.datanode.indexing.indexing import IndexDuties
from rezone.datanode.reading.scan import Chunk, hashes_of, reading_at, told_first, view_of
from rezone.datanode.state.replica_state import ReplicaState
from rezone.storage.engines.base import behind
from rezone.storage.index.index_search import Found
from rezone.storage.snapshot.digest import in_range
from rezone.wire.codec.indexes import KeyRange, index_codec
from rezone.wire.codec.rows import RowCodec, keys_of
from rezone.wire.errors import LimitExceededError, UnknownIndexError
from rezone.wire.layouts import HashRange
from rezone.wire.messages import IndexTicket

_ENTRIES_MIN = 256
"""A slice has so many entries even for a few rows: those of rows that have changed do not count."""


def lookup_batches(
    replica: ReplicaState, indexes: IndexDuties, ticket: IndexTicket, codec: RowCodec
) -> Iterator[Chunk]:
    """Yield the rows of a range of an index as typed batches, in the index's order.

    Those that the transaction which asks has written come first, and in an order of their own: who
    asked puts them in their places, as it does with what several partitions find.

    UnknownIndexError and LimitExceededError before anything is waited for.
    """
    index = index_codec(codec.table, ticket.index)
    keys = KeyRange(ticket.start, ticket.end)
    if not index.holds(keys):
        raise UnknownIndexError(
            f"index {ticket.index!r} is defined otherwise here; fetch the routes again",
            index=ticket.index,
        )
    rows_max = replica.settings.lookup_rows_max
    if not 0 < ticket.limit <= rows_max:
        raise LimitExceededError(
            f"a lookup of {ticket.limit} rows; from 1 to {rows_max} go at once, page by page",
            limit=rows_max,
        )
    hashes = hashes_of(replica, ticket)
    kept, own = view_of(replica, ticket, hashes)
    applied = replica.store.applied
    dropped = indexes.wait_for(index, applied)
    yield told_first(replica, kept.as_of, codec.arrow_schema)
    if own is not None:
        yield own.matching(index, keys, ticket.after, hashes, codec).slice(0, ticket.limit), None
    if ticket.after:
        keys = keys._replace(start=max(ticket.start, behind(ticket.after)))
    left = ticket.limit
    while left:
        with reading_at(replica, kept):
            found = replica.store.reader.lookup(index, keys, kept.as_of, max(left, _ENTRIES_MIN))
        found = _inside(found, hashes, replica.hash_range)
        # It may have begun to be made again, was rolled back, or dropped.
        indexes.require(index, applied, dropped)
        row_ids, values = found.row_ids, found.values
        if own is not None:
            row_ids, values = own.others(row_ids, values)
        batch = codec.decode(keys_of(row_ids), values).slice(0, left)
        yield batch, None
        left -= batch.num_rows
        if found.cursor is None:
            return
        keys = keys._replace(start=found.cursor)


def _inside(found: Found, hashes: HashRange, whole: HashRange) -> Found:
    """Return those of a partition's rows that are in a range of hashes."""
    if hashes == whole or not len(found.row_ids):
        return found
    mask = in_range(found.row_ids, hashes)
    return found._replace(row_ids=found.row_ids.filter(mask), values=found.values.filter(mask))
