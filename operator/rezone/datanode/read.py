"""Reads of one partition: by key, at the newest committed state or as of a time; when any may be.

The newest state is the leader's to tell, and only when nobody else can have changed it: while
every in-sync replica has promised not to lead (`lease`), or has said so since the read came; and
when everything the leader started with is committed. As of a time, any replica may answer that
has applied all committed rows up to it.

Concurrency: scans (`scan`) and digests wait in their callers' threads, on the partition's
`changed`. A read by key that cannot be answered at once goes into the partition's `ReadQueue`, so
that other requests of its channel do not wait for it; the partition's job answers it. Both wait at
most `hold_ms_max`.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from rezone.datanode.age import age_ms_of, is_comparable
from rezone.datanode.expiry import kept_until
from rezone.datanode.serving import Served
from rezone.datanode.write import require_inside
from rezone.storage.budget import Budget
from rezone.storage.intents import overlaid
from rezone.wire.bodies import from_ipc
from rezone.wire.encoded_rows import encoded_rows
from rezone.wire.errors import CorruptionError, NotReadyError, OverloadedError, RezoneError
from rezone.wire.messages import OwnWrites, ReadRequest, Role
from rezone.wire.rows import RowCodec

if TYPE_CHECKING:
    from rezone.datanode.partition import Partition
    from rezone.datanode.protocol import Leadership

_READ_BYTES: Final = 2_000
"""What a waiting read takes beside its keys: request, answer, deadline, what it waits for."""
_ROW_ID_BYTES: Final = 100

Readable = Callable[[], bool]
"""Whether a read may be answered now; NotLeaderError when it will not be here. Under the lock."""


def readable(partition: "Partition", as_of: int | None, served: Served = lambda: True) -> Readable:
    """Return when a read that comes now, of what is `served`, may be answered; under the lock.

    VersionsExpiredError for a time that is too long ago.
    """
    since = partition.clock.monotonic()
    if as_of is None:
        return lambda: _newest_is_here(partition, since) and served()
    past = _PastRead(partition, as_of, since)
    past.require_kept()
    if as_of > partition.positions.readable_time:
        partition.following.apply_now()
    return lambda: past.may_be_answered() and served()


def _promises(partition: "Partition", as_of: int, since: float) -> bool:
    """Promise that no write will get `as_of` or an earlier time, if this replica may do that."""
    state = partition.leading.state
    return (
        state is not None
        and _is_newest(partition, since)
        and partition.closing.promise_at(as_of, state)
    )


class _PastRead:
    """A read as of a time: at any replica that has applied so far, or at the leader.

    A leader can also say that nothing more will come at or below that time: from then on no write
    gets such a time, of this leader or of one that comes later. So those that could lead must
    have been told first (`LeaseRequest.time`).
    """

    def __init__(self, partition: "Partition", as_of: int, since: float) -> None:
        self._partition = partition
        self._as_of = as_of
        self._since = since
        self._end: int | None = None
        self._is_kept = False
        self._leadership: Leadership | None = None

    def require_kept(self) -> bool:
        """Whether the versions of that time are kept; False while the node does not know the time.

        VersionsExpiredError when they are not.
        """
        if not self._is_kept and self._partition.clock.gives:
            kept_until(self._partition, self._as_of).require(self._partition)
            self._is_kept = True
        return self._is_kept

    def may_be_answered(self) -> bool:
        """Whether everything up to that time is applied here, and is all there will ever be."""
        partition = self._partition
        if not self.require_kept():
            return False
        if self._as_of <= partition.positions.readable_time:
            return True
        seal = partition.store.seal
        if seal is not None and self._as_of > seal.commit_time and partition.sealing.done:
            raise partition.resharded()
        if self._leadership is None or partition.leading.state is not self._leadership:
            self._end = None
            if _promises(partition, self._as_of, self._since):
                self._end, self._leadership = partition.store.log_end, partition.leading.state
        return self._end is not None and (
            min(partition.store.applied, partition.positions.committed) >= self._end
        )


def wait_readable(partition: "Partition", as_of: int | None, served: Served = lambda: True) -> None:
    """Return when a read is right; NotLeaderError or NotReadyError when it will not soon be."""
    deadline = partition.clock.monotonic() + partition.settings.hold_ms_max / 1000
    with partition.changed:
        may_answer = readable(partition, as_of, served)
        if not may_answer():
            partition.leading.ask_leases()
        while not may_answer():
            left = deadline - partition.clock.monotonic()
            if left <= 0 or partition.closed or partition.failure:
                raise _cannot_answer(partition)
            partition.changed.wait(left)


def wait_applied(partition: "Partition", offset: int) -> None:
    """Return when all below an offset is committed and applied; NotReadyError when not soon."""
    seconds = partition.settings.hold_ms_max / 1000
    with partition.changed:
        positions, store = partition.positions, partition.store
        partition.changed.wait_for(
            lambda: min(positions.committed, store.applied) >= offset or partition.closed, seconds
        )
        if min(positions.committed, store.applied) < offset:
            raise _cannot_answer(partition)


def _cannot_answer(partition: "Partition") -> NotReadyError:
    return NotReadyError(
        f"partition {partition.partition_id} cannot answer this read yet; retry",
        readable_time=partition.positions.readable_time,
    )


def _is_newest(partition: "Partition", since: float) -> bool:
    """Whether nobody can have committed anything elsewhere when a read came at `since`."""
    state = partition.leading.state
    if state is None or not state.serving or partition.takeover.blocks_writes:
        return False
    if partition.store.seal is not None:
        return False
    return state.vouched(partition.clock.monotonic(), since)


def _newest_is_here(partition: "Partition", since: float) -> bool:
    if partition.sealing.done:
        raise partition.resharded()
    if partition.role is not Role.LEADER and not partition.takeover.eager:
        raise partition.not_leader()
    # What the leadership began with must be applied, and nothing uncommitted may be seen.
    return _is_newest(partition, since) and partition.store.applied >= partition.positions.committed


class _WaitingRead(NamedTuple):
    may_answer: Readable
    answer: Callable[[RezoneError | None], None]
    deadline: float
    size: int


class ReadQueue:
    """The reads of one partition that wait until they may be answered, in the order they came."""

    def __init__(self, partition: "Partition", node_budget: Budget) -> None:
        self._partition = partition
        self._budget = node_budget
        self._waiting: deque[_WaitingRead] = deque()

    def submit(
        self,
        as_of: int | None,
        answer: Callable[[RezoneError | None], None],
        served: Served = lambda: True,
        held_bytes: Callable[[], int] = lambda: _READ_BYTES,
    ) -> None:
        """Have `answer(None)` called once the read may be answered, now or soon; else the error.

        `held_bytes` is asked for what it holds in memory when it has to wait. NotLeaderError at
        once where another replica leads, ReshardedError where others serve, OverloadedError when
        too many wait.
        """
        partition = self._partition
        with partition.lock:
            may_answer = readable(partition, as_of, served)
            if not may_answer():
                self._hold(may_answer, answer, held_bytes())
                return
        answer(None)

    def _hold(
        self, may_answer: Readable, answer: Callable[[RezoneError | None], None], size: int
    ) -> None:
        partition = self._partition
        if len(self._waiting) >= partition.settings.reads_held_max:
            raise OverloadedError("too many reads wait for this partition; retry later")
        self._budget.take(size)
        deadline = partition.clock.monotonic() + partition.settings.hold_ms_max / 1000
        self._waiting.append(_WaitingRead(may_answer, answer, deadline, size))
        partition.look_again(deadline)
        partition.leading.ask_leases()
        partition.wake()

    def step(self) -> None:
        """Answer what may be answered, and what has waited for too long; without the lock."""
        partition = self._partition
        with partition.lock:
            if not self._waiting:
                return
            over = partition.closed or bool(partition.failure)
            now = partition.clock.monotonic()
            taken, self._waiting = self._waiting, deque()
            outcomes: list[tuple[_WaitingRead, RezoneError | None]] = []
            for read in taken:
                try:
                    if read.may_answer():
                        outcomes.append((read, None))
                    elif over or read.deadline <= now:
                        outcomes.append((read, _cannot_answer(partition)))
                    else:
                        self._waiting.append(read)
                except RezoneError as error:
                    outcomes.append((read, error))
        for read, outcome in outcomes:
            self._budget.give(read.size)
            read.answer(outcome)

    @property
    def waits(self) -> bool:
        """Whether a read waits; under the lock."""
        return bool(self._waiting)

    def look(self) -> None:
        """Have the job see what may be answered by now, after news of times; under the lock."""
        if self._waiting:
            self._partition.wake()

    def tick(self, now: float) -> None:
        """Have the job look after reads that have waited for too long; under the lock."""
        if self._waiting and self._waiting[0].deadline <= now:
            self._partition.wake()
        elif self._waiting:
            self._partition.look_again(self._waiting[0].deadline)


class KeyRead(NamedTuple):
    """A checked read by key: the keys, and the row ids they stand at; `own`: of a transaction."""

    keys: Any
    row_ids: list[bytes]
    as_of: int | None
    own: OwnWrites | None = None

    def held_bytes(self) -> int:
        """Give about what it takes in memory."""
        return _READ_BYTES + int(self.keys.nbytes) + len(self.row_ids) * _ROW_ID_BYTES

    @property
    def answered_as_of(self) -> int | None:
        """When the read may be answered: a transaction's as the newest state, by the leader."""
        return None if self.own is not None else self.as_of

    def told(self, partition: "Partition") -> tuple[int, int]:
        """Return (time, age in ms) of an answer that may be given now."""
        if self.own is not None:
            return self.own.times.read_time, 0
        if self.as_of is None:
            return partition.store.applied_time, 0
        return self.as_of, age_ms_of(partition, self.as_of)


def prepare_read(
    partition: "Partition", request: ReadRequest, body: memoryview, codec: RowCodec
) -> KeyRead:
    """Check a read by key; InvalidRowError when the keys are none, ConflictError as for writes."""
    batch = from_ipc(body, codec.key_schema)
    codec.check(batch, delete=True)
    encoded = encoded_rows(codec, batch)
    as_of = request.as_of
    if request.max_age_ms is not None and as_of is None:
        as_of = _time_within(partition, request.max_age_ms)
    if batch.num_rows:
        bounds = encoded.hash_bounds()
        require_inside(*bounds, partition.hash_range, partition.partition_id)
    return KeyRead(encoded.keys(), encoded.row_id_list(), as_of, request.own)


def _time_within(partition: "Partition", max_age_ms: int) -> int:
    """Return the newest time at which this replica can answer a read that may be so old.

    A leader closes a time for it if need be. NotReadyError when a follower is too far behind, or
    cannot tell how far.
    """
    if not is_comparable(partition):
        raise NotReadyError("this node's time has not been compared with any other's yet")
    with partition.lock:
        age_ms = min(max_age_ms, partition.config.version_retention_seconds * 1000)
        oldest = partition.clock.time() - age_ms * 1000
        if partition.positions.readable_time >= oldest:
            return partition.positions.readable_time
        if partition.sealing.done:
            raise partition.resharded()
        if partition.leads:
            return oldest
    partition.following.apply_now()
    raise NotReadyError(
        f"this replica of partition {partition.partition_id} is too far behind; ask its leader",
        readable_time=partition.positions.readable_time,
    )


@contextlib.contextmanager
def reading(partition: "Partition", as_of: int | None) -> Iterator[None]:
    """Refuse with NotReadyError what was read of damaged rows, or while they were replaced."""
    copies = partition.copies
    try:
        yield
    except CorruptionError as error:
        raise NotReadyError(
            f"partition {partition.partition_id} is damaged here; retry", damaged=1
        ) from error
    stands = as_of is None or partition.leads or as_of <= partition.positions.readable_time
    if not stands or partition.copies != copies:
        raise NotReadyError(f"partition {partition.partition_id} is copied anew; retry")


def read_keys(partition: "Partition", read: KeyRead, codec: RowCodec) -> Any:
    """Return the typed batch of the rows found; only when the read may be answered."""
    with reading(partition, None if read.own is not None else read.as_of):
        if read.own is None:
            values = partition.store.reader.newest(read.row_ids, read.as_of)
        else:
            row_ids = pa.array(read.row_ids, pa.binary())
            with partition.lock:
                partition.serving.require_since(row_ids, read.own.times.read_time)
            values = own_values(partition, read.row_ids, read.own)
    found = [index for index, value in enumerate(values) if value is not None]
    return codec.decode(
        read.keys.take(pa.array(found, pa.int64())),
        pa.array([values[i] for i in found], pa.binary()),
    )


def own_values(partition: "Partition", row_ids: list[bytes], own: OwnWrites) -> list[bytes | None]:
    """Return rows as a transaction sees them; TransactionEndedError when it is over."""
    transaction = partition.transacting.require_open(own)
    values = partition.store.reader.newest(row_ids, own.times.read_time)
    if transaction is None:
        return values
    return overlaid(row_ids, values, partition.store.reader.intents(transaction, row_ids))
