"""The agent's settings and the services its parts share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

from rezone.local.agent.addresses import PODS, Addresses
from rezone.local.agent.environment import object_data
from rezone.local.api import Json, KubeApi
from rezone.local.errors import ApiError

AGENT_LABEL = "rezone.dev/local-agent"
# Setting it to "true" on a Node stops its heartbeats and kills its processes; removing it brings
# the node back.
FAIL_ANNOTATION = "rezone.dev/local-fail"
STORAGE_CLASS = "rezone-local"
PROVISIONER = "rezone.dev/local"


@dataclass(frozen=True)
class AgentSettings:
    """How the agent behaves; the times are a kubelet's, but for a quicker crash loop.

    All addresses of `pod_network` must be this machine's. kube-apiserver's proxy goes to no pod on
    a loopback address, which those of the default are.
    """

    kubeconfig: Path
    state: Path
    pki: Path
    back_off_base_seconds: float = 1.0
    back_off_max_seconds: float = 300.0
    back_off_reset_seconds: float = 600.0
    heartbeat_seconds: float = 2.0
    refresh_seconds: float = 30.0
    cpu: str = "8"
    memory: str = "8Gi"
    pods: str = "110"
    pod_network: IPv4Network = PODS


@dataclass
class Services:
    """What every pod's worker uses; all of it belongs to the agent's event loop."""

    settings: AgentSettings
    api: KubeApi
    addresses: Addresses
    # The node's address by its name; None while the node is not ours or has failed.
    node_address: Callable[[str], str | None]
    # Makes the volume of a claim that waits for this node.
    provision: Callable[[Json, str], Any]
    event_tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def pod_directory(self, pod: Json) -> Path:
        """Return where a pod's logs, volumes and record live."""
        metadata = pod["metadata"]
        name = f"{metadata['namespace']}_{metadata['name']}_{metadata['uid']}"
        return self.settings.state / "pods" / name

    async def lookup(self, kind: str, namespace: str, name: str) -> dict[str, bytes] | None:
        """Return the data of a ConfigMap or Secret, None if it does not exist. Raises ApiError."""
        plural = {"ConfigMap": "configmaps", "Secret": "secrets"}[kind]
        try:
            item = await self.api.get(f"/api/v1/namespaces/{namespace}/{plural}/{name}")
        except ApiError as error:
            if error.not_found:
                return None
            raise
        return object_data(kind, item)
