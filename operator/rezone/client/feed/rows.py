"""Changes as users see them: rows of the zone's table, with what was done to them, and when."""

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rezone.wire.codec.changes import OPERATION_UPSERT, changes_from
from rezone.wire.codec.rows import RowCodec, keys_of
from rezone.wire.messages import PartitionId

OPERATION: Final = "_operation"
COMMIT_TIME: Final = "_commit_time"
PARTITION: Final = "_partition"
OFFSET: Final = "_offset"
UPSERT: Final = "upsert"
DELETE: Final = "delete"

_OWN: Final = (
    pa.field(OPERATION, pa.string(), nullable=False),
    pa.field(COMMIT_TIME, pa.int64(), nullable=False),
    pa.field(PARTITION, pa.int64(), nullable=False),
    pa.field(OFFSET, pa.int64(), nullable=False),
)


def schema_of(codec: RowCodec) -> Any:
    """Return the schema of changes; ValueError when the table has a column of the same name."""
    if taken := {field.name for field in _OWN} & set(codec.arrow_schema.names):
        raise ValueError(f"the table's columns {sorted(taken)} are names that a change feed uses")
    keys = set(codec.key_schema.names)
    columns = [
        field if field.name in keys else field.with_nullable(nullable=True)
        for field in codec.arrow_schema
    ]
    return pa.schema([*columns, *_OWN])


def decoded(codec: RowCodec, partition: PartitionId, data: bytes) -> Any:
    """Return a partition's changes as a record batch; CorruptionError when it is none."""
    row_ids, ops, values, times, offsets = changes_from(data).columns
    keys = keys_of(row_ids)
    upserts = pc.equal(ops, OPERATION_UPSERT)
    key_names = frozenset(codec.key_schema.names)
    columns = codec.decode_columns(keys, values, key_names)
    there = codec.decode(keys.filter(upserts), values.filter(upserts))
    # Where each row stands among those that are there; null for one that was deleted.
    mask = upserts.to_numpy(zero_copy_only=False)
    places = pa.array(np.cumsum(mask) - 1, pa.int64(), mask=~mask)
    for name in there.schema.names:
        if name not in key_names:
            columns[name] = there.column(name).take(places)
    count = len(row_ids)
    schema = schema_of(codec)
    own = [
        pc.if_else(upserts, pa.scalar(UPSERT), pa.scalar(DELETE)),
        times.cast(pa.int64()),
        pa.array(np.full(count, partition, np.int64)),
        offsets.cast(pa.int64()),
    ]
    rows = [columns[name] for name in codec.arrow_schema.names]
    return pa.RecordBatch.from_arrays([*rows, *own], schema=schema)
