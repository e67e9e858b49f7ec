"""The rows that an overwrite brings, as data nodes take them (docs/decisions/0500).

All of them have one commit time, at which the driver has read before it asked for the overwrite: so
whatever others write later is later. In the memory of the process that brings them, in row order.
"""

import bisect
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rezone.transfer.copying.backfill import CHUNK_BYTES, VERSIONS_SCHEMA
from rezone.wire.codec.keyspace import HASH_SPACE
from rezone.wire.messages import BackfillClaim, BackfillVersions

_VERSION_BYTES: Final = 17
"""What a version takes beside row id and value: offsets, time and flag."""

_HASH_BYTES: Final = 8
"""A row id begins with its hash."""


class NewRows:
    """All rows that a zone is to have: row ids and values, Arrow arrays of binary.

    `commit_time` is that of all. Raises ValueError when two are of one row.
    """

    def __init__(self, row_ids: Any, values: Any, commit_time: int) -> None:
        order = pc.sort_indices(row_ids)
        self._row_ids, self._values = row_ids.take(order), values.take(order)
        count = len(self._row_ids)
        if (
            count > 1
            and pc.any(pc.equal(self._row_ids.slice(1), self._row_ids.slice(0, count - 1))).as_py()
        ):
            raise ValueError("two of the new rows have one key")
        self._commit_time = commit_time
        sizes = pc.add(pc.binary_length(self._row_ids), pc.binary_length(self._values))
        self._ends = np.cumsum(sizes.to_numpy(zero_copy_only=False).astype(np.int64))
        self._ends += _VERSION_BYTES * np.arange(1, count + 1)

    def __len__(self) -> int:
        """Return how many rows there are."""
        return len(self._row_ids)

    def content(self) -> tuple[Any, Any]:
        """Return all row ids and values, in the order of the row ids."""
        return self._row_ids, self._values

    def read(self, claim: BackfillClaim, after: bytes) -> BackfillVersions:
        """Return the next rows of a range behind row id `after`, as its source would."""
        hashes = claim.hash_range
        first = hashes.first_hash.to_bytes(_HASH_BYTES, "big")
        bound = hashes.last_hash + 1
        places = range(len(self))
        start = max(
            bisect.bisect_left(places, first, key=self._row_id),
            bisect.bisect_right(places, after, key=self._row_id),
        )
        stop = len(self)
        if bound < HASH_SPACE:
            stop = bisect.bisect_left(places, bound.to_bytes(_HASH_BYTES, "big"), key=self._row_id)
        start = min(start, stop)
        before = int(self._ends[start - 1]) if start else 0
        fits = int(np.searchsorted(self._ends, before + CHUNK_BYTES, side="right"))
        upto = min(stop, max(fits, start + 1)) if start < stop else start
        batch = self._versions(start, upto)
        reached = self._row_id(upto - 1) if upto > start else after
        return BackfillVersions(
            versions=batch.serialize().to_pybytes(), reached=reached, end=upto == stop
        )

    def _row_id(self, place: int) -> bytes:
        found: bytes = self._row_ids[place].as_py()
        return found

    def _versions(self, start: int, stop: int) -> pa.RecordBatch:
        count = stop - start
        arrays = [
            self._row_ids.slice(start, count),
            pa.array(np.full(count, self._commit_time, np.uint64)),
            pa.array(np.zeros(count, np.uint8)),
            self._values.slice(start, count),
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=VERSIONS_SCHEMA)
