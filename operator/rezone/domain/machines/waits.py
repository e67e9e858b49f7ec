"""How long a machine has waited for what: added up in its status as one reason follows another.

A reason is written once a wait has lasted for a while (`statuses.QUIET_SECONDS`), so shorter waits
are in no sum.
"""

from datetime import datetime, timedelta
from typing import TypeVar

from rezone.resources.machine_status import MachineStatus, WaitedFor, WaitingReason
from rezone.resources.migration import RegionMigrationStatus
from rezone.resources.task import RebalanceTaskStatus

StatusT = TypeVar("StatusT", RegionMigrationStatus, RebalanceTaskStatus)

FIRST_REASON_SECONDS = 20.0
"""The first reason that a state gives within this time has been one since the state was entered."""


def with_waiting(status: StatusT, why: str, reason: WaitingReason | None, now: datetime) -> StatusT:
    """Return the status that waits for this from now on, None: for nothing."""
    if reason is status.waiting_reason:
        return status.model_copy(update={"waiting_for": why})
    at = now.replace(microsecond=0)
    return status.model_copy(
        update={
            "waiting_for": why,
            "waiting_reason": reason,
            "waiting_since_time": None if reason is None else _begun(status, at),
            "waits": _with_last(status, at),
        }
    )


def waits_until(status: MachineStatus, now: datetime) -> tuple[WaitedFor, ...]:
    """Return the sums with the wait under way, the longest first."""
    return tuple(sorted(_with_last(status, now), key=lambda each: (-each.seconds, each.reason)))


def _begun(status: MachineStatus, at: datetime) -> datetime:
    entered = status.history[-1].time if status.history else at
    first = status.waiting_reason is None and at - entered < timedelta(seconds=FIRST_REASON_SECONDS)
    return entered if first else at


def _with_last(status: MachineStatus, at: datetime) -> tuple[WaitedFor, ...]:
    reason, since = status.waiting_reason, status.waiting_since_time
    if reason is None or since is None:
        return status.waits
    took = max(0, int((at - since).total_seconds()))
    before = next((each.seconds for each in status.waits if each.reason is reason), 0)
    waited = WaitedFor(reason=reason, seconds=before + took)
    return (*(each for each in status.waits if each.reason is not reason), waited)
