"""A zone's change feed written to an Iceberg table, each micro-batch once.

    changes = spark.readStream.format("rezone-changes").options(bootstrap=..., ...).load()
    changes.writeStream.foreachBatch(merge_changes("lake.shop.orders", key=["id"])).start()

`append_changes` keeps every change as a row. `merge_changes` keeps the rows as they are by now: it
rewrites the files that have a row of the batch. Tasks write the files, the driver commits. The
table says in a property, set by the same commit, which batch of which query was the last one: so a
batch that comes again after a crash is not committed again.
"""

import dataclasses
import io as memory
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from rezone.client.feed.rows import COMMIT_TIME, OLD, OPERATION, UPSERT
from rezone.transfer.iceberg.tables import IcebergTable, data_files

BATCH_PROPERTY = "rezone.batch."
"""With a query's id behind it: the property that has the number of its last batch."""

KEYS_MAX = 1_000_000
"""So many different keys a batch that is merged may have: the driver and each task hold them."""

_QUERY = "sql.streaming.queryId"
_OF_CHANGES = (OPERATION, COMMIT_TIME, OLD)
"""What changes have and rows have not."""

_ROW, _WRITTEN = "_rezone_row", "path string, keys binary"
_REWRITTEN = "old string, path string"

Apply = Callable[[DataFrame, int], None]
"""What `foreachBatch` takes."""


def append_changes(table: str) -> Apply:
    """Return what appends each change as a row, with its operation and commit time.

    Raises ValueError for a name that is not CATALOG.NAMESPACE.TABLE.
    """
    target = IcebergTable(table).name

    def apply(frame: DataFrame, batch_id: int) -> None:
        def stage(batch: "_Batch") -> None:
            batch.commit(added=[each.path for each in batch.written(())], removed=[])

        _Batches(str(target), to_arrow_schema(frame.schema), ()).write(frame, batch_id, stage)

    return apply


def merge_changes(table: str, *, key: Sequence[str]) -> Apply:
    """Return what keeps the table's rows as the zone's are; `key` is the zone's primary key.

    The DataFrame must have all changes of one key in one task, as it is read. Raises ValueError for
    a name that is not CATALOG.NAMESPACE.TABLE, and without a key.
    """
    target, columns = IcebergTable(table).name, tuple(key)
    if not columns:
        raise ValueError("merge_changes needs the columns of the primary key")

    def apply(frame: DataFrame, batch_id: int) -> None:
        schema = to_arrow_schema(frame.schema)
        rows = pa.schema([each for each in schema if each.name not in _OF_CHANGES])

        def stage(batch: "_Batch") -> None:
            written = batch.written(columns)
            rewritten = batch.without(_keys_of(written), columns)
            added = [each.path for each in written] + [each.path for each in rewritten]
            batch.commit(added=added, removed=[each.old for each in rewritten])

        _Batches(str(target), rows, columns).write(frame, batch_id, stage)

    return apply


class _Written(NamedTuple):
    """A file that a task has written, empty when it had no rows, and the keys it has seen."""

    path: str
    keys: bytes


class _Rewritten(NamedTuple):
    """A file whose rows are in another by now; the other is empty when none was left."""

    old: str
    path: str


class _Batches(NamedTuple):
    """Writes the batches of a query to a table."""

    table: str
    schema: Any
    key: tuple[str, ...]

    def write(self, frame: DataFrame, batch_id: int, stage: Callable[["_Batch"], None]) -> None:
        """Write a batch, if the table has not got it."""
        query = frame.sparkSession.sparkContext.getLocalProperty(_QUERY)
        if not query:
            raise ValueError("this is no batch of a streaming query: Spark names none")
        target = IcebergTable(self.table)
        mark = BATCH_PROPERTY + query

        def load() -> Any:
            return target.load_or_create(self.schema, self.key)

        def is_made(table: Any) -> bool:
            return int(table.properties.get(mark, -1)) >= batch_id

        def staged(transaction: Any, table: Any) -> None:
            stage(_Batch(frame, table, transaction, self.schema, {mark: str(batch_id)}))

        target.commit_once(load, is_made, staged)


@dataclasses.dataclass(frozen=True)
class _Batch:
    """One batch that is being written."""

    frame: DataFrame
    table: Any
    transaction: Any
    schema: Any
    said: dict[str, str]

    def written(self, key: tuple[str, ...]) -> list[_Written]:
        """Have tasks write the rows; with a key the last upsert of each, and its keys."""
        write = _WriteRows(self._files(), self.schema, key)
        found = self.frame.mapInArrow(write, _WRITTEN).collect()
        return [_Written(row["path"], bytes(row["keys"])) for row in found]

    def without(self, keys: Any, key: tuple[str, ...]) -> list[_Rewritten]:
        """Have tasks write the table's files that have some keys again, without their rows."""
        if not keys.num_rows:
            return []
        tasks = list(self.table.scan(row_filter=_bounds(keys, key[0])).plan_files())
        if any(task.delete_files for task in tasks):
            raise ValueError(f"{self.table.name()} has delete files: compact it first")
        if not tasks:
            return []
        session = self.frame.sparkSession
        rewrite = _Rewrite(self._files(), keys, key)
        paths = session.createDataFrame([(task.file.file_path,) for task in tasks], "old string")
        # One file for each task: a task holds one in memory.
        found = paths.repartition(len(tasks)).mapInArrow(rewrite, _REWRITTEN).collect()
        return [_Rewritten(row["old"], row["path"]) for row in found]

    def commit(self, *, added: Sequence[str], removed: Sequence[str]) -> None:
        """Put files, and the number of the batch, into the transaction."""
        paths = [path for path in added if path]
        gone = set(removed)
        update = self.transaction.update_snapshot(snapshot_properties=self.said)
        if paths or gone:
            with update.overwrite() if gone else update.fast_append() as snapshot:
                for task in self.table.scan().plan_files() if gone else ():
                    if task.file.file_path in gone:
                        snapshot.delete_data_file(task.file)
                for file in data_files(self.transaction, self.table.io, paths):
                    snapshot.append_data_file(file)
        self.transaction.set_properties(self.said)

    def _files(self) -> "_NewFiles":
        provider = self.table.location_provider()
        folder = provider.new_data_location("rezone").rstrip("/")
        return _NewFiles(self.table.io, folder)


@dataclasses.dataclass(frozen=True)
class _NewFiles:
    """Where tasks write: each attempt to a name of its own, so none sees another's."""

    io: Any
    folder: str

    def write(self, table: Any) -> str:
        """Write rows to a new file and return its path; no file without rows."""
        if not table.num_rows:
            return ""
        path = f"{self.folder}/{uuid.uuid4()}.parquet"
        with self.io.new_output(path).create() as stream:
            pq.write_table(table, stream, compression="zstd")
        return path

    def read(self, path: str) -> Any:
        """Return the rows of a file."""
        with self.io.new_input(path).open() as stream:
            # Not by a dataset, for a damaged file: `bulk.parquet.read_batches`.
            return pq.ParquetFile(stream).read(use_threads=False)


@dataclasses.dataclass(frozen=True)
class _WriteRows:
    """Writes the rows of a task."""

    files: _NewFiles
    schema: Any
    key: tuple[str, ...]

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield what was written."""
        found = list(batches)
        if not found:
            return
        rows, keys = pa.Table.from_batches(found), pa.table({})
        if self.key:
            rows = _last_of_each(rows, self.key)
            keys = rows.select(list(self.key))
            rows = rows.filter(pc.equal(rows[OPERATION], UPSERT))
        path = self.files.write(rows.select(self.schema.names).cast(self.schema))
        yield pa.RecordBatch.from_pydict({"path": [path], "keys": [_to_bytes(keys)]})


@dataclasses.dataclass(frozen=True)
class _Rewrite:
    """Writes files again, without the rows of some keys."""

    files: _NewFiles
    keys: Any
    key: tuple[str, ...]

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the files that had such rows."""
        for batch in batches:
            for old in batch["old"].to_pylist():
                before = self.files.read(old)
                after = before.join(self.keys, list(self.key), join_type="left anti")
                if after.num_rows < before.num_rows:
                    # A join forgets which columns may be null.
                    path = self.files.write(after.select(before.schema.names).cast(before.schema))
                    yield pa.RecordBatch.from_pydict({"old": [old], "path": [path]})


def _last_of_each(rows: Any, key: tuple[str, ...]) -> Any:
    """Return the last row of each key."""
    numbered = rows.append_column(_ROW, pa.array(range(rows.num_rows), pa.int64()))
    last = numbered.group_by(list(key)).aggregate([(_ROW, "max")])[f"{_ROW}_max"]
    return rows.take(last)


def _keys_of(written: Sequence[_Written]) -> Any:
    """Return all keys of a batch. Raises ValueError when two tasks have the same one."""
    tables = [_from_bytes(each.keys) for each in written]
    if not tables:
        return pa.table({})
    keys = pa.concat_tables(tables)
    if keys.num_rows > KEYS_MAX:
        raise ValueError(f"a batch has {keys.num_rows} keys: set maxRowsPerBatch below {KEYS_MAX}")
    if keys.group_by(keys.schema.names).aggregate([]).num_rows < keys.num_rows:
        raise ValueError("two tasks have changes of one key: merge the DataFrame as it is read")
    return keys


def _bounds(keys: Any, column: str) -> Any:
    """Return a filter by which Iceberg leaves files out that have none of some keys."""
    from pyiceberg.expressions import (  # noqa: PLC0415 - an extra
        AlwaysTrue,
        And,
        GreaterThanOrEqual,
        LessThanOrEqual,
    )

    values = keys[column]
    if not (pa.types.is_integer(values.type) or pa.types.is_string(values.type)):
        return AlwaysTrue()
    found = pc.min_max(values).as_py()
    return And(GreaterThanOrEqual(column, found["min"]), LessThanOrEqual(column, found["max"]))


def _to_bytes(table: Any) -> bytes:
    out = memory.BytesIO()
    with pa.ipc.new_stream(out, table.schema) as stream:
        stream.write_table(table)
    return out.getvalue()


def _from_bytes(content: bytes) -> Any:
    return pa.ipc.open_stream(content).read_all()
