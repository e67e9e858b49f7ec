"""A copy by kubeflow's spark-operator: its chart, its webhook, its rights, in the cluster.

Its image cannot be had without a registry: the program is built from its Go module and put beside
the Spark of our own image, as upstream's image puts it beside upstream's Spark.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.kind.command import Step
from e2e.kind.places import default_places
from e2e.kubernetes.cluster import Json
from e2e.kubernetes.conftest import ROOT, TAG, Stage
from e2e.kubernetes.copies import IN_SPACE, Copies, check_copy_in_pods, slow_copies
from e2e.kubernetes.zone import NAMESPACE, Zone
from e2e.operators.documented import manifests
from e2e.operators.programs import establish, spark_operator
from e2e.spark.image import ensure_operator_image

pytestmark = pytest.mark.timeout(1800)

VALUES = ROOT / "manifests" / "overlays" / "with-spark-operator" / "spark-operator-values.yaml"
RELEASE = "spark-operator"
RELEASE_SPACE = f"--namespace={RELEASE}"


@pytest.fixture(scope="module")
def spark_operator_installed(stage: Stage, spark_image: str) -> Iterator[None]:
    """Install the spark-operator as docs/start/install.md says; uninstall it afterwards."""
    if stage.cluster.nodes is None or TAG in os.environ:
        pytest.skip("the image of the spark-operator can be loaded into kind's nodes only")
    foreign, node = spark_operator(), stage.workers[0]
    image = ensure_operator_image(default_places(), stage.repository, foreign.program, node)
    assert spark_image  # what the operator's image is made of
    chart = foreign.files / "charts" / "spark-operator-chart"
    establish(stage.cluster, chart / "crds")
    with Step("installing the spark-operator"):
        _install(stage, chart, image, node)
    try:
        stage.cluster.apply(*_spark_rights())
        yield
    finally:
        stage.cluster.helm("uninstall", RELEASE, RELEASE_SPACE, "--wait")
        for right in _spark_rights():
            stage.cluster.kubectl("delete", right["kind"], right["metadata"]["name"], IN_SPACE)
        stage.cluster.kubectl("delete", "namespace", RELEASE, "--timeout=120s", seconds=150)


def _install(stage: Stage, chart: Path, image: str, node: str) -> None:
    repository, _, tag = image.rpartition(":")
    host = "nodeSelector.kubernetes\\.io/hostname"
    stage.cluster.helm(
        *("install", RELEASE, str(chart), RELEASE_SPACE, "--create-namespace"),
        *("--wait", "--timeout=4m", f"--values={VALUES}"),
        f"--set=spark.jobNamespaces={{{NAMESPACE}}}",
        *("--set=image.registry=docker.io", f"--set=image.repository={repository}"),
        f"--set=image.tag={tag}",
        *(f"--set=controller.{host}={node}", f"--set=webhook.{host}={node}"),
    )


def _spark_rights() -> list[Json]:
    """Return what the page gives to an operator whose Spark is as new as ours, for the zone."""
    documented = manifests("start/install.md", "rbac.authorization.k8s.io")
    return [
        {**right, "metadata": {**right["metadata"], "namespace": NAMESPACE}} for right in documented
    ]


@pytest.fixture
def copies(
    stage: Stage,
    zone: Zone,
    spark_image: str,
    spark_operator_installed: None,  # noqa: ARG001 - it has to run
) -> Iterator[Copies]:
    """Give a zone whose moves go by Spark, slowly."""
    with slow_copies(stage, zone, spark_image) as slow:
        yield slow


def test_kubeflows_operator_runs_a_copy(zone: Zone, copies: Copies) -> None:
    """What users install is this operator: with a stand-in alone nobody knew that it fits."""
    for pod in check_copy_in_pods(zone, copies):
        # By the operator's webhook: spark-submit has no option for it.
        container = pod["spec"]["containers"][0]
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert (
            pod["metadata"]["labels"]["sparkoperator.k8s.io/launched-by-spark-operator"] == "true"
        )
