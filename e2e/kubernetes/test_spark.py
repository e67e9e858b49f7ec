"""Bulk copies by Spark: driver and executors as pods, with TLS, while they are killed.

Kubeflow's spark-operator runs them where it is installed, else `e2e.spark` does. Every case lets a
node join with copies slowed down, so that something is under way when it is hit.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from e2e.kubernetes.conftest import ROOT, Stage
from e2e.kubernetes.copies import GAP_SECONDS_MAX, Copies, check_copy_in_pods, slow_copies
from e2e.kubernetes.zone import Zone

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def submitter(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Run the SparkApplications of the cluster, unless it has an operator that does."""
    found = stage.cluster.items(
        "deployments", "--all-namespaces", "--selector=app.kubernetes.io/name=spark-operator"
    )
    if found:
        yield
        return
    kubeconfig = tmp_path_factory.mktemp("spark") / "kubeconfig"
    kubeconfig.write_text(stage.cluster.kubectl("config", "view", "--minify", "--raw"))
    command = [sys.executable, "-m", "e2e.spark", "--kubeconfig", str(kubeconfig)]
    log = kubeconfig.with_name("log").open("w")
    with log, subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log) as process:
        try:
            yield
        finally:
            process.terminate()
            process.wait(30)


@pytest.fixture
def copies(
    stage: Stage,
    zone: Zone,
    spark_image: str,
    submitter: None,  # noqa: ARG001 - it has to run
) -> Iterator[Copies]:
    """Give a zone whose moves go by Spark, slowly."""
    with slow_copies(stage, zone, spark_image) as slow:
        yield slow


def test_a_copy_runs_in_pods_with_certificates(zone: Zone, copies: Copies) -> None:
    """On one machine Spark has neither pods nor Secrets: only here it shows that both fit."""
    check_copy_in_pods(zone, copies)


def test_executors_are_killed(zone: Zone, copies: Copies) -> None:
    """Where executors are often evicted, a copy that ended with one of them would never end."""
    with zone.under_traffic("Spark executors killed", gap_seconds_max=GAP_SECONDS_MAX):
        task = copies.begin()
        moves = copies.wait_copying(task)
        copies.kill(copies.pods(task, "executor"))
        copies.end(task)
    ((application, state),) = copies.applications(task).items()
    assert state == "COMPLETED"
    said = copies.result(application)
    assert (said["copies"], said["failed"]) == (moves, 0)


def test_a_driver_is_killed(zone: Zone, copies: Copies) -> None:
    """A job without its driver is over: the task must notice, and go on with what is left."""
    with zone.under_traffic("Spark driver killed", gap_seconds_max=GAP_SECONDS_MAX):
        task = copies.begin()
        moves = copies.wait_copying(task)
        copies.kill(copies.pods(task, "driver"))
        copies.end(task)
    # On a busy machine the second driver may not come up in time either.
    *failed, (last, state) = sorted(copies.applications(task).items())
    assert {state for _, state in failed} == {"FAILED"}, failed
    assert state == "COMPLETED"
    said = copies.result(last)
    assert said["failed"] == 0
    assert 0 < said["copies"] - said["skipped"] < moves
