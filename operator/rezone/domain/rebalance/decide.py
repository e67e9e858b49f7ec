"""RebalanceTask: partitions move until a zone lives where its assignment says.

`decide` is pure and total: a task's spec and status and one observation of its zone go in, the
next status and the actions come out. What has been done is read from the observation; a pass may
be repeated, or its actions lost, at any point. This module has the plan, its approval, and the
states in which partitions move; `rebalance_finish` and `rebalance_cancel` have the two ends.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from types import MappingProxyType

from rezone.domain.assignment import assignments
from rezone.domain.machines.statuses import Decision
from rezone.domain.machines.task_run import WAKE_SOON_SECONDS
from rezone.domain.model.world import ChangeRoutes, SparkView, WritePending, ZoneView
from rezone.domain.rebalance.cancel import cancel
from rezone.domain.rebalance.finish import finalize, relieve, stop_redundant
from rezone.domain.rebalance.run import NoPlan, Planner, TaskRun
from rezone.domain.rebalance.switch import drop_differing, switch, verify
from rezone.domain.rebalance.targets import await_next_plan
from rezone.domain.rebalance.transfer import spark_unavailable, taken_name, transfer
from rezone.resources.conditions import Reason
from rezone.resources.task import (
    TERMINAL_TASK_STATES,
    RebalanceTaskSpec,
    RebalanceTaskStatus,
)
from rezone.resources.task import TaskState as S


def decide(
    spec: RebalanceTaskSpec,
    status: RebalanceTaskStatus | None,
    view: ZoneView,
    now: datetime,
    generation: int,
    *,
    name: str,
    plan: Planner,
) -> Decision[RebalanceTaskStatus]:
    """Return the next status and the actions of the task `name`.

    `plan` is called at most once in a task's life, before its plan is persisted: what is executed
    is what was shown, to the byte (B-01). For a task that the operator made for the pending
    assignment it is asked for the summary alone.
    """
    status = status or RebalanceTaskStatus()
    if status.state in TERMINAL_TASK_STATES:
        return Decision(status=status)
    return TaskRun(spec, status, view, now, name=name, plan=plan).walk(STEPS, generation)


def _cancelled(run: TaskRun) -> bool:
    return run.give_up("cancel", Reason.CANCELLED, "cancelled by spec.cancel")


def planned(run: TaskRun) -> bool:  # noqa: PLR0911 - one return for each edge
    """Make the plan once, then wait for a person's word where the zone asks for one."""
    if run.by_operator and not run.status.revision:
        run.update(revision=run.spec.revision)
    if run.spec.cancel:
        return _cancelled(run)
    if run.view.stable is None or not run.view.routes:
        return run.wait("Conflict: the zone has no stable assignment yet")
    if run.status.plan is None:
        if run.by_operator and not run.holds_pending:
            return _stale(run, "the pending assignment it was made for is gone")
        if not run.by_operator and run.view.pending is not None:
            return run.wait("Conflict: another rebalance is under way", reason=Reason.CONFLICT)
        made = run.plan()
        if isinstance(made, NoPlan):
            return run.give_up("no plan", made.reason, made.message)
        target = run.view.pending if run.by_operator else made.target
        run.update(
            source=assignments.compact(run.view.stable),
            target=assignments.compact(target or made.target),
            plan=made.summary,
        )
    if not run.fits_routes:
        why = "the assignment does not have the partitions that the zone has now"
        return _stale(run, why)
    if _is_stale(run):
        return _stale(run, "the zone has changed since the plan was made")
    return run.await_approval(manual=run.view.manual_approval)


def _is_stale(run: TaskRun) -> bool:
    if run.view.stable != run.source:
        return True
    return run.by_operator and not run.holds_pending


def _stale(run: TaskRun, why: str) -> bool:
    """End a task whose plan no longer fits: it is refused, never silently made again (B-01)."""
    if run.holds_pending:
        # The zone's keys must not be left waiting for a task that has ended.
        return run.give_up("superseded", Reason.PLAN_STALE, why)
    if not run.by_operator:
        run.update(revision=0)
    return run.give_up("stale", Reason.PLAN_STALE, why)


def approved(run: TaskRun) -> bool:  # noqa: PLR0911 - one return for each edge
    """Wait until the zone's pending assignment is this task's, asking for it if need be (ZR-04)."""
    if run.spec.cancel:
        return _cancelled(run)
    if run.view.stable != run.source:
        return _stale(run, "the zone has changed since the plan was made")
    if run.paused:
        return run.wait_paused()
    if not run.superseded:
        return run.go("pending is ours")
    if run.by_operator:
        return _stale(run, "the pending assignment it was made for is gone")
    if run.view.pending is not None:
        if run.view.pending_revision == run.status.revision:
            # Another trigger got the same revision first: this task must not pass for its owner.
            run.update(revision=0)
        return run.wait("Conflict: another rebalance is under way", reason=Reason.CONFLICT)
    if run.status.revision <= run.view.change:
        run.update(revision=run.view.change + 1)
    run.act(WritePending(target=run.target, revision=run.status.revision))
    return run.wait("Writing: the pending assignment", seconds=WAKE_SOON_SECONDS)


def _interrupted(run: TaskRun) -> bool:
    """Go to the cancel when a person or the zone asks for it."""
    if run.spec.cancel:
        return _cancelled(run)
    if run.superseded:
        why = "the zone's pending assignment is no longer this task's"
        return run.give_up("superseded", Reason.CONFLICT, why)
    return False


def awaiting_replicas(run: TaskRun) -> bool:
    """Add the new replicas to the routes, and wait until all of them are open (ZR-06)."""
    if _interrupted(run):
        return True
    if await_next_plan(run):
        return False
    return _await_replicas(run)


def _await_replicas(run: TaskRun) -> bool:
    found = run.survey
    if run.paused:
        return run.wait_paused()
    if run.late:
        why = f"new replicas did not open in time: {found.reasons.text()}"
        return run.give_up("deadline", Reason.FAILED, why)
    if found.changes:
        run.act(ChangeRoutes(changes=tuple(found.changes)))
    if found.unassigned:
        return run.wait(
            f"Opening: {found.unassigned} routes are being written",
            seconds=WAKE_SOON_SECONDS,
        )
    if found.unopened:
        return run.wait(found.reasons.text())
    return run.go("all open")


def transferring(run: TaskRun) -> bool:
    """Copy, and switch the partitions that are ready already."""
    if _interrupted(run):
        return True
    if await_next_plan(run):
        return False
    found = run.survey
    if not found.out_of_sync or found.done == found.partitions:
        return run.go("all copied")
    if transfer(run):
        return True
    return _advance(run)


def switching(run: TaskRun) -> bool:
    """Verify what was copied and move leaders, until every partition is as planned."""
    if _interrupted(run):
        return True
    if await_next_plan(run):
        return False
    found = run.survey
    if found.done == found.partitions:
        run.update(handovers=())
        return run.go("all switched")
    if found.needed:
        return run.go("copy lost", message=found.reasons.text())
    return _advance(run)


def _advance(run: TaskRun) -> bool:
    """Do what both states do: repair routes, verify, switch; wait for the rest (B-14)."""
    found = run.survey
    if run.paused:
        run.waiting = found.reasons.text()
        return run.wait_paused()
    if found.changes:
        run.act(ChangeRoutes(changes=tuple(found.changes)))
    drop_differing(run)
    verify(run)
    switch(run)
    relieve(run)
    taken = taken_name(run)
    if taken is not None and found.reasons.blocked is None:
        return _await_name(run, taken)
    unavailable = spark_unavailable(run)
    if unavailable and found.reasons.blocked is None:
        why = f"SparkUnavailable: {unavailable}"
        return run.wait(why, reason=Reason.SPARK_UNAVAILABLE, stalled=True)
    return run.wait_for(found.reasons)


def _await_name(run: TaskRun, taken: SparkView) -> bool:
    """Wait until another's object no longer has the SparkApplication's name; seen in each pass."""
    if taken.going:
        return run.wait(f"AwaitingDeletion: {taken.taken}")
    return run.wait(f"NameConflict: {taken.taken}", reason=Reason.NAME_CONFLICT, stalled=True)


Step = Callable[[TaskRun], bool]

STEPS: Mapping[str, Step] = MappingProxyType(
    {
        S.PLANNED: planned,
        S.APPROVED: approved,
        S.AWAITING_REPLICAS: awaiting_replicas,
        S.TRANSFERRING: transferring,
        S.SWITCHING: switching,
        S.FINALIZING: finalize,
        S.STOPPING_REDUNDANT: stop_redundant,
        S.CANCELLING: cancel,
    },
)
"""What each state that is no end does: True when it moved along an edge, False when it waits."""
