"""Fakes shared with the client's tests, nodes with those of replicas, and a real Spark session."""

import os
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from kubernetes_fixture import establish
from rezone.resources.crd import custom_resource_definitions
from spark_crd import SPARK_CRD

for shared in ("client", "datanode", "kube"):
    sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / shared))

OPERATOR = str(pathlib.Path(__file__).parents[2] / "operator")


@pytest.fixture(scope="session")
def crds(kubeconfig: pathlib.Path) -> pathlib.Path:
    """Establish our kinds and kubeflow's; returns the kubeconfig."""
    establish(kubeconfig, [*custom_resource_definitions(), SPARK_CRD])
    return kubeconfig


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """Yield a session of two tasks at a time, each tried four times."""
    sql = pytest.importorskip("pyspark.sql")
    before = {name: os.environ.get(name) for name in ("PYSPARK_PYTHON", "PYTHONPATH")}
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = OPERATOR
    session = (
        sql.SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    yield session
    session.stop()
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@pytest.fixture
def zone(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[Any]:
    """Yield two nodes that lead a partition each, of the zone that the module's CONFIG says."""
    from replica_cluster import FAST, cluster  # noqa: PLC0415 - found by the paths above

    config = request.module.CONFIG
    with cluster(tmp_path / "nodes", 2, config=config, settings=FAST) as nodes:
        for partition in range(2):
            nodes.create(partition, (partition, 1 - partition))
        yield nodes
