"""An HTTP server whose connections are few and short: who opens many ends the oldest, not the node.

A probe is to be answered whoever else has connected. So nobody is turned away: a connection too
many ends the one that has been there longest, and each ends after its time, however slowly it
sends.

Concurrency: a daemon thread per connection.
"""

import contextlib
import http.server
import socket
import threading
import time
from typing import Any

CONNECTIONS_MAX = 32
CONNECTION_SECONDS = 20.0
_PAUSE_SECONDS = 0.1


class BoundedHTTPServer(http.server.ThreadingHTTPServer):
    """Answers one request for each connection."""

    request_queue_size = 128
    connections_max = CONNECTIONS_MAX
    seconds_max = CONNECTION_SECONDS

    def __init__(self, *arguments: Any) -> None:
        self._begun: dict[socket.socket, float] = {}
        self._guard = threading.Lock()
        super().__init__(*arguments)

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection; without a descriptor for it, not again at once."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(_PAUSE_SECONDS)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve it, and end the oldest of too many."""
        with self._guard:
            self._begun[request] = time.monotonic()
            for oldest in list(self._begun)[: -self.connections_max]:
                self._end(oldest)
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """End what has taken too long; called twice a second, and after each connection."""
        oldest = time.monotonic() - self.seconds_max
        with self._guard:
            for request in [r for r, begun in self._begun.items() if begun < oldest]:
                self._end(request)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection that was served."""
        with self._guard:
            self._begun.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a connection that has ended early."""

    def _end(self, request: socket.socket) -> None:
        del self._begun[request]
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)
