"""RegionMigration: one test for each edge of its table, and what each state asks for."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from migration_case import (
    Case,
    cancelled,
    candidate_says,
    given_up,
    lags,
    late,
    led_by,
    lose_quorum,
    never_authorized,
    nothing,
    old_says,
    only,
    route_of,
    silent,
    with_world,
)
from worlds import NEW, NOW, OLD, World, by_index, child, followed, of_generation, record

from rezone.domain.machines.migration_table import TABLE
from rezone.domain.model import world
from rezone.resources.conditions import Reason
from rezone.resources.migration import MigrationState as S
from rezone.resources.migration import OldLeaderPolicy
from rezone.resources.zone_status import RETAINED_MAX, RetainedReplica
from rezone.wire.layouts import id_of
from rezone.wire.messages import Role, TakeoverState

__all__ = ["followed"]

EDGES: dict[tuple[S, str], Callable[[Case], None]] = {
    (S.SELECT_CANDIDATE, "available"): nothing,
    (S.SELECT_CANDIDATE, "not available"): lags,
    (S.SELECT_CANDIDATE, "refused"): lambda c: c.spec.update(target=77),
    (S.SELECT_CANDIDATE, "leads already"): lambda c: c.spec.update(target=0),
    (S.SELECT_CANDIDATE, "cancel"): cancelled,
    (S.SELECT_CANDIDATE, "unclean election"): lose_quorum,
    (S.OPEN_CANDIDATE, "candidate is close"): nothing,
    (S.OPEN_CANDIDATE, "candidate leads"): led_by(1),
    (S.OPEN_CANDIDATE, "candidate failed"): silent(1),
    (S.OPEN_CANDIDATE, "deadline"): late,
    (S.OPEN_CANDIDATE, "cancel"): cancelled,
    (S.UPDATE_METADATA_DOWN, "written"): with_world(World.authorize),
    (S.UPDATE_METADATA_DOWN, "candidate leads"): led_by(1),
    (S.UPDATE_METADATA_DOWN, "candidate failed"): led_by(2),
    (S.UPDATE_METADATA_DOWN, "deadline"): late,
    (S.UPDATE_METADATA_DOWN, "cancel"): cancelled,
    (S.DOWNGRADE_LEADER, "handing over"): old_says(
        takeover=TakeoverState.PENDING, takeover_epoch=5
    ),
    (S.DOWNGRADE_LEADER, "leader is gone"): silent(0),
    (S.DOWNGRADE_LEADER, "takeover failed"): old_says(
        takeover=TakeoverState.FAILED, takeover_epoch=5
    ),
    (S.DOWNGRADE_LEADER, "route has changed"): led_by(2),
    (S.DOWNGRADE_LEADER, "deadline"): late,
    (S.DOWNGRADE_LEADER, "cancel"): cancelled,
    (S.UPGRADE_CANDIDATE, "candidate leads"): with_world(World.takes_over),
    (S.UPGRADE_CANDIDATE, "takeover failed"): candidate_says(
        takeover=TakeoverState.FAILED, takeover_epoch=5
    ),
    (S.UPGRADE_CANDIDATE, "candidate failed"): silent(1),
    (S.UPGRADE_CANDIDATE, "deadline"): late,
    (S.UPGRADE_CANDIDATE, "cancel"): cancelled,
    (S.UPDATE_METADATA_UP, "written"): led_by(1),
    (S.UPDATE_METADATA_UP, "route has changed"): led_by(2, 6),
    (S.UPDATE_METADATA_ROLLBACK, "try again"): nothing,
    (S.UPDATE_METADATA_ROLLBACK, "candidate leads"): led_by(1),
    (S.UPDATE_METADATA_ROLLBACK, "restored"): given_up,
    (S.UPDATE_METADATA_ROLLBACK, "cleaned"): never_authorized,
    (S.UNCLEAN_ELECTION, "recovered"): led_by(2),
    (S.UNCLEAN_ELECTION, "refused"): with_world(lambda w: w.reports.clear()),
    (S.UNCLEAN_ELECTION, "route has changed"): led_by(1, 6),
    (S.UNCLEAN_ELECTION, "cancel"): cancelled,
    (S.CLOSE_OLD_LEADER, "closed"): led_by(1),
}


def test_each_edge_has_a_test() -> None:
    """An edge would be in the diagram that nothing ever walks."""
    assert set(EDGES) == {(e.source, e.event) for e in TABLE.edges}


@pytest.mark.proves("RM-01")
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
    """Who moves partition 1 would move none, or one of a layout that is over."""
    case = Case(edge[0])
    EDGES[edge](case)
    first, view = case.decide(), of_generation(case.world.view(), LATER)
    case.world.view = lambda: view  # type: ignore[method-assign]
    case.context["partition"] = id_of(LATER, 0)
    later = case.decide()
    known = first.status.context
    if known is not None:
        known = known.model_copy(update={"partition": id_of(LATER, known.partition)})
    status = first.status.model_copy(update={"context": known})
    assert (later.path, later.status) == (first.path, status)
    assert by_index(later.actions, LATER) == first.actions


def test_a_partition_that_no_layout_has_is_refused_by_its_index() -> None:
    """A person would wait for a move that can never be, or read the number of another partition."""
    case = Case("")
    case.spec["partition"] = 9
    view = of_generation(case.world.view(), LATER)
    case.world.view = lambda: view  # type: ignore[method-assign]
    decision = case.decide()
    assert decision.status.state == S.FAILED
    assert decision.status.last_error is not None
    assert decision.status.last_error.message == "partition 9 does not exist: the zone has 2"


@pytest.mark.proves("RM-01", "RM-02")
def test_selection_persists_the_context_with_the_first_act() -> None:
    """A crash after the route write would not know who was meant to lead."""
    decision = Case("").decide()
    context = decision.status.context
    assert context is not None
    assert (context.from_node, context.to_node, context.leader_epoch) == (0, 1, 4)
    assert decision.status.state == S.UPDATE_METADATA_DOWN
    state = route_of(decision)
    assert (state.next_leader, state.next_epoch, state.hot_standby_replica) == (1, 5, 1)


@pytest.mark.proves("RM-02")
def test_what_the_route_says_of_the_intent_is_kept_with_it() -> None:
    """A coordinator after a crash would not know a route of before from the one it wrote."""
    case = Case(S.UPDATE_METADATA_DOWN)
    case.world.authorize()
    decision = case.decide()
    context = decision.status.context
    assert context is not None
    assert (context.route_version, context.leader_epoch, context.next_epoch) == (9, 4, 5)
    assert decision.status.state == S.DOWNGRADE_LEADER


@pytest.mark.proves("RM-02")
@pytest.mark.parametrize("state", [S.OPEN_CANDIDATE, S.DOWNGRADE_LEADER, S.UPGRADE_CANDIDATE])
def test_a_rollback_is_written_before_anything_is_taken_back(state: S) -> None:
    """After a crash half-way through it the migration would go on as if nobody had cancelled."""
    case = Case(state)
    case.spec["cancel"] = True
    status = case.decide().status
    assert status.state in {S.UPDATE_METADATA_ROLLBACK, S.ROLLED_BACK}
    assert S.UPDATE_METADATA_ROLLBACK in {each.state for each in status.history}
    assert status.last_error is not None


@pytest.mark.proves("RM-02", "RM-04", "HS-10")
def test_the_handover_is_written_down_behind_the_gap() -> None:
    """Nothing is written while nobody leads; then DowngradeLeader and UpgradeCandidate at once.

    Written before, they would hold the takeover up; not written, nobody could read what happened.
    """
    case = Case(S.DOWNGRADE_LEADER)
    case.world.reports[0, 0] = {"takeover": TakeoverState.DEAD, "takeover_epoch": 5}
    decision = case.decide()
    assert decision.path == (S.UPGRADE_CANDIDATE,)
    assert decision.status.state == S.DOWNGRADE_LEADER
    assert [each.state for each in decision.status.history] == [S.DOWNGRADE_LEADER]
    case.world.takes_over()
    case.world.reported(0, 1, led_from_offset=99)
    status = case.decide().status
    states = [S.DOWNGRADE_LEADER, S.UPGRADE_CANDIDATE, S.UPDATE_METADATA_UP]
    assert [each.state for each in status.history] == states
    assert status.context is not None
    assert status.context.last_entry_id == 99


@pytest.mark.proves("RM-05")
def test_a_candidate_leads_only_after_the_old_leader_and_by_the_newest_route() -> None:
    """There would be two leaders, or one that commits without a member that has joined since."""
    case = Case(S.UPGRADE_CANDIDATE)
    assert case.decide().actions == ()
    case.world.reports[0, 0] = {"role": Role.FOLLOWER}
    assert only(case.decide(), world.RequestUpgrade).candidate == 1
    case.world.reports[0, 1] = {"partition_epoch": 8}
    assert case.decide().actions == ()


@pytest.mark.proves("RM-11")
@pytest.mark.parametrize(
    ("tweak", "wanted"),
    [
        (nothing, 2),  # node 1 leads partition 1 already
        (with_world(lambda w: w.routes.__setitem__(0, record(iss=(1,)))), 1),
        (with_world(lambda w: w.silent.update({2: 60.0})), 1),
        (with_world(lambda w: w.routes.__setitem__(0, record(isr=(0,), replicas=(0,)))), 3),
    ],
    ids=["idle", "hot standby", "reachable", "any node"],
)
def test_selected_candidate(tweak: Callable[[Case], None], wanted: int) -> None:
    """A migration without a target would load the busiest node or pick a dead one."""
    case = Case("")
    case.spec["target"] = None
    tweak(case)
    context = case.decide().status.context
    assert context is not None
    assert context.to_node == wanted


@pytest.mark.parametrize(
    ("tweak", "reason"),
    [
        (with_world(World.pend), Reason.CONFLICT),
        (with_world(lambda w: w.settings.update(paused=True)), Reason.PAUSED),
        (
            with_world(
                lambda w: w.migrations.append(child("n", state="DowngradeLeader", owner_task=""))
            ),
            Reason.CONFLICT,
        ),
        (with_world(World.authorize), Reason.CONFLICT),
        (with_world(lambda w: w.pend(OLD).settings.update(pending_generation=1)), Reason.CONFLICT),
        (with_world(lambda w: w.settings.update(max_concurrent_migrations=0)), Reason.WAITING),
    ],
    ids=["pending", "paused", "other migration", "other takeover", "re-sharding", "limit"],
)
@pytest.mark.proves("B-01", "B-03", "B-14")
def test_selection_waits_and_says_why(tweak: Callable[[Case], None], reason: Reason) -> None:
    """Two machines would move one partition at a time, or a wait would look like a hang."""
    case = Case("")
    tweak(case)
    decision = case.decide()
    assert decision.status.state == S.SELECT_CANDIDATE
    assert decision.actions == ()
    assert decision.status.waiting_for
    assert decision.status.conditions[-1].reason == reason or any(
        c.reason == reason for c in decision.status.conditions
    )


NODES = (0, 1, 2, 3)


def moved_outside() -> Case:
    """Return a migration whose candidate, node 3, leads by the route already."""
    case = Case(S.UPDATE_METADATA_UP)
    case.spec["target"] = case.context["to_node"] = 3
    case.world.routes[0] = record(leader=3, leader_epoch=5, replicas=NODES, isr=NODES)
    return case


@pytest.mark.proves("RM-07", "ZR-10")
def test_the_assignment_follows_a_leader_that_a_person_has_moved() -> None:
    """The next rebalance would move it back to a node that it was moved away from."""
    case = moved_outside()
    decision = case.decide()
    settle = only(decision, world.SettleLeader)
    assert (settle.partition, settle.old_leader, settle.new_leader) == (0, 0, 3)
    assert decision.path == (), "over before the assignment is written: a crash would lose it"
    case.world.settings["stable"] = ((3, 1, 2), (1, 2, 0))
    assert case.decide().path[-1] == S.SUCCEEDED


@pytest.mark.proves("B-13")
@pytest.mark.parametrize(
    ("more", "seconds"),
    [
        ({}, None),
        ({"retain_old_leader_seconds": 3600}, 3600),
        ({"retain_old_leader_seconds": 0}, 0),
        ({"old_leader_policy": OldLeaderPolicy.REMOVE}, 0),
    ],
    ids=["without end", "an hour", "at once", "removed"],
)
def test_the_end_of_the_kept_old_leader_is_set_with_the_assignment(
    more: dict[str, Any], seconds: int | None
) -> None:
    """A crash would lose the end, or a repeat give it its whole time again."""
    until = None if seconds is None else NOW + timedelta(seconds=seconds)
    case = moved_outside()
    case.spec |= more
    settle = only(case.decide(), world.SettleLeader)
    assert (settle.since, settle.until, settle.migration) == (NOW, until, "m")
    assert settle.replicas == (0, 1, 2, 3)
    case.world.settings |= {"stable": ((3, 1, 2), OLD[1]), "retained": (kept(0, until),)}
    case.now = NOW + timedelta(seconds=30)
    status = case.decide().status
    assert status.context is not None
    assert (status.context.retained_time, status.retain_old_leader_until_time) == (NOW, until)


def kept(node: int, until: datetime | None = None, *, migration: str = "m") -> RetainedReplica:
    """Return what a migration keeps of partition 0 since NOW."""
    return RetainedReplica(
        partition=0, node=node, migration=migration, retained_time=NOW, retain_until_time=until
    )


@pytest.mark.proves("B-13", "B-14")
def test_an_old_leader_of_the_assignment_is_not_removed_by_a_time() -> None:
    """The partition would have one replica less than the zone asks for."""
    case = Case(S.UPDATE_METADATA_UP)
    case.spec["retain_old_leader_seconds"] = 60
    case.world.routes[0] = record(leader=1, leader_epoch=5)
    status = case.decide().status
    assert status.retain_old_leader_until_time is None
    assert any("node 0 is not beside" in line.message for line in status.history)


def full() -> tuple[RetainedReplica, ...]:
    """Return as many kept replicas as a zone may have."""
    return tuple(kept(n, migration="x") for n in range(100, 100 + RETAINED_MAX))


@pytest.mark.proves("B-13", "B-14")
def test_a_move_that_finds_no_room_to_keep_its_old_leader_is_refused() -> None:
    """It ends before anything has moved, with a reason; one that keeps nothing goes on.

    It waited for room after its leader had moved, for as long as others were kept.
    """
    case = Case("")
    case.spec["target"] = 3
    case.world.settings["retained"] = full()
    decision = case.decide()
    assert decision.path[-1] == S.FAILED
    error = decision.status.last_error
    assert error is not None
    assert error.reason == Reason.RETAINED_LIMIT
    assert "256 old leaders" in error.message
    removes = Case("")
    removes.spec["target"], removes.spec["old_leader_policy"] = 3, OldLeaderPolicy.REMOVE
    removes.world.settings["retained"] = full()
    assert removes.decide().path[:1] == (S.OPEN_CANDIDATE,)
    back = Case("")
    back.spec["target"] = 3
    back.world.settings["retained"] = (*full()[1:], kept(3, migration="x"))
    inside = Case("")
    inside.world.settings["retained"] = full()
    for each in (back, inside):
        assert S.FAILED not in each.decide().path


@pytest.mark.proves("B-13", "B-14")
def test_a_move_whose_room_others_have_taken_ends_without_it() -> None:
    """The assignment follows the leader at once; what cannot be kept is told.

    The leader has moved by then: waiting for room would leave the assignment behind for ever.
    """
    case = moved_outside()
    case.world.settings["retained"] = full()
    case.now = NOW + timedelta(seconds=20)
    only(case.decide(), world.SettleLeader)
    case.world.settings["stable"] = ((3, 1, 2), (1, 2, 0))
    decision = case.decide()
    assert decision.path[-1] == S.SUCCEEDED
    assert any("256 old leaders" in line.message for line in decision.status.history)


@pytest.mark.proves("B-07")
def test_a_leader_is_not_moved_to_a_node_in_maintenance() -> None:
    """A person's order names the reason; the operator's own choice is another node.

    The node would give the leader up again at once, to and fro.
    """
    case = Case("")
    case.spec["target"] = 1
    case.world.maintenance = {1}
    status = case.decide().status
    assert status.last_error is not None
    assert status.last_error.message == "node 1 is in maintenance"
    chosen = Case("")
    chosen.spec["target"] = None
    chosen.world.maintenance = {1}
    context = chosen.decide().status.context
    assert context is not None
    assert context.to_node == 2


@pytest.mark.proves("B-13")
def test_the_failback_to_a_kept_leader_needs_neither_copy_nor_comparison() -> None:
    """The whole partition would be read on two nodes before it moves back."""
    case = Case("")
    case.spec["target"] = 3
    case.world.routes[0] = record(replicas=NODES, isr=NODES, iss=(3,), hot_standby_replica=3)
    copied = case.decide()
    assert copied.path == (S.OPEN_CANDIDATE,), "a copy that nobody compared would lead"
    case.world.settings["retained"] = (kept(3, migration="x"),)
    assert case.decide().path == (S.UPDATE_METADATA_DOWN,)


@pytest.mark.parametrize("how", ["pending", "child", "inside"])
def test_other_leaders_leave_the_assignment_as_it_is(how: str) -> None:
    """A rebalance's own moves would each make another assignment, or wait for their own end."""
    case = moved_outside()
    if how == "pending":
        case.world.pend()
    if how == "child":
        case.world.migrations = [child("m", state="UpdateMetadataUp")]
    if how == "inside":
        case.world.settings["stable"] = ((0, 3, 2), (1, 2, 0))
    decision = case.decide()
    assert not any(isinstance(a, world.SettleLeader) for a in decision.actions)
    assert decision.path[-1] == S.SUCCEEDED


@pytest.mark.proves("B-14")
def test_a_move_outside_the_assignment_waits_for_any_rebalance() -> None:
    """The rebalance, planned without it, would move the leader back at once."""
    case = Case("")
    case.spec["target"] = 3
    case.world.pend(((0, 1, 2), (2, 1, 0)))
    decision = case.decide()
    assert decision.status.state == S.SELECT_CANDIDATE
    assert "a rebalance is under way" in decision.status.waiting_for
    case.spec["target"] = 1
    assert case.decide().path == (S.UPDATE_METADATA_DOWN,)


@pytest.mark.proves("RM-03")
@pytest.mark.parametrize(
    ("isr", "says", "log_end"),
    [((0, 1, 2), {}, 100), (NODES, {"needs_snapshot": True}, 100), (NODES, {}, 1100)],
    ids=["not in sync", "without rows", "a thousand rows behind"],
)
def test_a_candidate_is_opened_until_it_is_close(
    isr: tuple[int, ...], says: Any, log_end: int
) -> None:
    """Who is far from its leader would take over, and writers wait for it to come near."""
    case = Case(S.OPEN_CANDIDATE)
    case.context["to_node"] = case.spec["target"] = 3
    case.world.routes[0] = record(replicas=NODES, isr=NODES, iss=(3,), hot_standby_replica=3)
    case.world.verified.add((0, 3, 4))
    assert case.decide().path[0] == S.UPDATE_METADATA_DOWN
    case.world.routes[0] = record(replicas=NODES, isr=isr, hot_standby_replica=3)
    case.world.reports[0, 3] = says
    case.world.reports[0, 0] = {"log_end_offset": log_end}
    assert case.decide().path == ()
    case.world.silent[3] = 60.0
    assert case.decide().path[0] == S.UPDATE_METADATA_ROLLBACK


@pytest.mark.proves("RM-11")
def test_nobody_is_selected_who_could_not_be_copied_to() -> None:
    """A partition that nobody can lead would get replicas that stay empty for ever."""
    case = Case("")
    case.spec["target"] = None
    case.world.routes[0] = record(isr=(0,), replicas=(0,))
    case.world.silent[0] = 60.0
    decision = case.decide()
    assert (decision.status.state, decision.actions) == (S.SELECT_CANDIDATE, ())


@pytest.mark.proves("RM-03", "DCP-06", "B-04")
def test_opening_adds_copies_verifies_in_order() -> None:
    """A candidate would be opened twice, or lead before its copy was verified."""
    case = Case(S.OPEN_CANDIDATE)
    case.context["to_node"] = 3
    case.spec["target"] = 3
    state = route_of(case.decide())
    assert (state.replicas, state.hot_standby_replica) == ((0, 1, 2, 3), 3)
    case.world.routes[0] = record(replicas=(0, 1, 2, 3), hot_standby_replica=3)
    case.world.reports[0, 3] = {"needs_snapshot": True}
    copies = only(case.decide(), world.PullSnapshots).copies
    assert copies == (world.Copy(partition=0, source=0, targets=(3,)),)
    case.world.reports[0, 3] = {}
    assert case.decide().actions == ()
    case.world.routes[0] = record(replicas=(0, 1, 2, 3), isr=(0, 1, 2, 3), hot_standby_replica=3)
    decision = case.decide()
    assert only(decision, world.VerifyCopy).target == 3
    assert decision.path == ()
    case.world.verified.add((0, 3, 4))
    assert case.decide().path == (S.UPDATE_METADATA_DOWN,)


@pytest.mark.proves("B-04")
def test_nobody_is_authorized_whose_copy_is_not_verified_under_this_leader() -> None:
    """A leader of a later epoch has other rows than the one that the copy was compared with."""
    case = Case(S.UPDATE_METADATA_DOWN)
    case.context["to_node"] = case.spec["target"] = 3
    case.world.routes[0] = record(replicas=NODES, isr=NODES, iss=(3,), hot_standby_replica=3)
    case.world.verified.add((0, 3, 3))
    (asked,) = case.decide().actions
    assert isinstance(asked, world.VerifyCopy)
    assert (asked.target, asked.leader_epoch) == (3, 4)
    case.world.verified.add((0, 3, 4))
    assert route_of(case.decide()).next_leader == 3


@pytest.mark.proves("DCP-06")
@pytest.mark.parametrize(("rows", "close"), [(999, True), (1000, False)])
def test_under_a_thousand_rows_is_almost_up_to_date(rows: int, *, close: bool) -> None:
    """Writers would wait for more rows than a moment's; or the last few would hold a move up."""
    case = Case(S.OPEN_CANDIDATE)
    case.world.reports[0, 0] = {"log_end_offset": 5000, "follower_applied": {1: 5000 - rows}}
    assert (case.decide().path != ()) == close
    case.world.reports[0, 1] = {"kv_applied_offset": 5000}
    assert case.decide().path != (), "its own word is newer"


@pytest.mark.proves("B-14")
def test_why_a_copy_could_not_be_compared_is_told() -> None:
    """A comparison that never comes to an end would look like one that takes long."""
    case = Case(S.OPEN_CANDIDATE)
    case.spec["target"] = case.context["to_node"] = 3
    case.world.routes[0] = record(replicas=NODES, isr=NODES, hot_standby_replica=3)
    case.world.settings["not_compared"] = {(0, 3, 4): "node 0 is busy"}
    case.now = NOW + timedelta(seconds=10)
    assert only(case.decide(), world.VerifyCopy).target == 3
    wanted = "the copy is verified: node 3 against node 0, so far in vain: node 0 is busy"
    assert case.decide().status.waiting_for == wanted


@pytest.mark.proves("RM-03")
def test_a_lost_candidate_is_removed_again() -> None:
    """A failed migration would leave a replica behind that nobody asked for."""
    case = Case(S.UPDATE_METADATA_ROLLBACK)
    case.context = {"to_node": 3, "opened_candidate": True}
    case.world.routes[0] = record(replicas=(0, 1, 2, 3))
    assert route_of(case.decide()).replicas == (0, 1, 2)
    case.world.routes[0] = record()
    case.world.reports[0, 3] = {}
    decision = case.decide()
    assert only(decision, world.StopReplica).node == 3
    assert decision.status.state == S.UPDATE_METADATA_ROLLBACK
    case.world.silent[3] = 60.0
    assert case.decide().status.state == S.FAILED


@pytest.mark.proves("RM-03", "RM-08", "ZR-06")
@pytest.mark.parametrize("pending", [True, False], ids=["pending", "stable"])
def test_a_candidate_that_the_assignment_wants_is_not_removed(*, pending: bool) -> None:
    """The rollback removed what a rebalance added again, in each pass of either, without an end."""
    case = Case(S.UPDATE_METADATA_ROLLBACK)
    case.context = {"to_node": 3, "opened_candidate": True}
    if pending:
        case.world.pend()
    else:
        case.world.settings["stable"] = NEW
    case.world.routes[0] = record(replicas=NODES)
    case.world.reports[0, 3] = {"needs_snapshot": True}
    decision = case.decide()
    assert decision.actions == ()
    assert decision.status.state == S.FAILED
    case.world.routes[0] = record()
    assert only(case.decide(), world.StopReplica).node == 3, "no record names it yet"


@pytest.mark.proves("RM-04", "DCP-09")
def test_takeover_is_asked_for_once_the_leader_knows_the_route() -> None:
    """The old leader would refuse a takeover that its own record does not authorize."""
    case = Case(S.DOWNGRADE_LEADER)
    case.world.reports[0, 0] = {"partition_epoch": 8}
    assert case.decide().actions == ()
    case.world.reports[0, 0] = {"partition_epoch": 9}
    request = only(case.decide(), world.RequestTakeover)
    assert (request.leader_epoch, request.next_epoch, request.candidate) == (4, 5, 1)


@pytest.mark.proves("RM-04", "RM-05")
@pytest.mark.parametrize("found", [True, False], ids=["unreachable", "not found"])
def test_a_leader_that_is_gone_is_left_behind(*, found: bool) -> None:
    """A failed node would keep its partitions leaderless, or lose its lease's protection."""
    case = Case(S.DOWNGRADE_LEADER)
    if found:
        case.world.silent[0] = 4.0
        assert case.decide().actions == ()  # its lease has not run out
        case.world.silent[0] = 6.0
    else:
        case.world.reports[0, 0] = None
    decision = case.decide()
    context = decision.status.context
    assert context is not None
    assert (context.close_old_leader, context.leader_may_be_unreachable) == (True, True)
    assert only(decision, world.RequestUpgrade).next_epoch == 5
    assert decision.path == (S.UPGRADE_CANDIDATE,)


@pytest.mark.proves("RM-04", "RM-05")
def test_a_lost_state_change_is_mended_by_the_old_leaders_end() -> None:
    """The partition would stay without a leader after the old one's last message was lost."""
    case = Case(S.DOWNGRADE_LEADER)
    case.world.reports[0, 0] = {"role": Role.FOLLOWER, "leader": 1, "log_end_offset": 321}
    assert only(case.decide(), world.RequestUpgrade).last_offset == 321


@pytest.mark.proves("RM-05")
def test_rollback_tells_the_failure_detector() -> None:
    """Both nodes are gone and nobody would look for a third one."""
    case = Case(S.UPGRADE_CANDIDATE)
    case.world.silent |= {0: 60.0, 1: 60.0}
    case.context |= {"leader_may_be_unreachable": True}
    decision = case.decide()
    assert route_of(decision).leader_epoch == 6
    rolled_back = Case(S.UPDATE_METADATA_ROLLBACK)
    rolled_back.context |= {"leader_may_be_unreachable": True}
    rolled_back.world.silent[0] = 60.0
    rolled_back.world.routes[0] = record(leader_epoch=6)
    end = rolled_back.decide()
    assert only(end, world.NotifyFailureDetector).partition == 0
    assert end.status.state == S.ROLLED_BACK


@pytest.mark.proves("RM-02")
@pytest.mark.parametrize("state", [S.DOWNGRADE_LEADER, S.UPGRADE_CANDIDATE])
def test_nothing_is_written_before_the_candidate_leads(state: S) -> None:
    """An API write would stand between the old leader's last row and the new one's first."""
    case = Case(state)
    first = case.decide().status
    case.status = {"conditions": first.conditions, "observed_generation": 3}
    assert case.decide().status == first
    case.world.takes_over()
    leads = case.decide()
    assert leads.status.state == S.UPDATE_METADATA_UP
    assert leads.path[-1] == S.UPDATE_METADATA_UP
    assert route_of(leads).leader == 1


@pytest.mark.proves("RM-06")
def test_up_accepts_a_changed_in_sync_set_but_no_other_authorization() -> None:
    """A newer decision about the partition would be overwritten by an older migration."""
    case = Case(S.UPDATE_METADATA_UP)
    case.world.routes[0] = record(isr=(0, 1), partition_epoch=12, next_leader=1, next_epoch=5)
    assert (route_of(case.decide()).leader, route_of(case.decide()).leader_epoch) == (1, 5)
    case.world.routes[0] = record(partition_epoch=12, next_leader=1, next_epoch=7, leader_epoch=6)
    assert case.decide().path[0] == S.UPDATE_METADATA_ROLLBACK


@pytest.mark.proves("RM-07", "B-13")
@pytest.mark.parametrize("keep", list(OldLeaderPolicy))
def test_the_old_leader_stays_or_goes_as_asked(keep: OldLeaderPolicy) -> None:
    """A person would get one replica less than asked for, or one more."""
    case = Case(S.UPDATE_METADATA_UP)
    case.spec["old_leader_policy"] = keep
    case.world.settings["stable"] = ((0, 2, 3), OLD[1])
    state = route_of(case.decide())
    wanted = (0, 1, 2) if keep is OldLeaderPolicy.RETAIN else (1, 2)
    assert (state.leader, state.isr, state.replicas) == (1, wanted, wanted)


@pytest.mark.proves("B-09")
def test_closing_waits_until_the_leader_counts_without_the_old_one() -> None:
    """An operator that dies now would leave a leader that waits for a stopped replica."""
    case = Case(S.CLOSE_OLD_LEADER)
    case.context |= {"close_old_leader": True}
    case.world.routes[0] = record(leader=1, leader_epoch=5, isr=(1, 2), replicas=(1, 2))
    case.world.reports |= {(0, 0): {}, (0, 1): {"partition_epoch": 8}}
    decision = case.decide()
    assert (decision.actions, decision.path) == ((), ())


@pytest.mark.proves("RM-07", "RM-09")
def test_closing_ignores_what_cannot_be_closed() -> None:
    """A migration would never end because a dead node does not answer."""
    case = Case(S.CLOSE_OLD_LEADER)
    case.context |= {"close_old_leader": True}
    case.spec["old_leader_policy"] = OldLeaderPolicy.REMOVE
    case.world.routes[0] = record(leader=1, leader_epoch=5, isr=(1, 2), replicas=(1, 2))
    case.world.reports[0, 0] = {}
    assert only(case.decide(), world.StopReplica).node == 0
    case.world.silent[0] = 1.0
    assert case.decide().status.state == S.SUCCEEDED
    case.world.silent.clear()
    case.world.reports.clear()
    assert case.decide().status.state == S.SUCCEEDED


@pytest.mark.proves("RM-07")
def test_a_failover_to_the_candidate_still_removes_the_old_leader() -> None:
    """The zone would keep one replica more than a person asked for."""
    case = Case(S.CLOSE_OLD_LEADER)
    case.spec["old_leader_policy"] = OldLeaderPolicy.REMOVE
    case.world.routes[0] = record(leader=1, leader_epoch=6)
    case.world.settings["stable"] = ((1, 2, 3), OLD[1])
    assert route_of(case.decide()).replicas == (1, 2)


@pytest.mark.proves("CF-04")
def test_an_old_leader_is_removed_when_the_candidate_has_the_log_of_named_feeds() -> None:
    """Only the old leader has what a feed has not acknowledged: it would begin with a snapshot."""
    case = Case(S.UPDATE_METADATA_UP)
    case.spec["old_leader_policy"] = OldLeaderPolicy.REMOVE
    case.world.settings["stable"] = ((1, 2, 3), OLD[1])
    case.world.reports[0, 1] = {"pulls_log": True}
    assert 0 in route_of(case.decide()).replicas
    case = Case(S.CLOSE_OLD_LEADER)
    case.spec["old_leader_policy"] = OldLeaderPolicy.REMOVE
    case.world.routes[0] = record(leader=1, leader_epoch=6)
    case.world.settings["stable"] = ((1, 2, 3), OLD[1])
    case.world.reports[0, 1] = {"pulls_log": True}
    assert case.decide().actions == ()
    case.world.reports[0, 1] = {}
    assert route_of(case.decide()).replicas == (1, 2)


def removing(state: S = S.UPDATE_METADATA_UP) -> Case:
    """Return a migration between two nodes of the assignment that removes the old leader."""
    case = Case(state)
    case.spec["old_leader_policy"] = OldLeaderPolicy.REMOVE
    return case


@pytest.mark.proves("RM-07")
def test_a_removed_leader_of_the_assignment_stays_until_its_place_is_taken() -> None:
    """The old leader leaves neither with the switch nor at the end of its migration.

    The partition would be one replica short, and nobody would know.
    """
    case = removing()
    assert route_of(case.decide()).replicas == (0, 1, 2)
    case.world.routes[0] = record(leader=1, leader_epoch=5, partition_epoch=10)
    settle = only(case.decide(), world.SettleLeader)
    assert (settle.old_leader, settle.new_leader, settle.replacement) == (0, 1, 3)
    assert settle.until == NOW, "it is kept no longer than the replacement needs"
    case.world.settings |= {"stable": ((1, 2, 3), OLD[1]), "retained": (kept(0, NOW),)}
    decision = case.decide()
    assert (decision.path[-1], decision.actions) == (S.SUCCEEDED, ())


@pytest.mark.proves("RM-07")
def test_a_leader_that_a_pending_rebalance_counts_on_stays() -> None:
    """A leader with a place in what is pending is not removed.

    The rebalance would copy to it again what was deleted a moment before.
    """
    case = removing()
    case.world.settings["stable"] = ((0, 2, 3), OLD[1])
    assert route_of(case.decide()).replicas == (1, 2)
    case.world.pend(((0, 2, 4), OLD[1]))
    assert route_of(case.decide()).replicas == (0, 1, 2)


@pytest.mark.proves("RM-07")
def test_a_leader_is_removed_only_where_another_node_takes_its_place() -> None:
    """Without such a node the migration is refused, and late in a move the old leader stays.

    The partition would be one replica short for as long as there is no other node.
    """
    for state, path in ((S.SELECT_CANDIDATE, S.FAILED), (S.UPDATE_METADATA_UP, S.SUCCEEDED)):
        case = removing(state)
        case.world.nodes = 3
        if state == S.UPDATE_METADATA_UP:
            case.world.routes[0] = record(leader=1, leader_epoch=5, partition_epoch=10)
        decision = case.decide()
        assert (decision.path[-1], decision.actions) == (path, ())


@pytest.mark.proves("B-14")
@pytest.mark.parametrize("name", ["a", "z"])
def test_a_tasks_migration_waits_for_no_person_who_has_not_begun(name: str) -> None:
    """A task's migration begins before a person's, whatever their names.

    The person's waits for the task, the task for its migration: nobody would ever begin.
    """
    case = Case(S.SELECT_CANDIDATE)
    case.world.pend()
    case.world.migrations = [child("m", state=""), child(name, state="", owner_task="")]
    assert case.decide().status.state == S.UPDATE_METADATA_DOWN


@pytest.mark.proves("RM-08", "DCP-11")
def test_rollback_fences_before_anything_else() -> None:
    """The candidate could still begin to lead after the old leader was restored."""
    case = Case(S.UPDATE_METADATA_ROLLBACK)
    case.world.authorize()
    state = route_of(case.decide())
    assert (state.leader, state.leader_epoch, state.next_leader) == (0, 6, None)
    case.world.routes[0] = record(leader_epoch=6)
    case.world.reports[0, 0] = {"role": Role.FOLLOWER, "leader_epoch": 4}
    assert case.decide().path == ()  # both sides must agree again
    case.world.reports[0, 0] = {"role": Role.LEADER, "leader_epoch": 4}
    assert case.decide().path == ()  # it led with that epoch before the takeover
    case.world.reports.clear()
    case.world.takes_over(1, 5)
    assert case.decide().path == ()  # the candidate has not heard that it was fenced
    case.world.reports[0, 1] = {"role": Role.FOLLOWER, "leader_epoch": 5}
    assert case.decide().path == ()
    case.world.reports.clear()
    decision = case.decide()
    assert decision.path == (S.UPDATE_METADATA_DOWN,)
    assert decision.status.attempt == 1


@pytest.mark.parametrize(
    ("role", "epoch"), [(Role.FOLLOWER, 5), (Role.LEADER, 4), (Role.LEADER, 6)]
)
@pytest.mark.proves("DCP-11")
def test_a_takeover_counts_only_as_it_was_authorized(role: Role, epoch: int) -> None:
    """The route would name a leader that does not lead, or one of another takeover."""
    case = Case(S.UPGRADE_CANDIDATE)
    case.world.takes_over(1, 5)
    case.world.reported(0, 1, role=role, leader_epoch=epoch)
    assert S.UPDATE_METADATA_UP not in case.decide().path


@pytest.mark.proves("RM-01")
@pytest.mark.parametrize("state", ["Succeeded", "RolledBack", "Failed"])
def test_after_the_end_nothing_happens(state: str) -> None:
    """A finished migration would begin to move its partition again."""
    case = Case(state)
    decision = case.decide()
    assert (decision.actions, decision.path, decision.wake_seconds) == ((), (), None)
    assert decision.status.state == state


def test_a_partition_without_a_route_is_waited_for() -> None:
    """A re-sharded zone would make the pass fail each time, without a word in the status."""
    case = Case(S.DOWNGRADE_LEADER)
    case.world.routes = []
    decision = case.decide()
    assert (decision.actions, decision.path) == ((), ())
