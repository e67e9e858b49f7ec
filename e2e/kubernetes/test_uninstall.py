"""What is left when the operator goes, and when everything goes; these cases come last."""

from __future__ import annotations

import pytest

from e2e.kubernetes.conftest import CHART, RELEASE, RELEASE_NAMESPACE, Stage
from e2e.kubernetes.zone import KINDS, NAMESPACE, PLANNED, ZONE, Zone

OPERATORS = "app.kubernetes.io/name=rezone,app.kubernetes.io/component=operator"

pytestmark = [pytest.mark.timeout(1200), pytest.mark.proves("OP-08")]


@pytest.mark.proves("OP-06")
def test_uninstalling_leaves_the_data(stage: Stage, zone: Zone) -> None:
    """An uninstalled operator that takes the zones along would delete what people stored."""
    pods = {pod["metadata"]["uid"] for pod in zone.pods()}
    with zone.under_traffic("operator uninstalled and installed again", gap_seconds_max=PLANNED):
        stage.cluster.helm("uninstall", RELEASE, f"--namespace={RELEASE_NAMESPACE}", "--wait")
        operators = ("pods", f"--namespace={RELEASE_NAMESPACE}", f"--selector={OPERATORS}")
        stage.cluster.until(
            "the operators are gone",
            lambda: stage.cluster.items(*operators) == [],
            seconds=90,
            seen=lambda: stage.cluster.kubectl("get", *operators),
        )
        stage.install(CHART)
        zone.wait_settled(stage.base)
    assert {pod["metadata"]["uid"] for pod in zone.pods()} == pods


def test_removing_all_leaves_nothing(stage: Stage, zone: Zone) -> None:
    """Who follows docs/start/install.md to remove all would find claims and definitions left."""
    assert len(zone.pods()) == len(stage.base)
    where = f"--namespace={NAMESPACE}"
    stage.cluster.kubectl("delete", "dz", "--all", where, "--wait", "--timeout=120s", seconds=150)
    owned = ("pods,pvc,services,configmaps,secrets,poddisruptionbudgets", where)
    stage.cluster.until(
        "everything of the zone is gone",
        lambda: not stage.cluster.items(*owned, f"--selector=rezone.dev/zone={ZONE}"),
        seconds=120,
        seen=lambda: stage.cluster.kubectl("get", *owned),
    )
    stage.cluster.until(
        "its volumes are gone",
        lambda: not stage.cluster.items("persistentvolumes"),
        seconds=120,
        seen=lambda: stage.cluster.kubectl("get", "persistentvolumes"),
    )
    stage.cluster.helm("uninstall", RELEASE, f"--namespace={RELEASE_NAMESPACE}", "--wait")
    kinds = [f"{kind}.rezone.dev" for kind in KINDS]
    stage.cluster.kubectl("delete", "crd", *kinds)
    left = ("clusterroles,clusterrolebindings", "--selector=app.kubernetes.io/part-of=rezone")
    assert stage.cluster.items(*left) == []
