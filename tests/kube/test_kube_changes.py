"""A watch that wakes displays: through expiry, broken connections and nonsense."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio.client import Configuration

from rezone.kube.api.changes import ChangeSettings, ChangeWatch
from rezone.kube.api.client import Kube
from rezone.kube.api.connection import Connection, ConnectionSettings
from rezone.kube.api.kinds import ConfigMap

FAST = ChangeSettings(retry_seconds=0.01, retry_seconds_max=0.02, begin_timeout_seconds=5)
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """An API server that answers watches as it is told, one after the other."""

    def __init__(self, *watches: Answer) -> None:
        self.asked: list[str] = []
        self.lists = 0
        self.last_is_open = asyncio.Event()
        self._watches = list(watches)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a list, or the next watch; the last one stays open."""
        if "watch" not in request.query:
            self.lists += 1
            meta = {"resourceVersion": str(100 * self.lists)}
            return web.json_response({"metadata": meta, "items": []})
        self.asked.append(request.query["resourceVersion"])
        if self._watches:
            return await self._watches.pop(0)(request)
        response = web.StreamResponse()
        await response.prepare(request)
        self.last_is_open.set()
        await asyncio.Event().wait()
        return response


def events(*sent: object) -> Answer:
    """Return a watch that sends lines and ends."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for each in sent:
            line = each if isinstance(each, bytes) else json.dumps(each).encode()
            await response.write(line + b"\n")
        return response

    return answer


async def cut(request: web.Request) -> web.StreamResponse:
    """End the connection in the middle of a watch."""
    response = web.StreamResponse()
    await response.prepare(request)
    assert request.transport is not None
    request.transport.abort()
    return response


def event(kind: str, version: int, **more: object) -> dict[str, object]:
    """Return an event of a watch."""
    meta = {"name": "a", "resourceVersion": str(version)}
    return {"type": kind, "object": {"metadata": meta, **more}}


EXPIRED = {"type": "ERROR", "object": {"code": 410, "reason": "Expired", "message": "too old"}}


@pytest.fixture
async def watched() -> AsyncIterator[Callable[[Server], Awaitable[tuple[ChangeWatch, list[str]]]]]:
    """Run a watch on a server until it has come to the watch that stays open."""
    running: list[asyncio.Task[None]] = []
    closing: list[Callable[[], Awaitable[None]]] = []

    async def run(server: Server) -> tuple[ChangeWatch, list[str]]:
        app = web.Application()
        app.router.add_get("/{path:.*}", server.answer)
        real = TestServer(app)
        await real.start_server()
        configuration = Configuration(host=str(real.make_url("/")).rstrip("/"))
        connection = Connection(configuration, "shop", ConnectionSettings())
        changes: list[str] = []
        watch = ChangeWatch(
            Kube(connection).connection,
            ConfigMap,
            "shop",
            lambda: changes.append(watch.trouble),
            settings=FAST,
        )
        running.append(asyncio.create_task(watch.run()))
        closing.extend([connection.close, real.close])
        async with asyncio.timeout(20):
            await server.last_is_open.wait()
        return watch, changes

    yield run
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    for close in closing:
        await close()


Run = Callable[[Server], Awaitable[tuple[ChangeWatch, list[str]]]]


async def test_a_watch_that_the_server_ends_goes_on_where_it_was(watched: Run) -> None:
    """Changes between two watches would be missed, or each end cost a list."""
    server = Server(events(event("MODIFIED", 101), event("BOOKMARK", 150)), events())
    _, changes = await watched(server)
    assert server.lists == 1
    assert server.asked[:2] == ["100", "150"]
    assert changes == ["", ""]  # the beginning and the change; a bookmark is none


async def test_an_expired_watch_begins_again_and_counts_as_a_change(watched: Run) -> None:
    """A display that slept would show what was, for ever, or ask an expired version again."""
    server = Server(events(event("ADDED", 101), EXPIRED), events(event("ADDED", 201)))
    watch, changes = await watched(server)
    assert server.lists == 2
    assert server.asked[:2] == ["100", "200"]
    assert not watch.trouble
    assert len(changes) >= 4


@pytest.mark.parametrize("broken", [cut, events(b"{no"), events({"type": "ADDED"}), events([])])
async def test_a_broken_watch_is_told_and_made_again(broken: Answer, watched: Run) -> None:
    """A cut or a proxy's page would end the command, or leave an old view that looks new."""
    watch, changes = await watched(Server(broken))
    assert any(changes)
    assert not watch.trouble
