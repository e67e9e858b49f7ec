"""A zone's data nodes in the middle of a re-sharding, without an operator: seals and who serves.

Old partitions with clients, new ones that import their logs, and a coordinator that does nothing
but elect leaders, answer proposals, authorize seals and revoke them, and ask for them now and then,
late too. The nodes are the real ones of `node`; they die, lose what they had not synced, and lose
sight of each other. Each client writes rows of its own name, one after the other, and goes on with
each until it is answered; it learns from refusals alone who serves.

What must hold: a newest read sees what was acknowledged before it began, whoever answers; no read
as of a time ever changes; each acknowledged row is there, once, at the end; and a leader that has
said that there is no seal was right.
"""

from __future__ import annotations

import collections
import dataclasses
import random
import uuid
import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow.compute as pc

from rezone.domain import route_leaders, route_seals, routes
from rezone.domain.routes import Refusal
from rezone.replica.entry import iter_entries, rows_batch
from rezone.replica.history import branch_at
from rezone.replica.import_source import ImportSource
from rezone.replica.importing import ImportPart
from rezone.replica.imports import ImportTable, rows_of, version_times, writers_of
from rezone.replica.partition import Partition
from rezone.replica.read import Readable, readable
from rezone.replica.report import replica_report
from rezone.replica.write import PreparedRows
from rezone.replica.writers import WriterState, WriterTable
from rezone.wire import layouts
from rezone.wire.errors import ReshardedError, RezoneError
from rezone.wire.messages import (
    FIRST_PARTITION_EPOCH,
    BeginImport,
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
    Seal,
    SealState,
    SentAs,
    TailImports,
    WriteRequest,
    WriteResult,
    ZoneConfig,
)
from simulation.loop import VirtualLoop
from simulation.network import Network
from simulation.node import SimulatedNode
from simulation.storage import MemoryStore, NodeDisk

NODES = (0, 1, 2, 3)
REPLICAS = 3
MINIMUM = 2
STEP_SECONDS = 0.05
STORM_SECONDS = 30.0
CALM_SECONDS_MAX = 60.0
CLIENTS = 3
KEYS = 12
PATIENCE_SECONDS = 1.0
FILL_BYTES = 60
TAIL_BYTES = 2_000
ERROR_MICROS = 300_000
PAST_MICROS = 400_000
FENCE = Fence(coordinator_epoch=1)


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

    def crash(self) -> None:
        """Lose what was not synced."""
        super().crash()
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


@dataclasses.dataclass
class Write:
    """A row that a client writes until it is answered; `names` are those it was sent under."""

    row: bytes
    value: bytes
    names: dict[PartitionId, SentAs] = dataclasses.field(default_factory=dict)
    since: float = 0.0
    outcome: WriteResult | RezoneError | None = None
    asked: PartitionId = -1


class Read(NamedTuple):
    """A newest read of a row that waits; `known`: what was acknowledged before it began."""

    row: bytes
    may_answer: Readable
    known: frozenset[bytes]


class CutOver:
    """One run, from its seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"cut-over {seed}")
        old, new = self.rng.choice([(1, 2), (2, 1), (2, 3), (3, 2), (1, 3)])
        self.config = ZoneConfig(
            zone="z",
            zone_uid="u",
            partitions=old,
            next_partitions=new,
            replicas=REPLICAS,
            min_in_sync_replicas=MINIMUM,
        )
        self.old = layouts.layout_of(self.config)
        following = layouts.next_layout_of(self.config)
        assert following is not None
        self.new = following
        self.loop = VirtualLoop()
        self.network = Network(self.loop)
        self.disks = {node: NodeDisk(node) for node in NODES}
        self.errors = {node: self.rng.randrange(-ERROR_MICROS, ERROR_MICROS) for node in NODES}
        self.records: dict[PartitionId, LeaderAndIsr] = {}
        self.sealed: set[PartitionId] = set()
        self.denied: dict[PartitionId, int] = {}
        self.late: list[tuple[NodeId, Message]] = []
        self.rows = [bytes([n * 256 // KEYS]) * 8 + b"key%d" % n for n in range(KEYS)]
        self.acknowledged: dict[bytes, set[bytes]] = collections.defaultdict(set)
        self.told: set[PartitionId] = set()
        self.reads: weakref.WeakKeyDictionary[Partition, Read] = weakref.WeakKeyDictionary()
        self.past: dict[tuple[bytes, int], bytes | None] = {}
        self.counts: collections.Counter[str] = collections.Counter()
        self.clients: list[Write | None] = [None] * CLIENTS
        self.values = 0
        self.imports_at = self.rng.uniform(0, STORM_SECONDS / 2)
        self._begin()

    # --- the zone --------------------------------------------------------------------------------

    def _begin(self) -> None:
        for partition in (*self.old.ids, *self.new.ids):
            nodes = tuple(self.rng.sample(NODES, REPLICAS))
            self.records[partition] = routes.initial(nodes, 1)
            for node in nodes:
                self.disks[node].stores[partition] = KnowingStore(partition)
        for node in NODES:
            self._start(node)
        for partition, record in self.records.items():
            assert record.partition_epoch == FIRST_PARTITION_EPOCH
            self.set(partition, routes.confirm(record))

    def _start(self, node: NodeId) -> None:
        place = f"n{node}"
        clock: Any = WrongClock(self.loop, self.errors[node])
        made = SimulatedNode(node, self.disks[node], place, self.network, clock)
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

    def run(self) -> None:
        """Let it storm, then wait until all have cut over; everything must be there then."""
        try:
            self._storm()
            self._calm()
        finally:
            self.loop.close()

    def _storm(self) -> None:
        while self.loop.time() < STORM_SECONDS:
            self._disturb()
            if self.rng.random() < 0.3:
                self._coordinate()
            self.step()

    def _calm(self) -> None:
        self.network.cut.clear()
        for node in NODES:
            if node not in self.network.nodes:
                self._start(node)
        until = self.loop.time() + CALM_SECONDS_MAX
        while not self._over():
            assert self.loop.time() < until, f"not over: {self.records}, {self.clients}"
            self._coordinate()
            self.step()
        self._check_end()

    def step(self) -> None:
        """Let a moment pass."""
        self.loop.advance(STEP_SECONDS)
        for node in list(self.network.nodes.values()):
            node.step(self.loop.monotonic())
        self._import()
        for number in range(CLIENTS):
            self._write_on(number)
        self._read_newest()
        self._read_past()

    def _over(self) -> bool:
        """Whether all is cut over, and no client waits."""
        if self.sealed != set(self.old.ids) or any(c is not None for c in self.clients):
            return False
        return all(
            any(leader.serving.hashes(self.new.range_of(heir))() for leader in self.leaders(heir))
            for heir in self.new.ids
        )

    def _disturb(self) -> None:
        rng, up = self.rng, list(self.network.nodes)
        # Not those that die now: others must see a node go before it is there again.
        down = [node for node in NODES if node not in up]
        if rng.random() < 0.03 and len(up) > 1:
            node = rng.choice(up)
            self.network.nodes.pop(node).kill()
        if down and rng.random() < 0.05:
            self._start(rng.choice(down))
        if rng.random() < 0.03:
            self.network.cut.add(frozenset(rng.sample(NODES, 2)))
        if self.network.cut and rng.random() < 0.1:
            self.network.cut.discard(rng.choice(sorted(self.network.cut, key=sorted)))
        if self.late and rng.random() < 0.2:
            self.call(*self.late.pop(rng.randrange(len(self.late))))

    # --- the coordinator -------------------------------------------------------------------------

    def _coordinate(self) -> None:
        """Do a pass: hear of leaders, replace dead ones, bring seals about."""
        for partition in self.records:
            node = self.rng.choice(NODES)
            self.tell(node, partition)
            record = self.records[partition]
            alive = list(self.network.nodes)
            self.set(partition, route_leaders.fail_over(record, alive, minimum=MINIMUM))
            for leader in self.leaders(partition):
                self._hear(partition, leader)
        for partition in self.old.ids:
            self._cut_over(partition)

    def _hear(self, partition: PartitionId, leader: Partition) -> None:
        """Take what a leader reports."""
        report = replica_report(leader)
        record = self.records[partition]
        if report.proposal is not None:
            answer = routes.adjust_isr(record, report.proposal, 1, minimum=MINIMUM)
            self.set(partition, routes.confirm(record) if answer is record else answer)
            record = self.records[partition]
        if partition not in self.old.ids or report.leader_epoch != record.leader_epoch:
            return
        if report.partition_epoch != record.partition_epoch:
            return
        if report.seal is SealState.SEALED:
            assert partition not in self.denied, "a seal that nobody could have appeared"
            self.sealed.add(partition)
            self.set(partition, route_seals.note_sealed(record))
        elif report.seal is SealState.NONE and not record.sealing:
            assert partition not in self.sealed, "a seal that was told is gone"
            self.denied[partition] = record.leader_epoch
            self.counts["denied"] += 1

    def _cut_over(self, partition: PartitionId) -> None:
        """Authorize a seal, ask for it, or take it back."""
        record, chance = self.records[partition], self.rng.random()
        if partition in self.sealed:
            return
        if record.sealing and chance < 0.15 and self.loop.time() < STORM_SECONDS:
            self.set(partition, route_seals.revoke_seal(record))
        elif record.sealing:
            epoch = record.leader_epoch
            request = Seal(fence=FENCE, partition=partition, leader_epoch=epoch)
            if self.rng.random() < 0.3:
                self.late.append((record.leader, request))
            else:
                self.call(record.leader, request)
        elif self.loop.time() > STORM_SECONDS / 3 and chance < 0.3:
            self.denied.pop(partition, None)
            self.set(partition, route_seals.authorize_seal(record))

    # --- imports ---------------------------------------------------------------------------------

    def _import(self) -> None:
        """Have each new leader ask those of its sources that it sees; a few requests are lost."""
        if self.loop.time() < self.imports_at:
            return
        for heir in self.new.ids:
            for leader in self.leaders(heir):
                for part in leader.importing.parts():
                    for source in self.leaders(part.source):
                        if self._sees(leader, source) and self.rng.random() < 0.9:
                            self._fill(part, self.network.node(source.node_id).import_source)
                            self._tail(part, self.network.node(source.node_id).import_source)

    def _sees(self, one: Partition, other: Partition) -> bool:
        return one.node_id == other.node_id or self.network.linked(one.node_id, other.node_id)

    def _fill(self, part: ImportPart, source: ImportSource) -> None:
        request = part.next_fill(FILL_BYTES)
        try:
            if isinstance(request, BeginImport):
                part.begun(source.begin(request))
            elif request is not None and self.rng.random() < 0.2:
                part.filled_with(request, source.fill(request))
                self.counts["filled"] += 1
        except RezoneError as error:
            part.failed(part.fill, error)

    def _tail(self, part: ImportPart, source: ImportSource) -> None:
        tailed = part.next_tail()
        if tailed is None:
            return
        request = TailImports(parts=(tailed,), bytes_max=TAIL_BYTES, timeout_ms=0)
        (tail,) = source.tail(request).tails
        part.tailed(tailed, tail)

    # --- clients ---------------------------------------------------------------------------------

    def _partition_of(self, row: bytes) -> PartitionId:
        key_hash = int.from_bytes(row[:8], "big")
        old = self.old.partition_of(key_hash)
        return self.new.partition_of(key_hash) if old in self.told else old

    def _write_on(self, number: int) -> None:
        """Go on with a client's write, or begin one."""
        write, now = self.clients[number], self.loop.monotonic()
        if write is None:
            if self.loop.time() > STORM_SECONDS:
                return
            self.values += 1
            row = self.rng.choice(self.rows)
            write = self.clients[number] = Write(row, b"value %d" % self.values)
        elif isinstance(write.outcome, WriteResult):
            self.counts["heir" if write.asked in self.new.ids else "source"] += 1
            self.acknowledged[write.row].add(write.value)
            self.clients[number] = None
            return
        elif isinstance(write.outcome, ReshardedError):
            self.told.add(write.asked)
            self.counts["resharded"] += 1
        elif write.outcome is None and now - write.since < PATIENCE_SECONDS:
            return
        self._send(write)

    def _send(self, write: Write) -> None:
        write.asked, write.outcome = self._partition_of(write.row), None
        write.since = self.loop.monotonic()
        before = tuple(name for p, name in write.names.items() if p != write.asked)
        new_name = SentAs(uuid.UUID(int=self.rng.getrandbits(128)).hex, 1)
        name = write.names.setdefault(write.asked, new_name)
        leaders = self.leaders(write.asked)
        if not leaders:
            return
        request = WriteRequest(
            opaque=0,
            partition=write.asked,
            writer_id=name.writer_id,
            sequence=name.sequence,
            sent_as=before,
        )
        prepared = PreparedRows(rows_batch([write.row], [0], [write.value]), 100)

        def reply(outcome: Any) -> None:
            if self.rng.random() < 0.1:
                return  # the answer is lost
            if not isinstance(write.outcome, WriteResult):
                write.outcome = outcome

        try:
            leaders[0].write(request, prepared, reply)
        except RezoneError as error:
            write.outcome = error

    # --- what must hold --------------------------------------------------------------------------

    def _replicas(self) -> list[Partition]:
        return [p for node in self.network.nodes.values() for p in node.partitions()]

    def _row_of(self, partition: Partition) -> bytes | None:
        """Return some row in a replica's range."""
        start, end = partition.hash_range
        inside = [row for row in self.rows if start <= int.from_bytes(row[:8], "big") < end]
        return self.rng.choice(inside) if inside else None

    def _read_newest(self) -> None:
        """Go on with the reads that wait, and begin others: each sees what was acknowledged."""
        for partition in self._replicas():
            read, row = self.reads.pop(partition, None), self._row_of(partition)
            if read is None and row is not None:
                may_answer = readable(partition, None, partition.serving.rows([row]))
                read = Read(row, may_answer, frozenset(self.acknowledged[row]))
                partition.leading.ask_leases()
            if read is None:
                continue
            try:
                answers = read.may_answer()
            except RezoneError:
                continue
            if not answers:
                self.reads[partition] = read
                continue
            self.counts["read"] += 1
            seen = store_of(partition).values(read.row)
            missing = read.known - seen.keys()
            assert not missing, (
                f"partition {partition.partition_id} at node {partition.node_id} answers a stale "
                f"read of {read.row!r}: {missing} are not there"
            )

    def _read_past(self) -> None:
        """Read as of times of a coarse clock: whoever answers, the answer is always the same."""
        now = self.loop.micros() // PAST_MICROS
        for partition in self._replicas():
            row, as_of = self._row_of(partition), (now - self.rng.randrange(20)) * PAST_MICROS
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

    def _check_end(self) -> None:
        """Assert that all that was acknowledged is where clients look for it, once."""
        for row in self.rows:
            heir = self.new.partition_of(int.from_bytes(row[:8], "big"))
            (leader,) = self.leaders(heir)
            missing = self.acknowledged[row] - store_of(leader).values(row).keys()
            assert not missing, f"{missing} of {row!r} are lost"
        for partition in self.old.ids:
            for leader in self.leaders(partition):
                assert leader.store.seal is not None


def store_of(partition: Partition) -> KnowingStore:
    """Return a replica's store; a partition takes it for a real one."""
    return cast("KnowingStore", partition.store)
