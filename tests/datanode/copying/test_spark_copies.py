"""A real Spark driver copies between real data nodes, when they admit it."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from replica_cluster import Coordinator, batch_of, cluster

import rezone
from rezone.client import TableClient
from rezone.local.sparkdriver import submit_command
from rezone.wire.copying import plan as copyplan
from rezone.wire.copying.plan import CopyTarget, PartitionCopy
from rezone.wire.messages import AdmitCopies, AdmittedCopy, ZoneConfig

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

SECONDS = 240.0
ROWS = 3_000
REPLICAS = {0: (0, 1, 2), 1: (0, 1), 2: (0, 2)}
"""The partitions; node 0 has all rows, the others need copies."""


def admit(c: Coordinator, *partitions: int) -> None:
    """Let the copies of these partitions begin, and hold the others."""
    for node in (1, 2):
        here = [p for p, nodes in REPLICAS.items() if node in nodes]
        c.call(
            node,
            AdmitCopies(
                fence=c.fence(),
                admitted=tuple(AdmittedCopy(p) for p in here if p in partitions),
                held=tuple(p for p in here if p not in partitions),
                seconds=SECONDS,
            ),
        )


def driver(c: Coordinator, directory: Path) -> subprocess.Popen[str]:
    """Start the copy job as a SparkApplication's driver on one machine is started."""
    plan = [
        PartitionCopy(
            partition=partition,
            source=c.peers[0],
            source_id=0,
            targets=tuple(CopyTarget(id=n, address=c.peers[n]) for n in nodes[1:]),
            revision=c.revision,
        )
        for partition, nodes in REPLICAS.items()
    ]
    application = {
        "metadata": {"name": "copies"},
        "spec": {
            "mainApplicationFile": "local:///opt/rezone/transfer/copy_job.py",
            "arguments": ["--plan-json", copyplan.dumps(plan)],
            "driver": {"memory": "512m"},
        },
    }
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(Path(rezone.__path__[0]).parent),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(directory),
    }
    with (directory / "driver.err").open("w") as errors:
        return subprocess.Popen(
            submit_command(application),
            env=environment,
            cwd=directory,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )


def until(c: Coordinator, job: subprocess.Popen[str], what: str, check: Callable[[], bool]) -> None:
    """Wait while the driver lives."""

    def looked() -> bool:
        assert job.poll() is None, f"the driver has ended: {job.returncode}"
        return check()

    c.until(what, looked, SECONDS)


@pytest.mark.long
@pytest.mark.proves("OP-04", "SS-06", "B-03", "B-04")
def test_spark_copies_between_data_nodes_what_they_admit(tmp_path: Path) -> None:
    """Copies begin when admitted, also while the job runs; receivers then equal their source.

    With receivers that are fakes a driver that data nodes refuse, or that asks nobody, would pass.
    """
    config = ZoneConfig(zone="test", zone_uid="uid-test", partitions=len(REPLICAS))
    with cluster(tmp_path, 3, config=config) as c:
        for partition in REPLICAS:
            c.create(partition, (0,))
        with TableClient(tuple(c.peers.values())) as table:
            table.write(batch_of({b"key %d" % i: b"v" * 200 for i in range(ROWS)}))
        for partition, nodes in REPLICAS.items():
            c.change(partition, replicas=nodes)
        c.watch()
        admit(c, 0)
        job = driver(c, tmp_path)
        try:
            until(c, job, "partition 0 is copied", lambda: c.isr(0) == {0, 1, 2})
            for node, partition in ((1, 1), (2, 2)):
                report = c.report(node, partition)
                assert (report.needs_snapshot, report.copy) == (True, None)
            admit(c, 2)
            until(c, job, "partition 2 is copied", lambda: c.isr(2) == {0, 2})
            assert c.report(1, 1).copy is None
            admit(c, 1)
            output, _ = job.communicate(timeout=SECONDS)
        finally:
            if job.poll() is None:
                job.kill()
                job.communicate()
        assert job.returncode == 0, (tmp_path / "driver.err").read_text()
        summary = json.loads(output.splitlines()[-1])
        assert (summary["copies"], summary["failed"]) == (4, 0)
        c.until("all in sync", lambda: all(c.isr(p) == set(n) for p, n in REPLICAS.items()))
        found = 0
        for partition, nodes in REPLICAS.items():
            digests = c.until("digests", functools.partial(c.digests, partition))
            assert set(digests) == set(nodes)
            assert len({(each.digests, each.rows) for each in digests.values()}) == 1
            found += sum(digests[0].rows)
        assert found == ROWS
