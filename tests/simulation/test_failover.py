"""Zones that keep hot standbys: who leads after a failure, and who stands by then."""

from __future__ import annotations

import pytest

from rezone.kube.api.kinds import Pod
from rezone.wire.messages import NodeId
from simulation.cluster.kubelet import NAMESPACE
from simulation.cluster.process import SETTINGS
from simulation.cluster.world import ZONE, Order, World
from simulation.scenarios.scenarios import Start, at_once, at_rest, later

SECONDS_MAX = 300.0
AWAY_SECONDS = 8.0


@pytest.mark.proves("B-06")
@pytest.mark.parametrize("failures", [1, 2, 3])
def test_the_standby_leads_and_another_one_stands_by(failures: int) -> None:
    """A cold replica would lead, or the failure after the first one would find no standby."""
    leaders: list[tuple[NodeId, ...]] = []

    def fail(world: World) -> None:
        record = world.checks.routes[0]
        leaders.append(record.iss)
        epoch = record.leader_epoch
        world.kubelet.kill(record.leader, AWAY_SECONDS)
        world.disturbed()

        def look(world: World) -> None:
            now = world.checks.routes[0]
            if now.leader_epoch > epoch and len(leaders[-1]) == 1:
                leaders[-1] += (now.leader,)

        world.each_step = look

    with World(1, at_rest(Start(replicas=3, nodes=4, standbys=1))) as world:
        for _ in range(failures):
            world.orders = [Order(at_once, fail), Order(later(20.0), lambda _: None)]
            world.run(SECONDS_MAX)
        assert len(leaders) == failures
        for standby, leader in leaders:
            assert leader == standby, "another replica than the standby leads"


@pytest.mark.proves("B-06")
def test_leaders_are_replaced_while_pods_are_refused() -> None:
    """A quota or a bad pod template would keep the zone from healing, and nobody would be told."""

    def break_off(world: World) -> None:
        world.server.refused.add("Pod")
        leader = world.checks.routes[0].leader
        world.server.delete(Pod, NAMESPACE, f"{ZONE}-{leader}")
        world.kubelet.kill(leader, 10 * SECONDS_MAX)
        world.disturbed()

    def replaced(world: World) -> list[str]:
        record = world.checks.routes[0]
        status = world.zone().status
        told = status is not None and any(c.reason == "FailedCreate" for c in status.conditions)
        return [] if record.leader != first and told else [f"{record}, told: {told}"]

    with World(1, at_rest(Start(replicas=3, nodes=3))) as world:
        first = world.checks.routes[0].leader
        world.orders = [Order(at_once, break_off)]
        world.run(SECONDS_MAX, replaced)
        world.server.refused.clear()
        world.orders = [Order(at_once, lambda world: world.kubelet.restart(first))]
        world.run(SECONDS_MAX)
        status = world.zone().status
        assert status is not None
        assert not any(c.reason == "FailedCreate" for c in status.conditions)


@pytest.mark.proves("B-06")
def test_replicas_of_a_node_that_stays_away_are_rebuilt_after_the_grace_time() -> None:
    """A restarted node would cost a copy of all it has, or one that is gone would be missed."""
    with World(1, at_rest(Start(replicas=3, nodes=4, standbys=1))) as world:
        first = world.checks.routes[0]
        gone: list[float] = []
        asked: list[float] = []

        def fail(world: World) -> None:
            gone.append(world.loop.time())
            world.kubelet.kill(first.leader, 10 * SECONDS_MAX)
            world.disturbed()

        def look(world: World) -> None:
            status = world.zone().status
            if not asked and status is not None and status.assignments.pending is not None:
                asked.append(world.loop.time())

        def rebuilt(world: World) -> list[str]:
            record = world.checks.routes[0]
            whole = len(record.isr) == 3 and first.leader not in record.replicas
            return [] if whole and len(record.iss) == 1 else [str(record)]

        world.each_step = look
        world.orders = [Order(at_once, fail)]
        world.run(SECONDS_MAX, rebuilt)
        waited = asked[0] - gone[0]
        assert SETTINGS.lost_after_seconds <= waited < SETTINGS.lost_after_seconds + 30.0
