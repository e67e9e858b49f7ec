"""The load job on real data nodes, its units run in this process, each twice."""

import argparse
import datetime as dt
import functools
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bulk_kit import DiedError, Here, attempt, client, load_arguments
from replica_cluster import FAST, Coordinator, ProcessNode, cluster

from rezone.transfer.bulk import job, parquet, sorting
from rezone.transfer.load_job import load
from rezone.transfer.sink.submitting import SequencedRows
from rezone.wire.codec.encoded_rows import encoded_rows
from rezone.wire.codec.rows import RowCodec
from rezone.wire.codec.schema import Column, ColumnType, TableSchema
from rezone.wire.messages import ZoneConfig

pytestmark = pytest.mark.timeout(120)
TABLE = TableSchema(
    columns=(
        Column("id", ColumnType.INT32),
        Column("text", ColumnType.STRING),
        Column("seen", ColumnType.TIMESTAMP_US, nullable=False),
    ),
    primary_key=("id",),
)
CONFIG = ZoneConfig(zone="orders", zone_uid="u", partitions=3, table=TABLE)
SEEN = dt.datetime(2026, 11, 24, 12)  # noqa: DTZ001 - the zone's times have no zone
loaded = functools.partial(attempt, load)


@pytest.fixture
def zone(tmp_path: Path) -> Iterator[Coordinator]:
    """Yield a node that leads three partitions."""
    with cluster(tmp_path / "nodes", 1, config=CONFIG, settings=FAST) as nodes:
        for partition in range(3):
            nodes.create(partition, (0,))
        yield nodes


def given(zone: Coordinator, directory: Path, **more: Any) -> argparse.Namespace:
    """Return arguments of a load of the directory's Parquet files."""
    return load_arguments(zone, directory, **{"parquet": str(directory / "in"), **more})


def rows(first: int, last: int) -> list[dict[str, Any]]:
    """Return rows of these ids."""
    return [{"id": n, "text": f"text {n}", "seen": SEEN} for n in range(first, last)]


def put(path: Path, found: list[dict[str, Any]], **options: Any) -> None:
    """Write a Parquet file, whose ids are wider than the zone's."""
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(found), path, **options)


def offsets(zone: Coordinator) -> int:
    """Return how many entries the logs have: each write adds some."""
    return sum(zone.report(0, partition).log_end_offset for partition in range(3))


@pytest.mark.proves("SP-06")
def test_a_load_that_dies_anywhere_writes_each_row_once(
    zone: Coordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second write of a row undoes what others have written to it since."""
    monkeypatch.setattr(parquet, "UNIT_BYTES", 1)  # each row group by itself
    put(tmp_path / "in" / "a.parquet", rows(0, 1000), row_group_size=250)
    put(tmp_path / "in" / "b.parquet", rows(1000, 2000), row_group_size=500)
    arguments = given(zone, tmp_path)
    with pytest.raises(DiedError):
        load(arguments, Here(dies_after=2))
    with client(zone) as table:
        assert sorted(table.scan()["id"].to_pylist()) == list(range(500))
        table.write([{"id": 3, "text": "later", "seen": SEEN}])
        # The driver died before it knew of the second unit: its note is gone, its rows are there.
        note = sorted((tmp_path / "state").glob("*/unit-*.json"))[1]
        note.unlink()
        before = offsets(zone)
        run = Here(dies_after=1)
        with pytest.raises(DiedError):
            load(arguments, run)
        assert offsets(zone) == before, "rows that were there were written again"
        run = Here()
        code, said = loaded(arguments, run)
        assert (code, said["rows"], said["units"], said["unitsBefore"]) == (0, 2000, 6, 2)
        assert run.ran[0][1] == 4
        found = {row["id"]: row["text"] for row in table.scan().to_pylist()}
        assert found.pop(3) == "later"
        assert found == {n: f"text {n}" for n in range(2000) if n != 3}
        before = offsets(zone)
        code, said = loaded(arguments)
        assert (code, said["rows"], said["unitsBefore"]) == (0, 2000, 6)
        assert offsets(zone) == before
        code, said = loaded(given(zone, tmp_path, name="again"))
        assert (code, said["unitsBefore"]) == (0, 0)
        assert (table.get(3) or {})["text"] == "text 3"


@pytest.mark.proves("SP-06")
def test_rows_that_do_not_fit_are_told_by_file_and_row(zone: Coordinator, tmp_path: Path) -> None:
    """One bad row of a night's million would stop all, or be missed by nobody until it is."""
    found = rows(0, 5000)
    found[17]["id"] = 1 << 40
    found[4000]["seen"] = None
    found[4999]["text"] = "x" * (2 << 20)
    put(tmp_path / "in" / "day.parquet", found)
    code, said = loaded(given(zone, tmp_path))
    assert (code, said["rows"], said["refusedRows"]) == (1, 4997, 3)
    told = {each["row"]: each["reason"] for each in said["refused"]}
    assert list(told) == [18, 4001, 5000]
    assert "id" in told[18]
    assert told[4001] == "column 'seen' is null, but is not nullable"
    assert told[5000].startswith("the value of has") or "the limit is" in told[5000]
    assert {each["file"] for each in said["refused"]} == {"day.parquet"}
    with client(zone) as table:
        assert len(table.scan(columns=["id"])) == 4997
    code, said = loaded(given(zone, tmp_path, name="strict", refused_max=2))
    assert code == job.FAILED
    assert "day.parquet has more than 2 rows" in said["error"]


def test_csv_is_read_as_text_and_columns_must_fit(zone: Coordinator, tmp_path: Path) -> None:
    """A guess of types turns 007 into 7, and a column that is left out is null in all rows."""
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "x.csv"
    path.write_text(
        "text,seen,id\n007,2026-11-24 12:00:00,1\n,2026-11-24 12:00:00,2\n"
        '"",2026-11-24 12:00:00,3\nx,yesterday,4\n'
    )
    arguments = given(zone, tmp_path, parquet=None, csv=str(tmp_path / "in"))
    code, said = loaded(arguments)
    assert (code, said["rows"]) == (1, 3)
    assert [(each["file"], each["row"]) for each in said["refused"]] == [("x.csv", 4)]
    with client(zone) as table:
        found = {row["id"]: (row["text"], row["seen"]) for row in table.scan().to_pylist()}
    assert found == {1: ("007", SEEN), 2: (None, SEEN), 3: ("", SEEN)}
    path.write_text("id,txt\n1,x\n")
    os.utime(path, ns=(1, 1))
    code, said = loaded(arguments)
    assert code == job.FAILED
    assert "missing ['text', 'seen'], unknown ['txt']" in said["error"]
    path.write_text("text,seen,id\n1,2\n")
    code, said = loaded(given(zone, tmp_path, parquet=None, csv=str(path)))
    assert code == job.FAILED
    code, said = loaded(given(zone, tmp_path, parquet=str(tmp_path / "none")))
    assert code == job.FAILED
    assert "no file whose name ends with .parquet" in said["error"]


def put_runs(directory: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Write a file that is one unit of eight batches, each a run."""
    monkeypatch.setattr(parquet, "ROWS_PER_BATCH", count // 8)
    monkeypatch.setattr(sorting, "RUN_BYTES", 1)
    put(directory / "in" / "a.parquet", rows(0, count))


def behind_runs(monkeypatch: pytest.MonkeyPatch, happens: dict[int, Callable[[], Any]]) -> None:
    """Have something happen once so many runs are written."""
    written = itertools.count(1)
    write = SequencedRows.write

    def writing(rows: SequencedRows, run: Any) -> None:
        write(rows, run)
        happens.get(next(written), lambda: None)()

    monkeypatch.setattr(SequencedRows, "write", writing)


def died() -> None:
    """Die, as a task does."""
    raise DiedError


@pytest.mark.proves("SP-06")
def test_a_load_goes_on_over_leader_transfers_and_killed_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row is in the logs once, and all replicas have the same rows.

    Its task dies behind five runs, and its repeat finds them at leaders that did not write them.
    """
    put_runs(tmp_path, monkeypatch, 40_000)
    with cluster(tmp_path / "nodes", 3, processes=True, config=CONFIG) as zone:
        for partition in range(3):
            zone.create(partition, tuple((partition + n) % 3 for n in range(3)))

        def restart() -> None:
            node = zone.nodes[2]
            assert isinstance(node, ProcessNode)
            node.kill()
            node.start()
            zone.wait_up(2)

        def move() -> None:
            zone.move(0, 1)

        behind_runs(monkeypatch, {2: move, 4: restart, 5: died})
        arguments = given(zone, tmp_path)
        code, said = attempt(load, arguments)
        assert (code, "DiedError" in said["error"]) == (job.FAILED, True)
        code, said = attempt(load, arguments)
        assert (code, said["rows"]) == (0, 40_000)
        with client(zone) as table:
            assert table.scan(columns=["id"]).num_rows == 40_000
        ends = [zone.report(zone.records[p].leader, p).log_end_offset for p in range(3)]
        assert sum(ends) == 40_000, "a row was written a second time"
        for partition in range(3):
            digests = zone.digests(partition)
            assert len({(each.rows, each.digests) for each in digests.values()}) == 1


def test_runs_are_in_the_order_of_hashes_and_keep_the_last_row_of_a_key() -> None:
    """Rows out of order cost three times as much; the wrong one of two rows would be visible."""
    codec = RowCodec(TABLE)
    found = [*rows(0, 5000), *({**row, "text": "later"} for row in rows(0, 10))]
    batch = pa.RecordBatch.from_pylist(found, schema=codec.arrow_schema)
    (run,) = sorting.runs(codec, [batch.slice(0, 100), batch.slice(100)])
    hashes = encoded_rows(codec, run).hashes()
    assert (hashes[1:] >= hashes[:-1]).all()
    last = {row["id"]: row["text"] for row in run.to_pylist()}
    assert last == {row["id"]: row["text"] for row in found}
