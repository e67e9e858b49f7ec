"""Layouts: which ids the partitions of a zone have, which ranges of the hash, and who serves what.

A layout is a generation and a count. The id of a partition is generation * 16384 + index, its
range the `index`-th even cut of that generation's count. So an id never means another range, and
tells by itself of which generation it is; generation 0 has the ids 0, 1, 2, ...

While a zone is re-sharded there are two layouts. Each old partition is sealed by itself, once and
for good; from then on its range is served by the new partitions that overlap with it
(docs/decisions/0120).
"""

from collections.abc import Collection, Iterator
from typing import NamedTuple

import msgspec

from rezone.wire.codec import keyspace
from rezone.wire.codec.keyspace import PARTITIONS_MAX
from rezone.wire.errors import ReshardedError
from rezone.wire.messages import PartitionId, ZoneConfig


class HashRange(NamedTuple):
    """A half-open range of 64-bit key hashes; `end` may be 2**64."""

    start: int
    end: int


WHOLE = HashRange(0, keyspace.HASH_SPACE)
"""All hashes."""


class Segment(NamedTuple):
    """A half-open range of key hashes and the one partition that serves it."""

    start: int
    end: int
    partition: PartitionId

    @property
    def hashes(self) -> HashRange:
        """The range."""
        return HashRange(self.start, self.end)


class Overlap(NamedTuple):
    """The range that an old partition and a new one have in common."""

    start: int
    end: int
    old: PartitionId
    new: PartitionId


class Layout(NamedTuple):
    """The partitions of one generation of a zone."""

    generation: int
    partitions: int

    @property
    def ids(self) -> range:
        """The ids of its partitions, in hash order."""
        first = self.generation * PARTITIONS_MAX
        return range(first, first + self.partitions)

    def range_of(self, partition: PartitionId) -> HashRange:
        """Return the range of a partition; ValueError for one of another layout."""
        if partition not in self.ids:
            raise ValueError(f"partition {partition} is not one of {self}")
        return HashRange(*keyspace.range_of(index_of(partition), self.partitions))

    def partition_of(self, key_hash: int) -> PartitionId:
        """Return the id of the partition whose range has a hash."""
        return self.ids[keyspace.partition_of(key_hash, self.partitions)]

    def next(self, partitions: int) -> "Layout":
        """Return the layout that a re-sharding to so many partitions leads to."""
        return Layout(self.generation + 1, partitions)


def layout_of(config: ZoneConfig) -> Layout:
    """Return the layout that a zone has, or comes from while it is re-sharded."""
    return Layout(config.generation, config.partitions)


def next_layout_of(config: ZoneConfig) -> Layout | None:
    """Return the layout that a zone is re-sharded to, None when it is not."""
    if not config.next_partitions:
        return None
    return Layout(config.next_generation or config.generation + 1, config.next_partitions)


def former_layout_of(config: ZoneConfig) -> Layout | None:
    """Return the layout that a zone's has come from, None where that is not known any more."""
    if not config.former_partitions:
        return None
    return Layout(config.former_generation, config.former_partitions)


def with_former(config: ZoneConfig, known: ZoneConfig | None) -> ZoneConfig:
    """Return a configuration with the layout that its own has come from, by the one before it."""
    former: Layout | None = None
    if known is not None and layout_of(known) == layout_of(config):
        former = former_layout_of(known)
    elif known is not None and next_layout_of(known) == layout_of(config):
        former = layout_of(known)
    generation, partitions = former or Layout(0, 0)
    return msgspec.structs.replace(
        config, former_partitions=partitions, former_generation=generation
    )


def range_in(config: ZoneConfig, partition: PartitionId) -> HashRange:
    """Return the range of a partition of either layout; ValueError for one of another."""
    new = next_layout_of(config)
    if new is not None and generation_of(partition) == new.generation:
        return new.range_of(partition)
    return layout_of(config).range_of(partition)


def is_known(config: ZoneConfig, partition: PartitionId) -> bool:
    """Return whether a partition is of one of the zone's layouts."""
    new = next_layout_of(config)
    return partition in layout_of(config).ids or (new is not None and partition in new.ids)


def is_over(config: ZoneConfig, partition: PartitionId) -> bool:
    """Return whether a partition is of a layout that the zone had before."""
    return generation_of(partition) < config.generation


def is_filled(config: ZoneConfig, partition: PartitionId) -> bool:
    """Return whether a job brings a partition's rows: it serves nothing before the switch."""
    new = next_layout_of(config)
    return bool(config.next_filled_by) and new is not None and partition in new.ids


def readable_from(config: ZoneConfig, partition: PartitionId) -> int:
    """Return the earliest time as of which a partition may be read (docs/decisions/0500)."""
    new = generation_of(partition) >= config.readable_generation
    return config.readable_from if new else config.old_readable_from


def resharded(config: ZoneConfig, partition: PartitionId) -> ReshardedError:
    """Return the error that says of a partition that others serve its range."""
    return ReshardedError(
        f"partition {partition} is re-sharded; fetch the routes again",
        partition=partition,
        generation=config.generation,
        partitions=config.partitions,
        next_partitions=config.next_partitions,
        next_generation=config.next_generation,
    )


def generation_of(partition: PartitionId) -> int:
    """Return the generation that an id is of."""
    return partition // PARTITIONS_MAX


def id_of(generation: int, index: int) -> PartitionId:
    """Return the id of the partition at a place in the layout of a generation."""
    return generation * PARTITIONS_MAX + index


def index_of(partition: PartitionId) -> int:
    """Return the place of a partition in its layout: what people call it by."""
    return partition % PARTITIONS_MAX


def overlaps(old: Layout, new: Layout) -> tuple[Overlap, ...]:
    """Return all pairs of an old and a new partition with a common range, in hash order.

    There are n + m - gcd(n, m) of them.
    """
    return tuple(overlap for partition in old.ids for overlap in targets_of(partition, old, new))


def targets_of(partition: PartitionId, old: Layout, new: Layout) -> Iterator[Overlap]:
    """Yield the overlaps of one old partition with new ones, in hash order."""
    for start, end, target in _cut(old.range_of(partition), new):
        yield Overlap(start, end, partition, target)


def sources_of(partition: PartitionId, old: Layout, new: Layout) -> Iterator[Overlap]:
    """Yield the overlaps of one new partition with old ones, in hash order."""
    for start, end, source in _cut(new.range_of(partition), old):
        yield Overlap(start, end, source, partition)


def segments(
    old: Layout,
    new: Layout | None = None,
    sealed: Collection[PartitionId] = (),
    within: HashRange = WHOLE,
) -> tuple[Segment, ...]:
    """Return who serves which part of a range of hashes, in hash order and without a gap.

    `sealed` are the old partitions that have cut over to `new`.
    """
    found: list[Segment] = []
    for whole in _cut(within, old):
        if new is None or whole.partition not in sealed:
            found.append(whole)
            continue
        for part in _cut(HashRange(whole.start, whole.end), new):
            if found and found[-1].partition == part.partition:
                found[-1] = found[-1]._replace(end=part.end)
            else:
                found.append(part)
    return tuple(found)


def _cut(whole: HashRange, layout: Layout) -> Iterator[Segment]:
    """Yield the parts of a range by the partitions of a layout."""
    start, end = whole
    while start < end:
        partition = layout.partition_of(start)
        stop = min(end, layout.range_of(partition).end)
        yield Segment(start, stop, partition)
        start = stop
