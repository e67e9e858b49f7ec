"""The operator's process is killed around the SparkApplications of a rebalance.

As `test_controller_killed`: SIGKILL before and after an application is intended, made and deleted,
and when it is found running, ended or failed and nothing is noted yet. What comes to pass while no
operator lives is awaited by the test, so that the next one finds it. Drivers are real Spark's with
`make chaos-operator`; else they are quick ones (`quick_driver`), for this is about the operator.
"""

from __future__ import annotations

import asyncio
import os
import signal
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import quick_driver
from operated_cluster import (
    TestCluster,
    Writer,
    abort_connections,
    addresses_of,
    check_settled,
    data_nodes,
    make_zone,
    migration_manifest,
    path_of,
    records_of,
    stable_of,
    state_of,
    task_manifest,
    until,
    wait_for_report,
)
from operator_process import EVERY_POINT, DyingOperator, OperatorProcess, led_by
from prometheus_client.parser import text_string_to_metric_families
from resharding_case import check_rows, has_ended, patch, write_rows

from rezone.kube.api.names import NODE_ID_LABEL
from rezone.local.api import Json, KubeApi
from rezone.resources.migration import TERMINAL_MIGRATION_STATES, MigrationState
from rezone.resources.task import TaskState as T
from rezone.wire.messages import NodeReport, NodeStatistics, ReportRequest, StatisticsRequest
from rezone.wire.transport.flight import NodeClient

pytestmark = [
    pytest.mark.apiserver,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.timeout(600),
]

NAMESPACE = "killed-spark"
ZONE = "bulk"
NODES = ("worker-1", "worker-2", "worker-3")
ZONES = path_of(NAMESPACE, "distributionzones")
TASKS = path_of(NAMESPACE, "rebalancetasks")
MIGRATIONS = path_of(NAMESPACE, "regionmigrations")
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

DRIVERS = {"REZONE_SPARK_TEMPLATE_FIELDS": "driver.env"}


@pytest.fixture(scope="module")
def standby(cluster: TestCluster, logs: Path) -> OperatorProcess:
    """Give the operator that goes on when the others are dead; it has made the module's zone."""
    cluster.kubectl("create", "namespace", NAMESPACE)
    operator = OperatorProcess(cluster, NAMESPACE, logs, POD_NAME=DyingOperator.POD, **DRIVERS)
    layout: Json = {
        "partitions": 3,
        "replicas": 2,
        "minInSyncReplicas": 1,
        # A node that a test leaves without any partition does not call for a rebalance of its own.
        "dataNodes": data_nodes(
            NAMESPACE, ZONE, autoAdjust={"scaleUpSeconds": 86_400, "scaleDownSeconds": 86_400}
        ),
    }

    async def make() -> None:
        async with KubeApi(cluster.kubeconfig) as api:
            driver: Json = {}
            if not EVERY_POINT:
                path = f"{quick_driver.install(logs / 'bin')}:{os.environ['PATH']}"
                driver = {"driver": {"env": [{"name": "PATH", "value": path}]}}
            bulk: Json = {"transfer": {"sparkThresholdBytes": 0, "sparkTemplate": driver}}
            made = await make_zone(cluster, api, NAMESPACE, ZONE, NODES, **layout, **bulk)
            await asyncio.to_thread(write_rows, made, VALUE_BYTES)
        await abort_connections(set())

    with operator.running():
        asyncio.run(make())
    return operator


@pytest.fixture
def lives(cluster: TestCluster, standby: OperatorProcess, logs: Path) -> Iterator[DyingOperator]:
    """Give an operator to be killed."""
    del standby
    with DyingOperator(cluster, NAMESPACE, logs, **DRIVERS) as operator:
        yield operator


@pytest.fixture
async def slow_copies(api: KubeApi, standby: OperatorProcess) -> AsyncIterator[None]:
    """Let copies take long; in the end they are fast again."""
    del standby
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


def has_moved(migration: Json) -> bool:
    """Return whether a migration has come to its end."""
    return state_of(migration) in TERMINAL_MIGRATION_STATES


def spark_state(application: Json) -> str:
    """Return the state that the Spark operator has written."""
    state = (application.get("status") or {}).get("applicationState") or {}
    return str(state.get("state", ""))


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
        found[node] = families["rezone_data_node_snapshots"].samples[0].value
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


def is_copied(zone: Json, partition: int) -> bool:
    """Return whether a data node has begun to receive a partition."""
    for address in addresses_of(zone).values():
        client = NodeClient(address)
        try:
            report = client.call(ReportRequest(), NodeReport, timeout_seconds=10)
        finally:
            client.close()
        if any(r.partition == partition and r.copy is not None for r in report.replicas):
            return True
    return False


async def copy_begins(zone: Json, partition: int) -> None:
    """Wait until a partition is being copied.

    Its snapshot tells less: what is under way to a slow reader may be all of it.
    """
    async with asyncio.timeout(DRIVER_SECONDS):
        while not await asyncio.to_thread(is_copied, zone, partition):
            await asyncio.to_thread(wait_for_report, addresses_of(zone).values())


def repairs_by_spark(zone: Json) -> bool:
    """Return whether the zone has an application of its own at work, as its status says."""
    copies = (zone.get("status") or {}).get("repairCopies") or {}
    return bool(copies.get("application"))


def repair_progress(zone: Json) -> Json:
    """Return how far the zone's own copies are, as its status says; empty without any."""
    return (zone.get("status") or {}).get("repairProgress") or {}


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
    cluster: TestCluster, api: KubeApi, lives: DyingOperator, standby: OperatorProcess
) -> None:
    """A copy would be made twice, never, or again when it was done while nobody looked."""
    zone = await zone_of(api)
    replicas = a_copy(zone, 0)
    with Writer(addresses_of(zone).values()) as writer:
        cluster.apply(task_manifest(NAMESPACE, "whole", ZONE, {0: replicas}))
        await lives.dies(INTEND, after=False)
        assert not await intended(api, "whole")
        await lives.dies(INTEND, after=True)
        await lives.dies(CREATE, after=False)
        assert not await applications_of(api, "whole")
        await lives.dies(CREATE, after=True)
        (made,) = await applications_of(api, "whole")
        await lives.dies("find SparkApplication RUNNING", after=True)
        # It admits the copy, which would wait without an operator. What is copied is known from the
        # data nodes, often before a driver has ended.
        await lives.dies(T.FINALIZING, after=False, seconds=DRIVER_SECONDS)
        name = made["metadata"]["name"]
        await until(api, APPLICATIONS, name, lambda a: spark_state(a) == "COMPLETED")
        await asyncio.to_thread(writer.wait_for_more)
        async with led_by(api, NAMESPACE, standby):
            settled = await succeeds(api, "whole", replicas, 0)
            await asyncio.to_thread(check_rows, settled)
    await asyncio.to_thread(writer.check)
    (only,) = await applications_of(api, "whole")
    assert only["metadata"]["uid"] == made["metadata"]["uid"]
    assert only["status"]["executionAttempts"] == 1


@pytest.mark.proves("OP-02", "OP-04", "B-05")
async def test_killed_around_a_spark_application_that_fails(
    cluster: TestCluster, api: KubeApi, lives: DyingOperator, standby: OperatorProcess
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
        async with led_by(api, NAMESPACE, standby):
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
    cluster: TestCluster, api: KubeApi, lives: DyingOperator, standby: OperatorProcess
) -> None:
    """A driver would copy for a rebalance that is no more, and hold a snapshot at its source."""
    zone = await zone_of(api)
    with Writer(addresses_of(zone).values()) as writer:
        cluster.apply(task_manifest(NAMESPACE, "undone", ZONE, {0: a_copy(zone, 0)}))
        await lives.dies(CREATE, after=True)
        driver = f"{await intended(api, 'undone')}-driver"
        async with led_by(api, NAMESPACE, standby):
            await copy_begins(zone, 0)
        await api.patch(f"{TASKS}/undone", {"spec": {"cancel": True}})
        await lives.die_in(T.CANCELLING, DELETE, T.CANCELLED)
        async with led_by(api, NAMESPACE, standby):
            await until(api, TASKS, "undone", has_ended)
            after = await check_settled(api, NAMESPACE, ZONE)
            await until(api, PODS, driver, lambda pod: not pod)
            await snapshots_become(after, 0)
            await asyncio.to_thread(check_rows, after)
    await asyncio.to_thread(writer.check)
    assert state_of(await api.get(f"{TASKS}/undone")) == T.CANCELLED
    assert stable_of(after) == stable_of(zone)
    assert not await applications_of(api, "undone")
    # By the records: another may lead meanwhile than the assignment has first.
    records = (await records_of(api, NAMESPACE, ZONE)).items()
    followers = {(p, n) for p, r in records for n in r.replicas if n != r.leader}
    kept = after["status"]["assignments"].get("retained", ())
    followers |= {(each["partition"], each["node"]) for each in kept}
    assert await asyncio.to_thread(streams_of, after) == followers


@pytest.mark.usefixtures("lives")
@pytest.mark.proves("OP-04", "B-06", "SP-10")
async def test_migrations_and_lost_replicas_are_copied_by_spark(
    cluster: TestCluster, api: KubeApi, standby: OperatorProcess
) -> None:
    """A person's migration and the zone itself own applications, which copy what they need.

    Only a rebalance's large copies would go by Spark, and tell how far they are.
    """
    async with led_by(api, NAMESPACE, standby):
        zone = await zone_of(api)
        leader, follower = stable_of(zone)[2]
        nodes = {node["id"] for node in zone["status"]["dataNodes"]}
        (other,) = nodes - {leader, follower}
        pods = (await api.get(PODS))["items"]
        (lost,) = [p for p in pods if p["metadata"]["labels"].get(NODE_ID_LABEL) == str(other)]
        await api.delete(f"{PODS}/{lost['metadata']['name']}")
        # When all is copied the application is deleted, or has ended: whichever comes first.
        told = await until(
            api,
            ZONES,
            ZONE,
            lambda z: repairs_by_spark(z) and repair_progress(z),
            seconds=DRIVER_SECONDS,
        )
        assert repair_progress(told)["dataNodes"] == [other]
        assert repair_progress(told)["copiesTotal"] > 0
        await until(api, ZONES, ZONE, lambda z: not repairs_by_spark(z), seconds=DRIVER_SECONDS)
        await until(api, ZONES, ZONE, lambda z: not repair_progress(z), seconds=DRIVER_SECONDS)
        await check_settled(api, NAMESPACE, ZONE)

        cluster.apply(migration_manifest(NAMESPACE, "moved", ZONE, 2, other))
        moved = await until(api, MIGRATIONS, "moved", has_moved, seconds=DRIVER_SECONDS)
        assert state_of(moved) == MigrationState.SUCCEEDED, moved["status"]
        copied = moved["status"]["copyProgress"]
        assert copied["rowsDone"] == copied["rowsTotal"]
        name = moved["status"]["copies"]["application"]
        made = await api.get(f"{APPLICATIONS}/{name}")
        (owner,) = made["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"]) == ("RegionMigration", "moved")
        after = await check_settled(api, NAMESPACE, ZONE)
        await asyncio.to_thread(check_rows, after)
