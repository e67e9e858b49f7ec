"""A large copy whose SparkApplication does not come to run: told, and by streams where asked."""

from datetime import timedelta

import pytest
from rebalance_case import Case, Result, condition, needs_copy, only
from worlds import NOW

from rezone.domain.model import world
from rezone.domain.model.world import SparkView
from rezone.domain.observed.spark_states import (
    IN_NO_STATE,
    RUNNING_SECONDS_MIN,
    SparkState,
    meaning_of,
)
from rezone.resources.conditions import ConditionType, Reason
from rezone.resources.task import TaskState as S
from rezone.wire.messages import CopyProgress

SECONDS = 120
NAME = "t-copy-1"
WAITING = sorted(set(SparkState) - {"RUNNING", "COMPLETED", "FAILED"})


def large(state: str, *, stream: bool = False, error: str = "") -> Case:
    """Return a task whose SparkApplication is intended and in this state; "" is: not there."""
    case = Case(S.TRANSFERRING)
    needs_copy(case)
    case.world.settings |= {
        "spark_threshold_bytes": 0,
        "spark_timeout_seconds": SECONDS,
        "stream_without_spark": stream,
    }
    case.status |= {"attempt": 1, "spark_application": NAME}
    case.world.spark = SparkView(name=NAME, state=state, error=error)
    return case


def later(case: Case, decision: Result, seconds: float) -> Result:
    """Decide again after some time, from what was written."""
    kept = ("attempt", "spark_application", "spark_watch", "last_error", "progress")
    case.status |= {name: getattr(decision.status, name) for name in kept}
    case.now += timedelta(seconds=seconds)
    return case.decide()


def is_stalled(decision: Result) -> bool:
    """Return whether a person is called, for this."""
    stalled = condition(decision, ConditionType.STALLED)
    return stalled is not None and stalled.reason == Reason.SPARK_UNAVAILABLE


@pytest.mark.proves("B-14", "OP-04")
@pytest.mark.parametrize("state", ["", *WAITING, "A_STATE_OF_NEXT_YEAR"])
def test_every_state_in_which_nothing_is_copied_has_a_deadline_and_says_what_to_do(
    state: str,
) -> None:
    """Each such state stalls its task once it has lasted too long, and no sooner, with advice.

    The task would say "Copying" for ever while no spark-operator runs, and nobody would be told.
    """
    case = large(state)
    decision = later(case, case.decide(), SECONDS - 1)
    assert not is_stalled(decision)
    decision = later(case, decision, 2)
    assert is_stalled(decision)
    told = condition(decision, ConditionType.STALLED).message
    assert told.startswith("SparkUnavailable: ")
    assert NAME in told
    assert meaning_of(state).advice in told
    assert (state or IN_NO_STATE) in told
    assert decision.status.state == S.TRANSFERRING

    case.world.spark = SparkView(name=NAME, state="RUNNING")
    assert not is_stalled(later(case, decision, 1))


@pytest.mark.proves("B-14")
def test_why_an_application_cannot_be_made_is_told() -> None:
    """What the API server answered stands in the condition.

    A person would be told to start a spark-operator where the namespace's quota is used up.
    """
    case = large("", error="exceeded quota")
    decision = later(case, case.decide(), SECONDS + 1)
    assert "exceeded quota" in condition(decision, ConditionType.STALLED).message


@pytest.mark.proves("OP-04", "B-03")
def test_where_the_zone_asks_for_it_copies_go_as_streams_after_the_deadline() -> None:
    """The application is deleted first, the task then streams within its limits, and says why.

    A zone without a spark-operator would stay short of replicas.
    """
    case = large("SUBMITTED", stream=True)
    first = case.decide()
    assert not [a for a in first.actions if not isinstance(a, world.AdmitCopies)]
    decision = later(case, first, SECONDS + 1)
    assert only(decision, world.AdmitCopies).admitted == ()
    assert only(decision, world.DeleteSparkApplication).name == NAME
    assert decision.status.spark_application == NAME
    assert not is_stalled(decision)

    case.world.spark = SparkView(name=NAME, state="")
    decision = later(case, decision, 1)
    assert decision.status.spark_application == ""
    assert decision.status.last_error is not None
    assert decision.status.last_error.reason == Reason.SPARK_UNAVAILABLE
    pulled = only(decision, world.PullSnapshots)
    assert [c.partition for c in pulled.copies] == [0]

    case.world.spark = None
    decision = later(case, decision, 1)
    assert only(decision, world.PullSnapshots) == pulled


def test_an_application_that_is_not_there_is_given_up_for_streams_at_once() -> None:
    """Without the definition of SparkApplications nothing has to be deleted before.

    The task would ask for the deletion of what is not there for ever.
    """
    case = large("", stream=True)
    decision = later(case, case.decide(), SECONDS + 1)
    assert decision.status.spark_application == ""
    kinds = {type(action) for action in decision.actions}
    assert kinds == {world.DeleteSparkApplication, world.PullSnapshots, world.AdmitCopies}


@pytest.mark.parametrize("how", ["suspend", "paused"])
def test_the_time_of_a_pause_does_not_count(how: str) -> None:
    """A task at rest neither stalls nor changes its way.

    Whoever suspends a task for a night would find it stalled for want of a Spark that nobody needs.
    """
    case = large("", stream=True)
    decision = case.decide()
    paused = case.spec if how == "suspend" else case.world.settings
    paused[how] = True
    decision = later(case, decision, SECONDS + 1)
    assert decision.actions == ()
    assert decision.status.spark_application == NAME
    paused[how] = False
    decision = later(case, decision, 1)
    assert decision.status.spark_application == NAME
    assert not is_stalled(decision)


@pytest.mark.proves("B-14")
def test_an_application_that_runs_and_copies_nothing_is_no_use() -> None:
    """RUNNING counts from the last bytes: executors may wait for room while the driver runs.

    A task would wait for ever for executors that no node has room for.
    """
    case = large("RUNNING")
    decision = case.decide()
    for arrived in range(1, 4):
        case.world.reports[0, 3] = {"needs_snapshot": True, "copy": CopyProgress(bytes=arrived)}
        decision = later(case, decision, RUNNING_SECONDS_MIN - 1)
        assert not is_stalled(decision)
    assert is_stalled(later(case, decision, RUNNING_SECONDS_MIN + 1))


def test_the_deadline_is_not_told_by_a_write_in_each_pass() -> None:
    """A status is written when a state begins, not while it lasts.

    Each pass of a waiting task would cost the API server a write.
    """
    case = large("SUBMITTED")
    first = case.decide()
    assert first.status.spark_watch is not None
    assert first.status.spark_watch.since_time == NOW
    assert later(case, first, 5).status.spark_watch == first.status.spark_watch
