"""A node in maintenance leads nothing, is not replaced, and catches up by its log."""

from __future__ import annotations

import pytest

from rezone.resources.zone_status import MaintenanceState
from simulation.cluster.world import Order, World
from simulation.scenarios.maintained import (
    START,
    begin,
    copies,
    data_node,
    end,
    evict,
    patch,
    spared,
    storm,
)
from simulation.scenarios.pod_scenarios import Claimed
from simulation.scenarios.runs import seeds
from simulation.scenarios.scenarios import TASK, at_once, at_rest, cordon_leader, later

SECONDS_MAX = 600.0
NODE = 0
AWAY_SECONDS = 90.0
"""Longer than the simulated operator waits before it takes a silent node for lost."""


@pytest.mark.proves("B-07")
@pytest.mark.parametrize("crash", [0, 20, pytest.param(100, marks=pytest.mark.long)])
def test_a_node_in_maintenance_comes_back_without_a_copy(crash: int) -> None:
    """A drained node that is back in time catches up by its log, while writes go on.

    Its data would be copied away and back, or its pod be made on another machine without its rows.
    """
    seen: list[tuple[int, int]] = []

    def note(world: World) -> None:
        found = data_node(world, NODE)
        assert found.state == "Active", found
        assert NODE not in {r.leader for r in world.checks.routes.values()}
        seen.append((world.checks.rows(0), len([*world.server.all_of("Pod")])))

    with World(0, at_rest(START)) as world:
        world.crash_points = frozenset({crash} - {0})
        world.orders = [
            Order(at_once, begin(NODE, "1h")),
            Order(spared(NODE), evict(NODE)),
            Order(later(5.0), note),
            Order(later(AWAY_SECONDS), note),
            Order(at_once, end(NODE)),
        ]
        world.run(SECONDS_MAX)
        (rows, pods), (later_rows, later_pods) = seen
        assert later_rows > rows, "no write was acknowledged while it was away"
        assert (pods, later_pods) == (2, 2)
        assert copies(world) == []
        assert world.states(TASK) == {}
        assert data_node(world, NODE).maintenance is None
        assert all(NODE in r.isr for r in world.checks.routes.values())


@pytest.mark.long
@pytest.mark.proves("B-06", "B-07")
def test_a_node_that_is_not_back_in_time_is_replaced() -> None:
    """After the stated time the usual rules hold: a cordoned node is drained.

    A forgotten maintenance would leave the zone one replica short for ever.
    """
    with World(0, at_rest(START)) as world:
        world.orders = [
            Order(at_once, begin(NODE, "2m")),
            Order(spared(NODE), lambda w: w.kubelet.kill(NODE, 10_000.0)),
            Order(later(110.0), lambda w: copies(w) == [] or pytest.fail("copied too early")),
            Order(lambda w: bool(w.states(TASK)), lambda _: None),
        ]
        world.run(SECONDS_MAX)
        status = world.zone().status
        assert status is not None
        assert NODE not in {n.id for n in status.data_nodes}
        assert all(NODE not in r.replicas for r in world.checks.routes.values())
        assert copies(world) != []


@pytest.mark.proves("B-07")
def test_a_node_that_cannot_be_spared_waits() -> None:
    """While another replica is away a request for maintenance waits, and begins when it is back.

    Both together would leave a partition with fewer in sync than the minimum.
    """
    told: list[MaintenanceState] = []

    def note(world: World) -> None:
        asked = data_node(world, NODE).maintenance
        assert asked is not None
        told.append(asked.state)

    with World(0, at_rest(START)) as world:
        world.orders = [
            Order(at_once, lambda w: w.kubelet.kill(1, 20.0)),
            Order(later(1.0), lambda w: patch(w, NODE, annotation="1h", cordoned=False)),
            Order(later(5.0), note),
            Order(spared(NODE), note),
            Order(later(1.0), end(NODE)),
        ]
        world.run(SECONDS_MAX)
        assert told == [MaintenanceState.WAITING, MaintenanceState.ACTIVE]


def test_a_plain_cordon_still_drains() -> None:
    """Without the annotation a cordon moves everything away, as before."""
    with World(0, at_rest(Claimed(partitions=2))) as world:
        world.orders = [Order(at_once, cordon_leader)]
        world.run(SECONDS_MAX)
        assert set(world.states(TASK).values()) == {"Succeeded"}


@pytest.mark.proves("B-06")
def test_a_paused_zone_keeps_its_leaders_and_replicas() -> None:
    """While spec.paused stands a lost leader is not replaced; afterwards it is, and so is its node.

    Who works on a network by hand would find every leader moved and every replica copied.
    """
    before: list[object] = []

    def unchanged(world: World) -> None:
        record = world.checks.routes[0]
        assert (record.leader, record.leader_epoch, record.replicas) == before[0]
        assert copies(world) == []
        assert world.states(TASK) == {}
        told = [c.type for c in world.zone().status.conditions]  # type: ignore[union-attr]
        assert "Paused" in told

    def lose(world: World) -> None:
        record = world.checks.routes[0]
        before.append((record.leader, record.leader_epoch, record.replicas))
        world.kubelet.kill(record.leader, 10_000.0)

    with World(0, at_rest(START)) as world:
        world.orders = [
            Order(at_once, lambda w: w.patch_zone(paused=True)),
            Order(later(2.0), lose),
            Order(later(AWAY_SECONDS), unchanged),
            Order(at_once, lambda w: w.patch_zone(paused=False)),
            Order(later(5.0), lambda _: None),
        ]
        world.run(SECONDS_MAX)
        assert world.checks.routes[0].leader != before[0][0]  # type: ignore[index]
        assert copies(world) != []


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.proves("B-07")
@pytest.mark.parametrize("seed", seeds()[::20])
def test_faults_do_not_break_a_maintenance(seed: int) -> None:
    """A node is back without a copy, or replaced after its time, whatever else breaks.

    Some death of the operator would have the node drained, or forget that it is in maintenance.
    """
    storm(seed)
