"""Who hears whom: what the data nodes say of each other beside what the coordinator hears (NW-02).

The coordinator is one observer of many. A data node is gone when neither it nor the data nodes that
it reaches hear it; a leader that its in-sync followers hear keeps leading. Who takes over must be
heard by as many of the in-sync set as may commit, where that is known (NW-03): else writes would
wait there as well, and leadership would move on without end. Nodes of older versions say nothing,
and nothing is concluded from that.
"""

from collections.abc import Collection
from datetime import datetime, timedelta

from rezone.domain.model.world import NodeView, ZoneView
from rezone.wire.messages import LeaderAndIsr, NodeId, PartitionId, ReplicaReport

STEADY_SECONDS = 3.0
"""How long a node answers before what others do not hear of it counts: they connect again first."""


def heard_by(view: ZoneView, node: NodeId) -> tuple[NodeId, ...]:
    """Return the data nodes that have just said that they hear a node."""
    return tuple(
        other
        for other, seen in sorted(view.nodes.items())
        if other != node and seen.fresh and node in (seen.hears or ())
    )


def followers(
    view: ZoneView, partition: PartitionId, record: LeaderAndIsr
) -> tuple[frozenset[NodeId], frozenset[NodeId]]:
    """Return the in-sync followers that hear the record's leader, and those that do not.

    Those that say nothing of it, or follow by another record, are in neither. Where a leader does
    not answer the coordinator, and all that hear it hear heartbeats alone, it serves nobody, and
    they count as those that do not hear it.
    """
    leader = view.nodes.get(record.leader)
    said = _said(view, partition, record)
    hear = frozenset(node for node, report in said.items() if report.leader_heard)
    stalled = all(said[node].leader_stalled for node in hear)
    if leader is not None and not leader.reachable and stalled:
        return frozenset[NodeId](), frozenset(said)
    return hear, frozenset(said) - hear


def _said(
    view: ZoneView, partition: PartitionId, record: LeaderAndIsr
) -> dict[NodeId, ReplicaReport]:
    """Return what in-sync followers have just said that follow by this record."""
    reports = {}
    for node in record.isr:
        seen = view.nodes.get(node)
        report = seen.replicas.get(partition) if seen is not None and seen.fresh else None
        if report is None or report.leader_heard is None or node == record.leader:
            continue
        if (report.leader, report.leader_epoch) == (record.leader, record.leader_epoch):
            reports[node] = report
    return reports


def is_alone(view: ZoneView, partition: PartitionId, record: LeaderAndIsr, now: datetime) -> bool:
    """Return whether too few in-sync replicas hear a leader for it to commit, and will not soon.

    Who has begun to answer the coordinator connects to its peers first: the leader, if it answers,
    or else those that do not hear it.
    """
    said = _said(view, partition, record)
    deaf = [node for node, report in said.items() if not report.leader_heard]
    if len(record.isr) - len(deaf) >= view.min_in_sync:
        return False
    leader = view.nodes.get(record.leader)
    connecting = [record.leader] if leader is not None and leader.fresh else deaf
    return all(answers_steadily(view.nodes.get(node), now) for node in connecting)


def is_led(view: ZoneView, partition: PartitionId, record: LeaderAndIsr) -> bool:
    """Return whether in-sync followers hear a leader that the coordinator does not."""
    hear, deaf = followers(view, partition, record)
    return bool(hear) and not deaf


def companies(
    view: ZoneView, nodes: Collection[NodeId], minimum: int
) -> dict[NodeId, frozenset[NodeId]]:
    """Return who could commit as a leader: each with those of `nodes` that hear it, and itself.

    Only who has at least `minimum`. Both of a pair must have said so just now, so that links that
    let frames pass one way do not count.
    """
    told: dict[NodeId, frozenset[NodeId]] = {}
    for node in nodes:
        seen = view.nodes.get(node)
        if seen is not None and seen.fresh and seen.hears is not None:
            told[node] = seen.hears
    found = {
        node: frozenset((node, *(n for n, theirs in told.items() if n in hears and node in theirs)))
        for node, hears in told.items()
    }
    return {node: company for node, company in found.items() if len(company) >= minimum}


def unreached(view: ZoneView) -> str:
    """Return which data nodes the coordinator does not reach although others hear them, for people.

    When it hears few it says that it may be cut off itself, whether others are heard or not.
    """
    silent = [node for node, seen in sorted(view.nodes.items()) if seen.unreachable_since]
    witnesses = {node: heard_by(view, node) for node in silent}
    parts = [
        f"data node {node} is not reached by the operator, heard by {_named(others)}"
        for node, others in witnesses.items()
        if others
    ]
    if suspects_itself(view):
        reached = sum(seen.reachable for seen in view.nodes.values())
        parts.insert(
            0, f"the operator reaches {reached} of {len(view.nodes)} data nodes, and may be cut off"
        )
    return "; ".join(parts)


def _named(nodes: Collection[NodeId]) -> str:
    return f"{'node' if len(nodes) == 1 else 'nodes'} {', '.join(map(str, nodes))}"


def answers_steadily(seen: NodeView | None, now: datetime) -> bool:
    """Return whether a node has answered for so long that its peers would hear it by now."""
    if seen is None or not seen.fresh or seen.answers_since is None:
        return False
    return now - seen.answers_since >= timedelta(seconds=STEADY_SECONDS)


def suspects_itself(view: ZoneView) -> bool:
    """Return whether the coordinator hears so few data nodes that it may be cut off itself."""
    expected = [seen for seen in view.nodes.values() if not seen.lost]
    silent = sum(seen.unreachable_since is not None for seen in expected)
    return silent * 2 > len(expected)


def steady_in(view: ZoneView, now: datetime) -> float:
    """Return after how many seconds the next node answers steadily, infinity without one."""
    ages = (now - s.answers_since for s in view.nodes.values() if s.answers_since is not None)
    left = (STEADY_SECONDS - age.total_seconds() for age in ages)
    return min((seconds for seconds in left if seconds > 0), default=float("inf"))
