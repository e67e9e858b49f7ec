"""Whom a change feed asks for each range, and what it does when that one has no answer.

Leaders are asked, or followers first; a leader then at the beginning and now and then, for it has
to know that somebody follows: a re-sharding brings along what they need (docs/decisions/0502). A
replica whose log does not reach back far enough is left for the others, and only when all have said
so the feed is truncated. All else is tried again, with pauses, until the client's timeout. Who has
no later time to tell for long may be a leader that was replaced and has not heard of it: it answers
without an error, and only routes say who leads.
"""

import dataclasses
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from rezone.client.feed.positions import FollowedRange
from rezone.client.routing.routes import Leader
from rezone.client.settings import ClientSettings
from rezone.wire.errors import (
    ConflictError,
    FeedTruncatedError,
    ForbiddenError,
    LimitExceededError,
    NotLeaderError,
    NotReadyError,
    RezoneError,
)
from rezone.wire.messages import PartitionId

_PAUSE_SECONDS_MAX = 60.0
_LEADER_SECONDS = 300.0
"""How often a feed from followers asks a leader: well within `follower_pause_ms_max`."""

_STANDS_SECONDS = 5.0
"""After so long without a later time there may be another leader; times go on where nobody writes.
"""


class KnownReplicas(Protocol):
    """What is known of where replicas are."""

    def leader(self, partition: PartitionId) -> Leader | None:
        """Return the leader, as far as known."""
        ...

    def follower(self, partition: PartitionId, besides: set[str]) -> str | None:
        """Return the address of another follower."""
        ...

    def correct(self, partition: PartitionId, error: NotLeaderError) -> Leader | None:
        """Take over who leads by a refusal."""
        ...


@dataclasses.dataclass
class _Try:
    """How it goes with one range since its last answer."""

    since: float
    attempts: int = 0
    due: float = 0.0
    leader_only: bool = False
    leaderless: bool = False
    refused: set[str] = dataclasses.field(default_factory=set)
    truncated: set[str] = dataclasses.field(default_factory=set)
    error: RezoneError | None = None


class _Reached(NamedTuple):
    """The latest time that a range has come to, and when that was."""

    time: int
    at: float


class Tries:
    """The tries of one feed; `lacks_routes` says that newer routes may help."""

    def __init__(
        self,
        replicas: KnownReplicas,
        settings: ClientSettings,
        clock: Callable[[], float],
        *,
        from_followers: bool,
    ) -> None:
        self._replicas = replicas
        self._settings = settings
        self._clock = clock
        self._from_followers = from_followers
        self._tries: dict[tuple[int, PartitionId], _Try] = {}
        self._leader_asked: dict[tuple[int, PartitionId], float] = {}
        self._reached: dict[tuple[int, PartitionId], _Reached] = {}
        self.lacks_routes = False

    def address(self, asked: FollowedRange) -> str | None:
        """Return whom to ask now, None when nobody can be; the error when all have refused."""
        found, now = self._of(asked), self._clock()
        if not found.attempts and not found.leaderless:
            found.since = now  # the consumer may have taken its time
        if found.due > now:
            return None
        besides = found.truncated | found.refused
        follows = self._from_followers and not found.leader_only
        if (follows and not self._is_leader_due(asked, found)) or found.truncated:
            follower = self._replicas.follower(asked.partition, besides)
            if follower is not None:
                return follower
        leader = self._replicas.leader(asked.partition)
        if leader is None:
            self.lacks_routes = found.leaderless = True
            if now - found.since > self._settings.timeout_seconds:
                raise NotReadyError(f"no leader is known for partition {asked.partition}")
            return None
        if leader.address in found.truncated and found.error is not None:
            raise found.error
        return leader.address

    def _is_leader_due(self, asked: FollowedRange, found: _Try) -> bool:
        """Whether a leader has not heard of this feed for long: it is asked in the next turn."""
        due = self._leader_asked.get(_key(asked), float("-inf")) + _LEADER_SECONDS
        known = self._replicas.leader(asked.partition) is not None
        return known and not found.attempts and self._clock() >= due

    def failed(self, asked: FollowedRange, address: str, error: RezoneError) -> int:
        """Note a refusal; return how many there were. Raise it when another try is in vain."""
        self._note_leader(asked, address)
        found, now = self._of(asked), self._clock()
        is_final = isinstance(error, ForbiddenError | LimitExceededError)
        if is_final or now - found.since > self._settings.timeout_seconds:
            raise error
        found.attempts += 1
        if isinstance(error, FeedTruncatedError):
            found.truncated.add(address)
            found.error = error
            return found.attempts
        if isinstance(error, ConflictError):
            asked.offset = None
        if isinstance(error, NotLeaderError):
            found.leader_only = True
            self._replicas.correct(asked.partition, error)
        leader = self._replicas.leader(asked.partition)
        if leader is not None and leader.address == address:
            found.refused.clear()
        else:
            found.refused.add(address)
        self.lacks_routes = True
        doubled = self._settings.backoff_first_seconds * float(1 << min(found.attempts, 16))
        found.due = now + min(doubled, self._settings.backoff_max_seconds)
        return found.attempts

    def succeeded(self, asked: FollowedRange, address: str, time: int) -> None:
        """Note an answer, which has all changes up to a time."""
        self._note_leader(asked, address)
        key, now = _key(asked), self._clock()
        self._tries.pop(key, None)
        reached = self._reached.get(key)
        if reached is None or time > reached.time:
            self._reached[key] = _Reached(time, now)
        elif now - reached.at > _STANDS_SECONDS:
            self._reached[key] = _Reached(time, now)
            self.lacks_routes = True

    def _note_leader(self, asked: FollowedRange, address: str) -> None:
        """Note when a leader was asked last, by whoever asks followers else."""
        leader = self._replicas.leader(asked.partition) if self._from_followers else None
        if leader is not None and leader.address == address:
            self._leader_asked[_key(asked)] = self._clock()

    def pause(self, ranges: Iterable[FollowedRange]) -> float:
        """Return in how many seconds the next range may be asked that waits."""
        now = self._clock()
        idle = (self._of(each).due - now for each in ranges if not each.in_flight)
        return max(0.0, min(idle, default=_PAUSE_SECONDS_MAX))

    def _of(self, asked: FollowedRange) -> _Try:
        key = _key(asked)
        if key not in self._tries:
            self._tries[key] = _Try(since=self._clock())
        return self._tries[key]


def _key(asked: FollowedRange) -> tuple[int, PartitionId]:
    return asked.start, asked.partition
