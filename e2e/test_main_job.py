"""The main job, end to end, on a cluster of its own: the demo's scenario with its assertions."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.histories import impossible_rows
from rezone.cli.demo.operations import Operations
from rezone.cli.demo.run import run_main_job
from rezone.cli.demo.table import generated_table
from rezone.local.cluster import LocalCluster

ROWS = int(os.environ.get("ROWS", "100000"))
PARTITIONS = int(os.environ.get("PARTITIONS", "12"))
PAUSE_SECONDS = 0.4
"""Between two writes to a partition: copies are throttled while clients are served, and on two
processors that would be most of the time. What moves by a RegionMigration is written to more
often."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Bring a cluster up and, whatever happens, end it with all its processes."""
    local = LocalCluster(tmp_path / "cluster")
    try:
        local.up(nodes=4, report=print)
        yield local
    finally:
        local.down(delete=True)


@pytest.mark.timeout(1200)
@pytest.mark.proves(
    "OP-02", "OP-03", "OP-04", "OP-05", "ZR-03", "ZR-11", "RM-11", "B-04", "SS-06", "TR-01"
)
def test_the_main_job_loses_nothing(cluster: LocalCluster, tmp_path: Path) -> None:
    """A lost or doubled row, a copy unlike its leader, a rebalance that a crash ends: all fail.

    So does a row whose history is not one order of events.
    """
    operations = Operations()
    report = asyncio.run(
        run_main_job(
            cluster,
            generated_table(ROWS),
            partitions=PARTITIONS,
            pause_seconds=PAUSE_SECONDS,
            operations=operations,
        )
    )

    assert report.proof.problems == ()
    assert report.traffic_problems == ()
    assert impossible_rows(operations.take(), tmp_path / "histories") == []
    assert report.proof.replicas_compared == 2 * PARTITIONS
    assert report.proof.rows_total == report.proof.rows_expected
    for task in report.tasks:
        assert task.moves == task.moves_lower_bound
        assert task.copied_bytes > 0
    assert {gap.move.name for gap in report.gaps} >= {"demo-by-hand"}
    assert report.writes > 0
    assert report.reads > 0
