"""What the operator has observed and decided of a zone: data nodes, assignments, the roll-out."""

import enum
from typing import Annotated

from pydantic import Field, field_validator

from rezone.resources.conditions import ConditionedStatus
from rezone.resources.copy_progress import RepairProgress
from rezone.resources.machine_status import SparkCopies
from rezone.resources.model import CompactText, Count, Model, NodeNumber, ShortText, Time

DATA_NODES_MAX = 1024
WEIGHT_MAX = 1000
RETAINED_MAX = 256
"""So many old leaders may be kept beside the assignment at one time: the status has a limit."""


class DataNodeState(enum.StrEnum):
    """The life of a data node."""

    STARTING = "Starting"  # its pod is made, it does not answer yet
    ACTIVE = "Active"  # it answers and may hold partitions
    DRAINING = "Draining"  # it gives its partitions away
    LOST = "Lost"  # its pod or Kubernetes node is gone for good


class MaintenanceState(enum.StrEnum):
    """How far a request for maintenance is."""

    WAITING = "Waiting"  # a partition cannot spare the data node yet
    ACTIVE = "Active"  # its leaders leave, its data stays, and it is not replaced
    OVER = "Over"  # its time is over: the usual rules hold again


class MaintenanceStatus(Model):
    """A request that a data node be left alone for a while."""

    since_time: Time = Field(description="When the operator saw the request first.")
    until_time: Time = Field(description="When the usual rules hold again.")
    state: MaintenanceState = Field(description="How far the request is.")
    waiting_for: ShortText = Field(default="", description="Why it has not begun.")


class PlacedAs(Model):
    """What an assignment took a data node for."""

    weight: Annotated[int, Field(ge=1, le=WEIGHT_MAX)] = Field(description="Its weight by then.")
    failure_domain: ShortText = Field(default="", description="Its failure domain by then.")


class DataNodeStatus(Model):
    """One data node: its id, pod and place."""

    id: NodeNumber = Field(description="Its number within the zone, never used again.")
    pod_name: ShortText = Field(description="Its pod.")
    node_name: ShortText = Field(default="", description="The Kubernetes node its pod is on.")
    address: ShortText = Field(default="", description="Where it serves, as host and port.")
    failure_domain: ShortText = Field(default="", description="The value of failureDomainKey.")
    weight: Annotated[int, Field(ge=1, le=WEIGHT_MAX)] = Field(
        default=1,
        description="The value of weightKey.",
    )
    placed_as: PlacedAs | None = Field(
        default=None,
        description="What the newest assignment took it for; absent before the first.",
    )
    trigger_time: Time | None = Field(
        default=None,
        description="Since when it is not what the newest assignment takes it for: lost, new, or "
        "with another weight or failure domain.",
    )
    maintenance: MaintenanceStatus | None = None
    state: DataNodeState = Field(
        default=DataNodeState.STARTING,
        description="Where it is in its life.",
    )

    @field_validator("placed_as", mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        """Read what was stored before this was an object: "1@zone-a", or "" for none."""
        if not isinstance(value, str):
            return value
        weight, _, domain = value.partition("@")
        return {"weight": weight, "failureDomain": domain} if value else None


class Assignment(Model):
    """Which data nodes hold each partition, written compactly: "0,1,2;1,2,3" (partition 0, 1).

    Texts over 64 KiB have their ids in base 36, as `routing.topology_text` says. The first of a
    partition's nodes is its preferred leader. `revision` is the revision of the trigger that made
    it; it compares like ZR-04's timestamps. Partitions of two layout versions have
    other ranges and ids: a pending assignment of another version than the stable one is a
    re-sharding.
    """

    revision: Count = Field(description="The revision of the trigger that made it.")
    layout_version: Count = Field(
        default=0,
        description="The version of the partition layout: a re-sharding makes the next one.",
    )
    replicas: CompactText = Field(
        description="The data nodes of each partition, as in 0,1,2;1,2,3; in large zones as in "
        "base36x2:000102;010203, ids with two digits of base 36 each.",
    )
    filled_by: ShortText = Field(
        default="",
        description="The overwrite whose job brings the rows of these partitions; empty for any "
        "other assignment.",
    )


class CancelIntent(Model):
    """The pair of topologies of the rebalance to be cancelled, by pending's revision.

    In large zones they are left empty where they are those of `stable` and `pending`.
    """

    revision: Count = Field(description="The revision of the pending assignment to be cancelled.")
    old: CompactText = Field(description="The assignment to go back to; empty: stable.")
    new: CompactText = Field(description="The assignment to be given up; empty: pending.")


class RetainedReplica(Model):
    """A replica beside the assignment: the old leader of a migration by hand."""

    partition: Count = Field(description="The id of its partition, as in a migration's context.")
    node: NodeNumber = Field(description="The data node that has it.")
    migration: ShortText = Field(
        description="The RegionMigration that kept it; empty when nobody has asked for it."
    )
    retained_time: Time = Field(description="Since when it is beside the assignment.")
    retain_until_time: Time | None = Field(
        default=None,
        description="When it is removed; without one, when a rebalance moves the partition.",
    )
    waiting_for: ShortText = Field(
        default="", description="Why it is still there when its time is over."
    )


CommitTime = Annotated[int, Field(ge=0, lt=1 << 53)]
"""Microseconds since 1970: beyond `Count`, and a whole number for API servers until 2255."""


class Overwrite(Model):
    """The last overwrite of the zone that is done. Times are commit times in microseconds."""

    name: ShortText = Field(description="The name that its driver has asked for it by.")
    layout_version: Count = Field(description="The version of the layout that it has filled.")
    readable_from: CommitTime = Field(
        description="The earliest commit time as of which partitions of that layout version, and "
        "of later ones, may be read."
    )
    old_readable_from: CommitTime = Field(
        default=0,
        description="The earliest commit time as of which partitions of earlier layout versions "
        "may be read.",
    )


class Assignments(Model):
    """What is assigned, what shall be, and what is to be cancelled: five keys."""

    stable: Assignment | None = Field(default=None, description="The assignment in use.")
    pending: Assignment | None = Field(
        default=None,
        description="The assignment a rebalance is working towards.",
    )
    planned: Assignment | None = Field(default=None, description="The one after the pending one.")
    change: Count = Field(default=0, description="The revision of the newest trigger seen.")
    revision_offset: Count = Field(
        default=0,
        description="Added to the revisions that data nodes are told. Raised when the objects were "
        "restored from a backup and data nodes know later revisions.",
    )
    cancel: CancelIntent | None = Field(default=None, description="A rebalance to be cancelled.")
    last_layout_version: Count = Field(
        default=0,
        description="The newest layout version that any assignment has had; none is used again.",
    )
    cancelled_partitions: Annotated[int, Field(ge=0, le=16_384)] = Field(
        default=0,
        description="The number of partitions whose re-sharding was cancelled: it is not begun "
        "again before spec.partitions changes.",
    )
    overwrite: Overwrite | None = Field(
        default=None, description="The last overwrite of the zone that is done."
    )
    cancelled_overwrite: ShortText = Field(
        default="",
        description="The overwrite that was cancelled last: it is not begun again by that name.",
    )
    retained: Annotated[
        tuple[RetainedReplica, ...],
        Field(
            max_length=RETAINED_MAX, json_schema_extra={"x-list-map-keys": ["partition", "node"]}
        ),
    ] = Field(default=(), description="Old leaders that are kept beside the stable assignment.")


class RolloutStatus(Model):
    """A rolling update under way; it is gone when every pod has the zone's template."""

    template_hash: ShortText = Field(default="", description="Names the template it works towards.")
    started_time: Time = Field(description="When the first outdated pod was seen.")
    updated: Count = Field(default=0, description="Data nodes whose pods have that template.")
    outdated: Count = Field(default=0, description="Data nodes whose pods have an older one.")
    node: NodeNumber | None = Field(
        default=None,
        description="The data node whose pod is being replaced.",
    )
    pod_uid: ShortText = Field(
        default="",
        description="The pod that is replaced; another one of the same name is its successor.",
    )
    replace_time: Time | None = Field(
        default=None,
        description="Since when that pod is being replaced.",
    )
    blocked_time: Time | None = Field(
        default=None,
        description="Since when no pod may be replaced because a data node is away or lags.",
    )
    waiting_for: Annotated[str, Field(max_length=1024)] = Field(
        default="",
        description="What it waits for.",
    )


class DistributionZoneStatus(ConditionedStatus):
    """What the operator has observed and decided."""

    # Autoscalers read it as an int32; the server refuses a larger one in /scale.
    replicas: Annotated[int, Field(ge=0, le=2_147_483_647)] = Field(
        default=0,
        description="Data nodes that exist; read by /scale.",
    )
    selector: ShortText = Field(
        default="",
        description="The label selector of the data nodes' pods; read by /scale.",
    )
    ready_data_nodes: Count = Field(default=0, description="Data nodes that answer.")
    partitions_ready: Count = Field(default=0, description="Partitions with all replicas in sync.")
    under_replicated: Count = Field(
        default=0,
        description="Partitions with fewer in-sync replicas than wanted.",
    )
    current_task: ShortText = Field(default="", description="The RebalanceTask at work.")
    next_node_id: NodeNumber = Field(default=0, description="The id the next data node gets.")
    data_nodes: Annotated[
        tuple[DataNodeStatus, ...],
        Field(max_length=DATA_NODES_MAX, json_schema_extra={"x-list-map-keys": ["id"]}),
    ] = Field(default=(), description="The data nodes.")
    assignments: Assignments = Assignments()
    rollout: RolloutStatus | None = None
    repair_copies: SparkCopies | None = None
    repair_progress: RepairProgress | None = None
