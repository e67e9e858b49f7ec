"""Maintenance of a data node: who may be away, until when, and what is told of it."""

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from worlds import NOW, World

from rezone.domain.observed import maintenance
from rezone.domain.zone.data_nodes import KubeNode, Presence, plan_data_nodes
from rezone.resources.conditions import Reason
from rezone.resources.zone import DataNodesSpec
from rezone.resources.zone_status import (
    DataNodeState,
    DataNodeStatus,
    MaintenanceState,
    MaintenanceStatus,
)

HOUR = timedelta(hours=1)
WAITING, ACTIVE, OVER = MaintenanceState.WAITING, MaintenanceState.ACTIVE, MaintenanceState.OVER


def spec(*wanted: int, **more: Any) -> DataNodesSpec:
    """Return a zone of three data nodes, these of them to be in maintenance for an hour."""
    asked = [{"node": n, "durationSeconds": 3600} for n in wanted]
    return DataNodesSpec.model_validate({"count": 3, "maintenance": asked} | more)


def node(number: int, asked: MaintenanceState | None = None, **changes: Any) -> DataNodeStatus:
    """Return a data node, in maintenance since now if a state is given."""
    end = NOW + HOUR
    status = MaintenanceStatus(since_time=NOW, until_time=end, state=asked) if asked else None
    usual = DataNodeStatus(
        id=number,
        pod_name=f"z-{number}",
        node_name=f"k{number}",
        state=DataNodeState.ACTIVE,
        maintenance=status,
    )
    return usual.model_copy(update=changes)


# --- what is asked for ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("90m", NOW + timedelta(minutes=90)),
        ("1h30m", NOW + timedelta(minutes=90)),
        ("3600s", NOW + HOUR),
        ("2026-01-01T06:00:00Z", datetime(2026, 1, 1, 6, tzinfo=UTC)),
        ("2026-01-01T06:00:00+02:00", datetime(2026, 1, 1, 4, tzinfo=UTC)),
    ],
)
def test_an_annotation_is_a_duration_or_a_time(text: str, end: datetime) -> None:
    """A node would be replaced in the middle of its maintenance, or be waited for too long."""
    assert maintenance.until(text, NOW) == end


@pytest.mark.parametrize(
    "text", ["soon", "1", "-1h", "30s", "8d", "169h", "2026-01-01T06:00:00", "2026-02-01T00:00:00Z"]
)
def test_a_bad_annotation_says_what_is_wrong(text: str) -> None:
    """A misspelt time is refused by name.

    The person would believe that the node is in maintenance, and its data be copied away.
    """
    with pytest.raises(ValueError, match=text[:3]):
        maintenance.until(text, NOW)
    assert maintenance.requested(node(0), spec(), text, NOW) is None
    said = maintenance.told((node(0),), spec(), {"k0": text}, World().view(), NOW)
    assert said is not None
    assert said.reason is Reason.INVALID_MAINTENANCE
    assert "k0" in said.message


def test_a_request_waits_first_and_keeps_its_times() -> None:
    """The first pass writes the begin and the end; later passes keep both.

    The end would move on with every restart of the operator.
    """
    first = maintenance.requested(node(0), spec(0), "", NOW)
    assert first == MaintenanceStatus(since_time=NOW, until_time=NOW + HOUR, state=WAITING)
    active = node(0, ACTIVE)
    later = maintenance.requested(active, spec(0), "", NOW + HOUR / 2)
    assert later == active.maintenance
    assert maintenance.requested(active, spec(), "", NOW) is None


def test_a_request_is_over_at_its_time_and_can_be_made_longer() -> None:
    """A forgotten request must not keep a dead node for ever; a longer one must count."""
    over = maintenance.requested(node(0, ACTIVE), spec(), "1h", NOW + HOUR)
    assert over is not None
    assert over.state is OVER
    again = maintenance.requested(node(0, OVER), spec(), "2h", NOW + HOUR)
    assert again is not None
    assert (again.state, again.until_time) == (WAITING, NOW + 2 * HOUR)


def test_the_zones_word_wins_over_the_kubernetes_nodes() -> None:
    """Which of two ends counts would be a matter of chance."""
    found = maintenance.requested(node(0), spec(0), "2h", NOW)
    assert found is not None
    assert found.until_time == NOW + HOUR


# --- what is safe -----------------------------------------------------------------------------


def test_a_node_that_can_be_spared_begins() -> None:
    """A safe request would wait for ever."""
    (after, *_) = maintenance.admitted((node(0, WAITING), node(1), node(2)), World().view())
    assert after.maintenance is not None
    assert (after.maintenance.state, after.maintenance.waiting_for) == (ACTIVE, "")


@pytest.mark.proves("B-07")
@pytest.mark.parametrize(
    "changes",
    [
        {"silent": {1: 1.0}},
        {"leaving": {2}},
        {"lost": {2}},
        {"settings": {"min_in_sync": 3}},
    ],
    ids=["silent", "leaving", "lost", "minimum"],
)
def test_a_node_that_cannot_be_spared_waits_and_says_why(changes: dict[str, Any]) -> None:
    """A request waits while it would leave fewer in sync than minInSyncReplicas.

    Writes would be refused for as long as the node is away.
    """
    (after, *_) = maintenance.admitted((node(0, WAITING),), World(**changes).view())
    assert after.maintenance is not None
    assert after.maintenance.state is WAITING
    assert "partition 0" in after.maintenance.waiting_for
    said = maintenance.told((after,), spec(0), {}, World().view(), NOW)
    assert said is not None
    assert (said.active, said.reason) == (False, Reason.MAINTENANCE_UNSAFE)


@pytest.mark.proves("B-07")
def test_of_two_nodes_that_share_a_partition_one_waits() -> None:
    """Two nodes that were asked for at once would take a partition's quorum together."""
    after = maintenance.admitted((node(0, WAITING), node(1, WAITING), node(2)), World().view())
    states = [n.maintenance.state for n in after if n.maintenance is not None]
    assert states == [ACTIVE, WAITING]
    again = maintenance.admitted(after, World().view())
    assert again == after


# --- what it means ----------------------------------------------------------------------------


def planned(
    current: DataNodeStatus, wanted: DataNodesSpec, now: datetime, **changes: Any
) -> tuple[DataNodeStatus, ...]:
    """Plan the data nodes while node 0's Kubernetes node is cordoned and node 0 silent."""
    nodes = (current, node(1), node(2))
    kube = {f"k{n}": KubeNode(name=f"k{n}", schedulable=n > 0) for n in range(3)}
    kube["k0"] = dataclasses.replace(kube["k0"], **changes)
    presence = {
        n: Presence(pod=n > 0, node_name=f"k{n}" if n else "", reachable=n > 0) for n in range(3)
    }
    presence[0] = dataclasses.replace(presence[0], unreachable_since=NOW)
    made = plan_data_nodes(
        zone="z",
        spec=wanted,
        current=nodes,
        next_node_id=3,
        kube_nodes=kube,
        presence=presence,
        assigned=frozenset({0, 1, 2}),
        lost_after=timedelta(seconds=300),
        now=now,
    )
    return made.nodes


SELECTED: dict[str, Any] = {"count": None, "nodeSelector": {"pool": "a"}}


@pytest.mark.parametrize("more", [{}, SELECTED], ids=["count", "selector"])
def test_a_node_in_maintenance_is_neither_drained_nor_lost_nor_replaced(
    more: dict[str, Any],
) -> None:
    """A cordoned, silent node keeps its place until its time is over.

    Its data would be copied away, and copied back when the node has rebooted.
    """
    labels = {"pool": "a"}
    before = planned(node(0, ACTIVE), spec(0, **more), NOW + HOUR / 2, labels=labels)
    assert before[0].state is DataNodeState.ACTIVE
    assert max(n.id for n in before) == 2
    after = planned(before[0], spec(0, **more), NOW + HOUR, labels=labels)
    assert after[0].state is DataNodeState.LOST
    ended = planned(before[0], spec(**more), NOW + HOUR / 2, labels=labels)
    assert ended[0].state is DataNodeState.LOST


def test_an_annotation_turns_a_cordon_into_maintenance() -> None:
    """A plain cordon drains; with the annotation the data stays."""
    plain = planned(node(0), spec(), NOW)
    assert plain[0].state is DataNodeState.DRAINING
    told = planned(node(0), spec(), NOW, maintenance="1h")
    assert told[0].state is DataNodeState.ACTIVE
    assert told[0].maintenance is not None
    assert told[0].maintenance.state is WAITING


def test_a_node_that_was_given_up_is_taken_back_by_maintenance() -> None:
    """A node that is down already is not replaced when a person says that it comes back."""
    lost = node(0, ACTIVE, state=DataNodeState.LOST)
    assert planned(lost, spec(0), NOW + HOUR / 2)[0].state is DataNodeState.ACTIVE


def test_it_is_told_who_is_in_maintenance_until_when() -> None:
    """The zone names node, end, and whether the node may stop."""
    world = World().view()
    busy = maintenance.told((node(0, ACTIVE), node(1)), spec(0), {}, world, NOW)
    assert busy is not None
    assert (busy.active, busy.reason) == (True, Reason.MAINTENANCE)
    assert "data node 0 on k0 is in maintenance until 2026-01-01T01:00:00Z" in busy.message
    assert "its leaders leave" in busy.message
    free = maintenance.told((node(2, ACTIVE),), spec(2), {}, world, NOW)
    assert free is not None
    assert "may stop" in free.message
    assert maintenance.told((node(0),), spec(), {}, world, NOW) is None
    absent = maintenance.told((node(0),), spec(9), {}, world, NOW)
    assert absent is not None
    assert "data node 9" in absent.message
