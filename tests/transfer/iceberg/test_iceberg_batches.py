"""Micro-batches in Iceberg tables without Spark: tasks run in this process, and drivers die."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from iceberg_kit import lake, rows_of, table_of

pytest.importorskip("pyiceberg")
pytest.importorskip("pyspark.sql")

from rezone.transfer.iceberg import changes, tables

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(120)]
CURRENT, LOG = "lake.shop.orders", "lake.shop.order_changes"


@dataclasses.dataclass
class Frame:
    """What of a DataFrame is used; each list of batches is a task's."""

    tasks: list[list[Any]]
    query: str = "query"

    @property
    def schema(self) -> Any:
        """Return Spark's schema."""
        from pyspark.sql.types import LongType, StringType, StructField, StructType  # noqa: PLC0415  # noqa: PLC0415

        key = StructField("id", LongType(), nullable=False)
        operation = StructField("_operation", StringType(), nullable=False)
        time = StructField("_commit_time", LongType(), nullable=False)
        return StructType([key, StructField("value", StringType()), operation, time])

    @property
    def sparkSession(self) -> Frame:  # noqa: N802 - Spark's
        """Stand for the session, too."""
        return self

    sparkContext = sparkSession  # noqa: N815 - Spark's

    def getLocalProperty(self, _: str) -> str:  # noqa: N802 - Spark's
        """Return the query's id."""
        return self.query

    def createDataFrame(self, found: list[tuple[str]], _: str) -> Frame:  # noqa: N802 - Spark's
        """Return a task for each path."""
        return Frame([[pa.RecordBatch.from_pydict({"old": [path]})] for (path,) in found])

    def repartition(self, _: int) -> Frame:
        """Stand for itself."""
        return self

    def mapInArrow(self, function: Callable[..., Iterator[Any]], _: str) -> Frame:  # noqa: N802
        """Run all tasks, the first one twice, as where it failed behind its file."""
        list(function(iter(self.tasks[0])))
        return Frame([list(function(iter(batches))) for batches in self.tasks])

    def collect(self) -> list[dict[str, Any]]:
        """Return all rows."""
        return [row for batches in self.tasks for batch in batches for row in batch.to_pylist()]


class FrameWithOld(Frame):
    """A frame of changes that tell the row before them."""

    @property
    def schema(self) -> Any:
        """Return Spark's schema."""
        from pyspark.sql.types import StructType  # noqa: PLC0415

        return StructType([*super().schema.fields]).add(
            "_old", StructType(super().schema.fields[:2])
        )


def task(*found: tuple[int, str | None]) -> list[Any]:
    """Return a task's changes, in batches of one; without a value it is a deletion."""
    return [
        pa.RecordBatch.from_pylist(
            [{"id": n, "value": v, "_operation": "upsert" if v else "delete", "_commit_time": 7}],
            schema=pa.schema(
                [
                    pa.field("id", pa.int64(), nullable=False),
                    pa.field("value", pa.string()),
                    pa.field("_operation", pa.string(), nullable=False),
                    pa.field("_commit_time", pa.int64(), nullable=False),
                ]
            ),
        )
        for n, v in found
    ]


@pytest.fixture(autouse=True)
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Configure a catalog, and wait for nobody."""
    lake(tmp_path / "lake", monkeypatch)
    monkeypatch.setattr(tables, "PAUSE_SECONDS", 0)


def current() -> dict[int, str]:
    """Return the values of the table's rows by id."""
    return {row["id"]: row["value"] for row in rows_of(CURRENT)}


@pytest.mark.proves("SP-03")
def test_the_last_change_of_each_key_counts_and_a_repeat_does_not() -> None:
    """A merged table has the newest state of each key; a batch that comes again changes nothing.

    Applied by operation and not in order, a row that was deleted and written again would be gone.
    """
    merge: Any = changes.merge_changes(CURRENT, key=["id"])
    merge(Frame([task((1, "a"), (2, "a"), (1, "b")), task((9, "a"), (8, "a"))]), 0)
    assert current() == {1: "b", 2: "a", 8: "a", 9: "a"}
    later = Frame([task((2, None), (1, None), (1, "c"), (3, "a"), (3, None)), task((8, "b"))])
    for _ in range(2):
        merge(later, 1)
        merge(Frame([task((1, "old"))]), 0)
    assert current() == {1: "c", 8: "b", 9: "a"}
    assert len(table_of(CURRENT).snapshots()) == 2
    merge(Frame([task((1, None), (8, None), (9, None))]), 2)
    assert current() == {}
    merge(Frame([task((1, "other query"))], "another"), 0)
    assert current() == {1: "other query"}
    with pytest.raises(ValueError, match="two tasks have changes of one key"):
        merge(Frame([task((1, "a")), task((1, "b"))]), 3)


@pytest.mark.proves("SP-03")
def test_rows_before_changes_are_no_column_of_merged_rows() -> None:
    """A table that is kept as the zone is would have what rows were, beside what they are."""
    columns = task((1, "a"))[0].schema
    old = pa.field("_old", pa.struct([columns.field("id"), columns.field("value")]))
    found = [{"id": 1, "value": "b", "_operation": "upsert", "_commit_time": 7, "_old": {"id": 1}}]
    batch = pa.RecordBatch.from_pylist(found, schema=columns.append(old))
    merge: Any = changes.merge_changes(CURRENT, key=["id"])
    merge(FrameWithOld([[batch]]), 0)
    assert current() == {1: "b"}
    assert [field.name for field in table_of(CURRENT).schema().fields] == ["id", "value"]


@pytest.mark.proves("SP-03")
def test_of_two_drivers_with_one_batch_one_appends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change is a row once, also where another driver commits the batch while this one does.

    Retries that do not look whether the commit is made append the batch a second time.
    """
    append: Any = changes.append_changes(LOG)
    frame = Frame([task((1, "a"), (1, None)), task((2, "a"))])
    read, others = tables.data_files, [0]

    def behind_another(*given: Any) -> list[Any]:
        found = read(*given)
        if others:
            append(frame, others.pop())
        return found

    monkeypatch.setattr(changes, "data_files", behind_another)
    append(frame, 0)
    append(frame, 0)
    found = [(row["id"], row["_operation"]) for row in rows_of(LOG)]
    assert sorted(found) == [(1, "delete"), (1, "upsert"), (2, "upsert")]
    assert len(table_of(LOG).snapshots()) == 1
