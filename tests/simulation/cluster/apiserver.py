"""An API server as far as the operator can tell: objects, versions, compare-and-set, events.

`ApiServer` is the store; `SimulatedKube` is one process's connection to it, with the methods of
`rezone.kube.api.client.Kube`. A request takes a moment, and may end as a real one can: refused, or
carried out without an answer.
"""

from __future__ import annotations

import collections
import enum
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from rezone.kube.api.errors import (
    ConflictWriteError,
    ExistsError,
    InvalidWriteError,
    KubeError,
    MissingError,
    UnavailableError,
    UnknownOutcomeError,
)
from rezone.kube.api.kinds import Event, Kind, Manifest, Pod

if TYPE_CHECKING:
    from simulation.cluster.process import Process
    from simulation.loop import VirtualLoop

CUSTOM = frozenset({"DistributionZone", "RebalanceTask", "RegionMigration"})
COLLECT_SECONDS = 1.0
"""After how long the garbage collector looks at the owners of a new object."""


class Key(NamedTuple):
    """One object."""

    kind: str
    namespace: str
    name: str


class ApiFault(enum.StrEnum):
    """How a request can end badly; the value is the answer of a real API server."""

    CONFLICT = "409"
    INVALID = "422"
    BUSY = "429"
    ERROR = "500, nothing done"
    NO_ANSWER = "500, carried out"


def _at(manifest: Mapping[str, Any], path: str) -> str:
    """Return the value of a field as a field selector compares it."""
    value: Any = manifest
    for name in path.split("."):
        value = value.get(name, "")
    return str(value)


def key_of(kind: Kind, manifest: Mapping[str, Any]) -> Key:
    """Return the key of an object."""
    meta = manifest["metadata"]
    return Key(kind.name, meta.get("namespace", ""), meta["name"])


class ApiServer:
    """The objects. Everything given out is a copy; `listeners` are told of every change."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.objects: dict[Key, bytes] = {}
        self.revision = 100
        self._uids = itertools.count(1)
        self.writes: collections.Counter[str] = collections.Counter()
        self.listed: collections.Counter[str] = collections.Counter()
        self.listeners: list[Callable[[Key, Manifest], None]] = []
        self.checks: list[Callable[[Key, Manifest | None, Manifest], None]] = []
        self.refused: set[str] = set()
        """Kinds of which no object can be made, as by a quota or an admission rule."""
        self.collect_late_seconds = 0.0
        """How long after its owner an object goes: the garbage collector has much to do."""

    def read(self, key: Key) -> Manifest:
        """Return an object. Raises MissingError."""
        raw = self.objects.get(key)
        if raw is None:
            raise MissingError(f"{key} is not there")
        found: Manifest = msgspec.json.decode(raw)
        return found

    def find(self, kind: Kind | str, namespace: str, name: str) -> Manifest | None:
        """Return an object, None when there is none."""
        word = kind if isinstance(kind, str) else kind.name
        raw = self.objects.get(Key(word, namespace, name))
        return None if raw is None else msgspec.json.decode(raw)

    def all_of(
        self, kind: Kind | str, labels: Mapping[str, str] | None = None
    ) -> Iterator[Manifest]:
        """Yield the objects of a kind that carry the labels."""
        word = kind if isinstance(kind, str) else kind.name
        for key, raw in list(self.objects.items()):
            if key.kind == word:
                found: Manifest = msgspec.json.decode(raw)
                own = found["metadata"].get("labels") or {}
                if all(own.get(k) == v for k, v in (labels or {}).items()):
                    yield found

    def create(self, kind: Kind, manifest: Manifest) -> Manifest:
        """Create an object. Raises ExistsError, InvalidWriteError."""
        key = key_of(kind, manifest)
        if key.kind in self.refused:
            raise InvalidWriteError(f"{key} is refused")
        if key in self.objects:
            raise ExistsError(f"{key} exists")
        self.revision += 1
        meta = {
            **manifest["metadata"],
            # Of a count that never goes back, as a real one's are random.
            "uid": f"uid-{self.revision}-{next(self._uids)}",
            "generation": 1,
            "creationTimestamp": self._loop.now().strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        stored = self._store(key, None, {**manifest, "metadata": meta})
        if meta.get("ownerReferences"):
            self._loop.call_later(COLLECT_SECONDS, self._collect, key, meta["uid"])
        return stored

    def replace(self, kind: Kind, manifest: Manifest, *, status: bool = False) -> Manifest:
        """Replace an object, or its status alone, if it is as it was read."""
        key = key_of(kind, manifest)
        old = self.read(key)
        self._guard(key, old, manifest["metadata"])
        if status:
            return self._store(key, old, {**old, "status": manifest["status"]})
        return self._store(key, old, manifest)

    def merge(self, kind: Kind, namespace: str, name: str, patch: Manifest) -> Manifest:
        """Merge a patch into an object."""
        key = Key(kind.name, namespace, name)
        old = self.read(key)
        self._guard(key, old, patch.get("metadata") or {})
        # Of the metadata a client changes labels and annotations; the rest is the server's.
        meta = patch.get("metadata") or {}
        own = {k: v for k, v in meta.items() if k in ("labels", "annotations")}
        new = _merged(old, {**patch, "metadata": own})
        if new.get("spec") != old.get("spec"):
            generation = old["metadata"]["generation"] + 1
            new["metadata"] = {**new["metadata"], "generation": generation}
        return self._store(key, old, new)

    def apply(self, kind: Kind, manifest: Manifest) -> Manifest:
        """Apply an object whole."""
        key = key_of(kind, manifest)
        if key not in self.objects:
            return self.create(kind, manifest)
        old = self.read(key)
        return self._store(key, old, {**manifest, "metadata": old["metadata"]})

    def delete(self, kind: Kind, namespace: str, name: str) -> None:
        """Delete an object; a pod only begins to end. Raises MissingError."""
        key = Key(kind.name, namespace, name)
        old = self.read(key)
        if kind is Pod:
            if "deletionTimestamp" in old["metadata"]:
                return
            meta = {**old["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
            self._store(key, old, {**old, "metadata": meta})
            return
        self.remove(key)

    def remove(self, key: Key) -> None:
        """Take an object away, and with it all that it owns; of that, pods only begin to end."""
        old = self.read(key)
        del self.objects[key]
        self._tell(key, old)
        uid = old["metadata"]["uid"]
        if self.collect_late_seconds:
            self._loop.call_later(self.collect_late_seconds, self._remove_all_of, uid)
        else:
            self._remove_all_of(uid)

    def _remove_all_of(self, uid: str) -> None:
        for child, raw in list(self.objects.items()):
            owners = msgspec.json.decode(raw)["metadata"].get("ownerReferences") or ()
            if child in self.objects and any(o["uid"] == uid for o in owners):
                self._remove_owned(child)

    def _remove_owned(self, key: Key) -> None:
        if key.kind == Pod.name:
            self.delete(Pod, key.namespace, key.name)
        else:
            self.remove(key)

    def _collect(self, key: Key, uid: str) -> None:
        """Take away what was made for an owner that is gone, as the garbage collector does."""
        if key not in self.objects:
            return
        meta = self.read(key)["metadata"]
        there = {msgspec.json.decode(raw)["metadata"]["uid"] for raw in self.objects.values()}
        owners = {each["uid"] for each in meta.get("ownerReferences") or ()}
        if meta["uid"] == uid and owners and not owners & there:
            self._remove_owned(key)

    def put_back(self, kinds: Collection[str], objects: Mapping[Key, bytes], revision: int) -> None:
        """Put the objects of some kinds back as they were at an earlier revision."""
        gone = [k for k in self.objects if k.kind in kinds and k not in objects]
        removed = [(key, msgspec.json.decode(self.objects.pop(key))) for key in gone]
        self.objects.update(objects)
        self.revision = revision
        for key, old in removed:
            self._tell(key, old)
        for key in objects:
            self._tell(key, self.read(key))

    def set_status(self, key: Key, status: Manifest) -> None:
        """Write a status as another controller does: a kubelet, the Spark operator."""
        old = self.read(key)
        self._store(key, old, {**old, "status": status})

    def bind(self, key: Key, node_name: str, status: Manifest) -> None:
        """Put a pod on a node, as the scheduler does, and say that it runs there."""
        old = self.read(key)
        spec = {**old["spec"], "nodeName": node_name}
        self._store(key, old, {**old, "spec": spec, "status": status})

    def _guard(self, key: Key, old: Manifest, meta: Mapping[str, Any]) -> None:
        version = meta.get("resourceVersion")
        if version is not None and version != old["metadata"]["resourceVersion"]:
            raise ConflictWriteError(f"{key} has changed")
        if meta.get("uid") not in (None, old["metadata"]["uid"]):
            raise ConflictWriteError(f"{key} is another object")

    def _store(self, key: Key, old: Manifest | None, new: Manifest) -> Manifest:
        if old is not None and new == old:
            return old
        self.revision += 1
        new = {**new, "metadata": {**new["metadata"], "resourceVersion": str(self.revision)}}
        for check in self.checks:
            check(key, old, new)
        self.objects[key] = msgspec.json.encode(new)
        self._tell(key, new)
        return new

    def _tell(self, key: Key, manifest: Manifest) -> None:
        for listener in self.listeners:
            listener(key, manifest)


def _merged(old: Any, patch: Any) -> Any:
    if not isinstance(patch, dict) or not isinstance(old, dict):
        return patch
    new = dict(old)
    for name, value in patch.items():
        if value is None:
            new.pop(name, None)
        else:
            new[name] = _merged(old.get(name), value)
    return new


class SimulatedKube:
    """The connection of one process; every write is two of its crash points."""

    def __init__(self, process: Process, server: ApiServer) -> None:
        self._process = process
        self._server = server

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest:
        """Return one object."""
        key = Key(kind.name, namespace, name)
        found: Manifest = await self._read(f"get {key}", lambda: self._server.read(key))
        return found

    async def find(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        """Return one object, None when it does not exist."""
        try:
            return await self.get(kind, namespace, name)
        except MissingError:
            return None

    async def list(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        labels: Mapping[str, str] | None = None,
        fields: Mapping[str, str] | None = None,
    ) -> list[Manifest]:
        """Return the objects that carry the labels and fields; there is one namespace."""
        del namespace
        label = f"list {kind.name}"
        found: list[Manifest] = await self._read(
            label, lambda: list(self._server.all_of(kind, labels))
        )
        found = [o for o in found if all(_at(o, k) == v for k, v in (fields or {}).items())]
        self._server.listed[kind.name] += len(found)
        return found

    async def names(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        labels: Mapping[str, str] | None = None,
    ) -> Sequence[tuple[str, str]]:
        """Return namespace and name of the objects that are not being deleted."""
        metas = (found["metadata"] for found in await self.list(kind, namespace, labels=labels))
        return [(m["namespace"], m["name"]) for m in metas if not m.get("deletionTimestamp")]

    async def create(self, kind: Kind, manifest: Manifest, *, dry_run: bool = False) -> Manifest:
        """Create an object; a dry run finds nothing wrong with it, and stores nothing."""
        if dry_run:
            await self._read(f"dry run of {kind.name}", lambda: None)
            return manifest
        return await self._write("create", kind, manifest, lambda s: s.create(kind, manifest))

    async def replace(self, kind: Kind, manifest: Manifest) -> Manifest:
        """Replace an object."""
        return await self._write("replace", kind, manifest, lambda s: s.replace(kind, manifest))

    async def replace_status(self, kind: Kind, manifest: Manifest) -> Manifest:
        """Replace a status."""
        return await self._write(
            "status", kind, manifest, lambda s: s.replace(kind, manifest, status=True)
        )

    async def merge(self, kind: Kind, namespace: str, name: str, patch: Manifest) -> Manifest:
        """Merge a patch."""
        body = {"metadata": {"namespace": namespace, "name": name}}
        return await self._write(
            "merge", kind, body, lambda s: s.merge(kind, namespace, name, patch)
        )

    async def apply(self, kind: Kind, manifest: Manifest, *, dry_run: bool = False) -> Manifest:
        """Apply an object."""
        assert not dry_run
        return await self._write("apply", kind, manifest, lambda s: s.apply(kind, manifest))

    async def delete(self, kind: Kind, namespace: str, name: str) -> bool:
        """Delete an object; False when it was gone already."""
        body = {"metadata": {"namespace": namespace, "name": name}}
        if self._server.find(kind, namespace, name) is None and not self._process.dead:
            await self._process.pause()
            return False

        def gone(server: ApiServer) -> Manifest:
            server.delete(kind, namespace, name)
            return {}

        try:
            await self._write("delete", kind, body, gone)
        except MissingError:
            return False
        return True

    async def _read(self, label: str, read: Callable[[], Any]) -> Any:
        await self._process.pause()
        if self._process.take_read_fault() is not None:
            raise UnavailableError(f"{label}: 500")
        return read()

    async def _write(
        self,
        verb: str,
        kind: Kind,
        manifest: Manifest,
        write: Callable[[ApiServer], Manifest],
    ) -> Manifest:
        process = self._process
        label = f"{verb} {kind.name} {manifest['metadata']['name']}"
        await self._point(kind, f"before {label}")
        await process.pause()
        fault = process.take_write_fault()
        if fault is not None and fault is not ApiFault.NO_ANSWER:
            raise _error_of(fault, label)
        self._server.writes[f"{verb} {kind.name}"] += 1
        written = write(self._server)
        await self._point(kind, f"after {label}")
        await process.pause()
        if fault is ApiFault.NO_ANSWER:
            raise _error_of(fault, label)
        return written

    async def _point(self, kind: Kind, label: str) -> None:
        # An event tells people what was decided; nothing hangs on it.
        if kind is not Event:
            await self._process.point(label)


def _error_of(fault: ApiFault, label: str) -> KubeError:
    match fault:
        case ApiFault.CONFLICT:
            return ConflictWriteError(f"{label}: {fault}")
        case ApiFault.INVALID:
            return InvalidWriteError(f"{label}: {fault}")
        case ApiFault.BUSY:
            return UnavailableError(f"{label}: {fault}")
        case ApiFault.ERROR | ApiFault.NO_ANSWER:
            return UnknownOutcomeError(f"{label}: {fault}")
