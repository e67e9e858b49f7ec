"""The end of a rebalance: one atomic write (ZR-10), then what is redundant stops (ZR-11)."""

from collections.abc import Iterator

from rezone.domain import routes
from rezone.domain.changes import change_of, stop_of
from rezone.domain.machine import DEADLINE
from rezone.domain.readiness import leader_knows
from rezone.domain.rebalance_run import TaskRun
from rezone.domain.rebalance_survey import Reasons, Wait
from rezone.domain.rebalance_switch import move_leader
from rezone.domain.slots import Slots
from rezone.domain.statuses import is_late
from rezone.domain.task_run import WAKE_SOON_SECONDS
from rezone.domain.world import (
    ChangeRoutes,
    RouteChange,
    Topology,
    WriteStable,
)
from rezone.resources.conditions import Reason
from rezone.wire.layouts import index_of
from rezone.wire.messages import NodeId, PartitionId


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
    run.act(WriteStable(revision=run.status.revision, target=run.target))
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
    reasons = withdraw(run, keep=run.target, leave=run.source)
    why = reasons.text()
    if not why:
        message = f"{len(run.target)} partitions live where they were planned"
        return run.go("all stopped", message=message)
    if is_late(run.status, run.now) and reasons.only_stopping:
        return run.go(DEADLINE, message=f"done, except for stopping: {why}")
    return run.wait_for(reasons)


def withdraw(run: TaskRun, *, keep: Topology, leave: Topology, purpose: str = "p") -> Reasons:
    """Bring every partition to the replicas in `keep`, taking away those that only `leave` has.

    Leaders hand over first (ZR-11), then the routes shrink, then replicas stop. What a later
    pending assignment wants stays: its task has perhaps begun. Returns what is not there yet.
    """
    reasons = Reasons()
    slots = Slots(run.view)
    later = None if run.holds_pending or run.view.resharding else run.view.pending
    changes: list[RouteChange] = []
    for partition, kept, left in zip(run.view.layout.ids, keep, leave, strict=True):
        if kept == left:
            continue
        wanted = (*kept, *later[index_of(partition)]) if later is not None else kept
        extra = tuple(n for n in left if n not in wanted)
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
        # Nobody is left to go back to: what there is stays, and the zone is planned anew.
        return None
    if record.leader in extra:
        heir = next((n for n in able if n in record.isr and view.nodes[n].reachable), None)
        if heir is None:
            reasons.add(Wait.CATCHING_UP, partition, f"no node of {list(kept)} is in sync")
        else:
            move_leader(run, partition, heir, slots, reasons, purpose=purpose)
        return None
    behind = [n for n in able if n not in record.isr]
    if behind:
        # Taking copies away now would leave fewer in sync than there were.
        reasons.add(Wait.CATCHING_UP, partition, f"node {behind[0]} is not in sync")
        return None
    reasons.add(Wait.STOPPING, partition, f"nodes {list(extra)} leave the route")
    return change_of(
        partition,
        record,
        view.coordinator_epoch,
        lambda r: routes.remove_replicas(r, extra),
    )


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
