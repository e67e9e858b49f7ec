"""The operator's process is killed in each deed of a re-sharding, and the next one goes on.

As `test_controller_killed`: SIGKILL in the middle of a deed, one life after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
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
    records_of,
    state_of,
    until,
)
from operator_process import EVERY_POINT, DyingOperator, OperatorProcess, led_by
from resharding_case import GRACE, check_rows, has_ended, patch, task_of, write_rows

from rezone.local.api import KubeApi
from rezone.resources.task import TaskState as T
from rezone.wire.layouts import Layout

pytestmark = [pytest.mark.apiserver, pytest.mark.slow, pytest.mark.timeout(300)]

NAMESPACE = "killed-cut"
ZONE = "cut"
ZONES = path_of(NAMESPACE, "distributionzones")
TASKS = path_of(NAMESPACE, "rebalancetasks")
NODES = ("worker-1", "worker-2", "worker-3")

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
CANCELLING = (T.CANCELLING, "delete layout", "call StopReplica", T.CANCELLED)


@pytest.fixture(scope="module")
def standby(cluster: TestCluster, logs: Path) -> OperatorProcess:
    """Give the operator that goes on when the others are dead; it has made the module's zone."""
    cluster.kubectl("create", "namespace", NAMESPACE)
    operator = OperatorProcess(cluster, NAMESPACE, logs, POD_NAME=DyingOperator.POD, **GRACE)

    async def make() -> None:
        async with KubeApi(cluster.kubeconfig) as api:
            made = await make_zone(cluster, api, NAMESPACE, ZONE, NODES, partitions=2)
            await asyncio.to_thread(write_rows, made)
        await abort_connections(set())

    with operator.running():
        asyncio.run(make())
    return operator


@pytest.fixture
def lives(cluster: TestCluster, standby: OperatorProcess, logs: Path) -> Iterator[DyingOperator]:
    """Give an operator to be killed."""
    del standby
    with DyingOperator(cluster, NAMESPACE, logs, **GRACE) as operator:
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


async def revision_of(api: KubeApi) -> int:
    """Return the revision of the zone's stable assignment."""
    keys = (await api.get(f"{ZONES}/{ZONE}"))["status"]["assignments"]
    return int(keys["stable"]["revision"])
