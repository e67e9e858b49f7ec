"""RegionMigration from the intent to the end: hand over, write it down, or restore.

The takeover itself happens between the two data nodes (DCP-09, DCP-10). The coordinator has
authorized it beforehand in the route record and writes afterwards what happened, so no write of
its own stands between the old leader's last row and the new leader's first. Whether the takeover
has happened is read from the candidate's report alone; everything else may be lost by a crash.
"""

from rezone.domain.assignment import retained_replicas
from rezone.domain.assignment.missing_replicas import replacement
from rezone.domain.migration.copy import is_copying
from rezone.domain.migration.run import Run, why_never_compared
from rezone.domain.model.changes import Step, drop_from_isr, stop_of
from rezone.domain.model.world import NotifyFailureDetector, SettleLeader
from rezone.domain.observed.leader_transfer import authorization
from rezone.domain.observed.readiness import (
    comparing,
    is_mismatched,
    is_reachable,
    leader_is_gone,
    leader_knows,
    node_is_gone,
    verification,
    wants_comparison,
    why_not_close,
)
from rezone.domain.routing import route_leaders, routes
from rezone.resources.conditions import Reason
from rezone.resources.migration import OldLeaderPolicy
from rezone.wire.messages import NodeId, Role

ATTEMPTS_MAX = 3
"""How often a takeover is tried in all before the migration gives up (DCP-11)."""


def update_metadata_down(run: Run) -> bool:
    """Write the intent, then remember the route version that carries it (seed: Update Metadata)."""
    record, context = run.record, run.context
    if record.leader == context.to_node:
        return run.go("candidate leads")
    if run.roll_back_if_asked():
        return True
    if record.next_leader == context.to_node and record.next_epoch is not None:
        run.set_context(
            route_version=record.partition_epoch,
            leader_epoch=record.leader_epoch,
            next_epoch=record.next_epoch,
        )
        return run.go("written", extra_seconds=run.view.leader_lease_seconds)
    why = _cannot_authorize(run)
    if why:
        return run.give_up("candidate failed", Reason.FAILED, why)
    return _authorize(run)


def _cannot_authorize(run: Run) -> str:
    view, record, context = run.view, run.record, run.context
    if record.leader != context.from_node:
        return f"the leader is node {record.leader} now, no longer node {context.from_node}"
    if node_is_gone(view, context.to_node, run.now):
        return f"node {context.to_node} is unreachable"
    if is_mismatched(view, run.partition, record, context.to_node):
        return f"the copy on node {context.to_node} differs from node {record.leader}'s rows"
    return why_never_compared(run, context.to_node)


def _authorize(run: Run) -> bool:
    view, record, node = run.view, run.record, run.context.to_node
    gone = leader_is_gone(view, record.leader, run.now)
    if node not in record.isr or view.report(run.partition, node) is None:
        return run.wait(f"node {node} is not in sync")
    if not gone and (why := why_not_close(view, run.partition, record, node)):
        run.change_route(lambda r: routes.set_hot_standby(r, node))
        return run.wait(why)
    if not gone and wants_comparison(view, run.partition, record, node):
        run.act(verification(run.partition, record, node))
        return run.wait(f"the copy is verified: {comparing(view, run.partition, record, node)}")
    return run.write_route(*authorization(node))


def _led_from(run: Run) -> int | None:
    new = run.transfer.new
    return new.led_from_offset if new is not None and run.transfer.leads else None


def _candidate_leads(run: Run) -> bool:
    """Return whether the candidate leads: by the route (RM-06), or authorized by its own word."""
    record, context, transfer = run.record, run.context, run.transfer
    written = record.leader == context.to_node and record.leader_epoch >= context.next_epoch
    return written or (transfer.is_authorized(record) and transfer.leads)


def downgrade_leader(run: Run) -> bool:  # noqa: PLR0911 - one return for each edge
    """Ask the old leader to drain and hand over; find out whether it is gone (RM-04)."""
    context, transfer = run.context, run.transfer
    if _candidate_leads(run):
        return run.go("handing over")
    if not transfer.is_authorized(run.record):
        why = f"the route has changed: leader {run.record.leader}, epoch {run.record.leader_epoch}"
        return run.give_up("route has changed", Reason.FAILED, why)
    if run.roll_back_if_asked():
        return True
    if _old_leader_is_gone(run):
        run.set_context(close_old_leader=True, leader_may_be_unreachable=True)
        return run.go("leader is gone")
    old = transfer.old
    if old is None:
        why = f"leader {context.from_node} is unreachable; its lease must run out"
        return run.wait_briefly(why)
    if why := transfer.failure(context.from_node):
        return run.give_up("takeover failed", Reason.FAILED, why)
    if transfer.handing_over or (transfer.stepped_down and old.leader == context.to_node):
        return run.go("handing over")
    if old.partition_epoch < context.route_version:
        return run.wait_briefly(f"node {context.from_node} does not know the new route yet")
    run.act(transfer.ask_source())
    return run.wait_briefly("the takeover has been asked for")


def _old_leader_is_gone(run: Run) -> bool:
    node = run.context.from_node
    if leader_is_gone(run.view, node, run.now):
        return True
    # It answers, but has no such replica: "not found" of RM-04.
    return is_reachable(run.view, node) and run.view.report(run.partition, node) is None


def upgrade_candidate(run: Run) -> bool:  # noqa: PLR0911 - one return for each edge
    """Wait until the candidate leads; tell it to when the old leader no longer can (RM-05)."""
    view, context, transfer = run.view, run.context, run.transfer
    if _candidate_leads(run):
        run.set_context(last_entry_id=_led_from(run))
        return run.go("candidate leads")
    if run.roll_back_if_asked():
        return True
    candidate = transfer.new
    if why := transfer.failure(context.to_node):
        return run.give_up("takeover failed", Reason.FAILED, why)
    found = candidate is not None or not is_reachable(view, context.to_node)
    if not found or node_is_gone(view, context.to_node, run.now):
        why = f"node {context.to_node} is unreachable or has no replica"
        return run.give_up("candidate failed", Reason.FAILED, why)
    if candidate is None:
        return run.wait_briefly(f"node {context.to_node} is unreachable")
    if candidate.partition_epoch < run.record.partition_epoch:
        # It would lead with the in-sync set of before, and not wait for who has joined since.
        return run.wait_briefly(f"node {context.to_node} has not heard of the route")
    if transfer.stepped_down or _old_leader_is_gone(run):
        run.act(transfer.ask_candidate())
    return run.wait_briefly("the candidate takes over")


def update_metadata_up(run: Run) -> bool:
    """Write that the candidate leads, unless that was written already (RM-06, RM-07).

    The zone's `stable` follows a leader that a person has moved outside of it, or the next
    rebalance would move it back. One that has become pending meanwhile was planned without that.
    """
    record, context = run.record, run.context
    if record.leader == context.to_node:
        return _follow(run)
    # Only the in-sync set may have changed since the intent: the authorization must still stand,
    # and the change is guarded by the version seen now.
    if record.partition_epoch != context.route_version and not run.transfer.is_authorized(record):
        why = f"the route has changed: leader {record.leader}, epoch {record.leader_epoch}"
        return run.give_up("route has changed", Reason.FAILED, why)
    steps: list[Step] = [run.transfer.complete]
    if run.spec.old_leader_policy is OldLeaderPolicy.REMOVE and not _keeps_place(
        run, context.from_node
    ):
        steps.append(lambda r: routes.remove_replicas(r, (context.from_node,)))
    elif context.leader_may_be_unreachable:
        # Nobody may wait for a node that is gone; it stays a replica and joins when it is back.
        steps.append(drop_from_isr(context.from_node, run.view.min_in_sync))
    return run.write_route(*steps)


def _follow(run: Run) -> bool:
    """Have the assignment follow the leader, where it must; then the move is written down."""
    old, new = run.context.from_node, run.context.to_node
    leads = f"node {new} leads"
    if not run.changes_stable(old, new):
        return run.go("written", message=f"{leads}{_note_kept(run)}")
    if run.view.pending is not None:
        why = "the rebalance that has begun meanwhile may move it again"
        return run.go("written", message=f"{leads}; {why}")
    if not run.gives_place_up(old, new):
        return _settle(run, None)
    node = replacement(run.view, run.partition, old)
    if node is None:
        why = f"node {old} stays a replica: no other data node can take its place"
        return run.go("written", message=f"{leads}; {why}")
    return _settle(run, node)


def _note_kept(run: Run) -> str:
    """Note in the status until when the old leader is kept; return why a time does not run."""
    name, partition = run.name, run.partition
    kept = [k for k in run.view.retained if (k.migration, k.partition) == (name, partition)]
    if kept:
        run.set_context(retained_time=kept[0].retained_time)
        until = kept[0].retain_until_time
        run.update(retain_old_leader_until_time=until)
    elif not run.has_place(run.context.from_node) and retained_replicas.is_full(run.view):
        return f"; node {run.context.from_node} is not kept: {retained_replicas.FULL}"
    elif run.spec.retain_old_leader_seconds is not None:
        return f"; node {run.context.from_node} is not beside the partition's assignment"
    return ""


def _settle(run: Run, successor: NodeId | None) -> bool:
    """Have the zone's `stable` follow; in the same write the old leader is kept from now on.

    One whose place goes to `successor` is kept until that has its copy.
    """
    since = run.now.replace(microsecond=0)
    run.act(
        SettleLeader(
            partition=run.partition,
            old_leader=run.context.from_node,
            new_leader=run.context.to_node,
            replacement=successor,
            replicas=run.record.replicas,
            migration=run.name,
            since=since,
            until=retained_replicas.retained_until(run.spec, since),
        ),
    )
    return run.wait("the zone's stable assignment is being written")


def update_metadata_rollback(run: Run) -> bool:  # noqa: PLR0911 - one return for each edge
    """Fence, let the old leader lead again, and remove what this migration opened (RM-08)."""
    record, context = run.record, run.context
    if record.leader == context.to_node:
        return run.go("candidate leads")
    if record.next_leader == context.to_node:
        if context.from_node not in record.isr:
            return run.wait(f"node {context.from_node} is not in sync and cannot lead again")
        return run.write_route(route_leaders.roll_back_takeover)
    if not _leads_again(run):
        return run.wait(f"node {record.leader} does not lead again yet")
    if _try_again(run):
        if not _follows_again(run):
            return run.wait(f"node {context.to_node} does not follow node {record.leader} yet")
        run.update(attempt=run.status.attempt + 1)
        return run.go("try again", message=_why(run))
    if not _cleaned(run):
        return run.wait(f"the replica opened on node {context.to_node} is being removed")
    if context.leader_may_be_unreachable:
        run.act(NotifyFailureDetector(partition=run.partition))
    authorized = context.next_epoch > 0
    cancelled = _cancelled(run)
    return run.go("restored" if authorized or cancelled else "cleaned", message=_why(run))


def _leads_again(run: Run) -> bool:
    """Return whether the route's leader leads by its own word, too (DCP-11)."""
    record = run.record
    report = run.view.report(run.partition, record.leader)
    if report is None:
        return True  # It cannot be asked: the failure detector's matter, not this migration's.
    return report.role is Role.LEADER and report.leader_epoch >= record.leader_epoch


def _follows_again(run: Run) -> bool:
    """Return whether the candidate knows that it does not lead: the other side of DCP-11."""
    report = run.view.report(run.partition, run.context.to_node)
    if report is None:
        return False
    return report.role is not Role.LEADER and report.leader_epoch >= run.record.leader_epoch


def _cancelled(run: Run) -> bool:
    error = run.status.last_error
    return run.spec.cancel or (error is not None and error.reason == Reason.CANCELLED)


def _why(run: Run) -> str:
    return run.status.last_error.message if run.status.last_error else ""


def _try_again(run: Run) -> bool:
    context = run.context
    return (
        context.next_epoch > 0
        and not _cancelled(run)
        and not context.leader_may_be_unreachable
        and run.status.attempt + 1 < ATTEMPTS_MAX
        and run.record.leader == context.from_node
        and run.view.report(run.partition, context.to_node) is not None
        and run.view.report(run.partition, context.from_node) is not None
    )


def _cleaned(run: Run) -> bool:
    """Remove the replica that this migration opened; True when that is done.

    One that the assignment wants by now stays: a rebalance would add it again, and its copy would
    begin again, in each pass of either.
    """
    context, record = run.context, run.record
    if is_copying(run):
        return False
    if not context.opened_candidate:
        return True
    if context.to_node in record.replicas:
        if run.has_place(context.to_node):
            return True
        run.change_route(lambda r: routes.remove_replicas(r, (context.to_node,)))
        return False
    return not _stop(run, context.to_node)


def _stop(run: Run, node: int) -> bool:
    """Have a node stop its replica; False when it has none or cannot be asked (RM-09)."""
    if node in run.record.replicas or run.view.report(run.partition, node) is None:
        return False
    if leader_knows(run.view, run.partition):
        run.act(stop_of(run.partition, node, run.record))
    return True


def close_old_leader(run: Run) -> bool:
    """Stop the old leader's replica if it is none any more; gone is as good (RM-09)."""
    context, record = run.context, run.record
    old = context.from_node
    removed = run.spec.old_leader_policy is OldLeaderPolicy.REMOVE
    stays = run.has_place(old) or _is_kept(run, old)
    if removed and not stays and old in record.replicas and old != record.leader:
        if _pulls_log(run):
            return run.wait(f"node {context.to_node} brings the log that named feeds need")
        # A failover made the candidate lead, so nobody has removed the old leader with it; or only
        # the old one had what named feeds need.
        return run.write_route(lambda r: routes.remove_replicas(r, (old,)))
    if context.close_old_leader and _stop(run, context.from_node):
        return run.wait(f"node {context.from_node} stops its replica")
    return run.go("closed", message=f"node {run.record.leader} leads")


def _pulls_log(run: Run) -> bool:
    """Return whether the candidate lacks log that named feeds need, which the old leader has."""
    report = run.view.report(run.partition, run.context.to_node)
    return report is not None and report.pulls_log


def _keeps_place(run: Run, old: NodeId) -> bool:
    """Return whether the old leader has a place that this move does not give to the new one.

    Or has log that named feeds need and the new one lacks: then it goes at the end of the move.
    """
    if _pulls_log(run):
        return True
    if run.view.pending is not None:
        return run.has_place(old)
    return run.gives_place_up(old, run.context.to_node)


def _is_kept(run: Run, node: NodeId) -> bool:
    return any((k.partition, k.node) == (run.partition, node) for k in run.view.retained)
