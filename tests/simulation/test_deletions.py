"""What is deleted in the middle of a move is made again where it is needed, and nowhere else."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable

import pytest

from rezone.controller.observing.outside_machine import MISSING_ZONE_SECONDS
from rezone.kube.api.kinds import ConfigMap, Manifest, MigrationKind, SparkApplication, TaskKind
from rezone.resources.migration import MigrationState as M
from rezone.resources.task import TaskState as T
from simulation.cluster.apiserver import Key
from simulation.cluster.world import Order, World
from simulation.scenarios.deletions import (
    delete_one,
    remains,
    replace_zone,
    storm,
    unfinished_or_lost,
)
from simulation.scenarios.pod_scenarios import Claimed, delete_pod_of_leader
from simulation.scenarios.runs import ALL_ENDS, RUN_SECONDS_MAX, alternately, seeds, some_now
from simulation.scenarios.scenarios import MIGRATION, TASK, Scenario, at_once, later, migrate, move

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

START = Claimed(spark=True)
GONE_SECONDS_MAX = 120.0
SOON_GONE_SECONDS_MAX = 10.0
LED_SECONDS = 60.0
"""So long an operator has led that it reads nothing again for having begun."""
STATES = (
    (TASK, T.APPROVED),
    (TASK, T.AWAITING_REPLICAS),
    (TASK, T.TRANSFERRING),
    (TASK, T.SWITCHING),
    (TASK, T.FINALIZING),
    (TASK, T.STOPPING_REDUNDANT),
    (MIGRATION, M.OPEN_CANDIDATE),
    (MIGRATION, M.UPDATE_METADATA_DOWN),
    (MIGRATION, M.DOWNGRADE_LEADER),
    (MIGRATION, M.CLOSE_OLD_LEADER),
)
ASKED: dict[str, Callable[[World], None]] = {
    TASK: move,
    MIGRATION: migrate("new", oldLeaderPolicy="Remove"),
}


def once_in(kind: str, state: str, what: Callable[[World], object], *, dies: bool) -> Order:
    """Do something when a state is stored for the first time, before the pass goes on.

    The operator dies at that moment, or goes on with what it has decided before.
    """

    def watch(world: World) -> None:
        met: list[Key] = []

        def look(key: Key, manifest: Manifest) -> None:
            history = (manifest.get("status") or {}).get("history") or ()
            if key.kind == kind and not met and any(line["state"] == state for line in history):
                met.append(key)
                if dies:
                    world.crash()
                world.loop.call_soon(what, world)

        world.server.listeners.append(look)
        world.orders.append(Order(lambda _: bool(met), at_once))

    return Order(at_once, watch)


def world_with(kind: str, state: str, what: Callable[[World], object], *, dies: bool) -> World:
    """Return a world in which something happens in the middle of a move."""
    orders = (once_in(kind, state, what, dies=dies), Order(at_once, ASKED[kind]))
    return Scenario("deleted in the middle", START, orders, ends=ALL_ENDS).world()


def itself(world: World) -> None:
    """Delete the task and the leader transfer that a person has applied."""
    for kind in (TaskKind, MigrationKind):
        delete_one(world, kind)


DELETIONS: dict[str, Callable[[World], None]] = {
    "itself": itself,
    "application": lambda world: delete_one(world, SparkApplication),
    "pod of leader": delete_pod_of_leader,
    "routes": lambda world: delete_one(world, ConfigMap),
    "zone, which is made again": replace_zone,
}


@pytest.mark.proves("OP-02", "NW-06")
@pytest.mark.parametrize(
    ("asked", "what", "dies"),
    some_now([(*case, dies) for case, dies in alternately(itertools.product(STATES, DELETIONS))]),
)
def test_a_zone_is_whole_after_a_deletion(asked: tuple[str, str], what: str, *, dies: bool) -> None:
    """A deletion at an unlucky moment would leave a zone without records, or half moved."""
    kind, state = asked
    with world_with(kind, state, DELETIONS[what], dies=dies) as world:
        world.run(RUN_SECONDS_MAX, unfinished_or_lost)


@pytest.mark.proves("OP-02")
@pytest.mark.parametrize(("asked", "dies"), alternately(STATES))
def test_of_a_zone_that_is_gone_nothing_is_left(asked: tuple[str, str], *, dies: bool) -> None:
    """A pass under way would make pods, or a task's operator copies, for a zone that is gone."""
    kind, state = asked
    with world_with(kind, state, World.delete_zone, dies=dies) as world:
        world.run(GONE_SECONDS_MAX, remains)


def test_no_pod_of_a_zone_that_is_gone_waits_to_be_relieved() -> None:
    """Each would wait for an operator that asks no more: a deletion would take half a minute.

    Asserted: all that the zone owned is gone within seconds, and no pod was ended while needed.
    """
    orders = (Order(later(3.0), World.delete_zone),)
    with Scenario("deleted at rest", START, orders).world() as world:
        world.run(SOON_GONE_SECONDS_MAX, remains)
        assert world.kubelet.missed == []


@pytest.mark.proves("OP-02", "TR-03")
@pytest.mark.parametrize("seconds", [3.0, 20.0])
def test_what_an_earlier_zone_of_the_name_had_is_left_to_the_collector(seconds: float) -> None:
    """Asserted: a zone that is made again is whole, however late the objects before it are gone.

    It would begin with the routes of the earlier zone, of rows that its own pods never had, and
    lose them with all else that is collected.
    """

    def replaced(world: World) -> None:
        world.server.collect_late_seconds = seconds
        replace_zone(world)

    def taken_over(world: World) -> list[str]:
        own = world.checks.routes
        return unfinished_or_lost(world) if own else ["the zone has stored no routes of its own"]

    orders = (Order(later(3.0), replaced),)
    with Scenario("made again before it is collected", START, orders).world() as world:
        world.run(GONE_SECONDS_MAX, taken_over)


@pytest.mark.proves("OP-02", "TR-03")
def test_no_copy_goes_on_for_a_zone_that_is_gone() -> None:
    """Asserted: the SparkApplication of a task goes within a pass of the task, and not later.

    Its driver would hold executors until it gives up on data nodes that nobody has any more. Here
    it never gives up.
    """

    def copies(world: World) -> bool:
        return bool(world.spark.running)

    orders = (Order(at_once, move), Order(copies, World.delete_zone))
    with Scenario("deleted while rows are copied", START, orders).world() as world:
        world.spark.patience_steps = sys.maxsize
        world.run(SOON_GONE_SECONDS_MAX + MISSING_ZONE_SECONDS, remains)


@pytest.mark.proves("OP-02", "NW-06")
def test_routes_that_are_deleted_at_rest_are_made_again() -> None:
    """Asserted: a zone without any change to be made finds out that its routes are gone.

    Clients that begin then would know no leader until the next change of one. What an operator
    reads again in its first seconds does not count here: it has led for longer.
    """
    orders = (Order(later(LED_SECONDS), DELETIONS["routes"]),)
    with Scenario("routes deleted at rest", START, orders).world() as world:
        world.run(LED_SECONDS + GONE_SECONDS_MAX, unfinished_or_lost)
        assert world.counts["ConfigMap deleted"] == 1


@pytest.mark.proves("OP-02", "NW-06", "B-14")
@pytest.mark.parametrize("seed", seeds())
def test_deletions_in_storms(seed: int) -> None:
    """Some order of deletions and faults would lose a row, or hang for ever."""
    storm(seed)
