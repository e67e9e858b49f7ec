"""What becomes of a zone whose pods are replaced: by people, by evictions, by a rolling update."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from rezone.kube.api.kinds import Pod
from rezone.kube.api.names import TEMPLATE_HASH
from rezone.wire.messages import NodeId
from simulation.cluster.kubelet import BROKEN, NAMESPACE
from simulation.cluster.world import Order, World
from simulation.scenarios.scenarios import (
    Scenario,
    Start,
    at_once,
    cordon_leader,
    later,
    leaders_as_planned,
    scale,
    stable_has,
)

DEADLINE = {"progressDeadlineSeconds": 10}


@dataclasses.dataclass(frozen=True)
class Claimed(Start):
    """A zone whose data nodes have volumes: a pod that is replaced finds its data."""

    def spec(self) -> dict[str, Any]:
        """Return the zone's spec."""
        return {**super().spec(), "storage": {"volumeClaimTemplate": {"size": "1Gi"}}}


def delete_pod_of_leader(world: World) -> None:
    """Delete the pod that leads partition 0, as `kubectl delete pod` and evictions do."""
    leader = world.checks.routes[0].leader
    status = world.zone().status
    assert status is not None
    name = next(n.pod_name for n in status.data_nodes if n.id == leader)
    world.server.delete(Pod, NAMESPACE, name)


def emptied(world: World) -> list[str]:
    """Expect that nothing has come back to the node that was drained."""
    status = world.zone().status
    assert status is not None
    cordoned = {n["metadata"]["name"] for n in world.server.all_of("Node") if n["spec"]}
    left = [n.id for n in status.data_nodes if n.node_name in cordoned or n.id == 0]
    return [f"data nodes {left} are left of the drained ones"] if left else []


def rebuilt(world: World, node: NodeId) -> list[str]:
    """Expect that a data node got no other pod: it would have begun with an empty disk."""
    return [line for line in world.trace if line.endswith(f"after create Pod z-{node}")]


def update(name: str, value: str = "yes") -> Callable[[World], None]:
    """Give the zone's pods another annotation, which is another template."""
    template = {"metadata": {"annotations": {name: value}}}

    def what(world: World) -> None:
        world.patch_zone(dataNodes={"podTemplate": template})

    return what


def mend(world: World) -> None:
    """Take the annotation that keeps pods from starting away again."""
    template = {"metadata": {"annotations": {BROKEN: None, "mended": "yes"}}}
    world.patch_zone(dataNodes={"podTemplate": template})


def hold(*, held: bool) -> Callable[[World], None]:
    """Pause a rolling update, or let it go on."""
    return lambda world: world.patch_zone(dataNodes={"updateStrategy": {"paused": held}})


def stuck(world: World) -> bool:
    """Hold when the zone says that its update does not go on, or no pod ever starts.

    A zone that is made again in the middle of its update has no pods of before to update from.
    """
    status, pods = world.zone().status, world.server.all_of("Pod")
    says = status.conditions if status is not None else ()
    broken = [BROKEN in p["metadata"].get("annotations", {}) for p in pods]
    made_so = bool(broken) and all(broken)
    return made_so or any(c.reason == "ProgressDeadlineExceeded" for c in says)


def updated(world: World) -> list[str]:
    """Expect that all pods have one template, the newest, and that none was missed."""
    status, found = world.zone().status, relieved(world)
    assert status is not None
    pods = world.server.all_of("Pod")
    if len({p["metadata"]["annotations"][TEMPLATE_HASH] for p in pods}) != 1:
        found.append("pods have different templates")
    wanted = (world.zone().spec.data_nodes.pod_template or {}).get("metadata", {})
    for key, value in wanted.get("annotations", {}).items():
        found += [
            f"{key} is missing" for p in pods if p["metadata"]["annotations"].get(key) != value
        ]
    found += [] if status.rollout is None else [f"the update is left: {status.rollout}"]
    return [*found, *leaders_as_planned(world)]


def relieved(world: World) -> list[str]:
    """Expect that every node that was told to stop did so when it was missed nowhere."""
    return [f"node {n} stopped while it was needed" for n in world.kubelet.missed]


DELETED = Scenario(
    "pod deleted",
    Claimed(partitions=2),
    (Order(at_once, delete_pod_of_leader),),
    expects=relieved,
)
DELETED_WITH_DISK = Scenario(
    "pod deleted with its disk",
    Start(partitions=2),
    (Order(at_once, delete_pod_of_leader),),
    expects=relieved,
)
DELETED_TWICE = Scenario(
    "pods deleted in a row",
    Claimed(partitions=3, replicas=3),
    (Order(at_once, delete_pod_of_leader), Order(later(0.5), delete_pod_of_leader)),
    expects=relieved,
)


def drain_leader(world: World) -> None:
    """Do what `kubectl drain` does to the node of partition 0's leader: cordon, evict."""
    cordon_leader(world)
    delete_pod_of_leader(world)


DRAINED = Scenario(
    "node drained",
    Claimed(partitions=2),
    (Order(at_once, drain_leader),),
    expects=lambda w: [*relieved(w), *stable_has(2, 3)(w), *emptied(w)],
)
DRAINED_WITH_DISK = Scenario(
    "node drained with its disk",
    Start(partitions=2),
    (Order(at_once, drain_leader),),
    expects=lambda w: [*relieved(w), *stable_has(2, 3)(w), *emptied(w), *rebuilt(w, 0)],
)
UPDATE = Scenario("update", Claimed(partitions=2), (Order(at_once, update("a")),), expects=updated)
UPDATE_WITH_DISKS = Scenario(
    "update of pods with their disks",
    Start(partitions=2),
    (Order(at_once, update("a")),),
    expects=updated,
)
UPDATE_TWICE = Scenario(
    "update twice",
    Claimed(partitions=2, replicas=3),
    (Order(at_once, update("a", "1")), Order(later(1.5), update("a", "2"))),
    expects=updated,
)
UPDATE_AND_JOIN = Scenario(
    "update while a node joins",
    Claimed(partitions=2),
    (Order(at_once, update("a")), Order(later(1.0), scale(1).what)),
    expects=updated,
)
UPDATE_HELD = Scenario(
    "update held",
    Claimed(partitions=2),
    (
        Order(at_once, update("a")),
        Order(later(1.0), hold(held=True)),
        Order(later(6.0), hold(held=False)),
    ),
    expects=updated,
)
STALLED_UPDATE = Scenario(
    "update stuck",
    Claimed(partitions=2),
    (
        Order(at_once, lambda w: w.patch_zone(dataNodes={"updateStrategy": DEADLINE})),
        Order(at_once, update(BROKEN)),
        Order(stuck, mend),
    ),
    expects=updated,
)
STALLED_UPDATE_AND_JOIN = Scenario(
    "update stuck while a node joins",
    Claimed(partitions=2),
    (
        Order(at_once, lambda w: w.patch_zone(dataNodes={"updateStrategy": DEADLINE})),
        Order(at_once, scale(1).what),
        Order(at_once, update(BROKEN)),
        Order(stuck, mend),
    ),
    expects=updated,
)

PODS = (
    DELETED,
    DELETED_WITH_DISK,
    DELETED_TWICE,
    DRAINED,
    DRAINED_WITH_DISK,
    UPDATE,
    UPDATE_WITH_DISKS,
    UPDATE_TWICE,
    UPDATE_AND_JOIN,
    UPDATE_HELD,
    STALLED_UPDATE,
    STALLED_UPDATE_AND_JOIN,
)
