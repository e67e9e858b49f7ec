"""What people do to a zone in use while faults go on: scale, drain, re-shard, move leaders."""

from __future__ import annotations

import random

from e2e.chaos.fault import Fault
from e2e.chaos.world import NODES, ZONE, ZONE_PATH, World
from rezone.cli.demo.cluster import NAMESPACE
from rezone.cli.demo.manifests import migration

_TASKS_PATH = f"/apis/rezone.dev/v1alpha1/namespaces/{NAMESPACE}/rebalancetasks"


class Patched(Fault):
    """A change of an object, and the one that takes it back."""

    def __init__(self, world: World, path: str, there: object, back: object) -> None:
        self._world = world
        self._path = path
        self._there = there
        self._back = back
        self._made = 0

    async def begin(self) -> None:
        """Make the change."""
        await self._world.cluster.api.patch(self._path, {"spec": self._there})
        self._made += 1

    async def heal(self) -> None:
        """Take it back."""
        if self._made:
            await self._world.cluster.api.patch(self._path, {"spec": self._back})

    async def bites(self) -> int:
        """Return whether the change was taken."""
        return self._made


class LeaderMoved(Fault):
    """A person moves a leader to another data node."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world = world
        self._rng = rng
        self._made = 0

    async def begin(self) -> None:
        """Apply the RegionMigration."""
        records = await self._world.routes()
        partition = self._rng.randrange(len(records))
        others = [node for node in records[partition].isr if node != records[partition].leader]
        target = self._rng.choice(others)
        name = f"moved-{self._rng.randrange(1 << 32):08x}"
        await self._world.cluster.apply(migration(name, ZONE, partition, target))
        self._made = 1

    async def heal(self) -> None:
        """Do nothing: it comes to its end."""

    async def bites(self) -> int:
        """Return whether it was taken."""
        return self._made


class Cancelled(Fault):
    """A person cancels the rebalances that one data node more has brought about."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._scaled = scaled(world)

    async def begin(self) -> None:
        """Ask for the data node."""
        await self._scaled.begin()

    async def bites(self) -> int:
        """Cancel what is under way, and return how much that was."""
        names = await self._world.tasks_under_way()
        for name in names:
            await self._world.cluster.api.patch(f"{_TASKS_PATH}/{name}", {"spec": {"cancel": True}})
        return len(names)

    async def heal(self) -> None:
        """Let the data node go again."""
        await self._scaled.heal()


def scaled(world: World) -> Fault:
    """Return the change to one data node more."""
    counts = [{"dataNodes": {"count": count}} for count in (NODES + 1, NODES)]
    return Patched(world, ZONE_PATH, *counts)


def drained(world: World, rng: random.Random) -> Fault:
    """Return the change that nothing may stay on one Kubernetes node."""
    node = f"/api/v1/nodes/worker-{rng.randint(1, NODES)}"
    return Patched(world, node, {"unschedulable": True}, {"unschedulable": None})


def resharded(world: World) -> Fault:
    """Return the change to half as many partitions again."""
    counts = [{"partitions": count} for count in (world.partitions * 3 // 2, world.partitions)]
    return Patched(world, ZONE_PATH, *counts)
