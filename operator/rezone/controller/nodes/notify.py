"""Brings data nodes up to date: their zone, their peers and every changed route record (ZR-12).

What a node has confirmed is remembered by its process: a call that was answered was persisted by
the node first. A lost call, a restarted node or a new coordinator only makes a message go out
again, and every message is idempotent (ZR-13).

A zone may have 1,000 nodes and 16,384 partitions, and each pass notifies: so what has changed is
found out once for all nodes, by rounds. A round begins with each change of the table; a node lacks
the partitions that have changed after the last round it has confirmed.

Leaders hand over by themselves (DCP-10), so in the middle of many moves some records are always
late: a node knows later ones. What it refuses for that alone counts as confirmed. It would refuse
it for ever; what has happened there is heard of by its report, and changes the record again.
"""

import asyncio
import dataclasses
import functools
from concurrent.futures import Executor

import structlog

from rezone.controller.nodes.monitor import NodeMonitor, WatchedNode
from rezone.domain.routing.route_records import RouteRecords
from rezone.wire.errors import RezoneError, StaleEpochError
from rezone.wire.messages import (
    Ack,
    ConfigureNode,
    Fence,
    NodeId,
    NotifyLeaderAndIsr,
    PartitionAssignment,
    PartitionId,
    ZoneConfig,
    ZoneDeleted,
    encode,
)

log = structlog.get_logger(__name__)

PARTITIONS_PER_CALL = 512
NODES_AT_ONCE = 32
"""How many nodes are called at once; a first pass over a large zone tells 1,000 nodes everything.

More threads would not be faster, as they share one processor's lock with the event loop, and would
keep it from the loop, on which all other zones are served.
"""


@dataclasses.dataclass
class Delivered:
    """What one process of a data node has confirmed: `round` is 0 before the first records."""

    process_id: str
    coordinator_epoch: int
    config: ZoneConfig
    peers: dict[NodeId, str]
    round: int = 0


class ChangedRoutes:
    """In which round each record has changed, and which of them a node lacks."""

    def __init__(self) -> None:
        self.round = 0
        self._routes = RouteRecords()
        self._changed_in: dict[PartitionId, int] = {}
        self._behind: dict[int, tuple[PartitionAssignment, ...]] = {}

    def take(self, routes: RouteRecords) -> None:
        """Take the table as it is now; what it has no longer needs no telling."""
        if not routes or routes is self._routes:
            return
        known = self._routes
        changed = [
            partition
            for partition, record in routes.items()
            if record is not (old := known.get(partition)) and record != old
        ]
        self._routes = routes
        for partition in known.keys() - routes.keys():
            del self._changed_in[partition]
        if changed or len(routes) != len(known):
            self.round += 1
            self._behind = {}
            self._changed_in.update(dict.fromkeys(changed, self.round))

    def since(self, confirmed: int) -> tuple[PartitionAssignment, ...]:
        """Return the records that have changed after a round; nodes mostly ask for the same one."""
        found = self._behind.get(confirmed)
        if found is None:
            found = self._behind[confirmed] = tuple(
                PartitionAssignment(partition=partition, state=self._routes[partition])
                for partition, changed in self._changed_in.items()
                if changed > confirmed
            )
        return found


class RouteCalls:
    """The calls of one round of notifications, each made and encoded once for all nodes."""

    def __init__(self, changed: ChangedRoutes, peers: dict[NodeId, str], fence: Fence) -> None:
        self._changed = changed
        self._peers = peers
        self._fence = fence
        self.round = changed.round
        self._calls: dict[int, list[tuple[NotifyLeaderAndIsr, bytes]]] = {}

    def since(self, confirmed: int) -> list[tuple[NotifyLeaderAndIsr, bytes]]:
        """Return what brings a node from a round to `round`, or to a later one."""
        calls = self._calls.get(confirmed)
        if calls is None:
            behind = self._changed.since(confirmed)
            chunks = [
                behind[start : start + PARTITIONS_PER_CALL]
                for start in range(0, len(behind), PARTITIONS_PER_CALL)
            ]
            requests = [
                NotifyLeaderAndIsr(fence=self._fence, partitions=chunk, peers=self._peers)
                for chunk in chunks
            ]
            calls = self._calls[confirmed] = [(each, encode(each)) for each in requests]
        return calls


class Notifier:
    """Sends configuration and route records to all reachable nodes of a zone."""

    def __init__(self, executor: Executor, monitor: NodeMonitor, timeout_seconds: float) -> None:
        self._executor = executor
        self._monitor = monitor
        self._timeout_seconds = timeout_seconds
        self._delivered: dict[NodeId, Delivered] = {}
        self._changed = ChangedRoutes()
        self._configurations = 0
        self._slots = asyncio.Semaphore(NODES_AT_ONCE)

    async def notify(
        self,
        config: ZoneConfig,
        peers: dict[NodeId, str],
        routes: RouteRecords,
        fence: Fence,
    ) -> bool:
        """Send each node what it has not confirmed yet; returns whether all reachable ones have."""
        self._changed.take(routes)
        calls = RouteCalls(self._changed, peers, fence)
        nodes = [w for w in self._monitor.nodes().values() if w.reachable]
        sent = await asyncio.gather(
            *(self._bring_up(watched, config, peers, fence, calls) for watched in nodes),
        )
        return all(sent)

    def zone_deleted(self, fence: Fence, zone_uid: str) -> None:
        """Tell all nodes that answer that their zone is deleted; nobody waits for that.

        One that is not told waits for an operator when its pod is deleted, and then stops.
        """
        request = ZoneDeleted(fence=fence, zone_uid=zone_uid)
        for watched in self._monitor.nodes().values():
            if watched.reachable:
                call = functools.partial(watched.client.call, request, Ack)
                self._executor.submit(call, timeout_seconds=self._timeout_seconds)

    async def _bring_up(
        self,
        watched: WatchedNode,
        config: ZoneConfig,
        peers: dict[NodeId, str],
        fence: Fence,
        calls: RouteCalls,
    ) -> bool:
        try:
            async with self._slots:
                delivered = await self._configure(watched, config, peers, fence)
                # The next round may begin meanwhile: it is not confirmed by these calls.
                for request, encoded in calls.since(delivered.round):
                    await self._tell(watched, request, encoded)
                delivered.round = max(delivered.round, calls.round)
        except RezoneError as error:
            log.warning("node not notified", node=watched.node, code=error.code, error=str(error))
            if not error.details.get("unreachable"):
                # It may have refused because it has lost its zone.
                self._delivered.pop(watched.node, None)
            return False
        return True

    async def _configure(
        self,
        watched: WatchedNode,
        config: ZoneConfig,
        peers: dict[NodeId, str],
        fence: Fence,
    ) -> Delivered:
        process_id = watched.node_state.process_id if watched.node_state else ""
        known = self._delivered.get(watched.node)
        if (
            known is not None
            and known.process_id == process_id
            and known.coordinator_epoch == fence.coordinator_epoch
            and known.config == config
            and known.peers == peers
        ):
            return known
        self._configurations += 1
        request = ConfigureNode(
            fence=fence, config=config, peers=peers, number=self._configurations
        )
        try:
            await self._call(watched, request)
        except RezoneError:
            # Without an answer it may come yet: what stands there is not known.
            self._delivered.pop(watched.node, None)
            raise
        fresh = Delivered(process_id, fence.coordinator_epoch, config, dict(peers))
        if known is not None and known.process_id == process_id:
            fresh.round = known.round
        self._delivered[watched.node] = fresh
        return fresh

    async def _tell(
        self, watched: WatchedNode, request: NotifyLeaderAndIsr, encoded: bytes
    ) -> None:
        """Send records; a node that refuses some because it knows later ones has the others."""
        try:
            await self._call(watched, request, encoded)
        except StaleEpochError as error:
            if not error.details.get("superseded"):
                raise
            log.info("node knows later records", node=watched.node, error=str(error))

    async def _call(
        self,
        watched: WatchedNode,
        request: ConfigureNode | NotifyLeaderAndIsr,
        encoded: bytes | None = None,
    ) -> None:
        call = functools.partial(
            watched.client.call,
            request,
            Ack,
            timeout_seconds=self._timeout_seconds,
            encoded=encoded,
        )
        await watched.answer(self._executor, call)
