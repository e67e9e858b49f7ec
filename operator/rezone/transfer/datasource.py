"""The Spark data source "rezone": zones as ordinary tables in batch reads and writes (B-11).

    from rezone.transfer import datasource
    datasource.register(spark)
    df = spark.read.format("rezone").option("bootstrap", "orders.shop.svc:7400").load()
    df.write.format("rezone").mode("append").option("bootstrap", "orders.shop.svc:7400").save()

Options: `bootstrap`, addresses of any of the zone's nodes, separated by commas; `zone`, checked
against the zone's name when given; `asOf`, read as of this time in microseconds since 1970 (without
it each partition is read at its own newest time); `readFrom`, "leaders" (the default) or "any",
which leaves leaders alone where followers can answer: all rows are then as of one time, the same
for tasks that are repeated, `asOf` or else the newest that is not longer ago than
`maxStalenessSeconds` (10) when the read is planned; `operation`, "upsert" or "delete" for writes,
where a delete takes the primary key's columns; `tlsDirectory`, a directory on the driver and on
every executor with the certificate to show, in place of REZONE_TLS_DIRECTORY.

Reads: one task per partition of the zone, batches as they come. A task reads a range of key hashes,
that of the partition when the read was planned; when the zone was re-sharded since, from whoever
serves it by then. A stream that breaks off goes on at another replica, without the task being
repeated. All of a read as of one time must be over while versions of that time are kept.

Writes are upserts, and there is no transaction over tasks: rows are visible as soon as they are
acknowledged. A task that Spark repeats writes its rows again, which leaves the same rows; `abort`
cannot take back what was written. So a failed job is repaired by running it again.
"""

import dataclasses
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
)

from rezone.client import PartitionWrite, TableClient
from rezone.wire.codec.schema import ColumnType, TableSchema
from rezone.wire.layouts import HashRange
from rezone.wire.transport.tls import TlsDirectory

FORMAT = "rezone"
SUBMITTED_BATCHES_MAX = 8
MAX_STALENESS_SECONDS = "10"
"""How old rows of followers may be when the option does not say it."""
_SPARK: dict[ColumnType, DataType] = {
    ColumnType.BOOL: BooleanType(),
    ColumnType.INT8: ByteType(),
    ColumnType.INT16: ShortType(),
    ColumnType.INT32: IntegerType(),
    ColumnType.INT64: LongType(),
    ColumnType.FLOAT32: FloatType(),
    ColumnType.FLOAT64: DoubleType(),
    ColumnType.STRING: StringType(),
    ColumnType.BINARY: BinaryType(),
    ColumnType.DATE32: DateType(),
    # Zone times are UTC without a zone; TimestampType would be shifted by the session's zone.
    ColumnType.TIMESTAMP_US: TimestampNTZType(),
}


def register(spark: SparkSession) -> None:
    """Make the format "rezone" known to a session."""
    spark.dataSource.register(RezoneDataSource)


def spark_schema(table: TableSchema) -> StructType:
    """Return the Spark schema of a zone's rows."""
    keys = set(table.primary_key)
    return StructType(
        [
            StructField(c.name, _SPARK[c.type], c.nullable and c.name not in keys)
            for c in table.columns
        ]
    )


@dataclasses.dataclass(frozen=True)
class _Options:
    """The options, read and checked once on the driver."""

    bootstrap: tuple[str, ...]
    zone: str | None
    as_of: int | None
    max_staleness_seconds: float | None
    anywhere: bool
    delete: bool
    tls_directory: str | None

    @classmethod
    def read(cls, options: Mapping[str, str]) -> "_Options":
        bootstrap = tuple(a.strip() for a in options.get("bootstrap", "").split(",") if a.strip())
        if not bootstrap:
            raise ValueError('option "bootstrap" is missing: "host:port" of a data node')
        operation = options.get("operation", "upsert")
        if operation not in ("upsert", "delete"):
            raise ValueError(f'option "operation" is {operation!r}, not "upsert" or "delete"')
        read_from = options.get("readFrom", "leaders")
        if read_from not in ("leaders", "any"):
            raise ValueError(f'option "readFrom" is {read_from!r}, not "leaders" or "any"')
        as_of, staleness = options.get("asOf"), options.get("maxStalenessSeconds")
        if staleness and (as_of or read_from != "any"):
            raise ValueError('option "maxStalenessSeconds" needs "readFrom" "any", and no "asOf"')
        if read_from == "any" and not as_of:
            staleness = staleness or MAX_STALENESS_SECONDS
        return cls(
            bootstrap,
            options.get("zone"),
            int(as_of) if as_of else None,
            float(staleness) if staleness else None,
            read_from == "any",
            operation == "delete",
            options.get("tlsDirectory"),
        )

    def client(self) -> TableClient:
        tls = TlsDirectory(Path(self.tls_directory)) if self.tls_directory else None
        client = TableClient(self.bootstrap, tls=tls)
        if self.zone and client.config.zone != self.zone:
            found = client.config.zone
            client.close()
            raise ValueError(
                f"the nodes at {self.bootstrap} serve zone {found!r}, not {self.zone!r}"
            )
        return client


class RezoneDataSource(DataSource):  # type: ignore[misc]
    """The format's entry: schema, reader, writer."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the zone's schema, as its nodes have it."""
        with _Options.read(self.options).client() as client:
            return spark_schema(client.config.table)

    def reader(self, schema: StructType) -> "RezoneReader":
        """Return a reader of the columns in `schema`."""
        return RezoneReader(_Options.read(self.options), tuple(schema.fieldNames()))

    def writer(self, schema: StructType, overwrite: bool) -> "RezoneWriter":  # noqa: ARG002, FBT001
        """Return a writer; overwriting a whole zone is refused."""
        if overwrite:
            raise ValueError('rezone writes are upserts: use mode("append")')
        return RezoneWriter(_Options.read(self.options))


class _ZoneRange(InputPartition):  # type: ignore[misc]
    """The range of key hashes that one partition of the zone served when the read was planned.

    Its start and end, and the time to read at, None for the newest of the leader.
    """


class RezoneReader(DataSourceReader):  # type: ignore[misc]
    """Scans each range at whoever serves it: the leader, or any replica as of one time."""

    def __init__(self, options: _Options, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        """Return one input partition per partition of the zone."""
        with self._options.client() as client:
            segments = client.segments()
            as_of = self._options.as_of
            if self._options.max_staleness_seconds is not None:  # last, as its age is bounded
                staleness = self._options.max_staleness_seconds
                as_of = client.read_time(max_staleness_seconds=staleness).as_of
            return [_ZoneRange((one.start, one.end, as_of)) for one in segments]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the range's record batches."""
        start, end, as_of = partition.value
        hashes = HashRange(start, end)
        with self._options.client() as client:
            if self._options.anywhere:
                batches = client.stream_any(hashes, as_of=as_of).rows
            else:
                batches = client.stream(hashes, as_of=as_of)
            for batch in batches:
                yield batch.select(list(self._columns))


@dataclasses.dataclass
class RezoneCommit(WriterCommitMessage):  # type: ignore[misc]
    """What one task wrote: rows, and the highest offset per partition."""

    rows: int
    end_offsets: dict[int, int]


class RezoneWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Upserts (or deletes) the rows of each task by a client of its own."""

    def __init__(self, options: _Options) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> RezoneCommit:
        """Write a task's batches; returns when all are acknowledged."""
        commit = RezoneCommit(0, {})
        waiting: deque[Future[list[PartitionWrite]]] = deque()
        # A producer of its own, without a name: a repeated task may get its rows in another order.
        with self._options.client() as client:
            submit = client.submit_delete if self._options.delete else client.submit_write
            for batch in iterator:
                waiting.append(submit(batch))
                if len(waiting) > SUBMITTED_BATCHES_MAX:
                    _gather(commit, waiting.popleft().result())
            while waiting:
                _gather(commit, waiting.popleft().result())
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
