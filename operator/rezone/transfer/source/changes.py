"""The streaming source "rezone-changes": a zone's change feed as micro-batches (SP-03).

    spark.readStream.format("rezone-changes").option("bootstrap", "orders.shop.svc:7400").load()

An offset is a token of the feed, so a batch is what lies between two tokens: the same changes each
time that Spark asks for it, whoever leads and however the zone is cut by then. The driver follows
the feed's times to know where a batch ends; tasks read the changes themselves.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import structlog
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import LongType, StringType, StructField, StructType

from rezone.client import ChangeFeed, TableClient
from rezone.client.feed import bounds, rows
from rezone.client.feed.rows import COMMIT_TIME, OLD, OPERATION, UPSERT
from rezone.client.feed.token import FeedTokenError, RangePosition, decode_token, encode_token
from rezone.transfer.source.options import COUNT_MAX, SourceOptions, count_option
from rezone.transfer.source.spark_types import spark_schema
from rezone.wire.errors import NotReadyError
from rezone.wire.layouts import HashRange
from rezone.wire.messages import ZoneConfig

_log = structlog.get_logger(__name__)

CHANGES_FORMAT = "rezone-changes"
ROWS_PER_BATCH = 200_000
"""How many changes a batch has at most when the option does not say it."""

TASKS_PER_BATCH = 64
NEWS_SECONDS = 0.5
"""So long the driver waits for news when Spark asks for the end of the next batch."""

FOLLOW_SECONDS = 5.0
"""A batch that has changes ends with what was committed when Spark asked for it, as there is always
a next change where writers never pause. After so long in any case: a partition may lack a leader.
"""

ROWS_PER_TASK = 20_000
"""A task begins with a connection to the zone: fewer changes than these are read sooner by one."""

ACKNOWLEDGE_SECONDS = 10.0
"""How often a named feed tells data nodes what it has stored, at most."""

IDLE_SECONDS = 60.0
"""After so long without changes an empty batch moves the checkpoint: logs are not kept for ever."""

_NOW, _EARLIEST, _SNAPSHOT = "now", "earliest", "snapshot"


class _Limits(NamedTuple):
    """How many changes a batch has at most, and bytes of them; `COUNT_MAX` is no limit."""

    rows: int = COUNT_MAX
    bytes: int = COUNT_MAX


class _StreamOptions(NamedTuple):
    """The options of streams alone, read and checked when the stream is loaded."""

    start_from: str
    limits: _Limits
    tasks_max: int
    old_rows: bool
    feed: str

    @classmethod
    def read(cls, given: Mapping[str, str]) -> "_StreamOptions":
        """Return the options; ValueError names the one that is wrong."""
        start_from = given.get("startFrom", _NOW)
        if start_from.isdecimal():
            count_option(given, "startFrom")
        rows_max = count_option(given, "maxRowsPerBatch", least=1) or ROWS_PER_BATCH
        bytes_max = count_option(given, "maxBytesPerBatch", least=1) or COUNT_MAX
        tasks_max = count_option(given, "maxTasksPerBatch", least=1) or TASKS_PER_BATCH
        old_rows = given.get("oldRows", "false").lower()
        if old_rows not in ("true", "false"):
            raise ValueError(f'option "oldRows" is {old_rows!r}, not "true" or "false"')
        limits, feed = _Limits(rows_max, bytes_max), given.get("feed", "")
        return cls(start_from, limits, tasks_max, old_rows == "true", feed)

    def require_feed(self, config: ZoneConfig) -> None:
        """Refuse a named feed that the zone lacks: nothing would be kept for it."""
        if self.feed and self.feed not in {feed.name for feed in config.feeds}:
            raise ValueError(
                f'option "feed" is {self.feed!r}, which zone {config.zone} lacks: name it in '
                "spec.feeds"
            )

    def require_start(self, zone_uid: str) -> None:
        """Refuse what is no place to begin in the zone: FeedTokenError, which is a ValueError."""
        if self.start_from in (_NOW, _EARLIEST, _SNAPSHOT) or self.start_from.isdecimal():
            return
        try:
            decode_token(zone_uid, self.start_from)
        except FeedTokenError as error:
            raise FeedTokenError(
                'option "startFrom" is not "now", "earliest", "snapshot", a time in microseconds, '
                f"nor a token of this zone: {error}"
            ) from error


class ChangesDataSource(DataSource):  # type: ignore[misc]
    """The format's entry: schema and reader."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return CHANGES_FORMAT

    def schema(self) -> StructType:
        """Return the zone's columns, the operation, and the commit time in microseconds.

        And the row before the change, where it is asked for.
        """
        options, stream = SourceOptions.read(self.options), _StreamOptions.read(self.options)
        with options.client() as client:
            table = client.config.table
            rows.schema_of(client.codec, old_rows=stream.old_rows)  # no name is taken
            stream.require_start(client.config.zone_uid)
            stream.require_feed(client.config)
        keys, fields = set(table.primary_key), spark_schema(table).fields
        if options.columns:
            fields = [spark_schema(table)[name] for name in options.columns]
        return StructType(
            [
                *(StructField(f.name, f.dataType, f.name not in keys) for f in fields),
                StructField(OPERATION, StringType(), nullable=False),
                StructField(COMMIT_TIME, LongType(), nullable=False),
                *([StructField(OLD, StructType(fields))] if stream.old_rows else []),
            ]
        )

    def streamReader(self, schema: StructType) -> "ChangesReader":  # noqa: N802 - Spark's name
        """Return a reader of the columns in `schema`."""
        # Of Spark's own kind of mapping, in which the case of a name does not matter.
        return ChangesReader(
            SourceOptions.read(self.options),
            _StreamOptions.read(self.options),
            tuple(schema.fieldNames()),
        )


class _Changes(InputPartition):  # type: ignore[misc]
    """Two tokens of some ranges of hashes, and what lies between is read."""


class _Rows(InputPartition):  # type: ignore[misc]
    """A range of key hashes and a time: the rows as of then are read, as upserts of that time."""


class ChangesReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Plans batches at the driver, and reads them in tasks."""

    def __init__(
        self, options: SourceOptions, stream: _StreamOptions, columns: tuple[str, ...]
    ) -> None:
        self._options = options
        self._stream = stream
        self._columns = columns
        self._planner: _Planner | None = None

    # --- at the driver ----------------------------------------------------------------------------

    @property
    def _plan(self) -> "_Planner":
        if self._planner is None:
            self._planner = _Planner(self._options.client(), self._columns)
        return self._planner

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a query without a checkpoint begins."""
        start_from = self._stream.start_from
        if start_from in (_NOW, _EARLIEST, _SNAPSHOT):
            # Spark asks again after a restart, and has noted the end of the first batch alone: so
            # what that batch has must follow from its end.
            return {"begin": start_from}
        if start_from.isdecimal():
            return {"token": self._plan.since(int(start_from))}
        return {"token": start_from}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return how many changes a batch has at most; Spark takes one limit of them."""
        return ReadMaxRows(self._stream.limits.rows)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return where the next batch ends; `start` when there are no changes."""
        if start.get("begin") == _SNAPSHOT:
            return {"token": self._plan.since(self._plan.read_time())}
        if "begin" in start:
            return {"token": self._plan.begun(earliest=start["begin"] == _EARLIEST)}
        return {"token": self._plan.end_of_batch(str(start["token"]), self._limits(limit))}

    def _limits(self, limit: ReadLimit) -> _Limits:
        """Return the limits of a batch: none where Spark asks for all there is."""
        if isinstance(limit, ReadMaxRows):
            return self._stream.limits._replace(rows=limit.max_rows)
        if isinstance(limit, ReadMaxBytes):
            return self._stream.limits._replace(bytes=limit.max_bytes)
        return _Limits()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Have batches end at what is committed now."""
        self._plan.end_here()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a batch, each for some ranges of hashes."""
        if start.get("begin") == _SNAPSHOT:
            as_of = self._plan.time_of(str(end["token"]))
            return [_Rows((each.start, each.end, as_of)) for each in self._plan.segments()]
        if "begin" in start:
            return []
        found = self._plan.split(str(start["token"]), str(end["token"]), self._stream.tasks_max)
        return [_Changes(each) for each in found]

    def commit(self, end: dict[str, Any]) -> None:
        """Acknowledge what the checkpoint has committed, if the stream is a named feed."""
        if self._stream.feed and "token" in end:
            self._plan.acknowledge(self._stream.feed, str(end["token"]))

    def stop(self) -> None:
        """Close the feed and the client."""
        if self._planner is not None:
            self._planner.close()
            self._planner = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_planner": None}  # tasks plan nothing

    # --- in tasks ---------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the record batches of a task."""
        with self._options.client() as client:
            if isinstance(partition, _Rows):
                yield from self._snapshot(client, *partition.value)
                return
            start, end = partition.value
            for table in client.changes_between(start, end, old_rows=self._stream.old_rows):
                changes = table.select(list(self._columns))
                if self._stream.old_rows:
                    old = _only(self._old_fields(client), table[OLD].combine_chunks())
                    changes = changes.set_column(changes.schema.get_field_index(OLD), OLD, old)
                yield from changes.to_batches()

    def _old_fields(self, client: TableClient) -> list[Any]:
        """Return the columns of the rows before changes: those that are read."""
        schema = client.codec.arrow_schema
        return [schema.field(name) for name in self._options.columns or schema.names]

    def _snapshot(self, client: TableClient, start: int, end: int, as_of: int) -> Iterator[Any]:
        for batch in client.stream_any(HashRange(start, end), as_of=as_of).rows:
            columns = dict(zip(batch.schema.names, batch.columns, strict=True))
            columns[OPERATION] = pa.repeat(UPSERT, batch.num_rows)
            columns[COMMIT_TIME] = pa.repeat(pa.scalar(as_of, pa.int64()), batch.num_rows)
            own = {OPERATION: pa.string(), COMMIT_TIME: pa.int64()}
            if self._stream.old_rows:
                columns[OLD] = pa.nulls(batch.num_rows, pa.struct(self._old_fields(client)))
            keys = {*client.codec.key_schema.names, *own}
            fields = [
                pa.field(name, columns[name].type, nullable=name not in keys)
                for name in self._columns
            ]
            yield pa.RecordBatch.from_arrays(
                [columns[name] for name in self._columns], schema=pa.schema(fields)
            )


def _only(fields: list[Any], rows: Any) -> Any:
    """Return structs with these fields alone."""
    parts = [pc.struct_field(rows, field.name) for field in fields]
    return pa.StructArray.from_arrays(parts, fields=fields, mask=rows.is_null())


class _Planner:
    """What the driver knows of a feed: where it is, and where batches end."""

    def __init__(self, client: TableClient, columns: tuple[str, ...]) -> None:
        self._client = client
        self._columns = list(columns)
        self._old_rows = OLD in columns
        self._uid = client.config.zone_uid
        self._feed: ChangeFeed | None = None
        self._counts = False
        self._at = ""
        self._moved = time.monotonic()
        self._acknowledged = float("-inf")
        self._last: bounds.Positions | None = None
        self._end, self._rows = "", 0

    def acknowledge(self, feed: str, token: str) -> None:
        """Tell data nodes what is kept no longer, now and then; they may miss it."""
        now = time.monotonic()
        if now - self._acknowledged < ACKNOWLEDGE_SECONDS:
            return
        self._acknowledged = now
        try:
            self._client.acknowledge(feed, token)
        except NotReadyError as error:
            _log.warning("nobody was told what a feed has stored", feed=feed, error=str(error))

    def read_time(self) -> int:
        """Return a time as of which all that is acknowledged can be read."""
        return self._client.read_time(max_staleness_seconds=0).as_of

    def segments(self) -> Sequence[Any]:
        """Return the ranges that the zone is cut into now."""
        return self._client.segments()

    def begun(self, *, earliest: bool = False) -> str:
        """Return the token behind all that is acknowledged, or before all that is kept."""
        with self._client.changes(earliest=earliest, old_rows=self._old_rows) as feed:
            while (token := feed.token) is None:
                feed.poll(NEWS_SECONDS)
            return token

    def since(self, as_of: int) -> str:
        """Return the token of a time."""
        segments = self._client.segments()
        return self._token([RangePosition(each.start, each.end, as_of) for each in segments])

    def time_of(self, token: str) -> int:
        """Return the time of a token that `since` has made."""
        return self._positions(token)[0].time

    def split(self, start: str, end: str, parts: int) -> list[tuple[str, str]]:
        """Return what lies between two tokens as pairs of tokens of some ranges each."""
        if end == self._end:
            parts = min(parts, max(1, -(-self._rows // ROWS_PER_TASK)))
        cut = bounds.split(self._positions(start), self._positions(end), parts)
        return [(self._token(one), self._token(other)) for one, other in cut]

    def end_here(self) -> None:
        """Give no position behind what is committed now."""
        self._last = self._positions(self.begun())
        self._close_feed()  # it ends nowhere

    def end_of_batch(self, start: str, limits: _Limits) -> str:
        """Return the token behind the next changes, `start` when none come."""
        try:
            after, rows = self._follow(start, limits)
        except BaseException:
            self._close_feed()  # it may have told changes that no batch has
            raise
        self._end, self._rows = self._moved_to(start, after, has_rows=rows > 0), rows
        return self._end

    def _follow(self, start: str, limits: _Limits) -> tuple[bounds.Positions, int]:
        """Follow the feed until a batch is full, or nothing more is there; return its end."""
        counts = limits.bytes == COUNT_MAX
        after, feed = self._positions(start), self._feed_at(start, counts=counts)
        rows, bytes_left = 0, limits.bytes
        asked, until = time.time_ns() // 1000, time.monotonic() + FOLLOW_SECONDS
        while not self._is_last(after):
            batch = feed.poll(NEWS_SECONDS)
            if batch.token is None:
                continue
            before, after = after, self._positions(batch.token)
            found = batch.changes
            if self._last is not None and not counts:
                found = bounds.up_to(self._last, self._client.codec, found)
            room = limits.rows - rows
            if not counts:
                sizes = bounds.sizes_of(found.select(self._columns))
                room = min(room, bounds.fitting(found, sizes, bytes_left))
                bytes_left -= int(sizes.sum())
            if room < found.num_rows:
                return bounds.cut(before, after, found, room, takes_one=not rows), limits.rows
            rows += found.num_rows
            if rows >= limits.rows:
                break
            has_all = batch.resolved_time >= asked or time.monotonic() > until
            # Who asks for all there is asks once, and gets what comes meanwhile, too.
            if rows and has_all and limits.rows < COUNT_MAX:
                break
            if not found.num_rows and self._last is None:
                break
        return after, rows

    def _is_last(self, after: bounds.Positions) -> bool:
        return self._last is not None and bounds.is_reached(self._last, after)

    def _moved_to(self, start: str, after: bounds.Positions, *, has_rows: bool) -> str:
        now = time.monotonic()
        idle = self._last is None and now - self._moved > IDLE_SECONDS
        if not has_rows and not idle:
            return start  # the feed has gone on, but nothing of it is lost
        self._moved = now
        if self._last is not None:
            after = bounds.highest(self._positions(start), bounds.lowest(after, self._last))
        self._at = self._token(after)
        if self._feed is not None and self._feed.token != self._at:
            self._close_feed()
        return self._at

    def _feed_at(self, start: str, *, counts: bool) -> ChangeFeed:
        """Return the feed that has told all up to a token, and nothing of what is behind it.

        Rows are of no use but for their sizes: without a limit of those, data nodes count.
        """
        if self._feed is None or (self._at, self._counts) != (start, counts):
            self._close_feed()
            self._feed = self._client.changes(start, old_rows=self._old_rows, times_only=counts)
            self._at, self._counts = start, counts
            if self._last is not None:
                self._feed.end_at(self._last)
        return self._feed

    def _positions(self, token: str) -> bounds.Positions:
        return decode_token(self._uid, token)

    def _token(self, positions: bounds.Positions) -> str:
        return encode_token(self._uid, list(positions))

    def _close_feed(self) -> None:
        if self._feed is not None:
            self._feed.close()
            self._feed = None

    def close(self) -> None:
        """Close the feed and the client."""
        self._close_feed()
        self._client.close()
