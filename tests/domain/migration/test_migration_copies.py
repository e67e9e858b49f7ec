"""Copies of a migration that a person applied: by Spark above the zone's threshold."""

from datetime import timedelta
from typing import Any

import pytest
from migration_case import Case, only
from worlds import record

from rezone.domain.model import world
from rezone.domain.model.world import SparkView
from rezone.resources.conditions import ConditionType, Reason
from rezone.resources.machine_status import SparkCopies
from rezone.resources.migration import MigrationState as S

NAME = "m-move-1"
COPY = world.Copy(partition=0, source=0, targets=(3,))


def opens(size: int, state: str | None = None, **settings: Any) -> Case:
    """Return a migration whose candidate needs a copy of so many bytes; `state` is Spark's."""
    case = Case(S.OPEN_CANDIDATE)
    case.context |= {"to_node": 3, "opened_candidate": True}
    case.spec["target"] = 3
    case.world.routes[0] = record(replicas=(0, 1, 2, 3), hot_standby_replica=3)
    case.world.reports |= {(0, 0): {"bytes_estimate": size}, (0, 3): {"needs_snapshot": True}}
    case.world.settings |= {"spark_threshold_bytes": 1000, **settings}
    if state is not None:
        case.status["copies"] = SparkCopies(attempt=1, application=NAME)
        case.world.spark = SparkView(name=NAME, state=state)
    return case


@pytest.mark.proves("OP-04", "RM-02")
def test_a_large_copy_of_a_migration_goes_by_spark() -> None:
    """Above the threshold an application is intended in the status, then made; below it streams.

    A person's move of a partition of a terabyte would take its leader's network for hours.
    """
    decision = opens(1000).decide()
    assert only(decision, world.PullSnapshots).copies == (COPY,)
    decision = opens(1001).decide()
    assert only(decision, world.EnsureSparkApplication).copies == (COPY,)
    assert decision.status.copies is not None
    assert decision.status.copies.application == NAME

    decision = opens(1001, "RUNNING").decide()
    assert only(decision, world.AdmitCopies).admitted == (COPY,)
    decision = opens(1001, "FAILED").decide()
    assert only(decision, world.EnsureSparkApplication).name == "m-move-2"


@pytest.mark.proves("OP-04", "DCP-11")
def test_a_migration_whose_applications_all_fail_rolls_back() -> None:
    """Five failed applications end it; its candidate is removed.

    It would make applications for six hours.
    """
    case = opens(1001, "FAILED")
    case.status["copies"] = SparkCopies(attempt=5, application=NAME)
    decision = case.decide()
    assert decision.path[0] == S.UPDATE_METADATA_ROLLBACK
    assert decision.status.last_error is not None
    assert "5 SparkApplications failed" in decision.status.last_error.message


@pytest.mark.proves("B-14")
@pytest.mark.parametrize("stream", [False, True])
def test_a_migration_does_not_wait_for_spark_for_ever(*, stream: bool) -> None:
    """After the deadline it is stalled with advice, or streams, as the zone says.

    It would say that a copy is under way until its own deadline of six hours.
    """
    case = opens(1001, "SUBMITTED", spark_timeout_seconds=5, stream_without_spark=stream)
    first = case.decide()
    case.status["copies"] = first.status.copies
    case.now += timedelta(seconds=6)
    decision = case.decide()
    if stream:
        assert only(decision, world.DeleteSparkApplication).name == NAME
        return
    stalled = [c for c in decision.status.conditions if c.type is ConditionType.STALLED]
    assert [c.reason for c in stalled] == [Reason.SPARK_UNAVAILABLE]
    assert "driver" in stalled[0].message


@pytest.mark.proves("RM-09", "ZR-18")
@pytest.mark.parametrize("state", ["NEW", "RUNNING", "COMPLETED"])
def test_a_cancelled_migration_leaves_no_application_behind(state: str) -> None:
    """What still may copy is deleted before the candidate's replica is; what has ended stays.

    A driver would go on to fill a replica that is no more.
    """
    case = opens(1001, state)
    case.spec["cancel"] = True
    decision = case.decide()
    assert decision.path[0] == S.UPDATE_METADATA_ROLLBACK
    deleted = [a for a in decision.actions if isinstance(a, world.DeleteSparkApplication)]
    assert [a.name for a in deleted] == ([] if state == "COMPLETED" else [NAME])
