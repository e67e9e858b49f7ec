"""Where every partition of a rebalance stands, found out in one walk over the routes.

A zone has up to 16,384 partitions and is looked at each time something changes, so this is one
loop with little work for the partitions that are done, and it is done once a pass.
"""

import collections
import dataclasses
import enum
from collections.abc import Iterable

from rezone.domain import routes
from rezone.domain.changes import change_of
from rezone.domain.readiness import comparing, is_close
from rezone.domain.world import Copy, RouteChange, Topology, ZoneView
from rezone.resources.conditions import Reason
from rezone.wire.layouts import index_of
from rezone.wire.messages import LeaderAndIsr, NodeId, PartitionId, ReplicaReport


class Wait(enum.StrEnum):
    """Why a partition does not advance (B-14), in the order in which they are told."""

    UNREACHABLE = "Unreachable"  # a data node that it needs does not answer
    NO_LEADER = "NoLeader"  # nobody can be copied from
    OPENING = "Opening"  # a new replica is not open yet
    COPYING = "Copying"  # a snapshot is under way or waits for its turn
    CATCHING_UP = "CatchingUp"  # a replica follows the log and is not in sync yet
    VERIFYING = "Verifying"  # a copy is being compared with its source
    STUCK = "Stuck"  # its migrations have failed too often
    NAME_TAKEN = "NameTaken"  # its migration's name is another object's
    LIMIT = "Limit"  # maxConcurrentMigrations, maxMigrationsPerNode or maxConcurrentHandovers
    SWITCHING = "Switching"  # its leader is being moved
    STOPPING = "Stopping"  # a replica that is no longer assigned has not stopped yet


_BLOCKED = {Wait.STUCK: Reason.FAILED, Wait.NAME_TAKEN: Reason.NAME_TAKEN}
"""What somebody else has to mend, the graver first."""


class Reasons:
    """How many partitions wait for what, with one example each."""

    def __init__(self) -> None:
        self._counts: collections.Counter[Wait] = collections.Counter()
        self._first: dict[Wait, str] = {}

    def add(self, wait: Wait, partition: PartitionId, why: str) -> None:
        """Count one partition; the first of each kind is the example."""
        self._counts[wait] += 1
        if wait not in self._first:
            self._first[wait] = f"partition {index_of(partition)}: {why}"

    def text(self) -> str:
        """Return the whole in words, "" when nothing waits; it begins with the first kind."""
        parts = [
            f"{wait}: {self._counts[wait]} ({self._first[wait]})"
            for wait in Wait
            if wait in self._first
        ]
        return "; ".join(parts)

    @property
    def only_stopping(self) -> bool:
        """Return whether nothing is waited for but replicas that no route has any more."""
        return set(self._counts) <= {Wait.UNREACHABLE, Wait.STOPPING}

    @property
    def blocked(self) -> Reason | None:
        """Return why a person must act, None when nobody must."""
        return next((reason for wait, reason in _BLOCKED.items() if wait in self._first), None)


@dataclasses.dataclass(frozen=True)
class Needed:
    """Replicas of one partition that need a snapshot from its leader."""

    copy: Copy
    bytes_estimate: int
    started: bool


@dataclasses.dataclass
class Survey:
    """What the walk found; `done` partitions are led by their first node, with all in sync."""

    partitions: int
    done: int = 0
    copies_total: int = 0
    copies_done: int = 0
    leaders_total: int = 0
    leaders_done: int = 0
    bytes_total: int = 0
    bytes_done: int = 0
    out_of_sync: int = 0
    undecided: int = 0
    unopened: int = 0
    unassigned: int = 0
    lost: list[NodeId] = dataclasses.field(default_factory=list)
    changes: list[RouteChange] = dataclasses.field(default_factory=list)
    needed: list[Needed] = dataclasses.field(default_factory=list)
    unverified: list[tuple[PartitionId, NodeId]] = dataclasses.field(default_factory=list)
    mismatched: list[tuple[PartitionId, NodeId]] = dataclasses.field(default_factory=list)
    ready: list[PartitionId] = dataclasses.field(default_factory=list)
    reasons: Reasons = dataclasses.field(default_factory=Reasons)


def survey(view: ZoneView, source: Topology, target: Topology) -> Survey:
    """Return where the partitions stand on their way from `source` to `target`."""
    found = Survey(partitions=len(target))
    wanted = {n for nodes in target for n in nodes}
    found.lost = sorted(n for n in wanted if n not in view.nodes or view.nodes[n].lost)
    for partition, old, new in zip(view.layout.ids, source, target, strict=True):
        record = view.routes[partition]
        at_target = record.leader == new[0] and set(new) <= set(record.isr)
        if old == new and at_target:
            found.done += 1
            continue
        added = [n for n in new if n not in old] if old != new else []
        _count(found, view, partition, record, (old, new, added))
        if at_target and (not added or old[0] != new[0]):
            # Its copies were verified before the leader moved to one side of them.
            found.done += 1
            continue
        _look(found, view, partition, record, (old, new, added))
    return found


_Nodes = tuple[NodeId, ...]
_Move = tuple[_Nodes, _Nodes, list[NodeId]]


def _count(
    found: Survey,
    view: ZoneView,
    partition: PartitionId,
    record: LeaderAndIsr,
    move: _Move,
) -> None:
    old, new, added = move
    if old[0] != new[0]:
        found.leaders_total += 1
        found.leaders_done += record.leader == new[0]
    if not added:
        return
    leader = view.report(partition, record.leader)
    size = leader.bytes_estimate if leader is not None else 0
    for node in added:
        found.copies_total += 1
        found.bytes_total += size
        if node in record.isr:
            found.copies_done += 1
            found.bytes_done += size
            continue
        report = view.report(partition, node)
        if report is not None and report.copy is not None:
            found.bytes_done += min(report.copy.bytes, size)


def _look(
    found: Survey,
    view: ZoneView,
    partition: PartitionId,
    record: LeaderAndIsr,
    move: _Move,
) -> None:
    _old, new, added = move
    change = _route_change(view, partition, record, new, added=bool(added))
    if change is not None:
        found.changes.append(change)
    found.unassigned += any(n not in record.replicas for n in new)
    missing = [n for n in new if n not in record.isr]
    if missing:
        found.out_of_sync += 1
        _look_at_missing(found, view, partition, record, missing)
        return
    copied = [n for n in added if n != record.leader]
    epoch = record.leader_epoch
    wrong = [n for n in copied if (partition, n, epoch) in view.mismatched]
    found.mismatched += [(partition, n) for n in wrong]
    unverified = [n for n in copied if (partition, n, epoch) not in view.verified]
    if unverified:
        found.unverified += [(partition, n) for n in unverified]
        why = comparing(view, partition, record, unverified[0])
        found.reasons.add(Wait.VERIFYING, partition, why)
    elif record.leader != new[0]:
        if view.report(partition, new[0]) is None:
            # A migration to it would fail at once, and too many failed ones need a person.
            found.reasons.add(*_not_open(view, partition, new[0]))
        else:
            found.ready.append(partition)
    else:
        found.done += 1


def _route_change(
    view: ZoneView,
    partition: PartitionId,
    record: LeaderAndIsr,
    new: _Nodes,
    *,
    added: bool,
) -> RouteChange | None:
    """Return HS-06's change: the new nodes join, the next leader becomes the hot standby.

    Where only the leader moves, a replica that is close needs no time as a hot standby before.
    """
    lacks = [n for n in new if n not in record.replicas]
    hot = new[0] == record.leader or new[0] in routes.hot_standbys(record)
    if not added and new[0] in record.isr and is_close(view, partition, record, new[0]):
        hot = True
    if not lacks and hot:
        return None
    return change_of(
        partition,
        record,
        view.coordinator_epoch,
        lambda r: routes.add_replicas(r, lacks),
        lambda r: r if hot else routes.set_hot_standby(r, new[0]),
    )


def _look_at_missing(
    found: Survey,
    view: ZoneView,
    partition: PartitionId,
    record: LeaderAndIsr,
    missing: list[NodeId],
) -> None:
    leader = view.report(partition, record.leader)
    need: list[NodeId] = []
    started = False
    wait, why = Wait.CATCHING_UP, f"node {missing[0]} behind node {record.leader}"
    for node in missing:
        report = view.report(partition, node)
        if report is None:
            found.unopened += 1
            wait, _, why = _not_open(view, partition, node)
        elif report.needs_snapshot:
            need.append(node)
            started = started or _is_copying(report)
            if report.copy is not None and report.copy.error:
                why = f"node {node}: {report.copy.error}"
            elif wait is Wait.CATCHING_UP:
                why = f"node {node} from node {record.leader}"
            wait = Wait.COPYING if wait is Wait.CATCHING_UP else wait
        elif leader is not None and leader.log_end_offset and not report.log_end_offset:
            # It has not heard yet whether the log reaches back far enough for it.
            found.undecided += 1
    if need and leader is None:
        wait, why = Wait.NO_LEADER, f"leader {record.leader} does not answer"
    elif need and leader is not None:
        copy = Copy(partition=partition, source=record.leader, targets=tuple(need))
        size = leader.bytes_estimate * len(need)
        found.needed.append(Needed(copy, size, started))
    found.reasons.add(wait, partition, why)


def _not_open(
    view: ZoneView,
    partition: PartitionId,
    node: NodeId,
) -> tuple[Wait, PartitionId, str]:
    seen = view.nodes.get(node)
    if seen is None:
        return Wait.UNREACHABLE, partition, f"data node {node} is not there"
    if not seen.reachable:
        return Wait.UNREACHABLE, partition, f"data node {node} does not answer"
    return Wait.OPENING, partition, f"node {node}"


def _is_copying(report: ReplicaReport) -> bool:
    copy = report.copy
    return copy is not None and not copy.done and not copy.error


def copies(needed: Iterable[Needed]) -> tuple[Copy, ...]:
    """Return the copies of what is needed."""
    return tuple(n.copy for n in needed)
