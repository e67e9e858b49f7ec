"""The Spark data source "rezone": zones as ordinary tables in batch reads and writes (B-11).

    from rezone.transfer import datasource
    datasource.register(spark)
    df = spark.read.format("rezone").option("bootstrap", "orders.shop.svc:7400").load()
    df.write.format("rezone").mode("append").option("bootstrap", "orders.shop.svc:7400").save()

`mode("overwrite")` replaces all rows of a zone by one switch (`sink.overwrite_writer`).

Options: `bootstrap`, addresses of any of the zone's nodes, separated by commas; `zone`, checked
against the zone's name when given; `asOf`, read as of this time in microseconds since 1970 (without
it each partition is read at its own newest time); `readFrom`, "leaders" (the default) or "any",
which leaves leaders alone where followers can answer: all rows are then as of one time, the same
for tasks that are repeated, `asOf` or else the newest that is not longer ago than
`maxStalenessSeconds` (10) when the read is planned; `operation`, "upsert" or "delete" for writes,
where a delete takes the primary key's columns; `tlsDirectory`, a directory on the driver and on
every executor with the certificate to show, in place of REZONE_TLS_DIRECTORY. `columns`, `limit`
and `filter` are what `read_table` sets.

Reads: one task per partition of the zone that may have rows, batches as they come. Where the filter
says which keys may pass there is one task: their rows take less time than tasks take to start.
`filter`, `columns` and `limit` are evaluated by data nodes in their scan, and filters of a query
where `register` was told so (docs/use/spark.md). A task reads a range of key hashes, that of the
partition when the read was planned; when the zone was re-sharded since, from whoever serves it by
then. A stream that breaks off goes on at another
replica, without the task being repeated. All of a read as of one time must be over while versions
of that time are kept.

Writes are upserts, and there is no transaction over tasks: rows are visible as soon as they are
acknowledged. A task that Spark repeats writes its rows again, which leaves the same rows; `abort`
cannot take back what was written. So a failed job is repaired by running it again.
"""

import dataclasses
import sys
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.datasource import Filter as SparkFilter
from pyspark.sql.types import StructType

from rezone.client import Filter, PartitionWrite, Selection, TableClient
from rezone.transfer.sink.overwrite_writer import OverwriteWriter
from rezone.transfer.sink.submitting import acknowledged
from rezone.transfer.sink.writers import StagedWriter, StreamWriter
from rezone.transfer.source.changes import ChangesDataSource
from rezone.transfer.source.options import SourceOptions, encode_filter
from rezone.transfer.source.pushdown import PushedDown, pushed_down, scans_of
from rezone.transfer.source.spark_types import spark_schema
from rezone.wire.layouts import HashRange

FORMAT = "rezone"
PUSHDOWN_CONF = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession, *, push_filters: bool = False) -> None:
    """Make "rezone" and "rezone-changes" known to a session; the last call counts.

    With `push_filters` the filters of a query go to the data nodes, which sets
    `spark.sql.python.filterPushdown.enabled`. Then load a DataFrame again for each query: Spark
    keeps the filters of one query in the DataFrame that it read, and a later query of that
    DataFrame without filters gets the rows of the earlier one. `read_table` has no such trap.
    """
    if push_filters:
        spark.conf.set(PUSHDOWN_CONF, "true")
    spark.dataSource.register(PushingDataSource if push_filters else RezoneDataSource)
    spark.dataSource.register(ChangesDataSource)


def read_table(
    spark: SparkSession,
    bootstrap: str,
    *,
    columns: Sequence[str] | None = None,
    filter: Filter | None = None,  # noqa: A002 - what it is called everywhere
    limit: int | None = None,
    **options: str,
) -> DataFrame:
    """Return a zone's rows; data nodes send these columns and rows alone.

    Spark tells a Python source no columns and no limits, so they are said here.
    """
    register(spark, push_filters=spark.conf.get(PUSHDOWN_CONF, "false") == "true")
    if columns is not None:
        options["columns"] = ",".join(columns)
    if filter is not None:
        options["filter"] = encode_filter(filter)
    if limit is not None:
        options["limit"] = str(limit)
    return spark.read.format(FORMAT).options(bootstrap=bootstrap, **options).load()


def explain(frame: DataFrame) -> None:
    """Print the plan of a batch DataFrame, and what its scans of zones ask of the data nodes.

    Raises ValueError over Spark Connect.
    """
    said = [f"({number}) {each}" for number, each in enumerate(scans_of(frame, FORMAT), 1)]
    frame.explain("formatted")
    sys.stdout.write("\n".join(["== Pushed down to data nodes ==", *said, ""]))


class RezoneDataSource(DataSource):  # type: ignore[misc]
    """The format's entry: schema, reader, writer."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the zone's schema, as its nodes have it."""
        options = SourceOptions.read(self.options)
        with options.client() as client:
            schema = spark_schema(client.config.table)
        if not options.columns:
            return schema
        if unknown := set(options.columns) - set(schema.fieldNames()):
            raise ValueError(f'option "columns": the zone has no {sorted(unknown)}')
        return StructType([schema[name] for name in options.columns])

    def reader(self, schema: StructType) -> "RezoneReader":
        """Return a reader of the columns in `schema`."""
        return RezoneReader(SourceOptions.read(self.options), tuple(schema.fieldNames()))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: ARG002, FBT001
        """Return a writer; OverwriteRefusedError where the zone cannot be overwritten now."""
        options = SourceOptions.read(self.options)
        if overwrite:
            return OverwriteWriter.begin(options)
        if options.staging:
            return StagedWriter(options, f"job-{uuid.uuid4()}")
        return RezoneWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: ARG002, FBT001, N802
        """Return a writer of micro-batches; complete mode is refused."""
        if overwrite:
            raise ValueError("rezone streams are upserts: use output mode append or update")
        return StreamWriter(SourceOptions.read(self.options))


class PushingDataSource(RezoneDataSource):
    """The same with filters pushed down; needs a session whose configuration has that on."""

    def reader(self, schema: StructType) -> "RezoneReader":
        """Return a reader of the columns in `schema` that takes filters."""
        return PushingReader(SourceOptions.read(self.options), tuple(schema.fieldNames()))


class _Ranges(NamedTuple):
    """Ranges of key hashes, and the time to read at, None for the newest of the leader.

    One range that a partition of the zone served when the read was planned; of a read by key the
    one that has all of these; of a read with a limit all ranges, one after the other; none where no
    partition may have rows.
    """

    ranges: list[HashRange]
    as_of: int | None
    pushed: PushedDown


class _ZoneRange(InputPartition):  # type: ignore[misc]
    """Has `_Ranges`."""


class RezoneReader(DataSourceReader):  # type: ignore[misc]
    """Scans each range at whoever serves it: the leader, or any replica as of one time."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._rows = options.rows

    def partitions(self) -> Sequence[InputPartition]:
        """Return an input partition for each of the zone's that may have rows, one for all keys."""
        with self._options.client() as client:
            selection = self._selection(client)
            segments = client.segments()
            ranges = [one.hashes for one in segments if selection.may_have(one.hashes)]
            as_of = self._options.as_of
            if self._options.max_staleness_seconds is not None:  # last, as its age is bounded
                staleness = self._options.max_staleness_seconds
                as_of = client.read_time(max_staleness_seconds=staleness).as_of
            pushed = PushedDown(
                zone=client.config.zone,
                partitions=len(ranges),
                of_partitions=len(segments),
                found_by=selection.found_by,
                filter=str(self._rows) if self._rows is not None else "",
                columns=self._columns,
                limit=self._options.limit,
                as_of=as_of,
            )
        if selection.is_of_keys and ranges:  # few rows, whose partitions a client asks at once
            ranges = [HashRange(ranges[0].start, ranges[-1].end)]
        if self._options.limit is not None or not ranges:
            return [_ZoneRange(_Ranges(ranges, as_of, pushed))]
        return [_ZoneRange(_Ranges([one], as_of, pushed)) for one in ranges]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the record batches of the ranges."""
        ranges, as_of, _ = partition.value
        if not ranges:
            return
        with self._options.client() as client:
            selection, left = self._selection(client), self._options.limit
            for hashes in ranges:
                for batch in self._batches(client, selection, HashRange(*hashes), as_of):
                    found = batch if left is None else batch.slice(0, left)
                    if found.num_rows:
                        yield found
                    if left is not None:
                        left -= found.num_rows
                        if not left:
                            return

    def _selection(self, client: TableClient) -> Selection:
        return Selection(client.codec, self._rows, self._columns, self._options.limit)

    def _batches(
        self, client: TableClient, selection: Selection, hashes: HashRange, as_of: int | None
    ) -> Iterator[Any]:
        anywhere = self._options.anywhere
        whole = sorted(self._columns) == sorted(client.codec.arrow_schema.names)
        if self._rows is not None or self._options.limit is not None or not whole:
            return client.select(selection, hashes, as_of=as_of, anywhere=anywhere)
        if anywhere:
            found = client.stream_any(hashes, as_of=as_of).rows
        else:
            found = client.stream(hashes, as_of=as_of)
        return (batch.select(list(self._columns)) for batch in found)


class PushingReader(RezoneReader):
    """Gives the data nodes the filters of a query; Spark evaluates only those they cannot."""

    def pushFilters(self, filters: list[SparkFilter]) -> Iterable[SparkFilter]:  # noqa: N802 - Spark's
        """Take what data nodes can evaluate, and return the rest.

        With a limit nothing is taken: it counts the rows before the filters of a query.
        """
        if self._options.limit is not None:
            return filters
        with self._options.client() as client:
            self._rows, rest = pushed_down(client.config.table, filters, self._rows)
        return rest


@dataclasses.dataclass
class RezoneCommit(WriterCommitMessage):  # type: ignore[misc]
    """What one task wrote: rows, and the highest offset per partition."""

    rows: int
    end_offsets: dict[int, int]


class RezoneWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Upserts (or deletes) the rows of each task by a client of its own."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> RezoneCommit:
        """Write a task's batches; returns when all are acknowledged."""
        commit = RezoneCommit(0, {})
        # A producer of its own, without a name: a repeated task may get its rows in another order.
        with self._options.client() as client:
            for writes in acknowledged(client, iterator, delete=self._options.delete):
                _gather(commit, writes)
        return commit

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: rows are durable since they were acknowledged."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: rows already written stay; running the job again repairs it."""


def _gather(commit: RezoneCommit, writes: list[PartitionWrite]) -> None:
    for write in writes:
        commit.rows += write.rows
        before = commit.end_offsets.get(write.partition, 0)
        commit.end_offsets[write.partition] = max(before, write.end_offset)
