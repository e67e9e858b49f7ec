"""Filters of rows as they travel: terms in postfix order, checked before they are evaluated.

A filter is a flat list: each comparison stands for itself, AND and OR join the two terms before
them, NOT turns the one before it around. So nothing that a client sends nests by itself: number,
bytes and depth are checked here, before anything is evaluated.

What a filter means is SQL with three values: a comparison with null is neither true nor false, and
only rows for which the filter is true pass. Of floats NaN equals NaN and is above all others, as in
Spark and PostgreSQL. Texts and binaries compare by their bytes.

Thread-safe: nothing here has state that changes.
"""

import enum
import functools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from rezone.wire.codec.column_bytes import ARROW_TYPES
from rezone.wire.codec.schema import Column, ColumnType, TableSchema
from rezone.wire.errors import InvalidFilterError
from rezone.wire.ranges import Float, Integer

TERMS_MAX: Final = 256
VALUES_MAX: Final = 1024
FLOAT_VALUES_MAX: Final = 64
FILTER_BYTES_MAX: Final = 256 << 10
DEPTH_MAX: Final = 16
"""How deep AND, OR and NOT may nest; several ANDs in a row are one, and so are ORs."""


class FilterOp(enum.StrEnum):
    """What a term says of a column, or how it joins the terms before it."""

    EQUAL = "eq"
    LESS = "lt"
    LESS_OR_EQUAL = "le"
    GREATER = "gt"
    GREATER_OR_EQUAL = "ge"
    IN = "in"
    IS_NULL = "null"
    STARTS_WITH = "starts"
    ENDS_WITH = "ends"
    CONTAINS = "contains"
    AND = "and"
    OR = "or"
    NOT = "not"


JOINING: Final = frozenset({FilterOp.AND, FilterOp.OR})
ORDERING: Final = frozenset(
    {FilterOp.LESS, FilterOp.LESS_OR_EQUAL, FilterOp.GREATER, FilterOp.GREATER_OR_EQUAL}
)
MATCHING: Final = frozenset({FilterOp.STARTS_WITH, FilterOp.ENDS_WITH, FilterOp.CONTAINS})
_FLOATS: Final = frozenset({ColumnType.FLOAT32, ColumnType.FLOAT64})
_TEXTS: Final = frozenset({ColumnType.STRING, ColumnType.BINARY})
_NOT_FINITE: Final = ("nan", "inf", "-inf")
_INFINITE: Final = (math.inf, -math.inf)
_PYTHON: Final = {
    ColumnType.BOOL: (bool,),
    ColumnType.FLOAT32: (int, float),
    ColumnType.FLOAT64: (int, float),
    ColumnType.STRING: (str,),
    ColumnType.BINARY: (bytes,),
}
"""The types of values by column; whole numbers for all others: days, and microseconds."""

FilterValue = bool | Integer | Float | str | None


class FilterTerm(msgspec.Struct, frozen=True, array_like=True):
    """One term: a column and the values to compare it with, or a joint without both.

    Dates are days, and times microseconds, since 1970. NaN and infinite numbers are texts. The
    values of a binary column are in `binaries`.
    """

    op: FilterOp
    column: str = ""
    values: Annotated[tuple[FilterValue, ...], msgspec.Meta(max_length=VALUES_MAX)] = ()
    binaries: Annotated[tuple[bytes, ...], msgspec.Meta(max_length=VALUES_MAX)] = ()

    @classmethod
    def of(cls, op: FilterOp, column: str, values: Iterable[FilterValue | bytes]) -> "FilterTerm":
        """Return the term of some values."""
        others: list[FilterValue] = []
        binaries: list[bytes] = []
        for each in values:
            if isinstance(each, bytes):
                binaries.append(each)
            else:
                others.append(_as_text(each) if isinstance(each, float) else each)
        return cls(op, column, tuple(others), tuple(binaries))

    @property
    def all_values(self) -> tuple[FilterValue | bytes, ...]:
        """Values and binaries."""
        return (*self.values, *self.binaries)


FilterTerms = Annotated[tuple[FilterTerm, ...], msgspec.Meta(max_length=TERMS_MAX)]
"""A filter on the wire; empty for all rows."""


class Comparison(NamedTuple):
    """A column compared with values, which are of its type."""

    op: FilterOp
    column: Column
    values: tuple[Any, ...]


class Joint(NamedTuple):
    """AND or OR of several parts, or NOT of one."""

    op: FilterOp
    parts: tuple["Comparison | Joint", ...]


Node = Comparison | Joint


class RowFilter:
    """A checked filter of one table's rows.

    InvalidFilterError when it is too large or too deep, is no filter, names a column that the table
    has not, or compares one with what it cannot be compared with.
    """

    def __init__(self, table: TableSchema, terms: tuple[FilterTerm, ...]) -> None:
        _check_size(terms)
        self._root = _tree_of({column.name: column for column in table.columns}, terms)
        self.columns = frozenset(each.column.name for each in _leaves(self._root))

    @property
    def conjuncts(self) -> tuple[Node, ...]:
        """The parts that must all be true for a row to pass."""
        if isinstance(self._root, Joint) and self._root.op is FilterOp.AND:
            return self._root.parts
        return (self._root,)

    def mask(self, columns: Mapping[str, Any]) -> Any:
        """Return for each row whether it passes, null for one that does not either."""
        return _evaluate(self._root, columns)


def _check_size(terms: tuple[FilterTerm, ...]) -> None:
    values = [value for term in terms for value in term.all_values]
    size = sum(len(value) for value in values if isinstance(value, str | bytes))
    if len(terms) > TERMS_MAX or len(values) > VALUES_MAX or size > FILTER_BYTES_MAX:
        raise InvalidFilterError(
            f"a filter of {len(terms)} terms with {len(values)} values of {size} bytes; "
            f"{TERMS_MAX}, {VALUES_MAX} and {FILTER_BYTES_MAX} are the limits"
        )


def _tree_of(columns: Mapping[str, Column], terms: tuple[FilterTerm, ...]) -> Node:
    stack: list[tuple[int, Node]] = []
    for term in terms:
        if term.op in JOINING:
            (depth, one), (other_depth, other) = _popped(stack, 2)
            parts = (*_same_parts(term.op, one), *_same_parts(term.op, other))
            # One that goes on with the same joint is no deeper for it.
            depth -= _is_joint(term.op, one)
            other_depth -= _is_joint(term.op, other)
            stack.append((_deeper(max(depth, other_depth)), Joint(term.op, parts)))
        elif term.op is FilterOp.NOT:
            ((depth, one),) = _popped(stack, 1)
            stack.append((_deeper(depth), Joint(term.op, (one,))))
        else:
            stack.append((1, _comparison(columns, term)))
    if len(stack) != 1:
        raise InvalidFilterError(f"the filter's terms leave {len(stack)} results, not one")
    return stack[0][1]


def _popped(stack: list[tuple[int, Node]], count: int) -> list[tuple[int, Node]]:
    if len(stack) < count:
        raise InvalidFilterError("a joint of the filter has too few terms before it")
    found = stack[-count:]
    del stack[-count:]
    return found


def _is_joint(op: FilterOp, node: Node) -> bool:
    return isinstance(node, Joint) and node.op is op


def _same_parts(op: FilterOp, node: Node) -> tuple[Node, ...]:
    return node.parts if isinstance(node, Joint) and node.op is op else (node,)


def _deeper(depth: int) -> int:
    if depth >= DEPTH_MAX:
        raise InvalidFilterError(f"the filter nests deeper than {DEPTH_MAX}")
    return depth + 1


def _comparison(columns: Mapping[str, Column], term: FilterTerm) -> Comparison:
    column = columns.get(term.column)
    if column is None:
        raise InvalidFilterError(f"the table has no column {term.column!r}", column=term.column)
    values = term.all_values
    wanted = {FilterOp.IS_NULL: 0, FilterOp.IN: len(values)}.get(term.op, 1)
    if len(values) != wanted:
        raise InvalidFilterError(f"{len(values)} values for {term.op} of {column.name!r}")
    _check_type(column, term)
    if term.op is not FilterOp.IN and None in values:
        raise InvalidFilterError(
            f"column {column.name!r} is compared with null", column=term.column
        )
    return Comparison(term.op, column, tuple(_value(column, each) for each in values))


def _check_type(column: Column, term: FilterTerm) -> None:
    fits = True
    if term.op in MATCHING:
        fits = column.type in _TEXTS
    elif term.op in ORDERING:
        fits = column.type is not ColumnType.BOOL
    elif term.op is FilterOp.IN and column.type in _FLOATS:
        fits = len(term.all_values) <= FLOAT_VALUES_MAX
    if not fits:
        raise InvalidFilterError(
            f"{term.op} is nothing that can be asked of column {column.name!r} ({column.type})",
            column=column.name,
        )


def _value(column: Column, value: FilterValue | bytes) -> Any:
    """Return a value as a scalar of its column's type, None for null."""
    if value is None:
        return None
    if column.type in _FLOATS and value in _NOT_FINITE:
        value = float(value)
    types = _PYTHON.get(column.type, (int,))
    if isinstance(value, types) and isinstance(value, bool) == (column.type is ColumnType.BOOL):
        try:
            found = pa.scalar(_as_float(column, value), ARROW_TYPES[column.type])
        except (pa.ArrowException, OverflowError, ValueError):
            found = None
        # A number that a float of 32 bits cannot hold would become infinite.
        if found is not None and (value in _INFINITE or found.as_py() not in _INFINITE):
            return found
    raise InvalidFilterError(
        f"column {column.name!r} is {column.type}: it is compared with another type, or with a "
        "value that is out of its range",
        column=column.name,
    )


def _as_text(value: float) -> FilterValue:
    return value if math.isfinite(value) else str(value)


def _as_float(column: Column, value: Any) -> Any:
    return float(value) if column.type in _FLOATS else value


def _leaves(node: Node) -> Iterator[Comparison]:
    if isinstance(node, Comparison):
        yield node
        return
    for part in node.parts:
        yield from _leaves(part)


# --- evaluation: the depth is bounded by now -------------------------------------------------


def _evaluate(node: Node, columns: Mapping[str, Any]) -> Any:
    if isinstance(node, Comparison):
        return _compare(node, columns[node.column.name])
    parts = [_evaluate(part, columns) for part in node.parts]
    if node.op is FilterOp.NOT:
        return pc.invert(parts[0])
    joined = pc.and_kleene if node.op is FilterOp.AND else pc.or_kleene
    return functools.reduce(joined, parts)


def _compare(node: Comparison, array: Any) -> Any:
    if node.op is FilterOp.IS_NULL:
        return pc.is_null(array)
    if node.op is FilterOp.IN:
        return _is_in(node, array)
    (value,) = node.values
    if node.op in MATCHING:
        return _MATCHES[node.op](array, pattern=value.as_py())
    if node.column.type in _FLOATS:
        return _compare_floats(node.op, array, value)
    return _COMPARES[node.op](array, value)


_COMPARES: Final = {
    FilterOp.EQUAL: pc.equal,
    FilterOp.LESS: pc.less,
    FilterOp.LESS_OR_EQUAL: pc.less_equal,
    FilterOp.GREATER: pc.greater,
    FilterOp.GREATER_OR_EQUAL: pc.greater_equal,
}
_MATCHES: Final = {
    FilterOp.STARTS_WITH: pc.starts_with,
    FilterOp.ENDS_WITH: pc.ends_with,
    FilterOp.CONTAINS: pc.match_substring,
}


def _compare_floats(op: FilterOp, array: Any, value: Any) -> Any:
    """Compare with NaN equal to itself and above all others; Arrow finds every such one false."""
    is_nan = pc.is_nan(array)
    if not math.isnan(value.as_py()):
        found = _COMPARES[op](array, value)
        above = op in (FilterOp.GREATER, FilterOp.GREATER_OR_EQUAL)
        return pc.or_kleene(found, is_nan) if above else found
    if op in (FilterOp.EQUAL, FilterOp.GREATER_OR_EQUAL):
        return is_nan
    if op is FilterOp.LESS:
        return pc.invert(is_nan)
    known = pc.or_kleene(is_nan, pc.invert(is_nan))
    return known if op is FilterOp.LESS_OR_EQUAL else pc.invert(known)


def _is_in(node: Comparison, array: Any) -> Any:
    values = [value for value in node.values if value is not None]
    null = pa.scalar(None, pa.bool_())
    if node.column.type in _FLOATS:
        found = pc.and_kleene(pc.is_null(array), null)
        for value in values:
            found = pc.or_kleene(found, _compare_floats(FilterOp.EQUAL, array, value))
    else:
        arrow_type = ARROW_TYPES[node.column.type]
        wanted = pa.array([value.as_py() for value in values], arrow_type)
        found = pc.if_else(pc.is_valid(array), pc.is_in(array, value_set=wanted), null)
    # Among values with a null those that are not found may be equal to it.
    return found if len(values) == len(node.values) else pc.or_kleene(found, null)
