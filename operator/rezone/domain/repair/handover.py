"""Leaders hand over without a migration for each: their data node stops, or their rows are damaged.

A data node in maintenance gives its leaders up in the same way, and does not stop by itself.

A node that was told to stop (a rolling update, `kubectl drain`, a deleted pod) says so in its
report, and stops when it leads nothing any more. There may be hundreds of leaders on it and a
minute's time, so the records of all of them are changed in one write, twice: the candidates are
authorized, and what has happened is adopted. The takeover in between is that of a migration
(DCP-09, DCP-10); candidates are in sync already, so nothing is copied.

While the zone is paused (`hands_off`) damage is left alone. A pod that stops, or maintenance, is a
person's order: those leaders hand over all the same.

All of it is decided from the route table and the reports. A takeover that stands authorized and
is nobody's migration is brought to its end here, whoever began it: a coordinator that died, or a
migration that was deleted half-way. It would keep its candidate in the in-sync set, every later
migration waiting, and a failover from happening.
"""

import collections
import math
from collections.abc import Collection
from datetime import datetime

from rezone.domain.machines.migration_table import is_under_way
from rezone.domain.model.changes import Step, change_of
from rezone.domain.model.world import (
    Action,
    ChangeRoutes,
    RouteChange,
    ZoneView,
)
from rezone.domain.observed.hearing import followers, heard_by
from rezone.domain.observed.leader_transfer import LeaderTransfer, authorization
from rezone.domain.observed.readiness import is_close, node_is_gone, wants_comparison
from rezone.domain.repair.repairs import failed_over, is_to_go
from rezone.domain.routing import route_leaders
from rezone.wire.messages import (
    LeaderAndIsr,
    NodeId,
    PartitionId,
)

AT_ONCE_MAX = 64
"""How many takeovers of this kind a zone has under way: writes of each are held for a moment."""

WAKE_SECONDS = 1.0


def wake_in(view: ZoneView) -> float:
    """Return after how many seconds to look again: a call that failed brings no news."""
    return WAKE_SECONDS if is_wanted(view) else math.inf


def is_wanted(view: ZoneView) -> bool:
    """Return whether there is anything to be handed over, or such a thing to be ended."""
    leaving = _leaving(view)
    return any(
        r.next_leader is not None or r.leader in leaving or _is_damaged(view, p, r.leader)
        for p, r in view.routes.items()
    )


def handovers(
    view: ZoneView,
    now: datetime,
    *,
    overdue: Collection[PartitionId] = (),
    avoid: Collection[NodeId] = (),
) -> tuple[Action, ...]:
    """Return what moves leaders off leaving nodes, one step on; `view` has all migrations.

    `overdue` are takeovers that have been authorized for so long that they are taken back; `avoid`
    are nodes that are better spared: they will have to hand over themselves.
    """
    # One that has not begun waits for exactly this.
    busy = {m.partition: m.candidate for m in view.migrations if is_under_way(m)}
    leaving = _leaving(view)
    work = _Handovers(view, now, frozenset(overdue), frozenset(avoid))
    for partition, record in view.routes.items():
        # One that has begun in the same moment as another's takeover was authorized waits for that.
        if partition in busy and record.next_leader in {None, busy[partition]}:
            continue
        if record.next_leader is not None and record.next_epoch is not None:
            work.end(partition, record, record.next_leader, record.next_epoch)
        elif record.leader in leaving or _is_damaged(view, partition, record.leader):
            work.begin(partition, record)
    return work.actions


def _leaving(view: ZoneView) -> frozenset[NodeId]:
    return frozenset(n for n, seen in view.nodes.items() if seen.leaving or seen.maintenance)


def _is_damaged(view: ZoneView, partition: PartitionId, node: NodeId) -> bool:
    return not view.hands_off and node in view.damaged.get(partition, ())


class _Handovers:
    """What one pass asks for."""

    def __init__(
        self,
        view: ZoneView,
        now: datetime,
        overdue: frozenset[PartitionId],
        avoid: frozenset[NodeId],
    ) -> None:
        self._view = view
        self._now = now
        self._overdue = overdue
        self._avoid = avoid
        self._changes: list[RouteChange] = []
        self._calls: list[Action] = []
        self._leads = collections.Counter(r.leader for r in view.routes.values())
        self._under_way = sum(r.next_leader is not None for r in view.routes.values())

    @property
    def actions(self) -> tuple[Action, ...]:
        """Return the changes as one write, then the calls."""
        changes = (ChangeRoutes(changes=tuple(self._changes)),) if self._changes else ()
        return (*changes, *self._calls)

    def begin(self, partition: PartitionId, record: LeaderAndIsr) -> None:
        """Authorize the best candidate; make it a hot standby first if it is not close."""
        node = self._choose(partition, record)
        if node is None or self._under_way >= AT_ONCE_MAX:
            return
        self._leads[node] += 1
        stand_by, authorize = authorization(node)
        if is_close(self._view, partition, record, node):
            self._under_way += 1
            self._change(partition, record, stand_by, authorize)
        else:
            self._change(partition, record, stand_by)

    def _choose(self, partition: PartitionId, record: LeaderAndIsr) -> NodeId | None:
        view = self._view

        def usable(node: NodeId) -> bool:
            seen = view.nodes.get(node)
            report = view.report(partition, node)
            if seen is None or seen.leaving or seen.lost or seen.maintenance:
                return False
            if report is None or report.needs_snapshot or report.damage or report.failed:
                return False
            return not wants_comparison(view, partition, record, node)

        return min(
            (n for n in record.isr if n != record.leader and usable(n)),
            key=lambda n: (
                n in self._avoid or view.nodes[n].draining,
                n not in record.iss,
                self._leads[n],
                n,
            ),
            default=None,
        )

    def end(
        self, partition: PartitionId, record: LeaderAndIsr, candidate: NodeId, epoch: int
    ) -> None:
        """Bring an authorized takeover to its end: asked for, adopted, or taken back."""
        view, leads = self._view, record.leader
        transfer = LeaderTransfer(view, partition, leads, candidate, record.leader_epoch, epoch)
        new, old = transfer.new, transfer.old
        if transfer.leads:
            self._change(partition, record, transfer.complete)
        elif not view.hands_off and is_to_go(view, partition, record, self._now):
            self._change(partition, record, lambda r: failed_over(view, partition, r) or r)
        elif old is None and self._is_heard(partition, record):
            return  # told nothing it would stand still: it serves as it is
        elif partition in self._overdue or any(
            node_is_gone(view, node, self._now) or transfer.failure(node)
            for node in (leads, candidate)
        ):
            self._change(partition, record, route_leaders.roll_back_takeover)
        elif old is None or old.partition_epoch < record.partition_epoch:
            return  # silent, or not told yet: both end by themselves
        elif transfer.stepped_down:
            # It would lead with the set of before, and not wait for who has joined.
            if new is None or new.partition_epoch >= record.partition_epoch:
                self._calls.append(transfer.ask_candidate())
        elif not transfer.handing_over:
            self._calls.append(transfer.ask_source())

    def _is_heard(self, partition: PartitionId, record: LeaderAndIsr) -> bool:
        """Whether data nodes hear a leader: its in-sync followers, or where none says, any."""
        hear, deaf = followers(self._view, partition, record)
        return bool(hear) or (not deaf and bool(heard_by(self._view, record.leader)))

    def _change(self, partition: PartitionId, record: LeaderAndIsr, *steps: Step) -> None:
        change = change_of(partition, record, self._view.coordinator_epoch, *steps)
        if change is not None:
            self._changes.append(change)
