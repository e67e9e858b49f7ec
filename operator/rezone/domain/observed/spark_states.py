"""What each state of a SparkApplication means for the copies that wait for it.

The states are those of kubeflow's spark-operator, v1beta2. Only RUNNING copies, and only COMPLETED
and FAILED end by themselves; in every other state, and without an application, nothing is copied.
So each of these has a deadline (`transfer.sparkTimeoutSeconds`), and says what a person can do.
All functions are pure.
"""

import dataclasses
import enum
from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType

from rezone.domain.model.world import SparkView
from rezone.resources.machine_status import SparkWatch

RUNNING_SECONDS_MIN = 900
"""A running copy has limits of its own, up to ten minutes: sooner than this it is not given up."""

WATCH_STEPS = 4
"""Progress is written at most so often within a deadline: each write is a round trip."""

IN_NO_STATE = "not there"


class SparkState(enum.StrEnum):
    """The states; "NEW" is kubeflow's empty one, which its operator has not looked at."""

    NEW = "NEW"
    SUBMITTED = "SUBMITTED"
    RUNNING = "RUNNING"
    SUCCEEDING = "SUCCEEDING"
    COMPLETED = "COMPLETED"
    FAILING = "FAILING"
    FAILED = "FAILED"
    SUBMISSION_FAILED = "SUBMISSION_FAILED"
    PENDING_RERUN = "PENDING_RERUN"
    INVALIDATING = "INVALIDATING"
    SUSPENDING = "SUSPENDING"
    SUSPENDED = "SUSPENDED"
    RESUMING = "RESUMING"
    UNKNOWN = "UNKNOWN"


ENDED = frozenset({SparkState.COMPLETED, SparkState.FAILED})


@dataclasses.dataclass(frozen=True)
class Meaning:
    """What a state says about the copies, and what a person does when it lasts."""

    says: str
    advice: str


_OPERATOR = "look whether the spark-operator runs, watches this namespace and has its rights"
_DRIVER = "look at the driver's pod and its events: room, quota, image, admission"
_ENDING = "look at the spark-operator's log and the application's pods"
_SUSPEND = "set its spec.suspend to false, and see transfer.sparkTemplate"

NOT_THERE = Meaning(
    "it cannot be created, or was deleted",
    "install the spark-operator with its CRDs (docs/start/install.md), or see the error",
)

STATES: Mapping[SparkState, Meaning] = MappingProxyType(
    {
        SparkState.NEW: Meaning("no spark-operator has looked at it", _OPERATOR),
        SparkState.SUBMITTED: Meaning("its driver has not started", _DRIVER),
        SparkState.RUNNING: Meaning(
            "nothing arrives", "look whether its executors start, and at the driver's log"
        ),
        SparkState.SUCCEEDING: Meaning("its driver has ended", _ENDING),
        SparkState.COMPLETED: Meaning("the job has ended", ""),
        SparkState.FAILING: Meaning("its driver has failed; it is not ended", _ENDING),
        SparkState.FAILED: Meaning("the job has failed; another application follows", ""),
        SparkState.SUBMISSION_FAILED: Meaning(
            "spark-submit was refused", "look at the error: image, template, rights, admission"
        ),
        SparkState.PENDING_RERUN: Meaning("its old driver has to go before it runs again", _ENDING),
        SparkState.INVALIDATING: Meaning("it was changed while it ran", _ENDING),
        SparkState.SUSPENDING: Meaning("somebody suspends it", _SUSPEND),
        SparkState.SUSPENDED: Meaning("somebody has suspended it", _SUSPEND),
        SparkState.RESUMING: Meaning("it is about to be submitted again", _OPERATOR),
        SparkState.UNKNOWN: Meaning(
            "nobody knows how its driver is", "look at the driver's pod and its Kubernetes node"
        ),
    }
)
"""All of them; docs/operate/moves/rebalance.md has the same table for people."""


def meaning_of(state: str) -> Meaning:
    """Return what a state says; one that this version does not know is as good as UNKNOWN."""
    if not state:
        return NOT_THERE
    return STATES[SparkState(state) if state in set(SparkState) else SparkState.UNKNOWN]


def watch(
    before: SparkWatch | None, state: str, bytes_done: int, now: datetime, *, seconds: int
) -> SparkWatch:
    """Return since when the application is as it is; while it runs, since it last copied."""
    name = state or IN_NO_STATE
    now = now.replace(microsecond=0)
    seen = SparkWatch(state=name, since_time=now, bytes_done=bytes_done)
    if before is None or before.state != name:
        return seen
    waited = (now - before.since_time).total_seconds()
    copied = name == SparkState.RUNNING and bytes_done != before.bytes_done
    return seen if copied and waited >= _limit(name, seconds) / WATCH_STEPS else before


def is_overdue(seen: SparkWatch, now: datetime, *, seconds: int) -> bool:
    """Return whether the application has copied nothing for too long."""
    return (now - seen.since_time).total_seconds() > _limit(seen.state, seconds)


def _limit(state: str, seconds: int) -> int:
    return max(seconds, RUNNING_SECONDS_MIN) if state == SparkState.RUNNING else seconds


def why_unavailable(name: str, spark: SparkView | None) -> str:
    """Return in words why no large copy advances, and what to do."""
    state = spark.state if spark is not None else ""
    said = meaning_of(state)
    error = f" ({spark.error})" if spark is not None and spark.error else ""
    where = f"SparkApplication {name} is {state or IN_NO_STATE}: {said.says}{error}"
    return f"{where}; {said.advice}"
