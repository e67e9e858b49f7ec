"""RebalanceTask: how partitions are copied, switched, finished and carried back."""

from datetime import timedelta

import pytest
from rebalance_case import MOVING, Case, condition, done, needs_copy, only, opened, stopped
from worlds import NEW, NOW, OLD, child, record, text

from rezone.domain.model import world
from rezone.domain.model.world import SparkView
from rezone.domain.rebalance.bulk_copies import TURN_SECONDS
from rezone.resources.conditions import ConditionType, Reason
from rezone.resources.machine_status import LastError
from rezone.resources.task import TaskState as S
from rezone.wire.messages import CopyProgress


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
        assert only(case.decide(), world.AdmitCopies).admitted == app.copies
        case.world.spark = SparkView(name=f"t-copy-{attempt}", state="FAILED", error="oom")
        app = only(case.decide(), world.EnsureSparkApplication)
        assert app.name == f"t-copy-{attempt + 1}"
    case.status |= {"attempt": 5, "spark_application": "t-copy-5"}
    case.world.spark = SparkView(name="t-copy-5", state="FAILED", error="oom")
    decision = case.decide()
    assert decision.path[0] == S.CANCELLING
    assert decision.status.last_error is not None
    assert "oom" in decision.status.last_error.message


@pytest.mark.proves("SS-06")
@pytest.mark.parametrize("threshold", [0, 1 << 40], ids=["by Spark", "node to node"])
def test_all_receivers_of_a_partition_are_in_one_copy(threshold: int) -> None:
    """Two new replicas of one partition are one copy with two targets.

    Planned apart, each would cost the source a scan, and read it as of another time.
    """
    case = Case(S.TRANSFERRING)
    case.world.nodes = 6
    case.world.routes[0] = record(replicas=(0, 1, 2, 4, 5))
    case.world.reports |= {(0, 4): {"needs_snapshot": True}, (0, 5): {"needs_snapshot": True}}
    case.world.settings["spark_threshold_bytes"] = threshold
    target = ((0, 4, 5), *NEW[1:])
    case.world.pend(target)
    case.status["target"] = text(target)
    kind = world.PullSnapshots if threshold else world.EnsureSparkApplication
    copies = only(case.decide(), kind).copies
    assert copies == (world.Copy(partition=0, source=0, targets=(4, 5)),)


@pytest.mark.proves("ZR-15")
def test_a_new_primary_is_asked_for_the_copies_of_the_old_one() -> None:
    """After a failover copies have the leader of now as their source, not the one of before.

    The rebalance would ask a dead node for rows for ever.
    """
    case = Case(S.TRANSFERRING)
    needs_copy(case)
    case.status["attempt"] = 1
    assert only(case.decide(), world.PullSnapshots).copies[0].source == 0
    case.world.routes[0] = record(
        leader=2, leader_epoch=5, isr=(1, 2), replicas=(0, 1, 2, 3), hot_standby_replica=1
    )
    (copy,) = only(case.decide(), world.PullSnapshots).copies
    assert copy == world.Copy(partition=0, source=2, targets=(3,))


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
    assert (stalled.reason, stalled.message) == (Reason.NAME_CONFLICT, "NameConflict: delete it")
    assert condition(decision, ConditionType.RECONCILING) is None

    case.world.spark = SparkView(name="t-copy-1", state="")
    stored = ("conditions", "waiting_for", "progress")
    case.status |= {name: getattr(decision.status, name) for name in stored}
    decision = case.decide()
    assert only(decision, world.EnsureSparkApplication).name == "t-copy-1"
    assert condition(decision, ConditionType.STALLED) is None
    assert "NameConflict" not in condition(decision, ConditionType.RECONCILING).message


def test_an_earlier_tasks_application_is_waited_for_without_alarm() -> None:
    """Whoever applies a task again would be told to delete what goes away by itself."""
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


def by_spark(case: Case, state: str = "RUNNING") -> Case:
    """Let a task's copies go by an application in this state."""
    case.world.settings["spark_threshold_bytes"] = 0
    case.status |= {"attempt": 1, "spark_application": "t-copy-1"}
    case.world.spark = SparkView(name="t-copy-1", state=state)
    return case


def admitted(case: Case) -> list[int]:
    """Return which copies may begin; the others must be held."""
    action = only(case.decide(), world.AdmitCopies)
    chosen = [c.partition for c in action.admitted]
    assert sorted([*chosen, *(c.partition for c in action.held)]) == list(range(6))
    return chosen


@pytest.mark.proves("OP-04", "B-03")
@pytest.mark.parametrize("state", ["NEW", "SUBMITTED", "RUNNING"])
@pytest.mark.parametrize(
    ("nodes", "count"),
    [
        ([(0, 5 + p) for p in range(6)], 3),  # the source's limit
        ([(5 + p, 3) for p in range(6)], 3),  # the target's
        ([(5 + p, 15 + p) for p in range(6)], 4),  # the zone's
    ],
    ids=["source", "target", "zone"],
)
def test_copies_by_spark_begin_within_the_limits(
    nodes: list[tuple[int, int]], count: int, state: str
) -> None:
    """An application that has all copies begins as many as streams would run.

    Hundreds would start at once, whatever the zone's limits say.
    """
    case = by_spark(many_copies(*nodes), state)
    case.world.settings |= {"max_migrations_per_node": 3, "max_concurrent_migrations": 4}
    assert len(admitted(case)) == count
    begun = {"needs_snapshot": True, "copy": CopyProgress(bytes=1)}
    case.world.reports[4, nodes[4][1]] = begun
    assert admitted(case)[0] == 4  # what is under way keeps its place


@pytest.mark.proves("B-01", "B-03")
@pytest.mark.parametrize("how", ["suspend", "paused"])
def test_no_copy_by_spark_begins_while_its_task_rests(how: str) -> None:
    """All are held, those under way too: what breaks off does not begin again.

    A pause would stop nothing of an application that had its plan before.
    """
    case = by_spark(many_copies(*((5 + p, 15 + p) for p in range(6))))
    rests = case.spec if how == "suspend" else case.world.settings
    rests[how] = True
    assert admitted(case) == []
    rests[how] = False
    assert len(admitted(case)) == 6


@pytest.mark.proves("ZR-18")
def test_a_copy_that_spark_does_not_begin_gives_its_place_to_others() -> None:
    """Each that waits has its turn, also beside one that is admitted and never begins.

    A replica that came to need a copy after the plan was made would hold up all others.
    """
    case = by_spark(many_copies(*((5 + p, 15 + p) for p in range(6))))
    case.world.settings["max_concurrent_migrations"] = 1
    had_a_turn = set()
    for _ in range(6):
        had_a_turn |= set(admitted(case))
        case.now += timedelta(seconds=TURN_SECONDS)
    assert had_a_turn == set(range(6))


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
    assert stalled.reason == Reason.NAME_CONFLICT
    assert stalled.message == "NameConflict: 1 (partition 0: delete it)"

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


def one_of_two_switched(state: S) -> Case:
    """Return a task of which partition 0 has switched and partition 1 still copies to node 3."""
    target = (NEW[0], (1, 2, 3))
    case = Case(state)
    case.world.pend(target)
    case.world.routes = [
        record(leader=1, leader_epoch=5, replicas=(0, 1, 2, 3), isr=(0, 1, 2, 3)),
        record(leader=1, replicas=(0, 1, 2, 3)),
    ]
    case.world.reports[1, 3] = {"needs_snapshot": True}
    case.status["target"] = text(target)
    return case


@pytest.mark.proves("ZR-11")
def test_a_partition_that_has_switched_frees_its_old_replica_while_others_copy() -> None:
    """An old replica stops as soon as its own partition has switched.

    Otherwise a move between two full data nodes would never get room.
    """
    case = one_of_two_switched(S.TRANSFERRING)
    (change,) = only(case.decide(), world.ChangeRoutes).changes
    assert (change.partition, change.state.replicas) == (0, (1, 2, 3))
    case.world.routes[0] = change.state
    case.world.reports[0, 0] = {}
    assert only(case.decide(), world.StopReplica).node == 0
    case.world.reports[0, 1] = {"partition_epoch": 1}
    kinds = [type(a) for a in case.decide().actions]
    assert world.StopReplica not in kinds, "its leader still counts on it"


@pytest.mark.parametrize("holds", ["a migration", "the planned assignment"])
def test_an_old_replica_that_is_needed_stays(holds: str) -> None:
    """An old replica stays while a migration or the next assignment needs it.

    Otherwise it would be copied again at once, or stopped under a takeover.
    """
    case = one_of_two_switched(S.TRANSFERRING)
    if holds == "a migration":
        case.world.migrations = [child("person", state="CloseOldLeader", owner_task="")]
    else:
        case.world.settings["planned"] = ((1, 2, 0), (1, 2, 3))
    assert not [a for a in case.decide().actions if isinstance(a, world.ChangeRoutes)]


@pytest.mark.proves("ZR-20", "B-15")
def test_a_cancel_keeps_what_has_given_its_old_replica_up() -> None:
    """A partition that has switched and freed its old replica counts as completed by a cancel.

    Otherwise `stable` would name a replica that is gone, and the partition would be copied back.
    """
    case = one_of_two_switched(S.CANCELLING)
    case.world.settings["cancel_revision"] = 2
    case.world.routes = [record(leader=1, replicas=(1, 2, 3), isr=(1, 2, 3)), record(leader=1)]
    case.world.reports.clear()
    cleared = only(case.decide(), world.ClearPending)
    ended = (NEW[0], OLD[1])
    assert (cleared.revision, cleared.ended) == (2, ended)
    gone = {"pending": None, "pending_revision": 0, "cancel_revision": None, "stable": ended}
    case.world.settings |= gone
    message = condition(case.decide(), ConditionType.SUCCEEDED).message
    assert "0 kept, 1 rolled back, 1 completed" in message


def test_a_migration_that_waits_for_the_task_holds_no_relief_up() -> None:
    """An old replica stops although a person's migration waits for the same partition.

    Otherwise a full data node would wait for the migration, and that for the task.
    """
    case = one_of_two_switched(S.TRANSFERRING)
    case.world.migrations = [child("person", state="SelectCandidate", owner_task="")]
    (change,) = only(case.decide(), world.ChangeRoutes).changes
    assert change.state.replicas == (1, 2, 3)


def test_stopping_leaves_the_candidate_of_a_person_alone() -> None:
    """A replica that a person's migration has chosen meanwhile is not redundant.

    Otherwise the task would remove it and the migration add it, again and again.
    """
    case = Case(S.STOPPING_REDUNDANT)
    case.world.settings |= {"stable": NEW, "pending": None, "pending_revision": 0}
    assert only(case.decide(), world.ChangeRoutes).changes[0].state.replicas == (1, 2, 3)
    person = child("person", state="OpenCandidate", owner_task="", candidate=0)
    case.world.migrations = [person]
    decision = case.decide()
    assert (decision.path[-1], decision.actions) == (S.SUCCEEDED, ())


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
