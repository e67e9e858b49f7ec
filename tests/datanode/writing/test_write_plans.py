"""What becomes of a write, from what a leader knows: no store, no log and no other node."""

from typing import Any

import pytest

from rezone.datanode.core.write_plans import (
    Earlier,
    KnownTransaction,
    ProducerSees,
    TransactionSees,
    plan_batch,
    plan_end,
    plan_intents,
    plan_open,
    require_unchanged,
)
from rezone.datanode.settings import NodeSettings
from rezone.storage.log.entry import PRODUCER_EPOCH_MAX
from rezone.storage.state.producers import ProducerState
from rezone.wire.errors import (
    ConflictError,
    LimitExceededError,
    NotReadyError,
    OverloadedError,
    ProducerFencedError,
    RezoneError,
    RowLockedError,
    SequenceReusedError,
    TransactionConflictError,
    TransactionEndedError,
)
from rezone.wire.messages import (
    OriginalId,
    ProducerOpen,
    TransactionEnd,
    TransactionOutcome,
    WriteRequest,
)

DIGEST, OTHER = b"d" * 16, b"o" * 16
LAST = ProducerState(epoch=2, sequence=5, end_offset=50, commit_time=500, digest=DIGEST)
SETTINGS = NodeSettings(
    transaction_bytes_max=100, open_intents_bytes_max=1_000, transactions_open_max=3
)
OPEN = KnownTransaction(sequence=4, end_offset=40, commit_time=400, size=60, outcome=None)
OVER = OPEN._replace(outcome=TransactionOutcome.ABORTED)
NEW_TRANSACTION = TransactionSees(
    None, open_bytes=0, open_count=0, remembers_more=True, node_has_room=True, holder=None
)
WRITING = NEW_TRANSACTION._replace(found=OPEN, open_bytes=60, open_count=1)


def write(**changes: Any) -> WriteRequest:
    """Return the sixth batch of the producer's second epoch, but for some changes."""
    fields: dict[str, Any] = {
        "opaque": 1,
        "partition": 0,
        "producer_id": "p",
        "sequence": 6,
        "producer_epoch": 2,
    }
    return WriteRequest(**fields | changes)


def test_a_new_batch_is_appended_and_a_repeat_is_told_where_it_stands() -> None:
    """A retry would be applied twice, also under the id that a batch had before a re-sharding.

    Or a batch whose number was never used would be acknowledged without being there.
    """
    assert plan_batch(write(), DIGEST, ProducerSees(2, LAST)) is None
    assert plan_batch(write(sequence=5), DIGEST, ProducerSees(2, LAST)) == Earlier(50, 500)
    assert plan_batch(write(sequence=1, producer_epoch=3), OTHER, ProducerSees(2, LAST)) is None
    original = (OriginalId(7, 5, DIGEST),)
    moved = write(sequence=1, original_ids=original)
    assert plan_batch(moved, OTHER, ProducerSees(2, None, (LAST,))) == Earlier(50, 500)
    assert plan_batch(moved, OTHER, ProducerSees(2, None, (None,))) is None
    assert plan_batch(write(), DIGEST, ProducerSees(2, LAST, has_room=False)) is None, "it is known"


@pytest.mark.parametrize(
    ("request_", "digest", "sees", "refusal"),
    [
        (write(producer_epoch=1), DIGEST, ProducerSees(2, LAST), ProducerFencedError),
        (write(sequence=4), DIGEST, ProducerSees(2, LAST), ConflictError),
        (write(sequence=5), OTHER, ProducerSees(2, LAST), SequenceReusedError),
        (write(), DIGEST, ProducerSees(0, None, has_room=False), OverloadedError),
        (write(), DIGEST, ProducerSees(2, LAST, holder="ab"), RowLockedError),
    ],
)
def test_a_batch_is_refused_by_what_is_known_of_its_producer(
    request_: WriteRequest, digest: bytes, sees: ProducerSees, refusal: type[RezoneError]
) -> None:
    """A fenced producer would go on, a late batch overwrite a later one, a transaction be lost."""
    with pytest.raises(refusal):
        plan_batch(request_, digest, sees)


def test_an_opening_gives_the_next_epoch_to_who_knows_the_last_one() -> None:
    """Two clients would have one epoch, or a late copy of an opening would fence the living one."""
    opening = ProducerOpen(opaque=1, partition=0, producer_id="p", opening="o", known_epoch=2)
    opened = LAST._replace(sequence=0)
    assert plan_open(opening, OTHER, ProducerSees(3, LAST)) is None
    assert plan_open(opening, DIGEST, ProducerSees(3, opened)) == Earlier(50, 500)
    with pytest.raises(ProducerFencedError) as fenced:
        plan_open(opening, OTHER, ProducerSees(4, opened._replace(epoch=3)))
    assert fenced.value.details["producer_epoch"] == 3
    with pytest.raises(OverloadedError):
        plan_open(opening, OTHER, ProducerSees(3, None, has_room=False))
    last = ProducerOpen(
        opaque=1, partition=0, producer_id="p", opening="o", known_epoch=PRODUCER_EPOCH_MAX
    )
    with pytest.raises(LimitExceededError):
        plan_open(last, OTHER, ProducerSees(PRODUCER_EPOCH_MAX + 1, LAST))


def test_a_transaction_writes_in_turn() -> None:
    """A repeat would be appended again, or refused though it was acknowledged before."""
    assert plan_intents(write(sequence=1), 10, NEW_TRANSACTION, SETTINGS) is None
    assert plan_intents(write(sequence=5), 40, WRITING, SETTINGS) is None
    repeat = write(sequence=4)
    full = WRITING._replace(node_has_room=False, holder="ab")
    assert plan_intents(repeat, 10, full, SETTINGS) == Earlier(40, 400)


@pytest.mark.parametrize(
    ("sequence", "size", "sees", "refusal"),
    [
        (2, 10, NEW_TRANSACTION, TransactionEndedError),
        (5, 10, WRITING._replace(found=OVER), TransactionEndedError),
        (6, 10, WRITING, ConflictError),
        (5, 41, WRITING, LimitExceededError),
        (5, 10, WRITING._replace(open_bytes=991), OverloadedError),
        (5, 10, WRITING._replace(node_has_room=False), OverloadedError),
        (1, 10, NEW_TRANSACTION._replace(open_count=3), OverloadedError),
        (1, 10, NEW_TRANSACTION._replace(remembers_more=False), OverloadedError),
        (5, 10, WRITING._replace(holder="ab"), TransactionConflictError),
    ],
)
def test_a_write_of_a_transaction_is_refused(
    sequence: int, size: int, sees: TransactionSees, refusal: type[RezoneError]
) -> None:
    """It would go on after its end, pass a limit, or take a row that another one has written."""
    with pytest.raises(refusal):
        plan_intents(write(sequence=sequence), size, sees, SETTINGS)


def test_a_row_that_was_written_after_the_read_time_is_a_conflict() -> None:
    """A transaction would overwrite what it has not read."""
    require_unchanged(500, 500)
    with pytest.raises(TransactionConflictError):
        require_unchanged(501, 500)


def test_an_end_is_appended_once() -> None:
    """A repeat would be told another outcome, or a commit would leave out rows of its transaction.

    An abort needs no number: whoever asks for the outcome does not know it.
    """
    commit = TransactionEnd(opaque=1, partition=0, transaction="t", sequence=5, commit=True)
    abort = TransactionEnd(opaque=1, partition=0, transaction="t")
    assert plan_end(commit, 40, OPEN) is None
    assert plan_end(abort, -1, OPEN) is None
    assert plan_end(commit, -1, OVER) == Earlier(40, 400)
    with pytest.raises(NotReadyError):
        plan_end(commit, 39, OPEN)
    with pytest.raises(ConflictError):
        plan_end(commit, 40, OPEN._replace(sequence=5))
