"""Scenarios for copies that fail, or only wait: what has moved stays, and the rest goes on.

Seeds do not choose from these (`scenarios.ALL` stays as it is).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rezone.domain.assignment import assignments
from rezone.domain.routing.topology_text import Topology
from rezone.resources.conditions import Reason
from rezone.resources.task import RebalanceTask, RebalanceTaskStatus
from rezone.resources.task import TaskState as T
from rezone.wire.messages import NodeId
from simulation.cluster.world import Order, World
from simulation.nodes.disk import TrackedDisk
from simulation.scenarios.edge_scenarios import ANY_END
from simulation.scenarios.scenarios import (
    TASK,
    Scenario,
    Start,
    at_once,
    cancel_all,
    in_state,
    leaders_as_planned,
    move,
    outside,
    scale,
)

THREE = Start(partitions=3)
NEWEST: NodeId = 4
"""The data node that joins last in `THREE`, and takes no copy."""

STALL_SECONDS = 10
GONE_SECONDS = 10_000.0
LOST_AFTER_SECONDS = 60.0
"""So long a silent node is waited for; rows that are written then would only cost time."""


def disk_of(world: World, node: NodeId) -> TrackedDisk:
    """Return a data node's disk."""
    machine = world.kubelet.machine_of(node)
    assert machine is not None
    return machine.disk


def statuses(world: World) -> list[RebalanceTaskStatus]:
    """Return what the tasks say of themselves, by revision."""
    tasks = [RebalanceTask.parse(t) for t in world.server.all_of(TASK)]
    found = [task.status for task in tasks if task.status is not None]
    return sorted(found, key=lambda status: status.revision)


# --- a target that fails -------------------------------------------------------------------------


def settings(**changes: Any) -> Order:
    """Change how the zone rebalances."""
    return Order(at_once, lambda world: world.patch_zone(rebalance=changes))


def lose_newest(world: World) -> None:
    """Kill the newest data node for good."""
    world.kubelet.kill(NEWEST, GONE_SECONDS)
    world.pause_writes(LOST_AFTER_SECONDS)


def has_newest(world: World) -> bool:
    """Hold when the newest data node is up."""
    return NEWEST in world.network.nodes


def fill_newest(world: World) -> None:
    """Leave no room on the newest data node's disk."""
    disk_of(world, NEWEST).room = 0


def the_rest_has_moved(reason: Reason) -> Callable[[World], list[str]]:
    """Expect that the first task ends with all but what the newest node was to take.

    It says why. Where other targets are taken, the next task has one.
    """

    def expects(world: World) -> list[str]:
        first, *later = statuses(world)
        error = first.last_error
        found = [] if error is not None and error.reason == reason else [f"its error is {error}"]
        source, target, outcome = map(
            assignments.parse, (first.source, first.target, first.outcome)
        )
        for index, new in enumerate(target):
            due = source[index] if NEWEST in new else new
            if outcome[index] != due:
                found.append(f"p{index} is at {outcome[index]} after the task, not at {due}")
        if reason is Reason.TARGET_REPLACED:
            found += _not_replaced(source, target, assignments.parse(later[0].target))
        return found

    return expects


def _not_replaced(source: Topology, target: Topology, following: Topology) -> list[str]:
    failed = [index for index, new in enumerate(target) if NEWEST in new]
    return [
        f"p{index} has no other target than {following[index]}"
        for index in failed
        if NEWEST in following[index] or following[index] == source[index]
    ]


LOST_TARGET = Scenario(
    "target lost",
    THREE,
    (
        scale(2),
        Order(in_state(TASK, T.TRANSFERRING), lose_newest),
    ),
    ends=ANY_END,
    expects=the_rest_has_moved(Reason.TARGET_REPLACED),
)
FULL_TARGETS = tuple(
    Scenario(
        f"target full, {policy}",
        THREE,
        (
            settings(targetFailurePolicy=policy, copyProgressDeadlineSeconds=STALL_SECONDS),
            scale(2),
            Order(has_newest, fill_newest),
        ),
        ends=ANY_END,
        expects=the_rest_has_moved(reason),
    )
    for policy, reason in (("Replace", Reason.TARGET_REPLACED), ("Finish", Reason.NO_SPACE))
)


def lose(place: int) -> Callable[[World], None]:
    """Kill the old leader (0) of partition 0, or its next replica (1), for good."""

    def what(world: World) -> None:
        world.kubelet.kill(world.checks.routes[0].replicas[place], GONE_SECONDS)
        world.pause_writes(LOST_AFTER_SECONDS)

    return what


LOST_SOURCES = tuple(
    Scenario(
        f"{who} lost in Transferring",
        Start(partitions=2, replicas=3, nodes=5),
        (Order(at_once, move), Order(in_state(TASK, T.TRANSFERRING), lose(place))),
        ends=ANY_END,
    )
    for place, who in enumerate(("old leader", "follower"))
)


# --- a target that waits -------------------------------------------------------------------------


def chain(world: World) -> tuple[NodeId, NodeId]:
    """Return the node that partition 1 leaves for partition 0, and the one that it goes to."""
    found = world.server.find(TASK, "default", "t")
    assert found is not None
    first, second = (m["replicas"][-1] for m in found["spec"]["moves"])
    return first, second


def pass_on(world: World) -> None:
    """Move partition 1 off a node that is full, and partition 0 there."""
    first, second = (world.checks.routes[index].replicas for index in (0, 1))
    passed = next(n for n in second if n not in first)
    free = outside(world, 1)
    moves = [
        {"partition": 0, "replicas": [first[0], passed]},
        {"partition": 1, "replicas": [*(n for n in second if n != passed), free]},
    ]
    disk_of(world, passed).room = sum(passed in r.replicas for r in world.checks.routes.values())
    world.apply_task("t", type="Moves", moves=moves)


def copied(world: World) -> bool:
    """Hold when the node that partition 1 goes to has its rows."""
    held = world.checks.held(1, chain(world)[1])
    return held is not None and not held.needs_snapshot


def hold_up(world: World) -> None:
    """Kill that node for longer than a copy may stand still: partition 1 does not leave yet."""
    world.kubelet.kill(chain(world)[1], 1.2 * STALL_SECONDS)


PASSED_ON = Scenario(
    "full node that passes a partition on",
    Start(partitions=2, nodes=4),
    (
        settings(copyProgressDeadlineSeconds=STALL_SECONDS),
        Order(at_once, pass_on),
        Order(copied, hold_up),
    ),
    expects=leaders_as_planned,
)


# --- a copy that is wrong ------------------------------------------------------------------------


def move_and_spoil(world: World) -> None:
    """Move partition 0's leader to a node whose disk spoils the first copy that it takes."""
    disk_of(world, outside(world)).spoils = 1
    move(world)


def made_again(world: World) -> list[str]:
    """Expect that the copy was dropped and made again, and only that."""
    (status,) = statuses(world)
    found = [] if status.copies_dropped in (1, 2) else [f"{status.copies_dropped} are dropped"]
    return [*found, *leaders_as_planned(world)]


WRONG_COPIES = tuple(
    Scenario(
        f"copy that differs, by {by}",
        Start(spark=spark),
        (Order(at_once, move_and_spoil),),
        expects=made_again,
    )
    for by, spark in (("stream", False), ("Spark", True))
)


# --- a cancel in the middle ----------------------------------------------------------------------


def move_many(world: World) -> None:
    """Move the leaders of all partitions to nodes without a copy, one at a time."""
    moves = [
        {"partition": p, "replicas": [outside(world, p), *r.replicas[1:]]}
        for p, r in world.checks.routes.items()
    ]
    world.apply_task("t", type="Moves", moves=moves)


def one_leads(world: World) -> bool:
    """Hold when the first of the new leaders leads."""
    (status,) = statuses(world) or (None,)
    if status is None or not status.target:
        return False
    rows = zip(*map(assignments.parse, (status.source, status.target)), strict=True)
    leaders = [(old[0], new[0]) for old, new in rows]
    return any(world.checks.routes[p].leader == new for p, (_, new) in enumerate(leaders))


def on_one_side(world: World) -> list[str]:
    """Expect each partition where it was, or where it was to go."""
    (status,) = statuses(world)
    zone = world.zone().status
    assert zone is not None
    assert zone.assignments.stable is not None
    stable = assignments.parse(zone.assignments.stable.replicas)
    sides = zip(*map(assignments.parse, (status.source, status.target)), strict=True)
    return [
        f"p{index} is at {stable[index]}, not at {old} or {new}"
        for index, (old, new) in enumerate(sides)
        if stable[index] not in (old, new)
    ]


CANCELLED_HALFWAY = Scenario(
    "cancel when one of several has moved",
    Start(partitions=3),
    (
        settings(maxConcurrentMigrations=1),
        Order(at_once, move_many),
        Order(one_leads, cancel_all(TASK)),
    ),
    ends=frozenset({"Cancelled", "Succeeded"}),
    expects=on_one_side,
)

TARGETS = (LOST_TARGET, *FULL_TARGETS, PASSED_ON, *WRONG_COPIES, CANCELLED_HALFWAY)
