"""Whether the console's process turns, for the kubelet: all that the network may ask it.

Its port is open to all that reach the pod: connections are few and short, as on the operator's.
"""

import asyncio
from http import HTTPStatus
from typing import Final

from aiohttp import web

from rezone.controller.process.bounded_server import BoundedServer

END_SECONDS: Final = 30.0


class HealthPort:
    """Answers /healthz; within `async with` it listens. Raises OSError when the port is taken."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._runner: web.ServerRunner | None = None

    async def __aenter__(self) -> None:
        self._runner = web.ServerRunner(BoundedServer(_answer))
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, self._port).start()

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await asyncio.wait_for(self._runner.cleanup(), END_SECONDS)


async def _answer(request: web.BaseRequest) -> web.StreamResponse:
    if request.path != "/healthz":
        answer = web.Response(status=HTTPStatus.NOT_FOUND, text="try /healthz\n")
    elif request.method not in {"GET", "HEAD"}:
        answer = web.Response(status=HTTPStatus.METHOD_NOT_ALLOWED, text="GET only\n")
    else:
        answer = web.Response(text="ok\n")
    answer.force_close()
    return answer
