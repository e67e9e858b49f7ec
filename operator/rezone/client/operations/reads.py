"""Reads by key: of the newest state from leaders, or of one that may be older from any replica.

Concurrency: any thread may call; answers come by the dispatcher's threads.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import pyarrow as pa

from rezone.client.requests import batches
from rezone.client.requests.calls import Budget, Call, Ended, settling
from rezone.client.requests.dispatch import Dispatcher
from rezone.client.requests.gathering import Gathering
from rezone.client.requests.request import Outcome, Request
from rezone.client.requests.shared_reads import SharedReads
from rezone.client.requests.sharing import SHARING_ROWS_MAX, FoundRows, OwnRows, Row
from rezone.client.requests.together import Cut
from rezone.client.settings import ClientSettings, closed_error
from rezone.wire.codec import bodies
from rezone.wire.codec.rows import RowCodec
from rezone.wire.errors import LimitExceededError, OverloadedError, RezoneError
from rezone.wire.messages import AGE_UNKNOWN_MS, Message, PartitionId, ReadRequest, ReadResult

Part = tuple[PartitionId, bytes]
"""Keys of one partition, as the body of a request."""


class Aged(NamedTuple):
    """An answer that has an age, and when it was asked for, by the client's clock."""

    part: Part
    result: ReadResult
    body: memoryview
    sent_at: float


class ReadTime(NamedTuple):
    """A time that may be read at: microseconds since 1970, and how long ago that is at most.

    The age is infinite where it cannot be told: the time lies ahead of the data nodes' clocks.
    """

    as_of: int
    age_seconds: float


class AgedRows(NamedTuple):
    """Rows and their time: microseconds since 1970, and how long ago that is at most.

    The age is that when the caller gets the answer; infinite as for a `ReadTime`. The rows are a
    table, a page of a lookup, or an iterator over record batches.
    """

    rows: Any
    as_of: int
    age_seconds: float


class SubmittedRead(NamedTuple):
    """A read that is under way: `rows` makes a table of what the future gives.

    The future raises ReshardedError when others serve the keys by now.
    """

    future: Future[list[FoundRows]]
    codec: RowCodec

    def rows(self, found: list[FoundRows]) -> Any:
        """Return the rows found as a table."""
        return rows_of(self.codec, found)


def rows_of(codec: RowCodec, found: Iterable[FoundRows]) -> Any:
    """Return the rows that a read has ended with as a table; without any by this codec."""
    parts = [each.batch() for each in found]
    return pa.Table.from_batches(parts, schema=parts[0].schema if parts else codec.arrow_schema)


class Reads:
    """The reads by key of one client."""

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
        self._clock = clock
        self._shared = SharedReads(dispatcher, budget, settings, gathering=gathering, clock=clock)

    def newest(self, codec: RowCodec, keys: batches.Rows, as_of: int | None) -> Any:
        """Return the rows of these keys as a table, by their leaders; of a time when given.

        Keys whose rows do not fit into one answer are asked for in halves.
        """
        submitted = self.submit(codec, keys, as_of)
        try:
            return submitted.rows(submitted.future.result())
        except LimitExceededError:
            batch = batches.conform(keys, codec.key_schema)
            if batch.num_rows < 2:  # noqa: PLR2004 - a key has no half
                raise
            half = batch.num_rows // 2
            parts = (batch.slice(0, half), batch.slice(half))
            return pa.concat_tables([self.newest(codec, part, as_of) for part in parts])

    def first(self, codec: RowCodec, key: batches.Rows) -> Row | None:
        """Return the newest state of the row with one key, None when it is not there."""
        return self.submit(codec, key, None).future.result()[0].first()

    def submit(self, codec: RowCodec, keys: batches.Rows, as_of: int | None) -> SubmittedRead:
        """Ask for the rows of these keys as `newest` does, and do not wait for them."""
        future, ended = settling()
        self._send(codec, self._cut(codec).alone(keys), ended, as_of)
        return SubmittedRead(future, codec)

    def submit_together(self, codec: RowCodec, calls: Sequence[tuple[batches.Rows, Ended]]) -> None:
        """Ask for the newest rows of calls of few keys; each ends with its own errors."""
        found = self._cut(codec).together([keys for keys, _ in calls])
        for parts, (_, ended) in zip(found, calls, strict=True):
            if isinstance(parts, Exception):
                ended(parts)
                continue
            try:
                self._send(codec, parts, ended, None)
            except OverloadedError as error:
                ended(error)  # with a part missing nothing else ends the call

    def _send(
        self, codec: RowCodec, parts: Sequence[batches.Part], ended: Ended, as_of: int | None
    ) -> None:
        call = Call(max(1, len(parts)), ended)
        if not parts:
            call.add([])
        for part in parts:
            if as_of is None and part.rows.num_rows <= SHARING_ROWS_MAX:
                self._shared.ask(codec, part, call.add)
            else:
                body = bodies.to_ipc(part.rows)
                self._ask((part.partition, body), _adding(call, codec), as_of)

    def aged(
        self, codec: RowCodec, keys: batches.Rows, as_of: int | None, age_ms: int | None
    ) -> AgedRows:
        """Return the rows of these keys as of one time, by any replica."""
        found = self._ask_any(self._parts(codec, keys), as_of, age_ms)
        oldest = min((one.result.as_of for one in found), default=as_of or 0)
        # Partitions answer at times of their own: those that are newer are asked once more.
        kept = [one for one in found if one.result.as_of == oldest]
        newer = [one.part for one in found if one.result.as_of != oldest]
        kept += self._ask_any(newer, oldest, None)
        tables = [bodies.from_ipc(one.body, codec.arrow_schema) for one in kept]
        return AgedRows(
            rows=pa.Table.from_batches(tables, schema=codec.arrow_schema),
            as_of=oldest,
            age_seconds=self._age_of(oldest, kept),
        )

    def time(
        self,
        codec: RowCodec,
        partitions: Iterable[PartitionId],
        as_of: int | None,
        age_ms: int | None,
    ) -> ReadTime:
        """Return the newest time as of which replicas of all these partitions may be read now.

        It is that of the one that is furthest behind; or the time that is given.
        """
        nothing = bodies.to_ipc(pa.RecordBatch.from_pylist([], schema=codec.key_schema))
        found = self._ask_any([(one, nothing) for one in partitions], as_of, age_ms)
        oldest = min(one.result.as_of for one in found)
        return ReadTime(oldest, self._age_of(oldest, found))

    def _age_of(self, as_of: int, answers: Iterable[Aged]) -> float:
        """Return how long ago a time is now, at most: the nodes have told it of theirs.

        A newer answer's clock says how old the time is, as well. What is not known of an answer is
        how long it was on the way, so all that has passed since it was asked for counts. Infinite
        where a node cannot tell.
        """
        now = self._clock()
        answers = list(answers)
        if any(one.result.age_ms == AGE_UNKNOWN_MS for one in answers):
            return math.inf
        ages = (
            one.result.age_ms / 1e3 + (one.result.as_of - as_of) / 1e6 + now - one.sent_at
            for one in answers
        )
        return max(ages, default=0.0)

    def _parts(self, codec: RowCodec, keys: batches.Rows) -> list[Part]:
        """Cut keys by partitions and by size."""
        parts = self._cut(codec).alone(keys)
        return [(part.partition, bodies.to_ipc(part.rows)) for part in parts]

    def _cut(self, codec: RowCodec) -> Cut:
        placement = self._dispatcher.placement
        return Cut(codec, placement.partitions_of, self._settings.request_bytes_max, keys=True)

    def _ask_any(self, parts: list[Part], as_of: int | None, age_ms: int | None) -> list[Aged]:
        """Ask followers first for each part; return the part and its answer."""
        if not parts:
            return []
        future, ended = settling()
        call = Call(len(parts), ended)

        def noting(part: Part) -> Callable[[Outcome, float], None]:
            def add(outcome: Outcome, sent_at: float) -> None:
                if isinstance(outcome, RezoneError):
                    call.add(outcome)
                    return
                result, body = outcome
                assert isinstance(result, ReadResult)  # noqa: S101 - the node answers in kind
                call.add(Aged(part, result, body, sent_at))

            return add

        for part in parts:
            self._ask(part, noting(part), as_of, age_ms=age_ms, anywhere=True)
        return future.result()

    def _ask(
        self,
        part: Part,
        answered: Callable[[Outcome, float], None],
        as_of: int | None,
        *,
        age_ms: int | None = None,
        anywhere: bool = False,
    ) -> None:
        partition, body = part
        room = self._budget.take(len(body))

        def message(opaque: int) -> Message:
            return ReadRequest(opaque=opaque, partition=partition, as_of=as_of, max_age_ms=age_ms)

        def done(outcome: Outcome) -> None:
            self._budget.give(room)
            answered(outcome, request.sent_at)

        request = Request(
            partition=partition, message=message, body=body, done=done, anywhere=anywhere
        )
        if not self._dispatcher.submit(request):
            done(closed_error())


def _adding(call: Call, codec: RowCodec) -> Callable[[Outcome, float], None]:
    """Return what adds the rows of an answer to a call, or its error."""

    def add(outcome: Outcome, sent_at: float) -> None:
        del sent_at
        if isinstance(outcome, RezoneError):
            call.add(outcome)
        else:
            call.add(OwnRows(codec, outcome[1]))

    return add
