"""The API server with Rezone's definitions, and kubectl and Helm to talk to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from kubernetes.client import ApiClient
from kubernetes.config import new_client_from_config
from resource_server import NAMESPACE, Kubectl, Server

from rezone.local.tools import find_tools


@pytest.fixture(scope="session")
def kubectl(crds: Path) -> Kubectl:
    """Kubectl with the definitions installed."""
    tool = Kubectl(find_tools(["kubectl"])["kubectl"], crds)
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    tool("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump(space))
    return tool


@pytest.fixture(scope="session")
def server(kubectl: Kubectl) -> Iterator[Server]:
    """Give the API server as something to try objects on."""
    client: ApiClient = new_client_from_config(str(kubectl.kubeconfig))
    with client:
        yield Server(client)


@pytest.fixture(scope="session")
def helm() -> str:
    """Return the Helm that renders manifests/."""
    return str(find_tools(["helm"])["helm"])
