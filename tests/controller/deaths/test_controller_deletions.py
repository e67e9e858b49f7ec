"""Objects of every kind are deleted in the middle of the operator's work; the others go on.

The operator's pass of a task or a leader transfer is held where it stores a state, before or after
that; then something is deleted, as a person does it, and the pass goes on with what it has decided
before. A second zone in another namespace is written to all along.

`make test-long` deletes something in some states; `make chaos-operator` everything in all of them.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest
from crashing_operator import InProcessOperator
from deleting import (
    SECONDS_MAX,
    Hold,
    Made,
    collection,
    delete_all,
    left_of,
    told_when_it_fails,
    until_nothing,
)
from operated_cluster import (
    TestCluster,
    Writer,
    abort_connections,
    addresses_of,
    check_settled,
    condition,
    data_nodes,
    make_zone,
    migration_manifest,
    path_of,
    routes_of,
    stable_of,
    task_manifest,
    until,
    wait_for_report,
)
from operator_process import EVERY_POINT

from rezone.local.api import Json, KubeApi
from rezone.resources.conditions import Reason
from rezone.resources.migration import MigrationState as M
from rezone.resources.task import TaskState as T
from rezone.wire.messages import LeaderAndIsr

pytestmark = [pytest.mark.apiserver, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]

NAMESPACE = "deletions"
ZONE = "deleted"
KEPT_NAMESPACE = "deletions-kept"
KEPT = "unharmed"
NODES = ("worker-1", "worker-2", "worker-3")
LAYOUT: Json = {
    "partitions": 2,
    "replicas": 2,
    "minInSyncReplicas": 1,
    "storage": {"volumeClaimTemplate": {"size": "64Mi"}},
    # Kubernetes looks at a namespace again after half of it.
    "dataNodes": data_nodes(
        NAMESPACE, ZONE, podTemplate={"spec": {"terminationGracePeriodSeconds": 20}}
    ),
}
KEPT_LAYOUT = {"partitions": 1, "replicas": 2, "minInSyncReplicas": 1}
SELECTOR = f"rezone.dev/zone={ZONE}"
ROUTES = f"{SELECTOR},app.kubernetes.io/component=routes"
NAME = "middle"

epochs = itertools.count(1)


@dataclasses.dataclass(frozen=True)
class Case:
    """One deletion: what, and in which state that is stored before it or after it."""

    state: T | M
    what: str
    after: bool

    @property
    def plural(self) -> str:
        """The kind of object whose state it is."""
        return "regionmigrations" if isinstance(self.state, M) else "rebalancetasks"

    @property
    def deed(self) -> str:
        """The write at which the pass is held."""
        return f"{'RegionMigration' if isinstance(self.state, M) else 'RebalanceTask'} {self.state}"

    def __str__(self) -> str:
        """Return its name in a report."""
        return f"{self.what}-{'after' if self.after else 'before'}-{self.state}"


# --- what is deleted -----------------------------------------------------------------------------


async def delete_itself(api: KubeApi, case: Case) -> None:
    """Delete the task or the leader transfer whose pass is held."""
    await api.delete(f"{path_of(NAMESPACE, case.plural)}/{NAME}")


async def delete_pod_of_leader(api: KubeApi, _: Case) -> None:
    """Delete the pod that leads the partition that moves."""
    leader = (await routes_of(api, NAMESPACE, ZONE))[0].leader
    await api.delete(f"{collection(NAMESPACE, 'pods')}/{ZONE}-{leader}")


async def delete_pods(api: KubeApi, _: Case) -> None:
    """Delete all of the zone's pods at once."""
    await delete_all(api, NAMESPACE, "pods", SELECTOR)


async def delete_claim_of_follower(api: KubeApi, _: Case) -> None:
    """Delete a follower's claim and its pod, and so its rows."""
    record = (await routes_of(api, NAMESPACE, ZONE))[1]
    node = next(n for n in record.replicas if n != record.leader)
    await api.delete(f"{collection(NAMESPACE, 'persistentvolumeclaims')}/{ZONE}-{node}-data")
    await api.delete(f"{collection(NAMESPACE, 'pods')}/{ZONE}-{node}")


async def delete_routes(api: KubeApi, _: Case) -> None:
    """Delete the route table."""
    await delete_all(api, NAMESPACE, "configmaps", ROUTES)


async def delete_service_and_budget(api: KubeApi, _: Case) -> None:
    """Delete what pods are found and spared by."""
    await delete_all(api, NAMESPACE, "services", SELECTOR)
    await delete_all(api, NAMESPACE, "poddisruptionbudgets", SELECTOR)


async def delete_zone(api: KubeApi, _: Case) -> None:
    """Delete the zone."""
    await api.delete(f"{path_of(NAMESPACE, 'distributionzones')}/{ZONE}")


async def delete_namespace(api: KubeApi, _: Case) -> None:
    """Delete the namespace with all that is in it."""
    await api.delete(f"/api/v1/namespaces/{NAMESPACE}")


DELETIONS: dict[str, Callable[[KubeApi, Case], Awaitable[None]]] = {
    "itself": delete_itself,
    "pod-of-leader": delete_pod_of_leader,
    "pods": delete_pods,
    "claim": delete_claim_of_follower,
    "routes": delete_routes,
    "service": delete_service_and_budget,
    "zone": delete_zone,
    "namespace": delete_namespace,
}
STATES: tuple[T | M, ...] = (
    T.APPROVED,
    T.AWAITING_REPLICAS,
    T.TRANSFERRING,
    T.SWITCHING,
    T.FINALIZING,
    T.STOPPING_REDUNDANT,
    T.SUCCEEDED,
    T.CANCELLED,
    M.SELECT_CANDIDATE,
    M.OPEN_CANDIDATE,
    M.UPDATE_METADATA_DOWN,
    M.DOWNGRADE_LEADER,
    M.CLOSE_OLD_LEADER,
    M.SUCCEEDED,
)
SOME = (
    Case(T.TRANSFERRING, "itself", after=True),
    Case(T.SWITCHING, "routes", after=True),
    Case(T.FINALIZING, "zone", after=False),
    Case(T.TRANSFERRING, "namespace", after=True),
)
CASES = (
    [Case(*each) for each in itertools.product(STATES, DELETIONS, (False, True))]
    if EVERY_POINT
    else SOME
)


# --- the zones -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kept(cluster: TestCluster) -> Iterator[Json]:
    """Make the zone that nothing of is deleted."""
    cluster.kubectl("create", "namespace", KEPT_NAMESPACE)

    async def make() -> Json:
        operator = InProcessOperator(cluster.kubeconfig, KEPT_NAMESPACE, next(epochs))
        async with KubeApi(cluster.kubeconfig) as api, operator:
            zone = await make_zone(
                cluster, api, KEPT_NAMESPACE, KEPT, NODES[:2], seconds=SECONDS_MAX, **KEPT_LAYOUT
            )
        await abort_connections(set())
        return zone

    yield asyncio.run(make())
    cluster.kubectl("delete", "namespace", KEPT_NAMESPACE, NAMESPACE, "--wait=false")


@pytest.fixture
async def written(kept: Json) -> AsyncIterator[Writer]:
    """Write to the kept zone all along: it must be served, and have all rows in the end."""
    with Writer(addresses_of(kept).values()) as writer:
        yield writer
        await asyncio.to_thread(writer.wait_for_more, 2, SECONDS_MAX)
    await asyncio.to_thread(writer.check)


async def bring_zone(cluster: TestCluster, api: KubeApi) -> Json:
    """Return the zone that things are deleted of, made again if the test before has deleted it."""
    await until(api, "/api/v1/namespaces", NAMESPACE, is_not_going, seconds=SECONDS_MAX)
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    cluster.apply(body)
    cluster.kubectl(
        "wait",
        f"--namespace={NAMESPACE}",
        "--for=create",
        "serviceaccount/default",
        "--timeout=90s",
    )
    return await make_zone(cluster, api, NAMESPACE, ZONE, NODES, seconds=SECONDS_MAX, **LAYOUT)


def is_not_going(namespace: Json) -> bool:
    """Return whether a namespace is not under deletion."""
    return "deletionTimestamp" not in namespace.get("metadata", {})


async def a_move(api: KubeApi, zone: Json) -> tuple[int, LeaderAndIsr, int]:
    """Return a partition, its record, and a data node without a copy, as soon as there is one."""
    nodes = {n["id"] for n in zone["status"]["dataNodes"]}
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            for partition, record in enumerate(await routes_of(api, NAMESPACE, ZONE)):
                if free := nodes - set(record.replicas):
                    return partition, record, min(free)
            await asyncio.to_thread(wait_for_report, addresses_of(zone).values())


async def begin(cluster: TestCluster, api: KubeApi, zone: Json, case: Case) -> None:
    """Ask for a move of a partition's leader to a node without a copy.

    What a deleted leader transfer has begun is retained for a while: then it is another partition.
    """
    partition, record, new = await a_move(api, zone)
    if case.plural == "regionmigrations":
        remove = {"oldLeaderPolicy": "Remove"}
        cluster.apply(migration_manifest(NAMESPACE, NAME, ZONE, partition, new, **remove))
        return
    kept = tuple(n for n in stable_of(zone)[partition] if n not in {record.leader, new})
    body = task_manifest(NAMESPACE, NAME, ZONE, {partition: (new, *kept)})
    body["spec"]["cancel"] = case.state is T.CANCELLED
    cluster.apply(body)


@pytest.mark.proves("OP-02", "B-14")
@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("case", CASES, ids=str)
async def test_something_is_deleted_in_the_middle(
    cluster: TestCluster, api: KubeApi, written: Writer, case: Case
) -> None:
    """A kept zone is whole again; of one that is gone nothing is left, and nothing is made.

    A pass that goes on with what it has seen before would bring back what a person has deleted, or
    end in an error that keeps it, or other zones, from going on.
    """
    hold = Hold(case.deed, after=case.after)
    operator = InProcessOperator(
        cluster.kubeconfig, KEPT_NAMESPACE, next(epochs), also=(NAMESPACE,), store=hold.store
    )
    async with operator, told_when_it_fails(cluster, api, NAMESPACE, KEPT_NAMESPACE):
        zone = await bring_zone(cluster, api)
        await begin(cluster, api, zone, case)
        made = Made(api, NAMESPACE)
        async with made.noted():
            async with hold.held():
                await DELETIONS[case.what](api, case)
                await asyncio.to_thread(written.wait_for_more, 2, SECONDS_MAX)
            await check_end(api, case, made)
        await check_settled(api, KEPT_NAMESPACE, KEPT, seconds=SECONDS_MAX)
        record = (await routes_of(api, KEPT_NAMESPACE, KEPT))[0]
    assert record.leader_epoch == 1, "a zone that nothing was deleted of has lost its leader"


async def check_end(api: KubeApi, case: Case, made: Made) -> None:
    """Wait for what is promised of the zone of which something was deleted."""
    if case.what == "namespace":
        # Kubernetes looks again only after half of the pods' grace of 90 s, once or twice.
        await until(
            api, "/api/v1/namespaces", NAMESPACE, lambda found: not found, seconds=SECONDS_MAX
        )
        assert not made.names, "something was made in a namespace that was being deleted"
        return
    if case.what == "zone":
        await until_nothing(lambda: left_of(api, NAMESPACE, ZONE))
        await check_without_zone(api, case)
        return
    await check_settled(api, NAMESPACE, ZONE, seconds=SECONDS_MAX)
    for plural in ("services", "poddisruptionbudgets"):
        found = await api.get(collection(NAMESPACE, plural), labelSelector=SELECTOR)
        assert len(found["items"]) == 1, f"there are {plural}: {found['items']}"
    if case.what == "itself":
        path = path_of(NAMESPACE, case.plural)
        names = [each["metadata"]["name"] for each in (await api.get(path))["items"]]
        assert NAME not in names, "it was made again"
    for plural in ("rebalancetasks", "regionmigrations"):
        await api.delete(f"{path_of(NAMESPACE, plural)}/{NAME}")


async def check_without_zone(api: KubeApi, case: Case) -> None:
    """Wait until what a person has applied for the zone says that there is none; delete it."""
    path = path_of(NAMESPACE, case.plural)
    done = {T.SUCCEEDED, T.CANCELLED, M.SUCCEEDED}

    def says_so(found: Json) -> bool:
        ended = (found.get("status") or {}).get("state") in done
        return ended or condition(found, "Stalled").get("reason") == Reason.ZONE_NOT_FOUND

    await until(api, path, NAME, says_so, seconds=SECONDS_MAX)
    await api.delete(f"{path}/{NAME}")
    await until(api, path, NAME, lambda found: not found, seconds=SECONDS_MAX)
