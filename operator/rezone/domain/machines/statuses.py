"""How the two machines write their status: entering a state, waiting, and conditions.

Shared by RegionMigration and RebalanceTask, so that history, deadlines and conditions mean the
same in both. Everything here returns a new status and leaves the old one as it was; a pass that
changes nothing returns an equal status, which is then not written.
"""

import dataclasses
from datetime import datetime, timedelta
from typing import Generic, TypeVar

from rezone.domain.machines.machine import Table
from rezone.domain.machines.waits import with_waiting
from rezone.domain.model.world import Action
from rezone.resources.conditions import (
    Condition,
    ConditionType,
    Reason,
    condition_of,
    drop_condition,
    set_condition,
)
from rezone.resources.machine_status import LastError, Transition
from rezone.resources.migration import RegionMigrationStatus
from rezone.resources.task import RebalanceTaskStatus

HISTORY_MAX = 32
HISTORY_MESSAGE_MAX = 512
MESSAGE_MAX = 4096
QUIET_SECONDS = 10.0
"""A reason for waiting is written only when the wait lasts this long: most waits are shorter than
the write would take, and every write is a round trip to the API server."""

StatusT = TypeVar("StatusT", RegionMigrationStatus, RebalanceTaskStatus)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decision(Generic[StatusT]):
    """What one pass decides.

    The controller writes `status` if it differs from the stored one, and only when that has
    succeeded carries out `actions`. It decides again when something observed has changed, at the
    latest after `wake_seconds` (None: the machine has ended). `path` are the states walked
    through in this pass, for logs: not all of them are written.
    """

    status: StatusT
    actions: tuple[Action, ...] = ()
    wake_seconds: float | None = None
    path: tuple[str, ...] = ()


def enter(
    status: StatusT,
    table: Table,
    state: str,
    now: datetime,
    *,
    message: str = "",
    extra_seconds: float = 0.0,
) -> StatusT:
    """Return the status with a new state: its history line, its deadline, and no waiting."""
    row = table.state(state)
    time = now.replace(microsecond=0)
    line = Transition(state=state, time=time, message=message[:HISTORY_MESSAGE_MAX])
    deadline = None
    if row.deadline_seconds is not None:
        deadline = time + timedelta(seconds=row.deadline_seconds + extra_seconds)
    return with_waiting(status, "", None, now).model_copy(
        update={
            "state": state,
            "history": (*status.history, line)[-HISTORY_MAX:],
            "deadline_time": deadline,
            "started_time": status.started_time or time,
            "finished_time": time if row.terminal else None,
        },
    )


def entered_time(status: RegionMigrationStatus | RebalanceTaskStatus, now: datetime) -> datetime:
    """Return since when the machine is in its state."""
    return status.history[-1].time if status.history else now


def is_late(status: RegionMigrationStatus | RebalanceTaskStatus, now: datetime) -> bool:
    """Return whether the state's deadline has passed."""
    return status.deadline_time is not None and now > status.deadline_time


def with_error(status: StatusT, reason: Reason, message: str) -> StatusT:
    """Return the status with the error that shall be read in it."""
    error = LastError(reason=reason, message=message[:MESSAGE_MAX])
    return status.model_copy(update={"last_error": error})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Standing:
    """What the conditions shall say: `succeeded` None while running; Stalled: a person must act."""

    succeeded: bool | None
    reason: Reason
    message: str = ""
    stalled: bool = False


def with_conditions(
    status: StatusT,
    standing: Standing,
    *,
    generation: int,
    now: datetime,
) -> StatusT:
    """Return the status with its conditions; unchanged ones keep their transition time.

    Succeeded stands always. Reconciling stands while the machine can go on by itself, Stalled
    while it cannot; never both, so that kstatus reads one meaning.
    """
    running = standing.succeeded is None and not standing.stalled
    conditions = status.conditions
    for kind, value in (
        (ConditionType.SUCCEEDED, standing.succeeded),
        (ConditionType.RECONCILING, running or None),
        (ConditionType.STALLED, standing.stalled or None),
    ):
        if value is None and kind is not ConditionType.SUCCEEDED:
            conditions = drop_condition(conditions, kind)
            continue
        wanted = condition_of(
            kind,
            value,
            standing.reason,
            standing.message,
            generation=generation,
            now=now,
        )
        conditions = _unless_equal(conditions, wanted)
    return status.model_copy(update={"conditions": conditions, "observed_generation": generation})


def _unless_equal(
    conditions: tuple[Condition, ...],
    wanted: Condition,
) -> tuple[Condition, ...]:
    for old in conditions:
        same_time = wanted.model_copy(update={"last_transition_time": old.last_transition_time})
        if old == same_time:
            return conditions
    return set_condition(conditions, wanted)
