"""View models of zones: the list of them, and one with its partitions and data nodes. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rezone.console.views.partitions import (
    PAGE_PARTITIONS,
    Health,
    NodeLoad,
    OverviewCell,
    PartitionRow,
    counts_of,
    loads_of,
    overview_of,
    page_count,
    page_in,
    rows_of,
)
from rezone.domain.routing.route_records import RouteRecords
from rezone.domain.routing.topology_text import Topology, TopologyError, parse
from rezone.resources.conditions import Condition, ConditionStatus, ConditionType
from rezone.resources.zone import DistributionZone
from rezone.resources.zone_status import Assignment, DataNodeStatus, DistributionZoneStatus

PAGE_NODES: Final = 50
"""Data nodes that one page shows."""
MATRIX_NODES_MAX: Final = 64
"""A map has a row for each data node up to so many; above it the table of partitions is shown."""
_BAD_WHEN_TRUE: Final = frozenset({ConditionType.STALLED, ConditionType.DEGRADED})


@dataclass(frozen=True)
class NodeRow:
    """One data node, and what it holds."""

    node: DataNodeStatus
    load: NodeLoad


@dataclass(frozen=True, kw_only=True)
class ZoneSummary:
    """One zone in the list."""

    namespace: str
    name: str
    ready: ConditionStatus
    says: str
    partitions: int
    partitions_ready: int
    nodes: int
    nodes_ready: int
    task: str


@dataclass(frozen=True, kw_only=True)
class Shown:
    """Which pages of partitions and data nodes are shown, from 0, and of which layout."""

    partitions: int = 0
    nodes: int = 0
    new_layout: bool = False


@dataclass(frozen=True, kw_only=True)
class ZoneView:
    """One zone as its page shows it; `problem` says why there is no map."""

    zone: DistributionZone
    summary: ZoneSummary
    conditions: tuple[Condition, ...]
    rows: tuple[PartitionRow, ...]
    first: int
    partitions: int
    page: int
    pages: int
    overview: tuple[OverviewCell, ...]
    health: dict[Health, int]
    moving: int
    matrix_nodes: tuple[int, ...]
    nodes: tuple[NodeRow, ...]
    nodes_count: int
    nodes_page: int
    nodes_pages: int
    held_most: int
    layouts: tuple[int, ...]
    sealed: int
    new_layout: bool
    problem: str

    @property
    def status(self) -> DistributionZoneStatus:
        """The status; an empty one before the operator has seen the zone."""
        return self.zone.status or DistributionZoneStatus()


def summary_of(zone: DistributionZone) -> ZoneSummary:
    """Return what the list shows of a zone."""
    status = zone.status or DistributionZoneStatus()
    told = {condition.type: condition for condition in status.conditions}
    ready = told.get(ConditionType.READY)
    stalled = told.get(ConditionType.STALLED)
    speaks = stalled if stalled is not None and is_bad(stalled) else ready
    return ZoneSummary(
        namespace=zone.metadata.namespace,
        name=zone.metadata.name,
        ready=ready.status if ready is not None else ConditionStatus.UNKNOWN,
        says=f"{speaks.reason}: {speaks.message}" if speaks is not None else "not seen yet",
        partitions=zone.spec.partitions,
        partitions_ready=status.partitions_ready,
        nodes=len(status.data_nodes),
        nodes_ready=status.ready_data_nodes,
        task=status.current_task,
    )


def is_bad(condition: Condition) -> bool:
    """Return whether a condition says that something is wrong."""
    if condition.type is ConditionType.READY:
        return condition.status is not ConditionStatus.TRUE
    return condition.type in _BAD_WHEN_TRUE and condition.status is ConditionStatus.TRUE


def zone_view(
    zone: DistributionZone, routes: RouteRecords, shown: Shown, problem: str = ""
) -> ZoneView:
    """Return what is shown of a zone with these routes; `problem`: why they are missing."""
    new_layout = shown.new_layout and routes.next_layout is not None
    layouts = tuple(layout.partitions for layout in routes.layouts)
    old = routes.of(routes.layout.generation)
    layout = routes.next_layout if new_layout and routes.next_layout else routes.layout
    records = routes.of(layout.generation)
    wanted, unread = _wanted(zone, layout.generation)
    rows = rows_of(records, wanted, min_in_sync=zone.spec.min_in_sync)
    page = page_in(shown.partitions, len(rows))
    first = page * PAGE_PARTITIONS
    on_page = rows[first : first + PAGE_PARTITIONS]
    status = zone.status or DistributionZoneStatus()
    nodes_page = page_in(shown.nodes, len(status.data_nodes), PAGE_NODES)
    loads = loads_of(rows)
    return ZoneView(
        zone=zone,
        summary=summary_of(zone),
        conditions=status.conditions,
        rows=on_page,
        first=first,
        partitions=len(rows),
        page=page,
        pages=page_count(len(rows)),
        overview=overview_of(rows),
        health=counts_of(rows),
        moving=sum(row.moves for row in rows),
        matrix_nodes=_matrix_nodes(status.data_nodes, on_page),
        nodes=_node_rows(status.data_nodes, loads, nodes_page),
        nodes_count=len(status.data_nodes),
        nodes_page=nodes_page,
        nodes_pages=page_count(len(status.data_nodes), PAGE_NODES),
        held_most=max((load.held for load in loads.values()), default=0),
        layouts=layouts,
        sealed=sum(record.sealed for record in old),
        new_layout=new_layout,
        problem=problem or unread,
    )


def _wanted(zone: DistributionZone, generation: int) -> tuple[Topology, str]:
    """Return the assignment that a layout works towards, and why it cannot be read."""
    if zone.status is None:
        return (), ""
    keys = zone.status.assignments
    found = [each for each in (keys.pending, keys.stable) if _is_of(each, generation)]
    if not found or found[0] is None:
        return (), ""
    try:
        return parse(found[0].replicas), ""
    except TopologyError as error:
        return (), f"The assignment cannot be read: {error}"


def _is_of(assignment: Assignment | None, generation: int) -> bool:
    return assignment is not None and assignment.layout_version == generation


def _matrix_nodes(nodes: Sequence[DataNodeStatus], rows: Sequence[PartitionRow]) -> tuple[int, ...]:
    """Return the rows of the map, none where they are too many."""
    holding = {holder.node for row in rows for holder in row.holders}
    wanted = {node for row in rows for node in row.wanted}
    found = {node.id for node in nodes} | holding | wanted
    return tuple(sorted(found)) if len(found) <= MATRIX_NODES_MAX else ()


def _node_rows(
    nodes: Sequence[DataNodeStatus], loads: dict[int, NodeLoad], page: int
) -> tuple[NodeRow, ...]:
    start = page * PAGE_NODES
    return tuple(
        NodeRow(node, loads.get(node.id, NodeLoad(node=node.id, led=0, held=0)))
        for node in nodes[start : start + PAGE_NODES]
    )
