"""Rows of files as rows of a table; those that do not fit are left out, and told one by one."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from rezone.transfer.bulk.exact import exact
from rezone.wire.codec.rows import RowCodec
from rezone.wire.errors import InvalidRowError

REASON_CHARACTERS_MAX = 300

Refuse = Callable[[int, str], None]
"""Takes the number of a row that does not fit, and why."""


def fitting(codec: RowCodec, batch: Any, first_row: int, refuse: Refuse) -> Iterator[Any]:
    """Yield the rows that the table takes, in their order, in as few batches as can be.

    Halves of a batch with bad rows are looked at by themselves, until only these are left.
    """
    if not batch.num_rows:
        return
    try:
        found = exact(batch, codec.arrow_schema)
        codec.check(found, delete=False)
    except (InvalidRowError, pa.ArrowException) as error:
        if batch.num_rows == 1:
            refuse(first_row, _reason(error))
            return
        half = batch.num_rows // 2
        yield from fitting(codec, batch.slice(0, half), first_row, refuse)
        yield from fitting(codec, batch.slice(half), first_row + half, refuse)
    else:
        yield found


def _reason(error: Exception) -> str:
    """Return what is wrong with the one row of a batch, without its values.

    It comes to where people may look who must not read rows: an application's annotations.
    """
    if isinstance(error, pa.ArrowException):
        return f"it cannot be read as a row of the zone ({type(error).__name__})"
    said = str(error)
    if isinstance(error.__cause__, pa.ArrowException):
        said = said.replace(f": {error.__cause__}", "")
    return re.sub(r" (in|of) row 0\b", "", said)[:REASON_CHARACTERS_MAX]
