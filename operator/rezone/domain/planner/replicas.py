"""Which nodes hold which partition: the fewest copies that satisfy domains and shares.

1. Initial placement (`place_all`) has no moves to save. It serves every partition from the domain
   and the node with most left to give, which by Gale and Ryser's theorem always comes out even.
2. A change (`repair`) starts from what is kept. What violates the domain rule is given up; each
   missing replica goes to the node furthest below its target; each node above its target gives
   replicas to nodes below. Nearly always every step is one copy, and the sum is the lower bound.
3. What is left over, or has cost more than the bound, goes to the exact search of
   `planner_search`: shortest augmenting paths and negative cycles.
"""

import heapq
from collections.abc import Callable, Sequence

from rezone.domain.planner.layout import Layout, Openings, mix
from rezone.domain.planner.shares import DomainLevels

Preference = Callable[[int, int], tuple[int, int]]
"""(partition, node) -> what it costs to move that replica away, beyond being a copy."""


class Receivers:
    """The nodes that are to get replicas, the neediest first: a heap of domains, each of nodes.

    Both heaps are lazy: an entry whose key is no longer true is dropped or filed again.
    """

    def __init__(self, domains: Sequence[int], wants: Sequence[int]) -> None:
        self.domains = domains
        self.wants = list(wants)
        self.left = [0] * (max(domains) + 1)
        self._nodes: list[list[tuple[int, int, int]]] = [[] for _ in self.left]
        for node, want in enumerate(self.wants):
            if want > 0:
                self.left[domains[node]] += want
                self._nodes[domains[node]].append((-want, mix(0, node), node))
        for heap in self._nodes:
            heapq.heapify(heap)
        self._domains = [(-left, domain) for domain, left in enumerate(self.left) if left]
        heapq.heapify(self._domains)

    def take(self, partition: int, row: Sequence[int], openings: Openings) -> int | None:
        """Return a node for one replica of the partition, and count it; None when none may."""
        if openings.named is not None:
            for domain in sorted(openings.named, key=lambda d: (-self.left[d], d)):
                node = self.take_from(domain, partition, row)
                if node is not None:
                    return node
            return None
        passed = []
        node = None
        while self._domains and node is None:
            key, domain = heapq.heappop(self._domains)
            if key != -self.left[domain]:
                if self.left[domain]:
                    heapq.heappush(self._domains, (-self.left[domain], domain))
                continue
            if openings.has(domain):
                node = self.take_from(domain, partition, row)
            # After a take the key is out of date; the next one who sees it files it again.
            passed.append((key, domain))
        for entry in passed:
            heapq.heappush(self._domains, entry)
        return node

    def take_from(self, domain: int, partition: int, row: Sequence[int]) -> int | None:
        """Return a node of one domain for one replica, and count it; None when none may."""
        heap = self._nodes[domain]
        passed = []
        found = None
        while heap and found is None:
            entry = heapq.heappop(heap)
            node = entry[2]
            if -entry[0] != self.wants[node]:
                continue
            if node in row:
                passed.append(entry)
            else:
                found = node
        for entry in passed:
            heapq.heappush(heap, entry)
        if found is not None:
            self.wants[found] -= 1
            self.left[domain] -= 1
            if self.wants[found]:
                heapq.heappush(heap, (-self.wants[found], mix(partition, found), found))
        return found


def place_all(layout: Layout, wanted: Sequence[int]) -> None:
    """Fill an empty layout so that each node gets exactly what is wanted.

    `wanted` sums to partitions x replicas and is within the levels of each domain.
    """
    levels: DomainLevels = layout.levels
    partitions = len(layout.rows)
    receivers = Receivers(layout.domains, wanted)
    # What each domain takes beyond its least of every partition: at most one per partition.
    extra = [
        left - partitions * least for left, least in zip(receivers.left, levels.least, strict=True)
    ]
    heap = [(-count, mix(0, domain), domain) for domain, count in enumerate(extra) if count]
    heapq.heapify(heap)
    always = [domain for domain, least in enumerate(levels.least) for _ in range(least)]
    for partition in range(partitions):
        chosen = [heapq.heappop(heap) for _ in range(levels.extras)]
        for key, _, domain in chosen:
            if key + 1:
                heapq.heappush(heap, (key + 1, mix(partition, domain), domain))
        for domain in (*always, *(domain for _, _, domain in chosen)):
            node = receivers.take_from(domain, partition, layout.rows[partition])
            if node is None:
                raise AssertionError(f"partition {partition} found no node in domain {domain}")
            layout.add(partition, node)


def trim(layout: Layout, replicas: int, bound: Sequence[int], prefer: Preference) -> None:
    """Give up what no plan can keep: replicas over the count, and over a domain's most.

    Of those it may choose from it gives up the one of the node furthest above `bound`.
    """
    for partition, row in enumerate(layout.rows):
        if partition in layout.pinned:
            continue
        while row:
            domains = layout.surplus_domains(partition)
            choice = [node for node in row if layout.domains[node] in domains]
            if not choice and len(row) <= replicas:
                break
            worst = min(
                choice or row,
                key=lambda node: (bound[node] - layout.count(node), prefer(partition, node)),
            )
            layout.remove(partition, worst)


def repair(layout: Layout, replicas: int, wanted: Sequence[int], prefer: Preference) -> list[int]:
    """Fill the holes and even out, each by one copy; return the partitions of holes left over.

    Nodes may be left above or below their target where no single copy helps.
    """
    counts = layout.counts()
    wants = [max(0, want - count) for want, count in zip(wanted, counts, strict=True)]
    receivers = Receivers(layout.domains, wants)
    holes = []
    for partition, row in enumerate(layout.rows):
        if partition in layout.pinned:
            continue
        for _ in range(replicas - len(row)):
            node = receivers.take(partition, row, layout.openings(partition))
            if node is None:
                holes.append(partition)
            else:
                layout.add(partition, node)
    givers = [node for node, want in enumerate(wanted) if layout.count(node) > want]
    for node in sorted(givers, key=lambda n: (wanted[n] - layout.count(n), n)):
        _give(layout, node, layout.count(node) - wanted[node], receivers, prefer)
    return holes


def _give(
    layout: Layout, node: int, surplus: int, receivers: Receivers, prefer: Preference
) -> None:
    """Move up to `surplus` replicas from a node to receivers, the cheapest to move first."""
    movable = layout.held[node] - layout.pinned
    for partition in sorted(movable, key=lambda p: (prefer(p, node), mix(p, node))):
        if surplus == 0:
            break
        row = layout.rows[partition]
        receiver = receivers.take(partition, row, layout.openings(partition, node))
        if receiver is not None:
            layout.remove(partition, node)
            layout.add(partition, receiver)
            surplus -= 1
