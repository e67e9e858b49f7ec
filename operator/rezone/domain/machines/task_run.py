"""One pass over a task's machine while it is being decided: what tasks of every table share."""

import dataclasses
from datetime import datetime

from rezone.domain.machines.machine import Table
from rezone.domain.machines.machine_run import MachineRun
from rezone.domain.machines.statuses import Standing
from rezone.domain.machines.waits import with_waiting
from rezone.resources.conditions import ConditionType, Reason
from rezone.resources.machine_status import WaitingReason
from rezone.resources.task import RebalanceTaskSpec, RebalanceTaskStatus, TaskState

WAKE_SOON_SECONDS = 0.2


def paused_where(*, rebalance: bool, zone: bool) -> str:
    """Return which field of the zone pauses a task, "" when none does."""
    if rebalance:
        return "spec.rebalance.paused"
    return "spec.paused" if zone else ""


class Run(MachineRun[RebalanceTaskStatus]):
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
        super().__init__(table, status, now)
        self._paused_by = paused_by
        self.spec = spec

    @property
    def paused(self) -> bool:
        """Return whether nothing new may be started (B-01)."""
        return bool(self._paused_by) or self.spec.suspend

    @property
    def late(self) -> bool:
        """Return whether the state's deadline has passed; a paused task has all the time."""
        return not self.paused and super().late

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

    def _settle_waiting(self, waiting: str) -> None:
        """Write it when another kind of reason leads, not at every count that changes."""
        old = self.status.waiting_for
        changed = old.partition(":")[0] != waiting.partition(":")[0]
        person = self.standing is not None and self.standing.reason is not Reason.WAITING
        mended = any(c.type is ConditionType.STALLED for c in self.before.conditions) and not person
        worth = self.waits_long or person or mended or not waiting
        if self.status != self.before or (changed and worth):
            reason = _reason_of(waiting)
            self.status = with_waiting(self.status, waiting[:4096], reason, self.now)

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
