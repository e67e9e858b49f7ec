"""Single rows as people write them: `put(id=7, owner="ann")`, `get(7)`, `delete(7)`."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from rezone.wire.codec.rows import RowCodec
from rezone.wire.errors import InvalidRowError


def is_rows(data: Any) -> bool:
    """Whether this is a batch, a table or a sequence of rows, and not one value of a key."""
    is_text = isinstance(data, (str, bytes, bytearray))
    return isinstance(data, (pa.RecordBatch, pa.Table, Sequence)) and not is_text


def key_of(codec: RowCodec, values: Sequence[Any]) -> list[dict[str, Any]]:
    """Return one primary key by its values, in the order of the key's columns.

    Raises InvalidRowError unless there is a value for each of them.
    """
    names = codec.key_schema.names
    if len(values) != len(names):
        raise InvalidRowError(f"the primary key is {names}; {len(values)} values were given")
    return [dict(zip(names, values, strict=True))]


def key_in(codec: RowCodec, columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the primary key of a row; raises InvalidRowError when a column of it is missing."""
    names = codec.key_schema.names
    missing = [name for name in names if columns.get(name) is None]
    if missing:
        raise InvalidRowError(f"the primary key is {names}; the row has no {missing}")
    return {name: columns[name] for name in names}


def first_of(rows: Any) -> dict[str, Any] | None:
    """Return the first row of a table, as people read it; None when there is none."""
    found: list[dict[str, Any]] = rows.slice(0, 1).to_pylist()
    return found[0] if found else None
