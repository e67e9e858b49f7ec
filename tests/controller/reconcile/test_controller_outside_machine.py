"""What a task or migration says before there is a zone, and after its end."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from rezone.controller.observing.outside_machine import seen_by_operator, without_zone
from rezone.resources.conditions import ConditionType, Reason, condition_of
from rezone.resources.migration import RegionMigration, RegionMigrationStatus

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def migration() -> RegionMigration:
    """Return a migration whose spec was changed three times."""
    metadata = {"name": "m", "namespace": "ns", "uid": "u", "resourceVersion": "5", "generation": 4}
    spec = {"zoneName": "z", "partition": 0, "target": 1}
    return RegionMigration.parse({"metadata": metadata, "spec": spec})


def types_of(status: RegionMigrationStatus) -> set[ConditionType]:
    """Return the types of the conditions."""
    return {c.type for c in status.conditions}


@pytest.mark.parametrize(
    ("found", "stands", "gone"),
    [
        (False, ConditionType.STALLED, ConditionType.RECONCILING),
        (True, ConditionType.RECONCILING, ConditionType.STALLED),
    ],
)
def test_stalled_and_reconciling_never_stand_together(
    found: bool,
    stands: ConditionType,
    gone: ConditionType,
) -> None:
    """Argo CD would show a migration as failed whose zone is there and being made."""
    both = tuple(
        condition_of(kind, value=True, reason=Reason.WAITING, message="", generation=1, now=NOW)
        for kind in (ConditionType.RECONCILING, ConditionType.STALLED)
    )
    status = RegionMigrationStatus(conditions=both)
    after = without_zone(migration(), status, NOW, found=found)
    assert stands in types_of(after)
    assert gone not in types_of(after)
    assert after.observed_generation == 4


def test_an_ended_object_follows_its_generation_and_nothing_else() -> None:
    """A spec changed after the end would leave it Progressing for ever."""
    ended = RegionMigrationStatus(state="Succeeded", observed_generation=1)
    after = seen_by_operator(migration(), ended)
    assert after.observed_generation == 4
    assert after.model_copy(update={"observed_generation": 1}) == ended
