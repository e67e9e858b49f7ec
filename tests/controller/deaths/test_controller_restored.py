"""etcd is put back to a copy of an earlier day, under data nodes that have gone on since (NW-06).

The copy is of the data directory of the etcd that serves the cluster. What is done is what the
handbook of every distribution asks for and no more: the control plane is stopped, the directory
replaced, the control plane started. The operators are left as they are, one that leads and one
that waits, with a Lease so long that neither loses it while the API server is away.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest
from operated_cluster import (
    TERMINAL_TASKS,
    TestCluster,
    Writer,
    abort_connections,
    addresses_of,
    check_settled,
    condition,
    make_zone,
    path_of,
    records_of,
    stable_of,
    state_of,
    task_manifest,
    until,
    until_zone,
)
from operator_process import EVERY_POINT, OperatorProcess
from resharding_case import is_cut

from rezone.controller.process.main import EXIT_EPOCH_USED, EXIT_LEASE_LOST
from rezone.local.api import Json, KubeApi
from rezone.local.cluster import LocalCluster
from rezone.local.controlplane import ControlPlane, ControlPlaneSettings
from rezone.local.processes import PidFile
from rezone.local.tools import find_tools
from rezone.wire.layouts import generation_of

pytestmark = [pytest.mark.apiserver, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(300)]

NAMESPACE = "restored"
NODES = ("worker-1", "worker-2", "worker-3", "worker-4")
JOINS = "worker-5"
NEW_NODE = 4
ONE_AT_A_TIME = {"maxConcurrentHandovers": 1}
SIX = "set spec.partitions to 6"
SETTINGS = ControlPlaneSettings(unsafe_no_fsync=True)
TASKS = path_of(NAMESPACE, "rebalancetasks")
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
PODS = ("first", "second")
LEASE_SECONDS = 60


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestCluster]:
    """Bring up a cluster of this module's own: nobody else's objects may go back."""
    state = tmp_path_factory.mktemp("restored")
    local = LocalCluster(state, SETTINGS)
    try:
        local.up(nodes=5)
        made = TestCluster(state, local.kubeconfig, find_tools(["kubectl"])["kubectl"])
        made.install_crds()
        made.kubectl("create", "namespace", NAMESPACE)
        yield made
    finally:
        local.down(delete=True)


@pytest.fixture
async def api(cluster: TestCluster) -> AsyncIterator[KubeApi]:
    """Give a client of the cluster."""
    async with KubeApi(cluster.kubeconfig) as client:
        yield client
    await abort_connections(set())


@pytest.fixture
def operators(cluster: TestCluster, tmp_path: Path) -> Iterator[tuple[OperatorProcess, ...]]:
    """Run two operators: one leads, one waits; nothing but a Lease may ever end them."""
    made = []
    for pod in PODS:
        (logs := tmp_path / pod).mkdir()
        times = {"REZONE_LEASE_DURATION_SECONDS": str(LEASE_SECONDS)}
        made.append(OperatorProcess(cluster, NAMESPACE, logs, POD_NAME=pod, **times))
    with contextlib.ExitStack() as stack:
        for each in made:
            each.start()
            stack.callback(each.kill)
        yield tuple(made)
        for each in made:
            assert set(each.ended) <= {EXIT_LEASE_LOST, EXIT_EPOCH_USED}, (each.ended, each.log())


def back_up(cluster: TestCluster, directory: Path) -> None:
    """Copy etcd's files while it stands still, so that they are those of one moment."""
    etcd = PidFile(cluster.state / "run" / "etcd.json").read()
    assert etcd is not None
    etcd.signal(signal.SIGSTOP)
    try:
        shutil.copytree(cluster.state / "etcd", directory)
    finally:
        etcd.signal(signal.SIGCONT)


def restore(cluster: TestCluster, directory: Path) -> None:
    """Put the copy in the place of etcd's files, with the whole control plane stopped."""
    plane = ControlPlane(cluster.state, SETTINGS)
    with (cluster.state / ".lock").open("w") as lock:
        # The supervisor would start what is stopped.
        fcntl.flock(lock, fcntl.LOCK_EX)
        plane.stop()
        shutil.rmtree(cluster.state / "etcd")
        shutil.copytree(directory, cluster.state / "etcd")
        plane.start()


async def fail_over(cluster: TestCluster, api: KubeApi, zone: str, partition: int) -> None:
    """Freeze a leader's data node until another one leads."""
    before = (await records_of(api, NAMESPACE, zone))[partition]
    group = cluster.pod_pid(NAMESPACE, f"{zone}-{before.leader}")
    assert group is not None
    os.killpg(group, signal.SIGSTOP)
    try:
        async with asyncio.timeout(60):
            record = before
            while record.leader == before.leader:
                await asyncio.sleep(0.2)
                record = (await records_of(api, NAMESPACE, zone))[partition]
    finally:
        os.killpg(group, signal.SIGCONT)


async def kill_leader(api: KubeApi, operators: Sequence[OperatorProcess]) -> None:
    """Kill the operator that leads; the next one has a later epoch, and both are ready."""
    before = (await api.get(f"{LEASES}/rezone-operator"))["spec"]
    pod, _, _ = before["holderIdentity"].partition("_")
    operators[PODS.index(pod)].restart()
    epoch = before["leaseTransitions"]
    await until(api, LEASES, "rezone-operator", lambda o: o["spec"]["leaseTransitions"] > epoch)
    for each in operators:
        await each.until_ready()


def nodes_of(zone: Json) -> list[Json]:
    """Return the data nodes of a zone's status."""
    found: list[Json] = zone.get("status", {}).get("dataNodes", [])
    return found


async def version_of(api: KubeApi) -> int:
    """Return the revision of etcd."""
    found = await api.get("/api/v1/namespaces")
    return int(found["metadata"]["resourceVersion"])


@pytest.mark.proves("NW-06")
async def test_a_zone_whose_etcd_was_restored_is_whole_again_without_a_person(
    cluster: TestCluster,
    api: KubeApi,
    operators: tuple[OperatorProcess, ...],
    tmp_path: Path,
) -> None:
    """It would hang at refused calls, or give leaders and rows away that data nodes know better."""
    zone = await make_zone(cluster, api, NAMESPACE, "kept", NODES)
    with Writer(addresses_of(zone).values()) as writer:
        await asyncio.to_thread(writer.wait_for_more)
        backup = tmp_path / "backup"
        await asyncio.to_thread(back_up, cluster, backup)
        revision = await version_of(api)
        await fail_over(cluster, api, "kept", 0)
        zone = await check_settled(api, NAMESPACE, "kept")
        record = (await records_of(api, NAMESPACE, "kept"))[1]
        (other,) = {n["id"] for n in zone["status"]["dataNodes"]} - set(record.replicas)
        moved = (other, *record.replicas[1:])
        cluster.apply(task_manifest(NAMESPACE, "move", "kept", {1: moved}))
        task = await until(api, TASKS, "move", lambda t: state_of(t) in TERMINAL_TASKS)
        assert state_of(task) == "Succeeded", task["status"]
        await kill_leader(api, operators)
        await asyncio.to_thread(writer.wait_for_more)
        before = await check_settled(api, NAMESPACE, "kept")
        known = await records_of(api, NAMESPACE, "kept")
        ahead = await version_of(api)
        assert ahead > revision

        await asyncio.to_thread(restore, cluster, backup)
        assert await version_of(api) < ahead, "the objects have not gone back"
        await asyncio.to_thread(writer.wait_for_more)

        def learned(found: Json) -> bool:
            return bool(stable_of(found) == stable_of(before)) and not condition(found, "Stalled")

        await until_zone(api, NAMESPACE, "kept", learned)
        await check_settled(api, NAMESPACE, "kept")
        after = await records_of(api, NAMESPACE, "kept")
        for partition, record in known.items():
            assert set(after[partition].replicas) == set(record.replicas)
            assert after[partition].leader_epoch >= record.leader_epoch
        # What a person asks for now is done, by an operator that hears of it.
        await api.patch(
            f"{path_of(NAMESPACE, 'distributionzones')}/kept",
            {"spec": {"replicas": 2, "minInSyncReplicas": 1}},
        )
        await until_zone(
            api, NAMESPACE, "kept", lambda z: all(len(nodes) == 2 for nodes in stable_of(z))
        )
        await check_settled(api, NAMESPACE, "kept")
        await asyncio.to_thread(writer.wait_for_more)
    await asyncio.to_thread(writer.check)
    for each in operators:
        # The one that leads sees its Lease when it renews it, and all of this may be done before.
        await each.until_ended(EXIT_LEASE_LOST)


@pytest.mark.skipif(not EVERY_POINT, reason="a minute or two more: make chaos-operator")
@pytest.mark.proves("NW-06")
async def test_a_data_node_that_the_backup_does_not_know_is_not_waited_for(
    cluster: TestCluster,
    api: KubeApi,
    operators: tuple[OperatorProcess, ...],
    tmp_path: Path,
) -> None:
    """Its pod is ended and its volume forgotten: the zone would wait for its rows for ever."""
    zone = await make_zone(cluster, api, NAMESPACE, "grown", NODES, partitions=10)
    with Writer(addresses_of(zone).values()) as writer:
        await asyncio.to_thread(writer.wait_for_more)
        await asyncio.to_thread(back_up, cluster, tmp_path / "backup")
        cluster.label(NAMESPACE, "grown", JOINS)
        await until_zone(
            api, NAMESPACE, "grown", lambda z: any(NEW_NODE in nodes for nodes in stable_of(z))
        )
        await check_settled(api, NAMESPACE, "grown")
        known = await records_of(api, NAMESPACE, "grown")
        assert any(record.leader == NEW_NODE for record in known.values())
        await asyncio.to_thread(writer.wait_for_more)

        await asyncio.to_thread(restore, cluster, tmp_path / "backup")
        # As GitOps does: what people ask for comes from their own files.
        cluster.label(NAMESPACE, "grown", JOINS)
        # The node that is gone led, and an operator may have to wait for a Lease to run out.
        await asyncio.to_thread(writer.wait_for_more, seconds=3.0 * LEASE_SECONDS)
        for each in operators:
            await each.until_ready()
        await until_zone(
            api, NAMESPACE, "grown", lambda z: any(n["id"] == NEW_NODE for n in nodes_of(z))
        )
        await check_settled(api, NAMESPACE, "grown")
        after = await records_of(api, NAMESPACE, "grown")
        for partition, record in known.items():
            assert after[partition].leader_epoch >= record.leader_epoch
        await asyncio.to_thread(writer.wait_for_more)
    await asyncio.to_thread(writer.check)


@pytest.mark.skipif(not EVERY_POINT, reason="a minute or two more: make chaos-operator")
@pytest.mark.proves("NW-06")
async def test_a_zone_that_was_re_sharded_since_has_its_new_partitions(
    cluster: TestCluster,
    api: KubeApi,
    operators: tuple[OperatorProcess, ...],
    tmp_path: Path,
) -> None:
    """It would stand still until somebody finds a backup from after the re-sharding."""
    zone = await make_zone(cluster, api, NAMESPACE, "cut", NODES)
    path = f"{path_of(NAMESPACE, 'distributionzones')}/cut"
    wanted = {"spec": {"partitions": 6}}
    with Writer(addresses_of(zone).values()) as writer:
        await asyncio.to_thread(writer.wait_for_more)
        await asyncio.to_thread(back_up, cluster, tmp_path / "backup")
        await api.patch(path, wanted)
        await until_zone(api, NAMESPACE, "cut", lambda z: is_cut(z, 6))
        known = await records_of(api, NAMESPACE, "cut")
        assert len(known) == 4 + 6, "old partitions stay for a while"
        await asyncio.to_thread(writer.wait_for_more)

        await asyncio.to_thread(restore, cluster, tmp_path / "backup")
        await asyncio.to_thread(writer.wait_for_more)
        for each in operators:
            await each.until_ready()
        # What people ask for is theirs to say again: without it the old number would be made.
        await until_zone(
            api, NAMESPACE, "cut", lambda z: SIX in condition(z, "Stalled").get("message", "")
        )
        await api.patch(path, wanted)
        await until_zone(
            api, NAMESPACE, "cut", lambda z: is_cut(z, 6) and not condition(z, "Stalled")
        )
        await check_settled(api, NAMESPACE, "cut")
        after = await records_of(api, NAMESPACE, "cut")
        assert after.keys() == {p for p in known if generation_of(p) == 1}
        for partition, record in after.items():
            assert set(record.replicas) == set(known[partition].replicas)
            assert record.leader_epoch >= known[partition].leader_epoch
        await asyncio.to_thread(writer.wait_for_more)
    await asyncio.to_thread(writer.check)


@pytest.mark.skipif(not EVERY_POINT, reason="a minute or two more: make chaos-operator")
@pytest.mark.proves("NW-06")
async def test_a_re_sharding_in_the_middle_goes_on_to_its_end(
    cluster: TestCluster,
    api: KubeApi,
    operators: tuple[OperatorProcess, ...],
    tmp_path: Path,
) -> None:
    """Some partitions have ended, their targets are in no object: the zone would stand still."""
    zone = await make_zone(cluster, api, NAMESPACE, "half", NODES)
    path = f"{path_of(NAMESPACE, 'distributionzones')}/half"
    wanted = {"spec": {"partitions": 6}}
    with Writer(addresses_of(zone).values()) as writer:
        await asyncio.to_thread(writer.wait_for_more)
        await asyncio.to_thread(back_up, cluster, tmp_path / "backup")
        await api.patch(path, {"spec": {"partitions": 6, "rebalance": ONE_AT_A_TIME}})
        known = await records_of(api, NAMESPACE, "half")
        async with asyncio.timeout(120):
            while not any(record.sealed for record in known.values()):
                known = await records_of(api, NAMESPACE, "half")
        # Frozen, the operators go no further.
        for each in operators:
            each.signal(signal.SIGSTOP)
        try:
            known = await records_of(api, NAMESPACE, "half")
            await asyncio.to_thread(restore, cluster, tmp_path / "backup")
        finally:
            for each in operators:
                each.signal(signal.SIGCONT)
        await asyncio.to_thread(writer.wait_for_more)
        for each in operators:
            await each.until_ready()
        await until_zone(
            api, NAMESPACE, "half", lambda z: SIX in condition(z, "Stalled").get("message", "")
        )
        await api.patch(path, wanted)
        await until_zone(
            api, NAMESPACE, "half", lambda z: is_cut(z, 6) and not condition(z, "Stalled")
        )
        await check_settled(api, NAMESPACE, "half")
        after = await records_of(api, NAMESPACE, "half")
        for partition in after.keys() & known.keys():
            assert after[partition].leader_epoch >= known[partition].leader_epoch
        await asyncio.to_thread(writer.wait_for_more)
    await asyncio.to_thread(writer.check)
