"""What clients ask of data nodes about some of the rows: those that pass a filter, some columns."""

from typing import Annotated

import msgspec

from rezone.wire.codec.filters import FilterTerms
from rezone.wire.messages.base import Message, PartitionId, TraceContext
from rezone.wire.ranges import Count, Unsigned

_COLUMNS_MAX = 4096


class SelectTicket(Message, frozen=True):
    """Stream the rows of a partition that pass a filter, some of their columns, some of them.

    The first batch is empty and has `RowsAsOf` with it, all others have `SelectedUpTo`: a stream
    that broke off goes on there, at any replica, as of the time that was told. Empty batches only
    say that it goes on. Rows come in the order of row ids; with `index` only those in its range
    [`index_start`, `index_end`) are looked at, and come in its order. No `columns`: all of them.
    `limit`: no more rows than these.
    """

    partition: PartitionId
    filter: FilterTerms = ()
    columns: Annotated[tuple[str, ...], msgspec.Meta(max_length=_COLUMNS_MAX)] = ()
    limit: Count | None = None
    as_of: Count | None = None
    cursor: bytes = b""
    hash_start: Unsigned = 0
    hash_end_inclusive: Unsigned = (1 << 64) - 1
    index: str = ""
    index_start: bytes = b""
    index_end: bytes = b""
    trace: TraceContext | None = None


class SelectedUpTo(Message, frozen=True):
    """Where what follows a batch of a selection begins: at a row id, or at an index key."""

    cursor: bytes
