"""Reads of few keys: those that come while one of their partition is under way share the next.

All of them ask for the newest state, and a shared request is sent after each of its calls began, so
each sees what was acknowledged before it. A shared request that is refused is repeated call by
call: a read changes nothing, and whoever is refused fails alone.

Concurrency: any thread may ask. `answered` is called once, without the lock, never from within
`ask`.
"""

import dataclasses
import functools
import threading
from collections import deque
from collections.abc import Callable

from rezone.client.requests.batches import Part
from rezone.client.requests.calls import Budget
from rezone.client.requests.dispatch import Dispatcher
from rezone.client.requests.gathering import Gathering
from rezone.client.requests.request import Outcome, Request
from rezone.client.requests.sharing import Content, FoundRows, Limits, OwnRows, SharedRows, joined
from rezone.client.requests.turns import Turn
from rezone.client.settings import ClientSettings, closed_error
from rezone.wire.codec.encoded_rows import Places
from rezone.wire.codec.rows import RowCodec
from rezone.wire.errors import ReshardedError, RezoneError
from rezone.wire.messages import Message, PartitionId, ReadRequest


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class _Read:
    """One call's keys in one partition; `deadline` by the client's clock."""

    content: Content
    places: Places
    codec: RowCodec
    room: int
    deadline: float
    answered: Callable[[FoundRows | RezoneError], None]
    written: frozenset[int] = frozenset()


@dataclasses.dataclass(eq=False)
class _Lane:
    """The reads of one partition; one request is under way at most, for others `busy` is set."""

    limits: Limits
    waiting: deque[_Read] = dataclasses.field(default_factory=deque)
    busy: bool = False


class SharedReads:
    """The reads of few keys of one client."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        budget: Budget,
        settings: ClientSettings,
        *,
        gathering: Gathering,
        clock: Callable[[], float],
    ) -> None:
        self._dispatcher = dispatcher
        self._budget = budget
        self._settings = settings
        self._gathering = gathering
        self._clock = clock
        self._turns = dispatcher.turns()
        self._lock = threading.Lock()
        self._lanes: dict[PartitionId, _Lane] = {}

    def ask(
        self,
        codec: RowCodec,
        part: Part,
        answered: Callable[[FoundRows | RezoneError], None],
    ) -> None:
        """Read keys of a partition at the newest state; OverloadedError when there is no room."""
        partition, content = part.partition, Content(part.rows)
        read = _Read(
            content=content,
            places=part.places_by(codec),
            codec=codec,
            room=self._budget.take(content.size),
            deadline=self._clock() + self._settings.timeout_seconds,
            answered=answered,
        )
        with self._lock:
            lane = self._lanes.get(partition)
            if lane is None:
                lane = self._lanes[partition] = _Lane(Limits(self._settings, codec))
            lane.waiting.append(read)
            if lane.busy:
                return
            lane.busy = True
        self._gathering.begin(functools.partial(self._at_once, partition, lane))

    def _at_once(self, partition: PartitionId, lane: _Lane) -> None:
        self._send_next(partition, lane, self._turns.begin(partition))

    def _next(self, partition: PartitionId, lane: _Lane) -> None:
        """Send what waits when it is its turn."""
        with self._lock:
            if not lane.waiting:
                # Partitions come and go with re-shardings: only those that are read have a lane.
                self._lanes.pop(partition, None)
                return
        self._turns.wait(partition, functools.partial(self._send_next, partition, lane))

    def _send_next(self, partition: PartitionId, lane: _Lane, turn: Turn) -> None:
        with self._lock:
            group = lane.limits.take(lane.waiting, _fits)

        def done(request: Request, outcome: Outcome) -> None:
            self._turns.end(turn)
            self._next(partition, lane)
            self._done(partition, group, request, outcome)

        self._send(partition, group, done)

    def _send(
        self,
        partition: PartitionId,
        group: list[_Read],
        done: Callable[[Request, Outcome], None],
    ) -> None:
        def message(opaque: int) -> Message:
            return ReadRequest(opaque=opaque, partition=partition)

        request = Request(
            partition=partition,
            message=message,
            body=joined(group, group[0].codec.key_schema),
            done=lambda outcome: done(request, outcome),
            deadline=min(one.deadline for one in group),
        )
        if not self._dispatcher.submit(request):
            done(request, closed_error())

    def _done(
        self, partition: PartitionId, group: list[_Read], request: Request, outcome: Outcome
    ) -> None:
        if not isinstance(outcome, RezoneError):
            self._share(group, outcome[1])
        elif len(group) == 1 or isinstance(outcome, ReshardedError):
            # Of a partition that is over each call learns: it is cut again.
            for read in group:
                self._end(read, outcome)
        else:
            self._repeat(partition, group, request, outcome)

    def _repeat(
        self, partition: PartitionId, group: list[_Read], request: Request, refusal: RezoneError
    ) -> None:
        """Ask for each call alone, while it has time; the request had that of the first of them."""
        over = max(self._clock(), request.deadline) if refusal.retryable else self._clock()
        for read in group:
            if read.deadline <= over:
                self._end(read, refusal)
            else:
                self._send(partition, [read], functools.partial(self._ended_alone, read))

    def _ended_alone(self, read: _Read, request: Request, outcome: Outcome) -> None:
        del request
        if isinstance(outcome, RezoneError):
            self._end(read, outcome)
        else:
            self._share([read], outcome[1])

    def _share(self, group: list[_Read], body: memoryview) -> None:
        codec = group[0].codec
        if len(group) == 1:
            self._end(group[0], OwnRows(codec, body))
            return
        found = SharedRows(codec, body)
        for read in group:
            self._end(read, found.of(read.places))

    def _end(self, read: _Read, result: FoundRows | RezoneError) -> None:
        self._budget.give(read.room)
        read.answered(result)


def _fits(first: _Read, other: _Read) -> bool:
    return first.codec is other.codec
