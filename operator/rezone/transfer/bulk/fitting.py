"""Rows of files as rows of a table; those that do not fit are left out, and told one by one."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pyarrow as pa

from rezone.transfer.bulk.exact import exact
from rezone.transfer.bulk.sources import LoadUnit, Reader
from rezone.wire.codec.rows import RowCodec
from rezone.wire.errors import InvalidRowError

REASON_CHARACTERS_MAX = 300


class RefusedRow(msgspec.Struct, frozen=True):
    """A row that the zone does not take; `row` counts from 1, without a header."""

    file: str
    row: int
    reason: str


class TooManyRefusedError(ValueError):
    """Raised when a unit has more bad rows than one wants to know of; names the last one."""


class FittingRows:
    """The rows of a unit that the zone takes, and, once they are read, what it `refused`."""

    def __init__(self, reader: Reader, part: LoadUnit, codec: RowCodec, refused_max: int) -> None:
        self._reader = reader
        self._part = part
        self._codec = codec
        self._refused_max = refused_max
        self.refused: list[RefusedRow] = []

    def batches(self) -> Iterator[Any]:
        """Yield them in their order. TooManyRefusedError behind `refused_max` that do not fit."""
        for first, batch in self._reader.read(self._part, self._codec.arrow_schema):
            yield from fitting(self._codec, batch, first, self._refuse)

    def _refuse(self, row: int, reason: str) -> None:
        self.refused.append(RefusedRow(self._part.name, row, reason))
        if len(self.refused) > self._refused_max:
            raise TooManyRefusedError(
                f"{self._part.name} has more than {self._refused_max} rows that the zone refuses: "
                f"row {row}: {reason}"
            )


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
