"""The API server as the operator uses it: one thin facade over `connection`, by kind.

Every request has a deadline, and every failure becomes one of `rezone.kube.api.errors`. A write
whose answer is missing is unknown, not failed: nothing here repeats it, because only the caller's
next observation can tell what happened.

Concurrency: a `Kube` belongs to one event loop and may be used by any number of its tasks.
"""

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

from rezone.kube.api.connection import (
    APPLY_PATCH,
    JSON,
    MERGE_PATCH,
    METADATA_LIST,
    ConfigurationError,
    Connection,
    ConnectionSettings,
    NotSentError,
    RefusedError,
    Text,
    UnansweredError,
    open_connection,
    open_for_callers,
)
from rezone.kube.api.errors import (
    ConflictWriteError,
    ExistsError,
    ForbiddenError,
    InvalidWriteError,
    KubeError,
    MissingError,
    UnauthenticatedError,
    UnavailableError,
    UnknownOutcomeError,
)
from rezone.kube.api.kinds import CertificateRequest, Kind, Manifest

FIELD_MANAGER = "rezone"
LIST_CHUNK_OBJECTS = 500

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class KubeSettings(ConnectionSettings):
    """How the API server is used."""

    field_manager: str = FIELD_MANAGER


async def connect(
    kubeconfig: Path | str | None = None, settings: KubeSettings | None = None
) -> "Kube":
    """Return a connection by `kubeconfig`, $KUBECONFIG, the pod's account, or ~/.kube/config.

    Nothing is sent to the API server yet. Raises KubeError when there is no usable configuration.
    """
    settings = settings or KubeSettings()
    try:
        return Kube(await open_connection(kubeconfig, settings), settings)
    except ConfigurationError as error:
        raise KubeError(str(error)) from error


def connect_for_callers(
    server: str, authority: Path, bearer: Callable[[], str], settings: KubeSettings
) -> "Kube":
    """Return a connection whose every request has the token that `bearer` gives it, and no other.

    Raises KubeError when there is no usable configuration.
    """
    try:
        return Kube(open_for_callers(server, authority, bearer, settings), settings)
    except ConfigurationError as error:
        raise KubeError(str(error)) from error


class Kube:
    """One API server. No read is from a cache: without a resourceVersion they are quorum reads."""

    def __init__(self, connection: Connection, settings: KubeSettings | None = None) -> None:
        self._connection = connection
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
        await self._connection.close()

    @property
    def connection(self) -> Connection:
        """What requests go by: for watches, which have deadlines of their own."""
        return self._connection

    @property
    def namespace(self) -> str:
        """The namespace of the configuration: in a pod, the pod's own."""
        return self._connection.namespace

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest:
        """Return one object. Raises MissingError."""
        call = self._connection.request("GET", kind.path(namespace, name))
        return await self._send(call, f"{kind.name} {namespace}/{name}")

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
        query = {"limit": str(LIST_CHUNK_OBJECTS)}
        if labels:
            query["labelSelector"] = _selector(labels)
        if fields:
            query["fieldSelector"] = _selector(fields)
        call = _chunks(self._connection, kind.path(namespace), query)
        found, _ = await self._send(call, f"{kind.name} list in {namespace or 'all'}")
        return found

    async def names(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        labels: Mapping[str, str] | None = None,
    ) -> Sequence[tuple[str, str]]:
        """Return namespace and name of the objects with these labels that are not being deleted.

        The API server sends their metadata alone, so neither the size of an object nor what cannot
        be read of it matters.
        """
        metas = await self._metadata(kind, namespace, labels)
        return [(m["namespace"], m["name"]) for m in metas if not m.get("deletionTimestamp")]

    async def versions(
        self, kind: Kind, namespace: str | None = None
    ) -> Mapping[tuple[str, str], str]:
        """Return the resourceVersion of each object of a namespace (None: of all) by both names."""
        metas = await self._metadata(kind, namespace, None)
        return {(m["namespace"], m["name"]): m["resourceVersion"] for m in metas}

    async def _metadata(
        self, kind: Kind, namespace: str | None, labels: Mapping[str, str] | None
    ) -> Sequence[Manifest]:
        query = {"limit": str(LIST_CHUNK_OBJECTS)}
        if labels:
            query["labelSelector"] = _selector(labels)
        call = _chunks(self._connection, kind.path(namespace), query, accept=METADATA_LIST)
        found, _ = await self._send(call, f"{kind.name} names in {namespace or 'all'}")
        return [each["metadata"] for each in found]

    async def unserved(self, kinds: Collection[Kind]) -> Sequence[str]:
        """Return which of these custom kinds the API server does not list, as plural.group.

        It does not while it starts, after it answers for its own kinds and before the custom ones.
        """
        call = self._connection.request("GET", "/apis")
        groups = (await self._send(call, "the groups of the API"))["groups"]
        known = {each["groupVersion"] for group in groups for each in group["versions"]}
        listed: set[tuple[str, str]] = set()
        for version in known & {kind.api_version for kind in kinds}:
            call = self._connection.request("GET", f"/apis/{version}")
            with contextlib.suppress(MissingError):  # its last kind has just been deleted
                found = await self._send(call, f"the kinds of {version}")
                listed |= {(version, each["name"]) for each in found["resources"]}
        missing = [kind for kind in kinds if (kind.api_version, kind.plural) not in listed]
        return [f"{kind.plural}.{kind.group}" for kind in missing]

    async def first(
        self,
        kind: Kind,
        namespace: str | None,
        count_max: int,
        *,
        labels: Mapping[str, str] | None = None,
    ) -> tuple[Sequence[Manifest], bool]:
        """Return at most `count_max` objects that carry the labels, and whether these are all."""
        query = {"limit": str(min(count_max, LIST_CHUNK_OBJECTS))}
        if labels:
            query["labelSelector"] = _selector(labels)
        call = _chunks(self._connection, kind.path(namespace), query, count_max)
        found, complete = await self._send(call, f"{kind.name} list in {namespace or 'all'}")
        return found[:count_max], complete and len(found) <= count_max

    async def text(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        subresource: str,
        *,
        bytes_max: int,
        query: Mapping[str, str] | None = None,
    ) -> Text:
        """Return the beginning of what a subresource says that is no JSON: a pod's log, a proxy."""
        path = kind.path(namespace, name, subresource)
        call = self._connection.text(path, query or {}, bytes_max=bytes_max)
        return await self._send(call, f"{kind.name} {namespace}/{name} {subresource}")

    async def create(
        self,
        kind: Kind,
        manifest: Manifest,
        *,
        dry_run: bool = False,
    ) -> Manifest:
        """Create an object. Raises ExistsError when the name is taken."""
        path = kind.path(manifest.get("metadata", {}).get("namespace"))
        return await self._write("create", "POST", path, kind, manifest, dry_run=dry_run)

    async def replace(self, kind: Kind, manifest: Manifest) -> Manifest:
        """Write the whole object, guarded by its metadata.resourceVersion.

        Raises ConflictWriteError when it has changed since it was read.
        """
        return await self._replace("replace", kind, manifest)

    async def replace_status(self, kind: Kind, manifest: Manifest) -> Manifest:
        """Write an object's status, guarded like `replace`."""
        return await self._replace("replace status", kind, manifest, "status")

    async def replace_approval(self, manifest: Manifest) -> Manifest:
        """Write the conditions of a certificate request, guarded like `replace`."""
        return await self._replace("replace approval", CertificateRequest, manifest, "approval")

    async def _replace(
        self, verb: str, kind: Kind, manifest: Manifest, subresource: str = ""
    ) -> Manifest:
        _assert_guarded(manifest)
        metadata = manifest["metadata"]
        path = kind.path(metadata.get("namespace"), metadata["name"], subresource)
        return await self._write(verb, "PUT", path, kind, manifest)

    async def merge(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        patch: Manifest,
    ) -> Manifest:
        """Merge a patch; with metadata.resourceVersion in it, guarded like `replace`."""
        call = self._connection.request(
            "PATCH",
            kind.path(namespace, name),
            query={"fieldManager": self._settings.field_manager},
            body=patch,
            content_type=MERGE_PATCH,
        )
        return await self._send(call, f"{kind.name} {namespace}/{name}", verb="merge")

    async def apply(
        self,
        kind: Kind,
        manifest: Manifest,
        *,
        dry_run: bool = False,
    ) -> Manifest:
        """Apply the full intent server-side and take the fields over from other managers.

        Fields that an earlier apply had and this one has not are removed.
        """
        metadata = manifest["metadata"]
        return await self._write(
            "apply",
            "PATCH",
            kind.path(metadata["namespace"], metadata["name"]),
            kind,
            manifest,
            dry_run=dry_run,
            content_type=APPLY_PATCH,
        )

    async def delete(self, kind: Kind, namespace: str, name: str) -> bool:
        """Ask for an object's deletion; False when it was gone already."""
        call = self._connection.request("DELETE", kind.path(namespace, name))
        try:
            await self._send(call, f"{kind.name} {namespace}/{name}", verb="delete")
        except MissingError:
            return False
        return True

    async def _write(
        self,
        verb: str,
        method: str,
        path: str,
        kind: Kind,
        manifest: Manifest,
        *,
        dry_run: bool = False,
        content_type: str = JSON,
    ) -> Manifest:
        query = {"fieldManager": self._settings.field_manager}
        if dry_run:
            query["dryRun"] = "All"
        if content_type == APPLY_PATCH:
            query["force"] = "true"
        body = {**manifest, "apiVersion": kind.api_version, "kind": kind.name}
        call = self._connection.request(
            method, path, query=query, body=body, content_type=content_type
        )
        return await self._send(call, _target(kind, manifest), verb=verb)

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
            # The connection's own limits are between two bytes: a trickling answer would never end.
            async with asyncio.timeout(self._settings.request_timeout_seconds):
                return await call
        except RefusedError as error:
            raise error_of(error, target, write=write) from error
        except NotSentError as error:
            raise UnavailableError(f"{target}: {error}") from error
        except (UnansweredError, TimeoutError) as error:
            failure = UnknownOutcomeError if write else UnavailableError
            raise failure(f"{target}: {error!r}") from error


async def _chunks(
    connection: Connection,
    path: str,
    query: Mapping[str, str],
    enough: float = math.inf,
    accept: str = JSON,
) -> tuple[list[Manifest], bool]:
    """Return objects until there are enough of them, and whether these are all there are."""
    found: list[Manifest] = []
    while True:
        chunk = await connection.request("GET", path, query=query, accept=accept)
        found += chunk["items"]
        more = chunk["metadata"].get("continue")
        if not more or len(found) >= enough:
            return found, not more
        query = {**query, "continue": more}


_REFUSALS: Final[Mapping[int, type[KubeError]]] = {
    401: UnauthenticatedError,
    403: ForbiddenError,
    404: MissingError,
}


def error_of(refused: RefusedError, target: str, *, write: bool) -> KubeError:
    """Return our error for a failure that the API server answered."""
    message = f"{target}: {refused.message}"
    match refused.code:
        case 401 | 403 | 404:
            return _REFUSALS[refused.code](message)
        case 409:
            exists = refused.reason == "AlreadyExists"
            return (ExistsError if exists else ConflictWriteError)(message)
        case 400 | 413 | 415 | 422:
            return InvalidWriteError(message)
    wait = _seconds(refused.retry_after)
    # 429 is refused before anything happens; behind a 5xx etcd may have taken the write.
    if write and refused.code >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return UnknownOutcomeError(message, retry_after_seconds=wait)
    return UnavailableError(message, retry_after_seconds=wait)


def _seconds(retry_after: str) -> float:
    try:
        return min(60.0, max(0.1, float(retry_after)))
    except ValueError:
        return 1.0


def _selector(wanted: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in wanted.items())


def _target(kind: Kind, manifest: Manifest) -> str:
    metadata = manifest.get("metadata", {})
    return f"{kind.name} {metadata.get('namespace')}/{metadata.get('name')}"


def _assert_guarded(manifest: Manifest) -> None:
    # Without it the API server would overwrite whatever is there.
    if not manifest["metadata"].get("resourceVersion"):
        raise ValueError("a replacing write needs metadata.resourceVersion")
