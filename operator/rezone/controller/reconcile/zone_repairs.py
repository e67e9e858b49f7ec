"""Carries out how a zone's own copies are made (`rebalance.repair_copies`): persist, then act."""

import dataclasses

import structlog

from rezone.controller.coordination.coordinator import Coordinator
from rezone.controller.coordination.runtime import ZoneRuntime
from rezone.controller.effects.acts import Acts
from rezone.controller.nodes.monitor import utc_now
from rezone.domain.model.world import SparkView, ZoneView
from rezone.domain.rebalance.repair_copies import repair_copies
from rezone.domain.zone.status import Obstacle
from rezone.kube.api.errors import ConflictWriteError
from rezone.resources.conditions import Reason
from rezone.resources.machine_status import SparkCopies
from rezone.resources.zone import DistributionZone
from rezone.resources.zone_status import DistributionZoneStatus

REPAIR_SECONDS = 2.0
"""How soon a zone looks again whose copies go by Spark: it admits them."""

log = structlog.get_logger(__name__)


class ZoneRepairs:
    """The zone's own copies in one pass; `state` is how they go, as it stands in the status."""

    def __init__(
        self, coordinator: Coordinator, zone: DistributionZone, runtime: ZoneRuntime
    ) -> None:
        self._c = coordinator
        self._zone = zone
        self._runtime = runtime
        self.state = (zone.status or DistributionZoneStatus()).repair_copies

    async def run(self, view: ZoneView, *, task_copies: bool) -> Obstacle | None:
        """Have replicas copied that no task copies; return why a person has to do something."""
        spark = await self._spark()
        view = dataclasses.replace(view, spark=spark)
        decided = repair_copies(view, self.state, utc_now(), task_copies=task_copies)
        if decided.state != self.state and not await self._persist(decided.state):
            return None
        acts = Acts(self._c, self._zone, self._runtime, self._zone)
        await acts.carry_out(decided.actions)
        if not decided.unavailable:
            return None
        message = f"copies of lost replicas wait: {decided.unavailable}"
        return Obstacle(reason=Reason.SPARK_UNAVAILABLE, message=message)

    async def _spark(self) -> SparkView | None:
        if self.state is None or not self.state.application:
            return None
        spark = await self._c.spark.state(self._zone, self.state.application)
        if spark.state:
            return spark
        error = self._runtime.spark_errors.get(self._zone.metadata.uid, "")
        return dataclasses.replace(spark, error=error)

    async def _persist(self, state: SparkCopies | None) -> bool:
        """Write the state; False when the zone has changed, and the next pass decides again."""
        status = self._zone.status or DistributionZoneStatus()
        try:
            self._zone = await self._c.store.write_status(
                self._zone, status.model_copy(update={"repair_copies": state})
            )
        except ConflictWriteError:
            log.info("repairs are decided again: the zone has changed")
            return False
        self.state = state
        return True
