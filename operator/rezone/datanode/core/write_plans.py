"""What becomes of a write: it is appended, it is a repeat of what the log has, or it is refused.

A producer's batch is in the log exactly once, and nothing of a lower epoch is taken once a higher
one is known (docs/decisions/0226). A transaction writes no row that anybody has written since it
began to read, or that another one has an intent on (docs/decisions/0086).

Pure: `writing.producing` and `writing.transacting` gather what the store knows, ask here, and build
the entry. Each plan is an `Earlier` for a repeat and None for what is to be appended; a refusal is
raised.
"""

from typing import NamedTuple

from rezone.datanode.settings import NodeSettings
from rezone.storage.log.entry import PRODUCER_EPOCH_MAX
from rezone.storage.state.producers import ProducerState
from rezone.wire.errors import (
    ConflictError,
    LimitExceededError,
    NotReadyError,
    OverloadedError,
    ProducerFencedError,
    RowLockedError,
    SequenceReusedError,
    TransactionConflictError,
    TransactionEndedError,
)
from rezone.wire.messages import (
    ProducerOpen,
    TransactionEnd,
    TransactionOutcome,
    WriteRequest,
)


class Earlier(NamedTuple):
    """Where the log has what a repeat asks for."""

    end_offset: int
    commit_time: int


class ProducerSees(NamedTuple):
    """What a leader knows of a producer.

    `epoch` is its highest one, `last` its last batch to this partition. `originals` are its last
    batches to the partitions of a write's original ids, in their order. `has_room`: whether one
    more producer may be remembered. `holder` names the open transaction that has written one of the
    rows.
    """

    epoch: int
    last: ProducerState | None
    originals: tuple[ProducerState | None, ...] = ()
    has_room: bool = True
    holder: str | None = None


class KnownTransaction(NamedTuple):
    """A transaction that the log has: its last entry, and the bytes of its intents.

    `outcome` is None while it is open.
    """

    sequence: int
    end_offset: int
    commit_time: int
    size: int
    outcome: TransactionOutcome | None


class TransactionSees(NamedTuple):
    """What a leader knows of a transaction that writes, and of all that are open.

    `open_bytes`, `open_count`: of this partition. `remembers_more` and `node_has_room`: whether
    another transaction may be remembered, and the node may hold the bytes. `holder` names another
    transaction that has written one of the rows.
    """

    found: KnownTransaction | None
    open_bytes: int
    open_count: int
    remembers_more: bool
    node_has_room: bool
    holder: str | None


def plan_batch(request: WriteRequest, digest: bytes, sees: ProducerSees) -> Earlier | None:
    """Plan a producer's batch.

    Raises ProducerFencedError for an epoch below one that is known, SequenceReusedError for other
    rows under a number that was used, ConflictError when a later batch was written already,
    OverloadedError when no more producers can be remembered, RowLockedError for a row of an open
    transaction.
    """
    epoch = request.producer_epoch
    if epoch < sees.epoch:
        raise ProducerFencedError(
            f"producer {request.producer_id} was opened again: its epoch is {sees.epoch}, not "
            f"{epoch}",
            producer_epoch=sees.epoch,
        )
    repeated = _repeated(sees.last, epoch, request.sequence, digest)
    for sent, before in zip(request.original_ids, sees.originals, strict=True):
        # Of these it is known by reshard streams alone: nothing is appended under such a name.
        repeated = repeated or _repeated(before, epoch, sent.sequence, sent.digest)
    if repeated is not None:
        return repeated
    if sees.last is None:
        _require_room(request.partition, sees)
    if sees.holder is not None:
        raise RowLockedError(
            f"transaction {sees.holder} has written one of these rows; retry", holder=sees.holder
        )
    return None


def _repeated(
    known: ProducerState | None, epoch: int, sequence: int, digest: bytes
) -> Earlier | None:
    """Return where the log has a batch that was sent before; None when it has none of it."""
    if known is None or known.epoch != epoch or known.sequence < sequence:
        return None
    if known.sequence > sequence:
        raise ConflictError(
            f"sequence {sequence} of a producer is behind {known.sequence}",
            sequence=known.sequence,
        )
    if known.digest != digest:
        raise SequenceReusedError(
            f"batch {sequence} of a producer was written already, with other rows: two have its id "
            "and epoch",
            sequence=sequence,
        )
    return Earlier(known.end_offset, known.commit_time)


def plan_open(request: ProducerOpen, opening: bytes, sees: ProducerSees) -> Earlier | None:
    """Plan an opening, `opening` by its id, that would give the epoch `sees.epoch`.

    Raises ProducerFencedError when another opening has got a higher epoch than the one it knows,
    OverloadedError when no more producers can be remembered, LimitExceededError when there is no
    higher epoch.
    """
    epoch, last = sees.epoch, sees.last
    if last is not None and last[:2] == (epoch - 1, 0) and last.digest == opening:
        return Earlier(last.end_offset, last.commit_time)
    if request.known_epoch != epoch - 1:
        raise ProducerFencedError(
            f"producer {request.producer_id} was opened by others: its epoch is {epoch - 1}, "
            f"not {request.known_epoch}",
            producer_epoch=epoch - 1,
        )
    if epoch > PRODUCER_EPOCH_MAX:
        raise LimitExceededError("the producer was opened too often; take another name")
    if last is None:
        _require_room(request.partition, sees)
    return None


def _require_room(partition: int, sees: ProducerSees) -> None:
    if not sees.has_room:
        raise OverloadedError(
            f"partition {partition} remembers as many producers as it may, and all of them have "
            "just written; retry later"
        )


def plan_intents(
    request: WriteRequest, size: int, sees: TransactionSees, settings: NodeSettings
) -> Earlier | None:
    """Plan a write of a transaction, of so many bytes.

    That nobody has written its rows since is for `require_unchanged`. Raises TransactionEndedError,
    TransactionConflictError for a row that another transaction has written, ConflictError when the
    write is out of turn, LimitExceededError and OverloadedError at the limits.
    """
    found = sees.found
    if found is None and request.sequence != 1:
        raise ended(None)
    if found is not None:
        if found.outcome is not None:
            raise ended(found)
        if request.sequence == found.sequence:
            return Earlier(found.end_offset, found.commit_time)
        _require_next(request.sequence, found)
    _require_limits(request.partition, size, sees, settings)
    if sees.holder is not None:
        raise _conflict(f"transaction {sees.holder} has written one of them")
    return None


def _require_limits(
    partition: int, size: int, sees: TransactionSees, settings: NodeSettings
) -> None:
    if size + (sees.found.size if sees.found else 0) > settings.transaction_bytes_max:
        raise LimitExceededError(
            f"the transaction has over {settings.transaction_bytes_max} bytes of writes; make "
            "smaller ones",
            limit=settings.transaction_bytes_max,
        )
    if sees.open_bytes + size > settings.open_intents_bytes_max:
        raise OverloadedError(
            f"open transactions of partition {partition} have {sees.open_bytes} bytes of "
            f"writes, the limit is {settings.open_intents_bytes_max}; retry later"
        )
    if not sees.node_has_room:
        raise OverloadedError(
            "open transactions of the node have as many bytes of writes as it may hold; retry later"
        )
    full = not sees.remembers_more or sees.open_count >= settings.transactions_open_max
    if sees.found is None and full:
        raise OverloadedError(
            f"partition {partition} has {sees.open_count} open transactions and remembers others "
            "that are over; retry later"
        )


def require_unchanged(changed: int, read_time: int) -> None:
    """Raise TransactionConflictError for rows that were written after a transaction's read time."""
    if changed > read_time:
        why = f"one was written at {changed}, after {read_time}"
        raise _conflict(why, version=changed)


def plan_end(request: TransactionEnd, read_at: int, found: KnownTransaction) -> Earlier | None:
    """Plan a commit, for which the rows were read at the offset `read_at`, or an abort.

    Raises ConflictError for a commit that is out of turn, NotReadyError when rows were not read at
    the transaction's end.
    """
    if found.outcome is not None:
        return Earlier(found.end_offset, found.commit_time)
    if request.commit:
        _require_next(request.sequence, found)
        if read_at != found.end_offset:
            raise NotReadyError("the transaction's writes are not applied here yet; retry")
    return None


def ended(found: KnownTransaction | None) -> TransactionEndedError:
    """Return what is told of a transaction that is over; None: of one that is not known."""
    outcome = found.outcome if found is not None else None
    told = outcome or TransactionOutcome.UNKNOWN
    return TransactionEndedError(
        f"the transaction is over: {told.value.lower()}", outcome=told.value
    )


def _require_next(sequence: int, found: KnownTransaction) -> None:
    if sequence != found.sequence + 1:
        raise ConflictError(
            f"request {sequence} of a transaction cannot follow {found.sequence}",
            sequence=found.sequence,
        )


def _conflict(why: str, **details: int) -> TransactionConflictError:
    return TransactionConflictError(
        f"a transaction cannot write these rows: {why}; begin a new one", **details
    )
