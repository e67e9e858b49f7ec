"""Row changes as they travel from a data node to a change feed: one record batch of a range."""

from typing import Any, Final

import pyarrow as pa

from rezone.wire.codec.bodies import from_message
from rezone.wire.errors import CorruptionError, InvalidRowError

OPERATION_UPSERT: Final = 0
OPERATION_DELETE: Final = 1

CHANGES_SCHEMA: Final = pa.schema(
    [
        pa.field("row_id", pa.binary(), nullable=False),
        pa.field("op", pa.uint8(), nullable=False),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("time", pa.uint64(), nullable=False),
        pa.field("offset", pa.uint64(), nullable=False),
    ]
)
"""The operation, the encoded row (empty for a delete), its commit time, its offset in the log."""

OLD_ROWS_SCHEMA: Final = CHANGES_SCHEMA.append(pa.field("old", pa.binary()))
"""The encoded row before the change, too; null where there was none."""


def changes_from(data: bytes, *, old_rows: bool = False) -> Any:
    """Return the batch in a record batch message; CorruptionError when it is none."""
    schema = OLD_ROWS_SCHEMA if old_rows else CHANGES_SCHEMA
    try:
        return from_message(data, schema)
    except InvalidRowError as error:
        raise CorruptionError(f"not a batch of changes: {error}") from error
