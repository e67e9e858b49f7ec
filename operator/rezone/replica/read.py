"""Reads of one partition: by key, and scans, at the newest committed state or as of a time.

The newest state is the leader's to tell, and only when nobody else can have changed it: after
the coordinator's word or that of every in-sync replica, and when everything it started with is
committed. As of a time, any replica may answer that has applied all committed rows up to it.

Concurrency: runs in the callers' threads; waits on the partition's `changed`, at most
`hold_ms_max`.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rezone.replica.write import require_inside
from rezone.wire import keyspace
from rezone.wire.errors import NotReadyError
from rezone.wire.messages import ReadRequest, Role, ScanTicket
from rezone.wire.rows import RowCodec, from_ipc, hash_of, keys_of, row_ids

if TYPE_CHECKING:
    from rezone.replica.partition import Partition

_HASH_BYTES = 8


def wait_readable(partition: "Partition", as_of: int | None) -> None:
    """Return when a read is right; NotLeaderError or NotReadyError when it will not soon be."""
    if as_of is None:
        _wait(partition, lambda: _newest_is_here(partition))
        return
    with partition.lock:
        leads = _may_answer_newest(partition)
        if leads and as_of < partition.clock.micros():
            # No later write may get a time at or below what has been read at.
            partition.intake.time_floor = max(partition.intake.time_floor, as_of)
            end = partition.store.log_end
        else:
            end = None
    if end is not None:
        _wait(partition, lambda: min(partition.store.applied, partition.committed) >= end)
    else:
        partition.following.apply_now()
        _wait(partition, lambda: as_of <= partition.readable_time)


def _wait(partition: "Partition", readable: Callable[[], bool]) -> None:
    deadline = partition.clock.monotonic() + partition.settings.hold_ms_max / 1000
    with partition.changed:
        while not readable():
            left = deadline - partition.clock.monotonic()
            if left <= 0 or partition.closed or partition.failure:
                raise NotReadyError(
                    f"partition {partition.partition_id} cannot answer this read yet; retry",
                    readable_time=partition.readable_time,
                )
            partition.changed.wait(left)


def _may_answer_newest(partition: "Partition") -> bool:
    state = partition.leading.state
    return state is not None and state.serving and not partition.takeover.blocks_writes


def _newest_is_here(partition: "Partition") -> bool:
    if partition.role is not Role.LEADER and not partition.takeover.eager:
        raise partition.not_leader()
    # What the leadership began with must be applied, and nothing uncommitted may be seen.
    return _may_answer_newest(partition) and partition.store.applied >= partition.committed


def read_keys(
    partition: "Partition", request: ReadRequest, body: memoryview, codec: RowCodec
) -> Any:
    """Return the typed batch of the rows found; InvalidRowError when the keys are none."""
    batch = from_ipc(body, codec.key_schema)
    codec.check(batch, delete=True)
    if batch.num_rows == 0:
        return codec.decode([], [])
    keys = codec.encode_keys(batch)
    hashes = hash_of(keys)
    require_inside(hashes, partition.hash_range, partition.partition_id)
    ids = row_ids(keys, hashes)
    wait_readable(partition, request.as_of)
    values = partition.store.newest(ids.to_pylist(), request.as_of)
    found = [index for index, value in enumerate(values) if value is not None]
    return codec.decode(
        keys.take(pa.array(found, pa.int64())), pa.array([values[i] for i in found], pa.binary())
    )


def scan_batches(partition: "Partition", ticket: ScanTicket, codec: RowCodec) -> Iterator[Any]:
    """Yield the visible rows in a range of hashes as typed batches, in row-id order."""
    as_of = ticket.as_of
    if as_of is None:
        wait_readable(partition, None)
        with partition.lock:
            # All batches at one time, whatever is written meanwhile.
            as_of = partition.intake.time_floor = max(
                partition.intake.time_floor, partition.store.last_commit_time
            )
    wait_readable(partition, as_of)
    cursor: bytes | None = ticket.hash_start.to_bytes(_HASH_BYTES, "big")
    end = ticket.hash_end_inclusive + 1
    bound = None if end >= keyspace.HASH_SPACE else end.to_bytes(_HASH_BYTES, "big")
    while cursor is not None:
        ids, values, cursor = partition.store.scan_arrays(cursor, bound, as_of, ticket.batch_rows)
        if len(ids):
            yield codec.decode(keys_of(ids), values)
