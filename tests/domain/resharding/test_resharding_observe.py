"""What a re-sharding sees: whose word counts, and for what."""

import dataclasses
from typing import Any

import msgspec
import pytest
from worlds import NOW, OLD, World, report, text

from rezone.domain.model.resharding_view import ReshardingView, TargetView
from rezone.domain.model.world import ZoneView
from rezone.domain.repair.repairs import strays
from rezone.domain.resharding.observe import Compared, observe
from rezone.domain.routing import routes
from rezone.domain.routing.topology_text import Topology
from rezone.resources.task import RebalanceTaskSpec, RebalanceTaskStatus, TaskType
from rezone.wire.layouts import Layout, overlaps
from rezone.wire.messages import (
    IndexPosition,
    LeaderAndIsr,
    ReshardProgress,
    Role,
    SealState,
)

REVISION = 7
NEW: Topology = ((0, 1), (1, 2), (2, 0))
HEIRS = Layout(1, 3)
SPEC = RebalanceTaskSpec(zone_name="z", type=TaskType.RESHARD, revision=REVISION)
STATUS = RebalanceTaskStatus(revision=REVISION, layout_version=1, target=text(NEW))


def target_record(index: int, **changes: Any) -> LeaderAndIsr:
    """Return the second record of a target."""
    return msgspec.structs.replace(routes.initial(NEW[index], 2), partition_epoch=2, **changes)


def world(**sources: Any) -> World:
    """Return a zone of two partitions that is re-sharded to three; `sources` report these."""
    made = World()
    made.settings |= {"pending": NEW, "pending_revision": REVISION, "pending_generation": 1}
    for partition in range(2):
        made.reported(partition, made.routes[partition].leader, **sources)
    return made


def with_targets(view: ZoneView, **reports: dict[str, Any]) -> ZoneView:
    """Return the view with the next layout; "n1" is what the leader of new partition 1 says."""
    records = [target_record(index) for index in range(3)]
    nodes = dict(view.nodes)
    for index, partition in enumerate(HEIRS.ids):
        for node in NEW[index]:
            said = report(partition, node, records[index], **reports.get(f"n{index}", {}))
            replicas = {**nodes[node].replicas, partition: said}
            nodes[node] = dataclasses.replace(nodes[node], replicas=replicas)
    table = view.routes.with_next(records, 1)
    return dataclasses.replace(view, routes=table, nodes=nodes)


def seen(view: ZoneView, status: RebalanceTaskStatus = STATUS, **compared: Any) -> ReshardingView:
    """Return what the task sees."""
    return observe(view, SPEC, status, Compared(**compared), grace_seconds=300.0)


def target(found: ReshardingView, index: int) -> TargetView:
    """Return a target by its index."""
    return found.targets[HEIRS.ids[index]]


def test_before_and_after_it_is_known_whose_turn_it_is() -> None:
    """A task would begin for another one's assignment, or complete twice."""
    first = seen(world().view(), RebalanceTaskStatus())
    assert (first.holds_pending, first.done, first.created, first.generation) == (
        True,
        False,
        False,
        1,
    )
    assert [h.nodes for h in first.targets.values()] == list(NEW)
    assert (first.stable, first.pending) == (OLD, NEW)
    other = dataclasses.replace(world().view(), pending_revision=REVISION + 1)
    assert not seen(other, RebalanceTaskStatus()).holds_pending
    view = with_targets(world().view())
    assert seen(view).created
    done = dataclasses.replace(view, stable=NEW, generation=1, pending=None)
    assert (seen(done).done, seen(done).holds_pending) == (True, False)
    assert (seen(done).old_generation, seen(done).old_held) == (0, 2)
    ended = dataclasses.replace(done, routes=done.routes.without(0))
    assert (seen(ended).old_generation, seen(ended).sources) == (None, {})


def test_a_re_sharding_before_that_is_not_over_is_seen() -> None:
    """A third table would be written beside the two."""
    view = with_targets(world().view())
    after = dataclasses.replace(view, generation=1, stable=NEW, pending_generation=2, pending=OLD)
    assert seen(after, RebalanceTaskStatus()).others_left
    assert not seen(view).others_left


@pytest.mark.proves("ZR-20")
@pytest.mark.parametrize(
    ("said", "word"),
    [
        ({"seal": SealState.NONE}, False),
        ({"seal": SealState.SEALED}, True),
        ({"seal": SealState.UNKNOWN}, None),
        ({"seal": SealState.NONE, "leader_epoch": 3}, None),
        ({"seal": SealState.NONE, "role": Role.FOLLOWER}, None),
        ({"seal": SealState.SEALED, "leader_epoch": 3}, True),
        ({"seal": SealState.SEALED, "role": Role.FOLLOWER}, True),
    ],
)
def test_that_there_is_no_seal_says_only_the_leader_of_the_record(
    said: dict[str, Any], word: bool | None
) -> None:
    """A cancel would believe a leader of before, and delete rows of targets that serve."""
    assert seen(world(**said).view()).sources[0].sealed is word


def test_a_silent_source_has_no_word() -> None:
    """A leader that is cut off may have sealed."""
    made = world(seal=SealState.NONE)
    made.silent[0] = 1.0
    assert seen(made.view()).sources[0].sealed is None


def test_parts_are_what_the_target_s_leader_says_of_them() -> None:
    """A source would be sealed for a target that has not its rows."""
    made = world(bytes_estimate=3000, rows_estimate=30)
    progress = (
        ReshardProgress(source=0, backfilled=True, lag_rows=5),
        ReshardProgress(source=1, rows=5, broken=True),
    )
    found = seen(
        with_targets(made.view(), n1={"reshard_progress": progress}),
        verified={(0, HEIRS.ids[1], 1)},
        differing={(1, HEIRS.ids[1], 1)},
    )
    whole, broken = target(found, 1).ranges
    assert [p.overlap for p in (whole, broken)] == list(overlaps(Layout(0, 2), HEIRS))[1:3]
    assert (whole.backfilled, whole.lag_rows, whole.verified, whole.differs) == (
        True,
        5,
        True,
        False,
    )
    assert (broken.broken, broken.verified, broken.differs) == (True, False, True)
    assert (whole.bytes_done, whole.bytes_total) == (1000, 1000)
    assert (broken.bytes_done, broken.bytes_total) == (500, 1000)
    assert [(r.rows_done, r.rows_total) for r in (whole, broken)] == [(10, 10), (5, 10)]
    (unknown,) = target(found, 0).ranges
    assert (unknown.backfilled, unknown.lag_rows, unknown.sealed) == (False, None, False)


@pytest.mark.parametrize("changes", [{"role": Role.FOLLOWER}, {"leader_epoch": 0}])
def test_who_does_not_lead_a_target_has_no_word(changes: dict[str, Any]) -> None:
    """An earlier leader's progress would count, which its successor may not have."""
    said = {
        "reshard_progress": (ReshardProgress(source=0, backfilled=True, lag_rows=0),),
        **changes,
    }
    found = target(seen(with_targets(world().view(), n0=said)), 0)
    assert (found.leader_epoch, found.ranges[0].backfilled) == (None, False)


@pytest.mark.parametrize(
    ("leader", "follower", "lost"),
    [
        ({}, {}, False),
        ({"needs_snapshot": True}, {}, False),
        ({"needs_snapshot": True}, {"uncompared": "a"}, True),
        ({"needs_snapshot": True}, {"needs_snapshot": True}, True),
        ({}, {"uncompared": "a"}, False),
        ({"needs_snapshot": True}, None, False),
    ],
    ids=[
        "well",
        "a follower",
        "a follower in doubt",
        "nobody",
        "only the follower is in doubt",
        "silence",
    ],
)
def test_a_target_is_lost_when_nobody_can_lead_it(
    leader: dict[str, Any], follower: dict[str, Any] | None, *, lost: bool
) -> None:
    """A re-sharding would wait for ever, or begin again what somebody has."""
    view = with_targets(world().view())
    nodes = dict(view.nodes)
    for node, said in ((0, leader), (1, follower)):
        if said is None:
            nodes[node] = dataclasses.replace(nodes[node], reachable=False)
            continue
        told = report(HEIRS.ids[0], node, target_record(0), **said)
        replicas = {**nodes[node].replicas, HEIRS.ids[0]: told}
        nodes[node] = dataclasses.replace(nodes[node], replicas=replicas)
    assert target(seen(dataclasses.replace(view, nodes=nodes)), 0).lost == lost


def test_a_target_is_in_sync_when_all_its_nodes_that_are_left_are() -> None:
    """A range would be cut over to one copy, or wait for a node that is gone for good."""
    view = with_targets(world().view())
    assert all(h.in_sync and h.open for h in seen(view).targets.values())
    alone = dataclasses.replace(
        view, routes=view.routes.changed({HEIRS.ids[0]: target_record(0, isr=(0,))})
    )
    assert not target(seen(alone), 0).in_sync
    nodes = {**alone.nodes, 1: dataclasses.replace(alone.nodes[1], lost=True)}
    left = target(seen(dataclasses.replace(alone, nodes=nodes)), 0)
    assert (left.nodes, left.in_sync) == ((0,), True)


@pytest.mark.proves("DCP-08")
def test_a_target_is_not_in_sync_before_its_indexes_are() -> None:
    """Lookups would be refused after the cut-over, where they were answered before."""
    view = with_targets(
        world().view(), n0={"index": IndexPosition(100, "u", (b"i",)), "committed_offset": 100}
    )
    view = dataclasses.replace(view, indexes={b"i": "by_name"})
    assert target(seen(view), 0).in_sync
    assert not target(seen(view), 1).in_sync


def test_replicas_of_a_layout_that_is_over_are_stopped_where_they_come_up() -> None:
    """A node that was away would keep the rows of a re-sharding's other side for ever."""
    view = with_targets(world().view())
    assert strays(view) == ()
    intended = dataclasses.replace(view, cancel_revision=REVISION)
    assert strays(intended) == (), "its table stands: its seals are not revoked yet"
    cancelled = dataclasses.replace(intended, routes=view.routes.without(1))
    stops = strays(cancelled)
    assert {(s.partition, s.node) for s in stops} == {
        (HEIRS.ids[index], node) for index, nodes in enumerate(NEW) for node in nodes
    }
    assert all(s.leader_epoch > 1 for s in stops), "leaders refuse to stop in their own epoch"
    before_created = dataclasses.replace(cancelled, cancel_revision=None)
    assert strays(before_created) == ()
    done = dataclasses.replace(view, stable=NEW, generation=1, pending=None, pending_generation=1)
    assert strays(done) == (), "scans that began before may still read them"
    over = strays(dataclasses.replace(done, routes=view.routes.without(0)))
    assert {s.partition for s in over} == {0, 1}


def test_who_was_not_heard_yet_may_have_anything() -> None:
    """What a new coordinator has not heard of would be taken for stopped."""
    view = world().view()
    first = view.nodes[0]
    for changes, unreported in (
        ({}, 0),
        ({"reachable": False}, 1),
        ({"reachable": False, "lost": True}, 0),
        ({"reachable": False, "unreachable_since": NOW}, 0),
    ):
        nodes = {**view.nodes, 0: dataclasses.replace(first, **changes)}
        assert seen(dataclasses.replace(view, nodes=nodes)).unreported == unreported


def test_a_node_that_is_not_there_gets_no_target() -> None:
    """A target would wait for a data node that was retired meanwhile."""
    view = world().view()
    nodes = {n: v for n, v in view.nodes.items() if n}
    found = seen(dataclasses.replace(view, nodes=nodes), RebalanceTaskStatus())
    assert target(found, 0).nodes == (1,)
