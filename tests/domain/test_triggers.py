"""When a zone is planned anew, and how long a change of nodes has to last first."""

from datetime import timedelta

import pytest
from worlds import NOW, OLD

from rezone.domain.triggers import Trigger, due_in, find_trigger
from rezone.domain.world import Topology
from rezone.resources.zone import AutoAdjustSpec


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


@pytest.mark.parametrize(
    ("trigger", "lasted", "left"),
    [
        (Trigger.NODES_JOINED, 0, 10),
        (Trigger.NODES_JOINED, 10, 0),
        (Trigger.NODES_CHANGED, 4, 6),
        (Trigger.NODES_LEFT, 10, 290),
        (Trigger.NODES_LEFT, 4000, 0),
        (Trigger.REPLICAS_CHANGED, 0, 0),
    ],
)
def test_a_change_must_last(trigger: Trigger, lasted: float, left: float) -> None:
    """A node that is away for a minute would cost a rebalance; one that stays away would not."""
    # The start is what the zone's status says, so a restarted operator waits for the rest only.
    since = NOW - timedelta(seconds=lasted)
    due = due_in(trigger, SETTINGS, since=since, now=NOW, by_hand=False)
    assert due == timedelta(seconds=left)


@pytest.mark.parametrize("trigger", list(Trigger))
def test_what_a_person_did_waits_for_nothing(trigger: Trigger) -> None:
    """Whoever cordons a node would wait five minutes for the first move."""
    assert due_in(trigger, SETTINGS, since=NOW, now=NOW, by_hand=True) == timedelta(0)
