"""Every state of a SparkApplication leads where the kubeflow operator would lead it."""

from __future__ import annotations

import datetime as dt
import itertools
from pathlib import Path
from typing import Any

import pytest

import rezone
from rezone.local.sparkapplication import TERMINAL, Plan, State, decide, state_of, text_of
from rezone.local.sparkdriver import driver_pod, local_file, submit_command

NOW = dt.datetime(2026, 1, 1, 12, 0, 0, tzinfo=dt.UTC)


def application(state: str = "", *, spec: dict[str, Any] | None = None, **status: Any) -> Any:
    """Return an application in a state."""
    return {
        "metadata": {"name": "app", "namespace": "n", "uid": "u", "resourceVersion": "1"},
        "spec": {
            "type": "Python",
            "mainApplicationFile": "local:///opt/rezone/transfer/job.py",
            "arguments": ["--task", "t"],
            "driver": {},
            "executor": {},
            **(spec or {}),
        },
        "status": {"applicationState": {"state": state}, "submissionID": "s1", **status},
    }


def driver(phase: str, submission: str = "s1", **status: Any) -> Any:
    """Return a driver pod in a phase."""
    labels = {"sparkoperator.k8s.io/submission-id": submission}
    return {"metadata": {"labels": labels, "uid": "d"}, "status": {"phase": phase, **status}}


def next_state(app: Any, pod: Any = None, now: dt.datetime = NOW) -> str | None:
    """Return the state the next step leads to, None if it stays."""
    status = decide(app, pod, now).status
    return status["applicationState"]["state"] if status else None


def test_new_application_is_submitted() -> None:
    """Attempts and ids are what RebalanceTasks and people look at."""
    plan = decide(application(), None, NOW)
    assert plan.status["applicationState"]["state"] == "SUBMITTED"
    assert plan.status["executionAttempts"] == plan.status["submissionAttempts"] == 1
    assert plan.status["lastSubmissionAttemptTime"] == text_of(NOW)
    assert plan.status["driverInfo"]["podName"] == "app-driver"
    assert not plan.create_driver, "the intent is written before the act"


def test_submitted_creates_the_driver() -> None:
    """A runner that died between the intent and the act must go on."""
    assert decide(application("SUBMITTED"), None, NOW).create_driver


@pytest.mark.parametrize(
    ("state", "phase", "expected"),
    [
        ("SUBMITTED", "Pending", None),
        ("SUBMITTED", "Running", "RUNNING"),
        ("RUNNING", "Running", None),
        ("RUNNING", "Succeeded", "SUCCEEDING"),
        ("SUBMITTED", "Succeeded", "SUCCEEDING"),
        ("RUNNING", "Failed", "FAILING"),
    ],
)
def test_driver_phases(state: str, phase: str, expected: str | None) -> None:
    """A phase overlooked is a job that never ends."""
    assert next_state(application(state), driver(phase)) == expected


def test_a_running_application_has_the_id_that_spark_gave_it() -> None:
    """People find the pods of a job by this id, which spark-submit makes up."""
    pod = driver("Running")
    pod["metadata"]["labels"]["spark-app-selector"] = "spark-of-submit"
    status = decide(application("SUBMITTED", sparkApplicationId="spark-s1"), pod, NOW).status
    assert status["sparkApplicationId"] == "spark-of-submit"


def test_lost_driver_is_a_failure() -> None:
    """A driver whose pod was deleted would be waited for until for ever."""
    assert next_state(application("RUNNING"), None) == "FAILING"


def test_driver_of_the_attempt_before_is_not_taken_for_this_one() -> None:
    """Its old success would end an attempt that never ran."""
    plan = decide(application("SUBMITTED"), driver("Succeeded", "s0"), NOW)
    assert plan.delete_driver
    assert not plan.status


def test_driver_that_cannot_start_is_a_failed_submission() -> None:
    """`CreateContainerError` is no phase: the application would stay SUBMITTED."""
    waiting = {"waiting": {"reason": "CreateContainerError", "message": "spark-submit not found"}}
    pod = driver("Pending", containerStatuses=[{"state": waiting}])
    plan = decide(application("SUBMITTED"), pod, NOW)
    assert plan.status["applicationState"] == {
        "state": "SUBMISSION_FAILED",
        "errorMessage": "spark-submit not found",
    }
    assert plan.delete_driver


@pytest.mark.parametrize(
    ("state", "policy", "attempts", "expected"),
    [
        ("SUCCEEDING", {"type": "Never"}, 1, "COMPLETED"),
        ("SUCCEEDING", {"type": "Always"}, 1, "PENDING_RERUN"),
        ("FAILING", {}, 1, "FAILED"),
        ("FAILING", {"type": "Never"}, 1, "FAILED"),
        ("FAILING", {"type": "OnFailure", "onFailureRetries": 1}, 1, "PENDING_RERUN"),
        ("FAILING", {"type": "OnFailure", "onFailureRetries": 1}, 2, "FAILED"),
        ("SUBMISSION_FAILED", {"type": "OnFailure", "onFailureRetries": 9}, 1, "FAILED"),
        (
            "SUBMISSION_FAILED",
            {"type": "OnFailure", "onSubmissionFailureRetries": 2},
            2,
            "PENDING_RERUN",
        ),
    ],
)
def test_restart_policy(state: str, policy: dict[str, Any], attempts: int, expected: str) -> None:
    """One attempt too few loses a job, one too many runs it for ever."""
    app = application(
        state,
        spec={"restartPolicy": policy},
        executionAttempts=attempts,
        submissionAttempts=attempts,
        terminationTime=text_of(NOW - dt.timedelta(minutes=5)),
    )
    assert next_state(app) == expected


def test_retry_waits_its_interval() -> None:
    """Without the wait a job that fails at once would keep the machine busy."""
    policy = {"type": "OnFailure", "onFailureRetries": 5, "onFailureRetryInterval": 10}
    app = application(
        "FAILING",
        spec={"restartPolicy": policy},
        executionAttempts=2,
        terminationTime=text_of(NOW - dt.timedelta(seconds=5)),
    )
    plan = decide(app, None, NOW)
    assert not plan.status
    assert plan.again_after_seconds == 15


def test_rerun_takes_a_new_submission() -> None:
    """With the same id the pod of the failed attempt would be taken for the new one."""
    app = application("PENDING_RERUN", executionAttempts=1, submissionAttempts=1)
    assert decide(app, driver("Failed"), NOW).delete_driver
    plan = decide(app, None, NOW)
    assert plan.status["executionAttempts"] == 2
    assert plan.status["submissionID"] != decide(application(), None, NOW).status["submissionID"]


def test_suspend_and_resume() -> None:
    """A suspended task must stop its job, and start it again when asked."""
    suspended = {"suspend": True}
    plan = decide(application("RUNNING", spec=suspended), driver("Running"), NOW)
    assert plan.status["applicationState"]["state"] == "SUSPENDING"
    assert plan.delete_driver
    assert decide(application("SUSPENDING", spec=suspended), driver("Running"), NOW).delete_driver
    assert next_state(application("SUSPENDING", spec=suspended)) == "SUSPENDED"
    assert next_state(application("SUSPENDED", spec=suspended)) is None
    assert next_state(application("", spec=suspended)) == "SUSPENDED"
    assert next_state(application("SUSPENDED")) == "RESUMING"
    assert next_state(application("RESUMING")) == "SUBMITTED"


def test_time_to_live() -> None:
    """Finished applications would pile up, or go while somebody still reads them."""
    ended: dict[str, Any] = {"terminationTime": text_of(NOW - dt.timedelta(seconds=30))}
    spec = {"timeToLiveSeconds": 60}
    assert decide(application("COMPLETED", spec=spec, **ended), None, NOW).again_after_seconds == 30
    later = NOW + dt.timedelta(seconds=31)
    assert decide(application("FAILED", spec=spec, **ended), None, later).delete_application
    assert not decide(application("COMPLETED", **ended), None, later).delete_application


@pytest.mark.parametrize("state", list(State))
def test_every_state_has_a_decision(state: State) -> None:
    """Asserts that no decision stays where it is, starts a second driver, or revives what ended.

    Without it an application waits for ever, runs twice, or runs although it is suspended.
    """
    pods = (None, driver("Pending"), driver("Failed"), driver("Running", "other"))
    for pod, suspend in itertools.product(pods, (False, True)):
        plan = decide(application(state, spec={"suspend": suspend}), pod, NOW)
        written = plan.status.get("applicationState", {}).get("state")
        if written is not None:
            assert State(written) is not state, "it would write the same again and again"
        if plan.create_driver:
            assert (state, pod, suspend) == (State.SUBMITTED, None, False)
        if plan.delete_driver:
            assert pod is not None
        if state in TERMINAL:
            assert plan == Plan()
        elif pod is None and not suspend:
            assert written or plan.create_driver or plan.again_after_seconds, "nothing goes on"


def test_unknown_state_is_terminal() -> None:
    """A state of a newer operator must not start a second driver."""
    assert state_of(application("INVALIDATING")) is State.FAILED


def test_command_line() -> None:
    """A job with another master, file or argument does something else than in the cluster."""
    app = application(
        spec={
            "sparkConf": {"spark.a": "1", "spark.master": "local[1]"},
            "hadoopConf": {"h": "2"},
            "deps": {"pyFiles": ["local:///x.py"]},
            "driver": {"memory": "512m"},
        }
    )
    job = Path(rezone.__path__[0]) / "transfer" / "job.py"
    expected = "spark-submit --master local[1] --name app --driver-memory 512m"
    expected += " --py-files /x.py"
    expected += " --conf spark.a=1 --conf spark.hadoop.h=2 --conf spark.ui.enabled=false"
    assert submit_command(app) == [*expected.split(), str(job), "--task", "t"]
    assert local_file("local:///other/job.py") == "/other/job.py"


def test_driver_pod_belongs_to_its_application() -> None:
    """Without the owner reference, deleting the application would leave its driver running."""
    pod = driver_pod(
        application(
            "SUBMITTED",
            spec={
                "driver": {
                    "serviceAccount": "job",
                    "envVars": {"A": "1"},
                    "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108
                },
                "volumes": [{"name": "tls", "secret": {"secretName": "s"}}],
            },
            sparkApplicationId="spark-s1",
        )
    )
    assert pod["metadata"]["ownerReferences"][0]["uid"] == "u"
    assert pod["metadata"]["labels"]["spark-role"] == "driver"
    assert pod["spec"]["serviceAccountName"] == "job"
    assert pod["spec"]["volumes"][0]["name"] == "tls"
    (mount,) = pod["spec"]["containers"][0]["volumeMounts"]
    assert mount["name"] == "spark-local-dir", "a checkout in /tmp would vanish behind a volume"
    assert {"name": "A", "value": "1"} in pod["spec"]["containers"][0]["env"]
