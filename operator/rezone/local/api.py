"""The API server as the one-machine cluster uses it: objects as plain JSON, by path.

The agent and the Spark runner write back what they read, whole pods and applications of any shape.
One client per process and event loop.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog
import yaml

from rezone.kube.api.connection import (
    JSON,
    MERGE_PATCH,
    STRATEGIC_PATCH,
    ConfigurationError,
    Connection,
    ConnectionSettings,
    Json,
    NotSentError,
    RefusedError,
    UnansweredError,
    open_connection,
)
from rezone.local.errors import ApiError, UnreachableError

__all__ = ["MERGE_PATCH", "STRATEGIC_PATCH", "Json", "KubeApi"]

_REQUEST_TIMEOUT_SECONDS = 15.0
# The server ends a watch after this; a silent half-open connection is then noticed as well.
_WATCH_SECONDS = 240
_SILENCE_SECONDS = _WATCH_SECONDS + 30.0
_RETRY_SECONDS = 0.5
_GONE = 410

_log = structlog.get_logger(__name__)


class KubeApi(AbstractAsyncContextManager["KubeApi"]):
    """Talks to the cluster of a kubeconfig's current context.

    A request without an answer ends with UnreachableError, which is an ApiError.
    """

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig
        cluster = _current_cluster(yaml.safe_load(kubeconfig.read_text()))
        self.server = str(cluster["server"]).rstrip("/")
        self.authority = _authority(cluster)
        self._connection: Connection | None = None

    async def __aenter__(self) -> Self:
        settings = ConnectionSettings(
            connect_timeout_seconds=_REQUEST_TIMEOUT_SECONDS,
            request_timeout_seconds=_REQUEST_TIMEOUT_SECONDS,
        )
        try:
            self._connection = await open_connection(self._kubeconfig, settings)
        except ConfigurationError as error:
            raise UnreachableError(self.server, str(error)) from error
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._connection is not None:
            await self._connection.close()

    async def get(self, path: str, **params: str) -> Json:
        """Read one object or list. Raises ApiError."""
        return await self._call("GET", path, params=params)

    async def create(self, path: str, body: Json) -> Json:
        """Post an object to a collection. Raises ApiError."""
        return await self._call("POST", path, body=body)

    async def patch(self, path: str, body: Json, kind: str = MERGE_PATCH) -> Json:
        """Patch one object. Raises ApiError."""
        return await self._call("PATCH", path, body=body, content_type=kind)

    async def replace(self, path: str, body: Json) -> Json:
        """Put one object back; with a resourceVersion in it a compare-and-set. Raises ApiError."""
        return await self._call("PUT", path, body=body)

    async def delete(self, path: str, *, uid: str = "", grace_seconds: int | None = None) -> None:
        """Delete an object, with a uid only that one; one already gone is fine. Raises ApiError."""
        options: Json = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        try:
            await self._call("DELETE", path, body=options)
        except ApiError as error:
            # With a uid given, a conflict says that the object under this name is another one by
            # now.
            if not error.not_found and not (uid and error.conflict):
                raise

    async def follow(self, path: str, **params: str) -> AsyncIterator[tuple[str, Json]]:
        """Yield ("SYNC", list) and then ("ADDED" | "MODIFIED" | "DELETED", object) for ever.

        Lost connections and expired versions lead to another SYNC: the receiver compares it with
        what it knows.
        """
        while True:
            try:
                listed = await self.get(path, **params)
                yield "SYNC", listed
                version = str(listed["metadata"]["resourceVersion"])
                async for event, item in self._watch(path, version, params):
                    yield event, item
            except UnreachableError as error:
                _log.info("watch lost", path=path, error=str(error))
                await asyncio.sleep(_RETRY_SECONDS)
            except ApiError as error:
                if error.code != _GONE:
                    _log.warning("watch refused", path=path, error=str(error))
                    await asyncio.sleep(_RETRY_SECONDS)

    async def _watch(
        self, path: str, version: str, params: Mapping[str, str]
    ) -> AsyncIterator[tuple[str, Json]]:
        """Yield events, going on at the version last seen when the server ends the watch."""
        while True:
            query = {
                **params,
                "watch": "1",
                "resourceVersion": version,
                "allowWatchBookmarks": "true",
                "timeoutSeconds": str(_WATCH_SECONDS),
            }
            lines = self._open().lines(path, query, silence_seconds=_SILENCE_SECONDS)
            with self._failures():
                async for event in lines:
                    item = event["object"]
                    if event["type"] == "ERROR":
                        raise ApiError(
                            int(item.get("code", 500)),
                            str(item.get("reason", "")),
                            str(item.get("message", "")),
                        )
                    version = str(item["metadata"]["resourceVersion"])
                    if event["type"] != "BOOKMARK":
                        yield event["type"], item

    async def _call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Json | None = None,
        content_type: str = JSON,
    ) -> Json:
        with self._failures():
            async with asyncio.timeout(_REQUEST_TIMEOUT_SECONDS):
                return await self._open().request(
                    method, path, query=params, body=body, content_type=content_type
                )

    def _open(self) -> Connection:
        if self._connection is None:
            raise RuntimeError("KubeApi is used outside its `async with`")
        return self._connection

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Turn a connection's failures into this package's."""
        try:
            yield
        except RefusedError as error:
            raise ApiError(error.code, error.reason, error.message) from error
        except (NotSentError, UnansweredError, TimeoutError) as error:
            raise UnreachableError(self.server, str(error) or type(error).__name__) from error


def _current_cluster(document: Json) -> Json:
    contexts = {item["name"]: item["context"] for item in document["contexts"]}
    clusters = {item["name"]: item["cluster"] for item in document["clusters"]}
    found: Json = clusters[contexts[document["current-context"]]["cluster"]]
    return found


def _authority(cluster: Json) -> str:
    """Return the certificate authority as PEM text, empty for the system's."""
    data = cluster.get("certificate-authority-data")
    if data:
        return base64.b64decode(data).decode()
    path = cluster.get("certificate-authority")
    return Path(path).read_text() if path else ""
