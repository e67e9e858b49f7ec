"""Copies of a migration that a person applied: by Spark above the zone's threshold."""

from datetime import timedelta
from typing import Any

import pytest
from migration_case import Case, only
from worlds import NOW, record

from rezone.domain.model import world
from rezone.domain.model.world import SparkView
from rezone.resources.conditions import ConditionType, Reason
from rezone.resources.copy_progress import CopiesProgress
from rezone.resources.machine_status import SparkCopies, Transition
from rezone.resources.migration import MigrationState as S
from rezone.wire.messages import CopyProgress

NAME = "m-move-1"
STORED = ("copies", "copy_progress", "conditions", "waiting_for", "waiting_reason")
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


def copies_for_long(size: int, state: str | None = None, **settings: Any) -> Case:
    """Return such a migration whose copy has not been over in a moment."""
    case = opens(size, state, **settings)
    begun = Transition(state=S.OPEN_CANDIDATE, time=NOW - timedelta(minutes=1))
    case.status |= {"history": (begun,), "deadline_time": NOW + timedelta(hours=1)}
    return case


def looks(case: Case, seconds: int, arrived: int | None = None) -> CopiesProgress | None:
    """Decide once after some time, with so many bytes arrived, and keep the status."""
    case.now = NOW + timedelta(seconds=seconds)
    if arrived is not None:
        copy = CopyProgress(bytes=arrived, rows=arrived // 10)
        case.world.reports[0, 3] = {"needs_snapshot": True, "copy": copy}
    decision = case.decide()
    case.status |= {name: getattr(decision.status, name) for name in STORED}
    return decision.status.copy_progress


@pytest.mark.proves("SP-10", "B-10")
@pytest.mark.parametrize("threshold", [100, 1 << 20])
def test_a_migration_tells_how_far_its_copy_is(threshold: int) -> None:
    """Bytes, rows, rate and time left stand in its status, by Spark or by a stream, to the end.

    A person's move of a partition of a terabyte would tell no end.
    """
    state = "RUNNING" if threshold == 100 else None
    case = copies_for_long(2000, state, spark_threshold_bytes=threshold)
    case.world.reports[0, 0] = {"bytes_estimate": 2000, "rows_estimate": 200}
    looks(case, 0, 500)
    told = looks(case, 5, 1000)
    assert told is not None
    assert (told.bytes_done, told.bytes_total) == (1000, 2000)
    assert (told.rows_done, told.rows_total) == (100, 200)
    assert (told.bytes_per_second, told.seconds_left, told.skew_percent) == (100, 10, None)
    case.world.reports[0, 3] = {"log_end_offset": 0}
    told = looks(case, 6)
    assert told is not None
    assert (told.bytes_done, told.rows_done, told.seconds_left) == (2000, 200, 0)


@pytest.mark.proves("SP-10")
def test_the_progress_of_a_migrations_copy_does_not_fall() -> None:
    """Neither a silent candidate, nor one whose next application has yet to begin, takes any back.

    A transfer would look further, less far and further again, and its time left would jump.
    """
    case = copies_for_long(2000, "RUNNING")
    looks(case, 0, 1000)
    case.world.silent = {3: 1.0}
    told = looks(case, 4)
    assert told is not None
    assert (told.bytes_done, told.bytes_total, told.bytes_per_second) == (1000, 2000, 0)
    case.world.silent = {0: 1.0}
    told = looks(case, 6)
    assert told is not None
    assert (told.bytes_done, told.bytes_total) == (1000, 2000)
    case.world.silent = {}
    case.world.spark = SparkView(name=NAME, state="FAILED")
    case.world.reports[0, 3] = {"needs_snapshot": True}
    told = looks(case, 8)
    assert told is not None
    assert case.status["copies"].application == "m-move-2"
    assert (told.bytes_done, told.bytes_total) == (1000, 2000)
    case.spec["cancel"] = True
    assert looks(case, 9) == told


@pytest.mark.proves("SP-10")
def test_a_migration_without_a_copy_tells_no_progress() -> None:
    """A candidate that was in sync has nothing to be copied.

    Each leader transfer would cost one more write, and show a copy of no bytes.
    """
    case = Case(S.OPEN_CANDIDATE)
    assert case.decide().status.copy_progress is None


@pytest.mark.proves("SP-10")
def test_the_copy_of_a_migration_is_told_in_steps() -> None:
    """Less than a hundredth is written with what else is, or when the rate is due.

    A large move would cost the API server a write a second, and a small one a write more.
    """
    assert looks(opens(1000), 0, 500) is None
    case = copies_for_long(1 << 40, "RUNNING")
    first = looks(case, 0, 1)
    assert [looks(case, seconds, seconds) == first for seconds in (3, 6, 9)] == [True] * 3
    assert looks(case, 10, 10) != first
