"""The operator's process is killed in each of its deeds, and the next one goes on.

One move leads through all of its states while operator after operator dies: each life ends by
SIGKILL in the middle of a deed (`dying_operator`), the next one begins with what the API server
and the data nodes know, and the last one is the operator as users run it.

`make test-long` kills once in each deed, before one and after the next; `make chaos-operator` both
before and after each. `test_controller_crashes` has every state by itself, with loops that are
ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from operated_cluster import (
    TERMINAL_MIGRATIONS,
    TERMINAL_TASKS,
    TestCluster,
    Writer,
    abort_connections,
    addresses_of,
    check_settled,
    make_zone,
    migration_manifest,
    path_of,
    routes_of,
    stable_of,
    state_of,
    task_manifest,
    until,
)
from operator_process import DyingOperator, OperatorProcess, led_by

from rezone.local.api import Json, KubeApi
from rezone.resources.migration import MigrationState as M
from rezone.resources.task import TaskState as T

pytestmark = [pytest.mark.apiserver, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(240)]

NAMESPACE = "killed"
ZONE = "main"
NODES = ("worker-1", "worker-2", "worker-3", "worker-4")
ZONES = path_of(NAMESPACE, "distributionzones")
TASKS = path_of(NAMESPACE, "rebalancetasks")
MIGRATIONS = path_of(NAMESPACE, "regionmigrations")

MOVING = (
    T.APPROVED,
    T.AWAITING_REPLICAS,
    T.TRANSFERRING,
    "call PullSnapshot",
    T.SWITCHING,
    T.FINALIZING,
    T.STOPPING_REDUNDANT,
    "call StopReplica",
    T.SUCCEEDED,
)
CANCELLING = (T.CANCELLING, T.CANCELLED)
MIGRATING = (
    M.OPEN_CANDIDATE,
    M.UPDATE_METADATA_DOWN,
    "authorize",
    M.DOWNGRADE_LEADER,
    "call Takeover",
    M.CLOSE_OLD_LEADER,
    M.SUCCEEDED,
)
ROLLING_BACK = (M.UPDATE_METADATA_ROLLBACK, "lead", M.ROLLED_BACK)


@pytest.fixture(scope="module")
def standby(cluster: TestCluster, logs: Path) -> OperatorProcess:
    """Give the operator that goes on when the others are dead; it has made the module's zone."""
    cluster.kubectl("create", "namespace", NAMESPACE)
    operator = OperatorProcess(cluster, NAMESPACE, logs, POD_NAME=DyingOperator.POD)

    async def make() -> None:
        async with KubeApi(cluster.kubeconfig) as api:
            await make_zone(cluster, api, NAMESPACE, ZONE, NODES)
        await abort_connections(set())

    with operator.running():
        asyncio.run(make())
    return operator


@pytest.fixture
async def zone(api: KubeApi, standby: OperatorProcess) -> Json:
    """Give the module's zone, at rest and without an operator."""
    del standby
    return await api.get(f"{ZONES}/{ZONE}")


@pytest.fixture
def lives(cluster: TestCluster, standby: OperatorProcess, logs: Path) -> Iterator[DyingOperator]:
    """Give an operator to be killed."""
    del standby
    with DyingOperator(cluster, NAMESPACE, logs) as operator:
        yield operator


async def settings_of(api: KubeApi, **rebalance: object) -> None:
    """Change the zone's settings of rebalances."""
    await api.patch(f"{ZONES}/{ZONE}", {"spec": {"rebalance": rebalance}})


async def a_move(api: KubeApi, zone: Json, partition: int) -> tuple[tuple[int, ...], int]:
    """Return where a partition shall go, its leader to a node without a copy, and its leader."""
    record = (await routes_of(api, NAMESPACE, ZONE))[partition]
    nodes = {n["id"] for n in zone["status"]["dataNodes"]}
    kept = tuple(n for n in stable_of(zone)[partition] if n != record.leader)
    return (min(nodes - set(record.replicas)), *kept), record.leader


@pytest.mark.proves("OP-02", "RM-02", "ZR-13")
async def test_killed_at_every_state_of_a_rebalance(
    cluster: TestCluster, api: KubeApi, zone: Json, lives: DyingOperator, logs: Path
) -> None:
    """A killed operator would leave a rebalance half done, its writes lost, or two in charge."""
    other_pod = OperatorProcess(cluster, NAMESPACE, logs)
    replicas, old = await a_move(api, zone, 0)
    await settings_of(api, approval="Manual")
    with Writer(addresses_of(zone).values()) as writer:
        cluster.apply(task_manifest(NAMESPACE, "move", ZONE, {0: replicas}))
        await lives.dies(T.PLANNED, after=False)
        await lives.dies(T.PLANNED, after=True)
        plan = (await api.get(f"{TASKS}/move"))["status"]["plan"]
        await api.patch(f"{TASKS}/move", {"spec": {"approvedPlan": plan["hash"]}})
        await lives.die_in(*MOVING)
        await asyncio.to_thread(writer.wait_for_more)
        async with led_by(api, NAMESPACE, other_pod):
            task = await until(api, TASKS, "move", lambda t: state_of(t) in TERMINAL_TASKS)
            assert state_of(task) == T.SUCCEEDED, task["status"]
            settled = await check_settled(api, NAMESPACE, ZONE)
    record = (await routes_of(api, NAMESPACE, ZONE))[0]
    assert tuple(stable_of(settled)[0]) == replicas
    assert (record.leader, set(record.replicas)) == (replicas[0], set(replicas))
    assert old not in record.replicas
    await asyncio.to_thread(writer.check)


@pytest.mark.proves("OP-02", "RM-02", "RM-06", "ZR-13")
async def test_killed_at_every_state_of_a_migration(
    cluster: TestCluster, api: KubeApi, zone: Json, lives: DyingOperator, standby: OperatorProcess
) -> None:
    """A killed operator would leave two leaders, none, or a copy that nobody stops."""
    (new, *_), old = await a_move(api, zone, 1)
    await settings_of(api, paused=True)
    with Writer(addresses_of(zone).values()) as writer:
        cluster.apply(migration_manifest(NAMESPACE, "m", ZONE, 1, new, oldLeaderPolicy="Remove"))
        await lives.die_in(M.SELECT_CANDIDATE)
        await settings_of(api, paused=False)
        await lives.die_in(*MIGRATING)
        await asyncio.to_thread(writer.wait_for_more)
        async with led_by(api, NAMESPACE, standby):
            ended = await until(api, MIGRATIONS, "m", lambda m: state_of(m) in TERMINAL_MIGRATIONS)
            assert state_of(ended) == M.SUCCEEDED, ended["status"]
            after = await check_settled(api, NAMESPACE, ZONE)
    record = (await routes_of(api, NAMESPACE, ZONE))[1]
    assert record.leader == stable_of(after)[1][0] == new
    assert old not in record.replicas
    await asyncio.to_thread(writer.check)


@pytest.mark.proves("ZR-18", "ZR-19", "B-15")
async def test_killed_while_a_rebalance_is_cancelled(
    cluster: TestCluster, api: KubeApi, zone: Json, lives: DyingOperator, standby: OperatorProcess
) -> None:
    """A killed operator would leave a partition between two assignments, or a learner on disk."""
    replicas, old = await a_move(api, zone, 2)
    await settings_of(api, approval="Automatic")
    with Writer(addresses_of(zone).values()) as writer:
        cluster.apply(task_manifest(NAMESPACE, "cancelled", ZONE, {2: replicas}))
        await lives.dies(T.TRANSFERRING, after=True)
        await api.patch(f"{TASKS}/cancelled", {"spec": {"cancel": True}})
        await lives.die_in(*CANCELLING)
        async with led_by(api, NAMESPACE, standby):
            after = await check_settled(api, NAMESPACE, ZONE)
    assert state_of(await api.get(f"{TASKS}/cancelled")) == T.CANCELLED
    record = (await routes_of(api, NAMESPACE, ZONE))[2]
    assert stable_of(after) == stable_of(zone)
    assert (record.leader, set(record.replicas)) == (old, set(stable_of(zone)[2]))
    await asyncio.to_thread(writer.check)


@pytest.mark.proves("RM-08", "DCP-11")
async def test_killed_while_a_migration_is_rolled_back(
    cluster: TestCluster, api: KubeApi, zone: Json, lives: DyingOperator, standby: OperatorProcess
) -> None:
    """A killed operator would leave a partition unled, or a candidate's epoch not fenced."""
    before = (await routes_of(api, NAMESPACE, ZONE))[3]
    successor = next(n for n in before.isr if n != before.leader)
    with Writer(addresses_of(zone).values()) as writer:
        cluster.apply(migration_manifest(NAMESPACE, "rolled-back", ZONE, 3, successor))
        await lives.dies(M.DOWNGRADE_LEADER, after=True)
        await api.patch(f"{MIGRATIONS}/rolled-back", {"spec": {"cancel": True}})
        await lives.die_in(*ROLLING_BACK)
        async with led_by(api, NAMESPACE, standby):
            await check_settled(api, NAMESPACE, ZONE)
    assert state_of(await api.get(f"{MIGRATIONS}/rolled-back")) == M.ROLLED_BACK
    record = (await routes_of(api, NAMESPACE, ZONE))[3]
    assert record.leader == before.leader
    assert record.leader_epoch > before.leader_epoch + 1, "the candidate's epoch is not fenced"
    await asyncio.to_thread(writer.check)


UNKNOWN_NODE = 99


async def test_killed_where_nothing_can_be_done(
    cluster: TestCluster, api: KubeApi, zone: Json, lives: DyingOperator, standby: OperatorProcess
) -> None:
    """What is refused would be tried by one operator after the other."""
    cluster.apply(task_manifest(NAMESPACE, "refused", ZONE, {0: (UNKNOWN_NODE, 0)}))
    await lives.die_in(T.FAILED)
    cluster.apply(migration_manifest(NAMESPACE, "refused", ZONE, 0, UNKNOWN_NODE))
    await lives.die_in(M.FAILED)
    async with led_by(api, NAMESPACE, standby):
        await until(api, TASKS, "refused", lambda t: state_of(t) == T.FAILED)
        await until(api, MIGRATIONS, "refused", lambda m: state_of(m) == M.FAILED)
        after = await check_settled(api, NAMESPACE, ZONE)
    assert stable_of(after) == stable_of(zone)


NEVER_STORED = {M.UPGRADE_CANDIDATE, M.UPDATE_METADATA_UP}
"""On the way of a takeover nothing is written (RM-02); that a failover makes the candidate lead
just then is played in `tests/simulation`."""


def test_every_stored_state_has_its_death() -> None:
    """A new state would come without an operator's process dying in it."""
    tasks = {T.PLANNED, *MOVING, *CANCELLING, T.FAILED}
    migrations = {M.SELECT_CANDIDATE, *MIGRATING, *ROLLING_BACK, M.FAILED, *NEVER_STORED}
    assert {*T} <= tasks
    assert {*M} - {M.UNCLEAN_ELECTION} <= migrations
