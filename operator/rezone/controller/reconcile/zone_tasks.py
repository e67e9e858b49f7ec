"""The RebalanceTask of a zone's pending assignment: found, or made by the operator.

A task that a person applied persists the revision it asks for before it writes it to the zone;
so whose a pending assignment is can always be told, and no second task is made for it.
"""

from collections.abc import Sequence

from rezone.controller.coordination.coordinator import Coordinator
from rezone.domain.assignment import assignments
from rezone.resources.model import ObjectMeta
from rezone.resources.task import (
    TERMINAL_TASK_STATES,
    RebalanceTask,
    RebalanceTaskSpec,
    TaskState,
    TaskType,
)
from rezone.resources.zone import DistributionZone
from rezone.resources.zone_status import Assignments


def task_name(zone: str, tasks: Sequence[RebalanceTask], keys: Assignments) -> str:
    """Return the name of the task of the pending assignment, "" when nothing is pending."""
    if keys.pending is None:
        return ""
    revision = keys.pending.revision
    for task in tasks:
        asked = task.status.revision if task.status is not None else 0
        if revision in (task.spec.revision, asked):
            return task.metadata.name
    return f"{zone}-{revision}"


_COPYING = frozenset(
    {
        TaskState.AWAITING_REPLICAS,
        TaskState.TRANSFERRING,
        TaskState.SWITCHING,
        TaskState.FINALIZING,
    },
)


def copies_now(task: RebalanceTask) -> bool:
    """Return whether a task is in a state in which it copies whatever its zone misses.

    A re-sharding does not: new partitions take their rows from old ones, not from one another.
    """
    if task.spec.type is TaskType.RESHARD:
        return False
    return task.status is not None and task.status.state in _COPYING and not task.spec.suspend


_MOVING = frozenset(TaskState) - TERMINAL_TASK_STATES - {TaskState.PLANNED, TaskState.APPROVED}


def moves_now(task: RebalanceTask) -> bool:
    """Return whether a task has begun to change what its zone's partitions live on."""
    return task.status is not None and task.status.state in _MOVING


class ZoneTasks:
    """Finds and makes the tasks of zones."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._c = coordinator

    async def list(self, zone: DistributionZone) -> tuple[RebalanceTask, ...]:
        """Return the tasks of a zone, a person's among them."""
        meta = zone.metadata
        fields = {"spec.zoneName": meta.name}
        return await self._c.store.list_all(RebalanceTask, meta.namespace, fields=fields)

    async def ensure(self, zone: DistributionZone, found: Sequence[RebalanceTask]) -> None:
        """Create the current task unless it is there, as far as this pass has seen."""
        status = zone.status
        if status is None or status.assignments.pending is None or not status.current_task:
            return
        revision = status.assignments.pending.revision
        meta = zone.metadata
        if status.current_task != f"{meta.name}-{revision}":
            return
        if any(task.metadata.name == status.current_task for task in found):
            return
        resharding = assignments.is_resharding(status.assignments)
        kind = TaskType.RESHARD if resharding else TaskType.ZONE
        spec = RebalanceTaskSpec(zone_name=meta.name, type=kind, revision=revision)
        await self._create(zone, status.current_task, spec)

    async def even_out(self, zone: DistributionZone, name: str) -> None:
        """Create the task that evens out leaders after an update; one that is there is fine."""
        spec = RebalanceTaskSpec(zone_name=zone.metadata.name, type=TaskType.LEADERS)
        await self._create(zone, name, spec)

    async def _create(self, zone: DistributionZone, name: str, spec: RebalanceTaskSpec) -> None:
        meta = zone.metadata
        labels = {"rezone.dev/zone": meta.name}
        made = ObjectMeta(name=name, namespace=meta.namespace, labels=labels)
        await self._c.store.create(RebalanceTask(metadata=made, spec=spec), zone)
