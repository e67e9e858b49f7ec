"""Requests to one API server as plain JSON, by the official `kubernetes` package.

The package brings configuration, credentials and their renewal, and TLS. Its models are not used:
they drop the fields that they do not know, and what is read here is written back.

Nothing here repeats a write: a write whose answer is missing may have happened, and only the
caller's next observation can tell. Reads are repeated once, on another connection, where the one
at hand was closed by the server.

Concurrency: a `Connection` belongs to one event loop and may be used by any number of its tasks.
"""

import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
import yaml
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config import (
    ConfigException,
    list_kube_config_contexts,
    load_incluster_config,
    load_kube_config,
)

Json = dict[str, Any]
"""A Kubernetes object, list or status as JSON."""

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
DEFAULT_NAMESPACE = "default"
FAILURE_FROM = 400
MESSAGE_CHARS_MAX = 1000
JSON_LEVELS_MAX = 10_000
"""So deep may JSON be that the API server takes. It needs 2 MiB of a thread's stack."""
COPY_LEVELS_MAX = 40_000
"""Kopf copies what it hears of by Python's own calls, several for each level."""


class RefusedError(Exception):
    """Raised when the API server has answered with a failure: its code, reason and message.

    `retry_after` is the header of that name, empty without one.
    """

    def __init__(self, code: int, reason: str, message: str, retry_after: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.retry_after = retry_after


class NotSentError(Exception):
    """Raised when there was no connection to send the request on: nothing has happened."""


class UnansweredError(Exception):
    """Raised when the request was sent and its answer is missing: it may have happened."""


@dataclass(frozen=True)
class Text:
    """The beginning of an answer that is no JSON; `complete` unless more followed."""

    content: bytes
    complete: bool


class ConfigurationError(Exception):
    """Raised when there is no usable Kubernetes configuration; the message says what is missing."""


@dataclass(frozen=True, kw_only=True)
class ConnectionSettings:
    """How requests are sent."""

    connect_timeout_seconds: float = 3.0
    request_timeout_seconds: float = 10.0
    # Off: a proxy for the internet must not stand between the operator and its API server.
    proxy_from_environment: bool = False


class Connection:
    """One API server and one identity."""

    def __init__(
        self,
        configuration: Configuration,
        namespace: str,
        settings: ConnectionSettings,
        bearer: Callable[[], str] | None = None,
    ) -> None:
        configuration.client_session_kwargs = {
            "trust_env": settings.proxy_from_environment,
            "middlewares": (_never_repeat_a_write,),
        }
        if bearer is not None:
            # A gateway's cookie of one caller would go with the token of another.
            configuration.client_session_kwargs["cookie_jar"] = aiohttp.DummyCookieJar()
        # Watches and requests have limits of their own; a pool's would let them wait unseen.
        configuration.connection_pool_maxsize = 0
        self._client = ApiClient(configuration)
        self._settings = settings
        self._bearer = bearer
        self.namespace = namespace
        """The namespace of the configuration: in a pod, the pod's own."""

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

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Json | None = None,
        content_type: str = JSON,
        accept: str = JSON,
    ) -> Json:
        """Send one request and return the answer.

        Raises RefusedError, NotSentError, UnansweredError.
        """
        with _typed_errors():
            answer = await self._send(
                method,
                path,
                query=query or {},
                body=body,
                content_type=content_type,
                accept=accept,
                silence_seconds=self._settings.request_timeout_seconds,
            )
            payload = await answer.read()
        if answer.status >= FAILURE_FROM:
            raise _refused(answer, payload)
        return parsed(payload)

    async def lines(
        self, path: str, query: Mapping[str, str], *, silence_seconds: float
    ) -> AsyncIterator[Json]:
        """Yield what a watch answers, object by object, until the server ends it.

        Raises RefusedError, NotSentError, and UnansweredError after `silence_seconds` without a
        byte: only this notices a connection whose other end is gone.
        """
        with _typed_errors():
            answer = await self._send("GET", path, query=query, silence_seconds=silence_seconds)
            try:
                if answer.status >= FAILURE_FROM:
                    raise _refused(answer, await answer.read())
                async for line in _lines(answer.content):
                    yield parsed(line)
            finally:
                answer.close()

    async def text(self, path: str, query: Mapping[str, str], *, bytes_max: int) -> Text:
        """Return the first `bytes_max` bytes of an answer that is no JSON, such as a pod's log.

        The caller bounds the time. Raises RefusedError, NotSentError, UnansweredError.
        """
        content = bytearray()
        with _typed_errors():
            answer = await self._send(
                "GET",
                path,
                query=query,
                accept="*/*",
                silence_seconds=self._settings.request_timeout_seconds,
            )
            try:
                async for chunk in answer.content.iter_any():
                    content += chunk
                    if len(content) > bytes_max:
                        break
            finally:
                # Not read to its end: who sends would go on.
                answer.close()
        if answer.status >= FAILURE_FROM:
            raise _refused(answer, bytes(content))
        return Text(bytes(content[:bytes_max]), len(content) <= bytes_max)

    async def _send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str],
        body: Json | None = None,
        content_type: str = JSON,
        accept: str = JSON,
        silence_seconds: float,
    ) -> aiohttp.ClientResponse:
        # The body goes by the serializer for models, which would copy it field by field.
        header = {"Content-Type": content_type, "Accept": accept}
        if self._bearer is not None:
            header["Authorization"] = f"Bearer {self._bearer()}"
        prepared = await self._client.param_serialize(
            method,
            path,
            query_params=list(query.items()),
            header_params=header,
            auth_settings=["BearerToken"] if self._bearer is None else [],
        )
        verb, url, headers, _, _ = prepared
        timeout = aiohttp.ClientTimeout(
            total=None,
            connect=self._settings.connect_timeout_seconds,
            sock_read=silence_seconds,
        )
        answer = await self._client.call_api(verb, url, headers, body, _request_timeout=timeout)
        response: aiohttp.ClientResponse = answer.response
        return response


def take_deep_json() -> None:
    """Let this process read whatever the API server stores, in all threads and packages.

    With Python's own limit of 1,000 levels a single object of one person, where the schema leaves
    a field open, would end each list and each watch of its kind by a RecursionError.
    """
    sys.setrecursionlimit(max(sys.getrecursionlimit(), JSON_LEVELS_MAX + COPY_LEVELS_MAX))


async def open_connection(
    kubeconfig: Path | str | None = None, settings: ConnectionSettings | None = None
) -> Connection:
    """Return a connection by `kubeconfig`, $KUBECONFIG, the pod's account, or ~/.kube/config.

    Nothing is sent to the API server yet. Raises ConfigurationError.
    """
    take_deep_json()
    configuration = Configuration()
    explicit = kubeconfig or os.environ.get("KUBECONFIG")
    try:
        if not explicit and (ACCOUNT / "token").exists():
            load_incluster_config(configuration)
            namespace = (ACCOUNT / "namespace").read_text().strip()
        else:
            # Named here: the package reads the variable only once, when it is imported.
            file = str(explicit or Path.home() / ".kube" / "config")
            await load_kube_config(
                config_file=file, client_configuration=configuration, persist_config=False
            )
            _, context = list_kube_config_contexts(file)
            namespace = context["context"].get("namespace") or DEFAULT_NAMESPACE
        return Connection(configuration, namespace, settings or ConnectionSettings())
    except (ConfigException, OSError, KeyError, TypeError, yaml.YAMLError) as error:
        raise ConfigurationError(f"no usable Kubernetes configuration: {error}") from error


def open_for_callers(
    server: str, authority: Path, bearer: Callable[[], str], settings: ConnectionSettings
) -> Connection:
    """Return a connection without an identity: `bearer` gives each request the one it has.

    What `bearer` raises ends the request before anything is sent. Raises ConfigurationError.
    """
    if not server.startswith("https://"):
        raise ConfigurationError(f"{server} is not https: tokens would go in the clear")
    if not authority.is_file():
        raise ConfigurationError(f"there is no certificate authority in {authority}")
    take_deep_json()
    configuration = Configuration()
    configuration.host = server
    configuration.ssl_ca_cert = str(authority)
    return Connection(configuration, DEFAULT_NAMESPACE, settings, bearer)


async def _never_repeat_a_write(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """End a write that got no answer.

    aiohttp sends PUT and DELETE again when a used connection breaks; a second PUT of one that was
    carried out is answered as a conflict, and the caller would believe that somebody else wrote.
    """
    try:
        return await handler(request)
    except (aiohttp.ConnectionTimeoutError, aiohttp.ClientConnectorError):
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        if request.method == "GET":
            raise
        raise aiohttp.ClientError(repr(error)) from error


def parsed(payload: bytes) -> Json:
    """Return the JSON of an answer; UnansweredError when it is none, or deeper than Python goes."""
    try:
        found: Json = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise UnansweredError(f"the answer is no JSON: {type(error).__name__}") from error
    return found


@contextlib.contextmanager
def _typed_errors() -> Iterator[None]:
    """Say of a request that fails on its way whether the server can have acted on it.

    Raises NotSentError when no connection was made, else UnansweredError.
    """
    try:
        yield
    except (aiohttp.ConnectionTimeoutError, aiohttp.ClientConnectorError) as error:
        raise NotSentError(f"no connection: {error}") from error
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise UnansweredError(f"no answer: {error!r}") from error


def _refused(answer: aiohttp.ClientResponse, payload: bytes) -> RefusedError:
    reason, message = "", payload[:MESSAGE_CHARS_MAX].decode(errors="replace")
    try:
        status = json.loads(payload)
        reason = str(status.get("reason") or "")
        message = str(status.get("message") or message)
    except (ValueError, AttributeError, RecursionError):
        pass  # a proxy's page
    header = answer.headers.get("Retry-After", "")
    return RefusedError(answer.status, reason, message, header)


async def _lines(stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield lines of any length; the reader's own iteration refuses lines over its buffer."""
    rest = b""
    async for chunk in stream.iter_any():
        *complete, rest = (rest + chunk).split(b"\n")
        for line in complete:
            yield line
