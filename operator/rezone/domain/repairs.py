"""What the coordinator mends in the route table by itself: in-sync sets and leaders that are gone.

A leader asks for a new in-sync set in its report (HS-04, HS-08) and asks again until a record
with a higher partition epoch answers it (ZR-09). A leader that has been silent for longer than
its lease is replaced from the in-sync standbys, then from the in-sync set (B-06); as every member
of the in-sync set has every acknowledged row and refuses lower epochs, the old leader can
acknowledge nothing any more.
"""

from datetime import datetime, timedelta

from rezone.domain import routes
from rezone.domain.world import RouteChange, ZoneView
from rezone.wire.messages import LeaderAndIsr, PartitionId, Role


def repairs(view: ZoneView, now: datetime) -> tuple[RouteChange, ...]:
    """Return the changes that the reports of this moment call for."""
    changes = []
    for partition, record in enumerate(view.routes):
        after = _adjusted(view, partition, record) or _failed_over(view, record, now)
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


def _adjusted(view: ZoneView, partition: PartitionId, record: LeaderAndIsr) -> LeaderAndIsr | None:
    report = view.report(partition, record.leader)
    if report is None or report.role is not Role.LEADER or report.proposal is None:
        return None
    answer = routes.adjust_isr(record, report.proposal, view.coordinator_epoch)
    return answer if isinstance(answer, LeaderAndIsr) else None


def _failed_over(view: ZoneView, record: LeaderAndIsr, now: datetime) -> LeaderAndIsr | None:
    leader = view.nodes.get(record.leader)
    if (
        leader is not None
        and not leader.lost
        and not _lease_over(leader.unreachable_since, view, now)
    ):
        return None
    alive = frozenset(node for node, seen in view.nodes.items() if seen.reachable)
    if record.next_leader is not None and record.next_leader in alive:
        # An authorized takeover is its migration's to end: it knows how far it has come (RM-05).
        return None
    answer = routes.fail_over(record, alive)
    return answer if isinstance(answer, LeaderAndIsr) else None


def _lease_over(silent_since: datetime | None, view: ZoneView, now: datetime) -> bool:
    if silent_since is None:
        return False
    return now - silent_since >= timedelta(seconds=view.leader_lease_seconds)
