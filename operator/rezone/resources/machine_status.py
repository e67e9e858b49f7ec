"""What the status of every kind with a state machine holds: its state, deadlines and history."""

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
    last_error: LastError | None = None
    history: Annotated[
        tuple[Transition, ...],
        Field(max_length=32, json_schema_extra={"x-list-type": "atomic"}),
    ] = Field(default=(), description="The last states, oldest first.")
