"""What a person deletes in the middle of the operator's work, and what is left of it.

`Hold` stops the operator's pass of one object where it stores a state, before or after that, so
that what is deleted then is deleted at that state, however busy the machine is. Passes of other
objects go on meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from crash_points import entered
from operated_cluster import TestCluster, path_of, reports_of, routes_of

from rezone.kube.api.client import Kube
from rezone.kube.api.names import AnyObject
from rezone.kube.stored.store import O, StatusStore
from rezone.local.api import KubeApi
from rezone.resources.model import Model
from rezone.wire.errors import RezoneError
from rezone.wire.messages import NodeStatistics, StatisticsRequest
from rezone.wire.transport.flight import NodeClient

SECONDS_MAX = 300.0
"""A deadline for a machine that does many things besides; at rest all takes a few seconds."""

OWNED: Mapping[str, str] = {
    "pods": "/api/v1",
    "persistentvolumeclaims": "/api/v1",
    "configmaps": "/api/v1",
    "services": "/api/v1",
    "secrets": "/api/v1",
    "poddisruptionbudgets": "/apis/policy/v1",
    "sparkapplications": "/apis/sparkoperator.k8s.io/v1beta2",
}
"""The kinds of what zones and tasks own, besides our own, and where they are."""


class Hold:
    """Stops the pass that enters a state, until it is told to go on."""

    def __init__(self, deed: str, *, after: bool) -> None:
        self._deed = deed
        self._after = after
        self._held = asyncio.Event()
        self._let_go = asyncio.Event()

    def store(self, kube: Kube) -> StatusStore:
        """Return the store of an operator that is to be held."""
        return _HoldingStore(kube, self)

    @contextlib.asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Wait until the pass is held; it goes on at the end of the block."""
        async with asyncio.timeout(SECONDS_MAX):
            await self._held.wait()
        try:
            yield
        finally:
            self._let_go.set()

    async def pass_by(self, obj: AnyObject, new: Model, *, after: bool) -> None:
        """Wait if this is the write that is meant, the first time."""
        deeds = {f"{type(obj).__name__} {state}" for state in entered(obj, new)}
        if after == self._after and self._deed in deeds and not self._held.is_set():
            self._held.set()
            await self._let_go.wait()


class _HoldingStore(StatusStore):
    """Stores statuses, and waits where it is held."""

    def __init__(self, kube: Kube, hold: Hold) -> None:
        super().__init__(kube)
        self._hold = hold

    async def write_status(self, obj: O, new_status: Model) -> O:
        """Store the status."""
        await self._hold.pass_by(obj, new_status, after=False)
        written = await super().write_status(obj, new_status)
        await self._hold.pass_by(obj, new_status, after=True)
        return written


def collection(namespace: str, plural: str) -> str:
    """Return the path of a collection."""
    return f"{OWNED[plural]}/namespaces/{namespace}/{plural}"


async def delete_all(api: KubeApi, namespace: str, plural: str, selector: str) -> None:
    """Delete all objects of a kind that have these labels."""
    path = collection(namespace, plural)
    for each in (await api.get(path, labelSelector=selector))["items"]:
        await api.delete(f"{path}/{each['metadata']['name']}")


async def left_of(api: KubeApi, namespace: str, zone: str) -> list[str]:
    """Return what is left of a zone that was deleted: all but what a person's task owns."""
    found = []
    for plural in OWNED:
        items = (await api.get(collection(namespace, plural)))["items"]
        found += [
            f"{plural}/{each['metadata']['name']}"
            for each in items
            if (each["metadata"].get("labels") or {}).get("rezone.dev/zone") == zone
        ]
    for plural in ("rebalancetasks", "regionmigrations"):
        items = (await api.get(path_of(namespace, plural)))["items"]
        found += [
            f"{plural}/{each['metadata']['name']}"
            for each in items
            for owner in each["metadata"].get("ownerReferences") or ()
            if (owner["kind"], owner["name"]) == ("DistributionZone", zone)
        ]
    return found


async def until_nothing(look: Callable[[], Awaitable[list[str]]]) -> None:
    """Wait until there is nothing left of something."""
    try:
        async with asyncio.timeout(SECONDS_MAX):
            while await look():  # noqa: ASYNC110 - of so many kinds that a watch would be seven
                await asyncio.sleep(0.2)
    except TimeoutError:
        raise AssertionError(f"left after {SECONDS_MAX} s: {await look()}") from None


class Made:
    """Notes what is made in a namespace from now on: of pods, claims and ConfigMaps."""

    def __init__(self, api: KubeApi, namespace: str) -> None:
        self._api = api
        self._namespace = namespace
        self.names: list[str] = []

    @contextlib.asynccontextmanager
    async def noted(self) -> AsyncIterator[None]:
        """Note until the end of the block; watches stand before it begins."""
        plurals = ("pods", "persistentvolumeclaims", "configmaps")
        ready = [asyncio.Event() for _ in plurals]
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._note(plural, event))
                for plural, event in zip(plurals, ready, strict=True)
            ]
            for event in ready:
                await event.wait()
            yield
            for task in tasks:
                task.cancel()

    async def _note(self, plural: str, ready: asyncio.Event) -> None:
        known: set[str] = set()
        path = collection(self._namespace, plural)
        async with contextlib.aclosing(self._api.follow(path)) as events:  # type: ignore[type-var]
            async for event, item in events:
                for each in item["items"] if event == "SYNC" else [item]:
                    meta = each["metadata"]
                    if meta["uid"] not in known and ready.is_set():
                        self.names.append(f"{plural}/{meta['name']}")
                    known.add(meta["uid"])
                ready.set()


@contextlib.asynccontextmanager
async def told_when_it_fails(
    cluster: TestCluster, api: KubeApi, *namespaces: str
) -> AsyncIterator[None]:
    """Say what objects, operator and data nodes say when something was waited for in vain."""
    try:
        yield
    except (AssertionError, TimeoutError) as error:
        lines = [line for each in namespaces for line in await _story(cluster, api, each)]
        raise AssertionError("\n".join([repr(error), *lines])) from error


async def _story(cluster: TestCluster, api: KubeApi, namespace: str) -> list[str]:
    lines = [f"--- namespace {namespace}"]
    for plural in ("rebalancetasks", "regionmigrations"):
        lines += [
            f"{plural}/{each['metadata']['name']}: {_short(each.get('status'))}"
            for each in (await api.get(path_of(namespace, plural)))["items"]
        ]
    for pod in (await api.get(collection(namespace, "pods")))["items"]:
        meta, status = pod["metadata"], pod.get("status") or {}
        said = {key: status.get(key) for key in ("phase", "podIP", "containerStatuses")}
        gone = meta.get("deletionTimestamp", "")
        lines.append(f"pod {meta['name']} {meta['uid']} deleted={gone!r}: {_short(said)}")
        for log in (cluster.state / "pods").glob(f"{namespace}_{meta['name']}*/**/*.log"):
            lines += [f"  {line[:300]}" for line in log.read_text().splitlines()[-12:]]
    for zone in (await api.get(path_of(namespace, "distributionzones")))["items"]:
        name = zone["metadata"]["name"]
        lines.append(f"zone {name}: {_short(zone.get('status'))}")
        lines += [f"  {record}" for record in await routes_of(api, namespace, name)]
        nodes = (zone.get("status") or {}).get("dataNodes", ())
        addresses = {each["id"]: each["address"] for each in nodes if each.get("address")}
        for node, address in addresses.items():
            lines += await asyncio.to_thread(_said_by, node, address)
    return lines


def _said_by(node: int, address: str) -> list[str]:
    """Return what a data node says of its replicas and of its streams."""
    client = NodeClient(address)
    try:
        told = client.call(StatisticsRequest(), NodeStatistics, timeout_seconds=10)
        streams = [f"  node {node}, connection {each}" for each in told.connections]
        return [f"  node {node}: {reports_of({node: address})[node]}", *streams]
    except RezoneError as error:
        return [f"  node {node} at {address}: {error}"]
    finally:
        client.close()


def _short(value: Any) -> str:
    return json.dumps(value)[:6_000]
