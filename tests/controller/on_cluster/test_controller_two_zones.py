"""Two zones on the same Kubernetes nodes, on a real cluster: their copies share the limit."""

from __future__ import annotations

import asyncio

import pytest
from operated_cluster import (
    DEADLINE_SECONDS,
    TestCluster,
    Writer,
    addresses_of,
    check_settled,
    make_zone,
    path_of,
    remove_zone,
    reports_of,
    stable_of,
    state_of,
    task_manifest,
    until,
    wait_for_report,
)
from operator_process import OperatorProcess

from rezone.local.agent.nodes import add_node
from rezone.local.api import Json, KubeApi

pytestmark = [pytest.mark.apiserver, pytest.mark.slow, pytest.mark.timeout(240)]

NAMESPACE = "shared"
ZONES = ("shared-a", "shared-b")
POOL = ("pool-61", "pool-62")
ONE_REPLICA = {"partitions": 1, "replicas": 1, "minInSyncReplicas": 1}
OPERATOR = {"REZONE_MAX_MIGRATIONS_PER_KUBERNETES_NODE": "1"}
"""A machine takes part in one copy at a time."""


async def set_rate(api: KubeApi, zone: str, bytes_per_second: int) -> None:
    """Change how fast a zone's copies may go."""
    path = f"{path_of(NAMESPACE, 'distributionzones')}/{zone}"
    await api.patch(path, {"spec": {"rebalance": {"maxBytesPerSecond": bytes_per_second}}})


def move(zone: Json, name: str) -> Json:
    """Return the task that moves the zone's only replica to the other data node."""
    ((here,),) = stable_of(zone)
    (there,) = (node for node in addresses_of(zone) if node != here)
    return task_manifest(NAMESPACE, name, zone["metadata"]["name"], {0: (there,)})


def waiting_of(task: Json) -> str:
    """Return what a task waits for."""
    return str((task.get("status") or {}).get("waitingFor", ""))


def copying(zone: Json) -> int:
    """Return how many copies the zone's data nodes say are under way."""
    reports = reports_of(addresses_of(zone)).values()
    copies = (report.copy for replicas in reports for report in replicas.values())
    return sum(copy is not None and not copy.done and not copy.error for copy in copies)


async def until_copying(zone: Json) -> None:
    """Wait until a copy of the zone is under way."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not copying(zone):
            await asyncio.to_thread(wait_for_report, addresses_of(zone).values())


@pytest.mark.long
@pytest.mark.proves("B-03", "B-14")
async def test_copies_of_two_zones_share_their_machines(
    cluster: TestCluster, api: KubeApi, operator: OperatorProcess
) -> None:
    """The second zone's copy waits, names the first one's task, and goes on after it.

    A machine would take part in as many copies as zones move at once, however busy it is.
    """
    del operator
    for name in POOL:
        await add_node(api, name)
    first, second = [
        await make_zone(cluster, api, NAMESPACE, zone, POOL, **ONE_REPLICA) for zone in ZONES
    ]
    for zone in (first, second):
        with Writer(addresses_of(zone).values()) as writer:
            await asyncio.to_thread(writer.wait_for_more, 40)
        await asyncio.to_thread(writer.check)
    tasks = path_of(NAMESPACE, "rebalancetasks")
    await set_rate(api, ZONES[0], 1)
    cluster.apply(move(first, "move-a"))
    await until(api, tasks, "move-a", lambda t: "Copying" in waiting_of(t))
    await until_copying(first)
    cluster.apply(move(second, "move-b"))

    def is_refused(task: Json) -> bool:
        why = waiting_of(task)
        return why.startswith("Limit") and "move-a" in why and "pool-6" in why

    await until(api, tasks, "move-b", is_refused)
    assert (copying(first), copying(second)) == (1, 0)
    await set_rate(api, ZONES[0], 0)
    for name in ("move-a", "move-b"):
        await until(api, tasks, name, lambda task: state_of(task) == "Succeeded")
    for name in ZONES:
        await check_settled(api, NAMESPACE, name)
        await remove_zone(api, NAMESPACE, name)
