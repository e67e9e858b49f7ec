"""A partition that is copied from node to node while it is written to, and everything breaks.

The nodes are those of `copy_node`, the copies those of `copies`. A coordinator adds replicas and
removes others, so that there is always somebody who needs a copy, which a node pulls by itself or
a third brings to all who need one. Nodes die at any step and at any sync, thirds at any step;
leaders change; logs are trimmed and old versions removed as soon as anybody allows it; sources
apply late, or as hot standbys what is not committed.

What is copied is, by the seed, a table with indexes, open transactions in it, and backfilled
meanwhile from other partitions (`backfills`), whose old rows its snapshots must save for their
readers.

What must hold: what a receiver ends with is, part by part, what the snapshots showed that it came
from (B-04), with all entries of its indexes (SS-05); it ends at all (B-05); no acknowledged row is
lost, and no transaction torn; and a source holds neither more than its limits say (SS-07), nor a
snapshot that nobody reads.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import random
import weakref
from collections.abc import Callable
from typing import Any

import msgspec

from rezone.datanode.replica.replica import Replica
from rezone.domain.routing import routes
from rezone.storage.engines.base import FLAG_INTENT, TIME_BYTES, TIME_MAX, time_of
from rezone.storage.snapshot.checkpoints import CheckpointLimits, FileSnapshot
from rezone.storage.snapshot.snapshot import SnapshotLimits, SnapshotSource
from rezone.storage.store import PartitionStore
from rezone.storage.transactions.intents import owner_of
from rezone.wire import messages
from rezone.wire.copying.copy import CopyOptions
from rezone.wire.errors import NotReadyError, RezoneError
from rezone.wire.messages import (
    NodeId,
    PartitionId,
    PullSnapshot,
    SnapshotBatch,
    SnapshotHeader,
    StopReplica,
    ZoneConfig,
)
from simulation.nodes.backfills import BACKFILLED_BEFORE, Backfills
from simulation.nodes.copies import Carrier, Chunk, CopyWorld, PullSink, PutSink
from simulation.nodes.copy_node import CopyNode
from simulation.nodes.disk import TrackedDisk
from simulation.nodes.received import Received, Versions, versions_of
from simulation.nodes.reshard_pulls import Lines
from simulation.storms import data_plane
from simulation.storms.data_plane import FENCE, MINIMUM, NODES, DataPlane
from simulation.storms.index_checks import INDEXES, TableRows, check_entries, is_indexed, table_of
from simulation.storms.transactions import Client, Told, check_told, torn, versions
from simulation.storms.written import ROWS_PER_WRITE, Written

PARTITION: PartitionId = 0
ROWS = 60
TRANSACTION_ROWS = 10
CLIENTS = 2
TRANSACTION_MS_MAX = 3_000
PLACES = 4
BURST_CHANCE, BURST_WRITES = 0.05, 10
"""How often there are so many writes at once: more than a scan may note before it goes on."""

BACKFILL_STEPS = 20
ERROR_MICROS = 100_000
IDLE_SECONDS_MAX = 2.0
HOUSE_SECONDS = 0.5
"""How often a node looks after what nothing else wakes, at least."""

BREAK_CHANCE = 0.01
"""How often a stream breaks at a batch."""

DEATH_CHANCE = 0.1
"""How often a receiver's machine dies while it makes durable what it has taken."""

DEATH_SYNCS_MAX = 6

SLICE_ROWS_MAX = 2 * ROWS_PER_WRITE
NOTED_ROW_BYTES_MAX = 150
KEPT_SLACK_BYTES = 10_000
"""What one step of an applier takes ahead of a scan, and one of a scan has for its readers."""

FOR_EVER_SECONDS = 3_600
"""Longer than any run."""


class CopyStorm(DataPlane, CopyWorld):
    """One run, from its seed."""

    # Of fewer rows more copies come to their end: half as many again in the same processor time.
    storm_seconds = 12.0

    def __init__(self, seed: int) -> None:
        rng = random.Random(f"copies {seed}")
        self.files = rng.random() < 0.4
        indexes = rng.sample(INDEXES, rng.choice((0, 0, 1, 2)))
        config = ZoneConfig(
            zone="z",
            zone_uid="u",
            partitions=1,
            replicas=MINIMUM,
            min_in_sync_replicas=MINIMUM,
            log_retention_bytes=rng.choice((0, 4096)),
            version_retention_seconds=rng.choice((1, FOR_EVER_SECONDS)),
        )
        if indexes:
            config = msgspec.structs.replace(config, table=table_of(*indexes))
        super().__init__(rng, self.zone_of(config), ERROR_MICROS)
        self._opened: weakref.WeakKeyDictionary[PartitionStore, int] = weakref.WeakKeyDictionary()
        self.settings = msgspec.structs.replace(
            data_plane.SETTINGS,
            copy_handover_ms=rng.choice((500, 5_000)),
            kept_log_bytes_max=rng.choice((3_000, 1 << 30)),
            snapshots_max=3,
            transaction_ms_max=TRANSACTION_MS_MAX,
        )
        self.limits = self._limits()
        self._table = TableRows() if indexes else None
        self.rows = self._rows_of(b"key%d", ROWS)
        self.written = Written(self.rows, self.counts, self._value_of)
        self.told: list[Told] = []
        self.in_transactions = self._rows_of(b"own%d", TRANSACTION_ROWS)
        self.clients = [
            Client(rng, self.told, self.in_transactions, self._value_of)
            for _ in range(rng.choice((0, CLIENTS)))
        ]
        made = Backfills(rng, PARTITION, self.rows, self._value_of, self.counts)
        self.backfills = rng.choice((None, made))
        self.standbys = rng.choice((0.0, 0.1))
        self.carriers: list[Carrier] = []
        self.contents: dict[str, Versions] = {}
        self.received: dict[NodeId, Received] = {}
        self._stepping: list[Carrier] = []
        self._waits_deep = 0
        self._vain_seconds = 0.0
        self._numbers = 0
        self._house_at = 0.0
        self._stormy = True
        self._begin()

    def zone_of(self, config: ZoneConfig) -> ZoneConfig:
        """Return the zone's configuration."""
        return config

    def may_leave(self, node: NodeId) -> bool:
        """Whether the coordinator takes a replica away that it does not need."""
        del node
        return True

    def _rows_of(self, name: bytes, count: int) -> list[bytes]:
        """Return so many rows, all over the partition."""
        names = [name % number for number in range(count)]
        if self._table is not None:
            return self._table.ids(names)
        return [bytes([n * 256 // count]) * 8 + each for n, each in enumerate(names)]

    def _value_of(self, text: bytes) -> bytes:
        if self._table is None:
            return text
        return self._table.value(sum(text) % PLACES, text)

    def _limits(self) -> SnapshotLimits:
        pick = self.rng.choice
        return SnapshotLimits(
            overwritten_bytes_max=pick((500, 5_000)),
            early_bytes_max=pick((300, 5_000)),
            queue_bytes_max=pick((600, 5_000)),
            join_bytes_max=pick((600, 5_000)),
            join_seconds=pick((0.0, 0.3)),
            reader_idle_seconds_max=IDLE_SECONDS_MAX,
            slice_bytes=pick((100, 400)),
        )

    def _store_limits(self) -> dict[str, Any]:
        checkpoints = CheckpointLimits(
            bytes_min=0 if self.files else 1 << 62,
            join_seconds=self.limits.join_seconds,
            linger_seconds=IDLE_SECONDS_MAX,
            reader_idle_seconds_max=IDLE_SECONDS_MAX,
            age_seconds_max=3 * IDLE_SECONDS_MAX,
        )
        return {
            "log_segment_bytes": 2_048,
            "apply_slice_bytes": 400,
            "apply_slice_rows": ROWS_PER_WRITE,
            "snapshot": self.limits,
            "checkpoints": checkpoints,
            "bulk_checkpoint_bytes": 600,
            "bulk_early_bytes_max": 300,
            "file_checkpoint_bytes": 500,
        }

    def _new_id(self) -> str:
        self._numbers += 1
        return f"{self._numbers:032x}"

    # --- the zone --------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Make two replicas with rows, before anything breaks."""
        self.records[PARTITION] = routes.initial(tuple(self.rng.sample(NODES, MINIMUM)), 1)
        for node in NODES:
            self.start(node)
        self.set(PARTITION, routes.confirm(self.records[PARTITION]))
        for node in NODES:
            self.tell(node, PARTITION)
        self._stormy = False
        backfills = self.backfills
        while backfills is not None and not all(map(backfills.begin, self.leaders(PARTITION))):
            self.step()
        for _ in range(BACKFILL_STEPS):
            self._write()
            self._write()
            self.step()
        self._stormy = True

    def make_node(self, node: NodeId, lines: Lines) -> CopyNode:
        """Return a node's next life, on its disk."""
        return self._life(
            CopyNode,
            node,
            lines,
            limits=self._store_limits(),
            may_apply=self.may_apply,
            pull=self.pull,
            meanwhile=self.wait,
            endanger=self._endanger,
        )

    def nodes(self) -> list[CopyNode]:
        """Return the nodes that are up."""
        return [node for node in self.network.nodes.values() if isinstance(node, CopyNode)]

    # --- the run ---------------------------------------------------------------------------------

    def ask(self) -> None:
        """Write, at times more than a copy can go; have rows come from elsewhere."""
        bursts = self.rng.random() < BURST_CHANCE
        for _ in range(BURST_WRITES if bursts else 1):
            self._write()

    def may_apply(self, partition: Replica) -> bool:
        """Whether a replica applies now; a standby's job would not rest before it has."""
        at_once = partition.store.meta.needs_snapshot or partition.is_standby
        return at_once or super().may_apply(partition)

    def calm(self) -> None:
        """End all faults, those of copies too."""
        self._stormy = False
        super().calm()

    def settle(self) -> None:
        """Wait until all is copied; everything must be there then, and nothing else."""
        self.wait_for(self._over, lambda: self.carriers)
        # Of a version that an attempt has brought, and its source collected before the next one,
        # there may be no entry: nobody may read as of its time any more.
        everywhere = set.intersection(*({*versions_of(r.store)} for r in self.replicas()))
        for replica in self.replicas():
            self._check_whole(replica, everywhere)
        until = self.loop.time() + 4 * IDLE_SECONDS_MAX
        while self.loop.time() < until:
            self.step()
        readers = {node.node_id: _readers(node) for node in self.nodes()}
        assert not any(readers.values()), f"snapshots outlive their readers: {readers}"

    def _check_whole(self, replica: Replica, everywhere: set[bytes]) -> None:
        """Check a replica at the end; `everywhere` are the versions that all of them have."""
        self.written.check(replica)
        if self._table is not None:
            here = versions_of(replica.store)
            check_entries(replica, {key: here[key] for key in everywhere})
        if self.config.version_retention_seconds != FOR_EVER_SECONDS:
            return
        if self.backfills is not None:
            self.backfills.check(replica, versions_of(replica.store))
        seen = versions(replica.store, self.in_transactions)
        assert not torn(self.told, seen), f"half of {torn(self.told, seen)}"
        self.counts.update(check_told(self.told, seen))

    def _over(self) -> bool:
        """Whether all replicas are whole and as far as their leader."""
        record, replicas = self.records[PARTITION], self.replicas()
        ends = {replica.store.log_end for replica in replicas}
        return (
            {replica.node_id for replica in replicas} == set(record.replicas) == set(record.isr)
            and not any(replica.store.meta.needs_snapshot for replica in replicas)
            and ends == {replica.store.applied for replica in replicas}
            and len(ends) == 1
            and all(replica.positions.committed == replica.store.log_end for replica in replicas)
            and not any(replica.store.has_open_transactions for replica in replicas)
            and all(client.idle for client in self.clients)
            and (self._table is None or all(map(is_indexed, replicas)))
            and (
                self.backfills is None or all(map(self.backfills.are_over, self.leaders(PARTITION)))
            )
        )

    def step(self) -> None:
        """Let a moment pass."""
        self.loop.advance(data_plane.STEP_SECONDS)
        now = self.loop.monotonic()
        for node in self.nodes():
            if node is not self.stalled:
                self._at(node, functools.partial(node.step, now))
                self._at(node, functools.partial(self._receive, node))
        if now >= self._house_at or self.rng.random() < 0.05:
            self._house_at = now + HOUSE_SECONDS
            for node in self.nodes():
                self._at(node, node.keep_house)
        for carrier in list(self.carriers):
            for _ in range(self.rng.randint(0, 6)):
                self._carry(carrier)
        self._go_on()
        self._check_sources()
        self._compare()

    def _go_on(self) -> None:
        """Let clients and backfills go on at whoever leads."""
        leaders, now = self.leaders(PARTITION), self.loop.monotonic()
        for client in self.clients:
            if self._stormy or not client.idle:
                with self.mortals():
                    client.step(leaders, now)
        if self.backfills is not None and leaders:
            with self.mortals():
                self.backfills.step(leaders[0])

    def _at(self, node: CopyNode, act: Callable[[], None]) -> None:
        """Have a node do something, if it is still up; it may die of it."""
        if self.network.nodes.get(node.node_id) is node:
            with self.mortals():
                act()

    def _receive(self, node: CopyNode) -> None:
        node.puts = [put for put in node.puts if not put.over]
        for put in list(node.puts):
            if self.rng.random() < 0.5:
                put.step()
        if node.left_unread and self.rng.random() < 0.02:
            node.left_unread.pop().close()

    def _carry(self, carrier: Carrier) -> None:
        """Do a step of a copy, or end it with the process that it runs in."""
        if carrier not in self.carriers or carrier in self._stepping:
            return
        dies = carrier.holder is None and self._stormy and self.rng.random() < 0.003
        if dies or not self._runs(carrier):
            carrier.die()
            self.counts["carriers died"] += 1
            self.carriers.remove(carrier)
            return
        self._step_of(carrier)
        if carrier.receipts is not None:
            self.carriers.remove(carrier)
            for receipt in carrier.receipts:
                self.counts["failed" if receipt.error else "copied"] += 1
                self.counts["resumed"] += receipt.resumed and not receipt.error

    # --- what the nodes ask of their world -------------------------------------------------------

    def wait(self, seconds: float) -> None:
        """Let copies go on while somebody waits at a node: what it waits for is a reader.

        NotReadyError for who waits, in vain, for one that waits itself, further down the stack.
        """
        self.counts["waits"] += 1
        for scan in self._scans():
            full = scan.overwritten_bytes >= self.limits.overwritten_bytes_max
            self.counts["waits for room"] += full
            self.counts["waits for early rows"] += scan.early_bytes >= self.limits.early_bytes_max
        self.loop.advance(seconds)
        going = [
            carrier
            for carrier in self.carriers
            if carrier.begun and carrier.receipts is None and self._runs(carrier)
        ]
        free = [carrier for carrier in going if carrier not in self._stepping]
        if free:
            self._vain_seconds = 0.0
            self._waits_deep += 1
            self._step_of(self.rng.choice(free))
            self._waits_deep -= 1
            return
        self._vain_seconds += seconds
        if self._waits_deep and self._vain_seconds > 2 * IDLE_SECONDS_MAX:
            raise NotReadyError("the stream broke: its source waits", unreachable=1)

    def _runs(self, carrier: Carrier) -> bool:
        """Whether the process is up that a copy runs in."""
        holder = carrier.holder
        return holder is None or self.network.nodes.get(holder.node_id) is holder.host

    def _step_of(self, carrier: Carrier) -> None:
        """Do a step of a copy, during which nobody else does one of it."""
        self._stepping.append(carrier)
        with self.mortals():
            carrier.step()
        self._stepping.remove(carrier)

    def breaks(self) -> bool:
        """Whether a stream breaks at this batch."""
        return self._stormy and self.rng.random() < BREAK_CHANCE

    def _endanger(self, machine: TrackedDisk) -> None:
        if self._stormy and self.rng.random() < DEATH_CHANCE and len(self.network.nodes) > 1:
            machine.dies_in = self.rng.randint(1, DEATH_SYNCS_MAX)
            self.counts["endangered"] += 1

    def pull(self, partition: Replica, request: PullSnapshot) -> None:
        """Begin a copy that a node makes for itself."""
        source = self.network.id_at(request.source)
        under_way = any(c.holder is partition for c in self.carriers)
        if source is None or under_way or not partition.store.meta.needs_snapshot:
            return
        sink = PullSink(self, partition, self._new_id())
        self._begin_copy(partition, source, [sink])

    def _begin_copy(
        self, holder: Replica | None, source: NodeId, sinks: list[PullSink] | list[PutSink]
    ) -> None:
        batch_bytes = self.rng.choice((600, 3_000) if self.files else (150, 600))
        self.carriers.append(
            Carrier(
                self,
                PARTITION,
                source,
                sinks,
                holder=holder,
                options=CopyOptions(batch_bytes=batch_bytes),
                name=self._new_id(),
            )
        )
        self.counts["begun"] += 1

    # --- the coordinator -------------------------------------------------------------------------

    def coordinate(self) -> None:
        """Do a pass; add and remove replicas, and have those copied that need it."""
        super().coordinate()
        record = self.records[PARTITION]
        others = [node for node in NODES if node not in record.replicas]
        if others and self.rng.random() < 0.3:
            node = self.rng.choice(others)
            self.set(PARTITION, routes.add_replicas(record, (node,)))
        spare = [n for n in record.isr if n != record.leader and self.may_leave(n)]
        if self.rng.random() < self.standbys:
            self.set(PARTITION, routes.set_hot_standby(record, self.rng.choice(record.replicas)))
        leaves = self._stormy and len(record.isr) > MINIMUM and self.rng.random() < 0.15
        if leaves and spare:
            self.set(PARTITION, routes.remove_replicas(record, (self.rng.choice(spare),)))
        self._stop_others()

    def have_copied(self, partition: PartitionId) -> None:
        """Have replicas copied that need it, and of which no copy is under way."""
        replicas = self.records[partition].replicas
        served = {target for carrier in self.carriers for target in carrier.targets}
        needy = [
            replica.node_id
            for replica in self.replicas()
            if replica.store.meta.needs_snapshot
            and replica.node_id in replicas
            and (replica.node_id not in served or self._errs())
        ]
        if needy and self.rng.random() < 0.4:
            self._copy_to(needy)

    def _errs(self) -> bool:
        """Whether the coordinator believes that a copy has ended, which goes on."""
        return self._stormy and self.rng.random() < 0.02

    def _stop_others(self) -> None:
        record = self.records[PARTITION]
        for node in NODES:
            # Who applies is waited for, and has not been heard of yet.
            waits = self.stalled is not None and self.stalled.node_id == node
            if node not in record.replicas and not waits:
                request = StopReplica(
                    fence=FENCE,
                    partition=PARTITION,
                    leader_epoch=record.leader_epoch,
                    partition_epoch=record.partition_epoch,
                )
                self.call(node, request)

    def _copy_to(self, needy: list[NodeId]) -> None:
        record = self.records[PARTITION]
        source = record.leader if self.rng.random() < 0.7 else self.rng.choice(record.isr)
        if self.rng.random() < 0.5:
            request = PullSnapshot(fence=FENCE, partition=PARTITION, source=f"n{source}")
            self.call(self.rng.choice(needy), request)
        else:
            attempt = self._new_id()
            sinks = [PutSink(self, None, node, PARTITION, attempt) for node in needy]
            self._begin_copy(None, source, sinks)

    # --- writers ---------------------------------------------------------------------------------

    def _write(self) -> None:
        """Write a few rows to whoever leads."""
        for leader in self.leaders(PARTITION)[:1]:
            request, rows, reply = self.written.next_write(self.rng, PARTITION)
            with contextlib.suppress(RezoneError), self.mortals():
                leader.write(request, rows, reply)

    # --- what must hold --------------------------------------------------------------------------

    def opened(self, node: CopyNode, source: SnapshotSource | FileSnapshot) -> None:
        """Note what the source shows: whoever joins later gets the same."""
        header, partition = source.header, node.find(PARTITION)
        store = partition.store
        self.counts["joined"] += header.snapshot_id in self.contents
        content = versions_of(store)
        self.contents.setdefault(header.snapshot_id, content)
        self.counts["with open transactions"] += store.has_open_transactions
        self.counts["of late sources"] += store.applied < partition.positions.committed
        self.counts["of what is not committed"] += header.offset > partition.positions.committed
        self.counts["files" if header.format else "rows"] += 1

    def begun(self, partition: Replica, chunk: Chunk) -> None:
        """Note from where on a receiver has rows of this snapshot."""
        header = messages.decode(memoryview(chunk.app_metadata))
        assert isinstance(header, SnapshotHeader)
        copy = partition.store.meta.copy
        assert copy is not None
        received = self.received.get(partition.node_id)
        if received is None or received.begun_with != copy.snapshot_id or header.format:
            received = self.received[partition.node_id] = Received(copy.snapshot_id)
        received.go_on(copy.resume_after, header.snapshot_id)
        self.counts["went on"] += len(received.segments) > 1

    def taken(self, message: messages.Message) -> None:
        """Note that rows came before their turn."""
        self.counts["early"] += isinstance(message, SnapshotBatch) and message.early

    def edge(self, partition: Replica) -> None:
        """Let a receiver die while it begins or ends a copy, perhaps."""
        assert isinstance(partition.host, CopyNode)
        partition.host.endanger()

    def ended(self, partition: Replica) -> None:
        """Compare what a receiver has with what it was sent."""
        received = self.received.pop(partition.node_id)
        received.check(versions_of(partition.store), self.contents)
        self.counts["compared"] += 1
        if self._table is not None and is_indexed(partition):
            # Of rows that an attempt has left behind the log will say more, also to the indexes.
            check_entries(partition, received.versions(self.contents))
            self.counts["indexed"] += 1

    def _check_sources(self) -> None:
        """Check what sources hold for their readers, and for how long."""
        limits, now = self.limits, self.loop.monotonic()
        kept_max = max(limits.queue_bytes_max, limits.join_bytes_max) + KEPT_SLACK_BYTES
        for replica in self.replicas():
            for scan in replica.store._snapshots._scans:
                # At the limit no slice more is applied; the one that has reached it may be whole.
                noted_max = limits.overwritten_bytes_max + SLICE_ROWS_MAX * NOTED_ROW_BYTES_MAX
                assert scan.overwritten_bytes <= noted_max, f"{scan.overwritten_bytes} are noted"
                if scan.early_bytes > limits.early_bytes_max:
                    saved_max = limits.early_bytes_max + _largest_chains(
                        replica.store, SLICE_ROWS_MAX
                    )
                    assert scan.early_bytes <= saved_max, f"{scan.early_bytes} bytes are saved"
                assert scan.kept_bytes <= kept_max, f"{scan.kept_bytes} bytes wait for readers"
                for reader in scan.readers:
                    idle = now - reader.seen_at
                    most = limits.reader_idle_seconds_max + 4 * HOUSE_SECONDS
                    assert idle <= most, f"a snapshot is not read for {idle} s and goes on"

    def _scans(self) -> list[Any]:
        """Return all scans that are under way."""
        return [scan for replica in self.replicas() for scan in replica.store._snapshots._scans]

    def _compare(self) -> None:
        """Check that two replicas that have applied as much have the same."""
        whole = [
            replica
            for replica in self.replicas()
            if not replica.store.meta.needs_snapshot
            and self._opened_end(replica.store) <= replica.store.applied
            and replica.store.applied <= replica.positions.committed
        ]
        if len(whole) < 2 or self.rng.random() < 0.8:
            return
        one, other = self.rng.sample(whole, 2)
        if one.store.applied != other.store.applied:
            return
        told = f"nodes {one.node_id} and {other.node_id} differ at {one.store.applied}"
        if self.config.version_retention_seconds == FOR_EVER_SECONDS:
            ended = _ended_in(one.store) | _ended_in(other.store)
            backfilled = all(each.store.applied == each.store.log_end for each in (one, other))
            found = [_shown(each.store, ended, backfilled=backfilled) for each in (one, other)]
            assert found[0] == found[1], told
        else:
            newest = [replica.store.reader.newest(self.rows, TIME_MAX) for replica in (one, other)]
            assert newest[0] == newest[1], told
        self.counts["alike"] += 1

    def _opened_end(self, store: PartitionStore) -> int:
        """Return the end of the log that a store was opened with.

        Its engine may have more than it says to have applied: what was flushed before a crash.
        """
        return self._opened.setdefault(store, store.log_end)


def _readers(node: CopyNode) -> int:
    return sum(partition.store.outgoing.readers for partition in node.partitions())


def _largest_chains(store: PartitionStore, count: int) -> int:
    """Return the bytes of so many of the rows that have the most."""
    sizes: collections.Counter[bytes] = collections.Counter()
    for key, value in versions_of(store).items():
        sizes[key[:-TIME_BYTES]] += len(key) + len(value)
    return sum(size for _, size in sizes.most_common(count))


def _ended_in(store: PartitionStore) -> set[bytes]:
    """Return whose intents a store has that need not be there any more."""
    intents = {owner_of(v) for v in versions_of(store).values() if v[0] == FLAG_INTENT}
    with store.transactions() as table:
        return intents - {found.last.transaction for found in table.all_open()}


def _shown(store: PartitionStore, ended: set[bytes], *, backfilled: bool) -> Versions:
    """Return what a store has applied, without the intents of these transactions.

    Of an entry that a crash has cut there may be rows: they are newer than what is applied, or,
    unless all that came is `backfilled` in, of a backfill.
    """
    return {
        key: value
        for key, value in versions_of(store).items()
        if (0 if backfilled else BACKFILLED_BEFORE) <= time_of(key) <= store.applied_time
        and (value[0] != FLAG_INTENT or owner_of(value) not in ended)
    }
