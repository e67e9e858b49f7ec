"""Reading the rows of one partition's store: by row id, by range, by an index, as digests.

Every read is bounded by what is applied, so that an entry shows whole or not at all.

Concurrency: thread-safe, beside whoever appends and applies.
"""

import itertools
from collections.abc import Iterable
from typing import Protocol

from rezone.storage.engines.base import Engine, behind
from rezone.storage.index.index_search import Found
from rezone.storage.index.indexer import Indexer
from rezone.storage.snapshot.columns import columns_of, visible
from rezone.storage.snapshot.digest import cuts, digest_range, hash_bound
from rezone.storage.snapshot.throttle import Throttle, unthrottled
from rezone.storage.transactions.intents import Intent, newest_intents
from rezone.storage.transactions.transactions import Transaction
from rezone.wire.codec.indexes import IndexCodec, KeyRange
from rezone.wire.codec.keyspace import HASH_SPACE
from rezone.wire.codec.pieces import ByteStrings

_SCAN_BYTES = 1 << 20


class AppliedRows(Protocol):
    """Where rows are read: the engine of the day, and how far it has the log."""

    @property
    def engine(self) -> Engine:
        """The engine; another one after a reset or a copy."""
        ...

    @property
    def applied_time(self) -> int:
        """The commit time of the last applied entry."""
        ...


class RowReader:
    """Reads of one partition; `as_of` is a commit time in microseconds, None for the newest."""

    def __init__(self, rows: AppliedRows, indexer: Indexer) -> None:
        self._rows = rows
        self._indexer = indexer

    def _time(self, as_of: int | None) -> int:
        applied = self._rows.applied_time
        return applied if as_of is None else min(as_of, applied)

    def newest(self, row_ids: list[bytes], as_of: int | None = None) -> list[bytes | None]:
        """Return each row's value, newest or as of a time; None where there is none."""
        return self._rows.engine.newest(row_ids, self._time(as_of))

    def intents(self, transaction: Transaction, row_ids: Iterable[bytes]) -> dict[bytes, Intent]:
        """Return what an open transaction will do to these rows, as far as it is applied."""
        first = transaction.records[0]
        chains = self._rows.engine.chains_of(sorted(row_ids), since=first.commit_time)
        return newest_intents(chains, first.transaction)

    def lookup(self, codec: IndexCodec, keys: KeyRange, as_of: int | None, rows_max: int) -> Found:
        """Return visible rows by an index, one slice; see `Indexer.lookup`.

        Right as far as is indexed: the caller waits for that.
        """
        return self._indexer.lookup(codec, keys, self._time(as_of), rows_max)

    def scan(
        self, start_row_id: bytes, end_row_id: bytes | None, as_of: int | None, rows_max: int
    ) -> tuple[ByteStrings, ByteStrings, bytes | None]:
        """Return the visible rows of a slice of [start, end) and where to go on, None at the end.

        Row ids and values; empty when the slice, of at most `rows_max` rows,
        has nothing but rows that are not visible. The cursor is the `start_row_id` of the next
        call; give the same `as_of` to see one state.
        """
        chains = self._rows.engine.scan_chains(
            start_row_id, end_row_id, rows_max=rows_max, bytes_max=_SCAN_BYTES
        )
        cursor = None if chains.end else behind(chains.last_row_id)
        if not chains.keys:
            return ByteStrings.of([]), ByteStrings.of([]), cursor
        row_ids, values = visible(columns_of(chains.keys, chains.values), self._time(as_of))
        return row_ids, values, cursor

    def digest(
        self,
        as_of: int | None = None,
        start_hash: int = 0,
        end_hash: int = HASH_SPACE,
        ranges: int = 16,
        throttle: Throttle = unthrottled,
    ) -> tuple[list[str], list[int]]:
        """Return hex digest and row count of each of `ranges` even cuts of a hash range (B-04).

        `throttle` is called after each slice that is read.
        """
        bound = self._time(as_of)
        bounds = cuts(start_hash, end_hash, ranges)
        results = [
            digest_range(
                self._rows.engine, bound, hash_bound(low) or b"", hash_bound(high), throttle
            )
            for low, high in itertools.pairwise(bounds)
        ]
        return [digest for digest, _ in results], [rows for _, rows in results]
