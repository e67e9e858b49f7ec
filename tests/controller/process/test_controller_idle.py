"""What zones at rest cost the API server: reads, and not one write."""

from __future__ import annotations

import asyncio
import collections
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import pytest
from operated_cluster import abort_connections, open_connections
from still_nodes import StillNode

from rezone.controller.coordination.coordinator import Coordinator
from rezone.controller.reconcile.zone import ZoneReconciler
from rezone.controller.work.keys import Kind, ObjectKey, ZoneKey
from rezone.controller.work.settings import CoordinatorSettings
from rezone.kube.api.client import Kube, connect
from rezone.kube.api.kinds import Pod, PodDisruptionBudget, Service, ZoneKind
from rezone.kube.api.names import NODE_ID_LABEL
from rezone.kube.nodes.pods import LOOK_AGAIN_SECONDS, PodStore
from rezone.local.api import KubeApi
from rezone.resources.conditions import ConditionType
from rezone.resources.zone import DistributionZone

ZONES = 20
RESYNCS = 3
SETTLED_PASSES_MAX = 40


class CountingKube(Kube):
    """A connection that counts what it writes."""

    def __init__(self, kube: Kube) -> None:
        super().__init__(kube._connection, kube._settings)
        self.writes: collections.Counter[str] = collections.Counter()

    async def _send(self, call: Awaitable[Any], target: str, *, verb: str = "") -> Any:
        if verb:
            self.writes[f"{verb} {target}"] += 1
        return await super()._send(call, target, verb=verb)


async def _later(_key: ObjectKey) -> None:
    """Answer the queue, which news of data nodes wake: passes are the test's to run."""


class IdleOperator:
    """The reconcile loops in this process, passed through only when a test says so."""

    def __init__(self, kube: CountingKube, kubelet: KubeApi, namespace: str) -> None:
        self.kube = kube
        self._kubelet = kubelet
        self.seconds = 0.0
        self.nodes: dict[str, StillNode] = {}
        self.namespace = namespace
        self.coordinator = Coordinator(kube, CoordinatorSettings(), 1)
        pods = self.coordinator.pods
        self.coordinator.pods = PodStore(kube, pods._settings, monotonic=lambda: self.seconds)
        self.coordinator.monitors.connector = lambda _zone: self.nodes.__getitem__  # type: ignore[method-assign,assignment,return-value]
        self.coordinator.register(Kind.ZONE, _later)
        self._zones = ZoneReconciler(self.coordinator)

    async def make(self, name: str) -> None:
        """Create a zone of one partition on one data node."""
        body = {
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {
                "partitions": 1,
                "replicas": 1,
                "minInSyncReplicas": 1,
                "dataNodes": {"count": 1},
            },
        }
        await self.kube.create(ZoneKind, body)

    async def passes(self, names: list[str]) -> None:
        """Run one pass of every zone, eight at a time as the queue does."""
        slots = asyncio.Semaphore(8)

        async def one(name: str) -> None:
            async with slots:
                await self._zones.reconcile(ZoneKey(self.namespace, name).object_key)

        await asyncio.gather(*map(one, names))

    async def settle(self, names: list[str]) -> None:
        """Play the kubelet and run passes until every zone is Ready and nothing is written."""
        for _ in range(SETTLED_PASSES_MAX):
            before = self.kube.writes.total()
            await self.passes(names)
            written = self.kube.writes.total() - before
            await self._start_pods()
            if not written and await self._all_ready(names):
                return
        raise AssertionError(f"still written: {self.kube.writes.most_common(5)}")

    async def _start_pods(self) -> None:
        for pod in await self.kube.list(Pod, self.namespace):
            if (pod.get("status") or {}).get("podIP"):
                continue
            number = len(self.nodes) + 1
            ip = f"10.0.{number // 256}.{number % 256}"
            meta = pod["metadata"]
            self.nodes[f"{ip}:7400"] = StillNode(int(meta["labels"][NODE_ID_LABEL]))
            ready = {"type": "Ready", "status": "True"}
            status = {"phase": "Running", "podIP": ip, "conditions": [ready]}
            path = Pod.path(self.namespace, meta["name"], "status")
            await self._kubelet.patch(path, {"status": status})

    async def _all_ready(self, names: list[str]) -> bool:
        zones = await self.coordinator.store.list(DistributionZone, self.namespace)
        ready = [
            zone.metadata.name
            for zone in zones
            for each in (zone.status.conditions if zone.status is not None else ())
            if each.type == ConditionType.READY and each.status == "True"
        ]
        return set(names) <= set(ready)

    async def close(self) -> None:
        """End the polls."""
        for node in self.nodes.values():
            node.close()
        await self.coordinator.close()
        await self.kube.close()


@pytest.fixture
async def operator(crds: Path, kube: KubeApi, namespace: str) -> AsyncIterator[IdleOperator]:
    """Give an operator on the session's API server."""
    foreign = open_connections()
    made = IdleOperator(CountingKube(await connect(crds)), kube, namespace)
    try:
        yield made
    finally:
        await made.close()
        await abort_connections(foreign)


async def zones_at_rest(operator: IdleOperator, count: int) -> list[str]:
    """Make zones of one partition and wait until nothing is left to do."""
    names = [f"z{number}" for number in range(count)]
    for name in names:
        await operator.make(name)
    await operator.settle(names)
    operator.kube.writes.clear()
    return names


@pytest.mark.apiserver
@pytest.mark.slow
async def test_zones_at_rest_write_nothing(operator: IdleOperator) -> None:
    """Each zone would cost the API server and etcd a few writes a minute, for ever."""
    names = await zones_at_rest(operator, ZONES)
    for _ in range(RESYNCS):
        operator.seconds += LOOK_AGAIN_SECONDS + 1
        await operator.passes(names)
    assert not operator.kube.writes, operator.kube.writes


@pytest.mark.apiserver
@pytest.mark.slow
async def test_what_somebody_else_changed_is_put_right(operator: IdleOperator) -> None:
    """A zone at rest would stay unprotected, or unreachable, until the operator restarts."""
    (name,) = await zones_at_rest(operator, 1)
    kube, namespace = operator.kube, operator.namespace
    patch = {"spec": {"selector": {"somebody": "else"}}}
    await kube.merge(Service, namespace, name, patch)
    await kube.delete(PodDisruptionBudget, namespace, name)
    operator.seconds += LOOK_AGAIN_SECONDS + 1
    await operator.passes([name])
    service = await kube.get(Service, namespace, name)
    assert "somebody" not in service["spec"]["selector"]
    assert await kube.find(PodDisruptionBudget, namespace, name) is not None
    kube.writes.clear()
    operator.seconds += LOOK_AGAIN_SECONDS + 1
    await operator.passes([name])
    assert not kube.writes, kube.writes
