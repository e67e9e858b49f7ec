"""Rows of before that come to a new partition past its log (docs/decisions/0486).

While a partition is re-sharded, a Spark job may bring the rows that its sources had before to each
replica of a new partition, in place of the leader's own backfill, which goes through the log. A
batch goes to the engine as a copy's does, in the order of rows, its index entries behind it, and
then the mark of how far rows have come (`ReshardTable`). The leader's log gets an entry of a note
alone, once all replicas have the rows on their disks.

Rows may be in the engine that no entry speaks of. Versions are blind writes, each is one that the
source has committed, and nothing is collected before the backfill is over: so they change nothing.

Concurrency: a batch is taken under the applier's mutex, a slice at a time under the partition's
condition, as everything that changes the engine.
"""

import threading
from collections.abc import Callable
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from rezone.storage.applier import Applier
from rezone.storage.engines.base import FLAG_TOMBSTONE, STATE_PREFIX
from rezone.storage.index.indexer import Indexer
from rezone.storage.reshard.reshard_entries import IngestMark
from rezone.storage.reshard.reshard_table import ReshardTable
from rezone.storage.snapshot.columns import engine_pairs, slices_of_versions
from rezone.storage.snapshot.digest import hash_bound
from rezone.wire.errors import ConflictError, InvalidRowError, NotReadyError
from rezone.wire.layouts import HashRange

_NOT_NOW: Final = "the rows of partition {} cannot be ingested here now"


class RangeIngest:
    """What a new partition's store does to take rows past its log; `flush` makes it durable."""

    def __init__(
        self,
        applier: Applier,
        indexer: Indexer,
        table: ReshardTable,
        changed: threading.Condition,
        flush: Callable[[], object],
        *,
        slice_bytes: int,
        slice_rows: int,
    ) -> None:
        self._applier = applier
        self._indexer = indexer
        self._table = table
        self._changed = changed
        self._flush = flush
        self._slice_bytes = slice_bytes
        self._slice_rows = slice_rows

    def take(self, batch: pa.RecordBatch, after: bytes, mark: IngestMark) -> None:
        """Take the versions behind row id `after` and up to what `mark` says, as snapshots have.

        NotReadyError while no rows may come, and when rows before these are missing. ConflictError
        when the mark is of another reshard stream. `check_versions` comes first. What was there
        already changes nothing.
        """
        with self._applier.mutex:
            known = self._standing(mark)
            if not known.end and known.reached < after:
                raise NotReadyError(
                    f"rows of partition {mark.source} are missing below those to be ingested, or "
                    "not applied yet; ask again what is next"
                )
            for part in slices_of_versions(batch, self._slice_bytes, self._slice_rows):
                self._applier.load_past_log(*engine_pairs(part))
            self._indexer.take_past_log(batch)
            if known.covers(mark):
                return
            with self._changed:
                self._applier.engine.apply((), (), self._table.ingested(mark))

    def make_durable(self, mark: IngestMark) -> None:
        """Have all that has come up to a mark on the disk; errors as `take`."""
        with self._changed:
            known, undone = self._standing(mark), self._table.marks_undone
        if not known.covers(mark):
            raise ConflictError(f"not all rows of partition {mark.source} are here any more")
        self._flush()
        with self._changed:
            self._table.flushed(known, undone)

    def has_durable(self, mark: IngestMark) -> bool:
        """Return whether the disk has all that a mark speaks of."""
        with self._changed:
            return self._table.has_durable(mark)

    def standing(self, source: int) -> IngestMark | None:
        """Return how far a source's rows have come; None where none may come past the log."""
        with self._changed:
            return self._table.mark(source)

    def _standing(self, mark: IngestMark) -> IngestMark:
        with self._changed:
            known = self._table.mark(mark.source)
        if known is None:
            raise NotReadyError(_NOT_NOW.format(mark.source))
        if known.begun != mark.begun:
            raise ConflictError(f"partition {mark.source} is pulled from another offset on")
        return known


def check_versions(
    batch: pa.RecordBatch, hashes: HashRange, after: bytes, mark: IngestMark
) -> None:
    """Raise InvalidRowError unless versions are what was asked for: in order, in their range.

    They are rows of `hashes` behind row id `after` and up to the mark, without intents; `batch` is
    a valid one of `VERSIONS_SCHEMA`.
    """
    if not batch.num_rows:
        return
    row_ids, _, flags, _ = batch.columns
    if pc.max(flags).as_py() > FLAG_TOMBSTONE:
        raise InvalidRowError("versions with flags that are none of a committed row")
    count = batch.num_rows
    if not pc.all(pc.greater_equal(row_ids.slice(1), row_ids.slice(0, count - 1))).as_py() and (
        count > 1
    ):
        raise InvalidRowError("versions are out of row order")
    first, last = row_ids[0].as_py(), row_ids[count - 1].as_py()
    # Behind all rows stands what the engine says of itself.
    low, high = hash_bound(hashes.start) or b"", hash_bound(hashes.end) or STATE_PREFIX
    if first <= after or first < low or last >= high:
        raise InvalidRowError("versions of rows that were not asked for")
    if not mark.end and last > mark.reached:
        raise InvalidRowError("versions of rows beyond where they are said to end")


def at(mark: IngestMark, reached: bytes, *, end: bool) -> IngestMark:
    """Return a mark of the same reshard stream further on."""
    return msgspec.structs.replace(mark, reached=reached, end=end)
