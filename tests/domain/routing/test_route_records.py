"""The route records of one layout, and of two while a zone is re-sharded."""

import msgspec
import pytest

from rezone.domain.routing import routes
from rezone.domain.routing.route_records import RouteRecords
from rezone.wire.codec.keyspace import PARTITIONS_MAX
from rezone.wire.layouts import Layout
from rezone.wire.messages import LeaderAndIsr


def records(count: int, leader: int = 0) -> list[LeaderAndIsr]:
    """Return first records, told apart by their leader."""
    return [routes.initial((leader + index, 90, 91), 1) for index in range(count)]


def sealed(table: RouteRecords, *partitions: int) -> RouteRecords:
    """Return the table with old partitions that have cut over."""
    return table.changed({p: msgspec.structs.replace(table[p], sealed=True) for p in partitions})


def test_a_partition_is_found_by_its_id_in_either_layout() -> None:
    """A record taken by its place in the table would be another partition's."""
    old, new = records(2), records(3, leader=10)
    table = RouteRecords(old, generation=4).with_next(new, 6)
    first = 4 * PARTITIONS_MAX
    ids = [first, first + 1, *(first + 2 * PARTITIONS_MAX + index for index in range(3))]
    assert list(table) == list(table.keys()) == ids
    assert [record.leader for record in table.values()] == [0, 1, 10, 11, 12]
    assert dict(table.items()) == {each: table[each] for each in ids}
    assert 0 not in table
    assert table.get(1) is None
    assert (table.layout, table.next_layout) == (Layout(4, 2), Layout(6, 3))
    assert (table.of(4), table.of(6), table.of(5)) == (tuple(old), tuple(new), ())


@pytest.mark.parametrize(
    "none", [RouteRecords(), RouteRecords([]), RouteRecords(records(1)).without(0)]
)
def test_an_empty_table_is_of_no_layout(none: RouteRecords) -> None:
    """A zone that has no partitions yet would be taken for one with some."""
    assert not none
    assert none == {}
    assert (none.layouts, none.layout, none.next_layout) == ((), Layout(0, 0), None)


@pytest.mark.parametrize(
    ("table", "count", "generation"),
    [
        (RouteRecords(), 0, 1),
        (RouteRecords(records(1), 2), 1, 2),
        (RouteRecords(records(1), 2), 1, 1),
        (RouteRecords(records(1)), 0, 1),
        (RouteRecords(records(1)).with_next(records(1), 1), 1, 2),
    ],
)
def test_what_no_zone_has_is_refused(table: RouteRecords, count: int, generation: int) -> None:
    """Records would stand under ids of another layout."""
    with pytest.raises(ValueError, match="cannot follow"):
        table.with_next(records(count), generation)


def test_a_change_leaves_the_table_of_before_as_it_is() -> None:
    """A pass would decide on half of what another has written meanwhile."""
    before = RouteRecords(records(2)).with_next(records(3), 1)
    other = routes.initial((7,), 2)
    after = before.changed({PARTITIONS_MAX: other})
    assert after[PARTITIONS_MAX] == other
    assert before[PARTITIONS_MAX] != other
    assert after.layouts == before.layouts
    with pytest.raises(KeyError, match="2"):
        before.changed({2: other})


def test_layouts_come_and_go() -> None:
    """A layout that is over would go on being served, or both would go."""
    old, new = records(2), records(3, leader=10)
    both = RouteRecords(old).with_next(new, 1)
    assert both.without(1) == RouteRecords(old)
    assert both.without(0) == RouteRecords(new, generation=1)
    assert both.without(0).layout == Layout(1, 3)


def test_who_serves() -> None:
    """A zone would count as ready with nobody for a part of the hashes, or wait for nobody's."""
    new = [PARTITIONS_MAX + index for index in range(3)]
    both = RouteRecords(records(2)).with_next(records(3), 1)
    assert RouteRecords(records(2)).serving == {0, 1}
    assert both.serving == {0, 1}
    assert sealed(both, 0).serving == {1, *new[:2]}, "the middle one has half of its range"
    assert sealed(both, 1).serving == {0, *new[1:]}
    assert sealed(both, 0, 1).serving == set(new)


def test_people_call_a_partition_by_its_index() -> None:
    """Nobody knows which partition 16384 is; and 0 may be either of two."""
    both = RouteRecords(records(2), generation=1).with_next(records(3), 2)
    assert both.name_of(PARTITIONS_MAX + 1) == "partition 1"
    assert both.name_of(2 * PARTITIONS_MAX + 1) == "partition 1 of the new layout"
    assert both.without(1).name_of(2 * PARTITIONS_MAX + 1) == "partition 1"
