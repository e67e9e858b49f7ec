"""One pass over a RebalanceTask while it is being decided: what all its steps share."""

import dataclasses
import functools
from collections.abc import Callable
from datetime import datetime

import xxhash

from rezone.domain.assignment import assignments
from rezone.domain.machines.rebalance_table import TABLE
from rezone.domain.machines.statuses import with_error
from rezone.domain.machines.task_run import Run, paused_where
from rezone.domain.model.world import MigrationView, ZoneView
from rezone.domain.observed.write_gaps import unavailability
from rezone.domain.rebalance import estimates
from rezone.domain.rebalance.clients_served import busiest, with_clients_served
from rezone.domain.rebalance.progress import is_worth_writing, with_rate, without_falling
from rezone.domain.rebalance.survey import Reasons, Survey, has_switched, survey
from rezone.domain.routing.topology_text import Topology
from rezone.resources.conditions import Reason
from rezone.resources.task import (
    PlanSummary,
    RebalanceTaskSpec,
    RebalanceTaskStatus,
    TaskProgress,
)
from rezone.wire.layouts import index_of
from rezone.wire.messages import NodeId, PartitionId

NAME_LENGTH_MAX = 63
SUFFIX_LENGTH_MAX = 20  # "-back-16383-99999" and its like


@dataclasses.dataclass(frozen=True)
class Planned:
    """A plan made for the task: where everything shall live, and its summary for people."""

    target: Topology
    summary: PlanSummary


@dataclasses.dataclass(frozen=True)
class NoPlan:
    """Why no plan can be made for the task."""

    reason: Reason
    message: str


Planner = Callable[[], Planned | NoPlan]


def child_name(task: str, suffix: str) -> str:
    """Return the deterministic name of a task's child, at most 63 characters long.

    All children of a task begin alike, whatever their suffix: that tells them apart.
    """
    if len(task) > NAME_LENGTH_MAX - SUFFIX_LENGTH_MAX:
        digest = xxhash.xxh32_hexdigest(task.encode())
        task = f"{task[: NAME_LENGTH_MAX - SUFFIX_LENGTH_MAX - len(digest) - 1]}-{digest}"
    return f"{task}-{suffix}"


class TaskRun(Run):
    """The pass: its inputs, and what has been decided so far. Every state it enters persists."""

    def __init__(
        self,
        spec: RebalanceTaskSpec,
        status: RebalanceTaskStatus,
        view: ZoneView,
        now: datetime,
        *,
        name: str,
        plan: Planner,
    ) -> None:
        # A task that a person applied goes on in a zone that only the operator leaves alone.
        hands_off = view.hands_off and spec.revision > 0
        paused_by = paused_where(rebalance=view.paused, zone=hands_off)
        super().__init__(TABLE, spec, status, now, paused_by=paused_by)
        self.view = view
        self.name = name
        self.plan = plan

    @functools.cached_property
    def source(self) -> Topology:
        """Return the assignment before the rebalance."""
        return assignments.parse(self.status.source)

    @functools.cached_property
    def target(self) -> Topology:
        """Return the assignment after the rebalance, as planned."""
        return assignments.parse(self.status.target)

    @property
    def goal(self) -> Topology:
        """Return the assignment that the task ends with: its target, unless targets failed."""
        return assignments.parse(self.status.outcome) if self.status.outcome else self.target

    def wanted(self, partition: PartitionId) -> tuple[NodeId, ...]:
        """Return the nodes of one partition after the rebalance."""
        return self.goal[index_of(partition)]

    @functools.cached_property
    def survey(self) -> Survey:
        """Return where the partitions stand; found out once a pass."""
        view, given_up = self.view, set[tuple[PartitionId, NodeId]]()
        if self.status.outcome:
            given_up.update(view.stalled_copies)
            given_up.update((partition, node) for partition, node, _ in view.mismatched)
        return survey(view, self.source, self.target, self.goal, given_up=given_up)

    def is_done(self, partition: PartitionId) -> bool:
        """Return whether a partition has moved: it would need a copy to go back, or had none."""
        index = index_of(partition)
        old, new = self.source[index], self.target[index]
        record = self.view.routes[partition]
        return partition in self.survey.moved or has_switched(record, old, new)

    def end_with(self, outcome: Topology, reason: Reason, why: str) -> None:
        """Leave failed targets out: the task ends with `outcome`, and says why."""
        self.status = with_error(self.status, reason, why)
        self.update(outcome=assignments.compact(outcome))
        self.__dict__.pop("survey", None)

    @functools.cached_property
    def children(self) -> dict[PartitionId, list[MigrationView]]:
        """Return the task's own migrations by partition."""
        found: dict[PartitionId, list[MigrationView]] = {}
        for migration in self.view.migrations:
            if migration.owner_task == self.name:
                found.setdefault(migration.partition, []).append(migration)
        return found

    def wait_for(self, reasons: Reasons) -> bool:
        """Stay in the state for what partitions wait for; stalled when a person must act."""
        blocked = reasons.blocked
        reason = blocked or Reason.WAITING
        return self.wait(reasons.text(), reason=reason, stalled=blocked is not None)

    @property
    def by_operator(self) -> bool:
        """Return whether the operator made the task for an assignment that is pending already."""
        return self.spec.revision > 0

    @property
    def moves_nothing(self) -> bool:
        """Return whether only actual leaders differ: the assignment is the stable one already."""
        return self.status.source == self.status.target

    @property
    def holds_pending(self) -> bool:
        """Return whether the zone's pending assignment is the one of this task."""
        if self.view.pending is None or not self.status.revision:
            return False
        if self.view.resharding or self.view.pending_revision != self.status.revision:
            return False
        return not self.status.target or self.view.pending == self.target

    @property
    def superseded(self) -> bool:
        """Return whether the zone's keys no longer ask for what this task does."""
        if not self.fits_routes:
            return True
        if self.moves_nothing:
            return self.view.pending is not None and not self.holds_pending
        return not self.holds_pending

    @property
    def fits_routes(self) -> bool:
        """Return whether the task is about the partitions that there are; not after a re-shard."""
        return len(self.source) == len(self.target) == self.view.layout.partitions

    @property
    def already_new(self) -> bool:
        """Return whether the rebalance is done, which no cancel can change any more (ZR-20)."""
        return (
            not self.moves_nothing
            and bool(self.status.target)
            and not self.holds_pending
            and self.view.stable == self.goal
        )

    def settle_progress(self) -> None:
        """Write the progress in steps, and with each step what leader transfers have cost."""
        if self._table.state(self.state).terminal:
            self._settle_gaps()
        if "survey" not in self.__dict__:
            return
        old = self.status.progress
        new = progress_of(self.survey, old, self.now, busiest(self.view.nodes.values()))
        if self.status != self.before or is_worth_writing(old, new):
            self.update(progress=new)
            if new.leader_moves_done and not self._table.state(self.state).terminal:
                self._settle_gaps()

    def _settle_gaps(self) -> None:
        """Write what the leader transfers of the task have cost those who write."""
        since = self.status.started_time
        if since is None or not self.status.target or not self.fits_routes:
            return
        rows = zip(self.view.layout.ids, self.source, self.target, strict=True)
        moved = [partition for partition, old, new in rows if old != new or self.moves_nothing]
        self.update(write_unavailability=unavailability(self.view, moved, since))


def progress_of(
    found: Survey, old: TaskProgress, now: datetime, served_percent: int | None
) -> TaskProgress:
    """Return how far the task is; `served_percent` is the busiest data node's."""
    counted = TaskProgress(
        moves_total=found.copies_total,
        moves_done=found.copies_done,
        leader_moves_total=found.leaders_total,
        leader_moves_done=found.leaders_done,
        bytes_total=found.bytes_total,
        bytes_done=found.bytes_done,
        rows_total=found.rows_total,
        rows_done=found.rows_done,
        skew_percent=estimates.skew_percent(found.sizes),
    )
    new = with_rate(without_falling(counted, old), old, now)
    return with_clients_served(new, old, served_percent)
