"""Zones whose objects go back in time: served all along, and whole again without a person."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from simulation.cluster.world import World
from simulation.scenarios.restored import Backup, back_up, restore
from simulation.scenarios.runs import ALL_ENDS, STORM_SECONDS_MAX, larger, seeds
from simulation.scenarios.scenarios import ALL, MIGRATION, Start, at_rest, data_nodes
from simulation.test_lost_quorum_recovered import told

SECONDS_MAX = 300.0
START = Start(partitions=3, replicas=3, nodes=4)

Change = Callable[[World], object]

CHANGES: dict[str, Change] = {
    "nothing": lambda world: world.crash(),
    "a leader moves": lambda world: world.apply_migration(
        "m", partition=0, target=world.checks.routes[0].replicas[1]
    ),
    "a data node joins": lambda world: world.patch_zone(dataNodes=data_nodes(5)),
    "a data node leaves": lambda world: world.patch_zone(dataNodes=data_nodes(3)),
    "fewer replicas": lambda world: world.patch_zone(replicas=2, minInSyncReplicas=1),
    "a leader is lost": lambda world: world.kubelet.kill(world.checks.routes[0].leader, 20.0),
}


@pytest.mark.proves("NW-06")
@pytest.mark.parametrize("change", CHANGES)
def test_what_was_forgotten_is_learned_from_the_data_nodes(change: str) -> None:
    """The coordinator's calls would be refused as outdated for ever, or it would undo a leader."""
    with World(1, at_rest(START)) as world:
        world.run(SECONDS_MAX)
        backup = back_up(world)
        CHANGES[change](world)
        world.run(SECONDS_MAX)
        rows = [world.checks.rows(p) for p in world.checks.routes]
        restore(world, backup)
        world.run(SECONDS_MAX)
        # Nobody writes to a partition in the moment in which the world comes to rest.
        world.run(
            SECONDS_MAX,
            lambda world: [f"p{p}" for p, n in enumerate(rows) if world.checks.rows(p) <= n],
        )


@pytest.mark.proves("NW-06")
def test_rows_that_nobody_has_who_answers_are_given_up_by_a_person_alone() -> None:
    """The one replica that is left would lead, and nobody would hear of what may be missing."""
    with World(1, at_rest(Start(partitions=1, replicas=3, nodes=3))) as world:
        world.run(SECONDS_MAX)
        backup = back_up(world)
        world.apply_migration("m", partition=0, target=world.checks.routes[0].replicas[1])
        world.run(SECONDS_MAX)
        known = world.checks.routes[0]
        restore(world, backup)
        # By the record that says so, which is learned with the epoch after the last one.
        world.checks.given_up[0] = known.leader_epoch + 1
        for node in known.replicas[:2]:
            world.kubelet.wipe(node)
        asked: list[str] = []

        def each(world: World) -> None:
            if not asked and told("QuorumLost")(world):
                assert world.checks.routes[0].leader_epoch > known.leader_epoch
                asked.append("recover")
                world.apply_migration(
                    "recover", partition=0, uncleanElection={"acceptDataLoss": True}
                )

        world.each_step = each
        world.run(SECONDS_MAX, lambda _: [] if asked else ["nobody was asked"])
        assert world.states(MIGRATION)["recover"] == "Succeeded"
        assert not world.checks.lost_rows, "the one that is left has all rows"


AGE_SECONDS = (0.3, 3.0, 30.0)
"""About how old the backup is when it is restored."""


def went_back(seed: int) -> World:
    """Run a scenario whose objects go back in the middle of it, or after its end."""
    rng = random.Random(f"restored {seed}")
    scenario = larger(rng.choice([s for s in ALL if s.made]), rng)
    with scenario.world(seed) as world:
        world.note(scenario.name)
        taken = world.loop.time() + rng.choice((0.0, rng.uniform(0.0, 10.0)))
        put_back = taken + rng.choice(AGE_SECONDS) * rng.uniform(0.5, 1.5)
        backups: list[Backup] = []

        def each(world: World) -> None:
            now = world.loop.time()
            if not backups and now >= taken:
                backups.append(back_up(world))
            if len(backups) == 1 and now >= put_back:
                restore(world, backups[0])
                backups.append(backups[0])

        world.each_step = each
        world.run(
            STORM_SECONDS_MAX,
            lambda _: [] if len(backups) > 1 else ["the objects are to go back"],
        )
        world.run(STORM_SECONDS_MAX)
        scenario.check(world, ALL_ENDS)
        return world


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.proves("NW-06")
@pytest.mark.parametrize("seed", seeds())
def test_a_backup_of_any_moment_may_be_restored(seed: int) -> None:
    """Some decision that was forgotten would be undone, made again otherwise, or waited for."""
    went_back(seed)
