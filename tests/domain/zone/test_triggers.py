"""When a zone is planned again, and how long a change of nodes has to last first."""

import math
from datetime import timedelta

import pytest
from worlds import NOW, OLD

from rezone.domain.routing.topology_text import Topology
from rezone.domain.zone.triggers import Due, Trigger, find_due, find_trigger, with_trigger_times
from rezone.resources.zone import AutoAdjustSpec
from rezone.resources.zone_status import (
    DataNodeState,
    DataNodeStatus,
    MaintenanceState,
    MaintenanceStatus,
    PlacedAs,
)


@pytest.mark.parametrize(
    ("topology", "eligible", "replicas", "expected"),
    [
        (OLD, {0, 1, 2}, 3, None),
        (OLD, {0, 1, 2, 3}, 3, Trigger.NODES_JOINED),
        (OLD, {0, 1}, 3, Trigger.NODES_LEFT),
        (OLD, {0, 1, 3}, 3, Trigger.NODES_LEFT),
        (OLD, {0, 1, 2}, 2, Trigger.REPLICAS_CHANGED),
        (OLD, {0, 1, 2}, 4, Trigger.REPLICAS_CHANGED),
        (((0, 1),), {0, 1, 2}, 2, None),
        (((0,), (1,)), {0, 1, 2, 3}, 1, None),
    ],
    ids=[
        "fits",
        "joined",
        "left",
        "left-and-joined",
        "fewer-replicas",
        "more-replicas",
        "more-nodes-than-replicas",
        "spare-nodes",
    ],
)
def test_triggers(
    topology: Topology, eligible: set[int], replicas: int, expected: Trigger | None
) -> None:
    """A zone would move without need, or stay on nodes it has lost; leaving counts first."""
    assert find_trigger(topology, eligible=frozenset(eligible), replicas=replicas) is expected


@pytest.mark.proves("ZR-03")
@pytest.mark.parametrize(
    ("eligible", "changed", "expected"),
    [
        ({0, 1, 2}, {1}, Trigger.NODES_CHANGED),
        ({0, 1, 2, 3}, {1}, Trigger.NODES_JOINED),
        ({0, 1}, {2}, Trigger.NODES_LEFT),
    ],
)
def test_another_weight_or_domain_is_a_trigger(
    eligible: set[int], changed: set[int], expected: Trigger
) -> None:
    """A node relabelled would go on holding what it held; one change would hide another."""
    found = find_trigger(OLD, eligible=frozenset(eligible), replicas=3, changed=frozenset(changed))
    assert found is expected


SETTINGS = AutoAdjustSpec(scale_up_seconds=10, scale_down_seconds=300)


def node(
    number: int, state: DataNodeState = DataNodeState.ACTIVE, *, lasted: float | None = None
) -> DataNodeStatus:
    """Return a data node that has been different for so long."""
    since = None if lasted is None else NOW - timedelta(seconds=lasted)
    return DataNodeStatus(id=number, pod_name=f"z-{number}", state=state, trigger_time=since)


LOST, DRAINING = DataNodeState.LOST, DataNodeState.DRAINING
HERE = (node(0), node(1), node(2))
AWAY = node(0).model_copy(
    update={
        "maintenance": MaintenanceStatus(
            since_time=NOW,
            until_time=NOW + timedelta(hours=1),
            state=MaintenanceState.ACTIVE,
        )
    }
)


@pytest.mark.parametrize(
    ("nodes", "replicas", "expected"),
    [
        (HERE, 3, Due(None, frozenset(), math.inf)),
        ((*HERE, node(3, lasted=0)), 3, Due(None, frozenset(), 10)),
        ((*HERE, node(3, lasted=10)), 3, Due(Trigger.NODES_JOINED, frozenset(), math.inf)),
        (
            (*HERE, node(3, lasted=2), node(4, lasted=10)),
            3,
            Due(Trigger.NODES_JOINED, frozenset(), math.inf),
        ),
        ((node(0, LOST, lasted=10), *HERE[1:]), 3, Due(None, frozenset({0}), 290)),
        (
            (node(0, LOST, lasted=10), *HERE[1:], node(3, lasted=60)),
            3,
            Due(None, frozenset({0}), 290),
        ),
        (
            (node(0, LOST, lasted=4000), *HERE[1:]),
            3,
            Due(Trigger.NODES_LEFT, frozenset(), math.inf),
        ),
        (
            (node(0, LOST, lasted=300), node(1, LOST, lasted=1), node(2)),
            3,
            Due(Trigger.NODES_LEFT, frozenset({1}), 299),
        ),
        (
            (node(0, DRAINING), node(1, LOST, lasted=1), node(2)),
            3,
            Due(Trigger.NODES_LEFT, frozenset({1}), 299),
        ),
        (HERE, 2, Due(Trigger.REPLICAS_CHANGED, frozenset(), math.inf)),
        ((AWAY, *HERE[1:], node(3, lasted=60)), 3, Due(None, frozenset({0}), math.inf)),
        (
            (AWAY, node(1, DRAINING), node(2)),
            3,
            Due(Trigger.NODES_LEFT, frozenset({0}), math.inf),
        ),
    ],
    ids=[
        "fits",
        "just-joined",
        "joined",
        "one-of-two-joined",
        "just-lost",
        "joined-beside-lost",
        "lost",
        "one-of-two-lost",
        "drained-beside-lost",
        "replicas",
        "joined-beside-maintenance",
        "drained-beside-maintenance",
    ],
)
def test_each_node_has_its_own_time(
    nodes: tuple[DataNodeStatus, ...], replicas: int, expected: Due
) -> None:
    """A change must last; a drain and a new replica count wait for nothing.

    A node that is away for a minute would cost a rebalance; one that stays away would not.
    """
    assert find_due(OLD, nodes, SETTINGS, replicas=replicas, now=NOW) == expected


def test_a_relabelled_node_waits_as_a_new_one() -> None:
    """A weight that changes must last for scaleUpSeconds.

    A label that is set in two steps would cost two rebalances.
    """
    heavier = node(0, lasted=4).model_copy(update={"placed_as": PlacedAs(weight=7)})
    found = find_due(OLD, (heavier, *HERE[1:]), SETTINGS, replicas=3, now=NOW)
    assert found == Due(None, frozenset(), 6)


def test_a_place_that_was_stored_as_text_is_read() -> None:
    """Each node of a zone of the version before would count as relabelled: a rebalance."""
    for stored, found in (
        ("2@zone-a", PlacedAs(weight=2, failure_domain="zone-a")),
        ("1@", PlacedAs(weight=1)),
        ("", None),
    ):
        node_before = {"id": 1, "podName": "z-1", "placedAs": stored}
        assert DataNodeStatus.model_validate(node_before).placed_as == found


def test_times_begin_with_the_difference_and_end_with_it() -> None:
    """A node has a trigger time exactly while it differs from the assignment.

    A second absence would be counted from the first, and a node copied away at once.
    """
    begun = with_trigger_times((node(0, LOST), *HERE[1:], node(3)), OLD, NOW)
    assert [n.trigger_time for n in begun] == [NOW, None, None, NOW]
    later = with_trigger_times(begun, OLD, NOW + timedelta(seconds=9))
    assert later == begun
    ended = with_trigger_times((node(0, lasted=5), node(1), node(2)), OLD, NOW)
    assert {n.trigger_time for n in ended} == {None}
