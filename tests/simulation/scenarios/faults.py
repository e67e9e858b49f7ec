"""Faults as values: a storm has its own mix of them, chosen by the seed (swarm testing).

Nothing is broken that no system could survive: a disk is lost only while another replica that is up
and in sync, or eligible, has the same rows.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable

from rezone.kube.api.kinds import MigrationKind
from rezone.wire.layouts import index_of
from rezone.wire.messages import NodeId
from simulation.cluster.apiserver import ApiFault
from simulation.cluster.world import World

DOWN_SECONDS = (0.2, 1.0, 5.0, 12.0)
STORM_SECONDS = (3.0, 10.0, 30.0)
SYNCS_MAX = 12
MIGRATIONS_MAX = 12
"""So many migrations a zone has when persons apply no more."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Storm:
    """How probable each fault is: per crash point, request or call, or per step of the world."""

    seconds: float
    crash: float = 0.0
    write_fault: float = 0.0
    read_fault: float = 0.0
    late_call: float = 0.0
    lost_answer: float = 0.0
    lost_active: float = 0.0
    jitter: float = 0.0
    kill: float = 0.0
    lose: float = 0.0
    wipe: float = 0.0
    isolate: float = 0.0
    cut: float = 0.0
    watch: float = 0.0
    split: float = 0.0
    spark: float = 0.0
    trim: float = 0.0
    die: float = 0.0
    person: float = 0.0

    def begin(self, world: World) -> None:
        """Let it break out."""
        rng = world.rng
        world.counts.update(dict.fromkeys(FAULTS, 0))
        world.crash_chance = self.crash
        world.write_fault_chance = self.write_fault
        world.read_fault_chance = self.read_fault
        world.jitter = self.jitter
        network = world.network
        network.late_seconds = lambda: (
            rng.uniform(0.0, 10.0) if self.late_call and rng.random() < self.late_call else 0.0
        )
        network.answer_is_lost = lambda: rng.random() < self.lost_answer
        network.loses_active = lambda: rng.random() < self.lost_active
        end = world.loop.time() + self.seconds
        others = world.each_step
        mended = False

        def each(world: World) -> None:
            nonlocal mended
            others(world)
            if world.loop.time() < end:
                self.strike(world)
            elif not mended:
                mended = True
                mend(world)

        world.each_step = each

    def strike(self, world: World) -> None:
        """Perhaps break something in this step."""
        for name, what in FAULTS.items():
            chance = getattr(self, name)
            if chance and world.rng.random() < chance:
                world.disturbed()
                what(world)


def storm_of(rng: random.Random) -> Storm:
    """Return a storm with a random part of all faults."""

    def some(*chances: float) -> float:
        return rng.choice((0.0, 0.0, *chances))

    return Storm(
        seconds=rng.choice(STORM_SECONDS),
        crash=some(0.005, 0.02, 0.05),
        write_fault=some(0.02, 0.1),
        read_fault=some(0.02),
        late_call=some(0.03),
        lost_answer=some(0.05),
        lost_active=some(0.5),
        jitter=some(10.0, 50.0),
        kill=some(0.005, 0.02),
        lose=some(0.002),
        wipe=some(0.005),
        isolate=some(0.01),
        cut=some(0.01),
        watch=some(0.01),
        split=some(0.005),
        spark=some(0.02),
        trim=some(0.02),
        die=some(0.01, 0.05),
        person=some(0.02, 0.1),
    )


def mend(world: World) -> None:
    """End all faults: from now on the run must come to its end."""
    world.note("the storm is over")
    world.crash_chance = world.write_fault_chance = world.read_fault_chance = world.jitter = 0.0
    world.write_faults.clear()
    network = world.network
    network.late_seconds = lambda: 0.0
    network.answer_is_lost = network.loses_active = lambda: False
    network.isolated.clear()
    network.cut.clear()
    for machine in list(world.kubelet.machines.values()):
        machine.disk.dies_in = 0
        world.kubelet.restart(machine.node)
    world.disturbed()


def _one(world: World) -> NodeId | None:
    up = list(world.network.nodes)
    return world.rng.choice(up) if up else None


def _seconds(world: World) -> float:
    return world.rng.choice(DOWN_SECONDS) * world.rng.uniform(0.5, 1.5)


def _one_to_kill(world: World) -> NodeId | None:
    """Return a node that has its disk when it is back, or whose disk may be lost."""
    node = _one(world)
    kept = node is None or not world.kubelet.goes_with_its_disk(node) or may_be_wiped(world, node)
    return node if kept else None


def kill_one(world: World) -> None:
    """Kill a data node; it is back after a while."""
    node = _one_to_kill(world)
    if node is not None:
        world.strikes("kill", f"node {node} is killed")
        world.kubelet.kill(node, _seconds(world))


def lose_one(world: World) -> None:
    """Kill a data node for so long that it counts as lost."""
    node = _one_to_kill(world)
    if node is not None:
        world.strikes("lose", f"node {node} is killed for long")
        world.kubelet.kill(node, 90.0)


def endanger_one(world: World) -> None:
    """Let a data node's machine die in one of its next syncs."""
    node = _one_to_kill(world)
    machine = world.kubelet.machine_of(node) if node is not None else None
    if machine is not None:
        world.strikes("die", f"node {node} may die in a sync")
        machine.disk.dies_in = world.rng.randint(1, SYNCS_MAX)


def wipe_one(world: World) -> None:
    """Take a data node's pod and disk away, unless rows would be lost that nobody else has."""
    node = _one(world)
    if node is not None and may_be_wiped(world, node):
        world.strikes("wipe", f"node {node} loses its disk")
        world.kubelet.wipe(node)


def may_be_wiped(world: World, node: NodeId) -> bool:
    """Return whether all others that may lead a node's partitions are whole, one of them up.

    Who is only down comes back with its disk. A copy that was never compared does not lead by
    itself: where only that is left a person decides (decision 0288).
    """
    replicas = world.replicas()
    compared = {(r.partition_id, r.node_id) for r in replicas if not r.store.meta.uncompared}
    for partition, record in world.checks.routes.items():
        counted = (*record.isr, *record.eligible)
        others = [n for n in counted if n != node]
        whole = [n for n in others if world.checks.is_whole(partition, n)]
        up = [n for n in whole if n in world.network.nodes and (partition, n) in compared]
        if node in counted and (not up or whole != others):
            return False
    return True


def isolate_one(world: World) -> None:
    """Cut a data node off from the operator."""
    node = _one(world)
    if node is not None:
        world.strikes("isolate", f"node {node} is isolated")
        world.network.isolated.add(node)
        world.loop.call_later(_seconds(world), world.network.isolated.discard, node)


def cut_one(world: World) -> None:
    """Cut two data nodes off from each other."""
    pairs = list(itertools.combinations(world.network.nodes, 2))
    if pairs:
        pair = frozenset(world.rng.choice(pairs))
        world.strikes("cut", f"the link {sorted(pair)} is cut")
        world.network.cut.add(pair)
        world.loop.call_later(_seconds(world), world.network.cut.discard, pair)


def cut_watch(world: World) -> None:
    """Let the operator hear of nothing for a while."""
    world.strikes("watch", "the watch is cut")
    world.processes[-1].cut_watch(_seconds(world))


def fail_spark(world: World) -> None:
    """Let a Spark driver die."""
    world.strikes("spark")
    world.spark.fail_next = 1


def trim_one(world: World) -> None:
    """Forget the log of a node's replicas as far as that is allowed."""
    node = _one(world)
    if node is not None:
        world.strikes("trim")
        for partition in world.replicas():
            if partition.node_id == node:
                with world.mortals():
                    partition.store.trim(
                        0, min(partition.store.applied, partition.positions.committed)
                    )


def migrate_one(world: World) -> None:
    """Have a person move some leader anywhere; names that go before and after a task's."""
    applied = [each["metadata"]["name"] for each in world.server.all_of(MigrationKind)]
    if len(applied) >= MIGRATIONS_MAX or not world.checks.routes:
        return
    rng, spec = world.rng, dict[str, object]()
    if rng.random() < 0.8:
        spec["target"] = rng.choice([n.id for n in world.data_nodes()])
    if rng.random() < 0.5:
        spec["oldLeaderPolicy"] = "Remove"
    elif rng.random() < 0.5:
        spec["retainOldLeaderSeconds"] = rng.choice((0, 3))
    partition = rng.choice(sorted(world.checks.routes))
    letter = rng.choice("az")
    # Where some have been deleted, their number alone may be another one's name.
    names = (f"{letter}-{number}" for number in itertools.count(len(applied)))
    name = next(each for each in names if each not in applied)
    world.strikes("person", f"{name}: partition {partition}, {spec}")
    world.apply_migration(name, partition=index_of(partition), **spec)


FAULTS: dict[str, Callable[[World], object]] = {
    "kill": kill_one,
    "lose": lose_one,
    "wipe": wipe_one,
    "isolate": isolate_one,
    "cut": cut_one,
    "watch": cut_watch,
    "split": lambda world: world.split(world.rng.uniform(0.2, 5.0)),
    "spark": fail_spark,
    "trim": trim_one,
    "die": endanger_one,
    "person": migrate_one,
}
"""What a storm perhaps does in a step, by the name of its chance, which is what is counted."""


def _api(fault: ApiFault) -> Callable[[World], None]:
    return lambda world: world.write_faults.append(fault)


SECOND_FAULTS: dict[str, Callable[[World], object]] = {
    "node killed": kill_one,
    "machine dies in a sync": endanger_one,
    "disk lost": wipe_one,
    "node isolated": isolate_one,
    "link cut": cut_one,
    "watch cut": cut_watch,
    "operator killed again": World.crash,
    "two operators": lambda world: world.split(3.0),
    "Spark fails": fail_spark,
    **{fault.value: _api(fault) for fault in ApiFault},
}
"""What can happen besides the operator's death, by name."""
