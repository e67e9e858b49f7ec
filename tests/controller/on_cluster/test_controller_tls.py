"""An installation that speaks TLS, whole: the operator issues, pods mount, clients prove."""

from __future__ import annotations

import asyncio
import base64
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from operated_cluster import (
    ROOT,
    SCHEMA,
    TestCluster,
    addresses_of,
    make_zone,
    path_of,
    stable_of,
    state_of,
    task_manifest,
    until,
)
from operator_process import OperatorProcess

from rezone.client import ClientSettings, TableClient
from rezone.kube.tls.certificates import AUTHORITY_SECRET
from rezone.local.api import Json, KubeApi
from rezone.wire.errors import ForbiddenError, NotReadyError
from rezone.wire.transport.tls import TlsDirectory

pytestmark = [pytest.mark.apiserver, pytest.mark.slow, pytest.mark.timeout(240)]
NAMESPACE = "encrypted"
NODES = ("worker-1", "worker-2", "worker-3")
ZONE = "vault"
SECRETS = f"/api/v1/namespaces/{NAMESPACE}/secrets"
SHORT = ClientSettings(timeout_seconds=1.0)
OPERATOR = {"REZONE_TLS": "issued"}


@pytest.fixture
async def zone(cluster: TestCluster, api: KubeApi, operator: OperatorProcess) -> Json:
    """Give the module's zone on three nodes, made by the first test that asks."""
    del operator
    small: Json = {"transfer": {"sparkThresholdBytes": 1 << 30}, "replicas": 2}
    return await make_zone(cluster, api, NAMESPACE, ZONE, NODES, **small)


def rezone(
    kubeconfig: Path, command: str, role: str, out: Path, *more: str
) -> subprocess.CompletedProcess[bytes]:
    """Run a command that gets a certificate."""
    words = [sys.executable, "-m", "rezone.cli.main", command, ZONE]
    words += ["-n", NAMESPACE, "--role", role, "--out", str(out), *more]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "operator"),
        "KUBECONFIG": str(kubeconfig),
    }
    return subprocess.run(words, env=environment, capture_output=True, check=False, timeout=60)


def account(cluster: TestCluster, name: str, place: Path) -> Path:
    """Return a kubeconfig with the token of a new service account that may log in."""
    cluster.kubectl("create", "serviceaccount", name, "-n", NAMESPACE)
    subject = f"--serviceaccount={NAMESPACE}:{name}"
    requests = "--resource=certificatesigningrequests.certificates.k8s.io"
    cluster.kubectl("create", "clusterrole", f"{name}-login", "--verb=create,get", requests)
    cluster.kubectl("create", "clusterrolebinding", name, f"--clusterrole={name}-login", subject)
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    token = cluster.kubectl("create", "token", name, "-n", NAMESPACE).strip()
    config["users"][0]["user"] = {"token": token}
    path = place / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


def certificate(cluster: TestCluster, role: str, out: Path) -> TlsDirectory:
    """Return a certificate as a person gets one."""
    authority = ["--authority", f"{NAMESPACE}/{AUTHORITY_SECRET}"]
    done = rezone(cluster.kubeconfig, "certificate", role, out, *authority)
    assert done.returncode == 0, done.stderr.decode()
    assert f"rezone://zone/{NAMESPACE}/{ZONE}/{role}, good until" in done.stdout.decode()
    assert (out / "tls.key").stat().st_mode & 0o077 == 0
    return TlsDirectory(out)


def rows(values: dict[bytes, bytes]) -> pa.RecordBatch:
    """Return rows of the default schema."""
    return pa.record_batch(
        [pa.array(list(values), pa.binary()), pa.array(list(values.values()), pa.binary())],
        schema=SCHEMA,
    )


@pytest.mark.proves("B-12")
async def test_a_zone_lives_behind_tls(
    cluster: TestCluster, api: KubeApi, zone: Json, tmp_path: Path
) -> None:
    """A part could not connect to another, or one without a certificate would be let in."""
    addresses = sorted(addresses_of(zone).values())
    writer = certificate(cluster, "writer", tmp_path / "writer")
    reader = certificate(cluster, "reader", tmp_path / "reader")
    values = {f"k{i}".encode(): b"v" for i in range(200)}

    def use() -> None:
        with TableClient(addresses, tls=writer) as client:
            client.write(rows(values))
        with TableClient(addresses, tls=reader) as client:
            assert set(values) <= set(client.scan()["key"].to_pylist())
            with pytest.raises(ForbiddenError, match="may not write"):
                client.write(rows({b"k0": b"forged"}))
        with TableClient(addresses, settings=SHORT) as client, pytest.raises(NotReadyError):
            client.write(rows({b"k0": b"plain"}))

    await asyncio.to_thread(use)
    # A replica moves: a copy from node to node, replication and a takeover, all by certificates.
    stable = stable_of(zone)
    spare = next(n for n in addresses_of(zone) if n not in stable[0])
    moves: dict[int, tuple[int, ...]] = {0: (spare, stable[0][1])}
    cluster.apply(task_manifest(NAMESPACE, "move", ZONE, moves))
    tasks = path_of(NAMESPACE, "rebalancetasks")
    await until(api, tasks, "move", lambda found: state_of(found) == "Succeeded", seconds=90)

    def read() -> None:
        with TableClient(addresses, tls=reader) as client:
            assert set(values) <= set(client.scan()["key"].to_pylist())

    await asyncio.to_thread(read)


@pytest.mark.proves("B-12")
async def test_a_secret_made_again_is_taken_by_running_nodes(
    cluster: TestCluster, api: KubeApi, operator: OperatorProcess, zone: Json, tmp_path: Path
) -> None:
    """A renewal would wait for a restart of each data node, or cost writes."""
    addresses = sorted(addresses_of(zone).values())
    writer = certificate(cluster, "writer", tmp_path / "writer")
    name = f"{ZONE}-data-node-0-tls"
    before = await api.get(f"{SECRETS}/{name}")
    await api.delete(f"{SECRETS}/{name}")
    operator.restart()  # the next one looks at once, and goes on with the same authority
    again = await until(
        api,
        SECRETS,
        name,
        lambda found: found and found["data"] != before["data"],
        seconds=90,
    )
    wanted = base64.b64decode(again["data"]["tls.crt"])
    files = [*(cluster.state / "pods").glob(f"{NAMESPACE}_{ZONE}-0*/volumes/tls/tls.crt")]
    assert len(files) == 1

    def use() -> None:
        with TableClient(addresses, tls=writer) as client:
            number = 0
            while any(path.read_bytes() != wanted for path in files):
                number += 1
                client.write(rows({b"k": f"{number}".encode()}))
            client.write(rows({b"k": b"last"}))
        for address in addresses:
            # It may be about to change servers: a client asks again.
            with TableClient([address], tls=writer) as client:
                assert client.config.zone == ZONE

    await asyncio.to_thread(use)
    await check_ready(api)


@pytest.mark.proves("B-12")
async def test_a_service_account_logs_in_as_far_as_its_role_goes(
    cluster: TestCluster, zone: Json, tmp_path: Path
) -> None:
    """Clients would need a person with the authority's Secret, or any token would do."""
    addresses = sorted(addresses_of(zone).values())
    kubeconfig = account(cluster, "till", tmp_path)
    out = tmp_path / "till"
    subject = f"--serviceaccount={NAMESPACE}:till"
    refused = await asyncio.to_thread(rezone, kubeconfig, "login", "writer", out)
    assert refused.returncode == 1
    assert "may not write distributionzones/rows" in refused.stderr.decode()
    rows_of = "--resource=distributionzones.rezone.dev/rows"
    cluster.kubectl("create", "role", "till", "-n", NAMESPACE, "--verb=write", rows_of)
    cluster.kubectl("create", "rolebinding", "till", "-n", NAMESPACE, "--role=till", subject)
    done = await asyncio.to_thread(rezone, kubeconfig, "login", "writer", out)
    assert done.returncode == 0, done.stderr.decode()

    def use() -> None:
        with TableClient(addresses, tls=TlsDirectory(out)) as client:
            client.write(rows({b"till": b"open"}))
            assert b"till" in client.scan()["key"].to_pylist()

    await asyncio.to_thread(use)


async def check_ready(api: KubeApi) -> None:
    """Wait until the zone says it is well."""
    await until(
        api,
        path_of(NAMESPACE, "distributionzones"),
        ZONE,
        lambda found: any(
            c["type"] == "Ready" and c["status"] == "True" for c in found["status"]["conditions"]
        ),
    )
