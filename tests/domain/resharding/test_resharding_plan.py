"""Plans of re-shardings: every range comes from somewhere, and stays where it is if it can."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rezone.domain.planner.plan import NodeInfo, NotPlaceableError, PlanRequest, plan
from rezone.domain.resharding.plan import OldZone, plan_resharding
from rezone.wire.layouts import Layout, index_of, overlaps

COUNTS = st.integers(1, 24)


def nodes_of(count: int, gone: tuple[int, ...] = ()) -> tuple[NodeInfo, ...]:
    """Return nodes, some of them not available."""
    return tuple(NodeInfo(id=node, available=node not in gone) for node in range(count))


def zone(partitions: int, replicas: int, nodes: int, size: int = 1 << 20) -> OldZone:
    """Return a zone as the planner has placed it."""
    request = PlanRequest(partitions=partitions, replicas=replicas, nodes=nodes_of(nodes))
    topology = plan(request).target
    return OldZone(
        layout=Layout(2, partitions),
        topology=topology,
        leaders=tuple(row[0] for row in topology),
        partition_bytes=(size,) * partitions,
    )


@pytest.mark.proves("B-08")
@settings(max_examples=60, deadline=None)
@given(COUNTS, COUNTS, st.integers(1, 3), st.integers(3, 7), st.data())
def test_every_target_lives_on_as_many_nodes_as_it_has_replicas(
    first: int, second: int, replicas: int, nodes: int, data: st.DataObject
) -> None:
    """A new partition would have one replica too few, or one on a node that is gone."""
    old = zone(first, replicas, nodes)
    gone = data.draw(st.sets(st.integers(0, nodes - 1), max_size=nodes - replicas))
    infos = nodes_of(nodes, tuple(gone))
    made = plan_resharding(old, old.layout.next(second), replicas=replicas, nodes=infos, revision=9)
    assert made.layout == Layout(3, second)
    assert len(made.target) == second
    assert made.replicas == second * replicas
    for row in made.target:
        assert len(set(row)) == replicas
        assert not set(row) & gone
    assert 0 <= made.bytes_sent <= made.bytes_copied


@pytest.mark.proves("B-08", "B-02")
@settings(max_examples=40, deadline=None)
@given(st.integers(1, 4), st.integers(2, 6), st.integers(1, 3), st.integers(3, 6))
def test_an_even_zone_that_grows_by_a_multiple_keeps_every_range_on_its_nodes(
    rounds: int, factor: int, replicas: int, nodes: int
) -> None:
    """Rows would cross the network although every node could keep what it has."""
    partitions = rounds * nodes  # so that every node holds and leads the same
    old = zone(partitions, replicas, nodes)
    layout = old.layout.next(partitions * factor)
    made = plan_resharding(old, layout, replicas=replicas, nodes=nodes_of(nodes), revision=9)
    assert made.bytes_sent == 0
    for hash_range in overlaps(old.layout, layout):
        row = made.target[index_of(hash_range.new)]
        assert set(row) == set(old.topology[index_of(hash_range.old)])
        assert row[0] == old.leaders[index_of(hash_range.old)]


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 12), st.integers(2, 4), st.integers(1, 3), st.integers(3, 6))
def test_a_plan_sends_no_more_than_one_made_from_nothing(
    partitions: int, factor: int, replicas: int, nodes: int
) -> None:
    """The old places of rows would not count."""
    old = zone(partitions, replicas, nodes)
    more = partitions * factor
    made = plan_resharding(
        old, old.layout.next(more), replicas=replicas, nodes=nodes_of(nodes), revision=9
    )
    fresh = plan(PlanRequest(partitions=more, replicas=replicas, nodes=nodes_of(nodes))).target
    size = old.partition_bytes[0] // factor
    strange = sum(
        len(set(row) - set(old.topology[index // factor])) for index, row in enumerate(fresh)
    )
    assert made.bytes_sent <= math.ceil(strange * (size + 1))


def test_a_merged_partition_lives_where_most_of_its_rows_are() -> None:
    """A partition of two would be sent whole, though one of its nodes holds both halves."""
    old = OldZone(
        layout=Layout(0, 2),
        topology=((0, 1), (2, 1)),
        leaders=(0, 2),
        partition_bytes=(100, 300),
    )
    made = plan_resharding(old, old.layout.next(1), replicas=2, nodes=nodes_of(3), revision=1)
    assert made.target == ((2, 1),)
    assert (made.bytes_copied, made.bytes_sent) == (800, 100)


def test_plans_are_equal_to_the_byte_and_say_when_there_is_no_place() -> None:
    """What a person approves would not be what is carried out."""
    old = zone(6, 3, 5)
    first, second = (
        plan_resharding(old, old.layout.next(10), replicas=3, nodes=nodes_of(5), revision=4)
        for _ in range(2)
    )
    assert first == second
    other = plan_resharding(old, old.layout.next(11), replicas=3, nodes=nodes_of(5), revision=4)
    assert other.hash != first.hash
    with pytest.raises(NotPlaceableError):
        plan_resharding(
            old, old.layout.next(10), replicas=3, nodes=nodes_of(5, (0, 1, 2)), revision=4
        )
