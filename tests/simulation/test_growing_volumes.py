"""More room is asked for each data node's volume by the zone's pass, whoever makes it."""

from __future__ import annotations

import pytest

from rezone.kube.api.kinds import PersistentVolumeClaim
from simulation.cluster.checks import unfinished
from simulation.cluster.kubelet import NAMESPACE
from simulation.cluster.world import Order, World
from simulation.scenarios.pod_scenarios import Claimed
from simulation.scenarios.scenarios import at_once, at_rest

SECONDS_MAX = 300.0
SMALL, LARGE = "1Gi", "2Gi"


def drive(world: World, size: str) -> None:
    """Give the claims the size, as their driver does once it is asked for."""
    for claim in list(world.server.all_of(PersistentVolumeClaim)):
        status = {"phase": "Bound", "capacity": {"storage": size}}
        name = claim["metadata"]["name"]
        world.server.merge(PersistentVolumeClaim, NAMESPACE, name, {"status": status})


def raise_size(world: World) -> None:
    """Ask for more room as a person does."""
    world.patch_zone(storage={"volumeClaimTemplate": {"size": LARGE}})


def growing(world: World) -> str:
    """Return what the zone says of its volumes' growth."""
    status = world.zone().status
    assert status is not None
    return next((c.message for c in status.conditions if c.type == "VolumeExpanding"), "")


def not_grown(world: World) -> list[str]:
    """Return what is not yet as it was asked for."""
    sizes = {
        claim["spec"]["resources"]["requests"]["storage"]
        for claim in world.server.all_of(PersistentVolumeClaim)
    }
    found = [f"claims ask for {sizes}"] if sizes != {LARGE} else []
    return [*unfinished(world), *found, *([growing(world)] if growing(world) else [])]


@pytest.mark.parametrize("crash", range(0, 12, 3))
def test_a_zones_volumes_grow_and_it_says_so(crash: int) -> None:
    """Only data nodes that join later would have the room, or nobody would know how far it is."""
    with World(0, at_rest(Claimed())) as world:
        told: list[str] = []
        world.crash_points = frozenset({crash} - {0})
        world.orders = [
            Order(at_once, lambda w: drive(w, SMALL)),
            Order(at_once, raise_size),
            Order(lambda w: bool(growing(w)), lambda w: told.append(growing(w))),
            Order(at_once, lambda w: drive(w, LARGE)),
        ]
        world.run(SECONDS_MAX, not_grown)
        assert told == [f"0 of 3 volumes have {LARGE}"]
