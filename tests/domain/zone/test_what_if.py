"""The plan for a zone that has changed is the one that the operator then makes."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from rezone.domain.assignment.assignments import compact, parse
from rezone.domain.planner.types import NotPlaceableError
from rezone.domain.zone.planning import ZonePlanning
from rezone.domain.zone.what_if import Joining, Question, answer
from rezone.resources.zone import DistributionZone
from rezone.resources.zone_status import DataNodeState, DataNodeStatus

NOW = datetime(2026, 1, 1, tzinfo=UTC)
Rows = tuple[tuple[int, ...], ...]


def zone_of(rows: Rows, replicas: int, nodes: int, **states: Any) -> DistributionZone:
    """Return a zone with an assignment; `states` are fields of its data nodes by `n<id>`."""
    spec = {"partitions": len(rows), "replicas": replicas, "dataNodes": {"count": nodes}}
    spec["dataNodes"] = {
        "count": nodes,
        "autoAdjust": {"scaleUpSeconds": 0, "scaleDownSeconds": 300},
    }
    data_nodes = [
        {
            "id": n,
            "podName": f"z-{n}",
            "state": "Active",
            "failureDomain": f"zone-{n % 2}",
            "placedAs": {"weight": 1, "failureDomain": f"zone-{n % 2}"},
            **states.get(f"n{n}", {}),
        }
        for n in range(nodes)
    ]
    stable = {"revision": 1, "replicas": compact(rows)}
    status = {
        "dataNodes": data_nodes,
        "nextNodeId": nodes,
        "assignments": {"stable": stable, "change": 1},
    }
    return DistributionZone.parse(
        {"metadata": {"name": "z", "resourceVersion": "9"}, "spec": spec, "status": status}
    )


def rows_of(partitions: int, replicas: int, nodes: int) -> Rows:
    """Return an even assignment."""
    return tuple(tuple((p + r) % nodes for r in range(replicas)) for p in range(partitions))


@st.composite
def zones(draw: st.DrawFn) -> DistributionZone:
    """Return zones at rest."""
    nodes = draw(st.integers(2, 6))
    replicas = draw(st.integers(1, min(3, nodes)))
    return zone_of(rows_of(draw(st.integers(1, 12)), replicas, nodes), replicas, nodes)


def as_the_operator_does(zone: DistributionZone, question: Question) -> Rows | str:
    """Return the newest assignment after a pass in which the change has happened, or why not."""
    assert zone.status is not None
    nodes = [
        node.model_copy(update={"state": DataNodeState.DRAINING})
        if node.id in question.without
        else node
        for node in zone.status.data_nodes
    ]
    nodes += [
        DataNodeStatus(
            id=zone.status.next_node_id + n,
            pod_name="x",
            state=DataNodeState.ACTIVE,
            failure_domain=each.failure_domain,
            weight=each.weight,
        )
        for n, each in enumerate(question.added)
    ]
    update: dict[str, Any] = {}
    if question.replicas:
        update["replicas"] = question.replicas
    if question.partitions:
        update["partitions"] = question.partitions
    changed = zone.model_copy(update={"spec": zone.spec.model_copy(update=update)})
    status = zone.status.model_copy(update={"data_nodes": tuple(nodes)})
    made = ZonePlanning(changed, status, leaders=leaders_of(zone), now=NOW).run()
    if made.stalled is not None:
        return made.stalled[1]
    keys = made.status.assignments
    newest = keys.planned or keys.pending or keys.stable
    assert newest is not None
    return parse(newest.replicas)


def leaders_of(zone: DistributionZone) -> tuple[int, ...]:
    """Return who leads: of every third partition not the preferred one."""
    assert zone.status is not None
    assert zone.status.assignments.stable is not None
    rows = parse(zone.status.assignments.stable.replicas)
    return tuple(row[-1 if p % 3 == 0 else 0] for p, row in enumerate(rows))


@pytest.mark.proves("OB-07")
@hypothesis_settings(max_examples=60)
@given(
    zone=zones(),
    gone=st.sets(st.integers(0, 5), max_size=2),
    joins=st.integers(0, 3),
    numbers=st.tuples(st.none() | st.integers(1, 3), st.none() | st.integers(1, 24)),
)
def test_the_plan_is_the_one_that_the_operator_makes(
    zone: DistributionZone, gone: set[int], joins: int, numbers: tuple[int | None, int | None]
) -> None:
    """Who asks before a change would see other moves than those that come then."""
    assert zone.status is not None
    replicas, partitions = numbers
    question = Question(
        without=frozenset(gone.intersection(node.id for node in zone.status.data_nodes)),
        added=tuple(Joining(f"zone-{n % 2}") for n in range(joins)),
        replicas=replicas,
        partitions=partitions,
    )
    expected = as_the_operator_does(zone, question)
    if isinstance(expected, str):
        with pytest.raises(NotPlaceableError, match=re.escape(expected)):
            answer(zone, leaders_of(zone), question, NOW)
        return
    found = answer(zone, leaders_of(zone), question, NOW)
    assert found.target == expected
    split = partitions not in {None, zone.spec.partitions}
    assert found.resharding == split


def test_moves_and_loads_of_a_node_that_goes() -> None:
    """Who drains a node would not learn what is copied for it."""
    zone = zone_of(rows_of(6, 2, 3), 2, 3)
    found = answer(zone, (0, 1, 2, 0, 1, 2), Question(without=frozenset({2})), NOW)
    assert found.base == "stable"
    assert all(2 not in row for row in found.target)
    assert found.copies == found.copies_lower_bound == 4
    assert found.partitions_copied == 4
    assert {move.why for move in found.moves} == {"NodeUnavailable"}
    assert {move.removed for move in found.moves} == {(2,)}


def test_a_plan_begins_at_what_is_pending() -> None:
    """While a rebalance runs the answer would be about an assignment that is on its way out."""
    zone = zone_of(rows_of(4, 1, 2), 1, 2)
    assert zone.status is not None
    keys = zone.status.assignments
    assert keys.stable is not None
    pending = keys.stable.model_copy(update={"revision": 5, "replicas": compact(((0,),) * 4)})
    status = zone.status.model_copy(
        update={"assignments": keys.model_copy(update={"pending": pending})}
    )
    found = answer(zone.model_copy(update={"status": status}), (0, 1, 0, 1), Question(), NOW)
    assert (found.base, found.before) == ("pending", ((0,),) * 4)
    assert found.copies == 2
    assert found.trigger == "NodesJoined"


def test_a_node_that_was_lost_a_moment_ago_keeps_what_it_has() -> None:
    """The answer would copy what the operator leaves alone, until scaleDownSeconds are over."""
    away = {"state": "Lost", "triggerTime": NOW.isoformat()}
    zone = zone_of(rows_of(4, 2, 4), 2, 4, n3=away)
    leaders = (0, 1, 2, 0)
    kept = answer(zone, leaders, Question(), NOW)
    assert not kept.copies
    assert any(3 in row for row in kept.target)
    later = answer(zone, leaders, Question(), NOW + timedelta(seconds=301))
    assert later.copies == 2
    assert answer(zone, leaders, Question(without=frozenset({3})), NOW).copies == 2


def test_a_zone_without_an_assignment_is_placed() -> None:
    """Who makes a zone would not see what it gets; its data nodes still start then."""
    zone = zone_of(rows_of(4, 2, 2), 2, 2, n0={"state": "Starting"})
    assert zone.status is not None
    status = zone.status.model_copy(update={"assignments": type(zone.status.assignments)()})
    found = answer(zone.model_copy(update={"status": status}), (), Question(), NOW)
    assert (found.base, found.before, found.copies) == ("", (), 0)
    assert sorted({n for row in found.target for n in row}) == [0, 1]


@pytest.mark.parametrize(
    ("question", "said"),
    [
        (Question(without=frozenset({7})), "no data node 7"),
        (Question(added=(Joining(),) * 1025), "at most 1024"),
        (Question(replicas=3), "3 replicas need 3 data nodes"),
    ],
)
def test_a_question_that_cannot_be_answered_is_refused(question: Question, said: str) -> None:
    """Somebody would read a plan for another question."""
    zone = zone_of(rows_of(4, 2, 2), 2, 2)
    with pytest.raises(ValueError, match=said):
        answer(zone, (0, 1, 0, 1), question, NOW)
    with pytest.raises(ValueError, match="weight"):
        Joining("a", 0)
