"""View model of a re-sharding: which new partitions take the range of each old one over. Pure."""

from dataclasses import dataclass
from typing import Final

from rezone.console.views.partitions import PAGE_PARTITIONS, page_count, page_in
from rezone.domain.routing.route_records import RouteRecords
from rezone.wire.layouts import Layout, index_of, targets_of
from rezone.wire.messages import NodeId

TARGETS_SHOWN_MAX: Final = 16
"""New partitions that are named for an old one; it may be cut into thousands."""


@dataclass(frozen=True, kw_only=True)
class SplitRow:
    """One old partition: its leader, the new partitions with a part of its range, and how far."""

    index: int
    leader: NodeId
    targets: tuple[int, ...]
    targets_count: int
    cut_over: bool


@dataclass(frozen=True, kw_only=True)
class ReshardingView:
    """One page of old partitions, and how many of all have cut over."""

    rows: tuple[SplitRow, ...]
    page: int
    pages: int
    old: int
    new: int
    cut_over: int


def resharding_view(routes: RouteRecords, page: int) -> ReshardingView | None:
    """Return what is shown of the re-sharding of a zone; None when it has one layout."""
    old, new = routes.layout, routes.next_layout
    if new is None:
        return None
    shown = page_in(page, old.partitions)
    ids = old.ids[shown * PAGE_PARTITIONS : (shown + 1) * PAGE_PARTITIONS]
    return ReshardingView(
        rows=tuple(_row(routes, partition, old, new) for partition in ids),
        page=shown,
        pages=page_count(old.partitions),
        old=old.partitions,
        new=new.partitions,
        cut_over=sum(routes[partition].sealed for partition in old.ids),
    )


def _row(routes: RouteRecords, partition: int, old: Layout, new: Layout) -> SplitRow:
    targets = [index_of(overlap.new) for overlap in targets_of(partition, old, new)]
    record = routes[partition]
    return SplitRow(
        index=index_of(partition),
        leader=record.leader,
        targets=tuple(targets[:TARGETS_SHOWN_MAX]),
        targets_count=len(targets),
        cut_over=record.sealed,
    )
