"""The volume claims of a zone's data nodes: observed, and asked for more room.

Claims are made beside their pods (`rezone.kube.nodes.pods`). Here only `resources.requests` of
those that are there is changed; whether the storage class allows it, the API server says.

Concurrency: stateless.
"""

from rezone.domain.observed.volumes import Volume, bytes_of
from rezone.kube.api.client import Kube
from rezone.kube.api.kinds import Manifest, PersistentVolumeClaim
from rezone.kube.api.names import NODE_ID_LABEL, is_owned, require_owned
from rezone.kube.nodes.data_node import claim_name, selector
from rezone.resources.zone import DistributionZone
from rezone.wire.messages import NodeId

_INFEASIBLE = frozenset({"ControllerResizeInfeasible", "NodeResizeInfeasible"})
_WAITS_FOR_POD = "FileSystemResizePending"


class ClaimStore:
    """Reads and grows the claims of zones."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube

    async def observe(self, zone: DistributionZone) -> tuple[Volume, ...]:
        """Return the claims that belong to this very zone, by data node id."""
        meta = zone.metadata
        found = await self._kube.list(
            PersistentVolumeClaim, meta.namespace, labels=selector(meta.name)
        )
        own = (view_of(each) for each in found if is_owned(each, zone))
        return tuple(sorted(own, key=lambda volume: volume.node))

    async def grow(self, zone: DistributionZone, node: NodeId, size: str) -> None:
        """Ask for `size` for a data node's volume, unless its claim asks for as much already.

        Raises ForbiddenError when the storage class does not allow it (or RBAC does not),
        InvalidWriteError, ConflictWriteError, MissingError, ForeignObjectError.
        """
        meta = zone.metadata
        name = claim_name(meta.name, node)
        claim = await self._kube.get(PersistentVolumeClaim, meta.namespace, name)
        require_owned(claim, zone)
        if view_of(claim).requested_bytes >= bytes_of(size):
            return
        patch: Manifest = {
            "metadata": {"resourceVersion": claim["metadata"]["resourceVersion"]},
            "spec": {"resources": {"requests": {"storage": size}}},
        }
        await self._kube.merge(PersistentVolumeClaim, meta.namespace, name, patch)


def view_of(claim: Manifest) -> Volume:
    """Return what matters of a claim."""
    status = claim.get("status") or {}
    requests = (claim["spec"].get("resources") or {}).get("requests") or {}
    capacity = status.get("capacity") or {}
    return Volume(
        node=int(claim["metadata"]["labels"][NODE_ID_LABEL]),
        requested_bytes=bytes_of(requests.get("storage", "0")),
        capacity_bytes=bytes_of(capacity.get("storage", "0")),
        bound=status.get("phase") == "Bound",
        trouble=_trouble(status),
        infeasible=bool(_infeasible(status)),
    )


def _infeasible(status: Manifest) -> str:
    states = (status.get("allocatedResourceStatuses") or {}).values()
    return next((state for state in states if state in _INFEASIBLE), "")


def _trouble(status: Manifest) -> str:
    infeasible = _infeasible(status)
    if infeasible:
        return f"the storage driver cannot grow the volume: {infeasible}"
    for each in status.get("conditions") or ():
        if each.get("type") == _WAITS_FOR_POD and each.get("status") == "True":
            return "the file system grows when the pod starts again"
    return ""
