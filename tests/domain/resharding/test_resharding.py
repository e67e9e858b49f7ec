"""The machine of a re-sharding: each edge, and random zones in which everything goes wrong."""

from datetime import timedelta

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from resharding_world import LAG_ROWS_MAX, NODES, REVISION, NewPartition, NewRange, Zone

from rezone.domain.machines.resharding_table import GRACE_SECONDS
from rezone.domain.model import resharding_view as views
from rezone.domain.model import world
from rezone.domain.rebalance.run import NoPlan
from rezone.domain.resharding.steps import BACKFILLS_MAX
from rezone.domain.routing import route_checks, route_leaders, routes
from rezone.resources.conditions import ConditionType, Reason
from rezone.resources.task import TERMINAL_TASK_STATES, PartitionGap
from rezone.resources.task import TaskState as S
from rezone.wire.messages import LeaderAndIsr

PASSES_MAX = 80


def go_on(zone: Zone, until: str = "", passes: int = PASSES_MAX) -> None:
    """Run in a calm world until a state, or to the end."""
    for _ in range(passes):
        if zone.status.state in {until or S.SUCCEEDED, *TERMINAL_TASK_STATES}:
            return
        zone.run()
        zone.settle()


def change(zone: Zone, **spec: object) -> None:
    """Change the task's spec."""
    zone.spec = zone.spec.model_copy(update=spec)


def asked(zone: Zone, kind: type) -> list[world.Action]:
    """Return the actions of a kind that the next pass would ask for."""
    return [action for action in zone.decide().actions if isinstance(action, kind)]


def waiting(zone: Zone) -> str:
    """Return why it does not advance, as a status without a word on that would say it."""
    zone.status = zone.status.model_copy(update={"waiting_for": ""})
    zone.now += timedelta(minutes=1)
    return zone.decide().status.waiting_for


@pytest.mark.parametrize(("first", "second"), [(1, 1), (2, 4), (4, 2), (3, 5), (5, 3), (4, 4)])
def test_any_count_becomes_any_other(first: int, second: int) -> None:
    """A count that is no multiple of the other would never come to its end."""
    zone = Zone(first, second)
    go_on(zone)
    assert zone.status.state == S.SUCCEEDED
    assert zone.sources == {}
    assert zone.old_held == set()
    assert (zone.done, zone.pending) == (True, False)


def test_a_person_s_word_is_waited_for() -> None:
    """Rows would be copied by a plan that nobody has approved."""
    zone = Zone(2, 4)
    zone.manual_approval = True
    go_on(zone, passes=3)
    assert zone.status.state == S.PLANNED
    assert zone.status.waiting_for.startswith("AwaitingApproval")
    change(zone, approved_plan="good")
    go_on(zone)
    assert zone.status.state == S.SUCCEEDED


def test_without_a_plan_the_zone_s_keys_are_cleared() -> None:
    """What waits in planned would never begin."""
    zone = Zone(2, 4)
    zone.no_plan = NoPlan(Reason.NOT_ENOUGH_DATA_NODES, "there is one node")
    go_on(zone)
    assert zone.status.state == S.CANCELLED
    assert not zone.pending


def test_without_its_pending_assignment_it_ends_before_it_begins() -> None:
    """Two tasks would work on one zone."""
    zone = Zone(2, 4)
    zone.pending = False
    go_on(zone)
    assert zone.status.state == S.FAILED


def test_targets_that_do_not_open_in_time_end_in_a_cancel() -> None:
    """A zone without room would wait for ever, and its next rebalance too."""
    zone = Zone(2, 4)
    while zone.status.state != S.AWAITING_REPLICAS:
        zone.run(frozenset(range(99)))
    zone.now += timedelta(hours=1)
    go_on(zone)
    assert zone.status.state == S.CANCELLED
    check_cancelled(zone)


def test_nothing_is_backfilled_before_all_replicas_of_targets_are_in_sync() -> None:
    """Rows would have one copy, and be backfilled again when its node fails."""
    zone = Zone(2, 4)
    while zone.status.state != S.AWAITING_REPLICAS:
        zone.run()
    for target in zone.targets.values():
        zone.run()
        assert zone.status.state == S.AWAITING_REPLICAS
        assert target.record is not None
        target.record = msgspec.structs.replace(target.record, partition_epoch=2)
        target.in_sync = True
    zone.run()
    assert zone.status.state == S.TRANSFERRING


def test_routes_of_targets_are_written_once_and_for_all_of_them() -> None:
    """A lost action would leave the task waiting, or a repeat begin partitions again."""
    zone = Zone(2, 3)
    while zone.status.state != S.AWAITING_REPLICAS:
        zone.run(frozenset(range(99)))
    for _ in range(2):
        assert asked(zone, views.CreateTargets) == [
            views.CreateTargets(generation=1, nodes=(NODES, NODES, NODES))
        ]
    zone.run()
    assert asked(zone, views.CreateTargets) == []


def test_a_re_sharding_waits_for_the_end_of_the_one_before() -> None:
    """There would be three tables, and nobody would know whose targets are whose."""
    zone = Zone(2, 3)
    zone.others_left = True
    go_on(zone, passes=5)
    assert zone.status.state == S.APPROVED
    assert waiting(zone).startswith("Conflict")
    zone.others_left = False
    go_on(zone)
    assert zone.status.state == S.SUCCEEDED


@pytest.mark.proves("B-08")
def test_each_source_cuts_over_when_its_own_targets_are_ready() -> None:
    """One slow range would hold up all others, or a range be sealed for nobody."""
    zone = Zone(2, 4)
    go_on(zone, S.SWITCHING)
    slow = zone.targets[max(zone.targets)]
    for _ in range(12):
        slow.ranges[0].lag_rows = LAG_ROWS_MAX + 1
        zone.run()
        zone.settle()
    assert zone.sources[0].record.sealed
    assert not zone.sources[1].record.sealing
    slow.ranges[0].lag_rows = LAG_ROWS_MAX + 1
    assert waiting(zone) == "CatchingUp: reshard streams: 1"
    go_on(zone)
    assert zone.status.state == S.SUCCEEDED


@pytest.mark.proves("B-04")
def test_nothing_is_sealed_for_a_range_that_was_not_verified() -> None:
    """A copy that differs would serve."""
    zone = Zone(1, 2)
    for _ in range(30):
        zone.run()
        zone.settle()
        for target in zone.targets.values():
            target.ranges[0].verified = False
    assert not zone.sources[0].record.sealing
    assert asked(zone, views.VerifyRange)


@pytest.mark.proves("B-08")
def test_nothing_is_sealed_or_compared_for_a_range_that_is_not_backfilled() -> None:
    """A new partition that only follows the log of its range takes nothing over.

    The rows that were there before would be missing where the range is served.
    """
    zone = Zone(1, 2)
    zone.backfills = False
    for _ in range(30):
        zone.run()
        zone.settle()
        for target in zone.targets.values():
            target.ranges[0].lag_rows = 0
    assert not asked(zone, views.VerifyRange)
    for target in zone.targets.values():
        target.ranges[0].verified = True
    assert not asked(zone, world.ChangeRoutes)
    assert waiting(zone).startswith("Copying")


@pytest.mark.proves("B-08")
def test_a_seal_is_revoked_for_a_range_that_is_backfilled_again() -> None:
    """A cut-over that was authorized is taken back when a new partition has begun again.

    The record says that it was compared: it would be served with what it has by then.
    """
    zone = Zone(1, 2)
    sealing(zone)
    hash_range = zone.targets[max(zone.targets)].ranges[0]
    hash_range.backfilled, hash_range.lag_rows = False, 0
    assert not asked(zone, views.RequestSeal)
    zone.run()
    assert not zone.sources[0].record.sealing


def test_a_seal_is_authorized_before_it_is_asked_for() -> None:
    """The next coordinator would not know of a cut-over that may be happening (persist first)."""
    zone = Zone(1, 2)
    while not zone.sources[0].record.sealing:
        actions = zone.run()
        assert not any(isinstance(action, views.RequestSeal) for action in actions)
        zone.settle()
    (request,) = asked(zone, views.RequestSeal)
    record = zone.sources[0].record
    assert request == views.RequestSeal(
        partition=0, node=record.leader, leader_epoch=record.leader_epoch
    )


def test_the_next_coordinator_asks_for_a_seal_that_was_authorized() -> None:
    """It has not compared the ranges: each restart would fence the leaders of all sources."""
    zone = Zone(1, 2)
    sealing(zone)
    for target in zone.targets.values():
        target.ranges[0].verified = False
    assert len(asked(zone, views.RequestSeal)) == 1
    assert not asked(zone, world.ChangeRoutes)


@pytest.mark.parametrize("lag", [None, LAG_ROWS_MAX + 1])
def test_a_target_with_several_sources_serves_none_before_all_are_resharded(
    lag: int | None,
) -> None:
    """It would serve one range while another may still have to be begun again."""
    zone = Zone(2, 1)
    go_on(zone, S.SWITCHING)
    (target,) = zone.targets.values()
    for _ in range(10):
        target.ranges[1].lag_rows = lag
        zone.run()
    assert zone.sources[0].record.sealing == (lag is not None)


@pytest.mark.proves("ZR-20")
@pytest.mark.parametrize(
    "state", [S.PLANNED, S.APPROVED, S.AWAITING_REPLICAS, S.TRANSFERRING, S.SWITCHING]
)
def test_a_cancel_before_the_first_seal_leaves_nothing_behind(state: str) -> None:
    """Records or replicas of new partitions would stay, or a seal come after the end."""
    zone = Zone(3, 5)
    zone.paused = state in {S.PLANNED, S.APPROVED}
    zone.manual_approval = state == S.PLANNED
    zone.backfills = state != S.TRANSFERRING
    zone.cut_overs_max = 0
    go_on(zone, state, passes=30) if state != S.PLANNED else zone.run()
    assert zone.status.state == state
    change(zone, cancel=True)
    go_on(zone)
    assert zone.status.state == S.CANCELLED
    check_cancelled(zone)


def check_cancelled(zone: Zone) -> None:
    """Check that everything is as before."""
    assert not zone.pending
    for source in zone.sources.values():
        assert (source.seal, source.record.sealing, source.record.sealed) == ("", False, False)
    for target in zone.targets.values():
        assert (target.record, target.held) == (None, False)


@pytest.mark.proves("ZR-20")
def test_a_cancel_after_the_first_seal_comes_too_late_and_says_so() -> None:
    """Acknowledged rows of the targets would be deleted."""
    zone = Zone(4, 8)
    zone.cut_overs_max = 1
    while not any(source.seal for source in zone.sources.values()):
        zone.run()
        if not any(source.seal for source in zone.sources.values()):
            zone.settle()
    change(zone, cancel=True)
    zone.run()
    assert zone.status.state == S.CANCELLING
    zone.settle()  # the seal was on its way
    zone.run()
    assert zone.status.state == S.SWITCHING
    assert "came too late" in zone.status.history[-1].message
    go_on(zone)
    assert zone.status.state == S.SUCCEEDED


def test_a_cancel_waits_for_the_word_of_every_old_leader() -> None:
    """A leader that is cut off may have sealed: its targets would be deleted with the only rows."""
    zone = Zone(2, 2)
    zone.cut_overs_max = 0
    go_on(zone, S.SWITCHING)
    zone.sources[1].reachable = False
    change(zone, cancel=True)
    for _ in range(5):
        zone.run()
    assert zone.status.state == S.CANCELLING
    assert all(target.record is not None for target in zone.targets.values())
    go_on(zone)
    assert zone.status.state == S.CANCELLED


def sealing(zone: Zone) -> None:
    """Run until a seal is authorized, and let nobody have heard of it."""
    while not any(source.record.sealing for source in zone.sources.values()):
        zone.run()
        zone.settle()


@pytest.mark.proves("B-08")
def test_a_cancel_fences_the_request_to_seal_that_is_on_its_way() -> None:
    """The old leader would seal after its targets were deleted, and nobody serve the range."""
    zone = Zone(1, 2)
    sealing(zone)
    (late,) = asked(zone, views.RequestSeal)
    change(zone, cancel=True)
    go_on(zone)
    assert zone.status.state == S.CANCELLED
    check_cancelled(zone)
    zone.carry_out(late)
    assert zone.sources[0].seal == ""


@pytest.mark.proves("B-08")
@pytest.mark.parametrize("heard", ["record", "leader", "target"])
def test_any_word_of_a_seal_makes_a_cancel_come_too_late(heard: str) -> None:
    """The only rows of a range would be deleted, because one of three had not said it yet."""
    zone = Zone(2, 2)
    sealing(zone)
    source, hash_range = zone.sources[0], next(iter(zone.targets.values())).ranges[0]
    source.seal = "committed"
    if heard == "record":
        source.record = msgspec.structs.replace(source.record, sealing=False, sealed=True)
    hash_range.sealed = heard == "target"
    source.reachable = heard == "leader"
    change(zone, cancel=True)
    zone.run()
    assert zone.status.state == S.SWITCHING
    assert zone.view().cut_over == (0,)


def test_it_is_not_over_before_every_record_says_so() -> None:
    """A coordinator that dies then would take the old partition for one that serves."""
    zone = Zone(1, 2)
    sealing(zone)
    zone.run()
    zone.settle()
    for _ in range(3):
        zone.run(frozenset(range(99)))
    assert zone.status.state == S.SWITCHING
    go_on(zone)
    assert zone.status.state == S.SUCCEEDED


@pytest.mark.proves("ZR-20")
def test_a_cancel_is_not_over_while_nodes_hold_replicas_of_targets() -> None:
    """The next re-sharding would find data nodes full of what nobody needs."""
    zone = Zone(1, 2)
    zone.cut_overs_max = 0
    go_on(zone, S.SWITCHING)
    change(zone, cancel=True)
    for _ in range(6):
        zone.run()
    assert (zone.status.state, zone.pending) == (S.CANCELLING, True)
    assert all(target.record is None for target in zone.targets.values())
    assert waiting(zone) == "Stopping: 2 new partitions"
    go_on(zone)
    assert zone.status.state == S.CANCELLED


@pytest.mark.parametrize("cancel", [False, True])
def test_it_is_not_over_before_all_nodes_have_said_what_they_have(*, cancel: bool) -> None:
    """A coordinator that has just begun would call all stopped: it has heard of nothing yet."""
    zone = Zone(1, 2)
    if cancel:
        zone.cut_overs_max = 0
    go_on(zone, S.SWITCHING if cancel else S.STOPPING_REDUNDANT)
    change(zone, cancel=cancel)
    zone.now += timedelta(seconds=GRACE_SECONDS)
    zone.unreported = 1
    for _ in range(6):
        zone.run()
        zone.settle()
    assert waiting(zone) == "Stopping: what 1 data nodes have, which have not said yet"
    zone.unreported = 0
    go_on(zone)
    assert zone.status.state == (S.CANCELLED if cancel else S.SUCCEEDED)


def test_a_target_that_serves_is_never_begun_again() -> None:
    """Rows that clients have written to one range would go with the copy of another one."""
    zone = Zone(2, 1)
    zone.cut_overs_max = 1
    (target,) = zone.targets.values()
    while not target.ranges[0].sealed:
        zone.run()
        zone.settle()
    target.ranges[1].broken, target.ranges[1].lag_rows = True, None
    before = target.record
    for _ in range(3):
        zone.run()
        zone.settle()
    assert target.record == before
    assert waiting(zone).startswith("Broken")
    assert is_stalled(zone)
    target.ranges[1].broken = False  # a person has given the rest up, or found the rows
    go_on(zone)
    assert zone.status.state == S.SUCCEEDED


@pytest.mark.proves("B-08")
@pytest.mark.parametrize("source", ["silent", "sealing", "well"])
def test_a_broken_target_is_begun_again_when_it_cannot_serve(source: str) -> None:
    """A range that a source is just cutting over would be deleted with what clients wrote to it."""
    zone = Zone(2, 1)
    zone.cut_overs_max = int(source == "sealing")
    go_on(zone, S.SWITCHING)
    (target,) = zone.targets.values()
    if source == "sealing":
        zone.run()
        assert zone.sources[0].record.sealing
    zone.sources[0].reachable = source != "silent"
    target.ranges[1].broken = True
    before = target.record
    assert before is not None
    zone.run()
    after = next(iter(zone.targets.values()))
    assert after.record is not None
    assert (after.record != before) == (source == "well")
    if source == "well":
        assert after.record == routes.begin_again(before, NODES, 1)
        assert [hash_range.backfilled for hash_range in after.ranges] == [False, False]
    zone.cut_overs_max = 2
    go_on(zone)
    assert zone.status.state == S.SUCCEEDED


@pytest.mark.proves("B-08", "ZR-20")
@pytest.mark.parametrize("source", ["silent", "sealed", "well"])
def test_a_lost_target_is_begun_again_when_it_cannot_serve(source: str) -> None:
    """Its leader would be waited for for ever, or rows that clients wrote to it be deleted."""
    zone = Zone(2, 1)
    go_on(zone, S.SWITCHING)
    (target,) = zone.targets.values()
    zone.cut_overs_max = int(source == "sealed")
    while source == "sealed" and not zone.sources[0].seal:
        zone.run()
    zone.sources[0].reachable = source != "silent"
    target.lost = True
    before = target.record
    assert before is not None
    zone.run()
    (after,) = zone.targets.values()
    if source == "well":
        assert after.record == routes.begin_again(before, NODES, 1)
    else:
        assert after.record == before
        assert waiting(zone).startswith("Unreachable: leaders of new partitions")
        after.lost = False  # somebody has compared its rows, or a person gave them up
    zone.cut_overs_max = 2
    go_on(zone)
    assert zone.status.state == S.SUCCEEDED


def test_a_target_is_begun_again_from_a_source_that_has_sealed() -> None:
    """Its range would be served by nobody any more, although the sealed partition has its rows."""
    zone = Zone(1, 2)
    sealing(zone)
    zone.sources[0].seal = "committed"
    target = next(iter(zone.targets.values()))
    target.ranges[0].broken = True
    go_on(zone)
    assert zone.status.state == S.SUCCEEDED


@pytest.mark.proves("B-04")
def test_a_range_that_differs_ends_it_while_it_can_still_be_undone() -> None:
    """Wrong rows would serve, or the copy be made again and again."""
    zone = Zone(1, 2)
    zone.cut_overs_max = 0
    go_on(zone, S.SWITCHING)
    hash_range = next(iter(zone.targets.values())).ranges[0]
    hash_range.verified, hash_range.differs = False, True
    go_on(zone)
    assert zone.status.state == S.CANCELLED
    assert "new partition 0 differs from old partition 0" in zone.status.history[-1].message
    check_cancelled(zone)


def differ(zone: Zone) -> NewRange:
    """Let a range that is not served yet differ from its source."""
    hash_range = next(p for h in zone.targets.values() for p in h.ranges if not p.sealed)
    hash_range.verified, hash_range.differs = False, True
    return hash_range


def one_cut_over(old: int, new: int) -> Zone:
    """Return a re-sharding that has no way back any more."""
    zone = Zone(old, new)
    zone.cut_overs_max = 1
    while not any(hash_range.sealed for h in zone.targets.values() for hash_range in h.ranges):
        zone.run()
        zone.settle()
    zone.cut_overs_max = 0
    return zone


@pytest.mark.proves("B-04", "B-14")
def test_a_new_partition_that_differs_later_is_backfilled_again_a_few_times() -> None:
    """It would be cut over with wrong rows, wait for ever, or be copied again and again."""
    zone = one_cut_over(2, 2)
    for attempt in range(1, BACKFILLS_MAX + 1):
        hash_range = differ(zone)
        for _ in range(3):
            zone.run()
        assert hash_range not in zone.targets[hash_range.overlap.new].ranges, (
            "its rows are still there"
        )
        assert zone.status.attempt == attempt
        assert zone.status.last_error is not None
        assert "it is backfilled again" in zone.status.last_error.message
        go_on(zone, S.SWITCHING)
    hash_range = differ(zone)
    for _ in range(5):
        zone.run()
    assert not zone.sources[hash_range.overlap.old].record.sealing
    assert waiting(zone).startswith("Broken: a range that differs")
    assert is_stalled(zone)


@pytest.mark.proves("B-04")
def test_a_range_that_differs_of_a_partition_that_serves_needs_a_person() -> None:
    """Rows that clients have written to it would be deleted."""
    zone = one_cut_over(2, 1)
    hash_range = differ(zone)
    for _ in range(5):
        zone.run()
    assert not zone.sources[hash_range.overlap.old].record.sealing
    assert zone.status.attempt == 0
    assert waiting(zone).startswith("Broken: a range that differs")
    assert is_stalled(zone)


@pytest.mark.proves("B-14")
def test_why_a_range_could_not_be_compared_is_told() -> None:
    """A comparison that never comes to an end would look like one that takes long."""
    zone = Zone(1, 2)
    zone.cut_overs_max = 0
    go_on(zone, S.SWITCHING)
    hash_range = next(iter(zone.targets.values())).ranges[0]
    hash_range.verified, hash_range.not_compared = False, "node 7 is silent"
    assert "(node 7 is silent)" in waiting(zone)
    assert not is_stalled(zone)


def is_stalled(zone: Zone) -> bool:
    """Return whether the task says that a person must act."""
    return any(c.type == ConditionType.STALLED for c in zone.decide().status.conditions)


@pytest.mark.proves("B-08")
def test_a_seal_that_only_targets_have_heard_of_is_noted() -> None:
    """A survivor of a lost source would be made to serve what its targets serve."""
    zone = Zone(1, 2)
    sealing(zone)
    zone.run()
    zone.sources[0].reachable = False
    for target in zone.targets.values():
        target.ranges[0].sealed, target.ranges[0].lag_rows = True, None
    zone.run()
    assert zone.sources[0].record.sealed


def test_it_is_not_over_before_every_target_serves() -> None:
    """The old partitions would be deleted while a target still fetches the end of their logs."""
    zone = Zone(1, 2)
    sealing(zone)
    zone.run()
    zone.sources[0].seal = "committed"
    for _ in range(5):
        zone.run()
    assert zone.sources[0].record.sealed
    assert zone.status.state == S.SWITCHING
    go_on(zone)
    assert zone.status.state == S.SUCCEEDED


def test_nothing_is_sealed_for_a_target_whose_followers_are_behind() -> None:
    """A range would be cut over to a single copy, and wait if that one's node fails."""
    zone = Zone(1, 2)
    zone.backfills = False
    go_on(zone, S.TRANSFERRING)
    zone.backfills = True
    for _ in range(30):
        zone.settle()
        for target in zone.targets.values():
            target.in_sync = False
        zone.run()
    assert not zone.sources[0].record.sealing
    assert waiting(zone).startswith("CatchingUp: followers of new partitions")


def test_suspended_it_begins_nothing_and_ends_what_was_authorized() -> None:
    """A suspended task would backfill and seal, or leave writers of a sealed range waiting."""
    zone = Zone(4, 8)
    zone.cut_overs_max = 1
    sealing(zone)
    change(zone, suspend=True)
    for _ in range(10):
        zone.run()
        zone.settle()
    assert [s.record.sealed for s in zone.sources.values()].count(True) == 1
    assert not any(source.record.sealing for source in zone.sources.values())
    assert zone.status.waiting_for.startswith("Paused: spec.suspend")
    change(zone, suspend=False)
    go_on(zone)
    assert zone.status.state == S.SUCCEEDED


def test_old_partitions_stay_for_scans_that_began_before() -> None:
    """A scan under way at the last cut-over would lose its partition."""
    zone = Zone(1, 2)
    go_on(zone, S.STOPPING_REDUNDANT)
    assert zone.old_held == {0}
    entered = zone.status.history[-1].time
    zone.now = entered + timedelta(seconds=GRACE_SECONDS - 1)
    assert not asked(zone, views.DropLayout)
    zone.now = entered + timedelta(seconds=GRACE_SECONDS)
    assert asked(zone, views.DropLayout) == [views.DropLayout(generation=0)]


def test_old_partitions_that_cannot_be_stopped_do_not_hold_it_up_for_ever() -> None:
    """A node that never comes back would keep the task, and the zone's next one waits."""
    zone = Zone(1, 2)
    go_on(zone, S.STOPPING_REDUNDANT)
    zone.now += timedelta(days=1)
    zone.run(frozenset({0}))
    assert zone.status.state == S.STOPPING_REDUNDANT, "their routes would stay for ever"
    zone.run()
    zone.run()
    assert zone.status.state == S.SUCCEEDED
    assert "except for stopping 1 old partitions" in zone.status.history[-1].message


def test_a_target_without_nodes_says_so() -> None:
    """It would wait without a word (B-14)."""
    zone = Zone(1, 2)
    zone.backfills = False
    go_on(zone, S.TRANSFERRING)
    target = next(iter(zone.targets.values()))
    target.nodes = ()
    assert waiting(zone).startswith("Unreachable: no node of a new partition is left: 1")
    conditions = zone.decide().status.conditions
    reasons = {c.reason for c in conditions if c.type == ConditionType.STALLED}
    assert reasons == {Reason.FAILED}


def backfilling(threshold: int) -> Zone:
    """Return a zone whose targets are to be backfilled; each range has a hundred bytes."""
    zone = Zone(2, 4)
    zone.backfills = False
    go_on(zone, S.TRANSFERRING)
    zone.threshold = threshold
    return zone


@pytest.mark.proves("SP-01")
@pytest.mark.parametrize(("threshold", "spark"), [(0, True), (399, True), (400, False)])
def test_spark_backfills_above_the_threshold(threshold: int, *, spark: bool) -> None:
    """A small re-sharding would wait for a driver, or a large one be left to data nodes."""
    zone = backfilling(threshold)
    zone.run()
    zone.run()
    assert [len(each.ranges) for each in zone.asked_for] == [4] * spark
    assert zone.status.spark_application == ("task-backfill-1" if spark else "")
    zone.backfills = True
    go_on(zone)
    assert zone.status.state == S.SUCCEEDED


@pytest.mark.proves("SP-01")
def test_the_application_is_made_again_when_the_deed_was_lost() -> None:
    """The operator may die between the status and the application; one there is left alone."""
    zone = backfilling(0)
    while not zone.status.spark_application:
        zone.run(frozenset(range(99)))
    assert zone.applications == {}
    zone.run()
    assert zone.applications == {"task-backfill-1": "RUNNING"}
    assert asked(zone, views.EnsureBackfill) == []


@pytest.mark.proves("SP-01")
@pytest.mark.parametrize("state", ["FAILED", "COMPLETED", "SUBMITTED"])
def test_data_nodes_backfill_what_spark_does_not(state: str) -> None:
    """A re-sharding would wait for ever for an application that fails, or never starts."""
    zone = backfilling(0)
    zone.run()
    zone.applications = dict.fromkeys(zone.applications, state)
    zone.run()
    error = zone.status.last_error
    told = error is not None and error.message.startswith("task-backfill-1: it fell over")
    assert told == (state == "FAILED")
    zone.backfills = True
    go_on(zone)
    assert zone.status.state == S.SUCCEEDED
    assert len(zone.asked_for) == 1


@pytest.mark.proves("SP-01", "ZR-20")
def test_a_cancel_deletes_the_application_before_the_targets() -> None:
    """Executors would go on until they give up, for partitions that are no more."""
    zone = backfilling(0)
    zone.run()
    change(zone, cancel=True)
    while zone.applications:
        assert any(target.record is not None for target in zone.targets.values())
        zone.run()
        zone.settle()
    go_on(zone)
    assert zone.status.state == S.CANCELLED
    check_cancelled(zone)


def test_a_paused_zone_starts_no_application() -> None:
    """A pause would not keep new pods from the cluster."""
    zone = backfilling(1 << 40)
    zone.threshold, zone.paused = 0, True
    zone.run()
    assert not zone.status.spark_application
    zone.paused = False
    zone.run()
    assert len(zone.asked_for) == 1


@pytest.mark.proves("OB-05")
def test_what_cut_overs_have_cost_writers_is_told_by_old_partition() -> None:
    """A range whose figure is not known yet would make too little of it, or lose what was known."""
    zone = Zone(2, 3)
    go_on(zone, S.SWITCHING)
    first, both, last = (target.ranges for target in zone.targets.values())
    first[0].write_gap_ms, both[1].write_gap_ms, last[0].write_gap_ms = 4, 30, 7
    go_on(zone, S.FINALIZING)
    slower = PartitionGap(partition=1, milliseconds=30)
    known = zone.status.write_unavailability
    assert known is not None
    assert (known.transfers, known.longest) == (1, (slower,))

    both[0].write_gap_ms = 9
    go_on(zone, S.STOPPING_REDUNDANT)
    known = zone.status.write_unavailability
    assert known is not None
    assert (known.transfers, known.total_milliseconds, known.max_milliseconds) == (2, 39, 30)
    assert known.longest == (slower, PartitionGap(partition=0, milliseconds=9))

    both[1].write_gap_ms = None  # its leader has begun again
    go_on(zone)
    assert zone.status.write_unavailability == known


class ReshardingMachine(RuleBasedStateMachine):
    """A re-sharding among lost actions, failovers, broken streams, suspends and a cancel."""

    @initialize(
        first=st.integers(1, 5),
        second=st.integers(1, 5),
        cut_overs=st.integers(1, 3),
        threshold=st.sampled_from([0, 250, 1 << 40]),
        filled_by=st.sampled_from(["", "job"]),
    )
    def start(
        self, first: int, second: int, cut_overs: int, threshold: int, filled_by: str
    ) -> None:
        """Begin; some backfill by Spark, and some are overwrites."""
        self.zone = Zone(first, second)
        self.zone.filled_by = filled_by
        self.zone.threshold = threshold
        self.zone.cut_overs_max = cut_overs
        assert self.zone.spec.revision == REVISION

    @rule(lost=st.frozensets(st.integers(0, 6)))
    def run(self, lost: frozenset[int]) -> None:
        """Decide, and lose some of the actions."""
        before = {p: s.record for p, s in self.zone.sources.items()}
        self.zone.run(lost)
        for partition, source in self.zone.sources.items():
            assert route_checks.regressions(before[partition], source.record) == ()

    @rule(state=st.sampled_from(["", "SUBMITTED", "COMPLETED", "FAILED"]))
    def spark_ends(self, state: str) -> None:
        """Have all applications in another state, or deleted."""
        for name in tuple(self.zone.applications):
            self.zone.applications[name] = state
            if not state:
                del self.zone.applications[name]

    @rule(pick=st.integers(0, 99), brings=st.booleans())
    def bring(self, pick: int, brings: bool) -> None:
        """Let a job bring one range and no other, until data nodes or it bring all again."""
        self.zone.backfills = not brings
        ranges = [each for h in self.zone.targets.values() if h.open for each in h.ranges]
        if brings and ranges:
            ranges[pick % len(ranges)].backfilled = True

    @precondition(lambda self: self.zone.status.state not in {"", S.PLANNED})
    @rule()
    def end_driver(self) -> None:
        """Have nobody ask for the overwrite any more."""
        self.zone.abandoned = True

    @rule()
    def settle(self) -> None:
        """Let all that runs come as far as it can."""
        self.zone.settle()

    @rule(pick=st.integers(0, 99), keeps_seal=st.booleans())
    def fail_over(self, pick: int, keeps_seal: bool) -> None:
        """Replace the leader of a source."""
        ids = tuple(self.zone.sources)
        if not ids:
            return
        self.zone.fail_over(ids[pick % len(ids)], keeps_seal=keeps_seal)

    @rule(pick=st.integers(0, 99))
    def cut_off(self, pick: int) -> None:
        """Hear nothing of a source's leader until the world is settled."""
        ids = tuple(self.zone.sources)
        if not ids:
            return
        self.zone.sources[ids[pick % len(ids)]].reachable = False

    @rule(pick=st.integers(0, 99))
    def take_over(self, pick: int) -> None:
        """Authorize a takeover of a source, and roll it back."""
        ids = tuple(self.zone.sources)
        if not ids:
            return
        source = self.zone.sources[ids[pick % len(ids)]]
        nodes = [n for n in source.record.isr if n != source.record.leader]
        answer = route_leaders.authorize_takeover(source.record, nodes[0])
        if isinstance(answer, LeaderAndIsr):
            rolled_back = route_leaders.roll_back_takeover(answer)
            assert isinstance(rolled_back, LeaderAndIsr)
            source.record = rolled_back

    @rule(pick=st.integers(0, 99))
    def break_reshard(self, pick: int) -> None:
        """Trim a log that is still to be pulled."""
        # A target that serves another range, or is about to, is for a person: no end would come.
        targets = [h for h in self.zone.targets.values() if h.open and not h.serves]
        ranges = [p for h in targets for p in h.ranges if not self.is_cutting_over(h, p)]
        if ranges:
            hash_range = ranges[pick % len(ranges)]
            hash_range.broken, hash_range.verified, hash_range.lag_rows = True, False, None

    @rule(pick=st.integers(0, 99))
    def lose_target(self, pick: int) -> None:
        """Lose the rows of a target's leader, and with them what other replicas compare with."""
        targets = [h for h in self.zone.targets.values() if h.open and not h.serves]
        targets = [h for h in targets if not self.is_cutting_over(h, None)]
        if targets:
            targets[pick % len(targets)].lost = True

    def is_cutting_over(self, target: NewPartition, hash_range: NewRange | None) -> bool:
        """Return whether a range of a target but this one may serve soon."""
        others = (
            self.zone.sources.get(p.overlap.old) for p in target.ranges if p is not hash_range
        )
        return any(o is None or o.seal or o.record.sealing or o.record.sealed for o in others)

    @rule(suspend=st.booleans())
    def suspend(self, suspend: bool) -> None:
        """Suspend, or go on."""
        change(self.zone, suspend=suspend)

    @precondition(lambda self: self.zone.status.state not in {"", S.PLANNED})
    @rule()
    def cancel(self) -> None:
        """Cancel, for good."""
        change(self.zone, cancel=True)

    @invariant()
    def nothing_is_served_twice(self) -> None:
        """See that a target serves only what a source's committed seal has given it."""
        for target in self.zone.targets.values():
            for hash_range in target.ranges:
                source = self.zone.sources.get(hash_range.overlap.old)
                assert not hash_range.sealed or source is None or source.seal == "committed"
        if self.zone.status.state == S.CANCELLED:
            check_cancelled(self.zone)
        if self.zone.done:
            assert all(p.sealed for h in self.zone.targets.values() for p in h.ranges)

    def teardown(self) -> None:
        """In a calm world it comes to an end, and to the right one."""
        change(self.zone, suspend=False)
        self.zone.backfills = True
        self.zone.settle()
        sealed = any(source.seal for source in self.zone.sources.values())
        go_on(self.zone, passes=300)
        undone = self.zone.spec.cancel or (self.zone.filled_by and self.zone.abandoned)
        ends = {S.SUCCEEDED, S.CANCELLED} if undone and not sealed else {S.SUCCEEDED}
        assert self.zone.status.state in ends, self.zone.status


ReshardingMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
TestReshardingMachine = pytest.mark.slow(
    pytest.mark.proves("B-08", "ZR-20", "OP-02")(ReshardingMachine.TestCase)
)
