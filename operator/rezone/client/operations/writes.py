"""The writes of one client: a lane per partition, each batch applied exactly once.

All batches carry the client's producer (`producer`). Once that is fenced nothing more is sent.

Per partition requests are numbered and sent one at a time. Small batches that wait meanwhile share
the next request, in their order (`sharing`), which waits for its turn at the leader (`turns`). A
request of several calls that is refused at once is split, until it is known whose rows are refused:
each call has its own end. A request whose answer is lost is sent again with the same number, which
a node applies at most once. A request that ended with OutcomeUnknownError keeps its number taken:
the next one takes a higher one, so a copy of it still on the wire can be told from the new one.

When a partition was re-sharded (B-08), its lane is moved: its batches are cut again by key and put
behind those of the lanes of whoever serves their rows by now. A batch that was sent says so there
(`original_ids`), because it may have been applied before the seal. Rows that come meanwhile are put
behind the lane that is moved, so that batches with a key in common always stand in one line
(docs/decisions/0162).
"""

import dataclasses
import functools
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from rezone.client.operations.producer import FINAL_ERRORS, Producer
from rezone.client.requests import batches
from rezone.client.requests.calls import Budget, Call, Ended
from rezone.client.requests.dispatch import Dispatcher
from rezone.client.requests.gathering import Gathering
from rezone.client.requests.request import Outcome, Request
from rezone.client.requests.sharing import SHARING_ROWS_MAX, Content, Limits, joined
from rezone.client.requests.together import Cut
from rezone.client.requests.turns import Turn
from rezone.client.routing.placement import PartitionIds, Placement
from rezone.client.settings import ClientSettings, OutcomeUnknownError, closed_error
from rezone.wire.codec.keyspace import Hashes
from rezone.wire.codec.producers import digest_of
from rezone.wire.codec.rows import RowCodec
from rezone.wire.errors import (
    OverloadedError,
    ReshardedError,
    RezoneError,
    RowLockedError,
)
from rezone.wire.layouts import HashRange, generation_of
from rezone.wire.messages import (
    ORIGINAL_IDS_MAX,
    Message,
    OriginalId,
    PartitionId,
    WriteRequest,
    WriteResult,
)

_log = logging.getLogger(__name__)
_REFUSALS = frozenset(
    {"InvalidRow", "LimitExceeded", "Forbidden", *(error.code for error in FINAL_ERRORS)}
)
"""Errors that prove, as the answer to a first attempt, that nothing was applied."""
_SPLITTING = (_REFUSALS | {RowLockedError.code}) - {error.code for error in FINAL_ERRORS}
"""Of these those that may be about one of the calls in a request."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartitionWrite:
    """One call's acknowledged rows in one partition: they are on every in-sync replica's disk.

    `end_offset` is the partition's offset after them and after the rows of other calls that shared
    their request, `commit_time` microseconds since 1970, `leader_epoch` that of the leadership that
    acknowledged.
    """

    partition: PartitionId
    rows: int
    end_offset: int
    commit_time: int
    leader_epoch: int


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class _Batch:
    """Rows of one call in a request to come, their room in the budget, the call they belong to.

    `written`: the hashes of their keys, of few rows. No other call for one of them shares a request
    with it: each has its own version, and they keep their order.
    `deadline` is that of the first attempt, 0 when there was none; `original_ids`: what it was sent
    as before.
    """

    content: Content
    codec: RowCodec
    room: int
    call: Call
    delete: bool
    written: frozenset[int]
    deadline: float = 0.0
    original_ids: tuple[OriginalId, ...] = ()


@dataclasses.dataclass(eq=False)
class _Lane:
    """The batches of this client for one partition; one request is on its way at most.

    `busy`: one is, or the lane is moved.
    """

    partition: PartitionId
    hashes: HashRange
    limits: Limits
    sequence: int = 0
    waiting: deque[_Batch] = dataclasses.field(default_factory=deque)
    busy: bool = False


class Writes:
    """Numbers, sends and repeats the batches of one client; thread-safe."""

    def __init__(
        self,
        producer: Producer,
        *,
        dispatcher: Dispatcher,
        budget: Budget,
        settings: ClientSettings,
        gathering: Gathering,
        clock: Callable[[], float],
        on_ack: Callable[[PartitionId, float], None] | None,
    ) -> None:
        self._producer = producer
        self._dispatcher = dispatcher
        self._budget = budget
        self._settings = settings
        self._gathering = gathering
        self._clock = clock
        self._turns = dispatcher.turns()
        self._on_ack = on_ack
        self._lock = threading.Lock()
        self._lanes: dict[PartitionId, _Lane] = {}
        self._moving: list[_Lane] = []
        self._looked_at: Placement | None = None
        self._generation = 0
        self._mover = ThreadPoolExecutor(1, thread_name_prefix="rezone-move")

    def submit(self, codec: RowCodec, rows: batches.Rows, ended: Ended, *, delete: bool) -> None:
        """Cut a call's rows by partition and size and send them; InvalidRowError before any is.

        Errors of `Producer.open` before that, which the first call waits for.
        """
        self._producer.open()
        self._send(codec, self._cut(codec, delete=delete).alone(rows), ended, delete=delete)

    def submit_together(
        self, codec: RowCodec, calls: Sequence[tuple[batches.Rows, Ended]], *, delete: bool
    ) -> None:
        """Send calls of few rows in their order; each ends with its own errors."""
        self._producer.open()
        found = self._cut(codec, delete=delete).together([rows for rows, _ in calls])
        for parts, (_, ended) in zip(found, calls, strict=True):
            if isinstance(parts, Exception):
                ended(parts)
            else:
                self._send(codec, parts, ended, delete=delete)

    def _cut(self, codec: RowCodec, *, delete: bool) -> Cut:
        return Cut(codec, self._lines(), self._settings.request_bytes_max, keys=delete)

    def _send(
        self, codec: RowCodec, parts: Sequence[batches.Part], ended: Ended, *, delete: bool
    ) -> None:
        call = Call(max(1, len(parts)), ended)
        if not parts:
            call.add([])
        for index, part in enumerate(parts):
            content = Content(part.rows)
            try:
                room = self._budget.take(content.size)
            except OverloadedError as error:
                for _ in range(len(parts) - index):
                    call.add(error)
                break
            one = _Batch(
                content=content,
                codec=codec,
                room=room,
                call=call,
                delete=delete,
                written=_written(codec, part),
            )
            self._put(part.partition, one)

    def close(self) -> None:
        """End the thread that moves lanes; the dispatcher is closed before."""
        self._mover.shutdown(wait=True, cancel_futures=False)

    # --- lanes ------------------------------------------------------------------------------

    def _lines(self, after_generation: int = -1) -> batches.PartitionsOf:
        """Return behind whose batches rows stand: who serves them, or served them until lately.

        A lane whose partition is over, but which is not empty yet, keeps the rows of its range; of
        two that overlap the one of the earlier layout. Of lanes up to a generation nothing is
        counted: theirs are the rows that are moved.
        """
        with self._lock:
            placement = self._dispatcher.placement
            lanes = self._lanes.values() if placement is not self._looked_at else self._moving
            # Under one placement they only become fewer: most calls have none to look at.
            self._moving = [
                lane for lane in lanes if lane.busy and placement.is_over(lane.partition)
            ]
            self._looked_at = placement
            moving = [
                lane for lane in self._moving if generation_of(lane.partition) > after_generation
            ]
        moving.sort(key=lambda lane: lane.partition, reverse=True)
        return lambda hashes: _line_of(hashes, placement, moving)

    def _put(self, partition: PartitionId, batch: _Batch, after_generation: int = -1) -> None:
        """Put a batch behind its partition's others; cut it again if it is too late for that."""
        with self._lock:
            lane = self._open_lane(partition, batch.codec)
            if lane is not None:
                lane.waiting.append(batch)
                if lane.busy:
                    return
                lane.busy = True
        if lane is None:
            self._cut_again(batch, after_generation)
        else:
            self._gathering.begin(functools.partial(self._at_once, lane))

    def _open_lane(self, partition: PartitionId, codec: RowCodec) -> _Lane | None:
        """Return a partition's lane; None when it was re-sharded and has no batches any more."""
        placement = self._dispatcher.placement
        lane = self._lanes.get(partition)
        if placement.is_over(partition):
            return lane if lane is not None and lane.busy else None
        if placement.layout.generation != self._generation:
            self._generation = placement.layout.generation
            over = [p for p in self._lanes if placement.is_over(p) and not self._lanes[p].busy]
            for one in over:
                del self._lanes[one]
        if lane is None:
            # Not known: the zone was made again since the rows were cut. They will be refused.
            known = placement.knows(partition)
            hashes = placement.range_of(partition) if known else HashRange(0, 0)
            lane = self._lanes[partition] = _Lane(partition, hashes, Limits(self._settings, codec))
        return lane

    def _at_once(self, lane: _Lane) -> None:
        """Send the lane's next batch; nobody waits for one of many rows."""
        apart = _has_many(lane)
        self._send_next(lane, self._turns.apart() if apart else self._turns.begin(lane.partition))

    def _next(self, lane: _Lane) -> None:
        """Send the lane's next batch when it is its turn; many rows wait for none."""
        with self._lock:
            if not lane.waiting:
                lane.busy = False
                return
        if _has_many(lane):
            self._at_once(lane)
        else:
            self._turns.wait(lane.partition, functools.partial(self._send_next, lane))

    def _send_next(self, lane: _Lane, turn: Turn) -> None:
        """Send the lane's next batch, with those behind it that fit."""
        while True:
            with self._lock:
                if not lane.waiting:
                    lane.busy = False
                    break
                group = lane.limits.take(lane.waiting, _fits)
                lost = self._producer.lost
                if lost is None:
                    lane.sequence += 1
            # Without the lock: nobody else sends of a lane that is busy.
            if lost is None and self._dispatcher.submit(self._request(lane, group, turn)):
                return
            for batch in group:
                self._end(batch, _unsent(batch, lane.partition, lost or closed_error()))
        self._turns.end(turn)

    def _request(self, lane: _Lane, group: list[_Batch], turn: Turn) -> Request:
        producer, first, sequence = self._producer.opened, group[0], lane.sequence

        def message(opaque: int) -> Message:
            return WriteRequest(
                opaque=opaque,
                partition=lane.partition,
                producer_id=producer.producer_id,
                sequence=sequence,
                producer_epoch=producer.producer_epoch,
                delete=first.delete,
                original_ids=first.original_ids,
            )

        def done(outcome: Outcome) -> None:
            self._turns.end(turn)
            self._done(lane, group, request, outcome)

        request = Request(
            partition=lane.partition,
            message=message,
            body=joined(group, _schema_of(first)),
            done=done,
            shared=len(group) > 1,
            deadline=first.deadline,
        )
        return request

    def _done(self, lane: _Lane, group: list[_Batch], request: Request, outcome: Outcome) -> None:
        if isinstance(outcome, ReshardedError):
            self._refused_by_seal(lane, group, request, outcome)
            return
        if isinstance(outcome, FINAL_ERRORS):
            self._producer.lose(outcome)
        if _is_to_split(request, outcome):
            # The number is free: nothing was applied. They go again, fewer at a time.
            lane.sequence -= 1
            lane.limits.refused(len(group))
            with self._lock:
                lane.waiting.extendleft(reversed(group))
            self._next(lane)
            return
        lane.limits.answered()
        results = [self._result(batch, request, outcome) for batch in group]
        # A number that was surely not applied is free for the next batch: no gap.
        if isinstance(results[0], BaseException) and not isinstance(results[0], TimeoutError):
            lane.sequence -= 1
        self._next(lane)
        for batch, result in zip(group, results, strict=True):
            self._end(batch, result)

    def _end(self, batch: _Batch, result: PartitionWrite | Exception) -> None:
        self._budget.give(batch.room)
        batch.call.add(result)

    def _result(
        self, batch: _Batch, request: Request, outcome: Outcome
    ) -> PartitionWrite | Exception:
        if isinstance(outcome, RezoneError):
            refused = request.attempts == 1 and outcome.code in _REFUSALS
            if not batch.original_ids and (refused or not request.attempts):
                return outcome
            return _unknown(request.partition, request.attempts, outcome)
        message = outcome[0]
        assert isinstance(message, WriteResult)  # noqa: S101 - the node answers in kind
        if self._on_ack is not None:
            try:
                self._on_ack(request.partition, self._clock())
            except Exception:  # noqa: BLE001 - a dead reader thread would hang later requests
                _log.exception("on_ack failed")
        return PartitionWrite(
            partition=request.partition,
            rows=batch.content.rows,
            end_offset=message.end_offset,
            commit_time=message.commit_time,
            leader_epoch=message.leader_epoch,
        )

    # --- a lane is moved: its partition was re-sharded ---------------------------------------

    def _refused_by_seal(
        self, lane: _Lane, group: list[_Batch], request: Request, refusal: ReshardedError
    ) -> None:
        """Put batches back at the head of their lane, with the name they were sent under; move it.

        The name is that of the request: its digest is of the rows of all that shared it.
        """
        original_ids = group[0].original_ids
        if request.attempts and len(original_ids) == ORIGINAL_IDS_MAX:
            for batch in group:
                self._end(batch, _unknown(lane.partition, request.attempts, refusal))
        else:
            if request.attempts:
                # Whether an attempt before the refused one was applied the targets know.
                digest = digest_of(request.body, delete=group[0].delete)
                original_ids = (*original_ids, OriginalId(lane.partition, lane.sequence, digest))
                deadline = request.deadline
                group = [
                    dataclasses.replace(batch, original_ids=original_ids, deadline=deadline)
                    for batch in group
                ]
            with self._lock:
                lane.waiting.extendleft(reversed(group))
        self._move_later(lane)

    def _move_later(self, lane: _Lane) -> None:
        try:
            self._mover.submit(self._move, lane)
        except RuntimeError:
            self._next(lane)

    def _move(self, lane: _Lane) -> None:
        """Put the lane's batches behind those of whoever serves their rows now, in order."""
        while True:
            with self._lock:
                if not lane.waiting:
                    # Not before the last batch has its place: from here on rows go to the others.
                    lane.busy = False
                    del self._lanes[lane.partition]
                    return
                batch = lane.waiting.popleft()
            try:
                self._cut_again(batch, generation_of(lane.partition))
            except Exception as error:  # noqa: BLE001 - a call without an end would hang its caller
                _log.exception("a batch cannot be cut again")
                self._end(batch, error)

    def _cut_again(self, batch: _Batch, after_generation: int) -> None:
        """Send the rows of a batch whose partition is over by the present placement."""
        data = batch.content.batch(_schema_of(batch))
        parts = list(batches.by_partition(batch.codec, data, self._lines(after_generation)))
        batch.call.expect(len(parts) - 1)
        self._budget.give(batch.room)
        for part in parts:
            content = Content(part.rows)
            room = self._budget.exceed(content.size)
            one = dataclasses.replace(
                batch,
                content=content,
                room=room,
                written=_written(batch.codec, part),
            )
            self._put(part.partition, one, after_generation)


def _has_many(lane: _Lane) -> bool:
    """Whether the next batch of a lane has many rows; by who sends of it, and so takes them out."""
    return lane.waiting[0].content.rows > SHARING_ROWS_MAX


def _line_of(hashes: Hashes, placement: Placement, moving: Iterable[_Lane]) -> PartitionIds:
    found = placement.partitions_of(hashes)
    for lane in moving:
        start, end = np.uint64(lane.hashes.start), np.uint64(lane.hashes.end - 1)
        found[(hashes >= start) & (hashes <= end)] = lane.partition
    return found


def _schema_of(batch: _Batch) -> Any:
    return batch.codec.key_schema if batch.delete else batch.codec.arrow_schema


def _written(codec: RowCodec, part: batches.Part) -> frozenset[int]:
    if part.rows.num_rows > SHARING_ROWS_MAX:
        return frozenset()
    return frozenset(part.places_by(codec).hashes().tolist())


def _fits(first: _Batch, other: _Batch) -> bool:
    """Whether two batches may share a request: all but their rows is the same."""
    return (
        first.delete == other.delete
        and first.codec is other.codec
        and first.original_ids == other.original_ids
        and first.deadline == other.deadline
    )


def _is_to_split(request: Request, outcome: Outcome) -> bool:
    """Whether nothing of a shared request was applied, perhaps because of one of its calls."""
    return (
        request.shared
        and request.attempts == 1
        and isinstance(outcome, RezoneError)
        and outcome.code in _SPLITTING
    )


def _unsent(
    batch: _Batch, partition: PartitionId, error: RezoneError
) -> RezoneError | OutcomeUnknownError:
    """Return how a batch ends that is not sent any more."""
    return _unknown(partition, len(batch.original_ids), error) if batch.original_ids else error


def _unknown(partition: PartitionId, attempts: int, error: RezoneError) -> OutcomeUnknownError:
    unknown = OutcomeUnknownError(
        f"partition {partition}: after {attempts} attempts the outcome of a write is unknown; "
        f"the last error: {error}",
    )
    unknown.__cause__ = error
    return unknown
