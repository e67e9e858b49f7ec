"""The number of partitions of a zone in use is changed, and changed back."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest

from e2e.kubernetes.conftest import CHART, Stage
from e2e.kubernetes.test_cluster import patch
from e2e.kubernetes.zone import NAMESPACE, PARTITIONS, PLANNED, ZONE, Zone

pytestmark = [pytest.mark.timeout(1200), pytest.mark.proves("OP-08")]

MORE = 20
SECONDS = 400


@pytest.fixture
def brief(stage: Stage) -> Iterator[Stage]:
    """Have old partitions go soon after the new ones serve."""
    stage.install(CHART, "--set=settings.reshardingGraceSeconds=5")
    yield stage
    stage.install(CHART)


@pytest.mark.proves("B-08", "ZR-02")
def test_partitions_are_changed_and_changed_back(brief: Stage, zone: Zone) -> None:
    """A row that a seal leaves behind, or that both sides take, is lost or counted twice.

    The proof compares every copy of the partitions that are there at the end.
    """
    with zone.under_traffic("partitions changed twice", gap_seconds_max=PLANNED):
        for partitions in (MORE, PARTITIONS):
            patch(brief, {"spec": {"partitions": partitions}})
            brief.cluster.until(
                f"there are {partitions} partitions, and the old ones are gone",
                functools.partial(_has_only, brief, partitions),
                seconds=SECONDS,
                seen=zone.describe,
            )
            zone.wait_settled(brief.base)


def _has_only(stage: Stage, partitions: int) -> bool:
    """Whether the zone has routes of so many partitions, of whichever layout."""
    selector = f"--selector=rezone.dev/zone={ZONE},app.kubernetes.io/component=routes"
    shards = stage.cluster.items("configmaps", f"--namespace={NAMESPACE}", selector)
    return sum(len(shard.get("data") or {}) for shard in shards) == partitions
