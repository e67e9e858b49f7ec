"""Starts copies: one SparkApplication per task attempt, or node-to-node pulls."""

import asyncio
import functools
from collections.abc import Sequence
from typing import Any

import structlog

from rezone.controller.coordination.coordinator import Coordinator
from rezone.controller.coordination.runtime import ZoneRuntime
from rezone.controller.nodes.monitor import utc_now
from rezone.controller.work.keys import ZoneKey
from rezone.domain.model import world
from rezone.domain.model.resharding_view import EnsureBackfill
from rezone.domain.model.world import Copy, EnsureSparkApplication
from rezone.domain.observed.machine_limits import Rank, Turn
from rezone.kube.api.errors import ForbiddenError, MissingError
from rezone.kube.api.kinds import ZoneKind
from rezone.kube.api.names import AnyObject
from rezone.kube.jobs.spark import Owner
from rezone.resources.zone import DistributionZone
from rezone.wire.copying.backfill_plan import BackfillPlan, BackfillRange
from rezone.wire.errors import RezoneError
from rezone.wire.messages import (
    Ack,
    AdmitCopies,
    AdmittedCopy,
    Fence,
    NodeId,
    PartitionId,
    PullSnapshot,
)

ADMISSION_SECONDS = 15.0
"""How long a copy by Spark may begin after the operator's last word about it."""

REPEATS = 5
"""How often within that time it is said again."""

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

    async def may_begin(
        self, owner: AnyObject, copies: Sequence[Copy], rank: Rank
    ) -> tuple[Copy, ...]:
        """Return the copies that the machines take, beside those of other zones."""
        board = self._c.copy_board
        if not board.knows_zones:
            board.expect(await self._zones())
        meta = owner.metadata
        since = meta.creation_timestamp or utc_now()
        zone = f"zone {self._runtime.key.namespace}/{self._runtime.key.name}"
        what = "repairs" if rank is Rank.REPAIR else meta.name
        turn = Turn(rank, since, f"{what} of {zone}")
        return board.admit(self._runtime, meta.uid, turn, copies)

    async def _zones(self) -> list[ZoneKey]:
        """Return all zones by name: one that cannot be read must not keep the others waiting."""
        found: list[ZoneKey] = []
        for namespace in self._c.settings.namespaces or (None,):
            try:
                names = await self._c.kube.names(ZoneKind, namespace)
            except (ForbiddenError, MissingError) as error:
                # Such as a namespace that is gone: there is nothing to look after.
                log.warning("zones not listed", namespace=namespace, error=str(error))
            else:
                found += [ZoneKey(*name) for name in names]
        return found

    async def ensure_spark(
        self,
        owner: Owner,
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

    async def ensure_backfill(self, owner: Owner, action: EnsureBackfill) -> None:
        """Create the SparkApplication of a re-sharding unless it exists; as `ensure_spark`."""
        peers = self._runtime.peers
        if not peers:
            log.info("nothing to plan a SparkApplication with yet", application=action.name)
            return
        ranges = tuple(BackfillRange(each.new, each.old) for each in action.ranges)
        plan = BackfillPlan(nodes=dict(sorted(peers.items())), ranges=ranges)
        await self._c.spark.ensure_backfill(action.name, self._zone, owner, plan)

    async def delete_spark(self, owner: Owner, name: str) -> None:
        """Delete the owner's SparkApplication; absent is fine."""
        await self._c.spark.delete(owner, name)

    async def pull(self, copies: Sequence[Copy], fence: Fence) -> None:
        """Have every target pull its partition from the source.

        The zone's rate is shared evenly; a repeat tells the running copies their new share.
        """
        self._runtime.copy_watch.asked(copies, utc_now(), streams=True)
        share = self._share(copies)
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

    async def admit(self, action: world.AdmitCopies, fence: Fence) -> None:
        """Say to every receiver which copies Spark may begin there; the rate is shared evenly.

        What was said is repeated now and then: an admission ends by itself, so that nothing begins
        without an operator.
        """
        self._runtime.copy_watch.asked(action.admitted, utc_now(), streams=False)
        share = self._share(action.admitted)
        wanted: dict[NodeId, tuple[list[AdmittedCopy], list[PartitionId]]] = {}
        for copy in action.admitted:
            admitted = AdmittedCopy(copy.partition, share)
            for target in copy.targets:
                wanted.setdefault(target, ([], []))[0].append(admitted)
        for copy in action.held:
            for target in copy.targets:
                wanted.setdefault(target, ([], []))[1].append(copy.partition)
        await asyncio.gather(
            *(
                self._admit_at(
                    node,
                    AdmitCopies(
                        fence=fence,
                        admitted=tuple(admitted),
                        held=tuple(held),
                        seconds=ADMISSION_SECONDS,
                    ),
                )
                for node, (admitted, held) in wanted.items()
            )
        )

    async def _admit_at(self, node: NodeId, request: AdmitCopies) -> None:
        watched, told = self._runtime.monitor.get(node), self._runtime.admissions
        now = asyncio.get_running_loop().time()
        at, last = told.get(node, (-ADMISSION_SECONDS, None))
        if watched is None or (last == request and now - at < ADMISSION_SECONDS / REPEATS):
            return
        told.pop(node, None)
        timeout = self._c.settings.call_timeout_seconds
        call = functools.partial(watched.client.call, request, Ack, timeout_seconds=timeout)
        try:
            await watched.answer(self._c.executor, call)
        except RezoneError as error:
            log.warning("copies not admitted", node=node, error=str(error))
        else:
            told[node] = (now, request)

    def _share(self, copies: Sequence[Copy]) -> int:
        """Return what each receiver may take of the zone's rate, 0 without a limit."""
        rate = self._zone.spec.rebalance.max_bytes_per_second
        return max(1, rate // max(1, sum(len(copy.targets) for copy in copies))) if rate else 0

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
