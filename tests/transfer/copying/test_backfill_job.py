"""The job that backfills a re-sharding: its plan, its tasks' tries, and a real driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from replica_cluster import cluster
from resharding_kit import (
    SMALL,
    backfill_old,
    create_old,
    leave_backfills_to_a_job,
    overlaps_of,
    require_equal,
    reshard,
    resharded,
    zone,
)

import rezone
from rezone.local.sparkdriver import submit_command
from rezone.transfer.backfill_job import main, run_task, summary
from rezone.transfer.copying.backfill import RangeReceipt
from rezone.wire.copying import backfill_plan
from rezone.wire.copying.backfill_plan import BackfillPlan, BackfillRange
from rezone.wire.errors import NotReadyError

RANGE = BackfillRange(16384, 0)
SECONDS = 400.0


def test_a_plan_comes_back_as_it_was_written() -> None:
    """The driver would begin with another plan than the operator's, or with none."""
    small = BackfillPlan(nodes={0: "a:1", 12: "b:2"}, ranges=(RANGE,))
    assert backfill_plan.loads(backfill_plan.dumps(small)) == small
    ranges = tuple(BackfillRange(16384 + i, i) for i in range(5_000))
    large = BackfillPlan(nodes={0: "a:1"}, ranges=ranges)
    assert len(backfill_plan.dumps(large)) < 50_000
    assert backfill_plan.loads(backfill_plan.dumps(large)) == large


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"nodes": {}, "ranges": [[1, 0]]}', '{"nodes": {"0": "a:1"}, "ranges": []}'],
)
def test_a_plan_that_is_none_ends_the_driver(text: str) -> None:
    """The application would count as done with nothing backfilled."""
    with pytest.raises(ValueError, match="not a backfill plan"):
        backfill_plan.loads(text)
    if text:
        assert main(["--plan-json", text]) == 2


def test_the_last_try_of_a_task_tells_its_error() -> None:
    """Spark would stop the tasks of all other ranges with one that fails for good."""
    pauses: list[float] = []

    def refused(*_: object) -> RangeReceipt:
        raise NotReadyError("not now")

    for attempt in range(2):
        with pytest.raises(NotReadyError):
            run_task(
                RANGE, {}, attempt_number=attempt, failures_max=3, sleep=pauses.append,
                backfill=refused,
            )  # fmt: skip
    last = run_task(
        RANGE, {}, attempt_number=2, failures_max=3, sleep=pauses.append, backfill=refused
    )
    assert (last.error, pauses) == ("not now", [1.0, 2.0])
    told = summary([last, RangeReceipt(hash_range=RANGE, rows=3, bytes=30)], 1.0)
    assert (told["ranges"], told["failed"], told["rows"], told["bytes"]) == (2, 1, 3, 30)


@pytest.mark.long
@pytest.mark.proves("SP-01", "B-08")
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_real_driver_backfills_a_re_sharding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What tasks run would not be found in Spark's processes, or their rows not be the source's."""
    leave_backfills_to_a_job(monkeypatch)
    with cluster(tmp_path, 3, config=zone(2), settings=SMALL) as c:
        create_old(c)
        backfill_old(c, 1_000)
        reshard(c, 3)
        c.watch()
        plan = BackfillPlan(
            nodes=c.peers,
            ranges=tuple(
                BackfillRange(hash_range.new, hash_range.old) for hash_range in overlaps_of(c)
            ),
        )
        application = {
            "metadata": {"name": "backfill"},
            "spec": {
                "mainApplicationFile": "local:///opt/rezone/transfer/backfill_job.py",
                "arguments": ["--plan-json", backfill_plan.dumps(plan)],
                "driver": {"memory": "512m"},
            },
        }
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(Path(rezone.__path__[0]).parent),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(tmp_path),
        }
        ended = subprocess.run(
            submit_command(application),
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        told = json.loads(ended.stdout.splitlines()[-1])
        assert (told["ranges"], told["failed"]) == (len(overlaps_of(c)), 0)
        assert told["rows"] == 2_000
        c.until_each("backfilled", overlaps_of(c), lambda overlap: resharded(c, overlap))
        assert require_equal(c, {}) == 2_000
