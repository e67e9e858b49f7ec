"""A paused zone: the operator changes no leader and no replica by itself, persons still do."""

import dataclasses
from datetime import timedelta
from typing import Any

import pytest
from rebalance_case import Case as TaskCase
from worlds import NOW, OLD, World, record

from rezone.domain.assignment import assignments, retained_replicas
from rezone.domain.assignment.missing_replicas import missing_replicas
from rezone.domain.assignment.standbys import standby_changes
from rezone.domain.observed.rollout import Situation, decide
from rezone.domain.repair import handover
from rezone.domain.repair.repairs import missing_copies, repairs, strays
from rezone.domain.zone.planning import ZonePlanning
from rezone.resources.task import TaskState
from rezone.resources.zone import DistributionZone, UpdateStrategySpec
from rezone.resources.zone_status import (
    Assignments,
    DataNodeState,
    DataNodeStatus,
    DistributionZoneStatus,
    RetainedReplica,
    RolloutStatus,
)
from rezone.wire.messages import IsrProposal


def paused(**changes: Any) -> World:
    """Return the observation of a paused zone."""
    return World(**({"settings": {"hands_off": True}} | changes))


GONE = {0: 100.0}


def test_no_leader_is_failed_over() -> None:
    """Whoever takes a network apart by hand would find all leaders moved."""
    assert repairs(World(silent=GONE).view(), NOW) != ()
    assert repairs(paused(silent=GONE).view(), NOW) == ()


def test_in_sync_sets_still_follow_their_leaders() -> None:
    """A set shrinks when its leader asks, also while the zone is paused.

    Every write would wait for a follower that is away.
    """
    world = paused()
    wanted = IsrProposal(new_isr=(0, 1), leader_epoch=4, partition_epoch=9, coordinator_epoch=1)
    world.reports[0, 0] = {"proposal": wanted}
    (change,) = repairs(world.view(), NOW)
    assert (change.state.leader, change.state.isr) == (0, (0, 1))


def test_a_leader_that_lost_its_rows_is_not_replaced_but_others_leave_the_set() -> None:
    """A member without rows must never lead, and no leader is changed."""
    world = paused()
    for node in (0, 2):
        world.reports[0, node] = {"needs_snapshot": True}
    (change,) = [c for c in repairs(world.view(), NOW) if c.partition == 0]
    assert (change.state.leader, 2 in change.state.isr) == (0, False)


def test_nothing_is_copied_stopped_or_rearranged() -> None:
    """Each would be a change of replicas that nobody has asked for."""
    world = paused()
    world.reports[0, 2] = {"needs_snapshot": True}
    world.reports[0, 4] = {}
    world.reports[1, 1] = {"damage": "a block"}
    world.settings["hot_standbys"] = 1
    world.settings["stable"] = ((0, 1, 2, 3), (1, 2, 0))
    view = world.view()
    assert missing_copies(view, task_copies=False) == ()
    assert strays(view) == ()
    assert missing_replicas(view) == ()
    assert standby_changes(view) == ()
    assert not handover.is_wanted(view)
    free = dataclasses.replace(view, hands_off=False)
    assert missing_copies(free, task_copies=False)
    assert strays(free)
    assert missing_replicas(free)
    assert standby_changes(free)
    assert handover.is_wanted(free)


def test_a_kept_replica_outlasts_its_time() -> None:
    """It would be stopped in the middle of somebody's work, or nobody would know why it is not."""
    kept = RetainedReplica(
        partition=0, node=3, migration="m", retained_time=NOW, retain_until_time=NOW
    )
    four = record(replicas=(0, 1, 2, 3), isr=(0, 1, 2, 3))
    world = paused(routes=[four, record(leader=1)])
    world.settings["retained"] = (kept,)
    view = world.view()
    assert retained_replicas.releases(view, NOW) == ()
    (told,) = retained_replicas.still_retained(view, NOW)
    assert told.waiting_for == "the zone is paused: spec.paused"


@pytest.mark.parametrize("changes", [{"leaving": {0}}, {"maintenance": {0}}])
def test_a_pod_that_stops_hands_its_leaders_over(changes: dict[str, Any]) -> None:
    """Who deletes a pod has asked for it: its partitions would be without a leader."""
    assert handover.handovers(paused(**changes).view(), NOW) != ()


def test_a_takeover_whose_leader_is_gone_is_taken_back() -> None:
    """It would hang for as long as the zone is paused, or be a failover."""
    world = paused(routes=[record()]).authorize()
    world.silent = GONE
    (written,) = handover.handovers(world.view(), NOW)
    (change,) = written.changes  # type: ignore[union-attr]
    assert (change.state.leader, change.state.next_leader) == (0, None)


@pytest.mark.parametrize(("revision", "waits"), [(2, True), (0, False)], ids=["operator", "person"])
def test_the_operators_task_rests_and_a_persons_goes_on(revision: int, waits: bool) -> None:
    """A task that the operator made would move partitions, or a person's order not be heard."""
    case = TaskCase(TaskState.SWITCHING)
    case.spec["revision"] = revision
    case.world.settings["hands_off"] = True
    decision = case.decide()
    assert decision.status.waiting_for.startswith("Paused: the zone's spec.paused") == waits
    assert (decision.actions == ()) == waits


def test_no_change_of_nodes_starts_a_rebalance() -> None:
    """A node that is gone keeps its place; since when is still noted.

    A rebalance would begin in the middle of the work, or the wait begin again at its end.
    """
    lost = DataNodeState.LOST
    nodes = tuple(
        DataNodeStatus(id=n, pod_name=f"z-{n}", state=DataNodeState.ACTIVE if n else lost)
        for n in range(4)
    )
    body = {
        "metadata": {"name": "z", "namespace": "ns", "uid": "u", "resourceVersion": "50"},
        "spec": {"partitions": 2, "replicas": 3, "dataNodes": {"count": 4}, "paused": True},
    }
    keys = assignments.first(Assignments(), OLD, 10)
    status = DistributionZoneStatus(data_nodes=nodes, assignments=keys)
    then = NOW - timedelta(days=1)
    first = ZonePlanning(DistributionZone.parse(body), status, leaders=(0, 1), now=then).run()
    zone = DistributionZone.parse(body)
    made = ZonePlanning(zone, first.status, leaders=(0, 1), now=NOW).run()
    assert made.status.assignments.pending is None
    assert made.status.data_nodes[0].trigger_time == then
    body["spec"] |= {"paused": False}  # type: ignore[operator]
    free = DistributionZone.parse(body)
    assert ZonePlanning(free, made.status, leaders=(0, 1), now=NOW).run().status != made.status


def test_no_pod_is_replaced_by_an_update() -> None:
    """A rolling update would move leaders."""
    seen = Situation(
        template_hash="t",
        strategy=UpdateStrategySpec(),
        nodes=frozenset({0}),
        pods=(),
        lagging=frozenset(),
        counted=frozenset(),
        sole=frozenset(),
        ephemeral=False,
        rebalancing=False,
        paused=True,
    )
    decision = decide(RolloutStatus(started_time=NOW), seen, NOW, "z")
    assert (decision.even_out, decision.held) == ("", True)
    assert decision.status is not None
    assert decision.status.waiting_for == "Paused: spec.paused"
