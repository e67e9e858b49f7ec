"""A SparkApplication as its command and its driver see it; a test plays the spark-operator."""

import asyncio
import importlib
import os
import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import yaml
from kube_helpers import stored_zone

import rezone
from rezone.kube.api.client import Kube, connect
from rezone.kube.api.kinds import SparkApplication
from rezone.kube.stored.store import StatusStore
from rezone.local.api import KubeApi
from rezone.resources.zone_status import DataNodeStatus, DistributionZoneStatus

Called = subprocess.CompletedProcess[str]
SECONDS = 300.0
ACCOUNT = "rezone-spark"
ACCOUNTS = Path(__file__).parents[3] / "manifests/zone-namespace/accounts.yaml"


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


def all_said(result: Called) -> str:
    """Return all that a command has written."""
    return result.stderr + result.stdout


def drive(application: dict[str, Any]) -> int:
    """Run the driver of an application in the session of these tests."""
    spec = application["spec"]
    kind = spec["mainApplicationFile"].rpartition("/")[2].removesuffix(".py")
    job = importlib.import_module(f"rezone.transfer.{kind}")
    code: int = job.main([*spec["arguments"], "--keep-context"])
    return code
