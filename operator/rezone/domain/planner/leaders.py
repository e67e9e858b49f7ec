"""Who shall lead: leaders even over the nodes, only among the replicas, the fewest changes.

This is a bipartite flow: each partition takes one of its nodes, each node leads between a least
and a most. A leader that stays costs nothing, a change costs 1, so this is minimum cost flow too;
it is solved by primal and dual in turn: Bellman-Ford over all possible changes at once (numpy)
gives the cheapest distances, then leaders are changed along all paths of that cost.

Where the replicas do not allow even leaders (a node that shares partitions with few others), the
smallest widening of the bounds that can be met is found by bisection.
"""

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Final, Self

import numpy as np
import numpy.typing as npt

FAR: Final = 1 << 20
Vector = npt.NDArray[np.int32]
Numbers = npt.NDArray[np.intp]


@dataclasses.dataclass(frozen=True)
class LeaderBounds:
    """How many partitions each node shall lead, at least and at most."""

    low: tuple[int, ...]
    high: tuple[int, ...]


def spread_leaders(
    rows: Sequence[Sequence[int]],
    leaders: Sequence[int | None],
    bounds: LeaderBounds,
    fixed: Sequence[int] = (),
) -> list[int]:
    """Return the leader of each partition; every row has at least one node.

    `leaders` are the nodes that lead now; None, or a node that is not in the row, is free to be
    chosen at no cost. Partitions in `fixed` keep the leader they have, which is in their row.
    """
    flow = _Flow(rows, leaders, bounds, frozenset(fixed))
    low, high = list(bounds.low), list(bounds.high)
    partitions = len(rows)
    # Even leaders may be out of reach; first the heaviest nodes are made as light as can be.
    wider = _least(lambda w: flow.copy().settle([0] * len(low), _add(high, w)), partitions)
    high = _add(high, wider)
    flow.settle([0] * len(low), high)
    wider = _least(lambda w: flow.copy().settle(_add(low, -w), high), partitions)
    flow.settle(_add(low, -wider), high)
    return [int(node) for node in flow.leading]


def _add(values: Sequence[int], change: int) -> list[int]:
    return [max(0, value + change) for value in values]


def _least(holds: Callable[[int], bool], most: int) -> int:
    """Return the least number from 0 to `most` for which `holds`; it holds above that as well."""
    if holds(0):
        return 0
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle
    return high


class _Flow:
    """The leaders while they are being spread; every state of it is of minimum cost."""

    def __init__(
        self,
        rows: Sequence[Sequence[int]],
        leaders: Sequence[int | None],
        bounds: LeaderBounds,
        fixed: frozenset[int],
    ) -> None:
        self.nodes = len(bounds.low)
        self.leading: Numbers = np.zeros(len(rows), dtype=np.intp)
        stays = [
            leader if leader in row else None for leader, row in zip(leaders, rows, strict=True)
        ]
        self._start(rows, stays, bounds)
        lines: list[int] = []
        columns: list[int] = []
        costs: list[int] = []
        # What it costs to lead there: nothing where the leader is now, or is free to be chosen.
        for partition, row in enumerate(rows):
            if partition not in fixed:
                stay = stays[partition]
                lines += [partition] * len(row)
                columns += row
                costs += [int(stay is not None and node != stay) for node in row]
        self.arc_partition: Numbers = np.array(lines, dtype=np.intp)
        self.arc_node: Numbers = np.array(columns, dtype=np.intp)
        self.arc_price: Vector = np.array(costs, dtype=np.int32)
        free = np.array([stay is None for stay in stays], dtype=np.bool_)
        origin = np.array([-1 if stay is None else stay for stay in stays], dtype=np.intp)
        self.free, self.origin = free, origin

    def _start(
        self, rows: Sequence[Sequence[int]], stays: Sequence[int | None], bounds: LeaderBounds
    ) -> None:
        """Let leaders stay; give the free partitions to the node with most room."""
        room = list(bounds.high)
        for partition, stay in enumerate(stays):
            if stay is not None:
                self.leading[partition] = stay
                room[stay] -= 1
        for partition, stay in enumerate(stays):
            if stay is None:
                node = max(rows[partition], key=lambda n: (room[n], -n))
                self.leading[partition] = node
                room[node] -= 1

    def copy(self) -> Self:
        """Return a state of its own; what does not change is shared."""
        other = copy.copy(self)
        other.leading = self.leading.copy()
        return other

    def counts(self) -> Numbers:
        """Return how many partitions each node leads."""
        return np.bincount(self.leading, minlength=self.nodes)

    def settle(self, low: Sequence[int], high: Sequence[int]) -> bool:
        """Bring every node within the bounds as far as can be; return whether all are."""
        most, least = np.array(high), np.array(low)
        counts = self.counts()
        self._push(np.maximum(counts - most, 0), np.maximum(most - counts, 0))
        counts = self.counts()
        self._push(np.maximum(counts - least, 0), np.maximum(least - counts, 0))
        counts = self.counts()
        return bool((counts <= most).all() and (counts >= least).all())

    def _push(self, supply: Numbers, demand: Numbers) -> None:
        """Move leaderships from nodes with supply to nodes with demand, the cheapest first."""
        while supply.any() and demand.any():
            steps = self._steps()
            distance = self._distances(supply, steps)
            reached = (demand > 0) & (distance < FAR)
            if not reached.any():
                return
            sinks = reached & (distance == distance[reached].min())
            if not self._change_along(supply, demand, sinks, distance, steps):
                raise AssertionError("a shortest path was found and cannot be walked")

    def _steps(self) -> tuple[Numbers, Vector]:
        """Return, for each arc, the node it takes a leadership from and what that costs."""
        source = self.leading[self.arc_partition]
        stays = self.free | (self.leading == self.origin)
        return source, self.arc_price - (~stays[self.arc_partition]).astype(np.int32)

    def _distances(self, supply: Numbers, steps: tuple[Numbers, Vector]) -> Vector:
        source, price = steps
        distance = np.where(supply > 0, 0, FAR).astype(np.int32)
        for _ in range(self.nodes):
            through = distance[source] + price
            through[distance[source] == FAR] = FAR
            shorter = distance.copy()
            np.minimum.at(shorter, self.arc_node, through)
            if (shorter == distance).all():
                break
            distance = shorter
        return distance

    def _change_along(
        self,
        supply: Numbers,
        demand: Numbers,
        sinks: npt.NDArray[np.bool_],
        distance: Vector,
        steps: tuple[Numbers, Vector],
    ) -> int:
        """Change leaders along disjoint cheapest paths (a blocking flow); return how many."""
        source, price = steps
        cheapest = (distance[source] < FAR) & (distance[source] + price == distance[self.arc_node])
        ways: dict[int, list[tuple[int, int]]] = {}
        for arc in np.flatnonzero(cheapest & (source != self.arc_node)).tolist():
            way = (int(self.arc_partition[arc]), int(self.arc_node[arc]))
            ways.setdefault(int(source[arc]), []).append(way)
        walked = 0
        # A source that another one reaches more cheaply must wait for that path.
        for start in np.flatnonzero((supply > 0) & (distance == 0)).tolist():
            while supply[start] > 0:
                path = self._walk(start, ways, (demand > 0) & sinks)
                if path is None:
                    break
                for partition, node in path:
                    self.leading[partition] = node
                supply[start] -= 1
                demand[path[-1][1]] -= 1
                walked += 1
        return walked

    def _walk(
        self,
        start: int,
        ways: dict[int, list[tuple[int, int]]],
        sinks: npt.NDArray[np.bool_],
    ) -> list[tuple[int, int]] | None:
        """Return a path to a sink as (partition, new leader); ways that end nowhere are dropped."""
        path: list[tuple[int, int]] = []
        on_path = {start}
        node = start
        while True:
            if path and sinks[node]:
                return path
            options = ways.get(node, [])
            if options:
                partition, target = options.pop()
                if self.leading[partition] == node and target not in on_path:
                    path.append((partition, target))
                    on_path.add(target)
                    node = target
            elif path:
                path.pop()
                on_path.remove(node)
                node = path[-1][1] if path else start
            else:
                return None
