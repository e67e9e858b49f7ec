"""The operator's process is killed in each deed of a re-sharding, and the next one goes on.

As `test_controller_killed`: SIGKILL in the middle of a deed, one life after the other. Drivers are
those of `test_controller_killed_spark`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import quick_driver
from operated_cluster import (
    DEADLINE_SECONDS,
    TestCluster,
    Writer,
    abort_connections,
    addresses_of,
    check_settled,
    configs_of,
    data_nodes,
    make_zone,
    path_of,
    records_of,
    state_of,
    until,
    wait_for_report,
)
from operator_process import EVERY_POINT, DyingOperator, OperatorProcess, led_by
from resharding_case import GRACE, check_rows, has_ended, patch, task_of, write_rows

from rezone.local.api import Json, KubeApi
from rezone.resources.task import TaskState as T
from rezone.wire.layouts import Layout

pytestmark = [pytest.mark.apiserver, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(300)]

NAMESPACE = "killed-cut"
ZONE = "cut"
ZONES = path_of(NAMESPACE, "distributionzones")
TASKS = path_of(NAMESPACE, "rebalancetasks")
NODES = ("worker-1", "worker-2", "worker-3")

APPLICATIONS = f"/apis/sparkoperator.k8s.io/v1beta2/namespaces/{NAMESPACE}/sparkapplications"
SLOW_BYTES_PER_SECOND = 100
SMALL_CHUNKS = [{"name": "REZONE_NODE_RESHARD_CHUNK_BYTES", "value": "8192"}]
"""Data nodes wait after each chunk of rows, and a range has ten: so none is backfilled before the
operator's next life."""
DATA_NODES = data_nodes(
    NAMESPACE,
    ZONE,
    podTemplate={"spec": {"containers": [{"name": "data-node", "env": SMALL_CHUNKS}]}},
)
SECONDS = 200.0
ENVIRONMENT = {**GRACE, "REZONE_SPARK_TEMPLATE_FIELDS": "driver.env"}

CUTTING = (
    "create RebalanceTask",
    T.AWAITING_REPLICAS,
    "create layout",
    T.TRANSFERRING,
    "call DigestRequest",
    "authorize seal",
    "call Seal",
    "note seal",
    T.FINALIZING,
    T.STOPPING_REDUNDANT,
    "delete layout",
    "call StopReplica",
    T.SUCCEEDED,
)
INTEND, CREATE, DELETE = (f"{deed} SparkApplication" for deed in ("intend", "create", "delete"))
CANCELLING = (T.CANCELLING, "delete layout", "call StopReplica", T.CANCELLED)


@pytest.fixture(scope="module")
def standby(cluster: TestCluster, logs: Path) -> OperatorProcess:
    """Give the operator that goes on when the others are dead; it has made the module's zone."""
    cluster.kubectl("create", "namespace", NAMESPACE)
    operator = OperatorProcess(cluster, NAMESPACE, logs, POD_NAME=DyingOperator.POD, **ENVIRONMENT)

    async def make() -> None:
        async with KubeApi(cluster.kubeconfig) as api:
            layout: Json = {"partitions": 2, "dataNodes": DATA_NODES}
            made = await make_zone(cluster, api, NAMESPACE, ZONE, NODES, **layout)
            await asyncio.to_thread(write_rows, made)
        await abort_connections(set())

    with operator.running():
        asyncio.run(make())
    return operator


@pytest.fixture
def lives(cluster: TestCluster, standby: OperatorProcess, logs: Path) -> Iterator[DyingOperator]:
    """Give an operator to be killed."""
    del standby
    with DyingOperator(cluster, NAMESPACE, logs, **ENVIRONMENT) as operator:
        yield operator


@pytest.mark.skipif(not EVERY_POINT, reason="half a minute more: make chaos-operator")
@pytest.mark.proves("OP-02", "B-08", "ZR-20")
async def test_killed_in_each_deed_of_a_re_sharding_that_is_cancelled(
    api: KubeApi, lives: DyingOperator, standby: OperatorProcess
) -> None:
    """New partitions would stay for ever, or take the place of old ones without their rows."""
    zone = await api.get(f"{ZONES}/{ZONE}")
    before = list(await records_of(api, NAMESPACE, ZONE))
    await patch(api, ZONES, ZONE, rebalance={"paused": True})
    with Writer(addresses_of(zone).values()) as writer:
        await patch(api, ZONES, ZONE, partitions=3)
        await lives.die_in("create RebalanceTask", T.APPROVED)
        name = await task_of(api, NAMESPACE, ZONE, 3)
        await patch(api, ZONES, ZONE, rebalance={"paused": False})
        await lives.die_in("create layout", T.TRANSFERRING)
        await patch(api, TASKS, name, cancel=True)
        await lives.die_in(*CANCELLING)
        async with led_by(api, NAMESPACE, standby):
            ended = await until(api, TASKS, name, has_ended)
            assert state_of(ended) == T.CANCELLED, ended["status"]
            after = await check_settled(api, NAMESPACE, ZONE)
            await asyncio.to_thread(writer.wait_for_more)
            await asyncio.to_thread(check_rows, after)
    await asyncio.to_thread(writer.check)
    assert list(await records_of(api, NAMESPACE, ZONE)) == before


@pytest.mark.proves("OP-02", "B-08", "ZR-02")
async def test_killed_in_each_deed_of_a_re_sharding(
    api: KubeApi, lives: DyingOperator, standby: OperatorProcess
) -> None:
    """A killed operator would leave ranges that nobody serves, or that two partitions do."""
    zone = await api.get(f"{ZONES}/{ZONE}")
    used = zone["status"]["assignments"].get("lastLayoutVersion", 0)
    with Writer(addresses_of(zone).values()) as writer:
        await patch(api, ZONES, ZONE, partitions=5)
        await lives.die_in(*CUTTING)
        async with led_by(api, NAMESPACE, standby):
            name = f"{ZONE}-{await revision_of(api)}"
            ended = await until(api, TASKS, name, has_ended)
            assert state_of(ended) == T.SUCCEEDED, ended["status"]
            after = await check_settled(api, NAMESPACE, ZONE)
            await asyncio.to_thread(writer.wait_for_more)
            await asyncio.to_thread(check_rows, after)
    await asyncio.to_thread(writer.check)
    assert list(await records_of(api, NAMESPACE, ZONE)) == list(Layout(used + 1, 5).ids)


@pytest.fixture
async def by_spark(api: KubeApi, standby: OperatorProcess, logs: Path) -> AsyncIterator[None]:
    """Have all re-shardings backfilled by Spark, slowly; in the end none, and fast."""
    driver: Json = {}
    if not EVERY_POINT:
        path = f"{quick_driver.install(logs / 'bin')}:{os.environ['PATH']}"
        driver = {"driver": {"env": [{"name": "PATH", "value": path}]}}
    bulk = {"sparkThresholdBytes": 0, "sparkTemplate": driver}
    slow = {"maxBytesPerSecond": SLOW_BYTES_PER_SECOND}
    with standby.running():
        await standby.until_ready()
        await patch(api, ZONES, ZONE, transfer=bulk, rebalance=slow)
        # As soon as data nodes know of new partitions they backfill them, at the rate they know.
        await until_rate(api, SLOW_BYTES_PER_SECOND)
    yield
    none = {"sparkThresholdBytes": None, "sparkTemplate": None}
    await patch(api, ZONES, ZONE, transfer=none, rebalance={"maxBytesPerSecond": 0})


async def until_rate(api: KubeApi, bytes_per_second: int) -> None:
    """Wait until an operator has told all data nodes the zone's rate of copies."""
    addresses = addresses_of(await api.get(f"{ZONES}/{ZONE}"))
    async with asyncio.timeout(DEADLINE_SECONDS):
        while {
            each.copy_bytes_per_second_max
            for each in (await asyncio.to_thread(configs_of, addresses)).values()
        } != {bytes_per_second}:
            await asyncio.to_thread(wait_for_report, addresses.values())


async def applications_of(api: KubeApi, task: str) -> list[Json]:
    """Return the SparkApplications of a task."""
    found = (await api.get(APPLICATIONS))["items"]
    return [each for each in found if each["metadata"]["name"].startswith(f"{task}-backfill-")]


async def intended(api: KubeApi, task: str) -> str:
    """Return the name of the SparkApplication that a task has stored, "" when it has none."""
    return str((await api.get(f"{TASKS}/{task}"))["status"].get("sparkApplication", ""))


@pytest.mark.spark
@pytest.mark.usefixtures("by_spark")
@pytest.mark.proves("OP-02", "SP-01", "B-08")
async def test_killed_around_the_application_of_a_re_sharding(
    api: KubeApi, lives: DyingOperator, standby: OperatorProcess
) -> None:
    """An application would be made twice, or never, or without a name that somebody knows."""
    zone = await api.get(f"{ZONES}/{ZONE}")
    with Writer(addresses_of(zone).values()) as writer:
        await patch(api, ZONES, ZONE, partitions=4)
        await lives.dies(INTEND, after=False)
        name = await task_of(api, NAMESPACE, ZONE, 4)
        assert not await intended(api, name)
        await lives.dies(INTEND, after=True)
        await lives.dies(CREATE, after=False)
        assert not await applications_of(api, name)
        await lives.dies(CREATE, after=True)
        (made,) = await applications_of(api, name)
        assert made["metadata"]["name"] == await intended(api, name)
        await patch(api, ZONES, ZONE, rebalance={"maxBytesPerSecond": 0})
        async with led_by(api, NAMESPACE, standby):
            ended = await until(api, TASKS, name, has_ended, seconds=SECONDS)
            assert state_of(ended) == T.SUCCEEDED, ended["status"]
            after = await check_settled(api, NAMESPACE, ZONE)
            await asyncio.to_thread(writer.wait_for_more)
            await asyncio.to_thread(check_rows, after)
    await asyncio.to_thread(writer.check)
    left = await applications_of(api, name)
    assert [each["metadata"]["uid"] for each in left] in ([made["metadata"]["uid"]], [])


@pytest.mark.spark
@pytest.mark.usefixtures("by_spark")
@pytest.mark.proves("OP-02", "SP-01", "ZR-20")
async def test_killed_around_the_application_of_a_re_sharding_that_is_cancelled(
    api: KubeApi, lives: DyingOperator, standby: OperatorProcess
) -> None:
    """A driver would bring rows to partitions that are no more."""
    zone = await api.get(f"{ZONES}/{ZONE}")
    before = list(await records_of(api, NAMESPACE, ZONE))
    with Writer(addresses_of(zone).values()) as writer:
        await patch(api, ZONES, ZONE, partitions=6)
        await lives.dies(CREATE, after=True)
        name = await task_of(api, NAMESPACE, ZONE, 6)
        await patch(api, TASKS, name, cancel=True)
        await lives.die_in(T.CANCELLING, DELETE, T.CANCELLED)
        async with led_by(api, NAMESPACE, standby):
            ended = await until(api, TASKS, name, has_ended)
            assert state_of(ended) == T.CANCELLED, ended["status"]
            after = await check_settled(api, NAMESPACE, ZONE)
            await asyncio.to_thread(check_rows, after)
    await asyncio.to_thread(writer.check)
    assert not await applications_of(api, name)
    assert list(await records_of(api, NAMESPACE, ZONE)) == before


async def revision_of(api: KubeApi) -> int:
    """Return the revision of the zone's stable assignment."""
    keys = (await api.get(f"{ZONES}/{ZONE}"))["status"]["assignments"]
    return int(keys["stable"]["revision"])
