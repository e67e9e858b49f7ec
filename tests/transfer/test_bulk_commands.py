"""`rezone export`, `verify` and `job` on a real API server, with real Spark and real data nodes.

The test plays the spark-operator: it runs the driver that the SparkApplication asks for, and writes
its state. Driver and command meet in the custom resource alone.
"""

import asyncio
import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from kube_helpers import stored_zone
from replica_cluster import FAST, Coordinator, cluster

import rezone
from kubernetes_fixture import establish
from rezone.client import TableClient
from rezone.kube.client import Kube, connect
from rezone.kube.kinds import SparkApplication
from rezone.kube.store import StatusStore
from rezone.local.api import KubeApi
from rezone.resources.crd import custom_resource_definitions
from rezone.resources.zone_status import DataNodeStatus, DistributionZoneStatus
from rezone.transfer import export_job, verify_job
from rezone.wire.codec.schema import Column, ColumnType, TableSchema
from rezone.wire.messages import ZoneConfig
from spark_crd import SPARK_CRD

pytestmark = [
    pytest.mark.spark,
    pytest.mark.apiserver,
    pytest.mark.slow,
    pytest.mark.timeout(400),
]
TABLE = TableSchema(
    columns=(Column("id", ColumnType.INT64), Column("value", ColumnType.STRING)),
    primary_key=("id",),
)
CONFIG = ZoneConfig(zone="orders", zone_uid="u", partitions=2, table=TABLE)
JOBS: dict[str, Callable[..., int]] = {"export": export_job.main, "verify": verify_job.main}
Called = subprocess.CompletedProcess[str]
SECONDS = 120.0
ACCOUNT = "rezone-spark"
ACCOUNTS = Path(__file__).parents[2] / "manifests/zone-namespace/accounts.yaml"


@pytest.fixture(scope="session")
def crds(kubeconfig: Path) -> Path:
    """Establish our kinds and kubeflow's; returns the kubeconfig."""
    establish(kubeconfig, [*custom_resource_definitions(), SPARK_CRD])
    return kubeconfig


@pytest.fixture
def zone(tmp_path: Path) -> Iterator[Coordinator]:
    """Yield a node that leads two partitions with some rows."""
    with cluster(tmp_path / "nodes", 1, config=CONFIG, settings=FAST) as nodes:
        for partition in range(2):
            nodes.create(partition, (0,))
        with TableClient(list(nodes.peers.values())) as table:
            table.write([{"id": n, "value": f"value {n}"} for n in range(500)])
        yield nodes


async def stored(kubeconfig: Path, namespace: str, address: str) -> None:
    """Store the zone, with its data node."""
    async with await connect(kubeconfig) as api:
        found = await stored_zone(api, namespace)
        node = DataNodeStatus(id=0, pod_name="orders-0", address=address)
        status = DistributionZoneStatus(data_nodes=(node,))
        await StatusStore(api).write_status(found, status)


def driver_account(kubeconfig: Path, namespace: str, directory: Path) -> Path:
    """Return a kubeconfig with the rights that a driver's pod has, and no others."""
    manifests = yaml.safe_load_all(ACCOUNTS.read_text())
    role = next(m for m in manifests if (m["kind"], m["metadata"]["name"]) == ("Role", ACCOUNT))
    config = yaml.safe_load(kubeconfig.read_text())
    token = asyncio.run(token_of(kubeconfig, namespace, role["rules"]))
    for user in config["users"]:
        user["user"] = {"token": token}
    path = directory / "driver-account.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


async def token_of(kubeconfig: Path, namespace: str, rules: list[dict[str, Any]]) -> str:
    """Return a token of a new account with these rights."""
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    metadata = {"name": ACCOUNT}
    subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": namespace}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": ACCOUNT}
    async with KubeApi(kubeconfig) as kube:
        await kube.create(accounts, {"metadata": metadata})
        await kube.create(f"{rbac}/roles", {"metadata": metadata, "rules": rules})
        binding = {"metadata": metadata, "roleRef": reference, "subjects": [subject]}
        await kube.create(f"{rbac}/rolebindings", binding)
        token = await kube.create(f"{accounts}/{ACCOUNT}/token", {"spec": {}})
    return str(token["status"]["token"])


async def applications(api: Kube, namespace: str) -> list[dict[str, Any]]:
    """Return the SparkApplications of a namespace."""
    return await api.list(SparkApplication, namespace)


async def deleted(kubeconfig: Path, namespace: str, name: str, command: Future[Called]) -> None:
    """Delete an application whose command has not ended."""
    if not command.done():
        async with await connect(kubeconfig) as api:
            await api.delete(SparkApplication, namespace, name)


async def submitted(kubeconfig: Path, namespace: str, known: set[str]) -> dict[str, Any]:
    """Return the next application that is not known."""
    async with asyncio.timeout(SECONDS), await connect(kubeconfig) as api:
        while True:
            for each in await applications(api, namespace):
                if each["metadata"]["name"] not in known:
                    known.add(each["metadata"]["name"])
                    return each
            await asyncio.sleep(0.05)


def call(kubeconfig: Path, namespace: str, *arguments: str) -> Called:
    """Call `rezone` as people do, in a process of its own."""
    environment = {
        **os.environ,
        "KUBECONFIG": str(kubeconfig),
        "REZONE_SPARK_IMAGE": "registry.example/spark:1",
        "PYTHONPATH": str(Path(rezone.__path__[0]).parent),
    }
    command = [sys.executable, "-m", "rezone.cli.main", *arguments, "--namespace", namespace]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )


def said(result: Called) -> str:
    """Return all that a command has written."""
    return result.stderr + result.stdout


def drive(application: dict[str, Any]) -> int:
    """Run the driver of an application in the session of these tests."""
    spec = application["spec"]
    kind = spec["mainApplicationFile"].rpartition("/")[2].removesuffix("_job.py")
    return JOBS[kind]([*spec["arguments"], "--keep-context"])


@pytest.mark.proves("SP-01", "SP-10")
def test_commands_run_jobs_and_show_how_they_go(
    spark: Any, zone: Coordinator, crds: Path, namespace: str, tmp_path: Path
) -> None:
    """Whoever starts a job would look at a driver's log for an hour, or take a failure for good."""
    asyncio.run(stored(crds, namespace, zone.nodes[0].address))
    account = driver_account(crds, namespace, tmp_path)
    spark.sparkContext._jvm.java.lang.System.setProperty("kubeconfig", str(account))
    known: set[str] = set()
    to = str(tmp_path / "export")

    called = functools.partial(call, crds, namespace)
    with ThreadPoolExecutor(1) as pool:

        def run(*arguments: str) -> tuple[Called, dict[str, Any]]:
            command: Future[Called] = pool.submit(called, *arguments)
            application = asyncio.run(submitted(crds, namespace, known))
            try:
                drive(application)
                return command.result(SECONDS), application
            finally:  # what follows a job of which nothing is told waits for ever
                asyncio.run(deleted(crds, namespace, application["metadata"]["name"], command))

        result, application = run("export", "orders", to, "--files", "4")
        assert result.returncode == 0, said(result)
        assert "500 rows as of" in said(result)
        assert "writing: 4 of 4 parts, 500 rows" in said(result)
        asked = application["spec"]["arguments"]
        name = application["metadata"]["name"]
        assert asked[asked.index("--application") + 1] == f"{namespace}/{name}"
        assert application["metadata"]["ownerReferences"][0]["name"] == "orders"
        assert "podAffinity" in application["spec"]["executor"]["affinity"]
        result, _ = run("verify", "orders", "--with-parquet", to, "-o", "json")
        assert result.returncode == 0
        assert json.loads(result.stdout)["equal"]
        with TableClient(list(zone.peers.values())) as table:
            table.delete(7)
        now = str(zone.node(0).clock.micros())
        result, _ = run("verify", "orders", "--with-parquet", to, "--as-of", now)
        assert result.returncode == 1
        assert "DIFFERENT: 499 rows" in said(result)
        assert "in 1 of them 1 rows; their keys: kubectl logs" in said(result)
    result = called("job", name)
    assert (result.returncode, "500 rows as of" in said(result)) == (0, True)
    assert called("job", name, "--cancel").returncode == 0
    result = called("job", name)
    assert result.returncode == 2
    assert name in said(result)


async def set_state(kubeconfig: Path, namespace: str, name: str, state: str) -> None:
    """Write an application's state as the spark-operator does."""
    async with await connect(kubeconfig) as api:
        found = await api.get(SparkApplication, namespace, name)
        status = {"applicationState": {"state": state, "errorMessage": "driver exited with 137"}}
        await api.replace_status(SparkApplication, {**found, "status": status})


def test_a_job_without_a_result_has_failed(crds: Path, namespace: str) -> None:
    """A driver that was killed would count as a zone that was verified."""
    asyncio.run(stored(crds, namespace, "127.0.0.1:1"))
    called = functools.partial(call, crds, namespace)
    result = called("verify", "orders", "--image", "i", "--no-wait", "--tls-secret", "reader")
    assert result.returncode == 0
    name = result.stdout.strip()
    asyncio.run(set_state(crds, namespace, name, "FAILED"))
    result = called("job", name)
    assert result.returncode == 2
    assert "is FAILED: driver exited with 137; the same command goes on with it" in said(result)
    result = called("export", "nothing", "/x", "--image", "i")
    assert result.returncode == 2
    assert "nothing" in said(result)
    result = called("load", "orders", "/x", "--image", "i", "--state", "/s", "--volume", "claim")
    assert "'claim' is not CLAIM:/PATH" in said(result)
