"""A zone's data nodes without an operator: who leads is decided by a coordinator of a few lines.

The nodes are the real ones of `node`; they die, lose what they had not synced, and lose sight of
each other. Their clocks are wrong, each by an amount of its own. What is asked of them, and what
must hold beyond reads as of a time that never change, is a subclass's.
"""

from __future__ import annotations

import collections
import random
from collections.abc import Iterable, Sequence
from typing import Any, cast

import msgspec
import numpy as np
import pyarrow.compute as pc

from rezone.domain import route_leaders, routes
from rezone.domain.routes import Refusal
from rezone.replica.entry import iter_entries
from rezone.replica.history import branch_at
from rezone.replica.imports import ImportTable, rows_of, version_times, writers_of
from rezone.replica.partition import Partition
from rezone.replica.read import readable
from rezone.replica.report import replica_report
from rezone.replica.writers import WriterState, WriterTable
from rezone.wire.errors import RezoneError
from rezone.wire.messages import (
    FIRST_PARTITION_EPOCH,
    ConfigureNode,
    Fence,
    ImportBegun,
    ImportPosition,
    LeaderAndIsr,
    Message,
    NodeId,
    NotifyLeaderAndIsr,
    PartitionAssignment,
    PartitionId,
    ReplicaReport,
    ZoneConfig,
)
from simulation import node as simulated
from simulation.imports import Lines
from simulation.loop import VirtualLoop
from simulation.network import Network
from simulation.node import SimulatedNode
from simulation.storage import MemoryStore, NodeDisk, Survives

NODES = (0, 1, 2, 3)
REPLICAS = 3
MINIMUM = 2
STEP_SECONDS = 0.05
STORM_SECONDS = 30.0
CALM_SECONDS_MAX = 60.0
KEYS = 12
PAST_MICROS = 400_000
FENCE = Fence(coordinator_epoch=1)
# Chunks are so small that rows come in many, and that positions without rows are marked; and who
# asks is answered at once, because nothing happens meanwhile.
SETTINGS = msgspec.structs.replace(
    simulated.SETTINGS,
    import_chunk_bytes=60,
    import_mark_rows=20,
    import_poll_ms=0,
    import_linger_ms=0,
)


class KnowingStore(MemoryStore):
    """A store that knows writers and imports, as its log tells of them."""

    _told: tuple[WriterTable, ImportTable] | None = None

    def _tables(self) -> tuple[WriterTable, ImportTable]:
        if self._told is None:
            self._told = (WriterTable(1_000), ImportTable())
            self._note(raw for raw in self.rows if raw)
        return self._told

    def _note(self, raws: Iterable[bytes]) -> None:
        writers, imports = self._tables()
        for raw in raws:
            entries = list(iter_entries(raw))
            writers.note(entry.header for entry in entries)
            writers.note_filled(writers_of(entries))
            imports.note(entries)

    def writer_state(self, writer_id: bytes) -> WriterState | None:  # type: ignore[override]
        """Return a writer's last batch."""
        return self._tables()[0].get(writer_id)

    def import_position(self, source: PartitionId) -> ImportPosition | None:
        """Return how far a source is imported."""
        return self._tables()[1].get(source)

    @property
    def outgoing(self) -> KnowingStore:
        """Of what a store sends, only the beginning of an import."""
        return self

    def begin_import(self) -> ImportBegun:
        """Return where the applied state stands, and which writers it knows."""
        writers = WriterTable(1_000)
        raws = filter(None, self.rows[: self.applied])
        entries = [entry for raw in raws for entry in iter_entries(raw)]
        for entry in entries:
            writers.advance([entry.header], writers_of([entry]))
        position = ImportPosition(
            source=self.meta.partition,
            offset=self.applied,
            commit_time=self.applied_time,
            partition_uuid=branch_at(self.meta.failover_log, self.applied),
            leader_epoch=entries[-1].header.leader_epoch if entries else 0,
            filling=True,
            sealed_at=self.applied if self._is_seal_applied() else 0,
        )
        return ImportBegun(position=position, writers=writers.export())

    def _is_seal_applied(self) -> bool:
        return self.seal is not None and self.seal.end_offset <= self.applied

    def append(self, raw: bytes) -> int:
        """Append whole entries; none after a seal."""
        assert self.seal is None, "an entry follows a seal"
        self._tables()
        end = super().append(raw)
        self._note([raw])
        return end

    def truncate(self, offset: int) -> None:
        """Undo everything from `offset` on."""
        super().truncate(offset)
        self._told = None

    def crash(self, survives: Survives) -> None:
        """Lose what was not synced, but for what survives."""
        super().crash(survives)
        self._told = None

    def values(self, row: bytes) -> dict[bytes, int]:
        """Return the applied values of a row, each with the commit time of its version.

        A value with two times is an error: a write was applied twice. A version may come twice, by
        a fill and by the log.
        """
        found: dict[bytes, int] = {}
        for raw in filter(None, self.rows[: self.applied]):
            for entry in iter_entries(raw):
                rows = rows_of(entry)
                times = version_times(entry).tolist()
                for at in np.flatnonzero(pc.equal(rows[0], row).to_numpy(zero_copy_only=False)):
                    value, time = rows[2][int(at)].as_py(), times[int(at)]
                    assert found.setdefault(value, time) == time, f"{value!r} is written twice"
        return found


class WrongClock:
    """A node's clock, whose time of day is wrong by so many microseconds."""

    def __init__(self, loop: VirtualLoop, error: int) -> None:
        self._loop = loop
        self._error = error

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        return self._loop.monotonic()

    def micros(self) -> int:
        """Return the time of day."""
        return self._loop.micros() + self._error


class DataPlane:
    """The nodes and the coordinator of one run; `errors` are how wrong their clocks are."""

    def __init__(self, rng: random.Random, config: ZoneConfig, error_micros: int) -> None:
        self.rng = rng
        # Of their own: what is left of a log must not change what happens to it.
        self.crashes = random.Random(rng.getrandbits(64))
        self.config = config
        self.loop = VirtualLoop()
        self.network = Network(self.loop)
        self.disks = {node: NodeDisk(node) for node in NODES}
        self.errors = {node: rng.randrange(-error_micros, error_micros) for node in NODES}
        self.records: dict[PartitionId, LeaderAndIsr] = {}
        self.lines: dict[NodeId, Lines] = {}
        self.late: list[tuple[NodeId, Message]] = []
        self.rows = [bytes([n * 256 // KEYS]) * 8 + b"key%d" % n for n in range(KEYS)]
        self.past: dict[tuple[bytes, int], bytes | None] = {}
        self.counts: collections.Counter[str] = collections.Counter()

    # --- the zone --------------------------------------------------------------------------------

    def begin(self, partitions: Sequence[PartitionId]) -> None:
        """Make these partitions, empty, and start all nodes."""
        for partition in partitions:
            nodes = tuple(self.rng.sample(NODES, REPLICAS))
            self.records[partition] = routes.initial(nodes, 1)
            for node in nodes:
                self.disks[node].stores[partition] = KnowingStore(partition)
        for node in NODES:
            self.start(node)
        for partition, record in self.records.items():
            assert record.partition_epoch == FIRST_PARTITION_EPOCH
            self.set(partition, routes.confirm(record))

    def start(self, node: NodeId) -> None:
        """Start a node on its disk."""
        place = f"n{node}"
        clock: Any = WrongClock(self.loop, self.errors[node])
        lines = Lines(self.network, self.rng, self.meanwhile, self.counts)
        made = SimulatedNode(
            node,
            self.disks[node],
            place,
            self.network,
            clock,
            settings=SETTINGS,
            connect=lines.connect,
        )
        lines.node, self.lines[node] = made, lines
        self.network.nodes[node] = made
        peers = {n: f"n{n}" for n in NODES}
        made.control.handle(ConfigureNode(fence=FENCE, config=self.config, peers=peers))
        for partition in self.records:
            self.tell(node, partition)

    def set(self, partition: PartitionId, answer: LeaderAndIsr | Refusal | None) -> bool:
        """Take a record's change, unless it is refused; tell whoever hears it at once."""
        if not isinstance(answer, LeaderAndIsr) or answer is self.records[partition]:
            return False
        self.records[partition] = answer
        for node in self.network.nodes:
            if self.rng.random() < 0.7:
                self.tell(node, partition)
        return True

    def tell(self, node: NodeId, partition: PartitionId) -> None:
        """Send a node a partition's record."""
        assignment = PartitionAssignment(partition=partition, state=self.records[partition])
        peers = {n: f"n{n}" for n in NODES}
        self.call(node, NotifyLeaderAndIsr(fence=FENCE, partitions=(assignment,), peers=peers))

    def call(self, node: NodeId, request: Message) -> bool:
        """Call a node, if it is up; return whether it has not refused."""
        up = self.network.nodes.get(node)
        if up is None:
            return False
        try:
            up.control.handle(request)
        except RezoneError:
            return False
        return True

    def leaders(self, partition: PartitionId) -> list[Partition]:
        """Return the replicas that believe to lead."""
        found = [
            replica
            for node in self.network.nodes.values()
            for replica in node.partitions()
            if replica.partition_id == partition and replica.leads
        ]
        self.rng.shuffle(found)
        return found

    # --- the run ---------------------------------------------------------------------------------

    def step(self) -> None:
        """Let a moment pass."""
        self.loop.advance(STEP_SECONDS)
        for node in list(self.network.nodes.values()):
            node.step(self.loop.monotonic())

    def meanwhile(self) -> None:
        """Let happen what happens between a request and a late answer."""
        self.disturb()
        self.coordinate()
        DataPlane.step(self)

    def calm(self) -> None:
        """End all faults."""
        self.network.cut.clear()
        for node in NODES:
            if node not in self.network.nodes:
                self.start(node)

    def disturb(self) -> None:
        """Perhaps kill a node, start one, cut a link or mend one, or deliver what was late."""
        rng, up = self.rng, list(self.network.nodes)
        # Not those that die now: others must see a node go before it is there again.
        down = [node for node in NODES if node not in up]
        if rng.random() < 0.03 and len(up) > 1:
            node = rng.choice(up)
            self.network.nodes.pop(node).kill(self.crashes.randrange)
        if down and rng.random() < 0.05:
            self.start(rng.choice(down))
        if rng.random() < 0.03:
            self.network.cut.add(frozenset(rng.sample(NODES, 2)))
        if self.network.cut and rng.random() < 0.1:
            self.network.cut.discard(rng.choice(sorted(self.network.cut, key=sorted)))
        if self.late and rng.random() < 0.2:
            self.call(*self.late.pop(rng.randrange(len(self.late))))

    # --- the coordinator -------------------------------------------------------------------------

    def coordinate(self) -> None:
        """Do a pass: hear of leaders, and replace dead ones."""
        for partition in self.records:
            node = self.rng.choice(NODES)
            self.tell(node, partition)
            record = self.records[partition]
            alive = list(self.network.nodes)
            self.set(partition, route_leaders.fail_over(record, alive, minimum=MINIMUM))
            for leader in self.leaders(partition):
                self.hear(partition, replica_report(leader))

    def hear(self, partition: PartitionId, report: ReplicaReport) -> None:
        """Take what a leader reports."""
        record = self.records[partition]
        if report.proposal is not None:
            answer = routes.adjust_isr(record, report.proposal, 1, minimum=MINIMUM)
            self.set(partition, routes.confirm(record) if answer is record else answer)

    # --- what must hold --------------------------------------------------------------------------

    def replicas(self) -> list[Partition]:
        """Return all open replicas."""
        return [p for node in self.network.nodes.values() for p in node.partitions()]

    def row_of(self, partition: Partition) -> bytes | None:
        """Return some row in a replica's range."""
        start, end = partition.hash_range
        inside = [row for row in self.rows if start <= int.from_bytes(row[:8], "big") < end]
        return self.rng.choice(inside) if inside else None

    def past_age(self) -> int:
        """Return how old a state is to be read, in ticks of the coarse clock."""
        return self.rng.randrange(20)

    def read_past(self) -> None:
        """Read as of times of a coarse clock: whoever answers, the answer is always the same."""
        now = self.loop.micros() // PAST_MICROS
        for partition in self.replicas():
            row, as_of = self.row_of(partition), (now - self.past_age()) * PAST_MICROS
            if row is None:
                continue
            try:
                if not readable(partition, as_of, partition.serving.rows([row]))():
                    continue
            except RezoneError:
                continue
            self.counts["past"] += 1
            (value,) = partition.store.reader.newest([row], as_of)
            before = self.past.setdefault((row, as_of), value)
            assert before == value, (
                f"partition {partition.partition_id} at node {partition.node_id} has {value!r} for "
                f"{row!r} as of {as_of}, it was {before!r}"
            )


def store_of(partition: Partition) -> KnowingStore:
    """Return a replica's store; a partition takes it for a real one."""
    return cast("KnowingStore", partition.store)
