"""Disks whose syncs take long, or do not come back, under a zone with the real coordinator.

Clients write to every partition without a pause, each the next row when the one before is
answered; how many are, and the longest time without one, is what is looked at.

`storm` runs disks that are slow at random under one partition, and with some seeds such a zone.
"""

from __future__ import annotations

import contextlib
import math
import random
import uuid
from collections import Counter, defaultdict
from typing import Self

from rezone.datanode.replica.replica import Replica
from rezone.datanode.writing.change import PreparedRows
from rezone.resources.conditions import ConditionType, Reason
from rezone.storage.log.entry import rows_batch
from rezone.wire.errors import RezoneError
from rezone.wire.messages import NodeId, PartitionId, Role, WriteRequest, WriteResult
from simulation.cluster.world import World
from simulation.scenarios.scenarios import Start, at_rest
from simulation.storms.failing_disks import FailingDisks

START = Start(partitions=4, replicas=3, nodes=4)
WRITERS = 4
MORE_SECONDS = 10.0
"""How long a world may take until it says that it is at rest."""


class Writers:
    """The clients of all partitions of a world; what they see since `begin`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._sent = 0
        self._open: Counter[PartitionId] = Counter()
        self._answered_at: dict[PartitionId, float] = {}
        self._begun_at = 0.0
        self.answered: Counter[PartitionId] = Counter()
        self.longest_gap: dict[PartitionId, float] = defaultdict(float)
        self.now = 0.0
        self.begin()

    def begin(self) -> None:
        """Count again from here on."""
        now = self._begun_at = self.now = self._world.loop.time()
        self.answered.clear()
        self.longest_gap.clear()
        self._answered_at = dict.fromkeys(range(START.partitions), now)

    @property
    def rate(self) -> float:
        """The writes that were answered in a second."""
        return self.answered.total() / (self.now - self._begun_at)

    @property
    def gap(self) -> float:
        """The longest time in which a partition has answered nothing, in seconds."""
        return max(max(self.longest_gap[p], self.now - at) for p, at in self._answered_at.items())

    def step(self) -> None:
        """Have each client that waits for nothing write."""
        self.now = self._world.loop.time()
        for replica in list(self._world.replicas()):
            if replica.role is Role.LEADER:
                for _ in range(WRITERS - self._open[replica.partition_id]):
                    self._write(replica)

    def _write(self, replica: Replica) -> None:
        partition = replica.partition_id
        self._sent += 1
        start, _ = replica.hash_range
        row = start.to_bytes(8) + b"client %d" % (self._sent % WRITERS)
        writer = uuid.UUID(int=1 << 64 | self._sent).hex
        request = WriteRequest(
            opaque=self._sent, partition=partition, producer_id=writer, sequence=1
        )
        prepared = PreparedRows(rows_batch([row], [0], [b"value %d" % self._sent]), 100)

        def reply(result: object) -> None:
            self._open[partition] -= 1
            if isinstance(result, WriteResult):
                self._world.checks.acknowledged(replica, result.end_offset)
                self._note(partition)

        self._open[partition] += 1
        try:
            with self._world.mortals():
                replica.write(request, prepared, reply)
        except RezoneError:
            self._open[partition] -= 1

    def _note(self, partition: PartitionId) -> None:
        now = self._world.loop.time()
        gap = now - self._answered_at[partition]
        self.longest_gap[partition] = max(self.longest_gap[partition], gap)
        self._answered_at[partition] = now
        self.answered[partition] += 1


class SlowDisks:
    """A zone at rest that is written to; to be used as a context."""

    def __init__(self, seed: int) -> None:
        self._exits = contextlib.ExitStack()
        self.world = World(seed, at_rest(START))
        self.slow: dict[NodeId, float] = {}
        self._until, self._writing = 0.0, True
        self.writers = Writers(self.world)
        self.world.each_step = self._step

    def __enter__(self) -> Self:
        """Begin to write."""
        self._exits.enter_context(self.world)
        self.run(3.0)
        self.writers.begin()
        return self

    def __exit__(self, *_: object) -> None:
        """End the world."""
        self._exits.close()

    def run(self, seconds: float, *, writing: bool = True) -> None:
        """Let time pass, with clients that write or without."""
        self._until, self._writing = self.world.loop.time() + seconds, writing
        self.world.run(seconds + MORE_SECONDS, self._left)

    def _step(self, world: World) -> None:
        if self._writing and self._left(world):
            world.disturbed()  # short steps
            self.writers.step()

    def _left(self, world: World) -> list[str]:
        return ["time"] if world.loop.time() < self._until else []

    def delay(self, seconds: float, *nodes: NodeId) -> None:
        """Have each sync of these nodes take so long."""
        for node in nodes:
            self.world.network.nodes[node].machine.sync_seconds = seconds

    def leads(self, node: NodeId) -> list[PartitionId]:
        """Return the partitions whose record names a node as their leader."""
        return [p for p, record in self.world.checks.routes.items() if record.leader == node]

    def leader_of_most(self) -> NodeId:
        """Return the node that leads most partitions."""
        return max(sorted(self.world.network.nodes), key=lambda node: len(self.leads(node)))

    def degraded(self) -> tuple[str, str]:
        """Return why the zone is degraded, and the text; empty when it is not."""
        status = self.world.zone().status
        found = status.conditions if status is not None else ()
        of = [c for c in found if c.type == ConditionType.DEGRADED and c.status == "True"]
        return (of[0].reason, of[0].message) if of else ("", "")

    def whole(self) -> bool:
        """Whether all replicas are in sync."""
        return all({*r.isr} == {*r.replicas} for r in self.world.checks.routes.values())

    def leader_moves(self) -> int:
        """Return how often leaders have changed."""
        return sum(record.leader_epoch for record in self.world.checks.routes.values())


# --- what is right -------------------------------------------------------------------------------

SLOW_SECONDS = (0.5, 4.0, math.inf)
WELL_SECONDS = 75.0
"""A disk counts as slow for 30 s after the last slow sync, and that is known for another 30 s."""

GAP_SECONDS_MAX = 4.0
"""A leader steps down after 1.5 s. The next one waits for leases, 2 s, if the coordinator's call
reached it before the message that they are given up: here that may be in the same moment."""

RATE_MIN = 0.7
"""Of the rate before, though a slow node leads and follows for the first of twelve seconds."""


def check_one_slow(run: SlowDisks, node: NodeId, seconds: float) -> None:
    """Assert that a node whose disk is slow leads nothing and holds nobody up until it is well."""
    before = run.writers.rate
    led, moves = len(run.leads(node)), run.leader_moves()
    run.delay(seconds, node)
    run.writers.begin()
    run.run(12.0)
    assert run.writers.rate > RATE_MIN * before
    assert run.writers.gap < GAP_SECONDS_MAX
    assert (len(run.leads(node)), run.leader_moves() - moves) == (0, led)
    reason, message = run.degraded()
    assert (reason, f"data node {node}:" in message) == (Reason.DISK_SLOW, True), message
    run.delay(0.0, node)
    run.run(WELL_SECONDS, writing=False)
    assert run.whole(), run.world.checks.routes
    assert (run.degraded(), run.leader_moves() - moves) == (("", ""), led)


def check_all_slow(run: SlowDisks, seconds: float) -> None:
    """Assert that nobody steps down where all disks are slow."""
    nodes, moves = [*run.world.network.nodes], run.leader_moves()
    run.delay(seconds, *nodes)
    run.run(15.0)
    run.delay(0.0, *nodes)
    run.run(WELL_SECONDS, writing=False)
    assert run.leader_moves() == moves, run.world.checks.routes
    assert run.whole(), run.world.checks.routes


# --- storms --------------------------------------------------------------------------------------

ZONE_EVERY = 8
"""One seed of so many has a zone with a coordinator: that costs eight times as much."""

ALL_SLOW_EVERY = 4
"""In one such zone of so many all disks are slow."""


def storm(seed: int) -> Counter[str]:
    """Run disks that are slow at random, or a zone with such disks; returns what has happened."""
    if seed % ZONE_EVERY == ZONE_EVERY - 1:
        return _zone(seed)
    run = FailingDisks(seed, slow=True)
    run.run()
    return run.counts


def _zone(seed: int) -> Counter[str]:
    """Run a zone with one slow disk, or with slow disks alone, from any moment on."""
    rng = random.Random(f"slow disks {seed}")
    with SlowDisks(seed) as run:
        run.run(rng.uniform(2.0, 8.0))
        moves, one = run.leader_moves(), seed // ZONE_EVERY % ALL_SLOW_EVERY < ALL_SLOW_EVERY - 1
        if one:
            check_one_slow(run, rng.choice([*run.world.network.nodes]), rng.choice(SLOW_SECONDS))
        else:
            check_all_slow(run, rng.choice((0.05, 0.5, 4.0)))
        moved = run.leader_moves() - moves
    return Counter({"one slow disk": one, "all disks slow": not one, "leaders moved": moved})
