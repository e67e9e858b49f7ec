"""The API server's objects go back in time, as after a restore of etcd from a backup.

Kubernetes nodes are what runs, so their objects come back as they are: kubelets write them again.
A pod that the backup does not know is ended, and its volume forgotten; of more than one the test
says that somebody has brought it back: the rows of as many as a zone may lose at a time would go.
What nobody can write again is what the operator has decided. Controllers are started again
after a restore, as the handbook of every distribution asks for, and what people ask of the objects
that are there is applied again, as by GitOps: an approval would be missing for ever.
"""

from __future__ import annotations

import dataclasses

from rezone.domain.routing.route_shards import decode_record
from rezone.kube.api.kinds import MigrationKind, TaskKind, ZoneKind
from rezone.kube.api.names import NODE_ID_LABEL
from simulation.cluster.apiserver import Key
from simulation.cluster.world import World

ASKED = {kind.name: kind for kind in (ZoneKind, TaskKind, MigrationKind)}
KINDS = ("DistributionZone", "RebalanceTask", "RegionMigration", "ConfigMap", "SparkApplication")


@dataclasses.dataclass(frozen=True)
class Backup:
    """What the operator had decided at one moment, the count of its Lease among it."""

    revision: int
    objects: dict[Key, bytes]
    epoch: int
    pods: frozenset[Key]
    forgives: bool
    """Whether the zone can do without one data node."""


def back_up(world: World) -> Backup:
    """Return a backup of now."""
    objects = {key: raw for key, raw in world.server.objects.items() if key.kind in KINDS}
    pods = frozenset(key for key in world.server.objects if key.kind == "Pod")
    return Backup(world.server.revision, objects, world.epoch, pods, _forgives(world))


def _forgives(world: World) -> bool:
    return all(
        zone["spec"].get("minInSyncReplicas", 1) > 1
        for zone in world.server.all_of("DistributionZone")
    )


def restore(world: World, backup: Backup) -> None:
    """Put a backup in the place of what there is; the operator is started again."""
    world.strikes("objects go back", "the objects go back in time")
    server = world.server
    world.counts["pod forgotten"] += 0
    if backup.forgives and _forgives(world):
        for key in [k for k in server.objects if k.kind == "Pod" and k not in backup.pods][:1]:
            node = int(server.read(key)["metadata"]["labels"][NODE_ID_LABEL])
            world.strikes("pod forgotten", f"node {node} is forgotten")
            world.kubelet.wipe(node)
    known = [key for key in backup.objects if key in server.objects and key.kind in ASKED]
    asked = {key: server.read(key)["spec"] for key in known}
    world.crash()
    server.put_back(KINDS, backup.objects, backup.revision)
    world.epoch = backup.epoch
    for key, spec in asked.items():
        server.merge(ASKED[key.kind], key.namespace, key.name, {"spec": spec})
    for key in backup.objects:
        if key.kind == "SparkApplication":
            manifest = server.read(key)
            state = (manifest.get("status") or {}).get("applicationState", {}).get("state", "")
            if state not in ("COMPLETED", "FAILED"):
                world.spark.adopt(key, manifest)
    world.checks.went_back(
        {
            int(partition): decode_record(text)
            for key in backup.objects
            if key.kind == "ConfigMap"
            for partition, text in (server.read(key).get("data") or {}).items()
            if partition.isdecimal()
        }
    )
    world.disturbed()
