"""Spark's filters as those that data nodes evaluate; what they cannot is left to Spark."""

from collections.abc import Sequence
from typing import Any

from pyspark.sql import datasource as spark

from rezone.client import Filter, col
from rezone.wire.codec.filters import RowFilter
from rezone.wire.codec.schema import TableSchema
from rezone.wire.errors import InvalidFilterError

_COMPARED: dict[type[Any], str] = {
    spark.EqualTo: "__eq__",
    spark.LessThan: "__lt__",
    spark.LessThanOrEqual: "__le__",
    spark.GreaterThan: "__gt__",
    spark.GreaterThanOrEqual: "__ge__",
    spark.In: "is_in",
    spark.StringStartsWith: "starts_with",
    spark.StringEndsWith: "ends_with",
    spark.StringContains: "contains",
}


def pushed_down(
    table: TableSchema, filters: Sequence[Any], before: Filter | None
) -> tuple[Filter | None, list[Any]]:
    """Return the filter of all that data nodes can evaluate, and what is left to Spark.

    `before` is already asked for. Each part is exact, so Spark need not look at it again.
    """
    found, rest = before, []
    for each in filters:
        try:
            one = _translated(each)
            joined = one if found is None else found & one
            RowFilter(table, joined.terms)
        except (InvalidFilterError, ValueError):  # another type, too many values, a nested column
            rest.append(each)
        else:
            found = joined
    return found, rest


def _translated(found: Any) -> Filter:
    """Return a filter of Spark's; ValueError for one that has no like."""
    if isinstance(found, spark.Not):
        return ~_translated(found.child)
    if len(found.attribute) != 1:
        raise ValueError("a zone's columns are not nested")
    column = col(found.attribute[0])
    if isinstance(found, spark.IsNull):
        nulls: Filter = column.is_null()
        return nulls
    there: Filter = ~column.is_null()
    if isinstance(found, spark.IsNotNull):
        return there
    if isinstance(found, spark.EqualNullSafe):
        return there & (column == found.value) if found.value is not None else ~there
    if type(found) not in _COMPARED:
        raise ValueError(f"{type(found).__name__} has no like")
    compared: Filter = getattr(column, _COMPARED[type(found)])(found.value)
    return compared
