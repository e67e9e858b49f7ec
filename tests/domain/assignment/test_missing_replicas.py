"""Replicas that the assignment names and the record does not are made, at rest."""

import dataclasses

import pytest
from worlds import OLD, World, child, record

from rezone.domain.assignment.missing_replicas import missing_replicas, replacement
from rezone.domain.repair.repairs import missing_copies
from rezone.wire.messages import Role

EMPTY = {"needs_snapshot": True, "role": Role.LEARNER, "log_end_offset": 0}


def short() -> World:
    """Return a world in which partition 0 lacks node 0 of its assignment."""
    world = World()
    world.routes[0] = record(leader=1, isr=(1, 2), replicas=(1, 2))
    return world


@pytest.mark.proves("RM-07", "B-06")
def test_a_missing_replica_is_added_and_copied() -> None:
    """The record gets the node back, and the node a copy.

    The partition would have a replica less until a person notices.
    """
    world = short()
    (change,) = missing_replicas(world.view())
    assert change.state.replicas == (1, 2, 0)
    assert change.state.isr == (1, 2)
    world.routes[0] = change.state
    world.reports[0, 0] = EMPTY
    assert missing_replicas(world.view()) == ()
    (copy,) = missing_copies(world.view(), task_copies=False)
    assert (copy.source, copy.targets) == (1, (0,))


@pytest.mark.parametrize("why", ["pending", "moving", "silent", "draining", "sealed"])
def test_a_missing_replica_waits(why: str) -> None:
    """Nothing is added while something else moves the partition or the node cannot hold it.

    Two machines would change one record, or a node that is to be emptied would be filled.
    """
    world = short()
    match why:
        case "pending":
            world.pend()
        case "moving":
            world.migrations = [child("m", state="OpenCandidate")]
        case "silent":
            world.silent[0] = 1.0
        case "draining":
            world.draining.add(0)
        case _:
            world.routes[0] = record(leader=1, isr=(1, 2), replicas=(1, 2), sealed=True)
    assert missing_replicas(world.view()) == ()


def test_the_best_replacement_is_chosen() -> None:
    """A replica comes before a node without one, a new failure domain before a shared one.

    Rows would be copied that are there, or two replicas would fail together.
    """
    world = World(domains={0: "a", 1: "b", 2: "c", 3: "b", 4: "a"})
    assert replacement(world.view(), 0, 0) == 4
    world.routes[0] = record(replicas=(0, 1, 2, 3))
    assert replacement(world.view(), 0, 0) == 3
    world.silent[3] = 1.0
    world.draining.add(4)
    assert replacement(world.view(), 0, 0) is None
    empty = dataclasses.replace(world.view(), stable=OLD[:1])
    assert missing_replicas(empty) == ()
