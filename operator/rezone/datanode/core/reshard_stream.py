"""What a new partition pulls of one source: what to ask for next, and what is taken.

The log of the new partition alone says how far a reshard stream is (`ReshardPosition`); all else
here is of one leadership. There are two lanes: the backfill brings the rows of before, the change
stream what the source's log has had since. Each has a bounded number of appends that are not
committed yet.

Pure: `step` takes what has happened and what the leader sees, and returns what follows;
`resharding.reshard_streams` sends, appends and reports. Transcripts are in
`tests/datanode/transcripts/resharding.txt`.
"""

import enum
from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from rezone.wire.messages import ReshardPosition

UNCOMMITTED_MAX: Final = 2
"""How many appends of a lane may wait to be committed: one is on its way while one is fetched."""

_RETRY_SECONDS: Final = 0.1
_RETRY_BROKEN_SECONDS: Final = 1.0


class Stage(enum.Enum):
    """How far a reshard stream is."""

    NOT_BEGUN = "not begun"
    BACKFILLING = "backfilling"
    FOLLOWING = "following"
    ENDED = "ended"
    """The source is sealed, and all of its rows are in the log here."""


@dataclass(frozen=True, slots=True)
class Sees:
    """What the leader sees: how far its log has pulled the source, and how far it is committed.

    `open`: it leads still, and may append; `yields`: a follower's node has clients that come before
    more rows. `kept`: the position of what is applied and committed, None before any.
    """

    position: ReshardPosition | None
    log_end: int
    committed: int
    open: bool
    yields: bool
    kept: int | None
    mark_rows: int


class BackfillTurn(NamedTuple):
    """There is time for another request for rows."""


class StreamTurn(NamedTuple):
    """There is time for another request for the source's log."""


class Begun(NamedTuple):
    """The source has said from where its log is to be followed."""


class Backfilled(NamedTuple):
    """Rows have come that were asked for as those behind `after`; up to `reached`, or the `end`."""

    after: bytes
    reached: bytes
    rows: int
    end: bool


class Came(NamedTuple):
    """The source's log was read from `offset` to `reached`; `ends`: where its entries end."""

    offset: int
    reached: ReshardPosition | None
    ends: tuple[int, ...]


class Followed(NamedTuple):
    """What has come is in the log here; `committed` and `time` are the source's by then."""

    reached: ReshardPosition | None
    committed: int
    time: int


class Appended(NamedTuple):
    """An append of a lane ends there."""

    backfills: bool
    end_offset: int


class Refused(NamedTuple):
    """A request was refused. `broken`: the source's log does not lead on from here.

    `leader`: who leads the source instead, and in which epoch; None when that is not why.
    """

    backfills: bool
    why: str
    broken: bool
    leader: tuple[int, int] | None = None


class AskBegin(NamedTuple):
    """Ask the source from where its log is to be followed."""

    leader_epoch: int
    keep_from: int | None


class AskBackfill(NamedTuple):
    """Ask for the next rows; the source must have applied its log up to `applied`."""

    leader_epoch: int
    keep_from: int | None
    after: bytes
    applied: int


class AskStream(NamedTuple):
    """Ask for the source's log from an offset on, of a branch of history."""

    leader_epoch: int
    keep_from: int | None
    offset: int
    partition_uuid: str


class AppendBegin(NamedTuple):
    """Append the position that the reshard stream begins with."""


class AppendBackfill(NamedTuple):
    """Append the rows; where the reshard stream stands by that."""

    position: ReshardPosition


class AppendStream(NamedTuple):
    """Append the entries; with `mark` in their place that the source had nothing up to there."""

    mark: bool


Event = BackfillTurn | StreamTurn | Begun | Backfilled | Came | Followed | Appended | Refused
Effect = AskBegin | AskBackfill | AskStream | AppendBegin | AppendBackfill | AppendStream


class Lane:
    """What is on its way of one lane: the ends of appends, and why it does not go on."""

    def __init__(self) -> None:
        self.error = ""
        self.broken = False
        self.retry_at = float("-inf")
        self._ends: deque[int] = deque()

    def appended(self, end_offset: int) -> None:
        """Note where an append ends."""
        self._ends.append(end_offset)

    def may_ask(self, now: float, committed: int) -> bool:
        """Whether it is time for another request."""
        while self._ends and self._ends[0] <= committed:
            self._ends.popleft()
        return now >= self.retry_at and len(self._ends) < UNCOMMITTED_MAX

    def works(self) -> None:
        """Note that it was answered."""
        self.error, self.broken = "", False

    def fails(self, why: str, retry_at: float, *, broken: bool) -> None:
        """Note why it was refused, and when to ask again."""
        self.error, self.broken, self.retry_at = why, broken, retry_at


class ReshardStreamState:
    """The reshard stream of one source in one leadership.

    `lag_rows`: by how many rows of the source the change stream is behind, None while that is not
    known; `leader_hint`: the latest epoch of the source that was heard of, and who leads in it.
    """

    def __init__(self) -> None:
        self.backfill = Lane()
        self.stream = Lane()
        self.reached: ReshardPosition | None = None
        self.lag_rows: int | None = None
        self.leader_hint = (-1, -1)
        self._time = 0
        self._next_time = (0, 0)

    def time(self, committed: int) -> int:
        """Return up to which time of the source all is here and committed."""
        end, time = self._next_time
        if end <= committed:
            self._time = max(self._time, time)
        return self._time

    def step(self, event: Event, sees: Sees, now: float) -> Effect | None:
        """Return what is to be done because of an event; None for nothing."""
        match event:
            case BackfillTurn() | StreamTurn():
                return self._ask(event, sees, now)
            case Begun():
                self.backfill.works()
                return AppendBegin() if sees.position is None and sees.open else None
            case Backfilled():
                self.backfill.works()
                return _backfill(event, sees)
            case Came():
                return self._come(event, sees)
            case _:
                self._note(event, sees, now)
                return None

    # --- what to ask for -------------------------------------------------------------------------

    def next_ingest(self, sees: Sees) -> AskBackfill | None:
        """Return which rows others may bring past the log; None while none may be asked for."""
        asked = self._ask_backfill(sees) if sees.open else None
        return asked if isinstance(asked, AskBackfill) else None

    def _ask(self, turn: BackfillTurn | StreamTurn, sees: Sees, now: float) -> Effect | None:
        lane = self.backfill if isinstance(turn, BackfillTurn) else self.stream
        if not sees.open or not lane.may_ask(now, sees.committed):
            return None
        return (
            self._ask_backfill(sees) if isinstance(turn, BackfillTurn) else self._ask_stream(sees)
        )

    def _ask_backfill(self, sees: Sees) -> AskBegin | AskBackfill | None:
        position, epoch = sees.position, self._epoch(sees)
        if sees.yields or (position is not None and not position.backfilling):
            return None
        if position is None:
            return AskBegin(epoch, sees.kept)
        # From there on the log is followed: what the source lacks below comes by nothing.
        return AskBackfill(epoch, sees.kept, after=position.backfilled_to, applied=position.offset)

    def _ask_stream(self, sees: Sees) -> Effect | None:
        position = sees.position
        if position is None or position.sealed_at:
            return None
        at = self.reached or position
        return AskStream(self._epoch(sees), sees.kept, at.offset, at.partition_uuid)

    def _epoch(self, sees: Sees) -> int:
        """Return the latest epoch of the source that is known: one that knows less must not answer.

        0 before any.
        """
        known = [at.leader_epoch for at in (sees.position, self.reached) if at is not None]
        return max(known, default=0)

    # --- what has come ---------------------------------------------------------------------------

    def _come(self, came: Came, sees: Sees) -> Effect | None:
        """Take what the source's log has, unless it was asked for in another leadership."""
        at = self.reached or sees.position
        if sees.position is None or at is None or at.offset != came.offset or not sees.open:
            return None
        self.stream.works()
        behind, reached = sees.position.offset, came.reached
        news = any(end > behind for end in came.ends)
        apart = reached.offset - behind if reached is not None else 0
        return AppendStream(mark=not news and apart >= sees.mark_rows)

    def _note(self, event: Event, sees: Sees, now: float) -> None:
        match event:
            case Appended(backfills, end_offset):
                (self.backfill if backfills else self.stream).appended(end_offset)
            case Followed():
                self._follow(event, sees)
            case Refused():
                self._refuse(event, now)
            case _:
                pass

    def _follow(self, followed: Followed, sees: Sees) -> None:
        """Stand where the source's log was read to; its time counts once that is committed here."""
        self.reached = followed.reached or self.reached
        at = self.reached or sees.position
        if at is None:
            return
        self.lag_rows = max(0, followed.committed - at.offset)
        self.time(sees.committed)
        if self._next_time[0] <= sees.committed:
            time = followed.time if not self.lag_rows else at.commit_time
            self._next_time = (sees.log_end, time)

    def _refuse(self, refused: Refused, now: float) -> None:
        pause = _RETRY_BROKEN_SECONDS if refused.broken else _RETRY_SECONDS
        if refused.leader is not None and refused.leader > self.leader_hint:
            self.leader_hint, pause = refused.leader, 0.0
        lane = self.backfill if refused.backfills else self.stream
        lane.fails(refused.why, now + pause, broken=refused.broken)
        if not refused.backfills:
            self.lag_rows = None


def _backfill(backfilled: Backfilled, sees: Sees) -> Effect | None:
    """Take rows, unless they were asked for in another leadership, or have come already."""
    before = sees.position
    if (
        before is None
        or not before.backfilling
        or before.backfilled_to != backfilled.after
        or not sees.open
    ):
        return None
    after = msgspec.structs.replace(
        before,
        backfilling=not backfilled.end,
        backfilled_to=backfilled.reached,
        rows=before.rows + backfilled.rows,
    )
    return AppendBackfill(after)


def stage_of(position: ReshardPosition | None) -> Stage:
    """Return how far a reshard stream is by the log."""
    if position is None:
        return Stage.NOT_BEGUN
    if position.sealed_at:
        return Stage.BACKFILLING if position.backfilling else Stage.ENDED
    return Stage.BACKFILLING if position.backfilling else Stage.FOLLOWING


def is_granted(position: ReshardPosition | None, done: int) -> bool:
    """Return whether the source's range is served here: all of it is committed and applied.

    `done` is up to where both are true of the log here.
    """
    return stage_of(position) is Stage.ENDED and position is not None and position.sealed_at <= done
