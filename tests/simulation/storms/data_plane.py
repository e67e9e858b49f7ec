"""A zone's data nodes without an operator: who leads is decided by a coordinator of a few lines.

The nodes are the real ones of `node`; they die, lose what they had not synced, and lose sight of
each other. Their clocks are wrong, each by an amount of its own. What is asked of them, and what
must hold beyond reads as of a time that never change, is a subclass's.
"""

from __future__ import annotations

import collections
import contextlib
import random
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TypeVar

import msgspec

from rezone.datanode.clock import clock_bound
from rezone.datanode.node.report import replica_report
from rezone.datanode.reading.read import Readable, readable
from rezone.datanode.replica.host import Host
from rezone.datanode.replica.replica import Replica
from rezone.datanode.settings import Clock
from rezone.domain.routing import route_leaders, routes
from rezone.domain.routing.routes import Refusal
from rezone.storage.engines.base import FLAG_VALUE, time_of
from rezone.wire.errors import RezoneError
from rezone.wire.layouts import HashRange
from rezone.wire.messages import (
    FIRST_PARTITION_EPOCH,
    ConfigureNode,
    Fence,
    LeaderAndIsr,
    Message,
    NodeId,
    NotifyLeaderAndIsr,
    PartitionAssignment,
    PartitionId,
    PullSnapshot,
    ReplicaReport,
    ZoneConfig,
)
from simulation.loop import VirtualLoop
from simulation.nodes import node as simulated
from simulation.nodes.disk import Disks, MachineDiedError, memory_directory
from simulation.nodes.network import Network
from simulation.nodes.node import SimulatedNode
from simulation.nodes.reshard_pulls import BACKFILL_CHANCE, KilledError, Lines

Life = TypeVar("Life", bound=SimulatedNode)

NODES = (0, 1, 2, 3)
REPLICAS = 3
MINIMUM = 2
STEP_SECONDS = 0.05
STORM_SECONDS = 30.0
CALM_SECONDS_MAX = 60.0
KEYS = 12
PAST_MICROS = 400_000
SYNC_DEATHS = 0.4
STOPS = 0.1
"""Which part of the ends of nodes come at a sync, and which in order."""

SYNCS_MAX = 12
LATE_APPLIES = (0.0, 0.02, 0.3)
"""How often a node applies rows for so long that others go on meanwhile; each run has one."""

STALL_STEPS_MAX = 4
DAMAGE_CHANCE = 0.1
"""How often the clock bound is damaged while a node is down, in storms that do that."""

SLOW_SECONDS_MAX = 10.0
"""For so long followers of a node may apply nothing at all."""

FENCE = Fence(coordinator_epoch=1)
# Chunks are so small that rows come in many, and that positions without rows are marked; and who
# asks is answered at once, because nothing happens meanwhile.
SETTINGS = msgspec.structs.replace(
    simulated.SETTINGS,
    reshard_chunk_bytes=60,
    reshard_mark_rows=20,
    reshard_poll_ms=0,
    reshard_linger_ms=0,
)


class Read(NamedTuple):
    """A newest read of a row that waits; `known`: what was acknowledged before it began."""

    row: bytes
    may_answer: Readable
    known: frozenset[bytes]


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

    storm_seconds = STORM_SECONDS

    def __init__(self, rng: random.Random, config: ZoneConfig, error_micros: int) -> None:
        self.rng = rng
        # Of their own: what is left of a disk must not change what happens to it.
        self.crashes = random.Random(rng.getrandbits(64))
        self.config = config
        self.number = 0
        # However wrong the clocks are with which it begins, these count as near each other.
        most_ms = max(500, 2 * error_micros // 1_000)
        self.settings = msgspec.structs.replace(SETTINGS, clock_offset_ms_max=most_ms)
        self.loop = VirtualLoop()
        self.network = Network(self.loop)
        self.network.died = self.bury
        self._exits = contextlib.ExitStack()
        root = self._exits.enter_context(TemporaryDirectory(dir=memory_directory()))
        disks = Disks(Path(root), [str(node) for node in NODES], self.crashes)
        self._exits.enter_context(disks.tracked())
        self.machines = {node: disks.of[str(node)] for node in NODES}
        self.errors = {node: rng.randrange(-error_micros, error_micros) for node in NODES}
        self.records: dict[PartitionId, LeaderAndIsr] = {}
        self.lines: dict[NodeId, Lines] = {}
        self.late: list[tuple[NodeId, Message]] = []
        self.asleep: set[NodeId] = set()
        self.rows = [bytes([n * 256 // KEYS]) * 8 + b"key%d" % n for n in range(KEYS)]
        self._inside: dict[HashRange, list[bytes]] = {}
        self.past: dict[tuple[bytes, int], bytes | None] = {}
        self.acknowledged: dict[bytes, set[bytes]] = collections.defaultdict(set)
        self.reads: weakref.WeakKeyDictionary[Replica, Read] = weakref.WeakKeyDictionary()
        self.counts: collections.Counter[str] = collections.Counter()
        # Of its own as well: runs without late applies are what they were before there were any.
        self.lateness = random.Random(f"late applies {rng.getstate()[1][0]}")
        self.late_applies = self.lateness.choice(LATE_APPLIES)
        self.damages = random.Random(f"damaged bounds {rng.getstate()[1][0]}")
        self.damage_chance = DAMAGE_CHANCE
        self.backfill_chance = BACKFILL_CHANCE
        self.stalled: Host[Replica] | None = None
        self.slow_until: dict[NodeId, float] = {}

    # --- the zone --------------------------------------------------------------------------------

    def begin(self, partitions: Sequence[PartitionId]) -> None:
        """Make these partitions, empty, and start all nodes."""
        for partition in partitions:
            self.records[partition] = routes.initial(tuple(self.rng.sample(NODES, REPLICAS)), 1)
        for node in NODES:
            self.start(node)
        for partition, record in self.records.items():
            assert record.partition_epoch == FIRST_PARTITION_EPOCH
            self.set(partition, routes.confirm(record))

    def close(self) -> None:
        """End the run."""
        self.network.nodes.clear()
        self.loop.close()
        self._exits.close()

    def start(self, node: NodeId) -> None:
        """Start a node on its disk."""
        lines = Lines(self.network, self.rng, self.meanwhile, self.counts, self.backfill_chance_now)
        made = self.make_node(node, lines)
        lines.node, self.lines[node] = made, lines
        self.network.nodes[node] = made
        self.configure(node)
        for partition in self.records:
            self.tell(node, partition)

    def backfill_chance_now(self) -> float:
        """Return how often a node fetches rows in a step: always where some are not applied yet."""
        return 1.0 if self.stalled is not None else self.backfill_chance

    def configure(self, node: NodeId) -> None:
        """Send a node the zone's configuration of the day."""
        peers = {n: f"n{n}" for n in NODES}
        request = ConfigureNode(fence=FENCE, config=self.config, peers=peers, number=self.number)
        self.call(node, request)

    def make_node(self, node: NodeId, lines: Lines) -> SimulatedNode:
        """Return a node's next life, on its disk."""
        return self._life(SimulatedNode, node, lines, may_apply=self.may_apply)

    def _life(self, kind: type[Life], node: NodeId, lines: Lines, **more: Any) -> Life:
        """Return the next life of a node of some kind: what all kinds are given, and `more`."""
        return kind(
            node,
            self.machines[node],
            f"n{node}",
            self.network,
            clock=self.clock_of(node),
            rng=random.Random(self.crashes.getrandbits(64)),
            settings=self.settings,
            connect=lines.connect,
            **more,
        )

    def clock_of(self, node: NodeId) -> Clock:
        """Return the clock of a node's next life."""
        return WrongClock(self.loop, self.errors[node])

    def set(self, partition: PartitionId, answer: LeaderAndIsr | Refusal | None) -> bool:
        """Take a record's change, unless it is refused; tell whoever hears it at once."""
        if not isinstance(answer, LeaderAndIsr) or answer is self.records[partition]:
            return False
        self.records[partition] = answer
        for node in list(self.network.nodes):
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
        except MachineDiedError as died:
            self.bury(died)
            return False
        return True

    def leaders(self, partition: PartitionId) -> list[Replica]:
        """Return the replicas that believe to lead."""
        found = [
            replica
            for node in list(self.network.nodes.values())
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
            asleep = node is self.stalled or node.node_id in self.asleep
            if self.network.nodes.get(node.node_id) is node and not asleep:
                with self.mortals():
                    node.step(self.loop.monotonic())
        for partition in self.replicas():
            self.check_well(partition)

    def check_well(self, partition: Replica) -> None:
        """Find a replica neither damaged nor failed."""
        assert not partition.failure, partition.failure
        assert not partition.store.meta.damage, partition.store.meta.damage

    def may_apply(self, partition: Replica) -> bool:
        """Whether a replica applies what it is about to; perhaps let others go on before it does.

        What is committed is then not applied yet, for as long as the disk or a copy takes, and the
        node is asked, and answers. KilledError when it has not outlived it.
        """
        node = partition.host
        slow = self.loop.monotonic() < self.slow_until.get(node.node_id, 0.0)
        if slow and not partition.leads:
            self.counts["put off"] += 1
            return False
        if self.stalled is None and self.lateness.random() < self.late_applies:
            self._stall(node)
        return True

    def _stall(self, node: Host[Replica]) -> None:
        self.counts["late applies"] += 1
        self.stalled = node
        try:
            for _ in range(self.lateness.randint(1, STALL_STEPS_MAX)):
                if self.lateness.random() < 0.3:
                    self.coordinate()
                self.step()
        finally:
            self.stalled = None
        if self.network.nodes.get(node.node_id) is not node:
            raise KilledError

    def meanwhile(self) -> None:
        """Let happen what happens between a request and a late answer."""
        if self.loop.time() < self.storm_seconds:
            self.disturb()  # when the storm is over a link that is cut would stay so
        self.coordinate()
        DataPlane.step(self)

    # --- the run ---------------------------------------------------------------------------------

    def run(self) -> None:
        """Let it storm, then end all faults; what must hold then is `settle`'s."""
        try:
            while self.loop.time() < self.storm_seconds:
                self.disturb()
                if self.rng.random() < 0.3:
                    self.coordinate()
                self.ask()
                self.step()
            self.calm()
            self.settle()
        finally:
            self.close()

    def ask(self) -> None:
        """Ask in a storm, between two steps, what is not asked in each step."""

    def settle(self) -> None:
        """Wait for what must come without faults, and check it."""
        raise NotImplementedError

    def wait_for(self, over: Callable[[], bool], told: Callable[[], object]) -> None:
        """Coordinate until something is over; what is told of it is told when it takes too long."""
        until = self.loop.time() + CALM_SECONDS_MAX
        while not over():
            assert self.loop.time() < until, f"not over: {told()}, {self.records}"
            self.coordinate()
            self.step()

    def calm(self) -> None:
        """End all faults."""
        self.network.cut.clear()
        self.late_applies, self.backfill_chance = 0.0, BACKFILL_CHANCE
        self.slow_until.clear()
        for machine in self.machines.values():
            machine.dies_in = 0
        for node in NODES:
            if node not in self.network.nodes:
                self.start(node)

    def disturb(self) -> None:
        """Perhaps end a node, start one, cut a link or mend one, or deliver what was late."""
        rng, up = self.rng, list(self.network.nodes)
        # Not those that die now: others must see a node go before it is there again.
        down = [node for node in NODES if node not in up]
        if rng.random() < 0.03 and len(up) > 1:
            self.end(rng.choice(up))
        if down and rng.random() < 0.05:
            self.start(rng.choice(down))
        if rng.random() < 0.03:
            self.network.cut.add(frozenset(rng.sample(NODES, 2)))
            self.counts["cuts"] += 1
        if self.network.cut and rng.random() < 0.1:
            self.network.cut.discard(rng.choice(sorted(self.network.cut, key=sorted)))
        if self.lateness.random() < self.late_applies / 4:
            until = self.loop.monotonic() + self.lateness.uniform(0, SLOW_SECONDS_MAX)
            self.slow_until[self.lateness.choice(NODES)] = until
        if self.late and rng.random() < 0.2:
            self.call(*self.late.pop(rng.randrange(len(self.late))))

    def end(self, node: NodeId) -> None:
        """End a node: its process, its machine, now or at some sync to come; or in order."""
        self.counts["ends"] += 1
        how = self.crashes.random()
        if how < SYNC_DEATHS:
            self.machines[node].dies_in = self.crashes.randint(1, SYNCS_MAX)
            return
        if how < SYNC_DEATHS + STOPS:
            self.stop(node)
        else:
            self.kill(node)

    def stop(self, node: NodeId) -> None:
        """End a node in order; it may die of that, and may be down already."""
        up = self.network.nodes.get(node)
        if up is not None and up is self.stalled:
            self.kill(node)  # it would wait for the rows that it is just applying
            return
        with self.mortals():
            if up is not None:
                up.stop()
                del self.network.nodes[node]

    def kill(self, node: NodeId) -> None:
        """End a node's process or its machine, if it is up."""
        up = self.network.nodes.pop(node, None)
        if up is not None:
            up.kill(machine_dies=self.crashes.random() < 0.5)

    def damage_bound(self, node: NodeId) -> None:
        """Perhaps change a byte of a bound of clock bound, while its node is down.

        Starts of nodes that have recovered from that before are counted.
        """
        path = self.machines[node].root / clock_bound.NAME
        self.counts["recovered bounds"] += path.with_name(clock_bound.RECOVERED).exists()
        if self.damages.random() >= self.damage_chance or not path.exists():
            return
        data = bytearray(path.read_bytes())
        data[self.damages.randrange(len(data))] ^= 1 << self.damages.randrange(8)
        path.write_bytes(data)
        self.counts["damaged bounds"] += 1

    def bury(self, died: MachineDiedError) -> None:
        """Take a node away whose machine has died; safe to repeat."""
        for number, node in list(self.network.nodes.items()):
            if self.machines[number] is died.disk:
                del self.network.nodes[number]
                node.kill(machine_dies=True)
                self.counts["died"] += 1

    @contextlib.contextmanager
    def mortals(self) -> Iterator[None]:
        """Do what a machine may die of."""
        try:
            yield
        except MachineDiedError as died:
            self.bury(died)
        except KilledError:
            self.counts["killed"] += 1

    # --- the coordinator -------------------------------------------------------------------------

    def coordinate(self) -> None:
        """Do a pass: hear of leaders, and replace dead ones."""
        for partition in self.records:
            node = self.rng.choice(NODES)
            self.tell(node, partition)
            record = self.records[partition]
            alive = self.alive(partition)
            self.set(partition, route_leaders.fail_over(record, alive, minimum=MINIMUM))
            self.have_copied(partition)
            for leader in self.leaders(partition):
                self.hear(partition, replica_report(leader))

    def alive(self, partition: PartitionId) -> list[NodeId]:
        """Return the nodes that can lead a partition as far as is known."""
        failed = {p.node_id for p in self.replicas() if p.partition_id == partition and p.failure}
        return [node for node in self.network.nodes if node not in failed]

    def have_copied(self, partition: PartitionId) -> None:
        """Have replicas copied that need it, from the leader."""
        leader = self.records[partition].leader
        request = PullSnapshot(fence=FENCE, partition=partition, source=f"n{leader}")
        for replica in self.replicas():
            needs = replica.partition_id == partition and replica.store.meta.needs_snapshot
            if needs and replica.node_id != leader:
                self.call(replica.node_id, request)

    def hear(self, partition: PartitionId, report: ReplicaReport) -> None:
        """Take what a leader reports."""
        record = self.records[partition]
        if report.proposal is not None:
            answer = routes.adjust_isr(record, report.proposal, 1, minimum=MINIMUM)
            self.set(partition, routes.confirm(record) if answer is record else answer)

    # --- what must hold --------------------------------------------------------------------------

    def replicas(self) -> list[Replica]:
        """Return all open replicas."""
        return [p for node in self.network.nodes.values() for p in node.partitions()]

    def row_of(self, partition: Replica) -> bytes | None:
        """Return some row in a replica's range."""
        hashes = partition.hash_range
        inside = self._inside.get(hashes)
        if inside is None:
            start, end = hashes
            inside = [row for row in self.rows if start <= int.from_bytes(row[:8], "big") < end]
            self._inside[hashes] = inside
        return self.rng.choice(inside) if inside else None

    def past_age(self) -> int:
        """Return how old a state is to be read, in ticks of the coarse clock."""
        return self.rng.randrange(20)

    def read_newest(self) -> None:
        """Go on with the reads that wait, and begin others: each sees what was acknowledged."""
        for partition in self.replicas():
            with self.mortals(), contextlib.suppress(RezoneError):
                self._read_on(partition)

    def _read_on(self, partition: Replica) -> None:
        read, row = self.reads.pop(partition, None), self.row_of(partition)
        if read is None and row is not None:
            may_answer = readable(partition, None, partition.serving.rows([row]))
            read = Read(row, may_answer, frozenset(self.acknowledged[row]))
            partition.leading.ask_leases()
        if read is None:
            return
        if not read.may_answer():
            self.reads[partition] = read
            return
        self.counts["read"] += 1
        seen = values_of(partition, read.row)
        missing = read.known - seen.keys()
        assert not missing, (
            f"partition {partition.partition_id} at node {partition.node_id} answers a stale "
            f"read of {read.row!r}: {missing} are not there"
        )

    def read_past(self) -> None:
        """Read as of times of a coarse clock: whoever answers, the answer is always the same."""
        for partition in self.replicas():
            with self.mortals():
                self._read_past(partition)

    def _read_past(self, partition: Replica) -> None:
        now = self.loop.micros() // PAST_MICROS
        row, as_of = self.row_of(partition), (now - self.past_age()) * PAST_MICROS
        if row is None:
            return
        try:
            if not readable(partition, as_of, partition.serving.rows([row]))():
                return
        except RezoneError:
            return
        self.counts["past"] += 1
        (value,) = partition.store.reader.newest([row], as_of)
        before = self.past.setdefault((row, as_of), value)
        assert before == value, (
            f"partition {partition.partition_id} at node {partition.node_id} has {value!r} for "
            f"{row!r} as of {as_of}, it was {before!r}"
        )


def values_of(partition: Replica, row: bytes) -> dict[bytes, int]:
    """Return the applied values of a row, each with the commit time of its version.

    A value with two times is an error: a write was applied twice.
    """
    chains = partition.store.engine.chains_of([row])
    found: dict[bytes, int] = {}
    for key, stored in zip(chains.keys, chains.values, strict=True):
        if stored[0] == FLAG_VALUE:
            value, time = stored[1:], time_of(key)
            assert found.setdefault(value, time) == time, f"{value!r} is written twice"
    return found
