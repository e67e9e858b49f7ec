"""The leader's side of transactions on one partition: who may write what, and what becomes of it.

A transaction reads as of one time, with its own writes on top; its rows become visible all at once
or never (snapshot isolation, docs/decisions/0086). Intents are exclusive until their transaction is
over, so a commit needs no check of its own. A plain write of such a row is refused, and repeated by
its client. What becomes of a write or an end is decided by `core.write_plans`.

Nothing is remembered here but counts: all of it follows from the log
(`storage.transactions.transactions`), so the next leader goes on where this one has stopped. Checks
of rows are made in two parts. The engine is asked outside of all locks (`prepare_intents`); what
the log holds beyond what was applied then is looked at when the write is appended.

Concurrency: `prepare_*` run in the threads of clients' channels, all else under the partition's
lock.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from rezone.datanode.commit.insync import Reply
from rezone.datanode.core.write_plans import (
    Earlier,
    KnownTransaction,
    TransactionSees,
    ended,
    plan_end,
    plan_intents,
    require_unchanged,
)
from rezone.datanode.state.expiry import retention_micros
from rezone.datanode.state.replica_state import ReplicaState
from rezone.datanode.state.runner import entry
from rezone.datanode.writing.change import PreparedRows
from rezone.datanode.writing.owner import NOBODY, Owner, log_key
from rezone.datanode.writing.write import ENTRY_OVERHEAD_BYTES, NewEntry, OnceNewest
from rezone.storage.engines.base import TIME_MAX
from rezone.storage.log.entry import OP_ABORT, EntryKind, ProducerBatch, iter_entries, rows_batch
from rezone.storage.reshard.reshard_entries import rows_of, version_times
from rezone.storage.state.producers import uuid_text
from rezone.storage.transactions.intents import commit_rows, intent_rows
from rezone.storage.transactions.transactions import Transaction
from rezone.wire.errors import (
    InvalidRowError,
    LimitExceededError,
    NotReadyError,
    OverloadedError,
    RezoneError,
    TransactionConflictError,
    TransactionEndedError,
)
from rezone.wire.messages import (
    OwnWrites,
    TransactionBegun,
    TransactionEnd,
    TransactionOutcome,
    TransactionResult,
    TransactionTimes,
    WriteRequest,
)

_TAIL_ROWS_MAX = 50_000
"""A leader that has more than this still to apply is not asked to look through it per write."""
_READ_BYTES = 4 << 20
_EXPIRE_AGAIN_SECONDS = 1.0
_WITHOUT_VERSIONS = frozenset(
    {EntryKind.INTENTS, EntryKind.ABORT, EntryKind.SEAL, EntryKind.PRODUCER_OPEN}
)
_OUTCOMES = {
    EntryKind.COMMIT: TransactionOutcome.COMMITTED,
    EntryKind.ABORT: TransactionOutcome.ABORTED,
}


@dataclass(frozen=True, slots=True)
class PreparedIntents(PreparedRows):
    """Intents with what the engine knew of their rows when it had applied up to `checked_to`."""

    row_ids: list[bytes]
    checked_to: int
    newest_time: int


@dataclass(frozen=True, slots=True)
class PreparedEnd(PreparedRows):
    """The rows of a commit, read when its transaction ended at `read_at`; -1 when not read."""

    read_at: int


def prepare_intents(
    replica: ReplicaState, prepared: PreparedRows, times: TransactionTimes
) -> PreparedIntents:
    """Turn checked rows into intents, and look who has written these rows last.

    InvalidRowError for times that no leader has given.
    """
    if not 0 <= times.read_time <= times.begun <= TIME_MAX:
        raise InvalidRowError(f"no transaction reads at {times.read_time} and began {times.begun}")
    row_ids = prepared.rows.column(0).to_pylist()
    checked_to = replica.store.applied
    newest = max(replica.store.engine.newest_times(row_ids))
    rows = intent_rows(prepared.rows, times.read_time, times.begun)
    size = rows.nbytes + ENTRY_OVERHEAD_BYTES
    return PreparedIntents(rows, size, row_ids, checked_to, newest, owner=prepared.owner)


def prepare_end(
    replica: ReplicaState, request: TransactionEnd, owner: Owner = NOBODY
) -> PreparedEnd:
    """Read what a commit will write; nothing for an abort, or where there is nothing to commit."""
    key, store = owner.key("transaction", request.transaction), replica.store
    nothing = PreparedEnd(rows_batch([], [], []), ENTRY_OVERHEAD_BYTES, -1, owner=owner)
    with store.transactions() as table:
        found = table.get(key) if request.commit else None
        if found is None or not found.is_open or store.applied < found.last.end_offset:
            return nothing
        row_ids, end_offset = found.row_ids, found.last.end_offset
    intents = store.reader.intents(found, row_ids)
    if len(intents) < len(row_ids):
        return nothing  # it has ended meanwhile, and its intents were collected
    rows = commit_rows(intents)
    return PreparedEnd(rows, rows.nbytes + ENTRY_OVERHEAD_BYTES, end_offset, owner=owner)


def age_micros_max(replica: ReplicaState) -> int:
    """Return how old a transaction may be: what it reads must not be collected meanwhile."""
    return min(replica.settings.transaction_ms_max * 1_000, retention_micros(replica))


def require_open(replica: ReplicaState, own: OwnWrites) -> Transaction | None:
    """Return a transaction that may read, None without writes; else TransactionEndedError."""
    key = log_key("transaction", own.transaction)
    with replica.store.transactions() as table:
        found = table.get(key)
    if found is not None and not found.is_open:
        raise ended(_known(found))
    if found is None and own.sequence:
        raise ended(None)
    age_max = age_micros_max(replica)
    if own.times.begun + age_max < replica.clock.time():
        raise TransactionEndedError(
            f"the transaction is older than {age_max // 1_000} ms",
            outcome=TransactionOutcome.ABORTED.value,
        )
    return found


class Transacting:
    """The transactions of one partition as its leader deals with them."""

    def __init__(
        self,
        replica: ReplicaState,
        append_entry: Callable[[NewEntry, int, Reply], None],
        once_newest: OnceNewest,
    ) -> None:
        self._replica = replica
        self.runner = replica.runner
        self._append_entry = append_entry
        self._once_newest = once_newest
        # For metrics: refused for other writers, for limits; aborted.
        self.conflicts = 0
        self.over_limit = 0
        self.expired = 0

    # --- reads ----------------------------------------------------------------------------------

    @entry
    def begin(self, opaque: int) -> TransactionBegun:
        """Return the times of a new transaction; only when the newest may be read."""
        replica, store = self._replica, self._replica.store
        read_time = max(store.applied_time, replica.readable_from)
        if store.applied == store.log_end:
            # All there is: as of now, whose versions are kept longer than those of a late row.
            read_time = max(read_time, replica.promisable())
            replica.write_clock.raise_to(read_time)
        begun = max(read_time, replica.clock.time())
        return TransactionBegun(opaque=opaque, read_time=read_time, begun=begun)

    # --- writes ---------------------------------------------------------------------------------

    def holder_of(self, rows: pa.RecordBatch) -> str | None:
        """Return the name of an open transaction that has written one of the rows."""
        store = self._replica.store
        if not store.has_open_transactions:
            return None
        with store.transactions() as table:
            return _name_of(table.holder(rows.column(0).to_pylist()))

    def plan_write(self, request: WriteRequest, prepared: PreparedRows) -> Earlier | NewEntry:
        """Return the entry of a transaction's write, or where its first try stands.

        Raises as `write_plans.plan_intents`, and TransactionConflictError for a row that was
        written, or came from another partition, after the transaction began to read.
        """
        assert isinstance(prepared, PreparedIntents)  # noqa: S101 - what its channel has made
        assert request.transaction is not None  # noqa: S101 - the caller asked for it
        replica, times = self._replica, request.transaction
        replica.require_leadership()
        key = prepared.owner.key("transaction", request.producer_id)
        sees = self._sees(key, prepared)
        try:
            earlier = plan_intents(request, prepared.size, sees, replica.settings)
            if earlier is not None:
                return earlier
            replica.serving.require_since(prepared.rows.column(0), times.read_time)
            changed = max(prepared.newest_time, self._newest_in_log(prepared))
            require_unchanged(changed, times.read_time)
        except TransactionConflictError:
            self.conflicts += 1
            raise
        except (LimitExceededError, OverloadedError):
            self.over_limit += 1
            raise
        first = sees.found is None
        return NewEntry(
            prepared.rows,
            prepared.size,
            ProducerBatch(key, request.sequence),
            EntryKind.INTENTS,
            # Or a repeat that comes very late could open again what is over and forgotten.
            since=times.begun if first else 0,
            until=times.begun + age_micros_max(replica) if first else TIME_MAX,
        )

    def _sees(self, key: bytes, prepared: PreparedIntents) -> TransactionSees:
        with self._replica.store.transactions() as table:
            found = table.get(key)
            return TransactionSees(
                None if found is None else _known(found),
                table.open_bytes,
                table.open_count,
                remembers_more=not table.full,
                node_has_room=table.node_has_room(prepared.size),
                holder=_name_of(table.holder(prepared.row_ids, but=key)),
            )

    def _newest_in_log(self, prepared: PreparedIntents) -> int:
        """Return the time of the newest write to the rows that the engine did not have yet."""
        store, offset = self._replica.store, prepared.checked_to
        if store.log_end - offset > _TAIL_ROWS_MAX or offset < store.log_start:
            raise NotReadyError("the leader has much to apply; retry")
        newest, wanted = 0, pa.array(prepared.row_ids, pa.binary())
        while offset < store.log_end:
            for each in iter_entries(store.read(offset, _READ_BYTES)):
                offset = each.header.end_offset
                if each.header.kind in _WITHOUT_VERSIONS:
                    continue
                found = pc.is_in(rows_of(each).column(0), value_set=wanted)
                times = version_times(each)[found.to_numpy(zero_copy_only=False)]
                newest = max(newest, int(times.max(initial=0)))
        return newest

    # --- ends -----------------------------------------------------------------------------------

    def plan_end(
        self, request: TransactionEnd, prepared: PreparedRows
    ) -> tuple[Earlier | NewEntry, TransactionOutcome] | None:
        """Return the entry of a commit or abort, or where the end stands; None without writes."""
        assert isinstance(prepared, PreparedEnd)  # noqa: S101 - what its channel has made
        self._replica.require_leadership()
        key = prepared.owner.key("transaction", request.transaction)
        with self._replica.store.transactions() as table:
            found = table.get(key)
            if found is None:
                return None
            known = _known(found)
            earlier = plan_end(request, prepared.read_at, known)
            if known.outcome is not None and earlier is not None:
                return earlier, known.outcome
            if not request.commit:
                return _abort(key, found), TransactionOutcome.ABORTED
        batch = ProducerBatch(key, request.sequence)
        entry = NewEntry(prepared.rows, prepared.size, batch, EntryKind.COMMIT)
        return entry, TransactionOutcome.COMMITTED

    def answer_unknown(self, request: TransactionEnd, prepared: PreparedRows, reply: Reply) -> None:
        """Say that nothing is known of a transaction, once nobody else can know better."""
        replica, key = self._replica, prepared.owner.key("transaction", request.transaction)

        def answer(error: RezoneError | None) -> None:
            with replica.store.transactions() as table:
                known = table.get(key) is not None
            if error is None and known:
                error = NotReadyError("the transaction has written meanwhile; retry")
            unknown = TransactionResult(opaque=request.opaque, outcome=TransactionOutcome.UNKNOWN)
            reply(error or unknown)

        self._once_newest(answer)

    # --- age ------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Abort what is too old, and say when to look again; while leading."""
        replica = self._replica
        if replica.transfer.blocks_writes or not replica.store.has_open_transactions:
            return
        if not replica.clock.gives:
            replica.look_again(now + _EXPIRE_AGAIN_SECONDS)
            return
        micros, oldest = replica.clock.micros(), TIME_MAX
        with replica.store.transactions() as table:
            everyone = table.all_open()
        for found in everyone:
            expires = found.begun + age_micros_max(self._replica)
            if expires > micros or not self._expire(found):
                oldest = min(oldest, max(expires, micros + int(_EXPIRE_AGAIN_SECONDS * 1e6)))
        if oldest < TIME_MAX:
            replica.look_again(now + (oldest - micros) / 1e6)

    def abort_all(self) -> None:
        """Abort what is open: nothing can be committed here any more."""
        with self._replica.store.transactions() as table:
            everyone = table.all_open()
        for found in everyone:
            self._abort(found)

    def _abort(self, found: Transaction) -> None:
        entry = _abort(found.last.transaction, found)
        self._append_entry(entry, 0, _nobody_asked)

    def _expire(self, found: Transaction) -> bool:
        replica, last = self._replica, found.last
        try:
            self._abort(found)
        except (RezoneError, OSError) as error:
            replica.log.warning("an old transaction cannot be aborted yet", error=str(error))
            return False
        self.expired += 1
        replica.log.info(
            "a transaction was too old and is aborted",
            transaction=uuid_text(last.transaction),
        )
        replica.wake()
        return True


def _abort(key: bytes, found: Transaction) -> NewEntry:
    row_ids = found.row_ids
    rows = rows_batch(row_ids, [OP_ABORT] * len(row_ids), [b""] * len(row_ids))
    batch = ProducerBatch(key, found.last.sequence + 1)
    return NewEntry(rows, ENTRY_OVERHEAD_BYTES, batch, EntryKind.ABORT)


def _known(found: Transaction) -> KnownTransaction:
    """Return what a plan needs of a transaction."""
    last = found.last
    outcome = None if found.is_open else _OUTCOMES[EntryKind(last.kind)]
    return KnownTransaction(last.sequence, last.end_offset, last.commit_time, found.size, outcome)


def _nobody_asked(outcome: object) -> None:
    """Take the answer to an abort that the leader makes by itself."""
    del outcome


def _name_of(transaction: bytes | None) -> str | None:
    """Return what tells one transaction from others, and nobody its id: that may commit it."""
    if transaction is None:
        return None
    return hashlib.blake2b(transaction, digest_size=4).hexdigest()
