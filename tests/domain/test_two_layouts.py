"""What a zone's own work makes of two layouts, and of a layout that is not the first."""

import dataclasses
import random
from typing import Any

import msgspec
import pytest
from simulated_zone import Zone
from test_simulation import NODES, SETTLE_TICKS, STABLE, TARGET, at_target, ended, faulty, mend
from worlds import LEASE_SECONDS, NEW, NOW, OLD, World, record

from rezone.domain.assignment import assignments
from rezone.domain.assignment.standbys import standby_changes
from rezone.domain.model import world
from rezone.domain.observed.indexing import indexing
from rezone.domain.observed.readiness import was_copied
from rezone.domain.observed.rollout import lagging_nodes
from rezone.domain.repair.lost_quorum import loss_of
from rezone.domain.repair.repairs import missing_copies, repairs
from rezone.domain.routing.route_records import RouteRecords
from rezone.domain.zone.status import ZoneHealth, health_of
from rezone.resources.zone_status import Assignment, Assignments
from rezone.wire.layouts import generation_of, id_of, index_of
from rezone.wire.messages import FIRST_PARTITION_EPOCH, PartitionId, Role

HEIR = id_of(1, 0)


def resharding(*, sealed: tuple[int, ...] = (), heirs: int = 4, **settings: Any) -> World:
    """Return a zone of two partitions that becomes one of four."""
    made = World(heirs=[record() for _ in range(heirs)])
    for index in sealed:
        made.routes[index] = msgspec.structs.replace(made.routes[index], sealed=True)
    target = tuple((0, 1, 2) for _ in range(heirs))
    made.settings = {"pending": target, "pending_revision": 2, "pending_generation": 1, **settings}
    return made


def health(made: World) -> ZoneHealth:
    """Return what is counted."""
    return health_of(made.view(), replicas=3, wanted_nodes=made.nodes)


# --- failover, in-sync sets, copies, standbys ----------------------------------------------------


def test_leaders_of_both_layouts_are_replaced() -> None:
    """New partitions would wait for a dead node; or importers for the seal that another one has."""
    made = resharding(sealed=(0,))
    made.silent[0] = LEASE_SECONDS
    after = {change.partition: change.state for change in repairs(made.view(), NOW)}
    assert set(after) == {0, *(id_of(1, index) for index in range(4))}
    assert {state.leader for state in after.values()} == {1}
    assert after[0].sealed


def test_new_partitions_take_writes_when_all_their_replicas_are_open() -> None:
    """Their first row could never come in."""
    first = record(partition_epoch=FIRST_PARTITION_EPOCH)
    made = resharding(heirs=2)
    made.heirs = [first, first]
    made.reports[id_of(1, 1), 2] = None
    (change,) = repairs(made.view(), NOW)
    assert (change.partition, change.state.partition_epoch) == (HEIR, FIRST_PARTITION_EPOCH + 1)


@pytest.mark.parametrize(
    ("partition", "sealed", "copied"), [(HEIR, False, True), (0, False, True), (0, True, False)]
)
def test_who_has_lost_its_rows_is_copied_for(
    partition: PartitionId, *, sealed: bool, copied: bool
) -> None:
    """A new partition would stay short for as long as it is filled; or a sealed one be copied."""
    made = resharding(sealed=(0,) if sealed else ())
    made.reports[partition, 2] = {"needs_snapshot": True}
    copies = missing_copies(made.view(), task_copies=False)
    assert [copy.partition for copy in copies] == ([partition] if copied else [])


def test_new_partitions_have_standbys_before_they_serve_and_sealed_ones_none() -> None:
    """A leader that dies right after the cut-over would be replaced slowly, as no other is."""
    made = resharding(sealed=(0,), hot_standbys=1)
    changed = [change.partition for change in standby_changes(made.view())]
    assert changed == [1, *(id_of(1, index) for index in range(4))]


def test_replicas_have_their_place_by_the_layout_they_are_of() -> None:
    """A new partition's replicas would all count as copies that nobody has verified."""
    view = resharding().view()
    assert not was_copied(view, HEIR, 0)
    assert was_copied(view, HEIR, 4)
    assert was_copied(view, 0, 4)
    over = dataclasses.replace(view, generation=1, pending=None)
    assert not was_copied(over, 0, 4), "an old partition has no place any more"
    assert (view.assigned(1), view.target(1), view.target(HEIR)) == (OLD[1], None, None)
    moving = World().pend().view()
    assert (moving.assigned(0), moving.target(0), moving.target(HEIR)) == (OLD[0], NEW[0], None)


# --- what is told ---------------------------------------------------------------------------------


def test_only_what_serves_counts() -> None:
    """A zone would never be ready while it is re-sharded, or be ready without a leader."""
    made = resharding()
    assert health(made).partitions == 2
    made.reports[HEIR, 0] = {"role": Role.FOLLOWER}
    assert health(made).led == 2, "nobody asks it for anything yet"
    made = resharding(sealed=(0,))
    made.reports[0, 0] = {"role": Role.FOLLOWER}
    assert (health(made).partitions, health(made).led) == (3, 3), "one old, two new"
    made.reports[HEIR, 0] = {"role": Role.FOLLOWER}
    assert health(made).led == 2


def test_a_lost_partition_is_told_by_its_index_and_layout() -> None:
    """A person would look for partition 16384, or mend the wrong one of two."""
    made = resharding(sealed=(0,))
    for partition in (0, HEIR):
        for node in range(3):
            made.reports[partition, node] = {"needs_snapshot": True, "role": Role.FOLLOWER}
    loss = loss_of(made.view(), HEIR)
    assert loss is not None
    assert loss.text.startswith("partition 0 of the new layout: nodes [0, 1, 2] have lost")
    assert health(made).lost_quorum == loss.text, "the old one is sealed: others have its rows"


def test_damage_is_told_by_index_and_layout() -> None:
    """Nobody would know which of two partitions is damaged."""
    made = resharding()
    made.reports[HEIR, 1] = {"damage": "bad block"}
    assert health(made).damage == "data node 1, partition 0 of the new layout: bad block"


def test_nobody_waits_for_what_is_sealed() -> None:
    """A rolling update would stand, or an index never be built."""
    made = resharding(sealed=(0,), indexes={b"x": "by_name"})
    made.routes[0] = msgspec.structs.replace(made.routes[0], isr=(0, 1))
    for partition, known in made.records.items():
        heard = dict.fromkeys(known.replicas, 100)
        made.reported(partition, known.leader, follower_offsets=heard)
    assert lagging_nodes(made.view()) == set()
    assert indexing(made.view()).startswith("by_name: 0 of 15 replicas have it")
    made.heirs[0] = msgspec.structs.replace(made.heirs[0], isr=(0, 1))
    assert lagging_nodes(made.view()) == {2}


# --- rebalances and migrations of a later layout --------------------------------------------------

GENERATION = 3


class LaterZone(Zone):
    """The simulated zone after three re-shardings: the coordinator sees and names other ids."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, STABLE, NODES)
        first = Assignment(
            revision=1, replicas=assignments.compact(STABLE), layout_version=GENERATION
        )
        self.keys = Assignments(stable=first, change=1, last_layout_version=GENERATION)

    def view(self) -> world.ZoneView:
        """Observe the zone, with all partitions by their ids."""
        seen = super().view()
        return dataclasses.replace(
            seen,
            routes=RouteRecords(self.routes, GENERATION),
            generation=GENERATION,
            pending_generation=GENERATION,
            nodes={n: _named(node) for n, node in seen.nodes.items()},
            migrations=tuple(
                dataclasses.replace(m, partition=_id(m.partition)) for m in seen.migrations
            ),
            verified=frozenset((_id(p), node, epoch) for p, node, epoch in seen.verified),
            mismatched=frozenset((_id(p), node, epoch) for p, node, epoch in seen.mismatched),
        )

    def act(self, action: Any, owner: str) -> None:
        """Carry out one action; every partition must be named by its id."""
        if isinstance(action, world.SettleLeader | world.ChangeRoutes):
            pass  # taken by id
        elif hasattr(action, "copies"):
            copies = tuple(_by_index(copy) for copy in action.copies)
            action = dataclasses.replace(action, copies=copies)
        elif hasattr(action, "partition"):
            action = _by_index(action)
        super().act(action, owner)

    def _change_routes(self, changes: tuple[world.RouteChange, ...]) -> None:
        super()._change_routes(tuple(_by_index(change) for change in changes))


def _id(index: int) -> PartitionId:
    return id_of(GENERATION, index)


def _by_index(named: Any) -> Any:
    assert generation_of(named.partition) == GENERATION, named
    return dataclasses.replace(named, partition=index_of(named.partition))


def _named(node: world.NodeView) -> world.NodeView:
    replicas = {
        _id(p): msgspec.structs.replace(said, partition=_id(p)) for p, said in node.replicas.items()
    }
    return dataclasses.replace(node, replicas=replicas)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_a_rebalance_of_a_later_layout_survives_faults(seed: int) -> None:
    """A zone could be re-sharded once, and never moved again."""
    rng, zone = random.Random(seed), LaterZone(seed)
    zone.ask(TARGET)
    faulty(zone, rng)
    cancel_at = rng.choice((0, 0, rng.randrange(1, 40)))
    for tick in range(1, 60):
        if tick == cancel_at:
            zone.cancel(zone.tasks["t"])
        zone.tick()
    mend(zone)
    zone.run(SETTLE_TICKS)
    for _ in range(30):
        zone.tick()
    ended(zone)


@pytest.mark.slow
def test_a_migration_of_a_later_layout_names_its_partition_by_index() -> None:
    """Who moves partition 1 would move none, or one that is over."""
    zone = LaterZone(1)
    zone.migrate("m", 1, 4)
    zone.migrate("n", 9, 4)
    zone.run(SETTLE_TICKS)
    assert (zone.state("m"), zone.state("n")) == ("Succeeded", "Failed")
    assert zone.routes[1].leader == 4
    refused = zone.migrations["n"].status or {}
    assert "partition 9 does not exist: the zone has 4" in str(refused)
    assert zone.keys.stable is not None
    stable = assignments.parse(zone.keys.stable.replicas)
    at_target(zone, tuple((*stable[p], 1) if p == 1 else stable[p] for p in range(4)))
