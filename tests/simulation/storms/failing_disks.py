"""Disks that refuse to write or to sync, at any moment and for a while, under one partition.

One machine after the other, or two at a time, has no space or gives I/O errors: in the middle of
an append, of a sync, of the facts, of a replica that is being opened. Machines also crash, with
what failed syncs have lost. With `slow`, syncs of one machine or of several also take long, or do
not come back until the disk is well.

What must hold: every acknowledged row is there at the end, whoever leads; while the disk of one
node fails the others take writes; and once all disks are well all replicas are in sync, without an
end of a process.
"""

from __future__ import annotations

import contextlib
import errno
import math
import random
import uuid

from rezone.datanode.replica.replica import Replica
from rezone.datanode.writing.change import PreparedRows
from rezone.storage.log.entry import rows_batch
from rezone.wire.errors import RezoneError
from rezone.wire.messages import (
    DiskTrouble,
    NodeId,
    PartitionId,
    WriteRequest,
    WriteResult,
    ZoneConfig,
)
from simulation.storms.data_plane import MINIMUM, NODES, REPLICAS, DataPlane, values_of

P = 0
FAULT_CHANCE = 0.02
FAULT_SECONDS_MAX = 10.0
CRASH_CHANCE = 0.004
WRITE_CHANCE = 0.3
HEALED_SECONDS_MAX = 20.0
"""The longest pause before a failed replica is opened, and catching up."""

SLOW_CHANCE = 0.01
SYNC_SECONDS = (0.0, 0.0, 0.05, 0.5, 4.0, math.inf)
SLOW_SECONDS_MAX = 60.0
"""For so long a disk counts as slow that is well again."""

ERRORS = (errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT)
ROW = b"\x00" * 8 + b"k"


class FailingDisks(DataPlane):
    """One run, from its seed."""

    def __init__(self, seed: int, *, crashes: bool = True, slow: bool = False) -> None:
        config = ZoneConfig(
            zone="z",
            zone_uid="u",
            partitions=1,
            replicas=REPLICAS,
            min_in_sync_replicas=MINIMUM,
        )
        super().__init__(random.Random(f"failing disks {seed}"), config, 1_000)
        self.may_crash = crashes
        self.may_be_slow = slow
        self.rows = [ROW]
        self.written = 0
        self.until: dict[NodeId, float] = {}
        self.heard_failed: set[NodeId] = set()
        self.begin([P])

    def check_well(self, partition: Replica) -> None:
        """Find a replica not damaged, though it may have failed."""
        assert not partition.store.meta.damage, partition.store.meta.damage
        self.counts["failed"] += bool(partition.failure)
        if self.may_be_slow:
            self.counts["stalled"] += partition.failing.disk is DiskTrouble.SLOW

    def step(self) -> None:
        """Let a moment pass; a report that was sent before it has arrived by its end."""
        self.heard_failed = {each.node_id for each in self.replicas() if each.failure}
        super().step()

    def alive(self, partition: PartitionId) -> list[NodeId]:
        """Return the nodes that can lead the partition as far as is known."""
        del partition
        return [node for node in self.network.nodes if node not in self.heard_failed]

    def disturb(self) -> None:
        """Perhaps have a disk fail, or be well again, or a machine crash."""
        now = self.loop.monotonic()
        for node, until in [*self.until.items()]:
            if until <= now:
                self.mend(node)
        if self.rng.random() < FAULT_CHANCE and len(self.until) < 2:
            seconds = self.rng.uniform(0.05, FAULT_SECONDS_MAX)
            self.fail(self.rng.choice(NODES), self.rng.choice(ERRORS), now + seconds)
        if self.may_be_slow and self.rng.random() < SLOW_CHANCE:
            node, seconds = self.rng.choice(NODES), self.rng.choice(SYNC_SECONDS)
            self.machines[node].sync_seconds = seconds
        if self.may_crash and self.rng.random() < CRASH_CHANCE:
            self.end(self.rng.choice(NODES))
        for node in NODES:
            # A process that finds its disk failing at its start is started again and again.
            if node not in self.network.nodes and not self.machines[node].error:
                self.start(node)

    def fail(self, node: NodeId, error: int, until: float) -> None:
        """Have a node's disk refuse everything for so long."""
        self.machines[node].error = error
        self.until[node] = until
        self.counts["faults"] += 1

    def mend(self, node: NodeId) -> None:
        """Have a node's disk be well again."""
        self.machines[node].error = 0
        del self.until[node]

    def ask(self) -> None:
        """Perhaps write; read what was acknowledged, at whoever believes to lead."""
        if self.rng.random() < WRITE_CHANCE:
            self.write()
        self.read_newest()

    def calm(self) -> None:
        """Make all disks well."""
        for node in [*self.until]:
            self.mend(node)
        for machine in self.machines.values():
            machine.sync_seconds = 0.0
        super().calm()

    def settle(self) -> None:
        """All replicas must be in sync, and have what was acknowledged."""
        whole_at = self.loop.time()
        self.write()
        self.wait_for(self.whole, lambda: [(p.failure, p.following.error) for p in self.members()])
        seconds = self.loop.time() - whole_at
        healed_in = HEALED_SECONDS_MAX + (SLOW_SECONDS_MAX if self.may_be_slow else 0)
        assert seconds < healed_in, f"{seconds:.1f} s"
        (leader,) = [each for each in self.members() if each.leads]
        self.wait_for(lambda: leader.store.applied == leader.store.log_end, lambda: leader)
        missing = self.acknowledged[ROW] - values_of(leader, ROW).keys()
        assert not missing, f"acknowledged and lost: {missing}"
        self.counts["failures"] += sum(disk.failures for disk in self.machines.values())

    def whole(self) -> bool:
        """Whether all replicas are in sync and have the same log."""
        record, replicas = self.records[P], self.members()
        ends = {each.store.durable_end for each in replicas}
        streaming = sum(len(each.leading.streams) for each in replicas if each.leads)
        everyone = len(replicas) == REPLICAS and streaming == REPLICAS - 1
        well = not any(each.failure or each.closed for each in replicas)
        return everyone and well and {*record.isr} == {*record.replicas} and len(ends) == 1

    def members(self) -> list[Replica]:
        """Return the partition's replicas."""
        return [each for each in self.replicas() if each.node_id in self.records[P].replicas]

    def write(self) -> None:
        """Write the row to all who believe to lead."""
        for leader in self.leaders(P):
            self.written += 1
            value = b"value %d" % self.written

            def reply(outcome: object, value: bytes = value) -> None:
                if isinstance(outcome, WriteResult):
                    self.acknowledged[ROW].add(value)
                    self.counts["written"] += 1

            writer = uuid.UUID(int=self.written).hex
            request = WriteRequest(opaque=0, partition=P, producer_id=writer, sequence=1)
            prepared = PreparedRows(rows_batch([ROW], [0], [value]), 100)
            with contextlib.suppress(RezoneError), self.mortals():
                leader.write(request, prepared, reply)
