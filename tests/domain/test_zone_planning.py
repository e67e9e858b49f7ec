"""What a zone's pass decides about placement and triggers, without a cluster."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rezone.domain import assignments
from rezone.domain.planner import NodeInfo, PlanRequest, plan
from rezone.domain.triggers import Trigger, find_trigger
from rezone.domain.world import Topology
from rezone.domain.zone_planning import ZonePlanning
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
    **status: Any,
) -> ZonePlanning:
    """Run a pass's planning."""
    keys = Assignments()
    if stable is not None:
        keys = assignments.first(keys, stable, 10)
    known = DistributionZoneStatus(data_nodes=data_nodes, assignments=keys, **status)
    leaders = tuple(replicas[0] for replicas in stable or ())
    return ZonePlanning(what, known, leaders=leaders, now=NOW).run()


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
    again = run(zone(), found, stable, trigger_time=first.status.trigger_time)
    assert again.status == first.status


def test_a_joined_node_is_asked_for() -> None:
    """A new node would stay empty."""
    found = nodes("a", "b", "c", "d")
    made = run(zone(), found, planned(found[:3]))
    pending = made.status.assignments.pending
    assert pending is not None
    assert pending.revision == 50
    assert made.status.trigger_time is None


def test_a_node_that_left_is_waited_for() -> None:
    """A rebooting node would cost a rebalance; the wait would begin anew with the operator."""
    found = nodes("a", "b", "c", "d", n0=DataNodeState.LOST)
    since = NOW - timedelta(seconds=100)
    made = run(zone(), found, planned(found), trigger_time=since)
    assert made.status.assignments.pending is None
    assert made.status.trigger_time == since
    assert made.wake_seconds == 200
    drained = nodes("a", "b", "c", "d", n0=DataNodeState.DRAINING)
    assert run(zone(), drained, planned(drained)).status.assignments.pending is not None


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
