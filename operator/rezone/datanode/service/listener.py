"""Keeps a node served by the newest certificate, without a restart of the process.

Arrow Flight cannot take a new certificate while it serves. So the server is ended and another
one is made on the same port: the old one lets go of its port at once (4 ms until the new one has
it), and goes on with the calls it has. Open channels are asked to hang up, so that each peer
comes back with a certificate that is valid by the new files. Clients repeat what was under way,
and a repeated write applies once.

Concurrency: one thread looks for new files; `renew` may be called from any.
"""

import contextlib
import threading

import structlog

from rezone.datanode.node.node import DataNode
from rezone.datanode.scheduling.error_log import UNEXPECTED
from rezone.datanode.service.door import Door
from rezone.datanode.service.server import NodeServer, node_identity
from rezone.wire.transport.channel import CHANNEL_ERRORS
from rezone.wire.transport.tls import LOOK_SECONDS, TlsFiles, TlsFilesError, TlsSource

_log = structlog.get_logger(__name__)

_BIND_PAUSE_SECONDS = 0.005
_BINDS_PER_LOG = 200


class Listener:
    """Serves a node at `listen`; in plaintext without `tls`."""

    def __init__(self, node: DataNode, listen: str, tls: TlsSource | None = None) -> None:
        self._node = node
        self._tls = tls
        self._host = listen.rpartition(":")[0]
        self._files = tls.current() if tls is not None else None
        self._door = Door(node.settings, node.clock)
        self._server = NodeServer(node, listen, self._files, self._door)
        self.port: int = self._server.port
        self._door.start(self.port)
        self._renewing = threading.Lock()
        self._closed = threading.Event()
        self._ending: list[tuple[NodeServer, threading.Thread]] = []
        self._watch = threading.Thread(target=self._look, name="tls files", daemon=True)
        if tls is not None:
            self._watch.start()

    def renew(self) -> bool:
        """Serve by new files if there are any; returns whether there were."""
        with self._renewing:
            files = self._tls.current() if self._tls is not None else None
            if files is self._files or self._closed.is_set():
                return False
            if files is not None:
                node_identity(
                    files, self._node.node_id
                )  # before the old server ends: refused files change nothing
            self._end(self._server)
            self._server = self._bind(files)
            self._files = files
        self._node.hang_up("the certificate has been renewed")
        _log.info("serving by a new certificate", name=files.name if files else "")
        return True

    def close(self, seconds: float = 1.0) -> bool:
        """Stop serving; returns whether all calls have ended within that time."""
        self._closed.set()
        self._door.close()
        with self._renewing:
            self._end(self._server)
        for _, thread in self._ending:
            thread.join(seconds)
        return not any(thread.is_alive() for _, thread in self._ending)

    def _end(self, server: NodeServer) -> None:
        # The object is kept until its last call is over: its end would wait for that.
        self._ending = [(s, t) for s, t in self._ending if t.is_alive()]
        thread = threading.Thread(target=server.shutdown, name="old server", daemon=True)
        self._ending.append((server, thread))
        thread.start()

    def _bind(self, files: TlsFiles | None) -> NodeServer:
        attempts = 0
        while True:
            with contextlib.suppress(*CHANNEL_ERRORS):
                return NodeServer(self._node, f"{self._host}:{self.port}", files, self._door)
            attempts += 1
            if attempts % _BINDS_PER_LOG == 0:
                _log.error("cannot listen again", port=self.port, attempts=attempts)
            self._closed.wait(_BIND_PAUSE_SECONDS)

    def _look(self) -> None:
        while not self._closed.wait(LOOK_SECONDS):
            try:
                self.renew()
            except TlsFilesError as error:
                _log.warning("cannot serve by the new TLS files", error=str(error))
            except Exception:  # noqa: BLE001 - told with its trace
                UNEXPECTED.failed("look for new TLS files")
