"""Cancelling a rebalance: every partition comes to a defined end, and the zone's keys with it.

What has switched and given its old replicas up is completed and stays; all else goes back.

The intent is written first, guarded by the revision to be cancelled (ZR-19), so that it cannot
hit a later rebalance. Of the seed's three answers (ZR-20), "already new" sends the task on as if
it had not been cancelled, "already old" ends it at once, and "ongoing" is cleaned up.
"""

import collections

from rezone.domain.machines.machine import DEADLINE
from rezone.domain.machines.statuses import is_late
from rezone.domain.machines.task_run import WAKE_SOON_SECONDS
from rezone.domain.model.world import (
    CancelMigration,
    ClearPending,
    DeleteSparkApplication,
    MigrationView,
    WriteCancel,
)
from rezone.domain.observed.spark_states import ENDED
from rezone.domain.rebalance.finish import withdraw
from rezone.domain.rebalance.handover import under_way
from rezone.domain.rebalance.run import TaskRun, child_name
from rezone.domain.rebalance.survey import has_switched
from rezone.domain.routing.topology_text import Topology
from rezone.resources.task import TaskState
from rezone.wire.layouts import index_of

BACK = "back-"
"""How the names of the migrations back begin, behind the task's; a cancel does not cancel them."""


def cancel(run: TaskRun) -> bool:
    """Undo what was begun; the zone's keys are cleared last, so that a crash finds the rest."""
    if run.already_new and run.goal != run.source:
        return run.go("already new", message="the cancel came too late: the rebalance was done")
    revision = run.status.revision
    if run.holds_pending and run.view.cancel_revision != revision:
        old = run.source if run.status.source else (run.view.stable or ())
        new = run.target if run.status.target else (run.view.pending or ())
        run.act(WriteCancel(revision=revision, old=old, new=new))
        return run.wait("Writing: the cancel intent", seconds=WAKE_SOON_SECONDS)
    left: str | None = ""
    if has_begun(run) and run.fits_routes:
        left = _clean(run)
        if left is None:
            return False
    if run.holds_pending:
        ended = ended_topology(run) if has_begun(run) and run.fits_routes else None
        run.act(ClearPending(revision=revision, ended=ended))
        return run.wait("Writing: the zone's keys are being cleared", seconds=WAKE_SOON_SECONDS)
    run.update(handovers=())
    why = run.status.last_error.message if run.status.last_error else "cancelled"
    why = f"{why}; {ends(run)}"
    if left:
        return run.go(DEADLINE, message=f"{why}; left behind: {left}")
    return run.go("all is as before", message=why)


def has_begun(run: TaskRun) -> bool:
    """Return whether anything may have been changed on data nodes or in routes."""
    begun = any(h.state == TaskState.AWAITING_REPLICAS for h in run.status.history)
    return begun or run.status.attempt > 0


def _clean(run: TaskRun) -> str | None:
    """Clean up: return what could not be done in time, None while it is waited for."""
    running = [
        child
        for children in run.children.values()
        for child in children
        if not child.terminal and not _is_back(run, child)
    ]
    run.act(*(CancelMigration(name=c.name) for c in running))
    spark = run.view.spark
    if spark is not None and spark.state and spark.state not in ENDED:
        run.act(DeleteSparkApplication(name=spark.name))
        run.wait(f"Stopping: SparkApplication {spark.name} is being deleted")
        return None
    if running:
        run.wait(f"Switching: {len(running)} migrations end, {running[0].name} first")
        return None
    handed = under_way(run)
    if handed:
        first = f"partition {index_of(handed[0])}'s"
        run.wait(f"Switching: {len(handed)} leaders are on their way, {first}")
        return None
    reasons = withdraw(run, keep=ended_topology(run), leave=run.target, purpose=BACK)
    late = is_late(run.status, run.now) and reasons.only_stopping
    if late or not reasons.text():
        return reasons.text()
    run.wait_for(reasons)
    return None


def ended_topology(run: TaskRun) -> Topology:
    """Return where the partitions live when the cancel is over: where they were, or as planned.

    As planned if the route has lost an old replica: that was stopped because its partition had
    switched, and there is no way back without a copy. In a cancel no further one is stopped.
    """
    rows = zip(run.view.layout.ids, run.source, run.target, strict=True)
    return tuple(
        new
        if (there := set(run.view.routes[partition].replicas)) & (set(new) - set(old))
        and not set(old) <= there
        else old
        for partition, old, new in rows
    )


def _is_back(run: TaskRun, child: MigrationView) -> bool:
    """Return whether a child carries a leader back; only those start while a task cancels."""
    return child.name.startswith(child_name(run.name, BACK))


def ends(run: TaskRun) -> str:
    """Return the list of B-15: how many partitions were kept, rolled back, completed."""
    if not run.status.source or not run.status.target:
        return "nothing was moved"
    counts: collections.Counter[str] = collections.Counter()
    begun = has_begun(run)
    records = run.view.routes.of(run.view.generation)
    for record, old, new in zip(records, run.source, run.target, strict=False):
        if old == new or not begun:
            counts["kept"] += 1
        elif has_switched(record, old, new):
            counts["completed"] += 1
        elif set(old) == set(new):
            counts["kept"] += 1
        else:
            counts["rolled back"] += 1
    kinds = ("kept", "rolled back", "completed")
    return "partitions: " + ", ".join(f"{counts[k]} {k}" for k in kinds)
