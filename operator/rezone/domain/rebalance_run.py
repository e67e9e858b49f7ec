"""One pass over a RebalanceTask while it is being decided: what all its steps share."""

import dataclasses
import functools
from collections.abc import Callable
from datetime import datetime

import xxhash

from rezone.domain import assignments
from rezone.domain.rebalance_survey import Survey, survey
from rezone.domain.rebalance_table import TABLE
from rezone.domain.statuses import (
    QUIET_SECONDS,
    Decision,
    Standing,
    enter,
    entered_time,
    is_late,
    with_conditions,
    with_error,
)
from rezone.domain.world import Action, MigrationView, Topology, ZoneView
from rezone.resources.conditions import Reason
from rezone.resources.task import (
    PlanSummary,
    RebalanceTaskSpec,
    RebalanceTaskStatus,
    TaskProgress,
    TaskState,
)
from rezone.wire.messages import PartitionId

NAME_LENGTH_MAX = 63
SUFFIX_LENGTH_MAX = 20  # "-back-16383-99999" and its like
WAKE_SECONDS = 2.0
WAKE_SOON_SECONDS = 0.2
PROGRESS_STEPS = 100
"""Progress is written in steps of a hundredth: each write is a round trip to the API server."""


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


class TaskRun:
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
        self.spec = spec
        self.view = view
        self.now = now
        self.name = name
        self.plan = plan
        self.before = status
        self.status = status
        self.actions: list[Action] = []
        self.path: list[str] = []
        self.waiting = ""
        self.standing: Standing | None = None
        self.wake_seconds = WAKE_SECONDS

    @property
    def state(self) -> str:
        """Return the state the pass has come to."""
        return self.status.state

    @functools.cached_property
    def source(self) -> Topology:
        """Return the assignment before the rebalance."""
        return assignments.parse(self.status.source)

    @functools.cached_property
    def target(self) -> Topology:
        """Return the assignment after the rebalance."""
        return assignments.parse(self.status.target)

    @functools.cached_property
    def survey(self) -> Survey:
        """Return where the partitions stand; found out once a pass."""
        return survey(self.view, self.source, self.target)

    @functools.cached_property
    def children(self) -> dict[PartitionId, list[MigrationView]]:
        """Return the task's own migrations by partition."""
        found: dict[PartitionId, list[MigrationView]] = {}
        for migration in self.view.migrations:
            if migration.owner_task == self.name:
                found.setdefault(migration.partition, []).append(migration)
        return found

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
        return self.view.pending_revision == self.status.revision and (
            not self.status.target or self.view.pending == self.target
        )

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
        return len(self.source) == len(self.target) == len(self.view.routes)

    @property
    def already_new(self) -> bool:
        """Return whether the rebalance is done, which no cancel can change any more (ZR-20)."""
        return (
            not self.moves_nothing
            and bool(self.status.target)
            and not self.holds_pending
            and self.view.stable == self.target
        )

    @property
    def paused(self) -> bool:
        """Return whether nothing new may be started (B-01)."""
        return self.view.paused or self.spec.suspend

    @property
    def late(self) -> bool:
        """Return whether the state's deadline has passed; a paused task has all the time."""
        return not self.paused and is_late(self.status, self.now)

    def begin(self) -> None:
        """Enter the first state, on the first visit."""
        if not self.state:
            self._enter(TaskState.PLANNED, "")

    def go(self, event: str, *, message: str = "") -> bool:
        """Follow an edge."""
        self._enter(TABLE.follow(self.state, event), message)
        self.path.append(self.state)
        return True

    def _enter(self, state: str, message: str) -> None:
        self.status = enter(self.status, TABLE, state, self.now, message=message)
        self.waiting = ""
        self.standing = None

    def give_up(self, event: str, reason: Reason, message: str) -> bool:
        """Follow an edge to an end or a cancel, keeping why."""
        self.status = with_error(self.status, reason, message)
        return self.go(event, message=message)

    def update(self, **changes: object) -> None:
        """Change fields of the status."""
        self.status = self.status.model_copy(update=changes)

    def act(self, *actions: Action) -> None:
        """Ask for actions."""
        self.actions.extend(actions)

    def wait(
        self,
        why: str,
        *,
        reason: Reason = Reason.WAITING,
        stalled: bool = False,
        seconds: float = WAKE_SECONDS,
    ) -> bool:
        """Stay in the state; `why` is read in the status (B-14). Stalled: a person must act."""
        self.waiting = why
        self.standing = Standing(succeeded=None, reason=reason, message=why, stalled=stalled)
        self.wake_seconds = seconds
        return False

    def wait_paused(self) -> bool:
        """Stay, because a person wants it so."""
        where = "spec.suspend" if self.spec.suspend else "the zone's spec.rebalance.paused"
        why = f"Paused: {where}"
        if self.waiting:
            why = f"{why}; {self.waiting}"
        return self.wait(why, reason=Reason.PAUSED)

    def decision(self, generation: int) -> Decision[RebalanceTaskStatus]:
        """Return what the pass has come to."""
        terminal = TABLE.state(self.state).terminal
        self._settle_progress()
        self._settle_waiting(terminal=terminal)
        status = with_conditions(
            self.status,
            self._standing(),
            generation=generation,
            now=self.now,
        )
        return Decision(
            status=status,
            actions=tuple(self.actions),
            wake_seconds=None if terminal else self.wake_seconds,
            path=tuple(self.path),
        )

    def _settle_progress(self) -> None:
        if "survey" not in self.__dict__:
            return
        old = self.status.progress
        new = progress_of(self.survey, old, self.now)
        if self.status != self.before or _step_of(old) != _step_of(new):
            self.update(progress=new)

    def _settle_waiting(self, *, terminal: bool) -> None:
        """Write why it waits when another kind of reason leads, not at every count that changes."""
        waiting = "" if terminal else self.waiting
        old = self.status.waiting_for
        changed = old.partition(":")[0] != waiting.partition(":")[0]
        lasts = (self.now - entered_time(self.status, self.now)).total_seconds() >= QUIET_SECONDS
        person = self.standing is not None and self.standing.reason is not Reason.WAITING
        if self.status != self.before or (changed and (lasts or person or not waiting)):
            self.update(waiting_for=waiting[:4096])

    def _standing(self) -> Standing:
        status = self.status
        error = status.last_error
        message = status.history[-1].message
        if status.state == TaskState.SUCCEEDED:
            return Standing(succeeded=True, reason=Reason.SUCCEEDED, message=message)
        if status.state == TaskState.CANCELLED:
            asked = error is not None and error.reason == Reason.CANCELLED
            reason = Reason.CANCELLED
            return Standing(succeeded=False, reason=reason, message=message, stalled=not asked)
        if status.state == TaskState.FAILED:
            reason = Reason(error.reason) if error is not None else Reason.FAILED
            return Standing(succeeded=False, reason=reason, message=message, stalled=True)
        if not status.waiting_for or self.standing is None:
            text = f"in {status.state}"
            return Standing(succeeded=None, reason=Reason.RUNNING, message=text)
        return dataclasses.replace(self.standing, message=status.waiting_for)


def progress_of(found: Survey, old: TaskProgress, now: datetime) -> TaskProgress:
    """Return how far the task is; the rate is the mean since the first bytes arrived (B-10)."""
    started = old.copy_started_time
    if started is None and found.bytes_done:
        started = now.replace(microsecond=0)
    rate = old.bytes_per_second
    if started is not None and started < now and found.bytes_done != old.bytes_done:
        rate = int(found.bytes_done / (now - started).total_seconds())
    left = max(0, found.bytes_total - found.bytes_done)
    return TaskProgress(
        moves_total=found.copies_total,
        moves_done=found.copies_done,
        leader_moves_total=found.leaders_total,
        leader_moves_done=found.leaders_done,
        bytes_total=found.bytes_total,
        bytes_done=found.bytes_done,
        copy_started_time=started,
        bytes_per_second=rate,
        seconds_left=left // rate if rate else None,
    )


def _step_of(progress: TaskProgress) -> tuple[int, ...]:
    pairs = (
        (progress.moves_done, progress.moves_total),
        (progress.leader_moves_done, progress.leader_moves_total),
        (progress.bytes_done, progress.bytes_total),
    )
    return tuple(done * PROGRESS_STEPS // total if total else -1 for done, total in pairs)
