"""The one-machine cluster on which Rezone's chart and other operators meet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.kind.command import say
from e2e.kubernetes.cluster import Cluster
from rezone.local.cluster import LocalCluster
from rezone.local.controlplane import ControlPlaneSettings
from rezone.local.tools import find_tools


def tools_for(kubeconfig: Path) -> Cluster:
    """Return kubectl and helm for a cluster whose machines are out of reach."""
    tools = find_tools(["kubectl", "helm"], report=say)
    return Cluster(
        kubectl_path=tools["kubectl"],
        helm_path=tools["helm"],
        env={
            "KUBECONFIG": str(kubeconfig),
            "PATH": "/usr/bin:/bin",
            "HOME": str(kubeconfig.parent),
        },
        nodes=None,
    )


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Bring a cluster of three nodes up and, whatever happens, end it with all its processes."""
    local = LocalCluster(
        tmp_path_factory.mktemp("machine") / "cluster", ControlPlaneSettings(unsafe_no_fsync=True)
    )
    try:
        local.up(nodes=3, report=say)
        yield tools_for(local.kubeconfig)
    finally:
        local.down(delete=True)
