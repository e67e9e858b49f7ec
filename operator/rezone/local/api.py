"""A small client of the API server for objects as plain JSON.

The agent and the Spark runner write back what they read, whole pods and applications of any shape;
typed models would drop the fields they do not know. One client per process and event loop.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
import structlog
import yaml

from rezone.local.errors import ApiError

Json = dict[str, Any]

MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"

_REQUEST_TIMEOUT_SECONDS = 15.0
# The server ends a watch after this; a silent half-open connection is then noticed as well.
_WATCH_SECONDS = 240
_RETRY_SECONDS = 0.5
_GONE = 410
_FAILURE_FROM = 400
_LOST_CONNECTION = (aiohttp.ClientError, TimeoutError, ConnectionError)

_log = structlog.get_logger(__name__)


class KubeApi(AbstractAsyncContextManager["KubeApi"]):
    """Talks to the cluster of a kubeconfig's current context (client certificates or a token)."""

    def __init__(self, kubeconfig: Path) -> None:
        cluster, user = _current(yaml.safe_load(kubeconfig.read_text()))
        self.server = str(cluster["server"]).rstrip("/")
        self.authority = _authority(cluster)
        self._context = _tls(self.authority, user)
        token = user.get("token")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(ssl=self._context, limit=0)
        self._session = aiohttp.ClientSession(connector=connector, headers=self._headers)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._session is not None:
            await self._session.close()

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
            except ApiError as error:
                if error.code != _GONE:
                    _log.warning("watch refused", path=path, error=str(error))
                    await asyncio.sleep(_RETRY_SECONDS)
            except _LOST_CONNECTION as error:
                _log.info("watch lost", path=path, error=repr(error))
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
            limit = aiohttp.ClientTimeout(total=None, sock_read=_WATCH_SECONDS + 30)
            async with self._open().get(self.server + path, params=query, timeout=limit) as answer:
                if answer.status >= _FAILURE_FROM:
                    raise _failure(answer.status, await answer.read())
                async for line in _lines(answer.content):
                    event = json.loads(line)
                    item = event["object"]
                    if event["type"] == "ERROR":
                        raise _failure(int(item.get("code", 500)), line)
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
        content_type: str = "application/json",
    ) -> Json:
        async with self._open().request(
            method,
            self.server + path,
            params=params,
            data=None if body is None else json.dumps(body),
            headers={"Content-Type": content_type},
            timeout=aiohttp.ClientTimeout(total=_REQUEST_TIMEOUT_SECONDS),
        ) as answer:
            payload = await answer.read()
            if answer.status >= _FAILURE_FROM:
                raise _failure(answer.status, payload)
            parsed: Json = json.loads(payload)
            return parsed

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("KubeApi is used outside its `async with`")
        return self._session


async def _lines(stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield lines of any length; the reader's own iteration refuses lines over its buffer."""
    rest = b""
    async for chunk in stream.iter_any():
        *complete, rest = (rest + chunk).split(b"\n")
        for line in complete:
            yield line


def _failure(code: int, payload: bytes) -> ApiError:
    try:
        status = json.loads(payload)
        status = status.get("object", status)
        return ApiError(code, str(status.get("reason", "")), str(status.get("message", "")))
    except (ValueError, AttributeError):
        return ApiError(code, "", payload[:200].decode(errors="replace"))


def _current(document: Json) -> tuple[Json, Json]:
    """Return the cluster and user of the current context."""
    contexts = {item["name"]: item["context"] for item in document["contexts"]}
    context = contexts[document["current-context"]]
    clusters = {item["name"]: item["cluster"] for item in document["clusters"]}
    users = {item["name"]: item["user"] for item in document["users"]}
    return clusters[context["cluster"]], users[context["user"]]


def _authority(cluster: Json) -> str:
    """Return the certificate authority as PEM text, empty for the system's."""
    data = cluster.get("certificate-authority-data")
    if data:
        return base64.b64decode(data).decode()
    path = cluster.get("certificate-authority")
    return Path(path).read_text() if path else ""


def _tls(authority: str, user: Json) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=authority or None)
    if "client-certificate-data" not in user:
        return context
    # ssl reads client certificates from files only.
    with tempfile.NamedTemporaryFile(suffix=".pem") as both:
        for key in ("client-certificate-data", "client-key-data"):
            both.write(base64.b64decode(user[key]) + b"\n")
        both.flush()
        context.load_cert_chain(both.name)
    return context
