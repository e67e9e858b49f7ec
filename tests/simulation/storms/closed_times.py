"""Closed timestamps while nodes restart, with clocks that are wrong by far: what was read stays so.

Two partitions to which hardly anything is written, so that the times that their leaders close are
far above those of any row, and nothing but what nodes have been told keeps the next row above
them.
Each start of a node gives it another clock, ahead or behind: as one that was set back while the
node was down. Now and then what says what it has been told is damaged.

What must hold: no read as of a time ever changes, whoever answers it, whenever; and at the end
writes are taken, and are seen.
"""

from __future__ import annotations

import contextlib
import random
import uuid

from rezone.datanode.reading.read import readable
from rezone.datanode.writing.change import PreparedRows
from rezone.storage.log.entry import rows_batch
from rezone.wire.errors import RezoneError
from rezone.wire.messages import NodeId, PartitionId, WriteRequest, WriteResult, ZoneConfig
from simulation.storms.data_plane import (
    CALM_SECONDS_MAX,
    MINIMUM,
    PAST_MICROS,
    REPLICAS,
    DataPlane,
)

ERROR_MICROS = 20_000_000
WRITE_CHANCE = 0.02
ROWS = (b"\x00" * 8 + b"k", b"\xff" * 8 + b"k")
"""One of each partition."""

_TICKS = ERROR_MICROS // PAST_MICROS


class ClosedTimes(DataPlane):
    """One run, from its seed."""

    def __init__(self, seed: int) -> None:
        config = ZoneConfig(
            zone="z",
            zone_uid="u",
            partitions=len(ROWS),
            replicas=REPLICAS,
            min_in_sync_replicas=MINIMUM,
        )
        super().__init__(random.Random(f"closed timestamps {seed}"), config, ERROR_MICROS)
        self.rows = list(ROWS)
        self.written = 0
        self.begin(range(len(ROWS)))

    def start(self, node: NodeId) -> None:
        """Start a node, with another clock."""
        self.errors[node] = self.rng.randrange(-ERROR_MICROS, ERROR_MICROS)
        self.damage_bound(node)
        super().start(node)
        self.counts["starts"] += 1

    def ask(self) -> None:
        """Perhaps write."""
        if self.rng.random() < WRITE_CHANCE:
            self._write(self.rng.randrange(len(ROWS)))

    def settle(self) -> None:
        """Both partitions must take a write."""
        for number in range(len(ROWS)):
            self._write_on(number)

    def step(self) -> None:
        """Let a moment pass, and read."""
        super().step()
        for partition in self.replicas():
            closed = partition.positions.readable_time > partition.positions.rows_time
            self.counts["closed"] += closed
        self.read_past()

    def past_age(self) -> int:
        """Return any age that a clock may take for the present one."""
        return self.rng.randrange(-_TICKS, _TICKS)

    def _write(self, number: PartitionId) -> list[WriteResult]:
        """Write the partition's row to all who believe to lead; answers come into the list."""
        answers: list[WriteResult] = []

        def reply(outcome: object) -> None:
            if isinstance(outcome, WriteResult):
                self.counts["written"] += 1
                answers.append(outcome)

        for leader in self.leaders(number):
            self.written += 1
            writer = uuid.UUID(int=self.written).hex
            request = WriteRequest(opaque=0, partition=number, producer_id=writer, sequence=1)
            value = b"value %d" % self.written
            prepared = PreparedRows(rows_batch([ROWS[number]], [0], [value]), 100)
            with contextlib.suppress(RezoneError), self.mortals():
                leader.write(request, prepared, reply)
        return answers

    def _write_on(self, number: PartitionId) -> None:
        """Write until it is answered, and may be read as of its time at every replica."""
        until = self.loop.time() + CALM_SECONDS_MAX
        answers: list[WriteResult] = []
        while not (answers and self._may_be_read(number, answers[0].commit_time)):
            assert self.loop.time() < until, f"not written: {self.records}"
            self.coordinate()
            if self.rng.random() < WRITE_CHANCE:
                answers = answers or self._write(number)
            self.step()

    def _may_be_read(self, number: PartitionId, as_of: int) -> bool:
        replicas = [each for each in self.replicas() if each.partition_id == number]
        return all(readable(each, as_of)() for each in replicas)
