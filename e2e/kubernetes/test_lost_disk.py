"""The only disk of a partition is lost: what the zone says, and how a person goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from e2e.kubernetes.cluster import Json
from e2e.kubernetes.conftest import Stage
from e2e.kubernetes.zone import NAMESPACE, condition, reason, zone_manifest

pytestmark = [pytest.mark.timeout(600), pytest.mark.proves("OP-08")]

ZONE = "single"
WHERE = f"--namespace={NAMESPACE}"


@pytest.fixture
def single(stage: Stage) -> Iterator[Stage]:
    """Make a zone of one partition on one disk, as its own manifest would."""
    zone = zone_manifest()
    zone["metadata"]["name"] = ZONE
    replaced: Json = {"partitions": 1, "replicas": 1, "minInSyncReplicas": 1}
    zone["spec"] |= {**replaced, "dataNodes": {"count": 1}}
    stage.cluster.apply(zone)
    _wait(stage, "is ready", lambda: condition(_zone(stage), "Ready") == "True")
    yield stage
    stage.cluster.kubectl("delete", "dz", ZONE, WHERE, "--wait", "--timeout=120s", seconds=150)


def test_a_lost_disk_is_given_up(single: Stage) -> None:
    """A zone that goes on by itself without rows hides their loss; one that cannot is stuck."""
    single.cluster.kubectl("delete", "pvc", f"{ZONE}-0-data", WHERE, "--wait=false")
    single.cluster.kubectl("delete", "pod", f"{ZONE}-0", WHERE, "--force", "--grace-period=0")
    _wait(single, "says that rows are lost", lambda: reason(_zone(single), "Ready") == "QuorumLost")
    single.cluster.apply(_recovery())
    _wait(single, "is ready again", lambda: condition(_zone(single), "Ready") == "True")
    ended = single.cluster.get("rgm", "recover-0", WHERE)
    assert condition(ended, "Succeeded") == "True"
    assert ended["status"]["recovery"]["keptOffset"] == 0


def _recovery() -> Json:
    """Return what docs/operate/failures/lost-quorum.md has people apply."""
    return {
        "apiVersion": "rezone.dev/v1alpha1",
        "kind": "RegionMigration",
        "metadata": {"name": "recover-0", "namespace": NAMESPACE},
        "spec": {
            "zoneName": ZONE,
            "partition": 0,
            "uncleanElection": {"acceptDataLoss": True, "mode": "Empty"},
        },
    }


def _zone(stage: Stage) -> Json:
    return stage.cluster.get("dz", ZONE, WHERE)


def _wait(stage: Stage, what: str, holds: Callable[[], bool]) -> None:
    def seen() -> str:
        return stage.cluster.kubectl("get", "dz,rgm,pods,pvc", WHERE, "--output=yaml")

    stage.cluster.until(f"zone {ZONE} {what}", holds, seconds=180, seen=seen)
