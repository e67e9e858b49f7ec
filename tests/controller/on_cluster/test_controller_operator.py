"""The operator as a process on a real cluster, with real data nodes: what its users count on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping

import pyarrow as pa
import pytest
from operated_cluster import (
    SCHEMA,
    TERMINAL_MIGRATIONS,
    TERMINAL_TASKS,
    TestCluster,
    Writer,
    addresses_of,
    check_settled,
    condition,
    is_ready,
    make_zone,
    migration_manifest,
    path_of,
    remove_zone,
    reports_of,
    routes_of,
    stable_of,
    state_of,
    until,
    until_zone,
    wait_for_report,
    zone_manifest,
)
from operator_process import OperatorProcess, environment_of

from rezone.client import TableClient
from rezone.local.agent.nodes import add_node
from rezone.local.api import Json, KubeApi
from rezone.wire.errors import InvalidRowError, RezoneError, StaleEpochError
from rezone.wire.messages import (
    Ack,
    Fence,
    LeaderAndIsr,
    NotifyLeaderAndIsr,
    PartitionAssignment,
    StopReplica,
    Takeover,
)
from rezone.wire.transport.flight import NodeClient

pytestmark = [pytest.mark.apiserver, pytest.mark.slow, pytest.mark.timeout(240)]

NAMESPACE = "operated"
NODES = ("worker-1", "worker-2", "worker-3", "worker-4")
TASKS = path_of(NAMESPACE, "rebalancetasks")
ZONES = path_of(NAMESPACE, "distributionzones")
MIGRATIONS = path_of(NAMESPACE, "regionmigrations")


@pytest.fixture
async def zone(cluster: TestCluster, api: KubeApi, operator: OperatorProcess) -> Json:
    """Give the module's zone on four nodes, made by the first test that asks and Ready again."""
    del operator
    found = await api.get(ZONES)
    if not any(item["metadata"]["name"] == "main" for item in found["items"]):
        await make_zone(cluster, api, NAMESPACE, "main", NODES)
    return await check_settled(api, NAMESPACE, "main")


def rows(values: Mapping[bytes, bytes | None]) -> pa.RecordBatch:
    """Return rows of the default schema."""
    return pa.record_batch(
        [pa.array(list(values), pa.binary()), pa.array(list(values.values()), pa.binary())],
        schema=SCHEMA,
    )


async def test_zone_serves_and_refuses_wrong_rows_whole(zone: Json) -> None:
    """A zone would not come up from its manifest alone, or half a refused batch would stay."""

    def use() -> None:
        with TableClient(list(addresses_of(zone).values())) as client:
            good = {f"good-{i}".encode(): b"1" for i in range(50)}
            client.write(rows(good))
            null_key = pa.record_batch(
                [pa.array([b"bad-1", None], pa.binary()), pa.array([b"1", b"2"], pa.binary())],
                names=["key", "value"],
            )
            wrong_type = pa.record_batch(
                [pa.array([b"bad-2"], pa.binary()), pa.array([7], pa.int64())],
                names=["key", "value"],
            )
            wrong_column = pa.record_batch([pa.array([b"bad-3"], pa.binary())], names=["cle"])
            too_big = rows({b"bad-4": b"1", b"bad-5": b"x" * ((1 << 20) + 1)})
            for bad in (null_key, wrong_type, wrong_column, too_big):
                with pytest.raises(InvalidRowError):
                    client.write(bad)
            found = client.scan()
            keys = set(found["key"].to_pylist())
            assert set(good) <= keys
            assert not [k for k in keys if k.startswith(b"bad")]
            client.delete(pa.record_batch([pa.array(list(good), pa.binary())], names=["key"]))

    await asyncio.to_thread(use)


async def test_events_tell_what_became_of_a_zone(api: KubeApi, zone: Json) -> None:
    """`kubectl describe` would show nothing of what the operator does."""
    about = zone["metadata"]["uid"]
    wanted = {"Available", "DataNodeActive"}
    path = f"/apis/events.k8s.io/v1/namespaces/{NAMESPACE}/events"
    seen: set[str] = set()
    async with asyncio.timeout(30):
        async with contextlib.aclosing(api.follow(path)) as events:  # type: ignore[type-var]
            async for event, item in events:
                items = item["items"] if event == "SYNC" else [item]
                seen |= {e["reason"] for e in items if e["regarding"].get("uid") == about}
                if wanted <= seen:
                    break


@pytest.mark.proves("ZR-17")
async def test_old_coordinator_changes_nothing(
    cluster: TestCluster, api: KubeApi, operator: OperatorProcess, zone: Json
) -> None:
    """An operator that lost its Lease without noticing would move leaders behind the new one."""
    del cluster
    lease_path = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
    old = (await api.get(f"{lease_path}/rezone-operator"))["spec"]["leaseTransitions"]
    operator.restart()
    await until(
        api,
        lease_path,
        "rezone-operator",
        lambda found: found["spec"]["leaseTransitions"] > old and found["spec"]["holderIdentity"],
    )
    before = await routes_of(api, NAMESPACE, "main")
    addresses = addresses_of(zone)

    # What the old operator would send, to the letter.
    fence = Fence(coordinator_epoch=old, revision=zone["status"]["assignments"]["change"])

    def refused_everywhere() -> bool:
        return all(_refused(node, addresses, fence, before[0]) for node in addresses)

    async with asyncio.timeout(60):
        # The new operator speaks to each node in its first passes; until then the old one is right.
        while not await asyncio.to_thread(refused_everywhere):
            await asyncio.to_thread(wait_for_report, addresses.values())
    assert [r.leader for r in await routes_of(api, NAMESPACE, "main")] == [r.leader for r in before]
    await check_settled(api, NAMESPACE, "main")


def _refused(node: int, addresses: dict[int, str], fence: Fence, record: LeaderAndIsr) -> bool:
    """Return whether a node refuses every call for partition 0 with this fence as stale."""
    other = next(n for n in record.isr if n != record.leader)
    calls = (
        # The record as it is: should the node still obey, nothing is changed by it.
        NotifyLeaderAndIsr(
            fence=fence,
            partitions=(PartitionAssignment(partition=0, state=record),),
            peers=addresses,
        ),
    )
    harmful = (
        Takeover(
            fence=fence,
            partition=0,
            leader_epoch=record.leader_epoch,
            candidate=other,
            next_epoch=record.leader_epoch + 1,
        ),
        StopReplica(
            fence=fence,
            partition=0,
            leader_epoch=record.leader_epoch + 10,
            partition_epoch=record.partition_epoch + 10,
        ),
    )
    client = NodeClient(addresses[node])
    try:
        for call in (*calls, *harmful):
            try:
                client.call(call, Ack)
            except StaleEpochError:
                continue
            except RezoneError:
                return False
            return False
    finally:
        client.close()
    return True


async def test_unplaceable_zone_says_so_and_recovers(
    cluster: TestCluster, api: KubeApi, operator: OperatorProcess
) -> None:
    """Whoever asks for more replicas than nodes would wait without being told what to do."""
    del operator
    cluster.label(NAMESPACE, "narrow", *NODES[:2])
    cluster.apply(zone_manifest(NAMESPACE, "narrow"))
    found = await until_zone(
        api, NAMESPACE, "narrow", lambda z: condition(z, "Stalled").get("status") == "True"
    )
    stalled = condition(found, "Stalled")
    assert stalled["reason"] == "NotEnoughDataNodes"
    assert "add data nodes" in stalled["message"]
    assert condition(found, "Ready")["status"] == "False"
    cluster.label(NAMESPACE, "narrow", NODES[2])
    found = await until_zone(api, NAMESPACE, "narrow", is_ready)
    assert not condition(found, "Stalled")
    await remove_zone(api, NAMESPACE, "narrow")


async def test_node_joins_and_is_drained(
    cluster: TestCluster, api: KubeApi, operator: OperatorProcess
) -> None:
    """A joining node would stay empty, a move too many be made, or a cordoned one keep its pod."""
    del operator
    pool = [f"pool-{n}" for n in range(11, 15)]
    for name in pool:
        await add_node(api, name)
    made = await make_zone(cluster, api, NAMESPACE, "grow", pool[:3], partitions=8)
    with Writer(addresses_of(made).values()) as writer:
        cluster.label(NAMESPACE, "grow", pool[3])
        found = await _rebalanced(api, "grow", made)
        assert {n["nodeName"] for n in found["status"]["dataNodes"]} == set(pool)
        cluster.kubectl("cordon", pool[0])
        gone = next(n for n in made["status"]["dataNodes"] if n["nodeName"] == pool[0])
        found = await _rebalanced(api, "grow", found)
        found = await until_zone(
            api,
            NAMESPACE,
            "grow",
            lambda z: gone["id"] not in {n["id"] for n in z["status"]["dataNodes"]},
        )
        pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
        await until(api, pods, gone["podName"], lambda pod: not pod)
        assert gone["id"] not in {n for nodes in stable_of(found) for n in nodes}
        await check_settled(api, NAMESPACE, "grow")
    await asyncio.to_thread(writer.check)
    await remove_zone(api, NAMESPACE, "grow")


async def _rebalanced(api: KubeApi, zone: str, before: Json) -> Json:
    """Wait for another stable assignment; its task has succeeded with the fewest moves."""
    old = before["status"]["assignments"]["stable"]["revision"]

    def changed(found: Json) -> bool:
        keys = found["status"]["assignments"]
        return not keys.get("pending") and keys["stable"]["revision"] > old

    found = await until_zone(api, NAMESPACE, zone, changed)
    name = f"{zone}-{found['status']['assignments']['stable']['revision']}"
    task = await until(api, TASKS, name, lambda t: state_of(t) in TERMINAL_TASKS)
    assert state_of(task) == "Succeeded", task["status"]
    plan = task["status"]["plan"]
    assert plan["moves"] == plan["movesLowerBound"] > 0, plan
    return found


@pytest.mark.proves("B-06", "HS-04")
@pytest.mark.parametrize("victim", ["follower", "leader"])
async def test_killed_data_node_comes_back(
    cluster: TestCluster, api: KubeApi, zone: Json, victim: str
) -> None:
    """One killed data node would stop writes, lose rows, or never be in sync again."""
    record = (await routes_of(api, NAMESPACE, "main"))[1]
    node = (
        record.leader if victim == "leader" else next(n for n in record.isr if n != record.leader)
    )
    pod = next(n["podName"] for n in zone["status"]["dataNodes"] if n["id"] == node)
    pid = cluster.pod_pid(NAMESPACE, pod)
    assert pid is not None
    with Writer(addresses_of(zone).values()) as writer:
        await asyncio.to_thread(writer.wait_for_more)
        os.killpg(pid, signal.SIGKILL)
        await asyncio.to_thread(writer.wait_for_more, 20)
        found = await check_settled(api, NAMESPACE, "main")
        # Every member of the in-sync set answers for each write: the one that came back too.
        await asyncio.to_thread(writer.wait_for_more, 5)
    assert stable_of(found) == stable_of(zone), "a restart is no reason to move partitions"
    assert cluster.pod_pid(NAMESPACE, pod) not in (None, pid)
    await asyncio.to_thread(writer.check)


@pytest.mark.proves("B-06")
async def test_leader_that_stays_away_is_replaced(
    cluster: TestCluster, api: KubeApi, operator: OperatorProcess, zone: Json
) -> None:
    """A partition would stay without a leader for longer than the lease, or for ever."""
    del operator
    record = (await routes_of(api, NAMESPACE, "main"))[2]
    pod = next(n["podName"] for n in zone["status"]["dataNodes"] if n["id"] == record.leader)
    pid = cluster.pod_pid(NAMESPACE, pod)
    assert pid is not None
    with Writer(addresses_of(zone).values()) as writer:
        await asyncio.to_thread(writer.wait_for_more)
        os.killpg(pid, signal.SIGSTOP)
        try:
            led = await _led_by_another(api, 2, record)
            assert led.leader in record.isr
            assert led.leader_epoch > record.leader_epoch
            await asyncio.to_thread(writer.wait_for_more, 5)
        finally:
            os.killpg(pid, signal.SIGCONT)
        await check_settled(api, NAMESPACE, "main")
    await asyncio.to_thread(writer.check)


def newer_than(version: str) -> Callable[[Json], bool]:
    """Return the predicate that waits for another version of an object."""
    return lambda found: found["metadata"]["resourceVersion"] != version


async def _led_by_another(api: KubeApi, partition: int, record: LeaderAndIsr) -> LeaderAndIsr:
    path = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
    names = [item["metadata"]["name"] for item in (await api.get(path))["items"]]
    shard = next(n for n in names if n.startswith("main") and "route" in n)
    found: list[LeaderAndIsr] = []

    async def look() -> bool:
        found.append((await routes_of(api, NAMESPACE, "main"))[partition])
        return found[-1].leader != record.leader

    # A silent node is noticed when its poll times out (3 s), and waited for by its lease (1 s).
    async with asyncio.timeout(15):
        while not await look():
            version = (await api.get(f"{path}/{shard}"))["metadata"]["resourceVersion"]
            await until(api, path, shard, newer_than(version), seconds=30)
    return found[-1]


@pytest.mark.proves("B-06")
async def test_deleted_pod_of_a_leader_loses_nothing(
    cluster: TestCluster, api: KubeApi, zone: Json
) -> None:
    """A pod whose disk went with it would come back empty and lead, or count as in sync."""
    record = (await routes_of(api, NAMESPACE, "main"))[3]
    pod = next(n["podName"] for n in zone["status"]["dataNodes"] if n["id"] == record.leader)
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
    uid = (await api.get(f"{pods}/{pod}"))["metadata"]["uid"]
    with Writer(addresses_of(zone).values()) as writer:
        await asyncio.to_thread(writer.wait_for_more, 40)
        cluster.kubectl("--namespace", NAMESPACE, "delete", "pod", pod, "--wait=false")
        await until(api, pods, pod, lambda p: p and p["metadata"]["uid"] != uid)
        await asyncio.to_thread(writer.wait_for_more, 20)
        await check_settled(api, NAMESPACE, "main")
    await asyncio.to_thread(writer.check)


@pytest.mark.proves("B-13", "RM-07")
async def test_a_kept_leader_leads_again_without_a_copy_or_goes_in_time(
    cluster: TestCluster, api: KubeApi, zone: Json
) -> None:
    """The way back would take a whole copy, or an old leader stay after its time for ever."""
    before = (await routes_of(api, NAMESPACE, "main"))[0]
    nodes = {n["id"] for n in zone["status"]["dataNodes"]}
    old, new = before.leader, min(nodes - set(before.replicas))
    with Writer(addresses_of(zone).values()) as writer:
        await asyncio.to_thread(writer.wait_for_more)
        moved = await _move_and_keep(cluster, api, "there", new)
        assert moved["status"]["retainOldLeaderUntilTime"]
        reports = await asyncio.to_thread(reports_of, addresses_of(zone))
        assert reports[new][0].copy is not None, "this is how a copy would be seen"
        copied = reports[old][0].copy
        await asyncio.to_thread(_run_cli, cluster, "migrate", "main", "0", "--failback")
        after = await check_settled(api, NAMESPACE, "main")
        record = (await routes_of(api, NAMESPACE, "main"))[0]
        assert (record.leader, set(record.replicas)) == (old, set(before.replicas))
        assert stable_of(after)[0] == [old, *(n for n in stable_of(zone)[0] if n != old)]
        reports = await asyncio.to_thread(reports_of, addresses_of(zone))
        assert reports[old][0].copy == copied, "the old leader was copied again"

        await _move_and_keep(cluster, api, "again", new)
        assert old in (await routes_of(api, NAMESPACE, "main"))[0].replicas
        await api.patch(f"{MIGRATIONS}/again", {"spec": {"retainOldLeaderSeconds": 0}})
        await until_zone(api, NAMESPACE, "main", lambda z: not _kept(z))
        after = await check_settled(api, NAMESPACE, "main")
        record = (await routes_of(api, NAMESPACE, "main"))[0]
        assert (record.leader, set(record.replicas)) == (new, set(stable_of(after)[0]))
        assert old not in record.replicas
        await asyncio.to_thread(writer.wait_for_more, 5)
    await asyncio.to_thread(writer.check)


async def _move_and_keep(cluster: TestCluster, api: KubeApi, name: str, target: int) -> Json:
    """Move partition 0's leader outside its assignment and keep the old one for an hour."""
    cluster.apply(
        migration_manifest(NAMESPACE, name, "main", 0, target, retainOldLeaderSeconds=3600)
    )
    ended = await until(api, MIGRATIONS, name, lambda m: state_of(m) in TERMINAL_MIGRATIONS)
    assert state_of(ended) == "Succeeded", ended["status"]
    (kept,) = _kept(await check_settled(api, NAMESPACE, "main"))
    assert kept["retainUntilTime"] == ended["status"]["retainOldLeaderUntilTime"]
    assert (kept["migration"], kept["node"]) == (name, ended["status"]["context"]["fromNode"])
    return ended


def _kept(zone: Json) -> list[Json]:
    """Return what a zone keeps beside its assignment."""
    kept: list[Json] = zone["status"]["assignments"].get("retained", [])
    return kept


def _run_cli(cluster: TestCluster, *words: str) -> None:
    """Run a command of `rezone` as a person does."""
    command = [sys.executable, "-m", "rezone.cli.main", *words, "--namespace", NAMESPACE]
    environment = environment_of(cluster, NAMESPACE, 0)
    done = subprocess.run(command, env=environment, capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
