"""A zone with indexes, without an operator: writers, takeovers, indexes that come and go, crashes.

One partition whose log is so short that it is trimmed all the time. Clients write a few rows at
once, or delete them, under one name each and again until they are answered. A coordinator elects
leaders, has them hand over, takes takeovers back, has replicas copied that need it or stand by hot,
and gives the zone other indexes now and then. What seldom comes by itself is plotted (`plots`).

What must hold: what a replica would look up is what its rows say, as of any time, as soon as its
index is as far as its rows; then it has an entry for each version, and no other; a look-up as of a
time never changes; who leads after a takeover has an index that lacks nothing of the old leader's;
a newest read sees what was acknowledged; who is in sync needs no copy; and at the end all that was
acknowledged is there, once, and the same everywhere.
"""

from __future__ import annotations

import dataclasses
import random
import uuid
from typing import Any

import msgspec

from rezone.datanode.indexing.indexing import index_lacks
from rezone.datanode.node.report import replica_report
from rezone.datanode.reading.read import readable
from rezone.datanode.replica.replica import Replica
from rezone.datanode.writing.change import PreparedRows
from rezone.domain.routing import route_leaders, routes
from rezone.domain.routing.routes import Refusal
from rezone.storage.engines.base import (
    FLAG_TOMBSTONE,
    time_suffix,
)
from rezone.storage.log.entry import OP_DELETE, OP_UPSERT, rows_batch
from rezone.wire.codec.indexes import IndexCodec, index_codecs
from rezone.wire.errors import RezoneError
from rezone.wire.messages import (
    IndexPosition,
    LeaderAndIsr,
    NodeId,
    Takeover,
    WriteRequest,
    WriteResult,
    ZoneConfig,
)
from simulation.storms.data_plane import (
    FENCE,
    KEYS,
    MINIMUM,
    NODES,
    PAST_MICROS,
    REPLICAS,
    STORM_SECONDS,
    DataPlane,
    values_of,
)
from simulation.storms.index_checks import (
    INDEXES,
    TableRows,
    check_entries,
    is_indexed,
    kept_table,
    look_up,
    rows_of,
    table_of,
)
from simulation.storms.plots import PLOTS, Plot

PARTITION = 0
CLIENTS = 3
PATIENCE_SECONDS = 1.0
ERROR_MICROS = 300_000
LOG_BYTES = 1_000
REST, PLOT_REST = 0.9, 0.5
"""How likely a client is to write nothing in a step, and while a plot waits for rows."""

PLOT_CHANCE = 0.03
PLOT_SECONDS = 4.0
"""How long a plot waits for its moment at most."""

PLACES = 4
COMPARED = 0.05
"""How often a replica's indexes are compared with its rows, in a step."""

_ALL = 1 << 62


@dataclasses.dataclass
class Client:
    """One writer: the write it goes on with, and where it stands."""

    producer_id: str
    sequence: int = 0
    rows: dict[bytes, bytes | None] = dataclasses.field(default_factory=dict)
    since: float = float("-inf")
    outcome: Any = None


class Indexed(DataPlane):
    """One run, from its seed."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(f"indexed {seed}")
        config = ZoneConfig(
            zone="z",
            zone_uid="u",
            partitions=1,
            replicas=REPLICAS,
            min_in_sync_replicas=MINIMUM,
            table=table_of(*rng.sample(INDEXES, rng.randrange(3))),
            log_retention_bytes=LOG_BYTES,
        )
        super().__init__(rng, config, ERROR_MICROS)
        self.table_rows = TableRows()
        self.rows = self.table_rows.ids([b"key%d" % n for n in range(KEYS)])
        self.values = 0
        self.clients = [Client(self._name()) for _ in range(CLIENTS)]
        self.deleted: set[tuple[bytes, int]] = set()
        self.found: dict[tuple[bytes, int], dict[bytes, bytes]] = {}
        self.stopped: dict[int, tuple[IndexPosition, set[str]]] = {}
        self.followed: dict[tuple[NodeId, int, NodeId], int] = {}
        self.plot: Plot | None = None
        self.plot_ends = 0.0
        self.begin([PARTITION])

    def _name(self) -> str:
        return uuid.UUID(int=self.rng.getrandbits(128)).hex

    # --- the run ---------------------------------------------------------------------------------

    @property
    def record(self) -> LeaderAndIsr:
        """The partition's record."""
        return self.records[PARTITION]

    def change(self, answer: LeaderAndIsr | Refusal | None) -> bool:
        """Take a change of the record, unless it is refused."""
        return self.set(PARTITION, answer)

    def replica(self, node: NodeId) -> Replica | None:
        """Return a node's replica, None while it is down."""
        return next((each for each in self.replicas() if each.node_id == node), None)

    def ask(self) -> None:
        """Go on with a plot, or begin one."""
        now = self.loop.monotonic()
        if self.plot is None and self.rng.random() < PLOT_CHANCE:
            self.plot = self.rng.choice(PLOTS)(self)
            self.plot_ends = now + PLOT_SECONDS
        if self.plot is not None and (now >= self.plot_ends or not self._goes_on(self.plot)):
            self._end_plot()

    def _goes_on(self, plot: Plot) -> bool:
        with self.mortals():
            return next(plot, plot) is None
        return False

    def _end_plot(self) -> None:
        if self.plot is not None:
            self.plot.close()
            self.plot = None

    def settle(self) -> None:
        """Wait until all is at rest; everything must be there then."""
        self.wait_for(lambda: not self._left(), self._left)
        self._check_end()

    def step(self) -> None:
        """Let a moment pass."""
        super().step()
        self._check_takeovers()
        self._check_logs()
        for client in self.clients:
            self._go_on(client)
        self.read_newest()
        self.read_past()
        for partition in self.replicas():
            if self.crashes.random() < COMPARED:
                with self.mortals():
                    self._check_indexes(partition)

    def calm(self) -> None:
        """End all faults, and let all nodes hear of the zone."""
        self._end_plot()
        super().calm()
        for node in NODES:
            self.configure(node)

    def _left(self) -> list[str]:
        """Return what is not at rest yet."""
        record = self.records[PARTITION]
        found = [f"client {c.producer_id}" for c in self.clients if c.rows]
        if record.next_leader is not None or set(record.isr) != set(record.replicas):
            found.append("the record")
        replicas = [r for r in self.replicas() if r.node_id in record.replicas]
        ends = {r.store.log_end for r in replicas}
        for each in replicas:
            done = {each.positions.committed, each.store.applied}
            indexer = each.store.indexer
            if done != ends or (indexer.enabled and (indexer.lag_rows or indexer.unfinished)):
                found.append(f"node {each.node_id}")
        return found

    # --- the coordinator -------------------------------------------------------------------------

    def coordinate(self) -> None:
        """Do a pass; bring takeovers about, and indexes."""
        super().coordinate()
        self.configure(self.rng.choice(NODES))
        if self.loop.time() < STORM_SECONDS and self.rng.random() < 0.03:
            self.change_table(indexes_min=0)
        record = self.records[PARTITION]
        if self.rng.random() < 0.05:
            # It applies what is not committed: so rows and entries are undone at times.
            standby = self.rng.choice([n for n in record.replicas if n != record.leader])
            self.set(PARTITION, routes.set_hot_standby(record, standby))
        self._hand_over()

    def change_table(self, *, indexes_min: int) -> None:
        """Give the zone other indexes, so many at least."""
        self.number += 1
        count = self.rng.randint(indexes_min, len(INDEXES))
        table = table_of(*self.rng.sample(INDEXES, count))
        self.config = msgspec.structs.replace(self.config, table=table)
        self.counts["tables"] += 1

    def _hand_over(self) -> None:
        record, chance = self.records[PARTITION], self.rng.random()
        if record.next_leader is None:
            others = [n for n in record.isr if n != record.leader and n in self.network.nodes]
            if others and chance < 0.2 and self.loop.time() < STORM_SECONDS:
                self.set(
                    PARTITION,
                    route_leaders.authorize_takeover(record, self.rng.choice(others)),
                )
            return
        for leader in self.leaders(PARTITION):
            report = replica_report(leader)
            if self.set(
                PARTITION,
                route_leaders.complete_takeover(record, leader.node_id, report.leader_epoch),
            ):
                self.counts["takeovers"] += 1
                return
        if chance < 0.1:
            self.set(PARTITION, route_leaders.roll_back_takeover(record))
        elif chance < 0.6:
            assert record.next_epoch is not None
            request = Takeover(
                fence=FENCE,
                partition=PARTITION,
                leader_epoch=record.leader_epoch,
                candidate=record.next_leader,
                next_epoch=record.next_epoch,
            )
            self.call(record.leader, request)

    # --- clients ---------------------------------------------------------------------------------

    def _go_on(self, client: Client) -> None:
        """Go on with a client's write, or begin one."""
        now = self.loop.monotonic()
        if isinstance(client.outcome, WriteResult):
            self._acknowledge(client, client.outcome)
        elif client.outcome is None and now - client.since < PATIENCE_SECONDS:
            return
        if not client.rows:
            rests = PLOT_REST if self.plot is not None else REST
            if self.loop.time() > STORM_SECONDS or self.rng.random() < rests:
                return
            client.sequence += 1
            chosen = self.rng.sample(self.rows, self.rng.randrange(1, 4))
            client.rows = {row: self._new_value() for row in chosen}
        self._send(client)

    def _new_value(self) -> bytes | None:
        if self.rng.random() < 0.2:
            return None
        self.values += 1
        return self.table_rows.value(self.rng.randrange(PLACES), b"name %d" % self.values)

    def _acknowledge(self, client: Client, result: WriteResult) -> None:
        self.counts["written"] += 1
        for row, value in client.rows.items():
            if value is None:
                self.deleted.add((row, result.commit_time))
            else:
                self.acknowledged[row].add(value)
        client.rows, client.outcome = {}, None

    def _send(self, client: Client) -> None:
        client.since, client.outcome = self.loop.monotonic(), None
        leaders = self.leaders(PARTITION)
        if not leaders:
            return
        ops = [OP_DELETE if value is None else OP_UPSERT for value in client.rows.values()]
        rows = rows_batch(list(client.rows), ops, [value or b"" for value in client.rows.values()])
        request = WriteRequest(
            opaque=0,
            partition=PARTITION,
            producer_id=client.producer_id,
            sequence=client.sequence,
        )
        sequence = client.sequence

        def reply(outcome: Any) -> None:
            # An answer may be lost, or be one to a write that was answered before.
            if client.sequence == sequence and client.rows and self.rng.random() >= 0.1:
                client.outcome = outcome

        try:
            with self.mortals():
                leaders[0].write(request, PreparedRows(rows, 100), reply)
        except RezoneError as error:
            client.outcome = error

    # --- what must hold --------------------------------------------------------------------------

    def _check_takeovers(self) -> None:
        """Assert that who has taken over has an index as good as the old leader's (DCP-08)."""
        record = self.records[PARTITION]
        for replica in self.replicas():
            if replica.node_id in record.isr and replica.node_id in replica.record.isr:
                assert not replica.store.meta.needs_snapshot, f"{replica.node_id} lacks its log"
            indexer = replica.store.indexer
            if replica.transfer.blocks_writes and indexer.stopped and indexer.enabled:
                lives = {node.process_id for node in self.network.nodes.values()}
                self.stopped[replica.transfer.epoch] = indexer.position, lives
            taken = self.stopped.pop(replica.leader_epoch, None) if replica.leads else None
            # Who was restarted since indexes again what was not flushed, as any replica does.
            if taken is not None and self.network.nodes[replica.node_id].process_id in taken[1]:
                stopped = taken[0]
                history = replica.store.meta.failover_log
                wanted = replica.index.still_wanted(stopped)
                lacking = index_lacks(history, wanted, indexer.position)
                assert not lacking, f"node {replica.node_id} leads, and its {lacking}"
                self.counts["indexed takeovers"] += 1

    def _check_logs(self) -> None:
        """Assert that no log is trimmed beyond who follows it: that would cost a copy."""
        followed: dict[tuple[NodeId, int, NodeId], int] = {}
        for leader in self.leaders(PARTITION):
            start = leader.store.log_start
            for node, durable in leader.require_leadership().catching_up().items():
                key = leader.node_id, leader.leader_epoch, node
                trimmed = start > self.followed.get(key, start) and start > durable
                assert not trimmed, (
                    f"{key}: the log begins at {start}, the follower is at {durable}"
                )
                followed[key] = start
        self.followed = followed

    def _check_indexes(self, partition: Replica) -> None:
        """Assert that a replica's indexes have what its rows say, where they are as far."""
        if not is_indexed(partition):
            return
        indexer = partition.store.indexer
        for codec in index_codecs(kept_table(partition)):
            if codec.id in indexer.position.built:
                self.counts["compared"] += 1
                assert look_up(partition, codec, None) == rows_of(partition, None)
                self._look_up_past(partition, codec)
        if not indexer.unfinished:
            check_entries(partition)

    def _look_up_past(self, partition: Replica, codec: IndexCodec) -> None:
        as_of = (self.loop.micros() // PAST_MICROS - self.past_age()) * PAST_MICROS
        try:
            if not readable(partition, as_of)():
                return
        except RezoneError:
            return
        self.counts["past lookups"] += 1
        found = look_up(partition, codec, as_of)
        before = self.found.setdefault((codec.id, as_of), found)
        assert found == before, f"{codec.name} as of {as_of} at node {partition.node_id}"

    def _check_end(self) -> None:
        record = self.records[PARTITION]
        replicas = [r for r in self.replicas() if r.node_id in record.replicas]
        versions = [
            r.store.engine.scan_chains(b"", None, rows_max=_ALL, bytes_max=_ALL) for r in replicas
        ]
        assert all(each == versions[0] for each in versions), "the replicas have other rows"
        tombstones = {
            key
            for key, value in zip(versions[0].keys, versions[0].values, strict=True)
            if value[0] == FLAG_TOMBSTONE
        }
        for replica in replicas:
            for row in self.rows:
                missing = self.acknowledged[row] - values_of(replica, row).keys()
                assert not missing, f"{missing} of {row!r} are lost"
        lost = [at for at in self.deleted if at[0] + time_suffix(at[1]) not in tombstones]
        assert not lost, f"{lost} are not deleted any more"
