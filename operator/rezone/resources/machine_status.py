"""What the status of every kind with a state machine holds: its state, deadlines and history."""

import enum
from typing import Annotated

from pydantic import Field

from rezone.resources.conditions import ConditionedStatus
from rezone.resources.model import Count, Message, Model, ShortText, Time


class LastError(Model):
    """The last error, kept until the machine advances."""

    reason: ShortText = Field(description="The kind of error.")
    message: Message = Field(description="What happened, and what a person can do.")


class Transition(Model):
    """One line of the machine's bounded history."""

    state: ShortText = Field(description="The state entered.")
    time: Time = Field(description="When.")
    message: Annotated[str, Field(max_length=512)] = Field(default="", description="Why.")


class SparkWatch(Model):
    """What was last seen of the SparkApplication that copies: its deadline counts from there."""

    state: ShortText = Field(description="Its state, as the spark-operator tells it.")
    since_time: Time = Field(
        description="Since when it is in that state; of one that runs, when it last copied.",
    )
    bytes_done: Count = Field(default=0, description="The bytes that had been copied then.")
    given_up: bool = Field(
        default=False,
        description="True: it is being deleted, and the copies stream once it is gone.",
    )


class SparkCopies(Model):
    """How the large copies of an owner travel; it is written before anything is done for it."""

    attempt: Count = Field(
        default=0,
        description="How many SparkApplications were made, at least 1 once the way is decided.",
    )
    application: ShortText = Field(
        default="",
        description="The SparkApplication that copies; empty when data nodes stream directly.",
    )
    watch: SparkWatch | None = None


class WaitingReason(enum.StrEnum):
    """Why a machine does not advance, in one word; `waitingFor` has the rest."""

    PAUSED = "Paused"  # spec.suspend, or a pause of the zone
    AWAITING_APPROVAL = "AwaitingApproval"  # the plan waits for spec.approvedPlan
    PLAN_STALE = "PlanStale"  # another plan was approved than there is now
    CONFLICT = "Conflict"  # another task or transfer works on the same partitions
    RETAINED_LIMIT = "RetainedLimit"  # the zone retains as many old leaders as it may
    UNREACHABLE = "Unreachable"  # a data node that it needs does not answer
    NO_LEADER = "NoLeader"  # nobody can be copied from
    QUORUM_LOST = "QuorumLost"  # whoever had all rows of a partition has lost them
    OPENING = "Opening"  # new replicas or partitions are not open yet
    COPYING = "Copying"  # copies are under way or wait for their turn
    CATCHING_UP = "CatchingUp"  # replicas follow the log and are not in sync yet
    VERIFYING = "Verifying"  # copies are being compared with their sources
    STUCK = "Stuck"  # leader transfers have failed too often
    BROKEN = "Broken"  # what was copied differs, and is made again
    NAME_CONFLICT = "NameConflict"  # another object has a name that is needed
    AWAITING_DELETION = "AwaitingDeletion"  # an earlier object of a name is being deleted
    SPARK_UNAVAILABLE = "SparkUnavailable"  # a SparkApplication does not come to copy
    MAINTENANCE = "Maintenance"  # a data node that shall lead is in maintenance
    LIMIT = "Limit"  # as many moves run as the zone allows
    PULLING_LOG = "PullingLog"  # copies bring older log that named feeds need
    SWITCHING = "Switching"  # leaders are being moved
    CUTTING_OVER = "CuttingOver"  # old partitions are sealed, new ones begin to serve
    STOPPING = "Stopping"  # what is not assigned any more has not stopped yet
    WRITING = "Writing"  # a decision is being written to the API server

    @classmethod
    def of(cls, word: str) -> "WaitingReason | None":
        """Return the reason of this name, None when there is none."""
        return next((each for each in cls if each == word), None)


class WaitedFor(Model):
    """How long a machine has waited for one reason."""

    reason: WaitingReason = Field(description="What it waited for.")
    seconds: Count = Field(description="How long in all; waits of a few seconds are left out.")


class MachineStatus(ConditionedStatus):
    """A persisted state machine."""

    state: ShortText = Field(default="", description="The state of the machine.")
    attempt: Count = Field(default=0, description="How often the current state was tried.")
    started_time: Time | None = Field(default=None, description="When the work began.")
    finished_time: Time | None = Field(default=None, description="When it ended.")
    deadline_time: Time | None = Field(
        default=None,
        description="When the current state counts as failed.",
    )
    waiting_for: Message = Field(default="", description="Why it does not advance just now.")
    waiting_reason: WaitingReason | None = Field(
        default=None,
        description="The same in one word.",
    )
    waiting_since_time: Time | None = Field(
        default=None,
        description="Since when it waits for that.",
    )
    waits: Annotated[
        tuple[WaitedFor, ...],
        Field(max_length=len(WaitingReason), json_schema_extra={"x-list-map-keys": ["reason"]}),
    ] = Field(default=(), description="How long it has waited for each reason, until now.")
    last_error: LastError | None = None
    history: Annotated[
        tuple[Transition, ...],
        Field(max_length=32, json_schema_extra={"x-list-type": "atomic"}),
    ] = Field(default=(), description="The last states, oldest first.")
