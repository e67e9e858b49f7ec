"""What a task or migration says beside its machine: before there is a zone, and after the end."""

from datetime import datetime
from typing import TypeVar

from rezone.domain.machines.waits import with_waiting
from rezone.resources.conditions import (
    ConditionType,
    Reason,
    condition_of,
    drop_condition,
    set_condition,
)
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
        reason, message = Reason.WAITING, f"the partitions of zone {name} are not open yet"
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
    # Never both: tools read Reconciling as "wait" and Stalled as "somebody must act".
    conditions = drop_condition(
        conditions, ConditionType.STALLED if found else ConditionType.RECONCILING
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
    return with_waiting(status, message, None, now).model_copy(
        update={
            "conditions": conditions,
            "observed_generation": generation,
        }
    )


def seen_by_operator(obj: RebalanceTask | RegionMigration, status: S) -> S:
    """Return the status of an object at its end, as of its present generation.

    Nothing follows from a later change of the spec; but with an older generation in its status
    kubectl wait, Argo CD and Flux would wait for an answer for ever.
    """
    return status.model_copy(update={"observed_generation": obj.metadata.generation})
