"""What a zone's pass decides about placement and triggers, without a cluster."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rezone.domain.assignment import assignments
from rezone.domain.planner.plan import NodeInfo, PlanRequest, plan
from rezone.domain.routing.topology_text import Topology
from rezone.domain.zone.planning import ZonePlanning
from rezone.domain.zone.triggers import Trigger, find_trigger
from rezone.resources.conditions import Reason
from rezone.resources.zone import DistributionZone
from rezone.resources.zone_status import (
    Assignments,
    DataNodeState,
    DataNodeStatus,
    DistributionZoneStatus,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def zone(**spec: Any) -> DistributionZone:
    """Return a zone of 4 partitions, 3 replicas."""
    usual = {"partitions": 4, "replicas": 3, "dataNodes": {"nodeSelector": {"pool": "a"}}}
    metadata = {
        "name": "z",
        "namespace": "ns",
        "uid": "u",
        "resourceVersion": "50",
        "creationTimestamp": (NOW - timedelta(seconds=10)).isoformat(),
    }
    return DistributionZone.parse({"metadata": metadata, "spec": usual | spec})


def nodes(*domains: str, **states: DataNodeState) -> tuple[DataNodeStatus, ...]:
    """Return active data nodes in these failure domains; `n1=...` sets a state."""
    return tuple(
        DataNodeStatus(
            id=n,
            pod_name=f"z-{n}",
            failure_domain=domain,
            state=states.get(f"n{n}", DataNodeState.ACTIVE),
        )
        for n, domain in enumerate(domains)
    )


def run(
    what: DistributionZone,
    data_nodes: tuple[DataNodeStatus, ...],
    stable: Topology | None = None,
    avoided: frozenset[int] = frozenset(),
    **status: Any,
) -> ZonePlanning:
    """Run a pass's planning."""
    keys = Assignments()
    if stable is not None:
        keys = assignments.first(keys, stable, 10)
    known = DistributionZoneStatus(data_nodes=data_nodes, assignments=keys, **status)
    leaders = tuple(replicas[0] for replicas in stable or ())
    return ZonePlanning(what, known, leaders=leaders, now=NOW, avoided=avoided).run()


def planned(data_nodes: tuple[DataNodeStatus, ...]) -> Topology:
    """Return the planner's own topology for these nodes."""
    infos = tuple(
        NodeInfo(id=n.id, failure_domain=n.failure_domain, available=True) for n in data_nodes
    )
    return plan(PlanRequest(partitions=4, replicas=3, nodes=infos)).target


def test_a_node_that_cannot_be_used_asks_for_nothing() -> None:
    """Each pass would write a new revision and wake the next one, for ever."""
    # Each partition has a replica in each of three domains: four for the five nodes of "a".
    found = nodes("a", "a", "a", "a", "a", "b", "c")
    stable = planned(found)
    eligible = frozenset(n.id for n in found)
    assert find_trigger(stable, eligible=eligible, replicas=3) is Trigger.NODES_JOINED
    first = run(zone(), found, stable)
    assert first.status.assignments.change == 10
    assert first.status.assignments.pending is None
    again = run(zone(), first.status.data_nodes, stable)
    assert again.status == first.status


def test_a_joined_node_is_asked_for() -> None:
    """A new node would stay empty."""
    found = nodes("a", "b", "c", "d")
    made = run(zone(), found, planned(found[:3]))
    pending = made.status.assignments.pending
    assert pending is not None
    assert pending.revision == 50
    assert {n.trigger_time for n in made.status.data_nodes} == {None}


def test_an_empty_node_whose_copies_have_failed_is_left_alone() -> None:
    """A new node with a full disk starts no rebalance while its copies have failed lately.

    Each task would fail at once, and the next pass plan the same one: 117 tasks in 25 seconds.
    """
    found = nodes("a", "b", "c", "d", "e")
    stable = planned(found[:3])
    assert run(zone(), found[:4], stable, frozenset({3})).status.assignments.pending is None
    made = run(zone(), found, stable, frozenset({3})).status.assignments.pending
    assert made is not None
    placed = {node for row in assignments.parse(made.replicas) for node in row}
    assert (3 in placed, 4 in placed) == (False, True), "the other new node gets its share"


def test_a_node_that_holds_partitions_keeps_them_when_a_copy_to_it_has_failed() -> None:
    """A failed copy of one partition would move all others away from its node."""
    found = nodes("a", "b", "c")
    assert run(zone(), found, planned(found), frozenset({2})).status.assignments.pending is None


def since(seconds: float) -> datetime:
    """Return the time so many seconds ago."""
    return NOW - timedelta(seconds=seconds)


def lost(found: tuple[DataNodeStatus, ...], **seconds: float) -> tuple[DataNodeStatus, ...]:
    """Return the nodes, `n1=5` lost for 5 seconds as far as its assignment is concerned."""
    return tuple(
        node.model_copy(update={"state": DataNodeState.LOST, "trigger_time": since(lasted)})
        if (lasted := seconds.get(f"n{node.id}")) is not None
        else node
        for node in found
    )


def test_a_node_that_left_is_waited_for() -> None:
    """A rebooting node would cost a rebalance; the wait would begin again with the operator."""
    found = nodes("a", "b", "c", "d")
    made = run(zone(), lost(found, n0=100), planned(found))
    assert made.status.assignments.pending is None
    assert made.status.data_nodes[0].trigger_time == since(100)
    assert made.wake_seconds == 200
    drained = nodes("a", "b", "c", "d", n0=DataNodeState.DRAINING)
    assert run(zone(), drained, planned(drained)).status.assignments.pending is not None


@pytest.mark.proves("ZR-03")
def test_each_lost_node_is_waited_for_by_itself() -> None:
    """The setting scaleDownSeconds counts from when that node was lost.

    A node that rebooted soon after another was lost would be copied away after seconds.
    """
    found = nodes("a", "b", "c", "d", "e", "f")
    stable = planned(found)
    made = run(zone(), lost(found, n0=300, n1=10), stable)
    pending = made.status.assignments.pending
    assert pending is not None
    target = assignments.parse(pending.replicas)
    assert all(0 not in row for row in target)
    holds = {p for p, row in enumerate(stable) if 1 in row}
    assert holds
    assert {p for p, row in enumerate(target) if 1 in row} == holds
    assert made.status.data_nodes[1].trigger_time == since(10)
    later = run(zone(), lost(found, n1=10), target)
    assert later.status.assignments.pending is None
    assert later.wake_seconds == 290


def test_a_drain_leaves_a_node_that_was_just_lost_alone() -> None:
    """A drained node moves at once, and only that node's replicas.

    Whoever cordons a node while another reboots would have both copied away.
    """
    found = nodes("a", "b", "c", "d", "e", n0=DataNodeState.DRAINING)
    stable = planned(nodes("a", "b", "c", "d", "e"))
    made = run(zone(), lost(found, n1=10), stable)
    assert made.status.assignments.pending is not None
    target = assignments.parse(made.status.assignments.pending.replicas)
    assert all(0 not in row for row in target)
    for before, after in zip(stable, target, strict=True):
        assert (1 in before) == (1 in after)
        assert set(before) - {0} <= set(after)


def test_the_wait_of_a_node_begins_when_it_is_lost_and_ends_when_it_is_back() -> None:
    """The time is written with the node and goes when the node is back.

    The next absence of that node would be counted from the first one.
    """
    found = nodes("a", "b", "c", "d")
    stable = planned(found)
    gone = nodes("a", "b", "c", "d", n0=DataNodeState.LOST)
    told = run(zone(), gone, stable).status.data_nodes
    assert [n.trigger_time for n in told] == [NOW, None, None, None]
    back = (told[0].model_copy(update={"state": DataNodeState.ACTIVE}), *told[1:])
    assert run(zone(), back, stable).status.data_nodes[0].trigger_time is None


def test_too_few_nodes_stall() -> None:
    """A person would not be told what is missing, or a node that goes would be counted in."""
    few = run(zone(), nodes("a", "b"))
    assert few.stalled is not None
    assert few.stalled[0] is Reason.NOT_ENOUGH_DATA_NODES
    assert "add data nodes" in few.stalled[1]
    going = run(zone(), nodes("a", "b", "c", n2=DataNodeState.DRAINING))
    assert going.stalled is not None


@pytest.mark.parametrize(
    ("age", "placed"), [(10, False), (120, True)], ids=["within-the-grace", "after-it"]
)
def test_first_placement_waits_for_slow_nodes(age: float, placed: bool) -> None:
    """Partitions would be placed on the first three pods of ten, and moved at once."""
    metadata = {"creationTimestamp": (NOW - timedelta(seconds=age)).isoformat()}
    body = zone().model_dump(by_alias=True)
    body["metadata"] |= metadata
    made = run(DistributionZone.parse(body), nodes("a", "b", "c", "d", n3=DataNodeState.STARTING))
    assert (made.place is not None) == placed
    assert made.stalled is None
    assert run(zone(), nodes("a", "b", "c")).place is not None


def resharded(
    partitions: int, keys: Assignments, data_nodes: tuple[DataNodeStatus, ...], revision: int = 50
) -> Assignments:
    """Return the keys after a pass of a zone whose spec wants so many partitions."""
    what = zone(partitions=partitions)
    what = what.model_copy(
        update={"metadata": what.metadata.model_copy(update={"resource_version": str(revision)})}
    )
    known = DistributionZoneStatus(data_nodes=data_nodes, assignments=keys)
    after = ZonePlanning(what, known, leaders=(0, 1, 2, 0), now=NOW).run().status.assignments
    assert assignments.violations(after) == ()
    return after


@pytest.mark.proves("ZR-02")
def test_another_number_of_partitions_is_asked_for_at_once() -> None:
    """A change of spec.partitions would be served by the old count, without a word."""
    found = nodes("a", "b", "c", n0=DataNodeState.LOST)
    stable = assignments.first(Assignments(), planned(nodes("a", "b", "c")), 10)
    more = nodes("a", "b", "c", "d", n0=DataNodeState.LOST)
    after = resharded(7, stable, more)
    assert after.stable == stable.stable
    assert after.pending is not None
    assert (after.pending.layout_version, after.pending.revision) == (1, 50)
    target = assignments.parse(after.pending.replicas)
    assert len(target) == 7
    assert all(0 not in row for row in target)
    assert resharded(7, after, more) == after
    assert resharded(7, stable, found) == stable  # two nodes have no place for three replicas


@pytest.mark.proves("ZR-02", "ZR-04")
def test_another_number_meanwhile_waits_and_the_old_one_takes_it_back() -> None:
    """A second change would replace what is under way, or be forgotten."""
    found = nodes("a", "b", "c")
    keys = resharded(8, assignments.first(Assignments(), planned(found), 10), found)
    waits = resharded(5, keys, found, 60)
    assert waits.planned is not None
    assert (waits.planned.layout_version, waits.pending) == (2, keys.pending)
    assert len(assignments.parse(waits.planned.replicas)) == 5
    back = resharded(8, waits, found, 70)
    assert (back.planned, back.pending) == (None, keys.pending)
    assert keys.pending is not None
    target = assignments.parse(keys.pending.replicas)
    done = assignments.complete(waits, 50, target)
    assert isinstance(done, Assignments)
    assert done.stable is not None
    assert done.pending is not None
    assert (done.stable.layout_version, done.pending.layout_version) == (1, 2)


@pytest.mark.proves("ZR-02", "ZR-20")
def test_a_cancelled_number_is_not_begun_again_before_it_changes() -> None:
    """What a person has cancelled would begin again at once, under ids with other ranges."""
    found = nodes("a", "b", "c")
    first = assignments.first(Assignments(), planned(found), 10)
    keys = resharded(5, resharded(8, first, found), found, 60)
    assert keys.pending is not None
    _, keys = assignments.intend_cancel(
        keys, 50, planned(found), assignments.parse(keys.pending.replicas)
    )
    cleared = assignments.clear_pending(keys, 50)
    assert isinstance(cleared, Assignments)
    assert (cleared.pending, cleared.planned) == (None, None)
    assert resharded(8, cleared, found, 70) == cleared
    status = DistributionZoneStatus(data_nodes=found, assignments=cleared)
    told = ZonePlanning(zone(partitions=8), status, leaders=(0, 1, 2, 0), now=NOW).run().stalled
    assert told is not None
    assert told[0] is Reason.CANCELLED
    assert "set spec.partitions to 4" in told[1]
    other = resharded(5, cleared, found, 80)
    assert other.pending is not None
    assert other.pending.layout_version == 3
    as_before = resharded(4, cleared, found, 80)
    assert as_before.cancelled_partitions == 0
    assert resharded(8, as_before, found, 90).pending is not None


def test_other_triggers_keep_the_partitions_that_there_are() -> None:
    """A node that joins would begin what was cancelled, or be placed by the wrong count."""
    found = nodes("a", "b", "c")
    stable = assignments.first(Assignments(), planned(found), 10)
    declined = stable.model_copy(update={"cancelled_partitions": 8})
    after = resharded(8, declined, nodes("a", "b", "c", "d"))
    assert after.pending is not None
    assert after.pending.layout_version == 0
    assert len(assignments.parse(after.pending.replicas)) == 4
    while_it_runs = resharded(8, resharded(8, stable, found), nodes("a", "b", "c", "d"), 60)
    assert while_it_runs.planned is not None
    assert while_it_runs.planned.layout_version == 1
    assert len(assignments.parse(while_it_runs.planned.replicas)) == 8


@pytest.mark.proves("SP-05")
def test_it_asks_for_a_layout_of_as_many_partitions() -> None:
    """The number of partitions would change, or the rows be those of before."""
    found = nodes("a", "b", "c")
    keys = assignments.first(Assignments(), planned(found), 10)
    status = DistributionZoneStatus(data_nodes=found, assignments=keys)
    for name in ("job", ""):
        made = ZonePlanning(zone(), status, leaders=(0, 1, 2, 0), now=NOW, overwrite=name).run()
        pending = made.status.assignments.pending
        assert (pending is not None) is bool(name)
    made = ZonePlanning(zone(), status, leaders=(0, 1, 2, 0), now=NOW, overwrite="job").run()
    pending = made.status.assignments.pending
    assert pending is not None
    assert (pending.filled_by, pending.layout_version) == ("job", 1)
    assert len(assignments.parse(pending.replicas)) == 4
