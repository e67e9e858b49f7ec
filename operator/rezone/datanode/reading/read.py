"""Reads of one partition: what is decided by `core.reads` is done here, and rows are read by key.

Concurrency: scans (`scan`) and digests wait in their callers' threads, on the partition's
`changed`. A read by key that cannot be answered at once goes into the partition's `ReadQueue`, so
that other requests of its channel do not wait for it; the partition's job answers it. Both wait at
most `hold_ms_max`.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa

from rezone.datanode.core.reads import (
    Answer,
    ApplyNow,
    Asked,
    AskLeases,
    Cause,
    Effect,
    Held,
    Hold,
    Leased,
    LookAgain,
    Promise,
    Ran,
    Read,
    Reads,
    Refuse,
    RunJob,
    Sees,
    Served,
    Ticked,
    is_decided,
)
from rezone.datanode.state.age import age_ms_of, is_comparable
from rezone.datanode.state.expiry import expired, overwritten, retention_micros
from rezone.datanode.state.replica_state import ReplicaState
from rezone.datanode.state.runner import entry
from rezone.datanode.writing.transacting import require_open
from rezone.datanode.writing.write import require_inside
from rezone.storage.budget import Budget
from rezone.storage.transactions.intents import overlaid
from rezone.wire.codec.bodies import from_ipc
from rezone.wire.codec.encoded_rows import encoded_rows
from rezone.wire.codec.rows import ROW_ID_PREFIX_BYTES, RowCodec
from rezone.wire.errors import (
    CorruptionError,
    LimitExceededError,
    NotReadyError,
    OverloadedError,
    RezoneError,
)
from rezone.wire.messages import OwnWrites, ReadRequest, Role

ANSWER_BYTES_MAX = 48 << 20
"""An answer's rows have so many bytes at most, and a frame has room for their keys, too."""

_SLICE_KEYS: Final = 64
_READ_BYTES: Final = 2_000
"""What a waiting read takes beside its keys: request, answer, deadline, what it waits for."""
_ROW_ID_BYTES: Final = 100

Readable = Callable[[], bool]
"""Whether a read may be answered now; NotLeaderError when it will not be here. Under the lock."""
OnOutcome = Callable[[RezoneError | None], None]
"""Takes why a read is refused; None when it may be answered."""


def _seen(replica: ReplicaState, read: Read | None = None) -> Sees:
    """Return what a replica sees of itself; of its times only where the read is not of now."""
    store, positions, transfer = replica.store, replica.positions, replica.transfer
    leadership, clock, seal = replica.leadership, replica.clock, store.seal
    past = read is None or read.as_of is not None
    return Sees(
        now=clock.monotonic(),
        leadership=leadership,
        leads=replica.role is Role.LEADER,
        eager=transfer.eager,
        dead=transfer.blocks_writes,
        over=replica.closed or bool(replica.failure),
        seal_time=seal.commit_time if seal is not None else None,
        is_sealed=seal is not None and replica.is_sealed,
        log_end=store.log_end,
        committed=positions.committed,
        applied=store.applied,
        readable_time=positions.readable_time,
        last_commit_time=store.last_commit_time,
        highest=clock.highest if past and clock.gives else None,
        promisable=replica.promisable() if past else 0,
        floor=replica.write_clock.floor if leadership is not None else 0,
        retention=retention_micros(replica),
        readable_from=replica.readable_from if past else 0,
    )


def _error(replica: ReplicaState, read: Read, cause: Cause) -> RezoneError:
    match cause:
        case Cause.NOT_LEADER:
            return replica.not_leader()
        case Cause.RESHARDED:
            return replica.resharded()
        case Cause.TOO_MANY:
            return OverloadedError("too many reads wait for this partition; retry later")
        case Cause.EXPIRED if read.as_of is not None:
            return expired(replica, read.as_of)
        case Cause.OVERWRITTEN if read.as_of is not None:
            return overwritten(replica, read.as_of)
        case _:
            return _cannot_answer(replica)


def _cannot_answer(replica: ReplicaState) -> NotReadyError:
    return NotReadyError(
        f"partition {replica.partition_id} cannot answer this read yet; retry",
        readable_time=replica.positions.readable_time,
    )


def _begun(replica: ReplicaState, as_of: int | None, served: Served) -> Read:
    now = replica.clock.monotonic()
    return Read(as_of, now, now + replica.settings.hold_ms_max / 1000, served)


def _may_answer(replica: ReplicaState, effects: list[Effect]) -> bool:
    """Do what follows for a read of a caller that waits by itself; whether it may be answered."""
    for effect in effects:
        match effect:
            case Promise(time):
                replica.write_clock.raise_to(time)
            case ApplyNow():
                replica.apply_now()
            case Refuse(read, cause):
                raise _error(replica, read, cause)
            case Answer():
                return True
    return False


def readable(replica: ReplicaState, as_of: int | None, served: Served = lambda: True) -> Readable:
    """Return when a read that comes now, of what is `served`, may be answered; under the lock.

    VersionsExpiredError for a time that is too long ago.
    """
    read = _begun(replica, as_of, served)
    if as_of is not None:
        _may_answer(replica, read.ask(_seen(replica)))
    return lambda: _may_answer(replica, read.look(_seen(replica, read)))


def wait_readable(replica: ReplicaState, as_of: int | None, served: Served = lambda: True) -> Read:
    """Return a read that is right; NotLeaderError or NotReadyError when it will not soon be."""
    with replica.changed:
        read = _begun(replica, as_of, served)
        sees = _seen(replica, read)
        effects = read.ask(sees)
        if not is_decided(effects):
            replica.ask_leases()
        while not _may_answer(replica, effects):
            if read.is_over(sees):
                raise _cannot_answer(replica)
            replica.changed.wait(read.deadline - sees.now)
            sees = _seen(replica, read)
            effects = read.look(sees)
        return read


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


class _Waiter(NamedTuple):
    answer: OnOutcome
    size: int


class ReadQueue:
    """The reads of one partition that wait until they may be answered, in the order they came."""

    def __init__(self, replica: ReplicaState, node_budget: Budget) -> None:
        self._replica = replica
        self.runner = replica.runner
        self._budget = node_budget
        self._reads = Reads(replica.settings.reads_held_max)
        self._waiters: dict[Read, _Waiter] = {}

    def submit(
        self,
        as_of: int | None,
        answer: OnOutcome,
        served: Served = lambda: True,
        held_bytes: Callable[[], int] = lambda: _READ_BYTES,
    ) -> None:
        """Have `answer(None)` called once the read may be answered, now or soon; else the error.

        `held_bytes` is asked for what it holds in memory when it has to wait. NotLeaderError at
        once where another replica leads, ReshardedError where others serve, OverloadedError when
        too many wait.
        """
        if self._ask(as_of, answer, served, held_bytes):
            self.runner.answer(answer, None)

    @entry
    def _ask(
        self, as_of: int | None, answer: OnOutcome, served: Served, held_bytes: Callable[[], int]
    ) -> bool:
        """Whether a read may be answered at once; it waits, or is refused, if not."""
        replica = self._replica
        read = _begun(replica, as_of, served)
        effects = self._reads.step(Asked(read, _seen(replica, read)))
        if _may_answer(replica, effects):
            return True
        if effects and isinstance(effects[-1], Hold):
            size = held_bytes()
            self._budget.take(size)
            self._waiters[read] = _Waiter(answer, size)
            self._do(self._reads.step(Held(read)))
        return False

    def _do(self, effects: list[Effect]) -> None:
        replica = self._replica
        for effect in effects:
            match effect:
                case LookAgain(at):
                    replica.look_again(at)
                case AskLeases():
                    replica.ask_leases()
                case RunJob():
                    replica.wake()

    def step(self) -> None:
        """Answer what may be answered, and what has waited for too long; without the lock."""
        if self._waiters:  # one that comes now has the job run again
            self._look()

    @entry
    def _look(self) -> None:
        replica = self._replica
        for effect in self._reads.step(Ran(_seen(replica))):
            match effect:
                case Promise(time):
                    replica.write_clock.raise_to(time)
                case Answer(read):
                    self._tell(read, None)
                case Refuse(read, cause):
                    self._tell(read, _error(replica, read, cause))

    def _tell(self, read: Read, outcome: RezoneError | None) -> None:
        waiter = self._waiters.pop(read)
        self._budget.give(waiter.size)
        self.runner.answer(waiter.answer, outcome)

    @property
    def count(self) -> int:
        """How many reads wait; read without the lock, for metrics."""
        return len(self._reads)

    @property
    def waits(self) -> bool:
        """Whether a read waits; under the lock."""
        return bool(self._reads)

    def look(self) -> None:
        """Have the job see what may be answered by now, after news of times; under the lock."""
        self._do(self._reads.step(Leased()))

    def tick(self, now: float) -> None:
        """Have the job look after reads that have waited for too long; under the lock."""
        self._do(self._reads.step(Ticked(now)))


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
            return max(replica.store.applied_time, replica.readable_from), 0
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


@entry
def _time_within(replica: ReplicaState, max_age_ms: int) -> int:
    """Return the newest time at which this replica can answer a read that may be so old.

    A leader closes a time for it if need be. NotReadyError when a follower is too far behind, or
    cannot tell how far.
    """
    if not is_comparable(replica):
        raise NotReadyError("this node's time has not been compared with any other's yet")
    age_ms = min(max_age_ms, replica.config.version_retention_seconds * 1000)
    oldest = max(replica.clock.time() - age_ms * 1000, replica.readable_from)
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
    """Return the typed batch of the rows found; only when the read may be answered.

    LimitExceededError when they are more than one answer may have.
    """
    with reading(replica, None if read.own is not None else read.as_of):
        if read.own is None:
            values = _values(replica, read)
        else:
            _require_since(replica, read.row_ids, read.own.times.read_time)
            values = own_values(replica, read.row_ids, read.own)
    found = [index for index, value in enumerate(values) if value is not None]
    return codec.decode(
        [read.row_ids[index][ROW_ID_PREFIX_BYTES:] for index in found],
        [value for value in values if value is not None],
    )


@entry
def _require_since(replica: ReplicaState, row_ids: list[bytes], read_time: int) -> None:
    replica.serving.require_since(pa.array(row_ids, pa.binary()), read_time)


def _values(replica: ReplicaState, read: KeyRead) -> list[bytes | None]:
    """Return the rows' values, a slice of the keys at a time: more than fit are never in memory."""
    values: list[bytes | None] = []
    size = 0
    for start in range(0, len(read.row_ids), _SLICE_KEYS):
        keys = read.row_ids[start : start + _SLICE_KEYS]
        found = replica.store.reader.newest(keys, read.as_of)
        size += sum(len(value) for value in found if value is not None)
        if size > ANSWER_BYTES_MAX:
            raise LimitExceededError(
                f"the rows of these {len(read.row_ids)} keys have more than {ANSWER_BYTES_MAX} "
                "bytes; ask for fewer at once",
                limit=ANSWER_BYTES_MAX,
            )
        values += found
    return values


def own_values(replica: ReplicaState, row_ids: list[bytes], own: OwnWrites) -> list[bytes | None]:
    """Return rows as a transaction sees them; TransactionEndedError when it is over."""
    transaction = require_open(replica, own)
    values = replica.store.reader.newest(row_ids, own.times.read_time)
    if transaction is None:
        return values
    return overlaid(row_ids, values, replica.store.reader.intents(transaction, row_ids))
