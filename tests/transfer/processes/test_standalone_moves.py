"""Copies, backfills and streams on a standalone cluster of Spark whose processes die.

Executors are killed in the middle, drivers and data nodes; two attempts at a copy run at a time.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from feed_kit import following
from held_jobs import Held
from replica_cluster import Coordinator, ProcessNode, batch_of, cluster
from resharding_kit import (
    SMALL,
    backfill_old,
    create_old,
    leave_backfills_to_a_job,
    overlaps_of,
    require_equal,
    reshard,
    set_copy_rate,
    zone,
)
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
from rezone.transfer import copy_job
from rezone.wire.codec.schema import Column, ColumnType, TableSchema
from rezone.wire.copying import backfill_plan
from rezone.wire.copying import plan as copyplan
from rezone.wire.copying.backfill_plan import BackfillPlan, BackfillRange
from rezone.wire.copying.plan import CopyTarget, PartitionCopy
from rezone.wire.messages import (
    AdmitCopies,
    AdmittedCopy,
    BackfillsReserved,
    ReserveBackfills,
    ZoneConfig,
)

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.timeout(900),
]
ROWS = 3_000
SLOW_BYTES_PER_SECOND = 2_000
"""The rows of a copy, or of a range, are minutes at this rate."""

BATCH_BYTES = 4_000
TABLE = TableSchema(
    columns=(Column("id", ColumnType.INT64), Column("value", ColumnType.STRING)),
    primary_key=("id",),
)


@pytest.fixture(scope="module")
def session(url: str) -> Iterator[Any]:
    """Yield a session with an executor at each worker, which gives a lone task a second attempt."""
    threshold = {"spark_speculation_task_duration_threshold": "2s"}
    with speculating(url, spark_cores_max="2", **threshold) as found:
        yield found


def applications(place: Path) -> set[str]:
    """Return the names of those that have executors."""
    return {executor.parent.name for executor in running(place).values()}


def kill_executors(place: Path, application: str) -> None:
    """Kill all executors of an application; its master starts others."""
    for executor in set(running(place).values()):
        if executor.parent.name == application:
            kill_executor(place, executor)


class Copies:
    """A zone of one partition whose rows node 0 alone has; a job copies them to the others."""

    def __init__(self, c: Coordinator) -> None:
        self.zone = c
        c.create(0, (0,))
        with TableClient(tuple(c.peers.values())) as table:
            table.write(batch_of({b"key %d" % i: b"v" * 200 for i in range(ROWS)}))
        c.change(0, replicas=(0, 1, 2))
        c.watch()

    def admit(self, bytes_per_second: int) -> None:
        """Let the copies begin, or go on, at a rate; 0 is any."""
        admitted = (AdmittedCopy(0, bytes_per_second),)
        for node in (1, 2):
            request = AdmitCopies(
                fence=self.zone.fence(), admitted=admitted, held=(), seconds=SECONDS
            )
            self.zone.call(node, request)

    def run(self) -> int:
        """Run a job; return its exit code."""
        c = self.zone
        copy = PartitionCopy(
            partition=0,
            source=c.peers[0],
            source_id=0,
            targets=tuple(CopyTarget(id=n, address=c.peers[n]) for n in (1, 2)),
            revision=c.revision,
        )
        plan = ["--plan-json", copyplan.dumps([copy]), "--batch-bytes", str(BATCH_BYTES)]
        return copy_job.main([*plan, "--keep-context"])

    def some_rows(self) -> bool:
        """Whether both receivers have rows, and not all."""
        copies = [self.zone.report(node, 0).copy for node in (1, 2)]
        return all(copy is not None and 0 < copy.rows < ROWS for copy in copies)

    def check(self) -> None:
        """Check that all replicas have the same rows."""
        c = self.zone
        c.until("all in sync", lambda: c.isr(0) == {0, 1, 2})
        digests = c.until("digests", functools.partial(c.digests, 0))
        assert len({(each.digests, each.rows) for each in digests.values()}) == 1
        assert sum(digests[0].rows) == ROWS


@pytest.fixture
def copies(tmp_path: Path) -> Iterator[Copies]:
    """Yield copies that have not begun."""
    config = ZoneConfig(zone="test", zone_uid="uid-test", partitions=1)
    with cluster(tmp_path / "nodes", 3, config=config) as c:
        yield Copies(c)


@pytest.mark.proves("SP-09", "B-05")
def test_executors_die_in_the_middle_of_a_copy(session: Any, place: Path, copies: Copies) -> None:
    """The driver would end with the task, or the next attempt write what is there once more."""
    copies.admit(SLOW_BYTES_PER_SECOND)
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(copies.run)
        until(copies.zone, "rows come", copies.some_rows, ended)
        kill_executors(place, session.sparkContext.applicationId)
        copies.admit(0)
        assert ended.result(SECONDS) == 0
    copies.check()


@pytest.mark.proves("SP-09", "B-05")
def test_of_two_attempts_at_a_copy_one_goes_on(session: Any, copies: Copies) -> None:
    """They would take the copy from each other for as long as Spark tries."""
    tracker = session.sparkContext.statusTracker()

    def of_stages(field: str) -> int:
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        return sum(getattr(stage, field) for stage in stages if stage is not None)

    copies.admit(SLOW_BYTES_PER_SECOND)
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(copies.run)
        until(
            copies.zone,
            "Spark speculates",
            lambda: of_stages("numActiveTasks") + of_stages("numFailedTasks") > 1,
            ended,
        )
        copies.admit(0)
        assert ended.result(SECONDS) == 0
    copies.check()


@pytest.mark.proves("SP-01", "SP-09", "B-08")
def test_executors_and_the_driver_of_a_backfill_die(
    url: str, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A range would lack what they had read, or wait for a task that is no more."""
    leave_backfills_to_a_job(monkeypatch)
    log = tmp_path / "driver.log"

    def ingested() -> int:
        told = [
            c.call(node, ReserveBackfills(()), BackfillsReserved).ingested_bytes for node in c.nodes
        ]
        return int(sum(told))

    with cluster(tmp_path / "nodes", 3, config=zone(2), settings=SMALL) as c:
        create_old(c)
        backfill_old(c, 1_000)
        set_copy_rate(c, SLOW_BYTES_PER_SECOND)
        reshard(c, 3)
        c.watch()
        ranges = tuple(BackfillRange(each.new, each.old) for each in overlaps_of(c))
        plan = backfill_plan.dumps(BackfillPlan(nodes=c.peers, ranges=ranges))
        command = ("backfill_job", "--plan-json", plan)
        before = applications(place)
        with driver(url, tmp_path, *command) as process:
            until_driven(c, "rows come", ingested, process, tmp_path)
            (application,) = applications(place) - before
            kill_executors(place, application)
            there = ingested()
            until_driven(c, "more come", lambda: ingested() > there, process, tmp_path)
        set_copy_rate(c, 0)
        with driver(url, tmp_path, *command) as process:
            assert process.wait(SECONDS) == 0, log.read_text()[-3000:]
        said = [line for line in log.read_text().splitlines() if line[:1] == "{"]
        told = json.loads(said[-1])
        assert (told["ranges"], told["failed"]) == (len(overlaps_of(c)), 0)
        assert require_equal(c, {}) == 2_000


@pytest.mark.proves("SP-04", "SP-09")
def test_a_data_node_dies_while_a_stream_writes_to_it(session: Any, tmp_path: Path) -> None:
    """A row would be written twice, or be lost with what only its memory had."""
    from rezone.transfer import datasource  # noqa: PLC0415 - imports pyspark

    datasource.register(session)
    (tmp_path / "in").mkdir()
    rows = [json.dumps({"id": n}) for n in range(400)]
    (tmp_path / "in" / "rows.json").write_text("\n".join(rows))
    held = Held(tmp_path / "held")
    config = ZoneConfig(zone="z", zone_uid="u", partitions=2, table=TABLE)
    arguments = ("--replica-lag-ms-max=400",)
    with cluster(tmp_path / "nodes", 3, processes=True, config=config, arguments=arguments) as c:
        create_old(c)
        c.watch()
        read = session.readStream.schema("id long").json(str(tmp_path / "in"))
        stream = read.mapInArrow(held.rows("row"), "id long, value string")
        options = {
            "bootstrap": c.nodes[0].address,
            "stagingDirectory": str(tmp_path / "staging"),
            "checkpointLocation": str(tmp_path / "checkpoint"),
        }
        writer = stream.writeStream.format("rezone").options(**options)
        with TableClient(list(c.peers.values())) as table, following(table) as changes:
            query = writer.trigger(availableNow=True).start()
            c.until("a task hangs", held.attempts, SECONDS)
            victim = c.nodes[1]
            assert isinstance(victim, ProcessNode)
            victim.kill()
            held.go_on()
            victim.start()
            c.wait_up(1)
            assert query.awaitTermination(SECONDS)
            expected = Counter({(n, f"row {n}"): 1 for n in range(400)})
            c.until("all changes are told", lambda: changes.keys() >= expected.keys(), SECONDS)
            assert changes == expected
