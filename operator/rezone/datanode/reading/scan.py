"""Scans of one partition: its rows in a range of hashes, as of one time, that is told first.

Any replica may be asked for a time; only the leader for the newest state, which it reads as of the
latest time that it may close. So a scan that breaks off goes on elsewhere with the same rows: at
the row after the last one that came, as of the time that was told. To a transaction its leader
answers, with its own writes on top (`own_rows`).

Concurrency: runs in its caller's Flight thread.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from rezone.datanode.reading.own_rows import OwnRows
from rezone.datanode.reading.read import reading, wait_readable
from rezone.datanode.state.age import age_ms_of
from rezone.datanode.state.expiry import Kept, oldest_kept, retention_micros
from rezone.datanode.state.replica_state import ReplicaState
from rezone.datanode.state.runner import entry
from rezone.storage.engines.base import behind
from rezone.storage.snapshot.digest import hash_bound
from rezone.wire import messages
from rezone.wire.codec.pieces import ByteStrings
from rezone.wire.codec.rows import RowCodec, keys_of
from rezone.wire.errors import NotReadyError
from rezone.wire.layouts import HashRange
from rezone.wire.messages import IndexTicket, RowsAsOf, ScanTicket, SelectTicket

Chunk = tuple[Any, Any]
"""A record batch and the metadata that goes with it, if any."""


def hashes_of(replica: ReplicaState, ticket: ScanTicket | IndexTicket | SelectTicket) -> HashRange:
    """Return which of a partition's hashes a ticket is for; an empty range when none."""
    start, end = replica.hash_range
    start = min(max(start, ticket.hash_start), end)
    return HashRange(start, max(start, min(end, ticket.hash_end_inclusive + 1)))


def time_to_read_at(replica: ReplicaState, as_of: int | None, hashes: HashRange) -> Kept:
    """Return the one time of a read that takes several steps, when it may be read at.

    Without `as_of` a time at which everything committed is to be seen. It is of the rows of a
    range, all of which must be served.
    """
    served = replica.serving.hashes(hashes)
    if as_of is None:
        wait_readable(replica, None, served)
        as_of = _close_newest(replica)
    read = wait_readable(replica, as_of, served)
    assert read.kept_until is not None, "a past read is answered once that is known"  # noqa: S101 - invariant
    return Kept(as_of, read.kept_until)


def view_of(
    replica: ReplicaState, ticket: ScanTicket | IndexTicket, hashes: HashRange
) -> tuple[Kept, OwnRows | None]:
    """Return the time that a ticket is answered as of, and what its transaction has on top."""
    own = ticket.own
    if own is None:
        return time_to_read_at(replica, ticket.as_of, hashes), None
    wait_readable(replica, None, replica.serving.hashes(hashes))
    _require_range_since(replica, hashes, own.times.read_time)
    until = own.times.begun + retention_micros(replica)
    return Kept(own.times.read_time, until), OwnRows(replica, own)


@entry
def _require_range_since(replica: ReplicaState, hashes: HashRange, read_time: int) -> None:
    replica.serving.require_range_since(hashes, read_time)


@entry
def _close_newest(replica: ReplicaState) -> int:
    """Return a time that sees all that is committed, and that no later write gets.

    A recent one also where nothing was written for long: it is to be read at for a while. Raises
    NotReadyError while none may be promised there: right after a change of the leader.
    """
    replica.clock.require()  # else it is not known what is recent
    newest = max(replica.promisable(), replica.store.last_commit_time, replica.readable_from)
    if newest < oldest_kept(replica):
        raise NotReadyError(f"partition {replica.partition_id} can promise no recent time yet")
    replica.write_clock.raise_to(newest)
    return newest


@contextlib.contextmanager
def reading_at(replica: ReplicaState, kept: Kept) -> Iterator[None]:
    """Refuse what was read of rows that are not whole any more, or not there (`reading`)."""
    with reading(replica, kept.as_of):
        yield
    kept.require(replica)


def told_first(replica: ReplicaState, as_of: int, schema: Any) -> Chunk:
    """Return the first chunk of a stream of rows, which says of when they are."""
    age_ms = age_ms_of(replica, as_of)
    return empty_of(schema), pa.py_buffer(messages.encode(RowsAsOf(as_of=as_of, age_ms=age_ms)))


def empty_of(schema: Any) -> Any:
    """Return a batch without rows."""
    return pa.RecordBatch.from_pylist([], schema=schema)


def scan_batches(replica: ReplicaState, ticket: ScanTicket, codec: RowCodec) -> Iterator[Chunk]:
    """Yield the visible rows in a range of hashes as typed batches, in row-id order."""
    hashes = hashes_of(replica, ticket)
    kept, own = view_of(replica, ticket, hashes)
    yield told_first(replica, kept.as_of, codec.arrow_schema)
    cursor, bound = hash_bound(hashes.start), hash_bound(hashes.end)
    if cursor is not None and ticket.after:
        cursor = max(cursor, behind(ticket.after))
    while cursor is not None and hashes.start < hashes.end:
        with reading_at(replica, kept):
            ids, values, next_row = replica.store.reader.scan(
                cursor, bound, kept.as_of, ticket.batch_rows
            )
        if own is not None:
            shown = own.over(ids.array(), values.array(), cursor, next_row or bound)
            ids, values = map(ByteStrings.of, shown)
        cursor = next_row
        yield codec.decode(keys_of(ids), values), None
