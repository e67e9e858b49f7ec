"""Re-sharding: from one layout of a zone to the next, while clients read and write (ZR-02, B-08).

`decide` is pure and total, as for every machine; what was reached is observed, and every action may
be lost or repeated. Partitions run side by side: targets are made as a new zone's partitions are,
backfill and pull by themselves, and each source is cut over by itself as soon as all of its targets
are ready (`resharding_steps`).

Until the first source has sealed its log a cancel brings everything back; from then on it comes
too late, for the rows of that range are the targets' (ZR-20).
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from types import MappingProxyType

from rezone.domain.assignment import assignments
from rezone.domain.machines.machine import DEADLINE
from rezone.domain.machines.statuses import Decision, entered_time
from rezone.domain.machines.task_run import WAKE_SOON_SECONDS
from rezone.domain.model.changes import change_of
from rezone.domain.model.resharding_view import CreateTargets, DropLayout, ReshardingView
from rezone.domain.model.world import ChangeRoutes, ClearPending, WriteCancel, WriteStable
from rezone.domain.rebalance.run import NoPlan, Planner
from rezone.domain.resharding.backfills import backfill_by_spark, end_backfill
from rezone.domain.resharding.overwrites import readable_from
from rezone.domain.resharding.run import ReshardingRun
from rezone.domain.resharding.steps import Targets, advance, differing
from rezone.domain.routing import route_seals
from rezone.resources.conditions import Reason
from rezone.resources.task import TERMINAL_TASK_STATES, RebalanceTaskSpec, RebalanceTaskStatus
from rezone.resources.task import TaskState as S
from rezone.wire.layouts import index_of


def decide(
    spec: RebalanceTaskSpec,
    status: RebalanceTaskStatus | None,
    view: ReshardingView,
    now: datetime,
    generation: int,
    *,
    name: str,
    plan: Planner,
) -> Decision[RebalanceTaskStatus]:
    """Return the next status and the actions; `plan` is called once in a task's life (B-01).

    `name` is the task's.
    """
    status = status or RebalanceTaskStatus()
    if status.state in TERMINAL_TASK_STATES:
        return Decision(status=status)
    run = ReshardingRun(spec, status, view, now, name=name, plan=plan)
    return run.walk(STEPS, generation)


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
        run.update(
            target=assignments.compact(made.target),
            plan=made.summary,
            layout_version=run.view.generation,
        )
    return run.await_approval(manual=run.view.manual_approval)


def approved(run: ReshardingRun) -> bool:
    """Begin, unless nothing may be begun."""
    if run.cancelled:
        return run.undo()
    if run.paused:
        return run.wait_paused()
    if run.view.others_left:
        return run.wait("Conflict: partitions of the re-sharding before are still there")
    return run.go("goes on")


def awaiting_replicas(run: ReshardingRun) -> bool:
    """Make the targets as a new zone's partitions are made, and wait for all of their replicas."""
    if run.cancelled:
        return run.undo()
    if run.paused:
        return run.wait_paused()
    targets = run.view.targets.values()
    waiting = [target for target in targets if not target.open or not target.in_sync]
    if not waiting:
        return run.go("all open")
    if run.late:
        why = f"{len(waiting)} new partitions did not open, {index_of(waiting[0].partition)} first"
        return run.give_up(DEADLINE, Reason.FAILED, why)
    if not run.view.created and all(target.nodes for target in targets):
        nodes = tuple(target.nodes for target in targets)
        run.act(CreateTargets(generation=run.view.generation, nodes=nodes))
    return run.wait(f"Opening: {len(waiting)} new partitions")


def transferring(run: ReshardingRun) -> bool:
    """Let targets backfill; those that are ready take over already."""
    if run.cancelled:
        return run.undo()
    if why := _differs(run):
        return run.give_up("unrecoverable", Reason.FAILED, why)
    targets = advance(run)
    backfill_by_spark(run)
    return _wait(run, targets) if targets.not_backfilled else run.go("all backfilled")


def switching(run: ReshardingRun) -> bool:
    """Cut over the rest; a target that is begun again is waited for in the state before."""
    if run.cancelled:
        return run.undo()
    if why := _differs(run):
        return run.give_up("unrecoverable", Reason.FAILED, why)
    targets = advance(run)
    if targets.not_backfilled:
        return run.go("copy lost", message=targets.waiting)
    return _wait(run, targets) if targets.waiting else run.go("all cut over")


def _differs(run: ReshardingRun) -> str:
    """Return what is wrong with a range, while the old layout can still be gone back to."""
    if run.view.cut_over:
        return ""
    ranges = (each for target in run.view.targets.values() for each in target.ranges)
    wrong = next((each.overlap for each in ranges if each.differs), None)
    return differing(wrong) if wrong is not None else ""


def _wait(run: ReshardingRun, targets: Targets) -> bool:
    why = targets.waiting
    if run.spec.cancel:
        why = f"{why}; the cancel came too late: {len(run.view.cut_over)} have cut over"
    if run.paused:
        run.waiting = why
        return run.wait_paused()
    reason = Reason.FAILED if targets.stuck else Reason.WAITING
    return run.wait(why, reason=reason, stalled=targets.stuck)


def finalizing(run: ReshardingRun) -> bool:
    """Write the new layout's assignment as the stable one (ZR-10)."""
    if run.view.done:
        return run.go("stable is written", message="the new layout is stable")
    if run.spec.suspend:
        return run.wait_paused()
    time = readable_from(run.view)
    if run.view.filled_by and not time:
        return run.wait("Unreachable: leaders of new partitions")
    target, revision = assignments.parse(run.status.target), run.status.revision
    time = time if run.view.filled_by else 0
    run.act(WriteStable(revision=revision, target=target, readable_from=time))
    return run.wait("Writing: the stable assignment", seconds=WAKE_SOON_SECONDS)


def stopping(run: ReshardingRun) -> bool:
    """Delete the old layout, after the time that scans have to come to their end."""
    old, held = run.view.old_generation, run.view.old_held
    if old is None and not held and not run.view.unreported:
        return run.go("all stopped", message=f"{len(run.view.targets)} partitions serve all rows")
    if run.spec.suspend:
        return run.wait_paused()
    rest = run.view.grace_seconds - (run.now - entered_time(run.status, run.now)).total_seconds()
    if rest > 0:
        return run.wait("Stopping: the old partitions, after a while", seconds=rest)
    if old is not None:
        run.act(DropLayout(generation=old))
        return run.wait("Writing: the old routes are being deleted", seconds=WAKE_SOON_SECONDS)
    if run.late:
        return run.go(DEADLINE, message=f"done, except for stopping {_left(run.view, held, 'old')}")
    return run.wait(f"Stopping: {_left(run.view, held, 'old')}")


def _left(view: ReshardingView, held: int, which: str) -> str:
    if not held:
        return f"what {view.unreported} data nodes have, which have not said yet"
    return f"{held} {which} partitions"


def cancelling(run: ReshardingRun) -> bool:
    """Make sure that nothing has cut over nor will, then remove the targets, the keys last."""
    view = run.view
    if view.cut_over:
        why = f"the cancel came too late: {len(view.cut_over)} old partitions have cut over"
        return run.go("already new", message=why)
    if view.holds_pending and not view.cancel_written:
        old, new = view.stable, view.pending
        run.act(WriteCancel(revision=run.status.revision, old=old, new=new))
        return run.wait("Writing: the cancel intent", seconds=WAKE_SOON_SECONDS)
    if why := _unsealed(run):
        return run.wait(why)
    if not end_backfill(run):
        return run.wait("Stopping: the SparkApplication that backfills is being deleted")
    if view.created or view.new_held or view.unreported or view.holds_pending:
        return _remove_targets(run)
    error = run.status.last_error
    return run.go("all is as before", message=error.message if error else "cancelled")


def _remove_targets(run: ReshardingRun) -> bool:
    """Delete the new table, wait for its replicas, and then clear the zone's keys."""
    view = run.view
    if view.created:
        run.act(DropLayout(generation=view.generation))
        return run.wait("Writing: the new routes are being deleted", seconds=WAKE_SOON_SECONDS)
    if view.new_held or view.unreported:
        return run.wait(f"Stopping: {_left(view, view.new_held, 'new')}")
    run.act(ClearPending(revision=run.status.revision))
    return run.wait("Writing: the zone's keys are being cleared", seconds=WAKE_SOON_SECONDS)


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
    if silent and run.view.created:
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
