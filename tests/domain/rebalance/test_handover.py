"""How leaders leave a data node that is about to stop, in few writes and without a migration."""

import math
from typing import Any

import pytest
from worlds import LEASE_SECONDS, NOW, World, child, record

from rezone.domain.model.world import Action, ChangeRoutes, RequestTakeover, RequestUpgrade
from rezone.domain.repair.handover import AT_ONCE_MAX, handovers, is_wanted, wake_in
from rezone.wire.messages import LeaderAndIsr, Role, TakeoverState


def actions(world: World, **options: Any) -> tuple[Action, ...]:
    """Return what is asked for."""
    return handovers(world.view(), NOW, **options)


def written(world: World, **options: Any) -> dict[int, LeaderAndIsr]:
    """Return the records that are written, in at most one write."""
    writes = [a for a in actions(world, **options) if isinstance(a, ChangeRoutes)]
    assert len(writes) <= 1
    return {c.partition: c.state for w in writes for c in w.changes}


def leaving(**changes: Any) -> World:
    """Return a world in which node 0, which leads partition 0, shall stop."""
    return World(**({"leaving": {0}, "routes": [record()]} | changes))


def handing_over(**report: Any) -> World:
    """Return a world in which partition 0's takeover by node 1 is authorized."""
    world = leaving().authorize()
    world.reports[0, 0] = report
    return world


def test_nothing_is_handed_over_without_need() -> None:
    """Every pass would list migrations, or move leaders about."""
    assert not is_wanted(World().view())
    assert math.isinf(wake_in(World().view()))
    assert actions(World()) == ()


@pytest.mark.proves("ZR-11", "B-07")
def test_a_leaving_nodes_leaders_are_authorized_in_one_write() -> None:
    """A pod would stop while it leads, and its partitions wait for a lease."""
    world = leaving(routes=[record(), record(leader=1), record()])
    assert wake_in(world.view()) <= 1.0, "a call that was refused would be forgotten for 20 s"
    after = written(world)
    assert set(after) == {0, 2}
    assert {r.next_leader for r in after.values()} <= {1, 2}
    assert all(r.next_epoch == 5 and r.hot_standby_replica == r.next_leader for r in after.values())


@pytest.mark.proves("B-07")
def test_leaders_leave_a_node_in_maintenance() -> None:
    """Leaders hand over before the node is stopped, as from a pod that shall stop.

    Its partitions would wait for a lease when the machine goes down.
    """
    world = leaving(leaving=set(), maintenance={0})
    assert is_wanted(world.view())
    assert written(world)[0].next_leader in {1, 2}


def test_leaders_are_spread_over_candidates() -> None:
    """One node would lead everything after a drain."""
    after = written(leaving(routes=[record(), record(), record(), record()]))
    chosen = [r.next_leader for r in after.values()]
    assert sorted(chosen, key=str) == [1, 1, 2, 2]


@pytest.mark.parametrize(
    ("changes", "chosen"),
    [
        ({}, 1),
        ({"silent": {1: 0.1}}, 2),
        ({"lost": {1}}, 2),
        ({"draining": {1}}, 2),
        ({"leaving": {0, 1}}, 2),
        ({"maintenance": {1}}, 2),
        ({"maintenance": {1, 2}}, None),
        ({"routes": [record(isr=(0, 2))]}, 2),
        ({"routes": [record(iss=(2,))]}, 2),
        ({"reports": {(0, 1): {"needs_snapshot": True}}}, 2),
        ({"reports": {(0, 1): None}}, 2),
        ({"leaving": {0, 1, 2}}, None),
        ({"routes": [record(isr=(0,))]}, None),
        ({"routes": [record(isr=(0, 3), replicas=(0, 1, 2, 3))]}, None),
    ],
)
def test_the_candidate_is_in_sync_and_stays(changes: dict[str, Any], chosen: int | None) -> None:
    """Rows would be lost, a stopping node be asked, or a copy lead that was never compared."""
    assert written(leaving(**changes)).get(0, record()).next_leader == chosen


def test_nodes_that_will_leave_soon_are_spared_but_not_refused() -> None:
    """A rolling update would move the same leader once for each pod."""
    assert written(leaving(), avoid={1})[0].next_leader == 2
    assert written(leaving(), avoid={1, 2})[0].next_leader == 1


def test_a_candidate_that_lags_becomes_a_standby_first() -> None:
    """Writes would be held while it applies its log (DCP-06)."""
    world = leaving()
    for node in (1, 2):
        world.reports[0, node] = {"kv_applied_offset": 0}
    world.reports[0, 0] = {"log_end_offset": 5000}
    after = written(world)[0]
    assert (after.hot_standby_replica, after.next_leader) == (1, None)


def test_so_many_at_once() -> None:
    """Thousands of takeovers would begin together, and each would take seconds."""
    world = leaving(routes=[record() for _ in range(AT_ONCE_MAX + 8)])
    assert len(written(world)) == AT_ONCE_MAX


@pytest.mark.parametrize("state", ["OpenCandidate", "DowngradeLeader"])
def test_a_partition_that_a_migration_moves_is_left_to_it(state: str) -> None:
    """Two would decide who leads."""
    world = leaving(migrations=[child("m", state=state)])
    assert actions(world) == ()
    world.migrations = [child("m", state="SelectCandidate")]
    assert written(world)[0].next_leader == 1


def test_a_takeover_that_is_not_the_migrations_own_is_brought_to_its_end() -> None:
    """A migration that began in the same moment would wait for it, and it for the migration."""
    world = handing_over()
    world.migrations = [child("m", state="UpdateMetadataDown", candidate=1)]
    assert actions(world) == ()
    world.migrations = [child("m", state="UpdateMetadataDown", candidate=2)]
    (call,) = actions(world)
    assert isinstance(call, RequestTakeover)
    world.takes_over()
    assert written(world)[0].leader == 1


def test_an_authorized_takeover_is_asked_for() -> None:
    """A lost call would leave the partition between two leaders."""
    (call,) = actions(handing_over())
    assert call == RequestTakeover(partition=0, source=0, candidate=1, leader_epoch=4, next_epoch=5)


@pytest.mark.parametrize(
    "report",
    [
        {"takeover": TakeoverState.PENDING, "takeover_epoch": 5},
        {"takeover": TakeoverState.DEAD, "takeover_epoch": 5},
        {"partition_epoch": 8},
    ],
)
def test_a_takeover_under_way_is_waited_for(report: dict[str, Any]) -> None:
    """It would be asked for again and again, or refused by a leader that does not know of it."""
    assert actions(handing_over(**report)) == ()


def test_an_old_leader_that_stepped_down_leaves_the_rest_to_the_candidate() -> None:
    """The state change that was lost on the wire would never be made up for (RM-05)."""
    world = handing_over(role=Role.FOLLOWER, leader=1, log_end_offset=77)
    (call,) = actions(world)
    assert call == RequestUpgrade(partition=0, candidate=1, next_epoch=5, last_offset=77)


def test_a_candidate_that_has_not_heard_of_the_record_is_not_told_to_lead() -> None:
    """It would commit without a member that has joined since, and that one may lead next."""
    world = handing_over(role=Role.FOLLOWER, log_end_offset=77)
    world.reports[0, 1] = {"partition_epoch": 8}
    assert actions(world) == ()


@pytest.mark.proves("B-09", "RM-06")
@pytest.mark.parametrize("leaves", [True, False])
def test_what_the_nodes_have_done_is_adopted(leaves: bool) -> None:
    """A takeover that was finished while the operator was down would stay unknown to clients."""
    world = handing_over().takes_over()
    world.leaving = {0} if leaves else set()
    after = written(world)[0]
    assert (after.leader, after.leader_epoch, after.next_leader) == (1, 5, None)


@pytest.mark.parametrize(
    ("node", "failed"),
    [
        (0, {"takeover": TakeoverState.FAILED, "takeover_epoch": 5}),
        (1, {"takeover": TakeoverState.FAILED, "takeover_epoch": 5}),
    ],
)
def test_a_failed_takeover_is_taken_back(node: int, failed: dict[str, Any]) -> None:
    """Writes would wait for a candidate that has given up."""
    world = handing_over()
    world.reports[0, node] = failed
    after = written(world)[0]
    assert (after.leader, after.leader_epoch, after.next_leader) == (0, 6, None)


@pytest.mark.parametrize("why", ["overdue", "candidate gone"])
def test_a_takeover_without_an_end_is_taken_back(why: str) -> None:
    """A dead old leader and a candidate that cannot hear it would hold writes for ever."""
    world = handing_over(takeover=TakeoverState.DEAD, takeover_epoch=5)
    if why == "candidate gone":
        world.silent[1] = LEASE_SECONDS + 1
        after = written(world)[0]
    else:
        after = written(world, overdue={0})[0]
    assert (after.leader, after.leader_epoch, after.next_leader) == (0, 6, None)


@pytest.mark.proves("B-06")
def test_a_leader_that_died_in_the_middle_is_failed_over() -> None:
    """Nobody's takeover would keep the failover from happening."""
    world = handing_over()
    world.silent[0] = LEASE_SECONDS + 1
    after = written(world)[0]
    assert (after.leader, after.leader_epoch) == (1, 6)
    assert 0 not in after.isr
    world.leaving.add(1)
    assert written(world)[0].leader == 2, "another node that is about to stop would lead"


def test_a_leader_with_damaged_rows_is_moved_off_to_one_that_has_them() -> None:
    """It would refuse the rows that it cannot read for as long as it lives."""
    world = World(routes=[record(isr=(0, 1, 2))])
    world.reports[0, 0] = {"damage": "a block"}
    world.reports[0, 1] = {"damage": "another block"}
    assert is_wanted(world.view())
    assert written(world)[0].next_leader == 2
    alone = World(routes=[record(isr=(0,))])
    alone.reports[0, 0] = {"damage": "a block"}
    assert actions(alone) == ()
