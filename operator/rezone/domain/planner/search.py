"""The exact search: augmenting paths and negative cycles over nodes.

A step u -> v moves one replica of some partition from node u to node v, as far as the partition
and the domain rule allow. It costs 1 when v must copy it, and 1 less when the replica on u was
itself a planned copy, so that taking a step back is free or pays. One more vertex, the reserve,
stands for the room in the balance: u -> reserve while u is below its most, reserve -> u while
u is above its least.

- A hole, or a node above its most, is settled along a cheapest path to the reserve.
- A node below its least is settled along a cheapest path from the reserve.
- When no cycle has a negative cost, no plan with the same bounds needs fewer copies (the
  optimality criterion of minimum cost flow).

Costs stand in one dense matrix of nodes x nodes; a row is worked out with numpy from the
partitions of its node, and again only after one of them has changed.
"""

import itertools
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from rezone.domain.planner.layout import Layout

FAR: Final = 1 << 20  # the cost of a step that is not there
REACHED_MAX: Final = FAR // 2  # no path that exists costs as much
Vector = npt.NDArray[np.int32]


class Search:
    """One search over a layout, which it changes; `low` and `high` bound each node's count."""

    def __init__(self, layout: Layout, low: Sequence[int], high: Sequence[int]) -> None:
        self.layout = layout
        self.low, self.high = low, high
        self.nodes = len(low)
        self.reserve = self.nodes
        self.closed_steps = 0
        self.domains = np.array(layout.domains, dtype=np.intp)
        self.least = np.array(layout.levels.least, dtype=np.int32)
        self.most = np.array(layout.levels.most, dtype=np.int32)
        self.costs = np.full((self.nodes + 1, self.nodes + 1), FAR, dtype=np.int32)
        for node in range(self.nodes):
            self._refresh(node)

    # --- costs --------------------------------------------------------------------------------

    def _refresh(self, node: int) -> None:
        """Work out again what steps from a node cost, and its room."""
        partitions, table = self._table(node)
        self.costs[node, : self.nodes] = table.min(axis=0) if partitions else FAR
        count = self.layout.count(node)
        self.costs[node, self.reserve] = 0 if count < self.high[node] else FAR
        self.costs[self.reserve, node] = 0 if count > self.low[node] else FAR

    def _table(self, node: int) -> tuple[list[int], Vector]:
        """Return a node's movable partitions and, for each, what a step to every node costs."""
        layout = self.layout
        movable = frozenset() if node in layout.frozen else layout.held[node] - layout.pinned
        partitions = sorted(movable)
        table = np.zeros((len(partitions), self.nodes), dtype=np.int32)
        if not partitions:
            return partitions, table
        is_copy = [layout.is_copy(partition, node) for partition in partitions]
        table += 1 - np.array(is_copy, dtype=np.int32)[:, None]
        for entries, change in ((layout.origin, -1), (layout.rows, FAR)):
            # The origin first: a replica that is there cannot be added, wherever it came from.
            lines, columns = _pairs(entries[partition] for partition in partitions)
            np.add.at(table, (lines, columns), change)
        table[~self._open(partitions, node)[:, self.domains]] = FAR
        table[:, sorted(layout.frozen)] = FAR
        table[table > REACHED_MAX] = FAR
        return partitions, table

    def _open(self, partitions: Sequence[int], without: int | None) -> npt.NDArray[np.bool_]:
        """Return, for each partition, which domains may take one more (`Layout.openings`)."""
        lines, columns = _pairs(self.layout.rows[partition] for partition in partitions)
        counts = np.zeros((len(partitions), len(self.least)), dtype=np.int32)
        np.add.at(counts, (lines, self.domains[columns]), 1)
        if without is not None:
            counts[:, self.domains[without]] -= 1
        extras = np.maximum(counts - self.least, 0).sum(axis=1)
        may_have_extra = (extras < self.layout.levels.extras)[:, None]
        opened: npt.NDArray[np.bool_] = (counts < self.least) | (
            may_have_extra & (counts < self.most)
        )
        return opened

    # --- paths --------------------------------------------------------------------------------

    def _spread(self, start: Vector, rounds: int) -> tuple[Vector, npt.NDArray[np.intp]]:
        """Return the least costs from `start` (Bellman-Ford) and each vertex's predecessor."""
        costs = start.copy()
        before = np.full(len(start), -1, dtype=np.intp)
        for _ in range(rounds):
            through = costs[:, None] + self.costs
            through[through > REACHED_MAX] = FAR
            best = through.argmin(axis=0)
            reached = through[best, np.arange(len(start))]
            better = reached < costs
            if not better.any():
                break
            costs[better] = reached[better]
            before[better] = best[better]
        return costs, before

    def _path(self, start: Vector, target: int) -> list[int] | None:
        """Return a cheapest path to the target, its first vertex one of the start; or None."""
        costs, before = self._spread(start, self.nodes + 1)
        if costs[target] > REACHED_MAX:
            return None
        path = [target]
        while before[path[-1]] >= 0:
            path.append(int(before[path[-1]]))
            if len(path) > self.nodes + 1:  # a negative cycle: cancel those first
                return None
        return path[::-1]

    def _apply(self, path: Sequence[int], placing: int | None = None) -> bool:
        """Carry out the steps of a path or cycle; False when it needs one partition twice.

        `placing` is a partition that first gets a replica on the path's first node. When the
        answer is False nothing is changed but that the step that failed is closed until its row
        is worked out again: the vertices are then joined in another way, or not at all.
        """
        moves: list[tuple[int, int, int]] = []
        used = set() if placing is None else {placing}
        for source, target in itertools.pairwise(path):
            if self.reserve in (source, target):
                continue
            partition = self._witness(source, target, used)
            if partition is None:
                self.costs[source, target] = FAR
                self.closed_steps += 1
                return False
            used.add(partition)
            moves.append((partition, source, target))
        touched = {vertex for vertex in path if vertex != self.reserve}
        if placing is not None:
            self.layout.add(placing, path[0])
        for partition, source, target in moves:
            self.layout.remove(partition, source)
            self.layout.add(partition, target)
        for partition in used:
            touched.update(self.layout.rows[partition])
        for node in sorted(touched):
            self._refresh(node)
        return True

    def _witness(self, source: int, target: int, used: set[int]) -> int | None:
        """Return a partition whose step has the cost that the matrix says."""
        partitions, table = self._table(source)
        for line in np.flatnonzero(table[:, target] == self.costs[source, target]).tolist():
            if partitions[line] not in used:
                return partitions[line]
        return None

    # --- what is asked of the search -----------------------------------------------------------

    def fill(self, partition: int) -> bool:
        """Give a partition one more replica; False when no path leads into the balance."""
        while True:
            path = self._path(self._start(partition), self.reserve)
            if path is None:
                return False
            if self._apply(path, placing=partition):
                return True

    def fill_anyhow(self, partition: int) -> None:
        """Give a partition one more replica on the emptiest node that may have it."""
        start = self._start(partition)
        allowed = np.flatnonzero(start[: self.nodes] < REACHED_MAX).tolist()
        if not allowed:  # its failure domain has frozen nodes only: less even for a while
            taken = self.layout.frozen.union(self.layout.rows[partition])
            allowed = [node for node in range(self.nodes) if node not in taken]
        node = min(allowed, key=lambda n: (self.layout.count(n) - self.high[n], n))
        self.layout.add(partition, node)
        for holder in self.layout.rows[partition]:
            self._refresh(holder)

    def _start(self, partition: int) -> Vector:
        """Return what a further replica of the partition costs on each node."""
        layout = self.layout
        start = np.full(self.nodes + 1, FAR, dtype=np.int32)
        start[: self.nodes][self._open([partition], None)[0][self.domains]] = 1
        origin = [node for node in sorted(layout.origin[partition]) if start[node] < FAR]
        start[origin] = 0
        start[layout.rows[partition]] = FAR
        start[: self.nodes][sorted(layout.frozen)] = FAR
        return start

    def level(self) -> None:
        """Bring every node within its bounds, as far as any path can."""
        for node in range(self.nodes):
            while self.layout.count(node) > self.high[node] and self._lead(node, self.reserve):
                pass
        for node in range(self.nodes):
            while self.layout.count(node) < self.low[node] and self._lead(self.reserve, node):
                pass

    def _lead(self, source: int, target: int) -> bool:
        while True:
            start = np.full(self.nodes + 1, FAR, dtype=np.int32)
            start[source] = 0
            path = self._path(start, target)
            if path is None:
                return False
            if self._apply(path):
                return True

    def improve(self, steps: int, enough: int) -> bool:
        """Cancel up to `steps` negative cycles, or until no more than `enough` copies are left.

        Return whether no better plan is left.
        """
        self.closed_steps = 0
        progress = False
        for _ in range(steps):
            if self.layout.copies() <= enough:
                return True
            cycle = self._negative_cycle()
            if cycle is not None:
                progress |= self._apply(cycle)
            elif self.closed_steps and progress:
                # Steps were closed for one bad cycle; with what has moved they may be good.
                self.closed_steps, progress = 0, False
                for node in range(self.nodes):
                    self._refresh(node)
            else:
                return self.closed_steps == 0
        return False

    def _negative_cycle(self) -> list[int] | None:
        costs = np.zeros(self.nodes + 1, dtype=np.int32)
        before = np.full(len(costs), -1, dtype=np.intp)
        everywhere = np.arange(len(costs))
        for round_number in range(1, len(costs) + 1):
            through = costs[:, None] + self.costs
            best = through.argmin(axis=0)
            reached = through[best, everywhere]
            better = reached < costs
            if not better.any():
                return None
            costs[better] = reached[better]
            before[better] = best[better]
            # A walk over all predecessors costs more than a round: not after every one.
            if round_number & (round_number - 1) == 0 or round_number == len(costs):
                cycle = _cycle(before)
                if cycle is not None:
                    return cycle
        return None


def _pairs(
    rows: Iterable[Iterable[int]],
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Return line numbers and nodes of a ragged table."""
    lines, columns = [], []
    for line, row in enumerate(rows):
        for node in sorted(row):
            lines.append(line)
            columns.append(node)
    return np.array(lines, dtype=np.intp), np.array(columns, dtype=np.intp)


def _cycle(before: npt.NDArray[np.intp]) -> list[int] | None:
    """Return a cycle among the predecessors, in the direction of the steps; or None."""
    seen = [0] * len(before)
    for start in range(len(before)):
        vertex, walk = start, []
        while vertex >= 0 and not seen[vertex]:
            seen[vertex] = start + 1
            walk.append(vertex)
            vertex = int(before[vertex])
        if vertex >= 0 and seen[vertex] == start + 1:
            cycle = walk[walk.index(vertex) :]
            return [cycle[0], *cycle[:0:-1], cycle[0]]
    return None
