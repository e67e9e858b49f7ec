"""The installation goes on to other images, as with every release: operators and all data nodes."""

from __future__ import annotations

import pytest

from e2e.kubernetes.cluster import Nodes
from e2e.kubernetes.conftest import CHART, Stage
from e2e.kubernetes.zone import PLANNED, Zone

pytestmark = [pytest.mark.timeout(1200), pytest.mark.proves("OP-08")]


@pytest.fixture
def next_tag(stage: Stage, machines: Nodes) -> str:
    """Give the images a second tag on every node that may run them."""
    tag = f"{stage.tag}-next"
    for node in stage.workers:
        for repository in (stage.repository, f"{stage.repository}-data-node"):
            name = f"docker.io/{repository}"
            images = ("ctr", "--namespace=k8s.io", "images")
            machines.execute(
                node, *images, "tag", "--force", f"{name}:{stage.tag}", f"{name}:{tag}"
            )
    return tag


@pytest.mark.proves("OP-06")
def test_the_images_are_upgraded_and_rolled_back(stage: Stage, zone: Zone, next_tag: str) -> None:
    """An upgrade that takes data nodes away faster than they catch up stops writers."""
    with zone.under_traffic("images upgraded", gap_seconds_max=PLANNED):
        stage.install(CHART, f"--set=image.tag={next_tag}")
        _wait_until_all_run(stage, zone, next_tag)
    with zone.under_traffic("images rolled back", gap_seconds_max=PLANNED):
        stage.install(CHART)
        _wait_until_all_run(stage, zone, stage.tag)


def _wait_until_all_run(stage: Stage, zone: Zone, tag: str) -> None:
    def updated() -> bool:
        images = {pod["spec"]["containers"][0]["image"] for pod in zone.pods()}
        return images == {f"{stage.repository}-data-node:{tag}"}

    stage.cluster.until(
        f"all data nodes run images of {tag}", updated, seconds=300, seen=zone.describe
    )
    zone.wait_settled(stage.base)
