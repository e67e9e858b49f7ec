"""What a task or migration says while its zone does not exist or has no partitions yet."""

from datetime import datetime
from typing import TypeVar

from rezone.resources.conditions import ConditionType, Reason, condition_of, set_condition
from rezone.resources.migration import RegionMigration, RegionMigrationStatus
from rezone.resources.task import RebalanceTask, RebalanceTaskStatus

MISSING_ZONE_SECONDS = 10.0

S = TypeVar("S", RebalanceTaskStatus, RegionMigrationStatus)


def without_zone(
    obj: RebalanceTask | RegionMigration,
    status: S,
    now: datetime,
    *,
    found: bool,
) -> S:
    """Return the status of an object whose zone is missing, or not placed yet."""
    name = obj.spec.zone_name
    if found:
        reason, message = Reason.WAITING, f"zone {name} has no partitions yet"
    else:
        reason = Reason.ZONE_NOT_FOUND
        message = f"there is no DistributionZone {name} in namespace {obj.metadata.namespace}"
    generation = obj.metadata.generation
    conditions = set_condition(
        status.conditions,
        condition_of(
            ConditionType.SUCCEEDED, None, reason, message, generation=generation, now=now
        ),
    )
    if not found:
        stalled = condition_of(
            ConditionType.STALLED,
            value=True,
            reason=reason,
            message=message,
            generation=generation,
            now=now,
        )
        conditions = set_condition(conditions, stalled)
    return status.model_copy(
        update={"conditions": conditions, "waiting_for": message, "observed_generation": generation}
    )
