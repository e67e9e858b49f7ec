"""A quorum is lost with its disks or its nodes, and a person gives rows up: with every crash point.

The zone says what is lost, the migration what may be lost by it, and whoever comes back later with
rows of the past rolls back to what the new leader has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rezone.resources.migration import MigrationState as M
from rezone.wire.messages import NodeId
from simulation.cluster.world import Order, World
from simulation.scenarios.edge_scenarios import when_stored
from simulation.scenarios.runs import RUN_SECONDS_MAX, die_everywhere
from simulation.scenarios.scenarios import (
    MIGRATION,
    Scenario,
    Start,
    at_once,
    at_rest,
    cancel_all,
    later,
)

THREE = Start(replicas=3)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def third(world: World) -> NodeId:
    """Return the follower that falls behind."""
    record = world.checks.routes[0]
    return max(n for n in record.replicas if n != record.leader)


def fall_behind(world: World) -> None:
    """Cut the third replica off from the others, not from the operator."""
    node = third(world)
    others = set(world.checks.routes[0].replicas) - {node}
    world.network.cut.update(frozenset((node, n)) for n in others)


def two_in_sync(world: World) -> bool:
    """Hold when the third replica has left the set."""
    return len(world.checks.routes[0].isr) == 2


def lose(*, all_of_them: bool = False) -> Callable[[World], None]:
    """Take the disks of the in-sync set away, or those of all replicas."""

    def what(world: World) -> None:
        record = world.checks.routes[0]
        world.checks.give_up(0)
        for node in record.replicas if all_of_them else record.isr:
            world.kubelet.wipe(node)
        world.network.cut.clear()

    return what


def die(world: World) -> None:
    """Kill the nodes of the in-sync set; they come back with all that was acknowledged.

    One after the other, with time to be told in between: together they would be the quorum that a
    person has said is gone, and acknowledge writes until they hear of the new leader.
    """
    world.checks.give_up(0)
    for index, node in enumerate(world.checks.routes[0].isr):
        world.kubelet.kill(node, 25.0 + 10.0 * index)
    world.network.cut.clear()


def told(reason: str) -> Callable[[World], bool]:
    """Hold when the zone gives this reason, and the metrics count it."""

    def when(world: World) -> bool:
        status = world.zone().status
        counted = world.processes[-1].coordinator.metrics.not_ready
        return (status is not None and counted[reason] == 1) and any(
            c.reason == reason and "partition 0: nodes" in c.message for c in status.conditions
        )

    return when


def recover(**unclean: Any) -> Callable[[World], None]:
    """Give rows up."""

    def what(world: World) -> None:
        world.apply_migration("m", partition=0, uncleanElection={"acceptDataLoss": True, **unclean})

    return what


def name_the_dead(world: World) -> None:
    """Give rows up, and say that the in-sync set will not come back."""
    recover(lostNodes=list(world.checks.routes[0].isr))(world)


def is_recovered(world: World) -> bool:
    """Hold when the migration has succeeded."""
    return world.states(MIGRATION).get("m") == "Succeeded"


def some_rows_are_lost(world: World) -> list[str]:
    """Expect that something was lost, and that writes go on."""
    lost = [] if world.checks.lost_rows else ["nothing was lost: the scenario proves nothing"]
    return lost if world.checks.rows(0) else ["no row was acknowledged since"]


BEHIND = (Order(later(1.0), fall_behind), Order(two_in_sync, lambda _: None))
SURVIVOR = Scenario(
    "quorum lost",
    THREE,
    (
        *BEHIND,
        Order(later(3.0), lose()),
        Order(told("QuorumLost"), recover()),
        Order(is_recovered, lambda _: None),
    ),
    expects=some_rows_are_lost,
)
NOTHING = Scenario(
    "everything lost",
    THREE,
    (
        Order(later(2.0), lose(all_of_them=True)),
        Order(told("QuorumLost"), recover(mode="Empty")),
        Order(is_recovered, lambda _: None),
    ),
    expects=some_rows_are_lost,
)
RETURNED = Scenario(
    "quorum declared lost comes back",
    THREE,
    (
        *BEHIND,
        Order(later(3.0), die),
        Order(told("NoLeader"), name_the_dead),
        Order(is_recovered, lambda _: None),
        Order(later(30.0), lambda _: None),
    ),
    expects=some_rows_are_lost,
)


def kill_set(world: World) -> None:
    """Kill the nodes of the in-sync set until somebody starts them again."""
    for node in world.checks.routes[0].isr:
        world.kubelet.kill(node, 600.0)
    world.network.cut.clear()


def bring_back(world: World) -> None:
    """Start all nodes again, with all that was acknowledged."""
    for machine in list(world.kubelet.machines.values()):
        world.kubelet.restart(machine.node)


def recover_again(world: World) -> None:
    """Give rows up by another migration than the first one."""
    world.apply_migration("n", partition=0, uncleanElection={"acceptDataLoss": True})


CANCELLED = Scenario(
    "recovery cancelled as it is stored",
    THREE,
    (
        when_stored(MIGRATION, M.UNCLEAN_ELECTION, cancel_all(MIGRATION)),
        *BEHIND,
        Order(later(3.0), lose()),
        Order(told("QuorumLost"), recover()),
        Order(lambda w: w.states(MIGRATION).get("m") == M.ROLLED_BACK, recover_again),
    ),
    ends=frozenset({"RolledBack", "Succeeded"}),
    expects=some_rows_are_lost,
)
REFUSED = Scenario(
    "the lost come back as a recovery is stored",
    THREE,
    (
        when_stored(MIGRATION, M.UNCLEAN_ELECTION, bring_back),
        *BEHIND,
        Order(later(3.0), kill_set),
        Order(told("NoLeader"), name_the_dead),
        Order(lambda w: w.states(MIGRATION).get("m") == M.FAILED, lambda _: None),
    ),
    ends=frozenset({"Failed"}),
)
LOSSES = (SURVIVOR, NOTHING, RETURNED, CANCELLED, REFUSED)


@pytest.mark.proves("OP-02")
@pytest.mark.parametrize("scenario", LOSSES, ids=lambda s: s.name.replace(" ", "-"))
def test_recoveries_survive_the_operators_death(scenario: Scenario) -> None:
    """It would stay without a leader, go on with two histories, or lose more than was said.

    A recovery that was begun would be left half-way, or be decided a second time.
    """
    die_everywhere(scenario)


def test_a_recovery_that_is_not_needed_changes_nothing() -> None:
    """A typing error in a partition's number would depose a healthy leader."""
    with World(1, at_rest(THREE)) as world:
        before = world.checks.routes[0].leader_epoch
        world.orders = [
            Order(at_once, recover()),
            Order(lambda w: w.states(MIGRATION).get("m") == "Failed", lambda _: None),
        ]
        world.run(RUN_SECONDS_MAX)
        assert world.checks.routes[0].leader_epoch == before
