"""Deletions in the middle of everything: of tasks, pods and routes, and of the zone itself.

What was deleted is made again where the zone needs it, and nowhere else: of a zone that is gone
nothing is left, and nothing is made for it. A zone may be made again at once under the same name,
while pods of the one before still end and a person's tasks are in the middle of their work.
"""

from __future__ import annotations

import dataclasses
import random

from rezone.kube.api.kinds import (
    ConfigMap,
    Kind,
    Manifest,
    MigrationKind,
    Pod,
    PodDisruptionBudget,
    Service,
    SparkApplication,
    TaskKind,
)
from rezone.kube.api.names import NODE_ID_LABEL
from simulation.cluster.checks import unfinished
from simulation.cluster.kubelet import NAMESPACE
from simulation.cluster.world import World
from simulation.scenarios.faults import STORM_SECONDS, Storm, may_be_wiped
from simulation.scenarios.pod_scenarios import Claimed
from simulation.scenarios.runs import ALL, ALL_ENDS, STORM_SECONDS_MAX, larger
from simulation.scenarios.scenarios import Scenario

DELETED = (
    TaskKind,
    MigrationKind,
    SparkApplication,
    Pod,
    ConfigMap,
    Service,
    PodDisruptionBudget,
)
"""What a person deletes of a zone that is kept."""

LEFT = frozenset({"Node", "Event", TaskKind.name, MigrationKind.name, SparkApplication.name})
"""What may be left when a zone is gone: what it did not own, and what a task has done before."""


def delete_one(world: World, kind: Kind) -> None:
    """Delete an object of a kind, if there is one that may be."""
    found = [each["metadata"]["name"] for each in world.server.all_of(kind) if _may_go(world, each)]
    if found:
        name = world.rng.choice(sorted(found))
        world.strikes(f"{kind.name} deleted", f"{kind.name} {name} is deleted")
        world.disturbed()
        world.server.delete(kind, NAMESPACE, name)


def _may_go(world: World, manifest: Manifest) -> bool:
    """Return whether no rows go with an object that nobody else has."""
    if manifest["kind"] != Pod.name:
        return True
    claimed = any("persistentVolumeClaim" in each for each in manifest["spec"].get("volumes", ()))
    return claimed or may_be_wiped(world, int(manifest["metadata"]["labels"][NODE_ID_LABEL]))


def replace_zone(world: World) -> None:
    """Delete the zone, and make it again at once as it was."""
    world.strikes("zone replaced", "the zone is deleted, and made again")
    world.disturbed()
    world.apply_zone(**world.delete_zone())


def remains(world: World) -> list[str]:
    """Return what is left of a zone that is gone."""
    left = [key for key in world.server.objects if key.kind not in LEFT]
    running = [f"SparkApplication {uid} still copies" for uid in world.spark.running]
    return [*running, *(f"{key.kind} {key.name} is left" for key in left)]


def unfinished_or_lost(world: World) -> list[str]:
    """Return what is not yet as it must be at the end, records that nobody has stored among it."""
    tables = world.server.all_of(ConfigMap)
    stored = {int(p) for table in tables for p in table.get("data") or () if p.isdecimal()}
    lost = world.checks.routes.keys() - stored
    return [*unfinished(world), *(f"p{partition} has no record" for partition in sorted(lost))]


# --- storms --------------------------------------------------------------------------------------


def _storm_of(rng: random.Random) -> Storm:
    """Return a storm without the loss of disks: without routes only what is there is learned."""

    def some(*chances: float) -> float:
        return rng.choice((0.0, *chances))

    return Storm(
        seconds=rng.choice(STORM_SECONDS),
        crash=some(0.005, 0.02, 0.05),
        write_fault=some(0.02, 0.1),
        read_fault=some(0.02),
        late_call=some(0.03),
        lost_answer=some(0.05),
        jitter=some(10.0, 50.0),
        kill=some(0.005),
        isolate=some(0.01),
        cut=some(0.01),
        watch=some(0.01),
        split=some(0.005),
        spark=some(0.02),
        person=some(0.02, 0.1),
    )


def claimed(scenario: Scenario, rng: random.Random) -> Scenario:
    """Return a scenario on a larger zone whose pods find their rows again."""
    start = larger(scenario, rng).start
    given = {field.name: getattr(start, field.name) for field in dataclasses.fields(start)}
    return dataclasses.replace(scenario, start=Claimed(**given))


def storm(seed: int) -> World:
    """Run a scenario through a storm in which things are deleted, until all is at rest again."""
    rng = random.Random(f"deletions {seed}")
    scenario = claimed(rng.choice([s for s in ALL if s.made]), rng)
    weather, chance = _storm_of(rng), rng.choice((0.005, 0.02, 0.05))
    kinds = rng.sample(DELETED, rng.randint(1, len(DELETED)))
    replaced_at = rng.uniform(0.0, weather.seconds) if rng.random() < 0.5 else None
    with scenario.world(seed) as world:
        world.note(f"{scenario.name}; {', '.join(kind.name for kind in kinds)}")
        world.counts.update({f"{kind.name} deleted": 0 for kind in DELETED} | {"zone replaced": 0})
        weather.begin(world)
        if replaced_at is not None:
            world.loop.call_later(replaced_at, replace_zone, world)
        others, end = world.each_step, world.loop.time() + weather.seconds

        def each(world: World) -> None:
            others(world)
            if world.loop.time() < end and world.rng.random() < chance:
                delete_one(world, world.rng.choice(kinds))

        world.each_step = each
        world.run(STORM_SECONDS_MAX, unfinished_or_lost)
        scenario.check(world, ALL_ENDS)
        return world
