"""The leading process: what its reconcile loops share, and how a key finds its loop.

A coordinator lives as long as its Lease. It is made with a new epoch, and ends with the process:
nothing of it is handed to a later one except what stands in the API server.
"""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor

import structlog
from prometheus_client import CollectorRegistry

from rezone.controller.coordination.announcer import Announcer
from rezone.controller.coordination.copy_board import CopyBoard
from rezone.controller.coordination.metrics import OperatorMetrics
from rezone.controller.coordination.runtime import ZoneRuntime
from rezone.controller.coordination.traces import Traces
from rezone.controller.nodes.monitors import Monitors
from rezone.controller.nodes.report_delta import ReportDelta
from rezone.controller.work.keys import Kind, ObjectKey, ZoneKey
from rezone.controller.work.queue import KeyedQueue
from rezone.controller.work.settings import CoordinatorSettings
from rezone.domain.assignment import announcements
from rezone.kube.api.client import Kube
from rezone.kube.api.errors import UnreadableError
from rezone.kube.jobs.spark import SparkSettings, SparkStore
from rezone.kube.nodes.claims import ClaimStore
from rezone.kube.nodes.data_node import PodSettings
from rezone.kube.nodes.pods import PodStore
from rezone.kube.stored.events import EventRecorder
from rezone.kube.stored.store import O, StatusStore
from rezone.kube.tls.certificates import Certificates, NodeNames
from rezone.resources.model import Model
from rezone.wire.messages import PartitionId

log = structlog.get_logger(__name__)

# How long progress may wait: a pass costs the API server a few reads, offsets move all the time.
PROGRESS_SECONDS = 0.25

Reconcile = Callable[[ObjectKey], Awaitable[float | None]]


class Coordinator:
    """Holds the queue, the zones' runtimes and the adapters; `epoch` fences all it sends.

    With `certificates` all data nodes speak TLS, without them all speak plaintext. `monitors` are
    those that this process had before it led; they are the coordinator's from now on.
    `on_used_epoch` is called with the epoch of another coordinator that data nodes know and that is
    not below this one's: this coordinator is to end.
    """

    def __init__(
        self,
        kube: Kube,
        settings: CoordinatorSettings,
        epoch: int,
        certificates: Certificates | None = None,
        *,
        metrics: OperatorMetrics | None = None,
        traces: Traces | None = None,
        monitors: Monitors | None = None,
        on_used_epoch: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.kube = kube
        self.on_used_epoch = on_used_epoch
        # A registry of its own for those who make many coordinators in one process: tests.
        self.metrics = metrics or OperatorMetrics(CollectorRegistry())
        self.traces = traces or Traces()
        self.settings = settings
        self.epoch = epoch
        self.store = StatusStore(kube)
        self.announcer = Announcer(EventRecorder(kube, instance=settings.identity))
        self.pods = PodStore(
            kube,
            PodSettings(
                image=settings.data_node_image,
                service_account=settings.data_node_service_account,
                template_policy=settings.pod_policy(),
                tls=certificates is not None,
                names=NodeNames(settings.data_node_names),
            ),
            certificates=certificates,
        )
        self.claims = ClaimStore(kube)
        self.spark = SparkStore(
            kube,
            SparkSettings(
                image=settings.spark_image,
                service_account=settings.spark_service_account,
                template_policy=settings.spark_policy(),
                tls=certificates is not None,
            ),
        )
        tls = certificates.source if certificates is not None else None
        self.monitors = monitors or Monitors(
            timeout_seconds=settings.report_timeout_seconds, tls=tls
        )
        self.monitors.lead(self.tell)
        self.queue: KeyedQueue[ObjectKey] = KeyedQueue(
            self._reconcile,
            concurrency=settings.reconciles_max,
        )
        self.metrics.waiting.set_function(lambda: self.queue.depth)
        self._loops: dict[Kind, Reconcile] = {}
        self._runtimes: dict[ZoneKey, ZoneRuntime] = {}
        self.copy_board = CopyBoard(settings.max_migrations_per_kubernetes_node, self._runtimes)
        self._followers: dict[ZoneKey, dict[ObjectKey, PartitionId | None]] = {}

    def register(self, kind: Kind, reconcile: Reconcile) -> None:
        """Set the reconcile loop of a kind."""
        self._loops[kind] = reconcile

    def runtime(self, key: ZoneKey, uid: str) -> ZoneRuntime:
        """Return a zone's runtime; a zone made again under an old name gets a fresh one."""
        runtime = self._runtimes.get(key)
        if runtime is not None and runtime.uid != uid:
            self.forget_zone(key)
            runtime = None
        if runtime is None:
            runtime = ZoneRuntime(
                key,
                uid,
                self.epoch,
                executor=self.executor,
                settings=self.settings,
                monitor=self.monitors.of(key, uid),
            )
            self._runtimes[key] = runtime
        return runtime

    @property
    def executor(self) -> Executor:
        """The threads for calls to data nodes."""
        return self.monitors.executor

    def zone_deleted(self, key: ZoneKey) -> None:
        """Tell the data nodes of a zone that it is deleted, and stop watching it."""
        runtime = self._runtimes.get(key)
        if runtime is not None and runtime.fence is not None:
            runtime.notifier.zone_deleted(runtime.fence, runtime.uid)
        self.forget_zone(key)

    def forget_zone(self, key: ZoneKey) -> None:
        """Stop watching a zone that is gone."""
        self.metrics.forget(key.object_key)
        self.copy_board.forget(key)
        runtime = self._runtimes.pop(key, None)
        if runtime is not None:
            runtime.close()
        self.monitors.forget(key)

    def follow(self, zone: ZoneKey, key: ObjectKey, index: int | None) -> None:
        """Wake `key` with the zone's deltas, all or those of one partition, until `unfollow`."""
        self._followers.setdefault(zone, {})[key] = index

    def unfollow(self, key: ObjectKey) -> None:
        """Wake `key` with no zone's deltas any more: the object is gone or at its end."""
        for followers in self._followers.values():
            followers.pop(key, None)

    def tell(self, zone: ZoneKey, delta: ReportDelta) -> None:
        """Wake whom a data node's delta concerns: at once, or soon when it is only progress."""
        if delta.urgent:
            self.queue.put(zone.object_key)
        for key, index in self._followers.get(zone, {}).items():
            if delta.changes(index):
                self.queue.put(key)
            elif delta.progress:
                self.queue.put(key, PROGRESS_SECONDS)

    async def write_status(self, key: ObjectKey, obj: O, status: Model) -> O:
        """Write a status as `StatusStore.write_status` does, and expect the watch to tell of it."""
        written = await self.store.write_status(obj, status)
        if written.metadata.resource_version != obj.metadata.resource_version:
            self.metrics.note_written(key, written.metadata.resource_version)
        return written

    def wake_zone(self, zone: ZoneKey) -> None:
        """Wake a zone and all tasks and migrations that are at work on it."""
        self.queue.put(zone.object_key)
        for key in self._followers.get(zone, {}):
            self.queue.put(key)

    def wake_all_zones(self) -> None:
        """Wake every zone: something they all look at has changed."""
        for zone in self._runtimes:
            self.wake_zone(zone)

    async def close(self) -> None:
        """End all loops and polls; nothing is sent afterwards."""
        await self.queue.close()
        await self.announcer.close()
        for zone in list(self._runtimes):
            self.forget_zone(zone)
        self.monitors.close()
        # A receiver that does not answer holds up no more than the end.
        await self.traces.close()

    async def _reconcile(self, key: ObjectKey) -> float | None:
        reconcile = self._loops[key.kind]
        begun, failed = asyncio.get_running_loop().time(), True
        with structlog.contextvars.bound_contextvars(
            kind=key.kind.value,
            namespace=key.namespace,
            name=key.name,
        ):
            try:
                wake = await reconcile(key)
                failed = False
            except UnreadableError as error:
                if error.about is not None:
                    told = announcements.of_unreadable(str(error))
                    self.announcer.announce(error.about, (told,))
                if key.kind is Kind.ZONE:
                    # Nobody will have looked at it soon: others' copies must not wait for that.
                    self.copy_board.forget(ZoneKey(key.namespace, key.name))
                raise
            finally:
                seconds = asyncio.get_running_loop().time() - begun
                self.metrics.note_pass(key.kind, seconds, failed=failed)
        return wake
