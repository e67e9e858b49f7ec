"""The coordinator dies at every state it persists, before and after the write (issue 3).

Deterministic: the reconcile loops run in this process against the real API server and real data
nodes, and end exactly at the write. `test_controller_killed` kills the real process besides.

`make test` ends them at every second state, before or after its write, for `test_controller_killed`
has a death in each; `make chaos-operator` ends them at each, before and after.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import pytest
from crash_points import CrashPoint
from crashing_operator import InProcessOperator
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
    remove_zone,
    routes_of,
    stable_of,
    state_of,
    task_manifest,
    until,
)
from operator_process import EVERY_POINT

from rezone.controller.work.keys import Kind
from rezone.local.api import Json, KubeApi
from rezone.resources.migration import MigrationState
from rezone.resources.task import TaskState

pytestmark = [pytest.mark.apiserver, pytest.mark.slow, pytest.mark.timeout(240)]

NAMESPACE = "default"
ZONE = "crash"
NODES = ("worker-1", "worker-2", "worker-3", "worker-4")
ZONE_PATH = f"{path_of(NAMESPACE, 'distributionzones')}/{ZONE}"
TASKS = path_of(NAMESPACE, "rebalancetasks")
MIGRATIONS = path_of(NAMESPACE, "regionmigrations")

epochs = itertools.count(1)
numbers = itertools.count(1)


@pytest.fixture(scope="module")
def zone(cluster: TestCluster) -> Iterator[str]:
    """Make the zone that all tests of this module move around; no operator runs between them."""

    async def make() -> None:
        async with (
            KubeApi(cluster.kubeconfig) as api,
            InProcessOperator(cluster.kubeconfig, NAMESPACE, next(epochs)),
        ):
            await make_zone(cluster, api, NAMESPACE, ZONE, NODES)
        await abort_connections(set())

    async def remove() -> None:
        async with KubeApi(cluster.kubeconfig) as api:
            await remove_zone(api, NAMESPACE, ZONE)
        await abort_connections(set())

    asyncio.run(make())
    yield ZONE
    asyncio.run(remove())


async def a_move(api: KubeApi) -> tuple[int, tuple[int, ...], int]:
    """Return a partition, where it shall go (its leader to a node without a copy), its leader."""
    found = await api.get(ZONE_PATH)
    partition = next(numbers) % 4
    record = (await routes_of(api, NAMESPACE, ZONE))[partition]
    nodes = {n["id"] for n in found["status"]["dataNodes"]}
    new = min(nodes - set(record.replicas))
    kept = tuple(n for n in stable_of(found)[partition] if n != record.leader)
    return partition, (new, *kept), record.leader


async def crash_at(cluster: TestCluster, kind: Kind, state: str, *, after: bool) -> None:
    """Run the operator until it dies at this state."""
    point = CrashPoint(f"{kind} {state}", after)
    async with InProcessOperator(cluster.kubeconfig, NAMESPACE, next(epochs), point) as operator:
        await operator.until_crash()


async def approval(api: KubeApi, mode: str) -> None:
    """Say whether plans wait for a person."""
    await api.patch(ZONE_PATH, {"spec": {"rebalance": {"approval": mode}}})


State = TypeVar("State")


def some(deaths: Sequence[tuple[State, bool]]) -> list[tuple[State, bool]]:
    """Return states and whether to die behind their write: every second one, or all and both."""
    if not EVERY_POINT:
        return [*deaths[::2]]
    return [(state, after) for state, _ in deaths for after in (False, True)]


def ends(states: frozenset[str]) -> Callable[[Json], bool]:
    """Return the predicate that waits for an end."""
    return lambda found: state_of(found) in states


TASK_DEATHS = (
    (TaskState.PLANNED, True),
    (TaskState.APPROVED, True),
    (TaskState.AWAITING_REPLICAS, False),
    (TaskState.TRANSFERRING, True),
    (TaskState.SWITCHING, True),
    (TaskState.FINALIZING, False),
    (TaskState.STOPPING_REDUNDANT, True),
    (TaskState.SUCCEEDED, True),
)
"""Not the moment at which `test_controller_killed` dies."""


@pytest.mark.proves("RM-02", "ZR-13", "B-05")
@pytest.mark.parametrize(("state", "after"), some(TASK_DEATHS))
async def test_task_goes_on_after_a_crash(
    cluster: TestCluster, api: KubeApi, zone: str, state: TaskState, *, after: bool
) -> None:
    """A coordinator that dies anywhere in a rebalance would leave it half done, or lose rows."""
    before = await api.get(ZONE_PATH)
    partition, replicas, old = await a_move(api)
    name = f"move-{next(numbers)}"
    manual = state is TaskState.PLANNED
    # An automatic plan is approved in the pass that makes it; only a person's word takes time.
    await approval(api, "Manual" if manual else "Automatic")
    with Writer(addresses_of(before).values()) as writer:
        cluster.apply(task_manifest(NAMESPACE, name, zone, {partition: replicas}))
        await crash_at(cluster, Kind.TASK, state, after=after)
        stored = state_of(await api.get(f"{TASKS}/{name}"))
        assert (stored == state) == after, f"{stored} is stored"
        await asyncio.to_thread(writer.wait_for_more)
        async with InProcessOperator(cluster.kubeconfig, NAMESPACE, next(epochs)):
            if manual:
                await _approve(api, name)
            task = await until(api, TASKS, name, ends(TERMINAL_TASKS))
            assert state_of(task) == "Succeeded", task["status"]
            await _check_moved(api, partition, replicas, old)
    await asyncio.to_thread(writer.check)


async def _approve(api: KubeApi, name: str) -> None:
    planned = await until(api, TASKS, name, lambda found: (found.get("status") or {}).get("plan"))
    word = planned["status"]["plan"]["hash"]
    await api.patch(f"{TASKS}/{name}", {"spec": {"approvedPlan": word}})


async def _check_moved(api: KubeApi, partition: int, replicas: tuple[int, ...], old: int) -> Json:
    found = await check_settled(api, NAMESPACE, ZONE)
    record = (await routes_of(api, NAMESPACE, ZONE))[partition]
    assert set(record.replicas) == set(replicas)
    assert record.leader == replicas[0]
    assert old not in record.replicas
    assert tuple(stable_of(found)[partition]) == replicas
    return found


CANCEL_DEATHS = ((TaskState.CANCELLING, True), (TaskState.CANCELLED, False))


@pytest.mark.parametrize(("state", "after"), some(CANCEL_DEATHS))
async def test_cancel_goes_on_after_a_crash(
    cluster: TestCluster, api: KubeApi, zone: str, state: TaskState, *, after: bool
) -> None:
    """A coordinator that dies while it takes a rebalance back would leave the zone between two."""
    before = await api.get(ZONE_PATH)
    await approval(api, "Automatic")
    partition, replicas, old = await a_move(api)
    name = f"cancel-{next(numbers)}"
    with Writer(addresses_of(before).values()) as writer:
        cluster.apply(task_manifest(NAMESPACE, name, zone, {partition: replicas}))
        await crash_at(cluster, Kind.TASK, TaskState.TRANSFERRING, after=True)
        await api.patch(f"{TASKS}/{name}", {"spec": {"cancel": True}})
        await crash_at(cluster, Kind.TASK, state, after=after)
        async with InProcessOperator(cluster.kubeconfig, NAMESPACE, next(epochs)):
            task = await until(api, TASKS, name, ends(TERMINAL_TASKS))
            assert state_of(task) == "Cancelled", task["status"]
            found = await check_settled(api, NAMESPACE, zone)
    assert stable_of(found) == stable_of(before)
    record = (await routes_of(api, NAMESPACE, zone))[partition]
    assert set(record.replicas) == set(stable_of(before)[partition])
    assert record.leader == old
    await asyncio.to_thread(writer.check)


MIGRATION_DEATHS = (
    (MigrationState.SELECT_CANDIDATE, True),
    (MigrationState.OPEN_CANDIDATE, True),
    (MigrationState.UPDATE_METADATA_DOWN, False),
    (MigrationState.DOWNGRADE_LEADER, False),
    (MigrationState.CLOSE_OLD_LEADER, False),
    (MigrationState.SUCCEEDED, True),
)


@pytest.mark.proves("RM-02", "RM-06")
@pytest.mark.parametrize(("state", "after"), some(MIGRATION_DEATHS))
async def test_migration_goes_on_after_a_crash(
    cluster: TestCluster, api: KubeApi, zone: str, state: MigrationState, *, after: bool
) -> None:
    """A coordinator that dies while a leader moves would leave two leaders, none, or a copy."""
    before = await api.get(ZONE_PATH)
    partition, (new, *_), old = await a_move(api)
    name = f"migrate-{next(numbers)}"
    await api.patch(
        ZONE_PATH, {"spec": {"rebalance": {"paused": state is MigrationState.SELECT_CANDIDATE}}}
    )
    with Writer(addresses_of(before).values()) as writer:
        cluster.apply(
            migration_manifest(NAMESPACE, name, zone, partition, new, oldLeaderPolicy="Remove")
        )
        await crash_at(cluster, Kind.MIGRATION, state, after=after)
        stored = state_of(await api.get(f"{MIGRATIONS}/{name}"))
        assert (stored == state) == after, f"{stored} is stored"
        await asyncio.to_thread(writer.wait_for_more)
        await api.patch(ZONE_PATH, {"spec": {"rebalance": {"paused": False}}})
        async with InProcessOperator(cluster.kubeconfig, NAMESPACE, next(epochs)):
            ended = await until(api, MIGRATIONS, name, ends(TERMINAL_MIGRATIONS))
            assert state_of(ended) == "Succeeded", ended["status"]
            await check_settled(api, NAMESPACE, zone)
            record = (await routes_of(api, NAMESPACE, zone))[partition]
            assert record.leader == new
            assert old not in record.replicas
            await _put_back(cluster, api, partition, old)
    await asyncio.to_thread(writer.check)


async def _put_back(cluster: TestCluster, api: KubeApi, partition: int, node: int) -> None:
    """Lead a partition from its assigned node again, for the next test."""
    record = (await routes_of(api, NAMESPACE, ZONE))[partition]
    name = f"back-{next(numbers)}"
    cluster.apply(
        migration_manifest(NAMESPACE, name, ZONE, partition, node, oldLeaderPolicy="Remove")
    )
    ended = await until(api, MIGRATIONS, name, ends(TERMINAL_MIGRATIONS))
    assert state_of(ended) == "Succeeded", (record, ended["status"])
    # Tools compare the generations: one that is never seen would leave it Progressing.
    late = await api.patch(f"{MIGRATIONS}/{name}", {"spec": {"cancel": True}})
    generation = late["metadata"]["generation"]
    assert generation > 1
    await until(
        api, MIGRATIONS, name, lambda m: m["status"].get("observedGeneration") == generation
    )
    await check_settled(api, NAMESPACE, ZONE)


ROLLBACK_DEATHS = (
    (MigrationState.UPDATE_METADATA_ROLLBACK, True),
    (MigrationState.ROLLED_BACK, True),
)


@pytest.mark.proves("RM-08", "DCP-11")
@pytest.mark.parametrize(("state", "after"), some(ROLLBACK_DEATHS))
async def test_rollback_goes_on_after_a_crash(
    cluster: TestCluster, api: KubeApi, zone: str, state: MigrationState, *, after: bool
) -> None:
    """A coordinator that dies while it restores the old leader would leave a partition unled."""
    before = await api.get(ZONE_PATH)
    record = (await routes_of(api, NAMESPACE, zone))[0]
    target = next(n for n in record.isr if n != record.leader)
    name = f"rollback-{next(numbers)}"
    with Writer(addresses_of(before).values()) as writer:
        cluster.apply(migration_manifest(NAMESPACE, name, zone, 0, target))
        # The intent is written, the takeover was not asked for yet.
        await crash_at(cluster, Kind.MIGRATION, MigrationState.DOWNGRADE_LEADER, after=True)
        await api.patch(f"{MIGRATIONS}/{name}", {"spec": {"cancel": True}})
        await crash_at(cluster, Kind.MIGRATION, state, after=after)
        async with InProcessOperator(cluster.kubeconfig, NAMESPACE, next(epochs)):
            ended = await until(api, MIGRATIONS, name, ends(TERMINAL_MIGRATIONS))
            assert state_of(ended) == "RolledBack", ended["status"]
            await check_settled(api, NAMESPACE, zone)
    restored = (await routes_of(api, NAMESPACE, zone))[0]
    assert restored.leader == record.leader
    assert restored.leader_epoch > record.leader_epoch + 1, "the candidate's epoch is not fenced"
    await asyncio.to_thread(writer.check)


UNKNOWN_NODE = 99
FAILED = TaskState.FAILED.value
"""The end of that name which tasks and migrations both have."""


@pytest.mark.parametrize(("kind", "after"), some(((Kind.TASK, True), (Kind.MIGRATION, False))))
async def test_what_cannot_be_done_fails_after_a_crash(
    cluster: TestCluster, api: KubeApi, zone: str, kind: Kind, *, after: bool
) -> None:
    """A plan that nobody can carry out would be tried for ever by one operator after the other."""
    before = await api.get(ZONE_PATH)
    name = f"refused-{next(numbers)}"
    if kind is Kind.TASK:
        cluster.apply(task_manifest(NAMESPACE, name, zone, {0: (UNKNOWN_NODE, 0)}))
    else:
        cluster.apply(migration_manifest(NAMESPACE, name, zone, 0, UNKNOWN_NODE))
    await crash_at(cluster, kind, FAILED, after=after)
    async with InProcessOperator(cluster.kubeconfig, NAMESPACE, next(epochs)):
        path = TASKS if kind is Kind.TASK else MIGRATIONS
        await until(api, path, name, ends(frozenset({FAILED})))
        found = await check_settled(api, NAMESPACE, zone)
    assert stable_of(found) == stable_of(before)


NEVER_STORED = {MigrationState.UPGRADE_CANDIDATE, MigrationState.UPDATE_METADATA_UP}
"""On the way of a takeover nothing is written (RM-02), or only when the coordinator was away."""
ELSEWHERE = {MigrationState.UNCLEAN_ELECTION}
"""Needs disks that are lost: `test_controller_recovering`."""


def test_every_stored_state_has_its_crash() -> None:
    """A new state would come without anybody dying in it."""
    tasks = {state for state, _ in (*TASK_DEATHS, *CANCEL_DEATHS)}
    migrations = {state for state, _ in (*MIGRATION_DEATHS, *ROLLBACK_DEATHS)}
    assert {*tasks, FAILED} == set(TaskState)
    assert {*migrations, FAILED} | NEVER_STORED | ELSEWHERE == set(MigrationState)
