"""What must hold: after every step, with every write of a route, and at the end of a run."""

from __future__ import annotations

import bisect
import collections
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from rezone.datanode.reading.read import Readable, readable
from rezone.datanode.replica.replica import Replica
from rezone.domain.assignment import assignments
from rezone.domain.routing import route_checks
from rezone.domain.routing.route_shards import decode_record
from rezone.kube.api.kinds import Manifest
from rezone.resources.migration import TERMINAL_MIGRATION_STATES
from rezone.resources.task import TERMINAL_TASK_STATES
from rezone.resources.zone import DistributionZone
from rezone.storage.log.entry import header_at
from rezone.wire.errors import RezoneError
from rezone.wire.layouts import Layout
from rezone.wire.messages import DiskTrouble, LeaderAndIsr, NodeId, PartitionId, Role
from simulation.cluster.apiserver import Key
from simulation.cluster.waits import circle, waits_of
from simulation.nodes.held import Held, Histories, History

if TYPE_CHECKING:
    from simulation.cluster.world import World


_CLAIMING = frozenset({"DistributionZone", "RebalanceTask", "RegionMigration"})

RECORD_CHANGES_MAX = 50
"""So often a record may change within a second; storms come to a dozen. More is written where two
deciders undo each other's changes."""


class OpenRead(NamedTuple):
    """A read of the newest state that waits, and how many rows were known when it began."""

    may_answer: Readable
    rows: int


class Checks:
    """The invariants of one run; a violation is an AssertionError at the step that made it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.zone_uid = ""
        self._know_nothing()

    def _know_nothing(self) -> None:
        self._leaders: dict[tuple[PartitionId, int], NodeId] = {}
        self._acknowledged: dict[PartitionId, History] = collections.defaultdict(list)
        self.routes: dict[PartitionId, LeaderAndIsr] = {}
        self.given_up: dict[PartitionId, int] = {}
        self.forgotten: dict[PartitionId, LeaderAndIsr] = {}
        self.lost_rows = 0
        self.reads: dict[tuple[PartitionId, NodeId, int], int] = collections.Counter()
        self._answered: dict[PartitionId, tuple[int, int]] = {}
        self._reading: weakref.WeakKeyDictionary[Replica, OpenRead] = weakref.WeakKeyDictionary()
        self._claims_changed = False
        self._changed: dict[PartitionId, collections.deque[float]] = collections.defaultdict(
            lambda: collections.deque(maxlen=RECORD_CHANGES_MAX)
        )

    # --- the route table ---------------------------------------------------------------------

    def stored(self, key: Key, old: Manifest | None, new: Manifest) -> None:
        """Check a write to the API server: routes follow from routes, keys are consistent."""
        self._claims_changed |= key.kind in _CLAIMING
        if key.kind == "ConfigMap" and self._is_of_zone(new):
            before = (old or {}).get("data") or {}
            for partition, text in (new.get("data") or {}).items():
                if before.get(partition) != text:
                    self._route(int(partition), decode_record(text))
        elif key.kind == "DistributionZone" and new.get("status"):
            zone = DistributionZone.parse(new)
            assert zone.status is not None
            wrong = assignments.violations(zone.status.assignments)
            assert wrong == (), f"the zone's keys: {wrong}"

    def _route(self, partition: PartitionId, record: LeaderAndIsr) -> None:
        before = self.routes.get(partition)
        assert route_checks.violations(record) == (), (
            f"p{partition}: {route_checks.violations(record)}"
        )
        if before is not None:
            fell = route_checks.regressions(before, record)
            assert fell == (), f"p{partition}: {fell}"
        self._require_calm(partition)
        self.routes[partition] = record
        newest = self.forgotten.get(partition)
        if newest is not None and _epochs(record) >= _epochs(newest):
            del self.forgotten[partition]
        since = self.given_up.get(partition)
        if since is not None and record.leader_epoch > since:
            self._go_on(partition, record)

    def _require_calm(self, partition: PartitionId) -> None:
        """Assert that a record that changes now has not changed too often within a second."""
        now, times = self._world.loop.time(), self._changed[partition]
        calm = len(times) < RECORD_CHANGES_MAX or now - times[0] >= 1.0
        assert calm, f"p{partition}: its record changed {len(times)} times within a second"
        times.append(now)

    def begin_again(self, zone_uid: str) -> None:
        """Forget a zone that was deleted; from now on one of this uid counts, and no other."""
        self._know_nothing()
        self.zone_uid = zone_uid

    def is_of_zone(self, replica: Replica) -> bool:
        """Return whether a replica is one of the zone that counts."""
        return self.zone_uid in {"", replica.store.meta.zone_uid}

    def _is_of_zone(self, manifest: Manifest) -> bool:
        owners = manifest["metadata"].get("ownerReferences") or ()
        return not self.zone_uid or any(each["uid"] == self.zone_uid for each in owners)

    def went_back(self, records: dict[PartitionId, LeaderAndIsr]) -> None:
        """Take the records of a restored backup; what they say of who may lead is not true yet."""
        for partition, newest in self.routes.items():
            if partition in records and _epochs(records[partition]) < _epochs(newest):
                self.forgotten[partition] = newest
        self.routes = records

    # --- a lost quorum -----------------------------------------------------------------------

    def give_up(self, partition: PartitionId) -> None:
        """Expect that nobody may have the rows, until a later epoch says with which it goes on."""
        self.given_up[partition] = self.routes[partition].leader_epoch

    def _go_on(self, partition: PartitionId, record: LeaderAndIsr) -> None:
        """From now on what was acknowledged is what the new leader has of it.

        All of it that the status promised to keep must be there, and no more than it has.
        """
        del self.given_up[partition]
        replica = self.held(partition, record.leader)
        held = replica.rows if replica is not None and not replica.needs_snapshot else []
        known = self._acknowledged[partition]
        pairs = enumerate(zip(known, held, strict=False))
        common = next((i for i, (a, b) in pairs if a != b), min(len(known), len(held)))
        self.lost_rows += len(known) - common
        found = [m["status"] for m in self._world.server.all_of("RegionMigration")]
        (status,) = [s for s in found if s["state"] != "RolledBack"]
        told = status["recovery"]
        assert told["keptOffset"] <= common, "rows are lost that were to be kept"
        assert told["logEndOffset"] == len(held), "another replica leads than was looked at"
        assert told["committedOffset"] <= len(known), "more was known than was acknowledged"
        self._acknowledged[partition] = known[:common]
        self._answered.pop(partition, None)
        self._reading.clear()

    # --- what replicas hold ------------------------------------------------------------------

    def histories(self, partition: PartitionId) -> Histories:
        """Return what yields all histories of a partition that are known."""

        def known() -> Iterator[History]:
            yield self._acknowledged[partition]
            for machine in self._world.kubelet.all_machines():
                if partition in machine.held:
                    yield machine.held[partition].rows

        return known

    def held(self, partition: PartitionId, node: NodeId) -> Held | None:
        """Return what a node holds of a partition, up or down; None when it has no replica."""
        machine = self._world.kubelet.machine_of(node)
        if machine is None:
            return None
        up = self._world.network.nodes.get(node)
        if up is not None and machine.runs(up):
            replica = up.replicas.get(partition)  # type: ignore[attr-defined]
            return self._held_by(replica) if replica is not None else None
        return machine.held.get(partition)

    def _held_by(self, replica: Replica) -> Held:
        """Return what an open replica holds by now."""
        machine = self._world.kubelet.machine_of(replica.node_id)
        assert machine is not None
        held = self._world.machines.held(machine, replica.partition_id)
        held.follow(replica.store)
        return held

    # --- the data ----------------------------------------------------------------------------

    def acknowledged(self, partition: Replica, end_offset: int) -> None:
        """Note that a client was told that everything below an offset is safe."""
        number = partition.partition_id
        known = self._acknowledged[number]
        held = self._held_by(partition)
        said = held.rows[:end_offset]
        common = min(len(known), len(said))
        assert known[:common] == said[:common], f"p{number}: two histories were acknowledged"
        if len(said) > len(known):
            self._acknowledged[number] = said

    def _read(self, partition: Replica, node: NodeId) -> None:
        """Go on with the read that waits at a replica, or begin one.

        A partition is a register whose value is its log, and values only grow: so reads are
        linearizable when each sees all that was acknowledged or read before it began.
        """
        number = partition.partition_id
        read = self._reading.pop(partition, None)
        if read is None:
            read = OpenRead(readable(partition, None), len(self._acknowledged[number]))
            partition.leading.ask_leases()
        try:
            answers = read.may_answer()
        except RezoneError:
            return
        if not answers:
            self._reading[partition] = read
            return
        self.reads[number, node, partition.leader_epoch] += 1
        known = self._acknowledged[number]
        seen = self._held_by(partition).rows[: partition.store.applied]
        assert seen[: read.rows] == known[: read.rows], (
            f"p{number}: node {node} of epoch {partition.leader_epoch} answers a stale read: "
            f"{len(seen)} rows, {read.rows} were known before it began"
        )
        if len(seen) > len(known):
            self._acknowledged[number] = seen

    def _read_past(self, partition: Replica, node: NodeId) -> None:
        """Read all rows as of the newest time that a replica may be read at.

        They must be the first of the history that is acknowledged, and all of it up to that time,
        forever: who reads as of an earlier answer's time must find as many rows as it had.
        """
        number, time = partition.partition_id, partition.positions.readable_time
        known, held = self._acknowledged[number], self._held_by(partition)
        if not time or held.needs_snapshot:
            return
        applied = partition.store.applied
        count = bisect.bisect_right(held.times, time, hi=applied)
        where = f"p{number}: node {node} as of {time}"
        common = min(count, len(known))
        assert held.rows[:common] == known[:common], f"{where}: rows that are nobody's history"
        missed = known[count : count + 1]
        assert not missed or header_time(missed[0]) > time, (
            f"{where}: acknowledged rows are missing"
        )
        before, rows = self._answered.get(number, (0, 0))
        if before <= time:
            again = bisect.bisect_right(held.times, before, hi=applied)
            assert again == rows, f"{where}: as of {before} there were {rows} rows, now {again}"
            self._answered[number] = (time, count)

    def rows(self, partition: PartitionId) -> int:
        """Return how many rows were acknowledged."""
        return len(self._acknowledged[partition])

    def dropped(self, node: NodeId, partition: Replica) -> None:
        """Check a replica that was deleted: nobody may have counted on it."""
        if not self.is_of_zone(partition):
            return
        record = self.routes[partition.partition_id]
        where = f"p{partition.partition_id}"
        counted = (*record.isr, *record.eligible)
        assert node not in counted, f"{where}: node {node} was stopped while it may have to lead"
        machine = self._world.kubelet.machine_of(node)
        assert machine is not None
        machine.held.pop(partition.partition_id, None)
        self.data(partition.partition_id)

    def is_whole(self, partition: PartitionId, node: NodeId) -> bool:
        """Return whether a node's disk has everything that was acknowledged."""
        held = self.held(partition, node)
        if held is None or held.needs_snapshot:
            return False
        known = self._acknowledged[partition]
        return held.rows[: min(held.durable, len(known))] == known

    def data(self, partition: PartitionId) -> None:
        """Assert that somebody may lead, and that whoever may has what was acknowledged."""
        record, known = self.routes[partition], self._acknowledged[partition]
        holders = 0
        for node in (*record.isr, *record.eligible):
            held = self.held(partition, node)
            if held is None or held.needs_snapshot:
                continue
            safe = held.rows[: min(held.durable, len(known))]
            assert safe == known, f"p{partition}: node {node} may lead and lacks acknowledged rows"
            holders += 1
        assert holders or not known, f"p{partition}: nobody who may lead has the acknowledged rows"

    def step(self) -> None:
        """Assert all of it for every partition, and that nothing waits in a circle."""
        if self._claims_changed:
            self._claims_changed = False
            around = circle(waits_of(self._world))
            assert not around, f"they wait for each other: {around}"
        for partition in self._world.replicas():
            number = partition.node_id
            slow = partition.failing.disk is DiskTrouble.SLOW
            assert slow or not partition.failure, f"node {number}: {partition.failure}"
            assert not partition.store.meta.damage, f"node {number}: damaged"
            if partition.role is Role.LEADER:
                self._leads(partition, number)
            if partition.partition_id not in self.given_up:
                self._read_past(partition, number)
            with self._world.mortals():
                self._read(partition, number)
        for known in self.routes.keys() - self.given_up.keys() - self.forgotten.keys():
            self.data(known)

    def _leads(self, partition: Replica, node: NodeId) -> None:
        key = (partition.partition_id, partition.leader_epoch)
        first = self._leaders.setdefault(key, node)
        assert first == node, f"p{key[0]}: nodes {first} and {node} lead in epoch {key[1]}"


def _epochs(record: LeaderAndIsr) -> tuple[int, int]:
    return record.leader_epoch, record.partition_epoch


def header_time(raw: bytes) -> int:
    """Return an entry's commit time."""
    header = header_at(raw, 0)
    assert header is not None
    return header.commit_time


def unfinished(world: World) -> list[str]:
    """Return what is not yet, or not any more, as it must be at the end; empty when all is."""
    zone = world.zone()
    status = zone.status
    if status is None or status.assignments.stable is None:
        return ["the zone is not placed"]
    keys = status.assignments
    found = [f"{k} is set" for k in ("pending", "planned", "cancel") if getattr(keys, k)]
    for kind, ends in (
        ("RebalanceTask", TERMINAL_TASK_STATES),
        ("RegionMigration", TERMINAL_MIGRATION_STATES),
    ):
        for each in world.server.all_of(kind):
            state = (each.get("status") or {}).get("state", "")
            if state not in ends:
                waits = (each.get("status") or {}).get("waitingFor", "")
                found.append(f"{kind} {each['metadata']['name']} is {state}: {waits}")
    assert keys.stable is not None
    places = assignments.parse(keys.stable.replicas)
    layout = Layout(keys.stable.layout_version, len(places))
    for partition, nodes in zip(layout.ids, places, strict=True):
        kept = (each.node for each in keys.retained if each.partition == partition)
        found += _partition_problems(world, partition, {*nodes, *kept})
    found += _leftovers(world, {n.id for n in status.data_nodes})
    found += _without_standbys(world)
    ready = [c for c in status.conditions if c.type == "Ready"]
    if not ready or ready[0].status != "True":
        found.append(f"the zone is not Ready: {ready[0].message if ready else ''}")
    return found


def _without_standbys(world: World) -> list[str]:
    wanted = world.zone().spec.hot_standbys
    records = world.checks.routes.items()
    return [f"p{p} has standbys {r.iss}" for p, r in records if len(r.iss) != wanted]


def _partition_problems(world: World, partition: PartitionId, nodes: set[NodeId]) -> list[str]:
    """Return what is wrong with a partition that shall live on these nodes and on no other."""
    record = world.checks.routes[partition]
    where = f"p{partition}"
    found = []
    if nodes != set(record.replicas):
        found.append(f"{where} lives on {record.replicas}, not on {nodes}")
    if set(record.isr) != set(record.replicas):
        found.append(f"{where} has {record.isr} of {record.replicas} in sync")
    if record.eligible:
        found.append(f"{where} has eligible replicas left: {record.eligible}")
    if record.next_leader is not None:
        found.append(f"{where} has an authorized takeover left")
    for number, node in world.network.nodes.items():
        held = {p.partition_id: p for p in node.partitions()}.get(partition)
        if held is not None:
            found += [f"{where}: {wrong}" for wrong in _replica_problems(held, number, record)]
        elif number in record.replicas:
            found.append(f"{where} is not open on node {number}")
    return found


def _replica_problems(held: Replica, node: NodeId, record: LeaderAndIsr) -> list[str]:
    found = []
    if node not in record.replicas:
        found.append(f"it is left behind on node {node}")
    if (held.role is Role.LEADER) != (node == record.leader):
        found.append(f"node {node} is a {held.role}, node {record.leader} leads")
    if held.record.partition_epoch != record.partition_epoch:
        found.append(f"node {node} does not know the newest record")
    strangers = set(held.leading.streams) - set(record.replicas)
    if strangers:
        found.append(f"streams to {strangers} are left behind")
    return found


def _leftovers(world: World, wanted: set[NodeId]) -> list[str]:
    found = []
    pods = {int(p["metadata"]["labels"]["rezone.dev/node-id"]) for p in world.server.all_of("Pod")}
    if pods != wanted:
        found.append(f"pods {pods}, data nodes {wanted}")
    if len(wanted) != world.zone().spec.data_nodes.count:
        found.append(f"{len(wanted)} data nodes")
    if set(world.network.nodes) != wanted:
        found.append(f"nodes {set(world.network.nodes)} are up of {wanted}")
    if world.spark.running:
        found.append("a SparkApplication still copies")
    found += [f"SparkApplication {name} had nothing to copy" for name in world.spark.idle]
    for number, node in world.network.nodes.items():
        pulls = node.pulls.running.items()  # type: ignore[attr-defined]
        found += [f"node {number} still copies p{p}" for p, c in pulls if not c.ended]
    return found
