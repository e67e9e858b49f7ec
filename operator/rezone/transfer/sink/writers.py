"""Writers whose rows reach the zone when the job is sure of them (SP-04, SP-05).

Tasks stage their rows (`staging`). When all tasks have ended well Spark's commit names one
attempt of each, and the driver writes these rows to the zone. So an attempt that failed, was
repeated or was speculative leaves nothing, and neither does a job that fails before its commit.

A stream writes each micro-batch once. Its producer is that of the query, its epoch the batch's
number, and its requests are cut from the batch's rows in the order of their row ids: so a batch
that comes again makes the same requests, which data nodes know as repeats. What the rows were, and
which partitions they go to, is noted before they are written: a batch that comes again with other
rows is refused, and one that comes again after a re-sharding says what it was sent as before.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from rezone.transfer.bulk.directory import note_in
from rezone.transfer.sink.staging import Staging
from rezone.transfer.sink.submitting import SequencedRows, acknowledged
from rezone.transfer.source.options import SourceOptions
from rezone.wire.codec.encoded_rows import encoded_rows
from rezone.wire.codec.pieces import ByteStrings
from rezone.wire.codec.rows import RowCodec
from rezone.wire.layouts import Layout

_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"
"""Local properties by which a task of a stream knows what it is for."""


class BatchChangedError(ValueError):
    """Raised when a micro-batch that was written already, or in part, comes with other rows."""


@dataclasses.dataclass
class StagedRows(WriterCommitMessage):  # type: ignore[misc]
    """What one attempt of a task has staged; the id of the query when it is a stream's."""

    name: str
    rows: int
    query: str = ""


class _Noted(msgspec.Struct):
    """A micro-batch whose rows are known: their digest, and whether all of them are written.

    `layouts`: whose partitions they may have been sent to.
    """

    digest: str
    done: bool
    layouts: tuple[Layout, ...] = ()


class StagedWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Writes the rows of a batch job when all of its tasks have ended well."""

    def __init__(self, options: SourceOptions, job: str) -> None:
        self._options = options
        self._job = job

    def write(self, iterator: Iterator[Any]) -> StagedRows:
        """Stage a task's rows."""
        return StagedRows(*_staging(self._options, self._job).write(iterator))

    def commit(self, messages: list[StagedRows | None]) -> None:
        """Write the rows of the attempts that count; when this fails, run the job again."""
        staging = _staging(self._options, self._job)
        with self._options.client() as client:
            found = (m for m in messages if m is not None and m.name)
            batches = (batch for m in found for batch in staging.read(m.name))
            for _ in acknowledged(client, batches, delete=self._options.delete):
                pass
        staging.remove_all()

    def abort(self, messages: list[StagedRows | None]) -> None:
        """Forget all that was staged."""
        del messages
        _staging(self._options, self._job).remove_all()


class StreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """Writes each micro-batch of a query exactly once."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> StagedRows:
        """Stage a task's rows."""
        query, batch = _property(_QUERY), _property(_BATCH)
        staging = _staging(self._options, _files_of(query, int(batch)))
        return StagedRows(*staging.write(iterator), query)

    def commit(self, messages: list[StagedRows | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """Write the batch, if that is not done; BatchChangedError when it has other rows by now."""
        found = [message for message in messages if message is not None]
        if not found:
            return
        query = found[0].query
        names = [message.name for message in found if message.name]
        if names:
            self._write(query, batchId, names)
        # With what attempts have left that do not count; those of the batch before may come late.
        for earlier in (batchId, batchId - 1):
            _staging(self._options, _files_of(query, earlier)).remove_all()
        _staging(self._options, query).remove(_note(batchId - 2))  # it does not come again

    def _write(self, query: str, batch_id: int, names: list[str]) -> None:
        files = _staging(self._options, _files_of(query, batch_id))
        notes = _staging(self._options, query)
        with self._options.client() as client:
            batch = _in_order(client.codec, files, names, delete=self._options.delete)
            digest = _digest(client.codec, batch, delete=self._options.delete)
            noted = _noted(notes, batch_id, digest)
            if noted.done:
                return

            def note(layouts: tuple[Layout, ...]) -> tuple[Layout, ...]:
                noted.layouts = tuple({*noted.layouts, *layouts})
                notes.note(_note(batch_id), msgspec.json.encode(noted))
                return noted.layouts

            rows = SequencedRows(client, f"spark-stream/{query}", note, epoch=batch_id + 1)
            rows.write(batch, delete=self._options.delete)
            notes.note(_note(batch_id), msgspec.json.encode(_Noted(digest, done=True)))

    def abort(self, messages: list[StagedRows | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """Forget what the tasks have staged."""
        for query in {message.query for message in messages if message is not None}:
            _staging(self._options, _files_of(query, batchId)).remove_all()


def _property(name: str) -> str:
    context = TaskContext.get()
    found: str | None = context.getLocalProperty(name) if context is not None else None
    if not found:
        raise ValueError(f"this is no task of a streaming query: Spark has given no {name}")
    return found


def _files_of(query: str, batch_id: int) -> str:
    return f"{query}/{batch_id}"


def _staging(options: SourceOptions, job: str) -> Staging:
    if not options.staging:
        raise ValueError('option "stagingDirectory" is missing: a directory that all tasks reach')
    return Staging(options.staging, job)


def _note(batch_id: int) -> str:
    return f"batch-{batch_id}.json"


def _noted(staging: Staging, batch_id: int, digest: str) -> _Noted:
    """Return what is noted of a batch; BatchChangedError when that has other rows."""
    content = staging.noted(_note(batch_id))
    if content is None:
        return _Noted(digest, done=False)
    noted = note_in(content, _Noted)
    if noted.digest != digest:
        raise BatchChangedError(
            f"batch {batch_id} of the query was begun with other rows than it has now: its source "
            "gives no repeatable batches"
        )
    return noted


def _in_order(codec: RowCodec, staging: Staging, names: list[str], *, delete: bool) -> Any:
    """Return all rows in the order of their row ids, of each the last one."""
    schema = codec.key_schema if delete else codec.arrow_schema
    tables = [pa.Table.from_batches(staging.read(name)).select(schema.names) for name in names]
    table = pa.concat_tables(each.cast(schema) for each in tables)
    batch = table.combine_chunks().to_batches(max_chunksize=None)[0]
    ids = encoded_rows(codec, batch).row_ids()
    order = pc.array_sort_indices(ids)
    ids = ids.take(order)
    is_last = [True] * len(ids)
    if len(ids) > 1:
        is_last = [*pc.not_equal(ids[:-1], ids[1:]).to_pylist(), True]
    return batch.take(order.filter(pa.array(is_last)))


def _digest(codec: RowCodec, batch: Any, *, delete: bool) -> str:
    found = xxhash.xxh3_128()
    rows = encoded_rows(codec, batch)
    for array in [rows.keys()] if delete else [rows.keys(), rows.values()]:
        strings = ByteStrings.of(array)
        found.update((strings.ends - strings.starts).tobytes())
        found.update(strings.data.tobytes())
    return found.hexdigest()
