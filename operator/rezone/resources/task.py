"""RebalanceTask (rbt): one rebalance of a zone, made by the operator or applied by a person."""

import enum
from typing import Annotated, ClassVar

from pydantic import Field, field_validator

from rezone.resources.copy_progress import CopiesProgress
from rezone.resources.machine_status import MachineStatus, SparkWatch
from rezone.resources.meta import Column as PrinterColumn
from rezone.resources.meta import CrdMeta, Rule
from rezone.resources.model import (
    CompactText,
    Count,
    CustomObject,
    Model,
    Name,
    NodeNumber,
    ShortText,
)

MOVES_MAX = 1024
PARTITION_GAPS_MAX = 64
RANGES_MAX = 1000
"""How many ranges of partitions a plan's reasons name in all: about 30 KiB of the status."""
HANDOVERS_MAX = 1024


class TaskType(enum.StrEnum):
    """What a task asks for."""

    ZONE = "Zone"  # bring the whole zone to the planner's assignment
    DRAIN = "Drain"  # move everything off the named data nodes
    LEADERS = "Leaders"  # even out leaders, copy nothing
    MOVES = "Moves"  # exactly the moves listed
    RESHARD = "Reshard"  # another number of partitions; made by the operator alone


class TaskState(enum.StrEnum):
    """The states of a rebalance (design: RebalanceTask)."""

    PLANNED = "Planned"
    APPROVED = "Approved"
    AWAITING_REPLICAS = "AwaitingReplicas"
    TRANSFERRING = "Transferring"
    SWITCHING = "Switching"
    FINALIZING = "Finalizing"
    STOPPING_REDUNDANT = "StoppingRedundant"
    SUCCEEDED = "Succeeded"
    CANCELLING = "Cancelling"
    CANCELLED = "Cancelled"
    FAILED = "Failed"


TERMINAL_TASK_STATES = frozenset({TaskState.SUCCEEDED, TaskState.CANCELLED, TaskState.FAILED})


class MoveSpec(Model):
    """Where one partition shall live; the first node is its preferred leader."""

    # Not a list of type set: server-side apply does not promise to keep a set's order.
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="self.replicas.all(r, self.replicas.exists_one(x, x == r))",
            message="a data node may stand only once in a move's replicas: remove the repetition",
            field_path=".replicas",
        ),
    )

    partition: Annotated[int, Field(ge=0, lt=16_384)] = Field(
        description="The partition to be moved.",
    )
    replicas: Annotated[
        tuple[NodeNumber, ...],
        Field(min_length=1, max_length=7, json_schema_extra={"x-list-type": "atomic"}),
    ] = Field(description="The ids of its data nodes; the first is its preferred leader.")


class RebalanceTaskSpec(Model):
    """What shall be moved; a request, not a verb: suspend and cancel are declared too."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="self.type != 'Drain' || (has(self.nodes) && size(self.nodes) > 0)",
            message="a task of type Drain must name the data nodes to drain in spec.nodes",
            field_path=".nodes",
        ),
        Rule(
            rule="self.type != 'Moves' || (has(self.moves) && size(self.moves) > 0)",
            message="a task of type Moves must list its moves in spec.moves",
            field_path=".moves",
        ),
        Rule(
            rule="self.type == 'Drain' || !has(self.nodes) || size(self.nodes) == 0",
            message="spec.nodes is only for tasks of type Drain",
            field_path=".nodes",
        ),
        Rule(
            rule="self.type == 'Moves' || !has(self.moves) || size(self.moves) == 0",
            message="spec.moves is only for tasks of type Moves",
            field_path=".moves",
        ),
        Rule(
            rule="self.type != 'Reshard' || (has(self.revision) && self.revision > 0)",
            message="a task of type Reshard is made by the operator: change spec.partitions of the "
            "zone",
            field_path=".type",
        ),
        Rule(
            rule="self.zoneName == oldSelf.zoneName",
            message="zoneName cannot be changed: apply a new RebalanceTask",
            field_path=".zoneName",
        ),
        Rule(
            rule="self.type == oldSelf.type",
            message="type cannot be changed: apply a new RebalanceTask",
            field_path=".type",
        ),
        Rule(
            rule="has(self.nodes) == has(oldSelf.nodes) && "
            "(!has(self.nodes) || self.nodes == oldSelf.nodes)",
            message="nodes cannot be changed: cancel this one and apply a new RebalanceTask",
            field_path=".nodes",
        ),
        Rule(
            rule="has(self.moves) == has(oldSelf.moves) && "
            "(!has(self.moves) || self.moves == oldSelf.moves)",
            message="moves cannot be changed: cancel this one and apply a new RebalanceTask",
            field_path=".moves",
        ),
        Rule(
            rule="!(has(oldSelf.cancel) && oldSelf.cancel) || (has(self.cancel) && self.cancel)",
            message="a cancel cannot be taken back: apply a new RebalanceTask",
            field_path=".cancel",
        ),
    )

    zone_name: Name = Field(description="The zone, in the task's own namespace.")
    type: TaskType = Field(default=TaskType.ZONE, description="What the task asks for.")
    nodes: Annotated[
        tuple[NodeNumber, ...],
        Field(max_length=1024, json_schema_extra={"x-list-type": "set"}),
    ] = Field(default=(), description="The ids of the data nodes to drain; only for type Drain.")
    moves: Annotated[
        tuple[MoveSpec, ...],
        Field(max_length=MOVES_MAX, json_schema_extra={"x-list-map-keys": ["partition"]}),
    ] = Field(default=(), description="The moves, one per partition; only for type Moves.")
    revision: Count = Field(
        default=0,
        description="Set by the operator: the revision of the pending assignment it carries out.",
    )
    approved_plan: Annotated[str, Field(max_length=128)] = Field(
        default="",
        description="The hash of the plan a person approves (status.plan.hash).",
    )
    suspend: bool = Field(
        default=False,
        description="True: start no new moves until it is false again; running ones finish.",
    )
    cancel: bool = Field(
        default=False,
        description="True: bring every partition that has not switched back to where it was.",
    )


class Why(enum.StrEnum):
    """Why replicas of a partition move; the first that applies is named."""

    INITIAL = "Initial"  # the partition had no replicas
    PINNED = "Pinned"  # a person asked for exactly this
    NODE_UNAVAILABLE = "NodeUnavailable"  # a node that held it is gone or draining
    REPLICA_COUNT = "ReplicaCount"  # it had too few or too many replicas
    FAILURE_DOMAIN = "FailureDomain"  # its replicas were not spread over the domains
    BALANCE = "Balance"  # a node had more or less than its share


class PartitionRange(Model):
    """Partitions that follow one another."""

    first: Count = Field(description="The first.")
    last: Count = Field(description="The last, which may be the first.")


class MoveReason(Model):
    """The partitions whose replicas move for one reason."""

    reason: Why = Field(description="Why they move.")
    partitions: Count = Field(description="How many they are.")
    ranges: Annotated[
        tuple[PartitionRange, ...],
        Field(max_length=RANGES_MAX, json_schema_extra={"x-list-type": "atomic"}),
    ] = Field(
        default=(),
        description="Which they are; the first ones where a plan has more than a thousand ranges.",
    )


class PlanSummary(Model):
    """The plan that is, or will be, carried out; the hash is over all of it."""

    hash: ShortText = Field(description="Names the plan: copy it to spec.approvedPlan to approve.")
    moves: Count = Field(description="Replicas to be copied.")
    moves_lower_bound: Count = Field(description="The fewest possible for the same balance.")
    leader_moves: Count = Field(default=0, description="Leaderships to be handed over.")
    bytes_estimate: Count = Field(default=0, description="Bytes to be copied, about.")
    seconds_estimate: Count = Field(default=0, description="How long it will take, about.")
    reasons: Annotated[
        tuple[MoveReason, ...],
        Field(max_length=6, json_schema_extra={"x-list-map-keys": ["reason"]}),
    ] = Field(default=(), description="Why each partition whose replicas move does so.")


class PartitionGap(Model):
    """For how long the transfer of a partition's leader, or its cut-over, stopped writes."""

    partition: Count = Field(description="The partition; of a re-sharding the old one.")
    milliseconds: Count = Field(description="How long no write could be committed.")


class WriteUnavailability(Model):
    """For how long leader transfers, or cut-overs, stopped writes, as new leaders measured it."""

    transfers: Count = Field(description="How many transfers or cut-overs are known.")
    total_milliseconds: Count = Field(description="All of them added up.")
    max_milliseconds: Count = Field(description="The longest.")
    longest: Annotated[
        tuple[PartitionGap, ...],
        Field(max_length=PARTITION_GAPS_MAX, json_schema_extra={"x-list-map-keys": ["partition"]}),
    ] = Field(default=(), description="The partitions with the longest, at most 64.")


class Handover(Model):
    """A partition whose leader is moving without a migration."""

    partition: Count = Field(description="The partition.")
    leader_epoch: Count = Field(description="The leader epoch that it had before.")


class ClientsServed(Model):
    """How busy the busiest data node was with clients while copies were made."""

    samples: Count = Field(description="How many times it was looked at.")
    total_percent: Count = Field(
        description="For how much of the time it served clients then; all samples added up.",
    )
    max_percent: Count = Field(description="The most of one sample.")


class TaskProgress(CopiesProgress):
    """How far a task is."""

    moves_total: Count = Field(default=0, description="Replicas to be copied.")
    moves_done: Count = Field(default=0, description="Replicas that are copied and in use.")
    leader_moves_total: Count = Field(default=0, description="Leaderships to be handed over.")
    leader_moves_done: Count = Field(default=0, description="Leaderships handed over.")
    clients_served: ClientsServed | None = Field(
        default=None,
        description="How busy data nodes were with clients meanwhile; absent while it is unknown.",
    )

    @property
    def counts(self) -> tuple[tuple[int, int], ...]:
        """The replicas that are copied, and the leaderships handed over, each of all."""
        return (
            (self.moves_done, self.moves_total),
            (self.leader_moves_done, self.leader_moves_total),
        )


class RebalanceTaskStatus(MachineStatus):
    """The persisted state machine of a rebalance."""

    source: CompactText = Field(default="", description="The assignment before, compact.")
    target: CompactText = Field(default="", description="The assignment after, compact.")
    outcome: CompactText = Field(
        default="",
        description="The assignment that it ends with, compact, when targets of the plan failed; "
        "empty: the target.",
    )
    revision: Count = Field(default=0, description="The revision of the assignment it works on.")
    layout_version: Count = Field(
        default=0,
        description="Of a re-sharding: the layout version of the new partitions.",
    )
    plan: PlanSummary | None = None
    progress: TaskProgress = TaskProgress()
    spark_application: ShortText = Field(
        default="",
        description="The SparkApplication that copies; empty when data nodes stream directly.",
    )
    spark_watch: SparkWatch | None = None
    copies_dropped: Count = Field(
        default=0,
        description="Copies that differed from their leader's rows and were dropped, to be made "
        "again.",
    )
    write_unavailability: WriteUnavailability | None = Field(
        default=None,
        description="What its leader transfers or cut-overs have cost those who write, until now.",
    )
    handovers: Annotated[
        tuple[Handover, ...],
        Field(max_length=HANDOVERS_MAX, json_schema_extra={"x-list-map-keys": ["partition"]}),
    ] = Field(
        default=(),
        description="The partitions whose leaders are moving without a migration, each with the "
        "leader epoch it had.",
    )

    @field_validator("handovers", mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        """Read what was stored before this was a list: "17@4 18@4"."""
        if not isinstance(value, str):
            return value
        pairs = (each.split("@") for each in value.split())
        return tuple({"partition": partition, "leaderEpoch": epoch} for partition, epoch in pairs)


class RebalanceTask(CustomObject[RebalanceTaskSpec, RebalanceTaskStatus]):
    """One rebalance of a zone, made by the operator or applied by a person."""

    # A driver pod and a label carry the name of the task's SparkApplication, with a suffix.
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$') && "
            "size(self.metadata.name) <= 55",
            message="the name of a RebalanceTask starts with a letter and has at most 55 "
            "characters, lower-case letters, digits and '-': choose another name",
            field_path=".metadata.name",
        ),
    )
    crd: ClassVar[CrdMeta] = CrdMeta(
        kind="RebalanceTask",
        plural="rebalancetasks",
        short_names=("rbt",),
        selectable_fields=(".spec.zoneName",),
        columns=(
            PrinterColumn(name="Zone", path=".spec.zoneName"),
            PrinterColumn(name="State", path=".status.state"),
            PrinterColumn(name="Moves", path=".status.progress.movesTotal", type="integer"),
            PrinterColumn(name="Done", path=".status.progress.movesDone", type="integer"),
            PrinterColumn(name="Left", path=".status.progress.secondsLeft", type="integer"),
            PrinterColumn(name="Waiting", path=".status.waitingReason"),
            PrinterColumn(name="Age", path=".metadata.creationTimestamp", type="date"),
        ),
    )
