"""Whether the console's process turns, for the kubelet: all that the network may ask it."""

import asyncio
from typing import Final

from aiohttp import web

IDLE_SECONDS: Final = 30.0


class HealthPort:
    """Answers /healthz; within `async with` it listens. Raises OSError when the port is taken."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        self._runner = web.AppRunner(app, access_log=None, keepalive_timeout=IDLE_SECONDS)

    async def __aenter__(self) -> None:
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, self._port).start()

    async def __aexit__(self, *_: object) -> None:
        await asyncio.wait_for(self._runner.cleanup(), IDLE_SECONDS)

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")
