"""Hot standbys of partitions at rest: who is chosen, who is replaced, and what is left alone."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import LEASE_SECONDS, NOW, World, child, record

from rezone.domain.assignment.standbys import standby_changes
from rezone.domain.repair.repairs import repairs
from rezone.domain.routing import routes
from rezone.domain.routing.route_checks import violations
from rezone.domain.routing.routes import hot_standbys
from rezone.wire.messages import FIRST_PARTITION_EPOCH, IsrProposal, LeaderAndIsr

pytestmark = pytest.mark.proves("B-06")


def world_of(*records: LeaderAndIsr, standbys: int = 1, **settings: Any) -> World:
    """Return a world at rest that wants standbys."""
    world = World(routes=list(records), **settings)
    stable = tuple(r.replicas for r in records)
    world.settings = {"hot_standbys": standbys, "stable": stable}
    return world


def step(world: World) -> bool:
    """Make the changes of one pass; whether there were any."""
    changes = standby_changes(world.view())
    for change in changes:
        old = world.routes[change.partition]
        assert change.expected_epoch == old.partition_epoch
        assert change.state.partition_epoch == old.partition_epoch + 1
        assert not violations(change.state)
        world.routes[change.partition] = change.state
    return bool(changes)


def catch_up(world: World) -> None:
    """Have every leader ask for the standbys that were made."""
    for partition, old in enumerate(world.routes):
        proposal = IsrProposal(
            new_isr=old.isr,
            new_iss=tuple(sorted(hot_standbys(old) & set(old.isr))),
            leader_epoch=old.leader_epoch,
            partition_epoch=old.partition_epoch,
            coordinator_epoch=old.coordinator_epoch,
        )
        after = routes.adjust_isr(old, proposal, old.coordinator_epoch, minimum=1)
        assert isinstance(after, LeaderAndIsr)
        world.routes[partition] = after


def settle(world: World) -> list[LeaderAndIsr]:
    """Go on until nothing changes; return the routes."""
    for _ in range(20):
        catch_up(world)
        if not step(world):
            return world.routes
    raise AssertionError(f"it never ends: {world.routes}")


def test_a_zone_without_standbys_is_left_alone() -> None:
    """Every zone would be written to, and pay for engines that are kept warm."""
    assert not step(world_of(record(), standbys=0))


def test_one_after_the_other_until_there_are_enough() -> None:
    """The route has room for one that is being made: a second would take the place of the first."""
    world = world_of(record(), standbys=2)
    assert step(world)
    first = world.routes[0].hot_standby_replica
    assert not step(world), "the first is not in iss yet"
    assert hot_standbys(settle(world)[0]) == {1, 2}
    assert world.routes[0].iss == (1, 2)
    assert first in (1, 2)


def test_standbys_are_spread_over_failure_domains() -> None:
    """The leader and its standby would go down with one rack."""
    world = world_of(record(), domains={0: "a", 1: "a", 2: "b"})
    assert settle(world)[0].iss == (2,)


def test_standbys_are_spread_over_nodes() -> None:
    """One node would keep all engines warm, and take all leaders when another one fails."""
    world = world_of(*[record()] * 6)
    loads = [sum(r.iss == (n,) for r in settle(world)) for n in (1, 2)]
    assert loads == [3, 3]


@pytest.mark.parametrize("unfit", ["silent", "lost", "draining", "empty", "not in sync"])
def test_who_may_lack_rows_or_go_is_not_chosen(unfit: str) -> None:
    """A standby would be waited for that never becomes hot, or that is about to leave."""
    world = world_of(record(isr=(0, 2)) if unfit == "not in sync" else record())
    if unfit == "silent":
        world.silent[1] = 0.1
    elif unfit == "empty":
        world.reports[0, 1] = {"needs_snapshot": True}
    elif unfit in ("lost", "draining"):
        getattr(world, unfit).add(1)
    assert settle(world)[0].iss == (2,)


def test_nobody_is_chosen_when_nobody_can() -> None:
    """A node without the rows would be called a standby."""
    assert not step(world_of(record(isr=(0,))))


def test_one_that_cannot_become_hot_is_replaced() -> None:
    """A partition would wait for ever for a standby on a node that has gone."""
    world = world_of(record(hot_standby_replica=1))
    assert not step(world)
    world.silent[1] = 0.1
    assert step(world)
    assert world.routes[0].hot_standby_replica == 2


def test_one_that_fell_out_is_replaced() -> None:
    """After the standby's node was lost the partition would have none."""
    world = world_of(record())
    assert settle(world)[0].iss == (1,)
    world.routes[0] = msgspec.structs.replace(world.routes[0], isr=(0, 2), iss=())
    world.silent[1] = 20.0
    assert settle(world)[0].iss == (2,)


def test_after_a_failover_to_the_standby_there_is_a_new_one() -> None:
    """The second failure of a night would find a cold replica."""
    world = world_of(record())
    assert settle(world)[0].iss == (1,)
    world.silent[0] = LEASE_SECONDS
    (change,) = repairs(world.view(), NOW)
    world.routes[0] = change.state
    assert (change.state.leader, change.state.iss) == (1, ())
    assert settle(world)[0].iss == (2,)


def test_what_is_too_many_becomes_plain_again() -> None:
    """A zone that asks for fewer would go on paying for the others."""
    world = world_of(record(), standbys=2, domains={0: "a", 1: "a", 2: "b"})
    assert settle(world)[0].iss == (1, 2)
    world.settings["hot_standbys"] = 1
    assert settle(world)[0].iss == (2,)
    world.settings["hot_standbys"] = 0
    assert hot_standbys(settle(world)[0]) == frozenset()


@pytest.mark.parametrize("how", ["migration", "task", "leaders", "takeover"])
def test_what_moves_is_left_alone(how: str) -> None:
    """A move's candidate would be made plain again, and the move would wait for it for ever."""
    world = world_of(record(hot_standby_replica=3, replicas=(0, 1, 2, 3)), record(leader=1))
    world.settings["stable"] = ((0, 1, 2), (1, 0, 2))
    if how == "migration":
        world.migrations = [child("m", state="OpenCandidate", target=3)]
    elif how == "task":
        world.pend(((3, 1, 2), (1, 0, 2)))
    elif how == "leaders":
        world.settings["stable"] = ((3, 1, 2), (1, 0, 2))
        world.pend(((3, 1, 2), (1, 0, 2)))
    else:
        world.authorize(3)
    assert [c.partition for c in standby_changes(world.view())] == [1], "the other one is at rest"


NODES = st.sets(st.integers(1, 4))


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Draw a partition in any state, on nodes that may be silent or about to go."""
    isr = (0, *sorted(draw(NODES)))
    hot = record(
        replicas=(0, 1, 2, 3, 4),
        isr=isr,
        iss=tuple(sorted(draw(NODES) & set(isr))),
        hot_standby_replica=draw(st.none() | st.integers(1, 4)),
    )
    world = world_of(hot, standbys=draw(st.integers(0, 3)), draining=draw(NODES))
    world.domains = draw(st.dictionaries(st.integers(0, 4), st.sampled_from("abc")))
    world.silent = dict.fromkeys(draw(NODES), 1.0)
    return world


@given(worlds())
def test_it_ends_with_as_many_as_can_be(world: World) -> None:
    """Two rules would take turns, and write the route in every pass for ever."""
    catch_up(world)
    before = world.routes[0]
    able = set(before.isr) - {0} - set(world.silent) - world.draining
    wanted = min(world.settings["hot_standbys"], len(able | set(before.iss)))
    assert len(settle(world)[0].iss) == wanted
    assert len(able & hot_standbys(world.routes[0])) >= min(wanted, len(able & set(before.iss)))


def test_a_partition_that_is_not_open_yet_is_left_alone() -> None:
    """A leader that hears of the second epoch before the first takes its replica for a lost one.

    No data node could open the partition then: a new zone would never be ready.
    """
    new = msgspec.structs.replace(record(), partition_epoch=FIRST_PARTITION_EPOCH)
    world = world_of(new)
    assert not step(world)
    world.routes[0] = msgspec.structs.replace(new, partition_epoch=FIRST_PARTITION_EPOCH + 1)
    assert step(world)
