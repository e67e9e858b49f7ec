"""One life of the operator: the real coordinator on simulated connections, ended at will.

The process's death is total: what it was about to do is not done, what it has sent arrives. It
has `point`s before and after everything it does to the outside; the world decides at which of
them it dies.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from rezone.controller.coordination.coordinator import Coordinator
from rezone.controller.process import handlers
from rezone.controller.reconcile.migration import MigrationReconciler
from rezone.controller.reconcile.task import TaskReconciler
from rezone.controller.reconcile.zone import ZoneReconciler
from rezone.controller.work.keys import Kind, ObjectKey
from rezone.controller.work.settings import CoordinatorSettings
from rezone.kube.api.errors import KubeError
from rezone.kube.api.kinds import Manifest
from rezone.wire.errors import RezoneError
from rezone.wire.messages import Message, encode
from simulation.cluster.apiserver import CUSTOM, ApiFault, Key, SimulatedKube
from simulation.loop import InlineExecutor, Later

if TYPE_CHECKING:
    from simulation.cluster.world import World

API_SECONDS = 0.002
WATCH_SECONDS = 0.003

SETTINGS = CoordinatorSettings(
    leader_lease_seconds=3.0,
    lost_after_seconds=60.0,
    call_timeout_seconds=4.0,
)

current: contextvars.ContextVar[Process] = contextvars.ContextVar("current")


class SimulatedClient:
    """What the monitor makes in place of a NodeClient."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._process = current.get()

    def call(
        self,
        request: Message,
        reply: type[Message],
        *,
        timeout_seconds: float = 5.0,
        encoded: bytes | None = None,
    ) -> Any:
        """Send a call; the answer comes later."""
        assert encoded in (None, encode(request)), "what is sent is not what was meant"
        del reply
        network = self._process.world.network
        return network.call(self._process, self.address, request, timeout_seconds)


class Process:
    """An operator with the epoch of its Lease."""

    def __init__(self, world: World, epoch: int) -> None:
        self.world = world
        self.epoch = epoch
        self.dead = False
        self._watching = True
        self._context = contextvars.copy_context()
        self._context.run(current.set, self)
        self.coordinator = self._context.run(self._make)

    def _make(self) -> Coordinator:
        kube: Any = SimulatedKube(self, self.world.server)
        coordinator = Coordinator(kube, SETTINGS, self.epoch, on_used_epoch=self._epoch_used)
        coordinator.executor.shutdown(wait=False)
        executor: Any = InlineExecutor()
        coordinator.monitors.executor = executor
        coordinator.pods._monotonic = self.world.loop.time
        for kind, reconciler in (
            (Kind.ZONE, ZoneReconciler(coordinator).reconcile),
            (Kind.TASK, TaskReconciler(coordinator).reconcile),
            (Kind.MIGRATION, MigrationReconciler(coordinator).reconcile),
        ):
            coordinator.register(kind, self._watched(reconciler))
        return coordinator

    def start(self) -> None:
        """Begin as Kopf does: with an event for every object there is."""
        for key in list(self.world.server.objects):
            self._notice(key, self.world.server.read(key))

    def die(self) -> None:
        """End at once."""
        if not self.dead:
            self.dead = True
            self.world.died(self)

    def _epoch_used(self, epoch: int) -> None:
        """End, as the real process does; its Lease is released with the epoch raised."""
        self.world.epoch = max(self.world.epoch, epoch)
        self.die()

    async def close(self) -> None:
        """Take what is left of a dead process out of the loop."""
        self.dead = True
        await self.coordinator.close()

    # --- what it does to the outside -------------------------------------------------------------

    def reach(self, label: str) -> bool:
        """Pass a crash point; returns whether the process is dead behind it."""
        if not self.dead and self.world.crashes_at(label):
            self.die()
        return self.dead

    async def point(self, label: str) -> None:
        """Pass a crash point; a dead process stays there for ever."""
        if self.reach(label):
            await asyncio.get_running_loop().create_future()

    async def pause(self) -> None:
        """Let a request take its time."""
        if self.dead:
            await asyncio.get_running_loop().create_future()
        await asyncio.sleep(self.world.api_seconds())

    def take_read_fault(self) -> ApiFault | None:
        """Return the fault that the next read meets."""
        return self.world.read_fault()

    def take_write_fault(self) -> ApiFault | None:
        """Return the fault that the next write meets."""
        return self.world.write_fault()

    # --- what it hears ---------------------------------------------------------------------------

    def cut_watch(self, seconds: float) -> None:
        """Hear of no change for a while; then of everything, as after a reconnect."""
        self._watching = False
        self.world.loop.call_later(seconds, self._reconnect)

    def _reconnect(self) -> None:
        self._watching = True
        if not self.dead:
            self.start()

    def changed(self, key: Key, manifest: Manifest) -> None:
        """Hear of a change, a moment later."""
        if self._watching and not self.dead:
            self.world.loop.call_later(WATCH_SECONDS, self._notice, key, manifest)

    def _notice(self, key: Key, manifest: Manifest) -> None:
        if not self.dead:
            self._context.run(self._wake, key, manifest)

    def _wake(self, key: Key, manifest: Manifest) -> None:
        def put(key: ObjectKey, version: str = "", *, gone: bool = False) -> None:
            del version, gone  # the simulated server is never behind what it has told
            self.coordinator.queue.put(key)

        meta = manifest["metadata"]
        if key.kind in CUSTOM:
            put(ObjectKey(Kind(key.kind), key.namespace, key.name))
        elif key.kind == "Pod":
            handlers._on_pod(put)(key.namespace, meta.get("labels") or {})
        elif key.kind == "Node":
            self.coordinator.wake_all_zones()
        elif key.kind == "SparkApplication":
            handlers._on_spark(put)(key.namespace, manifest)

    def _watched(
        self, reconcile: Callable[[ObjectKey], Awaitable[float | None]]
    ) -> Callable[[ObjectKey], Awaitable[float | None]]:
        """Tell the world of errors that are bugs: the queue would only log them."""

        async def run(key: ObjectKey) -> float | None:
            self.world.passes += 1
            try:
                return await reconcile(key)
            except (KubeError, RezoneError):
                raise
            except Exception as error:
                self.world.bug(f"reconcile {key.kind} {key.name}", error)
                raise

        return run


__all__ = ["API_SECONDS", "Later", "Process", "SimulatedClient"]
