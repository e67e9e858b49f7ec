"""Closed timestamps: up to when a replica may be read, though nothing was written for a while.

A follower may be read as of the commit time of what it has applied, because later rows have later
times. While nothing is written that time stands still. So a leader closes times: it promises that
no row will ever get such a time, and says up to which offset all that may have it stands. Where
that offset is committed and applied, reads as of the closed timestamp are right, and stay so.

A closed timestamp binds every later leader, too. So only a time is closed that all who may lead
next have been told of before (`LeaseRequest.time`), those that are about to become members
included: who leads gives its rows later times, after a restart as well (`clock_bound`). CockroachDB
closes timestamps in much the same way, YugabyteDB's safe time is the same idea; here they ride on
the rounds of leases.

Pure; `reading.closed_timestamp` does what follows. Transcripts:
`tests/datanode/transcripts/closed_timestamp.txt`.
"""

from typing import NamedTuple

from rezone.wire.messages import ClosedTime, PartitionId


class Sees(NamedTuple):
    """What a replica sees of itself; times are microseconds.

    `leads`: its role is Leader; `serving`: all that its leadership began with is committed.
    `promisable` is the latest time that it may promise to give no row, 0 for none.
    """

    partition: PartitionId
    leader_epoch: int
    leads: bool
    serving: bool
    log_end: int
    last_commit_time: int
    promisable: int


class Due(NamedTuple):
    """A round of leases is due, with which a time can be told."""


class Heard(NamedTuple):
    """Another replica says what it has closed."""

    news: ClosedTime


class Promise(NamedTuple):
    """Give no row this time or an earlier one."""

    time: int


class NoteApplied(NamedTuple):
    """Work out up to which time reads see all that is committed, and look at those that wait."""


class Tell(NamedTuple):
    """Tell the followers."""

    news: ClosedTime


Event = Due | Heard
Effect = Promise | NoteApplied | Tell


class ClosedUntil:
    """The newest closed timestamp that a replica knows, and the offset below which all stands."""

    def __init__(self) -> None:
        self.end_offset = 0
        self.time = 0

    def time_at(self, applied: int) -> int:
        """Return up to when a replica that has applied and committed so much may be read."""
        return self.time if applied >= self.end_offset else 0

    def forget(self) -> None:
        """Take nothing of another leadership for this one's, which may have other rows there."""
        self.end_offset = self.time = 0

    def step(self, event: Event, sees: Sees) -> list[Effect]:
        """Return what is to be done because of an event, in that order."""
        match event:
            case Due():
                return self._close(sees)
            case Heard(news) if not sees.leads and news.leader_epoch == sees.leader_epoch:
                self.end_offset, self.time = news.end_offset, news.time
                return [NoteApplied()]
            case _:
                return []

    def _close(self, sees: Sees) -> list[Effect]:
        """Close the latest time that may be, or say the last one again: it says who serves."""
        effects: list[Effect] = []
        if sees.promisable > sees.last_commit_time:
            self.end_offset, self.time = sees.log_end, sees.promisable
            effects = [Promise(sees.promisable), NoteApplied()]
        if sees.serving and self.time:
            news = ClosedTime(sees.partition, sees.leader_epoch, self.end_offset, self.time)
            effects.append(Tell(news))
        return effects
