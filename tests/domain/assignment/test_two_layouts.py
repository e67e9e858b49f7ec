"""What a zone's own work makes of two layouts, and of a layout that is not the first."""

import dataclasses
from typing import Any

import msgspec
import pytest
from worlds import LEASE_SECONDS, NEW, NOW, OLD, World, record

from rezone.domain.assignment.standbys import standby_changes
from rezone.domain.observed.indexing import indexing
from rezone.domain.observed.readiness import was_copied
from rezone.domain.observed.rollout import lagging_nodes
from rezone.domain.repair.lost_quorum import loss_of
from rezone.domain.repair.repairs import missing_copies, repairs
from rezone.domain.zone.status import ZoneHealth, health_of
from rezone.wire.layouts import id_of
from rezone.wire.messages import FIRST_PARTITION_EPOCH, PartitionId, Role

HEIR = id_of(1, 0)


def resharding(*, sealed: tuple[int, ...] = (), targets: int = 4, **settings: Any) -> World:
    """Return a zone of two partitions that becomes one of four."""
    made = World(targets=[record() for _ in range(targets)])
    for index in sealed:
        made.routes[index] = msgspec.structs.replace(made.routes[index], sealed=True)
    target = tuple((0, 1, 2) for _ in range(targets))
    made.settings = {"pending": target, "pending_revision": 2, "pending_generation": 1, **settings}
    return made


def health(made: World) -> ZoneHealth:
    """Return what is counted."""
    return health_of(made.view(), replicas=3, wanted_nodes=made.nodes)


# --- failover, in-sync sets, copies, standbys ----------------------------------------------------


def test_leaders_of_both_layouts_are_replaced() -> None:
    """New partitions would wait for a dead node; or targets for the seal that another one has."""
    made = resharding(sealed=(0,))
    made.silent[0] = LEASE_SECONDS
    after = {change.partition: change.state for change in repairs(made.view(), NOW)}
    assert set(after) == {0, *(id_of(1, index) for index in range(4))}
    assert {state.leader for state in after.values()} == {1}
    assert after[0].sealed


def test_new_partitions_take_writes_when_all_their_replicas_are_open() -> None:
    """Their first row could never come in."""
    first = record(partition_epoch=FIRST_PARTITION_EPOCH)
    made = resharding(targets=2)
    made.targets = [first, first]
    made.reports[id_of(1, 1), 2] = None
    (change,) = repairs(made.view(), NOW)
    assert (change.partition, change.state.partition_epoch) == (HEIR, FIRST_PARTITION_EPOCH + 1)


@pytest.mark.parametrize(
    ("partition", "sealed", "copied"), [(HEIR, False, True), (0, False, True), (0, True, False)]
)
def test_who_has_lost_its_rows_is_copied_for(
    partition: PartitionId, *, sealed: bool, copied: bool
) -> None:
    """A new partition would stay short while it is backfilled; or a sealed one be copied."""
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
    made.targets[0] = msgspec.structs.replace(made.targets[0], isr=(0, 1))
    assert lagging_nodes(made.view()) == {2}
