"""A leader transfer as one side of it sees it: which side, how far, and what follows for others.

What is done about it stands in `replication.takeover`; all parts of a replica read here what it
means for them.

Concurrency: under the replica's lock.
"""

import enum
from dataclasses import dataclass

from rezone.wire.messages import IndexPosition, NodeId, TakeoverState


class Side(enum.Enum):
    """Which end of a takeover this replica is."""

    NONE = enum.auto()
    OLD = enum.auto()
    NEW = enum.auto()


@dataclass
class Transfer:
    """The last takeover that this replica had a part in; `side` NONE without any."""

    side: Side = Side.NONE
    state: TakeoverState = TakeoverState.NONE
    epoch: int = 0
    error: str = ""
    candidate: NodeId = -1
    deadline: float = 0.0
    quiet_until: float | None = None
    answered: int = 0
    end_offset: int = 0
    prepared: bool = False
    persisted: bool = False
    index: IndexPosition | None = None

    @property
    def blocks_writes(self) -> bool:
        """Whether the old leader appends nothing more and has not handed over yet (dead)."""
        return self.side is Side.OLD and self.state is TakeoverState.DEAD

    @property
    def eager(self) -> bool:
        """Whether this replica is about to lead: it applies at once and holds writes."""
        return self.side is Side.NEW and self.state is TakeoverState.PENDING

    @property
    def hands_over(self) -> bool:
        """Whether this replica is the old leader and still leads; after a restart it is dead."""
        return self.side is Side.OLD and self.state is TakeoverState.PENDING

    @property
    def ready_epoch(self) -> int:
        """The epoch this replica waits to lead in, its job having run for that; 0 for none."""
        return self.epoch if self.eager and self.prepared else 0

    def note_prepared(self) -> None:
        """Note that the candidate's job has run since it is one.

        The old leader waits for it, while writes go on there: whatever a candidate does first
        would stand in the write gap, and one that does nothing at all is noticed in time.
        """
        self.prepared = self.eager

    def note_indexed(self, index: IndexPosition | None) -> None:
        """Note where the old leader's indexer has stopped."""
        self.index = index

    def note_persisted(self) -> None:
        """Note that the takeover is on the old leader's disk."""
        self.persisted = True

    def wait_quietly(self, until: float) -> float:
        """Return until when a good moment is waited for; the first call says that."""
        if self.quiet_until is None:
            self.quiet_until = until
        return self.quiet_until

    def note_answered(self, answered: int) -> bool:
        """Note how many writes have been answered; whether that is more than before."""
        more = answered > self.answered
        self.answered = answered
        return more

    def die(self, end_offset: int) -> None:
        """End the old leader's log."""
        self.state, self.end_offset = TakeoverState.DEAD, end_offset

    def succeed(self) -> None:
        """Note that the candidate has been told to lead."""
        self.state = TakeoverState.ACTIVE

    def fail(self, reason: str) -> None:
        """End without a new leader."""
        self.state, self.error = TakeoverState.FAILED, reason
