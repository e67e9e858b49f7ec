"""A name that a task needs is taken: the task says so, and goes on once it is free."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from operated_cluster import (
    TERMINAL_TASKS,
    TestCluster,
    addresses_of,
    condition,
    make_zone,
    migration_manifest,
    path_of,
    remove_zone,
    stable_of,
    state_of,
    task_manifest,
    until,
)

from rezone.local.api import Json, KubeApi
from rezone.resources.conditions import Reason
from rezone.resources.task import TaskState

pytestmark = [pytest.mark.apiserver, pytest.mark.slow, pytest.mark.timeout(240)]

NAMESPACE = "taken-names"
ZONE = "named"
NODES = ("worker-1", "worker-2", "worker-3")
TASKS = path_of(NAMESPACE, "rebalancetasks")
MIGRATIONS = path_of(NAMESPACE, "regionmigrations")
APPLICATIONS = f"/apis/sparkoperator.k8s.io/v1beta2/namespaces/{NAMESPACE}/sparkapplications"
EVENTS = f"/apis/events.k8s.io/v1/namespaces/{NAMESPACE}/events"
APPLICATION = "moved-copy-1"
LED_ZONE = "led"
MIGRATION = "led-p0"
FOREIGN: Json = {
    "apiVersion": "sparkoperator.k8s.io/v1beta2",
    "kind": "SparkApplication",
    "metadata": {"name": APPLICATION, "namespace": NAMESPACE},
    # Suspended: no driver has to run for what this is about.
    "spec": {
        "type": "Python",
        "suspend": True,
        "sparkVersion": "4.0.0",
        "mainApplicationFile": "local:///somebody/elses.py",
        "driver": {},
        "executor": {},
    },
}


def stalled_reason(task: Json) -> str:
    """Return why a task cannot go on, "" while it can."""
    return str(condition(task, "Stalled").get("reason", ""))


async def told_of(api: KubeApi, uid: str, reason: str) -> Json:
    """Wait for an event about an object and return it."""
    async with asyncio.timeout(30):
        async with contextlib.aclosing(api.follow(EVENTS)) as events:  # type: ignore[type-var]
            async for event, item in events:
                for each in item["items"] if event == "SYNC" else [item]:
                    if (each["regarding"].get("uid"), each["reason"]) == (uid, reason):
                        return each
    raise AssertionError("a watch never ends")


async def told_taken(api: KubeApi, name: str, whose: str) -> Json:
    """Wait until a task says by condition and event that its name is another's; return it."""
    task = await until(api, TASKS, name, lambda t: stalled_reason(t) == Reason.NAME_CONFLICT)
    message = condition(task, "Stalled")["message"]
    assert f"{NAMESPACE}/{whose}" in message
    assert "delete or rename it" in message
    event = await told_of(api, task["metadata"]["uid"], Reason.NAME_CONFLICT)
    assert event["type"] == "Warning"
    return task


async def free_for(api: KubeApi, path: str, name: str, theirs: Json, task: Json) -> None:
    """Delete somebody's object, which nobody has touched, and wait for the task's own."""
    untouched = await api.get(f"{path}/{name}")
    assert untouched["metadata"]["uid"] == theirs["metadata"]["uid"]
    assert untouched["spec"] == theirs["spec"]
    await api.delete(f"{path}/{name}")
    owner = {"name": task["metadata"]["name"], "uid": task["metadata"]["uid"]}

    def is_the_tasks(found: Json) -> bool:
        references = found.get("metadata", {}).get("ownerReferences", ())
        return any(owner.items() <= each.items() for each in references)

    await until(api, path, name, is_the_tasks)


@pytest.mark.usefixtures("operator")
@pytest.mark.proves("OP-04", "B-14")
async def test_a_task_says_whose_object_has_its_name_and_goes_on_without_it(
    cluster: TestCluster, api: KubeApi
) -> None:
    """A rebalance would wait for ever, with the reason in the operator's log alone."""
    bulk = {"sparkThresholdBytes": 0, "sparkTemplate": {"suspend": True}}
    layout: Json = {"partitions": 1, "replicas": 1, "minInSyncReplicas": 1, "transfer": bulk}
    zone = await make_zone(cluster, api, NAMESPACE, ZONE, NODES, **layout)
    ((old,),) = stable_of(zone)
    new = min(set(addresses_of(zone)) - {old})
    cluster.apply(FOREIGN)
    theirs = await api.get(f"{APPLICATIONS}/{APPLICATION}")

    cluster.apply(task_manifest(NAMESPACE, "moved", ZONE, {0: (new,)}))
    task = await told_taken(api, "moved", APPLICATION)
    await free_for(api, APPLICATIONS, APPLICATION, theirs, task)
    task = await until(api, TASKS, "moved", lambda t: not stalled_reason(t))
    assert Reason.NAME_CONFLICT not in task["status"].get("waitingFor", ""), task["status"]

    await api.patch(f"{TASKS}/moved", {"spec": {"cancel": True}})
    task = await until(api, TASKS, "moved", lambda t: state_of(t) in TERMINAL_TASKS)
    assert state_of(task) == TaskState.CANCELLED
    await remove_zone(api, NAMESPACE, ZONE)


@pytest.mark.usefixtures("operator")
@pytest.mark.proves("RM-01", "B-14")
async def test_a_task_says_whose_migration_has_its_childs_name_and_goes_on_without_it(
    cluster: TestCluster, api: KubeApi
) -> None:
    """A leader would not move for ever, and the operator's log alone would say why.

    The other migration is of another zone: the task's own view of its zone does not have it.
    """
    moves = {"maxConcurrentHandovers": 0}
    layout: Json = {"partitions": 1, "replicas": 1, "minInSyncReplicas": 1, "rebalance": moves}
    zone = await make_zone(cluster, api, NAMESPACE, LED_ZONE, NODES, **layout)
    ((old,),) = stable_of(zone)
    new = min(set(addresses_of(zone)) - {old})
    cluster.apply(migration_manifest(NAMESPACE, MIGRATION, "elsewhere", 0, 1))
    theirs = await api.get(f"{MIGRATIONS}/{MIGRATION}")

    cluster.apply(task_manifest(NAMESPACE, "led", LED_ZONE, {0: (new,)}))
    task = await told_taken(api, "led", MIGRATION)
    await free_for(api, MIGRATIONS, MIGRATION, theirs, task)
    task = await until(api, TASKS, "led", lambda t: state_of(t) in TERMINAL_TASKS)
    assert state_of(task) == TaskState.SUCCEEDED
    assert not stalled_reason(task)
    await remove_zone(api, NAMESPACE, LED_ZONE)
