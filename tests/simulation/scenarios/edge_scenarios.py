"""Scenarios for edges that only a fault in the right moment leads through.

The moment is the write of a state: the operator that has written it dies at once, and the fault is
there when the next one begins. Seeds do not choose from these (`scenarios.ALL` stays as it is).
"""

from __future__ import annotations

from collections.abc import Callable

from rezone.kube.api.kinds import Manifest, TaskKind
from rezone.resources.migration import MigrationState as M
from rezone.resources.task import TaskState as T
from rezone.wire.messages import NodeId
from simulation.cluster.apiserver import Key
from simulation.cluster.kubelet import NAMESPACE
from simulation.cluster.world import Order, World
from simulation.scenarios.scenarios import (
    MIGRATION,
    SMALL,
    TASK,
    Scenario,
    Start,
    at_once,
    cancel_all,
    chosen,
    in_state,
    kill_both,
    later,
    migrate,
    move,
)

What = Callable[[World], object]
ANY_END = frozenset({"Succeeded", "Cancelled", "Failed", "RolledBack"})


def when_stored(kind: str, state: str, *faults: What) -> Order:
    """Kill the operator the moment it has stored a state for the first time, and do more."""

    def watch(world: World) -> None:
        met: list[str] = []

        def look(key: Key, manifest: Manifest) -> None:
            stored = (manifest.get("status") or {}).get("state")
            if key.kind == kind and stored == state and not met:
                met.append(state)
                world.crash()
                for fault in faults:
                    world.loop.call_soon(fault, world)

        world.server.listeners.append(look)

    return Order(at_once, watch)


def newcomer(world: World) -> NodeId:
    """Return the node that the task `t` moves partition 0's leader to."""
    found = world.server.find(TASK, NAMESPACE, "t")
    assert found is not None
    node: NodeId = found["spec"]["moves"][0]["replicas"][0]
    return node


def lose_newcomer(world: World) -> None:
    """Kill that node for so long that it counts as lost."""
    world.kubelet.kill(newcomer(world), 90.0)


def kill_newcomer(world: World) -> None:
    """Kill that node for a while."""
    world.kubelet.kill(newcomer(world), 20.0)


def wipe_newcomer(world: World) -> None:
    """Take that node's disk."""
    world.kubelet.wipe(newcomer(world))


def suspend(*, suspended: bool) -> What:
    """Suspend the task `t`, or let it go on."""
    return lambda w: w.server.merge(TaskKind, NAMESPACE, "t", {"spec": {"suspend": suspended}})


def approve(world: World) -> None:
    """Approve the plan of the task `t`."""
    found = world.server.find(TASK, NAMESPACE, "t")
    assert found is not None
    word = found["status"]["plan"]["hash"]
    world.server.merge(TaskKind, NAMESPACE, "t", {"spec": {"approvedPlan": word}})


def migrated(world: World) -> bool:
    """Hold when the migration `m` has succeeded."""
    return world.states(MIGRATION).get("m") == M.SUCCEEDED


def kill_candidate(world: World) -> None:
    """Kill who shall lead partition 0 for longer than a lease."""
    world.kubelet.kill(chosen(world), 15.0)


def kill_leader_shortly(world: World) -> None:
    """Kill partition 0's leader for longer than a lease."""
    world.kubelet.kill(world.checks.routes[0].leader, 15.0)


TASK_EDGES = (
    Scenario(
        "a plan that is old when it is approved",
        SMALL,
        (
            Order(at_once, lambda w: w.patch_zone(rebalance={"approval": "Manual"})),
            Order(at_once, move),
            Order(in_state(TASK, T.PLANNED), migrate("new")),
            Order(migrated, approve),
            Order(later(3.0), lambda w: w.patch_zone(rebalance={"approval": "Automatic"})),
        ),
        ends=ANY_END,
    ),
    Scenario(
        "a plan that is old when it goes on",
        SMALL,
        (
            when_stored(TASK, T.APPROVED, suspend(suspended=True)),
            Order(at_once, move),
            Order(in_state(TASK, T.APPROVED), migrate("new")),
            Order(migrated, suspend(suspended=False)),
        ),
        ends=ANY_END,
    ),
    *(
        Scenario(
            f"new node lost in {state}",
            SMALL,
            (when_stored(TASK, state, lose_newcomer), Order(at_once, move)),
            ends=ANY_END,
        )
        for state in (T.AWAITING_REPLICAS, T.TRANSFERRING, T.SWITCHING)
    ),
    Scenario(
        "new disk lost in Switching",
        SMALL,
        (when_stored(TASK, T.SWITCHING, wipe_newcomer), Order(at_once, move)),
    ),
    Scenario(
        "new node killed in Finalizing",
        Start(replicas=3, nodes=4),
        (
            when_stored(TASK, T.FINALIZING, suspend(suspended=True), kill_newcomer),
            Order(at_once, move),
            Order(in_state(TASK, T.FINALIZING), at_once),
            Order(later(10.0), suspend(suspended=False)),
        ),
    ),
    Scenario(
        "cancelled as Finalizing is stored",
        SMALL,
        (when_stored(TASK, T.FINALIZING, cancel_all(TASK)), Order(at_once, move)),
        ends=frozenset({"Cancelled"}),
    ),
)

MIGRATION_EDGES = (
    *(
        Scenario(
            f"migration, {name} as its intent is due",
            start,
            (
                when_stored(MIGRATION, M.UPDATE_METADATA_DOWN, fault),
                Order(at_once, migrate("replica")),
            ),
            ends=ANY_END,
        )
        for name, start, fault in (
            ("leader killed", SMALL, kill_leader_shortly),
            ("candidate killed", Start(replicas=3), kill_candidate),
            ("cancelled", SMALL, cancel_all(MIGRATION)),
        )
    ),
    Scenario(
        "migration, both die in the handover and nobody else is there",
        SMALL,
        (
            when_stored(MIGRATION, M.DOWNGRADE_LEADER, kill_both),
            Order(at_once, migrate("replica")),
        ),
        ends=ANY_END,
    ),
)


EDGES = (*TASK_EDGES, *MIGRATION_EDGES)
