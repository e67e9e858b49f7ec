"""Calls that were overtaken: each test fails if the fence it is about is taken away.

The network keeps a call back until the zone has changed its mind, as a full queue or a frozen
process does, and then delivers it. Nothing but the fence stands between it and the data.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rezone.wire.messages import ConfigureNode, Message, NodeId, StopReplica
from simulation.cluster.checks import unfinished
from simulation.cluster.world import Order, World
from simulation.scenarios.scenarios import MIGRATION, TASK, Start, at_once, at_rest, later

SECONDS_MAX = 300.0
START = Start(partitions=1, replicas=2, nodes=3)


def hold_one(world: World, kind: type[Message], node: NodeId) -> None:
    """Keep the next call of a kind to a node back."""
    network = world.network

    def holds(address: str, request: Message) -> bool:
        wanted = isinstance(request, kind) and network.id_at(address) == node
        return wanted and not network.held

    network.holds = holds


def release(world: World) -> None:
    """Deliver what was kept back, now."""
    world.network.holds = lambda _address, _request: False
    assert len(world.network.held) == 1, "nothing was kept back: the test proves nothing"
    world.network.release()


def follower(world: World) -> NodeId:
    """Return partition 0's follower."""
    record = world.checks.routes[0]
    return next(n for n in record.replicas if n != record.leader)


def succeeded(name: str) -> Callable[[World], bool]:
    """Hold when a task has succeeded."""
    return lambda world: world.states(TASK).get(name) == "Succeeded"


def moves(name: str, node: Callable[[World], NodeId]) -> Callable[[World], None]:
    """Apply a task that puts partition 0's follower on a node."""

    def what(world: World) -> None:
        replicas = [world.checks.routes[0].leader, node(world)]
        world.apply_task(name, type="Moves", moves=[{"partition": 0, "replicas": replicas}])

    return what


def spare(world: World) -> NodeId:
    """Return the node without a replica of partition 0."""
    return next(n for n in world.network.nodes if n not in world.checks.routes[0].replicas)


@pytest.mark.proves("ZR-17")
def test_a_late_stop_of_an_older_trigger_does_not_delete_an_in_sync_replica() -> None:
    """The replica has come back by a newer trigger; leader and coordinator are the same ones."""
    with World(1, at_rest(START)) as world:
        old = follower(world)
        world.orders = [
            Order(at_once, lambda w: hold_one(w, StopReplica, old)),
            Order(at_once, moves("away", spare)),
            Order(succeeded("away"), moves("back", lambda _: old)),
            Order(succeeded("back"), release),
            Order(later(1.0), lambda _: None),
        ]
        world.run(SECONDS_MAX)
        assert old in world.checks.routes[0].isr


@pytest.mark.proves("ZR-13", "ZR-17")
def test_a_late_stop_does_not_delete_a_replica_that_was_made_again() -> None:
    """Neither trigger, leader nor coordinator have changed meanwhile: only the record tells."""
    with World(1, at_rest(START)) as world:
        node = spare(world)

        def open_again(world: World) -> None:
            before = world.checks.routes[0]
            assert node not in before.replicas
            world.apply_migration("again", partition=0, target=node)

        world.orders = [
            Order(at_once, lambda w: hold_one(w, StopReplica, node)),
            Order(at_once, lambda w: w.apply_migration("first", partition=0, target=node)),
            Order(
                lambda w: node in w.checks.routes[0].replicas,
                lambda w: w.cancel(MIGRATION, "first"),
            ),
            Order(lambda w: w.states(MIGRATION)["first"] == "RolledBack", open_again),
            Order(lambda w: node in w.checks.routes[0].isr, release),
            Order(later(1.0), lambda _: None),
        ]
        world.run(SECONDS_MAX)
        assert node in world.checks.routes[0].isr


def settled(world: World) -> list[str]:
    """Return what is unfinished, with data nodes that have other settings than the zone."""
    wanted = world.zone().spec.min_in_sync_replicas
    return unfinished(world) + [
        f"node {n} has minInSyncReplicas {node.config.min_in_sync_replicas}"
        for n, node in world.network.nodes.items()
        if node.config.min_in_sync_replicas != wanted
    ]


def two_settings(world: World, between: Callable[[World], None]) -> None:
    """Set minInSyncReplicas to 2 and back to 1; the first setting reaches the follower last."""
    node = follower(world)
    world.orders = [
        Order(at_once, lambda _: None),
        # After the beginning, in which every coordinator configures all nodes.
        Order(later(2.0), lambda w: hold_one(w, ConfigureNode, node)),
        Order(at_once, lambda w: w.patch_zone(minInSyncReplicas=2)),
        Order(lambda w: bool(w.network.held), between),
        Order(later(1.0), lambda w: w.patch_zone(minInSyncReplicas=1)),
        Order(later(8.0), release),
        Order(later(1.0), lambda _: None),
    ]


@pytest.mark.proves("ZR-14", "ZR-17")
def test_a_late_call_of_a_coordinator_that_was_replaced_changes_nothing() -> None:
    """Its settings would stand on that node for good: the new one believes its own confirmed."""
    with World(1, at_rest(START)) as world:
        two_settings(world, lambda w: w.crash())
        world.run(SECONDS_MAX, settled)
        assert len(world.processes) == 2


@pytest.mark.proves("ZR-13")
def test_a_late_configuration_of_the_same_coordinator_changes_nothing() -> None:
    """A call that was given up for lost would undo the one that was sent in its place."""
    with World(1, at_rest(START)) as world:
        two_settings(world, lambda _: None)
        world.run(SECONDS_MAX, settled)
        assert len(world.processes) == 1
