"""Where every partition of a rebalance stands, found out in one walk over the routes.

A zone has up to 16,384 partitions and is looked at each time something changes, so this is one
loop with little work for the partitions that are done, and it is done once a pass.
"""

import collections
import dataclasses
import enum
from collections.abc import Collection, Iterable

from rezone.domain.model.changes import change_of
from rezone.domain.model.world import Copy, NodeView, RouteChange, ZoneView
from rezone.domain.observed.readiness import comparing, is_close
from rezone.domain.routing import routes
from rezone.domain.routing.topology_text import Topology
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
    NAME_CONFLICT = "NameConflict"  # its migration's name is another object's
    MAINTENANCE = "Maintenance"  # the data node that shall lead it is in maintenance
    LIMIT = "Limit"  # maxConcurrentMigrations, maxMigrationsPerNode or maxConcurrentHandovers
    PULLING_LOG = "PullingLog"  # a copy brings older log that named feeds need
    SWITCHING = "Switching"  # its leader is being moved
    STOPPING = "Stopping"  # a replica that is no longer assigned has not stopped yet


_BLOCKED = {Wait.STUCK: Reason.FAILED, Wait.NAME_CONFLICT: Reason.NAME_CONFLICT}
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
    def left_to_zone(self) -> bool:
        """Return whether the zone brings about by itself what is waited for."""
        return set(self._counts) <= {
            Wait.UNREACHABLE,
            Wait.STOPPING,
            Wait.CATCHING_UP,
            Wait.PULLING_LOG,
        }

    @property
    def blocked(self) -> Reason | None:
        """Return why a person must act, None when nobody must."""
        return next((reason for wait, reason in _BLOCKED.items() if wait in self._first), None)


@dataclasses.dataclass(frozen=True)
class Needed:
    """Replicas of one partition that need a snapshot from its leader.

    `failing`: the last attempt of one has failed, so others go first, and those with a lower
    `after`.
    """

    copy: Copy
    bytes_estimate: int
    started: bool
    failing: bool = False
    after: int = 0


@dataclasses.dataclass
class Survey:
    """What the walk found; `done` partitions are led by their first node, with all in sync.

    Also done are partitions of which a node is lost or a target failed, if they have nothing to do
    with the task or have moved, and those that stay because their targets failed. `moved` are those
    that have moved whole. Of those, `redundant` are in the routes with replicas that they no longer
    need, and `leftover` are such replicas that no route has any more and that have not stopped yet.
    `sizes` are the bytes of each copy. `mismatched` copies differ from their leaders' rows;
    `dropped` ones did, and no route has them any more: they are made again when they have stopped.
    """

    partitions: int
    done: int = 0
    copies_total: int = 0
    copies_done: int = 0
    leaders_total: int = 0
    leaders_done: int = 0
    bytes_total: int = 0
    bytes_done: int = 0
    rows_total: int = 0
    rows_done: int = 0
    sizes: list[int] = dataclasses.field(default_factory=list)
    out_of_sync: int = 0
    undecided: int = 0
    unopened: int = 0
    unassigned: int = 0
    lost: list[NodeId] = dataclasses.field(default_factory=list)
    changes: list[RouteChange] = dataclasses.field(default_factory=list)
    needed: list[Needed] = dataclasses.field(default_factory=list)
    unverified: list[tuple[PartitionId, NodeId]] = dataclasses.field(default_factory=list)
    mismatched: list[tuple[PartitionId, NodeId]] = dataclasses.field(default_factory=list)
    dropped: list[tuple[PartitionId, NodeId]] = dataclasses.field(default_factory=list)
    ready: list[PartitionId] = dataclasses.field(default_factory=list)
    redundant: list[PartitionId] = dataclasses.field(default_factory=list)
    leftover: list[tuple[PartitionId, NodeId]] = dataclasses.field(default_factory=list)
    moved: set[PartitionId] = dataclasses.field(default_factory=set)
    reasons: Reasons = dataclasses.field(default_factory=Reasons)


def survey(
    view: ZoneView,
    source: Topology,
    target: Topology,
    goal: Topology | None = None,
    *,
    given_up: Collection[tuple[PartitionId, NodeId]] = (),
) -> Survey:
    """Return where the partitions stand on their way from `source` to `target`.

    `goal` differs from `target` where partitions stay because their targets failed. `given_up` are
    targets that nobody waits for any more, of partitions that have switched as well.
    """
    goal = target if goal is None else goal
    found = Survey(partitions=len(goal))
    wanted = {n for nodes in goal for n in nodes}
    found.lost = sorted(n for n in wanted if n not in view.nodes or view.nodes[n].lost)
    for partition, old, planned, new in zip(view.layout.ids, source, target, goal, strict=True):
        record = view.routes[partition]
        if new != planned or (found.lost and _lacks_lost(found.lost, record, old, new)):
            added = [n for n in planned if n not in old] if old != planned else []
            _count(found, view, partition, record, (old, planned, added))
            found.done += 1
            continue
        at_target = record.leader == new[0] and set(new) <= set(record.isr)
        if old == new and at_target:
            found.done += 1
            continue
        added = [n for n in new if n not in old] if old != new else []
        _count(found, view, partition, record, (old, new, added))
        failed = any((partition, node) in given_up for node in new)
        if failed and has_switched(record, old, new):
            _complete(found, view, partition, record, (old, new, added))
        elif at_target and (not added or old[0] != new[0]):
            # Its copies were verified before the leader moved to one side of them.
            _done(found, view, partition, record, (old, new, added))
        else:
            _look(found, view, partition, record, (old, new, added))
    return found


def may_lead(seen: NodeView) -> bool:
    """Return whether a node keeps what it leads: not in maintenance, stopping, or its disk full."""
    return not (seen.maintenance or seen.leaving)


def has_switched(record: LeaderAndIsr, old: tuple[NodeId, ...], new: tuple[NodeId, ...]) -> bool:
    """Return whether a partition is led as planned, or has given an old replica up."""
    there = set(record.replicas)
    led_again = record.leader == new[0] != old[0]
    return old != new and set(new) <= there and (led_again or not set(old) <= there)


def _lacks_lost(
    lost: list[NodeId],
    record: LeaderAndIsr,
    old: tuple[NodeId, ...],
    new: tuple[NodeId, ...],
) -> bool:
    """Return whether a partition lacks lost nodes alone, which are not this task's to replace."""
    if not any(node in new for node in lost):
        return False
    return old == new or has_switched(record, old, new)


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
    rows, size = size_of(view, partition, record)
    for node in added:
        found.copies_total += 1
        found.rows_total += rows
        found.bytes_total += size
        found.sizes.append(size)
        if node in record.isr:
            found.copies_done += 1
            found.rows_done += rows
            found.bytes_done += size
            continue
        report = view.report(partition, node)
        if report is not None and report.copy is not None:
            found.rows_done += min(report.copy.rows, rows)
            found.bytes_done += min(report.copy.bytes, size)


def size_of(view: ZoneView, partition: PartitionId, record: LeaderAndIsr) -> tuple[int, int]:
    """Return the rows and bytes that the leader estimates, or a follower while it is silent."""
    for node in (record.leader, *record.isr):
        report = view.report(partition, node)
        if report is not None and report.bytes_estimate:
            return report.rows_estimate, report.bytes_estimate
    return 0, 0


def _look(
    found: Survey,
    view: ZoneView,
    partition: PartitionId,
    record: LeaderAndIsr,
    move: _Move,
) -> None:
    _old, new, added = move
    dropped = [n for n in new if _is_dropped(view, partition, record, n)]
    if dropped:
        found.out_of_sync += 1
        found.dropped += [(partition, n) for n in dropped]
        why = f"node {dropped[0]}: its copy differed and is made again"
        found.reasons.add(Wait.COPYING, partition, why)
        return
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
        elif not may_lead(view.nodes[new[0]]):
            # It would give the leader up again at once.
            found.reasons.add(Wait.MAINTENANCE, partition, f"node {new[0]} shall lead")
        else:
            found.ready.append(partition)
    else:
        _done(found, view, partition, record, move)


def _complete(
    found: Survey, view: ZoneView, partition: PartitionId, record: LeaderAndIsr, move: _Move
) -> None:
    """Count a partition as done, and go on copying what it lacks while the task is at work."""
    _done(found, view, partition, record, move)
    missing = [n for n in move[1] if n not in record.isr]
    if missing:
        found.out_of_sync += 1
        _look_at_missing(found, view, partition, record, missing)


def _done(
    found: Survey, view: ZoneView, partition: PartitionId, record: LeaderAndIsr, move: _Move
) -> None:
    found.done += 1
    old, new, _added = move
    if old != new:
        found.moved.add(partition)
    extra = [n for n in old if n not in new]
    if any(n in record.replicas for n in extra):
        found.redundant.append(partition)
    for node in extra:
        if node not in record.replicas and view.report(partition, node) is not None:
            found.leftover.append((partition, node))


def _is_dropped(view: ZoneView, partition: PartitionId, record: LeaderAndIsr, node: NodeId) -> bool:
    return (
        node not in record.replicas
        and (partition, node, record.leader_epoch) in view.mismatched
        and view.report(partition, node) is not None
    )


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
    started = failing = False
    wait, why = Wait.CATCHING_UP, f"node {missing[0]} behind node {record.leader}"
    for node in missing:
        report = view.report(partition, node)
        if report is None:
            found.unopened += 1
            wait, _, why = _not_open(view, partition, node)
        elif report.needs_snapshot:
            need.append(node)
            started = started or _is_copying(report)
            failing = failing or bool(report.copy is not None and report.copy.error)
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
        found.needed.append(Needed(copy, size, started, failing))
        refused = view.copies_refused.get(partition)
        if refused is not None and wait is Wait.COPYING and not started:
            wait, why = Wait.LIMIT, refused
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
