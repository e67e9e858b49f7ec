"""The health port of a console in a cluster: whoever reaches the pod may connect to it."""

from __future__ import annotations

import asyncio
import contextlib

import aiohttp

from rezone.console.process.health import HealthPort
from rezone.controller.process.bounded_server import CONNECTIONS_MAX
from rezone.local.controlplane import free_ports

WAIT_SECONDS = 30


async def test_idle_connections_end_others_and_no_probe() -> None:
    """Who opens many would take all descriptors of the process, and the pages of all users."""
    (port,) = free_ports(1)
    async with HealthPort("127.0.0.1", port), contextlib.AsyncExitStack() as stack:
        opened = []
        for _ in range(CONNECTIONS_MAX + 1):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            stack.callback(writer.close)
            opened.append(reader)
        async with asyncio.timeout(WAIT_SECONDS):
            with contextlib.suppress(ConnectionResetError):
                assert await opened[0].read() == b""
        session = await stack.enter_async_context(aiohttp.ClientSession(f"http://127.0.0.1:{port}"))
        for method, path, status in (
            ("GET", "/healthz", 200),
            ("POST", "/healthz", 405),
            ("GET", "/", 404),
        ):
            async with session.request(method, path) as answer:
                assert answer.status == status
                assert answer.headers["connection"] == "close"
