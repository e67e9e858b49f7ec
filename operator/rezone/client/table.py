"""A zone's table as its users see it: write, delete, read, scan, look up, transactions.

Writes are applied exactly once (`writes`), routes correct themselves (`dispatch`).

Concurrency: any thread may call. Batches of one partition go out in the order of their calls.
"""

import functools
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, Self, TypeVar

import pyarrow as pa

from rezone.client import batches
from rezone.client.calls import Budget, Call
from rezone.client.dispatch import Dispatcher, Request
from rezone.client.lookups import LOOKUPS_AT_ONCE, IndexPage, Lookup
from rezone.client.routes import RouteCache
from rezone.client.settings import ClientSettings
from rezone.client.streams import Streams
from rezone.client.transactions import Requests, Transaction
from rezone.client.writes import Outcome, PartitionWrite, Writes, writer_uuid
from rezone.wire import rows
from rezone.wire.errors import NotReadyError, ReshardedError, RezoneError, UnknownIndexError
from rezone.wire.flight import NodeClient
from rezone.wire.layouts import WHOLE, HashRange, Segment
from rezone.wire.messages import (
    Message,
    PartitionId,
    ReadRequest,
    ReadResult,
    ScanTicket,
    TransactionOutcome,
    ZoneConfig,
)
from rezone.wire.rows import RowCodec
from rezone.wire.tls import TlsSource, tls_from_environment

R = TypeVar("R")
Part = tuple[PartitionId, bytes]
"""Keys of one partition, as the body of a request."""
Aged = tuple[Part, ReadResult, memoryview]


class AgedRows(NamedTuple):
    """Rows and their time: microseconds since 1970, and how long ago that was when they left."""

    rows: Any
    as_of: int
    age_seconds: float


class TableClient:
    """Reads and writes the rows of one zone.

    `bootstrap`: addresses ("host:port") of any of its data nodes. `writer_id` names this writer
    to the nodes, whose duplicate tables hold UUIDs: any other name becomes the UUID of
    `writer_uuid`. A name must never be used twice, not even by one client after the other: a new
    client numbers its batches from 1 again. `on_ack(partition, monotonic
    time)` is called for every acknowledged write, from a reader thread; it must be quick. `tls`
    is this client's certificate, by default that of REZONE_TLS_DIRECTORY; without both it speaks
    plaintext, which nodes with TLS do not take.
    Thread-safe. Close it, or use it as a context manager.
    """

    def __init__(
        self,
        bootstrap: Sequence[str],
        *,
        writer_id: str | None = None,
        settings: ClientSettings | None = None,
        on_ack: Callable[[PartitionId, float], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
        tls: TlsSource | None = None,
        connect: Callable[[str], NodeClient] | None = None,
    ) -> None:
        self.writer_id = writer_uuid(writer_id) if writer_id else str(uuid.uuid4())
        self._settings = settings or ClientSettings()
        self._clock = clock
        self._rng = rng or random.Random()  # noqa: S311 - jitter, not a secret
        self._routes = RouteCache(bootstrap)
        if connect is None:
            connect = functools.partial(NodeClient, tls=tls or tls_from_environment())
        self._budget = Budget(self._settings)
        self._lock = threading.Lock()
        self._codec: RowCodec | None = None
        self._codec_of: ZoneConfig | None = None
        self._dispatcher = Dispatcher(
            self._routes, self._settings, clock=clock, rng=self._rng, connect=connect
        )
        self._requests = Requests(self._dispatcher, self._budget)
        self._streams = Streams(
            self._dispatcher, self._settings, clock=clock, fetch_routes=self._fetch_routes
        )
        self._writes = Writes(
            self.writer_id,
            dispatcher=self._dispatcher,
            budget=self._budget,
            settings=self._settings,
            clock=clock,
            on_ack=on_ack,
        )

    @property
    def config(self) -> ZoneConfig:
        """The zone's config, fetched with the routes when first asked for."""
        if self._routes.config is None:
            self._fetch_routes()
        config = self._routes.config
        assert config is not None  # noqa: S101 - fetching sets it or raises
        return config

    @property
    def codec(self) -> RowCodec:
        """The row format of the zone's table: `arrow_schema` and `key_schema` are its schemas."""
        config = self.config
        with self._lock:
            if self._codec is None or self._codec_of != config:
                self._codec = RowCodec(config.table, config.limits)
            self._codec_of = config
            return self._codec

    def submit_write(self, data: batches.Rows) -> "Future[list[PartitionWrite]]":
        """Upsert rows; the future has one entry per request they were cut into.

        A request (the rows of one partition, up to the limits) is all or nothing; a call over
        several partitions is not one transaction. Rows that break the schema or a limit raise
        InvalidRowError here, before anything is sent. The future may raise OutcomeUnknownError,
        or any RezoneError that says no; the first of them.
        """
        codec = self.codec
        batch = batches.conform(data, codec.arrow_schema)
        return self._writes.submit(codec, batch, delete=False)

    def submit_delete(self, keys: batches.Rows) -> "Future[list[PartitionWrite]]":
        """Delete rows by primary key; otherwise as `submit_write`. Absent keys are no error."""
        codec = self.codec
        batch = batches.conform(keys, codec.key_schema)
        return self._writes.submit(codec, batch, delete=True)

    def write(self, data: batches.Rows) -> list[PartitionWrite]:
        """Upsert rows and wait until they are acknowledged; see `submit_write`."""
        return self.submit_write(data).result()

    def delete(self, keys: batches.Rows) -> list[PartitionWrite]:
        """Delete rows and wait until that is acknowledged; see `submit_delete`."""
        return self.submit_delete(keys).result()

    def read(self, keys: batches.Rows, as_of: int | None = None) -> Any:
        """Return the rows of these primary keys as a table, absent ones left out, in no order.

        `as_of` (microseconds since 1970) reads the past instead of the newest committed state.
        """

        def read(codec: RowCodec) -> Any:
            batch = batches.conform(keys, codec.key_schema)
            found = self._read_once(codec, batch, as_of).result()
            parts = [rows.from_ipc(body, codec.arrow_schema) for _, body in found]
            return pa.Table.from_batches(parts, schema=codec.arrow_schema)

        return self._with_routes(read)

    def read_any(
        self,
        keys: batches.Rows,
        *,
        max_staleness_seconds: float | None = None,
        as_of: int | None = None,
    ) -> AgedRows:
        """Read from followers where they can answer, from leaders where not; say as of when.

        Either the rows as of a time (microseconds since 1970), or those of one time not longer
        ago than `max_staleness_seconds`, as new as the replicas have it. The same keys read
        as of the answer's `as_of` give the same rows, for as long as versions are kept. Ages are
        counted by the data nodes' clocks. ValueError unless exactly one of the two is given.
        """
        if (max_staleness_seconds is None) == (as_of is None):
            raise ValueError("give either max_staleness_seconds or as_of")
        age_ms = None if max_staleness_seconds is None else int(max_staleness_seconds * 1000)

        def read(codec: RowCodec) -> AgedRows:
            parts = self._parts(codec, batches.conform(keys, codec.key_schema))
            found = self._ask_any(parts, as_of, age_ms)
            oldest = min((result.as_of for _, result, _ in found), default=as_of or 0)
            # Partitions answer at times of their own: those that are newer are asked once more.
            kept = [answer for answer in found if answer[1].as_of == oldest]
            newer = [part for part, result, _ in found if result.as_of != oldest]
            kept += self._ask_any(newer, oldest, None)
            tables = [rows.from_ipc(body, codec.arrow_schema) for _, _, body in kept]
            return AgedRows(
                rows=pa.Table.from_batches(tables, schema=codec.arrow_schema),
                as_of=oldest,
                age_seconds=max((result.age_ms for _, result, _ in kept), default=0) / 1000,
            )

        return self._with_routes(read)

    def _with_routes(self, read: Callable[[RowCodec], R]) -> R:
        """Read with the routes that are known, and again with newer ones if those were too old.

        A partition that was re-sharded meanwhile has left the placement with its answer.
        """
        deadline = self._clock() + self._settings.timeout_seconds
        attempt = 0
        while True:
            codec = self.codec
            try:
                return read(codec)
            except ReshardedError:
                if self._clock() >= deadline:
                    raise
            except UnknownIndexError as error:
                attempt += 1
                if not _may_have_come(error, codec, attempt) or self._clock() >= deadline:
                    raise
                self._dispatcher.pause(attempt)
                self._fetch_routes()

    def partition_of(self, key: Mapping[str, Any]) -> PartitionId:
        """Return the id of the partition that serves a primary key, as far as is known now.

        While the zone is re-sharded it changes once, to one of the next layout (`wire.layouts`).
        """
        codec = self.codec
        keys = codec.encode_keys(batches.conform([key], codec.key_schema))
        return int(self._dispatcher.placement.partitions_of(rows.hash_of(keys))[0])

    def transaction(self, key: Mapping[str, Any]) -> Transaction:
        """Begin a transaction on the partition of a primary key; see `client.transactions`."""

        def begin(codec: RowCodec) -> Transaction:
            placement = self._dispatcher.placement
            keys = codec.encode_keys(batches.conform([key], codec.key_schema))
            partition = int(placement.partitions_of(rows.hash_of(keys))[0])
            return Transaction(self._requests, codec, partition, placement, self._settings)

        return self._with_routes(begin)

    def transaction_outcome(self, partition: PartitionId, transaction: str) -> TransactionOutcome:
        """Return how a transaction has ended; one that is still open is aborted by this.

        Committed or aborted for good. Unknown: it has written nothing, or ended longer ago than a
        transaction may be old (`transaction_ms_max` of the data nodes).
        """
        return self._requests.end(partition, transaction).outcome

    def segments(self) -> tuple[Segment, ...]:
        """Return which partition serves which range of key hashes now, in order, without a gap.

        They are the zone's partitions, but while it is re-sharded. Whoever reads range by range
        needs no other ones when that changes: `stream` asks those who serve a range by then.
        """
        self._fetch_routes()
        return self._dispatcher.placement.segments()

    def scan(self, as_of: int | None = None) -> Any:
        """Return all rows as a table, partition by partition; each at its own newest time."""
        schema = self.codec.arrow_schema
        batches_of_all = self._streams.rows(WHOLE, _scan_ticket(as_of), whole=True)
        return pa.Table.from_batches(batches_of_all, schema=schema)

    def stream(self, hashes: HashRange = WHOLE, *, as_of: int | None = None) -> Iterator[Any]:
        """Yield the rows of a range of key hashes as record batches, as they come from leaders.

        In the order of row ids. A partition's scan that breaks before its first batch is started
        again; later it raises, because rows already yielded cannot be taken back.
        """
        if self._routes.config is None:
            self._fetch_routes()
        return self._streams.rows(hashes, _scan_ticket(as_of))

    def lookup(
        self,
        index: str,
        low: Sequence[Any] = (),
        high: Sequence[Any] = (),
        *,
        limit: int = 1000,
        after: bytes = b"",
        as_of: int | None = None,
    ) -> IndexPage:
        """Return rows by a secondary index, in its order: from `low` to `high`, both inclusive.

        Each is a tuple of values for the first of the index's columns; the same one twice finds
        equal values, a shorter one leaves the other columns open, and none has no bound. At most
        `limit` rows come at once; `after` is the `next` of the page before. Each page sees what
        was acknowledged before it was asked for; without `as_of` another page may see more.
        UnknownIndexError when the zone has no such index, IndexNotBuiltError while it is new and
        does not have all rows yet; the detail `percent` says how far it is.
        """

        def look_up(codec: RowCodec) -> IndexPage:
            found = Lookup(codec, index, low=low, high=high, limit=limit, after=after)

            def rows_of(segment: Segment) -> list[Any]:
                hashes = HashRange(segment.start, segment.end)
                ticket = functools.partial(found.ticket, as_of=as_of)
                return list(self._streams.rows(hashes, ticket, whole=True))

            segments = self._dispatcher.placement.segments()
            with ThreadPoolExecutor(min(len(segments), LOOKUPS_AT_ONCE)) as pool:
                parts = pool.map(rows_of, segments)
                return found.page([batch for part in parts for batch in part])

        return self._with_routes(look_up)

    def close(self) -> None:
        """Close all connections; open futures end with an error."""
        self._dispatcher.close()
        self._writes.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- reads ------------------------------------------------------------------------------

    def _parts(self, codec: RowCodec, batch: Any) -> list[Part]:
        """Cut a batch of keys by partitions and by size."""
        cut = batches.checked_parts(
            codec,
            batch,
            self._dispatcher.placement.partitions_of,
            delete=True,
            bytes_max=self._settings.request_bytes_max,
        )
        return [(partition, rows.to_ipc(part)) for partition, part in cut]

    def _read_once(self, codec: RowCodec, batch: Any, as_of: int | None) -> "Future[list[Any]]":
        parts = self._parts(codec, batch)
        call = Call(max(1, len(parts)))
        if not parts:
            call.add([])
        for part in parts:
            self._read_part(part, call.add, as_of)
        return call.future

    def _ask_any(self, parts: list[Part], as_of: int | None, age_ms: int | None) -> list[Aged]:
        """Ask followers first for each part; return the part and its answer."""
        if not parts:
            return []
        call = Call(len(parts))

        def noting(part: Part) -> Callable[[Outcome], None]:
            def add(outcome: Outcome) -> None:
                if isinstance(outcome, tuple):
                    call.add((part, *outcome))
                else:
                    call.add(outcome)

            return add

        for part in parts:
            self._read_part(part, noting(part), as_of, age_ms=age_ms, anywhere=True)
        return call.future.result()

    def _read_part(
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
            done(RezoneError("the client is closed"))

    def _fetch_routes(self) -> None:
        deadline = self._clock() + self._settings.timeout_seconds
        attempt = 0
        while True:
            try:
                self._dispatcher.fetch_routes()
            except NotReadyError:
                attempt += 1
                if self._clock() >= deadline:
                    raise
                self._dispatcher.pause(attempt)
            else:
                return


def _scan_ticket(as_of: int | None) -> Callable[[Segment], ScanTicket]:
    return lambda segment: ScanTicket(
        partition=segment.partition,
        as_of=as_of,
        hash_start=segment.start,
        hash_end_inclusive=segment.end - 1,
    )


def _may_have_come(error: UnknownIndexError, codec: RowCodec, attempt: int) -> bool:
    """Whether newer routes may bring an answer where older ones brought an error.

    An index may be known to whoever was asked, or to this client, before it is to the other; or
    be known to one as it was defined before.
    """
    named = error.details.get("index")
    return attempt == 1 or any(index.name == named for index in codec.table.indexes)
