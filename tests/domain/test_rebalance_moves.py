"""RebalanceTask: how partitions are copied, switched, finished and carried back."""

from datetime import timedelta

import pytest
from rebalance_case import MOVING, Case, condition, done, needs_copy, only, opened, stopped
from worlds import NEW, NOW, OLD, child, record, text

from rezone.domain import world
from rezone.domain.world import SparkView
from rezone.resources.conditions import ConditionType, Reason
from rezone.resources.machine_status import LastError
from rezone.resources.task import TaskState as S


@pytest.mark.proves("ZR-06", "HS-06", "HS-10")
def test_new_replicas_join_beside_the_old_ones() -> None:
    """HS-06: [0,1,2] -> [1,2,3] goes through [0,1,2,3] with leader 0 and hot standby 1."""
    case = Case(S.AWAITING_REPLICAS)
    (change,) = only(case.decide(), world.ChangeRoutes).changes
    assert change.partition == 0
    assert (change.state.leader, change.state.replicas) == (0, (0, 1, 2, 3))
    assert (change.state.hot_standby_replica, change.state.isr) == (1, (0, 1, 2))
    opened(case)
    case.world.reports[0, 3] = None
    decision = case.decide()
    assert decision.path == ()
    assert decision.actions == ()


@pytest.mark.proves("OP-04", "SS-06", "ZR-18", "B-05")
def test_spark_copies_again_what_is_left_and_gives_up_after_five() -> None:
    """A failing Spark job would be started for ever, or a rebalance never end."""
    case = Case(S.TRANSFERRING)
    needs_copy(case)
    case.world.settings["spark_threshold_bytes"] = 0
    decision = case.decide()
    assert decision.status.spark_application == "t-copy-1"  # persisted before it is created
    app = only(decision, world.EnsureSparkApplication)
    assert app.copies == (world.Copy(partition=0, source=0, targets=(3,)),)
    for attempt in range(1, 5):
        case.status |= {"attempt": attempt, "spark_application": f"t-copy-{attempt}"}
        case.world.spark = SparkView(name=f"t-copy-{attempt}", state="RUNNING")
        assert case.decide().actions == ()
        case.world.spark = SparkView(name=f"t-copy-{attempt}", state="FAILED", error="oom")
        app = only(case.decide(), world.EnsureSparkApplication)
        assert app.name == f"t-copy-{attempt + 1}"
    case.status |= {"attempt": 5, "spark_application": "t-copy-5"}
    case.world.spark = SparkView(name="t-copy-5", state="FAILED", error="oom")
    decision = case.decide()
    assert decision.path[0] == S.CANCELLING
    assert decision.status.last_error is not None
    assert "oom" in decision.status.last_error.message


def waits_for_a_name(*, going: bool = False) -> Case:
    """Return a task whose SparkApplication's name is another's."""
    case = Case(S.TRANSFERRING)
    needs_copy(case)
    case.world.settings["spark_threshold_bytes"] = 0
    case.status |= {"attempt": 1, "spark_application": "t-copy-1"}
    case.world.spark = SparkView(name="t-copy-1", state="", taken="delete it", going=going)
    return case


@pytest.mark.proves("B-14")
def test_a_taken_name_is_told_and_nothing_is_asked_for_until_it_is_free() -> None:
    """A person would look for why nothing is copied in the operator's log, or not at all."""
    case = waits_for_a_name()
    decision = case.decide()
    assert decision.actions == ()
    stalled = condition(decision, ConditionType.STALLED)
    assert (stalled.reason, stalled.message) == (Reason.NAME_TAKEN, "NameTaken: delete it")
    assert condition(decision, ConditionType.RECONCILING) is None

    case.world.spark = SparkView(name="t-copy-1", state="")
    stored = ("conditions", "waiting_for", "progress")
    case.status |= {name: getattr(decision.status, name) for name in stored}
    decision = case.decide()
    assert only(decision, world.EnsureSparkApplication).name == "t-copy-1"
    assert condition(decision, ConditionType.STALLED) is None
    assert "NameTaken" not in condition(decision, ConditionType.RECONCILING).message


def test_an_earlier_tasks_application_is_waited_for_without_alarm() -> None:
    """Whoever applies a task anew would be told to delete what goes away by itself."""
    case = waits_for_a_name(going=True)
    case.now = NOW + timedelta(seconds=10)
    decision = case.decide()
    assert decision.actions == ()
    assert decision.status.waiting_for == "AwaitingDeletion: delete it"
    assert condition(decision, ConditionType.STALLED) is None


@pytest.mark.parametrize("settled", ["no copy is needed", "its migrations are stuck"])
def test_a_taken_name_does_not_hide_what_matters_more(settled: str) -> None:
    """A task would ask for an object's deletion that it does not need."""
    case = waits_for_a_name()
    if settled == "no copy is needed":
        case.world.reports[0, 3] = {"needs_snapshot": False}
    else:
        case.status |= {"spark_application": "t-copy-2", "attempt": 2}
    assert condition(case.decide(), ConditionType.STALLED) is None


def many_copies(*nodes: tuple[int, int]) -> Case:
    """Return a task that has one copy to make for each of these pairs of source and target."""
    source = tuple((leader, 1, 2) for leader, _ in nodes)
    target = tuple((leader, 1, new) for leader, new in nodes)
    case = Case(S.TRANSFERRING)
    case.world.nodes = 1 + max(map(max, nodes))
    case.world.routes = [
        record(leader=leader, isr=old, replicas=(*old, new))
        for old, (leader, new) in zip(source, nodes, strict=True)
    ]
    case.world.reports |= {(p, n): {"needs_snapshot": True} for p, (_, n) in enumerate(nodes)}
    case.world.settings["stable"] = source
    case.world.pend(target)
    case.status |= {"source": text(source), "target": text(target)}
    return case


@pytest.mark.proves("OP-04", "B-03")
@pytest.mark.parametrize(
    ("nodes", "chosen"),
    [
        ([(0, 5 + p) for p in range(6)], [0, 1, 2]),  # the source's limit
        ([(5 + p, 3) for p in range(6)], [0, 1, 2]),  # the target's
        ([(5 + p, 15 + p) for p in range(6)], [0, 1, 2, 3]),  # the zone's
    ],
    ids=["source", "target", "zone"],
)
def test_small_copies_go_node_to_node_within_the_limits(
    nodes: list[tuple[int, int]], chosen: list[int]
) -> None:
    """A copy of a few bytes would wait for a Spark cluster, or hundreds would start at once."""
    case = many_copies(*nodes)
    case.world.settings |= {"max_migrations_per_node": 3, "max_concurrent_migrations": 4}
    decision = case.decide()
    assert [c.partition for c in only(decision, world.PullSnapshots).copies] == chosen
    case.world.settings["paused"] = True
    decision = case.decide()
    assert decision.actions == ()
    assert condition(decision, ConditionType.SUCCEEDED).reason == Reason.PAUSED


@pytest.mark.proves("B-14")
def test_a_task_says_what_its_partitions_wait_for() -> None:
    """Nobody could tell a copy that takes long from one that is not made."""
    case = Case(S.TRANSFERRING)
    needs_copy(case)
    assert case.decide().status.waiting_for == "Copying: 1 (partition 0: node 3 from node 0)"
    case = Case(S.SWITCHING)
    case.world.verified.clear()
    assert case.decide().status.waiting_for == "Verifying: 1 (partition 0: node 3 against node 0)"


@pytest.mark.proves("OP-04")
def test_the_first_copies_wait_until_all_replicas_know_what_they_need() -> None:
    """A Spark job would be started for the first replica that reports, and one more for each."""
    case = Case(S.TRANSFERRING)
    needs_copy(case)
    case.world.reports[0, 3] = {"log_end_offset": 0}
    assert case.decide().actions == ()
    assert case.decide().status.attempt == 0


@pytest.mark.proves("B-04")
def test_an_unverified_copy_keeps_its_partition_from_switching() -> None:
    """A wrong copy would lead."""
    case = Case(S.SWITCHING)
    case.world.verified.clear()
    decision = case.decide()
    check = only(decision, world.VerifyCopy)
    assert (check.partition, check.source, check.target, check.leader_epoch) == (0, 0, 3, 4)
    assert len(decision.actions) == 1
    case.world.verified.add((0, 3, 4))
    made = only(case.decide(), world.EnsureMigration)
    assert (made.name, made.partition, made.target) == ("t-p0", 0, 1)


@pytest.mark.proves("B-03", "B-14")
def test_migrations_stay_within_zone_and_node_limits() -> None:
    """A rebalance would move more leaders at a time than a person allows."""
    size = 12
    target = tuple((1 + p % 2, 0) for p in range(size))
    source = tuple((0, 1 + p % 2) for p in range(size))
    case = Case(S.SWITCHING)
    case.world.routes = [record(isr=nodes, replicas=nodes, iss=nodes[1:]) for nodes in source]
    case.world.settings |= {"stable": source, "max_concurrent_migrations": 8}
    case.world.pend(target)
    case.status |= {"source": text(source), "target": text(target)}
    made = [a for a in case.decide().actions if isinstance(a, world.EnsureMigration)]
    assert [m.partition for m in made] == [0, 1, 2, 3]  # node 0 is the source of all of them
    case.world.settings["max_migrations_per_node"] = 100
    decision = case.decide()
    assert len([a for a in decision.actions if isinstance(a, world.EnsureMigration)]) == 8
    case.world.migrations = [child(f"t-p{p}", p, "DowngradeLeader") for p in range(7)]
    assert only(case.decide(), world.EnsureMigration).name == "t-p7"
    case.world.settings["max_concurrent_migrations"] = 7
    decision = case.decide()
    assert decision.actions == ()
    assert "Limit: 5" in decision.status.waiting_for or not decision.status.waiting_for


@pytest.mark.proves("B-14", "RM-01")
def test_failed_migrations_are_repeated_under_new_names_and_then_need_a_person() -> None:
    """A partition would be tried for ever, or never again."""
    case = Case(S.SWITCHING)
    case.world.migrations = [child("t-p0", state="Failed", error="e")]
    assert only(case.decide(), world.EnsureMigration).name == "t-p0-1"
    case.world.migrations += [child(f"t-p0-{n}", state="RolledBack") for n in (1, 2, 3, 4)]
    case.now = NOW + timedelta(seconds=20)
    decision = case.decide()
    assert decision.actions == ()
    assert condition(decision, ConditionType.STALLED).reason == Reason.FAILED
    assert decision.status.waiting_for.startswith("Stuck: 1")


@pytest.mark.proves("B-14", "RM-01")
@pytest.mark.parametrize(
    ("state", "name", "back"),
    [
        (S.SWITCHING, "t-p0", False),
        (S.STOPPING_REDUNDANT, "t-p0", False),
        (S.CANCELLING, "t-back-0", True),
    ],
)
def test_a_migrations_taken_name_is_told_and_asked_for_until_it_is_free(
    state: S, name: str, *, back: bool
) -> None:
    """A leader would not move for ever, with the reason in the operator's log alone."""
    case = Case(state)
    if back:
        case.world.settings["cancel_revision"] = 2
        case.world.routes[0] = record(leader=3, replicas=(0, 1, 2, 3), isr=(0, 1, 2, 3))
    elif state == S.STOPPING_REDUNDANT:
        done(case)
        case.world.routes[0] = MOVING
    case.world.taken_names = {name: "delete it"}
    decision = case.decide()
    assert only(decision, world.EnsureMigration).name == name
    stalled = condition(decision, ConditionType.STALLED)
    assert stalled.reason == Reason.NAME_TAKEN
    assert stalled.message == "NameTaken: 1 (partition 0: delete it)"

    case.world.taken_names = {}
    stored = ("conditions", "waiting_for", "progress")
    case.status |= {field: getattr(decision.status, field) for field in stored}
    decision = case.decide()
    assert only(decision, world.EnsureMigration).name == name
    assert condition(decision, ConditionType.STALLED) is None


@pytest.mark.proves("ZR-10")
def test_stable_is_written_with_the_tasks_revision() -> None:
    """Another rebalance's completion would be written."""
    case = Case(S.FINALIZING)
    written = only(case.decide(), world.WriteStable)
    assert (written.revision, written.target) == (2, NEW)


@pytest.mark.proves("ZR-11", "ZR-12", "B-09")
def test_redundant_replicas_leave_the_route_and_then_stop() -> None:
    """A replica would be stopped while the route still sends readers to it."""
    case = Case(S.STOPPING_REDUNDANT)
    done(case)
    decision = case.decide()
    (change,) = only(decision, world.ChangeRoutes).changes
    assert (change.state.replicas, change.state.isr) == ((1, 2, 3), (1, 2, 3))
    assert len(decision.actions) == 1
    stopped(case)
    leader = case.world.routes[0].leader
    case.world.reports |= {(0, 0): {}, (0, leader): {"partition_epoch": 1}}
    decision = case.decide()
    assert (decision.actions, decision.path) == ((), ()), "its leader still counts on it"
    del case.world.reports[0, leader]
    decision = case.decide()
    assert only(decision, world.StopReplica).node == 0
    assert decision.path == ()


@pytest.mark.proves("ZR-11")
def test_a_redundant_leader_hands_over_first() -> None:
    """The leader would be stopped under its writers."""
    case = Case(S.STOPPING_REDUNDANT)
    done(case)
    case.world.routes[0] = MOVING
    assert only(case.decide(), world.EnsureMigration).target == 1


def test_stopping_leaves_the_next_rebalances_replicas_alone() -> None:
    """The end of one rebalance would undo the beginning of the next."""
    case = Case(S.STOPPING_REDUNDANT)
    done(case)
    case.world.pend(((0, 1, 2), (1, 2, 0)), 5)
    assert case.decide().path == (S.SUCCEEDED,)


@pytest.mark.proves("ZR-19", "ZR-20", "B-15")
def test_cancel_writes_its_intent_first_and_clears_the_keys_last() -> None:
    """A coordinator that dies between would not know that it was cancelling."""
    case = Case(S.CANCELLING)
    intent = only(case.decide(), world.WriteCancel)
    assert (intent.revision, intent.old, intent.new) == (2, OLD, NEW)
    case.world.settings["cancel_revision"] = 2
    case.world.migrations = [child("t-p0", state="OpenCandidate")]
    case.world.spark = SparkView(name="t-copy-1", state="RUNNING")
    kinds = [type(a) for a in case.decide().actions]
    assert kinds == [world.CancelMigration, world.DeleteSparkApplication]
    case.world.migrations, case.world.spark = [], None
    (change,) = only(case.decide(), world.ChangeRoutes).changes
    assert change.state.replicas == (0, 1, 2)
    case.world.routes[0] = record()
    case.world.reports[0, 3] = {}
    assert only(case.decide(), world.StopReplica).node == 3
    case.world.reports.clear()
    assert only(case.decide(), world.ClearPending).revision == 2
    case.world.settings |= {"pending": None, "pending_revision": 0, "cancel_revision": None}
    assert case.decide().status.state == S.CANCELLED


@pytest.mark.proves("ZR-20", "B-15")
def test_cancel_carries_leaders_back() -> None:
    """A partition would be led from a node that is about to lose its replica."""
    case = Case(S.CANCELLING)
    case.world.settings["cancel_revision"] = 2
    case.world.routes[0] = record(leader=3, replicas=(0, 1, 2, 3), isr=(0, 1, 2, 3))
    back = only(case.decide(), world.EnsureMigration)
    assert (back.name, back.target) == ("t-back-0", 0)
    case.world.migrations = [child("t-back-0", state="OpenCandidate", target=0)]
    assert case.decide().actions == ()  # the way back is not cancelled


@pytest.mark.proves("B-15")
def test_the_end_of_a_cancel_lists_what_became_of_the_partitions() -> None:
    """A person could not tell which partitions the cancel touched."""
    source = ((0, 1), (0, 1), (0, 1), (0, 1))
    target = ((0, 1), (1, 0), (1, 2), (1, 0))
    case = Case(S.CANCELLING)
    case.status |= {
        "source": text(source),
        "target": text(target),
        "last_error": LastError(reason=Reason.CANCELLED, message="cancelled by spec.cancel"),
    }
    both = {"isr": (0, 1), "replicas": (0, 1)}
    case.world.routes = [record(leader=n, **both) for n in (0, 1, 0, 0)]
    case.world.settings |= {"stable": source, "pending": None, "pending_revision": 0}
    message = condition(case.decide(), ConditionType.SUCCEEDED).message
    assert "2 kept, 1 rolled back, 1 completed" in message


@pytest.mark.proves("ZR-10")
def test_a_pending_assignment_that_is_the_stable_one_is_completed_too() -> None:
    """Everything asked for later would be planned behind it for ever."""
    case = Case(S.FINALIZING)
    case.world.pend(OLD).routes[0] = record()
    case.status |= {"source": text(OLD), "target": text(OLD)}
    written = only(case.decide(), world.WriteStable)
    assert (written.revision, written.target) == (2, OLD)
    case.world.settings |= {"pending": None, "pending_revision": 0}
    assert case.decide().path[0] == S.STOPPING_REDUNDANT
    case.world.pend(NEW, 9)
    assert case.decide().path[0] == S.STOPPING_REDUNDANT, "what was planned meanwhile is another's"
