"""What a partition's log means for who follows the changes of a range of its hashes.

Changes are ordered by the commit time of the versions that they make: within a partition it rises
with the log, and from a partition that was re-sharded to those that have its range it goes on
rising. So a time is a position, whoever's log is read (docs/decisions/0345).

Rows of open transactions stay behind: a commit brings them again. Resharded rows have the times
that they had at their source; those that came as backfills are no changes, but rows as they were
when the reshard stream began.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from rezone.storage.log.entry import Entry, EntryKind
from rezone.storage.reshard.reshard_entries import (
    begins_reshard,
    is_resharded,
    resharded_to,
    rows_of,
    version_time,
)
from rezone.storage.snapshot.digest import in_range
from rezone.wire.codec.changes import CHANGES_SCHEMA, OLD_ROWS_SCHEMA
from rezone.wire.errors import FeedTruncatedError
from rezone.wire.layouts import HashRange, generation_of
from rezone.wire.messages import CommitCount, PartitionId, ReshardPosition

_CHANGING: Final = frozenset(
    {EntryKind.PLAIN, EntryKind.COMMIT, EntryKind.RESHARD, EntryKind.RESHARDED_COMMIT}
)


_OF_ROWS_ALONE: Final = frozenset({EntryKind.PLAIN, EntryKind.COMMIT})
"""Entries of the partition's own rows, each of which is a change: the header says how many."""

OldRows = Callable[[list[bytes], int], list[bytes | None]]
"""Gives the values that rows had before a commit time; None where there was none."""


class Position(NamedTuple):
    """All changes of a range up to `time` are known; `given_by` is the partition that said so."""

    time: int
    given_by: PartitionId


class Counting(NamedTuple):
    """Count changes; `whole`: the range is all of the partition's, no row lies outside of it."""

    whole: bool


class Reading:
    """One reading of a partition's log for one range, from a position on.

    `reshard_positions` is how far the partition has pulled others; `old_rows` is asked for the rows
    before the changes, if they are wanted. `Counting` has the changes counted alone.
    FeedTruncatedError when rows of the range may have come here by a backfill that is later than
    the position.
    """

    def __init__(
        self,
        partition: PartitionId,
        hashes: HashRange,
        position: Position,
        reshard_positions: tuple[ReshardPosition, ...],
        old_rows: OldRows | None = None,
        *,
        counting: Counting | None = None,
    ) -> None:
        self._old_rows = old_rows
        self._counting = counting
        self._schema = CHANGES_SCHEMA if old_rows is None else OLD_ROWS_SCHEMA
        self._partition = partition
        self._hashes = hashes
        self.position = position
        self._given_by = position.given_by
        late = [p for p in reshard_positions if not p.sealed_at or p.commit_time > position.time]
        self.own = position.given_by == partition or not late
        sources = {generation_of(p.source) for p in late}
        self._of_one_source = not self.own and generation_of(self._given_by) in sources
        if not self.own and not self._of_one_source and len(late) > 1:
            # A position for a range of several sources, each of which has an order of its own.
            raise self._truncated(max(p.commit_time for p in late))
        self._found: list[pa.RecordBatch] = []
        self.commits: list[CommitCount] = []
        self.bytes = 0

    def take(self, entry: Entry) -> None:
        """Take a committed entry, which follows those that were taken before."""
        if is_resharded(entry):
            if not self.own:
                self._take_reshard(entry)
            return
        # Not in order where rows are to come that were written elsewhere, before a seal.
        time = entry.header.commit_time
        if time > self.position.time and entry.header.kind in _CHANGING:
            self._take_rows(entry, time)
        if self.own:
            self._advance(time)

    def end(self, time: int) -> None:
        """Note that all is taken that is committed, and that nothing up to a time will follow."""
        self.own = True
        self._advance(time)

    def rows(self) -> bytes:
        """Return the changes found, as one message; empty without any."""
        if not self._found:
            return b""
        table = pa.Table.from_batches(self._found, self._schema).combine_chunks()
        message: bytes = table.to_batches()[0].serialize().to_pybytes()
        return message

    def _take_reshard(self, entry: Entry) -> None:
        source = resharded_to(entry).source
        if self._of_one_source and source != self._given_by:
            return
        if entry.header.kind == EntryKind.RESHARD_BACKFILL:
            begun = resharded_to(entry).commit_time
            if begins_reshard(entry) and begun > self.position.time:
                raise self._truncated(begun)
        elif entry.header.kind in _CHANGING and version_time(entry) > self.position.time:
            self._take_rows(entry, version_time(entry))

    def _take_rows(self, entry: Entry, time: int) -> None:
        if self._counting is not None:
            self._count(entry, time, self._counting)
            return
        rows = rows_of(entry)
        inside = in_range(rows.column(0), self._hashes)
        first = entry.header.end_offset - rows.num_rows
        offsets = pa.array(np.arange(first, entry.header.end_offset, dtype=np.uint64))
        times = pa.array(np.full(rows.num_rows, time, np.uint64))
        batch = pa.RecordBatch.from_arrays([*rows.columns, times, offsets], schema=CHANGES_SCHEMA)
        found: Any = batch.filter(inside) if inside.false_count else batch
        if found.num_rows:
            if self._old_rows is not None:
                old = self._old_rows(found.column(0).to_pylist(), time)
                columns = [*found.columns, pa.array(old, pa.binary())]
                found = pa.RecordBatch.from_arrays(columns, schema=OLD_ROWS_SCHEMA)
            self._found.append(found)
            self.bytes += found.nbytes
            self._advance(time)

    def _count(self, entry: Entry, time: int, counting: Counting) -> None:
        if counting.whole and entry.header.kind in _OF_ROWS_ALONE:
            changes = entry.header.rows
        else:
            changes = in_range(rows_of(entry).column(0), self._hashes).true_count
        if changes:
            self.commits.append(CommitCount(time, changes))
            self.bytes += entry.header.length
            self._advance(time)

    def _advance(self, time: int) -> None:
        given_by = self._partition if self.own else self._given_by
        self.position = Position(max(self.position.time, time), given_by)

    def _truncated(self, oldest: int) -> FeedTruncatedError:
        return truncated(self._partition, self.position.time, oldest)


def truncated(partition: PartitionId, time: int, oldest: int) -> FeedTruncatedError:
    """Return the error of a position to which a partition's log does not reach back."""
    return FeedTruncatedError(
        f"changes of partition {partition} since {time} are not kept, only those since {oldest}; "
        "read the rows as of a time and follow the changes since then "
        "(TableClient.changes_from_snapshot)",
        partition=partition,
        time=time,
        oldest=oldest,
    )
