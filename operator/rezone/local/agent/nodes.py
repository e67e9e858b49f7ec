"""Node objects, their heartbeats and their failures.

The API is the list of nodes: every Node with our label is one of ours, whoever made it. So `kubectl
delete node` removes one, and an annotation makes one fail and come back.
"""

from __future__ import annotations

import asyncio
import datetime as dt

import structlog

from rezone.local.agent.records import now_text
from rezone.local.agent.settings import AGENT_LABEL, FAIL_ANNOTATION, AgentSettings
from rezone.local.api import MERGE_PATCH, STRATEGIC_PATCH, Json, KubeApi
from rezone.local.errors import ApiError
from rezone.local.tools import KUBERNETES_VERSION

_ZONES = ("a", "b", "c")
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_LEASE_SECONDS = 40
_DRAIN_POLL_SECONDS = 0.2

_log = structlog.get_logger(__name__)


async def add_node(api: KubeApi, name: str, zone: str = "") -> None:
    """Create a Node of the local cluster; one that exists is left as it is. Raises ApiError."""
    digits = "".join(letter for letter in name if letter.isdigit())
    index = int(digits) - 1 if digits else sum(name.encode())
    labels = {
        AGENT_LABEL: "true",
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "topology.kubernetes.io/region": "local",
        "topology.kubernetes.io/zone": zone or _ZONES[index % len(_ZONES)],
    }
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
    try:
        await api.create("/api/v1/nodes", node)
    except ApiError as error:
        if not error.conflict:
            raise


async def fail_node(api: KubeApi, name: str, *, failed: bool = True) -> None:
    """Make a node fail or come back, as the agent sees it a moment later. Raises ApiError."""
    annotations = {FAIL_ANNOTATION: "true" if failed else None}
    body = {"metadata": {"annotations": annotations}}
    await api.patch(f"/api/v1/nodes/{name}", body, MERGE_PATCH)


async def remove_node(api: KubeApi, name: str, *, timeout_seconds: float = 120.0) -> None:
    """Close a node for new pods, delete its pods and wait for their end, then delete it.

    Raises ApiError, also if the pods have not ended in time.
    """
    await api.patch(f"/api/v1/nodes/{name}", {"spec": {"unschedulable": True}}, MERGE_PATCH)
    selector = {"fieldSelector": f"spec.nodeName={name}"}
    deleted: set[str] = set()
    try:
        async with asyncio.timeout(timeout_seconds):
            while pods := (await api.get("/api/v1/pods", **selector))["items"]:
                for pod in pods:
                    metadata = pod["metadata"]
                    if metadata["uid"] not in deleted:
                        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
                        await api.delete(path, uid=metadata["uid"])
                        deleted.add(metadata["uid"])
                await asyncio.sleep(_DRAIN_POLL_SECONDS)
    except TimeoutError as error:
        raise ApiError(504, "Timeout", f"the pods of {name} have not ended") from error
    await api.delete(f"/api/v1/nodes/{name}")


def is_failed(node: Json) -> bool:
    """Whether a Node is asked to play dead."""
    annotations: dict[str, str] = node["metadata"].get("annotations", {})
    return annotations.get(FAIL_ANNOTATION) == "true"


def is_ready(node: Json) -> bool:
    """Whether a Node is reported, and counts, as ready."""
    conditions = node.get("status", {}).get("conditions", [])
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


class Heart:
    """Reports one node as ready and renews its Lease until it is stopped."""

    def __init__(
        self, api: KubeApi, settings: AgentSettings, name: str, address: str, port: int
    ) -> None:
        self._api = api
        self._settings = settings
        self._name = name
        self._address = address
        self._port = port
        self._reported = False

    async def beat(self) -> None:
        """Write the Lease for ever, the status when it is not as it should be; until cancelled."""
        while True:
            try:
                if not self._reported:
                    await self._report()
                    self._reported = True
                await self._renew()
            except ApiError as error:
                _log.warning("heartbeat failed", node=self._name, error=str(error))
            await asyncio.sleep(self._settings.heartbeat_seconds)

    def see(self, node: Json) -> None:
        """Look at the Node: the control plane may have marked it as silent meanwhile."""
        if not is_ready(node):
            self._reported = False

    async def _report(self) -> None:
        settings = self._settings
        size = {
            "cpu": settings.cpu,
            "memory": settings.memory,
            "pods": settings.pods,
            "ephemeral-storage": "100Gi",
        }
        status = {
            "capacity": size,
            "allocatable": size,
            "addresses": [
                {"type": "InternalIP", "address": self._address},
                {"type": "Hostname", "address": self._name},
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._port}},
            "conditions": [_condition("Ready", "True", "AgentReady", "the local agent runs pods")]
            + [
                _condition(kind, "False", "AgentHasNoPressure", "the local agent does not measure")
                for kind in ("MemoryPressure", "DiskPressure", "PIDPressure")
            ],
            "nodeInfo": _node_info(self._name),
        }
        path = f"/api/v1/nodes/{self._name}/status"
        await self._api.patch(path, {"status": status}, STRATEGIC_PATCH)

    async def _renew(self) -> None:
        now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {
            "holderIdentity": self._name,
            "leaseDurationSeconds": _LEASE_SECONDS,
            "renewTime": now,
        }
        try:
            await self._api.patch(f"{_LEASES}/{self._name}", {"spec": spec}, MERGE_PATCH)
        except ApiError as error:
            if not error.not_found:
                raise
            await self._api.create(
                _LEASES,
                {
                    "apiVersion": "coordination.k8s.io/v1",
                    "kind": "Lease",
                    "metadata": {"name": self._name},
                    "spec": spec,
                },
            )


def _condition(kind: str, status: str, reason: str, message: str) -> Json:
    now = now_text()
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }


def _node_info(name: str) -> Json:
    return {
        "machineID": name,
        "systemUUID": name,
        "bootID": name,
        "kernelVersion": "local",
        "osImage": "rezone local",
        "containerRuntimeVersion": "rezone://processes",
        "kubeletVersion": f"v{KUBERNETES_VERSION}",
        "kubeProxyVersion": "",
        "operatingSystem": "linux",
        "architecture": "amd64",
    }
