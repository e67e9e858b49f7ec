"""Rows of an overwrite that tasks have staged: sorted runs, as data nodes take them (0500).

A task encodes its rows, puts them into the order of their row ids, a run at a time, and writes each
run in pieces to the one file of its attempt. What the pieces are, and their digests, stands in an
index beside it, whose own digest goes to the driver with the task's result. So whoever reads a
piece later has the bytes that the task has written, or knows that they are damaged.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from rezone.client.requests.batches import conform
from rezone.transfer.sink.staging import Staging
from rezone.wire.codec.bodies import from_message
from rezone.wire.codec.encoded_rows import encoded_rows
from rezone.wire.codec.rows import RowCodec
from rezone.wire.errors import UNREADABLE, InvalidRowError
from rezone.wire.typed import from_msgpack

RUN_BYTES: Final = 64 << 20
"""So many bytes of rows are put in order at a time: a task holds them about three times over."""

PIECE_BYTES: Final = 128 << 10
"""Of each run whoever merges all of them holds one piece."""

INDEX: Final = ".index"
RUN_SCHEMA: Final = pa.schema([("row_id", pa.binary()), ("value", pa.binary())])


class StagedRowsError(ValueError):
    """Raised when a file that a task has staged is missing or damaged; names the file."""


class StagedFile(msgspec.Struct, frozen=True):
    """What one attempt of a task has staged; no name where it had no rows.

    `digest` is that of its index.
    """

    name: str
    rows: int
    digest: str


class Piece(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Rows of a run, in their order, from row id `first` to `last`; `size` bytes of its file."""

    run: int
    offset: int
    size: int
    rows: int
    first: bytes
    last: bytes
    digest: bytes


class PieceOf(NamedTuple):
    """A piece, and the name of its file."""

    file: str
    piece: Piece


def stage_runs(staging: Staging, codec: RowCodec, batches: Iterable[Any]) -> StagedFile:
    """Write the rows of a task. InvalidRowError where the zone does not take one."""
    pieces: list[Piece] = []

    def content() -> Iterator[bytes]:
        offset = 0
        for number, run in enumerate(_runs(codec, batches)):
            for batch in _cut(run):
                data = batch.serialize().to_pybytes()
                pieces.append(
                    Piece(
                        run=number,
                        offset=offset,
                        size=len(data),
                        rows=batch.num_rows,
                        first=batch["row_id"][0].as_py(),
                        last=batch["row_id"][-1].as_py(),
                        digest=xxhash.xxh3_128_digest(data),
                    )
                )
                offset += len(data)
                yield data

    name = staging.write_bytes(content())
    if not name:
        return StagedFile("", 0, "")
    index = msgspec.msgpack.encode(pieces)
    staging.note(name + INDEX, index)
    return StagedFile(name, sum(piece.rows for piece in pieces), xxhash.xxh3_128_hexdigest(index))


def _runs(codec: RowCodec, batches: Iterable[Any]) -> Iterator[Any]:
    """Yield the encoded rows of checked batches in runs, each in the order of its row ids."""
    waiting: list[Any] = []
    size = 0
    for given in batches:
        if not given.num_rows:
            continue
        batch = conform(given, codec.arrow_schema)
        codec.check(batch, delete=False)
        rows = encoded_rows(codec, batch)
        encoded = pa.record_batch([rows.row_ids(), rows.values()], schema=RUN_SCHEMA)
        if waiting and size + encoded.nbytes > RUN_BYTES:
            yield _in_order(waiting)
            waiting, size = [], 0
        waiting.append(encoded)
        size += encoded.nbytes
    if waiting:
        yield _in_order(waiting)


def _in_order(found: list[Any]) -> Any:
    batch = pa.concat_batches(found)
    found.clear()
    return batch.take(pc.array_sort_indices(batch["row_id"]))


def _cut(run: Any) -> Iterator[Any]:
    """Yield a run in pieces of about `PIECE_BYTES`, each of a row at least."""
    sizes = pc.add(pc.binary_length(run["row_id"]), pc.binary_length(run["value"]))
    ends = np.cumsum(sizes.to_numpy(zero_copy_only=False).astype(np.int64))
    start = 0
    while start < run.num_rows:
        before = int(ends[start - 1]) if start else 0
        stop = max(int(np.searchsorted(ends, before + PIECE_BYTES, side="right")), start + 1)
        yield run.slice(start, stop - start)
        start = stop


def pieces_of(staging: Staging, file: StagedFile) -> list[Piece]:
    """Return what a file has, in its order. StagedRowsError when its index is not as it was."""
    found = staging.noted(file.name + INDEX)
    if found is None:
        raise StagedRowsError(f"the staged file {file.name}{INDEX} is missing; run the job again")
    if xxhash.xxh3_128_hexdigest(found) != file.digest:
        raise StagedRowsError(f"the staged file {file.name}{INDEX} is damaged; run the job again")
    try:
        return from_msgpack(found, list[Piece])
    except UNREADABLE as error:  # another release has written it
        raise StagedRowsError(f"the staged file {file.name}{INDEX} is no index: {error}") from error


def read_pieces(staging: Staging, pieces: Sequence[PieceOf]) -> Iterator[Any]:
    """Yield the rows of pieces, file by file. StagedRowsError when one is not as it was written."""
    by_file: dict[str, list[Piece]] = {}
    for each in pieces:
        by_file.setdefault(each.file, []).append(each.piece)
    for name, wanted in by_file.items():
        with staging.opened(name) as file:
            if file is None:
                raise StagedRowsError(f"the staged file {name} is missing; run the job again")
            for piece in wanted:
                yield _rows_of(name, piece, file.read_at(piece.size, piece.offset))


def _rows_of(name: str, piece: Piece, data: bytes) -> Any:
    if xxhash.xxh3_128_digest(data) != piece.digest:
        raise StagedRowsError(f"the staged file {name} is damaged; run the job again")
    try:
        return from_message(data, RUN_SCHEMA)
    except InvalidRowError as error:
        raise StagedRowsError(f"the staged file {name} has no rows: {error}") from error
