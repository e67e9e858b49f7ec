"""A second replication protocol, as small as one can be: synchronous primary and backups.

Every write waits for every backup. A replica becomes a backup when it has all rows, and none is
ever proposed out: while one is away, writes wait until it is back, or until the coordinator gives
its node up. It is here to prove that the interface holds more than the in-sync protocol.
"""

from __future__ import annotations

import math

from rezone.datanode.commit.insync import FollowerProgress
from rezone.datanode.commit.lease import Lease
from rezone.datanode.settings import NodeSettings
from rezone.wire.errors import NotEnoughReplicasError, NotReadyError
from rezone.wire.messages import FIRST_PARTITION_EPOCH, IsrProposal, LeaderAndIsr, NodeId


class PrimaryBackup:
    """One leadership."""

    def __init__(
        self,
        *,
        node: NodeId,
        state: LeaderAndIsr,
        barrier: int,
        committed: int,
        settings: NodeSettings,
        hold_until: float,
        proposed: tuple[NodeId, ...],
    ) -> None:
        del settings
        self.state = state
        self.committed = committed
        self.followers: dict[NodeId, FollowerProgress] = {}
        self.maximal = {*state.isr, *proposed}
        # Whoever was asked for before a restart is asked for again.
        self.proposal = self._proposal() if self.maximal - set(state.isr) else None
        self._node = node
        self._barrier = barrier
        self.hold_until = hold_until

    def _proposal(self) -> IsrProposal:
        return IsrProposal(
            new_isr=tuple(sorted(self.maximal)),
            new_iss=self.state.iss,
            leader_epoch=self.state.leader_epoch,
            partition_epoch=self.state.partition_epoch,
            coordinator_epoch=self.state.coordinator_epoch,
        )

    def confirm(self, state: LeaderAndIsr) -> None:
        """Take a newer record."""
        if state.partition_epoch > self.state.partition_epoch:
            self.proposal, self.maximal = None, set(state.isr)
        self.state = state

    def follower(self, node: NodeId) -> FollowerProgress:
        """Return what is known of a backup."""
        return self.followers.setdefault(node, FollowerProgress())

    def acked(self, node: NodeId, durable: int, applied: int, now: float, log_end: int) -> None:
        """Note an ack."""
        del now, log_end
        known = self.follower(node)
        known.durable, known.applied = max(known.durable, durable), applied

    def require_open(self) -> None:
        """Refuse writes while the partition is being made."""
        if self.state.partition_epoch <= FIRST_PARTITION_EPOCH:
            raise NotReadyError("the partition is being made")

    def require_enough(self, needed: int) -> None:
        """Refuse writes with too few backups."""
        found = len(self.state.isr)
        if not self._enough(needed):
            raise NotEnoughReplicasError("too few backups", in_sync=found, needed=needed)

    def _enough(self, needed: int) -> bool:
        return len(self.state.isr) >= needed and not self.state.eligible

    def _held_by_all(self, own_durable: int) -> int:
        others = self.maximal - {self._node}
        return min([own_durable, *(self.follower(n).durable for n in others)])

    def moves_on(self, own_durable: int, log_end: int) -> bool:
        """Say yes: this protocol saves nothing."""
        del own_durable, log_end
        return True

    def advance(self, own_durable: int, now: float, needed: int = 1) -> bool:
        """Move the commit offset."""
        before = self.committed
        if now < self.hold_until or not self._enough(needed):
            return False
        self.committed = max(before, self._held_by_all(own_durable))
        return self.committed > before

    def can_commit(self, own_durable: int, now: float, needed: int = 1) -> bool:
        """Whether a write of now would be committed once all have it."""
        held_by_all = self._held_by_all(own_durable) >= self._barrier
        return held_by_all and now >= self.hold_until and self._enough(needed)

    @property
    def serving(self) -> bool:
        """Whether all earlier rows are committed."""
        return self.committed >= self._barrier

    def granted(self, node: NodeId, lease: Lease) -> None:
        """Take a backup's promise."""
        self.follower(node).grant(lease)

    def vouched(self, now: float, since: float) -> bool:
        """Whether all backups vouch for a read."""
        others = self.maximal - {self._node}
        return all(self.follower(n).lease.covers(now, since) for n in others)

    @property
    def announced_time(self) -> float:
        """The least time of day that all backups know, and those that may become one."""
        streaming = {node for node, known in self.followers.items() if known.streaming}
        others = (self.maximal | streaming) - {self._node}
        return min((self.follower(n).lease.time for n in others), default=math.inf)

    def catching_up(self) -> dict[NodeId, int]:
        """Slow no writes for anybody."""
        return {}

    def needed_offsets(self) -> list[int]:
        """Return where backups stand."""
        return [f.durable for n, f in self.followers.items() if n in self.maximal]

    def propose(self, now: float, log_end: int, needed: int = 1) -> bool:
        """Take in whoever has everything; put out nobody."""
        del log_end, needed
        floor = max(self.committed, self._barrier)
        ready = {
            n
            for n in self.state.replicas
            if n not in self.maximal
            and (known := self.followers.get(n)) is not None
            and known.may_join(floor)
        }
        if not ready or now < self.hold_until:
            return False
        self.maximal |= ready
        self.proposal = self._proposal()
        return True

    @property
    def lag_deadline(self) -> float:
        """Look at nothing again by itself."""
        return math.inf
