"""Reads by key: of the newest state from leaders, or of one that may be older from any replica.

Concurrency: any thread may call; answers come by the dispatcher's threads.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import pyarrow as pa

from rezone.client import batches
from rezone.client.calls import Budget, Call
from rezone.client.dispatch import Dispatcher
from rezone.client.request import Outcome, Request
from rezone.client.settings import ClientSettings, closed_error
from rezone.wire import bodies
from rezone.wire.messages import Message, PartitionId, ReadRequest, ReadResult
from rezone.wire.rows import RowCodec

Part = tuple[PartitionId, bytes]
"""Keys of one partition, as the body of a request."""
Aged = tuple[Part, ReadResult, memoryview]


class ReadTime(NamedTuple):
    """A time that may be read at: microseconds since 1970, and how long ago that was."""

    as_of: int
    age_seconds: float


class AgedRows(NamedTuple):
    """Rows and their time: microseconds since 1970, and how long ago that was when they left.

    The rows are a table, a page of a lookup, or an iterator over record batches.
    """

    rows: Any
    as_of: int
    age_seconds: float


def age_bound(max_staleness_seconds: float | None, as_of: int | None) -> int | None:
    """Return how old rows may be, in milliseconds, None for a time that is given.

    ValueError unless exactly one of the two is given.
    """
    if (max_staleness_seconds is None) == (as_of is None):
        raise ValueError("give either max_staleness_seconds or as_of")
    return None if max_staleness_seconds is None else int(max_staleness_seconds * 1000)


class Reads:
    """The reads by key of one client."""

    def __init__(self, dispatcher: Dispatcher, budget: Budget, settings: ClientSettings) -> None:
        self._dispatcher = dispatcher
        self._budget = budget
        self._settings = settings

    def newest(self, codec: RowCodec, keys: batches.Rows, as_of: int | None) -> Any:
        """Return the rows of these keys as a table, by their leaders; of a time when given."""
        parts = self._parts(codec, keys)
        call = Call(max(1, len(parts)))
        if not parts:
            call.add([])
        for part in parts:
            self._ask(part, call.add, as_of)
        found = [bodies.from_ipc(body, codec.arrow_schema) for _, body in call.future.result()]
        return pa.Table.from_batches(found, schema=codec.arrow_schema)

    def aged(
        self, codec: RowCodec, keys: batches.Rows, as_of: int | None, age_ms: int | None
    ) -> AgedRows:
        """Return the rows of these keys as of one time, by any replica."""
        found = self._ask_any(self._parts(codec, keys), as_of, age_ms)
        oldest = min((result.as_of for _, result, _ in found), default=as_of or 0)
        # Partitions answer at times of their own: those that are newer are asked once more.
        kept = [answer for answer in found if answer[1].as_of == oldest]
        newer = [part for part, result, _ in found if result.as_of != oldest]
        kept += self._ask_any(newer, oldest, None)
        tables = [bodies.from_ipc(body, codec.arrow_schema) for _, _, body in kept]
        return AgedRows(
            rows=pa.Table.from_batches(tables, schema=codec.arrow_schema),
            as_of=oldest,
            age_seconds=max((result.age_ms for _, result, _ in kept), default=0) / 1000,
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
        told = [result for _, result, _ in found]
        oldest = min(result.as_of for result in told)
        # A newer answer's clock says how old the oldest time is, as well.
        age = max(result.age_ms / 1e3 + (result.as_of - oldest) / 1e6 for result in told)
        return ReadTime(oldest, age)

    def _parts(self, codec: RowCodec, keys: batches.Rows) -> list[Part]:
        """Cut keys by partitions and by size."""
        cut = batches.checked_parts(
            codec,
            batches.conform(keys, codec.key_schema),
            self._dispatcher.placement.partitions_of,
            delete=True,
            bytes_max=self._settings.request_bytes_max,
        )
        return [(partition, bodies.to_ipc(part)) for partition, part in cut]

    def _ask_any(self, parts: list[Part], as_of: int | None, age_ms: int | None) -> list[Aged]:
        """Ask followers first for each part; return the part and its answer."""
        if not parts:
            return []
        call = Call(len(parts))

        def noting(part: Part) -> Callable[[Outcome], None]:
            def add(outcome: Outcome) -> None:
                call.add((part, *outcome) if isinstance(outcome, tuple) else outcome)

            return add

        for part in parts:
            self._ask(part, noting(part), as_of, age_ms=age_ms, anywhere=True)
        return call.future.result()

    def _ask(
        self,
        part: Part,
        answered: Callable[[Outcome], None],
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
            answered(outcome)

        request = Request(
            partition=partition, message=message, body=body, done=done, anywhere=anywhere
        )
        if not self._dispatcher.submit(request):
            done(closed_error())
