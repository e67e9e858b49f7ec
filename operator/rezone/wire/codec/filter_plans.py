"""What a filter says of where its rows are: which row ids, or a range of an index. Pure.

Client and data node come to the same by the same functions: the client asks only partitions that
may have rows, and the data node reads only what may pass.
"""

import itertools
import math
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa

from rezone.wire.codec.filters import Comparison, FilterOp, RowFilter
from rezone.wire.codec.indexes import IndexCodec, KeyRange, index_codecs
from rezone.wire.codec.rows import RowCodec, hash_of, row_ids

KEYS_MAX: Final = 1024
"""Of more keys all rows are read."""

_LOWER: Final = frozenset({FilterOp.GREATER, FilterOp.GREATER_OR_EQUAL})
_UPPER: Final = frozenset({FilterOp.LESS, FilterOp.LESS_OR_EQUAL})


class IndexRange(NamedTuple):
    """A range of an index that has all rows which pass a filter, and others perhaps."""

    name: str
    keys: KeyRange


def ids_that_pass(codec: RowCodec, rows: RowFilter) -> list[bytes] | None:
    """Return the row ids that may pass, in order; None when any may."""
    choices = [_choices(rows, name) for name in codec.key_schema.names]
    if any(each is None for each in choices):
        return None
    known = [each for each in choices if each is not None]
    if math.prod(map(len, known)) > KEYS_MAX:
        return None
    keys = [
        dict(zip(codec.key_schema.names, each, strict=True)) for each in itertools.product(*known)
    ]
    if not keys:
        return []
    batch = pa.RecordBatch.from_pylist(keys, schema=codec.key_schema)
    encoded = codec.encode_keys(batch)
    return sorted(set(row_ids(encoded, hash_of(encoded)).to_pylist()))


def index_range(codec: RowCodec, rows: RowFilter) -> IndexRange | None:
    """Return the range of the index that serves a filter best; None when none does.

    An index serves by equality of its first columns, and by a beginning of text or by both bounds
    of the next one. One bound alone could be nearly all rows, which a scan reads faster.
    """
    found = [(score, each) for each, score in _ranges(codec, rows) if score]
    return max(found, key=lambda pair: pair[0])[1] if found else None


def _comparisons(rows: RowFilter, column: str) -> list[Comparison]:
    found = (each for each in rows.conjuncts if isinstance(each, Comparison))
    return [each for each in found if each.column.name == column]


def _choices(rows: RowFilter, column: str) -> list[Any] | None:
    """Return the values that a column may have in rows that pass; None when it may have any."""
    for each in _comparisons(rows, column):
        if each.op in (FilterOp.EQUAL, FilterOp.IN):
            return [value.as_py() for value in each.values if value is not None]
    return None


def _ranges(codec: RowCodec, rows: RowFilter) -> Iterator[tuple[IndexRange, int]]:
    for index in index_codecs(codec.table):
        equal: list[Any] = []
        for name in index.columns:
            values = _choices(rows, name)
            if values is None or len(values) != 1:
                break
            equal.append(values[0])
        keys, score = index.range_of(equal, equal), 2 * len(equal)
        if len(equal) < len(index.columns):
            narrower = _narrower(index, equal, rows)
            if narrower is not None:
                keys, score = narrower, score + 1
        yield IndexRange(index.name, keys), score


def _narrower(index: IndexCodec, equal: list[Any], rows: RowFilter) -> KeyRange | None:
    """Return the range of an index by the column behind those that are known."""
    column = index.columns[len(equal)]
    found = _comparisons(rows, column)
    for each in found:
        if each.op is FilterOp.STARTS_WITH:
            return index.range_of_beginning(equal, each.values[0].as_py())
    lower = [each.values[0] for each in found if each.op in _LOWER]
    upper = [each.values[0] for each in found if each.op in _UPPER]
    if not lower or not upper:
        return None
    return index.range_of([*equal, lower[0].as_py()], [*equal, upper[0].as_py()])
