"""Fixtures with a real kube-apiserver and etcd, and the guards that keep tests on this machine.

The control plane is started once per session, in a temporary directory, and ended by pid.
"""

from __future__ import annotations

import ipaddress
import itertools
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from lightkube import AsyncClient, Client, KubeConfig, codecs
from lightkube.core.exceptions import ApiError
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.apiextensions_v1 import CustomResourceDefinition
from lightkube.resources.core_v1 import Namespace, ServiceAccount

from rezone.local.controlplane import CONTEXT, ControlPlane, ControlPlaneSettings
from rezone.local.tools import find_tools
from rezone.resources.crd import custom_resource_definitions

# A test that deletes namespaces must never meet somebody's real cluster.
ALLOWED_CONTEXTS = frozenset({CONTEXT, "kind-rezone", "kind-rezone-e2e"})

_namespace_numbers = itertools.count(1)


@dataclass(frozen=True)
class ApiServer:
    """A running API server of this test session."""

    url: str
    kubeconfig: Path


def check_context(kubeconfig: Path) -> None:
    """Refuse a kubeconfig whose current context is not one of the tests' own.

    Raises pytest.UsageError, which ends the run.
    """
    context = yaml.safe_load(kubeconfig.read_text()).get("current-context")
    if context not in ALLOWED_CONTEXTS:
        raise pytest.UsageError(f"tests refuse to run on the Kubernetes context {context!r}")


@pytest.fixture(scope="session")
def apiserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """Start etcd and kube-apiserver (about six seconds) and end them after the session."""
    settings = ControlPlaneSettings(components=("etcd", "kube-apiserver"), unsafe_no_fsync=True)
    plane = ControlPlane(tmp_path_factory.mktemp("controlplane"), settings)
    try:
        plane.start()
        check_context(plane.kubeconfig)
        yield ApiServer(plane.server, plane.kubeconfig)
    finally:
        plane.stop()


@pytest.fixture(scope="session")
def kubeconfig(apiserver: ApiServer) -> Path:
    """Path of the administrator's kubeconfig of the session's API server."""
    return apiserver.kubeconfig


def establish(kubeconfig: Path, definitions: Sequence[dict[str, Any]]) -> None:
    """Bring custom resource definitions to an API server, and wait until it serves their kinds."""
    with Client(config=KubeConfig.from_file(kubeconfig), trust_env=False) as client:
        for body in definitions:
            client.apply(codecs.from_dict(body), field_manager="rezone-tests", force=True)
        for body in definitions:
            name = body["metadata"]["name"]
            client.wait(CustomResourceDefinition, name, for_conditions=["Established"])
    # The server opens a kind's storage at the first request for it, and puts who asks meanwhile
    # off with status 429. kubectl asks again.
    kinds = ",".join(body["metadata"]["name"] for body in definitions)
    kubectl = find_tools(["kubectl"])["kubectl"]
    look = [str(kubectl), f"--kubeconfig={kubeconfig}", "get", kinds, "--all-namespaces"]
    subprocess.run(look, check=True, capture_output=True, timeout=60)


@pytest.fixture(scope="session")
def crds(kubeconfig: Path) -> Path:
    """Establish our kinds; returns the kubeconfig."""
    establish(kubeconfig, custom_resource_definitions())
    return kubeconfig


@pytest.fixture
async def kube(kubeconfig: Path) -> AsyncIterator[AsyncClient]:
    """Give a lightkube client with all rights on the session's API server."""
    config = KubeConfig.from_file(kubeconfig)
    async with AsyncClient(config=config, trust_env=False, field_manager="rezone-tests") as client:
        yield client


@pytest.fixture
async def namespace(kube: AsyncClient) -> AsyncIterator[str]:
    """Make a fresh namespace with a default service account; delete it without waiting.

    Without kube-controller-manager nobody makes the account, and pods are refused without one; nor
    does anybody finish the deletion, so each test gets a new name.
    """
    name = f"test-{next(_namespace_numbers)}"
    await kube.create(Namespace(metadata=ObjectMeta(name=name)))
    account = ServiceAccount(metadata=ObjectMeta(name="default", namespace=name))
    try:
        await kube.create(account)
    except ApiError as error:
        if error.status.code != 409:
            raise
    yield name
    await kube.delete(Namespace, name)


@pytest.fixture(autouse=True)
def only_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse connections off the machine; asyncio and all of Python go through these calls."""
    connect, connect_ex = socket.socket.connect, socket.socket.connect_ex

    def guarded(self: socket.socket, address: Any) -> None:
        _refuse_foreign(self.family, address)
        connect(self, address)

    def guarded_ex(self: socket.socket, address: Any) -> int:
        _refuse_foreign(self.family, address)
        return connect_ex(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)
    monkeypatch.setattr(socket.socket, "connect_ex", guarded_ex)


def _refuse_foreign(family: int, address: Any) -> None:
    if family not in {socket.AF_INET, socket.AF_INET6}:
        return
    host = str(address[0])
    if host == "localhost":
        return
    try:
        foreign = not ipaddress.ip_address(host).is_loopback
    except ValueError:
        foreign = True
    if foreign:
        pytest.fail(f"a test tried to connect to {address!r}, which is not on this machine")
