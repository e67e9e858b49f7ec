"""View models of a RebalanceTask: its plan per partition, how far it is. Pure."""

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rezone.console.views.partitions import PAGE_PARTITIONS, page_count, page_in
from rezone.domain.routing.topology_text import Topology, TopologyError, parse
from rezone.resources.machine_status import WaitedFor
from rezone.resources.task import (
    TERMINAL_TASK_STATES,
    MoveReason,
    RebalanceTask,
    RebalanceTaskStatus,
    TaskProgress,
    TaskType,
)
from rezone.wire.messages import LeaderAndIsr, NodeId

_NO_RECORDS: Final[Sequence[LeaderAndIsr]] = ()


class Standing(enum.StrEnum):
    """How far one partition of a plan is."""

    WAITING = "waiting"
    COPYING = "copying"
    SWITCHING = "switching"
    DONE = "done"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class PlannedPartition:
    """One partition that a plan changes: its data nodes before and after, the first leads."""

    index: int
    before: tuple[NodeId, ...]
    after: tuple[NodeId, ...]
    why: str
    standing: Standing

    @property
    def added(self) -> tuple[NodeId, ...]:
        """The data nodes that get a copy."""
        return tuple(node for node in self.after if node not in self.before)

    @property
    def removed(self) -> tuple[NodeId, ...]:
        """The data nodes that give theirs up."""
        return tuple(node for node in self.before if node not in self.after)

    @property
    def leader_moves(self) -> bool:
        """Whether another data node is to lead."""
        return self.before[:1] != self.after[:1]


@dataclass(frozen=True, kw_only=True)
class TaskView:
    """One rebalance as its page shows it; `problem` says why there is no plan to show."""

    task: RebalanceTask
    state: str
    ended: bool
    progress: TaskProgress
    changed: tuple[PlannedPartition, ...]
    changed_count: int
    page: int
    pages: int
    counts: dict[Standing, int]
    layouts: tuple[int, int] | None
    problem: str

    @property
    def status(self) -> RebalanceTaskStatus:
        """The status; an empty one before the operator has seen the task."""
        return self.task.status or RebalanceTaskStatus()

    @property
    def waits(self) -> tuple[WaitedFor, ...]:
        """For what the task has waited until the wait under way, the longest first."""
        return tuple(sorted(self.status.waits, key=lambda each: -each.seconds))

    @property
    def percent(self) -> int:
        """How much is copied, by bytes, and by moves where no bytes are known: 0 to 100."""
        done, total = self.progress.bytes_done, self.progress.bytes_total
        if not total:
            done, total = self.progress.moves_done, self.progress.moves_total
        if not total:
            return 100 if self.ended else 0
        return min(100, 100 * done // total)


def task_view(
    task: RebalanceTask,
    records: Sequence[LeaderAndIsr] = _NO_RECORDS,
    *,
    page: int = 0,
) -> TaskView:
    """Return what is shown of a task; `records` are the routes of the zone's layout, by index."""
    status = task.status or RebalanceTaskStatus()
    ended = status.state in TERMINAL_TASK_STATES
    before, after, problem = _topologies(status)
    resharded = task.spec.type is TaskType.RESHARD
    changed = () if resharded else planned_partitions(before, after, records, status)
    shown = page_in(page, len(changed))
    start = shown * PAGE_PARTITIONS
    standings = [each.standing for each in changed]
    return TaskView(
        task=task,
        state=status.state or "New",
        ended=ended,
        progress=status.progress,
        changed=changed[start : start + PAGE_PARTITIONS],
        changed_count=len(changed),
        page=shown,
        pages=page_count(len(changed)),
        counts={standing: standings.count(standing) for standing in Standing},
        layouts=(len(before), len(after)) if resharded and before and after else None,
        problem=problem,
    )


def _topologies(status: RebalanceTaskStatus) -> tuple[Topology, Topology, str]:
    """Return the assignments before and after; both empty, with a reason, where none is there."""
    if not status.source or not status.target:
        return (), (), "There is no plan yet."
    try:
        return parse(status.source), parse(status.outcome or status.target), ""
    except TopologyError as error:
        return (), (), f"The plan cannot be read: {error}"


def planned_partitions(
    before: Topology,
    after: Topology,
    records: Sequence[LeaderAndIsr],
    status: RebalanceTaskStatus,
) -> tuple[PlannedPartition, ...]:
    """Return the partitions whose data nodes or preferred leaders change."""
    reasons = status.plan.reasons if status.plan is not None else ()
    why = _reasons_by_partition(reasons, len(after))
    return tuple(
        PlannedPartition(
            index=index,
            before=old,
            after=new,
            why=why.get(index, "leader only" if set(old) == set(new) else ""),
            standing=standing_of(new, records[index] if index < len(records) else None),
        )
        for index, (old, new) in enumerate(zip(before, after, strict=False))
        if old != new
    )


def _reasons_by_partition(reasons: Iterable[MoveReason], partitions: int) -> dict[int, str]:
    """Return why each partition moves; ranges that reach beyond the zone are cut."""
    return {
        partition: reason.reason.value
        for reason in reasons
        for each in reason.ranges
        for partition in range(each.first, min(each.last + 1, partitions))
    }


def standing_of(after: tuple[NodeId, ...], record: LeaderAndIsr | None) -> Standing:
    """Return how far a partition is that shall be on `after`, by its route record."""
    if record is None:
        return Standing.UNKNOWN
    wanted, in_sync = set(after), set(record.isr)
    if wanted <= in_sync:
        done = set(record.replicas) == wanted and record.leader == after[0]
        return Standing.DONE if done else Standing.SWITCHING
    if wanted <= set(record.replicas):
        return Standing.COPYING
    return Standing.WAITING
