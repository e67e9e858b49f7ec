"""A zone's partitions are changed under a writer, with a real API server and real data nodes."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import signal
from collections.abc import AsyncIterator

import pytest
from operated_cluster import (
    TestCluster,
    Writer,
    addresses_of,
    check_settled,
    path_of,
    records_of,
    state_of,
    until,
    until_zone,
)
from operator_process import OperatorProcess
from resharding_case import GRACE, check_rows, has_ended, is_cut, patch, task_of, zone_with_rows

from rezone.local.api import Json, KubeApi
from rezone.wire.layouts import Layout

pytestmark = [pytest.mark.apiserver, pytest.mark.slow, pytest.mark.timeout(300)]

NAMESPACE = "resharded"
NODES = ("worker-1", "worker-2", "worker-3")
ZONE = "cut"
ZONES = path_of(NAMESPACE, "distributionzones")
TASKS = path_of(NAMESPACE, "rebalancetasks")
OPERATOR = GRACE


@pytest.fixture
async def zone(
    cluster: TestCluster, api: KubeApi, operator: OperatorProcess
) -> AsyncIterator[Json]:
    """Give a zone of three partitions with rows that stay as they are."""
    del operator
    async with zone_with_rows(cluster, api, NAMESPACE, ZONE, NODES) as made:
        yield made


@pytest.mark.proves("B-08", "ZR-02")
async def test_partitions_are_changed_under_a_writer(
    api: KubeApi, operator: OperatorProcess, zone: Json
) -> None:
    """A row would be lost, or there twice, or a range be written by nobody for seconds.

    More partitions, then fewer, with the operator killed in the middle of the second time.
    """
    with Writer(addresses_of(zone).values()) as writer:
        writer.wait_for_more()
        for partitions, killed in ((8, False), (2, True)):
            writer.longest_seconds = 0.0
            await patch(api, ZONES, ZONE, partitions=partitions)
            name = await task_of(api, NAMESPACE, ZONE, partitions)
            if killed:
                await until(
                    api, TASKS, name, lambda t: state_of(t) in {"Transferring", "Switching"}
                )
                operator.restart()
            await until_zone(api, NAMESPACE, ZONE, functools.partial(is_cut, partitions=partitions))
            await asyncio.to_thread(writer.wait_for_more)
            gap = writer.longest_seconds
            ended = await until(api, TASKS, name, has_ended)
            assert state_of(ended) == "Succeeded", ended["status"]
            print(f"to {partitions} partitions: the longest write took {gap:.3f} s")  # noqa: T201
            await asyncio.to_thread(check_rows, await check_settled(api, NAMESPACE, ZONE))
    await asyncio.to_thread(writer.check)
    records = await records_of(api, NAMESPACE, ZONE)
    assert list(records) == list(Layout(2, 2).ids), "something of an old layout is left"


@pytest.mark.long
@pytest.mark.proves("ZR-20", "B-15")
async def test_a_cancel_ends_on_one_side_or_the_other(api: KubeApi, zone: Json) -> None:
    """Half of a zone would be new, and what was cancelled would begin again by itself."""
    with Writer(addresses_of(zone).values()) as writer:
        writer.wait_for_more()
        await patch(api, ZONES, ZONE, partitions=5)
        name = await task_of(api, NAMESPACE, ZONE, 5)
        await until(api, TASKS, name, lambda t: state_of(t) not in {"", "Planned", "Approved"})
        await patch(api, TASKS, name, cancel=True)
        ended = await until(api, TASKS, name, has_ended)
        after = await check_settled(api, NAMESPACE, ZONE)
        await asyncio.to_thread(writer.wait_for_more)
        await asyncio.to_thread(check_rows, after)
    await asyncio.to_thread(writer.check)
    cancelled = state_of(ended) == "Cancelled"
    assert cancelled or "came too late" in json.dumps(ended["status"]["history"])
    layout = Layout(0, 3) if cancelled else Layout(1, 5)
    assert list(await records_of(api, NAMESPACE, ZONE)) == list(layout.ids)
    keys = after["status"]["assignments"]
    assert keys.get("cancelledPartitions", 0) == (5 if cancelled else 0)


@pytest.mark.long
@pytest.mark.proves("B-08", "B-06")
async def test_a_data_node_is_killed_while_its_partitions_are_cut(
    cluster: TestCluster, api: KubeApi, zone: Json
) -> None:
    """What a leader of either side had promised would go with it."""
    victim = zone["status"]["dataNodes"][0]["podName"]
    with Writer(addresses_of(zone).values()) as writer:
        writer.wait_for_more()
        await patch(api, ZONES, ZONE, partitions=7)
        name = await task_of(api, NAMESPACE, ZONE, 7)
        await until(api, TASKS, name, lambda t: state_of(t) in {"Transferring", "Switching"})
        pid = cluster.pod_pid(NAMESPACE, victim)
        assert pid is not None
        os.killpg(pid, signal.SIGKILL)
        ended = await until(api, TASKS, name, has_ended)
        assert state_of(ended) == "Succeeded", ended["status"]
        after = await check_settled(api, NAMESPACE, ZONE)
        await asyncio.to_thread(writer.wait_for_more)
        await asyncio.to_thread(check_rows, after)
    await asyncio.to_thread(writer.check)
    assert list(await records_of(api, NAMESPACE, ZONE)) == list(Layout(1, 7).ids)
