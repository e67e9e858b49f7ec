"""Re-sharding: from one layout of a zone to the next, while clients read and write (ZR-02, B-08).

`decide` is pure and total, as for every machine; what was reached is observed, and every action
may be lost or repeated. Partitions run side by side: heirs are opened, filled, lead and import, and
each source is cut over by itself as soon as all of its heirs are ready (`resharding_steps`).

Until the first source has sealed its log a cancel brings everything back; from then on it comes
too late, for the rows of that range are the heirs' (ZR-20).
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from types import MappingProxyType

from rezone.domain import assignments, route_seals
from rezone.domain.changes import change_of
from rezone.domain.machine import DEADLINE
from rezone.domain.rebalance_run import NoPlan, Planner
from rezone.domain.resharding_run import ReshardingRun
from rezone.domain.resharding_steps import Heirs, advance
from rezone.domain.resharding_table import GRACE_SECONDS
from rezone.domain.resharding_view import (
    CompleteResharding,
    DropHeir,
    OpenSeed,
    RemoveOld,
    ReshardingView,
    Seed,
)
from rezone.domain.statuses import Decision, entered_time
from rezone.domain.task_run import WAKE_SOON_SECONDS
from rezone.domain.world import ChangeRoutes, ClearPending, WriteCancel
from rezone.resources.conditions import Reason
from rezone.resources.task import TERMINAL_TASK_STATES, RebalanceTaskSpec, RebalanceTaskStatus
from rezone.resources.task import TaskState as S

STEPS_MAX = 12


def decide(
    spec: RebalanceTaskSpec,
    status: RebalanceTaskStatus | None,
    view: ReshardingView,
    now: datetime,
    generation: int,
    *,
    plan: Planner,
) -> Decision[RebalanceTaskStatus]:
    """Return the next status and the actions; `plan` is called once in a task's life (B-01)."""
    status = status or RebalanceTaskStatus()
    if status.state in TERMINAL_TASK_STATES:
        return Decision(status=status)
    run = ReshardingRun(spec, status, view, now, plan=plan)
    run.begin()
    for _ in range(STEPS_MAX):
        if run.state in TERMINAL_TASK_STATES or not STEPS[run.state](run):
            return run.decision(generation)
    raise AssertionError(f"a re-sharding runs in a circle: {run.path}")


def planned(run: ReshardingRun) -> bool:
    """Make the plan once, then wait for a person's word where the zone asks for one."""
    if run.cancelled:
        return run.undo()
    if not run.status.revision:
        run.update(revision=run.spec.revision)
    if not run.view.holds_pending:
        why = "the pending assignment it was made for is gone"
        return run.give_up("stale", Reason.PLAN_STALE, why)
    if run.status.plan is None:
        made = run.plan()
        if isinstance(made, NoPlan):
            return run.give_up("no plan", made.reason, made.message)
        run.update(target=assignments.compact(made.target), plan=made.summary)
    return run.await_approval(manual=run.view.manual_approval)


def approved(run: ReshardingRun) -> bool:
    """Begin, unless nothing may be begun."""
    if run.cancelled:
        return run.undo()
    return run.wait_paused() if run.paused else run.go("goes on")


def awaiting_replicas(run: ReshardingRun) -> bool:
    """Open the first replica of each heir."""
    if run.cancelled:
        return run.undo()
    unopened = [
        heir for heir in run.view.heirs.values() if heir.record is None and heir.seed is Seed.NONE
    ]
    if not unopened:
        return run.go("all open")
    if run.paused:
        return run.wait_paused()
    if run.late:
        why = f"{len(unopened)} new partitions did not open, {unopened[0].partition} is the first"
        return run.give_up(DEADLINE, Reason.FAILED, why)
    run.act(*(OpenSeed(partition=h.partition, node=h.nodes[0]) for h in unopened if h.nodes))
    return run.wait(f"Opening: {len(unopened)} new partitions")


def transferring(run: ReshardingRun) -> bool:
    """Fill heirs; those that are ready take over already."""
    if run.cancelled:
        return run.undo()
    heirs = advance(run)
    return _wait(run, heirs) if heirs.unfilled else run.go("all filled")


def switching(run: ReshardingRun) -> bool:
    """Cut over the rest; an heir whose seed is gone is filled anew."""
    if run.cancelled:
        return run.undo()
    heirs = advance(run)
    if heirs.unfilled:
        return run.go("copy lost", message=heirs.waiting)
    return _wait(run, heirs) if heirs.waiting else run.go("all cut over")


def _wait(run: ReshardingRun, heirs: Heirs) -> bool:
    why = heirs.waiting
    if run.spec.cancel:
        why = f"{why}; the cancel came too late: {len(run.view.cut_over)} have cut over"
    if run.paused:
        run.waiting = why
        return run.wait_paused()
    return run.wait(why, reason=Reason.FAILED if heirs.stuck else Reason.WAITING)


def finalizing(run: ReshardingRun) -> bool:
    """Write the new layout's assignment as the stable one (ZR-10)."""
    if run.view.done:
        return run.go("stable is written", message="the new layout is stable")
    if run.spec.suspend:
        return run.wait_paused()
    run.act(CompleteResharding(revision=run.status.revision))
    return run.wait("Writing: the stable assignment", seconds=WAKE_SOON_SECONDS)


def stopping(run: ReshardingRun) -> bool:
    """Stop the old partitions, after the time that scans have to come to their end."""
    left = run.view.old_left
    if not left:
        return run.go("all stopped", message=f"{len(run.view.heirs)} partitions serve all rows")
    if run.spec.suspend:
        return run.wait_paused()
    rest = GRACE_SECONDS - (run.now - entered_time(run.status, run.now)).total_seconds()
    if rest > 0:
        return run.wait(f"Stopping: {len(left)} old partitions, after a while", seconds=rest)
    if run.late:
        return run.go(DEADLINE, message=f"done, except for stopping {len(left)} old partitions")
    run.act(RemoveOld(partitions=left))
    return run.wait(f"Stopping: {len(left)} old partitions")


def cancelling(run: ReshardingRun) -> bool:
    """Make sure that nothing has cut over nor will, then remove the heirs, the keys last."""
    view = run.view
    if view.cut_over:
        why = f"the cancel came too late: {len(view.cut_over)} old partitions have cut over"
        return run.go("already new", message=why)
    if view.holds_pending and not view.cancel_written:
        run.act(WriteCancel(revision=run.status.revision, old=(), new=()))
        return run.wait("Writing: the cancel intent", seconds=WAKE_SOON_SECONDS)
    if why := _unsealed(run):
        return run.wait(why)
    left = [h for h in view.heirs.values() if h.record is not None or h.seed is not Seed.NONE]
    if left:
        run.act(*(DropHeir(partition=heir.partition) for heir in left))
        return run.wait(f"Stopping: {len(left)} new partitions")
    if view.holds_pending:
        run.act(ClearPending(revision=run.status.revision))
        return run.wait("Writing: the zone's keys are being cleared", seconds=WAKE_SOON_SECONDS)
    error = run.status.last_error
    return run.go("all is as before", message=error.message if error else "cancelled")


def _unsealed(run: ReshardingRun) -> str:
    """Revoke what may still seal; return what keeps it from being sure, "" when all is.

    Every old leader is asked: an authorization may have been revoked a moment ago, and its seal
    been committed a moment before that.
    """
    sources = run.view.sources.values()
    epoch = run.view.coordinator_epoch
    found = [change_of(s.partition, s.record, epoch, route_seals.revoke_seal) for s in sources]
    changes = tuple(change for change in found if change is not None)
    if changes:
        run.act(ChangeRoutes(changes=changes))
        return f"Switching: {len(changes)} seals are being revoked"
    silent = [source.partition for source in sources if source.sealed is None]
    if silent and any(heir.record is not None for heir in run.view.heirs.values()):
        return f"Unreachable: the leaders of {len(silent)} old partitions, {silent[0]} first"
    return ""


Step = Callable[[ReshardingRun], bool]

STEPS: Mapping[str, Step] = MappingProxyType(
    {
        S.PLANNED: planned,
        S.APPROVED: approved,
        S.AWAITING_REPLICAS: awaiting_replicas,
        S.TRANSFERRING: transferring,
        S.SWITCHING: switching,
        S.FINALIZING: finalizing,
        S.STOPPING_REDUNDANT: stopping,
        S.CANCELLING: cancelling,
    },
)
"""What each state that is no end does: True when it moved along an edge, False when it waits."""
