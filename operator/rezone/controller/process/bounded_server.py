"""aiohttp's server with few and short connections: who opens many ends those of its own address.

A probe is to be answered whoever else has connected, so nobody is turned away: a connection too
many ends the oldest of the address that has most. Each has a time for its request and the answer
together, however slowly it sends or reads, and is for one request.

Concurrency: one event loop.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeVar

from aiohttp import web

Key = TypeVar("Key")

CONNECTIONS_MAX = 32
CONNECTION_SECONDS = 20.0
HEADER_BYTES_MAX = 8192


class BoundedServer(web.Server):
    """Answers one request for each connection; its limits are those of a data node's port."""

    def __init__(
        self,
        handler: Any,
        *,
        connections_max: int = CONNECTIONS_MAX,
        connection_seconds: float = CONNECTION_SECONDS,
    ) -> None:
        super().__init__(
            handler,
            access_log=None,
            max_line_size=HEADER_BYTES_MAX,
            max_field_size=HEADER_BYTES_MAX,
            # Nobody sends a body: what comes behind the headers is not waited for.
            lingering_time=0,
        )
        self._connections_max = connections_max
        self._seconds = connection_seconds
        self._from: dict[web.RequestHandler, str] = {}
        self._ends: dict[web.RequestHandler, asyncio.TimerHandle] = {}

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        """Take a connection, and end one of too many."""
        super().connection_made(handler, transport)
        peer = transport.get_extra_info("peername")
        self._from[handler] = str(peer[0]) if peer else ""
        loop = asyncio.get_running_loop()
        self._ends[handler] = loop.call_later(self._seconds, self._end, handler)
        if len(self._from) > self._connections_max:
            self._end(surplus(self._from))

    def connection_lost(
        self, handler: web.RequestHandler, exc: BaseException | None = None
    ) -> None:
        """Forget a connection that has ended."""
        super().connection_lost(handler, exc)
        self._forget(handler)

    def _end(self, handler: web.RequestHandler) -> None:
        self._forget(handler)
        if isinstance(handler.transport, asyncio.Transport):
            handler.transport.abort()

    def _forget(self, handler: web.RequestHandler) -> None:
        self._from.pop(handler, None)
        timer = self._ends.pop(handler, None)
        if timer is not None:
            timer.cancel()


def surplus(addresses: Mapping[Key, str]) -> Key:
    """Return the connection to be ended: the oldest, which is the first, of who has most."""
    (most, _), *_ = Counter(addresses.values()).most_common(1)
    return next(each for each, address in addresses.items() if address == most)
