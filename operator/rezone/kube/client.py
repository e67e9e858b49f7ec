"""The connection to the API server: one thin typed facade over lightkube.

Every request has a deadline, and every failure becomes one of `rezone.kube.errors`. A write whose
answer is missing is unknown, not failed: nothing here repeats a request, because only the caller's
next observation can tell what happened.

Concurrency: a `Kube` belongs to one event loop and may be used by any number of its tasks.
"""

import asyncio
import os
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx2
from lightkube import AsyncClient, KubeConfig
from lightkube.core.exceptions import ApiError, ConfigError
from lightkube.generic_resource import GenericGlobalResource
from lightkube.types import PatchType

from rezone.kube.errors import (
    ConflictWriteError,
    ExistsError,
    ForbiddenError,
    InvalidWriteError,
    KubeError,
    MissingError,
    UnavailableError,
    UnknownOutcomeError,
)
from rezone.kube.kinds import (
    CertificateRequest,
    CertificateRequestApproval,
    Kind,
    Manifest,
    NamespacedKind,
)

FIELD_MANAGER = "rezone"
LIST_CHUNK_OBJECTS = 500

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class KubeSettings:
    """How the connection behaves."""

    connect_timeout_seconds: float = 3.0
    request_timeout_seconds: float = 10.0
    field_manager: str = FIELD_MANAGER
    # Off: a proxy for the internet must not stand between the operator and its API server.
    proxy_from_environment: bool = False


def connect(kubeconfig: Path | str | None = None, settings: KubeSettings | None = None) -> "Kube":
    """Return a connection by `kubeconfig`, $KUBECONFIG, the pod's account, or ~/.kube/config.

    Nothing is sent yet. Raises KubeError when there is no usable configuration. Must be called
    inside the event loop that will use it.
    """
    settings = settings or KubeSettings()
    try:
        config = _configuration(kubeconfig).get()
    except ConfigError as error:
        raise KubeError(f"no usable Kubernetes configuration: {error}") from error
    if config is None or config.user is None:
        raise KubeError("the kubeconfig has no current context with a user")
    client = AsyncClient(
        config=config,
        timeout=httpx2.Timeout(
            settings.request_timeout_seconds,
            connect=settings.connect_timeout_seconds,
        ),
        field_manager=settings.field_manager,
        trust_env=settings.proxy_from_environment,
    )
    return Kube(client, settings)


def _configuration(kubeconfig: Path | str | None) -> KubeConfig:
    explicit = kubeconfig or os.environ.get("KUBECONFIG")
    if explicit:
        return KubeConfig.from_file(explicit)
    return KubeConfig.from_env()


class Kube:
    """One API server. No read is from a cache: without a resourceVersion they are quorum reads."""

    def __init__(self, client: AsyncClient, settings: KubeSettings | None = None) -> None:
        self._client = client
        self._settings = settings or KubeSettings()
        self.on_write: Callable[[str, str, str], None] = lambda _kind, _verb, _outcome: None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; the object cannot be used afterwards."""
        await self._client.close()

    @property
    def namespace(self) -> str:
        """The namespace of the configuration: in a pod, the pod's own."""
        return str(self._client.namespace)

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest:
        """Return one object. Raises MissingError."""
        target = f"{kind.__name__} {namespace}/{name}"
        if issubclass(kind, GenericGlobalResource):
            return dict(await self._send(self._client.get(kind, name), target))
        call = self._client.get(kind, name, namespace=namespace)
        return dict(await self._send(call, target))

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
        """Return the objects of a namespace (None: of all) that carry the labels.

        `fields` are values of selectable fields that they have besides, by path ("spec.zoneName").
        """
        selector: dict[str, Any] | None = dict(labels) if labels else None
        wanted: dict[str, Any] | None = dict(fields) if fields else None
        found: AsyncIterable[Mapping[str, Any]]
        if issubclass(kind, GenericGlobalResource):
            found = self._client.list(kind, labels=selector, chunk_size=LIST_CHUNK_OBJECTS)
        else:
            found = self._client.list(
                kind,
                namespace="*" if namespace is None else namespace,
                labels=selector,
                fields=wanted,
                chunk_size=LIST_CHUNK_OBJECTS,
            )

        async def collect() -> list[Manifest]:
            return [dict(each) async for each in found]

        return await self._send(collect(), f"{kind.__name__} list in {namespace or 'all'}")

    async def create(
        self,
        kind: Kind,
        manifest: Manifest,
        *,
        dry_run: bool = False,
    ) -> Manifest:
        """Create an object. Raises ExistsError when the name is taken."""
        call = self._client.create(kind.from_dict(manifest), dry_run=dry_run)
        return dict(await self._send(call, _target(kind, manifest), verb="create"))

    async def replace(self, kind: NamespacedKind, manifest: Manifest) -> Manifest:
        """Write the whole object, guarded by its metadata.resourceVersion.

        Raises ConflictWriteError when it has changed since it was read.
        """
        _assert_guarded(manifest)
        call = self._client.replace(kind.from_dict(manifest))
        return dict(await self._send(call, _target(kind, manifest), verb="replace"))

    async def replace_status(self, kind: Kind, manifest: Manifest) -> Manifest:
        """Write an object's status, guarded like `replace`."""
        _assert_guarded(manifest)
        call = self._client.replace(kind.Status.from_dict(manifest))
        return dict(await self._send(call, _target(kind, manifest), verb="replace status"))

    async def replace_approval(self, manifest: Manifest) -> Manifest:
        """Write the conditions of a certificate request, guarded like `replace`."""
        _assert_guarded(manifest)
        call = self._client.replace(CertificateRequestApproval.from_dict(manifest))
        return dict(
            await self._send(call, _target(CertificateRequest, manifest), verb="replace approval")
        )

    async def merge(
        self,
        kind: NamespacedKind,
        namespace: str,
        name: str,
        patch: Manifest,
    ) -> Manifest:
        """Merge a patch; with metadata.resourceVersion in it, guarded like `replace`."""
        call = self._client.patch(
            kind,
            name,
            patch,
            namespace=namespace,
            patch_type=PatchType.MERGE,
        )
        return dict(await self._send(call, f"{kind.__name__} {namespace}/{name}", verb="merge"))

    async def apply(
        self,
        kind: NamespacedKind,
        manifest: Manifest,
        *,
        dry_run: bool = False,
    ) -> Manifest:
        """Apply the full intent server-side and take the fields over from other managers.

        Fields that an earlier apply had and this one has not are removed.
        """
        metadata = manifest["metadata"]
        call = self._client.patch(
            kind,
            metadata["name"],
            manifest,
            namespace=metadata["namespace"],
            patch_type=PatchType.APPLY,
            force=True,
            dry_run=dry_run,
        )
        return dict(await self._send(call, _target(kind, manifest), verb="apply"))

    async def delete(self, kind: NamespacedKind, namespace: str, name: str) -> bool:
        """Ask for an object's deletion; False when it was gone already."""
        call = self._client.delete(kind, name, namespace=namespace)
        try:
            await self._send(call, f"{kind.__name__} {namespace}/{name}", verb="delete")
        except MissingError:
            return False
        return True

    async def _send(self, call: Awaitable[_T], target: str, *, verb: str = "") -> _T:
        """Await a request under the whole-request deadline and map its failure.

        `verb` is what a write does, and empty for a read; `on_write` is told of its outcome.
        """
        outcome = "refused"
        try:
            answer = await self._answer(call, target, write=bool(verb))
            outcome = "ok"
        except UnknownOutcomeError:
            outcome = "unknown"
            raise
        finally:
            if verb:
                self.on_write(target.partition(" ")[0], verb, outcome)
        return answer

    async def _answer(self, call: Awaitable[_T], target: str, *, write: bool) -> _T:
        try:
            # httpx's own timeouts are per chunk: a trickling answer would never end.
            async with asyncio.timeout(self._settings.request_timeout_seconds):
                return await call
        except httpx2.HTTPStatusError as error:
            raise error_of(error, target, write=write) from error
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
            raise UnavailableError(f"{target}: no connection: {error}") from error
        except (httpx2.TransportError, TimeoutError) as error:
            failure = UnknownOutcomeError if write else UnavailableError
            raise failure(f"{target}: no answer: {error!r}") from error


def error_of(error: httpx2.HTTPStatusError, target: str, *, write: bool) -> KubeError:
    """Return our error for an answer of the API server."""
    code = error.response.status_code
    reason = ""
    message = f"{target}: {error}"
    if isinstance(error, ApiError):
        reason = error.status.reason or ""
        message = f"{target}: {error.status.message}"
    match code:
        case 404:
            return MissingError(message)
        case 409:
            return (ExistsError if reason == "AlreadyExists" else ConflictWriteError)(message)
        case 400 | 413 | 415 | 422:
            return InvalidWriteError(message)
        case 401 | 403:
            return ForbiddenError(message)
    wait = _retry_after(error.response)
    # 429 is refused before anything happens; behind a 5xx etcd may have taken the write.
    if write and code >= httpx2.codes.INTERNAL_SERVER_ERROR:
        return UnknownOutcomeError(message, retry_after_seconds=wait)
    return UnavailableError(message, retry_after_seconds=wait)


def _retry_after(response: httpx2.Response) -> float:
    try:
        return min(60.0, max(0.1, float(response.headers.get("Retry-After", "1"))))
    except ValueError:
        return 1.0


def _target(kind: Kind, manifest: Manifest) -> str:
    metadata = manifest.get("metadata", {})
    return f"{kind.__name__} {metadata.get('namespace')}/{metadata.get('name')}"


def _assert_guarded(manifest: Manifest) -> None:
    # Without it the API server would overwrite whatever is there.
    if not manifest["metadata"].get("resourceVersion"):
        raise ValueError("a replacing write needs metadata.resourceVersion")
