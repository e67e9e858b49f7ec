"""The API server with our CRDs, and a connection of the module under test to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kubernetes_fixture import establish
from rezone.kube.client import Kube, connect
from rezone.resources.crd import custom_resource_definitions

SPARK_CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "sparkapplications.sparkoperator.k8s.io",
        "annotations": {"api-approved.kubernetes.io": "unapproved, a stand-in for tests"},
    },
    "spec": {
        "group": "sparkoperator.k8s.io",
        "scope": "Namespaced",
        "names": {"kind": "SparkApplication", "plural": "sparkapplications"},
        "versions": [
            {
                "name": "v1beta2",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                    },
                },
            },
        ],
    },
}


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
