"""Who serves which hash, as far as a client knows: an immutable value, replaced by newer ones.

While a zone is re-sharded an old partition that is not sealed serves its whole range; the range of
a sealed one is served by the partitions of the next layout that overlap with it
(docs/decisions/0120). A seal is for good: within a generation the sealed ones only become more.
"""

import dataclasses
import functools

import numpy as np
import numpy.typing as npt

from rezone.wire import layouts
from rezone.wire.codec import keyspace
from rezone.wire.codec.keyspace import Hashes
from rezone.wire.layouts import WHOLE, HashRange, Layout, Segment, generation_of, index_of
from rezone.wire.messages import PartitionId

PartitionIds = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Placement:
    """A layout and, while it is re-sharded, the next one with the partitions that are sealed."""

    layout: Layout
    next_layout: Layout | None = None
    sealed: frozenset[PartitionId] = frozenset()

    def partitions_of(self, hashes: Hashes) -> PartitionIds:
        """Return the partition that serves each hash."""
        index = keyspace.partitions_of(hashes, self.layout.partitions).astype(np.int64)
        found = index + self.layout.ids.start
        if self.next_layout is None or not self.sealed:
            return found
        targets = keyspace.partitions_of(hashes, self.next_layout.partitions).astype(np.int64)
        return np.where(self._moved[index], targets + self.next_layout.ids.start, found)

    @functools.cached_property
    def _moved(self) -> npt.NDArray[np.bool_]:
        moved = np.zeros(self.layout.partitions, np.bool_)
        moved[[index_of(partition) for partition in self.sealed]] = True
        return moved

    def segments(self, within: HashRange = WHOLE) -> tuple[Segment, ...]:
        """Return who serves which part of a range, in hash order and without a gap."""
        return layouts.segments(self.layout, self.next_layout, self.sealed, within)

    def knows(self, partition: PartitionId) -> bool:
        """Whether the id is one of the layout's, or of the next one's."""
        return partition in self.layout.ids or (
            self.next_layout is not None and partition in self.next_layout.ids
        )

    def is_over(self, partition: PartitionId) -> bool:
        """Whether others serve the partition's range, for good."""
        return partition in self.sealed or generation_of(partition) < self.layout.generation

    def range_of(self, partition: PartitionId) -> HashRange:
        """Return the range of a partition of either layout; ValueError for one of another."""
        if self.next_layout is not None and partition in self.next_layout.ids:
            return self.next_layout.range_of(partition)
        return self.layout.range_of(partition)
