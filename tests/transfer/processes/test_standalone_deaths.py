"""Jobs on a standalone cluster of Spark whose executor, driver or data node dies, or are cancelled.

Nothing is lost, doubled or left behind. Tasks are speculated, and run twice.
"""

from __future__ import annotations

import contextlib
import importlib
import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from held_jobs import Held
from overwriting_kit import OverwritingOperator
from replica_cluster import Coordinator, ProcessNode, cluster
from resharding_kit import create_old, set_copy_rate
from spark_processes import (
    SECONDS,
    driver,
    kill_executor,
    running,
    speculating,
    until,
    until_driven,
)

from rezone.client import TableClient
from rezone.transfer.bulk import job
from rezone.transfer.bulk.exported import MANIFEST
from rezone.transfer.bulk.units import SparkRunner
from rezone.wire.codec.schema import Column, ColumnType, TableSchema
from rezone.wire.layouts import layout_of, next_layout_of
from rezone.wire.messages import BackfillsReserved, ReserveBackfills, ZoneConfig

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.timeout(900),
]
TABLE = TableSchema(
    columns=(Column("id", ColumnType.INT64), Column("value", ColumnType.STRING)),
    primary_key=("id",),
)
CONFIG = ZoneConfig(zone="z", zone_uid="u", partitions=2, table=TABLE)
OLD = [{"id": n, "value": f"old {n}"} for n in range(300, 500)]
NEW = [{"id": n, "value": f"new {n}"} for n in range(400)]
THEIRS = {"id": 9_000, "value": "theirs"}
FILES = 8
SLOW_BYTES_PER_SECOND = 300
"""The rows of a range are minutes at this rate."""

OVERWRITES = ["overwriting load", "overwriting frame"]
KINDS = ["load", "export", "verify", *OVERWRITES]


@pytest.fixture(scope="module")
def session(url: str) -> Iterator[Any]:
    """Yield a session with an executor at each worker."""
    with speculating(url, spark_cores_max="2") as found:
        yield found


@pytest.fixture
def zone(tmp_path: Path) -> Iterator[Coordinator]:
    """Yield three data nodes as processes with old rows, each of which has all partitions."""
    arguments = ("--replica-lag-ms-max=400",)
    with cluster(
        tmp_path / "nodes", 3, processes=True, config=CONFIG, arguments=arguments
    ) as nodes:
        create_old(nodes)
        nodes.watch()
        with client(nodes) as table:
            table.write(OLD)
        yield nodes


@pytest.fixture
def held(tmp_path: Path) -> Held:
    """Give what a task hangs in."""
    return Held(tmp_path / "held")


def client(zone: Coordinator) -> TableClient:
    """Return a client."""
    return TableClient(list(zone.peers.values()))


def content(zone: Coordinator) -> list[dict[str, Any]]:
    """Return all rows."""
    with client(zone) as table:
        found: list[dict[str, Any]] = table.scan().sort_by("id").to_pylist()
    return found


class Jobs:
    """Jobs of each kind in the session, over one zone, with files of NEW; one runs at a time."""

    def __init__(self, session: Any, zone: Coordinator, directory: Path) -> None:
        from rezone.transfer import datasource  # noqa: PLC0415 - imports pyspark

        datasource.register(session)
        self.session = session
        self.zone = zone
        self.directory = directory
        put_files(directory / "in")

    def run(self, kind: str, held: Held | None = None, name: str = "nightly") -> int:
        """Run a job; return its exit code. That of a frame, and of a stream, raises."""
        if kind == "overwriting frame":
            self._frame(held, name)
            return 0
        module, *arguments = {
            "load": load_arguments(self.directory),
            "overwriting load": [
                *load_arguments(self.directory),
                *("--overwrite", "--name", name),
            ],
            "export": ["export_job", "--to", str(self.directory / "out"), "--parts", "4"],
            "verify": ["verify_job", "--save", str(self.directory / "digests"), "--tasks", "4"],
        }[kind]
        address = self.zone.nodes[0].address
        main = importlib.import_module(f"rezone.transfer.{module}").main
        with pytest.MonkeyPatch.context() as patch:
            if held is not None:
                patch.setattr(job, "SparkRunner", lambda *given: held.runner(SparkRunner(*given)))
            code: int = main([*arguments, "--bootstrap", address, "--keep-context"])
        return code

    def _frame(self, held: Held | None, name: str) -> None:
        java = self.session._jvm.org.apache.spark.sql.classic.SparkSession
        java.setActiveSession(self.session._jsparkSession)  # of this thread: it has data sources
        ids = self.session.range(0, len(NEW), 1, 4)
        rows = ids.selectExpr("id", "concat('new ', id) as value")
        if held is not None:
            rows = ids.mapInArrow(held.rows("new"), "id long, value string")
        rows.write.format("rezone").mode("overwrite").options(
            bootstrap=self.zone.nodes[0].address,
            stagingDirectory=str(self.directory / "state"),
            overwriteName=name,
        ).save()

    def staged(self) -> list[str]:
        """Return what tasks have staged, and is left."""
        return [path.name for path in (self.directory / "state").rglob("*.run*")]


@pytest.fixture
def jobs(session: Any, zone: Coordinator, tmp_path: Path) -> Jobs:
    """Give jobs over the zone."""
    return Jobs(session, zone, tmp_path)


def load_arguments(directory: Path) -> list[str]:
    """Return what a load of the files is called by, after its module's name."""
    return ["load_job", "--parquet", str(directory / "in"), "--state", str(directory / "state")]


def put_files(directory: Path) -> None:
    """Write NEW as files."""
    directory.mkdir()
    for number in range(FILES):
        pq.write_table(pa.Table.from_pylist(NEW[number::FILES]), directory / f"{number}.parquet")


def check_result(kind: str, jobs: Jobs, said: dict[str, Any]) -> None:
    """Check what a job has made of a zone of the old rows: each row, once."""
    after: dict[Any, Any] = {row["id"]: row for row in (*OLD, *NEW)}
    expected = {
        "load": [row for _, row in sorted(after.items())],
        **dict.fromkeys(OVERWRITES, NEW),
    }.get(kind, OLD)
    assert content(jobs.zone) == expected
    assert jobs.staged() == []
    if kind == "load":
        ends = [
            jobs.zone.report(jobs.zone.records[p].leader, p).log_end_offset
            for p in layout_of(jobs.zone.config).ids
        ]
        assert sum(ends) == len(OLD) + len(NEW), "a row was written a second time"
    if kind == "export":
        out = jobs.directory / "out"
        assert pq.read_table(out).sort_by("id").to_pylist() == OLD
        assert len(list(out.glob("*.parquet"))) == 4
        assert (out / MANIFEST).exists()
    if kind == "verify":
        assert said["first"]["rows"] == len(OLD)


def last_said(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Return the last line of a job; nothing when it has none."""
    lines = [line for line in capsys.readouterr().out.splitlines() if line[:1] == "{"]
    return json.loads(lines[-1]) if lines else {}


@contextlib.contextmanager
def in_background(
    jobs: Jobs, kind: str, operator: OverwritingOperator, held: Held | None = None
) -> Iterator[Future[int]]:
    """Run a job in a thread; whatever fails in the block lets it come to its end."""
    with ThreadPoolExecutor(1) as pool:
        try:
            yield pool.submit(jobs.run, kind, held)
        except BaseException:
            operator.go_on.set()
            raise
        finally:
            if held is not None:
                held.go_on()


@pytest.mark.proves("SP-05", "SP-06", "SP-07", "SP-09")
@pytest.mark.parametrize("kind", KINDS)
def test_an_executor_dies_in_the_middle_of_a_job(
    kind: str, jobs: Jobs, place: Path, held: Held, capsys: pytest.CaptureFixture[str]
) -> None:
    """What its attempt has written would be there twice, or be missing."""
    with (
        OverwritingOperator(jobs.zone) as operator,
        in_background(jobs, kind, operator, held) as ended,
    ):
        until(jobs.zone, "a task hangs", held.attempts, ended)
        victim = held.attempts()[0]
        kill_executor(place, victim)
        until(jobs.zone, "another does", lambda: set(held.attempts()) - {victim}, ended)
        held.go_on()
        assert ended.result(SECONDS) == 0
    check_result(kind, jobs, last_said(capsys))
    jobs.zone.until("the dead one's Python ended", lambda: victim not in running(place).values())


@pytest.mark.proves("SP-05", "SP-06", "SP-09")
@pytest.mark.parametrize("kind", OVERWRITES)
def test_of_two_attempts_at_a_time_one_counts(
    kind: str, jobs: Jobs, held: Held, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both have staged all rows: the job would fail by two rows of one key, or leave a file."""
    with (
        OverwritingOperator(jobs.zone) as operator,
        in_background(jobs, kind, operator, held) as ended,
    ):
        until(jobs.zone, "Spark speculates", lambda: len(held.attempts()) == 2, ended)
        assert len({path.parents[1] for path in held.attempts()}) == 2
        held.go_on()
        assert ended.result(SECONDS) == 0
    check_result(kind, jobs, last_said(capsys))


@pytest.mark.proves("B-05", "SP-05", "SP-06")
@pytest.mark.parametrize("kind", OVERWRITES)
def test_a_data_node_dies_while_an_overwrite_brings_its_rows(
    kind: str, jobs: Jobs, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows that only its memory had would be gone after the switch.

    It leads an old partition and a new one, and follows in the others.
    """
    zone = jobs.zone
    set_copy_rate(zone, SLOW_BYTES_PER_SECOND)
    with OverwritingOperator(zone) as operator, in_background(jobs, kind, operator) as ended:
        operator.go_on.clear()
        until(
            jobs.zone, "rows have come to all", lambda: all(map(brought(zone), zone.nodes)), ended
        )
        assert operator.begun.is_set()
        victim = zone.nodes[1]
        assert isinstance(victim, ProcessNode)
        victim.kill()
        victim.start()
        zone.wait_up(1)
        assert content(zone) == OLD
        set_copy_rate(zone, 0)
        operator.go_on.set()
        assert ended.result(SECONDS) == 0
    check_result(kind, jobs, last_said(capsys))


def brought(zone: Coordinator) -> Any:
    """Return what says whether rows have come to a node since it has started."""

    def some(node: int) -> bool:
        told: BackfillsReserved = zone.call(node, ReserveBackfills(()), BackfillsReserved)
        return told.ingested_bytes > 0

    return some


def until_alone(jobs: Jobs, place: Path) -> None:
    """Wait until the cluster runs executors of the session, and of no other application."""
    own = place_of(jobs)
    jobs.zone.until(
        "executors of a dead driver have ended",
        lambda: all(path.parent.name == own for path in running(place).values()),
        SECONDS,
    )


def place_of(jobs: Jobs) -> str:
    """Return the name of the directories that have the executors of the session."""
    return str(jobs.session.sparkContext.applicationId)


@pytest.mark.proves("SP-05", "SP-06")
def test_a_load_that_overwrites_outlives_its_drivers(
    jobs: Jobs, url: str, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The zone would be between two sets of rows, and what the dead have staged stay for ever.

    One is killed while it stages, one while the zone waits for the switch.
    """
    zone = jobs.zone
    arguments = [*load_arguments(tmp_path), "--overwrite", "--name", "nightly"]
    arguments += ["--bootstrap", zone.nodes[0].address]
    with OverwritingOperator(zone) as operator:
        operator.go_on.clear()

        for check in (jobs.staged, operator.begun.is_set):
            with driver(url, tmp_path, *arguments) as process:
                until_driven(zone, "it is time", check, process, tmp_path)
            assert content(zone) == OLD
        until_alone(jobs, place)
        assert jobs.staged()
        with client(zone) as table:
            table.write([THEIRS])
        operator.go_on.set()
        assert jobs.run("overwriting load") == 0
    assert last_said(capsys)["rows"] == len(NEW)
    assert content(zone) == [*NEW, THEIRS]
    assert jobs.staged() == []
    assert len(operator.asked) == 1


@pytest.mark.proves("SP-05", "SP-06", "SP-07", "SP-09")
@pytest.mark.parametrize("kind", KINDS)
def test_a_job_that_is_cancelled_in_spark_can_be_run_again(
    kind: str, jobs: Jobs, held: Held, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half of its rows, files or figures would be taken for all, or stand in the next one's way."""
    with OverwritingOperator(jobs.zone) as operator:
        with in_background(jobs, kind, operator, held) as ended:
            until(jobs.zone, "a task hangs", held.attempts, ended)
            jobs.session.sparkContext.cancelAllJobs()
            if kind == "overwriting frame":
                with pytest.raises(Exception, match="ancel"):
                    ended.result(SECONDS)
            else:
                assert ended.result(SECONDS) == job.FAILED
                assert "cancel" in last_said(capsys)["error"]
            jobs.zone.until("its attempt has ended", lambda: not held.processes(), SECONDS)
        assert operator.asked == []
        assert not (jobs.directory / "out" / MANIFEST).exists()
        if kind in OVERWRITES:
            assert content(jobs.zone) == OLD
        # An attempt that outlives its job by seconds may stage one more file: the next one's end,
        # which is checked below, takes it away.
        assert jobs.run(kind) == 0
    check_result(kind, jobs, last_said(capsys))


@pytest.mark.proves("SP-05")
def test_an_overwrite_that_the_operator_cancels_leaves_the_zone_as_it_was(jobs: Jobs) -> None:
    """Its driver would wait for ten minutes, and new partitions or staged rows be left."""
    kind, zone = "overwriting frame", jobs.zone
    with OverwritingOperator(zone) as operator:
        operator.go_on.clear()
        with in_background(jobs, kind, operator) as ended:
            until(jobs.zone, "it has begun", operator.begun.is_set, ended)
            new = next_layout_of(zone.config)
            assert new is not None
            operator.cancel.set()
            assert refused(ended)
        zone.until("the operator has cancelled it", lambda: not operator.cancel.is_set())
        assert content(zone) == OLD
        assert jobs.staged() == []
        assert not any(zone.has_replica(node, p) for node in zone.nodes for p in new.ids)
        with in_background(jobs, kind, operator) as again:
            assert refused(again)
        operator.go_on.set()
        assert jobs.run(kind, name="another") == 0
    check_result(kind, jobs, {})
    assert len(operator.asked) == 2


def refused(ended: Future[int]) -> bool:
    """Return whether a job has ended because its overwrite was cancelled, and says what to do."""
    told = str(ended.exception(SECONDS))
    return "was cancelled" in told and "To overwrite it: give another" in told
