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
from typing import Any, Final, NamedTuple

import pyarrow as pa

from rezone.datanode.commit.protocol import Leadership
from rezone.datanode.state.age import age_ms_of, is_comparable
from rezone.datanode.state.expiry import kept_until
from rezone.datanode.state.replica_state import ReplicaState
from rezone.datanode.state.serving import Served
from rezone.datanode.writing.transacting import require_open
from rezone.datanode.writing.write import require_inside
from rezone.storage.budget import Budget
from rezone.storage.transactions.intents import overlaid
from rezone.wire.codec.bodies import from_ipc
from rezone.wire.codec.encoded_rows import encoded_rows
from rezone.wire.codec.rows import ROW_ID_PREFIX_BYTES, RowCodec
from rezone.wire.errors import CorruptionError, NotReadyError, OverloadedError, RezoneError
from rezone.wire.messages import OwnWrites, ReadRequest, Role

_READ_BYTES: Final = 2_000
"""What a waiting read takes beside its keys: request, answer, deadline, what it waits for."""
_ROW_ID_BYTES: Final = 100

Readable = Callable[[], bool]
"""Whether a read may be answered now; NotLeaderError when it will not be here. Under the lock."""


def readable(replica: ReplicaState, as_of: int | None, served: Served = lambda: True) -> Readable:
    """Return when a read that comes now, of what is `served`, may be answered; under the lock.

    VersionsExpiredError for a time that is too long ago.
    """
    since = replica.clock.monotonic()
    if as_of is None:
        return lambda: _newest_is_here(replica, since) and served()
    past = _PastRead(replica, as_of, since)
    past.require_kept()
    if as_of > replica.positions.readable_time:
        replica.apply_now()
    return lambda: past.may_be_answered() and served()


def _promises(replica: ReplicaState, as_of: int, since: float) -> bool:
    """Promise that no write will get `as_of` or an earlier time, if this replica may do that."""
    state = replica.leadership
    return state is not None and _is_newest(replica, since) and replica.promise_at(as_of, state)


class _PastRead:
    """A read as of a time: at any replica that has applied so far, or at the leader.

    A leader can also say that nothing more will come at or below that time: from then on no write
    gets such a time, of this leader or of one that comes later. So those that could lead must
    have been told first (`LeaseRequest.time`).
    """

    def __init__(self, replica: ReplicaState, as_of: int, since: float) -> None:
        self._replica = replica
        self._as_of = as_of
        self._since = since
        self._end: int | None = None
        self._is_kept = False
        self._leadership: Leadership | None = None

    def require_kept(self) -> bool:
        """Whether the versions of that time are kept; False while the node does not know the time.

        VersionsExpiredError when they are not.
        """
        if not self._is_kept and self._replica.clock.gives:
            kept_until(self._replica, self._as_of).require(self._replica)
            self._is_kept = True
        return self._is_kept

    def may_be_answered(self) -> bool:
        """Whether everything up to that time is applied here, and is all there will ever be."""
        replica = self._replica
        if not self.require_kept():
            return False
        if self._as_of <= replica.positions.readable_time:
            return True
        seal = replica.store.seal
        if seal is not None and self._as_of > seal.commit_time and replica.is_sealed:
            raise replica.resharded()
        if self._leadership is None or replica.leadership is not self._leadership:
            self._end = None
            if _promises(replica, self._as_of, self._since):
                self._end, self._leadership = replica.store.log_end, replica.leadership
        return self._end is not None and (
            min(replica.store.applied, replica.positions.committed) >= self._end
        )


def wait_readable(replica: ReplicaState, as_of: int | None, served: Served = lambda: True) -> None:
    """Return when a read is right; NotLeaderError or NotReadyError when it will not soon be."""
    deadline = replica.clock.monotonic() + replica.settings.hold_ms_max / 1000
    with replica.changed:
        may_answer = readable(replica, as_of, served)
        if not may_answer():
            replica.ask_leases()
        while not may_answer():
            left = deadline - replica.clock.monotonic()
            if left <= 0 or replica.closed or replica.failure:
                raise _cannot_answer(replica)
            replica.changed.wait(left)


def wait_applied(replica: ReplicaState, offset: int) -> None:
    """Return when all below an offset is committed and applied; NotReadyError when not soon."""
    seconds = replica.settings.hold_ms_max / 1000
    with replica.changed:
        positions, store = replica.positions, replica.store
        replica.changed.wait_for(
            lambda: min(positions.committed, store.applied) >= offset or replica.closed, seconds
        )
        if min(positions.committed, store.applied) < offset:
            raise _cannot_answer(replica)


def _cannot_answer(replica: ReplicaState) -> NotReadyError:
    return NotReadyError(
        f"partition {replica.partition_id} cannot answer this read yet; retry",
        readable_time=replica.positions.readable_time,
    )


def _is_newest(replica: ReplicaState, since: float) -> bool:
    """Whether nobody can have committed anything elsewhere when a read came at `since`."""
    state = replica.leadership
    if state is None or not state.serving or replica.transfer.blocks_writes:
        return False
    if replica.store.seal is not None:
        return False
    return state.vouched(replica.clock.monotonic(), since)


def _newest_is_here(replica: ReplicaState, since: float) -> bool:
    if replica.is_sealed:
        raise replica.resharded()
    if replica.role is not Role.LEADER and not replica.transfer.eager:
        raise replica.not_leader()
    # What the leadership began with must be applied, and nothing uncommitted may be seen.
    return _is_newest(replica, since) and replica.store.applied >= replica.positions.committed


class _WaitingRead(NamedTuple):
    may_answer: Readable
    answer: Callable[[RezoneError | None], None]
    deadline: float
    size: int


class ReadQueue:
    """The reads of one partition that wait until they may be answered, in the order they came."""

    def __init__(self, replica: ReplicaState, node_budget: Budget) -> None:
        self._replica = replica
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
        replica = self._replica
        with replica.lock:
            may_answer = readable(replica, as_of, served)
            if not may_answer():
                self._hold(may_answer, answer, held_bytes())
                return
        answer(None)

    def _hold(
        self, may_answer: Readable, answer: Callable[[RezoneError | None], None], size: int
    ) -> None:
        replica = self._replica
        if len(self._waiting) >= replica.settings.reads_held_max:
            raise OverloadedError("too many reads wait for this partition; retry later")
        self._budget.take(size)
        deadline = replica.clock.monotonic() + replica.settings.hold_ms_max / 1000
        self._waiting.append(_WaitingRead(may_answer, answer, deadline, size))
        replica.look_again(deadline)
        replica.ask_leases()
        replica.wake()

    def step(self) -> None:
        """Answer what may be answered, and what has waited for too long; without the lock."""
        replica = self._replica
        with replica.lock:
            if not self._waiting:
                return
            over = replica.closed or bool(replica.failure)
            now = replica.clock.monotonic()
            taken, self._waiting = self._waiting, deque()
            outcomes: list[tuple[_WaitingRead, RezoneError | None]] = []
            for read in taken:
                try:
                    if read.may_answer():
                        outcomes.append((read, None))
                    elif over or read.deadline <= now:
                        outcomes.append((read, _cannot_answer(replica)))
                    else:
                        self._waiting.append(read)
                except RezoneError as error:
                    outcomes.append((read, error))
        for read, outcome in outcomes:
            self._budget.give(read.size)
            read.answer(outcome)

    @property
    def count(self) -> int:
        """How many reads wait; read without the lock, for metrics."""
        return len(self._waiting)

    @property
    def waits(self) -> bool:
        """Whether a read waits; under the lock."""
        return bool(self._waiting)

    def look(self) -> None:
        """Have the job see what may be answered by now, after news of times; under the lock."""
        if self._waiting:
            self._replica.wake()

    def tick(self, now: float) -> None:
        """Have the job look after reads that have waited for too long; under the lock."""
        if self._waiting and self._waiting[0].deadline <= now:
            self._replica.wake()
        elif self._waiting:
            self._replica.look_again(self._waiting[0].deadline)


class KeyRead(NamedTuple):
    """A checked read by key: the row ids of the keys; `own`: of a transaction."""

    row_ids: list[bytes]
    as_of: int | None
    own: OwnWrites | None = None

    def held_bytes(self) -> int:
        """Give about what it takes in memory."""
        return _READ_BYTES + sum(map(len, self.row_ids)) + len(self.row_ids) * _ROW_ID_BYTES

    @property
    def answered_as_of(self) -> int | None:
        """When the read may be answered: a transaction's as the newest state, by the leader."""
        return None if self.own is not None else self.as_of

    def told(self, replica: ReplicaState) -> tuple[int, int]:
        """Return (time, age in ms) of an answer that may be given now."""
        if self.own is not None:
            return self.own.times.read_time, 0
        if self.as_of is None:
            return replica.store.applied_time, 0
        return self.as_of, age_ms_of(replica, self.as_of)


def prepare_read(
    replica: ReplicaState, request: ReadRequest, body: memoryview, codec: RowCodec
) -> KeyRead:
    """Check a read by key; InvalidRowError when the keys are none, ConflictError as for writes."""
    batch = from_ipc(body, codec.key_schema)
    codec.check(batch, delete=True)
    encoded = encoded_rows(codec, batch)
    as_of = request.as_of
    if request.max_age_ms is not None and as_of is None:
        as_of = _time_within(replica, request.max_age_ms)
    if batch.num_rows:
        bounds = encoded.hash_bounds()
        require_inside(*bounds, replica.hash_range, replica.partition_id)
    return KeyRead(encoded.row_id_list(), as_of, request.own)


def _time_within(replica: ReplicaState, max_age_ms: int) -> int:
    """Return the newest time at which this replica can answer a read that may be so old.

    A leader closes a time for it if need be. NotReadyError when a follower is too far behind, or
    cannot tell how far.
    """
    if not is_comparable(replica):
        raise NotReadyError("this node's time has not been compared with any other's yet")
    with replica.lock:
        age_ms = min(max_age_ms, replica.config.version_retention_seconds * 1000)
        oldest = replica.clock.time() - age_ms * 1000
        if replica.positions.readable_time >= oldest:
            return replica.positions.readable_time
        if replica.is_sealed:
            raise replica.resharded()
        if replica.leads:
            return oldest
    replica.apply_now()
    raise NotReadyError(
        f"this replica of partition {replica.partition_id} is too far behind; ask its leader",
        readable_time=replica.positions.readable_time,
    )


@contextlib.contextmanager
def reading(replica: ReplicaState, as_of: int | None) -> Iterator[None]:
    """Refuse with NotReadyError what was read of damaged rows, or while they were replaced."""
    copies = replica.copies
    try:
        yield
    except CorruptionError as error:
        raise NotReadyError(
            f"partition {replica.partition_id} is damaged here; retry", damaged=1
        ) from error
    stands = as_of is None or replica.leads or as_of <= replica.positions.readable_time
    if not stands or replica.copies != copies:
        raise NotReadyError(f"partition {replica.partition_id} is copied again; retry")


def read_keys(replica: ReplicaState, read: KeyRead, codec: RowCodec) -> Any:
    """Return the typed batch of the rows found; only when the read may be answered."""
    with reading(replica, None if read.own is not None else read.as_of):
        if read.own is None:
            values = replica.store.reader.newest(read.row_ids, read.as_of)
        else:
            row_ids = pa.array(read.row_ids, pa.binary())
            with replica.lock:
                replica.serving.require_since(row_ids, read.own.times.read_time)
            values = own_values(replica, read.row_ids, read.own)
    found = [index for index, value in enumerate(values) if value is not None]
    return codec.decode(
        [read.row_ids[index][ROW_ID_PREFIX_BYTES:] for index in found],
        [value for value in values if value is not None],
    )


def own_values(replica: ReplicaState, row_ids: list[bytes], own: OwnWrites) -> list[bytes | None]:
    """Return rows as a transaction sees them; TransactionEndedError when it is over."""
    transaction = require_open(replica, own)
    values = replica.store.reader.newest(row_ids, own.times.read_time)
    if transaction is None:
        return values
    return overlaid(row_ids, values, replica.store.reader.intents(transaction, row_ids))
