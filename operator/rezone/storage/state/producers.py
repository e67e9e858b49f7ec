"""What a partition knows of producers: the epoch of each and its last batch (Kafka's KIP-98).

By its last batch a retried one is known and applies once; another one under the same number is told
from it by its digest. By its epoch a producer is fenced once another one has opened its name.
Sequences are counted for each partition that a producer has sent to (`ProducerBatch.sent_to`): a
partition of a re-sharded zone knows those of its sources beside its own. A producer's epoch is the
highest of all of these, so that a partition fences whom one of its sources has fenced.

Two layers. `applied` stands in the engine and changes in the same step as the rows; `appended`
is what the log holds beyond that, rebuilt from entry headers when the log is opened or cut. A
lookup asks `appended` first: a retry may come before its first try has been applied.

The table has a limit, and forgets who wrote longest ago, but those with an epoch after all others.
Of these the highest epoch stays: names that are opened again get higher ones, and are not fenced by
what other partitions still know.
Nobody is forgotten who has written a moment before: a retry of that batch would be applied a second
time. So when only such producers are left the leader refuses those that are new
(docs/decisions/0213).
"""

import struct
import uuid
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from rezone.storage.log.entry import (
    NO_DIGEST,
    NO_PRODUCER,
    PRODUCER_KINDS,
    EntryHeader,
    EntryKind,
)
from rezone.storage.state.records import unpacked
from rezone.wire.messages import PartitionId, ProducerRecord

_RECORD: Final = struct.Struct(">IQQQ16s")
_SENT_TO_BYTES: Final = 4
_ID_BYTES: Final = 16
_PREFIX: Final = b"w"
_EVICT_TO: Final = 0.9
_FORGOTTEN: Final = NO_PRODUCER + bytes(_SENT_TO_BYTES)
"""Under this key stands the highest epoch of all that were forgotten: who opens one of their names
must come above it."""
_NEVER: Final = (1 << 63) - 1
PRODUCER_BYTES: Final = 290
"""What one takes in memory at most: key, record and epoch, and their places in dictionaries."""


class ProducerState(NamedTuple):
    """The last batch of a producer: epoch, sequence, the offset after it, its commit time, digest.

    Sequence 0: the epoch was opened, and no batch of it is known. The digest is `NO_DIGEST` where
    it is not known any more; it equals no batch's then.
    """

    epoch: int
    sequence: int
    end_offset: int
    commit_time: int
    digest: bytes = NO_DIGEST


BackfilledProducer = tuple[bytes, ProducerState]
"""A producer that a backfill has brought along (`reshard_entries.producers_of`), by its key."""


def uuid_bytes(text: str) -> bytes:
    """Return the 16 bytes of a UUID as entries carry it; ValueError when it is none."""
    return uuid.UUID(text).bytes


def uuid_text(key: bytes) -> str:
    """Return the UUID text of an entry's id."""
    return str(uuid.UUID(bytes=key))


def producer_key(producer_id: bytes, sent_to: PartitionId) -> bytes:
    """Return by what the table knows the batches that a producer has sent to a partition."""
    return producer_id + sent_to.to_bytes(_SENT_TO_BYTES, "big")


def record_of(key: bytes, state: ProducerState) -> ProducerRecord:
    """Return a producer's state as snapshots and pulls carry it."""
    sent_to = int.from_bytes(key[_ID_BYTES:], "big")
    return ProducerRecord(key[:_ID_BYTES], sent_to, *state)


def state_in(record: ProducerRecord) -> BackfilledProducer:
    """Return what a record says, by its key."""
    state = ProducerState(
        record.epoch, record.sequence, record.end_offset, record.commit_time, record.digest
    )
    return producer_key(record.producer_id, record.sent_to), state


class ProducerTable:
    """The last batches of a partition's producers; at most about `producers_max` are remembered.

    Beyond that the ones that wrote longest ago are forgotten, but none whose last batch has a
    commit time within `keep_micros` of the log's newest. The caller locks.
    """

    def __init__(self, producers_max: int, keep_micros: int = 0) -> None:
        self.producers_max = producers_max
        self._keep_micros = keep_micros
        self._applied: dict[bytes, bytes] = {}
        self._appended: dict[bytes, ProducerState] = {}
        # The epochs of those that have one; nearly nobody has.
        self._epochs: dict[bytes, int] = {}
        # Before that time too few are old enough: a full table is not gone through for each batch.
        self._old_from = 0

    def __len__(self) -> int:
        """Return how many producers are held, those twice that have a batch to apply."""
        return len(self._applied) + len(self._appended)

    def has_room(self, now: int) -> bool:
        """Whether one more producer may write at `now`, in microseconds since 1970."""
        if len(self) < self.producers_max:
            return True
        if now > self._old_from:
            oldest = min(self._times().values(), default=now)
            self._old_from = self._keep_micros + oldest
        return now > self._old_from

    def _times(self) -> dict[bytes, int]:
        """Return when each producer has written last, by its id."""
        times: dict[bytes, int] = {}
        for key, record in self._applied.items():
            producer, time = key[:_ID_BYTES], _unpacked(record).commit_time
            times[producer] = max(time, times.get(producer, 0))
        return times

    def load(self, state: Mapping[bytes, bytes]) -> None:
        """Take the applied layer from an engine's named state."""
        self._applied = {
            name[len(_PREFIX) :]: record
            for name, record in state.items()
            if name.startswith(_PREFIX)
        }
        self._appended = {}
        self._count_epochs()

    def get(self, key: bytes) -> ProducerState | None:
        """Return the last batch known by a key, applied or not."""
        return self._appended.get(key) or self._last_applied(key)

    def epoch(self, producer_id: bytes) -> int:
        """Return the highest epoch of a producer; 0 when it has none or is not known."""
        return self._epochs.get(producer_id, 0)

    def next_epoch(self, producer_id: bytes) -> int:
        """Return the epoch that the next opening of a producer gives."""
        return max(self.epoch(producer_id), self.epoch(NO_PRODUCER)) + 1

    def _last_applied(self, key: bytes) -> ProducerState | None:
        record = self._applied.get(key)
        return _unpacked(record) if record is not None else None

    def note(self, headers: Iterable[EntryHeader]) -> None:
        """Take appended entries into account."""
        for header in headers:
            if _is_of_producer(header):
                key, state = _key_of(header), _state_of(header)
                # Of its own producers a leader has appended what is later.
                if header.kind != EntryKind.RESHARD or _is_later(state, self.get(key)):
                    self._append(key, state)

    def note_backfilled(self, backfilled: Iterable[BackfilledProducer]) -> None:
        """Take the producers of appended backfills into account; of a known one, the later."""
        for key, state in backfilled:
            if _is_later(state, self.get(key)):
                self._append(key, state)

    def _append(self, key: bytes, state: ProducerState) -> None:
        self._appended[key] = state
        self._raise_epoch(key, state.epoch)

    def rebuild(self, headers: Iterable[EntryHeader]) -> None:
        """Replace the appended layer by what these entries say."""
        self._appended = {}
        self._count_epochs()
        self.note(headers)

    def advance(
        self, headers: Iterable[EntryHeader], backfilled: Iterable[BackfilledProducer] = ()
    ) -> dict[bytes, bytes | None]:
        """Move entries to the applied layer; return the engine state that must change with it."""
        changes: dict[bytes, bytes | None] = {}
        newest = 0
        for header in headers:
            newest = header.commit_time
            if _is_of_producer(header):
                key, state = _key_of(header), _state_of(header)
                if header.kind != EntryKind.RESHARD or _is_later(state, self._last_applied(key)):
                    self._apply(key, state, changes)
        for key, state in backfilled:
            if _is_later(state, self._last_applied(key)):
                self._apply(key, state, changes)
        if len(self._applied) > self.producers_max and newest > self._old_from:
            changes.update(self._evict(newest))
        return changes

    def _apply(self, key: bytes, state: ProducerState, changes: dict[bytes, bytes | None]) -> None:
        self._applied[key] = changes[_PREFIX + key] = _RECORD.pack(*state)
        self._raise_epoch(key, state.epoch)
        newest = self._appended.get(key)
        if newest is not None and newest.end_offset <= state.end_offset:
            del self._appended[key]

    def _evict(self, now: int) -> dict[bytes, bytes | None]:
        """Forget who is old enough at `now`, the oldest first and no more than need be.

        Whoever has an epoch goes last, and of what is known of it that epoch.
        """
        times = self._times()

        def rank(key: bytes) -> tuple[bool, int, bytes, int]:
            producer = key[:_ID_BYTES]
            epoch = _unpacked(self._applied[key]).epoch
            return producer in self._epochs, times[producer], producer, epoch

        by_age = sorted(self._applied.keys() - {_FORGOTTEN}, key=rank)
        surplus = len(by_age) - int(self.producers_max * _EVICT_TO)
        old = [key for key in by_age if times[key[:_ID_BYTES]] + self._keep_micros < now]
        evicted = old[:surplus]
        forgotten = max((_unpacked(self._applied.pop(key)).epoch for key in evicted), default=0)
        changes: dict[bytes, bytes | None] = {_PREFIX + key: None for key in evicted}
        if forgotten > self.epoch(NO_PRODUCER):
            self._apply(_FORGOTTEN, ProducerState(forgotten, 0, 0, _NEVER), changes)
        if len(evicted) < surplus:
            young = sorted(times[key[:_ID_BYTES]] for key in by_age if key in self._applied)
            self._old_from = young[surplus - len(evicted) - 1] + self._keep_micros
        self._count_epochs()
        return changes

    def set_back(
        self,
        undone: Iterable[EntryHeader],
        kept: Iterable[EntryHeader],
        offset: int,
        time: int,
        *,
        backfilled: Iterable[BackfilledProducer] = (),
    ) -> dict[bytes, bytes | None]:
        """Undo entries in the applied layer; return the engine state that must change with it.

        `rebuild` follows. `kept` are the headers of the log that stays, below `offset`;
        `backfilled` are the producers of backfills that are undone, which come before all else of
        their source. Where a producer's batch before is no longer in it, its sequence still follows
        from the undone ones: a producer sends a batch only when the one before was answered, so
        nobody will ask for that one's offset. An epoch whose opening is undone stays then: whoever
        had the one before was to lose it.
        """
        first: dict[bytes, ProducerState] = {}
        for key, state in backfilled:
            first.setdefault(key, state)
        for header in undone:
            if _is_of_producer(header):
                first.setdefault(_key_of(header), _state_of(header))
        affected = {
            key: ProducerState(known.epoch, max(known.sequence - 1, 0), offset, time)
            for key, known in first.items()
            if (held := self._last_applied(key)) is not None and held.end_offset > offset
        }
        found: dict[bytes, ProducerState] = {}
        if affected:
            for header in kept:
                key, state = _key_of(header), _state_of(header)
                below = _is_of_producer(header) and header.end_offset <= offset
                later = header.kind != EntryKind.RESHARD or _is_later(state, found.get(key))
                if key in affected and below and later:
                    found[key] = state
        changes: dict[bytes, bytes | None] = {}
        for key, restored in (affected | found).items():
            self._applied[key] = changes[_PREFIX + key] = _RECORD.pack(*restored)
        return changes

    def _raise_epoch(self, key: bytes, epoch: int) -> None:
        if epoch and epoch > self._epochs.get(key[:_ID_BYTES], 0):
            self._epochs[key[:_ID_BYTES]] = epoch

    def _count_epochs(self) -> None:
        """Find the epochs again: after some have gone."""
        self._epochs = {}
        for key, record in self._applied.items():
            self._raise_epoch(key, _unpacked(record).epoch)
        for key, state in self._appended.items():
            self._raise_epoch(key, state.epoch)

    def export(self) -> tuple[ProducerRecord, ...]:
        """Return the applied layer as a snapshot's header carries it."""
        return tuple(record_of(key, _unpacked(record)) for key, record in self._applied.items())

    def take_over(self, records: Iterable[ProducerRecord]) -> dict[bytes, bytes | None]:
        """Replace everything by a snapshot's table; return the engine state for it."""
        changes: dict[bytes, bytes | None] = {_PREFIX + key: None for key in self._applied}
        states = map(state_in, records)
        self._applied = {key: _RECORD.pack(*state) for key, state in states}
        self._appended = {}
        self._count_epochs()
        changes.update((_PREFIX + key, record) for key, record in self._applied.items())
        return changes


def _unpacked(record: bytes) -> ProducerState:
    return ProducerState._make(unpacked(_RECORD, record))


def _is_of_producer(header: EntryHeader) -> bool:
    return header.kind in PRODUCER_KINDS and header.producer_id != NO_PRODUCER


def _is_later(state: ProducerState, known: ProducerState | None) -> bool:
    """Whether a batch comes after the one that is known.

    Sources of one partition may both know a producer of the layout before theirs, one of them a
    later batch: the earlier one without rows in its range (docs/decisions/0162).
    """
    return known is None or known[:2] < state[:2]


def _key_of(header: EntryHeader) -> bytes:
    return producer_key(header.producer_id, header.sent_to)


def _state_of(header: EntryHeader) -> ProducerState:
    return ProducerState(
        header.producer_epoch,
        header.sequence,
        header.end_offset,
        header.commit_time,
        header.digest,
    )
