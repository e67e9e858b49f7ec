"""Pods of data nodes come and go under writes: evicted by `kubectl drain`, replaced by an update.

On a cluster with its own controllers: evictions are granted by Kubernetes, from the disruption
budgets that the operator writes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest
from operated_cluster import (
    TestCluster,
    Writer,
    addresses_of,
    check_settled,
    data_nodes,
    make_zone,
    remove_zone,
    until,
    until_zone,
)
from operator_process import OperatorProcess

from rezone.local.agent.nodes import add_node
from rezone.local.api import Json, KubeApi
from rezone.local.errors import ApiError

pytestmark = [pytest.mark.apiserver, pytest.mark.slow, pytest.mark.timeout(480)]

NAMESPACE = "replaced"
LEADER_LEASE_SECONDS = 20
"""Longer than any write may take here: a write that waited for a failover would be seen."""
OPERATOR_AWAY_SECONDS = 6.0
"""As long as another one needs to lead in the place of one that is lost."""
CLAIM = {"volumeClaimTemplate": {"size": "1Gi"}}
PATIENT = [
    {"name": "REZONE_NODE_LEAVE_UNREAD_MS_MAX", "value": "75000"},
    {"name": "REZONE_NODE_LEAVE_MS_MAX", "value": "80000"},
]
"""A killed operator needs half a minute on a busy machine until it leads again: data nodes that are
to go wait for it. They stop within the grace that Kubernetes gives them, 90 s."""
DATA_NODES = data_nodes(
    NAMESPACE,
    "kept",
    podTemplate={"spec": {"containers": [{"name": "data-node", "env": PATIENT}]}},
)


@pytest.fixture(scope="module")
def operator(cluster: TestCluster, logs: Path) -> Iterator[OperatorProcess]:
    """Run the operator for this module's namespace."""
    cluster.kubectl("create", "namespace", NAMESPACE)
    lease = {"REZONE_LEADER_LEASE_SECONDS": str(LEADER_LEASE_SECONDS)}
    process = OperatorProcess(cluster, NAMESPACE, logs, **lease)
    with process.running():
        yield process


@pytest.fixture
async def zone(cluster: TestCluster, api: KubeApi, operator: OperatorProcess) -> Json:
    """Give a zone of three data nodes with volumes, on four nodes of its own, under no load."""
    del operator
    for number in range(4):
        await add_node(api, f"pods-{number}")
    nodes = [f"pods-{number}" for number in range(3)]
    return await make_zone(
        cluster, api, NAMESPACE, "kept", nodes, partitions=6, storage=CLAIM, dataNodes=DATA_NODES
    )


def drain(cluster: TestCluster, node: str) -> None:
    """Drain a Kubernetes node as people do."""
    words = ("--ignore-daemonsets", "--delete-emptydir-data", "--timeout=100s")
    cluster.kubectl("drain", node, "--pod-selector=rezone.dev/zone=kept", *words)


@pytest.mark.proves("B-07", "OP-03")
async def test_drain_moves_leaders_off_before_the_pod_stops(
    cluster: TestCluster, api: KubeApi, zone: Json
) -> None:
    """An eviction would be a crash: writes wait for a lease, or lose what they acknowledged."""
    cluster.label(NAMESPACE, "kept", "pods-3")
    zone = await check_settled(api, NAMESPACE, "kept")
    drained = next(n for n in zone["status"]["dataNodes"] if n["nodeName"] == "pods-0")
    with Writer(addresses_of(zone).values()) as writer:
        writer.wait_for_more(10)
        await asyncio.to_thread(drain, cluster, "pods-0")
        writer.wait_for_more(10)
        await until_zone(
            api,
            NAMESPACE,
            "kept",
            lambda z: drained["id"] not in {n["id"] for n in z["status"]["dataNodes"]},
        )
        await check_settled(api, NAMESPACE, "kept")
    await asyncio.to_thread(writer.check)
    never_waited(writer)
    await remove_zone(api, NAMESPACE, "kept")


def is_pod_ready(pod: Json) -> bool:
    """Return whether Kubernetes counts a pod as healthy."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


async def evict(api: KubeApi, pod: str) -> int:
    """Ask for a pod's eviction, and only ask; return the HTTP status of the answer."""
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod, "namespace": NAMESPACE},
        "deleteOptions": {"dryRun": ["All"]},
    }
    try:
        await api.create(f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}/eviction", body)
    except ApiError as error:
        return error.code
    return 200


@pytest.mark.proves("B-07", "OP-03")
async def test_no_pod_is_evicted_while_another_lags(
    cluster: TestCluster, api: KubeApi, zone: Json
) -> None:
    """Two replicas of a partition would be away at once, and its writes be refused.

    The pod is only stopped, for less than its lag: all that tells Kubernetes is its readiness.
    """
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
    lagging, other = (n["podName"] for n in zone["status"]["dataNodes"][:2])
    for pod in (lagging, other):
        await until(api, pods, pod, is_pod_ready)
    budgets = f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets"
    await until(api, budgets, "kept", lambda b: b["status"].get("disruptionsAllowed") == 1)
    assert await evict(api, other) == 200
    group = cluster.pod_pid(NAMESPACE, lagging)
    assert group is not None
    os.killpg(group, signal.SIGSTOP)
    try:
        await until(api, pods, lagging, lambda pod: not is_pod_ready(pod))
        await until(api, budgets, "kept", lambda b: b["status"].get("disruptionsAllowed") == 0)
        assert await evict(api, other) == 429
    finally:
        os.killpg(group, signal.SIGCONT)
    await until(api, pods, lagging, is_pod_ready)
    await until(api, budgets, "kept", lambda b: b["status"].get("disruptionsAllowed") == 1)
    assert await evict(api, other) == 200
    await remove_zone(api, NAMESPACE, "kept")


def never_waited(writer: Writer) -> None:
    """Assert that no write has waited for a leader to be taken for dead."""
    print(f"\nlongest write: {writer.longest_seconds * 1000:.0f} ms")  # noqa: T201
    assert writer.longest_seconds < LEADER_LEASE_SECONDS / 2


def write_on(writer: Writer, seconds: float) -> None:
    """Return when a time is over in which writes went on."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        writer.wait_for_more(1)


def were_relieved(logs: list[TextIO]) -> None:
    """Assert that data nodes have stopped because others had taken their place.

    By their own word, which no load changes.
    """
    assert len(logs) == 3
    last = [
        [json.loads(each) for each in log if '"leaving' in each or '"relieved"' in each]
        for log in logs
    ]
    assert [words[-1]["event"] for words in last] == ["relieved"] * 3, last


def template(**annotations: str | None) -> str:
    """Return a patch of the zone's pod template, for kubectl."""
    return json.dumps(
        {"spec": {"dataNodes": {"podTemplate": {"metadata": {"annotations": annotations}}}}}
    )


@pytest.mark.long
@pytest.mark.proves("OP-03", "B-07")
async def test_update_replaces_all_pods_under_writes(
    cluster: TestCluster, api: KubeApi, operator: OperatorProcess, zone: Json
) -> None:
    """A new image would need a maintenance window, or lose what was acknowledged meanwhile."""
    path = f"/api/v1/namespaces/{NAMESPACE}/pods"
    labels = "rezone.dev/zone=kept"
    before = {p["metadata"]["uid"] for p in (await api.get(path, labelSelector=labels))["items"]}
    words = ("--namespace", NAMESPACE, "patch", "dz", "kept", "--type=merge", "--patch")
    stack = contextlib.ExitStack()
    with stack, Writer(addresses_of(zone).values()) as writer:
        logs = cluster.open_logs(NAMESPACE, "kept-*", stack)
        writer.wait_for_more(10)
        cluster.kubectl(*words, template(release="2"))
        found = await until_zone(
            api, NAMESPACE, "kept", lambda z: update_of(z).get("node") is not None
        )
        await asyncio.to_thread(operator.kill)
        # It may have died before this, or after: whoever leads next finds a pod that is to go.
        pod = f"kept-{update_of(found)['node']}"
        cluster.kubectl(
            "--namespace", NAMESPACE, "delete", "pod", pod, "--wait=false", "--ignore-not-found"
        )
        await asyncio.to_thread(write_on, writer, OPERATOR_AWAY_SECONDS)
        operator.start()
        found = await until_zone(api, NAMESPACE, "kept", is_updated)
        writer.wait_for_more(10)
        await check_settled(api, NAMESPACE, "kept")
        were_relieved(logs)
    assert is_updated(found)
    pods = (await api.get(path, labelSelector=labels))["items"]
    assert len(pods) == 3
    assert not before & {p["metadata"]["uid"] for p in pods}, "not every pod was replaced"
    assert {p["metadata"]["annotations"]["release"] for p in pods} == {"2"}
    await asyncio.to_thread(writer.check)
    never_waited(writer)
    await remove_zone(api, NAMESPACE, "kept")


def update_of(found: Json) -> Json:
    """Return the zone's update under way, an empty one without."""
    update: Json = (found.get("status") or {}).get("rollout") or {}
    return update


def is_updated(found: Json) -> bool:
    """Return whether the operator has seen the newest spec, and has no pod left to replace."""
    seen = found["status"]["observedGeneration"] == found["metadata"]["generation"]
    return seen and not update_of(found)
