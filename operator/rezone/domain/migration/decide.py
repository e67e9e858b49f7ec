"""RegionMigration: the leader of one partition moves (RM-01).

`decide` is pure and total. It is asked again and again, and each time it goes as far along the
edges of `migration_table.TABLE` as the view allows. This module chooses and opens the candidate;
`migration_takeover` has the states from the intent to the end, `migration_recovery` the way out
of a lost quorum.
"""

import collections
from collections.abc import Callable, Mapping
from datetime import datetime
from types import MappingProxyType

from rezone.domain.assignment import retained_replicas
from rezone.domain.assignment.claims import awaited_rebalance, goes_first
from rezone.domain.assignment.missing_replicas import replacement
from rezone.domain.assignment.slots import Slots
from rezone.domain.machines.statuses import Decision
from rezone.domain.migration import recovery, takeover
from rezone.domain.migration.copy import copy_candidate, note_progress
from rezone.domain.migration.run import Run, why_never_compared
from rezone.domain.model.world import ZoneView
from rezone.domain.observed.readiness import (
    comparing,
    is_mismatched,
    is_reachable,
    leader_is_gone,
    node_is_gone,
    verification,
    wants_comparison,
    why_not_close,
)
from rezone.domain.routing import routes
from rezone.resources.conditions import Reason
from rezone.resources.migration import (
    TERMINAL_MIGRATION_STATES,
    MigrationContext,
    OldLeaderPolicy,
    RegionMigrationSpec,
    RegionMigrationStatus,
)
from rezone.resources.migration import MigrationState as S
from rezone.wire.messages import NodeId

WAKE_BLOCKED_SECONDS = 5.0


def decide(
    spec: RegionMigrationSpec,
    status: RegionMigrationStatus | None,
    view: ZoneView,
    now: datetime,
    generation: int,
    *,
    name: str = "",
) -> Decision[RegionMigrationStatus]:
    """Return the next status and the actions of the migration `name` (RM-01..RM-09).

    `status` is None before the first visit. Every action is repeated until the view shows its
    effect. After an end nothing is decided any more.
    """
    status = status or RegionMigrationStatus()
    if status.state in TERMINAL_MIGRATION_STATES:
        return Decision(status=status)
    run = Run(spec, status, view, now, name)
    run.begin()
    if run.state != S.SELECT_CANDIDATE and run.partition not in view.routes:
        # The routes are not there, or the zone was re-sharded: nothing can be said or done.
        run.wait(f"partition {run.spec.partition} has no route", seconds=WAKE_BLOCKED_SECONDS)
        return run.decision(generation)
    return run.walk(STEPS, generation)


def select_candidate(run: Run) -> bool:  # noqa: PLR0911 - one return for each edge
    """Choose who shall lead, and persist it with all that a crash must not lose."""
    if run.spec.cancel:
        return run.give_up("cancel", Reason.CANCELLED, "cancelled before it began")
    refusal = _refusal(run)
    if refusal:
        return run.give_up("refused", Reason.INVALID_SPEC, refusal)
    if run.spec.unclean_election is not None:
        # Nothing else may hold this up: what else moves the partition finds the route changed.
        return recovery.begin(run, run.spec.unclean_election)
    record = run.record
    if record.leader == run.spec.target:
        return run.go("leads already", message=f"node {record.leader} leads already")
    blocked = _blocked(run)
    if blocked is not None:
        reason, why = blocked
        return run.wait(why, reason=reason, seconds=WAKE_BLOCKED_SECONDS)
    target = run.spec.target if run.spec.target is not None else choose(run)
    if target is None:
        return run.wait(
            "no reachable data node can take the partition over",
            seconds=WAKE_BLOCKED_SECONDS,
        )
    moved = _without_assignment(run, target)
    if moved is not None:
        return moved
    if run.by_person and not _has_slot(run, target):
        why = "the zone's limits of concurrent migrations are reached"
        return run.wait(why, seconds=WAKE_BLOCKED_SECONDS)
    context = MigrationContext(
        partition=run.partition,
        from_node=record.leader,
        to_node=target,
        close_old_leader=run.spec.old_leader_policy is OldLeaderPolicy.REMOVE,
        leader_epoch=record.leader_epoch,
        opened_candidate=target not in record.replicas,
    )
    run.update(context=context)
    event = "available" if candidate_wants(run) == "" else "not available"
    return run.go(event, message=f"node {record.leader} -> node {target}")


def _refusal(run: Run) -> str:  # noqa: PLR0911 - one return for each reason
    if run.partition not in run.view.routes:
        count = run.view.layout.partitions
        return f"partition {run.spec.partition} does not exist: the zone has {count}"
    target = run.spec.target
    if target is None or run.spec.unclean_election is not None:
        return ""
    node = run.view.nodes.get(target)
    if node is None:
        known = ", ".join(str(n) for n in sorted(run.view.nodes)[:16])
        return f"node {target} is none of the zone's data nodes: {known}"
    if node.lost:
        return f"node {target} is lost"
    if node_is_gone(run.view, target, run.now):
        return f"node {target} is unreachable"
    if node.maintenance:
        return f"node {target} is in maintenance"
    record = run.record
    if target not in record.isr and leader_is_gone(run.view, record.leader, run.now):
        return (
            f"node {target} is not in sync and leader {record.leader} is gone: nothing to copy from"
        )
    return why_never_compared(run, target)


def _without_assignment(run: Run, target: NodeId) -> bool | None:
    """Wait, or end, where the assignment could not follow this move; None where it can."""
    old = run.record.leader
    if run.changes_stable(old, target) and run.view.pending is not None:
        why = "a rebalance is under way, and this move changes the partition's assignment"
        return run.wait(why, reason=Reason.CONFLICT, seconds=WAKE_BLOCKED_SECONDS)
    if _finds_no_room(run, target):
        why = f"node {old} could not be kept: {retained_replicas.FULL}, or have this one removed"
        return run.give_up("refused", Reason.RETAINED_LIMIT, why)
    return _without_replacement(run, old) if _leaves_a_gap(run, target) else None


def _without_replacement(run: Run, old: NodeId) -> bool:
    """Wait for data nodes that an operator may just not have heard yet; refuse without any."""
    if _may_take_a_place_later(run, old):
        why = f"no data node that answers can take node {old}'s place"
        return run.wait(why, seconds=WAKE_BLOCKED_SECONDS)
    refusal = (
        f"partition {run.spec.partition} would have one replica less than it is assigned: no "
        f"other data node can take node {old}'s place; leave oldLeaderPolicy out"
    )
    return run.give_up("refused", Reason.INVALID_SPEC, refusal)


def _may_take_a_place_later(run: Run, old: NodeId) -> bool:
    """Whether a node that could take the old leader's place is silent, and not for long."""
    taken = {old, *(run.view.assigned(run.partition) or ())}
    return any(
        not seen.reachable and not seen.lost and not node_is_gone(run.view, node, run.now)
        for node, seen in run.view.nodes.items()
        if node not in taken
    )


def _finds_no_room(run: Run, target: NodeId) -> bool:
    if run.spec.old_leader_policy is OldLeaderPolicy.REMOVE or not retained_replicas.is_full(
        run.view
    ):
        return False
    gets_its_place = any(
        (k.partition, k.node) == (run.partition, target) for k in run.view.retained
    )
    return run.changes_stable(run.record.leader, target) and not gets_its_place


def _leaves_a_gap(run: Run, target: NodeId) -> bool:
    old = run.record.leader
    return run.gives_place_up(old, target) and replacement(run.view, run.partition, old) is None


def _blocked(run: Run) -> tuple[Reason, str] | None:
    view = run.view
    for other in view.migrations:
        if other.name != run.name and goes_first(other, run.claim, run.partition):
            return Reason.CONFLICT, f"migration {other.name} moves the same partition"
    if run.record.next_leader is not None:
        return Reason.CONFLICT, f"a takeover by node {run.record.next_leader} is authorized"
    if not run.by_person:
        return None
    if why := awaited_rebalance(view, run.partition, run.claim):
        return Reason.CONFLICT, why
    if view.paused:
        return Reason.PAUSED, "the zone is paused: spec.rebalance.paused"
    return None


def _has_slot(run: Run, target: NodeId) -> bool:
    return Slots(run.view, without=run.name).take(run.record.leader, target)


def choose(run: Run) -> NodeId | None:
    """Return the best candidate: a hot standby, else in sync, else any node; idle ones first.

    None when no reachable node is left. A node outside the in-sync set needs a leader to copy
    from (RM-11: from hot nodes to idle ones, from failed ones to available ones).
    """
    view, record = run.view, run.record
    leads = collections.Counter(r.leader for r in view.routes.values())

    def usable(node: NodeId) -> bool:
        seen = view.nodes.get(node)
        return (
            node != record.leader
            and seen is not None
            and seen.reachable
            and not seen.leaving
            and not seen.draining
            and not seen.lost
            and not seen.maintenance
        )

    in_sync = [
        n
        for n in record.isr
        if usable(n)
        and view.report(run.partition, n) is not None
        and not why_never_compared(run, n)
    ]
    if in_sync:
        return min(in_sync, key=lambda n: (n not in record.iss, leads[n], n))
    if not is_reachable(view, record.leader):
        return None
    others = [n for n in view.nodes if usable(n)]
    return min(
        others,
        key=lambda n: (n not in record.replicas, leads[n], len(view.nodes[n].replicas), n),
        default=None,
    )


def candidate_wants(run: Run) -> str:  # noqa: PLR0911 - one return for each want
    """Return what the candidate still lacks before it may lead, "" when nothing (RM-03, B-04)."""
    view, record, node = run.view, run.record, run.context.to_node
    report = view.report(run.partition, node)
    if report is None:
        return f"node {node} has not opened its replica"
    if report.needs_snapshot:
        refused = view.copies_refused.get(run.partition)
        return refused or f"node {node} copies a snapshot"
    if node not in record.isr:
        return f"node {node} catches up with the log"
    leader_gone = leader_is_gone(view, record.leader, run.now)
    # A member of the in-sync set has every acknowledged row; there is no leader to compare with.
    if leader_gone:
        return why_never_compared(run, node)
    if why := why_not_close(view, run.partition, record, node):
        return why
    if wants_comparison(view, run.partition, record, node):
        return f"the copy is verified: {comparing(view, run.partition, record, node)}"
    return ""


def open_candidate(run: Run) -> bool:  # noqa: PLR0911 - one return for each edge
    """Open the candidate's replica, copy, verify, and wait until it is close (RM-03)."""
    view, record, context = run.view, run.record, run.context
    node = context.to_node
    note_progress(run)
    if record.leader == node:
        return run.go("candidate leads")
    if run.roll_back_if_asked():
        return True
    if node_is_gone(view, node, run.now):
        return run.give_up("candidate failed", Reason.FAILED, f"node {node} is unreachable")
    if record.leader != context.from_node:
        why = f"the leader is node {record.leader} now, no longer node {context.from_node}"
        return run.give_up("candidate failed", Reason.FAILED, why)
    if node not in record.isr and leader_is_gone(view, record.leader, run.now):
        why = f"leader {record.leader} is gone and node {node} is not in sync"
        return run.give_up("candidate failed", Reason.FAILED, why)
    if why := why_never_compared(run, node):
        return run.give_up("candidate failed", Reason.FAILED, why)
    if is_mismatched(view, run.partition, record, node):
        why = f"the copy on node {node} differs from node {record.leader}'s rows"
        return run.give_up("candidate failed", Reason.FAILED, why)
    wants = candidate_wants(run)
    if not wants:
        return run.go("candidate is close")
    return _help_candidate(run, wants)


def _help_candidate(run: Run, wants: str) -> bool:
    record, node = run.record, run.context.to_node
    # Only a hot standby stays close under writes: plain followers apply the log lazily (HS-09).
    run.change_route(
        lambda r: routes.add_replicas(r, (node,)),
        lambda r: routes.set_hot_standby(r, node),
    )
    report = run.view.report(run.partition, node)
    if report is not None and report.needs_snapshot:
        return copy_candidate(run, report, wants)
    if (
        report is not None
        and node in record.isr
        and wants_comparison(run.view, run.partition, record, node)
    ):
        run.act(verification(run.partition, record, node))
    return run.wait(wants)


Step = Callable[[Run], bool]

STEPS: Mapping[str, Step] = MappingProxyType(
    {
        S.SELECT_CANDIDATE: select_candidate,
        S.OPEN_CANDIDATE: open_candidate,
        S.UPDATE_METADATA_DOWN: takeover.update_metadata_down,
        S.DOWNGRADE_LEADER: takeover.downgrade_leader,
        S.UPGRADE_CANDIDATE: takeover.upgrade_candidate,
        S.UPDATE_METADATA_UP: takeover.update_metadata_up,
        S.UPDATE_METADATA_ROLLBACK: takeover.update_metadata_rollback,
        S.UNCLEAN_ELECTION: recovery.recover,
        S.CLOSE_OLD_LEADER: takeover.close_old_leader,
    },
)
"""What each state that is no end does: True when it moved along an edge, False when it waits."""
