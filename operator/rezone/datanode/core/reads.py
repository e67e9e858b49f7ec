"""When reads of one partition may be answered: at the newest state, or as of a time.

The newest state is the leader's to tell, and only when nobody else can have changed it: while
every in-sync replica has promised not to lead (`commit.lease`), or has said so since the read came;
and when everything the leader started with is committed. As of a time, any replica may answer
that has applied all committed rows up to it.

Pure: no lock, clock or store. `Reads.step` takes what has happened, with what the replica sees of
itself, and returns what follows; `reading.read` does it. Transcripts:
`tests/datanode/transcripts/reads.txt`.
"""

import enum
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from rezone.datanode.commit.protocol import Leadership

Served = Callable[[], bool]
"""Whether what a read asks for is served by now."""


class Cause(enum.Enum):
    """Why a read is refused."""

    NOT_LEADER = enum.auto()
    RESHARDED = enum.auto()
    EXPIRED = enum.auto()
    OVERWRITTEN = enum.auto()
    NOT_YET = enum.auto()
    TOO_MANY = enum.auto()


class Sees(NamedTuple):
    """What a replica sees of itself; times but `now` are microseconds.

    `leads`: its role is Leader; `eager`: it is about to be; `dead`: it appends nothing more.
    `over`: it stops or has failed. `highest` is the latest time the node ever had, None while it
    does not know the time; versions are kept for `retention`. `promisable` is the latest time that
    it may promise to give no row, 0 for none; `floor` what it has promised while it leads. Nothing
    may be read as of a time before `readable_from`, and no row is written at that time or before.
    """

    now: float
    leadership: Leadership | None
    leads: bool
    eager: bool
    dead: bool
    over: bool
    seal_time: int | None
    is_sealed: bool
    log_end: int
    committed: int
    applied: int
    readable_time: int
    last_commit_time: int
    highest: int | None
    promisable: int
    floor: int
    retention: int
    readable_from: int = 0

    def is_newest(self, since: float) -> bool:
        """Whether nobody can have committed anything elsewhere when a read came at `since`."""
        group = self.leadership
        if group is None or not group.serving or self.dead or self.seal_time is not None:
            return False
        return group.vouched(self.now, since)


class Promise(NamedTuple):
    """Give no row this time or an earlier one."""

    time: int


class Answer(NamedTuple):
    """Answer the read: it is right now."""

    read: "Read"


class Refuse(NamedTuple):
    """Refuse the read."""

    read: "Read"
    cause: Cause


class ApplyNow(NamedTuple):
    """Apply what is committed without waiting for more."""


class Hold(NamedTuple):
    """Take what it takes to hold the read, then step with `Held`."""

    read: "Read"


class AskLeases(NamedTuple):
    """Ask all followers for leases."""


class RunJob(NamedTuple):
    """Have the job run."""


class LookAgain(NamedTuple):
    """Look again at this time, or before (monotonic)."""

    at: float


Effect = Promise | Answer | Refuse | ApplyNow | Hold | AskLeases | RunJob | LookAgain


@dataclass(eq=False, slots=True)
class Read:
    """A read that came at `since`, of the newest state without `as_of`; both times monotonic.

    `kept_until` is until when the rows as of its time are whole here, None before that is known.
    """

    as_of: int | None
    since: float
    deadline: float
    served: Served
    kept_until: int | None = None
    _end: int | None = None
    _leadership: Leadership | None = None

    def ask(self, sees: Sees) -> list[Effect]:
        """Return what follows from a read that comes: without Answer and Refuse it must wait."""
        effects = self.look(sees)
        if self.as_of is None or is_decided(effects) or self.as_of <= sees.readable_time:
            return effects
        return [*effects, ApplyNow()]

    def look(self, sees: Sees) -> list[Effect]:
        """Return what follows for a read that waits: the last one is Answer or Refuse, if any is.

        A leader can also say that nothing more will come at or below its time: from then on no
        write gets such a time, of this leader or of one that comes later. So those that could lead
        must have been told first (`LeaseRequest.time`).
        """
        if self.as_of is None:
            return self._look_at_newest(sees)
        return self._look_at_past(self.as_of, sees)

    def is_over(self, sees: Sees) -> bool:
        """Whether nothing is waited for any more."""
        return sees.over or self.deadline <= sees.now

    def _look_at_newest(self, sees: Sees) -> list[Effect]:
        if sees.is_sealed:
            return [Refuse(self, Cause.RESHARDED)]
        if not sees.leads and not sees.eager:
            return [Refuse(self, Cause.NOT_LEADER)]
        # What the leadership began with must be applied, and nothing uncommitted may be seen.
        is_here = sees.is_newest(self.since) and sees.applied >= sees.committed
        return [Answer(self)] if is_here and self.served() else []

    def _look_at_past(self, as_of: int, sees: Sees) -> list[Effect]:
        if as_of < sees.readable_from:
            return [Refuse(self, Cause.OVERWRITTEN)]
        effects: list[Effect] = []
        if self.kept_until is None:
            if sees.highest is None:
                return []
            if as_of >= sees.last_commit_time and sees.promisable:
                effects.append(Promise(sees.promisable))
            self.kept_until = _kept_until(as_of, sees)
            if sees.highest > self.kept_until:
                return [*effects, Refuse(self, Cause.EXPIRED)]
        if as_of > sees.readable_time:
            if sees.seal_time is not None and as_of > sees.seal_time and sees.is_sealed:
                return [*effects, Refuse(self, Cause.RESHARDED)]
            effects += self._close(as_of, sees)
            if self._end is None or min(sees.applied, sees.committed) < self._end:
                return effects
        return [*effects, Answer(self)] if self.served() else effects

    def _close(self, as_of: int, sees: Sees) -> list[Effect]:
        """Note where everything up to the time ends, once this leadership may promise that."""
        if self._leadership is not None and self._leadership is sees.leadership:
            return []
        self._end = self._leadership = None
        # No row gets `readable_from` or an earlier time, also while that lies ahead of the clock.
        if as_of > max(sees.promisable, sees.readable_from) or not sees.is_newest(self.since):
            return []
        self._end, self._leadership = sees.log_end, sees.leadership
        return [Promise(as_of)]


def _kept_until(as_of: int, sees: Sees) -> int:
    """Return until when the rows as of a time are whole here.

    What covers them comes later than all that is known here, where nothing newer is: so the rows of
    a partition that nobody writes to may be read as of any time since.
    """
    if as_of >= sees.last_commit_time:
        as_of = max(as_of, sees.readable_time, sees.promisable, sees.floor)
    return as_of + sees.retention


def is_decided(effects: list[Effect]) -> bool:
    """Whether a read is answered or refused."""
    return bool(effects) and isinstance(effects[-1], Answer | Refuse)


class Asked(NamedTuple):
    """A read has come."""

    read: Read
    sees: Sees


class Held(NamedTuple):
    """There is memory for a read that must wait."""

    read: Read


class Ran(NamedTuple):
    """The job has run: more may be applied, or promised, or too late."""

    sees: Sees


class Leased(NamedTuple):
    """There is news of leases, or of times."""


class Ticked(NamedTuple):
    """Time has passed."""

    now: float


Event = Asked | Held | Ran | Leased | Ticked


class Reads:
    """The reads of one partition that wait until they may be answered, in the order they came."""

    def __init__(self, held_max: int) -> None:
        self._held_max = held_max
        self._waiting: deque[Read] = deque()

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._waiting)

    def step(self, event: Event) -> list[Effect]:
        """Return what is to be done because of an event, in that order."""
        match event:
            case Asked(read, sees):
                return self._ask(read, sees)
            case Held(read):
                self._waiting.append(read)
                return [LookAgain(read.deadline), AskLeases(), RunJob()]
            case Ran(sees):
                return self._look(sees)
            case Leased():
                return [RunJob()] if self._waiting else []
            case Ticked(now):
                return self._tick(now)

    def _ask(self, read: Read, sees: Sees) -> list[Effect]:
        effects = read.ask(sees)
        if is_decided(effects):
            return effects
        if sees.over:
            return [*effects, Refuse(read, Cause.NOT_YET)]
        full = len(self._waiting) >= self._held_max
        return [*effects, Refuse(read, Cause.TOO_MANY) if full else Hold(read)]

    def _look(self, sees: Sees) -> list[Effect]:
        """Answer what may be answered, and refuse what has waited for too long."""
        effects: list[Effect] = []
        taken, self._waiting = self._waiting, deque()
        for read in taken:
            follows = read.look(sees)
            effects += follows
            if is_decided(follows):
                continue
            if read.is_over(sees):
                effects.append(Refuse(read, Cause.NOT_YET))
            else:
                self._waiting.append(read)
        return effects

    def _tick(self, now: float) -> list[Effect]:
        if not self._waiting:
            return []
        deadline = self._waiting[0].deadline
        return [RunJob()] if deadline <= now else [LookAgain(deadline)]
