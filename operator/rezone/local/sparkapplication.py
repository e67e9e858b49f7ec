"""What becomes of a SparkApplication: a decision from it, its driver pod and the time; no I/O.

The states and fields are those of the kubeflow Spark operator, `sparkoperator.k8s.io/v1beta2`:

    New -> SUBMITTED -> RUNNING -> SUCCEEDING -> COMPLETED
                 |         `-----> FAILING ---> PENDING_RERUN -> SUBMITTED | FAILED
                 `---> SUBMISSION_FAILED -----> PENDING_RERUN -> SUBMITTED | FAILED
    any that runs -> SUSPENDING -> SUSPENDED -> RESUMING -> SUBMITTED

A state is written before the act that belongs to it; each act may be repeated.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from rezone.local.api import Json

GROUP_VERSION = "sparkoperator.k8s.io/v1beta2"
LAUNCHED_LABEL = "sparkoperator.k8s.io/launched-by-spark-operator"
APP_LABEL = "sparkoperator.k8s.io/app-name"
SUBMISSION_LABEL = "sparkoperator.k8s.io/submission-id"
_SPARK_ID_LABEL = "spark-app-selector"

_DEFAULT_INTERVAL_SECONDS = 5


class State(StrEnum):
    """The application states of the kubeflow Spark operator."""

    NEW = ""
    SUBMITTED = "SUBMITTED"
    RUNNING = "RUNNING"
    SUCCEEDING = "SUCCEEDING"
    COMPLETED = "COMPLETED"
    FAILING = "FAILING"
    FAILED = "FAILED"
    SUBMISSION_FAILED = "SUBMISSION_FAILED"
    PENDING_RERUN = "PENDING_RERUN"
    SUSPENDING = "SUSPENDING"
    SUSPENDED = "SUSPENDED"
    RESUMING = "RESUMING"


TERMINAL = frozenset({State.COMPLETED, State.FAILED})
_STOPPABLE = frozenset({State.SUBMITTED, State.RUNNING, State.PENDING_RERUN})


@dataclass(frozen=True)
class Plan:
    """What to do now, in this order: write the status, delete, create; and when to look again."""

    status: Json = field(default_factory=dict)
    create_driver: bool = False
    delete_driver: bool = False
    delete_application: bool = False
    again_after_seconds: float | None = None


def decide(app: Json, driver: Json | None, now: dt.datetime) -> Plan:
    """Return the next step of an application; total over all states."""
    state = state_of(app)
    if app["spec"].get("suspend") and state in _STOPPABLE:
        return Plan(status=_to(State.SUSPENDING), delete_driver=driver is not None)
    if state in {State.NEW, State.PENDING_RERUN, State.RESUMING, State.SUSPENDED}:
        return _before_run(app, driver, state, now)
    if state in {State.SUBMITTED, State.RUNNING}:
        return _while_running(app, driver, state, now)
    if state is State.SUSPENDING:
        gone = driver is None
        return Plan(status=_to(State.SUSPENDED) if gone else {}, delete_driver=not gone)
    return _after(app, now) if state in TERMINAL else _ended(app, state, now)


def state_of(app: Json) -> State:
    """Return an application's state; one this runner does not know counts as failed."""
    text = app.get("status", {}).get("applicationState", {}).get("state", "")
    try:
        return State(text)
    except ValueError:
        return State.FAILED


def _before_run(app: Json, driver: Json | None, state: State, now: dt.datetime) -> Plan:
    if app["spec"].get("suspend"):
        return Plan() if state is State.SUSPENDED else Plan(status=_to(State.SUSPENDED))
    if state is State.SUSPENDED:
        return Plan(status=_to(State.RESUMING))
    if driver is not None:
        # Of the attempt before: its name is needed.
        return Plan(delete_driver=True)
    status = app.get("status", {})
    executions = int(status.get("executionAttempts", 0)) + 1
    submissions = int(status.get("submissionAttempts", 0)) + 1
    submission = _identifier(app["metadata"]["uid"], submissions)
    return Plan(
        status={
            **_to(State.SUBMITTED),
            "submissionID": submission,
            "sparkApplicationId": f"spark-{submission}",
            "executionAttempts": executions,
            "submissionAttempts": submissions,
            "lastSubmissionAttemptTime": text_of(now),
            "terminationTime": None,
            "driverInfo": {"podName": driver_name(app)},
        }
    )


def _while_running(app: Json, driver: Json | None, state: State, now: dt.datetime) -> Plan:
    if driver is None or not _of_this_submission(app, driver):
        if state is State.SUBMITTED:
            return Plan(create_driver=driver is None, delete_driver=driver is not None)
        return Plan(status=_ending(State.FAILING, now, "driver pod not found"))
    phase = driver.get("status", {}).get("phase", "Pending")
    refusal = _refusal(driver)
    if refusal:
        # The agent would go on trying to start it.
        return Plan(status=_ending(State.SUBMISSION_FAILED, now, refusal), delete_driver=True)
    if phase == "Succeeded":
        return Plan(status=_ending(State.SUCCEEDING, now, ""))
    if phase == "Failed" or driver["metadata"].get("deletionTimestamp"):
        return Plan(status=_ending(State.FAILING, now, _failure(driver)))
    begun = phase == "Running" and state is State.SUBMITTED
    return Plan(status=_running(driver) if begun else {})


def _running(driver: Json) -> Json:
    """Return the status with the job's id, which spark-submit made up, as a label of its pods."""
    given = driver["metadata"].get("labels", {}).get(_SPARK_ID_LABEL)
    return {**_to(State.RUNNING), **({"sparkApplicationId": given} if given else {})}


def _ended(app: Json, state: State, now: dt.datetime) -> Plan:
    """Decide between another attempt and the end."""
    policy = app["spec"].get("restartPolicy", {})
    status = app["status"]
    message = status["applicationState"].get("errorMessage", "")
    kind = policy.get("type", "Never")
    if state is State.SUCCEEDING:
        return Plan(status=_to(State.PENDING_RERUN if kind == "Always" else State.COMPLETED))
    what = "SubmissionFailure" if state is State.SUBMISSION_FAILED else "Failure"
    counter = "submissionAttempts" if state is State.SUBMISSION_FAILED else "executionAttempts"
    attempts = int(status.get(counter, 1))
    allowed = int(policy.get(f"on{what}Retries", 0))
    if kind == "Never" or (kind == "OnFailure" and attempts > allowed):
        return Plan(status=_to(State.FAILED, message))
    interval = float(policy.get(f"on{what}RetryInterval", _DEFAULT_INTERVAL_SECONDS))
    # As upstream: the wait grows by one interval with each attempt.
    wait = interval * attempts - _seconds_since(status.get("terminationTime"), now)
    if wait > 0:
        return Plan(again_after_seconds=wait)
    return Plan(status=_to(State.PENDING_RERUN, message))


def _after(app: Json, now: dt.datetime) -> Plan:
    """Collect an application whose time to live is over."""
    limit = app["spec"].get("timeToLiveSeconds")
    ended = app.get("status", {}).get("terminationTime")
    if limit is None or not ended:
        return Plan()
    left = float(limit) - _seconds_since(ended, now)
    return Plan(again_after_seconds=left) if left > 0 else Plan(delete_application=True)


def driver_name(app: Json) -> str:
    """Return the name of the driver pod."""
    named = app["spec"].get("driver", {}).get("podName")
    return str(named or f"{app['metadata']['name']}-driver")


def submission_failed(now: dt.datetime, message: str) -> Json:
    """Return the status of an application whose driver was refused for good."""
    return _ending(State.SUBMISSION_FAILED, now, message)


def owner_of(app: Json) -> Json:
    """Return the reference by which a driver goes with its application."""
    return {
        "apiVersion": GROUP_VERSION,
        "kind": "SparkApplication",
        "name": app["metadata"]["name"],
        "uid": app["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def text_of(moment: dt.datetime) -> str:
    """Return a time as Kubernetes writes it."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _to(state: State, message: str = "") -> Json:
    # An explicit null: a merge patch would keep the old message.
    return {"applicationState": {"state": str(state), "errorMessage": message or None}}


def _ending(state: State, now: dt.datetime, message: str) -> Json:
    return {**_to(state, message), "terminationTime": text_of(now)}


def _identifier(uid: str, attempt: int) -> str:
    """Follow from the attempt, so that a repeated step has the same one."""
    return hashlib.sha256(f"{uid}/{attempt}".encode()).hexdigest()[:32]


def _of_this_submission(app: Json, driver: Json) -> bool:
    labels = driver["metadata"].get("labels", {})
    return bool(labels.get(SUBMISSION_LABEL) == app["status"].get("submissionID"))


def _refusal(driver: Json) -> str:
    """Return why the driver cannot be started at all, if so."""
    for item in driver.get("status", {}).get("containerStatuses", []):
        waiting: dict[str, Any] = item["state"].get("waiting", {})
        if waiting.get("reason") in {"CreateContainerError", "CreateContainerConfigError"}:
            return str(waiting.get("message", waiting["reason"]))
    return ""


def _failure(driver: Json) -> str:
    for item in driver.get("status", {}).get("containerStatuses", []):
        ended = item["state"].get("terminated")
        if ended:
            code, reason = ended["exitCode"], ended.get("reason", "")
            return f"driver container failed with ExitCode: {code}, Reason: {reason}"
    return "driver pod failed or was deleted"


def _seconds_since(text: str | None, now: dt.datetime) -> float:
    if not text:
        return 0.0
    return (now - dt.datetime.fromisoformat(text)).total_seconds()
