"""How answers and silences of the API server become errors that say what to do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml
from kubernetes.aio.client import Configuration

from rezone.kube.api.client import Kube, KubeSettings, connect
from rezone.kube.api.connection import Connection, ConnectionSettings
from rezone.kube.api.errors import (
    ConflictWriteError,
    ExistsError,
    ForbiddenError,
    InvalidWriteError,
    KubeError,
    MissingError,
    UnavailableError,
    UnknownOutcomeError,
)
from rezone.kube.api.kinds import ConfigMap, Kind, Lease, TaskKind, ZoneKind
from rezone.resources import GROUP, VERSION

MAP = {"metadata": {"name": "m", "namespace": "ns", "resourceVersion": "1"}}

Answer = Callable[[str], bytes | None]
"""What the server sends for a request's first line; None hangs up without an answer."""


@asynccontextmanager
async def server(
    place: Path, answer: Answer, *, seconds: float = 5.0, silent: bool = False
) -> AsyncIterator[Kube]:
    """Give a connection to a server on loopback that answers so; a silent one never ends."""
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := (await reader.readline()).decode():
                await _rest_of(reader)
                said = answer(line.strip())
                if said is None:
                    return
                writer.write(said)
                await writer.drain()
                if silent:
                    await ended.wait()
        finally:
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    async with listening:
        settings = KubeSettings(request_timeout_seconds=seconds)
        async with await connect(kubeconfig_of(place, port), settings) as kube:
            yield kube
        ended.set()
        listening.close()


async def _rest_of(reader: asyncio.StreamReader) -> None:
    """Read a request's headers and body."""
    length = 0
    while (header := await reader.readline()).strip():
        name, _, value = header.decode().partition(":")
        if name.lower() == "content-length":
            length = int(value)
    await reader.readexactly(length)


def kubeconfig_of(place: Path, port: int) -> Path:
    """Write a kubeconfig of a server at a port of loopback."""
    path = place / f"kubeconfig-{port}"
    names = {"cluster": "c", "user": "u", "namespace": "ns"}
    document = {
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": names}],
        "current-context": "x",
    }
    path.write_text(yaml.safe_dump(document))
    return path


def reply(code: int, body: bytes, headers: str = "") -> bytes:
    """Return an HTTP answer."""
    head = f"HTTP/1.1 {code} Said\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    return head.encode() + body


def status(code: int, reason: str = "", headers: str = "") -> Answer:
    """Answer with a Kubernetes Status."""
    body = {"kind": "Status", "code": code, "reason": reason, "message": "because"}
    return lambda _request: reply(code, json.dumps(body).encode(), headers)


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
    tmp_path: Path, code: int, reason: str, on_write: type[KubeError], on_read: type[KubeError]
) -> None:
    """A refusal taken for an outage is retried for ever; an unknown taken for a failure doubles."""
    async with server(tmp_path, status(code, reason)) as api:
        with pytest.raises(KubeError, match="ConfigMap ns/m: because") as written:
            await api.replace(ConfigMap, MAP)
        with pytest.raises(KubeError) as read:
            await api.get(ConfigMap, "ns", "m")
    assert (type(written.value), type(read.value)) == (on_write, on_read)


async def test_retry_after_is_obeyed_within_bounds(tmp_path: Path) -> None:
    """A server under load says when to come back; a wrong header must not stop us for hours."""
    for header, seconds in (("7", 7.0), ("86400", 60.0), ("soon", 1.0)):
        async with server(tmp_path, status(429, headers=f"Retry-After: {header}\r\n")) as api:
            with pytest.raises(UnavailableError) as error:
                await api.get(ConfigMap, "ns", "m")
        assert error.value.retry_after_seconds == seconds


async def test_answer_that_is_no_status(tmp_path: Path) -> None:
    """A proxy's HTML page must not end as a decoding error."""
    for code in (200, 502):
        async with server(tmp_path, lambda _: reply(code, b"<h1>a proxy's page</h1>")) as api:  # noqa: B023
            with pytest.raises(UnknownOutcomeError):
                await api.replace(ConfigMap, MAP)


async def _failures(api: Kube) -> tuple[type[KubeError], type[KubeError]]:
    """Return how a write and a read fail."""
    with pytest.raises(UnavailableError) as written:
        await api.create(ConfigMap, MAP)
    with pytest.raises(UnavailableError) as read:
        await api.list(ConfigMap, "ns")
    return type(written.value), type(read.value)


async def test_a_request_without_an_answer_may_have_happened(tmp_path: Path) -> None:
    """A write that was sent is unknown; taken for a failure it would be done twice."""
    async with server(tmp_path, lambda _: None) as api:
        assert await _failures(api) == (UnknownOutcomeError, UnavailableError)


async def test_a_request_that_was_never_sent_did_not_happen(
    tmp_path: Path, unused_tcp_port: int
) -> None:
    """Taken for unknown, each refused connection would cost a look at what became of it."""
    async with await connect(kubeconfig_of(tmp_path, unused_tcp_port)) as api:
        assert await _failures(api) == (UnavailableError, UnavailableError)


async def test_a_write_is_sent_once_on_a_connection_that_breaks(tmp_path: Path) -> None:
    """Aiohttp sends a PUT again by itself; the repeat's conflict would hide that the first won."""
    seen: list[str] = []

    def once(request: str) -> bytes | None:
        seen.append(request.split(maxsplit=1)[0])
        return reply(200, b"{}") if len(seen) == 1 else None

    async with server(tmp_path, once) as api:
        await api.get(ConfigMap, "ns", "m")
        with pytest.raises(UnknownOutcomeError):
            await api.replace(ConfigMap, MAP)
        assert seen == ["GET", "PUT"]
        with pytest.raises(UnknownOutcomeError):
            await api.delete(ConfigMap, "ns", "m")
    assert seen == ["GET", "PUT", "DELETE"]


async def test_trickling_answer_ends_at_the_deadline(tmp_path: Path) -> None:
    """Limits between two bytes never end such a request, and the lease would run out behind it."""
    begun = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{"
    async with server(tmp_path, lambda _: begun, seconds=0.2, silent=True) as api:
        with pytest.raises(UnknownOutcomeError):
            await api.replace(ConfigMap, MAP)


async def test_unguarded_replace_is_a_bug(tmp_path: Path) -> None:
    """Without a resourceVersion the API server overwrites whatever is there."""
    async with server(tmp_path, status(200)) as api:
        with pytest.raises(ValueError, match="resourceVersion"):
            await api.replace(ConfigMap, {"metadata": {"name": "m", "namespace": "ns"}})
        with pytest.raises(ValueError, match="resourceVersion"):
            await api.replace_status(ZoneKind, {"metadata": {"name": "m", "namespace": "ns"}})


async def test_no_configuration_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stack trace of a library tells nobody which file is missing."""
    missing = tmp_path / "kubeconfig"
    with pytest.raises(KubeError, match="no usable Kubernetes configuration"):
        await connect(missing)
    monkeypatch.setenv("KUBECONFIG", str(missing))
    with pytest.raises(KubeError, match="no usable Kubernetes configuration"):
        await connect()


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
    monkeypatch.setattr("rezone.kube.api.client.LIST_CHUNK_OBJECTS", 2)
    for i in range(5):
        await api.create(ConfigMap, {"metadata": {"name": f"m{i}", "namespace": namespace}})
    assert len(await api.list(ConfigMap, namespace)) == 5


async def test_a_gateway_s_cookie_of_one_user_is_not_sent_for_another() -> None:
    """A gateway before the API server that goes by its cookie would take Bob for Ann."""
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            heard.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(reply(200, b"{}", "Set-Cookie: session=ann\r\n"))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        configuration = Configuration()
        # A name: cookies of addresses are never kept.
        configuration.host = f"http://localhost:{listening.sockets[0].getsockname()[1]}"
        users = iter(("ann", "bob"))
        settings = ConnectionSettings()
        async with Connection(configuration, "ns", settings, lambda: next(users)) as connection:
            await connection.request("GET", "/api")
            await connection.request("GET", "/api")
    assert [b"Bearer bob" in each for each in heard] == [False, True]
    assert not [each for each in heard if b"cookie" in each.lower()]


async def test_versions_are_those_of_all_objects(api: Kube, namespace: str) -> None:
    """Watches would be taken for deaf, or deaf ones for good."""
    made = [
        await api.create(ConfigMap, {"metadata": {"name": name, "namespace": namespace}})
        for name in ("a", "b")
    ]
    assert await api.versions(ConfigMap, namespace) == {
        (namespace, m["metadata"]["name"]): m["metadata"]["resourceVersion"] for m in made
    }


async def test_kinds_that_the_api_server_does_not_list_are_named(api: Kube) -> None:
    """Kopf would be let look for them, and look no more."""
    absent = Kind(GROUP, VERSION, "Absent", "absents")
    elsewhere = Kind("absent.dev", "v1", "Absent", "absents")
    assert not await api.unserved((ZoneKind, TaskKind, Lease))
    assert await api.unserved((ZoneKind, absent, elsewhere)) == [
        f"absents.{GROUP}",
        "absents.absent.dev",
    ]


async def test_a_group_whose_last_kind_has_just_gone_is_not_listed(tmp_path: Path) -> None:
    """The error would look like an API server that is away."""
    groups = {"groups": [{"versions": [{"groupVersion": ZoneKind.api_version}]}]}

    def answer(request: str) -> bytes:
        listed = request.startswith("GET /apis ")
        return reply(200, json.dumps(groups).encode()) if listed else reply(404, b"{}")

    async with server(tmp_path, answer) as kube:
        assert await kube.unserved((ZoneKind,)) == [f"{ZoneKind.plural}.{GROUP}"]
