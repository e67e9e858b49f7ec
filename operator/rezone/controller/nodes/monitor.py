"""Watches the data nodes of one zone: a long poll to each, and since when one is silent.

A report comes as soon as a replica changes, so decisions are made on events and not on a timer. It
tells what has changed since the one before; now and then all of it is asked for, so that what a
node has failed to count as a change is heard of, too.
A node is silent since the first poll that failed, or since it had no address to poll; that time
stands until an answer comes, whatever happens to the node's pod meanwhile: it is what a leader's
lease is measured by (B-06). A poll that nobody has answered failed when its answer was due, not
when it was given up; see `silence_began`.

Concurrency: one asyncio task per node; the blocking call runs in the shared executor. All state
is read and written on the event loop.
"""

import asyncio
import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Executor
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import structlog

from rezone.controller.nodes.node_state import (
    NodeState,
    delta_of,
    follows,
    request_after,
    with_answer,
)
from rezone.controller.nodes.report_delta import EVERYTHING, ReportDelta
from rezone.wire.errors import ConflictError, NotReadyError
from rezone.wire.messages import (
    Message,
    NodeId,
    NodeReport,
    PartitionId,
    ReplicaReport,
    ReportRequest,
)
from rezone.wire.transport.flight import NodeClient

log = structlog.get_logger(__name__)

Answer = TypeVar("Answer", bound=Message)

POLL_MS = 1000
RETRY_SECONDS = 0.2
FRESH_SECONDS = 2.0
"""For how long an answer says how things are: a poll and half a heartbeat later."""
WHOLE_REPORT_SECONDS = 5.0
"""After how long all of a node's report is asked for, whatever it has told of changes."""


def utc_now() -> datetime:
    """Return the time; the one clock of the controller."""
    return datetime.now(UTC)


def silence_began(now: datetime, *, late_seconds: float, timeout_seconds: float) -> datetime:
    """Return since when a node is silent whose poll has just failed.

    `late_seconds`: for how long its answer has been due; below 0 when it was refused at once.
    Never longer ago than answers are waited for: a process that was frozen itself finds all of
    its polls failed when it goes on, and that says nothing about the nodes.
    """
    return now - timedelta(seconds=min(max(late_seconds, 0.0), timeout_seconds))


@dataclasses.dataclass
class WatchedNode:
    """What is known of one data node."""

    node: NodeId
    address: str
    client: NodeClient
    node_state: NodeState | None = None
    whole_at: float = float("-inf")
    answered_at: datetime | None = None
    answers_since: datetime | None = None
    unreachable_since: datetime | None = None
    poller: asyncio.Task[None] | None = None
    silent: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    called: set[NodeId] = dataclasses.field(default_factory=set)

    @property
    def reachable(self) -> bool:
        """Return whether the last poll was answered."""
        return self.node_state is not None and self.unreachable_since is None

    def is_fresh(self, now: datetime) -> bool:
        """Return whether the last answer came a moment ago."""
        at = self.answered_at
        return self.reachable and at is not None and now - at < timedelta(seconds=FRESH_SECONDS)

    @property
    def hears(self) -> frozenset[NodeId]:
        """Return the data nodes that it has said it hears."""
        return (self.node_state.hears if self.node_state is not None else None) or frozenset()

    async def answer(self, executor: Executor, call: Callable[[], Message]) -> Message:
        """Return what a call to the node returns; NotReadyError when a poll finds it silent first.

        The call may tell the node this coordinator's epoch.
        """
        self.called.add(self.node)
        if self.silent.is_set():
            return await asyncio.get_running_loop().run_in_executor(executor, call)
        return await self.ask(executor, call, silent_seconds_max=0.0)

    async def ask(
        self, executor: Executor, call: Callable[[], Answer], *, silent_seconds_max: float
    ) -> Answer:
        """Return what a call returns; NotReadyError when polls find the node silent for so long.

        A node that is lost with a call under way holds up nobody for longer than it takes to
        notice that. The call is given up, not ended: its outcome is unknown.
        """
        called = asyncio.get_running_loop().run_in_executor(executor, call)
        called.add_done_callback(_take_error)
        is_lost = asyncio.ensure_future(self._silent_for(silent_seconds_max))
        either: set[asyncio.Future[Any]] = {called, is_lost}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            is_lost.cancel()
        if not called.done():
            raise NotReadyError(f"data node {self.node} has fallen silent", unreachable=1)
        return called.result()

    async def _silent_for(self, seconds: float) -> None:
        """Return when no poll was answered for so long."""
        while True:
            await self.silent.wait()
            since = self.unreachable_since
            if seconds:
                await asyncio.sleep(seconds)
            if self.silent.is_set() and self.unreachable_since == since:
                return


def _take_error(called: "asyncio.Future[Answer]") -> None:
    """Look at the error of a call that may have been given up: nobody else would."""
    if not called.cancelled():
        called.exception()


class NodeMonitor:
    """The data nodes of one zone; `on_change` is called on the loop after each delta.

    `pause_seconds` lie between the answer to a poll and the next poll.
    """

    def __init__(
        self,
        executor: Executor,
        on_change: Callable[[ReportDelta], None],
        *,
        zone_uid: str,
        timeout_seconds: float,
        connect: Callable[[str], NodeClient] | None = None,
    ) -> None:
        self._zone_uid = zone_uid
        self._connect = connect
        self._executor = executor
        self._on_change = on_change
        self._timeout_seconds = timeout_seconds
        self._nodes: dict[NodeId, WatchedNode] = {}
        self._absent: dict[NodeId, datetime] = {}
        self._called: set[NodeId] = set()
        self.pause_seconds = 0.0

    def watch(
        self,
        addresses: Mapping[NodeId, str],
        expected: Collection[NodeId] = (),
    ) -> None:
        """Watch exactly these nodes; one whose address changed is a new process at a new place.

        `expected` are nodes that should have an address: without one they are silent.
        """
        silent = dict(self._absent)
        for node in [n for n, w in self._nodes.items() if addresses.get(n) != w.address]:
            silent.setdefault(node, self._nodes[node].unreachable_since or utc_now())
            self._forget(node)
        self._absent = {n: silent.get(n) or utc_now() for n in expected if n not in addresses}
        for node, address in addresses.items():
            if node not in self._nodes:
                watched = WatchedNode(
                    node,
                    address,
                    (self._connect or NodeClient)(address),
                    unreachable_since=silent.get(node),
                    called=self._called,
                )
                self._nodes[node] = watched
                watched.poller = asyncio.get_running_loop().create_task(self._poll(watched))

    def get(self, node: NodeId) -> WatchedNode | None:
        """Return what is known of a node, None when it is not watched."""
        return self._nodes.get(node)

    def silent_since(self, node: NodeId) -> datetime | None:
        """Return since when a node does not answer, None when it does or was not asked yet."""
        watched = self._nodes.get(node)
        return watched.unreachable_since if watched is not None else self._absent.get(node)

    def used_epoch(self, own: int) -> int | None:
        """Return the highest coordinator epoch that a data node has from another coordinator.

        None when all of them are below `own`, or came from this process's calls.
        """
        known = (
            (node, watched.node_state.coordinator_epoch)
            for node, watched in self._nodes.items()
            if watched.node_state is not None
        )
        used = [e for node, e in known if e > own or (e == own and node not in self._called)]
        return max(used, default=None)

    @property
    def has_met_all(self) -> bool:
        """Return whether each data node with an address has answered, or failed to, by now."""
        return all(w.node_state or w.unreachable_since for w in self._nodes.values())

    def replicas(self) -> dict[NodeId, Mapping[PartitionId, ReplicaReport]]:
        """Return what each data node that answers says of its replicas."""
        return {
            node: watched.node_state.replicas
            for node, watched in self._nodes.items()
            if watched.node_state is not None and watched.reachable
        }

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
        # The client is not closed but dropped: passes may be about to call it, and closing one
        # under a call was seen to end a process (a segmentation fault). The connection closes with
        # the last reference.

    async def _poll(self, watched: WatchedNode) -> None:
        loop = asyncio.get_running_loop()
        while True:
            begun = loop.time()
            request = self._request(watched, begun)
            try:
                call = functools.partial(
                    watched.client.call,
                    request,
                    NodeReport,
                    timeout_seconds=POLL_MS / 1000 + self._timeout_seconds,
                )
                report = await loop.run_in_executor(self._executor, call)
                self._check(watched, report)
            # An answer that cannot be read must not end the watch of the node either.
            except Exception as error:  # noqa: BLE001
                self._note_silence(watched, error, loop.time() - begun - POLL_MS / 1000)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if not report.since:
                watched.whole_at = loop.time()
            self._note_report(watched, report)
            if self.pause_seconds:
                await asyncio.sleep(self.pause_seconds)

    def _request(self, watched: WatchedNode, now: float) -> ReportRequest:
        """Ask for what is new, or for all: of a node that was silent, or now and then."""
        whole = not watched.reachable or now - watched.whole_at >= WHOLE_REPORT_SECONDS
        return request_after(None if whole else watched.node_state, POLL_MS)

    def _check(self, watched: WatchedNode, report: NodeReport) -> None:
        """Refuse what cannot be put on top of what is known; the next poll asks for all.

        Another node may answer: pods inherit the addresses of pods that are gone.
        """
        if report.node != watched.node or report.zone_uid not in ("", self._zone_uid):
            raise ConflictError(
                f"{watched.address} is data node {report.node} of zone {report.zone_uid or '-'}",
            )
        if not follows(watched.node_state, report):
            raise ConflictError(f"{watched.address} told changes since {report.since} unasked")

    def _note_silence(self, watched: WatchedNode, error: Exception, late_seconds: float) -> None:
        watched.silent.set()
        if watched.unreachable_since is None:
            watched.unreachable_since = silence_began(
                utc_now(), late_seconds=late_seconds, timeout_seconds=self._timeout_seconds
            )
            log.warning("data node does not answer", node=watched.node, error=str(error))
            self._on_change(EVERYTHING)

    def _note_report(self, watched: WatchedNode, report: NodeReport) -> None:
        before, after = watched.node_state, with_answer(watched.node_state, report)
        watched.answered_at = utc_now()
        if not watched.reachable or before is None or before.process_id != after.process_id:
            watched.answers_since = watched.answered_at
        if before is None or watched.unreachable_since is not None:
            delta: ReportDelta | None = EVERYTHING
        else:
            delta = delta_of(before, after)
        watched.node_state = after
        watched.unreachable_since = None
        watched.silent.clear()
        if delta is not None:
            self._on_change(delta)
