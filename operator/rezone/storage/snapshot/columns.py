"""Version chains as columns: what scan, snapshot and digest work on instead of row by row.

Keys and values are joined once; from there on they are parts of what was joined: splitting keys,
telling chains apart and choosing visible versions copy none of their bytes.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rezone.storage.engines.base import FLAG_INTENT, FLAG_VALUE, TIME_BYTES, TIME_MAX
from rezone.wire.codec.pieces import ByteStrings, gather, lengths_of, refuse_corrupt

VERSIONS_SCHEMA: Final = pa.schema(
    [
        pa.field("row_id", pa.binary(), nullable=False),
        pa.field("time", pa.uint64(), nullable=False),
        pa.field("flag", pa.uint8(), nullable=False),
        pa.field("value", pa.binary(), nullable=False),
    ]
)

_HEAD_BYTES: Final = 8


class Columns(NamedTuple):
    """Versions in engine order (newest first within a row), one array per part."""

    row_ids: ByteStrings
    times: npt.NDArray[np.uint64]
    flags: npt.NDArray[np.uint8]
    values: ByteStrings

    def starts(self) -> npt.NDArray[np.bool_]:
        """Return a mask of the versions that begin a chain."""
        mask = np.ones(len(self.row_ids), dtype=np.bool_)
        maybe = 1 + np.flatnonzero(self._like_before())
        if len(maybe):
            these, before = self.row_ids.chosen(maybe), self.row_ids.chosen(maybe - 1)
            unlike = pc.not_equal(these.array(), before.array())
            mask[maybe] = unlike.to_numpy(zero_copy_only=False)
        return mask

    def _like_before(self) -> npt.NDArray[np.bool_]:
        """Return which row ids, from the second on, begin as the one before: most never do."""
        data, starts, ends = self.row_ids.data, self.row_ids.starts, self.row_ids.ends
        if len(starts) < 2 or (ends - starts).min() < _HEAD_BYTES:  # noqa: PLR2004 - none before
            return np.ones(max(len(starts) - 1, 0), dtype=np.bool_)
        heads: Any = gather(data, starts, ends, _HEAD_BYTES).view(np.uint64).ravel()
        like: npt.NDArray[np.bool_] = heads[1:] == heads[:-1]
        return like


def fixed_array(data: bytes, width: int) -> Any:
    """Return `data` cut in pieces of `width` bytes as an Arrow binary array."""
    count = len(data) // width
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    return pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def columns_of(keys: Sequence[bytes], values: Sequence[bytes]) -> Columns:
    """Split engine keys and values into columns; CorruptionError for what is no version."""
    stored = ByteStrings.of(pa.array(keys, pa.binary()))
    found = ByteStrings.of(pa.array(values, pa.binary()))
    row_ids = ByteStrings(stored.data, stored.starts, stored.ends - TIME_BYTES)
    contents = ByteStrings(found.data, found.starts + 1, found.ends)
    refuse_corrupt(row_ids.starts, row_ids.ends, stored.ends, "version's key")
    refuse_corrupt(contents.starts, contents.ends, found.ends, "version's value")
    suffixes = gather(stored.data, row_ids.ends, stored.ends, TIME_BYTES)
    times = np.uint64(TIME_MAX) - suffixes.view(">u8").ravel().astype(np.uint64)
    return Columns(row_ids, times, found.data[found.starts], contents)


def visible(columns: Columns, as_of: int) -> tuple[ByteStrings, ByteStrings]:
    """Return (row ids, values) of the rows visible at `as_of`, in order.

    Of each chain that is the newest version at or below `as_of` that is no intent, unless it is
    a tombstone.
    """
    fits = (columns.times <= np.uint64(as_of)) & (columns.flags != FLAG_INTENT)
    starts = columns.starts()
    if fits.all() and starts.all():
        chosen = np.flatnonzero(columns.flags == FLAG_VALUE)
    else:
        candidates = np.flatnonzero(fits)
        chains = np.cumsum(starts)[candidates]
        first = np.ones(len(candidates), dtype=np.bool_)
        first[1:] = chains[1:] != chains[:-1]
        chosen = candidates[first]
        chosen = chosen[columns.flags[chosen] == FLAG_VALUE]
    if len(chosen) == len(columns.row_ids):
        return columns.row_ids, columns.values
    return columns.row_ids.chosen(chosen), columns.values.chosen(chosen)


def versions_batch(columns: Columns) -> pa.RecordBatch:
    """Return the versions as a snapshot batch: rows in order, versions oldest to newest (SS-02)."""
    arrays = [
        columns.row_ids.array(),
        pa.array(columns.times),
        pa.array(columns.flags),
        columns.values.array(),
    ]
    batch = pa.RecordBatch.from_arrays(arrays, schema=VERSIONS_SCHEMA)
    starts = columns.starts()
    if starts.all():
        return batch
    chains = np.cumsum(starts)
    backwards = np.lexsort((-np.arange(len(chains)), chains))
    return batch.take(pa.array(backwards))


def engine_keys(row_ids: Any, times: npt.NDArray[np.uint64]) -> Any:
    """Return the engine keys of versions as an Arrow binary array."""
    inverted = (np.uint64(TIME_MAX) - times).astype(">u8")
    suffixes = fixed_array(inverted.tobytes(), TIME_BYTES)
    return pc.binary_join_element_wise(row_ids, suffixes, b"")


def engine_pairs(batch: pa.RecordBatch) -> tuple[list[bytes], list[bytes]]:
    """Return a snapshot batch as (engine keys, engine values) in ascending key order."""
    row_ids, times, flags, values = batch.columns
    marks = fixed_array(flags.to_numpy().tobytes(), 1)
    keys = engine_keys(row_ids, times.to_numpy()).to_pylist()
    contents = pc.binary_join_element_wise(marks, values, b"").to_pylist()
    # Ascending already, unless a row has several versions: those travel oldest to newest.
    if not pc.all(
        pc.not_equal(row_ids.slice(1), row_ids.slice(0, max(len(row_ids) - 1, 0)))
    ).as_py():
        return in_order(keys, contents)
    return keys, contents


def slices_of_versions(
    batch: pa.RecordBatch, bytes_max: int, rows_max: int
) -> Iterator[pa.RecordBatch]:
    """Yield a snapshot batch cut into slices of at most so many bytes and rows, or one row."""
    ends = np.cumsum(lengths_of(batch.column(0)) + lengths_of(batch.column(3)), dtype=np.int64)
    start = 0
    while start < batch.num_rows:
        before = int(ends[start - 1]) if start else 0
        end = int(np.searchsorted(ends, before + bytes_max, side="right"))
        end = max(start + 1, min(end, start + rows_max))
        yield batch.slice(start, end - start)
        start = end


def in_order(keys: list[bytes], values: list[bytes]) -> tuple[list[bytes], list[bytes]]:
    """Return keys and their values in ascending key order."""
    order = sorted(range(len(keys)), key=keys.__getitem__)
    return [keys[i] for i in order], [values[i] for i in order]


def content_bytes(batch: pa.RecordBatch) -> int:
    """Return the bytes of row ids and values in a snapshot batch, as trailers count them."""
    return int(pc.sum(pc.binary_length(batch.column(0))).as_py() or 0) + int(
        pc.sum(pc.binary_length(batch.column(3))).as_py() or 0
    )
