"""Objects and fakes that several tests of rezone.kube use."""

from __future__ import annotations

import asyncio
import copy
from datetime import UTC, datetime, timedelta
from typing import Any

from rezone.domain.routing import routes
from rezone.kube.api.client import Kube
from rezone.kube.api.errors import (
    ConflictWriteError,
    ExistsError,
    KubeError,
    UnavailableError,
)
from rezone.kube.api.kinds import Manifest, ZoneKind
from rezone.kube.stored.store import StatusStore
from rezone.resources.model import ObjectMeta
from rezone.resources.task import RebalanceTask, RebalanceTaskSpec
from rezone.resources.zone import DistributionZone
from rezone.resources.zone_status import DataNodeStatus
from rezone.wire.messages import LeaderAndIsr

NOW = datetime(2026, 5, 4, 12, 0, 0, tzinfo=UTC)


def zone_of(namespace: str = "ns", name: str = "orders", **spec: Any) -> DistributionZone:
    """Return a zone as if read from the API server."""
    body = {"partitions": 8, "replicas": 3, "dataNodes": {"count": 3}, **spec}
    metadata = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "resourceVersion": "1"}
    return DistributionZone.parse({"metadata": metadata, "spec": body})


async def stored_zone(
    api: Kube, namespace: str, name: str = "orders", **spec: Any
) -> DistributionZone:
    """Create a zone on the real API server and return it."""
    wanted = zone_of(namespace, name, **spec)
    body = {"metadata": {"name": name, "namespace": namespace}, "spec": wanted.spec.dump()}
    return DistributionZone.parse(await api.create(ZoneKind, body))


def task_of(zone: DistributionZone, name: str = "orders-1") -> RebalanceTask:
    """Return a new task of a zone."""
    meta = ObjectMeta(name=name, namespace=zone.metadata.namespace, uid=f"uid-{name}")
    return RebalanceTask(metadata=meta, spec=RebalanceTaskSpec(zone_name=zone.metadata.name))


async def stored_task(api: Kube, zone: DistributionZone, name: str = "orders-1") -> RebalanceTask:
    """Create a task on the real API server and return it."""
    return await StatusStore(api).create(task_of(zone, name), zone)


def data_nodes(*ids: int, node_name: str = "") -> tuple[DataNodeStatus, ...]:
    """Return data nodes of these ids."""
    return tuple(DataNodeStatus(id=i, pod_name=f"orders-{i}", node_name=node_name) for i in ids)


def records_of(count: int, coordinator_epoch: int = 1) -> tuple[LeaderAndIsr, ...]:
    """Return first records of so many partitions."""
    return tuple(routes.initial((p % 3, (p + 1) % 3), coordinator_epoch) for p in range(count))


class FakeClock:
    """Time that passes only when a test says so; each process may see it from its own start."""

    def __init__(self, start: float = 1000.0) -> None:
        self.time = start
        self._sleepers: list[tuple[float, float, asyncio.Future[None]]] = []
        self._changed = asyncio.Event()

    def now(self) -> datetime:
        """Return the wall clock."""
        return NOW + timedelta(seconds=self.time)

    def monotonic(self) -> float:
        """Return virtual seconds."""
        return self.time

    async def sleep(self, seconds: float) -> None:
        """Return when `advance` has passed this many seconds."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self.time + seconds, seconds, future))
        self._changed.set()
        await future

    async def parked(self, seconds: float) -> None:
        """Wait until a task sleeps that asked for exactly this long."""
        while not any(s == seconds and not f.done() for _, s, f in self._sleepers):
            self._changed.clear()
            await self._changed.wait()

    def advance(self, seconds: float) -> None:
        """Let time pass and wake who is due."""
        self.time += seconds
        due = [each for each in self._sleepers if each[0] <= self.time]
        self._sleepers = [each for each in self._sleepers if each[0] > self.time]
        for _, _, future in due:
            if not future.done():
                future.set_result(None)


async def settle() -> None:
    """Let all tasks run until they wait for a clock or each other."""
    for _ in range(40):
        await asyncio.sleep(0)


class FakeLeases:
    """What the election uses of `Kube`; a contract test proves it against the real one."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Manifest] = {}
        self.version = 0
        self.errors_before: list[KubeError] = []
        self.errors_after: list[KubeError] = []
        self.hang: asyncio.Event | None = None

    async def find(self, _kind: Any, namespace: str, name: str) -> Manifest | None:
        """Return a copy of the Lease."""
        await self._meddle()
        found = self.objects.get((namespace, name))
        return copy.deepcopy(found) if found else None

    async def create(self, _kind: Any, manifest: Manifest) -> Manifest:
        """Create it."""
        await self._meddle()
        key = self._key(manifest)
        if key in self.objects:
            raise ExistsError("exists")
        return self._store(key, {**manifest["metadata"], "uid": f"u{self.version}"}, manifest)

    async def replace(self, _kind: Any, manifest: Manifest) -> Manifest:
        """Replace it by compare-and-set."""
        await self._meddle()
        stored = self.objects.get(self._key(manifest))
        # The API server answers 409, not 404, when the body carries a uid.
        if (
            stored is None
            or stored["metadata"]["resourceVersion"] != manifest["metadata"]["resourceVersion"]
        ):
            raise ConflictWriteError("changed")
        metadata = {**manifest["metadata"], "uid": stored["metadata"]["uid"]}
        return self._store(self._key(manifest), metadata, manifest)

    async def _meddle(self) -> None:
        if self.hang is not None:
            await self.hang.wait()
        if self.errors_before:
            raise self.errors_before.pop(0)

    def _store(self, key: tuple[str, str], metadata: Manifest, manifest: Manifest) -> Manifest:
        self.version += 1
        metadata["resourceVersion"] = str(self.version)
        self.objects[key] = copy.deepcopy({**manifest, "metadata": metadata})
        if self.errors_after:
            raise self.errors_after.pop(0)
        return copy.deepcopy(self.objects[key])

    @staticmethod
    def _key(manifest: Manifest) -> tuple[str, str]:
        return manifest["metadata"]["namespace"], manifest["metadata"]["name"]


class Line:
    """One process's connection to shared Leases; it can be cut."""

    def __init__(self, leases: Any) -> None:
        self._leases = leases
        self.cut = False

    def __getattr__(self, name: str) -> Any:
        """Return a call that fails while the line is cut."""
        if self.cut:
            raise UnavailableError("the line is cut")
        return getattr(self._leases, name)
