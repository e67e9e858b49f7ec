"""The operator process: wait for the Lease, lead, and end with the Lease.

Losing the Lease ends the process at once and without clean-up: whatever it still believed is
worthless, and data nodes refuse its epoch as soon as the next one has spoken.
"""

import asyncio
import os
import signal

import structlog

from rezone.controller.coordinator import Coordinator, thread_safe_wakes
from rezone.controller.handlers import (
    KopfThread,
    build_registry,
    watch_certificate_requests,
)
from rezone.controller.health import HealthServer
from rezone.controller.keys import Kind
from rezone.controller.metrics import OperatorMetrics
from rezone.controller.migration import MigrationReconciler
from rezone.controller.settings import CoordinatorSettings
from rezone.controller.task import TaskReconciler
from rezone.controller.zone import ZoneReconciler
from rezone.kube.certificates import Certificates, IssuedCertificates, ProvidedCertificates
from rezone.kube.client import Kube, connect
from rezone.kube.client_certificates import ClientCertificates
from rezone.kube.lease import ElectionSettings, LeaderElection, new_identity
from rezone.kube.routes import highest_coordinator_epoch
from rezone.wire.tls import DIRECTORY_VARIABLE, TlsFilesError, tls_from_environment

log = structlog.get_logger(__name__)

EXIT_LEASE_LOST = 3
EXIT_WATCH_FAILED = 4
KOPF_STOP_SECONDS = 5.0
LOOK_SECONDS_MAX = 0.5
"""How often a process that waits for the Lease looks at it, at the least."""


def run_operator() -> int:
    """Run until SIGTERM (0), or until the Lease is lost or watching fails (another number)."""
    settings = CoordinatorSettings.from_environment()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(settings.log_level),
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
    )
    return asyncio.run(_main(settings))


def election_settings(lease_duration_seconds: int) -> ElectionSettings:
    """Return the election's times for a Lease of this duration: two thirds of it to renew in.

    Those who wait look as often, or more often when that is seldom: a look is a mere read, and
    the time between two of them adds to the duration when a leader is lost.
    """
    interval = lease_duration_seconds / 8
    return ElectionSettings(
        lease_duration_seconds=lease_duration_seconds,
        renew_deadline_seconds=lease_duration_seconds * 2 / 3,
        renew_interval_seconds=interval,
        retry_interval_seconds=min(interval, LOOK_SECONDS_MAX),
    )


async def certificates_of(kube: Kube, settings: CoordinatorSettings) -> Certificates | None:
    """Return where certificates come from, None for plaintext."""
    if settings.tls == "issued":
        issued = IssuedCertificates(
            kube, settings.lease_namespace, secret=settings.tls_authority_secret
        )
        await issued.start()
        return issued
    if settings.tls == "provided":
        own = tls_from_environment()
        if own is None:
            raise TlsFilesError(f"REZONE_TLS=provided needs {DIRECTORY_VARIABLE}")
        return ProvidedCertificates(own)
    log.warning("without TLS: everybody who can connect to a data node may do everything")
    return None


async def _main(settings: CoordinatorSettings) -> int:
    process = OperatorProcess(settings)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, process.stop)
    return await process.run()


class OperatorProcess:
    """One life of the operator: election, then coordinator and Kopf, then the end."""

    def __init__(self, settings: CoordinatorSettings) -> None:
        self._settings = settings
        self._exit_code = 0
        self._kube: Kube = connect()
        self._kopf: KopfThread | None = None
        self._election = LeaderElection(
            self._kube,
            namespace=settings.lease_namespace,
            identity=new_identity(),
            pod=os.environ.get("POD_NAME", ""),
            settings=election_settings(settings.lease_duration_seconds),
            epoch_floor=lambda: highest_coordinator_epoch(self._kube),
        )
        self._health = HealthServer(
            settings.health_address,
            settings.health_port,
            lambda: self._kopf is None or self._kopf.ready.is_set(),
        )

    def stop(self) -> None:
        """End in order: stop the loops, release the Lease."""
        self._election.stop()

    async def run(self) -> int:
        """Compete for the Lease and lead; returns the process's exit code."""
        await self._health.start()
        try:
            await self._election.run(self._lead, self._lost)
        finally:
            await self._health.stop()
            await self._kube.close()
        return self._exit_code

    async def _lead(self, epoch: int) -> None:
        loop = asyncio.get_running_loop()
        certificates = await certificates_of(self._kube, self._settings)
        metrics = OperatorMetrics()
        self._kube.on_write = metrics.note_write
        coordinator = Coordinator(self._kube, self._settings, epoch, certificates, metrics)
        coordinator.register(Kind.ZONE, ZoneReconciler(coordinator).reconcile)
        coordinator.register(Kind.TASK, TaskReconciler(coordinator).reconcile)
        coordinator.register(Kind.MIGRATION, MigrationReconciler(coordinator).reconcile)
        wake, wake_all = thread_safe_wakes(coordinator, loop)
        failed: asyncio.Future[BaseException | None] = loop.create_future()

        def kopf_failed(error: BaseException | None) -> None:
            loop.call_soon_threadsafe(failed.set_result, error)

        registry = build_registry(wake, wake_all)
        if isinstance(certificates, IssuedCertificates) and self._settings.client_login == "on":
            clients = ClientCertificates(self._kube, certificates, self._settings.namespaces)
            coordinator.register(Kind.CERTIFICATE_REQUEST, lambda key: clients.answer(key.name))
            watch_certificate_requests(registry, wake)
        self._kopf = KopfThread(
            registry,
            namespaces=self._settings.namespaces,
            failed=kopf_failed,
        )
        self._kopf.start()
        lag = loop.create_task(metrics.measure_lag())
        try:
            error = await failed
            log.error("watching ended by itself", error=str(error))
            self._exit_code = EXIT_WATCH_FAILED
            self._election.stop()
        finally:
            lag.cancel()
            await coordinator.close()
            await asyncio.to_thread(self._kopf.stop, KOPF_STOP_SECONDS)

    def _lost(self) -> None:
        log.error("lease lost, ending the process")
        os._exit(EXIT_LEASE_LOST)
