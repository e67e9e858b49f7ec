"""What the coordinator mends by itself: in-sync sets leaders ask for, leaders that are gone."""

from typing import Any

import pytest
from worlds import LEASE_SECONDS, NOW, World, child, record

from rezone.domain.model.world import VerifyCopy
from rezone.domain.observed.readiness import comparisons
from rezone.domain.repair.repairs import refused_proposals, repairs, strays
from rezone.domain.routing import routes
from rezone.domain.routing.route_checks import violations
from rezone.wire.messages import FIRST_PARTITION_EPOCH, IsrProposal, LeaderAndIsr, Role


def proposal(**changes: Any) -> IsrProposal:
    """Return partition 0's leader's wish to drop node 2."""
    usual: dict[str, Any] = {
        "new_isr": (0, 1),
        "leader_epoch": 4,
        "partition_epoch": 9,
        "coordinator_epoch": 1,
    }
    return IsrProposal(**(usual | changes))


def mended(world: World) -> dict[int, LeaderAndIsr]:
    """Return the new records by partition; each follows its old one."""
    changes = repairs(world.view(), NOW)
    for change in changes:
        old = world.routes[change.partition]
        assert change.expected_epoch == old.partition_epoch
        assert change.state.partition_epoch == old.partition_epoch + 1
        assert not violations(change.state)
    return {change.partition: change.state for change in changes}


def test_a_healthy_zone_is_left_alone() -> None:
    """Every pass would write every route."""
    assert mended(World()) == {}


def test_a_leaders_proposal_is_accepted() -> None:
    """A follower that fell behind would hold up every write (HS-04)."""
    world = World()
    world.reports[0, 0] = {"proposal": proposal()}
    assert mended(world)[0].isr == (0, 1)


@pytest.mark.parametrize(
    ("leaving", "away", "isr"),
    [
        ({0, 1}, set(), (0, 1, 2)),  # 2 is there and stays
        ({0, 1}, {2}, (0, 1)),  # it would wait for nobody
        ({0}, set(), (0, 1)),  # 1 stays
        ({0, 1, 2}, set(), (0, 1)),  # nobody stays
    ],
)
def test_a_set_is_not_left_to_nodes_that_stop(
    leaving: set[int], away: set[int], isr: tuple[int, ...]
) -> None:
    """What a stopping leader acknowledges alone would go with its disk."""
    world = World(leaving=leaving, silent=dict.fromkeys(away, 0.1))
    world.reports[0, 0] = {"proposal": proposal()}
    after = mended(world).get(0, world.routes[0])
    assert after.isr == isr


@pytest.mark.parametrize(
    "wrong",
    [
        {"partition_epoch": 8},
        {"partition_epoch": 10},
        {"leader_epoch": 3},
        {"leader_epoch": 5},
        {"coordinator_epoch": 3},
        {"new_isr": ()},
        {"new_isr": (1, 2)},
        {"new_isr": (0, 1, 4)},
    ],
    ids=lambda w: "-".join(f"{k}={v}" for k, v in w.items()),
)
def test_a_proposal_that_does_not_fit_changes_nothing(wrong: dict[str, Any]) -> None:
    """A proposal of another time would put a replica without the rows into the in-sync set."""
    world = World()
    world.reports[0, 0] = {"proposal": proposal(**wrong)}
    assert mended(world) == {}


@pytest.mark.proves("HS-05")
def test_a_refused_proposal_is_answered_with_its_error_once() -> None:
    """The leader hears the code, the words and the record that stands, until it says that it knows.

    It would go on asking, and nobody who looks at it would know why the set does not change.
    """
    world = World()
    world.reports[0, 0] = {"proposal": proposal(new_isr=(0, 1, 9))}
    (told,) = refused_proposals(world.view())
    assert (told.node, told.state, told.reason) == (0, world.routes[0], "NotAReplica")
    assert "nodes [9] are not replicas" in told.message
    world.reported(0, 0, proposal_error="NotAReplica")
    assert refused_proposals(world.view()) == ()
    world.reported(0, 0, proposal_error="Leaving")
    assert refused_proposals(world.view()) != (), "it is refused for another reason by now"


@pytest.mark.proves("HS-04", "B-06")
def test_nobody_joins_whose_own_report_says_that_it_lacks_the_rows() -> None:
    """It joined, and left again in the next pass, for as long as its report stayed away.

    The leader's report may be the newer one, so the proposal is not refused: it waits.
    """
    world = World()
    world.routes[0] = record(isr=(0, 1))
    world.reports[0, 0] = {"proposal": proposal(new_isr=(0, 1, 2))}
    world.reports[0, 2] = {"needs_snapshot": True, "role": Role.LEARNER}
    assert repairs(world.view(), NOW) == ()
    assert refused_proposals(world.view()) == ()
    world.reports[0, 2] = {"role": Role.LEARNER}
    (change,) = repairs(world.view(), NOW)
    assert change.state.isr == (0, 1, 2)


def test_nobody_is_told_of_a_proposal_that_is_carried_out() -> None:
    """Neither an accepted proposal nor a leader without one gets a refusal.

    Each pass over a healthy zone would call all leaders.
    """
    world = World()
    assert refused_proposals(world.view()) == ()
    world.reports[0, 0] = {"proposal": proposal()}
    assert refused_proposals(world.view()) == ()
    world.leaving = {0, 1}
    world.reports[0, 0] = {"proposal": proposal(new_isr=(0, 1))}
    (told,) = refused_proposals(world.view())
    assert told.reason == "Leaving"


@pytest.mark.proves("HS-05")
def test_a_proposal_that_holds_already_is_answered() -> None:
    """The leader would go on counting the members of the proposal it took back (HS-05)."""
    world = World()
    world.reports[0, 0] = {"proposal": proposal(new_isr=(0, 1, 2))}
    after = mended(world)[0]
    assert after.isr == (0, 1, 2)


@pytest.mark.proves("HS-05")
def test_what_was_answered_is_not_answered_again() -> None:
    """Each pass would write the record again until its leader has heard of it."""
    world = World()
    world.reports[0, 0] = {"proposal": proposal(new_isr=(0, 1, 2), partition_epoch=8)}
    assert mended(world) == {}


@pytest.mark.proves("B-06")
def test_who_leaves_a_set_that_is_too_small_by_the_zone_s_minimum_may_lead() -> None:
    """The leader's disk would be the only one that counts, and its rows lost with it."""
    world = World(settings={"min_in_sync": 2})
    world.reports[0, 0] = {"proposal": proposal(new_isr=(0,))}
    after = mended(world)[0]
    assert (after.isr, after.eligible) == ((0,), (1, 2))


def test_only_the_leader_proposes() -> None:
    """A follower that still thinks it leads would shrink the set of its successor."""
    world = World()
    world.reports[0, 1] = {"proposal": proposal(new_isr=(0, 1)), "role": Role.LEADER}
    world.reports[0, 0] = {"proposal": proposal(), "role": Role.FOLLOWER}
    assert mended(world) == {}


@pytest.mark.proves("B-06")
def test_failover_waits_for_the_lease() -> None:
    """Two leaders at once, or none for longer than the lease."""
    world = World()
    world.silent[0] = LEASE_SECONDS - 0.001
    assert mended(world) == {}
    world.silent[0] = LEASE_SECONDS
    after = mended(world)[0]
    assert after.leader == 1
    assert after.isr == (1, 2)
    assert set(after.replicas) == {0, 1, 2}
    assert after.leader_epoch > record().leader_epoch


def test_a_lost_leader_is_replaced_at_once() -> None:
    """A node that was given up would be waited for again."""
    world = World()
    world.silent[0] = 0.0
    world.lost = {0}
    assert mended(world)[0].leader == 1


@pytest.mark.proves("B-06")
def test_standbys_go_before_other_replicas() -> None:
    """The takeover by a cold replica would take minutes where a standby takes milliseconds."""
    world = World(routes=[record(iss=(2,)), record(leader=1)])
    world.silent[0] = LEASE_SECONDS
    assert mended(world)[0].leader == 2


@pytest.mark.proves("B-06", "B-07")
@pytest.mark.parametrize("going", ["leaving", "draining"])
def test_a_node_that_is_about_to_go_leads_only_where_nobody_else_can(going: str) -> None:
    """A failed leader's writers would wait again at once, for the next move."""
    world = World(routes=[record(iss=(1,)), record(leader=2)])
    world.silent[0] = LEASE_SECONDS
    setattr(world, going, {1})
    after = mended(world)[0]
    assert (after.leader, after.isr) == (2, (1, 2)), "it stays in sync until it goes"
    world.silent[2] = LEASE_SECONDS
    assert mended(world)[0].leader == 1


def test_nobody_leads_who_may_lack_rows() -> None:
    """A replica outside the in-sync set would lead and lose acknowledged rows."""
    world = World(routes=[record(isr=(0, 1)), record(leader=2)])
    world.silent = {0: LEASE_SECONDS, 1: LEASE_SECONDS}
    assert 0 not in mended(world)


def test_an_authorized_takeover_is_left_to_its_migration() -> None:
    """Failover would fence the candidate while it drains the last rows (RM-05)."""
    world = World().authorize(1)
    world.silent[0] = LEASE_SECONDS
    assert mended(world) == {}
    world.silent[1] = LEASE_SECONDS
    after = mended(world)[0]
    assert after.leader == 2
    assert after.leader_epoch > 5, "the candidate may lead with epoch 5"
    assert after.next_leader is None


def test_a_proposal_goes_before_a_failover() -> None:
    """One pass would make two records of one epoch."""
    world = World()
    world.reports[0, 0] = {"proposal": proposal()}
    world.lost = {0}
    assert mended(world)[0].leader == 0


@pytest.mark.proves("B-06")
@pytest.mark.parametrize("node", [0, 1], ids=["leader", "follower"])
def test_a_replica_that_came_back_empty_leaves_the_set(node: int) -> None:
    """A pod whose disk went with it would count as in sync, or lead with nothing."""
    world = World()
    world.reports[0, node] = {"needs_snapshot": True, "role": Role.LEARNER}
    after = mended(world)[0]
    assert node not in after.isr
    assert after.leader != node
    assert node in after.replicas, "it is copied again"


def stray_world() -> World:
    """Return a world in which node 3 holds partition 0, which is none of its own."""
    world = World()
    world.reports[0, 3] = {}
    return world


def test_a_replica_without_a_route_is_stopped() -> None:
    """A copy that its migration could not reach would stay on disk for ever (RM-09)."""
    (stop,) = strays(stray_world().view())
    assert (stop.partition, stop.node, stop.leader_epoch) == (0, 3, 4)
    assert strays(World().view()) == ()


def test_strays_of_work_under_way_are_left_to_it() -> None:
    """A replica would be stopped that a task or a migration is about to add."""
    assert strays(stray_world().pend().view()) == ()
    world = stray_world()
    world.migrations = [child("m", 0, "UpdateMetadataRollback", terminal=False)]
    assert strays(world.view()) == ()
    world.migrations = [child("m", 0), child("n", 1, "OpenCandidate", terminal=False)]
    assert len(strays(world.view())) == 1


def test_strays_on_silent_nodes_wait() -> None:
    """A call that cannot arrive would be repeated in every pass."""
    world = stray_world()
    world.silent[3] = 1.0
    assert strays(world.view()) == ()


def new_zone() -> World:
    """Return a zone whose one partition was just made: no replica is known to be open."""
    world = World(routes=[record(partition_epoch=FIRST_PARTITION_EPOCH)])
    world.reports |= {(0, node): None for node in range(3)}
    return world


@pytest.mark.proves("B-06")
def test_a_new_partition_is_opened_when_all_its_replicas_are() -> None:
    """A node that lost its disk would open it again as empty and in sync, and lead it."""
    world = new_zone()
    del world.reports[0, 0], world.reports[0, 1]
    assert mended(world) == {}
    del world.reports[0, 2]
    opened = mended(world)[0]
    assert (opened.leader, opened.isr) == (0, (0, 1, 2))


def test_a_new_partition_is_led_by_a_replica_that_is_open() -> None:
    """The next leader would take the second epoch for a lost disk, and the zone never serve."""
    world = new_zone()
    world.silent[0] = LEASE_SECONDS + 1
    assert mended(world) == {}
    del world.reports[0, 2]
    assert mended(world)[0].leader == 2


@pytest.mark.proves("B-08")
def test_what_is_there_of_a_partition_that_begins_again_is_not_yet_open() -> None:
    """It would take writes in its second epoch while a replica still has the rows of before."""
    before = record(leader_epoch=4, partition_epoch=9)
    again = routes.begin_again(before, (0, 1, 2), 2)
    assert isinstance(again, LeaderAndIsr)
    assert (again.leader_epoch, again.partition_epoch) == (5, FIRST_PARTITION_EPOCH)
    world = World(routes=[again])
    world.reported(0, 1, leader_epoch=4, partition_epoch=9)
    assert repairs(world.view(), NOW) == ()
    world.reported(0, 1, leader_epoch=5, partition_epoch=FIRST_PARTITION_EPOCH)
    (change,) = repairs(world.view(), NOW)
    assert change.state.partition_epoch == FIRST_PARTITION_EPOCH + 1


def test_a_coordinator_that_is_fenced_begins_nothing_again() -> None:
    """A process that lost its Lease would delete rows."""
    answer = routes.begin_again(record(coordinator_epoch=3), (0, 1, 2), 2)
    assert isinstance(answer, routes.Refusal)


@pytest.mark.proves("B-06")
def test_a_replica_that_joins_leads_only_where_nobody_else_can() -> None:
    """A failover during a move prefers replicas of before to one that was not compared yet.

    Should the new one lack rows, they would be lost, though others have them.
    """
    copied = record(
        isr=(0, 1, 2, 3), iss=(3,), replicas=(0, 1, 2, 3), hot_standby_replica=3, leader_epoch=4
    )
    world = World(routes=[copied, record(leader=1)]).pend(((3, 1, 2), (1, 2, 0)))
    world.silent[0] = LEASE_SECONDS + 1
    assert mended(world)[0].leader == 1
    world.verified = {(0, 3, 4)}
    assert mended(world)[0].leader == 3
    world.verified = set()
    # Most nodes are silent: the operator waits twice as long, for it may be cut off itself.
    world.silent = dict.fromkeys((0, 1, 2), 2 * LEASE_SECONDS)
    assert mended(world)[0].leader == 3


@pytest.mark.proves("B-04", "B-06")
@pytest.mark.parametrize("how", ["silent", "failed", "empty"])
def test_a_copy_that_nobody_has_compared_never_leads_by_a_failover(how: str) -> None:
    """Another replica leads, and where there is none nobody does; the copy stays in sync.

    Rows that the copy lacks would be lost to readers, and to all who copy from it.
    """
    world = World(routes=[record(), record(leader=1)])
    world.reported(0, 1, uncompared="s-1")
    if how == "silent":
        world.silent[0] = LEASE_SECONDS + 1
    else:
        world.reported(0, 0, **{"failed": True} if how == "failed" else {"needs_snapshot": True})
    assert mended(world)[0].leader == 2
    assert 1 in mended(world)[0].isr
    world.reported(0, 2, uncompared="s-2")
    after = mended(world).get(0, world.routes[0])
    assert after.leader == 0
    assert {1, 2} <= set(after.isr)
    world.reported(0, 1, uncompared="")
    assert mended(world)[0].leader == 1


@pytest.mark.proves("B-04")
def test_an_eligible_copy_that_nobody_has_compared_is_not_elected() -> None:
    """When the whole in-sync set has lost its data, only a compared replica is elected."""
    world = World(routes=[record(isr=(0,), eligible=(1, 2)), record(leader=1)])
    world.reported(0, 0, needs_snapshot=True)
    world.reported(0, 1, uncompared="s-1")
    assert mended(world)[0].leader == 2
    world.reported(0, 2, uncompared="s-2")
    assert mended(world).get(0, world.routes[0]).leader == 0


@pytest.mark.proves("B-04")
def test_copies_are_compared_whoever_made_them() -> None:
    """A replica that lost its data and was copied again is compared once it is in sync.

    No task moves it, so no task asks for that; it would never lead again.
    """
    world = World(routes=[record(isr=(0, 1)), record(leader=1)])
    world.reported(0, 1, uncompared="s-1")
    world.reported(0, 2, uncompared="s-2")
    world.reported(1, 1, uncompared="s-3")
    (asked,) = comparisons(world.view())
    assert asked == VerifyCopy(partition=0, source=0, target=1, leader_epoch=4)
    world.mismatched = {(0, 1, 4)}
    assert comparisons(world.view()) == ()
    world.mismatched = set()
    world.silent[0] = 1.0
    assert comparisons(world.view()) == ()


@pytest.mark.proves("B-09")
def test_a_stray_waits_until_its_leader_counts_without_it() -> None:
    """A leader that nobody has told would wait for a stopped replica with every write."""
    world = stray_world()
    world.reports[0, 0] = {"partition_epoch": 8}
    assert strays(world.view()) == ()
    world.silent[0] = 1.0
    assert len(strays(world.view())) == 1, "who cannot be asked holds nothing up"


@pytest.mark.proves("NW-04")
def test_a_leader_that_says_it_has_failed_is_replaced_at_once() -> None:
    """It cannot write, and would lead for as long as its process lives."""
    world = World()
    world.reports[0, 0] = {"role": Role.FOLLOWER, "failed": True}
    after = mended(world)[0]
    assert (after.leader, after.isr) == (1, (1, 2))
    assert after.leader_epoch > world.routes[0].leader_epoch


@pytest.mark.proves("NW-04")
def test_no_replica_leads_that_has_failed() -> None:
    """Leadership would go from one that cannot write to the next."""
    world = World()
    failed = {"role": Role.FOLLOWER, "failed": True}
    world.reports = {(0, 0): failed, (0, 1): failed}
    assert mended(world)[0].leader == 2
    world.reports[0, 2] = failed
    assert mended(world) == {}, "who is in sync comes back by itself"
