"""The API server with our CRDs, and a connection of the module under test to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kubernetes_fixture import establish
from rezone.kube.api.client import Kube, connect
from rezone.resources.crd import custom_resource_definitions
from spark_crd import SPARK_CRD


@pytest.fixture(scope="session")
def crds(kubeconfig: Path) -> Path:
    """Establish our kinds and kubeflow's; returns the kubeconfig."""
    establish(kubeconfig, [*custom_resource_definitions(), SPARK_CRD])
    return kubeconfig


@pytest.fixture
async def api(crds: Path) -> AsyncIterator[Kube]:
    """Connect to the session's API server."""
    async with await connect(crds) as connection:
        yield connection
