"""Objects from the API server, as pages need them: always read now, with the user's rights."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from rezone.domain.routing.route_records import RouteRecords
from rezone.kube.api.client import Kube
from rezone.kube.api.errors import KubeError, MissingError
from rezone.kube.api.kinds import Kind, Manifest, SparkApplication
from rezone.kube.api.names import COMPONENT_LABEL, TRANSFER, ZONE_LABEL
from rezone.kube.jobs.loads import RateReader
from rezone.kube.stored.routes import RouteStore
from rezone.kube.stored.store import StatusStore
from rezone.report.task import TaskReport
from rezone.report.transfer import TransferReport
from rezone.resources.migration import RegionMigration
from rezone.resources.model import CustomObject
from rezone.resources.task import RebalanceTask
from rezone.resources.zone import DistributionZone

Report = TaskReport | TransferReport
ReadReport = Callable[[Kube, str, str], Awaitable[Report]]

O = TypeVar("O", bound=CustomObject[Any, Any])  # noqa: E741 - the object

LISTED_MAX: Final = 20
"""Of a zone's tasks and leader transfers the newest are listed, up to so many of each."""


@dataclass(frozen=True)
class ObservedZone:
    """A zone and its route table; `problem` says why the table is missing.

    `jobs_problem` says why its SparkApplications are missing; there are none where their kind does
    not exist.
    """

    zone: DistributionZone
    routes: RouteRecords
    problem: str = ""
    tasks: tuple[RebalanceTask, ...] = ()
    migrations: tuple[RegionMigration, ...] = ()
    applications: tuple[Manifest, ...] = ()
    jobs_problem: str = ""


class Reader:
    """Reads and changes objects; belongs to one event loop. All methods raise KubeError."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._store = StatusStore(kube)

    async def zones(self, namespace: str | None) -> tuple[DistributionZone, ...]:
        """Return the zones of a namespace, None: of all."""
        return await self._store.list(DistributionZone, namespace)

    async def zone(self, namespace: str, name: str) -> ObservedZone:
        """Return a zone with its routes, tasks and migrations."""
        seen = await self._routes(await self._store.read(DistributionZone, namespace, name))
        wanted = {"spec.zoneName": name}
        tasks = await self._store.list_all(RebalanceTask, namespace, fields=wanted)
        migrations = await self._store.list_all(RegionMigration, namespace, fields=wanted)
        seen = await self._jobs(seen)
        return replace(seen, tasks=_newest(tasks), migrations=_newest(migrations))

    async def _jobs(self, seen: ObservedZone) -> ObservedZone:
        metadata = seen.zone.metadata
        labels = {ZONE_LABEL: metadata.name, COMPONENT_LABEL: TRANSFER}
        try:
            found = await self._kube.list(SparkApplication, metadata.namespace, labels=labels)
        except MissingError:
            return seen
        except KubeError as error:
            return replace(seen, jobs_problem=str(error))
        return replace(seen, applications=tuple(found))

    async def task(self, kind: type[O], namespace: str, name: str) -> O:
        """Return a task."""
        return await self._store.read(kind, namespace, name)

    async def routes(self, task: RebalanceTask) -> RouteRecords:
        """Return the routes of a task's zone, none where they cannot be read."""
        zone = await self._store.find(
            DistributionZone, task.metadata.namespace, task.spec.zone_name
        )
        return (await self._routes(zone)).routes if zone is not None else RouteRecords()

    def rate_reader(self) -> RateReader:
        """Return what reads the rates of one zone, from one look to the next."""
        return RateReader(self._kube)

    async def report(self, read: ReadReport, namespace: str, name: str) -> Report:
        """Return the report of a task, as `read` makes it."""
        return await read(self._kube, namespace, name)

    async def patch(self, kind: Kind, namespace: str, name: str, patch: Manifest) -> None:
        """Merge a patch into an object."""
        await self._kube.merge(kind, namespace, name, patch)

    async def _routes(self, zone: DistributionZone) -> ObservedZone:
        try:
            return ObservedZone(zone, await RouteStore(self._kube, zone).load())
        except KubeError as error:
            # A damaged table, or no right to read it: all else is worth seeing then.
            return ObservedZone(zone, RouteRecords(), str(error))


def _newest(found: tuple[O, ...]) -> tuple[O, ...]:
    """Return the newest objects, the newest first."""
    return tuple(sorted(found, key=_age, reverse=True)[:LISTED_MAX])


def _age(each: CustomObject[Any, Any]) -> tuple[str, str]:
    created = each.metadata.creation_timestamp
    return (created.isoformat() if created is not None else "", each.metadata.name)
