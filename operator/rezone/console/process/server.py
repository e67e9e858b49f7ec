"""The console's process: HTTP on loopback, until it is told to end."""

import socket
from collections.abc import Sequence
from typing import Final

import uvicorn

from rezone.console.app import Console
from rezone.console.process.protocol import DeadlineProtocol

ADDRESS: Final = "127.0.0.1"
CONNECTIONS_MAX: Final = 128
BACKLOG: Final = 64
END_SECONDS: Final = 3


def listen(port: int) -> socket.socket:
    """Return a socket that listens on 127.0.0.1; port 0: any that is free.

    No other address: the console has no TLS, and acts with its user's rights. Raises OSError when
    the port is taken.
    """
    return socket.create_server((ADDRESS, port), backlog=BACKLOG)


class ConsoleServer(uvicorn.Server):
    """Serves a console; what streams is ended first, because the end waits for all answers."""

    def __init__(self, console: Console) -> None:
        super().__init__(
            uvicorn.Config(
                console.app(),
                http=DeadlineProtocol,
                ws="none",
                lifespan="off",
                log_level="warning",
                access_log=False,
                proxy_headers=False,
                server_header=False,
                limit_concurrency=CONNECTIONS_MAX,
                timeout_graceful_shutdown=END_SECONDS,
            )
        )
        self._console = console

    async def shutdown(self, sockets: Sequence[socket.socket] | None = None) -> None:
        """End: streams first, then whatever is still being answered."""
        self._console.close_streams()
        await super().shutdown(list(sockets) if sockets is not None else None)
