"""Targets of a plan that fail: lost data nodes, and copies that make no progress.

The plan itself never changes: it is the approved one, to the byte (B-01). Its task ends with what
is done: `status.outcome` says where every partition lives then, and the one atomic write of its end
makes that the stable assignment (ZR-10). Where the zone wants targets to be replaced, the next plan
is written to `planned` first (ZR-04), becomes pending with that same write, and has a task of its
own; copies under way go on there. Both writes can be repeated, so a crash between them harms
nothing.
"""

import dataclasses

from rezone.domain.machines.task_run import WAKE_SOON_SECONDS
from rezone.domain.model.world import WritePending
from rezone.domain.planner.substitute import Substitutes, substitute
from rezone.domain.rebalance.run import TaskRun
from rezone.domain.rebalance.switch import COPIES_DROPPED_MAX
from rezone.domain.routing.topology_text import Topology
from rezone.resources.conditions import Reason
from rezone.resources.task import TaskType
from rezone.wire.layouts import index_of
from rezone.wire.messages import NodeId, PartitionId

_NONE: frozenset[NodeId] = frozenset()


@dataclasses.dataclass(frozen=True)
class FailedTargets:
    """The nodes that cannot take what is planned, by index of the partition; and why."""

    nodes: dict[int, frozenset[NodeId]]
    reason: Reason
    why: str


def await_next_plan(run: TaskRun) -> bool:
    """Look for failed targets; True while the next plan has to be written.

    Otherwise the outcome of the task leaves them out, and it goes on with the rest.
    """
    failed = _failed(run)
    if failed is None:
        return False
    next_plan = _next_plan(run, failed)
    if next_plan is not None and run.view.planned != next_plan:
        run.act(WritePending(target=next_plan, revision=run.view.change + 1))
        return not run.wait("Writing: the next plan", seconds=WAKE_SOON_SECONDS)
    early = next_plan is not None and not run.view.manual_approval
    outcome = _outcome(run, failed, early=early)
    if outcome != run.goal or not run.status.outcome:
        run.end_with(outcome, *_told(failed, replaced=next_plan is not None))
    return False


def _failed(run: TaskRun) -> FailedTargets | None:
    """Return the failed targets while partitions have yet to move, None without one.

    A lost node of a partition that stays or has moved is the zone's to replace, in its own time;
    it only counts once that is planned, which must not wait for this task then. A copy that fails
    at a partition that has moved counts: nobody else would end the wait for it.
    """
    found, view = run.survey, run.view
    if run.paused or found.done >= found.partitions:
        return None
    lost = frozenset(found.lost)
    differing = _differing(run)
    other = {**_stalled(run), **differing}
    nodes: dict[int, frozenset[NodeId]] = {}
    for index, (old, new) in enumerate(zip(run.source, run.goal, strict=True)):
        gone = other.get(index, _NONE) | lost.intersection(new)
        if old != new and gone and run.is_done(view.layout.ids[index]):
            # What has switched stays. Its failed copies end the task once; then the zone goes on.
            gone = _NONE if run.status.outcome else other.get(index, _NONE)
        if old != new and gone:
            nodes[index] = gone
    if not nodes and not (lost and view.planned is not None and not view.manual_approval):
        return None
    if differing:
        return FailedTargets(nodes, *_why_differing(run, differing))
    if lost:
        return FailedTargets(nodes, Reason.TARGET_LOST, f"data nodes {found.lost} are lost")
    return FailedTargets(nodes, *_why_stalled(run, nodes))


def _differing(run: TaskRun) -> dict[int, frozenset[NodeId]]:
    """Return the targets whose copies differ, once none is made again any more."""
    if run.status.copies_dropped < COPIES_DROPPED_MAX:
        return {}
    found: dict[int, frozenset[NodeId]] = {}
    for partition, node in run.survey.mismatched:
        index = index_of(partition)
        found[index] = found.get(index, _NONE) | {node}
    return found


def _why_differing(run: TaskRun, differing: dict[int, frozenset[NodeId]]) -> tuple[Reason, str]:
    index, (node, *_) = min((index, sorted(nodes)) for index, nodes in differing.items())
    copy = f"the copy of partition {index} on data node {node} differs from its leader's rows"
    again = f"{run.status.copies_dropped} differing copies were made again in vain"
    return Reason.COPY_DIFFERS, f"{copy}, {again}"


def _stalled(run: TaskRun) -> dict[int, frozenset[NodeId]]:
    """Return the targets whose copies stand still, by index of the partition.

    A copy to a full node has time while another partition is about to leave that node: its old
    replica stops as soon as it has moved. One that stands still itself frees nothing.
    """
    found: dict[int, set[NodeId]] = {}
    for (partition, node), _ in sorted(run.view.stalled_copies.items()):
        if partition in run.view.layout.ids and node in run.wanted(partition):
            found.setdefault(index_of(partition), set()).add(node)
    if not found:
        return {}
    freed = {
        node
        for index, (old, new) in enumerate(zip(run.source, run.goal, strict=True))
        if index not in found
        for node in old
        if node not in new and _leaves(run, run.view.layout.ids[index], node)
    }
    return {
        index: frozenset(nodes)
        for index, nodes in found.items()
        if any(not (node in freed and _is_full(run, index, node)) for node in nodes)
    }


def _leaves(run: TaskRun, partition: PartitionId, node: NodeId) -> bool:
    """Return whether a partition is about to leave a node: its replica there has yet to stop."""
    return not run.is_done(partition) or run.view.report(partition, node) is not None


def _is_full(run: TaskRun, index: int, node: NodeId) -> bool:
    copy = run.view.stalled_copies[run.view.layout.ids[index], node]
    return copy.reason is Reason.NO_SPACE


def _why_stalled(run: TaskRun, nodes: dict[int, frozenset[NodeId]]) -> tuple[Reason, str]:
    index, (node, *_) = min((index, sorted(gone)) for index, gone in nodes.items())
    copy = run.view.stalled_copies[run.view.layout.ids[index], node]
    what = f"the copy of partition {index} to data node {node} has stood still"
    error = f": {copy.error}" if copy.error else ""
    more = f", and {len(nodes) - 1} others" if len(nodes) > 1 else ""
    return copy.reason, f"{what} for {copy.seconds:.0f} s{error}{more}"


def _next_plan(run: TaskRun, failed: FailedTargets) -> Topology | None:
    """Return the assignment with other nodes in place of the failed ones, None without one.

    A partition without a node that is as good stays where it is, and one whose failed node holds a
    replica of it already. What a person named is not replaced, nor are targets of differing copies:
    other nodes need not be better.
    """
    view, planned = run.view, run.view.planned
    by_name = run.spec.type is TaskType.MOVES
    differs = failed.reason is Reason.COPY_DIFFERS
    if not view.replace_failed_targets or by_name or differs or not run.holds_pending:
        return None
    if planned is not None and len(planned) != len(run.target):
        return planned  # a re-sharding
    base = planned or run.target
    wanted = {index: gone & set(base[index]) for index, gone in failed.nodes.items()}
    new = {i: gone for i, gone in wanted.items() if gone and not gone & set(run.source[i])}
    found = substitute(base, new, _substitutes(run, failed), run.source)
    if not found:
        return planned
    stays = _outcome(run, failed, early=True)
    return tuple(
        found.get(index, stays[index] if wanted.get(index) else row)
        for index, row in enumerate(base)
    )


def _substitutes(run: TaskRun, failed: FailedTargets) -> Substitutes:
    bad = frozenset().union(*failed.nodes.values())
    nodes = run.view.nodes
    return Substitutes(
        weights={
            node: seen.weight
            for node, seen in sorted(nodes.items())
            if node not in bad
            and node not in run.view.avoided
            and seen.reachable
            and not seen.maintenance
            and not (seen.lost or seen.draining or seen.leaving)
        },
        domains={node: seen.failure_domain for node, seen in nodes.items()},
    )


def _outcome(run: TaskRun, failed: FailedTargets, *, early: bool) -> Topology:
    """Return where the partitions live when the task is over: what is done stays.

    `early`: all that is not done is left to the next plan, else only what has a failed target.
    """
    rows = zip(run.view.layout.ids, run.source, run.goal, strict=True)
    return tuple(
        old if (early or index in failed.nodes) and not run.is_done(partition) else row
        for index, (partition, old, row) in enumerate(rows)
    )


def _told(failed: FailedTargets, *, replaced: bool) -> tuple[Reason, str]:
    if replaced:
        why = f"{failed.why}: the zone's next rebalance has other targets"
        return Reason.TARGET_REPLACED, why
    why = f"{failed.why}: when that is mended, apply another RebalanceTask for the rest"
    return failed.reason, why
