"""Verify and export jobs on real data nodes, their units run in this process, each twice."""

import argparse
import functools
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bulk_kit import DiedError, Here, attempt, client
from replica_cluster import FAST, Coordinator, ProcessNode, cluster

from rezone.transfer.bulk import comparing, job
from rezone.transfer.bulk.directory import Directory
from rezone.transfer.bulk.exported import PLAN
from rezone.transfer.bulk.progress import Phase
from rezone.transfer.export_job import export, grouped
from rezone.transfer.verify_job import verify
from rezone.wire.codec.rows import RowCodec
from rezone.wire.codec.schema import Column, ColumnType, TableSchema
from rezone.wire.messages import ZoneConfig

pytestmark = pytest.mark.timeout(120)
TABLE = TableSchema(
    columns=(
        Column("id", ColumnType.INT64),
        Column("day", ColumnType.DATE32),
        Column("text", ColumnType.STRING),
        Column("amount", ColumnType.FLOAT64),
    ),
    primary_key=("id", "day"),
)
ROWS = 3000


def zone_of(name: str, partitions: int) -> ZoneConfig:
    """Return the config of a zone with the table."""
    return ZoneConfig(zone=name, zone_uid=f"uid-{name}", partitions=partitions, table=TABLE)


def rows(first: int, last: int, text: str = "old") -> list[dict[str, Any]]:
    """Return rows of these ids."""
    import datetime as dt  # noqa: PLC0415

    day = dt.date(2026, 11, 24)
    return [
        {"id": n, "day": day, "text": None if n % 7 == 0 else f"{text}{n}", "amount": n / 4}
        for n in range(first, last)
    ]


@pytest.fixture(scope="module")
def zones(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Coordinator, Coordinator]]:
    """Yield a zone of three partitions on two nodes, and one of two on one node."""
    directory = tmp_path_factory.mktemp("zones")
    with (
        cluster(directory / "a", 2, config=zone_of("orders", 3), settings=FAST) as first,
        cluster(directory / "b", 1, config=zone_of("copy", 2), settings=FAST) as other,
    ):
        for partition in range(3):
            first.create(partition, (partition % 2, 1 - partition % 2))
        for partition in range(2):
            other.create(partition, (0,))
        yield first, other


def fill(zone: Coordinator, found: list[dict[str, Any]]) -> None:
    """Let a zone have these rows and no others."""
    with client(zone) as table:
        keys = table.scan(columns=["id", "day"]).to_pylist()
        if keys:
            table.delete(keys)
        table.write(found)


def given(zone: Coordinator, **more: Any) -> argparse.Namespace:
    """Return arguments of a job."""
    names = "zone tls_directory as_of save with_digests with_parquet with_zone with_bootstrap"
    empty = dict.fromkeys(
        f"{names} replicas with_tls_directory with_as_of parts to iceberg".split()
    )
    return argparse.Namespace(
        **{**empty, "bootstrap": ",".join(zone.peers.values()), "ranges": 64, "tasks": 4, **more}
    )


verified = functools.partial(attempt, verify)
exported = functools.partial(attempt, export)


@pytest.mark.proves("SP-07")
def test_two_zones_are_compared_to_the_row(zones: tuple[Coordinator, Coordinator]) -> None:
    """A zone that has lost, kept or changed one row of thousands would pass for a good copy."""
    first, other = zones
    fill(first, rows(0, ROWS))
    fill(other, rows(0, ROWS))
    against = {"with_bootstrap": other.nodes[0].address, "with_zone": "copy"}
    code, said = verified(given(first, **against))
    assert (code, said["equal"], said["first"]["rows"]) == (0, True, ROWS)
    assert said["first"]["digest"] == said["other"]["digest"]
    with client(other) as table:
        key = rows(5, 6)[0]
        table.delete([{"id": key["id"], "day": key["day"]}])
        table.write(rows(ROWS, ROWS + 1))
        table.write(rows(77, 79, "new"))  # the text of 77 is null in both
    code, said = verified(given(first, **against))
    assert (code, said["equal"]) == (1, False)
    found = {row["key"]["id"]: row["is"] for row in said["differences"]}
    assert found == {5: comparing.FIRST, ROWS: comparing.OTHER, 78: comparing.CHANGED}
    assert said["differences"][0]["key"]["day"] == "2026-11-24"
    assert said["differingRanges"] == len(said["differing"]) == said["narrowedRanges"] <= 3
    assert all(one["hashes"][0] < one["hashes"][1] for one in said["differing"])


def test_zones_of_other_tables_are_not_compared(
    zones: tuple[Coordinator, Coordinator], tmp_path: Path
) -> None:
    """Rows of other columns never have the same bytes: all would be told to differ."""
    first, _ = zones
    table = TableSchema(
        columns=(*TABLE.columns, Column("more", ColumnType.BOOL)), primary_key=("id",)
    )
    config = ZoneConfig(zone="z", zone_uid="u", partitions=1, table=table)
    with cluster(tmp_path, 1, config=config, settings=FAST) as other:
        other.create(0, (0,))
        code, said = verified(given(first, with_bootstrap=other.nodes[0].address))
    assert code == job.FAILED
    assert "the tables differ" in said["error"]


@pytest.mark.proves("SP-07")
def test_a_zone_is_the_same_before_and_after_a_move_while_it_is_written(
    zones: tuple[Coordinator, Coordinator], tmp_path: Path
) -> None:
    """Writers go on over a migration: two times would differ, and say nothing of the migration."""
    first, _ = zones
    fill(first, rows(0, ROWS))
    before = str(tmp_path / "before.json")
    code, said = verified(given(first, save=before))
    assert code == 0
    as_of = said["first"]["asOf"]
    first.move(0, 1)
    with client(first) as table:
        table.write(rows(0, 500, "later"))
    code, said = verified(given(first, with_digests=before))
    assert (code, said["equal"], said["first"]["asOf"]) == (0, True, as_of)
    code, said = verified(given(first, with_digests=before, as_of=as_of - 10**13))
    assert code == job.FAILED
    assert "VersionsExpiredError" in said["error"]
    code, said = verified(given(first, with_digests=str(tmp_path / "none.json")))
    assert code == job.FAILED
    assert "none.json is not there" in said["error"]


@pytest.mark.proves("SP-06", "SP-07")
def test_an_export_is_the_zone_as_of_its_time_whatever_dies(
    zones: tuple[Coordinator, Coordinator], tmp_path: Path
) -> None:
    """A row twice, or none, or one that was written later, is found when it is needed."""
    first, other = zones
    fill(first, rows(0, ROWS))
    to = tmp_path / "export"
    arguments = given(first, to=str(to), parts=8)
    with pytest.raises(DiedError):
        export(arguments, Here(dies_after=3))
    assert not (to / "_manifest.json").exists()
    code, said = verified(given(first, with_parquet=str(to)))
    assert code == job.FAILED
    assert "is not whole" in said["error"]
    with client(first) as table:
        table.write(rows(0, 500, "later"))
        table.write(rows(ROWS, ROWS + 100))
    run = Here()
    code, said = exported(arguments, run)
    assert code == 0
    assert [count for _, count in run.ran] == [5], "parts that were whole were written again"
    assert run.ran[0][0].before == 3
    assert (said["rows"], said["files"], said["again"]) == (ROWS, 8, False)
    assert sorted(pq.read_table(to).to_pylist(), key=lambda row: row["id"]) == rows(0, ROWS)
    assert min(path.name for path in to.iterdir()) == "_manifest.json"
    assert len(list(to.iterdir())) == 9
    code, again = exported(arguments, run)
    assert (code, again["again"], again["digest"]) == (0, True, said["digest"])
    code, found = verified(given(first, with_parquet=str(to)))
    assert (code, found["equal"], found["first"]["asOf"]) == (0, True, said["asOf"])
    assert found["other"]["digest"] == said["digest"]
    code, found = verified(given(other, with_parquet=str(to), as_of=None))
    assert code == 1
    code, found = exported(given(other, to=str(to)))
    assert code == job.FAILED
    assert "another zone" in found["error"]


@pytest.mark.proves("SP-06", "SP-07")
def test_jobs_go_on_over_a_leader_transfer_and_a_killed_node(tmp_path: Path) -> None:
    """An export and its verification have each row once, whoever serves a range by then.

    A stream that begins again at another replica would give rows twice, or leave some out.
    """
    config = zone_of("orders", 3)
    with cluster(tmp_path / "nodes", 3, processes=True, config=config) as zone:
        for partition in range(3):
            zone.create(partition, tuple((partition + n) % 3 for n in range(3)))
        with client(zone) as table:
            table.write(rows(0, ROWS))

        def restart() -> None:
            node = zone.nodes[2]
            assert isinstance(node, ProcessNode)
            node.kill()
            node.start()
            zone.wait_up(2)

        def disturbed(phase: Phase, units: Sequence[Any], task: Any) -> list[Any]:
            acts = {1: lambda: zone.move(0, 1 - zone.records[0].leader), 3: restart}
            counted = itertools.count()

            def run(unit: Any) -> Any:
                acts.pop(next(counted), lambda: None)()
                return task(unit)

            return Here()(phase, units, run)

        to = str(tmp_path / "export")
        code, said = exported(given(zone, to=to, parts=4), disturbed)
        assert (code, said["rows"]) == (0, ROWS), said
        code, found = verified(given(zone, with_parquet=to), disturbed)
        assert (code, found["equal"], found["other"]["digest"]) == (0, True, said["digest"]), found


def test_of_two_exports_into_one_directory_one_goes_on(
    zones: tuple[Coordinator, Coordinator], tmp_path: Path
) -> None:
    """Both would write files of one name, of two times, and each its own manifest."""
    first, _ = zones
    fill(first, rows(0, 100))
    arguments = given(first, to=str(tmp_path), parts=2)

    def begun_by_another(phase: Phase, units: Sequence[Any], task: Any) -> list[Any]:
        plan = tmp_path / PLAN
        done, _ = task(units[0])
        content = msgspec.json.decode(plan.read_bytes())
        plan.write_bytes(msgspec.json.encode({**content, "asOf": content["asOf"] + 1}))
        return [done, *Here()(phase, units[1:], task)]

    code, said = exported(arguments, begun_by_another)
    assert code == job.FAILED
    assert "another job exports into" in said["error"]
    (stray,) = (each.name for each in Directory(str(tmp_path)).found())
    code, said = exported(arguments)
    assert code == job.FAILED
    assert f"has {stray}, which is not of this export" in said["error"]
    (tmp_path / stray).unlink()
    code, said = exported(arguments)
    assert (code, said["rows"]) == (0, 100)


def test_parquet_of_others_is_compared_row_by_row(
    zones: tuple[Coordinator, Coordinator], tmp_path: Path
) -> None:
    """Files of any writer have other types, row groups and folders, and rows that come twice."""
    first, _ = zones
    fill(first, rows(0, ROWS))
    table = pa.Table.from_pylist(rows(0, ROWS)).select(["text", "day", "amount", "id"])
    (tmp_path / "a=1").mkdir()
    (tmp_path / "_temporary").mkdir()
    pq.write_table(table.slice(0, 1000), tmp_path / "a=1" / "x.parquet", row_group_size=77)
    pq.write_table(table.slice(1000), tmp_path / "y.parquet")
    pq.write_table(table, tmp_path / "_temporary" / "z.parquet")
    arguments = given(first, with_parquet=str(tmp_path))
    code, said = verified(arguments)
    assert (code, said["equal"]) == (0, True)
    pq.write_table(table.slice(10, 1), tmp_path / "twice.parquet")
    code, said = verified(arguments)
    assert code == 1
    assert [(row["key"]["id"], row["is"]) for row in said["differences"]] == [
        (10, comparing.CHANGED)
    ]
    pq.write_table(table.rename_columns(["text", "day", "amount", "nid"]), tmp_path / "w.parquet")
    code, said = verified(arguments)
    assert code == job.FAILED
    assert "missing ['id'], unknown ['nid']" in said["error"]


def test_a_directory_of_others_is_not_written_to(
    zones: tuple[Coordinator, Coordinator], tmp_path: Path
) -> None:
    """An export among other files would be read together with them."""
    (tmp_path / "mine.csv").write_text("1")
    code, said = exported(given(zones[0], to=str(tmp_path)))
    assert code == job.FAILED
    assert "it has mine.csv" in said["error"]
    assert Directory(str(tmp_path)).noted(PLAN) is None


def test_row_groups_end_where_rows_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two attempts of a part would write files of other bytes, and a receipt fit one of them."""
    monkeypatch.setattr("rezone.transfer.export_job.GROUP_ROWS_MAX", 50)
    monkeypatch.setattr("rezone.transfer.export_job.GROUP_BYTES_MAX", 1000)
    codec = RowCodec(TABLE)
    table = pa.Table.from_pylist(rows(0, 400), schema=codec.arrow_schema)
    ends = set()
    for size in (1, 7, 33, 400):
        found = list(grouped(codec, iter(table.to_batches(max_chunksize=size))))
        assert pa.Table.from_batches(found).equals(table)
        assert max(batch.num_rows for batch in found) <= 50
        ends.add(tuple(batch.num_rows for batch in found))
    assert len(ends) == 1
