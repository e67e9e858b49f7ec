"""The API server with Rezone's definitions, and kubectl and Helm to talk to it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from kubernetes.client import ApiClient
from kubernetes.config import new_client_from_config
from resource_server import NAMESPACE, Kubectl, Server

from rezone.local.tools import find_tools
from rezone.resources.crd import custom_resource_definitions


@pytest.fixture(scope="session")
def kubectl(kubeconfig: Path) -> Kubectl:
    """Kubectl with the definitions installed."""
    tool = Kubectl(find_tools(["kubectl"])["kubectl"], kubeconfig)
    items = custom_resource_definitions()
    definitions = {"apiVersion": "v1", "kind": "List", "items": items}
    apply = ("apply", "--server-side", "--force-conflicts", "-f", "-")
    tool(*apply, stdin=json.dumps(definitions))
    names = [f"crd/{item['metadata']['name']}" for item in items]
    tool("wait", "--for=condition=Established", "--timeout=30s", *names)
    # The server opens a kind's storage at the first request, which takes it a second.
    tool("get", "dz,rbt,rgm", "--all-namespaces")
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    tool(*apply, stdin=yaml.safe_dump(space))
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
