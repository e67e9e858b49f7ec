"""Objects of a zone that the operator cannot read: they are told of, and all else goes on."""

from __future__ import annotations

import asyncio
import json

import pytest
from operated_cluster import (
    DEADLINE_SECONDS,
    TERMINAL_TASKS,
    TestCluster,
    addresses_of,
    fail_over,
    is_ready,
    make_zone,
    migration_manifest,
    path_of,
    remove_zone,
    routes_of,
    stable_of,
    state_of,
    task_manifest,
    until,
    until_zone,
)
from operator_process import OperatorProcess

from rezone.local.api import Json, KubeApi

pytestmark = [pytest.mark.apiserver, pytest.mark.slow, pytest.mark.timeout(300)]

NAMESPACE = "unreadable"
ZONE = "read"
NODES = ("worker-1", "worker-2", "worker-3", "worker-4")
EVENTS = f"/apis/events.k8s.io/v1/namespaces/{NAMESPACE}/events"
TASKS = path_of(NAMESPACE, "rebalancetasks")
MIGRATIONS = path_of(NAMESPACE, "regionmigrations")
NO_TIME = "2026-01-01T00:00:00+99:99"
"""The API server takes it for a time, and no program does."""


def break_status(cluster: TestCluster, kind: str, name: str, **status: object) -> None:
    """Write a status that no program can read, as somebody with too many rights."""
    patch = json.dumps({"status": status})
    words = (kind, name, f"--namespace={NAMESPACE}", "--subresource=status", "--type=merge")
    cluster.kubectl("patch", *words, f"--patch={patch}")


async def until_told(api: KubeApi, kind: str, name: str) -> str:
    """Wait for the event that says what cannot be read of an object."""

    def tells(event: Json) -> bool:
        about = event.get("regarding", {})
        return event.get("reason") == "Unreadable" and (about["kind"], about["name"]) == (
            kind,
            name,
        )

    async with asyncio.timeout(DEADLINE_SECONDS):
        async for event, item in api.follow(EVENTS):
            for each in item["items"] if event == "SYNC" else (item,):
                if tells(each):
                    return str(each["note"])
    raise AssertionError("a watch never ends")


@pytest.mark.proves("TR-03")
async def test_an_unreadable_task_and_migration_stop_nothing_of_their_zone(
    cluster: TestCluster, api: KubeApi, operator: OperatorProcess
) -> None:
    """With one of them no pass of the zone came to its end: no failover, no task, no copy."""
    zone = await make_zone(cluster, api, NAMESPACE, ZONE, NODES)
    held, moved = 3, 0
    suspended = task_manifest(NAMESPACE, "broken", ZONE, {held: tuple(stable_of(zone)[held])})
    suspended["spec"]["suspend"] = True
    cluster.apply(suspended)
    await until(api, TASKS, "broken", lambda found: bool(state_of(found)))
    break_status(cluster, "rbt", "broken", startedTime=NO_TIME)
    note = await until_told(api, "RebalanceTask", "broken")
    assert "status.startedTime" in note
    assert "leaves the object as it is" in note
    paused = migration_manifest(NAMESPACE, "lost", ZONE, held, min(addresses_of(zone)))
    paused["status"] = {"state": "OpenCandidate"}
    cluster.apply(paused)
    break_status(cluster, "rgm", "lost", startedTime=NO_TIME)
    assert "status.startedTime" in await until_told(api, "RegionMigration", "lost")

    await fail_over(cluster, api, NAMESPACE, ZONE)
    await until_zone(api, NAMESPACE, ZONE, is_ready)
    record = (await routes_of(api, NAMESPACE, ZONE))[moved]
    new = min(set(addresses_of(zone)) - set(record.replicas))
    kept = tuple(node for node in stable_of(zone)[moved] if node != record.replicas[-1])
    cluster.apply(task_manifest(NAMESPACE, "readable", ZONE, {moved: (*kept, new)}))
    await until(api, TASKS, "readable", lambda found: state_of(found) == "Succeeded")
    await operator.until_ready()
    # What is mended goes on by itself.
    break_status(cluster, "rbt", "broken", startedTime="2026-01-01T00:00:00Z")
    cluster.kubectl(
        *("patch", "rbt", "broken", f"--namespace={NAMESPACE}", "--type=merge"),
        '--patch={"spec":{"suspend":false}}',
    )
    await until(api, TASKS, "broken", lambda found: state_of(found) in TERMINAL_TASKS)
    await remove_zone(api, NAMESPACE, ZONE)


@pytest.mark.proves("TR-03")
async def test_an_unreadable_zone_keeps_no_other_waiting(
    cluster: TestCluster, api: KubeApi, operator: OperatorProcess
) -> None:
    """No copy of any zone began after a restart, for the list of all zones failed with it."""
    zone = await make_zone(cluster, api, NAMESPACE, ZONE, NODES)
    wrong = {**zone, "metadata": {"name": "wrong", "namespace": NAMESPACE}}
    cluster.apply({**wrong, "spec": {**zone["spec"], "paused": True}, "status": None})
    nodes = [{"id": 0, "podName": "wrong-0", "triggerTime": NO_TIME, "state": "Lost"}]
    break_status(cluster, "dz", "wrong", dataNodes=nodes)
    assert "triggerTime" in await until_told(api, "DistributionZone", "wrong")
    operator.restart()
    record = (await routes_of(api, NAMESPACE, ZONE))[0]
    new = min(set(addresses_of(zone)) - set(record.replicas))
    cluster.apply(task_manifest(NAMESPACE, "copies", ZONE, {0: (*record.replicas[:2], new)}))
    await until(api, TASKS, "copies", lambda found: state_of(found) == "Succeeded")
    await remove_zone(api, NAMESPACE, ZONE)
    cluster.kubectl("delete", "dz", "wrong", f"--namespace={NAMESPACE}")
