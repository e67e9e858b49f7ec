"""Moving leaders within a rebalance, as many at once as the limits allow.

Those that only need a takeover go in batches (`rebalance_handover`), every other one by a
RegionMigration.
"""

from collections.abc import Sequence

from rezone.domain.assignment.slots import Slots
from rezone.domain.model.changes import Step, change_of, stop_of
from rezone.domain.model.world import (
    ChangeRoutes,
    EnsureMigration,
    MigrationView,
    RouteChange,
)
from rezone.domain.observed.readiness import COMPARISONS_MAX, leader_knows, verification
from rezone.domain.rebalance.handover import Batch
from rezone.domain.rebalance.run import TaskRun, child_name
from rezone.domain.rebalance.survey import Reasons, Wait
from rezone.domain.routing import routes
from rezone.wire.layouts import index_of
from rezone.wire.messages import NodeId, PartitionId

MIGRATION_ATTEMPTS_MAX = 5
"""How many migrations of one partition may fail before a person must look. Whoever has mended
the cause deletes the failed ones, and then it is tried again."""

RETRY_SECONDS = 2.0
"""How long the first failed migration of a partition is left behind; twice that for the next. What
fails at once because a node is just away must not use all attempts up before it is back."""

COPIES_DROPPED_MAX = 3
"""How many differing copies a task makes again. They should never differ: there is a fault in a
machine or in this program, which a person has to find."""


def verify(run: TaskRun) -> None:
    """Ask for the copies that are in sync to be compared with their leaders (B-04)."""
    asked = 0
    for partition, node in run.survey.unverified:
        record = run.view.routes[partition]
        if run.view.report(partition, node) is None:
            continue
        if run.view.report(partition, record.leader) is None:
            continue
        run.act(verification(partition, record, node))
        asked += 1
        if asked >= COMPARISONS_MAX:
            return


def drop_differing(run: TaskRun) -> None:
    """Drop copies that differ from their leaders' rows, to be made again a few times (B-04).

    The count is written before a copy leaves its route. Its replica stops when no route has it, and
    only then joins again, as an empty one.
    """
    changes: list[RouteChange] = []
    for partition, node in run.survey.mismatched:
        if run.status.copies_dropped >= COPIES_DROPPED_MAX:
            return
        change = change_of(
            partition,
            run.view.routes[partition],
            run.view.coordinator_epoch,
            _without(node),
        )
        if change is not None and partition not in {each.partition for each in changes}:
            run.update(copies_dropped=run.status.copies_dropped + 1)
            changes.append(change)
    if changes:
        run.act(ChangeRoutes(changes=tuple(changes)))
    for partition, node in run.survey.dropped:
        if leader_knows(run.view, partition):
            run.act(stop_of(partition, node, run.view.routes[partition]))


def _without(node: NodeId) -> Step:
    return lambda record: routes.remove_replicas(record, [node])


def switch(run: TaskRun) -> None:
    """Start handovers and migrations of the partitions that are ready (B-03)."""
    batch, slots = Batch(run), Slots(run.view)
    for partition in run.survey.ready:
        node = run.wanted(partition)[0]
        if not batch.take(partition, node):
            move_leader(run, partition, node, slots, run.survey.reasons)
    batch.settle()


def move_leader(
    run: TaskRun,
    partition: PartitionId,
    node: NodeId,
    slots: Slots,
    reasons: Reasons,
    *,
    purpose: str = "p",
) -> None:
    """Move a partition's leader to `node` by a child, unless one does so or no slot is free.

    The name counts the children that have ended: the same until the next one is due, so that a
    repeat creates nothing twice. `purpose` keeps the way back apart from the way there.
    """
    index = index_of(partition)
    stem = child_name(run.name, f"{purpose}{index}")
    children = run.children.get(partition, [])
    if any(not c.terminal for c in children):
        reasons.add(Wait.SWITCHING, partition, f"its leader moves to node {node}")
        return
    ended = [c for c in children if c.name == stem or c.name.startswith(f"{stem}-")]
    failed = [c for c in ended if not c.succeeded]
    if len(failed) >= MIGRATION_ATTEMPTS_MAX:
        why = f"{len(failed)} migrations to node {node} failed, the last: {failed[-1].error}"
        reasons.add(Wait.STUCK, partition, why)
        return
    if _is_too_early(run, failed):
        why = f"its move to node {node} is tried again soon: {failed[-1].error}"
        reasons.add(Wait.SWITCHING, partition, why)
        return
    if not slots.take(run.view.routes[partition].leader, node):
        reasons.add(Wait.LIMIT, partition, f"its leader shall move to node {node}")
        return
    suffix = f"{purpose}{index}-{len(ended)}" if ended else f"{purpose}{index}"
    name = child_name(run.name, suffix)
    taken = run.view.taken_names.get(name)
    if taken is None:
        reasons.add(Wait.SWITCHING, partition, f"its leader moves to node {node}")
    else:
        reasons.add(Wait.NAME_CONFLICT, partition, taken)
    # Also under a name that was taken: asking again is how it is seen to be free.
    run.act(EnsureMigration(name=name, partition=partition, target=node))


def _is_too_early(run: TaskRun, failed: Sequence[MigrationView]) -> bool:
    ends = [m.ended for m in failed if m.ended is not None]
    if not ends:
        return False
    pause = RETRY_SECONDS * 2.0 ** (len(failed) - 1)
    return (run.now - max(ends)).total_seconds() < pause
