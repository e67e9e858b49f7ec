"""Fixtures with a real kube-apiserver and etcd, and the guards that keep tests on this machine.

The control plane is started once per session, in a temporary directory, and ended by pid.
"""

from __future__ import annotations

import ipaddress
import itertools
import json
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from rezone.local.api import KubeApi
from rezone.local.controlplane import CONTEXT, ControlPlane, ControlPlaneSettings
from rezone.local.errors import ApiError
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
    items = {"apiVersion": "v1", "kind": "List", "items": list(definitions)}
    names = [body["metadata"]["name"] for body in definitions]
    crds = [f"crd/{name}" for name in names]
    apply = ["apply", "--server-side", "--force-conflicts", "-f", "-"]
    _kubectl(kubeconfig, *apply, stdin=json.dumps(items)).check_returncode()
    wait = ["wait", "--for=condition=Established", "--timeout=120s", *crds]
    deadline = time.monotonic() + 120
    # A definition's conditions are null at first, which kubectl takes for an error.
    while (done := _kubectl(kubeconfig, *wait)).returncode:
        if "accessor error" not in done.stderr or time.monotonic() > deadline:
            raise AssertionError(done.stderr)
    # The server opens a kind's storage at the first request for it, and puts who asks meanwhile
    # off with status 429. kubectl asks again.
    _kubectl(kubeconfig, "get", ",".join(names), "--all-namespaces").check_returncode()


def _kubectl(
    kubeconfig: Path, *arguments: str, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    program = str(find_tools(["kubectl"])["kubectl"])
    return subprocess.run(
        [program, f"--kubeconfig={kubeconfig}", *arguments],
        check=False,
        capture_output=True,
        timeout=150,
        text=True,
        input=stdin,
    )


@pytest.fixture(scope="session")
def crds(kubeconfig: Path) -> Path:
    """Establish our kinds; returns the kubeconfig."""
    establish(kubeconfig, custom_resource_definitions())
    return kubeconfig


@pytest.fixture
async def kube(kubeconfig: Path) -> AsyncIterator[KubeApi]:
    """Give a client with all rights on the session's API server."""
    async with KubeApi(kubeconfig) as client:
        yield client


@pytest.fixture
async def namespace(kube: KubeApi) -> AsyncIterator[str]:
    """Make a fresh namespace with a default service account; delete it without waiting.

    Without kube-controller-manager nobody makes the account, and pods are refused without one; nor
    does anybody finish the deletion, so each test gets a new name.
    """
    name = f"test-{next(_namespace_numbers)}"
    await kube.create("/api/v1/namespaces", {"metadata": {"name": name}})
    account = {"metadata": {"name": "default"}}
    try:
        await kube.create(f"/api/v1/namespaces/{name}/serviceaccounts", account)
    except ApiError as error:
        if not error.conflict:
            raise
    yield name
    await kube.delete(f"/api/v1/namespaces/{name}")


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
