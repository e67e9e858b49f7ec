"""The reconcile loop of a RebalanceTask: read, plan if it is new, decide, write, act."""

import functools

import structlog

from rezone.controller.coordination.coordinator import Coordinator
from rezone.controller.effects.acts import Acts
from rezone.controller.effects.resharding import make_resharding_plan
from rezone.controller.nodes.monitor import utc_now
from rezone.controller.observing.outside_machine import (
    MISSING_ZONE_SECONDS,
    seen_by_operator,
    without_zone,
)
from rezone.controller.observing.passes import ZonePass, begin_pass
from rezone.controller.reconcile.plans import make_plan
from rezone.controller.work.keys import ObjectKey
from rezone.domain.assignment import announcements
from rezone.domain.machines.statuses import Decision
from rezone.domain.model.world import SparkView
from rezone.domain.rebalance import decide as rebalance
from rezone.domain.resharding import decide as resharding
from rezone.domain.resharding import observe as resharding_observe
from rezone.kube.api.errors import ConflictWriteError
from rezone.resources.task import (
    TERMINAL_TASK_STATES,
    RebalanceTask,
    RebalanceTaskStatus,
    TaskType,
)

log = structlog.get_logger(__name__)


class TaskReconciler:
    """Moves the state machine of one task after the other."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._c = coordinator

    async def reconcile(self, key: ObjectKey) -> float | None:
        """Run one pass; returns after how many seconds the next is due, None at the end."""
        task = await self._c.store.find(RebalanceTask, key.namespace, key.name)
        if task is None or task.metadata.deletion_timestamp is not None:
            self._c.unfollow(key)
            self._c.metrics.forget(key)
            self._c.traces.forget(key)
            return None
        status = task.status or RebalanceTaskStatus()
        self._c.metrics.note_state(key, status.state)
        self._c.traces.note_task(key, task, status)
        if status.state in TERMINAL_TASK_STATES:
            self._c.unfollow(key)
            if status.observed_generation != task.metadata.generation:
                await self._c.store.write_status(task, seen_by_operator(task, status))
            return None
        spark = await self._spark(task, status)
        seen = await begin_pass(self._c, key, task.spec.zone_name, task=task, spark=spark)
        if seen is None and status.spark_application:
            # Its data nodes go with the zone: a driver would hold executors until it gives up.
            await self._c.spark.delete(task, status.spark_application)
        if seen is None or not seen.is_open:
            waiting = without_zone(task, status, utc_now(), found=seen is not None)
            await self._c.store.write_status(task, waiting)
            return MISSING_ZONE_SECONDS
        return await self._pass(key, task, seen)

    async def _spark(self, task: RebalanceTask, status: RebalanceTaskStatus) -> SparkView | None:
        if not status.spark_application:
            return None
        return await self._c.spark.state(task, status.spark_application)

    async def _pass(self, key: ObjectKey, task: RebalanceTask, seen: ZonePass) -> float | None:
        decision = self._decide(key, task, seen)
        try:
            await self._c.write_status(key, task, decision.status)
        except ConflictWriteError:
            return 0.0
        self._c.metrics.note_state(key, decision.status.state)
        self._c.traces.note_task(key, task, decision.status)
        self._c.announcer.announce(task, announcements.of_task(task.status, decision.status))
        if decision.path:
            words = self._c.traces.words(task.metadata.uid)
            log.info("task advanced", path=list(decision.path), **words)
        await Acts(self._c, seen.zone, seen.runtime, task).carry_out(decision.actions)
        return decision.wake_seconds

    def _decide(
        self, key: ObjectKey, task: RebalanceTask, seen: ZonePass
    ) -> Decision[RebalanceTaskStatus]:
        """Ask the machine of the task's type."""
        generation, now = task.metadata.generation, utc_now()
        if task.spec.type is TaskType.RESHARD:
            ranges = seen.runtime.ranges
            view = resharding_observe.observe(
                seen.view,
                task.spec,
                task.status or RebalanceTaskStatus(),
                resharding_observe.Compared(
                    verified=ranges.verified, differing=ranges.differing, failing=ranges.failing
                ),
                grace_seconds=self._c.settings.resharding_grace_seconds,
            )
            self._c.metrics.note_resharding(key, view)
            plan = functools.partial(make_resharding_plan, task, seen)
            name = task.metadata.name
            return resharding.decide(
                task.spec, task.status, view, now, generation, name=name, plan=plan
            )
        return rebalance.decide(
            task.spec,
            task.status,
            seen.view,
            now,
            generation,
            name=task.metadata.name,
            plan=functools.partial(make_plan, task, seen),
        )
