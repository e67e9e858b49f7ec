"""Reads what a support bundle has: objects, routes, logs, metrics, streams, stacks.

What cannot be read is named with its reason, and the rest goes on: a bundle is made when something
is broken. Time, bytes and numbers of objects are bounded; data nodes that are not ready come first.
"""

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from rezone.cli.bundle.archive import Archive
from rezone.cli.bundle.redact import redact, redact_text
from rezone.cli.look.views import Unread, partition_map
from rezone.kube.api.client import Kube
from rezone.kube.api.errors import KubeError, UnavailableError
from rezone.kube.api.kinds import (
    ConfigMap,
    Event,
    Kind,
    Lease,
    Manifest,
    MigrationKind,
    Node,
    PersistentVolumeClaim,
    Pod,
    PodDisruptionBudget,
    Service,
    SparkApplication,
    TaskKind,
    ZoneKind,
)
from rezone.kube.api.names import COMPONENT_LABEL, ROUTES, ZONE_LABEL
from rezone.kube.stored.lease import LEASE_NAME
from rezone.kube.stored.routes import RouteStore
from rezone.kube.stored.store import parse
from rezone.resources import GROUP
from rezone.resources.zone import DistributionZone

OBJECTS_MAX: Final = 2000
"""Of each kind."""

LOG_LINES_MAX: Final = (5000, 500, 50)
"""So many of the last lines; fewer where those are too long to be read."""
LOG_READ_BYTES_MAX: Final = 4 << 20
LOG_BYTES_MAX: Final = 1 << 20
PAGE_BYTES_MAX: Final = 2 << 20
WORKERS: Final = 8
WHY_CHARS_MAX: Final = 300

APP_LABEL: Final = "app.kubernetes.io/name"
PAGES: Final = {"metrics": "txt", "statistics": "json", "stacks": "txt"}
"""What a health port says, and the suffix of its file."""

_LABELLED: Final = (Pod, PersistentVolumeClaim, PodDisruptionBudget, Service, SparkApplication)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What is read; `zone` empty: all zones of the namespace. The operator is looked for by labels.

    `operator_namespace` empty: in all namespaces.
    """

    namespace: str
    zone: str = ""
    operator_namespace: str = ""
    seconds: float = 120.0


@dataclass(frozen=True)
class _Piece:
    """One file, and how it is read. Raises KubeError."""

    name: str
    read: Callable[[], Awaitable[bytes]]


@dataclass
class Collector:
    """Fills an archive; `unread` says what is not in it, or not whole, and why.

    `reserved_bytes` of the archive are left for others.
    """

    kube: Kube
    wanted: Wanted
    archive: Archive
    reserved_bytes: int = 0
    unread: list[Unread] = field(default_factory=list)

    async def run(self) -> None:
        """Read all there is. Raises UnavailableError when there is no API server to ask."""
        deadline = asyncio.get_running_loop().time() + self.wanted.seconds
        zones = await self._objects(ZoneKind, keep=self._is_wanted, must_answer=True)
        pods: list[Manifest] = []
        names: set[str] = set()
        operators: list[Manifest] = []
        try:
            async with asyncio.timeout_at(deadline):
                for kind in (TaskKind, MigrationKind):
                    found = await self._objects(kind, keep=self._is_of_zone)
                    names.update(each["metadata"]["name"] for each in found)
                for kind in _LABELLED:
                    found = await self._objects(kind, labels=self._labels())
                    names.update(each["metadata"]["name"] for each in found)
                    pods += found if kind is Pod else ()
                operators = await self._operator()
                await self._around(names, pods)
        except TimeoutError:
            self._miss("objects", "out of time: some kinds were not read")
        pieces = [self._routes(zone) for zone in zones]
        for pod in [*operators, *sorted(pods, key=_is_ready)]:
            pieces += self._pieces_of(pod)
        await self._read(pieces, deadline)

    def _labels(self) -> dict[str, str]:
        return {ZONE_LABEL: self.wanted.zone} if self.wanted.zone else {APP_LABEL: "rezone"}

    def _is_wanted(self, zone: Manifest) -> bool:
        return self.wanted.zone in ("", zone["metadata"]["name"])

    def _is_of_zone(self, task: Manifest) -> bool:
        return self.wanted.zone in ("", task.get("spec", {}).get("zoneName"))

    async def _operator(self) -> list[Manifest]:
        """Read the operator's pods, and its Lease where they are."""
        labels = {APP_LABEL: "rezone", COMPONENT_LABEL: "operator"}
        place = self.wanted.operator_namespace or None
        found = await self._objects(Pod, labels=labels, namespace=place, file="operator/Pod")
        if not found:
            self._miss("operator", "no pod with its labels is seen: try --operator-namespace")
        for each in sorted({pod["metadata"]["namespace"] for pod in found}):
            name = f"operator/{each}/Lease"
            await self._objects(
                Lease, namespace=each, keep=lambda o: o["metadata"]["name"] == LEASE_NAME, file=name
            )
        return found

    async def _around(self, names: set[str], pods: Sequence[Manifest]) -> None:
        """Read route tables, events about these objects, and the machines of these pods."""
        await self._objects(ConfigMap, labels={**self._labels(), COMPONENT_LABEL: ROUTES})
        await self._objects(Event, keep=lambda event: _is_about(event, names))
        machines = {pod["spec"].get("nodeName") for pod in pods}
        await self._objects(Node, keep=lambda node: node["metadata"]["name"] in machines)

    async def _objects(
        self,
        kind: Kind,
        *,
        labels: Mapping[str, str] | None = None,
        keep: Callable[[Manifest], bool] = lambda _: True,
        namespace: str | None = "",
        file: str = "",
        must_answer: bool = False,
    ) -> list[Manifest]:
        """Write the objects of a kind into a file and return them as they were read."""
        file = f"objects/{file or kind.name}.json"
        place = self.wanted.namespace if namespace == "" else namespace
        try:
            found, complete = await self.kube.first(kind, place, OBJECTS_MAX, labels=labels)
        except KubeError as error:
            if must_answer and isinstance(error, UnavailableError):
                raise
            self._miss(file, str(error))
            return []
        if not complete:
            self._miss(file, f"only the first {OBJECTS_MAX} were read")
        kept = [each for each in found if keep(each)]
        self._add(file, _json([redact(each) for each in kept]))
        return kept

    def _routes(self, zone: Manifest) -> _Piece:
        async def read() -> bytes:
            found = parse(DistributionZone, zone)
            return _json(partition_map(found, await RouteStore(self.kube, found).load()).dump())

        return _Piece(f"routes/{zone['metadata']['name']}.json", read)

    def _pieces_of(self, pod: Manifest) -> Iterable[_Piece]:
        meta, spec = pod["metadata"], pod.get("spec", {})
        place, name = meta["namespace"], meta["name"]
        root = f"pods/{place}/{name}"
        for container in (*spec.get("initContainers", ()), *spec.get("containers", ())):
            log = partial(self._log, place, name, f"{root}/{container['name']}")
            yield _Piece(f"{root}/{container['name']}.log", log)
            if container["name"] in _restarted(pod):
                yield _Piece(
                    f"{root}/{container['name']}.previous.log", partial(log, previous=True)
                )
        port = _health_port(spec)
        if port:
            for page, suffix in PAGES.items():
                read = partial(self._page, place, f"{name}:{port}", page)
                yield _Piece(f"{root}/{page}.{suffix}", read)

    async def _log(self, place: str, pod: str, file: str, *, previous: bool = False) -> bytes:
        """Return the end of a container's log."""
        query = {"container": file.rpartition("/")[2]}
        if previous:
            query["previous"] = "true"
        for lines in LOG_LINES_MAX:
            query["tailLines"] = str(lines)
            found = await self.kube.text(
                Pod, place, pod, "log", bytes_max=LOG_READ_BYTES_MAX, query=query
            )
            if found.complete:
                break
        else:
            self._miss(f"{file}.log", "lines are too long: the end is cut")
        # Whole lines, redacted before they are cut: half a credential looks like none.
        content = redact_text(found.content.decode(errors="replace")).encode()
        if len(content) <= LOG_BYTES_MAX:
            return content
        return content[-LOG_BYTES_MAX:].partition(b"\n")[2]

    async def _page(self, place: str, pod: str, page: str) -> bytes:
        found = await self.kube.text(Pod, place, pod, f"proxy/{page}", bytes_max=PAGE_BYTES_MAX)
        return redact_text(found.content.decode(errors="replace")).encode()

    async def _read(self, pieces: Sequence[_Piece], deadline: float) -> None:
        """Read all pieces, several at a time, until the time is over."""
        waiting = deque(pieces)
        begun: set[str] = set()

        async def work() -> None:
            while waiting:
                piece = waiting.popleft()
                begun.add(piece.name)
                try:
                    self._add(piece.name, await piece.read())
                except KubeError as error:
                    self._miss(piece.name, str(error))
                begun.discard(piece.name)

        try:
            async with asyncio.timeout_at(deadline):
                await asyncio.gather(*(work() for _ in range(WORKERS)))
        except TimeoutError:
            for name in [*sorted(begun), *(piece.name for piece in waiting)]:
                self._miss(name, "out of time")

    def _add(self, name: str, content: bytes) -> None:
        fits = self.archive.has_room(len(content) + self.reserved_bytes)
        if not (fits and self.archive.add(name, content)):
            self._miss(name, "the bundle is full")

    def _miss(self, what: str, why: str) -> None:
        self.unread.append(Unread(what=what, why=redact_text(why)[:WHY_CHARS_MAX]))


def _is_ready(pod: Manifest) -> bool:
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _restarted(pod: Manifest) -> frozenset[str]:
    statuses = pod.get("status", {}).get("containerStatuses") or ()
    return frozenset(each["name"] for each in statuses if each.get("restartCount"))


def _health_port(spec: Mapping[str, Any]) -> int:
    ports = (port for each in spec.get("containers", ()) for port in each.get("ports") or ())
    return next((port["containerPort"] for port in ports if port.get("name") == "health"), 0)


def _is_about(event: Manifest, names: set[str]) -> bool:
    """Return whether an event is about one of our objects: others' texts are not ours to give."""
    about = event.get("regarding") or {}
    return str(about.get("apiVersion", "")).startswith(f"{GROUP}/") or about.get("name") in names


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=1).encode()
