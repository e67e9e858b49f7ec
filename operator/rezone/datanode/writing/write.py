"""A write on its way: checked and encoded first, then appended by the leader, then answered.

`prepare` is pure and runs in the reading thread of the client's channel, outside of all locks.
`WriteIntake` belongs to one partition and is called under the partition's lock; every reply is
called exactly once and never blocks.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from rezone.datanode.commit.insync import Outcome, PendingWrite, Reply
from rezone.datanode.core.write_plans import Earlier
from rezone.datanode.scheduling.error_log import UNEXPECTED
from rezone.datanode.scheduling.traced import APPEND, REPLICATE
from rezone.datanode.state.replica_state import ReplicaState
from rezone.datanode.writing.arrivals import Arrival, Arrivals, EntryGroup
from rezone.datanode.writing.change import Change, PreparedRows
from rezone.datanode.writing.owner import NOBODY, Owner
from rezone.storage.budget import Budget
from rezone.storage.engines.base import TIME_MAX
from rezone.storage.log.entry import (
    OP_DELETE,
    OP_UPSERT,
    PRODUCER_EPOCH_MAX,
    ROWS_SCHEMA,
    SEQUENCE_MAX,
    EntryKind,
    ProducerBatch,
    build_entry,
)
from rezone.wire.codec.bodies import from_ipc
from rezone.wire.codec.encoded_rows import encoded_rows
from rezone.wire.codec.producers import digest_of
from rezone.wire.codec.rows import RowCodec
from rezone.wire.errors import (
    ConflictError,
    InvalidRowError,
    LimitExceededError,
    NotReadyError,
    ProducerFencedError,
    RezoneError,
    TransactionEndedError,
)
from rezone.wire.messages import (
    ORIGINAL_IDS_MAX,
    TraceContext,
    TransactionOutcome,
    WriteRequest,
    WriteResult,
)

ENTRY_OVERHEAD_BYTES = 512

_FINAL = (ConflictError, TransactionEndedError)
"""Refusals by what is in a leader's log, after which a client does not ask another one.

Not conflicts: who is told of one begins again, with whoever leads by then.
"""


class NewEntry(NamedTuple):
    """An entry to append, unless its commit time would be before `since` or after `until`.

    `alone`: it is in the log before anything else is planned, which goes by what it changes.
    """

    rows: Any
    size: int
    batch: ProducerBatch
    kind: EntryKind = EntryKind.PLAIN
    since: int = 0
    until: int = TIME_MAX
    alone: bool = True


def prepare(
    request: WriteRequest,
    body: memoryview,
    codec: RowCodec,
    hash_range: tuple[int, int],
    owner: Owner = NOBODY,
) -> PreparedRows:
    """Check a write whole and encode it; of rows with the same key the last one stays.

    InvalidRowError when the batch breaks the schema or a limit; ConflictError when a key is
    not the partition's, which means that the client counts other partitions than the node;
    LimitExceededError when it was sent to too many partitions before.
    """
    if len(request.original_ids) > ORIGINAL_IDS_MAX:
        raise LimitExceededError(f"a write with more than {ORIGINAL_IDS_MAX} original ids")
    if not (
        0 <= request.sequence <= SEQUENCE_MAX and 0 <= request.producer_epoch <= PRODUCER_EPOCH_MAX
    ):
        raise InvalidRowError("a sequence or a producer's epoch is out of its range")
    batch = from_ipc(body, codec.key_schema if request.delete else codec.arrow_schema)
    codec.check(batch, delete=request.delete)
    if batch.num_rows == 0:
        raise InvalidRowError("the batch has no rows")
    rows = _entry_rows(request, batch, codec, hash_range)
    size = rows.get_total_buffer_size() + ENTRY_OVERHEAD_BYTES
    return PreparedRows(rows, size, digest=digest_of(body, delete=request.delete), owner=owner)


def _entry_rows(
    request: WriteRequest, batch: Any, codec: RowCodec, hash_range: tuple[int, int]
) -> pa.RecordBatch:
    """Encode checked rows as a log entry holds them."""
    count = batch.num_rows
    encoded = encoded_rows(codec, batch)
    require_inside(*encoded.hash_bounds(), hash_range, request.partition)
    ids = encoded.row_ids()
    values = _no_values(count) if request.delete else encoded.values()
    ops = bytes([OP_DELETE if request.delete else OP_UPSERT]) * count
    op_array = pa.Array.from_buffers(pa.uint8(), count, [None, pa.py_buffer(ops)])
    rows = pa.RecordBatch.from_arrays([ids, op_array, values], schema=ROWS_SCHEMA)
    if encoded.may_repeat():
        last = {row_id: index for index, row_id in enumerate(ids.to_pylist())}
        if len(last) < count:
            rows = rows.take(pa.array(sorted(last.values())))
    return rows


def _no_values(count: int) -> Any:
    offsets = pa.py_buffer(bytes(4 * (count + 1)))
    return pa.Array.from_buffers(pa.binary(), count, [None, offsets, pa.py_buffer(b"")])


def require_inside(low: int, high: int, hash_range: tuple[int, int], partition: int) -> None:
    """Refuse keys, of these lowest and highest hashes, outside of the partition's range.

    With ConflictError.
    """
    start, end = hash_range
    if low < start or high >= end:
        raise ConflictError(
            f"a key does not belong to partition {partition}: stale partition count; "
            "fetch the routes again",
            partition=partition,
        )


@dataclass(slots=True)
class HeldWrite:
    """A write that arrived while it was not certain who takes it."""

    request: Change
    prepared: PreparedRows
    reply: Reply
    deadline: float


Planned = tuple[Earlier | NewEntry, Reply]
Plan = Callable[[Change, PreparedRows, Reply], Planned | None]
"""Says what becomes of a write, and how that is told; None when it is told otherwise."""

OnceNewest = Callable[[Callable[[RezoneError | None], None]], None]
"""Calls back once it is certain that this replica still leads, or with the error of a read."""


class WriteIntake:
    """The writes of one partition that are not answered yet; guarded by the partition's lock.

    `budget` has the bytes of all of them; `answered` counts those that were committed and answered,
    `answered_at` is when the last was (monotonic).
    """

    def __init__(
        self,
        replica: ReplicaState,
        node_budget: Budget,
        plan: Plan,
        must_wait: Callable[[Change, PreparedRows], bool],
        once_newest: OnceNewest,
    ) -> None:
        self._replica = replica
        self._node_budget = node_budget
        self._plan = plan
        self._must_wait = must_wait
        self._once_newest = once_newest
        self.budget = Budget(
            replica.settings.pending_bytes_partition_max,
            f"pending writes of partition {replica.partition_id}",
        )
        self.arrivals = Arrivals(self.budget, node_budget)
        self._group = EntryGroup()
        self._grouping = False
        self._pending: deque[PendingWrite] = deque()
        self._held: deque[HeldWrite] = deque()
        self.answered = 0
        self.answered_at = float("-inf")

    @property
    def unanswered(self) -> bool:
        """Whether an appended write waits for its answer."""
        return bool(self._pending)

    def shares(self, request: Change) -> bool:
        """Whether a write gains nothing by an append of its own; any thread may ask.

        It is a plain one, and others are not answered yet: the first one goes to the followers at
        once, whatever the job waits for.
        """
        plain = isinstance(request, WriteRequest) and request.transaction is None
        return plain and self.unanswered

    def hold(self, request: Change, prepared: PreparedRows, reply: Reply) -> None:
        """Keep a write until it is known who takes it; OverloadedError at the limit."""
        self._take(prepared.size)
        settings, now = self._replica.settings, self._replica.clock.monotonic()
        deadline = now + settings.hold_ms_max / 1000
        self._held.append(HeldWrite(request, prepared, reply, deadline))
        self._replica.look_again(deadline)

    def append_arrivals(self, take: Callable[[Arrival], None]) -> None:
        """Have each arrival taken (`take`) and append their entries together; under the lock.

        Each is refused by itself.
        """
        arrivals = self.arrivals.take()
        self._grouping = True
        try:
            for arrival in arrivals:
                try:
                    take(arrival)
                except Exception as error:  # noqa: BLE001 - told with its trace, and to the client
                    self._replica.answer(arrival.reply, _refusal(error))
        finally:
            self._flush()
            self._grouping = False

    def _flush(self) -> None:
        """Append the entries of the group; all of them are refused where that fails."""
        if not self._group:
            return
        raw, writes = self._group.take()
        try:
            self._replica.append(raw)
        except Exception as error:  # noqa: BLE001 - told with its trace, and to the clients
            refusal = _refusal(error)
            for write in writes:
                self._give(write.size)
                self._replica.answer(write.reply, refusal)
        else:
            self._pending.extend(writes)

    def _make_room(self, request: Change, prepared: PreparedRows) -> None:
        """Append the group before a request is planned that depends on an entry in it."""
        if not self._group:
            return
        if (
            not isinstance(request, WriteRequest)
            or request.transaction is not None
            or self._group.has(prepared.owner.key("producer_id", request.producer_id))
        ):
            self._flush()

    def append(self, request: Change, prepared: PreparedRows, reply: Reply) -> None:
        """Append a write to the leader's log, or recognise it as a repeat.

        What a producer is refused says `producing`, a transaction `transacting`; RowLockedError for
        a row of an open transaction.
        """
        if request.trace is not None:
            self._note_step(request.trace, APPEND)
        try:
            self._make_room(request, prepared)
            planned = self._plan(request, prepared, reply)
        except _FINAL as refusal:
            if self._replica.is_sealed:
                raise  # no successor takes anything
            # A leader that was replaced does not know what its successor has taken: its word counts
            # as what is read at it does.
            self._once_newest(_refusing(refusal, reply))
            return
        except ProducerFencedError as refusal:
            if self._replica.is_sealed:
                raise
            # An epoch that is rolled back would be told: who knows of it has opened above it, and
            # is fenced by a late copy of that opening once the epoch is given to itself.
            fenced = _fencing(refusal, reply)
            self._once_committed(self._replica.store.log_end, request.opaque, fenced)
            return
        if planned is None:
            return
        plan, reply = planned
        if isinstance(plan, Earlier):
            self._once_committed(plan.end_offset, request.opaque, reply, plan.commit_time)
        else:
            self.append_entry(plan, request.opaque, reply)
        if request.trace is not None:
            self._note_step(request.trace, REPLICATE)

    def _note_step(self, context: TraceContext, name: str) -> None:
        if self._replica.services.tracer is not None:
            self._replica.services.tracer.step(context, name)

    def append_entry(self, plan: NewEntry, opaque: int, reply: Reply) -> None:
        """Append an entry to the leader's log, to be answered when it is committed."""
        replica = self._replica
        state = replica.require_leadership()
        if replica.is_sealed:
            raise replica.resharded()
        state.require_open()
        state.require_enough(replica.config.min_in_sync_replicas)
        self._take(plan.size)
        group, store = self._group, replica.store
        base_offset = group.last.end_offset if group else store.log_end
        last_time = group.last.commit_time if group else store.last_commit_time
        try:
            commit_time = self._next_time(plan, last_time)
            entry = build_entry(
                plan.rows,
                leader_epoch=state.state.leader_epoch,
                base_offset=base_offset,
                commit_time=commit_time,
                batch=plan.batch,
                kind=plan.kind,
            )
            end_offset = base_offset + plan.rows.num_rows
            write = PendingWrite(end_offset, commit_time, opaque, plan.size, reply)
            if not self._grouping:
                replica.append(entry)
        except BaseException:
            self._give(plan.size)
            raise
        if not self._grouping:
            self._pending.append(write)
            return
        group.add(entry, write, plan.batch.producer_id)
        if plan.alone or group.full:
            self._flush()

    def _next_time(self, plan: NewEntry, last_time: int) -> int:
        """Return the commit time of a write behind one of `last_time`, if it may have that."""
        replica = self._replica
        now = replica.clock.time()
        commit_time = replica.write_clock.next_time(now, max(last_time, replica.readable_from))
        if commit_time < plan.since:
            raise NotReadyError("this leader's clock is behind the one before it; retry")
        if commit_time > plan.until:
            raise TransactionEndedError(
                "the transaction is too old to begin to write",
                outcome=TransactionOutcome.UNKNOWN.value,
            )
        return commit_time

    def answer_committed(self, committed: int) -> None:
        """Answer the writes that are on every in-sync replica's disk."""
        before = self.answered
        while self._pending and self._pending[0].end_offset <= committed:
            write = self._pending.popleft()
            self._give(write.size)
            result = WriteResult(
                opaque=write.opaque,
                end_offset=write.end_offset,
                commit_time=write.commit_time,
                leader_epoch=self._replica.leader_epoch,
            )
            self._replica.answer(write.reply, result)
            self.answered += 1
        if self.answered > before:
            self.answered_at = self._replica.clock.monotonic()

    def fail_all(self, error: RezoneError) -> None:
        """Answer everything that is pending, held or just came; the outcome is unknown."""
        for arrival in self.arrivals.take():
            self._replica.answer(arrival.reply, error)
        while self._pending:
            write = self._pending.popleft()
            self._give(write.size)
            self._replica.answer(write.reply, error)
        self.fail_held(error)

    def fail_held(self, error: RezoneError, *, until: float = float("inf")) -> None:
        """Answer what is held, or of it what waits no longer than `until`, with an error."""
        while self._held and self._held[0].deadline <= until:
            held = self._held.popleft()
            self._give(held.prepared.size)
            self._replica.answer(held.reply, error)

    def tick(self, error: RezoneError, now: float) -> None:
        """Answer what was held for too long."""
        self.fail_held(error, until=now)
        if self._held:
            self._replica.look_again(self._held[0].deadline)

    def release(self) -> None:
        """Append what was held and has to wait no more."""
        waiting, self._held = self._held, deque()
        for held in waiting:
            if self._must_wait(held.request, held.prepared):
                self._held.append(held)
                continue
            self._give(held.prepared.size)
            try:
                self.append(held.request, held.prepared, held.reply)
            except RezoneError as error:
                self._replica.answer(held.reply, error)
            except OSError as error:
                self._replica.answer(
                    held.reply, NotReadyError(f"the log cannot be written: {error}")
                )
        if len(self._held) < len(waiting):
            self._replica.wake()

    def _once_committed(
        self, end_offset: int, opaque: int, reply: Reply, commit_time: int = 0
    ) -> None:
        """Answer by what the log has, once that is committed; a repeat as the first time."""
        if end_offset <= self._replica.positions.committed:
            result = WriteResult(
                opaque=opaque,
                end_offset=end_offset,
                commit_time=commit_time,
                leader_epoch=self._replica.leader_epoch,
            )
            self._replica.answer(reply, result)
            return
        self._take(ENTRY_OVERHEAD_BYTES)
        waiting = PendingWrite(end_offset, commit_time, opaque, ENTRY_OVERHEAD_BYTES, reply)
        # The list is in the order of offsets; what waits belongs to one of the last few.
        index = len(self._pending)
        while index and self._pending[index - 1].end_offset > end_offset:
            index -= 1
        self._pending.insert(index, waiting)

    def _take(self, size: int) -> None:
        self.budget.take(size)
        try:
            self._node_budget.take(size)
        except RezoneError:
            self.budget.give(size)
            raise

    def _give(self, size: int) -> None:
        self.budget.give(size)
        self._node_budget.give(size)


def _refusal(error: Exception) -> RezoneError:
    """Return how a write is refused that could not be appended; within the handler of the error."""
    if isinstance(error, RezoneError):
        return error
    if isinstance(error, OSError):
        return NotReadyError(f"the log cannot be written: {error}")
    UNEXPECTED.failed("write")
    return RezoneError("internal error; the data node's log says more")


def _refusing(refusal: RezoneError, reply: Reply) -> Callable[[RezoneError | None], None]:
    """Return what refuses a write once its leader is known to lead still."""

    def answer(error: RezoneError | None) -> None:
        reply(error or refusal)

    return answer


def _fencing(refusal: ProducerFencedError, reply: Reply) -> Reply:
    """Return what refuses a producer once it is committed that another one has its name."""

    def answer(outcome: Outcome) -> None:
        reply(outcome if isinstance(outcome, RezoneError) else refusal)

    return answer
