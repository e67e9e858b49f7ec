"""What a partition answers to those of the next layout that pull it (docs/decisions/0120).

Only its leader answers, each request is complete in itself, and nothing but the log is kept for
who asks: from where the log is to be followed, the next versions of a range, and what the log has
committed for a range since. One request follows any number of partitions that a node leads, so
that a pulling node has one under way for each other node, however many partitions there are.

Reading versions is throttled while clients are served, as every copy is. Following the log is not:
it is replication, and the cut-over waits for it.

Concurrency: runs in the Flight threads of the calls, or in those of a node that pulls from
itself.
"""

import threading
from collections.abc import Callable, Iterator

from rezone.datanode.copying.copies import ROWS_WEIGHT
from rezone.datanode.scheduling.foreground import CopySteps, Foreground
from rezone.datanode.settings import Clock
from rezone.datanode.state.replica_state import ReplicaState
from rezone.datanode.state.reshard_targets import Notifier, ReshardTargets, listening
from rezone.datanode.state.runner import entry
from rezone.storage.log.entry import Entry, EntryHeader, EntryKind, iter_entries
from rezone.storage.reshard.range_backfill import range_versions
from rezone.storage.reshard.range_changes import range_entries
from rezone.storage.reshard.reshard_entries import RangeEntry
from rezone.storage.state.history import branch_at
from rezone.wire.errors import (
    ConflictError,
    NotReadyError,
    RezoneError,
    SnapshotExpiredError,
)
from rezone.wire.layouts import HashRange
from rezone.wire.messages import (
    BackfillVersions,
    BeginReshard,
    CatchUpEntry,
    CatchUpRange,
    CatchUps,
    FailoverEntry,
    PartitionId,
    RangeCatchUp,
    ReshardBackfill,
    ReshardBegun,
    ReshardCatchUp,
    ReshardPosition,
    ReshardRange,
)

CHUNK_BYTES_MAX = 4 << 20
"""The most that one answer has, but for its last row: who asks for more gets this."""

CATCH_UP_RANGES_MAX = 32_768
WAIT_SECONDS_MAX = 5.0
_READ_BYTES = 1 << 20
_COALESCE_SECONDS = 0.05
"""How often who waits for more looks how much that is by now."""

_READS_MAX = 8
"""How often the log is read for one range and one answer: others want to be answered, too."""

_IS_BROKEN = (ConflictError, SnapshotExpiredError)


def is_broken(error: RezoneError) -> bool:
    """Return whether a source's log does not lead on from where a reshard stream stands."""
    return isinstance(error, _IS_BROKEN)


class _Cursor:
    """Where the log of one range is read on, over the turns of one request."""

    def __init__(self, caught_up: CatchUpRange) -> None:
        self.hash_range = caught_up.hash_range
        self.offset = caught_up.offset
        self.branch = caught_up.partition_uuid
        self.reached: ReshardPosition | None = None
        self.entries: list[CatchUpEntry] = []
        self.source: ReplicaState | None = None

    def read_from(self, source: ReplicaState) -> None:
        """Have the log of this replica read on."""
        self.source = source

    def advance(self, found: list[CatchUpEntry], reached: ReshardPosition) -> None:
        """Take what was found up to a position, and stand there."""
        self.entries += found
        self.reached = reached
        self.offset, self.branch = reached.offset, reached.partition_uuid

    @property
    def size(self) -> int:
        """The bytes of the rows that have been found."""
        return sum(len(entry.rows) for entry in self.entries)

    @property
    def lacks_much(self) -> bool:
        """Whether so much is not read yet that it may wait no longer: who pulls is to be near."""
        if self.source is None:
            return False
        unread = self.source.positions.committed - self.offset
        return unread > self.source.settings.takeover_rows_max // 2

    @property
    def has_seal(self) -> bool:
        """Whether the end of the log has been found: who follows it is waited for."""
        return bool(self.entries) and self.entries[-1].kind == EntryKind.SEAL


class ReshardSource:
    """The answers of one node; `find` raises UnknownPartitionError, `closed` ends what waits."""

    def __init__(
        self,
        find: Callable[[PartitionId], ReplicaState],
        foreground: Foreground,
        clock: Clock,
        closed: threading.Event,
    ) -> None:
        self._find = find
        self._foreground = foreground
        self._clock = clock
        self._closed = closed

    def begin(self, request: BeginReshard) -> ReshardBegun:
        """Say from where the log is to be followed: from where all is committed and applied.

        Or from further back, so that those who follow this partition's changes can go on at the
        new ones (docs/decisions/0502).
        """
        partition = self._leading(request.hash_range)
        if partition.pulls_log:
            raise NotReadyError(
                f"partition {partition.partition_id} still brings log that named feeds need; retry"
            )
        begun = partition.store.outgoing.begin_reshard(*_log_for_followers(partition))
        # The producers that come along are those of all that is applied.
        self._require_committed(partition, max(begun.position.offset, partition.store.applied))
        _note_target(partition, request.hash_range.target, begun.position.offset)
        return begun

    def backfill(self, request: ReshardBackfill) -> BackfillVersions:
        """Return the next versions of a range; NotReadyError while not all of them are applied."""
        partition, hash_range = self._leading(request.hash_range), request.hash_range
        leadership = partition.leadership
        self._require_applied(partition, request.applied)
        steps = CopySteps(self._foreground, ROWS_WEIGHT)
        found = range_versions(
            partition.store.engine,
            _hashes_of(hash_range),
            request.after,
            min(request.bytes_max, CHUNK_BYTES_MAX),
            step_bytes=steps.step_bytes,
            throttle=steps.throttle,
        )
        # What was read may not be undone, and not be of rows that were replaced meanwhile.
        if self._leading(hash_range).leadership is not leadership:
            raise NotReadyError(f"partition {hash_range.source} has begun to lead again; retry")
        self._require_committed(partition, partition.store.applied)
        return BackfillVersions(
            versions=found.batch.serialize().to_pybytes(), reached=found.reached, end=found.end
        )

    def _require_applied(self, replica: ReplicaState, offset: int) -> None:
        """Refuse while rows are not in the engine that are not asked of the log any more.

        Of a leader that has not applied all that it began with, and of one that is cut off and does
        not know of a later one.
        """
        if replica.store.applied < offset:
            raise NotReadyError(
                f"partition {replica.partition_id} has not applied its log up to {offset} yet; "
                "retry"
            )

    def _require_committed(self, replica: ReplicaState, offset: int) -> None:
        if offset > replica.positions.committed:
            raise NotReadyError(
                f"partition {replica.partition_id} has applied rows that may be undone; retry"
            )

    def _leading(self, hash_range: ReshardRange, read_to: int | None = None) -> ReplicaState:
        """Return the partition if it leads, and knows as much as the target does."""
        partition = self._find(hash_range.source)
        _require_leading(partition, hash_range, read_to)
        return partition

    # --- following logs --------------------------------------------------------------------------

    def catch_up(self, request: ReshardCatchUp) -> CatchUps:
        """Return what is committed, once something is for one of the ranges, or time is over.

        What is found waits for more, but not a seal: each answer is an append at each range.
        """
        now = self._clock.monotonic()
        until = now + min(request.timeout_ms / 1000, WAIT_SECONDS_MAX)
        cursors = [_Cursor(caught_up) for caught_up in request.ranges[:CATCH_UP_RANGES_MAX]]
        notifier = Notifier()
        room = min(request.bytes_max, CHUNK_BYTES_MAX)
        with listening(self._partitions_of(cursors), notifier):
            while True:
                notifier.clear()
                catch_ups = self._catch_ups(cursors, room)
                now = self._clock.monotonic()
                if (
                    until <= now
                    or self._is_urgent(cursors, catch_ups, room)
                    or self._closed.is_set()
                ):
                    return CatchUps(catch_ups=tuple(catch_ups))
                if any(cursor.entries for cursor in cursors):
                    self._coalesce(notifier, cursors, min(until, now + request.linger_ms / 1000))
                    until = now  # it is read once more
                else:
                    notifier.wait(until - now)

    def _coalesce(self, notifier: Notifier, cursors: list[_Cursor], until: float) -> None:
        """Let more be committed: until then, or a seal, or until it is much."""
        while (left := until - self._clock.monotonic()) > 0:
            if notifier.coalesce(min(left, _COALESCE_SECONDS)) or self._closed.is_set():
                return
            if any(cursor.lacks_much for cursor in cursors):
                return

    @staticmethod
    def _is_urgent(cursors: list[_Cursor], catch_ups: list[RangeCatchUp], room: int) -> bool:
        full = sum(cursor.size for cursor in cursors) >= room
        refused = any(catch_up.error is not None for catch_up in catch_ups)
        return full or refused or any(cursor.has_seal for cursor in cursors)

    def _partitions_of(self, cursors: list[_Cursor]) -> Iterator[ReshardTargets]:
        for source in {cursor.hash_range.source for cursor in cursors}:
            try:
                partition = self._find(source)
            except RezoneError:
                continue  # its answer says so
            yield partition.reshard_targets

    def _catch_ups(self, cursors: list[_Cursor], room: int) -> list[RangeCatchUp]:
        """Read on for each range in turn, for all together about `room` bytes."""
        catch_ups: list[RangeCatchUp] = []
        room -= sum(cursor.size for cursor in cursors)
        for cursor in cursors:
            found = cursor.size
            try:
                catch_up = self._catch_up(cursor, room)
            except RezoneError as error:
                catch_up = RangeCatchUp(error=error.info())
            room -= cursor.size - found
            catch_ups.append(catch_up)
        return catch_ups

    def _catch_up(self, cursor: _Cursor, room: int) -> RangeCatchUp:
        partition = self._leading(cursor.hash_range, cursor.offset)
        cursor.read_from(partition)
        time, committed, failover_log = _standing(partition)
        if cursor.offset > committed or branch_at(failover_log, cursor.offset) != cursor.branch:
            raise ConflictError(
                f"partition {cursor.hash_range.source} has another history than was pulled up to "
                f"{cursor.offset}"
            )
        for _ in range(_READS_MAX):
            if cursor.offset >= committed or room <= 0:
                break
            found = self._read_on(partition, cursor, committed, failover_log)
            room -= sum(len(entry.rows) for entry in found)
        return RangeCatchUp(
            entries=tuple(cursor.entries),
            reached=cursor.reached,
            committed=committed,
            time=time,
            stopped_ms=_stopped_ms(partition) if cursor.has_seal else -1,
        )

    def _read_on(
        self,
        replica: ReplicaState,
        cursor: _Cursor,
        committed: int,
        failover_log: tuple[FailoverEntry, ...],
    ) -> list[CatchUpEntry]:
        """Return what the next committed entries mean for the range; the cursor is behind them."""
        raw = replica.store.read(cursor.offset, _READ_BYTES)
        whole = [entry for entry in iter_entries(raw) if entry.header.end_offset <= committed]
        found = [
            _sent(e)
            for e in range_entries(iter(whole), _hashes_of(cursor.hash_range), failover_log)
        ]
        if whole:
            cursor.advance(found, _position_at(cursor.hash_range.source, whole[-1], failover_log))
        return found


@entry
def _require_leading(replica: ReplicaState, hash_range: ReshardRange, read_to: int | None) -> None:
    """Refuse where a replica does not lead, or knows less; note who has asked."""
    state = replica.leadership
    if state is None:
        raise replica.not_leader()
    if replica.closed or not state.serving or replica.leader_epoch < hash_range.leader_epoch:
        raise NotReadyError(f"partition {hash_range.source} does not serve yet; retry")
    if hash_range.keep_from is not None:
        replica.reshard_targets.heard(hash_range.target, hash_range.keep_from, read_to)


def _log_for_followers(replica: ReplicaState) -> tuple[int | None, int, int | None]:
    """Return the time from which those who follow changes need the log, and how much it may be.

    And the offset from which named feeds do. None when nobody is known to follow, or what is
    written goes with an overwrite. Half of what is kept: a trim must not meet the rest before the
    first request for it claims it.
    """
    config, settings = replica.config, replica.settings
    bytes_max = min(settings.follower_log_bytes_max, config.log_retention_bytes // 2)
    if config.next_filled_by:
        return None, 0, None
    since = replica.followed.time if bytes_max else None
    return since, bytes_max, replica.log_floor


@entry
def _note_target(replica: ReplicaState, target: PartitionId, keep_from: int) -> None:
    replica.reshard_targets.heard(target, keep_from)


@entry
def _standing(replica: ReplicaState) -> tuple[int, int, tuple[FailoverEntry, ...]]:
    """Return a time, an offset below which all rows up to it are, and the failover log."""
    # In this order: all rows up to that time are below that offset.
    time = replica.positions.readable_time
    return time, replica.positions.committed, replica.store.meta.failover_log


@entry
def _stopped_ms(replica: ReplicaState) -> int:
    """Return for how long no writes were taken because of the seal; -1 of an earlier leader's."""
    return replica.seal_gap.stopped_ms(replica.leader_epoch, replica.clock.monotonic())


def _hashes_of(hash_range: ReshardRange) -> HashRange:
    return HashRange(hash_range.first_hash, hash_range.last_hash + 1)


def _position_at(
    source: PartitionId, entry: Entry, failover_log: tuple[FailoverEntry, ...]
) -> ReshardPosition:
    header: EntryHeader = entry.header
    return ReshardPosition(
        source=source,
        offset=header.end_offset,
        commit_time=header.commit_time,
        partition_uuid=branch_at(failover_log, header.end_offset),
        leader_epoch=header.leader_epoch,
    )


def _sent(entry: RangeEntry) -> CatchUpEntry:
    rows = entry.rows.serialize().to_pybytes()
    kind = int(entry.kind)
    return CatchUpEntry(rows, kind, *entry.batch, *entry[3:])
