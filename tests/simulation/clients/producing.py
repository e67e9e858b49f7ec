"""Producers with names in storms: one process after the other opens a name and writes under it.

Of each name several processes live at a time: the newest, and others that were paused or cut off
and go on as if nothing had happened. Each writes one row at a time, every time another value, and
goes on with it until it is answered or fenced; many answers are lost. Of some openings another copy
arrives, at any time later.

What must hold: no epoch is given twice, and no new one to a late copy of an opening; no number
counts as used by other rows; what was acknowledged is there, once; and where a write of an epoch
was acknowledged no write of a lower one is later, neither there nor in the partitions that have
taken its place.
"""

from __future__ import annotations

import collections
import dataclasses
import random
import uuid
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from rezone.datanode.replica.replica import Replica
from rezone.datanode.writing.change import PreparedRows
from rezone.datanode.writing.producing import prepare_open
from rezone.storage.engines.base import TIME_MAX
from rezone.storage.log.entry import rows_batch
from rezone.storage.state.producers import uuid_bytes
from rezone.wire.codec.producers import digest_of, home_hash, producer_id_of
from rezone.wire.errors import (
    ConflictError,
    ProducerFencedError,
    ReshardedError,
    RezoneError,
    SequenceReusedError,
)
from rezone.wire.messages import (
    OriginalId,
    PartitionId,
    ProducerOpen,
    ProducerOpened,
    WriteRequest,
    WriteResult,
)
from simulation.clients.storm_clients import CopyStormOf, CutOverOf
from simulation.storms.copy_storm import PARTITION
from simulation.storms.data_plane import DataPlane, values_of

NAMES = 2
LIVES_MAX = 3
TAKE_OVER_CHANCE = 0.015
PAUSE_CHANCE = 0.02
PAUSE_SECONDS_MAX = 6.0
LOST_ANSWERS = 0.15
LATE_COPIES = 0.5
LATE_SECONDS_MAX = 4.0
PATIENCE_SECONDS = 0.6
ROWS = 6


class Ack(NamedTuple):
    """An acknowledged write."""

    epoch: int
    partition: PartitionId
    row: bytes
    value: bytes
    commit_time: int


@dataclasses.dataclass(eq=False)
class Asked:
    """A request that is repeated until it is answered: an opening, or the write of a row."""

    row: bytes
    value: bytes = b""
    names: dict[PartitionId, OriginalId] = dataclasses.field(default_factory=dict)
    partition: PartitionId = -1
    since: float = 0.0
    opening: ProducerOpen | None = None
    outcome: object = None


@dataclasses.dataclass(eq=False)
class Process:
    """One that writes under a name; without an epoch it has yet to open it."""

    producer_id: str
    epoch: int | None = None
    sequences: collections.Counter[PartitionId] = dataclasses.field(
        default_factory=collections.Counter
    )
    opening: str = ""
    known_epoch: int = 0
    asked: Asked | None = None
    paused_until: float = 0.0


class Named:
    """The producers of a run; `partition_of` tells who serves a row, as far as clients know."""

    def __init__(
        self,
        plane: DataPlane,
        seed: int,
        rows: Sequence[bytes],
        partition_of: Callable[[bytes], PartitionId],
        *,
        value_of: Callable[[bytes], bytes] = bytes,
        resharded: Callable[[PartitionId], None] = lambda _: None,
    ) -> None:
        self._plane = plane
        self._rng = random.Random(f"named producers {seed}")
        self._rows = rows
        self._partition_of = partition_of
        self._value_of = value_of
        self._resharded = resharded
        self._number = 0
        self._ids = [producer_id_of("u", f"name {n}") for n in range(NAMES)]
        self._given: dict[str, dict[int, Process]] = {one: {} for one in self._ids}
        self._acks: dict[str, list[Ack]] = {one: [] for one in self._ids}
        self._unanswered: set[tuple[bytes, bytes]] = set()
        self._processes = [self._begun(one) for one in self._ids]
        self._late: list[tuple[float, Callable[[], None]]] = []
        self._answers: list[tuple[Process, object]] = []

    def _begun(self, producer_id: str) -> Process:
        return Process(producer_id, opening=str(uuid.UUID(int=self._rng.getrandbits(128))))

    @property
    def idle(self) -> bool:
        """Whether nobody waits for an answer."""
        return all(process.asked is None for process in self._processes)

    def close(self) -> None:
        """End nothing: no process waits in a thread."""

    def step(self, *, storm: bool) -> None:
        """Go on with what each process does; in a storm others take over."""
        now = self._plane.loop.monotonic()
        self._deliver_late(now)
        for one in self._ids if storm else ():
            if self._rng.random() < TAKE_OVER_CHANCE:
                self._processes.append(self._begun(one))
                lives = [process for process in self._processes if process.producer_id == one]
                if len(lives) > LIVES_MAX:
                    self._processes.remove(self._rng.choice(lives[:-1]))
        for process in list(self._processes):
            if storm and self._rng.random() < PAUSE_CHANCE:
                process.paused_until = now + self._rng.uniform(0, PAUSE_SECONDS_MAX)
            if not storm or now >= process.paused_until:
                self._go_on(process, now, storm=storm)
        self._check_answers()

    def _go_on(self, process: Process, now: float, *, storm: bool) -> None:
        asked = process.asked
        if asked is None:
            if not storm:
                return
            asked = process.asked = self._next_of(process)
        outcome = asked.outcome
        assert not isinstance(outcome, (SequenceReusedError, ConflictError)), outcome
        if isinstance(outcome, ProducerOpened):
            process.epoch, process.asked = outcome.producer_epoch, None
            self._plane.counts["opened"] += 1
        elif isinstance(outcome, WriteResult):
            self._acknowledged(process, asked, outcome)
        elif isinstance(outcome, ProducerFencedError) and process.epoch is None:
            # Another one has opened the name since: this one opens it behind that.
            process.known_epoch = int(outcome.details["producer_epoch"])
            self._ask(process, asked, now)
        elif isinstance(outcome, ProducerFencedError):
            self._plane.counts["fenced"] += 1
            self._processes.remove(process)
        else:
            if isinstance(outcome, ReshardedError):
                self._resharded(asked.partition)
            elif outcome is None and now - asked.since < PATIENCE_SECONDS:
                return
            self._ask(process, asked, now)

    def _next_of(self, process: Process) -> Asked:
        if process.epoch is None:
            return Asked(home_hash(process.producer_id).to_bytes(8, "big"))
        self._number += 1
        row = self._rng.choice(self._rows)
        value = self._value_of(b"named %d" % self._number)
        self._unanswered.add((row, value))
        return Asked(row, value)

    def _ask(self, process: Process, asked: Asked, now: float) -> None:
        """Send it, to whoever believes to lead; the answer may be lost."""
        asked.partition, asked.outcome, asked.since = self._partition_of(asked.row), None, now
        request, prepared = self._request(process, asked)
        lost = self._rng.random() < LOST_ANSWERS

        def reply(outcome: object) -> None:
            self._answers.append((process, outcome))
            # A client waits for one opening at a time: that of an earlier one says nothing to it.
            over = isinstance(request, ProducerOpen) and request != asked.opening
            if not (lost or over or isinstance(asked.outcome, (WriteResult, ProducerOpened))):
                asked.outcome = outcome

        if isinstance(request, ProducerOpen):
            asked.opening = request
            if self._rng.random() < LATE_COPIES:
                self._copy(process, request, prepared, now)
        self._send(request, prepared, reply)

    def _send(
        self,
        request: WriteRequest | ProducerOpen,
        prepared: PreparedRows,
        reply: Callable[[object], None],
    ) -> None:
        for leader in self._plane.leaders(request.partition)[:1]:
            try:
                with self._plane.mortals():
                    leader.write(request, prepared, reply)
            except RezoneError as error:
                reply(error)

    def _copy(
        self, process: Process, request: ProducerOpen, prepared: PreparedRows, now: float
    ) -> None:
        """Have a copy of an opening arrive later; nobody waits for its answer."""

        def reply(outcome: object) -> None:
            self._answers.append((process, outcome))
            self._plane.counts["late openings"] += 1

        due = now + self._rng.uniform(0, LATE_SECONDS_MAX)
        self._late.append((due, lambda: self._send(request, prepared, reply)))

    def _deliver_late(self, now: float) -> None:
        due = [send for at, send in self._late if at <= now]
        self._late = [each for each in self._late if each[0] > now]
        for send in due:
            send()

    def _check_answers(self) -> None:
        """Assert that no epoch is given twice, and no higher one to who has opened the name.

        Not where an answer arrives: there a failed assertion would pass for a failed replica.
        """
        for process, outcome in self._answers:
            if not isinstance(outcome, ProducerOpened):
                continue
            epoch = outcome.producer_epoch
            holder = self._given[process.producer_id].setdefault(epoch, process)
            assert holder is process, "an epoch is given twice"
            opened = process.epoch
            assert opened is None or epoch <= opened, "a late opening fences its own client"
        self._answers.clear()

    def _request(
        self, process: Process, asked: Asked
    ) -> tuple[WriteRequest | ProducerOpen, PreparedRows]:
        partition = asked.partition
        if process.epoch is None:
            opening = ProducerOpen(
                opaque=0,
                partition=partition,
                producer_id=process.producer_id,
                opening=process.opening,
                known_epoch=process.known_epoch,
            )
            return opening, prepare_open(opening)
        digest = digest_of(asked.row + asked.value, delete=False)
        if partition not in asked.names:
            process.sequences[partition] += 1
            asked.names[partition] = OriginalId(partition, process.sequences[partition], digest)
        request = WriteRequest(
            opaque=0,
            partition=partition,
            producer_id=process.producer_id,
            producer_epoch=process.epoch,
            sequence=asked.names[partition].sequence,
            original_ids=tuple(name for p, name in asked.names.items() if p != partition),
        )
        return request, PreparedRows(
            rows_batch([asked.row], [0], [asked.value]), 100, digest=digest
        )

    def _acknowledged(self, process: Process, asked: Asked, result: WriteResult) -> None:
        assert process.epoch is not None
        self._plane.counts["named writes"] += 1
        newest = max((one.epoch for one in self._acks[process.producer_id]), default=0)
        self._plane.counts["late writes"] += process.epoch < newest
        self._acks[process.producer_id].append(
            Ack(process.epoch, asked.partition, asked.row, asked.value, result.commit_time)
        )
        self._unanswered.discard((asked.row, asked.value))
        process.asked = None

    # --- what must hold --------------------------------------------------------------------------

    def check_fences(self, places: Callable[[PartitionId], Collection[PartitionId]]) -> None:
        """Assert that nobody wrote behind a higher epoch; `places`: a partition, its sources."""
        for acks in self._acks.values():
            for low in acks:
                for high in acks:
                    if high.epoch > low.epoch and high.partition in places(low.partition):
                        assert low.commit_time < high.commit_time, f"{low} is behind {high}"

    def check_rows(self, replica_of: Callable[[bytes], Replica], *, all_versions: bool) -> None:
        """Assert that what was acknowledged is there, once, and that who wrote it is known."""
        of_rows: dict[bytes, list[Ack]] = collections.defaultdict(list)
        for producer_id, acks in self._acks.items():
            for ack in acks:
                of_rows[ack.row].append(ack)
                known = replica_of(ack.row).store.producer(uuid_bytes(producer_id), 0)[0]
                assert known >= ack.epoch, f"epoch {ack.epoch} is forgotten"
        for row, acks in of_rows.items():
            replica = replica_of(row)
            times = {ack.value: ack.commit_time for ack in acks}
            if all_versions:
                # A target answers a repeat with its reshard stream's time, which may be a later
                # one.
                kept = values_of(replica, row)
                assert times.keys() <= kept.keys(), f"{times.keys() - kept.keys()} are lost"
                times = {value: kept[value] for value in times}
            (newest,) = replica.store.engine.newest_times([row])
            (found,) = replica.store.reader.newest([row], TIME_MAX)
            last = max(times, key=times.__getitem__)
            assert newest >= times[last], f"{last!r} of {row!r} is lost"
            known = found == last or (row, found) in self._unanswered
            assert known, f"{row!r} is {found!r}, acknowledged last was {last!r}"


class NamedCutOver(CutOverOf[Named]):
    """A re-sharding under storms, with producers that take names over."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        rows = [bytes([n * 256 // ROWS]) * 8 + b"named%d" % n for n in range(ROWS)]
        self.more = Named(self, seed, rows, self._partition_of, resharded=self.told.add)

    def _check_end(self) -> None:
        super()._check_end()
        self.more.check_fences(self._places)
        self.more.check_rows(self.leader_of, all_versions=True)

    def _places(self, partition: PartitionId) -> set[PartitionId]:
        return {partition, *(part.old for part in self.sources.get(partition, ()))}


class NamedCopyStorm(CopyStormOf[Named]):
    """Copies in both forms under storms, with producers that take names over."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        rows = self._rows_of(b"named%d", ROWS)
        self.more = Named(self, seed, rows, lambda _: PARTITION, value_of=self._value_of)

    def settle(self) -> None:
        """Wait until all is copied; each replica must know what was acknowledged, and who wrote."""
        super().settle()
        self.more.check_fences(lambda partition: {partition})
        for_ever = self.config.version_retention_seconds > 1
        for replica in self.replicas():
            self.more.check_rows(lambda _, here=replica: here, all_versions=for_ever)  # type: ignore[misc]


def storm(seed: int) -> collections.Counter[str]:
    """Run a re-sharding by an even seed, copies by an odd one; returns what has happened."""
    run = NamedCopyStorm(seed) if seed % 2 else NamedCutOver(seed)
    run.run()
    return run.counts
