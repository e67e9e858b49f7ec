"""The leader's side of producers: what is known of one, and the entry of its batch or opening.

Which batch is new, which is a repeat, and who is fenced is decided by `core.write_plans`. All of it
follows from the log (`storage.state.producers`), so the next leader goes on where this one has
stopped.

Concurrency: `prepare_open` runs in the threads of clients' channels, all else under the partition's
lock.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from rezone.datanode.core.write_plans import Earlier, ProducerSees, plan_batch, plan_open
from rezone.datanode.state.replica_state import ReplicaState
from rezone.datanode.writing.change import PreparedRows
from rezone.datanode.writing.owner import NOBODY, Owner, log_key
from rezone.datanode.writing.write import ENTRY_OVERHEAD_BYTES, NewEntry
from rezone.storage.log.entry import EntryKind, ProducerBatch, note_rows
from rezone.wire.codec.producers import home_hash
from rezone.wire.errors import ConflictError, RowLockedError
from rezone.wire.messages import ProducerOpen, WriteRequest


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

    def __init__(
        self, replica: ReplicaState, holder_of: Callable[[pa.RecordBatch], str | None]
    ) -> None:
        self._replica = replica
        self._holder_of = holder_of
        # For metrics: how often a write was refused for rows of transactions.
        self.locked = 0

    def plan_write(self, request: WriteRequest, prepared: PreparedRows) -> Earlier | NewEntry:
        """Return the entry of a producer's batch, or where its first try stands.

        Raises as `write_plans.plan_batch`.
        """
        producer_id = prepared.owner.key("producer_id", request.producer_id)
        epoch, partition, store = request.producer_epoch, request.partition, self._replica.store
        known_epoch, last = store.producer(producer_id, partition)
        sees = ProducerSees(
            known_epoch,
            last,
            tuple(store.producer(producer_id, each.partition)[1] for each in request.original_ids),
            has_room=last is not None or self._has_room(),
            holder=self._holder_of(prepared.rows),
        )
        try:
            earlier = plan_batch(request, prepared.digest, sees)
        except RowLockedError:
            self.locked += 1
            raise
        if earlier is not None:
            return earlier
        opens = epoch > known_epoch
        batch = ProducerBatch(
            producer_id, request.sequence, epoch, partition, prepared.digest, opens
        )
        return NewEntry(prepared.rows, prepared.size, batch, alone=opens)

    def plan_open(
        self, request: ProducerOpen, prepared: PreparedRows
    ) -> tuple[Earlier | NewEntry, int]:
        """Return the epoch that an opening gets, and its entry, or where its first try stands.

        Raises as `write_plans.plan_open`, and ConflictError where another partition gives the
        producer its epochs.
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
        _, last = store.producer(producer_id, request.partition)
        sees = ProducerSees(epoch, last, has_room=last is not None or self._has_room())
        earlier = plan_open(request, prepared.digest, sees)
        if earlier is not None:
            return earlier, epoch - 1
        batch = ProducerBatch(producer_id, 0, epoch, request.partition, prepared.digest, opens=True)
        entry = NewEntry(prepared.rows, prepared.size, batch, EntryKind.PRODUCER_OPEN)
        return entry, epoch

    def _has_room(self) -> bool:
        """Whether a producer that is not known may write now."""
        return self._replica.store.has_room_for_producer(self._replica.clock.micros())
