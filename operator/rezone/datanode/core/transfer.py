"""A leader transfer as one side of it sees it: which side, how far, and what is to be done next.

Pure: `step` takes what has happened and the time, and says what follows; `replication.takeover`
does it. All parts of a replica read here what the transfer means for them. Transcripts of events
and what follows from them are in `tests/datanode/transcripts`.

Concurrency: under the replica's lock.
"""

import enum
from dataclasses import dataclass
from typing import NamedTuple

from rezone.wire.messages import IndexPosition, NodeId, TakeoverState


class Side(enum.Enum):
    """Which end of a takeover this replica is."""

    NONE = enum.auto()
    OLD = enum.auto()
    NEW = enum.auto()


class Looked(NamedTuple):
    """The old leader's job has looked at its candidate, its log and its clients.

    `lacks` is what the candidate's index lacks, `for_good` whether waiting for it does not help.
    """

    log_end: int
    acked: int
    ready_epoch: int
    lacks: str
    for_good: bool
    stream_ended: bool
    unanswered: bool
    answered: int
    answered_at: float


class Opened(NamedTuple):
    """A node has opened its stream again."""

    node: NodeId


class Sent(NamedTuple):
    """The end of the log and Active have left: the last message of the old leader."""


class Told(NamedTuple):
    """The candidate was told how far its leader is; `lacks` is what its own index lacks."""

    log_end: int
    lacks: str


class Ticked(NamedTuple):
    """Time has passed."""


class Die(NamedTuple):
    """The old leader appends nothing more: send the end of its log and Active."""


class Finish(NamedTuple):
    """Send the end of the log and Active again."""


class Follow(NamedTuple):
    """Follow the candidate, which leads by now."""


class Lead(NamedTuple):
    """Lead with the next epoch."""


class GiveUp(NamedTuple):
    """Call `fail` with the reason, once the disk knows that this leader may lead on."""

    reason: str


class LookAgain(NamedTuple):
    """Look again at this time, or before (monotonic)."""

    at: float


Event = Looked | Opened | Sent | Told | Ticked
Effect = Die | Finish | Follow | Lead | GiveUp | LookAgain


@dataclass
class Transfer:
    """The last takeover that this replica had a part in; `side` NONE without any.

    The old leader hands over when its candidate lacks `rows_max` rows at most, and waits up to
    `quiet_seconds` for a moment without writes.
    """

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
    rows_max: int = 0
    quiet_seconds: float = 0.0

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

    def fail(self, reason: str) -> None:
        """End without a new leader."""
        self.state, self.error = TakeoverState.FAILED, reason

    def step(self, event: Event, now: float) -> Effect | None:
        """Return what is to be done because of an event; None for nothing."""
        match event:
            case Looked() if self.hands_over:
                return self._look(event, now)
            case Opened(node) if self.blocks_writes and node == self.candidate:
                return Finish()
            case Sent() if self.blocks_writes:
                self.state = TakeoverState.ACTIVE
                return Follow()
            case Told() if self.side is Side.NEW:
                return self._take(event)
            case Ticked() if self.eager and now > self.deadline:
                return GiveUp("the leader's state change did not come in time")
            case _:
                return None

    def _look(self, seen: Looked, now: float) -> Effect | None:
        """Hand over when the candidate is ready and near; give up before anything is lost by it."""
        missing = seen.log_end - seen.acked
        ready = self.persisted and seen.ready_epoch == self.epoch
        if seen.stream_ended:
            return GiveUp("the candidate's stream has ended")
        if seen.lacks and seen.for_good:
            return GiveUp(f"the candidate's {seen.lacks}")
        if ready and not seen.lacks and missing <= self.rows_max:
            quiet_until = self._quiet_until(seen, now)
            if quiet_until is not None:
                return LookAgain(quiet_until)
            self.state, self.end_offset = TakeoverState.DEAD, seen.log_end
            return Die()
        if now > self.deadline:
            lacks = f"candidate's {seen.lacks}"
            why = lacks if seen.lacks else f"candidate still misses {missing} rows"
            return GiveUp(f"the {why} after the time given")
        return None

    def _quiet_until(self, seen: Looked, now: float) -> float | None:
        """Return until when a better moment is waited for; None when this one is good.

        That is the one behind an answer, with no other write under way. A write that this leader
        cannot answer any more makes its way to the next one, and is there before that has its
        followers. Behind an answer the client has something else to do first. Where nobody has
        written lately any moment is good; writers that overlap leave none, and are waited for no
        longer than `quiet_seconds`.
        """
        if self.quiet_until is None:
            self.quiet_until = now + self.quiet_seconds
        answering, self.answered = seen.answered > self.answered, seen.answered
        written_lately = now - seen.answered_at < self.quiet_seconds
        good = not seen.unanswered and (answering or not written_lately)
        return None if good or now >= self.quiet_until else self.quiet_until

    def _take(self, told: Told) -> Effect | None:
        """Lead if all is here that the old leader had; wait while it is pending there."""
        if self.state is TakeoverState.FAILED:
            return GiveUp("the leader has given up")
        if self.state is not TakeoverState.ACTIVE:
            return None
        if told.log_end != self.end_offset:
            return GiveUp(f"the log ends at {told.log_end}, the leader's at {self.end_offset}")
        return GiveUp(told.lacks) if told.lacks else Lead()
