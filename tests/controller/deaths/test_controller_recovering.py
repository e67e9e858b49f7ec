"""Acknowledged rows are given up while operators die: before and after each write and each call.

Real disks are lost: pods are deleted by force while nobody leads, and come back empty.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from operated_cluster import (
    SCHEMA,
    TestCluster,
    addresses_of,
    check_settled,
    condition,
    make_zone,
    path_of,
    routes_of,
    state_of,
    until,
    until_zone,
)
from operator_process import EVERY_POINT, DyingOperator, OperatorProcess, led_by

from rezone.client import TableClient
from rezone.local.api import Json, KubeApi
from rezone.resources.migration import MigrationState as M

pytestmark = [pytest.mark.apiserver, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(300)]

NAMESPACE = "recovering"
NODES = ("worker-1", "worker-2", "worker-3")
MIGRATIONS = path_of(NAMESPACE, "regionmigrations")
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
KEPT = {b"kept": b"1"}
GIVEN_UP = {b"given-up": b"1"}
LATER = {b"later": b"1"}


@pytest.fixture(scope="module")
def target(cluster: TestCluster, logs: Path) -> OperatorProcess:
    """Give the operator that goes on when the others are dead."""
    cluster.kubectl("create", "namespace", NAMESPACE)
    return OperatorProcess(cluster, NAMESPACE, logs, POD_NAME=DyingOperator.POD)


@pytest.fixture
def lives(cluster: TestCluster, target: OperatorProcess, logs: Path) -> Iterator[DyingOperator]:
    """Give an operator to be killed."""
    del target
    with DyingOperator(cluster, NAMESPACE, logs) as operator:
        yield operator


def write(zone: Json, values: Mapping[bytes, bytes]) -> None:
    """Write rows, which are acknowledged."""
    columns = [pa.array(list(each), pa.binary()) for each in (values, values.values())]
    with TableClient(list(addresses_of(zone).values())) as client:
        client.write(pa.record_batch(columns, schema=SCHEMA))


def rows_of(zone: Json) -> dict[bytes, bytes]:
    """Read all rows."""
    with TableClient(list(addresses_of(zone).values())) as client:
        found = client.scan()
    return dict(zip(found["key"].to_pylist(), found["value"].to_pylist(), strict=True))


def pods_of(zone: Json, nodes: set[int]) -> list[str]:
    """Return the names of data nodes' pods."""
    return [n["podName"] for n in zone["status"]["dataNodes"] if n["id"] in nodes]


async def lose_disks(cluster: TestCluster, api: KubeApi, zone: Json, nodes: set[int]) -> None:
    """Take pods and their disks away at once, while nobody leads."""
    names = pods_of(zone, nodes)
    force = ("--force", "--grace-period=0")
    cluster.kubectl("--namespace", NAMESPACE, "delete", "pod", *names, *force)
    for name in names:
        await until(api, PODS, name, lambda pod: not pod)


def recover(cluster: TestCluster, zone: str, **unclean: object) -> None:
    """Apply the migration that gives rows up."""
    spec = {
        "zoneName": zone,
        "partition": 0,
        "uncleanElection": {"acceptDataLoss": True, **unclean},
    }
    meta = {"name": zone, "namespace": NAMESPACE}
    cluster.apply(
        {
            "apiVersion": "rezone.dev/v1alpha1",
            "kind": "RegionMigration",
            "metadata": meta,
            "spec": spec,
        }
    )


async def clock_bound_lost(api: KubeApi, zone: str) -> None:
    """Wait until the zone says that a quorum is lost."""
    await until_zone(
        api, NAMESPACE, zone, lambda z: condition(z, "Stalled").get("reason") == "QuorumLost"
    )


async def recovered(api: KubeApi, zone: str, target: OperatorProcess) -> tuple[Json, Json]:
    """Let the target end it; return the zone at rest and the migration's status."""
    async with led_by(api, NAMESPACE, target):
        ended = await until(api, MIGRATIONS, zone, lambda m: state_of(m) == M.SUCCEEDED)
        found = await check_settled(api, NAMESPACE, zone)
        await asyncio.to_thread(write, found, LATER)
    return found, ended["status"]


async def first_death(
    cluster: TestCluster, api: KubeApi, lives: DyingOperator, zone: str, **unclean: object
) -> None:
    """Ask for the recovery when its need is known; whoever would store its first state dies."""
    dying = asyncio.create_task(lives.dies(M.UNCLEAN_ELECTION, after=False))
    await clock_bound_lost(api, zone)
    recover(cluster, zone, **unclean)
    await dying
    stored = (await api.get(f"{MIGRATIONS}/{zone}")).get("status")
    assert stored is None or stored["state"] != M.UNCLEAN_ELECTION


@pytest.mark.skipif(not EVERY_POINT, reason="half a minute more: make chaos-operator")
@pytest.mark.proves("OP-02")
async def test_killed_while_a_survivor_is_made_to_lead(
    cluster: TestCluster, api: KubeApi, target: OperatorProcess, lives: DyingOperator
) -> None:
    """A survivor would be chosen twice, lead beside another one, or lose what was to be kept."""
    with target.running():
        zone = await make_zone(cluster, api, NAMESPACE, "survivor", NODES, partitions=1)
        await asyncio.to_thread(write, zone, KEPT)
        record = (await routes_of(api, NAMESPACE, "survivor"))[0]
        third = next(n for n in record.isr if n != record.leader)
        pid = cluster.pod_pid(NAMESPACE, *pods_of(zone, {third}))
        assert pid is not None
        os.killpg(pid, signal.SIGSTOP)
        try:
            # Acknowledged without the third one, which has left the set by then.
            await asyncio.to_thread(write, zone, GIVEN_UP)
            assert third not in (await routes_of(api, NAMESPACE, "survivor"))[0].isr
            assert target.stop() == 0
            await lose_disks(cluster, api, zone, {0, 1, 2} - {third})
        finally:
            os.killpg(pid, signal.SIGCONT)
    await first_death(cluster, api, lives, "survivor")
    await lives.dies(M.UNCLEAN_ELECTION, after=True)
    chosen = (await api.get(f"{MIGRATIONS}/survivor"))["status"]
    await lives.die_in("lead", M.SUCCEEDED)
    found, ended = await recovered(api, "survivor", target)
    assert ended["context"] == chosen["context"], "it was decided a second time"
    assert ended["recovery"] == chosen["recovery"]
    assert (await routes_of(api, NAMESPACE, "survivor"))[0].leader == third
    rows = await asyncio.to_thread(rows_of, found)
    # What the third had received unacknowledged may be there.
    assert (KEPT | LATER).items() <= rows.items() <= (KEPT | LATER | GIVEN_UP).items()


@pytest.mark.proves("OP-02")
async def test_killed_while_a_partition_begins_again(
    cluster: TestCluster, api: KubeApi, target: OperatorProcess, lives: DyingOperator
) -> None:
    """A partition would be emptied a second time, with rows that were written since."""
    alone = {"partitions": 1, "replicas": 1, "minInSyncReplicas": 1}
    with target.running():
        zone = await make_zone(cluster, api, NAMESPACE, "empty", NODES[:1], **alone)
        await asyncio.to_thread(write, zone, GIVEN_UP)
        assert target.stop() == 0
        await lose_disks(cluster, api, zone, {0})
    await first_death(cluster, api, lives, "empty", mode="Empty")
    await lives.dies(M.UNCLEAN_ELECTION, after=True)
    await lives.die_in("lead", "call BeginEmpty", M.SUCCEEDED)
    found, ended = await recovered(api, "empty", target)
    assert ended["recovery"]["empty"]
    assert await asyncio.to_thread(rows_of, found) == LATER
