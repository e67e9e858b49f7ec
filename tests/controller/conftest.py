"""A whole local cluster with our CRDs, one for all tests of the controller."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from operated_cluster import TestCluster, abort_connections
from operator_process import OperatorProcess

from kubernetes_fixture import check_context
from rezone.local.api import KubeApi
from rezone.local.cluster import LocalCluster
from rezone.local.controlplane import ControlPlaneSettings
from rezone.local.tools import find_tools

_running: list[TestCluster] = []


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestCluster]:
    """Bring up a cluster of four nodes with our kinds (about ten seconds); end it by pid."""
    state = tmp_path_factory.mktemp("operated")
    local = LocalCluster(state, ControlPlaneSettings(unsafe_no_fsync=True))
    try:
        local.up(nodes=4)
        check_context(local.kubeconfig)
        made = TestCluster(state, local.kubeconfig, find_tools(["kubectl"])["kubectl"])
        made.install_crds()
        _running.append(made)
        yield made
    finally:
        _running.clear()
        local.down(delete=True)


@pytest.fixture(scope="module", autouse=True)
def no_data_node_goes_on() -> Iterator[None]:
    """End the data nodes of a module's zones, whose operator is gone by then.

    Each takes a few per cent of a processor at rest: fifteen of them took a quarter of the machine.
    """
    yield
    for made in _running:
        labels = ("--all-namespaces", "--selector", "rezone.dev/zone")
        made.kubectl("delete", "pods", *labels, "--force", "--grace-period=0", "--wait=false")


@pytest.fixture
async def api(cluster: TestCluster) -> AsyncIterator[KubeApi]:
    """Give a client of the cluster."""
    async with KubeApi(cluster.kubeconfig) as client:
        yield client
    await abort_connections(set())


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where processes of a module write their logs."""
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="module")
def operator(
    request: pytest.FixtureRequest, cluster: TestCluster, logs: Path
) -> Iterator[OperatorProcess]:
    """Run the operator for the module's NAMESPACE, told its OPERATOR; tests may kill it."""
    namespace: str = request.module.NAMESPACE
    cluster.kubectl("create", "namespace", namespace)
    own: dict[str, str] = getattr(request.module, "OPERATOR", {})
    process = OperatorProcess(cluster, namespace, logs, **own)
    with process.running():
        yield process
