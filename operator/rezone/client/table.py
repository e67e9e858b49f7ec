"""A zone's table as its users see it: write, delete, read, scan, look up, transactions.

Writes are applied exactly once (`writes`), routes correct themselves (`dispatch`).

Concurrency: any thread may call. Batches of one partition go out in the order of their calls.
"""

import functools
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self

import pyarrow as pa

from rezone.client.feed.acknowledging import acknowledged, tell_all
from rezone.client.feed.between import read_between
from rezone.client.feed.feed import ChangeFeed, SnapshotAndChanges
from rezone.client.feed.positions import FeedPositions
from rezone.client.feed.token import decode_token
from rezone.client.operations import single_rows
from rezone.client.operations.calls_together import CallsTogether
from rezone.client.operations.conditional import Condition, ConditionalWrites, VersionedRow
from rezone.client.operations.filters import Filter
from rezone.client.operations.lookups import LOOKUPS_AT_ONCE, IndexPage, Lookup
from rezone.client.operations.producer import OpenedProducer, Producer
from rezone.client.operations.reads import AgedRows, Reads, ReadTime, SubmittedRead
from rezone.client.operations.replicas import PartitionReplicas, replicas_in
from rezone.client.operations.selections import Selection
from rezone.client.operations.sequenced import Sequenced, SequencedWrites
from rezone.client.operations.staleness import Staleness
from rezone.client.operations.transactions import Transaction
from rezone.client.operations.writes import PartitionWrite, Writes
from rezone.client.operations.zone import Zone, partition_of
from rezone.client.requests import batches
from rezone.client.requests.asking import Requests
from rezone.client.requests.calls import Budget, settling
from rezone.client.requests.dispatch import Dispatcher
from rezone.client.requests.gathering import Gathering
from rezone.client.requests.streams import OneReplica, Streams
from rezone.client.requests.traced import request_tracer
from rezone.client.routing.routes import RouteCache
from rezone.client.settings import ClientSettings
from rezone.wire.codec.rows import RowCodec
from rezone.wire.layouts import WHOLE, HashRange, Layout, Segment, generation_of
from rezone.wire.messages import (
    AcknowledgeChanges,
    NodeId,
    PartitionId,
    TransactionOutcome,
    ZoneConfig,
)
from rezone.wire.transport.flight import NodeClient
from rezone.wire.transport.tls import TlsSource, tls_from_environment


class TableClient:
    """Reads and writes the rows of one zone.

    `bootstrap`: addresses ("host:port") of any of its data nodes. `producer` is a name under which
    one client at a time writes: the one that has begun to write last fences those before, whose
    writes then raise ProducerFencedError (docs/use/writing.md). Without it nobody fences
    this client, nor is fenced by it.
    `on_ack(partition, monotonic time)` is called for every acknowledged write, from a reader
    thread; it must be quick. `tls` is this client's certificate, by default that of
    REZONE_TLS_DIRECTORY; without both it speaks plaintext, which nodes with TLS do not take.
    Thread-safe. Close it, or use it as a context manager.
    """

    def __init__(
        self,
        bootstrap: Sequence[str],
        *,
        producer: str | None = None,
        settings: ClientSettings | None = None,
        on_ack: Callable[[PartitionId, float], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
        tls: TlsSource | None = None,
        connect: Callable[[str], NodeClient] | None = None,
    ) -> None:
        self._settings = settings or ClientSettings()
        if connect is None:
            connect = functools.partial(NodeClient, tls=tls or tls_from_environment())
        gathering = Gathering()
        self._budget = Budget(self._settings, gathering.release)
        rng = rng or random.Random()  # noqa: S311 - jitter and samples, no secrets
        routes = RouteCache(bootstrap)
        self._tracer = request_tracer(self._settings, routes, clock=clock, rng=rng)
        self._dispatcher = Dispatcher(
            routes,
            self._settings,
            clock=clock,
            rng=rng,
            connect=connect,
            tracer=self._tracer,
            gathering=gathering,
        )
        self._zone = Zone(self._dispatcher, self._settings, clock=clock)
        self._requests = Requests(self._dispatcher, self._budget)
        self._clock = clock
        self._staleness = Staleness(self._dispatcher, self._settings, clock=clock)
        self._reads = Reads(
            self._dispatcher, self._budget, self._settings, gathering=gathering, clock=clock
        )
        self._streams = Streams(
            self._dispatcher, self._settings, clock=clock, fetch_routes=self._zone.fetch_routes
        )
        self._producer = Producer(producer, self._zone, self._requests)
        self._writes = Writes(
            self._producer,
            dispatcher=self._dispatcher,
            budget=self._budget,
            settings=self._settings,
            gathering=gathering,
            clock=clock,
            on_ack=on_ack,
        )
        self._together = CallsTogether(
            self._zone,
            producer=self._producer,
            writes=self._writes,
            reads=self._reads,
            budget=self._budget,
            gathering=gathering,
        )
        self._sequenced = SequencedWrites(
            self._zone, self._requests, bytes_max=self._settings.request_bytes_max
        )
        self._conditional = ConditionalWrites(
            self.transaction,
            lambda transaction: self._requests.end(transaction.partition, transaction.id),
            clock=clock,
            pause=self._dispatcher.pause,
            timeout_seconds=self._settings.timeout_seconds,
        )

    @property
    def together(self) -> CallsTogether:
        """What makes calls of few rows together, for one thread that makes many of them."""
        return self._together

    @property
    def config(self) -> ZoneConfig:
        """The zone's config, fetched with the routes when first asked for."""
        return self._zone.config

    @property
    def codec(self) -> RowCodec:
        """The row format of the zone's table: `arrow_schema` and `key_schema` are its schemas."""
        return self._zone.codec

    def open_producer(self) -> OpenedProducer:
        """Open this client's producer, if that is not done; the first write does it otherwise.

        Under a name this raises its epoch and waits for that; without one nothing is sent. Raises
        any RezoneError by which that ended, ProducerFencedError when a later client has the name.
        """
        return self._producer.open()

    def submit_write(self, data: batches.Rows) -> "Future[list[PartitionWrite]]":
        """Upsert rows; the future has one entry per request they were cut into.

        A request (the rows of one partition, up to the limits) is all or nothing; a call over
        several partitions is not one transaction. Rows that break the schema or a limit raise
        InvalidRowError here, before anything is sent; so does an error by which this client's
        producer ended, and the first call waits until that is open (`open_producer`). The future
        may raise OutcomeUnknownError, or any RezoneError that says no; the first of them.
        """
        future, ended = settling()
        self._writes.submit(self.codec, data, ended, delete=False)
        return future

    def submit_delete(self, keys: batches.Rows) -> "Future[list[PartitionWrite]]":
        """Delete rows by primary key; otherwise as `submit_write`. Absent keys are no error."""
        future, ended = settling()
        self._writes.submit(self.codec, keys, ended, delete=True)
        return future

    def serving_layouts(self) -> tuple[Layout, ...]:
        """Return the layouts whose partitions serve now: two while a re-sharding cuts over."""
        self._zone.fetch_routes()
        placement = self._zone.placement
        found = {generation_of(each.partition) for each in placement.segments()}
        layouts = (placement.layout, placement.next_layout)
        return tuple(each for each in layouts if each is not None and each.generation in found)

    def write_sequenced(
        self, data: batches.Rows, work: Sequenced, first_row: int = 0, *, delete: bool = False
    ) -> bool:
        """Write (or delete) a batch of some work that may be done again, or by two at a time.

        Waits until it is acknowledged. The same rows, in the order of their row ids and in the same
        batches, write nothing a second time, whoever has written them under `work.producer`. All
        rows of the work before `first_row` are written. False where that cannot be known now: note
        the `serving_layouts` durably, then write with all that are noted; where these are the same,
        a re-sharding is to cut over more first. Raises as `submit_write` does, ValueError where the
        rows have another order.
        """
        codec = self.codec
        batch = batches.conform(data, codec.key_schema if delete else codec.arrow_schema)
        return self._sequenced.write(codec, batch, work, first_row, delete=delete)

    def write(self, data: batches.Rows) -> list[PartitionWrite]:
        """Upsert rows and wait until they are acknowledged; see `submit_write`."""
        return self.submit_write(data).result()

    def delete(self, *keys: Any, if_version: int | None = None) -> list[PartitionWrite]:
        """Delete rows and wait until that is acknowledged; see `submit_delete`.

        Either rows of keys, or the values of one primary key: `delete(7)`. With `if_version` only
        one row, as in `put`.
        """
        if if_version is not None:
            (key,) = single_rows.key_of(self.codec, keys)
            condition = Condition(if_version)

            def delete(transaction: Transaction) -> None:
                transaction.delete([key], unchanged_since=if_version)

            return [self._change(key, condition, delete)]
        if len(keys) == 1 and single_rows.is_rows(keys[0]):
            return self.submit_delete(keys[0]).result()
        return self.submit_delete(single_rows.key_of(self.codec, keys)).result()

    def put(
        self, *, if_version: int | None = None, if_absent: bool = False, **columns: Any
    ) -> PartitionWrite:
        """Upsert one row by its columns and wait until it is acknowledged; see `submit_write`.

        A row that is there is replaced whole: a column that is left out is null. InvalidRowError
        when that may not be. With `if_version` only if the row is there and was not written since
        that version (of `get_version`, or the `commit_time` of a write); with `if_absent` only if
        there is none. VersionMismatchError when that does not hold, exactly once in any case. Such
        a write is a transaction of four requests.
        """
        if if_version is None and not if_absent:
            return self.submit_write([columns]).result()[0]
        if if_version is not None and if_absent:
            raise ValueError("give either if_version or if_absent")
        key = single_rows.key_in(self.codec, columns)

        def write(transaction: Transaction) -> None:
            transaction.write([columns], unchanged_since=if_version)

        return self._change(key, Condition(if_version), write)

    def _change(
        self, key: dict[str, Any], condition: Condition, write: Callable[[Transaction], None]
    ) -> PartitionWrite:
        done = self._conditional.change(key, condition, write)
        return PartitionWrite(
            partition=done.partition,
            rows=1,
            end_offset=done.end_offset,
            commit_time=done.commit_time,
            leader_epoch=done.leader_epoch,
        )

    def get_version(self, *key: Any) -> VersionedRow:
        """Return the newest state of one row with its version, for `put` and `delete` on condition.

        `key` as in `get`. The version changes with each read; what counts is whether the row was
        written since.
        """
        found = self.read_any(single_rows.key_of(self.codec, key), max_staleness_seconds=0)
        return VersionedRow(single_rows.first_of(found.rows), found.as_of)

    def get(self, *key: Any) -> dict[str, Any] | None:
        """Return the newest state of one row by its primary key; None when it is not there.

        `key` has the values of the key's columns, in their order: `get(7)`.
        """
        keys = single_rows.key_of(self.codec, key)
        return self._zone.with_routes(lambda codec: self._reads.first(codec, keys))

    def read(self, keys: batches.Rows, as_of: int | None = None) -> Any:
        """Return the rows of these primary keys as a table, absent ones left out, in no order.

        `as_of` (microseconds since 1970) reads the past instead of the newest committed state.
        """
        return self._zone.with_routes(lambda codec: self._reads.newest(codec, keys, as_of))

    def submit_read(self, keys: batches.Rows, as_of: int | None = None) -> SubmittedRead:
        """Begin a read as `read` does, and do not wait for it; ReshardedError asks to read again.

        It waits while the client has as much under way as it may have.
        """
        return self._reads.submit(self.codec, keys, as_of)

    def read_any(
        self,
        keys: batches.Rows,
        *,
        max_staleness_seconds: float | None = None,
        as_of: int | None = None,
    ) -> AgedRows:
        """Read from followers where they can answer, from leaders where not; say as of when.

        Either the rows as of a time (microseconds since 1970), or those of one time not longer
        ago than `max_staleness_seconds` when this call returns, as new as the replicas have it;
        with 0 the newest rows, of one time since this call began. The same keys read as of the
        answer's `as_of` give the same rows, for as long as versions are kept. Ages are counted by
        the data nodes' clocks. Rows that became too old on the way are read again: StaleRowsError
        when they are each time. ValueError unless exactly one of the two is given.
        """

        def read(age_ms: int | None) -> AgedRows:
            return self._zone.with_routes(
                lambda codec: self._reads.aged(codec, keys, as_of, age_ms)
            )

        return self._staleness.read(max_staleness_seconds, as_of, read)

    def partition_of(self, key: Mapping[str, Any]) -> PartitionId:
        """Return the id of the partition that serves a primary key, as far as is known now.

        While the zone is re-sharded it changes once, to one of the next layout (`wire.layouts`).
        """
        return partition_of(key, self.codec, self._zone.placement)

    def transaction(self, key: Mapping[str, Any]) -> Transaction:
        """Begin a transaction on the partition of a primary key; see `Transaction`."""

        def begin(codec: RowCodec) -> Transaction:
            placement = self._zone.placement
            partition = partition_of(key, codec, placement)
            return Transaction(
                self._requests, self._streams, codec, partition, placement, settings=self._settings
            )

        return self._zone.with_routes(begin)

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
        self._zone.fetch_routes()
        return self._zone.placement.segments()

    def read_time(
        self,
        *,
        max_staleness_seconds: float | None = None,
        as_of: int | None = None,
        hashes: HashRange = WHOLE,
    ) -> ReadTime:
        """Return one time as of which any replica may be read, of all partitions of a range.

        The bounds are those of `read_any`, as a time is only certain to be there when nobody is
        further behind. Asks each partition once.
        """
        return self._staleness.read(
            max_staleness_seconds, as_of, lambda age_ms: self._time(hashes, as_of, age_ms)
        )

    def _time(self, hashes: HashRange, as_of: int | None, age_ms: int | None) -> ReadTime:
        def ask(codec: RowCodec) -> ReadTime:
            asked = [one.partition for one in self._zone.placement.segments(hashes)]
            return self._reads.time(codec, asked, as_of, age_ms)

        return self._zone.with_routes(ask)

    def _read_at_one_time(
        self,
        max_staleness_seconds: float | None,
        as_of: int | None,
        read: Callable[[int], Any],
    ) -> AgedRows:
        """Choose a time within the bounds and read as of it, until the rows keep the bound."""

        def choose_and_read(age_ms: int | None) -> AgedRows:
            chosen = self._time(WHOLE, as_of, age_ms)
            since = self._clock()
            rows = read(chosen.as_of)
            return AgedRows(rows, chosen.as_of, chosen.age_seconds + self._clock() - since)

        return self._staleness.read(max_staleness_seconds, as_of, choose_and_read)

    def scan(
        self,
        as_of: int | None = None,
        *,
        filter: Filter | None = None,  # noqa: A002 - what it is called everywhere
        columns: Sequence[str] | None = None,
        limit: int | None = None,
    ) -> Any:
        """Return all rows as a table, partition by partition; each at its own newest time.

        With a `filter` (`rezone.client.col`) those alone for which it is true, with `columns` only
        these, and at most `limit` rows: data nodes send no others. A filter that names keys has
        only their partitions asked, and one that an index serves reads that. InvalidFilterError
        when it does not fit the table.
        """
        if filter is None and columns is None and limit is None:
            return self._table_of(self.stream(as_of=as_of))
        selected = Selection(self.codec, filter, columns, limit)
        found = self.select(selected, as_of=as_of)
        return pa.Table.from_batches(found, schema=selected.schema)

    def select(
        self,
        selection: Selection,
        hashes: HashRange = WHOLE,
        *,
        as_of: int | None = None,
        anywhere: bool = False,
    ) -> Iterator[Any]:
        """Yield what a selection finds in a range of hashes as record batches, as they come.

        From leaders, or `anywhere` from followers that can answer, which needs `as_of`.
        """
        segments = self._zone.placement.segments(hashes)
        ranges = [each.hashes for each in segments if selection.may_have(each.hashes)]
        return selection.rows(self._streams, ranges, as_of, anywhere=anywhere)

    def scan_any(
        self, *, max_staleness_seconds: float | None = None, as_of: int | None = None
    ) -> AgedRows:
        """Return all rows as a table as of one time, of any replicas.

        The bounds are those of `read_any`: a bound below what the scan takes cannot be kept.
        `stream_any` bounds the age at the beginning only.
        """

        def scan(at: int) -> Any:
            return self._table_of(self._streams.scan(self.codec, WHOLE, at, anywhere=True))

        return self._read_at_one_time(max_staleness_seconds, as_of, scan)

    def _table_of(self, found: Iterator[Any]) -> Any:
        return pa.Table.from_batches(found, schema=self.codec.arrow_schema)

    def stream(self, hashes: HashRange = WHOLE, *, as_of: int | None = None) -> Iterator[Any]:
        """Yield the rows of a range of key hashes as record batches, as they come from leaders.

        In the order of row ids; each partition's are of one time. A scan that breaks off goes on at
        whoever leads then, as of that time. VersionsExpiredError when that is longer ago than
        versions are kept: a scan must not take so long.
        """
        return self._streams.scan(self.codec, hashes, as_of)

    def stream_any(
        self,
        hashes: HashRange = WHOLE,
        *,
        max_staleness_seconds: float | None = None,
        as_of: int | None = None,
    ) -> AgedRows:
        """Stream rows of followers where they can answer, of leaders where not: all of one time.

        The bounds are those of `read_any`, when this call returns: rows that come later are older.
        `rows` of the answer is an iterator over record batches, in the order of row ids. A scan
        that breaks off goes on at another replica, as of the same time.
        """
        told = self.read_time(
            max_staleness_seconds=max_staleness_seconds, as_of=as_of, hashes=hashes
        )
        found = self._streams.scan(self.codec, hashes, told.as_of, anywhere=True)
        return AgedRows(found, told.as_of, told.age_seconds)

    def replicas(self) -> tuple[PartitionReplicas, ...]:
        """Return which data nodes hold which partition, by the newest routes of all data nodes.

        While the zone is re-sharded there are partitions of both layouts. Raises NotReadyError when
        no data node answers.
        """
        return replicas_in(self._zone.fetch_all_routes())

    def stream_replica(
        self, node: NodeId, partition: PartitionId, hashes: HashRange, *, as_of: int
    ) -> Iterator[Any]:
        """Yield the rows that one data node's replica of a partition has in a range, as of a time.

        As record batches in the order of row ids. Nobody else is asked: what breaks off goes on
        there. Raises ReshardedError when others serve the range by now, NotReadyError or
        UnknownPartitionError when the node cannot answer for it in time, and VersionsExpiredError
        when the time is longer ago than versions are kept.
        """
        codec, replica = self.codec, OneReplica(partition, node)
        return self._streams.scan(codec, hashes, as_of, replica=replica)

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
        return self._zone.with_routes(
            lambda codec: self._page(
                Lookup(codec, index, low=low, high=high, limit=limit, after=after), as_of
            )
        )

    def lookup_any(
        self,
        index: str,
        low: Sequence[Any] = (),
        high: Sequence[Any] = (),
        *,
        limit: int = 1000,
        after: bytes = b"",
        max_staleness_seconds: float | None = None,
        as_of: int | None = None,
    ) -> AgedRows:
        """Look rows up at followers where they can answer, at leaders where not; see `lookup`.

        The bounds are those of `read_any`, `rows` of the answer is an IndexPage. Pages are of one
        time when all but the first are asked for as of the first one's.
        """

        def look_up(at: int) -> IndexPage:
            return self._zone.with_routes(
                lambda codec: self._page(
                    Lookup(codec, index, low=low, high=high, limit=limit, after=after),
                    at,
                    anywhere=True,
                )
            )

        return self._read_at_one_time(max_staleness_seconds, as_of, look_up)

    def _page(self, found: Lookup, as_of: int | None, *, anywhere: bool = False) -> IndexPage:
        """Ask all partitions, some at a time."""

        def rows_of(segment: Segment) -> list[Any]:
            return self._streams.lookup(
                segment.hashes, found.ticket, as_of, trace=trace, anywhere=anywhere
            )

        segments = self._zone.placement.segments()
        at_once = min(len(segments), LOOKUPS_AT_ONCE)
        with self._streams.trace("lookup") as trace, ThreadPoolExecutor(at_once) as pool:
            parts = pool.map(rows_of, segments)
            return found.page([batch for part in parts for batch in part])

    def changes(
        self,
        token: str | None = None,
        *,
        since: int | None = None,
        earliest: bool = False,
        from_followers: bool = False,
        old_rows: bool = False,
        times_only: bool = False,
    ) -> ChangeFeed:
        """Follow the zone's changes: from a token, or with commit times later than `since`, or now.

        Each committed change comes once behind a token, those of a key in the order of their
        commits, whatever happens to leaders, replicas and partitions (docs/use/changes.md).
        `since` is in microseconds since 1970; `earliest`: from the first changes that the replicas
        asked have, of each partition those since its last re-sharding. The feed raises
        FeedTruncatedError when changes behind its position are kept nowhere: then
        `changes_from_snapshot` is the way on. `from_followers` has followers answer where they can.
        `old_rows` has the rows before the changes come, too, while their versions are kept;
        `times_only` the commit times alone: data nodes count the changes, and send none of them.
        ValueError for two beginnings, FeedTokenError for a bad token.
        """
        if (token is not None) + (since is not None) + earliest > 1:
            raise ValueError("give one of a token, since and earliest")
        segments = self.segments()
        if token is not None:
            positions = FeedPositions.at(decode_token(self.config.zone_uid, token))
        else:
            positions = FeedPositions.since(segments, since, earliest=earliest)
        return ChangeFeed(
            self._zone,
            self._dispatcher,
            self._settings,
            positions,
            clock=self._clock,
            from_followers=from_followers,
            old_rows=old_rows,
            times_only=times_only,
        )

    def acknowledge(self, feed: str, token: str) -> None:
        """Have data nodes keep no log for a named feed that lies before a token.

        Call it once the token is stored where the feed will go on from, and not more often than
        every few seconds. Nodes that are not reached keep their log for longer. FeedTokenError for
        a bad token, ConflictError when the zone's `spec.feeds` lacks the name, NotReadyError when
        no node was reached.
        """
        positions = decode_token(self.config.zone_uid, token)
        told = AcknowledgeChanges(feed=feed, partitions=acknowledged(self.segments(), positions))
        seconds = self._settings.attempt_timeout_seconds
        tell_all(self._dispatcher.node, self._dispatcher.addresses(), told, seconds)

    def changes_between(self, start: str, end: str, *, old_rows: bool = False) -> Iterator[Any]:
        """Yield the changes behind one token and up to another, as the tables of a feed's batches.

        They are the same ones each time, in the order of a feed; waits for them where `end` is not
        reached yet. Errors as for `changes`; ValueError for tokens of other ranges of hashes.
        """
        uid = self.config.zone_uid
        feed = self.changes(start, old_rows=old_rows)
        return read_between(feed, self.codec, uid, decode_token(uid, end))

    def changes_from_snapshot(
        self, *, from_followers: bool = False, old_rows: bool = False
    ) -> SnapshotAndChanges:
        """Return all rows as of one time, and the feed of the changes since then.

        The rows stream as from `stream_any`, and must be read within the time that versions and the
        log are kept.
        """
        found = self.stream_any(max_staleness_seconds=0)
        feed = self.changes(since=found.as_of, from_followers=from_followers, old_rows=old_rows)
        return SnapshotAndChanges(found.rows, found.as_of, feed)

    def close(self) -> None:
        """Close all connections; open futures end with an error."""
        self._dispatcher.close()
        self._writes.close()
        if self._tracer is not None:
            self._tracer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
