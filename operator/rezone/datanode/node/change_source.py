"""What a node answers to those who follow changes (docs/decisions/0345).

Each request is complete in itself, and nothing is kept for who asks, but from which time on anybody
has lately (`followed`): ranges, each with the time up
to which all is known. Any replica answers from its log with what it knows to be committed. An
answer is bounded, and the next one is asked for when that one was used; so a slow follower holds
nothing here. A request without news is answered in `WAIT_SECONDS_MAX`, which is the heartbeat of
a feed at both ends; one that asks where to begin is answered at once.

Beside clients answers are short, and each rests as a step of a copy does, so that all feeds and
copies of a node together leave its clients the zone's `rebalance.foregroundTargetPercent`.

Concurrency: runs in the Flight threads of the calls.
"""

import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

from rezone.datanode.node.old_rows import RowsBefore, earliest_begin
from rezone.datanode.replica.replica import Replica
from rezone.datanode.scheduling.foreground import CopySteps, Foreground
from rezone.datanode.settings import Clock
from rezone.datanode.state.reshard_targets import Notifier, ReshardTargets, listening
from rezone.datanode.state.runner import entry
from rezone.storage.log.entry import iter_entries
from rezone.storage.log_changes import Counting, Position, Reading, truncated
from rezone.wire.errors import (
    ConflictError,
    NotReadyError,
    OverloadedError,
    RezoneError,
    SnapshotExpiredError,
    UnknownPartitionError,
)
from rezone.wire.layouts import HashRange, generation_of
from rezone.wire.messages import (
    Ack,
    AcknowledgeChanges,
    AskedRange,
    ChangesFound,
    FollowChanges,
    PartitionId,
    RangeChanges,
    ReshardPosition,
)

ANSWER_BYTES_MAX = 4 << 20
"""The most that one answer has, but for its last entry: who asks for more gets this."""

RANGES_MAX = 32_768
FOLLOWERS_MAX = 256
"""So many requests may wait at a node; each holds a thread."""

WAIT_SECONDS_MAX = 5.0
_READ_BYTES = 1 << 20
_READS_MAX = 8
"""How often the log is read for one range and one answer: others want to be answered, too."""

REST_SECONDS_MAX = 1.0
"""For so long at most an answer rests, however many others do: who asks has a deadline."""

_WEIGHT = 1.5
"""What an answer costs in all, as a multiple of its thread's processor time: it is encoded and sent
after its rest, and gRPC has threads of its own (benchmarks/clients/feed_cost.py --apart)."""

_LOOK_SECONDS = 0.1
"""How often a follower's log is looked at: nobody is told what it hears to be committed."""


class _State(NamedTuple):
    """How a replica stands when its log begins to be read for one answer."""

    time: int
    committed: int
    applied: int
    copies: int
    seal_time: int
    reshard_positions: tuple[ReshardPosition, ...]


@entry
def _state_of(replica: Replica, hashes: HashRange) -> _State:
    if replica.closed or replica.failure or replica.store.meta.needs_snapshot:
        raise _not_ready(replica)
    if not replica.serving.hashes(hashes)():
        raise _not_ready(replica)  # not all that was written before is here
    seal = replica.store.seal if replica.is_sealed else None
    # Time and offset in this order: all rows up to that time are below that offset.
    return _State(
        replica.positions.readable_time,
        replica.positions.committed,
        replica.store.applied,
        replica.copies,
        seal.commit_time if seal is not None else 0,
        replica.store.applied_reshards(),
    )


@entry
def _require_same_log(replica: Replica, state: _State) -> None:
    """Refuse what was read of a log that was dropped meanwhile."""
    dropped = replica.positions.readable_time < state.time
    if dropped or replica.copies != state.copies:
        raise _not_ready(replica)


class ChangeSource:
    """The answers of one node; `find` raises UnknownPartitionError, `closed` ends what waits."""

    def __init__(
        self,
        find: Callable[[PartitionId], Replica],
        foreground: Foreground,
        clock: Clock,
        closed: threading.Event,
        followers_max: int = FOLLOWERS_MAX,
    ) -> None:
        self._slots = threading.Semaphore(followers_max)
        self._find = find
        self._foreground = foreground
        self._clock = clock
        self._closed = closed

    def follow(self, request: FollowChanges) -> ChangesFound:
        """Return the next changes, once there are some for one of the ranges, or time is over.

        OverloadedError when too many requests wait.
        """
        if not self._slots.acquire(blocking=False):
            raise OverloadedError("too many requests follow changes at this node; retry later")
        try:
            return self._follow(request)
        finally:
            self._slots.release()

    def _follow(self, request: FollowChanges) -> ChangesFound:
        until = self._clock.monotonic() + min(request.timeout_ms / 1000, WAIT_SECONDS_MAX)
        if len(request.ranges) > RANGES_MAX:
            raise ConflictError(f"{len(request.ranges)} ranges are asked for, {RANGES_MAX} may be")
        begins = any(each.time is None for each in request.ranges)
        notifier = Notifier()
        steps = CopySteps(self._foreground, _WEIGHT, rest_seconds_max=REST_SECONDS_MAX)
        with listening(self._partitions_of(request.ranges), notifier):
            while True:
                notifier.clear()
                found = self._answers(request, steps.step_bytes(ANSWER_BYTES_MAX))
                steps.throttle()
                left = until - self._clock.monotonic()
                if begins or left <= 0 or self._closed.is_set() or any(map(_is_news, found)):
                    return ChangesFound(ranges=tuple(found))
                notifier.wait(min(left, _LOOK_SECONDS))

    def acknowledge(self, request: AcknowledgeChanges) -> Ack:
        """Note what a named feed needs no more; of what is not closed here yet it still does.

        Partitions that are not here are left out. ConflictError for a feed that the zone lacks.
        """
        if len(request.partitions) > RANGES_MAX:
            raise ConflictError(f"{len(request.partitions)} partitions are told, {RANGES_MAX} may")
        for told in request.partitions:
            try:
                replica = self._find(told.partition)
            except UnknownPartitionError:
                continue
            if request.feed not in {feed.name for feed in replica.config.feeds}:
                raise ConflictError(
                    f"zone {replica.config.zone} has no feed {request.feed!r}: name it in "
                    "spec.feeds, with the limits of its log"
                )
            replica.acknowledged.note(request.feed, min(told.time, replica.positions.readable_time))
        return Ack()

    def _partitions_of(self, ranges: tuple[AskedRange, ...]) -> Iterator[ReshardTargets]:
        for number in {each.partition for each in ranges}:
            try:
                partition = self._find(number)
            except RezoneError:
                continue  # its answer says so
            yield partition.reshard_targets

    def _answers(self, request: FollowChanges, bytes_max: int) -> list[RangeChanges]:
        room = min(request.bytes_max, bytes_max)
        answers: list[RangeChanges] = []
        for hash_range in request.ranges:
            try:
                answer, read = self._answer(hash_range, room, request)
            except RezoneError as error:
                answer, read = RangeChanges(error=error.info()), 0
            room -= read
            answers.append(answer)
        return answers

    def _answer(
        self, hash_range: AskedRange, room: int, request: FollowChanges
    ) -> tuple[RangeChanges, int]:
        """Return the answer for a range, and how many bytes it took of what all may have."""
        old_rows = request.old_rows and not request.counts_only
        partition = self._find(hash_range.partition)
        hashes = _hashes_of(hash_range, partition)
        state = _state_of(partition, hashes)
        readable_from = partition.readable_from
        if hash_range.time is not None and hash_range.time < readable_from:
            # What the overwrite has replaced is not among the changes.
            raise truncated(hash_range.partition, hash_range.time, readable_from)
        if hash_range.time is None:
            begun = _begun(partition, state, hash_range, old_rows=old_rows)
            partition.followed.note(begun.time)
            return begun, 0
        position = Position(hash_range.time, hash_range.given_by)
        before = RowsBefore(partition) if old_rows else None
        counting = None
        if request.counts_only:
            counting = Counting(whole=hashes == HashRange(*partition.hash_range))
        reading = Reading(
            hash_range.partition,
            hashes,
            position,
            state.reshard_positions,
            before,
            counting=counting,
        )
        # What is not applied covers rows that nobody can read yet.
        reach = min(state.committed, state.applied) if old_rows else state.committed
        if not reading.own or _has_sources(hash_range):
            _require_resharded(partition, hash_range.given_by)
        try:
            offset = _read(partition, hash_range, reading, reach, room)
        except SnapshotExpiredError as error:
            oldest = int(error.details.get("log_time", state.time))
            raise truncated(hash_range.partition, hash_range.time, oldest) from error
        done = offset >= state.committed
        if done:
            reading.end(max(state.time, state.seal_time))
        _require_same_log(partition, state)
        if before is not None:
            before.require_kept(hash_range)
        partition.followed.note(hash_range.time)
        answer = RangeChanges(
            rows=reading.rows(),
            commits=tuple(reading.commits),
            time=reading.position.time,
            offset=offset,
            own=reading.own,
            ended=done and state.seal_time > 0,
            more=offset < reach,
        )
        return answer, reading.bytes


def _begun(replica: Replica, state: _State, asked: AskedRange, *, old_rows: bool) -> RangeChanges:
    """Begin to follow: whatever is acknowledged from now on is later than what reads see now.

    Where in the log that is stays open: more may be committed than is applied. The earliest ones
    are this partition's own, behind all that it has pulled: only those have an order for sure.
    """
    if not state.time:
        raise _not_ready(replica)
    readable_from = replica.readable_from  # every write is later
    if asked.earliest:
        pulled = (each.commit_time for each in state.reshard_positions if each.sealed_at)
        kept = earliest_begin(replica) if old_rows else 0
        return RangeChanges(
            time=max(replica.store.log_start_time, *pulled, kept, readable_from), own=True
        )
    return RangeChanges(time=max(state.time, readable_from), own=True)


def _read(replica: Replica, hash_range: AskedRange, reading: Reading, reach: int, room: int) -> int:
    """Read the log on for a range, up to `reach` at most; return up to where it was read."""
    assert hash_range.time is not None  # noqa: S101 - the caller has seen to it
    store, offset = replica.store, hash_range.offset
    if offset is None or offset < store.log_start:
        offset = store.offset_after(hash_range.time)
    for _ in range(_READS_MAX):
        if offset >= reach or reading.bytes >= room:
            break
        for each in iter_entries(store.read(offset, _READ_BYTES)):
            if each.header.end_offset > reach or reading.bytes >= room:
                break
            reading.take(each)
            offset = each.header.end_offset
    return offset


def _has_sources(asked: AskedRange) -> bool:
    """Whether others have had the range, and not this partition has said how far its changes came.

    A replica that has applied nothing since its start knows of no source: it would take what it has
    yet to learn of for its own, and the next one that is asked leave out what was pulled.
    """
    return asked.given_by != asked.partition and generation_of(asked.partition) > 0


@entry
def _require_resharded(replica: Replica, given_by: PartitionId) -> None:
    """Refuse pulled changes where not all of them are known to be in the log.

    Who leads has all that was committed before; others may be far behind.
    """
    state = replica.require_leadership()
    positions = replica.store.applied_reshards()
    sources = [each.source for each in positions]
    if generation_of(given_by) in map(generation_of, sources):
        sources = [given_by]
    whole = bool(positions) and all(map(replica.serving.has_source, sources))
    if not state.serving or not whole:
        raise _not_ready(replica)


def _hashes_of(hash_range: AskedRange, replica: Replica) -> HashRange:
    hashes = HashRange(hash_range.first_hash, hash_range.last_hash + 1)
    start, end = replica.hash_range
    if not start <= hashes.start < hashes.end <= end:
        raise ConflictError(
            f"hashes from {hash_range.first_hash} to {hash_range.last_hash} are not partition "
            f"{hash_range.partition}'s"
        )
    return hashes


def _is_news(answer: RangeChanges) -> bool:
    found = answer.rows or answer.commits
    return bool(found) or answer.ended or answer.more or answer.error is not None


def _not_ready(replica: Replica) -> NotReadyError:
    return NotReadyError(
        f"partition {replica.partition_id} cannot tell its changes here yet; retry"
    )
