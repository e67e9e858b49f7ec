"""Conditions after kstatus, their types and reasons, and how one is set.

Ready stands from the first visit. Reconciling and Stalled stand only while True, so that
`kubectl wait`, Argo CD and Flux read an object without knowing its kind.
"""

import enum
from datetime import datetime
from typing import Annotated

from pydantic import Field

from rezone.resources.model import Count, Message, Model, Time


class ConditionStatus(enum.StrEnum):
    """Whether a condition holds."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class ConditionType(enum.StrEnum):
    """All condition types of all kinds."""

    READY = "Ready"  # True: every partition has a leader and all its replicas in sync
    RECONCILING = "Reconciling"  # True while the operator works towards the current spec
    STALLED = "Stalled"  # True while the operator cannot go on without a change by somebody
    REBALANCING = "Rebalancing"  # True while a rebalance of the zone is under way
    UPDATING = "Updating"  # True while pods of an older template are left, or one is replaced
    VOLUME_EXPANDING = "VolumeExpanding"  # True while volumes are smaller than the spec wants
    INDEXING = "Indexing"  # True while an index does not have all rows on some replica
    PAUSED = "Paused"  # True while spec.paused keeps the operator from changing anything by itself
    MAINTENANCE = "Maintenance"  # True while a data node is in maintenance, False while one waits
    DEGRADED = "Degraded"  # True while a partition has too few in-sync replicas, or a disk fails
    SUCCEEDED = "Succeeded"  # tasks and migrations: Unknown while running


class Reason(enum.StrEnum):
    """All reasons; each says when it surfaces."""

    STARTING = "Starting"  # the object was seen for the first time
    AVAILABLE = "Available"  # all is as the spec wants it
    REBALANCING = "Rebalancing"  # a rebalance task is at work
    UPDATING = "Updating"  # pods are replaced by ones of the current template
    VOLUME_EXPANDING = "VolumeExpanding"  # volumes are being made larger
    INDEXING = "Indexing"  # indexes are being built; the message says which, and how far they are
    VOLUME_EXPANSION_FAILED = "VolumeExpansionFailed"  # volumes cannot grow; the message says why
    PODS_NOT_READY = "PodsNotReady"  # data nodes are wanted that do not answer yet
    AWAITING_DELETION = "AwaitingDeletion"  # an earlier zone of this name still has objects
    NAME_CONFLICT = "NameConflict"  # somebody else's object has a name that is needed
    OBJECTS_OUTDATED = "ObjectsOutdated"  # restored from a backup; data nodes know later facts
    FAILED_CREATE = "FailedCreate"  # the API server refuses an object; the message is its answer
    FAILED_DELETE = "FailedDelete"  # a pod or a claim that is not wanted any more does not go
    INVALID_TEMPLATE = "InvalidTemplate"  # podTemplate sets what it may not, or makes no pod
    NAMESPACE_REFUSED = "NamespaceRefused"  # a zone in the operator's own namespace
    NOT_ENOUGH_DATA_NODES = "NotEnoughDataNodes"  # fewer data nodes than replicas
    MAINTENANCE = "Maintenance"  # who is in maintenance until when is in the message
    MAINTENANCE_UNSAFE = "MaintenanceUnsafe"  # a partition cannot spare the data node yet
    INVALID_MAINTENANCE = "InvalidMaintenance"  # an annotation or a data node's id is wrong
    UNDER_REPLICATED = "UnderReplicated"  # an in-sync set is smaller than the replica count
    DATA_CORRUPTION = "DataCorruption"  # replicas have found damage on their disks
    DISK_FULL = "DiskFull"  # a data node has no room, or less than its reserve; others lead
    DISK_FAILED = "DiskFailed"  # a data node's disk refuses to write; others lead
    CLOCK_OFF = "ClockOff"  # a data node's clock is not that of the others; it may lead nothing
    NOT_REACHED = "NotReached"  # others hear data nodes that the operator does not reach
    OPERATOR_CUT_OFF = "OperatorCutOff"  # few data nodes are heard; perhaps it is cut off itself
    DISK_SLOW = "DiskSlow"  # a data node's disk is slow beside the others', or stalls; others lead
    NO_LEADER = "NoLeader"  # a partition has no reachable leader
    QUORUM_LOST = "QuorumLost"  # whoever had all rows of a partition has lost them, or is given up
    UNCLEAN_ELECTION_REFUSED = "UncleanElectionRefused"  # not needed, or would lose too much
    INVALID_SPEC = "InvalidSpec"  # the stored spec breaks a rule the API server did not know
    RETAINED_LIMIT = "RetainedLimit"  # the zone retains as many old leaders as it may
    SPARK_UNAVAILABLE = "SparkUnavailable"  # a SparkApplication does not come to copy
    PAUSED = "Paused"  # spec.paused, spec.rebalance.paused or spec.suspend
    AWAITING_APPROVAL = "AwaitingApproval"  # the plan waits for spec.approvedPlan
    PLAN_STALE = "PlanStale"  # the cluster has changed since the plan was made
    RUNNING = "Running"  # the state machine advances
    WAITING = "Waiting"  # the state machine waits; the message says on what
    SUCCEEDED = "Succeeded"  # the task or migration has ended as asked
    CANCELLED = "Cancelled"  # the task, or the zone's re-sharding, was cancelled; what was kept
    FAILED = "Failed"  # the task ended without reaching its end; the message says why
    TARGET_LOST = "TargetLost"  # a data node that was to take partitions is lost
    NO_SPACE = "NoSpace"  # a data node that was to take partitions has no room on its disk
    PROGRESS_DEADLINE_EXCEEDED = "ProgressDeadlineExceeded"  # a copy or a new pod stands still
    COPY_DIFFERS = "CopyDiffers"  # copies differ from their leaders' rows, made again and again
    TARGET_REPLACED = "TargetReplaced"  # targets failed; the zone's next rebalance has others
    CONFLICT = "Conflict"  # another task works on the same partitions
    ZONE_NOT_FOUND = "ZoneNotFound"  # spec.zoneName names no zone in this namespace


class Condition(Model):
    """One thing the operator says about the object, after Kubernetes' conventions."""

    type: ConditionType = Field(description="What the condition tells about.")
    status: ConditionStatus = Field(description="Whether it is so.")
    reason: Annotated[str, Field(min_length=1, max_length=128)] = Field(
        description="Why, in one word for machines; the reference page lists all.",
    )
    message: Message = Field(default="", description="Why, and what a person can do.")
    observed_generation: Count = Field(
        default=0,
        description="The metadata.generation this was said about.",
    )
    last_transition_time: Time = Field(description="When the status last changed.")


class ConditionedStatus(Model):
    """What the status of each kind begins with."""

    conditions: Annotated[
        tuple[Condition, ...],
        Field(max_length=12, json_schema_extra={"x-list-map-keys": ["type"]}),
    ] = Field(default=(), description="What the operator says about the object.")
    observed_generation: Count = Field(
        default=0,
        description="The metadata.generation the operator has acted on.",
    )


def set_condition(
    conditions: tuple[Condition, ...],
    condition: Condition,
) -> tuple[Condition, ...]:
    """Return the conditions with one set; its transition time moves only when its status does."""
    old = next((c for c in conditions if c.type == condition.type), None)
    if old is not None and old.status == condition.status:
        condition = condition.model_copy(
            update={"last_transition_time": old.last_transition_time},
        )
    others = tuple(c for c in conditions if c.type != condition.type)
    return tuple(sorted((*others, condition), key=lambda c: list(ConditionType).index(c.type)))


def drop_condition(
    conditions: tuple[Condition, ...],
    kind: ConditionType,
) -> tuple[Condition, ...]:
    """Return the conditions without one type; for those that stand only while True."""
    return tuple(c for c in conditions if c.type != kind)


def condition_of(
    kind: ConditionType,
    value: bool | None,  # noqa: FBT001 - the value is the subject of the call
    reason: Reason,
    message: str,
    *,
    generation: int,
    now: datetime,
) -> Condition:
    """Return a condition; `value` None means Unknown."""
    status = {
        True: ConditionStatus.TRUE,
        False: ConditionStatus.FALSE,
        None: ConditionStatus.UNKNOWN,
    }
    return Condition(
        type=kind,
        status=status[value],
        reason=reason,
        message=message[:4096],
        observed_generation=generation,
        last_transition_time=now.replace(microsecond=0),
    )
