"""What the crash matrix has found, each as small as it can be made."""

from __future__ import annotations

from itertools import combinations

import pytest

from rezone.domain.routing import routes
from rezone.domain.routing.route_shards import decode_record, encode_record
from rezone.kube.api.kinds import ConfigMap
from rezone.resources.task import TaskState
from rezone.wire.messages import FIRST_PARTITION_EPOCH, IsrProposal, LeaderAndIsr, NodeId, Role
from simulation.cluster.apiserver import Key
from simulation.cluster.kubelet import NAMESPACE
from simulation.cluster.process import SETTINGS
from simulation.cluster.world import ZONE, Order, World
from simulation.scenarios.pod_scenarios import delete_pod_of_leader
from simulation.scenarios.scenarios import (
    MIGRATION,
    TASK,
    Start,
    at_once,
    at_rest,
    cancel_all,
    in_state,
    later,
    migrate,
    move,
)

SECONDS_MAX = 300.0
THREE = Start(replicas=3)


def world_of(start: Start) -> World:
    """Return a world that begins with a zone at rest."""
    return World(1, at_rest(start))


def write_route(world: World, record: LeaderAndIsr) -> None:
    """Write partition 0's record as an operator does whose write was under way for long."""
    found = world.server.find(ConfigMap, NAMESPACE, f"{ZONE}-routes-0")
    assert found is not None
    data = {**found["data"], "0": encode_record(record)}
    world.server.replace(ConfigMap, {**found, "data": data})


def stored(world: World) -> LeaderAndIsr:
    """Return partition 0's record."""
    found = world.server.find(ConfigMap, NAMESPACE, f"{ZONE}-routes-0")
    assert found is not None
    return decode_record(found["data"]["0"])


@pytest.mark.proves("B-06")
def test_a_new_leader_that_loses_its_disk_does_not_lead_empty() -> None:
    """A record that had never changed let a leader without a disk begin again, at offset 0."""
    with world_of(THREE) as world:
        assert world.checks.routes[0].partition_epoch > FIRST_PARTITION_EPOCH
        leader = world.checks.routes[0].leader
        world.orders = [
            Order(later(2.0), lambda w: w.kubelet.wipe(leader)),
            Order(later(2.0), lambda _: None),
        ]
        world.run(SECONDS_MAX)
        assert world.checks.rows(0) > 0
        assert leader in world.checks.routes[0].isr


@pytest.mark.proves("B-06", "B-07")
def test_a_leader_that_stops_acknowledges_nothing_alone() -> None:
    """A leader cut off from its follower while its pod went away took rows along with its disk."""

    def stop(world: World) -> None:
        delete_pod_of_leader(world)
        world.crash()

    def cut(world: World) -> None:
        world.network.cut.add(frozenset(world.checks.routes[0].replicas))
        world.loop.call_later(100.0, world.network.cut.clear)

    with world_of(Start(replicas=2)) as world:
        world.orders = [Order(later(2.0), stop), Order(later(0.2), cut)]
        world.run(SECONDS_MAX)
        assert world.checks.rows(0) > 0


@pytest.mark.proves("ZR-14", "OP-02")
def test_a_late_write_of_the_operator_before_is_seen() -> None:
    """The next operator believed the table as it had read it, and nodes refused it for ever."""

    def late(world: World) -> None:
        answer = routes.confirm(stored(world), world.epoch - 1)
        if not isinstance(answer, LeaderAndIsr):
            answer = routes.confirm(stored(world))
        assert isinstance(answer, LeaderAndIsr)
        write_route(world, answer)

    with world_of(THREE) as world:
        world.orders = [Order(later(1.0), late)]
        world.run(SECONDS_MAX)


@pytest.mark.proves("B-06", "B-15", "ZR-20")
def test_a_cancel_ends_although_a_replica_of_the_old_assignment_lost_its_disk() -> None:
    """A cancelling task copies nothing and waited for ever for what nobody copied."""

    def lose(world: World) -> None:
        record = world.checks.routes[0]
        world.kubelet.wipe(next(n for n in record.isr if n != record.leader))

    with world_of(Start(replicas=3, nodes=4, spark=True)) as world:
        world.orders = [
            Order(at_once, move),
            Order(in_state(TASK, TaskState.TRANSFERRING), lose),
            Order(lambda w: len(w.checks.routes[0].isr) < 3, cancel_all(TASK)),
        ]
        world.run(SECONDS_MAX)
        assert world.states(TASK) == {"t": "Cancelled"}


@pytest.mark.proves("B-01", "B-06")
def test_replicas_are_rebuilt_while_a_plan_waits_for_approval() -> None:
    """A zone stayed short of a replica for as long as nobody approved a plan that was pending."""

    def lose(world: World) -> None:
        record = world.checks.routes[0]
        world.kubelet.wipe(next(n for n in record.isr if n != record.leader))

    def rebuilt(world: World) -> list[str]:
        record = world.checks.routes[0]
        return [] if len(record.isr) == 3 else [f"{record.isr} in sync"]

    with world_of(Start(partitions=2, replicas=3)) as world:
        manual = {"approval": "Manual"}
        world.orders = [
            Order(at_once, lambda w: w.patch_zone(rebalance=manual, dataNodes=_nodes(4))),
            Order(lambda w: TaskState.PLANNED in w.states(TASK).values(), lose),
            Order(lambda w: len(w.checks.routes[0].isr) < 3, lambda _: None),
        ]
        world.run(SECONDS_MAX, rebuilt)
        assert set(world.states(TASK).values()) == {TaskState.PLANNED}


@pytest.mark.proves("B-06")
def test_a_deleted_migration_leaves_no_authorization_behind() -> None:
    """Its partition could neither move nor fail over any more, for ever."""

    def delete(world: World) -> None:
        world.server.remove(Key("RegionMigration", NAMESPACE, "m"))

    with world_of(THREE) as world:
        # Without the old leader's answer the takeover cannot have happened meanwhile.
        leader = world.checks.routes[0].leader
        world.orders = [
            Order(at_once, migrate("replica")),
            Order(
                lambda w: w.checks.routes[0].next_leader is not None,
                lambda w: w.network.isolated.add(leader),
            ),
            Order(at_once, delete),
            Order(later(1.0), lambda w: w.network.isolated.clear()),
        ]
        world.run(SECONDS_MAX)
        assert world.checks.routes[0].next_leader is None


def _nodes(count: int) -> dict[str, object]:
    return {"count": count, "autoAdjust": {"scaleUpSeconds": 0, "scaleDownSeconds": 0}}


def test_a_proposal_does_not_outlive_its_leader() -> None:
    """A restarted leader acknowledges without the member that an old proposal then brings in."""
    with world_of(THREE) as world:
        record = world.checks.routes[0]
        leader, other = record.leader, next(n for n in record.isr if n != record.leader)
        pair = frozenset((leader, other))
        seen: list[LeaderAndIsr] = []

        def keep_and_kill(world: World) -> None:
            proposal = _proposal(world, leader)
            assert proposal is not None
            answer = routes.adjust_isr(stored(world), proposal, world.epoch, minimum=1)
            assert isinstance(answer, LeaderAndIsr)
            seen.append(answer)
            world.network.cut.add(pair)
            world.kubelet.kill(leader, 0.2)

        def heal_unheard(world: World) -> None:
            world.network.cut.clear()
            world.network.isolated.add(leader)

        def accept(world: World) -> None:
            write_route(world, seen[0])
            world.network.cut.clear()
            world.network.isolated.clear()

        world.orders = [
            Order(at_once, lambda w: w.network.cut.add(pair)),
            Order(lambda w: other not in w.checks.routes[0].isr, heal_unheard),
            Order(lambda w: _proposes(w, leader, other), keep_and_kill),
            Order(later(1.5), accept),
        ]
        world.run(SECONDS_MAX)


@pytest.mark.proves("B-06")
@pytest.mark.parametrize(
    ("start", "least", "most"),
    [
        # Promises to it are over 2 s after its followers have heard it, up to 0.7 s before.
        (THREE, 1.3, 3.0),
        (Start(replicas=2), SETTINGS.leader_lease_seconds, SETTINGS.leader_lease_seconds + 3.0),
    ],
)
def test_a_failover_waits_for_the_lease_and_for_nothing_else(
    start: Start, least: float, most: float
) -> None:
    """Nothing woke the operator when the lease was over, until it looked around by itself."""
    with world_of(start) as world:
        leader = world.checks.routes[0].leader
        times: list[float] = []

        def note(world: World) -> None:
            times.append(world.loop.time())

        def kill(world: World) -> None:
            world.kubelet.kill(leader, 30.0)
            note(world)

        world.orders = [
            Order(later(5.0), kill),
            Order(lambda w: w.checks.routes[0].leader != leader, note),
        ]
        world.run(SECONDS_MAX)
        assert least <= times[1] - times[0] <= most


def _proposal(world: World, leader: NodeId) -> IsrProposal | None:
    node = world.network.nodes.get(leader)
    state = node.find(0).leadership if node is not None else None
    return state.proposal if state is not None else None


def _proposes(world: World, leader: NodeId, member: NodeId) -> bool:
    proposal = _proposal(world, leader)
    return proposal is not None and member in proposal.new_isr


def test_a_follower_keeps_what_it_shares_with_a_leader_that_missed_a_branch() -> None:
    """An in-sync replica dropped all its rows, acknowledged ones too, for a few that nobody knew.

    The old leader had restarted, and begun a branch of history of which the next leader had heard
    nothing. Until it has read everything again the follower is in sync by name alone.
    """
    with world_of(THREE) as world:
        record = world.checks.routes[0]
        leader = record.leader
        target, follower = (n for n in record.isr if n != leader)

        def branch(world: World) -> None:
            world.network.cut.add(frozenset((leader, target)))
            world.kubelet.kill(leader, 0.1)

        def started_over(world: World) -> bool:
            held = world.checks.held(0, follower)
            assert held is not None
            assert not held.started_over, "it has dropped all its rows"
            return world.checks.routes[0].leader == target

        world.orders = [
            Order(at_once, branch),
            Order(later(1.0), lambda w: w.kubelet.kill(leader, 20.0)),
            Order(started_over, lambda w: w.network.cut.clear()),
            Order(later(2.0), started_over),
        ]
        world.run(SECONDS_MAX)
        assert world.network.nodes[target].find(0).role is Role.LEADER


@pytest.mark.proves("B-06")
def test_who_left_below_the_minimum_leads_when_the_last_member_lost_its_disk() -> None:
    """A leader alone in sync lost its disk: nobody took over, though others had all rows."""
    with world_of(THREE) as world:
        record = world.checks.routes[0]
        leader, others = record.leader, [n for n in record.isr if n != record.leader]

        def lose(world: World) -> None:
            assert set(world.checks.routes[0].eligible) <= set(others)
            world.kubelet.wipe(leader)
            world.network.cut.clear()

        # All of them from each other: else two that hear each other would lead before that.
        links = {frozenset(pair) for pair in combinations(record.isr, 2)}
        world.orders = [
            Order(later(2.0), lambda w: w.network.cut.update(links)),
            Order(lambda w: w.checks.routes[0].isr == (leader,), lose),
            Order(lambda w: w.checks.routes[0].leader in others, lambda _: None),
        ]
        world.run(SECONDS_MAX)
        assert world.checks.rows(0) > 0
        assert leader in world.checks.routes[0].isr


@pytest.mark.proves("RM-08", "ZR-06")
def test_a_migration_that_goes_back_leaves_what_a_rebalance_wants() -> None:
    """Each wrote the route in turn, a hundred times in a second, and each copy began again."""

    def hold_copy(world: World) -> None:
        record = world.checks.routes[0]
        world.network.cut.add(frozenset((record.leader, record.replicas[-1])))

    def move_there(world: World) -> None:
        record = world.checks.routes[0]
        replicas = [record.replicas[-1], *record.replicas[1:-1]]
        world.apply_task("t", type="Moves", moves=[{"partition": 0, "replicas": replicas}])

    with world_of(Start(replicas=2, nodes=4)) as world:
        world.orders = [
            Order(at_once, migrate("new")),
            Order(lambda w: len(w.checks.routes[0].replicas) > 2, hold_copy),
            Order(at_once, move_there),
            Order(in_state(TASK, TaskState.TRANSFERRING), cancel_all(MIGRATION)),
            Order(later(5.0), lambda w: w.network.cut.clear()),
        ]
        world.run(SECONDS_MAX)
        assert world.states(TASK) == {"t": "Succeeded"}
        assert world.states(MIGRATION)["m"] == "RolledBack"
        assert world.checks.routes[0].partition_epoch < 20
