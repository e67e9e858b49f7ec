"""The operator's process is killed around the SparkApplications of a rebalance.

As `test_controller_killed`, with real Spark drivers: SIGKILL before and after an application is
intended, made and deleted, and when it is found running, ended or failed and nothing is noted yet.
What comes to pass while no operator lives is awaited by the test, so that the next one finds it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from operated_cluster import (
    TestCluster,
    Writer,
    abort_connections,
    addresses_of,
    check_settled,
    make_zone,
    path_of,
    stable_of,
    state_of,
    task_manifest,
    until,
    wait_for_report,
)
from operator_process import EVERY_POINT, DyingOperator, OperatorProcess, led_by
from prometheus_client.parser import text_string_to_metric_families
from resharding_case import check_rows, has_ended, patch, write_rows

from rezone.local.api import Json, KubeApi
from rezone.resources.task import TaskState as T
from rezone.wire.flight import NodeClient
from rezone.wire.messages import NodeStatistics, StatisticsRequest

pytestmark = [
    pytest.mark.apiserver,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not EVERY_POINT, reason="Spark drivers take their time: make chaos"),
]

NAMESPACE = "killed-spark"
ZONE = "bulk"
NODES = ("worker-1", "worker-2", "worker-3")
ZONES = path_of(NAMESPACE, "distributionzones")
TASKS = path_of(NAMESPACE, "rebalancetasks")
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
APPLICATIONS = f"/apis/sparkoperator.k8s.io/v1beta2/namespaces/{NAMESPACE}/sparkapplications"
DRIVER = "spark-kubernetes-driver"
HEALTH_PORT = 7401
VALUE_BYTES = 6_000
SLOW_BYTES_PER_SECOND = 100_000
"""A copy of 8 MB takes over a minute and is read out meanwhile: so it can be cancelled."""
DRIVER_SECONDS = 200.0
"""A driver gives way to everything else on the machine, so it may begin late."""

INTEND, CREATE, DELETE = (f"{deed} SparkApplication" for deed in ("intend", "create", "delete"))


@pytest.fixture(scope="module")
def heir(cluster: TestCluster, logs: Path) -> OperatorProcess:
    """Give the operator that goes on when the others are dead; it has made the module's zone."""
    cluster.kubectl("create", "namespace", NAMESPACE)
    operator = OperatorProcess(cluster, NAMESPACE, logs, POD_NAME=DyingOperator.POD)
    # Each node leads one: a node that is left without any would call for a rebalance.
    layout = {"partitions": 3, "replicas": 2, "minInSyncReplicas": 1}

    async def make() -> None:
        async with KubeApi(cluster.kubeconfig) as api:
            bulk = {"transfer": {"sparkThresholdBytes": 0}}
            made = await make_zone(cluster, api, NAMESPACE, ZONE, NODES, **layout, **bulk)
            await asyncio.to_thread(write_rows, made, VALUE_BYTES)
        await abort_connections(set())

    with operator.running():
        asyncio.run(make())
    return operator


@pytest.fixture
def lives(cluster: TestCluster, heir: OperatorProcess, logs: Path) -> Iterator[DyingOperator]:
    """Give an operator to be killed."""
    del heir
    with DyingOperator(cluster, NAMESPACE, logs) as operator:
        yield operator


@pytest.fixture
async def slow_copies(api: KubeApi, heir: OperatorProcess) -> AsyncIterator[None]:
    """Let copies take long; in the end they are fast again."""
    del heir
    await patch(api, ZONES, ZONE, rebalance={"maxBytesPerSecond": SLOW_BYTES_PER_SECOND})
    yield
    await patch(api, ZONES, ZONE, rebalance={"maxBytesPerSecond": 0})


async def zone_of(api: KubeApi) -> Json:
    """Return the module's zone, at rest."""
    return await api.get(f"{ZONES}/{ZONE}")


def a_copy(zone: Json, partition: int) -> tuple[int, int]:
    """Return where a partition shall go: its leader stays, its follower goes to another node."""
    nodes = {node["id"] for node in zone["status"]["dataNodes"]}
    kept, left = stable_of(zone)[partition]
    return kept, (nodes - {kept, left}).pop()


async def applications_of(api: KubeApi, task: str) -> list[Json]:
    """Return the SparkApplications of a task, the oldest first."""
    found = (await api.get(APPLICATIONS))["items"]
    return [each for each in found if each["metadata"]["name"].startswith(f"{task}-copy-")]


async def intended(api: KubeApi, task: str) -> str:
    """Return the name of the SparkApplication that a task has stored, "" when it has none."""
    return str((await api.get(f"{TASKS}/{task}"))["status"].get("sparkApplication", ""))


def spark_state(application: Json) -> str:
    """Return the state that the Spark operator has written."""
    state = (application.get("status") or {}).get("applicationState") or {}
    return str(state.get("state", ""))


def is_completed(application: Json) -> bool:
    """Return whether a driver has ended well."""
    return spark_state(application) == "COMPLETED"


async def kill_driver(cluster: TestCluster, api: KubeApi, application: str) -> None:
    """SIGKILL the driver's processes, by pid, and wait until that is known."""
    pod = f"{application}-driver"
    await until(api, PODS, pod, lambda p: p.get("status", {}).get("phase") == "Running")
    group = cluster.pod_pid(NAMESPACE, pod, DRIVER)
    assert group is not None
    os.killpg(group, signal.SIGKILL)
    await until(api, APPLICATIONS, application, lambda a: spark_state(a) == "FAILED")


def snapshots_of(zone: Json) -> dict[int, float]:
    """Return how many snapshots each data node reads out."""
    found = {}
    for node, address in addresses_of(zone).items():
        url = f"http://{address.rpartition(':')[0]}:{HEALTH_PORT}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            text = answer.read().decode()
        families = {f.name: f for f in text_string_to_metric_families(text)}
        found[node] = families["rezone_replica_snapshots"].samples[0].value
    return found


def streams_of(zone: Json) -> set[tuple[int, int]]:
    """Return which partitions stream to which data nodes, by index."""
    found = set()
    for address in addresses_of(zone).values():
        client = NodeClient(address)
        try:
            answer = client.call(StatisticsRequest(), NodeStatistics, timeout_seconds=10)
        finally:
            client.close()
        found |= {
            (stream.partition, connection.peer)
            for connection in answer.connections
            if connection.producing
            for stream in connection.streams
        }
    return found


async def snapshots_become(zone: Json, count: int) -> None:
    """Wait until so many snapshots are read in all."""
    async with asyncio.timeout(DRIVER_SECONDS):
        while sum((await asyncio.to_thread(snapshots_of, zone)).values()) != count:
            await asyncio.to_thread(wait_for_report, addresses_of(zone).values())


async def succeeds(api: KubeApi, name: str, replicas: tuple[int, ...], partition: int) -> Json:
    """Wait until a task has moved its partition and nothing is left of it."""
    task = await until(api, TASKS, name, has_ended, seconds=DRIVER_SECONDS)
    assert state_of(task) == T.SUCCEEDED, task["status"]
    settled = await check_settled(api, NAMESPACE, ZONE)
    assert tuple(stable_of(settled)[partition]) == replicas, (task, settled["status"])
    await snapshots_become(settled, 0)
    return settled


@pytest.mark.proves("OP-02", "OP-04", "ZR-13")
async def test_killed_around_a_spark_application_that_ends_well(
    cluster: TestCluster, api: KubeApi, lives: DyingOperator, heir: OperatorProcess
) -> None:
    """A copy would be made twice, never, or again when it was done while nobody looked."""
    zone = await zone_of(api)
    replicas = a_copy(zone, 0)
    with Writer(addresses_of(zone).values()) as writer:
        cluster.apply(task_manifest(NAMESPACE, "whole", ZONE, {0: replicas}))
        await lives.dies(INTEND, after=False)
        assert not await intended(api, "whole")
        await lives.dies(INTEND, after=True)
        name = await intended(api, "whole")
        await lives.dies(CREATE, after=False)
        assert not await applications_of(api, "whole")
        await lives.dies(CREATE, after=True)
        (made,) = await applications_of(api, "whole")
        await lives.dies("find SparkApplication RUNNING", after=True)
        await until(api, APPLICATIONS, name, is_completed, seconds=DRIVER_SECONDS)
        await lives.dies("find SparkApplication COMPLETED", after=True)
        await asyncio.to_thread(writer.wait_for_more)
        async with led_by(api, NAMESPACE, heir):
            settled = await succeeds(api, "whole", replicas, 0)
            await asyncio.to_thread(check_rows, settled)
    await asyncio.to_thread(writer.check)
    (only,) = await applications_of(api, "whole")
    assert only["metadata"]["uid"] == made["metadata"]["uid"]
    assert only["status"]["executionAttempts"] == 1


@pytest.mark.proves("OP-02", "OP-04", "B-05")
async def test_killed_around_a_spark_application_that_fails(
    cluster: TestCluster, api: KubeApi, lives: DyingOperator, heir: OperatorProcess
) -> None:
    """A driver that is lost without an operator would end the rebalance, or hold it for ever."""
    zone = await zone_of(api)
    replicas = a_copy(zone, 1)
    with Writer(addresses_of(zone).values()) as writer:
        cluster.apply(task_manifest(NAMESPACE, "again", ZONE, {1: replicas}))
        await lives.dies(CREATE, after=True)
        first = await intended(api, "again")
        await kill_driver(cluster, api, first)
        await lives.dies("find SparkApplication FAILED", after=True)
        await lives.dies(INTEND, after=False)
        assert await intended(api, "again") == first
        await lives.dies(INTEND, after=True)
        second = await intended(api, "again")
        await lives.dies(CREATE, after=False)
        async with led_by(api, NAMESPACE, heir):
            settled = await succeeds(api, "again", replicas, 1)
            await asyncio.to_thread(check_rows, settled)
    await asyncio.to_thread(writer.check)
    found = await applications_of(api, "again")
    assert [each["metadata"]["name"] for each in found] == [first, second]
    task = await api.get(f"{TASKS}/again")
    assert task["status"]["attempt"] == 2
    assert first in task["status"]["lastError"]["message"]


@pytest.mark.usefixtures("slow_copies")
@pytest.mark.proves("ZR-18", "ZR-20", "B-15")
async def test_killed_around_a_spark_application_that_is_cancelled(
    cluster: TestCluster, api: KubeApi, lives: DyingOperator, heir: OperatorProcess
) -> None:
    """A driver would copy for a rebalance that is no more, and hold a snapshot at its source."""
    zone = await zone_of(api)
    with Writer(addresses_of(zone).values()) as writer:
        cluster.apply(task_manifest(NAMESPACE, "undone", ZONE, {0: a_copy(zone, 0)}))
        await lives.dies(CREATE, after=True)
        driver = f"{await intended(api, 'undone')}-driver"
        await snapshots_become(zone, 1)
        await api.patch(f"{TASKS}/undone", {"spec": {"cancel": True}})
        await lives.die_in(T.CANCELLING, DELETE, T.CANCELLED)
        async with led_by(api, NAMESPACE, heir):
            await until(api, TASKS, "undone", has_ended)
            after = await check_settled(api, NAMESPACE, ZONE)
            await until(api, PODS, driver, lambda pod: not pod)
            await snapshots_become(after, 0)
            await asyncio.to_thread(check_rows, after)
    await asyncio.to_thread(writer.check)
    assert state_of(await api.get(f"{TASKS}/undone")) == T.CANCELLED
    assert stable_of(after) == stable_of(zone)
    assert not await applications_of(api, "undone")
    followers = {(p, node) for p, (_, node) in enumerate(stable_of(zone))}
    assert await asyncio.to_thread(streams_of, after) == followers
