"""What becomes of a zone whose pods are replaced: by people, by evictions, by a rolling update."""

from __future__ import annotations

import dataclasses
from typing import Any

from rezone.kube.client import Pod
from simulation.kubelet import NAMESPACE
from simulation.scenarios import Scenario, Start, at_once, later
from simulation.world import Order, World


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

PODS = (DELETED, DELETED_WITH_DISK, DELETED_TWICE)
