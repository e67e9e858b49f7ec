"""The writes of one client: a lane per partition, each batch applied exactly once.

Per partition the batches are numbered and sent one at a time. A batch whose answer is lost is
sent again with the same number, which a node applies at most once. A batch that ended with
OutcomeUnknownError keeps its number taken: the next one takes a higher one, so a copy of it
still on the wire can be told from the new one.

When the zone's number of partitions changes (B-08), a node refuses a batch that was cut for the
old number, and it is cut again by the new routes. Each lane has a writer id of its own, and a
new one after such a change: a new partition inherits what its parents knew of writers, and one
lane's number taken for another's would be an acknowledged write that was never applied. At that
moment, and at no other, calls not waited for may overtake each other, and a batch whose first
answer was lost may be applied twice (the same rows, so the table is the same).
"""

import dataclasses
import logging
import threading
import uuid
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from rezone.client import batches
from rezone.client.calls import Budget, Call
from rezone.client.dispatch import Answer, Dispatcher, Request
from rezone.client.settings import ClientSettings, OutcomeUnknownError
from rezone.wire import rows
from rezone.wire.errors import ConflictError, OverloadedError, RezoneError
from rezone.wire.messages import Message, PartitionId, WriteRequest, WriteResult
from rezone.wire.rows import RowCodec

Outcome = Answer | RezoneError
_WRITERS = uuid.UUID("6c6f9c0e-6f0b-5d52-9a57-2f4d1f0c7a11")
_log = logging.getLogger(__name__)
_REFUSALS = frozenset({"InvalidRow", "LimitExceeded", "Forbidden"})
"""Errors that prove, as the answer to a first attempt, that nothing was applied."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartitionWrite:
    """One acknowledged request: its rows are on every in-sync replica's disk.

    `end_offset` is the partition's offset after its rows, `commit_time` microseconds since 1970,
    `leader_epoch` that of the leadership that acknowledged.
    """

    partition: PartitionId
    rows: int
    end_offset: int
    commit_time: int
    leader_epoch: int


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class _Batch:
    """One request of a lane: its rows, its room in the budget, the call it belongs to."""

    request: Request
    codec: RowCodec
    rows: int
    room: int
    call: Call
    delete: bool


@dataclasses.dataclass(eq=False)
class _Lane:
    """The batches of this writer for one partition of so many; one is on its way at most."""

    partition: PartitionId
    partitions: int
    writer_id: str
    sequence: int = 0
    waiting: deque[_Batch] = dataclasses.field(default_factory=deque)
    busy: bool = False


def writer_uuid(name: str) -> str:
    """Return the UUID that stands for a writer's name: itself when it is one."""
    try:
        return str(uuid.UUID(name))
    except ValueError:
        return str(uuid.uuid5(_WRITERS, name))


def lane_writer(writer_id: str, generation: int, partition: PartitionId) -> str:
    """Return a lane's writer id; `generation` counts changes of the number of partitions."""
    return str(uuid.uuid5(uuid.UUID(writer_id), f"{generation}/{partition}"))


class Writes:
    """Numbers, sends and repeats the batches of one writer; thread-safe."""

    def __init__(
        self,
        writer_id: str,
        *,
        dispatcher: Dispatcher,
        budget: Budget,
        settings: ClientSettings,
        clock: Callable[[], float],
        on_ack: Callable[[PartitionId, float], None] | None,
    ) -> None:
        self._writer_id = writer_id
        self._dispatcher = dispatcher
        self._budget = budget
        self._settings = settings
        self._clock = clock
        self._on_ack = on_ack
        self._lock = threading.Lock()
        self._lanes: dict[PartitionId, _Lane] = {}
        self._partitions = 0
        self._generation = -1
        self._cutter = ThreadPoolExecutor(1, thread_name_prefix="rezone-cut")

    def submit(
        self, codec: RowCodec, batch: Any, partitions: int, *, delete: bool
    ) -> Future[list[PartitionWrite]]:
        """Cut a batch by partition and size and send it; InvalidRowError before anything is."""
        parts = batches.checked_parts(
            codec,
            batch,
            partitions,
            delete=delete,
            bytes_max=self._settings.request_bytes_max,
        )
        call = Call(max(1, len(parts)))
        if not parts:
            call.add([])
        for index, (partition, part) in enumerate(parts):
            body = rows.to_ipc(part)
            try:
                room = self._budget.take(len(body))
            except OverloadedError as error:
                for _ in range(len(parts) - index):
                    call.add(error)
                break
            lane = self._lane(partitions, partition)
            self._enqueue(
                lane,
                _Batch(
                    request=self._request(lane, body, delete=delete),
                    codec=codec,
                    rows=part.num_rows,
                    room=room,
                    call=call,
                    delete=delete,
                ),
            )
        return call.future

    def close(self) -> None:
        """End the thread that cuts again; the dispatcher is closed before."""
        self._cutter.shutdown(wait=True, cancel_futures=False)

    def _lane(self, partitions: int, partition: PartitionId) -> _Lane:
        with self._lock:
            if partitions != self._partitions:
                # Batches of the old lanes are still on their way; they keep their lanes alive.
                self._generation += 1
                self._partitions = partitions
                self._lanes = {}
            lane = self._lanes.get(partition)
            if lane is None:
                writer_id = lane_writer(self._writer_id, self._generation, partition)
                lane = self._lanes[partition] = _Lane(partition, partitions, writer_id)
            return lane

    @staticmethod
    def _request(lane: _Lane, body: bytes, *, delete: bool) -> Request:
        def message(opaque: int) -> Message:
            return WriteRequest(
                opaque=opaque,
                partition=lane.partition,
                writer_id=lane.writer_id,
                # The lane's number stands still while one of its batches is on its way.
                sequence=lane.sequence,
                delete=delete,
            )

        return Request(partition=lane.partition, message=message, body=body, done=_not_yet)

    def _enqueue(self, lane: _Lane, batch: _Batch) -> None:
        batch.request.done = lambda outcome: self._done(lane, batch, outcome)
        with self._lock:
            lane.waiting.append(batch)
            if lane.busy:
                return
            lane.busy = True
        self._next(lane, sequence=lane.sequence)

    def _next(self, lane: _Lane, *, sequence: int) -> None:
        """Send the lane's next batch; `sequence` is the last number taken."""
        while True:
            with self._lock:
                lane.sequence = sequence
                if not lane.waiting:
                    lane.busy = False
                    return
                lane.sequence += 1
                batch = lane.waiting.popleft()
            if self._dispatcher.submit(batch.request):
                return
            self._budget.give(batch.room)
            batch.call.add(RezoneError("the client is closed"))

    def _done(self, lane: _Lane, batch: _Batch, outcome: Outcome) -> None:
        self._budget.give(batch.room)
        stale = isinstance(outcome, ConflictError) and "partition" in outcome.details
        if stale:
            self._next(lane, sequence=lane.sequence - (batch.request.attempts == 1))
            self._cut_later(lane, batch, outcome)
            return
        result = self._result(batch, outcome)
        # A number that was surely not applied is free for the next batch: no gap.
        unused = isinstance(result, BaseException) and not isinstance(result, TimeoutError)
        self._next(lane, sequence=lane.sequence - unused)
        batch.call.add(result)

    def _result(self, batch: _Batch, outcome: Outcome) -> PartitionWrite | Exception:
        request = batch.request
        if isinstance(outcome, RezoneError):
            refused = request.attempts == 1 and outcome.code in _REFUSALS
            if refused or not request.attempts:
                return outcome
            unknown = OutcomeUnknownError(
                f"partition {request.partition}: after {request.attempts} attempts the outcome "
                f"of a write is unknown; the last error: {outcome}",
            )
            unknown.__cause__ = outcome
            return unknown
        message = outcome[0]
        assert isinstance(message, WriteResult)  # noqa: S101 - the node answers in kind
        if self._on_ack is not None:
            try:
                self._on_ack(request.partition, self._clock())
            except Exception:  # noqa: BLE001 - a dead reader thread would hang later requests
                _log.exception("on_ack failed")
        return PartitionWrite(
            partition=request.partition,
            rows=batch.rows,
            end_offset=message.end_offset,
            commit_time=message.commit_time,
            leader_epoch=message.leader_epoch,
        )

    # --- the number of partitions has changed -----------------------------------------------

    def _cut_later(self, lane: _Lane, batch: _Batch, outcome: Outcome) -> None:
        assert isinstance(outcome, ConflictError)  # noqa: S101 - the only caller checks it
        try:
            self._cutter.submit(self._cut_again, lane, batch, outcome)
        except RuntimeError:
            batch.call.add(RezoneError("the client is closed"))

    def _cut_again(self, lane: _Lane, batch: _Batch, refusal: ConflictError) -> None:
        """Wait for routes with another number of partitions, then send the rows by them."""
        attempt = 0
        try:
            while (partitions := self._partitions_now()) == lane.partitions:
                attempt += 1
                if self._clock() >= batch.request.deadline:
                    raise refusal
                self._dispatcher.pause(attempt)
            schema = batch.codec.key_schema if batch.delete else batch.codec.arrow_schema
            data = rows.from_ipc(batch.request.body, schema)
            again = self.submit(batch.codec, data, partitions, delete=batch.delete)
        except RezoneError as error:
            batch.call.add(error)
            return
        again.add_done_callback(lambda f: batch.call.add(f.exception() or f.result()))

    def _partitions_now(self) -> int:
        return self._dispatcher.fetch_routes().config.partitions


def _not_yet(_outcome: Outcome) -> None:
    raise AssertionError("a request was sent before its lane took it")
