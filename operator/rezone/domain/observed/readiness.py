"""Whether a replica may be trusted with more: reachable, close to its leader, verified.

The rules that both machines ask before a leader moves.
"""

from datetime import datetime

from rezone.domain.model.world import Action, NodeView, VerifyCopy, ZoneView
from rezone.domain.observed.hearing import heard_by
from rezone.wire.messages import (
    IndexPosition,
    LeaderAndIsr,
    NodeId,
    PartitionId,
    ReplicaReport,
)

CLOSE_ROWS = 1000
"""DCP-06: a candidate that is fewer rows behind is almost up to date."""

COMPARISONS_MAX = 64
"""How many comparisons are asked for in one pass; each reads a whole partition on two nodes."""


def node_is_gone(view: ZoneView, node: NodeId, now: datetime) -> bool:
    """Return whether a node has been unreachable for longer than a leader's lease lasts.

    Only then is it certain that a leader on it no longer answers reads alone (RM-04).
    """
    seen: NodeView | None = view.nodes.get(node)
    if seen is None or seen.lost:
        return True
    if seen.reachable or seen.unreachable_since is None:
        return False
    return (now - seen.unreachable_since).total_seconds() > view.leader_lease_seconds


def leader_is_gone(view: ZoneView, node: NodeId, now: datetime) -> bool:
    """Return whether a leader's node is gone, and no data node hears it either (NW-02)."""
    return node_is_gone(view, node, now) and not heard_by(view, node)


def is_reachable(view: ZoneView, node: NodeId) -> bool:
    """Return whether a node answers."""
    seen = view.nodes.get(node)
    return seen is not None and seen.reachable


def leader_knows(view: ZoneView, partition: PartitionId) -> bool:
    """Return whether a partition's leader has the newest record, as far as it can be asked.

    Only then is a replica stopped that the record no longer names: with an older record the leader
    waits for it with every write, for as long as no coordinator tells it the newer one (B-09).
    """
    record = view.routes[partition]
    report = view.report(partition, record.leader)
    known = (record.leader_epoch, record.partition_epoch)
    return report is None or (report.leader_epoch, report.partition_epoch) >= known


def lag_rows(
    view: ZoneView,
    partition: PartitionId,
    record: LeaderAndIsr,
    node: NodeId,
) -> int | None:
    """Return how many rows a replica's engine is behind its leader, None when it is unknown.

    The leader's own word on the follower is preferred: both offsets are then of one moment.
    Reports of two nodes are milliseconds apart, which at 30,000 rows/s is a gap that is none.
    """
    leader = view.report(partition, record.leader)
    report = view.report(partition, node)
    if leader is None or report is None:
        return None
    applied = max(leader.follower_applied.get(node, 0), report.kv_applied_offset)
    return max(0, leader.log_end_offset - applied)


def is_close(
    view: ZoneView,
    partition: PartitionId,
    record: LeaderAndIsr,
    node: NodeId,
) -> bool:
    """Return whether a takeover would have little left to do (DCP-06, DCP-08, HS-08)."""
    return not why_not_close(view, partition, record, node)


def why_not_close(
    view: ZoneView,
    partition: PartitionId,
    record: LeaderAndIsr,
    node: NodeId,
) -> str:
    """Return what a takeover would have to wait for, empty when it is close (B-14)."""
    if node not in record.iss:
        lag = lag_rows(view, partition, record, node)
        if lag is None or lag >= CLOSE_ROWS:
            return f"node {node} applies the log to its engine"
    return _why_not_indexed(view, partition, record.leader, node)


def _why_not_indexed(view: ZoneView, partition: PartitionId, leader: NodeId, node: NodeId) -> str:
    """Return what a replica's index lacks of its leader's, empty when that is little (DCP-08).

    A leader that makes its own index again has nothing that another one could lack.
    """
    theirs, own = view.report(partition, leader), view.report(partition, node)
    if theirs is None or theirs.index is None or not theirs.index.offset:
        return ""
    if own is None or own.index is None:
        return f"node {node} has said nothing of its index"
    missing = theirs.index.offset - own.index.offset
    if missing >= CLOSE_ROWS:
        return f"node {node}'s index is {missing} rows behind node {leader}'s"
    if own.index.partition_uuid != theirs.index.partition_uuid:
        return f"node {node}'s index is of another history than node {leader}'s"
    return _why_not_built(view, node, own, theirs.index)


def _why_not_built(
    view: ZoneView, node: NodeId, report: ReplicaReport, theirs: IndexPosition
) -> str:
    """Return which of the zone's indexes the leader has built and this replica has not."""
    own = report.index.built if report.index is not None else ()
    percents = {build.index: build.percent for build in report.index_builds}
    for index, name in view.indexes.items():
        if index in theirs.built and index not in own:
            return f"node {node} has built {percents.get(index, 0)} % of index {name}"
    return ""


def was_copied(view: ZoneView, partition: PartitionId, node: NodeId) -> bool:
    """Return whether a replica was made by a copy, so that B-04 asks for its verification.

    A replica of the stable assignment has been verified before that was written, one of a new
    layout began empty, and one that is kept has led; unless it has lost its data since, and says
    that it was copied again.
    """
    if is_uncompared(view, partition, node):
        return True
    assigned = view.assigned(partition)
    if assigned is None or node in assigned:
        return False
    return all((each.partition, each.node) != (partition, node) for each in view.retained)


def wants_comparison(
    view: ZoneView, partition: PartitionId, record: LeaderAndIsr, node: NodeId
) -> bool:
    """Return whether a copy must be compared with the leader before it may lead (B-04)."""
    return was_copied(view, partition, node) and not is_verified(view, partition, record, node)


def is_uncompared(view: ZoneView, partition: PartitionId, node: NodeId) -> bool:
    """Return whether a replica says that nobody has compared the copy that it is (B-04)."""
    report = view.report(partition, node)
    return report is not None and bool(report.uncompared)


def uncompared(view: ZoneView, partition: PartitionId, record: LeaderAndIsr) -> frozenset[NodeId]:
    """Return the replicas that must not lead: copies that were not compared, or differ (B-04).

    By what their data nodes have on disk, so a coordinator that has just begun knows it too.
    """
    nodes = (*record.isr, *record.eligible)
    return frozenset(node for node in nodes if is_uncompared(view, partition, node))


def comparisons(view: ZoneView) -> tuple[Action, ...]:
    """Return the comparisons of copies in sync that nobody has compared yet, whoever made them."""
    return tuple(
        verification(partition, record, node)
        for node, seen in view.nodes.items()
        if seen.reachable
        for partition, report in seen.replicas.items()
        if report.uncompared
        and not report.needs_snapshot
        and (record := view.routes.get(partition)) is not None
        and node in record.isr
        and node != record.leader
        and view.leader_report(partition) is not None
        and not is_mismatched(view, partition, record, node)
    )[:COMPARISONS_MAX]


def is_verified(
    view: ZoneView,
    partition: PartitionId,
    record: LeaderAndIsr,
    node: NodeId,
) -> bool:
    """Return whether a copy equalled its source under the present leader (B-04)."""
    return (partition, node, record.leader_epoch) in view.verified


def comparing(view: ZoneView, partition: PartitionId, record: LeaderAndIsr, node: NodeId) -> str:
    """Return which copy is compared with what, and why that has not come to an end yet (B-14)."""
    pair = f"node {node} against node {record.leader}"
    why = view.not_compared.get((partition, node, record.leader_epoch))
    return f"{pair}, so far in vain: {why}" if why else pair


def is_mismatched(
    view: ZoneView,
    partition: PartitionId,
    record: LeaderAndIsr,
    node: NodeId,
) -> bool:
    """Return whether a copy was found to differ from its source: it must never lead."""
    return (partition, node, record.leader_epoch) in view.mismatched


def verification(partition: PartitionId, record: LeaderAndIsr, node: NodeId) -> Action:
    """Return the action that verifies a copy against the present leader."""
    return VerifyCopy(
        partition=partition,
        source=record.leader,
        target=node,
        leader_epoch=record.leader_epoch,
    )
