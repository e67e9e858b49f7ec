"""View models of partitions: who holds each of them, how it is, and where it shall be. Pure."""

import enum
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rezone.domain.routing.partition_map import Mark, marks_of_routes
from rezone.domain.routing.topology_text import Topology
from rezone.wire.messages import LeaderAndIsr, NodeId

PAGE_PARTITIONS: Final = 64
"""Partitions that one page shows one by one."""
OVERVIEW_CELLS_MAX: Final = 512
"""Cells of the overview: in larger zones each stands for several partitions."""


class Health(enum.StrEnum):
    """How a partition is, from the best to the worst."""

    IN_SYNC = "in sync"
    CATCHING_UP = "catching up"
    BELOW_MINIMUM = "below minimum"


_SEVERITY: Final = tuple(Health)


@dataclass(frozen=True)
class Holder:
    """A data node that holds a partition, and what it is for it."""

    node: NodeId
    mark: Mark


@dataclass(frozen=True, kw_only=True)
class PartitionRow:
    """One partition; `wanted` are its data nodes by the assignment, the preferred leader first."""

    index: int
    leader: NodeId
    holders: tuple[Holder, ...]
    health: Health
    wanted: tuple[NodeId, ...]
    moves: bool
    sealed: bool

    def nodes(self, *marks: Mark) -> tuple[NodeId, ...]:
        """Return the data nodes that have one of these marks."""
        return tuple(holder.node for holder in self.holders if holder.mark in marks)

    @property
    def in_sync(self) -> tuple[NodeId, ...]:
        """The data nodes that have every acknowledged row."""
        return self.nodes(Mark.LEADER, Mark.HOT_STANDBY, Mark.FOLLOWER)

    @property
    def learners(self) -> tuple[NodeId, ...]:
        """The data nodes that catch up."""
        return self.nodes(Mark.LEARNER)


@dataclass(frozen=True, kw_only=True)
class OverviewCell:
    """Partitions `first` to `last` together: the worst health among them, and how many move."""

    first: int
    last: int
    health: Health
    moving: int
    page: int


@dataclass(frozen=True, kw_only=True)
class NodeLoad:
    """How many partitions a data node leads and holds."""

    node: NodeId
    led: int
    held: int


def rows_of(
    records: Sequence[LeaderAndIsr], wanted: Topology, *, min_in_sync: int
) -> tuple[PartitionRow, ...]:
    """Return a row for each record; `wanted` is the assignment, empty where none is known."""
    marks = marks_of_routes(records)
    return tuple(
        _row(index, record, marks[index], wanted[index] if index < len(wanted) else (), min_in_sync)
        for index, record in enumerate(records)
    )


def _row(
    index: int,
    record: LeaderAndIsr,
    marks: Mapping[NodeId, Mark],
    wanted: tuple[NodeId, ...],
    min_in_sync: int,
) -> PartitionRow:
    # A leader's mark says nothing about whether it is in sync, a hot standby's neither.
    shown = {
        node: mark if node in record.isr or mark is Mark.LEADER else Mark.LEARNER
        for node, mark in marks.items()
    }
    return PartitionRow(
        index=index,
        leader=record.leader,
        holders=tuple(Holder(node, mark) for node, mark in shown.items()),
        health=_health(record, min_in_sync),
        wanted=wanted,
        moves=bool(wanted) and (set(record.replicas) != set(wanted) or bool(record.next_epoch)),
        sealed=record.sealed,
    )


def _health(record: LeaderAndIsr, min_in_sync: int) -> Health:
    if len(record.isr) < min_in_sync or record.leader not in record.isr:
        return Health.BELOW_MINIMUM
    if set(record.replicas) - set(record.isr):
        return Health.CATCHING_UP
    return Health.IN_SYNC


def page_count(partitions: int, size: int = PAGE_PARTITIONS) -> int:
    """Return how many pages so many things have, at least one."""
    return max(1, -(-partitions // size))


def page_in(wanted: int, partitions: int, size: int = PAGE_PARTITIONS) -> int:
    """Return the page that is shown when page `wanted` is asked for: one that exists, from 0."""
    return min(max(wanted, 0), page_count(partitions, size) - 1)


def overview_of(rows: Sequence[PartitionRow]) -> tuple[OverviewCell, ...]:
    """Return at most OVERVIEW_CELLS_MAX cells that stand for all partitions, in their order."""
    size = max(1, -(-len(rows) // OVERVIEW_CELLS_MAX))
    return tuple(_cell(rows[at : at + size]) for at in range(0, len(rows), size))


def _cell(rows: Sequence[PartitionRow]) -> OverviewCell:
    return OverviewCell(
        first=rows[0].index,
        last=rows[-1].index,
        health=max((row.health for row in rows), key=_SEVERITY.index),
        moving=sum(row.moves for row in rows),
        page=rows[0].index // PAGE_PARTITIONS,
    )


def loads_of(rows: Sequence[PartitionRow]) -> dict[NodeId, NodeLoad]:
    """Return what each data node leads and holds, by its id."""
    held = Counter(holder.node for row in rows for holder in row.holders)
    led = Counter(row.leader for row in rows)
    return {node: NodeLoad(node=node, led=led[node], held=held[node]) for node in sorted(held)}


def counts_of(rows: Sequence[PartitionRow]) -> dict[Health, int]:
    """Return how many partitions have each health."""
    found = Counter(row.health for row in rows)
    return {health: found[health] for health in Health}
