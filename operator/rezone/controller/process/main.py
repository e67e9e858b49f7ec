"""The operator process: get ready, wait for the Lease, lead, and end with the Lease.

Losing the Lease ends this life at once and without clean-up: whatever it still believed is
worthless, and data nodes refuse its epoch as soon as the next one has spoken.
"""

import asyncio
import os
import signal
from collections.abc import Callable

import structlog

from rezone.controller.coordination.coordinator import Coordinator
from rezone.controller.coordination.metrics import OperatorMetrics
from rezone.controller.coordination.traces import Traces
from rezone.controller.process.health import HealthServer
from rezone.controller.process.holder import address_of, answers
from rezone.controller.process.prepared import Prepared
from rezone.controller.reconcile.migration import MigrationReconciler
from rezone.controller.reconcile.task import TaskReconciler
from rezone.controller.reconcile.zone import ZoneReconciler
from rezone.controller.work.keys import Kind
from rezone.controller.work.settings import CoordinatorSettings
from rezone.kube.api.client import Kube, connect
from rezone.kube.stored.lease import ElectionSettings, LeaderElection, new_identity
from rezone.kube.stored.routes import highest_coordinator_epoch
from rezone.kube.tls.certificates import IssuedCertificates
from rezone.kube.tls.client_certificates import ClientCertificates
from rezone.tracing.spans import SpanSink, otlp_sink

log = structlog.get_logger(__name__)

EXIT_LEASE_LOST = 3
EXIT_WATCH_FAILED = 4
EXIT_EPOCH_USED = 5
LOOK_SECONDS_MAX = 0.5
"""How often a process that waits for the Lease looks at it, at the least."""


def run_operator(begin_again: Callable[[], object] | None = None) -> int:
    """Run until SIGTERM (0), or until the Lease is lost or watching fails (another number).

    `begin_again` is called when the Lease is lost; the process ends if it returns.
    """
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
    return asyncio.run(_main(settings, begin_again))


def trace_sink(settings: CoordinatorSettings) -> SpanSink | None:
    """Return where traces go, None for nowhere. Raises SystemExit without the extra `tracing`."""
    if settings.tracing == "off":
        return None
    try:
        return otlp_sink("rezone-operator", settings.identity)
    except ModuleNotFoundError as error:
        why = f"REZONE_TRACING={settings.tracing}: {error.name} is missing; install rezone[tracing]"
        raise SystemExit(why) from error


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
        suspect_after_seconds=1.25 * interval,
    )


async def _main(settings: CoordinatorSettings, begin_again: Callable[[], object] | None) -> int:
    process = OperatorProcess(settings, await connect(), begin_again)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, process.stop)
    return await process.run()


class OperatorProcess:
    """One life of the operator: getting ready, election, then the coordinator, and the end."""

    def __init__(
        self, settings: CoordinatorSettings, kube: Kube, begin_again: Callable[[], object] | None
    ) -> None:
        self._settings = settings
        self._begin_again = begin_again
        self._exit_code = 0
        self._kube = kube
        self._loop = asyncio.get_running_loop()
        self._prepared = Prepared(self._kube, settings, self._watching_failed)
        self._election = LeaderElection(
            self._kube,
            namespace=settings.lease_namespace,
            identity=new_identity(),
            pod=os.environ.get("POD_NAME", ""),
            address=address_of(settings.health_address, settings.health_port),
            answers=answers,
            settings=election_settings(settings.lease_duration_seconds),
            epoch_floor=lambda: highest_coordinator_epoch(self._kube),
        )
        self._health = HealthServer(
            settings.health_address, settings.health_port, lambda: self._prepared.ready
        )

    def stop(self) -> None:
        """End in order: stop the loops, release the Lease."""
        self._election.stop()

    async def run(self) -> int:
        """Compete for the Lease and lead; returns the process's exit code."""
        await self._health.start()
        preparing = self._loop.create_task(self._prepared.keep())
        try:
            await self._election.run(self._lead, self._lost)
        finally:
            preparing.cancel()
            await asyncio.wait({preparing})
            await self._prepared.close()
            await self._health.stop()
            await self._kube.close()
        return self._exit_code

    async def _lead(self, epoch: int) -> None:
        await self._prepared.complete()
        certificates, wakes = self._prepared.certificates, self._prepared.wakes
        metrics = OperatorMetrics()
        self._kube.on_write = metrics.note_write
        coordinator = Coordinator(
            self._kube,
            self._settings,
            epoch,
            certificates,
            metrics=metrics,
            traces=Traces(trace_sink(self._settings)),
            monitors=self._prepared.monitors,
            on_used_epoch=self._epoch_used,
        )
        coordinator.register(Kind.ZONE, ZoneReconciler(coordinator).reconcile)
        coordinator.register(Kind.TASK, TaskReconciler(coordinator).reconcile)
        coordinator.register(Kind.MIGRATION, MigrationReconciler(coordinator).reconcile)
        if isinstance(certificates, IssuedCertificates) and self._settings.client_login == "on":
            clients = ClientCertificates(self._kube, certificates, self._settings.namespaces)
            coordinator.register(Kind.CERTIFICATE_REQUEST, lambda key: clients.answer(key.name))
        wakes.pass_on(coordinator)
        try:
            await metrics.measure_lag()
        finally:
            await coordinator.close()

    def _watching_failed(self, error: BaseException | None) -> None:
        """End the process; called from the watches' thread, or from this one."""
        log.error("the watches have failed", error=str(error))
        self._exit_code = EXIT_WATCH_FAILED
        self._loop.call_soon_threadsafe(self._election.stop)

    def _epoch_used(self, epoch: int) -> None:
        """End the process: data nodes have this epoch from another coordinator.

        It has taken over unnoticed, or the Lease was put back to an earlier state (NW-06).
        """
        log.error("data nodes know a coordinator of this or a later epoch", epoch=epoch)
        self._exit_code = EXIT_EPOCH_USED
        self._election.stop(above=epoch)

    def _lost(self) -> None:
        log.error("lease lost, nothing of this life goes on")
        if self._begin_again is not None:
            self._begin_again()
        os._exit(EXIT_LEASE_LOST)
