"""Copies of lost replicas: by Spark above the zone's threshold, persisted in the zone's status."""

from datetime import timedelta
from typing import Any

import pytest
from worlds import NOW, World, child, record

from rezone.domain.model import world
from rezone.domain.model.world import Copy, SparkView
from rezone.domain.rebalance.repair_copies import Repairs, repair_copies
from rezone.resources.machine_status import SparkCopies
from rezone.wire.messages import CopyProgress, Role

LOST: dict[str, Any] = {"needs_snapshot": True, "role": Role.LEARNER}
COPIES = (Copy(partition=0, source=0, targets=(2,)), Copy(partition=1, source=1, targets=(2,)))


class Case:
    """A zone whose node 2 came back without its disk; each of its partitions has 600 bytes."""

    def __init__(self, threshold: int = 1000, **settings: Any) -> None:
        self.world = World()
        self.world.settings |= {"spark_threshold_bytes": threshold, **settings}
        for partition, leader in ((0, 0), (1, 1)):
            self.world.routes[partition] = record(leader=leader, isr=(0, 1))
            self.world.reports[partition, leader] = {"bytes_estimate": 600}
            self.world.reports[partition, 2] = LOST
        self.state: SparkCopies | None = None
        self.now = NOW
        self.task_copies = False

    def decide(self) -> Repairs:
        """Decide once, and keep what is persisted."""
        decided = repair_copies(
            self.world.view(), self.state, self.now, task_copies=self.task_copies
        )
        self.state = decided.state
        return decided

    def spark(self, state: str) -> None:
        """Let the zone's application be in a state; "" is that it is not there."""
        assert self.state is not None
        self.world.spark = SparkView(name=self.state.application, state=state)


def only(decided: Repairs, kind: type[Any]) -> Any:
    """Return the one action, which is of this kind."""
    (action,) = decided.actions
    assert isinstance(action, kind), decided
    return action


@pytest.mark.proves("OP-04", "B-06")
def test_many_lost_replicas_are_copied_by_spark_and_few_stream() -> None:
    """Above the threshold one application copies all; its name is persisted before it is made.

    A lost node of a terabyte would be filled by streams alone, whatever the zone asks for.
    """
    assert only(Case(1200).decide(), world.PullSnapshots).copies == COPIES
    case = Case(1199)
    made = only(case.decide(), world.EnsureSparkApplication)
    assert made.copies == COPIES
    assert case.state is not None
    assert made.name == case.state.application
    case.spark("RUNNING")
    assert only(case.decide(), world.AdmitCopies).admitted == COPIES
    case.spark("FAILED")
    again = only(case.decide(), world.EnsureSparkApplication)
    assert again.name == f"{made.name.removesuffix('-1')}-2"


@pytest.mark.proves("B-03", "B-01")
def test_repairs_by_spark_keep_the_limits_and_rest_when_paused() -> None:
    """As many begin as streams would; none while the zone is paused.

    A node that came back empty would be sent all its partitions at once.
    """
    case = Case(max_migrations_per_node=1)
    case.decide()
    case.spark("RUNNING")
    assert len(only(case.decide(), world.AdmitCopies).admitted) == 1
    case.world.settings["paused"] = True
    told = only(case.decide(), world.AdmitCopies)
    assert (told.admitted, len(told.held)) == ((), 2)
    assert Case(1 << 20, paused=True).decide().actions == ()


@pytest.mark.proves("B-06")
def test_streams_of_repairs_count_what_is_under_way_and_leave_it_alone() -> None:
    """A copy under way takes a place and is not asked for again.

    Each pass would begin more, or break off what a task's Spark job copies.
    """
    case = Case(1 << 20, max_concurrent_migrations=1)
    case.world.reports[1, 2] = LOST | {"copy": CopyProgress(bytes=5)}
    assert only(case.decide(), world.PullSnapshots).copies == ()
    case.world.settings["max_concurrent_migrations"] = 2
    assert only(case.decide(), world.PullSnapshots).copies == COPIES[:1]
    assert case.state is None


def test_what_streams_already_is_not_sparks_too() -> None:
    """An application that is made later has only what has not begun.

    Two copiers would take turns at one receiver.
    """
    case = Case(500)
    case.world.reports[1, 2] = LOST | {"copy": CopyProgress(bytes=5)}
    assert only(case.decide(), world.EnsureSparkApplication).copies == COPIES[:1]


@pytest.mark.proves("OP-04")
def test_a_migrations_candidate_is_its_own_to_copy() -> None:
    """The zone leaves a replica alone that a migration opens, and no other.

    A large copy of a person's migration would stream before its application runs.
    """
    case = Case(1 << 20)
    opens = child("m", partition=1, state="OpenCandidate", owner_task="", candidate=2)
    case.world.migrations.append(opens)
    assert only(case.decide(), world.PullSnapshots).copies == COPIES[:1]


@pytest.mark.parametrize("state", ["SUBMITTED", "COMPLETED", ""])
def test_what_a_repair_leaves_behind_is_cleared(state: str) -> None:
    """When nothing is needed any more, what may still copy is deleted, then the state is cleared.

    The next repair would take the old application for its own.
    """
    case = Case()
    case.decide()
    case.spark(state)
    case.task_copies = True
    decided = case.decide()
    if state == "SUBMITTED":
        assert case.state is not None
        assert only(decided, world.DeleteSparkApplication).name == case.state.application
        case.spark("")
        decided = case.decide()
    assert decided == Repairs(state=None)


@pytest.mark.proves("B-06", "B-14")
def test_a_zone_short_of_replicas_does_not_wait_for_spark_for_ever() -> None:
    """It streams after the deadline and after the last failure, or tells a person.

    A zone would stay short of replicas for want of a spark-operator.
    """
    case = Case(spark_timeout_seconds=60, stream_without_spark=False)
    case.decide()
    case.spark("SUBMITTED")
    case.decide()
    case.now += timedelta(seconds=61)
    assert "its driver has not started" in case.decide().unavailable
    case.world.settings["stream_without_spark"] = True
    kinds = [type(action) for action in case.decide().actions]
    assert kinds == [world.DeleteSparkApplication, world.AdmitCopies]
    case.spark("")
    assert world.PullSnapshots in [type(action) for action in case.decide().actions]
    case = Case()
    case.decide()
    assert case.state is not None
    case.state = case.state.model_copy(update={"attempt": 5})
    case.spark("FAILED")
    assert only(case.decide(), world.PullSnapshots).copies == COPIES
    assert case.state == SparkCopies(attempt=5)
    assert only(case.decide(), world.PullSnapshots).copies == COPIES
