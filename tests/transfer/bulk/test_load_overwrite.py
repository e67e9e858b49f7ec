"""A load that replaces all rows of a zone, on real data nodes, its units run in this process."""

from __future__ import annotations

import argparse
import functools
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bulk_kit import DiedError, Here, attempt, client, load_arguments
from overwriting_kit import OverwritingOperator
from replica_cluster import FAST, Coordinator, cluster

from rezone.transfer.bulk import job
from rezone.transfer.copying.overwriting import Overwriting
from rezone.transfer.load_job import load
from rezone.wire.codec.schema import Column, ColumnType, TableSchema
from rezone.wire.messages import ZoneConfig

pytestmark = [pytest.mark.timeout(180), pytest.mark.proves("SP-05", "SP-06")]
TABLE = TableSchema(
    columns=(Column("id", ColumnType.INT32), Column("text", ColumnType.STRING)),
    primary_key=("id",),
)
CONFIG = ZoneConfig(zone="orders", zone_uid="u", partitions=2, table=TABLE)
OLD = [{"id": n, "text": f"old {n}"} for n in range(90)]
loaded = functools.partial(attempt, load)


@pytest.fixture
def zone(tmp_path: Path) -> Iterator[Coordinator]:
    """Yield a zone of one node with old rows."""
    with cluster(tmp_path / "nodes", 1, config=CONFIG, settings=FAST) as nodes:
        for partition in range(2):
            nodes.create(partition, (0,))
        nodes.watch()
        with client(nodes) as table:
            table.write(OLD)
        yield nodes


def given(zone: Coordinator, directory: Path, **more: Any) -> argparse.Namespace:
    """Return arguments of a load that overwrites the zone."""
    asked = {"parquet": str(directory / "in"), "overwrite": True, **more}
    return load_arguments(zone, directory, **asked)


def rows(first: int, last: int) -> list[dict[str, Any]]:
    """Return new rows of these ids."""
    return [{"id": n, "text": f"new {n}"} for n in range(first, last)]


def put(path: Path, found: list[dict[str, Any]]) -> None:
    """Write a Parquet file."""
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(found), path)


def content(zone: Coordinator) -> list[dict[str, Any]]:
    """Return all rows of the zone."""
    with client(zone) as table:
        found: list[dict[str, Any]] = table.scan().sort_by("id").to_pylist()
    return found


def staged(directory: Path) -> list[str]:
    """Return the names of staged files that are left."""
    return [path.name for path in directory.rglob("*.run*")]


def test_the_rows_of_a_load_become_all_rows_of_the_zone(zone: Coordinator, tmp_path: Path) -> None:
    """Rows that the files no longer have would stay, or a repeat bring back what was written over.

    Of a unit that ran twice only one attempt counts.
    """
    put(tmp_path / "in" / "a.parquet", rows(0, 40))
    put(tmp_path / "in" / "b.parquet", rows(40, 60))
    with OverwritingOperator(zone) as operator:
        code, said = loaded(given(zone, tmp_path))
        assert (code, said["overwritten"], said["rows"], said["files"]) == (0, True, 60, 2), said
        assert content(zone) == rows(0, 60)
        with client(zone) as table:
            table.write([{"id": 1, "text": "others"}])
        again = Here()
        code, said = loaded(given(zone, tmp_path), again)
        assert (code, said["rows"], said["unitsBefore"], again.ran) == (0, 60, 2, [])
        assert content(zone)[1]["text"] == "others"
        put(tmp_path / "in" / "b.parquet", rows(40, 50))
        assert loaded(given(zone, tmp_path))[0] == 0, "other files are another load"
        assert content(zone) == rows(0, 50)
        put(tmp_path / "in" / "a.parquet", rows(0, 1))
        loaded(given(zone, tmp_path, parquet=str(tmp_path / "in" / "a.parquet"), name="x"))
        assert content(zone) == rows(0, 1)
    assert len(operator.asked) == 3
    assert staged(tmp_path) == []


def test_a_driver_that_dies_is_finished_by_the_same_command(
    zone: Coordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A zone would be left between two sets of rows, or the job could not be run again."""
    put(tmp_path / "in" / "a.parquet", rows(0, 40))
    put(tmp_path / "in" / "b.parquet", rows(40, 60))
    with OverwritingOperator(zone) as operator:
        code, said = loaded(given(zone, tmp_path), Here(dies_after=1))
        assert (code, said["error"][:9]) == (job.FAILED, "DiedError")
        assert (operator.asked, content(zone), staged(tmp_path)) == ([], OLD, [])

        def dies(*_: object) -> None:
            raise DiedError

        with monkeypatch.context() as patch:
            patch.setattr(Overwriting, "run", dies)
            assert loaded(given(zone, tmp_path))[0] == job.FAILED
        assert content(zone) == OLD
        assert loaded(given(zone, tmp_path))[0] == 0
        assert content(zone) == rows(0, 60)
    assert len(operator.asked) == 1


def test_a_row_that_does_not_fit_leaves_the_zone_as_it_is(
    zone: Coordinator, tmp_path: Path
) -> None:
    """Its row of before would be gone, and nothing be in its place."""
    bad = rows(0, 40)
    bad[7]["id"] = 1 << 40
    put(tmp_path / "in" / "a.parquet", bad)
    with OverwritingOperator(zone) as operator:
        code, said = loaded(given(zone, tmp_path))
        assert (code, said["overwritten"], said["refusedRows"]) == (1, False, 1)
        assert [(each["file"], each["row"]) for each in said["refused"]] == [("a.parquet", 8)]
        put(tmp_path / "in" / "b.parquet", [*rows(0, 1), *rows(0, 1)])
        one = str(tmp_path / "in" / "b.parquet")
        code, said = loaded(given(zone, tmp_path, parquet=one))
        assert code == job.FAILED
        assert "one key" in said["error"]
    assert (operator.asked, content(zone), staged(tmp_path)) == ([], OLD, [])


def test_of_a_load_that_was_cancelled_nothing_is_left(zone: Coordinator, tmp_path: Path) -> None:
    """What its dead drivers have staged would stay: no other load looks there."""
    put(tmp_path / "in" / "a.parquet", rows(0, 40))
    with OverwritingOperator(zone) as operator:
        operator.go_on.clear()
        with ThreadPoolExecutor(1) as pool:
            ended = pool.submit(loaded, given(zone, tmp_path))
            assert operator.begun.wait(60)
            (job_of_it,) = (tmp_path / "state").glob("overwrite-*/rows/*")
            shutil.copytree(job_of_it, job_of_it.with_name("of-a-killed-driver"))
            operator.cancel.set()
            code, said = ended.result()
        assert (code, "give another" in said["error"]) == (job.FAILED, True), said
        assert (content(zone), staged(tmp_path)) == (OLD, [])
        shutil.copytree(tmp_path / "in", job_of_it)  # of one that was killed before it heard of it
        assert loaded(given(zone, tmp_path))[0] == job.FAILED
        assert not job_of_it.exists()
        operator.go_on.set()
        assert loaded(given(zone, tmp_path, name="another"))[0] == 0
    assert content(zone) == rows(0, 40)
    assert len(operator.asked) == 2
