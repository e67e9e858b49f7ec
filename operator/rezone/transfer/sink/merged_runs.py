"""Staged runs as the rows of an overwrite, merged for each range, a window at a time (0500).

A window is a stretch of row ids. It has the pieces of all runs that reach into it, which are put in
order in memory. So whoever reads has a window for each range, one piece of each run, and the
indexes; never all rows.

Concurrency: ranges are read by threads of their own; one window is made at a time.
"""

import bisect
import heapq
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from rezone.transfer.copying.new_rows import NewRows
from rezone.transfer.sink.staged_runs import (
    RUN_SCHEMA,
    Piece,
    PieceOf,
    StagedFile,
    StagedRowsError,
    pieces_of,
    read_pieces,
)
from rezone.transfer.sink.staging import Staging
from rezone.wire.codec.keyspace import HASH_SPACE
from rezone.wire.codec.pieces import ByteStrings
from rezone.wire.messages import BackfillClaim, BackfillVersions

WINDOW_BYTES: Final = 32 << 20
"""How much of all runs is put in order at a time, besides one piece of each."""

_HASH_BYTES: Final = 8
"""A row id begins with its hash."""


class _Window(NamedTuple):
    """All rows from row id `start` to before `end`, None for the last ones."""

    start: bytes
    end: bytes | None
    row_ids: Any
    values: Any


class _Run(NamedTuple):
    """The pieces of a run, in their order."""

    file: str
    pieces: list[Piece]

    def since(self, start: bytes) -> Iterator[PieceOf]:
        """Yield the pieces that have rows from a row id on."""
        first = bisect.bisect_left(self.pieces, start, key=lambda piece: piece.last)
        for place in range(first, len(self.pieces)):
            yield PieceOf(self.file, self.pieces[place])


class MergedRuns:
    """The rows of some staged files. StagedRowsError when an index is missing or damaged."""

    def __init__(self, staging: Staging, files: Sequence[StagedFile]) -> None:
        self._staging = staging
        self._runs: list[_Run] = []
        for file in files:
            by_run: dict[int, list[Piece]] = {}
            for piece in pieces_of(staging, file):
                by_run.setdefault(piece.run, []).append(piece)
            self._runs.extend(_Run(file.name, pieces) for pieces in by_run.values())
        self.rows = sum(file.rows for file in files)

    def digest(self) -> str:
        """Read all rows; return what tells them from others, however they are spread over files.

        StagedRowsError when one is missing or damaged, ValueError when two have one key.
        """
        found = [xxhash.xxh3_128() for _ in range(4)]
        count, start = 0, b""
        while True:
            window = self.window(start, None)
            rows = NewRows(window.row_ids, window.values, 0)
            count += len(rows)
            for place, array in enumerate(rows.content()):
                strings = ByteStrings.of(array)
                found[2 * place].update((strings.ends - strings.starts).tobytes())
                found[2 * place + 1].update(strings.data.tobytes())
            if window.end is None:
                break
            start = window.end
        if count != self.rows:
            raise StagedRowsError(f"{count} rows are staged where tasks have written {self.rows}")
        return "-".join(each.hexdigest() for each in found)

    def window(self, start: bytes, stop: bytes | None) -> _Window:
        """Return the rows from a row id on, up to a window's size or to before `stop`."""
        taken: list[PieceOf] = []
        size, end = 0, stop
        for each in heapq.merge(*(run.since(start) for run in self._runs), key=_first):
            first = each.piece.first
            if stop is not None and first >= stop:
                break
            if size >= WINDOW_BYTES and first > start:
                end = first
                break
            taken.append(each)
            size += each.piece.size
        else:
            end = stop
        parts = [_between(batch, start, end) for batch in read_pieces(self._staging, taken)]
        table = pa.Table.from_batches(parts, RUN_SCHEMA).combine_chunks()
        row_ids, values = (_whole(table[name]) for name in RUN_SCHEMA.names)
        return _Window(start, end, row_ids, values)


def _first(each: PieceOf) -> bytes:
    return each.piece.first


def _whole(column: Any) -> Any:
    return column.chunk(0) if column.num_chunks else pa.array([], column.type)


def _between(batch: Any, start: bytes, end: bytes | None) -> Any:
    """Return the rows of a batch, which is in order, from a row id to before another one."""
    row_ids = batch["row_id"]
    if row_ids[0].as_py() >= start and (end is None or row_ids[-1].as_py() < end):
        return batch
    wanted = pc.greater_equal(row_ids, pa.scalar(start, pa.binary()))
    if end is not None:
        wanted = pc.and_(wanted, pc.less(row_ids, pa.scalar(end, pa.binary())))
    return batch.filter(wanted)


class StagedNewRows:
    """The rows of an overwrite, all of one commit time, from staged runs."""

    def __init__(self, runs: MergedRuns, commit_time: int) -> None:
        self._runs = runs
        self._commit_time = commit_time
        self._lock = threading.Lock()
        self._windows: dict[tuple[int, int], tuple[_Window, NewRows]] = {}

    def read(self, claim: BackfillClaim, after: bytes) -> BackfillVersions:
        """Return the next rows of a range behind row id `after`; errors as `MergedRuns.digest`."""
        first, last = claim.hash_range.first_hash, claim.hash_range.last_hash
        bound = last + 1
        stop = bound.to_bytes(_HASH_BYTES, "big") if bound < HASH_SPACE else None
        start = max(first.to_bytes(_HASH_BYTES, "big"), after + b"\0" if after else b"")
        while True:
            window, rows = self._window((first, last), start, stop)
            found = rows.read(claim, after)
            is_last = window.end == stop
            if found.reached != after or is_last:
                end = found.end and is_last
                if end:
                    self._windows.pop((first, last), None)
                return msgspec.structs.replace(found, end=end)
            assert window.end is not None  # noqa: S101 - only the last one has none
            start = window.end

    def _window(
        self, key: tuple[int, int], start: bytes, stop: bytes | None
    ) -> tuple[_Window, NewRows]:
        """Return the window that a row id is in."""
        there = self._windows.get(key)
        if there is not None:
            window = there[0]
            if window.start <= start and (window.end is None or start < window.end):
                return there
        with self._lock:
            self._windows.pop(key, None)
            window = self._runs.window(start, stop)
            made = window, NewRows(window.row_ids, window.values, self._commit_time)
            self._windows[key] = made
            return made
