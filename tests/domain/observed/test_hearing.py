"""Who is replaced when the coordinator hears one thing and data nodes another (NW-02, NW-03)."""

from __future__ import annotations

from typing import Any

import pytest
from worlds import LEASE_SECONDS, NOW, World, record

from rezone.domain.model.world import ChangeRoutes
from rezone.domain.observed import hearing
from rezone.domain.observed.readiness import leader_is_gone
from rezone.domain.observed.rollout import NOTHING
from rezone.domain.repair.handover import handovers
from rezone.domain.repair.repairs import lease_ends_in, repairs
from rezone.domain.routing import route_leaders
from rezone.domain.zone.status import health_of, zone_conditions
from rezone.wire.messages import LeaderAndIsr

LONG = LEASE_SECONDS + 1
VERY_LONG = 3 * LEASE_SECONDS
EVERYBODY = {n: {0, 1, 2, 3, 4} - {n} for n in range(5)}


def world(said: dict[int, bool], silent: dict[int, float] | None = None, **more: Any) -> World:
    """Return a world in which node 0 leads 0, 1 and 2; `said`: who says whether it hears it."""
    usual: dict[str, Any] = {"hears": EVERYBODY, "routes": [record()], "silent": silent or {}}
    found = World(**(usual | more))
    for node, heard in said.items():
        found.reported(0, node, leader_heard=heard)
    return found


def without(*pairs: tuple[int, int]) -> dict[int, set[int]]:
    """Return who hears whom when these pairs do not."""
    cut = {*pairs, *((b, a) for a, b in pairs)}
    return {n: {o for o in others if (n, o) not in cut} for n, others in EVERYBODY.items()}


def led(found: World) -> LeaderAndIsr:
    """Return partition 0's record after a pass."""
    changes = repairs(found.view(), NOW)
    return changes[0].state if changes else found.routes[0]


@pytest.mark.proves("NW-02")
@pytest.mark.parametrize("silent", [{0: VERY_LONG}, {0: VERY_LONG, 2: VERY_LONG}])
@pytest.mark.parametrize("others", [{}, {3: VERY_LONG, 4: VERY_LONG}])
def test_a_leader_that_in_sync_followers_hear_is_left_alone(
    silent: dict[int, float], others: dict[int, float]
) -> None:
    """The operator's own network would take leadership from partitions that are well."""
    found = world({1: True, 2: True}, silent | others)
    assert led(found) is found.routes[0]


@pytest.mark.proves("NW-02")
@pytest.mark.parametrize(
    ("stalled", "silent", "leader"),
    [
        ((1, 2), {0: LONG}, 1),
        ((1, 2), {0: LEASE_SECONDS - 1}, 0),
        ((1, 2), {}, 0),  # it answers
        ((1,), {0: VERY_LONG}, 0),  # node 2 gets what it leads
        ((1, 2), {0: VERY_LONG, 2: VERY_LONG}, 0),  # node 1 could not commit
    ],
)
def test_a_leader_that_only_says_that_it_is_there_is_replaced(
    stalled: tuple[int, ...], silent: dict[int, float], leader: int
) -> None:
    """It answers nobody, and would be waited for without end; one that serves is left alone."""
    found = world({1: True, 2: True}, silent)
    for node in stalled:
        found.reported(0, node, leader_stalled=True)
    assert led(found).leader == leader


@pytest.mark.proves("NW-02", "B-06")
def test_a_leader_that_nobody_hears_is_replaced_when_its_followers_say_so() -> None:
    """Writes would stand still until the operator, too, has waited for it."""
    deaf = {1: False, 2: False}
    assert led(world(deaf, {0: 0.1})).leader == 1
    assert led(world(deaf, {0: LONG, 3: LONG, 4: LONG})).leader == 1, "two hear each other"


@pytest.mark.proves("NW-02", "B-06")
@pytest.mark.parametrize(
    ("said", "more"),
    [
        ({1: False, 2: True}, {}),  # it commits with node 2
        ({1: False}, {}),  # node 2 says nothing
        ({1: False, 2: False}, {"settings": {"min_in_sync": 1}}),  # it commits alone
        ({1: False, 2: False}, {"hears": without((1, 2))}),  # nobody could commit
        ({1: False, 2: False}, {"answer_seconds": 1.0}),  # they have just begun themselves
    ],
)
def test_a_silent_leader_is_waited_for_where_its_followers_may_hear_it_again(
    said: dict[int, bool], more: dict[str, Any]
) -> None:
    """A leader that commits would be replaced by an operator that does not hear it."""
    assert led(world(said, {0: LEASE_SECONDS - 1}, **more)).leader == 0


@pytest.mark.proves("NW-02")
def test_what_a_node_said_that_is_silent_itself_does_not_count() -> None:
    """A leader that died together with the network to its follower would lead on for ever."""
    unreported = without((0, 2), (0, 3), (0, 4))
    found = world({1: True}, {0: LONG, 1: LONG}, hears=unreported)
    assert led(found).leader == 2


@pytest.mark.proves("NW-02")
def test_a_coordinator_that_hears_few_waits_twice_as_long() -> None:
    """Cut off from most nodes, it would act on the few that it sees."""
    alone = without((0, 1), (0, 3), (0, 4), (1, 2))

    def after(silent: dict[int, float]) -> LeaderAndIsr:
        return led(world({1: False}, silent, hears=alone))

    most = dict.fromkeys((0, 2, 3, 4), LONG)
    assert after(most).leader == 0
    assert after(dict.fromkeys(most, 2 * LEASE_SECONDS)).leader == 1
    assert after({0: LONG, 2: LONG}).leader == 1, "most are heard"
    assert lease_ends_in(world({}, most).view(), NOW) == 2 * LEASE_SECONDS - LONG


@pytest.mark.proves("NW-02")
def test_a_leader_that_any_node_hears_is_not_replaced_by_one_that_cannot_commit() -> None:
    """Writes would wait at the new leader as well, and the old one would have to come back."""
    hears = without((0, 1), (1, 2))
    found = world({1: False}, {0: VERY_LONG, 2: VERY_LONG}, hears=hears)
    assert led(found) is found.routes[0]
    assert not leader_is_gone(found.view(), 0, NOW)


@pytest.mark.proves("NW-03")
def test_a_leader_that_answers_goes_when_too_few_hear_it_and_others_hear_each_other() -> None:
    """Cut off from its peers it would lead on, and commit nothing."""
    cut = without((0, 1), (0, 2))
    after = led(world({1: False, 2: False}, hears=cut))
    assert (after.leader, after.isr) == (1, (1, 2))


@pytest.mark.proves("NW-03")
@pytest.mark.parametrize(
    ("said", "more"),
    [
        ({1: False, 2: True}, {"hears": without((0, 1))}),  # it commits with node 2
        ({1: False}, {"hears": without((0, 1))}),  # node 2 says nothing
        ({1: False, 2: False}, {"hears": without((0, 1), (0, 2), (1, 2))}),  # nobody could commit
        ({1: False, 2: False}, {"hears": {}}),  # nobody says whom it hears
        ({1: False, 2: False}, {"hears": without((0, 1), (0, 2)), "answer_seconds": 1.0}),
    ],
)
def test_a_leader_that_answers_stays_where_no_other_could_surely_commit(
    said: dict[int, bool], more: dict[str, Any]
) -> None:
    """Leadership would move on without end, or leave a node that has just been started again."""
    found = world(said, **more)
    assert led(found) is found.routes[0]


@pytest.mark.proves("NW-03")
def test_whoever_is_heard_by_enough_comes_before_a_hot_standby_that_is_not() -> None:
    """The standby would wait for followers that do not hear it."""
    four = record(isr=(0, 1, 2, 3), replicas=(0, 1, 2, 3), iss=(1,), hot_standby_replica=1)
    deaf = dict.fromkeys((1, 2, 3), False)
    after = led(world(deaf, {0: LONG}, routes=[four], hears=without((1, 2), (1, 3))))
    assert (after.leader, after.isr) == (2, (2, 3)), "who does not hear it would be waited for"


@pytest.mark.proves("NW-03", "B-06")
def test_where_nobody_is_heard_by_enough_somebody_leads_all_the_same() -> None:
    """A partition would wait for ever for a leader that is dead."""
    cut = without((0, 1), (0, 2), (1, 2), (0, 3), (0, 4))
    assert led(world({1: False, 2: False}, {0: LONG}, hears=cut)).leader == 1


@pytest.mark.proves("NW-02")
def test_a_takeover_goes_on_without_a_leader_that_only_others_than_its_followers_hear() -> None:
    """Its followers could not write for as long as a node beside the partition hears it."""
    authorized = route_leaders.authorize_takeover(record(), 1, 1)
    assert isinstance(authorized, LeaderAndIsr)
    for heard, leader in ((False, 1), (True, 0)):
        found = world(
            {1: heard, 2: heard}, {0: 3600.0}, hears=without((0, 1), (0, 2)), routes=[authorized]
        )
        effects = handovers(found.view(), NOW)
        assert [
            c.state.leader for e in effects if isinstance(e, ChangeRoutes) for c in e.changes
        ] == ([1] if leader else [])


@pytest.mark.proves("NW-02", "B-06")
@pytest.mark.parametrize("second_hears", [False, True])
def test_a_takeover_goes_on_at_once_without_a_leader_that_too_few_hear(second_hears: bool) -> None:
    """Writes would wait for the coordinator's lease because a leader was about to be moved."""
    authorized = route_leaders.authorize_takeover(record(), 1, 1)
    assert isinstance(authorized, LeaderAndIsr)
    said = {1: False, 2: second_hears}
    found = world(said, {0: 1.0}, hears=without((0, 1), (0, 2)), routes=[authorized])
    changes = [
        change.state.leader
        for effect in handovers(found.view(), NOW)
        if isinstance(effect, ChangeRoutes)
        for change in effect.changes
    ]
    assert changes == ([] if second_hears else [1])


@pytest.mark.proves("NW-03")
def test_one_that_hears_is_not_enough_both_must() -> None:
    """A link that lets frames pass one way would count, and nothing would be acknowledged."""
    hears = {1: {2}, 2: set[int]()}
    assert hearing.companies(world({}, hears=hears).view(), (1, 2), 2) == {}
    both = {1: {2}, 2: {1}}
    found = hearing.companies(world({}, hears=both).view(), (1, 2), 2)
    assert found == {1: {1, 2}, 2: {1, 2}}


@pytest.mark.proves("NW-02")
@pytest.mark.parametrize("changes", [{"leader_epoch": 3}, {"leader": 3}])
def test_who_follows_by_another_record_says_nothing_of_this_leader(changes: Any) -> None:
    """A follower that hears the leader before the last one would keep the last one."""
    found = world({1: True, 2: True})
    found.reported(0, 1, **changes)
    assert hearing.followers(found.view(), 0, found.routes[0]) == (frozenset({2}), frozenset[int]())


def test_without_targets_all_who_are_alive_stay_in_sync() -> None:
    """Nodes of an older version, which say nothing, would leave the in-sync set."""
    after = route_leaders.fail_over(record(), (1, 2), minimum=2)
    assert after is not None
    assert after.isr == (1, 2)


@pytest.mark.proves("NW-02")
@pytest.mark.parametrize(
    ("silent", "reason"),
    [({0: 1.0}, "NotReached"), (dict.fromkeys((0, 3, 4), 1.0), "OperatorCutOff")],
)
def test_the_zone_says_which_nodes_only_others_hear(silent: dict[int, float], reason: str) -> None:
    """It would say that partitions have no leader while all of them serve."""
    view = world({1: True, 2: True}, silent).view()
    health = health_of(view, replicas=3, wanted_nodes=5)
    assert health.led == health.partitions == 1
    conditions = zone_conditions(
        (),
        health,
        stalled=None,
        obstacle=None,
        rebalancing="",
        paused=False,
        rollout=NOTHING,
        volumes=None,
        generation=1,
        now=NOW,
    )
    (degraded,) = [each for each in conditions if each.type == "Degraded"]
    assert degraded.reason == reason
    assert "data node 0 is not reached by the operator, heard by nodes 1, 2" in degraded.message
