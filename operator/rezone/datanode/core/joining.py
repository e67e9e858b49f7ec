"""How the log of a follower and that of its leader come together: where they part, what is cut.

A follower asks for what is behind its log, and says of which branch of history its last row is. The
leader streams, or says to where the follower must roll back, or that its log begins too late. Each
side goes by its own log and failover log alone, so there is no other state. Pure:
`replication.leader` and `replication.follower` carry out what follows. Transcripts of both sides
are in `tests/datanode/transcripts/rollback.txt`.
"""

from dataclasses import dataclass
from typing import NamedTuple

from rezone.storage.state.history import branch_at, branch_start, rollback_offset
from rezone.wire.errors import ConflictError, NotReadyError, RezoneError, StaleEpochError
from rezone.wire.messages import FailoverEntry, NodeId


class Asked(NamedTuple):
    """A follower asks for all rows from `high_offset` on; its last row is of that branch."""

    node: NodeId
    leader_epoch: int
    high_offset: int
    partition_uuid: str


class Stream(NamedTuple):
    """Stream from the offset that was asked for."""


class RollBack(NamedTuple):
    """Have the follower cut its log at this offset, and ask again."""

    offset: int


class Copy(NamedTuple):
    """Have the follower copied: this leader's log begins only there."""

    log_start: int


class Refuse(NamedTuple):
    """Refuse what was asked for."""

    error: RezoneError


class Truncate(NamedTuple):
    """Cut the log there; `loses` committed rows where histories part that never should."""

    offset: int
    loses: bool


class GiveUp(NamedTuple):
    """Give up the rows, and wait for a copy."""


Answer = Stream | RollBack | Copy | Refuse


@dataclass(frozen=True, slots=True)
class LeaderLog:
    """The log of a leader, and who may follow it in its epoch."""

    failover_log: tuple[FailoverEntry, ...]
    log_start: int
    log_end: int
    leader_epoch: int
    members: frozenset[NodeId]

    def step(self, asked: Asked) -> Answer:
        """Return the answer to a follower's request (DCP-05)."""
        if error := self._refusal(asked):
            return Refuse(error)
        offset = rollback_offset(
            self.failover_log, self.log_end, asked.high_offset, asked.partition_uuid
        )
        if offset is not None:
            return RollBack(offset)
        return Copy(self.log_start) if asked.high_offset < self.log_start else Stream()

    def _refusal(self, asked: Asked) -> RezoneError | None:
        epoch = self.leader_epoch
        if asked.leader_epoch < epoch:
            return StaleEpochError(f"the leader epoch is {epoch}", leader_epoch=epoch)
        if asked.leader_epoch > epoch:
            return NotReadyError(f"epoch {asked.leader_epoch} is not known here yet")
        if asked.node not in self.members:
            return NotReadyError(f"node {asked.node} is not known as a replica here yet")
        return None


@dataclass(frozen=True, slots=True)
class FollowerLog:
    """The log of a replica.

    `leads`: it follows nobody; `needs_copy`: its rows count for nothing.
    """

    failover_log: tuple[FailoverEntry, ...]
    log_end: int
    committed: int
    leads: bool
    needs_copy: bool

    @property
    def branch(self) -> str:
        """The branch of history of the last row; empty without one."""
        return branch_at(self.failover_log, self.log_end)

    def step(self, answer: RollBack | Copy) -> Truncate | GiveUp | Refuse | None:
        """Return what follows from a leader's answer; None for nothing.

        A leader that does not know the newest branch here can only answer 0. What it shares with
        this replica may still be all that came before that branch: so the branch goes, and the
        next request asks with the one before.
        """
        match answer:
            case RollBack() if self.leads:
                return Refuse(ConflictError("a leader does not roll back"))
            case RollBack(offset):
                offset = max(offset, branch_start(self.failover_log, self.log_end))
                return Truncate(offset, loses=offset < self.committed)
            case Copy():
                return None if self.leads or self.needs_copy else GiveUp()
