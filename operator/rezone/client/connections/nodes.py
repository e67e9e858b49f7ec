"""A client's connections to data nodes: per address one for calls and streams, one for requests.

Concurrency: thread-safe. The lock is never held while anything waits for the network, and nobody
else's is taken under it.
"""

import threading
from collections.abc import Callable

from rezone.client.connections.connection import Connection
from rezone.client.settings import closed_error
from rezone.wire.errors import RezoneError
from rezone.wire.transport.channel import Channel, Frame
from rezone.wire.transport.flight import NodeClient


class Nodes:
    """Connections by address, made when first asked for; what they tell goes to one owner.

    `on_frame`, `on_broken` and `window` are those of each `Connection`.
    """

    def __init__(
        self,
        connect: Callable[[str], NodeClient],
        *,
        on_frame: Callable[[Frame], None],
        on_broken: Callable[[list[int], RezoneError], None],
        window: int,
    ) -> None:
        self._connect = connect
        self._on_frame = on_frame
        self._on_broken = on_broken
        self._window = window
        self._lock = threading.Lock()
        self._connections: dict[str, Connection] = {}
        self._clients: dict[str, NodeClient] = {}
        self._opened: set[str] = set()
        self._closed = False

    def client(self, address: str) -> NodeClient:
        """Return the connection for calls and streams; RezoneError once they are closed."""
        with self._lock:
            if self._closed:
                raise closed_error()
            if address not in self._clients:
                self._clients[address] = self._connect(address)
            return self._clients[address]

    def connection(self, address: str) -> Connection:
        """Return the connection for requests."""
        with self._lock:
            if address not in self._connections:
                self._connections[address] = Connection(
                    address,
                    lambda: self._channel(address),
                    on_frame=self._on_frame,
                    on_broken=self._on_broken,
                    window=self._window,
                )
            return self._connections[address]

    def _channel(self, address: str) -> Channel:
        """Open a channel for requests; after the first on a new connection: the last one broke.

        It may have been silent, and then all else that goes by the same connection is.
        """
        client = self.client(address)
        with self._lock:
            again = address in self._opened
            self._opened.add(address)
        if again:
            client.renew()
        return client.channel("data")

    def close(self) -> None:
        """Close all of them; waits for their threads."""
        with self._lock:
            self._closed = True
            connections, clients = [*self._connections.values()], [*self._clients.values()]
        for connection in connections:
            connection.close()
        for client in clients:
            client.close()
