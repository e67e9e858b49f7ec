"""The thread in which a node's replicas bring log from before their copies, while any wants some.

Concurrency: one thread; a lock guards what is begun and ended.
"""

import contextlib
import threading
from collections.abc import Callable
from typing import Protocol

from rezone.datanode.clock.checked_clock import CheckedClock
from rezone.datanode.copying.older_log import OlderLogPulls, OlderLogSource
from rezone.datanode.node.known_zone import KnownZone
from rezone.datanode.replica.replica import Replica
from rezone.datanode.scheduling.error_log import UNEXPECTED
from rezone.datanode.scheduling.foreground import Foreground
from rezone.datanode.settings import NodeSettings
from rezone.wire.errors import NotReadyError
from rezone.wire.messages import NodeId, OlderLog, PartitionId, ReadOlderLog
from rezone.wire.transport.flight import NodeClient

_LOOK_SECONDS = 0.5
_TIMEOUT_SECONDS = 30.0


class OlderLogHost(Protocol):
    """What is needed of the node."""

    clock: CheckedClock
    settings: NodeSettings
    zone: KnownZone
    foreground: Foreground

    def find(self, partition: PartitionId) -> Replica:
        """Return a replica; UnknownPartitionError when the node has none."""
        ...

    def partitions(self) -> list[Replica]:
        """Return all open replicas."""
        ...

    def address(self, node: NodeId) -> str:
        """Return a node's address, empty when unknown."""
        ...


class OlderLogThread:
    """What is brought to one node; `look` begins it, each `step` is one request of each replica.

    `source` answers what others ask of this one.
    """

    def __init__(self, host: OlderLogHost, connect: Callable[[str], NodeClient]) -> None:
        self._host = host
        self._connect = connect
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._clients: dict[NodeId, NodeClient] = {}
        self.source = OlderLogSource(host.find, host.foreground)
        self.step = OlderLogPulls(host.partitions, self._ask, host.clock.monotonic).step

    def look(self) -> None:
        """Look whether there are named feeds: the zone's configuration has changed."""
        if not self._host.settings.reshard_threads or not self._has_feeds():
            return
        with self._lock:
            if self._closed.is_set() or self._thread is not None:
                return
            self._thread = threading.Thread(target=self._run, name="older log", daemon=True)
            self._thread.start()

    def close(self, timeout_seconds: float) -> None:
        """End the request under way, and the thread."""
        self._closed.set()
        with self._lock:
            clients, thread = list(self._clients.values()), self._thread
        for client in clients:
            with contextlib.suppress(Exception):
                client.close()
        if thread is not None:
            thread.join(timeout_seconds)

    def _has_feeds(self) -> bool:
        return self._host.zone.configured and bool(self._host.zone.state.config.feeds)

    def _run(self) -> None:
        while not self._closed.is_set():
            asked = False
            with UNEXPECTED.surviving("pulling log"):
                asked = self.step()
            if not asked:
                self._closed.wait(_LOOK_SECONDS)

    def _ask(self, node: NodeId, request: ReadOlderLog) -> OlderLog:
        address = self._host.address(node)
        if not address:
            raise NotReadyError(f"the address of node {node} is not known")
        with self._lock:
            if self._closed.is_set():
                raise NotReadyError("the node is stopping")
            client = self._clients.get(node)
            if client is None or client.address != address:
                client = self._clients[node] = self._connect(address)
        return client.call(request, OlderLog, timeout_seconds=_TIMEOUT_SECONDS)
