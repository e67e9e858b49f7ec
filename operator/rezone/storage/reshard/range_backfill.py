"""The rows that a partition has in a range of its hashes: what a new partition is backfilled with.

Read chunk by chunk, each a request complete in itself: nothing is held open between two of them.
So one may see later writes than the one before. That does not matter (docs/decisions/0155): a
version's key says everything about its place, and what was written since the reshard stream began
comes by the log as well. Intents stay behind: a commit brings their rows again.
"""

from typing import NamedTuple

import pyarrow as pa

from rezone.storage.engines.base import FLAG_INTENT, Engine, behind
from rezone.storage.snapshot.columns import columns_of, versions_batch
from rezone.storage.snapshot.digest import hash_bound
from rezone.storage.snapshot.throttle import StepBytes, Throttle, unthrottled, whole_steps
from rezone.wire.layouts import HashRange

_SLICE_BYTES = 512 << 10
_SLICE_ROWS = 2048


class RangeVersions(NamedTuple):
    """Versions (`columns.VERSIONS_SCHEMA`), whole chains in the order of rows.

    All rows of the range up to row id `reached` have come; `end`: no more follow.
    """

    batch: pa.RecordBatch
    reached: bytes
    end: bool


def range_versions(
    engine: Engine,
    hashes: HashRange,
    after: bytes,
    bytes_max: int,
    *,
    step_bytes: StepBytes = whole_steps,
    throttle: Throttle = unthrottled,
) -> RangeVersions:
    """Return the next versions of a range, behind row id `after` (empty: from its start).

    About `bytes_max`, passed by one chain at most. `throttle` is called after each slice of the
    scan, which has `step_bytes`.
    """
    start = behind(after) if after else hash_bound(hashes.start) or b""
    stop = hash_bound(hashes.end)
    keys: list[bytes] = []
    values: list[bytes] = []
    size, end, reached = 0, False, after
    while size < bytes_max and not end:
        most = step_bytes(min(_SLICE_BYTES, bytes_max - size))
        chains = engine.scan_chains(start, stop, rows_max=_SLICE_ROWS, bytes_max=most)
        end = chains.end
        if chains.keys:
            reached = chains.last_row_id
            start = behind(reached)
            size += sum(map(len, chains.keys)) + sum(map(len, chains.values))
            keys.extend(chains.keys)
            values.extend(chains.values)
        throttle()
    batch = versions_batch(columns_of(keys, values))
    versions = batch.filter(pa.array(batch.column(2).to_numpy() != FLAG_INTENT))
    return RangeVersions(versions, reached, end)
