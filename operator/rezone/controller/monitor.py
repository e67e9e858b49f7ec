"""Watches the data nodes of one zone: a long poll to each, and since when one is silent.

A report comes as soon as a replica changes, so decisions are made on events and not on a timer;
a node that does not answer within the poll's time counts as unreachable from its last answer on.

Concurrency: one asyncio task per node; the blocking call runs in the shared executor. All state
is read and written on the event loop.
"""

import asyncio
import dataclasses
import functools
from collections.abc import Callable
from concurrent.futures import Executor
from datetime import UTC, datetime

import structlog

from rezone.wire.errors import RezoneError
from rezone.wire.flight import NodeClient
from rezone.wire.messages import NodeId, NodeReport, ReportRequest

log = structlog.get_logger(__name__)

POLL_MS = 1000
RETRY_SECONDS = 0.2


def utc_now() -> datetime:
    """Return the time; the one clock of the controller."""
    return datetime.now(UTC)


@dataclasses.dataclass
class WatchedNode:
    """What is known of one data node."""

    node: NodeId
    address: str
    client: NodeClient
    report: NodeReport | None = None
    unreachable_since: datetime | None = None
    poller: asyncio.Task[None] | None = None

    @property
    def reachable(self) -> bool:
        """Return whether the last poll was answered."""
        return self.report is not None and self.unreachable_since is None


class NodeMonitor:
    """The data nodes of one zone; `on_change` is called on the loop after each news."""

    def __init__(
        self,
        executor: Executor,
        on_change: Callable[[], None],
        *,
        timeout_seconds: float,
    ) -> None:
        self._executor = executor
        self._on_change = on_change
        self._timeout_seconds = timeout_seconds
        self._nodes: dict[NodeId, WatchedNode] = {}

    def watch(self, addresses: dict[NodeId, str]) -> None:
        """Watch exactly these nodes; one whose address changed is a new process at a new place."""
        for node in [n for n, w in self._nodes.items() if addresses.get(n) != w.address]:
            self._forget(node)
        for node, address in addresses.items():
            if node not in self._nodes:
                watched = WatchedNode(node, address, NodeClient(address))
                self._nodes[node] = watched
                watched.poller = asyncio.get_running_loop().create_task(self._poll(watched))

    def get(self, node: NodeId) -> WatchedNode | None:
        """Return what is known of a node, None when it is not watched."""
        return self._nodes.get(node)

    def nodes(self) -> dict[NodeId, WatchedNode]:
        """Return all watched nodes by id."""
        return dict(self._nodes)

    def close(self) -> None:
        """Stop all polls."""
        for node in list(self._nodes):
            self._forget(node)

    def _forget(self, node: NodeId) -> None:
        watched = self._nodes.pop(node)
        if watched.poller is not None:
            watched.poller.cancel()
        watched.client.close()

    async def _poll(self, watched: WatchedNode) -> None:
        loop = asyncio.get_running_loop()
        while True:
            seen = watched.report.version if watched.report and watched.reachable else 0
            request = ReportRequest(seen=seen, timeout_ms=POLL_MS)
            try:
                call = functools.partial(
                    watched.client.call,
                    request,
                    NodeReport,
                    timeout_seconds=POLL_MS / 1000 + self._timeout_seconds,
                )
                report = await loop.run_in_executor(self._executor, call)
            except RezoneError as error:
                self._note_silence(watched, error)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            self._note_report(watched, report)

    def _note_silence(self, watched: WatchedNode, error: RezoneError) -> None:
        if watched.unreachable_since is None:
            watched.unreachable_since = utc_now()
            log.warning("data node does not answer", node=watched.node, error=error.message)
            self._on_change()

    def _note_report(self, watched: WatchedNode, report: NodeReport) -> None:
        news = (
            watched.unreachable_since is not None
            or watched.report is None
            or watched.report.version != report.version
            or watched.report.process_id != report.process_id
        )
        watched.report = report
        watched.unreachable_since = None
        if news:
            self._on_change()
