"""Digests of a partition's visible rows by key range, to compare two copies (B-04).

Of each even cut of a hash range: the 128-bit XXH3 over the rows visible at one time, in order,
each as row id (whose own length field ends it), value length (4 bytes, big-endian), value. So
two copies agree if and only if their rows do, however many old versions each still keeps.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from rezone.storage.engines.base import Engine, behind
from rezone.storage.snapshot.columns import columns_of, fixed_array, visible
from rezone.storage.snapshot.throttle import Throttle, unthrottled
from rezone.wire.codec.keyspace import HASH_SPACE
from rezone.wire.layouts import HashRange

_SLICE_BYTES = 512 << 10
_SLICE_ROWS = 2048


def hash_bound(key_hash: int) -> bytes | None:
    """Return the lowest row id with this hash or a higher one; None when it is past all rows."""
    return key_hash.to_bytes(8, "big") if key_hash < HASH_SPACE else None


def in_range(row_ids: Any, hashes: HashRange) -> Any:
    """Return which of the row ids, an Arrow array, have a hash of the range, as a mask."""
    low, high = hash_bound(hashes.start) or b"", hash_bound(hashes.end)
    mask = pc.greater_equal(row_ids, pa.scalar(low, pa.binary()))
    if high is not None:
        mask = pc.and_(mask, pc.less(row_ids, pa.scalar(high, pa.binary())))
    return mask


def cuts(start_hash: int, end_hash: int, ranges: int) -> list[int]:
    """Return the bounds of `ranges` even parts of [start_hash, end_hash): ranges + 1 hashes."""
    if ranges < 1 or not 0 <= start_hash <= end_hash <= HASH_SPACE:
        raise ValueError(f"cannot cut [{start_hash}, {end_hash}) into {ranges}")
    width = end_hash - start_hash
    return [start_hash + width * i // ranges for i in range(ranges + 1)]


def digest_range(
    engine: Engine, as_of: int, start: bytes, end: bytes | None, throttle: Throttle = unthrottled
) -> tuple[str, int]:
    """Return (hex digest, rows) of the rows in [start, end) visible at `as_of`.

    `throttle` is called after each slice.
    """
    digest, rows, done = xxhash.xxh3_128(), 0, False
    while not done:
        chains = engine.scan_chains(start, end, rows_max=_SLICE_ROWS, bytes_max=_SLICE_BYTES)
        done = chains.end
        if chains.keys:
            rows += _feed(digest, chains.keys, chains.values, as_of)
            start = behind(chains.last_row_id)
        throttle()
    return digest.hexdigest(), rows


def _feed(
    digest: xxhash.xxh3_128, keys: Sequence[bytes], values: Sequence[bytes], as_of: int
) -> int:
    row_ids, contents = visible(columns_of(keys, values), as_of)
    lengths = fixed_array((contents.ends - contents.starts).astype(">u4").tobytes(), 4)
    joined = pc.binary_join_element_wise(row_ids.array(), lengths, contents.array(), b"")
    if len(joined):
        offsets = np.frombuffer(joined.buffers()[1], dtype=np.int32, count=len(joined) + 1)
        digest.update(joined.buffers()[2][int(offsets[0]) : int(offsets[-1])])
    return len(joined)
