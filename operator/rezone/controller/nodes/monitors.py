"""The monitors of all zones: they begin while this process waits for the Lease.

Who begins to watch when it leads knows of no silence yet, and would wait for a leader's lease that
has long been over. A process that waits polls at a slower pace, and nobody is told of the delta.

Concurrency: used by the tasks of one event loop.
"""

import functools
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor

from rezone.controller.nodes.monitor import NodeMonitor
from rezone.controller.nodes.report_delta import ReportDelta
from rezone.controller.work.keys import ZoneKey
from rezone.wire.transport.flight import NodeClient
from rezone.wire.transport.identity import server_name
from rezone.wire.transport.tls import TlsSource

THREADS_MAX = 1200
"""A long poll holds a thread per data node; calls and digests need some beside them."""
WAITING_PAUSE_SECONDS = 0.5
"""The pause between two polls of a node while this process waits for the Lease."""

Listener = Callable[[ZoneKey, ReportDelta], None]


class Monitors:
    """A monitor for each zone; with `tls` all data nodes speak it, without all speak plaintext."""

    def __init__(self, *, timeout_seconds: float, tls: TlsSource | None) -> None:
        self.executor: Executor = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="node-call")
        self._timeout_seconds = timeout_seconds
        self._tls = tls
        self._listener: Listener | None = None
        self._monitors: dict[ZoneKey, tuple[str, NodeMonitor]] = {}

    def of(self, zone: ZoneKey, uid: str) -> NodeMonitor:
        """Return a zone's monitor; a zone made again under an old name gets a fresh one."""
        known = self._monitors.get(zone)
        if known is not None and known[0] == uid:
            return known[1]
        self.forget(zone)
        made = NodeMonitor(
            self.executor,
            functools.partial(self._tell, zone),
            zone_uid=uid,
            timeout_seconds=self._timeout_seconds,
            connect=self.connector(zone),
        )
        made.pause_seconds = 0.0 if self._listener is not None else WAITING_PAUSE_SECONDS
        self._monitors[zone] = uid, made
        return made

    def lead(self, listener: Listener) -> None:
        """Tell `listener` all deltas from now on, and poll without pauses."""
        self._listener = listener
        for _, monitor in self._monitors.values():
            monitor.pause_seconds = 0.0

    def forget(self, zone: ZoneKey) -> None:
        """Stop watching a zone that is gone."""
        known = self._monitors.pop(zone, None)
        if known is not None:
            known[1].close()

    def close(self) -> None:
        """End all polls; nothing is sent afterwards."""
        for zone in list(self._monitors):
            self.forget(zone)
        self.executor.shutdown(wait=False, cancel_futures=True)

    def _tell(self, zone: ZoneKey, delta: ReportDelta) -> None:
        if self._listener is not None:
            self._listener(zone, delta)

    def connector(self, zone: ZoneKey) -> Callable[[str], NodeClient] | None:
        """Return what connects to a zone's data nodes, None in plaintext."""
        if self._tls is None:
            return None
        name = server_name(zone.namespace, zone.name)
        return functools.partial(NodeClient, tls=self._tls, server_name=name)
