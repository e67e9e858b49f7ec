"""How long one pass of the coordinator over the largest zone takes, 16,384 partitions of 3.

    PYTHONPATH=operator:benchmarks python benchmarks/control/zone_pass.py [--nodes 1000]
        [--resharding] [--profile]

Only the operator's own work is measured: the API server is a dictionary of JSON texts, data nodes
have reported and take calls at once. "zone" is a pass over the zone at rest, the first one of a
coordinator tells every node everything; "zone, moving" and "task" are passes while half of the
leaders move. The best of --repeat runs; with --profile where the time of each goes. "held" is the
longest that the event loop went without a turn for others, by the clock and by its CPU time.

With --resharding the zone has a second table of as many new partitions, and half of the old ones
have cut over; then only the passes over the zone are measured.
"""

import argparse
import asyncio
import cProfile
import functools
import json
import logging
import pstats
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import structlog

from rezone.controller.coordination.coordinator import Coordinator
from rezone.controller.nodes.monitor import WatchedNode
from rezone.controller.nodes.node_state import delta_of, with_answer
from rezone.controller.reconcile.task import TaskReconciler
from rezone.controller.reconcile.zone import ZoneReconciler
from rezone.controller.work.keys import Kind, ObjectKey, ZoneKey
from rezone.controller.work.settings import CoordinatorSettings
from rezone.domain.assignment import assignments
from rezone.domain.routing import routes
from rezone.domain.routing.route_records import RouteRecords
from rezone.domain.routing.topology_text import Topology
from rezone.kube.api import kinds
from rezone.kube.api.errors import MissingError
from rezone.kube.api.kinds import Manifest
from rezone.kube.nodes.data_node import PodSettings, build_pod
from rezone.kube.stored.routes import RouteStore
from rezone.resources.machine_status import Transition
from rezone.resources.task import PlanSummary, RebalanceTask, RebalanceTaskStatus
from rezone.resources.zone import DistributionZone
from rezone.resources.zone_status import Assignments, DataNodeState, DataNodeStatus
from rezone.wire.messages import (
    Ack,
    LeaderAndIsr,
    NodeReport,
    ReplicaReport,
    Role,
    decode,
    encode,
)

NAMESPACE = "default"
REVISION = 2_000_000


class StoredApi:
    """As much of `Kube` as the passes need."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], str] = {}
        self.written_bytes = 0
        self._version = 1_000_000

    def put(self, kind: str, body: Manifest) -> Manifest:
        """Store an object and return it as stored."""
        self._version += 1
        body["metadata"]["resourceVersion"] = str(self._version)
        text = json.dumps(body, separators=(",", ":"))
        self.written_bytes += len(text)
        self.objects[kind, body["metadata"]["name"]] = text
        stored: Manifest = json.loads(text)
        return stored

    async def get(self, kind: kinds.Kind, _namespace: str, name: str) -> Manifest:
        """Return an object."""
        text = self.objects.get((kind.name, name))
        if text is None:
            raise MissingError(name)
        found: Manifest = json.loads(text)
        return found

    async def find(self, kind: kinds.Kind, namespace: str, name: str) -> Manifest | None:
        """Return an object or None."""
        try:
            return await self.get(kind, namespace, name)
        except MissingError:
            return None

    async def list(
        self,
        kind: kinds.Kind,
        _namespace: str | None = None,
        *,
        labels: Mapping[str, str] | None = None,
        fields: Mapping[str, str] | None = None,
    ) -> list[Manifest]:
        """Return all of a kind that carry the labels; there is one zone only."""
        del fields
        found = [json.loads(t) for (k, _), t in self.objects.items() if k == kind.name]
        wanted = (labels or {}).items()
        return [f for f in found if wanted <= (f["metadata"].get("labels") or {}).items()]

    async def create(self, kind: kinds.Kind, body: Manifest) -> Manifest:
        """Store a new object."""
        body["metadata"].setdefault("uid", f"uid-{self._version}")
        return self.put(kind.name, body)

    async def replace(self, kind: kinds.Kind, body: Manifest) -> Manifest:
        """Store an object again."""
        return self.put(kind.name, body)

    async def apply(self, kind: kinds.Kind, body: Manifest) -> Manifest:
        """Store an object."""
        return self.put(kind.name, body)

    async def replace_status(self, kind: kinds.Kind, body: Manifest) -> Manifest:
        """Store the status of an object."""
        stored = await self.get(kind, NAMESPACE, body["metadata"]["name"])
        return self.put(kind.name, {**stored, "status": body["status"]})


class SilentClient:
    """A data node that takes every call."""

    def call(self, request: Any, *_: Any, encoded: bytes | None = None, **__: Any) -> Ack:
        """Encode the call as the wire would."""
        if encoded is None:
            encode(request)
        return Ack()


def placed(partitions: int, nodes: int) -> Topology:
    """Return an assignment of three replicas each."""
    return tuple(tuple((p * 7 + i * 13) % nodes for i in range(3)) for p in range(partitions))


def zone_of(topology: Topology, nodes: int) -> Manifest:
    """Return the stored zone at rest."""
    spec = {
        "partitions": len(topology),
        "replicas": 3,
        "minInSyncReplicas": 2,
        "storage": {"engine": "Memory"},
        "dataNodes": {"count": nodes},
    }
    meta = {
        "name": "large",
        "namespace": NAMESPACE,
        "uid": "uid-zone",
        "generation": 1,
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    keys = assignments.first(Assignments(), topology, 1)
    members = [
        DataNodeStatus(
            id=n,
            state=DataNodeState.ACTIVE,
            pod_name=f"large-{n}",
            node_name=f"worker-{n}",
            address=f"10.0.{n // 250}.{n % 250}:7400",
            failure_domain=f"domain-{n % 3}",
        ).dump()
        for n in range(nodes)
    ]
    status = {"assignments": keys.dump(), "dataNodes": members, "nextNodeId": nodes}
    return {
        "apiVersion": "rezone.dev/v1alpha1",
        "kind": "DistributionZone",
        "metadata": meta,
        "spec": spec,
        "status": status,
    }


def report_of(node: int, table: RouteRecords, version: int = 1) -> NodeReport:
    """Return what a data node says when all is well."""
    return NodeReport(
        node=node,
        zone_uid="uid-zone",
        version=version,
        coordinator_epoch=1,
        process_id="p",
        replicas=tuple(
            ReplicaReport(
                partition=p,
                role=Role.LEADER if r.leader == node else Role.FOLLOWER,
                leader=r.leader,
                leader_epoch=r.leader_epoch,
                partition_epoch=r.partition_epoch,
                follower_offsets=dict.fromkeys(r.replicas, 0) if r.leader == node else {},
            )
            for p, r in table.items()
            if node in r.replicas
        ),
    )


def pods_of(zone: DistributionZone, nodes: int, api: StoredApi) -> None:
    """Store the running pods and their Kubernetes nodes."""
    for n in range(nodes):
        pod = build_pod(zone, n, PodSettings(image="image"))
        pod["metadata"]["uid"] = f"uid-pod-{n}"
        pod["spec"]["nodeName"] = f"worker-{n}"
        ready = [{"type": "Ready", "status": "True"}]
        pod["status"] = {"phase": "Running", "podIP": f"10.0.{n // 250}.{n % 250}"}
        pod["status"]["conditions"] = ready
        api.put("Pod", pod)
        api.put("Node", {"metadata": {"name": f"worker-{n}"}, "status": {"conditions": ready}})


class Holds:
    """The longest that the event loop gives nobody else a turn, in seconds."""

    def __init__(self) -> None:
        self.clock = self.cpu = 0.0

    async def watch(self) -> None:
        """Take turns for ever."""
        while True:
            begun, used = time.perf_counter(), time.thread_time()
            await asyncio.sleep(0)
            self.clock = max(self.clock, time.perf_counter() - begun)
            self.cpu = max(self.cpu, time.thread_time() - used)


async def timed(name: str, run: Callable[[], Awaitable[Any]], repeat: int) -> None:
    """Print the best time of a pass, and how long the worst of all runs held the loop."""
    seconds, holds = float("inf"), Holds()
    for _ in range(repeat):
        watching = asyncio.get_running_loop().create_task(holds.watch())
        await asyncio.sleep(0)
        begun = time.perf_counter()
        await run()
        seconds = min(seconds, time.perf_counter() - begun)
        await asyncio.sleep(0)
        watching.cancel()
    print(f"{name:<22} {seconds:6.2f} s, held {holds.clock:5.2f} s, CPU {holds.cpu:5.2f} s")


async def profiled(run: Callable[[], Awaitable[Any]]) -> None:
    """Print where the time goes."""
    with cProfile.Profile() as profile:
        await run()
    pstats.Stats(profile).sort_stats("cumulative").print_stats(30)


async def measure(given: argparse.Namespace) -> None:
    """Print one line for each kind of pass."""
    api: Any = StoredApi()
    topology = placed(given.partitions, given.nodes)
    body = api.put("DistributionZone", zone_of(topology, given.nodes))
    zone = DistributionZone.parse(body)
    print(f"the zone has {len(json.dumps(body)):,} bytes")
    settings = CoordinatorSettings(data_node_image="image")
    coordinator = Coordinator(api, settings, epoch=2)
    # Passes run when they are measured, not when they are woken.
    await coordinator.queue.close()
    pods_of(zone, given.nodes, api)
    table = RouteRecords(opened(topology))
    if given.resharding:
        pend_next(api, topology)
        halves = [msgspec.structs.replace(r, sealed=p % 2 == 0) for p, r in table.items()]
        table = RouteRecords(halves).with_next(opened(topology), 1)
    for layout in table.layouts:
        records = table.of(layout.generation)
        await RouteStore(api, zone).create(records, layout.generation)
    runtime = coordinator.runtime(ZoneKey(NAMESPACE, "large"), "uid-zone")
    reports = [report_of(n, table) for n in range(given.nodes)]
    for n, report in enumerate(reports):
        address = f"10.0.{n // 250}.{n % 250}:7400"
        client: Any = SilentClient()
        watched = WatchedNode(n, address, client, node_state=with_answer(None, report))
        runtime.monitor._nodes[n] = watched  # noqa: SLF001 - there is no process to poll
    passes = ZoneReconciler(coordinator)
    key = ObjectKey(Kind.ZONE, NAMESPACE, "large")

    async def first_pass() -> None:
        runtime._routes = None  # noqa: SLF001 - as after a doubt
        await passes.reconcile(key)

    await timed("zone, the first pass", first_pass, 1)
    await timed("zone, routes read again", first_pass, given.repeat)
    await timed("zone", lambda: passes.reconcile(key), given.repeat)
    require_whole_pass(api)
    encoded = [encode(report) for report in reports]
    await timed(
        "a report of each node", functools.partial(take_news, reports, encoded), given.repeat
    )
    if given.resharding:
        await coordinator.close()
        return
    moved = tuple((r[1], r[2], r[0]) if p % 2 else r for p, r in enumerate(topology))
    put_task(api, topology, moved)
    tasks = TaskReconciler(coordinator)
    task_key = ObjectKey(Kind.TASK, NAMESPACE, "task")
    await timed("task", lambda: tasks.reconcile(task_key), given.repeat)
    await timed("zone, moving", lambda: passes.reconcile(key), given.repeat)
    if given.profile:
        await profiled(first_pass)
        await profiled(lambda: tasks.reconcile(task_key))
        await profiled(lambda: passes.reconcile(key))
    await coordinator.close()


async def take_news(reports: Sequence[NodeReport], encoded: Sequence[bytes]) -> None:
    """Take a report of each node as the monitor does, each behind one that says the same."""
    for old, text in zip(reports, encoded, strict=True):
        new = decode(text)
        assert isinstance(new, NodeReport)
        delta_of(with_answer(None, old), with_answer(None, new))


def require_whole_pass(api: StoredApi) -> None:
    """End the run if a pass has ended before it judged the zone: then it measures nothing."""
    zone = json.loads(api.objects["DistributionZone", "large"])
    if not zone["status"].get("conditions"):
        raise SystemExit("the passes over the zone do not come to their end")


def opened(topology: Topology) -> list[LeaderAndIsr]:
    """Return the records of partitions that all their replicas have opened."""
    confirmed = [routes.confirm(routes.initial(row, 1), 1) for row in topology]
    return [record for record in confirmed if isinstance(record, LeaderAndIsr)]


def pend_next(api: StoredApi, target: Topology) -> None:
    """Make the assignment of the next layout pending."""
    body = json.loads(api.objects["DistributionZone", "large"])
    pending = {"revision": REVISION, "replicas": assignments.compact(target), "layoutVersion": 1}
    changed = {"pending": pending, "change": REVISION, "lastLayoutVersion": 1}
    body["status"]["assignments"] |= changed
    api.put("DistributionZone", body)


def put_task(api: StoredApi, source: Topology, target: Topology) -> None:
    """Make a rebalance pending that moves leaders, with its task on the way."""
    body = json.loads(api.objects["DistributionZone", "large"])
    pending = {"revision": REVISION, "replicas": assignments.compact(target)}
    body["status"]["assignments"] |= {"pending": pending, "change": REVISION}
    api.put("DistributionZone", body)
    status = RebalanceTaskStatus(
        state="Switching",
        source=assignments.compact(source),
        target=assignments.compact(target),
        revision=REVISION,
        history=(Transition(state="Switching", time=datetime.now(UTC)),),
        plan=PlanSummary(hash="h", moves=0, moves_lower_bound=0),
    )
    task = {
        "apiVersion": "rezone.dev/v1alpha1",
        "kind": "RebalanceTask",
        "metadata": {"name": "task", "namespace": NAMESPACE, "uid": "uid-task", "generation": 1},
        "spec": {"zoneName": "large", "revision": REVISION},
        "status": status.dump(),
    }
    RebalanceTask.parse(task)
    api.put("RebalanceTask", task)


def main() -> None:
    """Run all passes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--partitions", type=int, default=16_384)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--resharding", action="store_true")
    parser.add_argument("--profile", action="store_true")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
