"""Volume claims on a real API server: which of them may grow is its word."""

from __future__ import annotations

from typing import Any

import pytest
from kube_helpers import stored_zone, zone_of

from rezone.controller.coordination.volumes import grow_volumes
from rezone.kube.api.client import Kube
from rezone.kube.api.kinds import Manifest, PersistentVolumeClaim
from rezone.kube.nodes.claims import ClaimStore, view_of
from rezone.kube.nodes.data_node import build_claim
from rezone.local.api import KubeApi
from rezone.local.errors import ApiError
from rezone.resources.zone import DistributionZone

GI = 1 << 30
NEVER, NOW = None, 100.0


@pytest.fixture
async def admin(kube: KubeApi) -> KubeApi:
    """Connect as what storage drivers and cluster administrators are."""
    for name, allowed in (("grows", True), ("fixed", False)):
        made = {
            "metadata": {"name": f"rezone-test-{name}"},
            "provisioner": "rezone.dev/none",
            "allowVolumeExpansion": allowed,
        }
        try:
            await kube.create("/apis/storage.k8s.io/v1/storageclasses", made)
        except ApiError as error:
            if not error.conflict:
                raise
    return kube


async def zone_with_claims(
    api: Kube, admin: KubeApi, namespace: str, storage_class: str, *, bound: tuple[int, ...]
) -> DistributionZone:
    """Return a zone of 20Gi whose three claims ask for 10Gi; those of `bound` have it."""
    small = {"size": "10Gi", "storageClassName": f"rezone-test-{storage_class}"}
    large = {"volumeClaimTemplate": {**small, "size": "20Gi"}}
    zone = await stored_zone(api, namespace, storage=large)
    asked = zone_of(namespace, storage={"volumeClaimTemplate": small})
    old = asked.model_copy(update={"metadata": zone.metadata})
    for node in range(3):
        claim = build_claim(old, node)
        assert claim is not None
        await api.create(PersistentVolumeClaim, claim)
        if node in bound:
            await has(admin, namespace, node, phase="Bound", capacity={"storage": "10Gi"})
    return zone


async def has(admin: KubeApi, namespace: str, node: int, **status: Any) -> None:
    """Write a claim's status, as the driver does."""
    name = f"orders-{node}-data"
    path = PersistentVolumeClaim.path(namespace, name, "status")
    await admin.patch(path, {"status": status})


async def requested(api: Kube, namespace: str, node: int) -> str:
    """Return what a claim asks for."""
    claim = await api.get(PersistentVolumeClaim, namespace, f"orders-{node}-data")
    return str(claim["spec"]["resources"]["requests"]["storage"])


@pytest.mark.apiserver
async def test_bound_claims_grow_where_their_class_allows_it(
    api: Kube, admin: KubeApi, namespace: str
) -> None:
    """More room would come to new data nodes alone, or one waiting claim hold all others up."""
    zone = await zone_with_claims(api, admin, namespace, "grows", bound=(0, 1))
    claims = ClaimStore(api)
    seen = await grow_volumes(claims, zone, NEVER, NOW)
    assert seen is not None
    assert seen.growth is not None
    assert (seen.growth.text, seen.growth.refused) == ("0 of 2 volumes have 20Gi", False)
    assert [await requested(api, namespace, node) for node in range(3)] == ["20Gi", "20Gi", "10Gi"]
    # Looked at again when it is time, and not asked for again.
    assert await grow_volumes(claims, zone, seen, NOW + 1) is seen
    await has(admin, namespace, 0, capacity={"storage": "20Gi"})
    pending = {"type": "FileSystemResizePending", "status": "True"}
    await has(admin, namespace, 1, conditions=[pending])
    seen = await grow_volumes(claims, zone, seen, NOW + 10)
    assert seen is not None
    assert seen.growth is not None
    assert "1 of 2" in seen.growth.text
    assert "data node 1: the file system grows when the pod starts" in seen.growth.text
    await has(admin, namespace, 1, capacity={"storage": "20Gi"}, conditions=[])
    seen = await grow_volumes(claims, zone, seen, NOW + 20)
    assert seen is not None
    assert seen.growth is None
    # The claim that waited is bound now, and is found when all are looked at again.
    await has(admin, namespace, 2, phase="Bound", capacity={"storage": "10Gi"})
    assert await grow_volumes(claims, zone, seen, NOW + 30) is seen
    await grow_volumes(claims, zone, seen, NOW + 90)
    assert await requested(api, namespace, 2) == "20Gi"


@pytest.mark.apiserver
async def test_a_class_that_forbids_it_is_told(api: Kube, admin: KubeApi, namespace: str) -> None:
    """The zone would look as if its volumes grew, for ever."""
    zone = await zone_with_claims(api, admin, namespace, "fixed", bound=(0,))
    seen = await grow_volumes(ClaimStore(api), zone, NEVER, NOW)
    assert seen is not None
    assert seen.growth is not None
    assert seen.growth.refused
    assert "must support resize" in seen.growth.text
    assert await requested(api, namespace, 0) == "10Gi"


@pytest.mark.apiserver
async def test_another_zones_claims_are_left_alone(
    api: Kube, admin: KubeApi, namespace: str
) -> None:
    """The claims of an earlier zone of this name would be grown, or hold this one up."""
    zone = await zone_with_claims(api, admin, namespace, "grows", bound=(0,))
    other = zone.model_copy(
        update={"metadata": zone.metadata.model_copy(update={"uid": "another"})}
    )
    seen = await grow_volumes(ClaimStore(api), other, NEVER, NOW)
    assert seen is not None
    assert seen.growth is None
    assert await requested(api, namespace, 0) == "10Gi"


async def test_zones_without_volumes_are_not_looked_at() -> None:
    """Every pass of such a zone would list claims."""
    zone = DistributionZone.parse({"metadata": {"name": "z", "namespace": "n"}, "spec": SPEC})
    nothing: Any = None
    assert await grow_volumes(nothing, zone, NEVER, NOW) is None


SPEC: Manifest = {"partitions": 1, "replicas": 1, "dataNodes": {"count": 1}}


@pytest.mark.parametrize(
    ("status", "trouble"),
    [
        ({}, ""),
        ({"allocatedResourceStatuses": {"storage": "ControllerResizeInProgress"}}, ""),
        ({"allocatedResourceStatuses": {"storage": "NodeResizeInfeasible"}}, "cannot grow"),
        ({"conditions": [{"type": "Resizing", "status": "True"}]}, ""),
        ({"conditions": [{"type": "FileSystemResizePending", "status": "True"}]}, "starts again"),
    ],
)
def test_what_a_driver_says_of_a_claim(status: Manifest, trouble: str) -> None:
    """A volume that cannot grow would look as if it only took its time."""
    meta = {"name": "orders-4-data", "labels": {"rezone.dev/node-id": "4"}}
    spec = {"resources": {"requests": {"storage": "20Gi"}}}
    found = view_of({"metadata": meta, "spec": spec, "status": {"phase": "Bound", **status}})
    assert (found.node, found.requested_bytes, found.capacity_bytes) == (4, 20 * GI, 0)
    assert trouble in found.trouble
    assert bool(found.trouble) == bool(trouble)
    assert found.infeasible == (trouble == "cannot grow")
