"""What a node answers to a job that brings a new partition's rows past its log (decision 0486).

The job has the node leave ranges to it that it has not come to (`reserve`). Of each one it asks the
leader what to bring (`claim`), reads it from the source as the leader would, and
has every replica take it (`ingest`); when all have it on their disks, the leader counts it
(`commit`). Nothing waits for the job: a leader that is not asked for some seconds goes on
backfilling by itself, so that job, data nodes and operator may die at any time.

Every call may come twice, and late. A replica takes rows only of the reshard stream that its own
log has, while that has not all rows, and behind those that it has (`storage.copies.range_ingest`).

Concurrency: runs in the Flight threads of the calls.
"""

import contextlib
import threading
from collections.abc import Callable
from typing import Final

from rezone.datanode.resharding.reshard_streams import ReshardStreams
from rezone.datanode.scheduling.foreground import CopySteps, Foreground
from rezone.datanode.state.replica_state import ReplicaState
from rezone.datanode.state.runner import entry
from rezone.storage.copies.range_ingest import check_versions
from rezone.storage.reshard.reshard_entries import IngestMark
from rezone.storage.snapshot.columns import VERSIONS_SCHEMA
from rezone.wire import layouts
from rezone.wire.codec.bodies import from_message
from rezone.wire.codec.keyspace import PARTITIONS_MAX
from rezone.wire.errors import (
    ConflictError,
    LimitExceededError,
    NotReadyError,
    RezoneError,
    StaleEpochError,
)
from rezone.wire.layouts import HashRange
from rezone.wire.messages import (
    Ack,
    BackfillClaim,
    BackfillsReserved,
    ClaimBackfill,
    CommitIngested,
    IngestVersions,
    PartitionId,
    ReserveBackfills,
)

INGEST_BYTES_MAX: Final = 16 << 20
"""The most that one call brings: a source's answer has a quarter of it, but for its last row."""

INGESTS_MAX: Final = 8
"""How many calls bring rows at a time: each holds its rows in memory."""

RESERVED_RANGES_MAX: Final = 2 * PARTITIONS_MAX
"""A re-sharding of n partitions to m has less than n + m ranges."""

_TURN_SECONDS: Final = 10.0
_WEIGHT: Final = 2.0
"""What taking rows costs clients in all, as a multiple of the processor time of those threads.

The network, the disk and the engine's own threads do the rest: as for a copy of rows that is sent.
"""


class Ingesting:
    """The answers of one node; `find` and `streams` raise UnknownPartitionError."""

    def __init__(
        self,
        find: Callable[[PartitionId], ReplicaState],
        streams: Callable[[PartitionId], ReshardStreams],
        foreground: Foreground,
    ) -> None:
        self._find = find
        self._streams = streams
        self._foreground = foreground
        self._turns = threading.BoundedSemaphore(INGESTS_MAX)
        self._lock = threading.Lock()
        self._ingested_bytes = 0

    def reserve(self, request: ReserveBackfills) -> BackfillsReserved:
        """Leave ranges to the job for a while where this node leads; see `ReshardStream.reserve`.

        LimitExceededError for more ranges than a re-sharding can have.
        """
        if len(request.ranges) > RESERVED_RANGES_MAX:
            raise LimitExceededError(
                f"{len(request.ranges)} ranges; {RESERVED_RANGES_MAX} is the limit"
            )
        for target, source in request.ranges:
            with contextlib.suppress(RezoneError):  # others lead it, or it is over
                self._streams(target).stream(source).reserve()
        with self._lock:
            return BackfillsReserved(self._ingested_bytes)

    def claim(self, request: ClaimBackfill) -> BackfillClaim:
        """Say what to bring, and leave it to the job for a while; see `ReshardStream.claim`."""
        return self._streams(request.target).stream(request.source).claim()

    def commit(self, request: CommitIngested) -> Ack:
        """Count what all replicas have; see `ReshardStream.count_ingested`."""
        stream = self._streams(request.target).stream(request.source)
        stream.count_ingested(_mark_of(request), request.leader_epoch, request.rows)
        return Ack()

    def ingest(self, request: IngestVersions) -> Ack:
        """Take versions past the log, on the disk if that is asked for.

        Raises LimitExceededError for too many bytes, InvalidRowError for what is no batch or not
        what it says, NotReadyError, StaleEpochError and ConflictError when it may not come now.
        """
        if len(request.versions) > INGEST_BYTES_MAX:
            raise LimitExceededError(
                f"{len(request.versions)} bytes of versions are over the limit of "
                f"{INGEST_BYTES_MAX}; send fewer at a time"
            )
        replica, mark = self._find(request.target), _mark_of(request)
        hashes = _require_open(replica, request)
        batch = from_message(request.versions, VERSIONS_SCHEMA)
        check_versions(batch, hashes, request.after, mark)
        if not self._turns.acquire(timeout=_TURN_SECONDS):
            raise NotReadyError("other rows are being ingested here; retry")
        try:
            steps = CopySteps(self._foreground, _WEIGHT)
            with replica.guarding():
                replica.store.range_ingest.take(batch, request.after, mark)
                if request.durable:
                    replica.store.range_ingest.make_durable(mark)
            with self._lock:
                self._ingested_bytes += len(request.versions)
            steps.throttle()
        finally:
            self._turns.release()
        return Ack()


@entry
def _require_open(replica: ReplicaState, request: IngestVersions) -> HashRange:
    """Return the hashes that the rows may have; refuse where they may not come."""
    if replica.closed or replica.failure or replica.store.meta.needs_snapshot:
        raise NotReadyError(f"partition {request.target} takes no rows here now")
    if replica.leader_epoch != request.leader_epoch:
        raise StaleEpochError(
            f"rows of epoch {request.leader_epoch}, this replica is in {replica.leader_epoch}",
            leader_epoch=replica.leader_epoch,
        )
    replica.services.space.require()
    old, new = layouts.layout_of(replica.config), layouts.next_layout_of(replica.config)
    if new is not None and request.target in new.ids:
        for overlap in layouts.sources_of(request.target, old, new):
            if overlap.old == request.source:
                return HashRange(overlap.start, overlap.end)
    raise ConflictError(f"partition {request.target} has no rows of partition {request.source}")


def _mark_of(request: IngestVersions | CommitIngested) -> IngestMark:
    return IngestMark(request.source, request.begun, request.reached, request.end)
