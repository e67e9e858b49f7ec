"""Layouts: ids that are never used twice, overlaps that tile the hashes, segments without a gap."""

import itertools
import math

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rezone.wire import layouts
from rezone.wire.codec import keyspace
from rezone.wire.codec.keyspace import HASH_SPACE, PARTITIONS_MAX
from rezone.wire.layouts import HashRange, Layout
from rezone.wire.messages import ZoneConfig

COUNTS = st.integers(1, 64) | st.sampled_from([127, 256, 257])
HASHES = st.integers(0, HASH_SPACE - 1)
GENERATIONS = st.integers(0, 1 << 20)


@given(st.integers(1, PARTITIONS_MAX), HASHES)
def test_generation_0_has_the_ids_and_ranges_of_before(partitions: int, key_hash: int) -> None:
    """Zones that are there would find their partitions under other ids."""
    layout = Layout(0, partitions)
    assert layout.ids == range(partitions)
    found = layout.partition_of(key_hash)
    assert found == keyspace.partition_of(key_hash, partitions)
    assert layout.range_of(found) == keyspace.range_of(found, partitions)


@given(GENERATIONS, COUNTS, COUNTS, HASHES)
def test_an_id_is_of_one_generation_alone(
    generation: int, first: int, second: int, key_hash: int
) -> None:
    """A node that still holds an old partition would serve another range under its id."""
    old = Layout(generation, first)
    new = old.next(second)
    assert set(old.ids).isdisjoint(new.ids)
    for layout in (old, new):
        partition = layout.partition_of(key_hash)
        start, end = layout.range_of(partition)
        assert start <= key_hash < end
        assert layouts.generation_of(partition) == layout.generation
        assert layout.ids[layouts.index_of(partition)] == partition
    with pytest.raises(ValueError, match="not one of"):
        new.range_of(old.ids[0])


@pytest.mark.proves("B-08")
@given(GENERATIONS, COUNTS, COUNTS)
@example(0, PARTITIONS_MAX, PARTITIONS_MAX - 1)
def test_overlaps_tile_the_hashes(generation: int, first: int, second: int) -> None:
    """A range would be copied to nobody, to two partitions, or to one that does not have it."""
    old = Layout(generation, first)
    new = old.next(second)
    found = layouts.overlaps(old, new)
    assert len(found) == first + second - math.gcd(first, second)
    assert (found[0].start, found[-1].end) == (0, HASH_SPACE)
    for before, after in itertools.pairwise(found):
        assert before.end == after.start
    for overlap in found:
        assert overlap.start < overlap.end
        for layout, partition in ((old, overlap.old), (new, overlap.new)):
            start, end = layout.range_of(partition)
            assert start <= overlap.start < overlap.end <= end
    assert {o.old for o in found} == set(old.ids)
    assert {o.new for o in found} == set(new.ids)


@given(COUNTS, COUNTS, st.data())
def test_sources_and_targets_are_the_same_pairs(
    first: int, second: int, data: st.DataObject
) -> None:
    """A new partition would wait for a source that never tells it of its seal."""
    old = Layout(3, first)
    new = old.next(second)
    partition = data.draw(st.sampled_from(new.ids))
    expected = [o for o in layouts.overlaps(old, new) if o.new == partition]
    assert list(layouts.sources_of(partition, old, new)) == expected


@pytest.mark.proves("B-08")
@given(COUNTS, COUNTS, st.data(), HASHES)
def test_each_hash_is_served_by_one_partition_at_any_time(
    first: int, second: int, data: st.DataObject, key_hash: int
) -> None:
    """While partitions cut over one by one a key would have no partition, or the wrong one."""
    old = Layout(0, first)
    new = old.next(second)
    picked = data.draw(st.sets(st.integers(0, first - 1), max_size=first))
    found = layouts.segments(old, new, picked)
    assert (found[0].start, found[-1].end) == (0, HASH_SPACE)
    for before, after in itertools.pairwise(found):
        assert before.end == after.start
        assert before.partition != after.partition
    owner = next(s.partition for s in found if s.start <= key_hash < s.end)
    source = old.partition_of(key_hash)
    assert owner == (new.partition_of(key_hash) if source in picked else source)


@given(COUNTS, COUNTS)
def test_segments_begin_as_the_old_layout_and_end_as_the_new_one(first: int, second: int) -> None:
    """After a re-sharding clients would ask for parts of partitions."""
    old = Layout(0, first)
    new = old.next(second)
    whole = [(HashRange(s.start, s.end), s.partition) for s in layouts.segments(old)]
    assert whole == [(old.range_of(p), p) for p in old.ids]
    assert layouts.segments(old, new) == layouts.segments(old)
    assert layouts.segments(old, new, old.ids) == layouts.segments(new)


def test_the_generation_of_a_cancelled_re_sharding_is_not_used_again() -> None:
    """Its ids would name other ranges, to nodes and clients that remember the first ones."""
    config = ZoneConfig(zone="z", zone_uid="u", partitions=3, generation=4, next_partitions=5)
    assert layouts.next_layout_of(config) == Layout(5, 5)
    after = msgspec.structs.replace(config, next_generation=7)
    assert layouts.next_layout_of(after) == Layout(7, 5)
    assert layouts.range_in(after, 7 * PARTITIONS_MAX) == Layout(7, 5).range_of(7 * PARTITIONS_MAX)
    assert layouts.next_layout_of(msgspec.structs.replace(after, next_partitions=0)) is None


def test_a_node_keeps_what_layout_the_zone_s_has_come_from() -> None:
    """A replica that is behind when the old layout goes would no longer look for its sources."""
    before = ZoneConfig(zone="z", zone_uid="u", partitions=2, generation=3, next_partitions=5)
    after = ZoneConfig(zone="z", zone_uid="u", partitions=5, generation=4)
    noted = layouts.with_former(after, before)
    assert layouts.former_layout_of(noted) == Layout(3, 2)
    assert layouts.former_layout_of(layouts.with_former(after, noted)) == Layout(3, 2)
    again = msgspec.structs.replace(after, next_partitions=7)
    assert layouts.former_layout_of(layouts.with_former(again, noted)) == Layout(3, 2)
    later = ZoneConfig(zone="z", zone_uid="u", partitions=7, generation=5)
    assert layouts.former_layout_of(layouts.with_former(later, again)) == Layout(4, 5)
    for known in (None, noted):  # one that was away for two re-shardings has no such replica
        assert layouts.former_layout_of(layouts.with_former(later, known)) is None
