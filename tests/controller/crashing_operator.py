"""The operator's reconcile loops in this process, against a real API server, ended at will.

The process's death is played by cancelling every reconcile the moment a chosen status is about to
be written, or has just been; nothing of the instance runs afterwards, and the next one begins with
a higher epoch and an empty memory, as a new process does.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from crash_points import Crash, CrashingStore, CrashPoint
from operated_cluster import abort_connections, open_connections, path_of

from rezone.controller.coordination.coordinator import Coordinator
from rezone.controller.reconcile.migration import MigrationReconciler
from rezone.controller.reconcile.task import TaskReconciler
from rezone.controller.reconcile.zone import ZoneReconciler
from rezone.controller.work.keys import Kind, ObjectKey, owning_tasks
from rezone.controller.work.settings import CoordinatorSettings
from rezone.kube.api.client import Kube, connect
from rezone.kube.stored.store import StatusStore
from rezone.local.api import KubeApi

PLURALS = {
    Kind.ZONE: "distributionzones",
    Kind.TASK: "rebalancetasks",
    Kind.MIGRATION: "regionmigrations",
}


class InProcessOperator:
    """One life of the operator; use it as an async context manager."""

    def __init__(
        self,
        kubeconfig: Path,
        namespace: str,
        epoch: int,
        crash: CrashPoint | None = None,
        *,
        also: Sequence[str] = (),
        store: Callable[[Kube], StatusStore] = StatusStore,
    ) -> None:
        self.crashed = asyncio.Event()
        self._namespaces = (namespace, *also)
        self._store = store
        self._kubeconfig = kubeconfig
        self._api = KubeApi(kubeconfig)
        self._epoch = epoch
        self._crash_point = crash
        self._watches: list[asyncio.Task[None]] = []
        self._foreign: set[Any] = set()
        self._used_epochs: list[int] = []

    async def __aenter__(self) -> Self:
        """Begin to watch."""
        self._foreign = open_connections()
        await self._api.__aenter__()
        self._kube = await connect(self._kubeconfig)
        settings = CoordinatorSettings(leader_lease_seconds=2.0, namespaces=self._namespaces)
        self.coordinator = Coordinator(
            self._kube, settings, self._epoch, on_used_epoch=self._used_epochs.append
        )
        self.coordinator.store = self._store(self._kube)
        if self._crash_point is not None:
            crash = Crash(self._crash_point, self._crash)
            self.coordinator.store = CrashingStore(self._kube, crash)
        self.coordinator.register(Kind.ZONE, ZoneReconciler(self.coordinator).reconcile)
        self.coordinator.register(Kind.TASK, TaskReconciler(self.coordinator).reconcile)
        self.coordinator.register(Kind.MIGRATION, MigrationReconciler(self.coordinator).reconcile)
        for namespace in self._namespaces:
            for kind, plural in PLURALS.items():
                self._watch(self._wake_by(kind, namespace, plural))
            self._watch(self._wake_zones(f"/api/v1/namespaces/{namespace}/pods"))
        self._watch(self._wake_zones("/api/v1/nodes"))
        return self

    async def __aexit__(self, *_: object) -> None:
        """End everything."""
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        await self.coordinator.close()
        await self._api.__aexit__(None, None, None)
        await self._kube.close()
        await abort_connections(self._foreign)
        assert not self._used_epochs, "it takes its own epoch for another coordinator's, and rests"

    async def until_crash(self, seconds: float = 60.0) -> None:
        """Wait for the crash point."""
        async with asyncio.timeout(seconds):
            await self.crashed.wait()

    def _crash(self) -> None:
        # Synchronous: no other reconcile gets a turn between the write and the end.
        queue = self.coordinator.queue
        queue._closed = True
        for task in queue._running.values():
            task.cancel()
        self.crashed.set()
        raise asyncio.CancelledError

    def _watch(self, work: Any) -> None:
        self._watches.append(asyncio.get_running_loop().create_task(work))

    async def _wake_by(self, kind: Kind, namespace: str, plural: str) -> None:
        path = path_of(namespace, plural)
        async with contextlib.aclosing(self._api.follow(path)) as events:  # type: ignore[type-var]
            async for event, item in events:
                for each in item["items"] if event == "SYNC" else [item]:
                    key = ObjectKey(kind, namespace, each["metadata"]["name"])
                    self.coordinator.queue.put(key)
                    for task in owning_tasks(namespace, each):
                        self.coordinator.queue.put(task)

    async def _wake_zones(self, path: str) -> None:
        async with contextlib.aclosing(self._api.follow(path)) as events:  # type: ignore[type-var]
            async for _ in events:
                self.coordinator.wake_all_zones()
