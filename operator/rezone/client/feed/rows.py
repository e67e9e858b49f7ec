"""Changes as users see them: rows of the zone's table, with what was done to them, and when."""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rezone.wire.codec.changes import OPERATION_UPSERT, changes_from
from rezone.wire.codec.pieces import ByteStrings
from rezone.wire.codec.rows import RowCodec, keys_of
from rezone.wire.errors import CorruptionError
from rezone.wire.messages import PartitionId, RangeChanges

OPERATION: Final = "_operation"
COMMIT_TIME: Final = "_commit_time"
PARTITION: Final = "_partition"
OFFSET: Final = "_offset"
OLD: Final = "_old"
UPSERT: Final = "upsert"
DELETE: Final = "delete"

TIMES_SCHEMA: Final = pa.schema([pa.field(COMMIT_TIME, pa.int64(), nullable=False)])

_COUNTED_MAX: Final = 1 << 24
"""More than one answer and one commit have rows."""

_OWN: Final = (
    pa.field(OPERATION, pa.string(), nullable=False),
    pa.field(COMMIT_TIME, pa.int64(), nullable=False),
    pa.field(PARTITION, pa.int64(), nullable=False),
    pa.field(OFFSET, pa.int64(), nullable=False),
)


def schema_of(codec: RowCodec, *, old_rows: bool = False) -> Any:
    """Return the schema of changes; ValueError when the table has a column of the same name."""
    own = [*_OWN, pa.field(OLD, pa.struct(codec.arrow_schema))] if old_rows else _OWN
    if taken := {field.name for field in own} & set(codec.arrow_schema.names):
        raise ValueError(f"the table's columns {sorted(taken)} are names that a change feed uses")
    keys = set(codec.key_schema.names)
    columns = [
        field if field.name in keys else field.with_nullable(nullable=True)
        for field in codec.arrow_schema
    ]
    return pa.schema([*columns, *own])


def decoded(codec: RowCodec, partition: PartitionId, data: bytes, *, old_rows: bool = False) -> Any:
    """Return a partition's changes as a record batch; CorruptionError when it is none."""
    row_ids, ops, values, times, offsets, *old = changes_from(data, old_rows=old_rows).columns
    keys = keys_of(row_ids)
    upserts = pc.equal(ops, OPERATION_UPSERT)
    columns = _where(codec, keys, values, upserts)
    if upserts.false_count:
        columns |= codec.decode_columns(keys, values, frozenset(codec.key_schema.names))
    count = len(row_ids)
    schema = schema_of(codec, old_rows=old_rows)
    own = [
        pc.if_else(upserts, pa.scalar(UPSERT), pa.scalar(DELETE)),
        _signed(times),
        pa.array(np.full(count, partition, np.int64)),
        _signed(offsets),
    ]
    if old_rows:
        own.append(_old(codec, keys, old[0]))
    rows = [columns[name] for name in codec.arrow_schema.names]
    return pa.RecordBatch.from_arrays([*rows, *own], schema=schema)


def times_in(answer: RangeChanges) -> npt.NDArray[np.int64]:
    """Return the commit time of each change of an answer, of which numbers alone were asked.

    CorruptionError when they are more than one answer can have.
    """
    if answer.rows:  # of a data node that does not know what was asked
        found: npt.NDArray[np.int64] = _signed(changes_from(answer.rows).column("time")).to_numpy()
        return found
    if sum(each.changes for each in answer.commits) > _COUNTED_MAX:
        raise CorruptionError(f"an answer counts more than {_COUNTED_MAX} changes")
    times = np.array([each.time for each in answer.commits], np.int64)
    return np.repeat(times, np.array([each.changes for each in answer.commits], np.int64))


def _signed(column: Any) -> Any:
    try:
        return column.cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise CorruptionError(f"no time or offset of a change: {error}") from error


def _where(codec: RowCodec, keys: ByteStrings, values: Any, there: Any) -> dict[str, Any]:
    """Return the columns of the rows that are there, nulls in place of those that are not."""
    if not there.false_count:
        rows = codec.decode(keys, values)
        return dict(zip(rows.schema.names, rows.columns, strict=True))
    mask = there.to_numpy(zero_copy_only=False)
    rows = codec.decode(keys.chosen(mask), values.filter(there))
    # Where each row stands among those that are there.
    places = pa.array(np.cumsum(mask) - 1, pa.int64(), mask=~mask)
    return {name: rows.column(name).take(places) for name in rows.schema.names}


def _old(codec: RowCodec, keys: ByteStrings, values: Any) -> Any:
    """Return the rows before changes as structs; null where there was none."""
    there = values.is_valid()
    columns = _where(codec, keys, values, there)
    schema = codec.arrow_schema
    return pa.StructArray.from_arrays(
        [columns[name] for name in schema.names], fields=list(schema), mask=pc.invert(there)
    )
