"""Bulk jobs over a real object store whose connections break; units run in this process, twice."""

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from bulk_kit import Here, attempt, client
from object_store import ObjectStore, object_store
from replica_cluster import FAST, Coordinator, cluster

from rezone.transfer.bulk import job
from rezone.transfer.bulk.directory import Directory
from rezone.transfer.export_job import export
from rezone.transfer.load_job import load
from rezone.transfer.verify_job import verify
from rezone.wire.codec.schema import Column, ColumnType, TableSchema
from rezone.wire.messages import ZoneConfig

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
TABLE = TableSchema(
    columns=(Column("id", ColumnType.INT64), Column("value", ColumnType.STRING)),
    primary_key=("id",),
)
ROWS = 20_000
GIVES_UP_SECONDS = 120.0


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    """Yield a store."""
    with object_store(tmp_path, monkeypatch) as found:
        yield found


@pytest.fixture
def zone(tmp_path: Path) -> Iterator[Coordinator]:
    """Yield a node that leads two partitions."""
    config = ZoneConfig(zone="orders", zone_uid="u", partitions=2, table=TABLE)
    with cluster(tmp_path / "nodes", 1, config=config, settings=FAST) as nodes:
        for partition in range(2):
            nodes.create(partition, (0,))
        yield nodes


def given(zone: Coordinator, **more: Any) -> argparse.Namespace:
    """Return arguments of any job."""
    names = "zone tls_directory as_of save with_digests with_parquet with_zone with_bootstrap csv"
    empty = dict.fromkeys(
        f"{names} replicas with_tls_directory with_as_of iceberg snapshot name".split()
    )
    more = {"parts": 4, "ranges": 64, "tasks": 4, "refused_max": 10, "overwrite": False, **more}
    return argparse.Namespace(**{**empty, "bootstrap": zone.nodes[0].address, **more})


class Breaking(Here):
    """Has something happen before each run of a unit but the first."""

    def __init__(self, breaks: Callable[[], object]) -> None:
        super().__init__()
        self._breaks = breaks

    def __call__(self, phase: Any, units: Any, task: Any) -> list[Any]:
        """Run each unit twice."""
        runs = iter(range(1 << 30))

        def broken(unit: Any) -> Any:
            if next(runs):
                self._breaks()
            return task(unit)

        return super().__call__(phase, units, broken)


def rows(first: int, last: int) -> list[dict[str, Any]]:
    """Return rows of these ids."""
    return [{"id": n, "value": f"value {n}" * 20} for n in range(first, last)]


@pytest.mark.proves("SP-06", "SP-07")
def test_jobs_go_on_over_connections_that_break(zone: Coordinator, store: ObjectStore) -> None:
    """An export, its verification and a load end well though open connections are reset.

    Without retries of single requests a night's job would fail by one lost connection.
    """
    reset = store.proxy.end_all
    with client(zone) as table:
        table.write(rows(0, ROWS))
        to, state = store.uri("exports/orders"), store.uri("loads")
        code, said = attempt(export, given(zone, to=to), Breaking(reset))
        assert (code, said["rows"], said["files"]) == (0, ROWS, 4), said
        code, found = attempt(verify, given(zone, with_parquet=to), Breaking(reset))
        assert (code, found["equal"], found["other"]["digest"]) == (0, True, said["digest"])
        table.delete([{"id": n} for n in range(0, ROWS, 2)])
        code, found = attempt(load, given(zone, parquet=to, state=state), Breaking(reset))
        assert (code, found["rows"]) == (0, ROWS), found
        assert table.scan().sort_by("id").to_pylist() == rows(0, ROWS)
        table.write([{"id": 1, "value": "since"}])
        assert attempt(load, given(zone, parquet=to, state=state))[1]["unitsBefore"] > 0
        assert (table.get(1) or {})["value"] == "since"


@pytest.mark.proves("SP-06")
def test_an_export_ends_when_its_store_is_gone_and_goes_on_when_it_is_back(
    zone: Coordinator, store: ObjectStore
) -> None:
    """Retries of requests are bounded: the job fails within minutes, and can be run again.

    A task that tried for ever would hold its executor, and say nothing.
    """
    with client(zone) as table:
        table.write(rows(0, ROWS))
    to = store.uri("exports/orders")
    begun: list[float] = []

    def go() -> None:
        begun.append(time.monotonic())
        store.proxy.lets_in = False
        store.proxy.end_all()

    code, said = attempt(export, given(zone, to=to), Breaking(go))
    assert code == job.FAILED
    assert time.monotonic() - begun[0] < GIVES_UP_SECONDS
    assert "AWS Error" in said["error"]
    store.proxy.lets_in = True
    run = Here()
    code, said = attempt(export, given(zone, to=to), run)
    assert (code, said["rows"]) == (0, ROWS), said
    assert run.ran[0][0].before == 1, "the part that was whole was written again"
    assert len(Directory(to).found()) == said["files"], "a part of a file counts as one"


def test_a_file_is_whole_or_not_there(store: ObjectStore) -> None:
    """A write whose connections break for good leaves no file, and an earlier one as it was.

    Half of a file with a name that counts would be read as all of it.
    """
    directory = Directory(store.uri("notes"))
    directory.note("note.json", b"before")
    batch = pa.RecordBatch.from_pylist(rows(0, ROWS))

    def write() -> None:
        with directory.written("note.json") as stream:
            stream.write(b"half")
            store.proxy.lets_in = False
            store.proxy.end_all()
            for _ in range(8):
                stream.write(batch.columns[1].buffers()[2])

    with pytest.raises(OSError, match=r"AWS Error"):
        write()
    store.proxy.lets_in = True
    assert directory.noted("note.json") == b"before"
