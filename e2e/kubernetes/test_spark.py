"""Bulk copies by Spark: driver and executors as pods, with TLS, while they are killed.

Kubeflow's spark-operator runs them where it is installed, else `e2e.spark` does. Every case lets a
node join with copies slowed down, so that something is under way when it is hit.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from e2e.kind.places import default_places
from e2e.kubernetes.cluster import Cluster, Json
from e2e.kubernetes.conftest import ROOT, TAG, Stage
from e2e.kubernetes.zone import NAMESPACE, POOL, ZONE, Zone
from e2e.spark.image import ensure_spark_image

pytestmark = pytest.mark.timeout(1200)

# About twenty seconds of copying for the rows of the zone.
COPIED_BYTES_PER_SECOND = 400_000
# Copies stop no writes; Spark's processes take the cores of all nodes where those are one machine.
GAP_SECONDS_MAX = 30
POD = {"coreRequest": "100m", "memory": "512m"}
LEVEL = "pod-security.kubernetes.io/enforce"
IN_SPACE = f"--namespace={NAMESPACE}"


@pytest.fixture(scope="module")
def spark_image(stage: Stage) -> str:
    """Return the name of an image that every node has, or can pull."""
    if stage.cluster.nodes is None or TAG in os.environ:
        return f"{stage.repository}-spark:{stage.tag}"
    return ensure_spark_image(default_places(), stage.repository)


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


class Copies:
    """What a test sees of the copies of the rebalance under way."""

    def __init__(self, stage: Stage, zone: Zone) -> None:
        self._stage = stage
        self._cluster: Cluster = stage.cluster
        self._zone = zone

    def begin(self) -> str:
        """Let the spare node join and return the task that follows from it."""
        self._cluster.kubectl("label", "node", self._stage.workers[3], f"{POOL}={ZONE}")
        self._until("a rebalance is under way", lambda: bool(self._task()), seconds=120)
        return self._task()

    def _task(self) -> str:
        return str(self._zone.status().get("currentTask", ""))

    def applications(self, task: str) -> dict[str, str]:
        """Return the states of the task's applications by name."""
        found = self._cluster.items(
            "sparkapplications", IN_SPACE, f"--selector=rezone.dev/owner={task}"
        )
        return {
            str(each["metadata"]["name"]): str(
                each.get("status", {}).get("applicationState", {}).get("state", "")
            )
            for each in found
        }

    def pods(self, task: str, role: str) -> list[Json]:
        """Return the running pods of a role, driver or executor."""
        found = self._cluster.items(
            "pods", IN_SPACE, f"--selector=rezone.dev/owner={task},spark-role={role}"
        )
        return [pod for pod in found if pod["status"].get("phase") == "Running"]

    def wait_copying(self, task: str) -> int:
        """Wait until some moves are done and others are not; return how many there are."""

        def between() -> bool:
            progress = self._progress(task)
            return 0 < int(progress.get("movesDone", 0)) < int(progress["movesTotal"])

        # Driver and executors start in seconds where cores are free, in minutes where not.
        self._until("some of the moves are done", between, seconds=600)
        return int(self._progress(task)["movesTotal"])

    def _progress(self, task: str) -> Json:
        status: Json = self._cluster.get("rbt", task, IN_SPACE).get("status", {})
        found: Json = status.get("progress", {"movesTotal": 0})
        return found

    def kill(self, pods: list[Json]) -> None:
        """End pods without a word."""
        names = [str(pod["metadata"]["name"]) for pod in pods]
        self._cluster.kubectl("delete", "pod", *names, IN_SPACE, "--force", "--grace-period=0")

    def end(self, task: str) -> None:
        """Wait until the zone is settled on all four nodes and the task has succeeded."""
        self._zone.wait_settled(set(self._stage.workers), seconds=600)
        # The zone is free for the next rebalance while replicas that left are still being removed.
        self._until("the rebalance is over", lambda: self._state(task) == "Succeeded", seconds=120)

    def _state(self, task: str) -> str:
        return str(self._cluster.get("rbt", task, IN_SPACE)["status"]["state"])

    def result(self, application: str) -> Json:
        """Return what the copy job says it did, the last line of its driver."""
        log = self._cluster.kubectl("logs", f"{application}-driver", IN_SPACE)
        last = [line for line in log.splitlines() if line.startswith('{"copies"')][-1]
        said: Json = json.loads(last)
        return said

    def _until(self, what: str, holds: Callable[[], bool], *, seconds: float) -> None:
        self._cluster.until(what, holds, seconds=seconds, seen=self._zone.describe)


@pytest.fixture
def copies(
    stage: Stage,
    zone: Zone,
    spark_image: str,
    submitter: None,  # noqa: ARG001 - it has to run
) -> Iterator[Copies]:
    """Give a zone on three nodes whose moves go by Spark, slowly; put it back afterwards.

    Its namespace takes only pods of the level "restricted" meanwhile, those of Spark included.
    """
    stage.cluster.kubectl("label", "namespace", NAMESPACE, "--overwrite", f"{LEVEL}=restricted")
    _patch(stage, spark_image, threshold=1, rate=COPIED_BYTES_PER_SECOND)
    try:
        yield Copies(stage, zone)
    finally:
        _patch(stage, spark_image, threshold=1 << 40, rate=0)
        stage.cluster.kubectl("label", "namespace", NAMESPACE, f"{LEVEL}-")
        stage.cluster.kubectl("label", "node", stage.workers[3], f"{POOL}-")
        zone.wait_settled(set(stage.workers[:3]), seconds=600)


def _patch(stage: Stage, image: str, *, threshold: int, rate: int) -> None:
    template = {"image": image, "driver": POD, "executor": {**POD, "cores": 1, "instances": 2}}
    spec = {
        "transfer": {"sparkThresholdBytes": threshold, "sparkTemplate": template},
        "rebalance": {"maxBytesPerSecond": rate or None},
    }
    stage.cluster.kubectl(
        *("patch", "dz", ZONE, IN_SPACE, "--type=merge", f"--patch={json.dumps({'spec': spec})}")
    )


def test_a_copy_runs_in_pods_with_certificates(zone: Zone, copies: Copies) -> None:
    """On one machine Spark has neither pods nor Secrets: only here it shows that both fit."""
    with zone.under_traffic("copy by Spark", gap_seconds_max=GAP_SECONDS_MAX):
        task = copies.begin()
        moves = copies.wait_copying(task)
        (driver,) = copies.pods(task, "driver")
        executors = copies.pods(task, "executor")
        copies.end(task)
    for pod in (driver, *executors):
        secrets = {volume.get("secret", {}).get("secretName") for volume in pod["spec"]["volumes"]}
        assert f"{ZONE}-transfer-tls" in secrets
    assert driver["spec"]["serviceAccountName"] == "rezone-spark"
    ((application, state),) = copies.applications(task).items()
    assert state == "COMPLETED"
    said = copies.result(application)
    assert (said["copies"], said["failed"]) == (moves, 0)


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
