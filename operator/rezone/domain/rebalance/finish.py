"""The end of a rebalance: one atomic write (ZR-10), then what is redundant stops (ZR-11)."""

from collections.abc import Iterator

from rezone.domain.assignment.slots import Slots
from rezone.domain.machines.machine import DEADLINE
from rezone.domain.machines.migration_table import is_under_way
from rezone.domain.machines.statuses import is_late
from rezone.domain.machines.task_run import WAKE_SOON_SECONDS
from rezone.domain.model.changes import change_of, stop_of
from rezone.domain.model.world import (
    ChangeRoutes,
    MigrationView,
    RouteChange,
    WriteStable,
    ZoneView,
)
from rezone.domain.observed.readiness import leader_knows
from rezone.domain.rebalance.run import TaskRun
from rezone.domain.rebalance.survey import Reasons, Wait, may_lead
from rezone.domain.rebalance.switch import move_leader
from rezone.domain.routing import routes
from rezone.domain.routing.topology_text import Topology
from rezone.resources.conditions import Reason
from rezone.wire.layouts import index_of
from rezone.wire.messages import LeaderAndIsr, NodeId, PartitionId


def finalize(run: TaskRun) -> bool:  # noqa: PLR0911 - one return for each edge
    """Write the stable assignment, when every partition is led and in sync as planned."""
    if run.already_new or _nothing_is_pending_any_more(run):
        late = "; the cancel came too late" if run.spec.cancel else ""
        return run.go("stable is written", message=f"the new assignment is stable{late}")
    if run.spec.cancel:
        return run.give_up("cancel", Reason.CANCELLED, "cancelled by spec.cancel")
    if run.superseded:
        why = "the zone's pending assignment is no longer this task's"
        return run.give_up("superseded", Reason.CONFLICT, why)
    if run.survey.done < run.survey.partitions:
        return run.go("not in sync any more", message=run.survey.reasons.text())
    if run.moves_nothing and not run.holds_pending:
        return run.go("stable is written", message="the assignment was stable already")
    if run.spec.suspend:
        return run.wait_paused()
    run.act(WriteStable(revision=run.status.revision, target=run.goal))
    return run.wait("Writing: the stable assignment", seconds=WAKE_SOON_SECONDS)


def _nothing_is_pending_any_more(run: TaskRun) -> bool:
    """Return whether a pending assignment that equals the stable one was completed.

    Such a one comes to be when what was planned meanwhile becomes pending after a cancel.
    """
    return run.by_operator and run.moves_nothing and not run.holds_pending


def stop_redundant(run: TaskRun) -> bool:
    """Take what is no longer assigned out of the routes and stop it; then the task is done."""
    if run.spec.suspend:
        return run.wait_paused()
    leave = tuple((*old, *new) for old, new in zip(run.source, run.target, strict=True))
    reasons = withdraw(run, keep=run.goal, leave=leave)
    why = reasons.text()
    late = is_late(run.status, run.now) and reasons.left_to_zone
    if why and not late:
        return run.wait_for(reasons)
    if run.status.outcome:
        return run.go("targets failed", message=_in_part(run, why))
    if why:
        return run.go(DEADLINE, message=f"done, except for stopping: {why}")
    message = f"{len(run.target)} partitions live where they were planned"
    return run.go("all stopped", message=message)


def _in_part(run: TaskRun, left: str) -> str:
    """Return what a task without some of its targets has come to (B-15)."""
    rows = tuple(zip(run.source, run.target, run.goal, strict=True))
    kept = sum(old == planned for old, planned, _ in rows)
    stayed = sum(new != planned for _, planned, new in rows)
    moved = len(rows) - kept - stayed
    why = run.status.last_error.message if run.status.last_error is not None else ""
    left = f"; left behind: {left}" if left else ""
    return f"{why}; partitions: {kept} kept, {stayed} rolled back, {moved} completed{left}"


def relieve(run: TaskRun) -> None:
    """Stop what partitions that have switched no longer need, while others still move (ZR-11).

    A data node that is full gets room by it for what comes to it. What the planned assignment wants
    stays. A route without the old replica also tells a cancel that its partition is completed.
    """
    found, view = run.survey, run.view
    # A person's that has not begun waits for this very task.
    busy = {m.partition for m in view.migrations if is_under_way(m) or _is_due(m)}
    slots = Slots(view)
    changes: list[RouteChange] = []
    for partition in found.redundant:
        if partition in busy:
            continue
        index = index_of(partition)
        kept, later = run.wanted(partition), _planned(run, index)
        extra = tuple(n for n in run.source[index] if n not in kept and n not in later)
        if not extra:
            continue
        move = (kept, extra)
        change = _withdrawal(run, partition, move, slots=slots, reasons=found.reasons, purpose="p")
        if change is not None:
            changes.append(change)
    if changes:
        run.act(ChangeRoutes(changes=tuple(changes)))
    for partition, node in found.leftover:
        if node in _planned(run, index_of(partition)):
            continue
        found.reasons.add(Wait.STOPPING, partition, f"node {node}")
        if leader_knows(view, partition):
            run.act(stop_of(partition, node, view.routes[partition]))


def _is_due(migration: MigrationView) -> bool:
    return bool(migration.owner_task) and not migration.terminal


def _planned(run: TaskRun, index: int) -> tuple[NodeId, ...]:
    planned = run.view.planned
    return planned[index] if planned is not None and index < len(planned) else ()


def withdraw(run: TaskRun, *, keep: Topology, leave: Topology, purpose: str = "p") -> Reasons:
    """Bring every partition to the replicas in `keep`, taking away those that only `leave` has.

    Leaders hand over first (ZR-11), then the routes shrink, then replicas stop. What a later
    pending assignment wants stays: its task has perhaps begun; and so does the candidate of a
    person's migration that has begun, which would add it again. Returns what is not there yet.
    """
    reasons = Reasons()
    moving = {(m.partition, m.candidate) for m in run.view.migrations if is_under_way(m)}
    slots = Slots(run.view)
    later = None if run.holds_pending or run.view.resharding else run.view.pending
    changes: list[RouteChange] = []
    for partition, kept, left in zip(run.view.layout.ids, keep, leave, strict=True):
        if kept == left:
            continue
        wanted = (*kept, *later[index_of(partition)]) if later is not None else kept
        extra = tuple(n for n in left if n not in wanted and (partition, n) not in moving)
        if not extra:
            continue
        change = _withdrawal(
            run,
            partition,
            (kept, extra),
            slots=slots,
            reasons=reasons,
            purpose=purpose,
        )
        if change is not None:
            changes.append(change)
    if changes:
        run.act(ChangeRoutes(changes=tuple(changes)))
    for partition, node in _stray(run):
        reasons.add(Wait.STOPPING, partition, f"node {node}")
        if leader_knows(run.view, partition):
            run.act(stop_of(partition, node, run.view.routes[partition]))
    return reasons


def _withdrawal(
    run: TaskRun,
    partition: PartitionId,
    move: tuple[tuple[NodeId, ...], tuple[NodeId, ...]],
    *,
    slots: Slots,
    reasons: Reasons,
    purpose: str,
) -> RouteChange | None:
    kept, extra = move
    record, view = run.view.routes[partition], run.view
    if not set(extra) & set(record.replicas):
        _await_unreachable(run, partition, extra, reasons)
        return None
    able = [n for n in kept if n in view.nodes and not view.nodes[n].lost]
    if not able:
        # Nobody is left to go back to: what there is stays, and the zone is planned again.
        return None
    if len(able) < len(kept) and record.leader in able:
        # The lost ones are short already: the zone releases these when others are in sync.
        return None
    if record.leader in extra:
        candidates = [n for n in able if n in record.isr and view.nodes[n].reachable]
        candidate = next((n for n in candidates if may_lead(view.nodes[n])), None)
        if candidate is None and candidates:
            reasons.add(Wait.MAINTENANCE, partition, f"node {candidates[0]} shall lead")
        elif candidate is None:
            reasons.add(Wait.CATCHING_UP, partition, f"no node of {list(kept)} is in sync")
        else:
            move_leader(run, partition, candidate, slots, reasons, purpose=purpose)
        return None
    lacking = _lacking(view, partition, record, able)
    if lacking is not None:
        reasons.add(lacking[0], partition, lacking[1])
        return None
    reasons.add(Wait.STOPPING, partition, f"nodes {list(extra)} leave the route")
    return change_of(
        partition,
        record,
        view.coordinator_epoch,
        lambda r: routes.remove_replicas(r, extra),
    )


def _lacking(
    view: ZoneView, partition: PartitionId, record: LeaderAndIsr, able: list[NodeId]
) -> tuple[Wait, str] | None:
    """Return what those that stay lack, so that the others have to stay as well."""
    for node in able:
        if node not in record.isr:
            # Taking copies away now would leave fewer in sync than there were.
            return Wait.CATCHING_UP, f"node {node} is not in sync"
    reports = ((node, view.report(partition, node)) for node in able)
    pulling = [node for node, seen in reports if seen is not None and seen.pulls_log]
    if pulling:
        # Only the old ones have what named feeds still need.
        return Wait.PULLING_LOG, f"node {pulling[0]} has not all of it"
    return None


def _await_unreachable(
    run: TaskRun,
    partition: PartitionId,
    extra: tuple[NodeId, ...],
    reasons: Reasons,
) -> None:
    for node in extra:
        seen = run.view.nodes.get(node)
        if seen is not None and not seen.reachable and not seen.lost:
            reasons.add(Wait.UNREACHABLE, partition, f"node {node} cannot stop its replica")


def _stray(run: TaskRun) -> Iterator[tuple[PartitionId, NodeId]]:
    """Yield the replicas that reachable nodes report although no route has them."""
    known = run.view.routes
    for node, seen in run.view.nodes.items():
        if not seen.reachable:
            continue
        for partition in seen.replicas:
            if partition in known and node not in known[partition].replicas:
                yield partition, node
