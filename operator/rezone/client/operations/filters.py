"""Filters as users write them: `(col("amount") > 10) & col("owner").starts_with("a")`.

`&`, `|` and `~` join them. A comparison with a null is neither true nor false, as in SQL.
"""

import datetime as dt
from collections.abc import Iterable
from typing import Any

from rezone.wire.codec.filters import JOINING, FilterOp, FilterTerm, FilterTerms, FilterValue

WRITTEN_VALUES_MAX = 10
_WRITTEN = {
    FilterOp.EQUAL: "=",
    FilterOp.LESS: "<",
    FilterOp.LESS_OR_EQUAL: "<=",
    FilterOp.GREATER: ">",
    FilterOp.GREATER_OR_EQUAL: ">=",
    FilterOp.STARTS_WITH: "STARTS WITH",
    FilterOp.ENDS_WITH: "ENDS WITH",
}
_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - zone times are UTC without a zone
_MICROSECOND = dt.timedelta(microseconds=1)


class Filter:
    """A filter of rows; made by `col`. `terms` is what is sent."""

    def __init__(self, terms: tuple[FilterTerm, ...]) -> None:
        self.terms = terms

    def __and__(self, other: "Filter") -> "Filter":
        return Filter((*self.terms, *other.terms, FilterTerm(FilterOp.AND)))

    def __or__(self, other: "Filter") -> "Filter":
        return Filter((*self.terms, *other.terms, FilterTerm(FilterOp.OR)))

    def __invert__(self) -> "Filter":
        return Filter((*self.terms, FilterTerm(FilterOp.NOT)))

    def __str__(self) -> str:
        return written(self.terms)

    def __bool__(self) -> bool:
        raise TypeError("join filters by &, | and ~, not by and, or, not or a chain like a < b < c")


class Col:
    """A column in a filter; compare it by ==, !=, <, <=, >, >=, or by a method.

    Values are Python's: whole numbers, floats, texts, bytes, booleans, dates, and times, which are
    UTC where they have no zone.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, name: str) -> None:
        self._name = name

    def _term(self, op: FilterOp, *values: Any) -> Filter:
        return Filter((FilterTerm.of(op, self._name, map(wire_value, values)),))

    def __eq__(self, value: object) -> Filter:  # type: ignore[override]
        return self._term(FilterOp.EQUAL, value)

    def __ne__(self, value: object) -> Filter:  # type: ignore[override]
        return ~self._term(FilterOp.EQUAL, value)

    def __lt__(self, value: Any) -> Filter:
        return self._term(FilterOp.LESS, value)

    def __le__(self, value: Any) -> Filter:
        return self._term(FilterOp.LESS_OR_EQUAL, value)

    def __gt__(self, value: Any) -> Filter:
        return self._term(FilterOp.GREATER, value)

    def __ge__(self, value: Any) -> Filter:
        return self._term(FilterOp.GREATER_OR_EQUAL, value)

    def is_in(self, values: Iterable[Any]) -> Filter:
        """Whether the value is one of these."""
        return self._term(FilterOp.IN, *values)

    def is_null(self) -> Filter:
        """Whether there is no value."""
        return self._term(FilterOp.IS_NULL)

    def starts_with(self, beginning: str | bytes) -> Filter:
        """Whether a text or binary begins so."""
        return self._term(FilterOp.STARTS_WITH, beginning)

    def ends_with(self, end: str | bytes) -> Filter:
        """Whether a text or binary ends so."""
        return self._term(FilterOp.ENDS_WITH, end)

    def contains(self, part: str | bytes) -> Filter:
        """Whether a text or binary has this in it."""
        return self._term(FilterOp.CONTAINS, part)


def col(name: str) -> Col:
    """Return a column of the table, to be compared."""
    return Col(name)


def written(terms: FilterTerms) -> str:
    """Return terms as a person writes them, in brackets where something is joined.

    Values are as they are sent: a date is a number of days.
    """
    stack: list[str] = []
    for term in terms:
        if term.op is FilterOp.NOT:
            stack.append(f"NOT {stack.pop()}")
        elif term.op in JOINING:
            right, left = stack.pop(), stack.pop()
            stack.append(f"({left} {term.op.upper()} {right})")
        elif term.op is FilterOp.IS_NULL:
            stack.append(f"{term.column} IS NULL")
        else:
            said = ", ".join(map(repr, term.all_values[:WRITTEN_VALUES_MAX]))
            more = ", ..." if len(term.all_values) > WRITTEN_VALUES_MAX else ""
            listed = f"({said}{more})" if term.op is FilterOp.IN else said
            stack.append(f"{term.column} {_WRITTEN.get(term.op, term.op.upper())} {listed}")
    return " ".join(stack)


def wire_value(value: Any) -> FilterValue | bytes:
    """Return a Python value as terms carry it; ValueError for one of another type."""
    if isinstance(value, dt.datetime):
        if value.tzinfo is not None:
            value = value.astimezone(dt.UTC).replace(tzinfo=None)
        return int((value - _EPOCH) // _MICROSECOND)
    if isinstance(value, dt.date):
        return (value - _EPOCH.date()).days
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if value is None or isinstance(value, bool | int | float | str | bytes):
        known: FilterValue | bytes = value
        return known
    raise ValueError(f"{type(value).__name__} is not a type that a column can be compared with")
