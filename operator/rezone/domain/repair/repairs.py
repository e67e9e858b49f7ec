"""What the coordinator mends in the route table by itself: in-sync sets and leaders that are gone.

A leader asks for a new in-sync set in its report (HS-04, HS-08) and asks again until a record
with a higher partition epoch answers it (ZR-09). A leader that has been silent for longer than
its lease, or says that it has failed (NW-04), is replaced from the in-sync standbys, then from the
in-sync set (B-06); as every member of the in-sync set has every acknowledged row and refuses lower
epochs, the old leader can acknowledge nothing any more. When the whole in-sync set has lost its
data, an eligible replica leads: it left that set when it had become too small to commit anything.
"""

import math
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

from rezone.domain.model.changes import Step, combine, stop_of
from rezone.domain.model.world import Copy, RefuseProposal, RouteChange, StopReplica, ZoneView
from rezone.domain.observed import hearing
from rezone.domain.observed.readiness import is_verified, leader_knows, uncompared, was_copied
from rezone.domain.routing import route_leaders, routes
from rezone.wire.layouts import generation_of
from rezone.wire.messages import (
    FIRST_PARTITION_EPOCH,
    IsrProposal,
    LeaderAndIsr,
    NodeId,
    PartitionId,
    Role,
)


def repairs(view: ZoneView, now: datetime) -> tuple[RouteChange, ...]:
    """Return the changes that the reports of this moment call for."""
    changes = []
    for partition, record in view.routes.items():
        after = (
            _without_lost_data(view, partition, record)
            or _adjusted(view, partition, record)
            or _opened(view, partition, record)
            or _settled(view, record)
            or _failed_over(view, partition, record, now)
        )
        # The same record again means that nothing is to be changed, and has no new epoch.
        if after is not None and after is not record:
            changes.append(
                RouteChange(
                    partition=partition,
                    expected_epoch=record.partition_epoch,
                    state=after,
                ),
            )
    return tuple(changes)


def missing_copies(view: ZoneView, *, task_copies: bool) -> tuple[Copy, ...]:
    """Return the copies that replicas need which are assigned but have no data (B-06).

    `task_copies`: a task is at work that copies all that is missing for itself. A task that waits
    for a person, or that goes back, does not; then the replicas of the stable assignment are
    looked after here, or they would be short until it ends, and a cancel would wait for them in
    vain. A copy under way is left alone.
    """
    if task_copies or view.paused or view.hands_off:
        return ()
    copies = []
    for partition, leader, nodes in replicas_in_need(view):
        targets = tuple(n for n in nodes if _wants_copy(view, partition, n))
        if targets:
            copies.append(Copy(partition=partition, source=leader, targets=targets))
    return tuple(copies)


def replicas_in_need(
    view: ZoneView,
) -> Iterator[tuple[PartitionId, NodeId, tuple[NodeId, ...]]]:
    """Yield partitions with their leader and the assigned replicas that say they need a copy."""
    for partition in sorted(view.without_data.keys() & view.routes.keys()):
        record = view.routes[partition]
        leader = view.report(partition, record.leader)
        # What is sealed ends soon, and its rows are elsewhere.
        if record.sealed or leader is None or leader.role is not Role.LEADER:
            continue
        without = without_data(view, partition, among=record.replicas)
        if nodes := tuple(n for n in places(view, partition) if n in without):
            yield partition, record.leader, nodes


def places(view: ZoneView, partition: PartitionId) -> tuple[NodeId, ...]:
    """Return the replicas of a route that the zone looks after, not those that a task adds."""
    replicas = view.routes[partition].replicas
    if view.pending is None:
        return replicas
    assigned = view.assigned(partition) or ()
    return tuple(n for n in replicas if n in assigned)


def strays(view: ZoneView) -> tuple[StopReplica, ...]:
    """Return what stops replicas that reachable nodes hold although no route has them.

    A migration ends without the node that it could not reach (RM-09); when that is back, only its
    report tells of the copy. What a task or a migration is at work on is theirs to stop.
    """
    if view.hands_off:
        return ()
    if view.pending is not None:
        return _of_no_layout(view)
    moving = {m.partition for m in view.migrations if not m.terminal}
    return (
        *_of_no_layout(view),
        *(
            stop_of(partition, node, view.routes[partition])
            for node, seen in view.nodes.items()
            if seen.reachable
            for partition in seen.replicas
            if partition in view.routes
            and partition not in moving
            and node not in view.routes[partition].replicas
            and leader_knows(view, partition)
        ),
    )


def _of_no_layout(view: ZoneView) -> tuple[StopReplica, ...]:
    """Return what stops the replicas of layouts that are over: re-sharded, or cancelled.

    By the zone's keys and its routes: a generation that neither has is never used again. Its
    leaders stop, too, for a later epoch than theirs asks for it.
    """
    there = {each.generation for each in view.routes.layouts}
    there.add(view.generation)
    if view.pending is not None and view.cancel_revision != view.pending_revision:
        there.add(view.pending_generation)
    return tuple(
        StopReplica(
            partition=partition,
            node=node,
            leader_epoch=report.leader_epoch + 1,
            partition_epoch=report.partition_epoch + 1,
        )
        for node, seen in view.nodes.items()
        if seen.reachable
        for partition, report in seen.replicas.items()
        if generation_of(partition) not in there
    )


def _wants_copy(view: ZoneView, partition: PartitionId, node: NodeId) -> bool:
    report = view.report(partition, node)
    if report is None:
        return False
    # One that is done was another copy: the log has been trimmed, or the data lost, since then.
    return report.copy is None or bool(report.copy.error) or report.copy.done


def _without_lost_data(
    view: ZoneView, partition: PartitionId, record: LeaderAndIsr
) -> LeaderAndIsr | None:
    """Return the record without members that came back empty: they must never lead.

    A leader that nobody can replace, or nobody may while the zone is paused, stays one in name.
    """
    lost = without_data(view, partition, among=(*record.isr, *record.eligible))
    if not lost:
        return None
    steps: list[Step] = [lambda r: routes.drop_lost(r, lost - {r.leader})]
    if record.leader in lost and not view.hands_off:
        steps.insert(0, lambda r: _replaced(view, partition, r, lost))
    elif record.next_leader in lost:
        # What it was to take over it no longer has. Should it have led for a moment, then every
        # row that it acknowledged is on the other members, the old leader among them.
        steps.insert(0, route_leaders.roll_back_takeover)
    return _changed(combine(record, view.coordinator_epoch, *steps))


def _replaced(
    view: ZoneView, partition: PartitionId, record: LeaderAndIsr, lost: frozenset[NodeId]
) -> routes.Answer:
    """Return the record with another leader than the one that lost its data, if there is one."""
    able = able_to_lead(view, partition)
    barred = uncompared(view, partition, record)
    return failed_over(view, partition, record) or route_leaders.elect_eligible(
        record, able, lost, view.coordinator_epoch, barred=barred
    )


def _changed(answer: routes.Answer | None) -> LeaderAndIsr | None:
    """Return the record of an answer, None for a refusal.

    A refusal is no error here: what stands in the way (a takeover) ends by itself.
    """
    return answer if isinstance(answer, LeaderAndIsr) else None


def _adjusted(view: ZoneView, partition: PartitionId, record: LeaderAndIsr) -> LeaderAndIsr | None:
    report = view.report(partition, record.leader)
    if report is None or report.role is not Role.LEADER or report.proposal is None:
        return None
    joining = set(report.proposal.new_isr) - set(record.isr)
    if without_data(view, partition, among=joining):
        # One of the two reports is old. `_without_lost_data` would drop it again in the next pass.
        return None
    return _changed(_answer(view, record, report.proposal))


def _answer(view: ZoneView, record: LeaderAndIsr, proposal: IsrProposal) -> routes.Answer:
    if _would_go_alone(view, record, proposal):
        why = f"only nodes {list(proposal.new_isr)} would be left, which are about to stop"
        return routes.Refusal(routes.RefusalReason.LEAVING, why)
    answer = routes.adjust_isr(record, proposal, view.coordinator_epoch, minimum=view.min_in_sync)
    if answer is record and proposal.partition_epoch == record.partition_epoch:
        answer = routes.confirm(record, view.coordinator_epoch)
    return answer


def refused_proposals(view: ZoneView) -> tuple[RefuseProposal, ...]:
    """Return what tells leaders that their proposals are refused, and why (HS-05).

    A leader that has said in its report that it knows is not told again. The proposal stands in the
    report and is looked at in each pass: what it was refused for may end.
    """
    found = []
    for partition, record in view.routes.items():
        report = view.report(partition, record.leader)
        if report is None or report.role is not Role.LEADER or report.proposal is None:
            continue
        answer = _answer(view, record, report.proposal)
        if isinstance(answer, routes.Refusal) and answer.reason != report.proposal_error:
            found.append(
                RefuseProposal(
                    partition=partition,
                    node=record.leader,
                    proposal=report.proposal,
                    state=record,
                    reason=answer.reason,
                    message=answer.message,
                ),
            )
    return tuple(found)


def _would_go_alone(view: ZoneView, record: LeaderAndIsr, proposal: IsrProposal) -> bool:
    """Return whether a set would be left to nodes that are about to stop, though others are there.

    What only they acknowledge from then on goes with them, for good if their disks do. Writes wait
    instead, until one of the others leads: at the latest when the pods have stopped.
    """
    kept = [view.nodes.get(node) for node in proposal.new_isr]
    if not all(seen is not None and seen.leaving for seen in kept):
        return False
    dropped = [view.nodes.get(node) for node in set(record.isr) - set(proposal.new_isr)]
    return any(seen is not None and seen.reachable and not seen.leaving for seen in dropped)


def _opened(view: ZoneView, partition: PartitionId, record: LeaderAndIsr) -> LeaderAndIsr | None:
    """Return a new partition's record with its second epoch, once all its replicas are open.

    A node opens a replica of a record's first epoch as empty and in sync. It may do so only once:
    if it lost its disk and opened again under that epoch, it would lead without the rows that its
    peers have acknowledged. Of a partition that begins again (`routes.begin_again`) what is
    reported in an epoch before is what is still to be deleted.
    """
    if record.partition_epoch > FIRST_PARTITION_EPOCH:
        return None
    reports = [view.report(partition, node) for node in record.replicas]
    if any(seen is None or seen.leader_epoch < record.leader_epoch for seen in reports):
        return None
    return _changed(routes.confirm(record, view.coordinator_epoch))


def _settled(view: ZoneView, record: LeaderAndIsr) -> LeaderAndIsr | None:
    after = routes.settle_eligible(record, view.min_in_sync, view.coordinator_epoch)
    return None if after is record else _changed(after)


def _failed_over(
    view: ZoneView, partition: PartitionId, record: LeaderAndIsr, now: datetime
) -> LeaderAndIsr | None:
    if view.hands_off or not is_to_go(view, partition, record, now):
        return None
    if record.next_leader is not None and record.next_leader in able_to_lead(view, partition):
        # An authorized takeover is brought to its end by its migration, which knows how far it has
        # come (RM-05), or by `handover`.
        return None
    return failed_over(view, partition, record)


def failed_over(
    view: ZoneView, partition: PartitionId, record: LeaderAndIsr
) -> LeaderAndIsr | None:
    """Return the record led by another in-sync replica that is able to, None without one (B-06).

    A copy that nobody has compared never leads by itself, also where nobody else can (B-04): who
    was its source may come back, or a person decides (`lost_quorum`).
    """
    return route_leaders.fail_over(
        record,
        able_to_lead(view, partition) - {record.leader},
        view.coordinator_epoch,
        minimum=view.min_in_sync,
        avoid=about_to_go(view) | _not_verified(view, partition, record),
        barred=uncompared(view, partition, record),
        candidates=_candidates(view, partition, record),
    )


def is_to_go(view: ZoneView, partition: PartitionId, record: LeaderAndIsr, now: datetime) -> bool:
    """Return whether another leader is to be chosen.

    At once when too few in-sync replicas hear it, and others could commit in its place. Apart from
    that a leader that answers stays, and one that does not stays for as long as others hear it:
    what a healthy quorum does is not undone by who cannot see it (NW-02). Where nobody is known to
    be better off the operator may be the one that is cut off, and waits twice as long when it
    suspects that.
    """
    leader = view.nodes.get(record.leader)
    if leader is None or leader.lost or has_failed(view, partition, record.leader):
        return True
    if not _lease_over(leader.unreachable_since, view, now):
        alone = hearing.is_alone(view, partition, record, now)
        return alone and bool(_candidates(view, partition, record))
    hear, deaf = hearing.followers(view, partition, record)
    if _candidates(view, partition, record):
        return bool(deaf) or not hear
    if hear or hearing.heard_by(view, record.leader):
        return False
    waits = 2 if hearing.suspects_itself(view) else 1
    return _lease_over(leader.unreachable_since, view, now, times=waits)


def _candidates(
    view: ZoneView, partition: PartitionId, record: LeaderAndIsr
) -> dict[NodeId, frozenset[NodeId]]:
    """Return who could surely commit in the leader's place, each with those that hear it."""
    others = able_to_lead(view, partition) & {*record.isr} - {record.leader}
    found = hearing.companies(view, others, view.min_in_sync)
    barred = uncompared(view, partition, record)
    return {node: company for node, company in found.items() if node not in barred}


def _not_verified(
    view: ZoneView, partition: PartitionId, record: LeaderAndIsr
) -> frozenset[NodeId]:
    """Return replicas that have joined by the log alone, and were not found to equal their leader.

    A hot standby of a move may be one. They lead only where nobody else can.
    """
    return frozenset(
        node
        for node in record.isr
        if was_copied(view, partition, node) and not is_verified(view, partition, record, node)
    )


def without_data(
    view: ZoneView, partition: PartitionId, *, among: Iterable[NodeId]
) -> frozenset[NodeId]:
    """Return those of the nodes that answer and say that they lack the partition's rows."""
    found = view.without_data.get(partition)
    return found.intersection(among) if found else frozenset()


def able_to_lead(view: ZoneView, partition: PartitionId) -> frozenset[NodeId]:
    """Return the partition's replicas that answer and say that they have its rows.

    A member of the in-sync set that answers but has no replica has lost its disk, and has not
    been told yet what it had. Were it made the leader, nobody with the rows would be in sync.
    Who has failed cannot write until its replica is open again.
    """
    replicas = view.routes[partition].replicas
    reports = ((node, view.report(partition, node)) for node in replicas)
    return frozenset(
        n for n, seen in reports if seen and not seen.needs_snapshot and not seen.failed
    )


def has_failed(view: ZoneView, partition: PartitionId, node: NodeId) -> bool:
    """Return whether a node says that its replica can neither lead nor follow for now (NW-04)."""
    report = view.report(partition, node)
    return report is not None and report.failed


def about_to_go(view: ZoneView) -> frozenset[NodeId]:
    """Return the nodes that will give up what they lead: such a leader would soon move again."""
    return frozenset(
        node
        for node, seen in view.nodes.items()
        if seen.leaving or seen.draining or seen.maintenance
    )


def lease_ends_in(view: ZoneView, now: datetime) -> float:
    """Return after how many seconds the next silent node's lease is over, once or twice.

    Nothing else may happen until then: what is to be done at that moment needs a clock to wake it.
    """
    left = (
        view.leader_lease_seconds * times - (now - seen.unreachable_since).total_seconds()
        for seen in view.nodes.values()
        if seen.unreachable_since is not None
        for times in (1, 2)
    )
    return min((seconds for seconds in left if seconds > 0), default=math.inf)


def _lease_over(
    silent_since: datetime | None, view: ZoneView, now: datetime, *, times: int = 1
) -> bool:
    if silent_since is None:
        return False
    return now - silent_since >= timedelta(seconds=view.leader_lease_seconds * times)
