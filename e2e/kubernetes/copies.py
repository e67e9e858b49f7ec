"""Copies by Spark as a case sees them, and the zone in which they happen slowly enough to be hit.

The one case that every way of running SparkApplications must pass is here, too.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator

from e2e.kubernetes.cluster import Cluster, Json
from e2e.kubernetes.conftest import Stage
from e2e.kubernetes.zone import NAMESPACE, POOL, ZONE, Zone

# About twenty seconds of copying for the rows of the zone.
COPIED_BYTES_PER_SECOND = 400_000
# Copies stop no writes; Spark's processes take the cores of all nodes where those are one machine.
GAP_SECONDS_MAX = 30
IN_SPACE = f"--namespace={NAMESPACE}"
_POD = {"coreRequest": "100m", "memory": "512m"}
_LEVEL = "pod-security.kubernetes.io/enforce"


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


@contextlib.contextmanager
def slow_copies(stage: Stage, zone: Zone, spark_image: str) -> Iterator[Copies]:
    """Give a zone on three nodes whose moves go by Spark, slowly; put it back afterwards.

    Its namespace takes only pods of the level "restricted" meanwhile, those of Spark included.
    """
    stage.cluster.kubectl("label", "namespace", NAMESPACE, "--overwrite", f"{_LEVEL}=restricted")
    _patch(stage, spark_image, threshold=1, rate=COPIED_BYTES_PER_SECOND)
    try:
        yield Copies(stage, zone)
    finally:
        _patch(stage, spark_image, threshold=1 << 40, rate=0)
        stage.cluster.kubectl("label", "namespace", NAMESPACE, f"{_LEVEL}-")
        stage.cluster.kubectl("label", "node", stage.workers[3], f"{POOL}-")
        zone.wait_settled(set(stage.workers[:3]), seconds=600)


def _patch(stage: Stage, image: str, *, threshold: int, rate: int) -> None:
    template = {"image": image, "driver": _POD, "executor": {**_POD, "cores": 1, "instances": 2}}
    spec = {
        "transfer": {"sparkThresholdBytes": threshold, "sparkTemplate": template},
        "rebalance": {"maxBytesPerSecond": rate or None},
    }
    stage.cluster.kubectl(
        *("patch", "dz", ZONE, IN_SPACE, "--type=merge", f"--patch={json.dumps({'spec': spec})}")
    )


def check_copy_in_pods(zone: Zone, copies: Copies) -> list[Json]:
    """Let a node join under traffic, prove the copy, and return the pods that made it."""
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
    return [driver, *executors]
