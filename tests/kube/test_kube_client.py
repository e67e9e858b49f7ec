"""How answers and silences of the API server become errors that say what to do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx2
import pytest
from lightkube import AsyncClient
from lightkube.config.kubeconfig import KubeConfig

from rezone.kube.client import Kube, KubeSettings, connect
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
from rezone.kube.kinds import ConfigMap, ZoneKind

Answer = Callable[[httpx2.Request], httpx2.Response]
MAP = {"metadata": {"name": "m", "namespace": "ns", "resourceVersion": "1"}}


def server(answer: Answer) -> Kube:
    """Return a connection to a server that answers so."""
    names = {"cluster": "c", "user": "u", "namespace": "ns"}
    config = KubeConfig.from_dict(
        {
            "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "x", "context": names}],
            "current-context": "x",
        },
    )
    client = AsyncClient(config=config, transport=httpx2.MockTransport(answer), trust_env=False)
    return Kube(client, KubeSettings(request_timeout_seconds=5))


def status(code: int, reason: str = "", headers: dict[str, str] | None = None) -> Answer:
    """Answer with a Kubernetes Status."""
    body = {"kind": "Status", "code": code, "reason": reason, "message": "because"}
    return lambda _request: httpx2.Response(code, json=body, headers=headers)


@pytest.mark.parametrize(
    ("code", "reason", "on_write", "on_read"),
    [
        (404, "NotFound", MissingError, MissingError),
        (409, "Conflict", ConflictWriteError, ConflictWriteError),
        (409, "AlreadyExists", ExistsError, ExistsError),
        (422, "Invalid", InvalidWriteError, InvalidWriteError),
        (413, "", InvalidWriteError, InvalidWriteError),
        (403, "Forbidden", ForbiddenError, ForbiddenError),
        (429, "TooManyRequests", UnavailableError, UnavailableError),
        (410, "Expired", UnavailableError, UnavailableError),
        (500, "InternalError", UnknownOutcomeError, UnavailableError),
        (503, "ServiceUnavailable", UnknownOutcomeError, UnavailableError),
        (504, "Timeout", UnknownOutcomeError, UnavailableError),
    ],
)
async def test_each_answer_has_its_error(
    code: int, reason: str, on_write: type[KubeError], on_read: type[KubeError]
) -> None:
    """A refusal taken for an outage is retried for ever; an unknown taken for a failure doubles."""
    async with server(status(code, reason)) as api:
        with pytest.raises(KubeError, match="ConfigMap ns/m: because") as written:
            await api.replace(ConfigMap, MAP)
        with pytest.raises(KubeError) as read:
            await api.get(ConfigMap, "ns", "m")
    assert (type(written.value), type(read.value)) == (on_write, on_read)


async def test_retry_after_is_obeyed_within_bounds() -> None:
    """A server under load says when to come back; a wrong header must not stop us for hours."""
    for header, seconds in (("7", 7.0), ("86400", 60.0), ("soon", 1.0)):
        async with server(status(429, headers={"Retry-After": header})) as api:
            with pytest.raises(UnavailableError) as error:
                await api.get(ConfigMap, "ns", "m")
        assert error.value.retry_after_seconds == seconds


async def test_answer_that_is_no_status() -> None:
    """A proxy's HTML page must not end as a decoding error."""
    answer: Answer = lambda _: httpx2.Response(502, html="<h1>bad gateway</h1>")  # noqa: E731
    async with server(answer) as api:
        with pytest.raises(UnknownOutcomeError):
            await api.replace(ConfigMap, MAP)


@pytest.mark.parametrize(
    ("failure", "on_write"),
    [
        (httpx2.ReadTimeout("slow"), UnknownOutcomeError),
        (httpx2.RemoteProtocolError("gone"), UnknownOutcomeError),
        (httpx2.ConnectError("refused"), UnavailableError),
        (httpx2.ConnectTimeout("no route"), UnavailableError),
    ],
)
async def test_silence(failure: Exception, on_write: type[KubeError]) -> None:
    """Sent without an answer is unknown; never sent is not."""

    def fail(_: httpx2.Request) -> httpx2.Response:
        raise failure

    async with server(fail) as api:
        with pytest.raises(UnavailableError) as written:
            await api.create(ConfigMap, MAP)
        with pytest.raises(UnavailableError) as read:
            await api.list(ConfigMap, "ns")
    assert (type(written.value), type(read.value)) == (on_write, UnavailableError)


async def test_trickling_answer_ends_at_the_deadline() -> None:
    """Per-chunk timeouts never end such a request, and the lease would run out behind it."""

    async def trickle() -> AsyncIterator[bytes]:
        raise TimeoutError  # what asyncio.timeout makes of the deadline
        yield b""

    async with server(lambda _: httpx2.Response(200, content=trickle())) as api:
        with pytest.raises(UnknownOutcomeError):
            await api.replace(ConfigMap, MAP)


async def test_unguarded_replace_is_a_bug() -> None:
    """Without a resourceVersion the API server overwrites whatever is there."""
    async with server(status(200)) as api:
        with pytest.raises(ValueError, match="resourceVersion"):
            await api.replace(ConfigMap, {"metadata": {"name": "m", "namespace": "ns"}})
        with pytest.raises(ValueError, match="resourceVersion"):
            await api.replace_status(ZoneKind, {"metadata": {"name": "m", "namespace": "ns"}})


async def test_no_configuration_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stack trace of a library tells nobody which file is missing."""
    missing = tmp_path / "kubeconfig"
    with pytest.raises(KubeError, match="no usable Kubernetes configuration"):
        connect(missing)
    monkeypatch.setenv("KUBECONFIG", str(missing))
    with pytest.raises(KubeError, match="no usable Kubernetes configuration"):
        connect()


@pytest.mark.apiserver
@pytest.mark.slow
async def test_unknown_fields_survive_read_and_write(api: Kube, namespace: str) -> None:
    """A client that drops what it does not know would undo a newer version's work."""
    body = {
        "metadata": {"name": "m", "namespace": namespace, "annotations": {"other.io/x": "1"}},
        "data": {"a": "1"},
    }
    await api.create(ConfigMap, body)
    found = await api.get(ConfigMap, namespace, "m")
    found["data"]["b"] = "2"
    await api.replace(ConfigMap, found)
    again = await api.get(ConfigMap, namespace, "m")
    assert again["metadata"]["annotations"] == {"other.io/x": "1"}
    assert again["data"] == {"a": "1", "b": "2"}
    assert api.namespace == "default"


@pytest.mark.apiserver
@pytest.mark.slow
async def test_long_list_is_complete(
    api: Kube, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list cut at its first chunk would look like deletions."""
    monkeypatch.setattr("rezone.kube.client.LIST_CHUNK_OBJECTS", 2)
    for i in range(5):
        await api.create(ConfigMap, {"metadata": {"name": f"m{i}", "namespace": namespace}})
    assert len(await api.list(ConfigMap, namespace)) == 5
