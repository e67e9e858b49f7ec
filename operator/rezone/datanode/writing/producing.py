"""The leader's side of producers: which batch is new, which is a repeat, and who is fenced.

What is promised (KIP-98): a batch that was answered is in the log exactly once, whatever else was
sent under the same number; and where a producer's epoch was seen nothing of a lower one is taken
from then on (docs/decisions/0226). All of it follows from the log (`storage.state.producers`), so
the next leader goes on where this one has stopped.

Concurrency: `prepare_open` runs in the threads of clients' channels, all else under the partition's
lock.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rezone.datanode.state.replica_state import ReplicaState
from rezone.datanode.writing.change import PreparedRows
from rezone.datanode.writing.owner import NOBODY, Owner, log_key
from rezone.datanode.writing.write import ENTRY_OVERHEAD_BYTES, Earlier, NewEntry
from rezone.storage.log.entry import (
    PRODUCER_EPOCH_MAX,
    EntryKind,
    ProducerBatch,
    note_rows,
)
from rezone.storage.state.producers import ProducerState
from rezone.wire.codec.producers import home_hash
from rezone.wire.errors import (
    ConflictError,
    LimitExceededError,
    OverloadedError,
    ProducerFencedError,
    SequenceReusedError,
)
from rezone.wire.messages import (
    ProducerOpen,
    WriteRequest,
)


@dataclass(frozen=True, slots=True)
class PreparedOpen(PreparedRows):
    """The opening of a producer; the partition that serves the key hash `home` may take it.

    Its digest is the id of the opening: by that a repeat is known.
    """

    producer_id: bytes
    home: int


def prepare_open(request: ProducerOpen, owner: Owner = NOBODY) -> PreparedOpen:
    """Return what the opening of a producer appends; InvalidRowError for an id that is no UUID."""
    producer_id = owner.key("producer_id", request.producer_id)
    home = home_hash(request.producer_id)
    opening = log_key("opening", request.opening)
    return PreparedOpen(note_rows(), ENTRY_OVERHEAD_BYTES, producer_id, home, digest=opening)


class Producing:
    """The producers of one partition as its leader deals with them."""

    def __init__(self, replica: ReplicaState, require_free: Callable[[Any], None]) -> None:
        self._replica = replica
        self._require_free = require_free

    def plan_write(self, request: WriteRequest, prepared: PreparedRows) -> Earlier | NewEntry:
        """Return the entry of a producer's batch, or where its first try stands.

        ProducerFencedError for an epoch below one that is known, SequenceReusedError for other rows
        under a number that was used, ConflictError when a later batch was written already,
        OverloadedError when no more producers can be remembered.
        """
        producer_id = prepared.owner.key("producer_id", request.producer_id)
        epoch, partition = request.producer_epoch, request.partition
        known_epoch, known = self._replica.store.producer(producer_id, partition)
        if epoch < known_epoch:
            raise ProducerFencedError(
                f"producer {request.producer_id} was opened again: its epoch is {known_epoch}, not "
                f"{epoch}",
                producer_epoch=known_epoch,
            )
        repeated = _repeated(known, epoch, request.sequence, prepared.digest)
        for sent in request.original_ids:
            # Of these it is known by reshard streams alone: nothing is appended under such a name.
            _, before = self._replica.store.producer(producer_id, sent.partition)
            repeated = repeated or _repeated(before, epoch, sent.sequence, sent.digest)
        if repeated is not None:
            return repeated
        if known is None:
            self._require_room()
        self._require_free(prepared.rows)
        opens = epoch > known_epoch
        batch = ProducerBatch(
            producer_id, request.sequence, epoch, partition, prepared.digest, opens
        )
        return NewEntry(prepared.rows, prepared.size, batch, alone=opens)

    def plan_open(
        self, request: ProducerOpen, prepared: PreparedRows
    ) -> tuple[Earlier | NewEntry, int]:
        """Return the epoch that an opening gets, and its entry, or where its first try stands.

        ProducerFencedError when another opening has got a higher epoch than the one it knows,
        ConflictError where another partition gives its epochs, OverloadedError when no more
        producers can be remembered, LimitExceededError when there is no higher epoch.
        """
        assert isinstance(prepared, PreparedOpen)  # noqa: S101 - what its channel has made
        start, end = self._replica.hash_range
        if not start <= prepared.home < end:
            raise ConflictError(
                f"partition {request.partition} does not give the epochs of producer "
                f"{request.producer_id}; fetch the routes again",
                partition=request.partition,
            )
        producer_id, store = prepared.producer_id, self._replica.store
        epoch = store.next_producer_epoch(producer_id)
        _, known = store.producer(producer_id, request.partition)
        if known is not None and known[:2] == (epoch - 1, 0) and known.digest == prepared.digest:
            return Earlier(known.end_offset, known.commit_time), known.epoch
        if request.known_epoch != epoch - 1:
            raise ProducerFencedError(
                f"producer {request.producer_id} was opened by others: its epoch is {epoch - 1}, "
                f"not {request.known_epoch}",
                producer_epoch=epoch - 1,
            )
        if epoch > PRODUCER_EPOCH_MAX:
            raise LimitExceededError("the producer was opened too often; take another name")
        if known is None:
            self._require_room()
        batch = ProducerBatch(producer_id, 0, epoch, request.partition, prepared.digest, opens=True)
        entry = NewEntry(prepared.rows, prepared.size, batch, EntryKind.PRODUCER_OPEN)
        return entry, epoch

    def _require_room(self) -> None:
        """Refuse a producer that is not known when too many are."""
        replica = self._replica
        if not replica.store.has_room_for_producer(replica.clock.micros()):
            raise OverloadedError(
                f"partition {replica.partition_id} remembers as many producers as it may, and "
                "all of them have just written; retry later"
            )


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
