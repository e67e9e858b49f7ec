"""Reads what the commands show from the API server, now."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from rezone.cli.look import explain, planned, views
from rezone.domain.zone.what_if import Question
from rezone.kube.api.client import Kube
from rezone.kube.api.errors import MissingError
from rezone.kube.api.kinds import ConfigMap, Kind, MigrationKind, TaskKind, ZoneKind
from rezone.kube.api.names import COMPONENT_LABEL, ROUTES, ZONE_LABEL
from rezone.kube.jobs.loads import RateReader
from rezone.kube.stored.routes import RouteStore
from rezone.kube.stored.store import StatusStore
from rezone.report.document import Document
from rezone.report.reading import read_any_report, read_report, read_transfer_report
from rezone.report.task import TaskReport
from rezone.report.transfer import TransferReport
from rezone.resources.migration import RegionMigration
from rezone.resources.task import RebalanceTask
from rezone.resources.zone import DistributionZone

KINDS: Final = ("task", "transfer", "zone")
REPORTED_KINDS: Final = ("task", "transfer")


@dataclass(frozen=True)
class Watched:
    """Objects by whose changes a view becomes old."""

    kind: Kind
    zone: str = ""

    @property
    def labels(self) -> dict[str, str]:
        """The labels that select them."""
        return {ZONE_LABEL: self.zone, COMPONENT_LABEL: ROUTES} if self.zone else {}


@dataclass(frozen=True)
class Source:
    """How a view is read, and what makes it old; `namespace` None is all, "" the context's."""

    load: Callable[[Kube, str], Awaitable[Document]]
    watched: tuple[Watched, ...]
    namespace: str | None = ""


def zones(namespace: str | None) -> Source:
    """Return the source of `rezone zones`; None: the zones of all namespaces."""

    async def load(kube: Kube, place: str) -> views.ZoneList:
        within = None if namespace is None else place
        return views.zone_list(await StatusStore(kube).list(DistributionZone, within))

    return Source(load, (Watched(ZoneKind),), namespace)


def progress(zone: str, namespace: str) -> Source:
    """Return the source of `rezone progress`."""

    async def load(kube: Kube, place: str) -> views.Progress:
        found = await StatusStore(kube).read(DistributionZone, place, zone)
        migrations = await StatusStore(kube).list_all(
            RegionMigration, place, fields={"spec.zoneName": zone}
        )
        return views.progress(found, await tasks_of(kube, place, zone), migrations)

    watched = (Watched(ZoneKind), Watched(TaskKind), Watched(MigrationKind))
    return Source(load, watched, namespace)


def partition_map(zone: str, namespace: str) -> Source:
    """Return the source of `rezone map`."""

    async def load(kube: Kube, place: str) -> views.PartitionMap:
        found = await StatusStore(kube).read(DistributionZone, place, zone)
        return views.partition_map(found, await RouteStore(kube, found).load())

    return Source(load, (Watched(ConfigMap, zone),), namespace)


def top(zone: str, namespace: str) -> Source:
    """Return the source of `rezone top`."""
    readers: list[RateReader] = []

    async def load(kube: Kube, place: str) -> views.Top:
        # Between views of one connection rates go on from the counts of the last one.
        reader = readers[0] if readers else RateReader(kube)
        readers[:] = [reader]
        found = await StatusStore(kube).read(DistributionZone, place, zone)
        tasks = await tasks_of(kube, place, zone)
        records = await RouteStore(kube, found).load()
        return views.top(found, tasks, records, await reader.rates(found, wait=True))

    watched = (Watched(ZoneKind), Watched(TaskKind), Watched(ConfigMap, zone))
    return Source(load, watched, namespace)


def explanation(name: str, kind: str | None, namespace: str) -> Source:
    """Return the source of `rezone explain-wait`: of the first kind that has the name."""

    async def load(kube: Kube, place: str) -> explain.Explanation:
        for each in KINDS if kind is None else (kind,):
            found = await _explain(kube, place, name, each)
            if found is not None:
                return found
        wanted = kind or "RebalanceTask, RegionMigration or DistributionZone"
        raise MissingError(f"there is no {wanted} {place}/{name}")

    return Source(load, (), namespace)


async def _explain(kube: Kube, place: str, name: str, kind: str) -> explain.Explanation | None:
    store, now = StatusStore(kube), datetime.now(UTC)
    if kind == "task":
        task = await store.find(RebalanceTask, place, name)
        if task is None:
            return None
        zone = await store.find(DistributionZone, place, task.spec.zone_name)
        return explain.explain_task(task, zone, now)
    if kind == "transfer":
        moved = await store.find(RegionMigration, place, name)
        if moved is None:
            return None
        zone = await store.find(DistributionZone, place, moved.spec.zone_name)
        return explain.explain_migration(moved, zone, now)
    zone = await store.find(DistributionZone, place, name)
    if zone is None:
        return None
    return explain.explain_zone(zone, await tasks_of(kube, place, name), now)


def what_if(zone: str, namespace: str, question: Question, partition_bytes: int | None) -> Source:
    """Return the source of `rezone what-if`; ValueError of `load` when it contradicts the zone."""

    async def load(kube: Kube, place: str) -> views.WhatIf:
        found = await StatusStore(kube).read(DistributionZone, place, zone)
        tasks = await tasks_of(kube, place, zone)
        records = await RouteStore(kube, found).load()
        size = planned.size_of(tasks, partition_bytes)
        return planned.what_if(found, records, question, size, datetime.now(UTC))

    return Source(load, (), namespace)


def report(name: str, kind: str | None, namespace: str) -> Source:
    """Return the source of `rezone report`: of the first kind that has the name."""
    readers = {None: read_any_report, "task": read_report, "transfer": read_transfer_report}

    async def load(kube: Kube, place: str) -> TaskReport | TransferReport:
        return await readers[kind](kube, place, name)

    return Source(load, (), namespace)


async def tasks_of(kube: Kube, namespace: str, zone: str) -> tuple[RebalanceTask, ...]:
    """Return the RebalanceTasks of a zone."""
    fields = {"spec.zoneName": zone}
    return await StatusStore(kube).list_all(RebalanceTask, namespace, fields=fields)
