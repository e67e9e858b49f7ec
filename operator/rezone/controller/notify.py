"""Brings data nodes up to date: their zone, their peers and every changed route record (ZR-12).

What a node has confirmed is remembered by its process: a call that was answered was persisted by
the node first. A lost call, a restarted node or a new coordinator only makes a message go out
again, and every message is idempotent (ZR-13).
"""

import asyncio
import dataclasses
import functools
from collections.abc import Sequence
from concurrent.futures import Executor

import structlog

from rezone.controller.monitor import NodeMonitor, WatchedNode
from rezone.wire.errors import RezoneError
from rezone.wire.messages import (
    Ack,
    ConfigureNode,
    Fence,
    LeaderAndIsr,
    NodeId,
    NotifyLeaderAndIsr,
    PartitionAssignment,
    ZoneConfig,
)

log = structlog.get_logger(__name__)

PARTITIONS_PER_CALL = 512


@dataclasses.dataclass
class Delivered:
    """What one process of a data node has confirmed."""

    process_id: str
    coordinator_epoch: int
    config: ZoneConfig
    peers: dict[NodeId, str]
    epochs: dict[int, int] = dataclasses.field(default_factory=dict)


class Notifier:
    """Sends configuration and route records to all reachable nodes of a zone."""

    def __init__(self, executor: Executor, monitor: NodeMonitor, timeout_seconds: float) -> None:
        self._executor = executor
        self._monitor = monitor
        self._timeout_seconds = timeout_seconds
        self._delivered: dict[NodeId, Delivered] = {}
        self._configurations = 0

    async def notify(
        self,
        config: ZoneConfig,
        peers: dict[NodeId, str],
        routes: Sequence[LeaderAndIsr],
        fence: Fence,
    ) -> bool:
        """Send each node what it has not confirmed yet; returns whether all reachable ones have."""
        nodes = [w for w in self._monitor.nodes().values() if w.reachable]
        sent = await asyncio.gather(
            *(self._bring_up(watched, config, peers, routes, fence) for watched in nodes),
        )
        return all(sent)

    async def _bring_up(
        self,
        watched: WatchedNode,
        config: ZoneConfig,
        peers: dict[NodeId, str],
        routes: Sequence[LeaderAndIsr],
        fence: Fence,
    ) -> bool:
        try:
            delivered = await self._configure(watched, config, peers, fence)
            await self._send_routes(watched, delivered, routes, fence)
        except RezoneError as error:
            log.warning("node not notified", node=watched.node, code=error.code, error=str(error))
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
        process_id = watched.report.process_id if watched.report else ""
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
        await self._call(
            watched,
            ConfigureNode(fence=fence, config=config, peers=peers, number=self._configurations),
        )
        fresh = Delivered(process_id, fence.coordinator_epoch, config, dict(peers))
        if known is not None and known.process_id == process_id:
            fresh.epochs = known.epochs
        self._delivered[watched.node] = fresh
        return fresh

    async def _send_routes(
        self,
        watched: WatchedNode,
        delivered: Delivered,
        routes: Sequence[LeaderAndIsr],
        fence: Fence,
    ) -> None:
        behind = [
            PartitionAssignment(partition=partition, state=state)
            for partition, state in enumerate(routes)
            if delivered.epochs.get(partition, -1) < state.partition_epoch
        ]
        for start in range(0, len(behind), PARTITIONS_PER_CALL):
            chunk = tuple(behind[start : start + PARTITIONS_PER_CALL])
            await self._call(
                watched,
                NotifyLeaderAndIsr(fence=fence, partitions=chunk, peers=delivered.peers),
            )
            delivered.epochs.update((p.partition, p.state.partition_epoch) for p in chunk)

    async def _call(
        self,
        watched: WatchedNode,
        request: ConfigureNode | NotifyLeaderAndIsr,
    ) -> None:
        call = functools.partial(
            watched.client.call,
            request,
            Ack,
            timeout_seconds=self._timeout_seconds,
        )
        await asyncio.get_running_loop().run_in_executor(self._executor, call)
