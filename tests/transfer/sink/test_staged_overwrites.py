"""Rows that tasks have staged become all rows of a zone, at real data nodes, without Spark."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from overwriting_kit import OverwritingOperator
from replica_cluster import FAST, Coordinator, cluster
from resharding_kit import create_old

from rezone.client import TableClient
from rezone.transfer.copying import new_rows
from rezone.transfer.copying.backfill import VERSIONS_SCHEMA
from rezone.transfer.copying.overwriting import Overwriting, nodes_of
from rezone.transfer.sink import merged_runs, staged_runs
from rezone.transfer.sink.merged_runs import MergedRuns, StagedNewRows
from rezone.transfer.sink.staged_runs import INDEX, StagedFile, StagedRowsError, stage_runs
from rezone.transfer.sink.staging import Staging
from rezone.wire.codec.encoded_rows import encoded_rows
from rezone.wire.codec.keyspace import HASH_SPACE
from rezone.wire.codec.rows import RowCodec
from rezone.wire.codec.schema import Column, ColumnType, TableSchema
from rezone.wire.errors import ConflictError, InvalidRowError, NotReadyError
from rezone.wire.messages import (
    BackfillClaim,
    BackfillVersions,
    ReshardRange,
    StreamStart,
    ZoneConfig,
)
from rezone.wire.transport.flight import NodeClient

pytestmark = [pytest.mark.timeout(300)]
TABLE = TableSchema(
    columns=(Column("id", ColumnType.INT64), Column("value", ColumnType.STRING)),
    primary_key=("id",),
)
CONFIG = ZoneConfig(zone="z", zone_uid="u", partitions=3, table=TABLE)
CODEC = RowCodec(TABLE)
RUN, PIECE, WINDOW, CHUNK = 4_000, 500, 3_000, 1_200


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have many runs, pieces, windows and chunks of some rows each."""
    monkeypatch.setattr(staged_runs, "RUN_BYTES", RUN)
    monkeypatch.setattr(staged_runs, "PIECE_BYTES", PIECE)
    monkeypatch.setattr(merged_runs, "WINDOW_BYTES", WINDOW)
    monkeypatch.setattr(new_rows, "CHUNK_BYTES", CHUNK)


def rows_of(ids: range | list[int], value: str = "new") -> list[dict[str, Any]]:
    """Return rows."""
    return [{"id": n, "value": f"{value} {n}"} for n in ids]


def batches_of(rows: list[dict[str, Any]], at_once: int = 37) -> Iterator[Any]:
    """Yield rows as a task gets them."""
    for start in range(0, len(rows), at_once):
        yield pa.RecordBatch.from_pylist(rows[start : start + at_once])


def staged(staging: Staging, rows: list[dict[str, Any]], tasks: int = 3) -> list[StagedFile]:
    """Have tasks stage rows; return their files."""
    return [stage_runs(staging, CODEC, batches_of(rows[n::tasks])) for n in range(tasks)]


def claim(first: int, end: int) -> BackfillClaim:
    """Return what a partition says that it lacks."""
    hashes = ReshardRange(target=9, source=0, first_hash=first, last_hash=end - 1)
    return BackfillClaim(hash_range=hashes, begun=StreamStart(1, "u"), leader_epoch=1)


def read_all(rows: StagedNewRows, first: int, end: int) -> list[BackfillVersions]:
    """Read a range, chunk by chunk."""
    found: list[BackfillVersions] = []
    after = b""
    while not found or not found[-1].end:
        found.append(rows.read(claim(first, end), after))
        after = found[-1].reached
    return found


def batch_in(chunk: BackfillVersions) -> Any:
    """Return the versions of a chunk."""
    return pa.ipc.read_record_batch(pa.py_buffer(chunk.versions), VERSIONS_SCHEMA)


@pytest.mark.proves("SP-05")
@pytest.mark.parametrize("cuts", [1, 3, 7])
def test_staged_rows_come_in_order_for_each_range_in_bounded_memory(
    tmp_path: Path, cuts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows would be missing or doubled where windows meet, or all of them be in one process."""
    staging = Staging(str(tmp_path), "job")
    rows = rows_of(random.Random(cuts).sample(range(100_000), 900))
    files = staged(staging, rows)
    runs = MergedRuns(staging, files)
    made: list[int] = []
    window = MergedRuns.window

    def counting(self: MergedRuns, start: bytes, stop: bytes | None) -> Any:
        found = window(self, start, stop)
        made.append(found.row_ids.nbytes + found.values.nbytes)
        return found

    monkeypatch.setattr(MergedRuns, "window", counting)
    given = StagedNewRows(runs, 77)
    bounds = [HASH_SPACE * n // cuts for n in range(cuts + 1)]
    found: list[tuple[bytes, bytes]] = []
    for first, end in itertools.pairwise(bounds):
        for chunk in read_all(given, first, end):
            batch = batch_in(chunk)
            assert batch.nbytes < 2 * CHUNK
            assert set(batch["time"].to_pylist()) <= {77}
            ids = batch["row_id"].to_pylist()
            assert all(first <= int.from_bytes(each[:8], "big") < end for each in ids)
            found += zip(ids, batch["value"].to_pylist(), strict=True)
    encoded = encoded_rows(CODEC, pa.RecordBatch.from_pylist(rows, CODEC.arrow_schema))
    assert found == sorted(
        zip(encoded.row_ids().to_pylist(), encoded.values().to_pylist(), strict=True)
    )
    assert len(files) > 1
    assert sum(made) > 8 * WINDOW
    assert max(made) < 3 * WINDOW


def test_what_rows_are_does_not_depend_on_how_tasks_have_staged_them(tmp_path: Path) -> None:
    """A driver that comes again would be refused with the same rows, or go on with others."""
    rows = rows_of(range(500))
    digests = []
    for job, (tasks, given) in enumerate(
        [(1, rows), (5, rows[::-1]), (2, rows[1:]), (2, [*rows[1:], {"id": 0, "value": "other"}])]
    ):
        staging = Staging(str(tmp_path), f"job-{job}")
        digests.append(MergedRuns(staging, staged(staging, given, tasks)).digest())
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


def test_two_rows_of_one_key_and_bad_rows_are_refused(tmp_path: Path) -> None:
    """Which of the two is there would be chance."""
    staging = Staging(str(tmp_path), "job")
    files = staged(staging, [*rows_of(range(300)), {"id": 7, "value": "other"}])
    with pytest.raises(ValueError, match="one key"):
        MergedRuns(staging, files).digest()
    with pytest.raises(InvalidRowError, match="null"):
        stage_runs(staging, CODEC, iter([pa.RecordBatch.from_pylist([{"id": None, "value": "a"}])]))


@pytest.mark.proves("SP-05")
@pytest.mark.parametrize("suffix", ["", INDEX])
@pytest.mark.parametrize("how", ["missing", "flipped", "short"])
def test_a_damaged_file_is_refused_before_a_row_is_used(
    tmp_path: Path, suffix: str, how: str
) -> None:
    """The zone would have some of the rows, or wrong ones, and all others be gone."""
    staging = Staging(str(tmp_path), "job")
    files = staged(staging, rows_of(range(300)))
    path = tmp_path / "job" / f"{files[1].name}{suffix}"
    content = path.read_bytes()
    if how == "missing":
        path.unlink()
    else:
        middle = len(content) // 2
        flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        path.write_bytes(flipped if how == "flipped" else content[:-1])
    with pytest.raises(StagedRowsError, match="run the job again"):
        MergedRuns(staging, files).digest()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Coordinator]:
    """Yield two nodes with three partitions of old rows."""
    with cluster(tmp_path / "nodes", 2, config=CONFIG, settings=FAST) as c:
        create_old(c)
        c.watch()
        with TableClient(list(c.peers.values())) as table:
            table.write(rows_of(range(400), "old"))
        yield c


def driver(c: Coordinator, name: str, **options: Any) -> Overwriting:
    """Return a driver that knows one data node."""
    nodes = nodes_of([c.nodes[0].address], NodeClient)
    assert nodes == c.peers
    return Overwriting(name, nodes, every_seconds=0.2, **options)


def content(c: Coordinator) -> list[dict[str, Any]]:
    """Return all rows of the zone."""
    with TableClient(list(c.peers.values())) as table:
        found: list[dict[str, Any]] = table.scan().sort_by("id").to_pylist()
    return found


class DyingRows:
    """Rows whose file is gone behind so many chunks."""

    def __init__(self, rows: StagedNewRows, chunks: int) -> None:
        self._rows = rows
        self._left = chunks

    def read(self, asked: BackfillClaim, after: bytes) -> BackfillVersions:
        """Return the next rows."""
        self._left -= 1
        if self._left < 0:
            raise StagedRowsError("the staged file is gone; run the job again")
        return self._rows.read(asked, after)


@pytest.mark.slow
@pytest.mark.proves("SP-05")
def test_a_second_driver_of_the_name_finishes_what_one_has_begun(
    nodes: Coordinator, tmp_path: Path
) -> None:
    """The rows of both would be there, or none of either."""
    rows = rows_of(range(300, 700))
    first = driver(nodes, "job")
    staging = Staging(str(tmp_path / "staging"), "one")
    runs = MergedRuns(staging, staged(staging, rows))
    time = first.time()
    with TableClient(list(nodes.peers.values())) as table:
        (written, *_) = table.write(rows_of([10_000], "others"))
        assert time < written.commit_time
    with OverwritingOperator(nodes) as operator:
        with pytest.raises(StagedRowsError):
            first.run(DyingRows(StagedNewRows(runs, time), 9))
        with pytest.raises(ConflictError):
            driver(nodes, "other").is_done()
        with TableClient(list(nodes.peers.values())) as table:
            table.write(rows_of([20_000], "others"))
        assert len(content(nodes)) == 402
        assert operator.begun.is_set()
        again = Staging(str(tmp_path / "staging"), "two")
        came = MergedRuns(again, staged(again, rows[::-1], 2))
        assert came.digest() == runs.digest()
        assert not driver(nodes, "job").is_done()
        receipt = driver(nodes, "job").run(StagedNewRows(came, time))
        assert 0 < receipt.rows <= len(rows)
        assert content(nodes) == [*rows, *rows_of([20_000], "others")]
        assert driver(nodes, "job").is_done()
        assert driver(nodes, "job").run(StagedNewRows(came, time)).rows == 0


@pytest.mark.proves("SP-05")
def test_a_data_node_that_knows_no_time_yet_is_asked_again(
    nodes: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that has staged all of its rows failed because a data node had just begun."""
    overwrites = nodes.node(1).overwrites
    knows, nothing_yet = overwrites._time, iter([None, None])
    monkeypatch.setattr(overwrites, "_time", lambda: next(nothing_yet, knows()))
    assert driver(nodes, "job").time() > 0
    assert not list(nothing_yet), "it was asked three times"
    monkeypatch.setattr(overwrites, "_time", lambda: None)
    with pytest.raises(NotReadyError, match="does not know the time"):
        driver(nodes, "job", patience_seconds=0.5).time()


@pytest.mark.slow
@pytest.mark.proves("SP-05")
def test_no_rows_make_an_empty_zone(nodes: Coordinator, tmp_path: Path) -> None:
    """Old rows would stay, or the overwrite never end."""
    runs = MergedRuns(Staging(str(tmp_path), "job"), [])
    runs.digest()
    with OverwritingOperator(nodes):
        driver(nodes, "none").run(StagedNewRows(runs, driver(nodes, "none").time()))
    assert content(nodes) == []


@pytest.mark.slow
def test_a_driver_gives_up_and_says_what_it_has_waited_for(
    nodes: Coordinator, tmp_path: Path
) -> None:
    """It would hang for ever where no operator runs, or a part does not come."""
    staging = Staging(str(tmp_path), "job")
    rows = StagedNewRows(MergedRuns(staging, staged(staging, rows_of(range(50)))), 1)
    with pytest.raises(NotReadyError, match="has not begun"):
        driver(nodes, "job", patience_seconds=1.0).run(rows)
    with OverwritingOperator(nodes) as operator:
        operator.go_on.clear()
        with pytest.raises(NotReadyError, match="come no further"):
            driver(nodes, "job", patience_seconds=8.0).run(rows)
    ended = [each for each in threading.enumerate() if each.name.startswith("overwrite")]
    for thread in ended:
        thread.join(20)
        assert not thread.is_alive()
    assert len(content(nodes)) == 400
