"""Seeded runs of whole rebalances and migrations with faults, and crashes at every single point.

A failing run prints its seed; the same seed gives the same run again.
"""

import random
from collections.abc import Callable

import pytest
from simulated_zone import Zone

from rezone.domain.world import Topology
from rezone.resources.migration import OldLeader, RegionMigrationStatus

STABLE: Topology = ((0, 1, 2), (1, 2, 0), (2, 0, 1), (0, 2, 1))
TARGET: Topology = ((1, 2, 3), (3, 2, 0), (2, 0, 1), (3, 1, 4))
NODES = 5
SEEDS = 150
SETTLE_TICKS = 3000


def rebalance_zone(seed: int) -> Zone:
    """Return a zone whose operator-made task moves three of four partitions."""
    zone = Zone(seed, STABLE, NODES)
    zone.ask(TARGET)
    return zone


def migration_zone(seed: int) -> Zone:
    """Return a zone with migrations to a replica, to a new node, and without target."""
    zone = Zone(seed, STABLE, NODES)
    zone.migrate("a", 0, 1)
    zone.migrate("b", 1, 4, old_leader=OldLeader.REMOVED)
    zone.migrate("c", 2, None)
    return zone


def at_target(zone: Zone, target: Topology) -> None:
    """Assert that every partition lives exactly where `target` says, and the keys with it."""
    for record, nodes in zip(zone.routes, target, strict=True):
        assert set(record.replicas) == set(nodes)
        assert record.leader in nodes
    for partition, record in enumerate(zone.routes):
        for number, node in zone.replicas.nodes.items():
            stray = partition in node.replicas and number not in record.replicas
            assert not (stray and node.reachable), f"p{partition}: node {number} still has it"
    keys = zone.keys
    assert keys.pending is None
    assert keys.cancel is None


def ended(zone: Zone) -> None:
    """Assert that the task came to one of its two whole ends (never something between)."""
    if zone.state("t") == "Succeeded":
        at_target(zone, TARGET)
        for record, nodes in zip(zone.routes, TARGET, strict=True):
            assert record.next_leader is None
            assert set(nodes) == set(record.isr)
    else:
        assert zone.state("t") == "Cancelled"
        at_target(zone, STABLE)


def disturb(zone: Zone, rng: random.Random) -> None:
    """Break or mend nodes now and then, several of them at a time."""
    for node in zone.replicas.nodes.values():
        if not node.reachable and rng.random() < 0.06:
            node.alive = node.connected = True
        elif node.reachable and rng.random() < 0.02:
            if rng.random() < 0.5:
                node.alive = False
            else:
                node.connected = False


def mend(zone: Zone) -> None:
    """End all faults: from now on the run must come to its end."""
    zone.crash_chance = 0.0
    zone.spark_fails = 0.0
    chances = zone.replicas.chances
    chances.takeover_fails = chances.active_is_lost = chances.notice_is_late = 0.0
    for node in zone.replicas.nodes.values():
        node.alive = node.connected = True


def faulty(zone: Zone, rng: random.Random) -> None:
    """Give a run its own mix of faults (swarm testing)."""
    chances = zone.replicas.chances
    zone.crash_chance = rng.choice((0.0, 0.0, 0.01, 0.05))
    zone.spark_fails = rng.choice((0.0, 0.2))
    zone.settings["spark_threshold_bytes"] = rng.choice((0, 1 << 40))
    zone.settings["max_concurrent_migrations"] = rng.choice((1, 4))
    chances.takeover_fails = rng.choice((0.0, 0.3))
    chances.active_is_lost = rng.choice((0.0, 0.3))
    chances.notice_is_late = rng.choice((0.0, 0.5))


@pytest.mark.slow
@pytest.mark.proves("OP-02", "ZR-13", "RM-02", "HS-06")
@pytest.mark.parametrize("seed", range(SEEDS))
def test_rebalance_survives_faults(seed: int) -> None:
    """Some order of faults would lose a row, lead twice in an epoch, or hang the task."""
    rng = random.Random(seed)
    zone = rebalance_zone(seed)
    faulty(zone, rng)
    cancel_at = rng.choice((0, 0, rng.randrange(1, 40)))
    for tick in range(1, 100):
        if zone.settled():
            break
        disturb(zone, rng)
        if tick == cancel_at:
            zone.cancel(zone.tasks["t"])
        if rng.random() < 0.02:
            zone.settings["paused"] = not zone.settings.get("paused", False)
        zone.tick()
    mend(zone)
    zone.settings["paused"] = False
    zone.run(SETTLE_TICKS)
    for _ in range(30):
        zone.tick()  # what failed after the end is mended by the zone itself
    ended(zone)


@pytest.mark.slow
@pytest.mark.proves("OP-02", "RM-01", "RM-02", "RM-08", "DCP-11")
@pytest.mark.parametrize("seed", range(SEEDS))
def test_migrations_survive_faults(seed: int) -> None:
    """Some order of faults would leave an authorization behind, or two leaders, or a lost row."""
    rng = random.Random(seed + 10_000)
    zone = migration_zone(seed)
    faulty(zone, rng)
    zone.replica_floor = [3] * len(STABLE)
    for tick in range(1, 80):
        if zone.settled():
            break
        disturb(zone, rng)
        if tick == 20 and rng.random() < 0.3:
            zone.cancel(zone.migrations[rng.choice("abc")])
        zone.tick()
    mend(zone)
    zone.run(SETTLE_TICKS)
    for record in zone.routes:
        assert record.next_leader is None
    end = RegionMigrationStatus.model_validate(zone.migrations["b"].status)
    left = {0, 1, 2}
    if end.state == "Succeeded" and end.context is not None:
        left = {0, 1, 2, 4} - {end.context.from_node}
    assert set(zone.routes[1].replicas) == left


def points_of(make: Callable[[int], Zone]) -> int:
    """Return at how many points the coordinator can die in the run without faults."""
    zone = make(7)
    zone.run(SETTLE_TICKS)
    return zone.points


@pytest.mark.slow
@pytest.mark.proves("OP-02", "ZR-13", "ZR-14")
@pytest.mark.parametrize("spark", [False, True])
def test_rebalance_survives_a_crash_at_every_point(*, spark: bool) -> None:
    """Something would be remembered outside status, or an act could not be repeated."""

    def make(seed: int) -> Zone:
        zone = rebalance_zone(seed)
        zone.settings["spark_threshold_bytes"] = 0 if spark else 1 << 40
        return zone

    for point in range(1, points_of(make) + 1):
        zone = make(7)
        zone.crash_at = point
        zone.run(SETTLE_TICKS)
        assert zone.state("t") == "Succeeded", f"crash at point {point}"
        ended(zone)


@pytest.mark.slow
@pytest.mark.proves("OP-02", "ZR-19", "ZR-20", "B-15")
def test_cancel_at_every_tick_and_crash_at_every_point() -> None:
    """A cancel would leave a partition between two assignments, or keys nobody clears."""

    def cancelled(tick: int) -> Callable[[int], Zone]:
        def make(seed: int) -> Zone:
            zone = rebalance_zone(seed)
            for _ in range(tick):
                zone.tick()
            zone.cancel(zone.tasks["t"])
            return zone

        return make

    for tick in range(16):
        before = cancelled(tick)(7).points
        last = points_of(cancelled(tick))
        step = max(1, (last - before) // 12)
        for point in range(before + 1, last + 1, step):
            zone = cancelled(tick)(7)
            zone.crash_at = point
            zone.run(SETTLE_TICKS)
            ended(zone)


@pytest.mark.slow
@pytest.mark.proves("RM-02", "OP-02")
@pytest.mark.parametrize("cancel", [False, True])
def test_migrations_survive_a_crash_at_every_point(*, cancel: bool) -> None:
    """A restarted coordinator would need more than the persistent context to go on."""

    def make(seed: int) -> Zone:
        zone = migration_zone(seed)
        if cancel:
            for _ in range(4):
                zone.tick()
            for stored in zone.migrations.values():
                zone.cancel(stored)
        return zone

    for point in range(make(7).points + 1, points_of(make) + 1):
        zone = make(7)
        zone.crash_at = point
        zone.run(SETTLE_TICKS)
        for name in "abc":
            assert zone.state(name) in ({"Succeeded", "RolledBack"} if cancel else {"Succeeded"})
        assert all(record.next_leader is None for record in zone.routes)
