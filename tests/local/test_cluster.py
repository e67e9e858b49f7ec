"""The whole local cluster: real control plane, agent and Spark runner, pods as processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rezone.local.agent.nodes import add_node, fail_node, remove_node
from rezone.local.api import Json, KubeApi
from rezone.local.cluster import AGENT, LocalCluster
from rezone.local.commands import local
from rezone.local.controlplane import ControlPlane, ControlPlaneSettings
from rezone.local.errors import ApiError
from rezone.local.processes import ProcessId
from rezone.local.tools import find_tools

pytestmark = [pytest.mark.apiserver, pytest.mark.slow, pytest.mark.timeout(90)]

PODS = "/api/v1/namespaces/default/pods"
JAVA_OPTIONS = os.environ["JDK_JAVA_OPTIONS"]
"""Pods have nothing of the environment of tests."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Bring a cluster of two nodes up for the tests of this module."""
    state = tmp_path_factory.mktemp("local")
    settings = ControlPlaneSettings(unsafe_no_fsync=True, node_monitor_grace_seconds=6)
    made = LocalCluster(state, settings)
    try:
        made.up(nodes=2)
        yield made
    finally:
        made.down(delete=True)


@pytest.fixture
async def api(cluster: LocalCluster) -> AsyncIterator[KubeApi]:
    """Give a client of the cluster, and remove a test's pods afterwards."""
    async with KubeApi(cluster.kubeconfig) as client:
        yield client
        for item in (await client.get(PODS))["items"]:
            await client.delete(f"{PODS}/{item['metadata']['name']}", grace_seconds=0)


async def until(api: KubeApi, path: str, name: str, predicate: Callable[[Json], Any]) -> Json:
    """Watch one object until it is as wanted; return it (an empty one stands for none)."""
    selector = {"fieldSelector": f"metadata.name={name}"}
    async with contextlib.aclosing(api.follow(path, **selector)) as events:  # type: ignore[type-var]
        async for event, item in events:
            found = (item["items"] or [{}])[0] if event == "SYNC" else item
            found = {} if event == "DELETED" else found
            if predicate(found):
                return found
    raise AssertionError("a watch never ends")


def pod(name: str, script: str, **spec: Any) -> Json:
    """Return a pod that runs a shell script; keys of its container are given as `container`."""
    container = {"name": "main", "image": "none", "command": ["/bin/sh", "-c", script]}
    container |= spec.pop("container", {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 20, **spec},
    }


def state_of(item: Json) -> Json:
    """Return the status of a pod's container."""
    found: Json = (item.get("status", {}).get("containerStatuses") or [{}])[0]
    return found


def is_ready(item: Json) -> bool:
    """Whether a pod is ready."""
    conditions = item.get("status", {}).get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def waits_for(reason: str) -> Callable[[Json], bool]:
    """Return whether a pod's container waits for a reason."""
    return lambda item: state_of(item).get("state", {}).get("waiting", {}).get("reason") == reason


def kubectl(cluster: LocalCluster, *words: str) -> str:
    """Run the built kubectl and return its output."""
    program = find_tools(["kubectl"])["kubectl"]
    command = [str(program), f"--kubeconfig={cluster.kubeconfig}", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def directory_of(cluster: LocalCluster, item: Json) -> Path:
    """Return the agent's directory of a pod."""
    metadata = item["metadata"]
    name = f"{metadata['namespace']}_{metadata['name']}_{metadata['uid']}"
    return cluster.kubeconfig.parent / "pods" / name


def process_of(cluster: LocalCluster, item: Json) -> ProcessId:
    """Return the process of a pod's container from the agent's record."""
    record = json.loads((directory_of(cluster, item) / "record.json").read_text())
    container = record["containers"]["main"]
    return ProcessId(container["pid"], container["pid_start"])


async def test_deployment_runs_and_kubectl_reads_its_log(
    cluster: LocalCluster, api: KubeApi
) -> None:
    """This is what the local cluster is for: `kubectl apply`, a process, `kubectl logs`."""
    template = pod(
        "web",
        'echo "I am $POD_IP on $NODE"; exec sleep 600',
        container={
            "env": [
                {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            ]
        },
    )
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": template["spec"]},
        },
    }
    path = "/apis/apps/v1/namespaces/default/deployments"
    await api.create(path, deployment)
    ready = lambda item: item.get("status", {}).get("readyReplicas") == 2  # noqa: E731
    await until(api, path, "web", ready)
    listed = (await api.get(PODS, labelSelector="app=web"))["items"]
    assert len({item["status"]["podIP"] for item in listed}) == 2
    for item in listed:
        log = kubectl(cluster, "logs", item["metadata"]["name"])
        assert log == f"I am {item['status']['podIP']} on {item['spec']['nodeName']}\n"
    assert "v1.34.4" in kubectl(cluster, "version")
    await api.delete(f"{path}/web")


async def test_crash_loop_backs_off_and_keeps_the_last_log(
    cluster: LocalCluster, api: KubeApi
) -> None:
    """A broken pod must not take the machine, and must say why it is broken."""
    await api.create(PODS, pod("crash", "echo broken; exit 3"))
    found = await until(api, PODS, "crash", waits_for("CrashLoopBackOff"))
    status = state_of(found)
    assert status["restartCount"] >= 2
    assert status["lastState"]["terminated"]["exitCode"] == 3
    assert found["status"]["phase"] == "Running"
    assert kubectl(cluster, "logs", "crash") == "broken\n"


async def test_unknown_command_is_told(api: KubeApi) -> None:
    """A typo in a command must be visible in `kubectl get pods`."""
    await api.create(PODS, pod("typo", "", container={"command": ["no-such-program"]}))
    found = await until(api, PODS, "typo", waits_for("CreateContainerError"))
    assert "no-such-program" in state_of(found)["state"]["waiting"]["message"]


async def test_probes_decide_readiness_and_restart(cluster: LocalCluster, api: KubeApi) -> None:
    """A data node that has not caught up must get no traffic; one that hangs must be restarted."""
    quick = {"periodSeconds": 1, "failureThreshold": 1}
    container = {
        "volumeMounts": [{"name": "flags", "mountPath": "/flags"}],
        "readinessProbe": {"exec": {"command": ["test", "-e", "/proc/self"]}, **quick},
        "livenessProbe": {"exec": {"command": ["sh", "-c", '! test -e "$HOME/dead"']}, **quick},
    }
    volumes = [{"name": "flags", "emptyDir": {}}]
    body = pod("probed", "exec sleep 600", container=container, volumes=volumes)
    await api.create(PODS, body)
    found = await until(api, PODS, "probed", is_ready)
    directory_of(cluster, found).joinpath("main", "dead").touch()
    restarted = lambda item: state_of(item).get("restartCount", 0) >= 1  # noqa: E731
    again = await until(api, PODS, "probed", restarted)
    assert state_of(again)["lastState"]["terminated"]["exitCode"] == 128 + signal.SIGTERM


async def test_deletion_is_graceful(cluster: LocalCluster, api: KubeApi, tmp_path: Path) -> None:
    """A data node killed at once loses what it has not flushed; one left behind keeps its port."""
    notes = tmp_path / "notes"
    script = f"trap 'echo term >> {notes}; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    hook = {"preStop": {"exec": {"command": ["sh", "-c", f"echo hook >> {notes}"]}}}
    await api.create(PODS, pod("graceful", script, container={"lifecycle": hook}))
    found = await until(api, PODS, "graceful", is_ready)
    process = process_of(cluster, found)
    assert process.alive()
    # Ready says that the process exists, not that the shell has set its trap.
    while not kubectl(cluster, "logs", "graceful"):
        pass
    await api.delete(f"{PODS}/graceful")
    await until(api, PODS, "graceful", lambda item: not item)
    assert not process.alive()
    assert notes.read_text() == "hook\nterm\n"


async def test_pod_ends_with_its_containers(api: KubeApi) -> None:
    """Jobs end by this, init containers gate by this."""
    init = {
        "name": "init",
        "image": "none",
        "command": ["cp", "/proc/version", "/shared/x"],
        "volumeMounts": [{"name": "shared", "mountPath": "/shared"}],
    }
    main = {
        "command": ["cat", "/shared/x"],
        "volumeMounts": [{"name": "shared", "mountPath": "/shared"}],
    }
    body = pod(
        "once",
        "",
        container=main,
        initContainers=[init],
        restartPolicy="Never",
        volumes=[{"name": "shared", "emptyDir": {}}],
    )
    await api.create(PODS, body)
    over = lambda item: item.get("status", {}).get("phase") in {"Succeeded", "Failed"}  # noqa: E731
    found = await until(api, PODS, "once", over)
    assert found["status"]["phase"] == "Succeeded"
    assert state_of(found)["state"]["terminated"]["reason"] == "Completed"


async def test_service_account_reaches_the_api(cluster: LocalCluster, api: KubeApi) -> None:
    """Asserts that a pod reaches the API server as its service account.

    Without it the operator, which runs as a pod, could do nothing.
    """
    program = find_tools(["kubectl"])["kubectl"]
    asks = f"exec {program} auth whoami -o jsonpath='{{.status.userInfo.username}}'"
    await api.create(PODS, pod("asks", asks, restartPolicy="Never"))
    over = lambda item: item.get("status", {}).get("phase") in {"Succeeded", "Failed"}  # noqa: E731
    await until(api, PODS, "asks", over)
    assert kubectl(cluster, "logs", "asks") == "system:serviceaccount:default:default"


async def test_another_cluster_beside_it_ends_alone(
    cluster: LocalCluster, api: KubeApi, tmp_path: Path
) -> None:
    """Asserts that clusters of two state directories run side by side, and end each by itself.

    Without it `rezone local down` of a second cluster, or its pods' addresses, break the first.
    """
    other = LocalCluster(tmp_path, ControlPlaneSettings(unsafe_no_fsync=True))
    try:
        await asyncio.to_thread(other.up, 1)
        async with KubeApi(other.kubeconfig) as theirs:
            await api.create(PODS, pod("twin", "exec sleep 600"))
            await theirs.create(PODS, pod("twin", "exec sleep 600"))
            ours = await until(api, PODS, "twin", is_ready)
            found = await until(theirs, PODS, "twin", is_ready)
        assert ours["status"]["podIP"] != found["status"]["podIP"]
        process = process_of(other, found)
        words = ["--state-dir", str(tmp_path), "down"]
        done = await asyncio.to_thread(CliRunner().invoke, local, words)
        assert done.exit_code == 0, done.output
        assert not process.alive()
        assert process_of(cluster, ours).alive()
        assert all(part.running for part in cluster.status())
        await api.get(f"{PODS}/twin")
    finally:
        await asyncio.to_thread(other.down, delete=True)


async def test_claim_is_bound_and_removed(cluster: LocalCluster, api: KubeApi) -> None:
    """A data node's rows must survive its pod, and go with its claim."""
    claims = "/api/v1/namespaces/default/persistentvolumeclaims"
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    await api.create(claims, claim)
    body = pod(
        "stores",
        'touch "$REZONE_MOUNT_DATA/row"; exec sleep 600',
        container={"volumeMounts": [{"name": "data", "mountPath": "/data"}]},
        volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
    )
    await api.create(PODS, body)
    await until(api, PODS, "stores", is_ready)
    bound = await api.get(f"{claims}/data")
    assert bound["status"]["phase"] == "Bound"
    volume = bound["spec"]["volumeName"]
    path = cluster.kubeconfig.parent / "volumes" / volume
    assert path.is_dir()
    await api.delete(f"{PODS}/stores", grace_seconds=0)
    await api.delete(f"{claims}/data")
    await until(api, "/api/v1/persistentvolumes", volume, lambda item: not item)
    assert not path.exists()


async def test_agent_restart_keeps_processes(cluster: LocalCluster, api: KubeApi) -> None:
    """An agent that restarts must neither end nor double what runs."""
    await api.create(PODS, pod("stays", "exec sleep 600"))
    before = process_of(cluster, await until(api, PODS, "stays", is_ready))
    agent = next(part for part in cluster.status() if part.name == AGENT)
    assert agent.pid is not None
    os.kill(agent.pid, signal.SIGKILL)
    # The supervisor brings it back; a deletion only a running agent can complete shows that.
    await api.create(PODS, pod("new", "exec sleep 600"))
    await until(api, PODS, "new", is_ready)
    found = await api.get(f"{PODS}/stays")
    assert process_of(cluster, found) == before
    assert before.alive()
    assert state_of(found)["restartCount"] == 0


async def test_node_comes_fails_and_goes(cluster: LocalCluster, api: KubeApi) -> None:
    """Failover is tested by this: a silent node with dead processes, seen by the cluster."""
    await add_node(api, "extra-3")
    nodes = "/api/v1/nodes"
    await until(api, nodes, "extra-3", is_ready)
    labels = (await api.get(f"{nodes}/extra-3"))["metadata"]["labels"]
    assert labels["topology.kubernetes.io/zone"] == "c"
    await api.create(PODS, pod("doomed", "exec sleep 600", nodeName="extra-3"))
    process = process_of(cluster, await until(api, PODS, "doomed", is_ready))
    await fail_node(api, "extra-3")
    await until(api, nodes, "extra-3", lambda item: not is_ready(item))
    assert not process.alive()
    await fail_node(api, "extra-3", failed=False)
    await until(api, nodes, "extra-3", is_ready)
    again = lambda item: is_ready(item) and state_of(item)["restartCount"] == 1  # noqa: E731
    await until(api, PODS, "doomed", again)
    await remove_node(api, "extra-3")
    with pytest.raises(ApiError, match="not found"):
        await api.get(f"{nodes}/extra-3")
    await until(api, PODS, "doomed", lambda item: not item)


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(600)
async def test_spark_application_runs(cluster: LocalCluster, api: KubeApi, tmp_path: Path) -> None:
    """Every bulk transfer goes this way; fakes of spark-submit would hide a wrong command line."""
    job = tmp_path / "job.py"
    job.write_text(
        "import sys\n"
        "from pyspark.sql import SparkSession\n"
        "session = SparkSession.builder.getOrCreate()\n"
        "print('rows', session.range(int(sys.argv[1])).count())\n"
        "session.stop()\n"
    )
    applications = "/apis/sparkoperator.k8s.io/v1beta2/namespaces/default/sparkapplications"
    body = {
        "apiVersion": "sparkoperator.k8s.io/v1beta2",
        "kind": "SparkApplication",
        "metadata": {"name": "count"},
        "spec": {
            "type": "Python",
            "sparkVersion": "4.1.0",
            "mainApplicationFile": f"local://{job}",
            "arguments": ["1000"],
            "driver": {"memory": "512m", "envVars": {"JDK_JAVA_OPTIONS": JAVA_OPTIONS}},
            "executor": {},
        },
    }
    await api.create(applications, body)

    def state(item: dict[str, Any]) -> str | None:
        found: str | None = item.get("status", {}).get("applicationState", {}).get("state")
        return found

    ends = {"COMPLETED", "FAILED"}
    found = await until(api, applications, "count", lambda item: state(item) in ends)
    log = kubectl(cluster, "logs", "count-driver")
    assert state(found) == "COMPLETED", log
    assert "rows 1000\n" in log
    await api.delete(f"{applications}/count")
    # By the owner reference the driver goes as well.
    await until(api, PODS, "count-driver", lambda item: not item)


async def test_mounted_configuration(cluster: LocalCluster, api: KubeApi) -> None:
    """Certificates and settings reach the data nodes as files of Secrets and ConfigMaps."""
    core = "/api/v1/namespaces/default"
    await api.create(f"{core}/configmaps", {"metadata": {"name": "c"}, "data": {"a": "one\n"}})
    secret = {"metadata": {"name": "s"}, "stringData": {"b": "two\n"}}
    await api.create(f"{core}/secrets", secret)
    container = {
        "command": ["cat", "/both/a", "/both/sub/b"],
        "volumeMounts": [{"name": "both", "mountPath": "/both"}],
    }
    sources = [
        {"configMap": {"name": "c"}},
        {"secret": {"name": "s", "items": [{"key": "b", "path": "sub/b"}]}},
    ]
    volumes = [{"name": "both", "projected": {"sources": sources}}]
    body = pod("reads", "", container=container, volumes=volumes, restartPolicy="Never")
    await api.create(PODS, body)
    over = lambda item: item.get("status", {}).get("phase") == "Succeeded"  # noqa: E731
    await until(api, PODS, "reads", over)
    assert kubectl(cluster, "logs", "reads") == "one\ntwo\n"


async def test_down_and_up_keep_what_was_there(cluster: LocalCluster, api: KubeApi) -> None:
    """A cluster that forgets its objects, or leaves processes behind, cannot be switched off.

    A new port would break every kubeconfig handed out before.
    """
    await api.create(PODS, pod("lasting", "exec sleep 600"))
    process = process_of(cluster, await until(api, PODS, "lasting", is_ready))
    server = ControlPlane(cluster.kubeconfig.parent).server
    await asyncio.to_thread(cluster.down)
    assert not process.alive()
    assert not any(part.running for part in cluster.status())
    await asyncio.to_thread(cluster.up)
    assert ControlPlane(cluster.kubeconfig.parent).server == server
    async with KubeApi(cluster.kubeconfig) as fresh:
        again = lambda item: is_ready(item) and state_of(item)["restartCount"] == 1  # noqa: E731
        await until(fresh, PODS, "lasting", again)


def test_status_and_second_up(cluster: LocalCluster) -> None:
    """`up` must be safe to repeat: it is what one types when in doubt."""
    before = cluster.status()
    assert all(part.running for part in before)
    cluster.up(nodes=2)
    assert cluster.status() == before
    state = str(cluster.kubeconfig.parent)
    shown = CliRunner().invoke(local, ["--state-dir", state, "status"])
    assert shown.exit_code == 0, shown.output
    assert "kube-apiserver" in shown.output
