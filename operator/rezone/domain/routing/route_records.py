"""The route records of a zone by partition id: of one layout, or of two while it is re-sharded.

A table is never changed but replaced, so that whoever looks at one keeps what it began with.
"""

import functools
from collections.abc import ItemsView, Iterator, Mapping, Sequence, ValuesView

from rezone.wire.layouts import Layout, generation_of, index_of, targets_of
from rezone.wire.messages import LeaderAndIsr, PartitionId


class RouteRecords(Mapping[PartitionId, LeaderAndIsr]):
    """Each partition's persisted record, in the order of ids: the older layout's first."""

    def __init__(self, records: Sequence[LeaderAndIsr] = (), generation: int = 0) -> None:
        """Make the table of one layout from its records by index.

        Without records it is empty: the zone has none yet.
        """
        layout = Layout(generation, len(records))
        self.layouts: tuple[Layout, ...] = (layout,) if records else ()
        self._records = dict(zip(layout.ids, records, strict=True))

    def __getitem__(self, partition: PartitionId) -> LeaderAndIsr:
        return self._records[partition]

    def __iter__(self) -> Iterator[PartitionId]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    # A pass walks over 16,384 of them several times: by the dictionary itself, not by the mixin.
    def __contains__(self, partition: object) -> bool:
        return partition in self._records

    def items(self) -> ItemsView[PartitionId, LeaderAndIsr]:
        """Return ids and records, in the order of ids."""
        return self._records.items()

    def values(self) -> ValuesView[LeaderAndIsr]:
        """Return the records, in the order of ids."""
        return self._records.values()

    @property
    def layout(self) -> Layout:
        """The zone's layout; while it is re-sharded, the one that it comes from."""
        return self.layouts[0] if self.layouts else Layout(0, 0)

    @property
    def next_layout(self) -> Layout | None:
        """The layout that the zone is re-sharded to."""
        return self.layouts[1] if len(self.layouts) > 1 else None

    def of(self, generation: int) -> tuple[LeaderAndIsr, ...]:
        """Return the records of one layout by index; none when it has no table."""
        found = [layout for layout in self.layouts if layout.generation == generation]
        return tuple(self._records[partition] for layout in found for partition in layout.ids)

    @functools.cached_property
    def serving(self) -> frozenset[PartitionId]:
        """The partitions that a part of the hashes belongs to, as far as the records say.

        Not those that are sealed, nor new ones of which every source still serves.
        """
        new = self.next_layout
        if new is None:
            return frozenset(self._records)
        old = self.layout
        sealed = [partition for partition in old.ids if self._records[partition].sealed]
        targets = {each.new for partition in sealed for each in targets_of(partition, old, new)}
        return frozenset(old.ids).difference(sealed) | targets

    def changed(self, changes: Mapping[PartitionId, LeaderAndIsr]) -> "RouteRecords":
        """Return the table with other records; KeyError for a partition that it does not have."""
        unknown = changes.keys() - self._records.keys()
        if unknown:
            raise KeyError(min(unknown))
        return self._made(self.layouts, {**self._records, **changes})

    def with_next(self, records: Sequence[LeaderAndIsr], generation: int) -> "RouteRecords":
        """Return the table with the records of the layout to come, by index, beside the others.

        Raises ValueError for what no zone has: a third layout, one that is not of a later
        generation, and one without partitions.
        """
        layout = Layout(generation, len(records))
        later = all(each.generation < generation for each in self.layouts)
        if self.next_layout is not None or not later or not records:
            raise ValueError(f"{layout} cannot follow {list(self.layouts)}")
        added = dict(zip(layout.ids, records, strict=True))
        return self._made((*self.layouts, layout), {**self._records, **added})

    def without(self, generation: int) -> "RouteRecords":
        """Return the table without the records of one layout."""
        layouts = tuple(layout for layout in self.layouts if layout.generation != generation)
        kept = {p: self._records[p] for layout in layouts for p in layout.ids}
        return self._made(layouts, kept)

    @staticmethod
    def _made(
        layouts: tuple[Layout, ...], records: dict[PartitionId, LeaderAndIsr]
    ) -> "RouteRecords":
        table = RouteRecords()
        table.layouts, table._records = layouts, records
        return table

    def name_of(self, partition: PartitionId) -> str:
        """Return what people call a partition: by its index, and by its layout if that is new."""
        new = self.next_layout
        name = f"partition {index_of(partition)}"
        if new is not None and generation_of(partition) == new.generation:
            return f"{name} of the new layout"
        return name
