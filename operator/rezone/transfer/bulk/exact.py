"""Rows of files as rows of a table, where this changes no value.

Arrow casts some numbers and times to others without an error. A client's rows come from a program,
which says by its types what it wants; a file's types are often those of a tool.
"""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rezone.client.requests.batches import conform
from rezone.wire.errors import InvalidRowError

_LOSSY = frozenset({pa.bool_(), pa.float32(), pa.float64(), pa.date32()})
"""Types to which Arrow rounds or cuts values; to all others it refuses what does not fit."""


def exact(batch: Any, schema: Any) -> Any:
    """Return the rows as a batch of a schema. Raises InvalidRowError when a value would change."""
    found = conform(batch, schema)
    for field in schema:
        _check(field, batch.column(field.name), found.column(field.name))
    return found


def _check(field: Any, before: Any, after: Any) -> None:
    if pa.types.is_dictionary(before.type):
        before = before.dictionary_decode()
    if before.type == field.type or field.type not in _LOSSY or _is_text(before.type):
        return
    if not _are_same(before, after):
        raise InvalidRowError(
            f"column {field.name!r} is {before.type} and has values that the zone's "
            f"{field.type} cannot have",
            column=field.name,
        )


def _is_text(kind: Any) -> bool:
    """Return whether values have no type yet: a text is read, and null is null in all types."""
    types = pa.types
    return bool(
        types.is_null(kind)
        or types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_string_view(kind)
    )


def _are_same(before: Any, after: Any) -> bool:
    try:
        back = after.cast(before.type)
    except pa.ArrowInvalid:
        return False
    same = pc.equal(back, before)
    if pa.types.is_floating(before.type):
        same = pc.or_(same, pc.and_(pc.is_nan(back), pc.is_nan(before)))
    return bool(pc.all(same, skip_nulls=True, min_count=0).as_py())
