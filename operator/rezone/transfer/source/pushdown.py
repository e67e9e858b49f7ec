"""Spark's filters as those that data nodes evaluate; what they cannot is left to Spark.

And what was pushed down, said: Spark's plan has a Python source's filters and columns alone.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import DataFrame
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


class PushedDown(NamedTuple):
    """What a read asks of data nodes, as each of its tasks is told.

    `partitions` of all that the zone has may have rows; `found_by` says how they are found there.
    """

    zone: str
    partitions: int
    of_partitions: int
    found_by: str
    filter: str
    columns: tuple[str, ...]
    limit: int | None
    as_of: int | None

    def __str__(self) -> str:
        return (
            f"zone {self.zone}: partitions {self.partitions} of {self.of_partitions}, "
            f"rows by {self.found_by}\n"
            f"    filter: {self.filter or 'none'}\n"
            f"    columns: {', '.join(self.columns)}\n"
            f"    limit: {'none' if self.limit is None else self.limit}\n"
            f"    as of: {self.as_of or 'the newest commit of each partition'}"
        )


def scans_of(frame: DataFrame, source: str) -> Iterator[PushedDown]:
    """Yield what each scan of a source in a DataFrame's plan has pushed down.

    Scans are planned for it, which asks the data nodes for routes. Raises ValueError over Spark
    Connect, whose client has no plan.
    """
    if not hasattr(frame, "_jdf"):
        raise ValueError("over Spark Connect the plan is at the server: call explain there")
    leaves = frame._jdf.queryExecution().sparkPlan().collectLeaves()  # noqa: SLF001 - no other way
    for at in range(leaves.size()):
        leaf = leaves.apply(at)
        if leaf.getClass().getSimpleName() == "BatchScanExec" and leaf.table().name() == source:
            for part in leaf.scan().toBatch().planInputPartitions():
                found = CloudPickleSerializer().loads(bytes(part.pickedPartition()))
                yield found.value.pushed
                break


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
