"""Nodes in maintenance: how one is asked for and ended, and storms by seed while it lasts.

In a storm a node is asked to be in maintenance while the operator dies, its writes fail, and data
nodes are killed and cut off. Then its pod is evicted. It either comes back in time, and nothing may
have been copied; or it does not, and is replaced, but not before its time is over.
"""

from __future__ import annotations

import collections
import random
from collections.abc import Callable

from rezone.domain.observed.maintenance import ANNOTATION
from rezone.kube.api.kinds import Node, Pod
from rezone.resources.zone_status import DataNodeStatus, MaintenanceState
from rezone.wire.messages import NodeId
from simulation.cluster.kubelet import NAMESPACE
from simulation.cluster.world import Order, World
from simulation.scenarios.faults import STORM_SECONDS, Storm
from simulation.scenarios.pod_scenarios import Claimed
from simulation.scenarios.scenarios import TASK, at_once, at_rest, later

START = Claimed(partitions=3, replicas=3, nodes=3)
STORM_SECONDS_MAX = 2000.0
ABSENCE_SECONDS = (15.0, 90.0)
"""How long after the storm a node is away: the operator takes it for lost after 60 s."""

FOREVER_SECONDS = 10_000.0
REPLACED_CHANCE = 0.25
LEFT_OUT = ("die", "lose", "wipe", "spark", "trim", "person")
"""Faults after which something may have to be copied, or that this zone has no use for."""


def data_node(world: World, node: NodeId) -> DataNodeStatus:
    """Return what the zone says of a node."""
    found = [n for n in world.data_nodes() if n.id == node]
    assert found, f"the zone has no data node {node} any more"
    return found[0]


def patch(world: World, node: NodeId, *, annotation: str | None, cordoned: bool) -> None:
    """Annotate and cordon a node's Kubernetes node."""
    meta = {"annotations": {ANNOTATION: annotation}}
    body = {"metadata": meta, "spec": {"unschedulable": cordoned}}
    world.server.merge(Node, "", data_node(world, node).node_name, body)


def begin(node: NodeId, annotation: str) -> Callable[[World], None]:
    """Ask for maintenance by the annotation, and cordon."""
    return lambda world: patch(world, node, annotation=annotation, cordoned=True)


def spared(node: NodeId) -> Callable[[World], bool]:
    """Hold when a node is in maintenance and leads nothing any more."""

    def when(world: World) -> bool:
        asked = data_node(world, node).maintenance
        active = asked is not None and asked.state is MaintenanceState.ACTIVE
        return active and all(r.leader != node for r in world.checks.routes.values())

    return when


def evict(node: NodeId) -> Callable[[World], None]:
    """Delete a node's pod, as `kubectl drain` does."""
    return lambda w: w.server.delete(Pod, NAMESPACE, data_node(w, node).pod_name)


def end(node: NodeId) -> Callable[[World], None]:
    """Let a node be used again."""
    return lambda world: patch(world, node, annotation=None, cordoned=False)


def copies(world: World) -> list[str]:
    """Return what was copied, by whom it was asked for."""
    return [line for line in world.trace if "PullSnapshot" in line or "SparkApplication" in line]


# --- storms --------------------------------------------------------------------------------------


def _storm_of(rng: random.Random) -> Storm:
    """Return a storm without the faults that are left out."""

    def some(*chances: float) -> float:
        return rng.choice((0.0, *chances))

    return Storm(
        seconds=rng.choice(STORM_SECONDS),
        crash=some(0.005, 0.02, 0.05),
        write_fault=some(0.02, 0.1),
        read_fault=some(0.02),
        late_call=some(0.03),
        lost_answer=some(0.05),
        jitter=some(10.0, 50.0),
        kill=some(0.005),
        isolate=some(0.01),
        cut=some(0.01),
        watch=some(0.01),
        split=some(0.005),
    )


def storm(seed: int) -> collections.Counter[str]:
    """Run a node's maintenance through a storm of faults; returns what has happened."""
    rng = random.Random(f"maintenance {seed}")
    node, weather = rng.randrange(START.nodes), _storm_of(rng)
    absence = weather.seconds + rng.uniform(*ABSENCE_SECONDS)
    replaced = rng.random() < REPLACED_CHANCE
    with World(seed, at_rest(START)) as world:
        world.note(f"maintenance of node {node}, {'replaced' if replaced else 'back'}")
        weather.begin(world)
        if replaced:
            _stays_away(world, node, weather.seconds)
        else:
            _comes_back(world, node, absence)
        world.counts.update({"back in time": not replaced, "replaced": replaced})
        for fault in LEFT_OUT:
            del world.counts[fault]
        return world.counts


def _comes_back(world: World, node: NodeId, absence_seconds: float) -> None:
    """Evict a node's pod and let it come back: its replicas catch up by their logs."""

    def check_away(world: World) -> None:
        assert data_node(world, node).state == "Active", data_node(world, node)
        assert node not in {r.leader for r in world.checks.routes.values()}, "it leads"
        assert len([*world.server.all_of("Pod")]) == START.nodes - 1, "its pod was made elsewhere"

    world.orders = [
        Order(at_once, begin(node, "1h")),
        Order(spared(node), evict(node)),
        Order(later(absence_seconds), check_away),
        Order(at_once, end(node)),
    ]
    world.run(STORM_SECONDS_MAX)
    assert copies(world) == [], world.story()
    assert world.states(TASK) == {}, world.story()
    assert data_node(world, node).maintenance is None, world.story()
    assert all(node in r.isr for r in world.checks.routes.values()), world.story()


def _stays_away(world: World, node: NodeId, storm_seconds: float) -> None:
    """Lose a node in its maintenance: it is replaced when its time is over, and not before."""

    def lose(world: World) -> None:
        asked = data_node(world, node).maintenance
        assert asked is not None
        others = world.each_step

        def each(world: World) -> None:
            others(world)
            early = world.loop.now() < asked.until_time
            assert not (early and copies(world)), "copied before the maintenance was over"

        world.each_step = each
        world.kubelet.kill(node, FOREVER_SECONDS)

    world.orders = [
        Order(at_once, begin(node, "5m")),
        Order(later(storm_seconds + 1.0), lambda _: None),
        Order(spared(node), lose),
        Order(lambda w: bool(w.states(TASK)), lambda _: None),
    ]
    world.run(STORM_SECONDS_MAX)
    assert node not in {n.id for n in world.data_nodes()}, world.story()
    assert all(node not in r.replicas for r in world.checks.routes.values()), world.story()
    assert copies(world) != [], world.story()
