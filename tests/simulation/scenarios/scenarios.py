"""What is asked of a zone: each scenario begins with one at rest and says what becomes of it.

Zones are small, so that every crash point can be tried; what a scenario expects at its end is
said beside it, and `checks.unfinished` holds for all of them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from rezone.domain.assignment import assignments
from rezone.kube.api.kinds import Node
from rezone.resources.migration import MigrationState as M
from rezone.resources.task import TaskState as T
from rezone.wire.messages import NodeId
from simulation.cluster.world import Image, Order, World

TASK = "RebalanceTask"
MIGRATION = "RegionMigration"
RESTS_SECONDS_MAX = 120.0


@dataclasses.dataclass(frozen=True)
class Start:
    """The zone a scenario begins with."""

    partitions: int = 1
    replicas: int = 2
    nodes: int = 3
    spark: bool = False
    standbys: int = 0

    def spec(self) -> dict[str, Any]:
        """Return the zone's spec."""
        return {
            "partitions": self.partitions,
            "replicas": self.replicas,
            "minInSyncReplicas": max(1, self.replicas - 1),
            "hotStandbys": self.standbys,
            "dataNodes": data_nodes(self.nodes),
            "transfer": {"sparkThresholdBytes": 0 if self.spark else 1 << 40},
        }


def data_nodes(count: int) -> dict[str, Any]:
    """Return the part of a spec that says how many data nodes there shall be."""
    return {"count": count, "autoAdjust": {"scaleUpSeconds": 0, "scaleDownSeconds": 0}}


@functools.cache
def at_rest(start: Start) -> Image:
    """Return a zone that has been made and written to, once for all runs."""
    with World() as world:
        world.add_kube_nodes(start.nodes + 2)
        world.apply_zone(**start.spec())
        world.run(RESTS_SECONDS_MAX)
        return world.image()


@dataclasses.dataclass(frozen=True)
class Scenario:
    """One thing that is asked; `ends` are the states its tasks or migrations may end in."""

    name: str
    start: Start
    orders: tuple[Order, ...]
    ends: frozenset[str] = frozenset({"Succeeded"})
    expects: Callable[[World], list[str]] = lambda _: []
    made: bool = True

    def world(self, seed: int = 0) -> World:
        """Return a world in which this is asked."""
        world = World(seed, at_rest(self.start) if self.made else None)
        world.orders = list(self.orders)
        return world

    def check(self, world: World, more_ends: frozenset[str] = frozenset()) -> None:
        """Assert what this scenario expects at its end; faults may allow other ends."""
        for kind in (TASK, MIGRATION):
            for name, state in world.states(kind).items():
                own = kind == TASK or not _has_owner(world, name)
                assert not own or state in self.ends | more_ends, f"{name} is {state}"
        if not more_ends:
            wrong = self.expects(world)
            assert wrong == [], wrong


def _has_owner(world: World, name: str) -> bool:
    found = world.server.find(MIGRATION, "default", name) or {"metadata": {}}
    return bool(found["metadata"].get("ownerReferences"))


# --- when, and what ------------------------------------------------------------------------------


def at_once(_: World) -> bool:
    """Hold from the beginning."""
    return True


def in_state(kind: str, state: str) -> Callable[[World], bool]:
    """Hold when a task or migration has been in the state, or any end."""

    def when(world: World) -> bool:
        for each in world.server.all_of(kind):
            status = each.get("status") or {}
            if any(h["state"] == state for h in status.get("history") or ()):
                return True
            if status.get("state") in ("Succeeded", "Failed", "Cancelled", "RolledBack"):
                return True
        return False

    return when


def later(seconds: float) -> Callable[[World], bool]:
    """Hold some time after the order before it."""
    times: dict[int, float] = {}

    def when(world: World) -> bool:
        start = times.setdefault(id(world), world.loop.time())
        return world.loop.time() - start >= seconds

    return when


def scale(by: int, when: Callable[[World], bool] = at_once) -> Order:
    """Change the number of data nodes."""

    def what(world: World) -> None:
        count = world.zone().spec.data_nodes.count or 0
        world.patch_zone(dataNodes=data_nodes(count + by))

    return Order(when, what)


def cancel_all(kind: str) -> Callable[[World], None]:
    """Cancel what is there of a kind."""

    def what(world: World) -> None:
        for name in world.states(kind):
            world.cancel(kind, name)

    return what


def outside(world: World, partition: int = 0) -> NodeId:
    """Return the first data node without a copy of a partition, up or down.

    Where a storm's moves have left a copy on every node, the first one that does not lead.
    """
    status = world.zone().status
    assert status is not None
    record = world.checks.routes[partition]
    followers = [n.id for n in status.data_nodes if n.id != record.leader]
    return min((n for n in followers if n not in record.replicas), default=min(followers))


def move(world: World, partition: int = 0, **more: Any) -> None:
    """Apply a task that moves a partition's leader to a node without a copy."""
    record = world.checks.routes[partition]
    new = outside(world, partition)
    kept = [n for n in record.replicas if n not in (record.leader, new)]
    moves = [{"partition": partition, "replicas": [new, *kept]}]
    world.apply_task("t", type="Moves", moves=moves, **more)


def rotate(world: World) -> None:
    """Apply a task that moves every partition's leader to its next replica, without a copy."""
    moves = [
        {"partition": partition, "replicas": [*record.replicas[1:], record.replicas[0]]}
        for partition, record in world.checks.routes.items()
    ]
    world.apply_task("t", type="Moves", moves=moves)


def migrate(where: str, **more: Any) -> Callable[[World], None]:
    """Apply a migration of partition 0: to a "replica", to a "new" node, or to "any"."""

    def what(world: World) -> None:
        record = world.checks.routes[0]
        inside = [n for n in record.replicas if n != record.leader]
        target: dict[str, NodeId] = {}
        if where != "any":
            target = {"target": min(inside) if where == "replica" else outside(world)}
        world.apply_migration("m", partition=0, **target, **more)

    return what


def cordon_leader(world: World) -> None:
    """Cordon the Kubernetes node that partition 0's leader is on."""
    leader = world.checks.routes[0].leader
    status = world.zone().status
    assert status is not None
    name = next(n.node_name for n in status.data_nodes if n.id == leader)
    world.server.merge(Node, "", name, {"spec": {"unschedulable": True}})


def weigh(world: World) -> None:
    """Say that the Kubernetes node of data node 0 is worth three others."""
    status = world.zone().status
    assert status is not None
    name = status.data_nodes[0].node_name
    labels = {"metadata": {"labels": {"rezone.dev/weight": "3"}}}
    world.server.merge(Node, "", name, labels)


def kill_leader(world: World) -> None:
    """Kill partition 0's leader for longer than its lease."""
    world.kubelet.kill(world.checks.routes[0].leader, 8.0)
    world.disturbed()


def kill_second(world: World) -> None:
    """Kill the node that partition 0 is being handed over to for longer than a lease."""
    world.kubelet.kill(world.checks.routes[0].replicas[1], 8.0)
    world.disturbed()


# --- what is expected ----------------------------------------------------------------------------


def stable_has(replicas: int, nodes: int) -> Callable[[World], list[str]]:
    """Expect that the stable assignment has so many replicas on so many nodes."""

    def expects(world: World) -> list[str]:
        status = world.zone().status
        assert status is not None
        assert status.assignments.stable is not None
        stable = assignments.parse(status.assignments.stable.replicas)
        used = {n for p in stable for n in p}
        found = [f"{p} has not {replicas} replicas" for p in stable if len(p) != replicas]
        return found if len(used) == nodes else [*found, f"{used} are used, not {nodes} nodes"]

    return expects


def node_holds_all(world: World) -> list[str]:
    """Expect a replica of every partition on data node 0."""
    missing = [p for p, r in world.checks.routes.items() if 0 not in r.replicas]
    return [f"data node 0 does not hold {missing}"] if missing else []


def leaders_as_planned(world: World) -> list[str]:
    """Expect that the preferred leaders lead."""
    status = world.zone().status
    assert status is not None
    assert status.assignments.stable is not None
    stable = assignments.parse(status.assignments.stable.replicas)
    return [
        f"p{p} is led by {world.checks.routes[p].leader}, not {nodes[0]}"
        for p, nodes in enumerate(stable)
        if world.checks.routes[p].leader != nodes[0]
    ]


def stable_follows(world: World) -> list[str]:
    """Expect that the assignment has taken over what a person has done to partition 0."""
    status = world.zone().status
    assert status is not None
    assert status.assignments.stable is not None
    stable = assignments.parse(status.assignments.stable.replicas)[0]
    record = world.checks.routes[0]
    if stable[0] == record.leader and set(stable) <= set(record.replicas):
        return []
    return [f"stable is {stable}, but node {record.leader} leads {record.replicas}"]


# --- the scenarios -------------------------------------------------------------------------------

SMALL = Start()
PAIR = Start(partitions=2)
BULK = Start(spark=True)

CREATE = Scenario(
    "create",
    PAIR,
    (
        Order(at_once, lambda w: w.add_kube_nodes(4)),
        Order(at_once, lambda w: w.apply_zone(**PAIR.spec())),
    ),
    made=False,
    expects=stable_has(2, 3),
)
JOIN = Scenario("join", PAIR, (scale(1),), expects=stable_has(2, 4))
JOIN_SPARK = Scenario(
    "join by Spark", Start(partitions=2, spark=True), (scale(1),), expects=stable_has(2, 4)
)
LEAVE = Scenario("leave", Start(partitions=2, nodes=4), (scale(-1),), expects=stable_has(2, 3))
DRAIN = Scenario("drain", SMALL, (Order(at_once, cordon_leader),), expects=stable_has(2, 2))
REPLICAS_UP = Scenario(
    "replicas up",
    SMALL,
    (Order(at_once, lambda w: w.patch_zone(replicas=3)),),
    expects=stable_has(3, 3),
)
REPLICAS_DOWN = Scenario(
    "replicas down",
    Start(replicas=3),
    (Order(at_once, lambda w: w.patch_zone(replicas=2)),),
    expects=stable_has(2, 2),
)
WEIGH = Scenario(
    "another weight",
    Start(partitions=4),
    (Order(at_once, weigh),),
    expects=node_holds_all,
)
MOVE = Scenario("move", SMALL, (Order(at_once, move),), expects=leaders_as_planned)
MOVE_SPARK = Scenario("move by Spark", BULK, (Order(at_once, move),), expects=leaders_as_planned)
ROTATE = Scenario(
    "rotate leaders",
    Start(partitions=3),
    (Order(at_once, rotate),),
    expects=leaders_as_planned,
)
ROTATE_SILENT = Scenario(
    "rotate leaders, one to a node that falls silent",
    Start(partitions=3, replicas=3, nodes=4),
    (Order(at_once, rotate), Order(in_state(TASK, T.SWITCHING), kill_second)),
    ends=frozenset({"Succeeded", "Cancelled"}),
)
TWO_TRIGGERS = Scenario(
    "two triggers",
    Start(partitions=3),
    (scale(1), scale(1, in_state(TASK, T.TRANSFERRING))),
    expects=stable_has(2, 5),
)
PAUSE = Scenario(
    "pause",
    BULK,
    (
        Order(at_once, move),
        Order(in_state(TASK, T.TRANSFERRING), lambda w: w.patch_zone(rebalance={"paused": True})),
        Order(later(5.0), lambda w: w.patch_zone(rebalance={"paused": False})),
    ),
    expects=leaders_as_planned,
)
FAILOVER = Scenario(
    "failover during a move",
    Start(replicas=3, nodes=4),
    (Order(at_once, move), Order(in_state(TASK, T.TRANSFERRING), kill_leader)),
    ends=frozenset({"Succeeded", "Cancelled"}),
)

STANDBYS = Scenario(
    "failover to a standby",
    Start(replicas=3, nodes=4, standbys=1),
    (Order(at_once, kill_leader),),
)
STANDBYS_CHANGE = Scenario(
    "more standbys, fewer standbys, and a move",
    Start(partitions=2, replicas=3, nodes=4, standbys=1),
    (
        Order(at_once, lambda w: w.patch_zone(hotStandbys=2)),
        Order(later(2.0), move),
        Order(in_state(TASK, T.TRANSFERRING), lambda w: w.patch_zone(hotStandbys=1)),
    ),
)

REBALANCES = (
    CREATE,
    JOIN,
    JOIN_SPARK,
    LEAVE,
    DRAIN,
    REPLICAS_UP,
    REPLICAS_DOWN,
    WEIGH,
    MOVE,
    MOVE_SPARK,
    ROTATE,
    ROTATE_SILENT,
    TWO_TRIGGERS,
    PAUSE,
    FAILOVER,
    STANDBYS,
    STANDBYS_CHANGE,
)


def held_in(state: str) -> Callable[[World], object]:
    """Return what keeps a task in a state that it would otherwise pass in one step."""
    return {
        T.PLANNED: lambda w: w.patch_zone(rebalance={"approval": "Manual"}),
        T.APPROVED: lambda w: w.patch_zone(rebalance={"paused": True}),
        T.AWAITING_REPLICAS: lambda w: isolate_for(w, 4.0),
    }.get(T(state), lambda _: None)


def let_go(world: World) -> None:
    """Take back what `held_in` has done to the zone."""
    world.patch_zone(rebalance={"approval": "Automatic", "paused": False})


def isolate_for(world: World, seconds: float) -> None:
    """Cut the nodes without a copy of partition 0 off from the operator for a while."""
    away = set(world.network.nodes) - set(world.checks.routes[0].replicas)
    world.network.isolated |= away
    world.loop.call_later(seconds, world.network.isolated.difference_update, away)


CANCELS = tuple(
    Scenario(
        f"cancel in {state}",
        BULK,
        (
            Order(at_once, held_in(state)),
            Order(at_once, move),
            Order(in_state(TASK, state), cancel_all(TASK)),
            Order(later(3.0), let_go),
        ),
        ends=frozenset({"Cancelled", "Succeeded"}),
    )
    for state in (
        T.PLANNED,
        T.APPROVED,
        T.AWAITING_REPLICAS,
        T.TRANSFERRING,
        T.SWITCHING,
        T.FINALIZING,
        T.STOPPING_REDUNDANT,
    )
)

MIGRATIONS = (
    Scenario("migration to a replica", SMALL, (Order(at_once, migrate("replica")),)),
    Scenario(
        "migration to a new node",
        SMALL,
        (Order(at_once, migrate("new")),),
        expects=stable_follows,
    ),
    Scenario("migration to any", SMALL, (Order(at_once, migrate("any")),)),
    Scenario(
        "migration off its node",
        SMALL,
        (Order(at_once, migrate("new", oldLeaderPolicy="Remove")),),
        expects=stable_follows,
    ),
    Scenario(
        "migration from a dead leader",
        Start(replicas=3),
        (Order(at_once, kill_leader), Order(at_once, migrate("replica"))),
        ends=frozenset({"Succeeded", "RolledBack", "Failed"}),
    ),
)

MIGRATION_CANCELS = tuple(
    Scenario(
        f"migration cancelled in {state}",
        SMALL,
        (
            Order(at_once, migrate("new")),
            Order(in_state(MIGRATION, state), cancel_all(MIGRATION)),
        ),
        ends=frozenset({"Succeeded", "RolledBack"}),
    )
    for state in (
        M.SELECT_CANDIDATE,
        M.OPEN_CANDIDATE,
        M.UPDATE_METADATA_DOWN,
        M.DOWNGRADE_LEADER,
        M.UPDATE_METADATA_UP,
    )
)


def chosen(world: World) -> NodeId:
    """Return who shall lead partition 0, or a follower of it."""
    record = world.checks.routes[0]
    if record.next_leader is not None:
        return record.next_leader
    return min(n for n in record.replicas if n != record.leader)


def kill_chosen(world: World) -> None:
    """Kill who shall lead partition 0."""
    world.kubelet.kill(chosen(world), 8.0)
    world.disturbed()


def kill_opened(world: World) -> None:
    """Kill the node whose replica of partition 0 was opened last, for long."""
    world.kubelet.kill(world.checks.routes[0].replicas[-1], 30.0)
    world.disturbed()


def kill_both(world: World) -> None:
    """Kill partition 0's leader and who shall lead it."""
    kill_chosen(world)
    kill_leader(world)


def part_from_chosen(world: World) -> None:
    """Cut partition 0's leader off from who shall lead it, for a minute."""
    pair = frozenset((world.checks.routes[0].leader, chosen(world)))
    world.network.cut.add(pair)
    world.loop.call_later(60.0, world.network.cut.discard, pair)
    world.disturbed()


MIGRATION_FAULTS = tuple(
    Scenario(
        f"migration, {name}",
        start,
        (
            Order(at_once, migrate("new" if state == M.OPEN_CANDIDATE else "replica")),
            Order(in_state(MIGRATION, state), fault),
        ),
        ends=frozenset({"Succeeded", "RolledBack", "Failed"}),
    )
    for name, start, state, fault in (
        ("its leader dies in the handover", Start(replicas=3), M.DOWNGRADE_LEADER, kill_leader),
        ("its candidate dies in the handover", Start(replicas=3), M.DOWNGRADE_LEADER, kill_chosen),
        # Of five nodes: an operator that reaches less than half waits, and they are back by then.
        ("both die in the handover", Start(replicas=3, nodes=5), M.DOWNGRADE_LEADER, kill_both),
        ("its opened candidate dies", SMALL, M.OPEN_CANDIDATE, kill_opened),
    )
)

PARTED = Scenario(
    "migration between parted nodes",
    Start(replicas=3),
    (
        Order(at_once, migrate("replica")),
        Order(in_state(MIGRATION, M.DOWNGRADE_LEADER), part_from_chosen),
    ),
    ends=frozenset({"Succeeded", "RolledBack"}),
)
"""Tries again for a minute: a thousand crash points, of which most are the same."""

UNKNOWN_NODE = 99
REFUSALS = (
    Scenario(
        "move to a node that is none",
        SMALL,
        (
            Order(
                at_once,
                lambda w: w.apply_task(
                    "t",
                    type="Moves",
                    moves=[{"partition": 0, "replicas": [UNKNOWN_NODE, 0]}],
                ),
            ),
        ),
        ends=frozenset({"Failed"}),
    ),
    Scenario(
        "migration to a node that is none",
        SMALL,
        (Order(at_once, lambda w: w.apply_migration("m", partition=0, target=UNKNOWN_NODE)),),
        ends=frozenset({"Failed"}),
    ),
    Scenario(
        "migration to its leader",
        SMALL,
        (
            Order(
                at_once,
                lambda w: w.apply_migration("m", partition=0, target=w.checks.routes[0].leader),
            ),
        ),
    ),
    Scenario(
        "migration cancelled while the zone is paused",
        SMALL,
        (
            Order(at_once, lambda w: w.patch_zone(rebalance={"paused": True})),
            Order(at_once, migrate("new")),
            Order(in_state(MIGRATION, M.SELECT_CANDIDATE), cancel_all(MIGRATION)),
            Order(later(3.0), lambda w: w.patch_zone(rebalance={"paused": False})),
        ),
        ends=frozenset({"RolledBack"}),
    ),
)

ROTATE_CANCEL = Scenario(
    "cancel while leaders are handed over",
    Start(partitions=3),
    (Order(at_once, rotate), Order(in_state(TASK, T.SWITCHING), cancel_all(TASK))),
    ends=frozenset({"Cancelled", "Succeeded"}),
)

ALL = (*REBALANCES, *CANCELS, ROTATE_CANCEL, *MIGRATIONS, *MIGRATION_CANCELS)
