"""The operator's HTTP endpoint: /healthz, /readyz, /metrics and /stacks.

Served from the coordinator's own loop, so that a loop that no longer turns fails its probe.
"""

import asyncio
from collections.abc import Callable
from http import HTTPStatus

import prometheus_client
from aiohttp import web

from rezone.controller.process.bounded_server import BoundedServer
from rezone.controller.process.stacks import task_stacks

FRESH_SECONDS = 1.0
"""So old may what is told of metrics and stacks be: it is made by the loop that leads."""
METHODS = ("GET", "HEAD")


class HealthServer:
    """Answers probes; `ready` says whether this process leads in order, or could."""

    def __init__(self, host: str, port: int, ready: Callable[[], bool]) -> None:
        self._host = host
        self._port = port
        self._ready = ready
        self._runner: web.ServerRunner | None = None
        self._told: dict[str, tuple[float, bytes]] = {}

    async def start(self) -> None:
        """Listen; OSError when the port is taken."""
        self._runner = web.ServerRunner(BoundedServer(self._answer))
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, self._port).start()

    async def stop(self) -> None:
        """Close the port."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method not in METHODS:
            answer = web.Response(status=HTTPStatus.METHOD_NOT_ALLOWED, text="GET only\n")
        else:
            answer = self._page(request.path)
        answer.force_close()
        return answer

    def _page(self, path: str) -> web.Response:
        match path:
            case "/healthz":
                return web.Response(text="ok\n")
            case "/readyz" if self._ready():
                return web.Response(text="ok\n")
            case "/readyz":
                return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE, text="starting\n")
            case "/metrics":
                body = self._fresh(path, prometheus_client.generate_latest)
                kind = {"Content-Type": prometheus_client.CONTENT_TYPE_LATEST}
                return web.Response(body=body, headers=kind)
            case "/stacks":
                body = self._fresh(path, lambda: task_stacks().encode())
                return web.Response(body=body, content_type="text/plain", charset="utf-8")
            case _:
                said = "try /healthz, /readyz, /metrics or /stacks\n"
                return web.Response(status=HTTPStatus.NOT_FOUND, text=said)

    def _fresh(self, path: str, make: Callable[[], bytes]) -> bytes:
        """Return what is told at a path, made at most once a second, whoever asks how often."""
        now = asyncio.get_running_loop().time()
        at, body = self._told.get(path, (-FRESH_SECONDS, b""))
        if now - at >= FRESH_SECONDS:
            at, body = now, make()
            self._told[path] = (at, body)
        return body
