"""What a process has at hand before it leads: certificates, watches, monitors of data nodes.

The one that waits for the Lease knows who is silent, and since when; it has connections to all
data nodes, and has seen every object. So nothing is waited for twice when a machine is lost with
the leading process and a data node on it. It writes nothing: the first thing that it may do only
as the leader is to make the authority that issues certificates.

Concurrency: `keep` and `complete` may run side by side on one event loop.
"""

import asyncio
from collections.abc import Callable, Mapping

import kopf
import structlog

from rezone.controller.nodes.monitors import Monitors
from rezone.controller.process.handlers import (
    KopfThread,
    build_registry,
    watch_certificate_requests,
)
from rezone.controller.process.wakes import Wakes
from rezone.controller.process.watch_check import DeafWatchError, WatchCheck
from rezone.controller.work.keys import Kind, ObjectKey, ZoneKey
from rezone.controller.work.queue import KeyedQueue
from rezone.controller.work.settings import CoordinatorSettings
from rezone.kube.api.client import Kube
from rezone.kube.api.errors import KubeError
from rezone.kube.api.kinds import Kind as StoredKind
from rezone.kube.api.kinds import MigrationKind, TaskKind, ZoneKind
from rezone.kube.stored.store import StatusStore
from rezone.kube.tls.certificates import (
    Certificates,
    IssuedCertificates,
    NodeNames,
    ProvidedCertificates,
)
from rezone.resources.zone import DistributionZone
from rezone.resources.zone_status import DataNodeState, DistributionZoneStatus
from rezone.wire.transport.tls import DIRECTORY_VARIABLE, TlsFilesError, tls_from_environment

log = structlog.get_logger(__name__)

TRY_AGAIN_SECONDS = 1.0
LOOK_SECONDS = 30.0
"""How often it looks whether its certificate is to be renewed, and whether its watches have told
all that has changed. Kopf takes 21 s at most to connect a watch again."""
KOPF_STOP_SECONDS = 5.0
ZONES_AT_ONCE = 4
_WATCHED: Mapping[Kind, StoredKind] = {
    Kind.ZONE: ZoneKind,
    Kind.TASK: TaskKind,
    Kind.MIGRATION: MigrationKind,
}


def certificates_of(kube: Kube, settings: CoordinatorSettings) -> Certificates | None:
    """Return where certificates come from, None for plaintext."""
    if settings.tls == "issued":
        return IssuedCertificates(
            kube,
            settings.lease_namespace,
            secret=settings.tls_authority_secret,
            names=NodeNames(settings.data_node_names),
        )
    if settings.tls == "provided":
        own = tls_from_environment()
        if own is None:
            raise TlsFilesError(f"REZONE_TLS=provided needs {DIRECTORY_VARIABLE}")
        return ProvidedCertificates(own)
    log.warning("without TLS: everybody who can connect to a data node may do everything")
    return None


class Prepared:
    """Gets ready while `keep` runs, at the latest with `complete`; `close` ends all of it.

    `failed` is called, from any thread, if the watches end by themselves or tell nothing.
    """

    def __init__(
        self,
        kube: Kube,
        settings: CoordinatorSettings,
        failed: Callable[[BaseException | None], None],
    ) -> None:
        self.certificates = certificates_of(kube, settings)
        tls = self.certificates.source if self.certificates is not None else None
        self.monitors = Monitors(timeout_seconds=settings.report_timeout_seconds, tls=tls)
        self._kube = kube
        self._settings = settings
        self._store = StatusStore(kube)
        self._zones: KeyedQueue[ObjectKey] = KeyedQueue(self._look, concurrency=ZONES_AT_ONCE)
        self.wakes = Wakes(asyncio.get_running_loop(), self._zones.put)
        self._kopf = KopfThread(self._registry(), namespaces=settings.namespaces, failed=failed)
        self._check = WatchCheck()
        self._failed = failed
        self._starting = asyncio.Lock()
        self._started = False

    @property
    def ready(self) -> bool:
        """Whether the watches run: one that cannot lead well must not take another's place."""
        return self._kopf.ready.is_set()

    async def keep(self) -> None:
        """Get ready as soon as the API server answers, and stay so, until cancelled."""
        while True:
            try:
                ready = await self._begin(make_authority=False)
                if ready:
                    await self._check_watches()
            except DeafWatchError as error:
                self._failed(error)
                return
            except (KubeError, TlsFilesError) as error:
                log.warning("cannot get ready yet", error=str(error))
                ready = False
            await asyncio.sleep(LOOK_SECONDS if ready else TRY_AGAIN_SECONDS)

    async def complete(self) -> None:
        """Get ready as the leader, and watch no data nodes by the status alone any more."""
        # An API server tells nobody that it serves a kind.
        while not await self._begin(make_authority=True):  # noqa: ASYNC110
            await asyncio.sleep(TRY_AGAIN_SECONDS)
        await self._zones.close()

    async def close(self) -> None:
        """End the watches and all polls."""
        await self._zones.close()
        self.monitors.close()
        if self._started:
            await asyncio.to_thread(self._kopf.stop, KOPF_STOP_SECONDS)

    async def _begin(self, *, make_authority: bool) -> bool:
        """Begin to watch once there are certificates; look after them each time."""
        async with self._starting:
            if isinstance(self.certificates, IssuedCertificates):
                if make_authority:
                    await self.certificates.start()
                elif not await self.certificates.read():
                    return False
            if not self._started:
                # Watches that begin while the API server is away end the process. Kopf asks once
                # what there is to watch, and a server that starts does not know our kinds yet.
                if missing := await self._kube.unserved(tuple(_WATCHED.values())):
                    log.warning("the API server does not serve our kinds yet", missing=missing)
                    return False
                self._started = True
                self._kopf.start()
            return True

    async def _check_watches(self) -> None:
        """Compare what the watches have told with what is stored. Raises DeafWatchError."""
        told = self.wakes.told
        stored: dict[ObjectKey, str] = {}
        for kind, stored_kind in _WATCHED.items():
            for namespace in self._settings.namespaces or (None,):
                found = await self._kube.versions(stored_kind, namespace)
                stored |= {ObjectKey(kind, *names): version for names, version in found.items()}
        self._check.look(told, stored)

    def _registry(self) -> kopf.OperatorRegistry:
        registry = build_registry(self.wakes.wake, self.wakes.wake_all_zones)
        if (
            isinstance(self.certificates, IssuedCertificates)
            and self._settings.client_login == "on"
        ):
            watch_certificate_requests(registry, self.wakes.wake)
        return registry

    async def _look(self, key: ObjectKey) -> None:
        """Watch the data nodes that a zone's status names."""
        found = await self._store.find(DistributionZone, key.namespace, key.name)
        zone = ZoneKey(key.namespace, key.name)
        if found is None or found.metadata.deletion_timestamp is not None:
            self.monitors.forget(zone)
            return
        nodes = (found.status or DistributionZoneStatus()).data_nodes
        self.monitors.of(zone, found.metadata.uid).watch(
            {node.id: node.address for node in nodes if node.address},
            expected=[node.id for node in nodes if node.state is not DataNodeState.STARTING],
        )
