"""A planned transfer of a partition's leader: what its record and both sides say of it.

Whoever moves a leader goes the same way (RM-01): the record authorizes the candidate, the old
leader is asked to hand over, the candidate to lead where the old leader's last message was lost,
and the record is completed or rolled back. A RegionMigration, a task's batch and the zone's
handover decide when to go on; how far a transfer is, and what is asked for, is decided here.
"""

import dataclasses

from rezone.domain.model.changes import Step
from rezone.domain.model.world import RequestTakeover, RequestUpgrade, ZoneView
from rezone.domain.routing import route_leaders, routes
from rezone.wire.messages import LeaderAndIsr, NodeId, PartitionId, ReplicaReport, Role
from rezone.wire.messages import TakeoverState as T

_RUNNING = frozenset({T.PENDING, T.DEAD, T.ACTIVE})


def authorization(candidate: NodeId) -> tuple[Step, Step]:
    """Return the steps by which a record lets its leader hand over; a hot standby stays close."""
    return (
        lambda r: routes.set_hot_standby(r, candidate),
        lambda r: route_leaders.authorize_takeover(r, candidate),
    )


@dataclasses.dataclass(frozen=True)
class LeaderTransfer:
    """One transfer, by what its authorization says; `view` is what is observed now."""

    view: ZoneView
    partition: PartitionId
    source: NodeId
    candidate: NodeId
    leader_epoch: int
    next_epoch: int

    @property
    def old(self) -> ReplicaReport | None:
        """Return what the old leader's node says of its replica."""
        return self.view.report(self.partition, self.source)

    @property
    def new(self) -> ReplicaReport | None:
        """Return what the candidate's node says of its replica."""
        return self.view.report(self.partition, self.candidate)

    def is_authorized(self, record: LeaderAndIsr) -> bool:
        """Return whether the record still lets the candidate take over."""
        return (record.next_leader, record.next_epoch) == (self.candidate, self.next_epoch)

    @property
    def leads(self) -> bool:
        """Return whether the candidate leads by its own word, which alone says so."""
        new = self.new
        return new is not None and (new.role, new.leader_epoch) == (Role.LEADER, self.next_epoch)

    @property
    def handing_over(self) -> bool:
        """Return whether the old leader is at it."""
        old = self.old
        return (
            old is not None and old.takeover_epoch == self.next_epoch and old.takeover in _RUNNING
        )

    @property
    def stepped_down(self) -> bool:
        """Return whether the old leader answers and leads no longer."""
        return self.old is not None and self.old.role is not Role.LEADER

    def failure(self, node: NodeId) -> str:
        """Return why the transfer failed on one of the two nodes, "" when it has not."""
        report = self.view.report(self.partition, node)
        if report is None or report.takeover is not T.FAILED:
            return ""
        wrong = f"takeover failed on node {node}: {report.takeover_error}"
        return wrong if report.takeover_epoch == self.next_epoch else ""

    def complete(self, record: LeaderAndIsr) -> routes.Answer:
        """Return the record in which the candidate leads."""
        return route_leaders.complete_takeover(record, self.candidate, self.next_epoch)

    def ask_source(self) -> RequestTakeover:
        """Return what asks the old leader to drain and hand over; a repeat changes nothing."""
        return RequestTakeover(
            partition=self.partition,
            source=self.source,
            candidate=self.candidate,
            leader_epoch=self.leader_epoch,
            next_epoch=self.next_epoch,
        )

    def ask_candidate(self) -> RequestUpgrade:
        """Return what asks the candidate to lead: the old leader's last message may be lost.

        The old leader's end, where it answers, is what the candidate replays to.
        """
        old = self.old
        return RequestUpgrade(
            partition=self.partition,
            candidate=self.candidate,
            next_epoch=self.next_epoch,
            last_offset=old.log_end_offset if old is not None else None,
            index=old.index if old is not None else None,
        )
