"""What a process knows before it leads, and how the one that leads goes on with it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from rezone.controller.coordination.coordinator import Coordinator
from rezone.controller.coordination.metrics import OperatorMetrics
from rezone.controller.nodes.monitors import WAITING_PAUSE_SECONDS, Monitors
from rezone.controller.process import prepared as module
from rezone.controller.process.prepared import Prepared
from rezone.controller.process.wakes import Wakes
from rezone.controller.process.watch_check import DeafWatchError
from rezone.controller.work.keys import Kind, ObjectKey, ZoneKey
from rezone.controller.work.settings import CoordinatorSettings
from rezone.kube.api.client import Kube
from rezone.kube.api.errors import MissingError, UnavailableError
from rezone.kube.api.kinds import Kind as ObjectKind
from rezone.kube.api.kinds import Manifest, Secret, ZoneKind
from rezone.wire.errors import NotReadyError
from rezone.wire.messages import NodeReport

ZONE = ZoneKey("ns", "orders")
TASK = ObjectKey(Kind.TASK, "ns", "orders-1")
DEADLINE_SECONDS = 20.0


class Dead:
    """A data node that refuses every call."""

    def __init__(self, address: str) -> None:
        self.address = address

    def call(self, *_: object, **__: object) -> NodeReport:
        """Refuse."""
        raise NotReadyError("refused", unreachable=1)


class ReadOnlyKube:
    """An API server that a process without the Lease may ask, and nothing more."""

    def __init__(self) -> None:
        self.objects: dict[ObjectKind, Manifest] = {}
        self.errors: list[Exception] = []
        self.unserved_looks = 0
        self.asked = asyncio.Event()

    async def find(self, kind: ObjectKind, _namespace: str, _name: str) -> Manifest | None:
        """Return the one object of a kind."""
        self.asked.set()
        if self.errors:
            raise self.errors.pop()
        return self.objects.get(kind)

    async def get(self, kind: ObjectKind, namespace: str, name: str) -> Manifest:
        """Return the one object of a kind."""
        found = await self.find(kind, namespace, name)
        if found is None:
            raise MissingError("gone")
        return found

    async def unserved(self, kinds: tuple[ObjectKind, ...]) -> list[str]:
        """Return all kinds as often as is wanted, and none from then on."""
        if self.errors:
            raise self.errors.pop()
        self.unserved_looks -= 1
        return [kind.plural for kind in kinds] if self.unserved_looks >= 0 else []

    async def versions(self, kind: ObjectKind, namespace: str | None) -> dict[tuple[str, str], str]:
        """Return the version of the one object of a kind."""
        assert namespace is None
        found = (each["metadata"] for k, each in self.objects.items() if k == kind)
        return {(m["namespace"], m["name"]): m["resourceVersion"] for m in found}

    async def create(self, *_: object, **__: object) -> Manifest:
        """Fail the test."""
        raise AssertionError("a process that does not lead has written")

    replace = create


def zone_with(*addresses: str) -> Manifest:
    """Return a zone as stored, with data nodes at these addresses; "" stands for a lost one."""
    nodes = [
        {"id": n, "podName": f"orders-{n}", "state": "Active", "address": address}
        for n, address in enumerate(addresses)
    ]
    return {
        "metadata": {"namespace": "ns", "name": "orders", "uid": "u", "resourceVersion": "1"},
        "spec": {"partitions": 1, "replicas": 1, "dataNodes": {"count": 1}},
        "status": {"dataNodes": nodes},
    }


async def until(check: Callable[[], Any]) -> Any:
    """Let the loop run until something is true."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        # Other threads and tasks are waited for; each tells somebody else.
        while not (found := check()):  # noqa: ASYNC110
            await asyncio.sleep(0)
    return found


@pytest.fixture
async def monitors() -> AsyncIterator[Monitors]:
    """Give monitors of a process that waits, of data nodes that are dead."""
    made = Monitors(timeout_seconds=1.0, tls=None)
    made.connector = lambda _zone: Dead  # type: ignore[method-assign, assignment, return-value]
    yield made
    made.close()


def coordinator_of(monitors: Monitors) -> Coordinator:
    """Return a coordinator that has just got its Lease."""
    metrics = OperatorMetrics(CollectorRegistry())
    kube = cast("Kube", None)
    return Coordinator(kube, CoordinatorSettings(), 7, metrics=metrics, monitors=monitors)


@pytest.mark.proves("B-06")
async def test_who_leads_knows_since_when_a_node_is_silent(monitors: Monitors) -> None:
    """A leader lost together with the operator would be waited for twice, one after the other."""
    monitor = monitors.of(ZONE, "u")
    monitor.watch({0: "127.0.0.1:1"}, expected=[0, 1])
    since = await until(lambda: monitor.silent_since(0))
    coordinator = coordinator_of(monitors)
    runtime = coordinator.runtime(ZONE, "u")
    runtime.monitor.watch({0: "127.0.0.1:1"}, expected=[0, 1])
    assert runtime.monitor.silent_since(0) == since
    assert runtime.monitor.silent_since(1) is not None
    assert coordinator.runtime(ZONE, "another").monitor is not monitor, "another zone of that name"
    await coordinator.close()


async def test_news_wake_only_who_leads(monitors: Monitors) -> None:
    """A process without the Lease would run passes, or the leader hear of nothing."""
    waiting = monitors.of(ZONE, "u")
    waiting.watch({0: "127.0.0.1:1"})
    await until(lambda: waiting.silent_since(0))
    assert waiting.pause_seconds == WAITING_PAUSE_SECONDS
    coordinator = coordinator_of(monitors)
    woken: list[ObjectKey] = []

    async def reconcile(key: ObjectKey) -> None:
        woken.append(key)

    coordinator.register(Kind.ZONE, reconcile)
    assert waiting.pause_seconds == 0
    assert not woken
    waiting.watch({1: "127.0.0.1:1"})
    await until(lambda: woken == [ZONE.object_key])
    await coordinator.close()


async def test_a_leader_begins_with_all_that_the_watches_know(monitors: Monitors) -> None:
    """A task that was applied while nobody led would wait for its next change."""
    seen: list[ObjectKey] = []
    wakes = Wakes(asyncio.get_running_loop(), seen.append)
    wakes.wake(ZONE.object_key, "1")
    wakes.wake(TASK, "2")
    wakes.wake(gone := TASK._replace(name="orders-2"), "3")
    wakes.wake(gone, "4", gone=True)
    wakes.wake(TASK._replace(name="unseen"))
    await asyncio.sleep(0)
    assert seen == [ZONE.object_key]
    coordinator = coordinator_of(monitors)
    woken: list[ObjectKey] = []

    async def reconcile(key: ObjectKey) -> None:
        woken.append(key)

    for kind in (Kind.ZONE, Kind.TASK):
        coordinator.register(kind, reconcile)
    wakes.pass_on(coordinator)
    await until(lambda: len(woken) == 2)
    assert set(woken) == {ZONE.object_key, TASK}
    wakes.wake(TASK, "5")
    await until(lambda: len(woken) == 3)
    assert seen == [ZONE.object_key], "a leader's passes look at zones themselves"
    await coordinator.close()


class FakeKopf:
    """Watches that tell of one zone as soon as they begin."""

    def __init__(self, registry: object, **_: object) -> None:
        del registry
        self.ready = threading.Event()
        self.begun = 0

    def start(self) -> None:
        """Begin."""
        self.begun += 1
        self.ready.set()

    def stop(self, _timeout_seconds: float) -> None:
        """End."""


@pytest.fixture
def kube() -> ReadOnlyKube:
    """Give the API server."""
    return ReadOnlyKube()


async def make_prepared(
    kube: ReadOnlyKube,
    monkeypatch: pytest.MonkeyPatch,
    tls: str,
    failed: Callable[[BaseException | None], None] = lambda _error: None,
) -> Prepared:
    """Return what a process that waits begins with."""
    monkeypatch.setattr(module, "KopfThread", FakeKopf)
    monkeypatch.setattr(module, "TRY_AGAIN_SECONDS", 0.001)
    settings = CoordinatorSettings(tls=tls)
    made = Prepared(cast("Kube", kube), settings, failed)
    made.monitors.connector = lambda _zone: Dead  # type: ignore[method-assign, assignment, return-value]
    return made


async def test_who_waits_watches_the_data_nodes_of_a_zones_status(
    kube: ReadOnlyKube, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silence would be counted from when the Lease was taken, or writes be made without it."""
    prepared = await make_prepared(kube, monkeypatch, "off")
    kube.errors = [UnavailableError("down")] * 3
    keeping = asyncio.create_task(prepared.keep())
    kopf = cast("FakeKopf", prepared._kopf)
    await until(lambda: kopf.begun)
    assert not kube.errors, "watches that begin without an API server end the process"
    kube.objects[ZoneKind] = zone_with("127.0.0.1:1", "")
    prepared.wakes.wake(ZONE.object_key, "1")
    monitor = await until(lambda: prepared.monitors._monitors.get(ZONE))
    await until(lambda: monitor[1].silent_since(0))
    assert monitor[1].silent_since(1) is not None
    del kube.objects[ZoneKind]
    prepared.wakes.wake(ZONE.object_key, "2", gone=True)
    await until(lambda: ZONE not in prepared.monitors._monitors)
    keeping.cancel()
    await asyncio.wait({keeping})
    await prepared.complete()
    await prepared.close()
    assert kopf.begun == 1


async def test_only_the_leader_makes_the_authority(
    kube: ReadOnlyKube, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes that begin together would write, and one of them without the Lease."""
    prepared = await make_prepared(kube, monkeypatch, "issued")
    keeping = asyncio.create_task(prepared.keep())
    for _ in range(3):
        kube.asked.clear()
        await asyncio.wait_for(kube.asked.wait(), DEADLINE_SECONDS)
    keeping.cancel()
    await asyncio.wait({keeping})
    assert cast("FakeKopf", prepared._kopf).begun == 0, "no call could be made without certificates"
    with pytest.raises(AssertionError, match="has written"):
        await prepared.complete()
    assert Secret not in kube.objects
    await prepared.close()


@pytest.mark.parametrize("leads", [False, True])
async def test_watches_begin_when_the_api_server_lists_what_they_watch(
    kube: ReadOnlyKube,
    monkeypatch: pytest.MonkeyPatch,
    leads: bool,
) -> None:
    """Kopf asks once: while an API server starts it would find nothing to watch, for ever."""
    prepared = await make_prepared(kube, monkeypatch, "off")
    kube.unserved_looks = 3
    getting_ready = asyncio.create_task(prepared.complete() if leads else prepared.keep())
    kopf = cast("FakeKopf", prepared._kopf)
    await until(lambda: kube.unserved_looks == 0)
    assert not kopf.begun
    await until(lambda: kopf.begun)
    getting_ready.cancel()
    await asyncio.wait({getting_ready})
    await prepared.close()


@pytest.mark.proves("NW-06")
async def test_watches_that_tell_nothing_end_the_process(
    kube: ReadOnlyKube, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would look healthy, and hear of nothing that people ask for."""
    failures: list[BaseException | None] = []
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.001)
    prepared = await make_prepared(kube, monkeypatch, "off", failures.append)
    kube.objects[ZoneKind] = zone_with("127.0.0.1:1")
    prepared.wakes.wake(ZONE.object_key, "1")
    keeping = asyncio.create_task(prepared.keep())
    kopf = cast("FakeKopf", prepared._kopf)
    await until(lambda: kopf.begun)
    await asyncio.sleep(0)
    assert not failures
    kube.objects[ZoneKind]["metadata"]["resourceVersion"] = "2"
    await until(keeping.done)
    assert [type(failure) for failure in failures] == [DeafWatchError]
    await prepared.close()
