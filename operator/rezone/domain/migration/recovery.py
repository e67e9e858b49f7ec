"""The way out of a lost quorum: a person gives acknowledged rows up, and a survivor leads.

Asked for by `spec.uncleanElection` of a RegionMigration. What is decided, and what may be lost by
it, is in the status before the route changes; new partitions of a re-sharding that have pulled
rows begin again first (`recovery_targets`). The new leader's epoch and its new branch of history
then make every replica that comes back later roll back to what it shares with it (DCP-05).
"""

from rezone.domain.machines.machine import Command
from rezone.domain.migration.run import Run
from rezone.domain.model.world import BeginEmpty, ChangeRoutes
from rezone.domain.observed.readiness import node_is_gone
from rezone.domain.repair.lost_quorum import Loss, candidates, loss_of, refusal
from rezone.domain.repair.recovery_targets import TargetsAnswer, targets_answer
from rezone.domain.routing import route_leaders, routes
from rezone.resources.conditions import Reason
from rezone.resources.migration import MigrationContext, RecoveryStatus, UncleanElectionSpec
from rezone.wire.messages import NodeId, Role


def begin(run: Run, unclean_election: UncleanElectionSpec) -> bool:
    """Choose who leads and say what may be lost, or refuse."""
    unreported = _unreported(run)
    if unreported:
        return run.wait(unreported)
    if _is_refused(run, unclean_election):
        return True
    loss = loss_of(run.view, run.partition)
    assert loss is not None, "what is not lost was refused"  # noqa: S101 - invariant
    record, target = run.record, run.spec.target
    node = candidates(loss, unclean_election.mode)[0] if target is None else target
    recovery = _recovery(loss, node)
    word = _answer_of_targets(run, loss, node, unclean_election)
    if word.refused:
        return run.give_up("refused", Reason.UNCLEAN_ELECTION_REFUSED, word.refused)
    if word.told:
        message = f"{recovery.message}; {word.told}"
        recovery = recovery.model_copy(update={"message": message})
    context = MigrationContext(
        partition=run.partition,
        from_node=record.leader,
        to_node=node,
        leader_epoch=record.leader_epoch,
        next_epoch=routes.highest_epoch(record) + 1,
        route_version=record.partition_epoch,
    )
    run.update(context=context, recovery=recovery)
    return run.go("unclean election", message=f"node {node} shall lead: {recovery.message}")


def recover(run: Run) -> bool:
    """Write that the chosen node leads, and wait until it does."""
    record, context, unclean_election = run.record, run.context, run.spec.unclean_election
    assert unclean_election is not None, "spec.uncleanElection is immutable"  # noqa: S101 - invariant
    if (record.leader, record.leader_epoch) == (context.to_node, context.next_epoch):
        return _await_leader(run)
    if record.leader_epoch >= context.next_epoch:
        why = f"node {record.leader} leads with epoch {record.leader_epoch} by another decision"
        return run.give_up("route has changed", Reason.CONFLICT, why)
    if run.spec.cancel:
        return run.give_up(
            Command.CANCEL, Reason.CANCELLED, "cancelled before anything was changed"
        )
    # Somebody may have come back since; then there is a better way out, or none is needed.
    unreported = _unreported(run)
    if unreported:
        return run.wait(unreported)
    if _is_refused(run, unclean_election):
        return True
    return _elect(run, unclean_election)


def _elect(run: Run, unclean_election: UncleanElectionSpec) -> bool:
    """Ask for the record, when nothing that is given up stands anywhere else."""
    context = run.context
    loss = loss_of(run.view, run.partition)
    if loss is None or context.to_node not in candidates(loss, unclean_election.mode):
        why = f"node {context.to_node} does not answer any more"
        return run.give_up("refused", Reason.UNCLEAN_ELECTION_REFUSED, why)
    word = _answer_of_targets(run, loss, context.to_node, unclean_election)
    if word.refused:
        return run.give_up("refused", Reason.UNCLEAN_ELECTION_REFUSED, word.refused)
    if word.changes:
        run.act(ChangeRoutes(changes=word.changes))
    if word.waits:
        return run.wait(word.waits)
    return run.write_route(
        lambda r: route_leaders.elect_uncleanly(
            r, context.to_node, context.next_epoch, lost=unclean_election.lost_nodes
        )
    )


def _await_leader(run: Run) -> bool:
    context = run.context
    report = run.view.report(run.partition, context.to_node)
    if report is None:
        return run.wait(f"node {context.to_node} does not answer")
    if report.role is Role.LEADER and report.leader_epoch == context.next_epoch:
        text = run.status.recovery.message if run.status.recovery is not None else ""
        return run.go("recovered", message=f"node {context.to_node} leads: {text}")
    if report.needs_snapshot and run.status.recovery is not None and run.status.recovery.empty:
        run.act(BeginEmpty(partition=run.partition, node=context.to_node, state=run.record))
    return run.wait_briefly(f"node {context.to_node} does not lead yet")


def _unreported(run: Run) -> str:
    """Return which replica is still to be heard of, "" when it is known who answers.

    A new coordinator has heard of nobody, and a data node that has just begun says nothing of a
    partition before it has been told of it: neither means that rows are lost.
    """
    for node in run.record.replicas:
        seen = run.view.nodes.get(node)
        if seen is None or node_is_gone(run.view, node, run.now):
            continue
        if run.view.report(run.partition, node) is None:
            return f"node {node} has not said what it has"
    return ""


def _is_refused(run: Run, unclean_election: UncleanElectionSpec) -> bool:
    why = refusal(run.view, run.partition, unclean_election, run.spec.target)
    return bool(why) and run.give_up("refused", Reason.UNCLEAN_ELECTION_REFUSED, why)


def _answer_of_targets(
    run: Run, loss: Loss, node: NodeId, unclean_election: UncleanElectionSpec
) -> TargetsAnswer:
    """Return what new partitions say; nothing where no acknowledged row is given up, nor a seal."""
    if any(each.node == node and each.complete for each in loss.survivors):
        return TargetsAnswer()
    return targets_answer(run.view, run.partition, unclean_election)


def _recovery(loss: Loss, node: NodeId) -> RecoveryStatus:
    """Return what may be lost when `node` leads; of what lies above its log nobody knows."""
    survivor = next((s for s in loss.survivors if s.node == node), None)
    if survivor is None:
        return RecoveryStatus(
            empty=True,
            kept_offset=0,
            log_end_offset=0,
            committed_offset=loss.committed,
            message="all rows are lost; the partition begins again, empty",
        )
    if survivor.complete:
        kept, message = survivor.log_end, "it has every acknowledged row"
    else:
        kept = survivor.committed
        message = (
            f"acknowledged rows below offset {kept} are kept, those from there to its log's end "
            f"at {survivor.log_end} may be others than were acknowledged, all above are lost; rows "
            f"are known to have been acknowledged up to offset {loss.committed}, perhaps further"
        )
    return RecoveryStatus(
        kept_offset=kept,
        log_end_offset=survivor.log_end,
        committed_offset=loss.committed,
        message=message,
    )
