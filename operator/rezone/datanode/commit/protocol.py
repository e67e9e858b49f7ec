"""The one interface between a primary and its group's replication protocol (ZR-07).

What a partition does while it leads (take writes, stream, answer, report) is the same whatever the
protocol; it asks a `Leadership` what is committed, who must be waited for, and which change of
the group the coordinator should make. The coordinator knows of a protocol no more than what
stands in the records: that every member of `isr`, and who is `eligible`, has all acknowledged
rows, so that any of them may lead (`domain.routing.routes`). A protocol keeps that true
(`tests/datanode/replication/test_group_protocols.py`):

- an offset is committed when all that the coordinator may count as members have it on disk: those
  of the confirmed record, and of every proposal that may have been accepted since;
- nothing is committed while that record has fewer members than the zone asks for, or `eligible`
  replicas, which are not waited for;
- a proposal stands until a record with a higher partition epoch answers it, over restarts too.

`NodeSettings.protocol` names the one in use.
"""

from collections.abc import Mapping
from typing import Protocol

from rezone.datanode.commit.insync import FollowerProgress, LeaderState
from rezone.datanode.commit.lease import Lease
from rezone.datanode.settings import NodeSettings
from rezone.wire.messages import IsrProposal, LeaderAndIsr, NodeId


class Leadership(Protocol):
    """One leadership of one partition; called under the partition's lock, without I/O or clock.

    `maximal` are the nodes that every commit waits for, persisted before a proposal is told.
    Nobody joins before it has granted a lease on its present stream; nothing is promised to readers
    that those who stream, and so may join, were not told (`announced_time`).
    """

    state: LeaderAndIsr
    committed: int
    proposal: IsrProposal | None
    maximal: set[NodeId]
    hold_until: float
    followers: dict[NodeId, FollowerProgress]

    def confirm(self, state: LeaderAndIsr) -> None:
        """Take the coordinator's newer record of the same epoch; it answers the proposal."""
        ...

    def follower(self, node: NodeId) -> FollowerProgress:
        """Return what is known of a follower."""
        ...

    def acked(self, node: NodeId, durable: int, applied: int, now: float, log_end: int) -> None:
        """Note a follower's ack: what it holds on disk and what it has applied."""
        ...

    def require_open(self) -> None:
        """Refuse writes with NotReadyError while not all replicas of a new partition are open."""
        ...

    def require_enough(self, needed: int) -> None:
        """Refuse writes with NotEnoughReplicasError while fewer than `needed` are confirmed."""
        ...

    def moves_on(self, own_durable: int, log_end: int) -> bool:
        """Whether an ack can have changed anything: the commit offset, or the group."""
        ...

    def advance(self, own_durable: int, now: float, needed: int = 1) -> bool:
        """Move the commit offset as far as the acks allow; whether it moved.

        Not if held back, and not while fewer than `needed` are confirmed or others `eligible`.
        """
        ...

    def can_commit(self, own_durable: int, now: float, needed: int = 1) -> bool:
        """Whether a write of now would be committed as soon as all that count have it."""
        ...

    @property
    def serving(self) -> bool:
        """Whether all that the leadership began with is committed; reads wait for that."""
        ...

    def granted(self, node: NodeId, lease: Lease) -> None:
        """Take a follower's promise to follow nobody else for a while."""
        ...

    def vouched(self, now: float, since: float) -> bool:
        """Whether nobody can have led later when a read came at `since`, or until `now`."""
        ...

    @property
    def announced_time(self) -> float:
        """The latest time of day that whoever leads later knows may have been read at."""
        ...

    def needed_offsets(self) -> list[int]:
        """Return from where on members still need the log."""
        ...

    def catching_up(self) -> dict[NodeId, int]:
        """Return up to where those are durable that are to become members, to be waited for."""
        ...

    def propose(self, now: float, log_end: int, needed: int = 1) -> bool:
        """Work out which group the coordinator should confirm; whether the proposal changed."""
        ...

    @property
    def lag_deadline(self) -> float:
        """When to look at the group again though nothing has happened; infinity for never."""
        ...


class Lead(Protocol):
    """What begins a leadership: a protocol, under its name in `PROTOCOLS`."""

    def __call__(
        self,
        *,
        node: NodeId,
        state: LeaderAndIsr,
        barrier: int,
        committed: int,
        settings: NodeSettings,
        hold_until: float,
        proposed: tuple[NodeId, ...],
    ) -> Leadership:
        """Begin to lead with a log that ends at `barrier`.

        Nothing is committed before `hold_until` (monotonic), while an earlier leader may answer
        reads alone; `proposed` is `maximal` as it was persisted last.
        """
        ...


PROTOCOLS: Mapping[str, Lead] = {"InSyncReplicas": LeaderState}


def protocol_of(settings: NodeSettings) -> Lead:
    """Return the protocol that the settings name; ValueError for one that there is not."""
    found = PROTOCOLS.get(settings.protocol)
    if found is None:
        known = ", ".join(sorted(PROTOCOLS))
        raise ValueError(f"protocol={settings.protocol!r}: must be one of {known}")
    return found
