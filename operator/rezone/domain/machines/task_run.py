"""One pass over a task's machine while it is being decided: what tasks of every table share."""

import dataclasses
from datetime import datetime

from rezone.domain.machines.machine import Table
from rezone.domain.machines.statuses import (
    QUIET_SECONDS,
    Decision,
    Standing,
    enter,
    entered_time,
    is_late,
    with_conditions,
    with_error,
)
from rezone.domain.model.world import Action
from rezone.resources.conditions import ConditionType, Reason
from rezone.resources.machine_status import WaitingReason
from rezone.resources.task import RebalanceTaskSpec, RebalanceTaskStatus, TaskState

WAKE_SECONDS = 2.0
WAKE_SOON_SECONDS = 0.2


def paused_where(*, rebalance: bool, zone: bool) -> str:
    """Return which field of the zone pauses a task, "" when none does."""
    if rebalance:
        return "spec.rebalance.paused"
    return "spec.paused" if zone else ""


class Run:
    """The pass: its inputs, and what has been decided so far. Every state it enters persists.

    `paused_by`: why nothing new may be started in the zone, "" when it may.
    """

    def __init__(
        self,
        table: Table,
        spec: RebalanceTaskSpec,
        status: RebalanceTaskStatus,
        now: datetime,
        *,
        paused_by: str,
    ) -> None:
        self._table = table
        self._paused_by = paused_by
        self.spec = spec
        self.now = now
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

    @property
    def paused(self) -> bool:
        """Return whether nothing new may be started (B-01)."""
        return bool(self._paused_by) or self.spec.suspend

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
        self._enter(self._table.follow(self.state, event), message)
        self.path.append(self.state)
        return True

    def _enter(self, state: str, message: str) -> None:
        self.status = enter(self.status, self._table, state, self.now, message=message)
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
        where = "spec.suspend" if self.spec.suspend else f"the zone's {self._paused_by}"
        why = f"Paused: {where}"
        if self.waiting:
            why = f"{why}; {self.waiting}"
        return self.wait(why, reason=Reason.PAUSED)

    def await_approval(self, *, manual: bool) -> bool:
        """Go on with the plan in the status; if `manual` at a person's word on just that (B-01)."""
        plan, word = self.status.plan, self.spec.approved_plan
        if plan is None or not manual or word == plan.hash:
            return self.go("approved")
        if word:
            why = f"PlanStale: plan {word} is approved, but the plan is {plan.hash}"
            return self.wait(why, reason=Reason.PLAN_STALE, stalled=True)
        why = f"AwaitingApproval: set spec.approvedPlan to {plan.hash}"
        return self.wait(why, reason=Reason.AWAITING_APPROVAL, stalled=True)

    def decision(self, generation: int) -> Decision[RebalanceTaskStatus]:
        """Return what the pass has come to."""
        terminal = self._table.state(self.state).terminal
        self.settle_progress()
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

    def settle_progress(self) -> None:
        """Write how far the task is, where its table has more than one step to count."""

    def _settle_waiting(self, *, terminal: bool) -> None:
        """Write why it waits when another kind of reason leads, not at every count that changes."""
        waiting = "" if terminal else self.waiting
        old = self.status.waiting_for
        changed = old.partition(":")[0] != waiting.partition(":")[0]
        lasts = (self.now - entered_time(self.status, self.now)).total_seconds() >= QUIET_SECONDS
        person = self.standing is not None and self.standing.reason is not Reason.WAITING
        mended = any(c.type is ConditionType.STALLED for c in self.before.conditions) and not person
        if self.status != self.before or (changed and (lasts or person or mended or not waiting)):
            self.update(waiting_for=waiting[:4096], waiting_reason=_reason_of(waiting))

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
            goes_on = reason is Reason.TARGET_REPLACED
            return Standing(succeeded=False, reason=reason, message=message, stalled=not goes_on)
        if not status.waiting_for or self.standing is None:
            text = f"in {status.state}"
            return Standing(succeeded=None, reason=Reason.RUNNING, message=text)
        return dataclasses.replace(self.standing, message=status.waiting_for)


def _reason_of(waiting: str) -> WaitingReason | None:
    """Return the reason with which a text of `wait` begins, None when nothing is waited for."""
    return WaitingReason.of(waiting.partition(":")[0].partition(" ")[0])
