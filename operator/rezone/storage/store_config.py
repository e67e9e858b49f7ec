"""What a partition's storage is told when it is opened: kind of engine, sizes, limits, clock."""

import sys
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

import msgspec

from rezone.storage.budget import Tally
from rezone.storage.disk.sync_times import SyncTimes
from rezone.storage.engines import open_engine
from rezone.storage.engines.base import Engine
from rezone.storage.engines.rocks_settings import RocksSettings
from rezone.storage.snapshot.checkpoints import CheckpointLimits
from rezone.storage.snapshot.snapshot import SnapshotLimits
from rezone.wire.codec.schema import TableSchema
from rezone.wire.messages import EngineKind


def _new_id() -> str:
    return uuid.uuid4().hex


def _one_thread() -> Executor:
    return ThreadPoolExecutor(1, thread_name_prefix="checkpoint")


def _condition() -> threading.Condition:
    return threading.Condition(threading.RLock())


def _unlimited() -> Tally:
    return Tally(sys.maxsize)


class StoreConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one partition's storage; sizes in bytes, times in seconds.

    `transactions_known_max` and `transaction_seconds_max` say how many transactions are remembered,
    and for how long after their end: for as long as a transaction may be open at most.
    `open_intents` counts the bytes of open ones, with those of the node's other partitions, and
    `ended_transactions` those of what is over (`PartitionStore.limit_ended` of this partition).
    Of producers `producers_max` are remembered, or fewer (`PartitionStore.limit_producers`), but
    all that have written within `producer_seconds_min`: as long as a client may repeat a write.
    The engine is written to in slices of `apply_slice_bytes` or `apply_slice_rows`: it holds the
    interpreter for each, which is about a millisecond then.
    Of a copy's rows `bulk_checkpoint_bytes` are received at a time, and as many made durable; of
    those that come before their turn at most `bulk_early_bytes_max` are kept in memory.
    `beside` makes what a copy's parts are made durable by while the next are received, one job at a
    time; it is shut down with the copy.
    `condition` makes what guards the applied state, by which appliers and readers of snapshots wait
    for each other; its lock may be taken again by the thread that holds it.
    `try_files` reads the files of a copy, so many bytes in a directory, before they are opened
    here, and raises CorruptionError for such as must not be; None opens them untried.
    `sync_times` notes how long the syncs of log and facts take, of all of a node's partitions.
    `clock` (monotonic), `new_id`, `beside`, `condition` and `open_engine` are injected so that
    tests decide about time, ids, order and what a disk keeps.
    """

    partition: int = 0
    engine: EngineKind = EngineKind.ROCKSDB
    rocks: RocksSettings = RocksSettings()
    log_segment_bytes: int = 32 << 20
    log_tail_bytes: int = 4 << 20
    apply_slice_bytes: int = 1 << 20
    apply_slice_rows: int = 2_000
    snapshot: SnapshotLimits = SnapshotLimits()
    checkpoints: CheckpointLimits = CheckpointLimits()
    bulk_checkpoint_bytes: int = 24 << 20
    bulk_early_bytes_max: int = 16 << 20
    file_checkpoint_bytes: int = 64 << 20
    producers_max: int = 10_000
    producer_seconds_min: float = 60.0
    transactions_known_max: int = 50_000
    transaction_seconds_max: float = 60.0
    open_intents: Tally = msgspec.field(default_factory=_unlimited)
    ended_transactions: Tally = msgspec.field(default_factory=_unlimited)
    table: TableSchema = TableSchema()
    sync_times: SyncTimes = msgspec.field(default_factory=SyncTimes)
    clock: Callable[[], float] = time.monotonic
    try_files: Callable[[Path, int], int] | None = None
    new_id: Callable[[], str] = _new_id
    beside: Callable[[], Executor] = _one_thread
    condition: Callable[[], threading.Condition] = _condition
    open_engine: Callable[[EngineKind, Path, RocksSettings], Engine] = open_engine
