"""The planner: from nodes and the current assignment to the next one, with the fewest copies.

What is wanted, the first first (B-02):

1. every partition has `replicas` distinct available nodes, else `NotPlaceableError`;
2. a partition's replicas are as even over the failure domains as can be: each in its own when
   there are enough;
3. every node holds the floor or the ceiling of its fair share, by weight (`planner_shares`);
4. as few replicas as possible are copied (`planner_replicas`, `planner_search`);
5. leaders are even by weight, to within one, and stay where they are otherwise
   (`planner_leaders`).

While a node is frozen only what must move does: an even assignment would have to count on it.

`plan` is a pure function: equal requests give equal plans, to the byte, on every machine; the
hash of a plan is what a person approves (B-01). How and why: docs/decisions/0002-planner.md.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from rezone.domain.planner.layout import Layout
from rezone.domain.planner.leaders import LeaderBounds, spread_leaders
from rezone.domain.planner.outcome import Setting, described, outcome, reasons_of
from rezone.domain.planner.replicas import place_all, repair, trim
from rezone.domain.planner.search import Search
from rezone.domain.planner.shares import Bounds, targets
from rezone.domain.planner.types import (
    Goal,
    Imbalance,
    LeaderMove,
    Move,
    NodeInfo,
    NotPlaceableError,
    Plan,
    PlanRequest,
)
from rezone.domain.routing.topology_text import REPLICAS_MAX, check_topology
from rezone.resources.task import Why
from rezone.wire.codec.keyspace import PARTITIONS_MAX
from rezone.wire.messages import NodeId, PartitionId

__all__ = [
    "Goal",
    "Imbalance",
    "LeaderMove",
    "Move",
    "NodeInfo",
    "NotPlaceableError",
    "Plan",
    "PlanRequest",
    "Why",
    "described",
    "drain",
    "explicit_moves",
    "leaders_only",
    "plan",
    "reasons_of",
]

IMPROVE_WORK_MAX: Final = 20_000_000
"""Bounds the exact search by steps x nodes^2; small zones are always planned to the optimum."""


def drain(request: PlanRequest, nodes: Iterable[NodeId]) -> PlanRequest:
    """Return the request to move everything off these nodes and nothing else (B-07)."""
    gone = frozenset(nodes)
    kept = tuple(
        dataclasses.replace(node, available=node.available and node.id not in gone)
        for node in request.nodes
    )
    return dataclasses.replace(request, nodes=kept, goal=Goal.DRAIN)


def leaders_only(request: PlanRequest) -> PlanRequest:
    """Return the request to even out leaders without a copy."""
    return dataclasses.replace(request, goal=Goal.LEADERS)


def explicit_moves(
    request: PlanRequest, moves: Mapping[PartitionId, tuple[NodeId, ...]]
) -> PlanRequest:
    """Return the request to put these partitions on these nodes and change nothing else."""
    return dataclasses.replace(request, pinned=dict(moves), goal=Goal.MOVES)


def plan(request: PlanRequest) -> Plan:
    """Return the best plan for a request.

    Raises NotPlaceableError when the nodes cannot hold the replicas, and ValueError for a request
    that contradicts itself (sizes, weights, node ids).
    """
    _check(request)
    if request.goal is Goal.BALANCE and request.current and _frozen(request):
        request = dataclasses.replace(request, goal=Goal.DRAIN)
    setting = Setting(request)
    if request.goal in (Goal.BALANCE, Goal.DRAIN):
        lower_bound = _place(setting)
    else:
        lower_bound = setting.layout.copies()
    leaders = _lead(setting)
    return outcome(setting, leaders, lower_bound)


def _check(request: PlanRequest) -> None:
    if not 1 <= request.partitions <= PARTITIONS_MAX:
        raise ValueError(f"partitions is {request.partitions}, not 1 to {PARTITIONS_MAX}")
    if not 1 <= request.replicas <= REPLICAS_MAX:
        raise ValueError(f"replicas is {request.replicas}, not 1 to {REPLICAS_MAX}")
    ids = [node.id for node in request.nodes]
    if len(set(ids)) != len(ids):
        raise ValueError("a node is named twice")
    light = [node.id for node in request.nodes if node.weight < 1]
    if light:
        raise ValueError(f"node {light[0]} has a weight below 1")
    for name in ("current", "leaders", "partition_bytes"):
        value = getattr(request, name)
        if value is not None and len(value) != request.partitions:
            raise ValueError(f"{name} has {len(value)} entries, not {request.partitions}")
    if request.current is not None:
        check_topology(request.current)
    elif request.goal is not Goal.BALANCE:
        raise ValueError(f"a plan for {request.goal} needs the current assignment")
    _check_places(request)


def _check_places(request: PlanRequest) -> None:
    available = {node.id for node in request.nodes if node.available}
    if not available:
        raise NotPlaceableError("there is no available data node: add data nodes")
    if request.goal in (Goal.BALANCE, Goal.DRAIN) and len(available) < request.replicas:
        raise NotPlaceableError(
            f"{_count(request.replicas, 'replica')} need {_count(request.replicas, 'data node')}, "
            f"{'there is' if len(available) == 1 else 'there are'} {len(available)}: "
            "add data nodes or lower replicas"
        )
    if request.goal in (Goal.BALANCE, Goal.DRAIN):
        _check_room(request, available)
    for partition, nodes in sorted(request.pinned.items()):
        if not 0 <= partition < request.partitions:
            raise ValueError(f"partition {partition} is not one of {request.partitions}")
        if len(set(nodes)) != len(nodes) or len(nodes) != request.replicas:
            raise NotPlaceableError(
                f"partition {partition} needs {_count(request.replicas, 'distinct data node')}, "
                f"not {list(nodes)}: name as many as the zone has replicas"
            )
        absent = [node for node in nodes if node not in available]
        if absent:
            raise NotPlaceableError(
                f"partition {partition} cannot go to node {absent[0]}, which is not available: "
                "name another node, or wait until it is back"
            )


def _frozen(request: PlanRequest) -> frozenset[NodeId]:
    return frozenset(node.id for node in request.nodes if node.available and node.frozen)


def _check_room(request: PlanRequest, available: Collection[NodeId]) -> None:
    """Refuse a plan for which frozen nodes would have to take something."""
    frozen = _frozen(request)
    if not frozen:
        return
    takers = len(available) - len(frozen)
    for partition, row in enumerate(request.current or ()):
        kept = sum(node in frozen for node in row)
        if kept + takers < request.replicas:
            raise NotPlaceableError(
                f"partition {partition} needs {_count(request.replicas, 'data node')}, and "
                f"{sorted(frozen)} are frozen (in maintenance, or lost a moment ago): wait until "
                "they are back, or add data nodes"
            )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _place(setting: Setting) -> int:
    """Place all replicas in the setting's layout; return the lower bound of copies."""
    request, layout = setting.request, setting.layout
    bounds = _bounds(setting)
    if request.current is None and not request.pinned:
        total = request.partitions * request.replicas
        place_all(layout, targets(bounds, setting.domains, layout.counts(), total))
        return total
    counts = layout.counts()
    if request.goal is Goal.BALANCE:
        trim(layout, request.replicas, bounds.high, setting.prefer)
    holes = sum(max(0, request.replicas - len(row)) for row in layout.rows)
    total = holes + sum(layout.counts())
    lower_bound = layout.copies() + holes
    if request.goal is Goal.BALANCE and not request.pinned:
        lower_bound = max(lower_bound, _balance_bound(bounds, counts, total))
    wanted = targets(bounds, setting.domains, layout.counts(), total)
    left_over = repair(layout, request.replicas, wanted, setting.prefer)
    out_of_bounds = any(
        not low <= count <= high
        for low, count, high in zip(bounds.low, layout.counts(), bounds.high, strict=True)
    )
    if left_over or out_of_bounds or layout.copies() > lower_bound:
        _search(layout, bounds, left_over, lower_bound)
    return lower_bound


def _balance_bound(bounds: Bounds, counts: Sequence[int], total: int) -> int:
    """Return the fewest copies that can bring these counts within the bounds.

    Each node must receive what it lacks to its floor; and of what a node holds it can keep no
    more than its ceiling, all else has to be copied to somewhere.
    """
    received = sum(max(0, low - count) for low, count in zip(bounds.low, counts, strict=True))
    kept = sum(min(count, high) for count, high in zip(counts, bounds.high, strict=True))
    return max(received, total - kept)


def _search(layout: Layout, bounds: Bounds, holes: Sequence[int], lower_bound: int) -> None:
    search = Search(layout, bounds.low, bounds.high)
    for partition in holes:
        if not search.fill(partition):
            search.fill_anyhow(partition)
    search.level()
    search.improve(max(1, IMPROVE_WORK_MAX // len(bounds.low) ** 2), lower_bound)


def _bounds(setting: Setting) -> Bounds:
    """Return what each node and domain may hold in the end."""
    request, layout = setting.request, setting.layout
    low = [math.floor(share) for share in setting.fair]
    high = [math.ceil(share) for share in setting.fair]
    for node, count in enumerate(layout.counts()):
        if node in layout.frozen:
            low[node] = high[node] = count
        elif request.goal is Goal.DRAIN:
            # What is uneven besides the drain stays: nobody asked for those copies.
            low[node], high[node] = min(low[node], count), max(high[node], count)
        elif request.pinned:
            pinned = len(layout.held[node] & layout.pinned)
            high[node] = max(high[node], pinned)
    free = request.goal is Goal.DRAIN or bool(request.pinned)
    levels, partitions = setting.levels, request.partitions
    most = partitions * request.replicas
    return Bounds(
        low=tuple(low),
        high=tuple(high),
        fair=tuple(float(share) for share in setting.fair),
        domain_low=tuple(0 if free else partitions * n for n in levels.least),
        domain_high=tuple(most if free else partitions * n for n in levels.most),
    )


def _lead(setting: Setting) -> list[int | None]:
    """Return the number of the node that shall lead each partition, None to leave it."""
    request, rows = setting.request, setting.layout.rows
    leaders = list(setting.leaders)
    if request.goal is Goal.MOVES:
        return [
            setting.number[request.pinned[partition][0]] if partition in request.pinned else None
            for partition in range(request.partitions)
        ]
    # Without an available replica there is nobody to choose.
    chosen = [partition for partition, row in enumerate(rows) if row]
    fixed = set()
    for partition, nodes in request.pinned.items():
        leaders[partition] = setting.number[nodes[0]]
        fixed.add(partition)
    if request.goal is Goal.DRAIN:
        # Only leaders that lost their node move: nobody asked for the others.
        staying = {*range(len(setting.nodes))} - setting.layout.frozen
        fixed |= {p for p in chosen if leaders[p] in staying.intersection(rows[p])}
    shares = setting.leader_shares(len(chosen))
    stay = Counter(leaders[partition] for partition in fixed)
    bounds = LeaderBounds(
        low=tuple(math.floor(share) for share in shares),
        high=tuple(max(math.ceil(share), stay[node]) for node, share in enumerate(shares)),
    )
    spread = spread_leaders(
        [rows[partition] for partition in chosen],
        [leaders[partition] for partition in chosen],
        bounds,
        [index for index, partition in enumerate(chosen) if partition in fixed],
    )
    found: list[int | None] = [None] * len(rows)
    for partition, leader in zip(chosen, spread, strict=True):
        found[partition] = leader
    return found
