"""Starts copies: one SparkApplication per task attempt, or node-to-node pulls."""

import functools
from collections.abc import Sequence
from typing import Any

import structlog

from rezone.controller.coordinator import Coordinator
from rezone.controller.runtime import ZoneRuntime
from rezone.domain.world import Copy, EnsureSparkApplication
from rezone.resources.task import RebalanceTask
from rezone.resources.zone import DistributionZone
from rezone.wire.errors import RezoneError
from rezone.wire.messages import Ack, Fence, PullSnapshot

log = structlog.get_logger(__name__)


class Transfers:
    """Starts and stops the bulk copies of one zone."""

    def __init__(
        self,
        coordinator: Coordinator,
        zone: DistributionZone,
        runtime: ZoneRuntime,
    ) -> None:
        self._c = coordinator
        self._zone = zone
        self._runtime = runtime

    async def ensure_spark(
        self,
        owner: RebalanceTask,
        action: EnsureSparkApplication,
    ) -> None:
        """Create the SparkApplication unless it exists; its plan names nodes by address.

        It keeps the plan it was made with. So an operator that has just begun, and has not looked
        at the zone yet, makes none: it would copy nothing, and count as an attempt.
        """
        fence = self._runtime.fence
        plan = [item for copy in action.copies if fence and (item := self._plan_item(copy, fence))]
        if not plan:
            log.info("nothing to plan a SparkApplication with yet", application=action.name)
            return
        await self._c.spark.ensure(action.name, self._zone, owner, plan)

    async def delete_spark(self, owner: RebalanceTask, name: str) -> None:
        """Delete the task's SparkApplication; absent is fine."""
        await self._c.spark.delete(owner, name)

    async def pull(self, copies: Sequence[Copy], fence: Fence) -> None:
        """Have every target pull its partition from the source.

        The zone's rate is shared evenly; a repeat tells the running copies their new share.
        """
        pulls = max(1, sum(len(copy.targets) for copy in copies))
        rate = self._zone.spec.rebalance.max_bytes_per_second
        share = max(1, rate // pulls) if rate else 0
        for copy in copies:
            source = self._runtime.peers.get(copy.source)
            for target in copy.targets:
                watched = self._runtime.monitor.get(target)
                if source is None or watched is None:
                    continue
                request = PullSnapshot(
                    fence=fence,
                    partition=copy.partition,
                    source=source,
                    bytes_per_second_max=share,
                )
                call = functools.partial(watched.client.call, request, Ack)
                try:
                    await watched.answer(self._c.executor, call)
                except RezoneError as error:
                    log.warning("pull not started", node=target, error=str(error))

    def _plan_item(self, copy: Copy, fence: Fence) -> dict[str, Any] | None:
        source = self._runtime.peers.get(copy.source)
        targets = [
            {"id": node, "address": self._runtime.peers[node]}
            for node in copy.targets
            if node in self._runtime.peers
        ]
        if source is None or not targets:
            return None
        return {
            "partition": copy.partition,
            "source": source,
            "source_id": copy.source,
            "targets": targets,
            "revision": fence.revision,
        }
