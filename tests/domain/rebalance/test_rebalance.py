"""RebalanceTask: one test for each edge of its table; plan, approval, pause."""

import cProfile

import pytest
from rebalance_case import (
    MOVED,
    MOVING,
    Case,
    Tweak,
    as_before,
    cancelled,
    condition,
    done,
    done_in_part,
    late,
    left_behind,
    moved,
    needs_copy,
    nothing,
    only,
    opened,
    spark_failed,
    stable_is,
    stale_and_pending,
    stopped,
    stops_late,
    stored_plan,
    superseded,
)
from worlds import NEW, OLD, by_index, followed, of_generation, record, text

from rezone.domain.machines.rebalance_table import TABLE
from rezone.domain.model import world
from rezone.domain.rebalance.run import NoPlan, child_name
from rezone.domain.rebalance.survey import survey
from rezone.resources.conditions import ConditionStatus, ConditionType, Reason
from rezone.resources.task import TaskState as S

__all__ = ["followed"]

EDGES: dict[tuple[S, str], Tweak] = {
    (S.PLANNED, "approved"): nothing,
    (S.PLANNED, "stale"): superseded,
    (S.PLANNED, "no plan"): lambda c: setattr(c, "no_plan", NoPlan(Reason.FAILED, "why")),
    (S.PLANNED, "superseded"): stale_and_pending,
    (S.PLANNED, "cancel"): cancelled,
    (S.APPROVED, "pending is ours"): nothing,
    (S.APPROVED, "stale"): superseded,
    (S.APPROVED, "superseded"): stable_is(((0, 1), (1, 2))),
    (S.APPROVED, "cancel"): cancelled,
    (S.AWAITING_REPLICAS, "all open"): opened,
    (S.AWAITING_REPLICAS, "superseded"): superseded,
    (S.AWAITING_REPLICAS, "deadline"): late,
    (S.AWAITING_REPLICAS, "cancel"): cancelled,
    (S.TRANSFERRING, "all copied"): nothing,
    (S.TRANSFERRING, "unrecoverable"): spark_failed,
    (S.TRANSFERRING, "superseded"): superseded,
    (S.TRANSFERRING, "cancel"): cancelled,
    (S.SWITCHING, "all switched"): moved,
    (S.SWITCHING, "copy lost"): needs_copy,
    (S.SWITCHING, "superseded"): superseded,
    (S.SWITCHING, "cancel"): cancelled,
    (S.FINALIZING, "stable is written"): done,
    (S.FINALIZING, "not in sync any more"): needs_copy,
    (S.FINALIZING, "superseded"): superseded,
    (S.FINALIZING, "cancel"): cancelled,
    (S.STOPPING_REDUNDANT, "all stopped"): stopped,
    (S.STOPPING_REDUNDANT, "deadline"): stops_late,
    (S.STOPPING_REDUNDANT, "targets failed"): done_in_part,
    (S.CANCELLING, "already new"): done,
    (S.CANCELLING, "all is as before"): as_before,
    (S.CANCELLING, "deadline"): left_behind,
}


def test_each_edge_has_a_test() -> None:
    """An edge would be in the diagram that nothing ever walks."""
    assert set(EDGES) == {(e.source, e.event) for e in TABLE.edges}


@pytest.mark.proves("OP-02", "ZR-18", "ZR-20")
@pytest.mark.parametrize("edge", EDGES, ids=lambda e: f"{e[0]}-{e[1]}".replace(" ", "_"))
def test_edge(edge: tuple[S, str], followed: list[tuple[str, str]]) -> None:
    """The machine would take another way than the diagram shows."""
    case = Case(edge[0])
    EDGES[edge](case)
    decision = case.decide()
    assert followed[0] == (str(edge[0]), edge[1])
    assert decision.path[0] == TABLE.follow(*edge)


LATER = 3
"""The generation of a layout after three re-shardings."""


@pytest.mark.parametrize("edge", EDGES, ids=lambda e: f"{e[0]}-{e[1]}".replace(" ", "_"))
def test_edge_of_a_later_layout(edge: tuple[S, str]) -> None:
    """A zone could be re-sharded once, and never moved again."""
    case = Case(edge[0])
    EDGES[edge](case)
    first, view = case.decide(), of_generation(case.world.view(), LATER)
    case.world.view = lambda: view  # type: ignore[method-assign]
    later = case.decide()
    assert (later.path, later.status) == (first.path, first.status)
    assert by_index(later.actions, LATER) == first.actions


@pytest.mark.proves("ZR-14")
@pytest.mark.parametrize(
    "state", [S.AWAITING_REPLICAS, S.TRANSFERRING, S.SWITCHING, S.FINALIZING], ids=str
)
def test_a_cancel_wins_over_what_is_pending(state: S) -> None:
    """A coordinator after a crash would carry on what a person has cancelled meanwhile."""
    case = Case(state)
    case.world.routes[0] = MOVING if state == S.AWAITING_REPLICAS else MOVED
    forward = case.decide()
    assert forward.path or forward.actions
    assert S.CANCELLING not in forward.path
    case.spec["cancel"] = True
    assert case.decide().path[0] == S.CANCELLING


@pytest.mark.proves("B-01")
def test_a_plan_is_made_once_and_waits_for_its_approval() -> None:
    """Something would move before anybody has seen the plan, or another plan than the one seen."""
    case = Case("")
    case.world.settings["manual_approval"] = True
    decision = case.decide()
    assert (decision.status.state, decision.actions) == (S.PLANNED, ())
    assert (decision.status.source, decision.status.target) == (text(OLD), text(NEW))
    assert condition(decision, ConditionType.STALLED).reason == Reason.AWAITING_APPROVAL
    assert condition(decision, ConditionType.RECONCILING) is None
    case.state, case.history = S.PLANNED, [S.PLANNED]
    stored_plan(case)
    case.spec["approved_plan"] = "other"
    assert condition(case.decide(), ConditionType.STALLED).reason == Reason.PLAN_STALE
    assert case.plans == 1
    case.spec["approved_plan"] = "good"
    assert case.decide().path[:2] == (S.APPROVED, S.AWAITING_REPLICAS)
    assert case.plans == 1


@pytest.mark.proves("B-01")
def test_a_changed_zone_makes_the_plan_stale() -> None:
    """The executed plan would not be the approved one."""
    case = Case(S.PLANNED)
    stored_plan(case)
    case.by_person()
    case.spec["approved_plan"] = "good"
    case.world.settings |= {"stable": ((0, 1), (1, 2)), "manual_approval": True}
    decision = case.decide()
    assert (decision.status.state, decision.actions) == (S.FAILED, ())
    assert condition(decision, ConditionType.SUCCEEDED).reason == Reason.PLAN_STALE
    assert case.plans == 0


@pytest.mark.proves("ZR-04", "ZR-05")
def test_a_persons_task_asks_for_its_target_with_a_new_revision() -> None:
    """The zone would skip the task's trigger as an old one, or make a second task for it."""
    case = Case(S.APPROVED)
    case.by_person()
    decision = case.decide()
    asked = only(decision, world.WritePending)
    assert (asked.target, asked.revision) == (NEW, 8)
    assert decision.status.revision == 8  # persisted before the act: whose it is can be told
    case.status["revision"] = 8
    case.world.pend(NEW, 8)
    assert case.decide().path == (S.AWAITING_REPLICAS,)
    case.world.pend(((2, 1, 0), (1, 2, 0)), 8)
    decision = case.decide()
    assert (decision.status.revision, decision.actions) == (0, ())
    assert condition(decision, ConditionType.SUCCEEDED).reason == Reason.CONFLICT


@pytest.mark.proves("B-01")
@pytest.mark.parametrize("state", [S.APPROVED, S.AWAITING_REPLICAS, S.TRANSFERRING, S.SWITCHING])
@pytest.mark.parametrize("how", ["suspend", "pause"])
def test_a_pause_starts_nothing_new_and_loses_nothing(state: S, how: str) -> None:
    """A person could not stop a rebalance without throwing its work away."""
    case = Case(state)
    if how == "suspend":
        case.spec["suspend"] = True
    else:
        case.world.settings["paused"] = True
    late(case)
    if state == S.TRANSFERRING:
        needs_copy(case)
    decision = case.decide()
    assert decision.actions == ()
    assert decision.path == ()
    assert condition(decision, ConditionType.SUCCEEDED).reason == Reason.PAUSED
    assert condition(decision, ConditionType.SUCCEEDED).status == ConditionStatus.UNKNOWN


@pytest.mark.proves("B-04")
@pytest.mark.parametrize("dropped", range(3))
def test_a_copy_that_differs_is_dropped_and_made_again(dropped: int) -> None:
    """The count is written with the drop; the replica stops when no route has it.

    One bad copy would end a rebalance, or be counted and never dropped.
    """
    case = differs()
    case.status["copies_dropped"] = dropped
    decision = case.decide()
    assert decision.status.copies_dropped == dropped + 1
    (change,) = only(decision, world.ChangeRoutes).changes
    assert set(change.state.replicas) == set(OLD[0])
    case.world.routes[0] = record()
    case.world.reports[0, 3] = {}
    assert only(case.decide(), world.StopReplica).node == 3


@pytest.mark.proves("ZR-18", "B-04")
def test_a_copy_that_is_always_wrong_ends_the_task_with_what_is_done() -> None:
    """Copies that differ are made again three times; then their partition stays where it was.

    A wrong copy would stay in the in-sync set, to lead after the next failure.
    """
    case = differs()
    case.status["copies_dropped"] = 3
    decision = case.decide()
    assert decision.status.outcome == text(OLD)
    assert decision.status.last_error is not None
    assert decision.status.last_error.reason == Reason.COPY_DIFFERS
    assert "differs" in decision.status.last_error.message
    written = only(decision, world.WriteStable)
    assert written.target == OLD
    assert not any(isinstance(a, world.WritePending) for a in decision.actions), (
        "other nodes need not be better"
    )


def differs() -> Case:
    """Return a task that waits for the copy on node 3, which differs from its leader's rows."""
    case = Case(S.TRANSFERRING)
    case.world.verified.clear()
    case.world.mismatched = {(0, 3, 4)}
    return case


def test_names_of_children_fit_whatever_the_tasks_name() -> None:
    """The API server would refuse the children of a task with a long name."""
    name = child_name("z" * 63, "back-16383-99999")
    assert len(name) <= 63
    assert name.startswith(child_name("z" * 63, "back-"))
    assert child_name("z" * 62 + "y", "p1") != child_name("z" * 63, "p1")


def test_leaders_go_home_without_any_pending_assignment() -> None:
    """Leaders that a failover has moved could not be brought back: stable equals the target."""
    case = Case(S.SWITCHING)
    case.by_person()
    case.status |= {"source": text(OLD), "target": text(OLD)}
    case.world.routes[0] = record(leader=1, leader_epoch=5)
    case.world.verified.clear()
    moved_home = only(case.decide(), world.EnsureMigration)
    assert (moved_home.partition, moved_home.target) == (0, 0)
    case.world.routes[0] = record(leader_epoch=6)
    assert case.decide().path == (S.FINALIZING, S.STOPPING_REDUNDANT, S.SUCCEEDED)


@pytest.mark.proves("B-03", "B-14")
def test_a_copy_that_waits_for_another_zones_says_so() -> None:
    """A task would look as if it copied, and nobody know which other task it waits for."""
    case = Case(S.TRANSFERRING)
    needs_copy(case)
    case.world.settings["copies_refused"] = {0: "task b-7 of zone ns/b goes first"}
    assert case.decide().status.waiting_for == (
        "Limit: 1 (partition 0: task b-7 of zone ns/b goes first)"
    )


@pytest.mark.proves("B-14")
def test_a_leader_that_belongs_to_a_node_in_maintenance_waits() -> None:
    """A task moves no leader to a node in maintenance, and says so.

    The node would give it up at once: both would move the leader to and fro.
    """
    case = Case(S.SWITCHING)
    case.world.maintenance = {NEW[0][0]}
    decision = case.decide()
    assert not any(isinstance(a, world.EnsureMigration) for a in decision.actions)
    assert decision.status.waiting_for.startswith("Maintenance: 1 (partition 0")


def _calls_of(size: int) -> int:
    """Return how many functions a decision about so many partitions calls."""
    source = tuple((p % 50, (p + 1) % 50, (p + 2) % 50) for p in range(size))
    target = tuple((n[1], n[2], (n[2] + 1) % 50) for n in source)
    case = Case(S.SWITCHING)
    case.world.nodes = 50
    case.world.routes = [
        record(leader=old[0], isr=(*old, new[2]), replicas=(*old, new[2]), iss=(new[0],))
        for old, new in zip(source, target, strict=True)
    ]
    case.world.settings["stable"] = source
    case.world.verified.clear()
    case.world.pend(target)
    case.status |= {"source": text(source), "target": text(target)}
    view = case.world.view()
    case.world.view = lambda: view  # type: ignore[method-assign]
    profile = cProfile.Profile()
    decision = profile.runcall(case.decide)
    assert len(decision.actions) == 64
    assert survey(view, source, target).copies_total == size
    return sum(entry.callcount for entry in profile.getstats())


@pytest.mark.slow
@pytest.mark.proves("B-10")
def test_the_work_of_a_decision_grows_no_faster_than_its_zone() -> None:
    """The coordinator would not keep up with a zone of 16,384 partitions.

    Calls are counted, which no other process changes; `benchmarks/control/zone_pass.py` has the
    time.
    """
    few, many = _calls_of(4_096), _calls_of(16_384)
    assert many < 5 * few
    assert many < 100 * 16_384


@pytest.mark.parametrize("state", [S.AWAITING_REPLICAS, S.SWITCHING, S.FINALIZING])
def test_a_resharded_zone_ends_the_task(state: S) -> None:
    """The pass would fail each time because the routes are no longer those of the plan."""
    case = Case(state)
    case.world.routes = [record()] * 4
    assert case.decide().path[0] == S.CANCELLING
