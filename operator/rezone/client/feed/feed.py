"""The change feed of a zone: polls the data nodes that have its ranges, and stands at a token.

Each node is asked by one request at a time, for all ranges that it is to answer; it answers when
there is something, within seconds at the latest. A node is asked again when its answer was used:
so a consumer that is slow holds one answer of each node, and no more. Whoever does not answer in
time is left for another replica.

Concurrency: one thread at a time may use a feed; requests wait in threads of its own.
"""

import dataclasses
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple, Self

import pyarrow as pa

from rezone.client.feed import rows
from rezone.client.feed.bounds import Bound, Positions
from rezone.client.feed.positions import FeedPositions, FollowedRange
from rezone.client.feed.token import encode_token
from rezone.client.feed.traced import traced_poll
from rezone.client.feed.trying import Tries
from rezone.client.operations.zone import Zone
from rezone.client.requests.dispatch import Dispatcher
from rezone.client.settings import ClientSettings
from rezone.wire.errors import ReshardedError, RezoneError, UnknownPartitionError, error_from
from rezone.wire.messages import ChangesFound, FollowChanges, RangeChanges

NODES_AT_ONCE = 32
ANSWER_BYTES = 1 << 20
_PAUSE_SECONDS = 0.005
_WAIT_SECONDS_MAX = 5.0
"""No data node waits for longer."""

_IS_GONE = (UnknownPartitionError, ReshardedError)


class ChangeBatch(NamedTuple):
    """Changes, those of each key in the order of their commits; none in a mark.

    `changes` is a table: the columns of the zone's, null but for the key where a row was deleted,
    `_operation` ("upsert" or "delete"), `_commit_time` (microseconds since 1970), and the place in
    the log that it was read from, `_partition` and `_offset`; of a feed with old rows `_old`, a
    struct of the zone's columns, null where there was no row; a feed of times has `_commit_time`
    alone. Whoever goes on from `token` gets all
    changes behind this batch, and only those; None before each range has a position. All changes of
    the zone with commit times up to `resolved_time` have come; 0 while that is not known.
    """

    changes: Any
    token: str | None
    resolved_time: int


class SnapshotAndChanges(NamedTuple):
    """All rows as of a time, record batch by record batch, and the feed of the changes since."""

    rows: Iterator[Any]
    as_of: int
    feed: "ChangeFeed"


@dataclasses.dataclass
class _Call:
    """A request under way: to whom, and for which ranges."""

    address: str
    asked: list[FollowedRange]


class ChangeFeed:
    """Follows a zone's changes; made by `TableClient.changes`. Close it, or use it in a `with`.

    Iterate over it: it gives each batch as it comes, and a mark, which has no changes, when none
    came for `changes_poll_seconds`. `poll` gives the next one. The first is a mark where the feed
    has begun now or with the earliest changes: its token is where that is.
    FeedTruncatedError when changes behind its
    position are kept nowhere; after any other RezoneError a feed of the same token goes on.
    """

    def __init__(
        self,
        zone: Zone,
        dispatcher: Dispatcher,
        settings: ClientSettings,
        positions: FeedPositions,
        *,
        clock: Callable[[], float],
        from_followers: bool,
        old_rows: bool,
        times_only: bool,
    ) -> None:
        self._zone = zone
        self._old_rows = old_rows and not times_only
        self._times_only = times_only
        columns = rows.schema_of(zone.codec, old_rows=old_rows)
        self._empty = (rows.TIMES_SCHEMA if times_only else columns).empty_table()
        self._dispatcher = dispatcher
        self._settings = settings
        self._positions = positions
        self._clock = clock
        self._tries = Tries(dispatcher, settings, clock, from_followers=from_followers)
        self._calls: dict[Future[ChangesFound], _Call] = {}
        self._pool = ThreadPoolExecutor(NODES_AT_ONCE, thread_name_prefix="rezone-changes")
        self._fetch_again = self._clock()
        self._closed = threading.Event()
        self._error: RezoneError | None = None
        self._bound: Bound | None = None

    @property
    def token(self) -> str | None:
        """The position behind all batches that were given; None before each range has one."""
        positions = self._positions.positions()
        return None if positions is None else encode_token(self._zone.config.zone_uid, positions)

    @property
    def resolved_time(self) -> int:
        """All changes with commit times up to this one were given; 0 while that is not known."""
        return min(each.time or 0 for each in self._positions.ranges)

    def end_at(self, end: Positions) -> None:
        """Ask for nothing more of what has all changes up to a position; some may come yet.

        A node would read and send what nobody wants. Of a feed of times none of later ones come.
        """
        self._bound = Bound(end)

    def __iter__(self) -> Iterator[ChangeBatch]:
        """Yield batches and marks, until the feed is closed."""
        while not self._closed.is_set():
            yield self.poll(self._settings.changes_poll_seconds)

    def poll(self, timeout_seconds: float) -> ChangeBatch:
        """Return the next batch, or a mark when none comes in time."""
        until, begins = self._clock() + timeout_seconds, not self._positions.have_begun
        while True:
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            self._ask_on()
            left = max(0.0, until - self._clock())
            # Ranges may wait for something else than their time: a node that is busy, a leader.
            pause = max(_PAUSE_SECONDS, self._tries.pause(self._positions.ranges))
            for future in self._answered(min(left, pause)):
                if found := self._take(future):
                    return ChangeBatch(found, self.token, self.resolved_time)
            if not left or (begins and self._positions.have_begun):
                return ChangeBatch(self._empty, self.token, self.resolved_time)

    def _answered(self, seconds: float) -> list["Future[ChangesFound]"]:
        """Wait for answers; the others stay where they are until the consumer wants more."""
        if self._calls:
            return list(wait(self._calls, seconds, FIRST_COMPLETED).done)
        self._closed.wait(seconds)
        return []

    # --- asking ----------------------------------------------------------------------------------

    def _ask_on(self) -> None:
        """Ask each node that has ranges, and no request under way.

        Before each range has a position those that have none are asked alone: what came would be
        behind no token.
        """
        if self._positions.assign(self._dispatcher.placement):
            self._fetch_routes()
        busy = {call.address for call in self._calls.values()}
        by_address: dict[str, list[FollowedRange]] = {}
        begun = self._positions.have_begun
        for each in self._positions.ranges:
            if each.in_flight or (each.time is not None and (not begun or self._is_over(each))):
                continue
            if (address := self._tries.address(each)) is not None:
                by_address.setdefault(address, []).append(each)
        for address, asked in by_address.items():
            if address not in busy:
                self._ask(address, asked)
        if self._tries.lacks_routes:
            self._fetch_routes()

    def _is_over(self, each: FollowedRange) -> bool:
        if self._bound is None or each.time is None:
            return False
        return self._bound.is_reached(each.start, each.end, each.time)

    def _fetch_routes(self) -> None:
        """Fetch newer routes, but not all the time."""
        now = self._clock()
        if now >= self._fetch_again:
            self._fetch_again = now + self._settings.backoff_max_seconds
            self._zone.fetch_routes()
            self._tries.lacks_routes = False

    def _ask(self, address: str, asked: list[FollowedRange]) -> None:
        # Those that had the room of the last answer are asked last.
        asked.sort(key=lambda each: each.time or 0)
        waits = min(self._settings.changes_poll_seconds, _WAIT_SECONDS_MAX)
        request = FollowChanges(
            ranges=tuple(each.asked for each in asked),
            bytes_max=ANSWER_BYTES,
            timeout_ms=round(waits * 1000),
            old_rows=self._old_rows,
            counts_only=self._times_only,
        )
        for each in asked:
            each.in_flight = True
        seconds = waits + self._settings.attempt_timeout_seconds

        def call() -> ChangesFound:
            node = self._dispatcher.node(address)
            with traced_poll(self._dispatcher.tracer, request) as traced:
                found = node.call(traced.request, ChangesFound, timeout_seconds=seconds)
                traced.found = found
                return found

        self._calls[self._pool.submit(call)] = _Call(address, asked)

    # --- answers ---------------------------------------------------------------------------------

    def _take(self, future: "Future[ChangesFound]") -> Any | None:
        """Take an answer; return its changes, None without any.

        An error that ends the feed is raised by the next call when there are changes: they count.
        """
        call = self._calls.pop(future)
        for each in call.asked:
            each.in_flight = False
        found: list[Any] = []
        for asked, answer in zip(call.asked, _answers(future, call), strict=True):
            try:
                self._took(call.address, asked, answer, found)
            except RezoneError as error:
                self._error = error
        return pa.Table.from_batches(found) if found else None

    def _took(
        self, address: str, asked: FollowedRange, answer: RangeChanges, found: list[Any]
    ) -> None:
        if answer.error is not None:
            error = error_from(answer.error)
            attempts = self._tries.failed(asked, address, error)
            if isinstance(error, _IS_GONE) and attempts > self._settings.redirects_max:
                self._positions.gone(asked, self._dispatcher.placement)
            return
        if self._times_only:
            found += self._times(asked, answer)
        elif answer.rows:
            codec, old_rows = self._zone.codec, self._old_rows
            found.append(rows.decoded(codec, asked.partition, answer.rows, old_rows=old_rows))
        self._tries.succeeded(asked, address, answer.time)
        self._positions.took(asked, answer)

    def _times(self, asked: FollowedRange, answer: RangeChanges) -> list[Any]:
        times = rows.times_in(answer)
        if self._bound is not None:
            times = times[times <= self._bound.latest(asked.start, asked.end)]
        if not len(times):
            return []
        return [pa.RecordBatch.from_arrays([pa.array(times)], schema=rows.TIMES_SCHEMA)]

    def close(self) -> None:
        """End the feed; requests that are under way end by themselves, within seconds."""
        self._closed.set()
        # Nobody waits: those without news are answered after `changes_poll_seconds`.
        self._pool.shutdown(wait=False, cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _answers(future: "Future[ChangesFound]", call: _Call) -> tuple[RangeChanges, ...]:
    """Return an answer for each range that was asked for, errors in place of those missing."""
    try:
        found = future.result().ranges
    except RezoneError as error:
        return (RangeChanges(error=error.info()),) * len(call.asked)
    if len(found) == len(call.asked):
        return found
    wrong = RezoneError(f"{call.address} answers for {len(found)} ranges, not {len(call.asked)}")
    return (RangeChanges(error=wrong.info()),) * len(call.asked)
