"""Clocks that are set: by seconds or by a month, on any number of nodes, back and forth.

The zone begins with clocks that agree. Then some of them are set, all by as much or each by an
amount of its own, perhaps again with every step, and after a while they are right again. Nodes die
and start meanwhile, by a clock that is wrong.

Now and then all nodes end at once. Two that start first have clocks that are wrong alike, and hear
each other before they hear anybody else. They are no majority of the nodes that they know of.

What must hold: no write gets a time that is not near the true one, no replica says that it may be
read up to a later one, no age is told that is less than the true one; and, as always, no read as of
a time ever changes. At the end writes are taken.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import uuid

from rezone.datanode.clock.checked_clock import FIRST_SECONDS
from rezone.datanode.reading.read import readable
from rezone.datanode.replica.replica import Replica
from rezone.datanode.settings import Clock
from rezone.datanode.state.age import age_ms_of
from rezone.datanode.writing.change import PreparedRows
from rezone.storage.log.entry import rows_batch
from rezone.wire.errors import NotReadyError, RezoneError
from rezone.wire.messages import NodeId, PartitionId, WriteRequest, WriteResult, ZoneConfig
from simulation.loop import VirtualLoop
from simulation.storms.data_plane import (
    CALM_SECONDS_MAX,
    MINIMUM,
    NODES,
    REPLICAS,
    DataPlane,
)

RIGHT_MICROS = 50_000
"""By so much are clocks wrong that are right."""

LEAST_MICROS, MOST_MICROS = 5_000_000, 30 * 86_400_000_000
NEAR_MICROS = 4_500_000
"""A time is near the true one: what clocks may differ by, and what is kept over a crash."""

STEP_CHANCE = 0.02
FLAP_CHANCE = 0.3
WELL_CHANCE = 0.02
WRITE_CHANCE = 0.1
RESTART_CHANCE = 0.003
PAIR_SECONDS = FIRST_SECONDS - 2.0
"""Until then the clocks of a pair are right again: later a majority of those heard is enough."""

ROWS = (b"\x00" * 8 + b"k", b"\xff" * 8 + b"k")
"""One of each partition."""


class SetClock:
    """A node's clock; its time of day is wrong by what `errors` has by then."""

    def __init__(self, loop: VirtualLoop, errors: dict[NodeId, int], node: NodeId) -> None:
        self._loop = loop
        self._errors = errors
        self._node = node

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        return self._loop.monotonic()

    def micros(self) -> int:
        """Return the time of day."""
        return self._loop.micros() + self._errors[self._node]


class WrongClocks(DataPlane):
    """One run, from its seed."""

    def __init__(self, seed: int) -> None:
        config = ZoneConfig(
            zone="z",
            zone_uid="u",
            partitions=len(ROWS),
            replicas=REPLICAS,
            min_in_sync_replicas=MINIMUM,
        )
        super().__init__(random.Random(f"wrong clocks {seed}"), config, RIGHT_MICROS)
        self.rows = list(ROWS)
        self.right = dict(self.errors)
        self.flapping: dict[NodeId, int] = {}
        self.well_at = math.inf
        self.written = 0
        self.begin(range(len(ROWS)))

    def clock_of(self, node: NodeId) -> Clock:
        """Return a clock that is set while the node runs."""
        return SetClock(self.loop, self.errors, node)

    def start(self, node: NodeId) -> None:
        """Start a node; when its clock is wrong, by an amount that no other's is.

        Nodes that have just begun, with clocks that are wrong alike, cannot know better.
        """
        if self._is_wrong(node) or node in self.flapping:
            self.counts["wrong starts"] += 1
            self.errors[node] = self._wrong()
            if node in self.flapping:
                self.flapping[node] = self.errors[node]
        self.damage_bound(node)
        super().start(node)

    def _is_wrong(self, node: NodeId) -> bool:
        return self.errors[node] != self.right[node]

    def _wrong(self) -> int:
        size = LEAST_MICROS * math.pow(MOST_MICROS / LEAST_MICROS, self.rng.random())
        return round(size) * self.rng.choice((-1, 1))

    # --- the storm -------------------------------------------------------------------------------

    def disturb(self) -> None:
        """Set clocks, and let happen what else does."""
        super().disturb()
        # A third clock that is wrong by nearly as much as a pair would make that a majority.
        is_paired = self.well_at < math.inf
        if self.loop.time() > 2.0 and self.rng.random() < STEP_CHANCE and not is_paired:
            self._set_clocks()
        for node, error in self.flapping.items():
            if self.rng.random() < FLAP_CHANCE:
                self.errors[node] = self.right[node] if self._is_wrong(node) else error
        if self.rng.random() < WELL_CHANCE or self.loop.time() > self.well_at:
            self._make_well()
        if self.loop.time() > 2.0 and self.rng.random() < RESTART_CHANCE:
            self._restart_all()

    def _restart_all(self) -> None:
        """End all nodes, and start two first, with clocks that are wrong alike."""
        pairs = [pair for pair in itertools.combinations(NODES, 2) if self._is_outvoted(pair)]
        if not pairs:
            return
        for node in list(self.network.nodes):
            self.kill(node)
        self._make_well()
        pair, alike = self.rng.choice(pairs), self._wrong()
        self.well_at = self.loop.time() + PAIR_SECONDS
        for node in pair:
            self.errors[node] = alike
            with self.mortals():
                super().start(node)
        self.counts["pairs"] += 1

    def _is_outvoted(self, pair: tuple[NodeId, NodeId]) -> bool:
        """Whether two nodes hear each other, and are no majority of those that either knows of."""
        held = [set(record.replicas) for record in self.records.values()]
        known = [set().union(*(each for each in held if node in each)) for node in pair]
        hear = any(set(pair) <= each for each in held)
        return hear and all(2 * len(pair) <= len(each) for each in known)

    def _set_clocks(self) -> None:
        """Set the clocks of some nodes, all by as much or each by an amount of its own."""
        alike = self._wrong() if self.rng.random() < 0.7 else None
        flaps = self.rng.random() < 0.3
        for node in self.rng.sample(NODES, self.rng.randint(1, len(NODES))):
            up = self.network.nodes.get(node)
            knows = alike is not None and up is not None and up.clock.gives
            self.errors[node] = alike if alike is not None and knows else self._wrong()
            self.counts["set"] += 1
            if flaps:
                self.flapping[node] = self.errors[node]

    def _make_well(self) -> None:
        self.well_at = math.inf
        self.flapping.clear()
        self.errors.update(self.right)

    def calm(self) -> None:
        """End all faults."""
        self._make_well()
        super().calm()

    def ask(self) -> None:
        """Perhaps write."""
        if self.rng.random() < WRITE_CHANCE:
            self._write(self.rng.randrange(len(ROWS)))

    def settle(self) -> None:
        """Both partitions must take a write, which may be read everywhere as of its time."""
        for number in range(len(ROWS)):
            self._write_on(number)

    def alive(self, partition: PartitionId) -> list[NodeId]:
        """Return the nodes that can lead, as far as is known: not those with a wrong clock."""
        return [n for n in super().alive(partition) if not self.network.nodes[n].clock.is_off]

    def step(self) -> None:
        """Let a moment pass; times must be near the true one, and ages no less than they are."""
        super().step()
        for partition in self.replicas():
            self._check_times(partition)
        self.read_past()

    def _check_times(self, partition: Replica) -> None:
        now, positions = self.loop.micros(), partition.positions
        where = f"partition {partition.partition_id} at node {partition.node_id}"
        for what, time in (
            ("the last row", partition.store.last_commit_time),
            ("what may be read", positions.readable_time),
            ("what is told", partition.host.clock_bound.until),
            ("the floor", partition.write_clock.floor),
        ):
            assert time <= now + NEAR_MICROS, f"{what} of {where} is {(time - now) / 1e6} s ahead"
        as_of = positions.readable_time
        with partition.lock, contextlib.suppress(RezoneError):
            age_ms = age_ms_of(partition, as_of)
            true_ms = (now - as_of) // 1000
            assert age_ms < 0 or age_ms >= true_ms - NEAR_MICROS // 1000, f"{age_ms} is {true_ms}"
            self.counts["ages"] += 1

    def _write(self, number: PartitionId) -> list[WriteResult]:
        """Write the partition's row to all who believe to lead; answers come into the list."""
        answers: list[WriteResult] = []
        begun = self.loop.micros()

        def reply(outcome: object) -> None:
            if isinstance(outcome, WriteResult):
                self.counts["written"] += 1
                self.counts["written while wrong"] += any(map(self._is_wrong, NODES))
                late, now = outcome.commit_time < begun - NEAR_MICROS, self.loop.micros()
                off = outcome.commit_time - now
                assert off <= NEAR_MICROS, f"a row's time is {off / 1e6} s ahead"
                assert not late, f"a row's time is {(begun - outcome.commit_time) / 1e6} s behind"
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
        try:
            return all(readable(each, as_of)() for each in replicas)
        except NotReadyError:
            return False  # a node that does not know the time yet
