"""Scans and lookups: the rows of a range of hashes, from whoever serves it.

A range is asked for segment by segment (`placement`). When a partition was re-sharded before its
first batch came, its segment is cut anew; one that has begun goes on where it is.

Concurrency: any thread may read; each stream belongs to the thread that iterates over it.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from rezone.client.dispatch import Dispatcher
from rezone.client.settings import ClientSettings
from rezone.wire.channel import CHANNEL_ERRORS
from rezone.wire.errors import NotLeaderError, NotReadyError, ReshardedError, RezoneError
from rezone.wire.flight import from_flight_error
from rezone.wire.layouts import HashRange, Segment
from rezone.wire.messages import IndexTicket, PartitionId, ScanTicket

Ticket = ScanTicket | IndexTicket


class Streams:
    """Streams rows from leaders; routes must have been fetched before."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        settings: ClientSettings,
        *,
        clock: Callable[[], float],
        fetch_routes: Callable[[], None],
    ) -> None:
        self._dispatcher = dispatcher
        self._settings = settings
        self._clock = clock
        self._fetch_routes = fetch_routes

    def rows(
        self, hashes: HashRange, ticket: Callable[[Segment], Ticket], *, whole: bool = False
    ) -> Iterator[Any]:
        """Yield the record batches of a range of hashes; `ticket` says what to ask a segment.

        Each segment is asked for until the timeout, but not again after its first batch, because
        rows already yielded cannot be taken back. With `whole` the batches of a segment are
        gathered first, and any break of it starts it again.
        """
        left = deque([hashes])
        deadline, attempt = self._deadline(), 0
        while left:
            segment, *others = self._dispatcher.placement.segments(left.popleft())
            left.extendleft(HashRange(one.start, one.end) for one in reversed(others))
            begun = False
            try:
                batches = self._ask(segment.partition, ticket(segment))
                for batch in list(batches) if whole else batches:
                    begun = True
                    yield batch
            except RezoneError as error:
                attempt += 1
                if begun or not error.retryable or self._clock() >= deadline:
                    raise
                left.appendleft(HashRange(segment.start, segment.end))
                self._learn(segment.partition, error, attempt)
            else:
                deadline, attempt = self._deadline(), 0

    def _deadline(self) -> float:
        return self._clock() + self._settings.timeout_seconds

    def _ask(self, partition: PartitionId, ticket: Ticket) -> Iterator[Any]:
        leader = self._dispatcher.leader(partition)
        if leader is None:
            raise NotReadyError(f"no leader is known for partition {partition}")
        try:
            for chunk in self._dispatcher.node(leader.address).get(ticket):
                if chunk.data is not None:
                    yield chunk.data
        except CHANNEL_ERRORS as error:
            raise from_flight_error(error) from error

    def _learn(self, partition: PartitionId, error: RezoneError, attempt: int) -> None:
        """Take over what an error says of routes; when that is not enough, fetch them."""
        if isinstance(error, ReshardedError) and self._dispatcher.reshard(partition, error):
            return
        named = isinstance(error, NotLeaderError) and self._dispatcher.correct(partition, error)
        if not named or attempt > self._settings.redirects_max:
            self._dispatcher.pause(attempt)
            self._fetch_routes()
