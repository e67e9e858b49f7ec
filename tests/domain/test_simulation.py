"""Seeded runs of whole rebalances and migrations with faults, and crashes at every single point.

A failing run prints its seed; the same seed gives the same run again.
"""

import random
from collections.abc import Callable

import pytest
from simulated_zone import Zone

from rezone.domain.assignment import assignments
from rezone.domain.routing.topology_text import Topology
from rezone.resources.conditions import Reason
from rezone.resources.migration import OldLeaderPolicy, RegionMigrationStatus
from rezone.resources.task import RebalanceTaskStatus

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
    zone.migrate("b", 1, 4, old_leader_policy=OldLeaderPolicy.REMOVE)
    zone.migrate("c", 2, None)
    return zone


def at_target(zone: Zone, target: Topology) -> None:
    """Assert that every partition lives exactly where `target` says, and the keys with it."""
    for record, nodes in zip(zone.routes, target, strict=True):
        if all(zone.replicas.nodes[node].alive for node in nodes):
            assert set(record.replicas) == set(nodes)
        else:
            # Those that were to go stay until the zone has made up for the lost one.
            assert set(record.replicas) >= set(nodes)
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
        stable = assignments.topology_of(zone.keys.stable)
        assert stable is not None
        rows = zip(stable, STABLE, TARGET, strict=True)
        assert all(nodes in {old, new} for nodes, old, new in rows)
        at_target(zone, stable)


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


LOST = 4


def losing_zone(seed: int, tick: int, *, full: bool = False, **settings: object) -> Zone:
    """Return a zone of which a target of partition 3 dies for good at a tick, or is full."""
    zone = Zone(seed, STABLE, NODES + 1)
    zone.settings |= settings
    zone.lost_ticks = 40
    zone.copy_deadline_seconds = 20.0
    zone.ask(TARGET)
    zone.replicas.nodes[LOST].room = 0 if full else None
    for _ in range(tick):
        zone.tick()
    zone.replicas.nodes[LOST].alive = full
    return zone


def ended_without(zone: Zone) -> None:
    """Assert that all but the lost target is as planned, and that what has moved stayed."""
    stable = assignments.topology_of(zone.keys.stable)
    assert stable is not None
    at_target(zone, stable)
    assert stable[:3] == TARGET[:3]
    assert zone.keys.planned is None
    if zone.state("t") == "Succeeded":
        assert stable == TARGET  # it was done before the node was lost
    else:
        assert zone.state("t") == "Failed"
        replaced = zone.settings.get("replace_failed_targets", True)
        assert LOST not in stable[3]
        assert (stable[3] == STABLE[3]) is not replaced


@pytest.mark.slow
@pytest.mark.proves("OP-02", "ZR-10", "ZR-18", "B-15")
@pytest.mark.parametrize("replace", [True, False])
def test_a_lost_target_leaves_the_rest_alone_whenever_the_coordinator_dies(
    *, replace: bool
) -> None:
    """A lost target ends in a defined assignment from every crash point, and nothing goes back.

    Otherwise one lost node would undo hours of copies, or leave keys that nobody clears.
    """
    for tick in (0, 1, 3, 5, 7, 9, 10, 11, 12, 13, 15):
        settings = {"replace_failed_targets": replace}
        before = losing_zone(7, tick, **settings)
        begun = before.points
        before.run(SETTLE_TICKS)
        ended_without(before)
        step = max(1, (before.points - begun) // 12)
        for point in range(begun + 1, before.points + 1, step):
            zone = losing_zone(7, tick, **settings)
            zone.crash_at = point
            zone.run(SETTLE_TICKS)
            ended_without(zone)


@pytest.mark.slow
@pytest.mark.proves("OP-02", "ZR-10", "ZR-18", "B-14", "B-15")
@pytest.mark.parametrize("replace", [True, False])
def test_a_full_target_leaves_the_rest_alone_whenever_the_coordinator_dies(
    *, replace: bool
) -> None:
    """A receiver that fails for ever ends in a defined assignment, from every crash point.

    Otherwise it would be asked again for ever, and Transferring have no end.
    """
    settings = {"replace_failed_targets": replace}
    before = losing_zone(7, 0, full=True, **settings)
    before.run(SETTLE_TICKS)
    ended_without(before)
    status = RebalanceTaskStatus.model_validate(before.tasks["t"].status)
    assert status.last_error is not None
    assert status.last_error.reason == (Reason.TARGET_REPLACED if replace else Reason.NO_SPACE)
    for point in range(1, before.points + 1, 3):
        zone = losing_zone(7, 0, full=True, **settings)
        zone.crash_at = point
        zone.run(SETTLE_TICKS)
        ended_without(zone)


@pytest.mark.slow
@pytest.mark.proves("ZR-11", "OP-02")
def test_full_nodes_pass_partitions_on_whenever_the_coordinator_dies() -> None:
    """A node without room gets its copies when another partition has left it, at every crash point.

    Otherwise a zone whose disks are full could never be rebalanced.
    """
    stable = ((0, 1, 2), (0, 1, 3), (0, 1, 2))
    target = ((0, 1, 3), (0, 1, 4), (0, 1, 2))

    def full(seed: int) -> Zone:
        zone = Zone(seed, stable, NODES)
        zone.replicas.nodes[3].room = 1  # partition 1 has to leave it first
        zone.copy_deadline_seconds = 2.0
        zone.ask(target)
        return zone

    for point in range(points_of(full) + 1):
        zone = full(7)
        zone.crash_at = point
        zone.run(SETTLE_TICKS)
        assert zone.state("t") == "Succeeded"
        at_target(zone, target)
