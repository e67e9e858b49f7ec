"""A zone with hot standbys on a real cluster: one of its data nodes is killed for good measure."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from operated_cluster import (
    TestCluster,
    Writer,
    addresses_of,
    check_settled,
    make_zone,
    routes_of,
    until,
)
from operator_process import OperatorProcess

from rezone.local.api import KubeApi
from rezone.wire.messages import LeaderAndIsr

pytestmark = [pytest.mark.apiserver, pytest.mark.slow, pytest.mark.timeout(240)]

NAMESPACE = "standing-by"
ZONE = "hot"
NODES = ("worker-1", "worker-2", "worker-3")
OPERATOR = {"REZONE_LEADER_LEASE_SECONDS": "0.1"}
"""It waits for a leader shorter than any process needs to start again."""


async def until_routes(
    api: KubeApi, wanted: Callable[[tuple[LeaderAndIsr, ...]], bool]
) -> tuple[LeaderAndIsr, ...]:
    """Look at the route table at each of its changes until it is as wanted."""
    path = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
    found: list[tuple[LeaderAndIsr, ...]] = []
    async with asyncio.timeout(60):
        while True:
            shard = next(
                item
                for item in (await api.get(path))["items"]
                if item["metadata"]["name"].startswith(f"{ZONE}-routes")
            )
            found.append(await routes_of(api, NAMESPACE, ZONE))
            if wanted(found[-1]):
                return found[-1]
            version = shard["metadata"]["resourceVersion"]
            name = shard["metadata"]["name"]
            await until(api, path, name, functools.partial(is_newer, version))


def is_newer(version: str, item: dict[str, Any]) -> bool:
    """Whether an object has another version than the one known."""
    return bool(item["metadata"]["resourceVersion"] != version)


def standing_by(records: tuple[LeaderAndIsr, ...]) -> bool:
    """Return whether each partition has its standby."""
    return all(len(record.iss) == 1 for record in records)


@pytest.mark.long
@pytest.mark.proves("B-06")
async def test_the_standbys_of_a_killed_node_lead(
    cluster: TestCluster, api: KubeApi, operator: OperatorProcess
) -> None:
    """The leaders of a dead node would go to cold replicas, or stay where they are not."""
    del operator
    zone = await make_zone(cluster, api, NAMESPACE, ZONE, NODES, hotStandbys=1)
    before = await until_routes(api, standing_by)
    victim = before[0].leader
    pod = next(n["podName"] for n in zone["status"]["dataNodes"] if n["id"] == victim)
    pid = cluster.pod_pid(NAMESPACE, pod)
    assert pid is not None
    with Writer(addresses_of(zone).values()) as writer:
        await asyncio.to_thread(writer.wait_for_more, 20)
        killed = time.monotonic()
        # As its machine is lost: the process of a killed one would be back before its followers,
        # which have a say in who leads, miss it.
        os.killpg(pid, signal.SIGSTOP)
        await asyncio.to_thread(writer.wait_for_more, 2)
        gap = time.monotonic() - killed
        led = [p for p, record in enumerate(before) if record.leader == victim]
        after = await until_routes(
            api, lambda rs: all(rs[p].leader_epoch > before[p].leader_epoch for p in led)
        )
        assert [after[p].leader for p in led] == [before[p].iss[0] for p in led]
        os.killpg(pid, signal.SIGKILL)
        await asyncio.to_thread(writer.wait_for_more, 5)
        await check_settled(api, NAMESPACE, ZONE)
        at_rest = await until_routes(api, standing_by)
        assert all(record.leader not in record.iss for record in at_rest)
    await asyncio.to_thread(writer.check)
    print(f"\nlost to the second write after it: {gap * 1000:.0f} ms")  # noqa: T201 - measured
