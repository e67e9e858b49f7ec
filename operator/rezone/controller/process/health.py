"""The operator's HTTP endpoint: /healthz, /readyz, /metrics and /stacks.

Served from the coordinator's own loop, so that a loop that no longer turns fails its probe.
"""

from collections.abc import Callable

import prometheus_client
from aiohttp import web

from rezone.controller.process.stacks import task_stacks

IDLE_SECONDS = 75.0
"""Who is connected and asks nothing for so long is hung up on."""


class HealthServer:
    """Answers probes; `ready` says whether this process leads in order, or could."""

    def __init__(self, host: str, port: int, ready: Callable[[], bool]) -> None:
        self._host = host
        self._port = port
        self._ready = ready
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Listen; OSError when the port is taken."""
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/stacks", self._stacks)
        self._runner = web.AppRunner(app, access_log=None, keepalive_timeout=IDLE_SECONDS)
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, self._port).start()

    async def stop(self) -> None:
        """Close the port."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        if self._ready():
            return web.Response(text="ok\n")
        return web.Response(status=503, text="starting\n")

    async def _stacks(self, _: web.Request) -> web.Response:
        return web.Response(text=task_stacks())

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(
            body=prometheus_client.generate_latest(),
            headers={"Content-Type": prometheus_client.CONTENT_TYPE_LATEST},
        )
