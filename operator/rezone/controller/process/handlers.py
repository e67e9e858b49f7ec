"""Kopf's part: watches. Every handler only wakes the keyed queue of the coordinator's own loop.

Kopf gets a loop and a thread of its own, because at its end it cancels whatever lives in its
loop. Handlers are low-level event handlers: they leave nothing on the objects, remember no
edges, and a restart replays all objects as events (docs/contribute/architecture.md, "Why so little
Kopf").
"""

import asyncio
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

import kopf

from rezone.controller.work.keys import Kind, ObjectKey, Wake, owning_tasks
from rezone.domain.access.client_requests import SIGNER
from rezone.resources import GROUP, VERSION
from rezone.resources.migration import RegionMigration
from rezone.resources.task import RebalanceTask
from rezone.resources.zone import DistributionZone

ZONE_LABEL = "rezone.dev/zone"
SPARK_GROUP = "sparkoperator.k8s.io"
SPARK_VERSION = "v1beta2"
REQUEST_SECONDS = 30.0
"""For how long Kopf may wait for an answer: for one page of a list at most. Watches it opens again
after 70 s without a word, which the API server sends each minute."""

CERTIFICATE_REQUESTS = ("certificates.k8s.io", "v1", "certificatesigningrequests")


def build_registry(wake: Wake, wake_all_zones: Callable[[], None]) -> kopf.OperatorRegistry:
    """Return the handlers; they call from Kopf's thread, so the callables must be thread-safe."""
    registry = kopf.OperatorRegistry()

    def on_own(kind: Kind) -> Callable[..., None]:
        def handle(namespace: str | None, name: str, body: Mapping[str, Any], **event: Any) -> None:
            version = body["metadata"]["resourceVersion"]
            wake(ObjectKey(kind, namespace or "", name), version, gone=_is_end(event))
            _wake_tasks(wake, namespace, body)

        return handle

    def on_node(**_: Any) -> None:
        wake_all_zones()

    kopf.on.login(registry=registry, id="login")(_login)
    for kind, resource in (
        (Kind.ZONE, DistributionZone),
        (Kind.TASK, RebalanceTask),
        (Kind.MIGRATION, RegionMigration),
    ):
        kopf.on.event(GROUP, VERSION, resource.crd.plural, registry=registry, id=f"wake-{kind}")(
            on_own(kind),
        )
    kopf.on.event("", "v1", "pods", registry=registry, id="wake-pod")(_on_pod(wake))
    kopf.on.event("", "v1", "nodes", registry=registry, id="wake-node")(on_node)
    kopf.on.event(SPARK_GROUP, SPARK_VERSION, "sparkapplications", registry=registry, id="spark")(
        _on_spark(wake),
    )
    return registry


def watch_certificate_requests(registry: kopf.OperatorRegistry, wake: Wake) -> None:
    """Add the handler of certificate requests: for an operator that may sign them."""

    def handle(name: str, body: Mapping[str, Any], **event: Any) -> None:
        version = body["metadata"]["resourceVersion"]
        wake(ObjectKey(Kind.CERTIFICATE_REQUEST, "", name), version, gone=_is_end(event))

    kopf.on.event(*CERTIFICATE_REQUESTS, registry=registry, id="certificate-request")(handle)


def _is_end(event: Mapping[str, Any]) -> bool:
    """Return whether Kopf tells of an object's deletion."""
    return bool(event["type"] == "DELETED")


def _login(**arguments: Any) -> kopf.ConnectionInfo | None:
    """Log in as `rezone.kube.api.client.connect` does: by $KUBECONFIG, or by the account."""
    if os.environ.get("KUBECONFIG"):
        return kopf.login_with_kubeconfig(**arguments)
    return kopf.login_with_service_account(**arguments)


def _on_pod(wake: Wake) -> Callable[..., None]:
    def handle(namespace: str | None, labels: Mapping[str, str], **_: Any) -> None:
        zone = labels.get(ZONE_LABEL)
        if zone:
            wake(ObjectKey(Kind.ZONE, namespace or "", zone))

    return handle


def _on_spark(wake: Wake) -> Callable[..., None]:
    def handle(namespace: str | None, body: Mapping[str, Any], **_: Any) -> None:
        _wake_tasks(wake, namespace, body)

    return handle


def _wake_tasks(wake: Wake, namespace: str | None, body: Mapping[str, Any]) -> None:
    for key in owning_tasks(namespace or "", body):
        wake(key)


def build_settings() -> kopf.OperatorSettings:
    """Return Kopf's settings: objects by what never changes about them, lists in pages."""
    settings = kopf.OperatorSettings()
    settings.watching.label_selectors["", "v1", "pods"] = "app.kubernetes.io/managed-by=rezone"
    settings.watching.field_selectors[*CERTIFICATE_REQUESTS] = f"spec.signerName={SIGNER}"
    settings.watching.chunk_size = 500
    settings.networking.request_timeout = REQUEST_SECONDS
    settings.posting.enabled = False
    settings.scanning.disabled = False
    return settings


class KopfThread:
    """Runs Kopf in a thread with its own loop; `failed` is called if it ends by itself."""

    def __init__(
        self,
        registry: kopf.OperatorRegistry,
        *,
        namespaces: tuple[str, ...],
        failed: Callable[[BaseException | None], None],
    ) -> None:
        self._registry = registry
        self._namespaces = namespaces
        self._failed = failed
        self._stop = threading.Event()
        self.ready = threading.Event()
        self._thread = threading.Thread(target=self._main, name="kopf", daemon=True)

    def start(self) -> None:
        """Start the watches; `ready` is set when they run."""
        self._thread.start()

    def stop(self, timeout_seconds: float) -> None:
        """Ask Kopf to end and wait for it."""
        self._stop.set()
        self._thread.join(timeout_seconds)

    def _main(self) -> None:
        error: BaseException | None = None
        try:
            asyncio.run(
                kopf.operator(
                    registry=self._registry,
                    settings=build_settings(),
                    standalone=True,
                    clusterwide=not self._namespaces,
                    namespaces=self._namespaces,
                    stop_flag=self._stop,
                    ready_flag=self.ready,
                ),
            )
        except Exception as raised:  # noqa: BLE001 - reported to the process, which ends
            error = raised
        if not self._stop.is_set():
            self._failed(error)
