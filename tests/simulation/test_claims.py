"""Claims on one partition: they end in bounded time, and leave the replicas that are assigned."""

from __future__ import annotations

import pytest

from rezone.domain.assignment import assignments
from rezone.resources.task import TaskState
from rezone.wire.messages import NodeId
from simulation.cluster.waits import circle
from simulation.cluster.world import Order, World
from simulation.scenarios.runs import die_everywhere
from simulation.scenarios.scenarios import (
    MIGRATION,
    SMALL,
    TASK,
    Scenario,
    Start,
    at_once,
    at_rest,
    in_state,
    later,
    migrate,
    move,
)

SECONDS_MAX = 300.0


def migrate_as(name: str, **spec: object) -> Order:
    """Have a person move partition 0's leader as soon as a task has begun to move it."""

    def what(world: World) -> None:
        world.apply_migration(name, partition=0, **spec)

    return Order(in_state(TASK, TaskState.AWAITING_REPLICAS), what)


@pytest.mark.proves("B-14", "ZR-13")
@pytest.mark.parametrize("name", ["a", "z"])
def test_a_persons_move_and_a_tasks_move_of_one_partition_both_end(name: str) -> None:
    """A migration beside a rebalance of its partition succeeds after it, whatever its name.

    They would wait for each other until a person deletes the migration.
    """
    with World(1, at_rest(SMALL)) as world:
        record = world.checks.routes[0]
        (stays,) = set(record.replicas) - {record.leader}
        world.orders = [Order(at_once, move), migrate_as(name, target=stays)]
        world.run(SECONDS_MAX)
        assert set(world.states(MIGRATION).values()) == {"Succeeded"}
        assert world.states(TASK) == {"t": "Succeeded"}
        assert world.checks.routes[0].leader == stays


def test_a_circle_of_waits_is_found() -> None:
    """Who waits for each other is named, and who only waits is not.

    The storms would say of a circle only that something has not ended in time.
    """
    waits = {"a": ["b"], "b": ["c"], "c": ["b"], "d": ["a"], "e": []}
    assert circle(waits) == ["b", "c"]
    assert circle({**waits, "c": []}) == []


def assigned(world: World) -> tuple[NodeId, ...]:
    """Return where partition 0 has its place."""
    status = world.zone().status
    assert status is not None
    assert status.assignments.stable is not None
    return assignments.parse(status.assignments.stable.replicas)[0]


REMOVED = Scenario(
    "a migration to a replica that removes the old leader",
    Start(replicas=3, nodes=4),
    (
        Order(at_once, migrate("replica", oldLeaderPolicy="Remove")),
        Order(later(1.0), lambda _: None),
    ),
)


@pytest.mark.proves("RM-07", "B-06")
def test_a_removed_leader_of_the_assignment_is_replaced() -> None:
    """The old leader's place goes to another node, which gets a copy.

    The partition would have a replica less than the zone asks for, until somebody looks.
    """
    with World(1, at_rest(REMOVED.start)) as world:
        old, before = world.checks.routes[0].leader, assigned(world)
        world.orders = list(REMOVED.orders)
        world.run(SECONDS_MAX)
        REMOVED.check(world)
        assert len(assigned(world)) == len(before)
        assert old not in assigned(world)
        assert set(world.checks.routes[0].isr) == set(assigned(world))


@pytest.mark.proves("RM-07", "OP-02")
def test_a_removed_leader_is_replaced_whenever_the_operator_dies() -> None:
    """At rest the partition has the replicas of its assignment.

    An operator that dies between its writes would leave it one short, or one too many.
    """
    die_everywhere(REMOVED)


@pytest.mark.proves("RM-07")
def test_a_leader_that_nobody_can_replace_is_not_removed() -> None:
    """The migration is refused before anything moves.

    The partition would be one replica short for as long as the zone has no other node.
    """
    with World(1, at_rest(Start(replicas=3, nodes=3))) as world:
        leader = world.checks.routes[0].leader
        world.orders = [Order(at_once, migrate("replica", oldLeaderPolicy="Remove"))]
        world.run(SECONDS_MAX)
        assert world.states(MIGRATION) == {"m": "Failed"}
        assert world.checks.routes[0].leader == leader
