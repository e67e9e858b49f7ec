"""PersistentVolumes as directories, for the storage class `rezone-local`.

As with every node-local storage a volume belongs to the node its first pod was scheduled to, and
stays there.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import structlog

from rezone.local.agent.settings import PROVISIONER, STORAGE_CLASS
from rezone.local.agent.volumes import ensure_directory
from rezone.local.api import Json, KubeApi
from rezone.local.errors import ApiError
from rezone.local.processes import remove_tree

_CLAIMS = "/api/v1/persistentvolumeclaims"
_VOLUMES = "/api/v1/persistentvolumes"
_CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
_SELECTED_NODE = "volume.kubernetes.io/selected-node"
_PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"

_log = structlog.get_logger(__name__)


class Provisioner:
    """Makes and removes the volumes of one local cluster."""

    def __init__(self, api: KubeApi, directory: Path, owns_node: Callable[[str], bool]) -> None:
        self._api = api
        self._directory = directory
        self._owns_node = owns_node

    async def ensure_class(self) -> None:
        """Create the storage class, the default of the cluster. Raises ApiError."""
        default = {"storageclass.kubernetes.io/is-default-class": "true"}
        body = {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": STORAGE_CLASS, "annotations": default},
            "provisioner": PROVISIONER,
            "reclaimPolicy": "Delete",
            "volumeBindingMode": "WaitForFirstConsumer",
        }
        try:
            await self._api.create(_CLASSES, body)
        except ApiError as error:
            if not error.conflict:
                raise

    async def serve_claims(self) -> None:
        """Provision claims whose node the scheduler has chosen; runs until cancelled."""
        async for event, item in self._api.follow(_CLAIMS):
            claims = item["items"] if event == "SYNC" else [item] if event != "DELETED" else []
            for claim in claims:
                node = claim["metadata"].get("annotations", {}).get(_SELECTED_NODE, "")
                if self._owns_node(node):
                    await self._logged(self.provision(claim, node))

    async def serve_volumes(self) -> None:
        """Remove released volumes with their directories; runs until cancelled."""
        async for event, item in self._api.follow(_VOLUMES):
            volumes = item["items"] if event == "SYNC" else [item] if event != "DELETED" else []
            for volume in volumes:
                await self._logged(self._reclaim(volume))

    async def provision(self, claim: Json, node: str) -> None:
        """Create the volume of a pending claim of our class if there is none. Raises ApiError."""
        spec, metadata = claim["spec"], claim["metadata"]
        if spec.get("storageClassName") != STORAGE_CLASS or spec.get("volumeName"):
            return
        # Named after the claim's uid, so that a repeated call makes no second one.
        name = f"pvc-{metadata['uid']}"
        path = ensure_directory(self._directory / name)
        hostname = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
        body = {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name, "annotations": {_PROVISIONED_BY: PROVISIONER}},
            "spec": {
                "capacity": {"storage": spec["resources"]["requests"]["storage"]},
                "accessModes": spec["accessModes"],
                "volumeMode": "Filesystem",
                "storageClassName": STORAGE_CLASS,
                "persistentVolumeReclaimPolicy": "Delete",
                "hostPath": {"path": str(path)},
                "claimRef": {
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    "namespace": metadata["namespace"],
                    "name": metadata["name"],
                    "uid": metadata["uid"],
                },
                "nodeAffinity": {
                    "required": {"nodeSelectorTerms": [{"matchExpressions": [hostname]}]}
                },
            },
        }
        try:
            await self._api.create(_VOLUMES, body)
        except ApiError as error:
            if not error.conflict:
                raise
        _log.info("volume provisioned", claim=metadata["name"], node=node)

    async def _reclaim(self, volume: Json) -> None:
        metadata = volume["metadata"]
        ours = metadata.get("annotations", {}).get(_PROVISIONED_BY) == PROVISIONER
        if not ours or volume.get("status", {}).get("phase") != "Released":
            return
        if volume["spec"]["persistentVolumeReclaimPolicy"] != "Delete":
            return
        # The directory is ours by its name; a path somebody edited into the object is not followed.
        remove_tree(self._directory / metadata["name"])
        await self._api.delete(f"{_VOLUMES}/{metadata['name']}", uid=metadata["uid"])
        _log.info("volume removed", volume=metadata["name"])

    async def _logged(self, action: Coroutine[Any, Any, None]) -> None:
        try:
            await action
        except ApiError as error:
            _log.warning("provisioning failed", error=str(error))
