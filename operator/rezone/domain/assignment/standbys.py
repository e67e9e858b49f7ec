"""Hot standbys in steady state: which replicas stay ready to lead when nothing moves (B-06).

A zone asks for a number of hot standbys per partition. Its coordinator picks them from the in-sync
followers: in failure domains where neither the leader nor another standby is, then on nodes with
few standbys. They are made one after the other, as the route has room for one that is not in
`iss` yet (HS-01). One that falls out of `iss` is nobody's standby any more, and another follows.

A partition that something moves is left alone: a move makes the standby that it needs itself. One
that is sealed needs none any more, and those of the next layout have theirs before they serve. One
whose replicas are not all open yet is left alone, too: a leader that hears of a later epoch first
takes its empty replica for one that lost its rows, and can never open it.
"""

from collections import Counter
from collections.abc import Collection, Iterable

from rezone.domain.model.changes import change_of
from rezone.domain.model.world import RouteChange, ZoneView
from rezone.domain.routing import routes
from rezone.wire.messages import FIRST_PARTITION_EPOCH, LeaderAndIsr, NodeId, PartitionId


def standby_changes(view: ZoneView) -> tuple[RouteChange, ...]:
    """Return the changes that bring partitions at rest closer to `view.hot_standbys`."""
    if view.hands_off:
        return ()
    moving = {m.partition for m in view.migrations if not m.terminal}
    load = Counter(node for record in view.routes.values() for node in routes.hot_standbys(record))
    changes = []
    for partition, record in view.routes.items():
        if partition in moving or record.sealed or _is_moving(view, partition, record):
            continue
        if record.partition_epoch == FIRST_PARTITION_EPOCH:
            continue
        change = _change(view, partition, record, load)
        if change is not None:
            before, after = routes.hot_standbys(record), routes.hot_standbys(change.state)
            load.subtract(before)
            load.update(after)
            changes.append(change)
    return tuple(changes)


def _is_moving(view: ZoneView, partition: PartitionId, record: LeaderAndIsr) -> bool:
    leader = view.nodes.get(record.leader)
    if record.next_leader is not None:
        return True
    if leader is not None and (leader.leaving or leader.maintenance):
        return True
    target = view.target(partition)
    # A task may also only bring the leader back to where it belongs.
    return target is not None and (target != view.assigned(partition) or target[0] != record.leader)


def _change(
    view: ZoneView, partition: PartitionId, record: LeaderAndIsr, load: Counter[NodeId]
) -> RouteChange | None:
    hot = routes.hot_standbys(record)
    if not hot and not view.hot_standbys:
        return None
    able = {n for n in record.isr if _can_stand_by(view, partition, record, n)}
    kept = {n for n in hot if n in record.iss or n in able}
    rank = _Rank(view, record, able, load)
    epoch = view.coordinator_epoch
    if len(kept) >= view.hot_standbys:
        # Nobody waits for one that cannot become hot; left in the record it would be taken later.
        gone = hot - set(rank.best(kept, view.hot_standbys))
        return change_of(partition, record, epoch, lambda r: routes.drop_hot_standbys(r, gone))
    if kept <= set(record.iss) and able - kept:
        (chosen,) = rank.best(able - kept, 1, beside=kept)
        return change_of(partition, record, epoch, lambda r: routes.set_hot_standby(r, chosen))
    return None


def _can_stand_by(
    view: ZoneView, partition: PartitionId, record: LeaderAndIsr, node: NodeId
) -> bool:
    """Return whether a node has all rows, answers, and is to stay."""
    seen, report = view.nodes.get(node), view.report(partition, node)
    if node == record.leader or node not in record.isr or seen is None or seen.draining:
        return False
    if seen.lost or seen.maintenance:
        return False
    return report is not None and not report.needs_snapshot


class _Rank:
    """Which replicas of a partition are better standbys than others."""

    def __init__(
        self,
        view: ZoneView,
        record: LeaderAndIsr,
        able: Collection[NodeId],
        load: Counter[NodeId],
    ) -> None:
        self._view = view
        self._record = record
        self._able = able
        self._load = load

    def best(
        self, nodes: Iterable[NodeId], count: int, beside: Iterable[NodeId] = ()
    ) -> list[NodeId]:
        """Return up to `count` of the nodes; each is chosen for a domain that is not used yet."""
        used = {self._domain(node) for node in (self._record.leader, *beside)}
        left, chosen = set(nodes), list[NodeId]()
        while left and len(chosen) < count:
            node = min(left, key=lambda n: self._cost(n, used))
            left.remove(node)
            chosen.append(node)
            used.add(self._domain(node))
        return chosen

    def _cost(self, node: NodeId, used: set[str]) -> tuple[bool, bool, bool, int, NodeId]:
        return (
            node not in self._able,
            self._domain(node) in used,
            node not in self._record.iss,
            self._load[node],
            node,
        )

    def _domain(self, node: NodeId) -> str:
        seen = self._view.nodes.get(node)
        return seen.failure_domain if seen is not None else ""
