"""RebalanceTask (rbt): one rebalance of a zone, made by the operator or applied by a person."""

import enum
from typing import Annotated, ClassVar

from pydantic import Field

from rezone.resources.conditions import Condition
from rezone.resources.meta import Column as PrinterColumn
from rezone.resources.meta import CrdMeta, Rule
from rezone.resources.model import CompactText, CustomObject, Message, Model, Name, ShortText, Time

MOVES_MAX = 1024


class TaskType(enum.StrEnum):
    """What a task asks for."""

    ZONE = "Zone"  # bring the whole zone to the planner's assignment
    DRAIN = "Drain"  # move everything off the named data nodes
    LEADERS = "Leaders"  # even out leaders, copy nothing
    MOVES = "Moves"  # exactly the moves listed


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

    partition: Annotated[int, Field(ge=0, lt=16_384)]
    replicas: Annotated[
        tuple[Annotated[int, Field(ge=0)], ...],
        Field(min_length=1, max_length=7, json_schema_extra={"x-list-type": "set"}),
    ]


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
            rule="self.zoneName == oldSelf.zoneName && self.type == oldSelf.type",
            message="zoneName and type cannot be changed: apply a new RebalanceTask",
        ),
        Rule(
            rule="!(has(oldSelf.cancel) && oldSelf.cancel) || (has(self.cancel) && self.cancel)",
            message="a cancel cannot be taken back: apply a new RebalanceTask",
            field_path=".cancel",
        ),
    )

    zone_name: Name = Field(description="The zone, in the task's own namespace.")
    type: TaskType = TaskType.ZONE
    nodes: Annotated[
        tuple[Annotated[int, Field(ge=0)], ...],
        Field(max_length=1024, json_schema_extra={"x-list-type": "set"}),
    ] = ()
    moves: Annotated[
        tuple[MoveSpec, ...],
        Field(max_length=MOVES_MAX, json_schema_extra={"x-list-map-keys": ["partition"]}),
    ] = ()
    revision: Annotated[int, Field(ge=0)] = Field(
        default=0,
        description="Set by the operator: the revision of the pending assignment it carries out.",
    )
    approved_plan: Annotated[str, Field(max_length=128)] = Field(
        default="",
        description="The hash of the plan a person approves (status.plan.hash).",
    )
    suspend: bool = False
    cancel: bool = False


class PlanSummary(Model):
    """The plan that is, or will be, carried out; the hash is over all of it."""

    hash: ShortText
    moves: int = Field(description="Replicas to be copied.")
    moves_lower_bound: int = Field(description="The fewest possible for the same balance.")
    leader_moves: int = 0
    bytes_estimate: int = 0
    seconds_estimate: int = 0


class TaskProgress(Model):
    """How far a task is."""

    moves_total: int = 0
    moves_done: int = 0
    leader_moves_total: int = 0
    leader_moves_done: int = 0
    bytes_total: int = 0
    bytes_done: int = 0
    bytes_per_second: int = 0
    seconds_left: int | None = None


class LastError(Model):
    """The last error, kept until the machine advances."""

    reason: ShortText
    message: Message


class Transition(Model):
    """One line of the machine's bounded history."""

    state: ShortText
    time: Time
    message: Annotated[str, Field(max_length=512)] = ""


class RebalanceTaskStatus(Model):
    """The persisted state machine of a rebalance."""

    conditions: Annotated[
        tuple[Condition, ...],
        Field(max_length=8, json_schema_extra={"x-list-map-keys": ["type"]}),
    ] = ()
    observed_generation: int = 0
    state: ShortText = ""
    source: CompactText = Field(default="", description="The assignment before, compact.")
    target: CompactText = Field(default="", description="The assignment after, compact.")
    revision: int = 0
    plan: PlanSummary | None = None
    progress: TaskProgress = TaskProgress()
    spark_application: ShortText = ""
    attempt: int = 0
    started_time: Time | None = None
    finished_time: Time | None = None
    deadline_time: Time | None = None
    waiting_for: Message = Field(default="", description="Why it does not advance just now (B-14).")
    last_error: LastError | None = None
    history: Annotated[
        tuple[Transition, ...],
        Field(max_length=32, json_schema_extra={"x-list-type": "atomic"}),
    ] = ()


class RebalanceTask(CustomObject[RebalanceTaskSpec, RebalanceTaskStatus]):
    """One rebalance of a zone."""

    crd: ClassVar[CrdMeta] = CrdMeta(
        kind="RebalanceTask",
        plural="rebalancetasks",
        short_names=("rbt",),
        columns=(
            PrinterColumn(name="Zone", path=".spec.zoneName"),
            PrinterColumn(name="State", path=".status.state"),
            PrinterColumn(name="Moves", path=".status.progress.movesTotal", type="integer"),
            PrinterColumn(name="Done", path=".status.progress.movesDone", type="integer"),
            PrinterColumn(name="Left", path=".status.progress.secondsLeft", type="integer"),
            PrinterColumn(name="Waiting", path=".status.waitingFor", priority=1),
            PrinterColumn(name="Age", path=".metadata.creationTimestamp", type="date"),
        ),
    )
