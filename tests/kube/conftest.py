"""The API server with our CRDs, and a connection of the module under test to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from lightkube import Client, KubeConfig
from lightkube.resources.apiextensions_v1 import CustomResourceDefinition

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
    with Client(config=KubeConfig.from_file(kubeconfig), trust_env=False) as client:
        wanted = [*custom_resource_definitions(), SPARK_CRD]
        for body in wanted:
            crd = CustomResourceDefinition.from_dict(body)
            client.apply(crd, field_manager="rezone-tests", force=True)
        for body in wanted:
            name = body["metadata"]["name"]
            client.wait(CustomResourceDefinition, name, for_conditions=["Established"])
    return kubeconfig


@pytest.fixture
async def api(crds: Path) -> AsyncIterator[Kube]:
    """Connect to the session's API server."""
    async with connect(crds) as connection:
        yield connection
