"""What each node's fair share of the replicas is, when failure domains and weights set limits.

Two things are fixed before any replica is placed. How many replicas of one partition a domain
takes: as even as its nodes allow (`domain_levels`). And how many replicas a node takes in all:
in proportion to its weight, as far as no domain and no node goes over its limit (`fair_shares`).
The shares are exact fractions: floor and ceiling of a share are the bounds of the balance, and
a rounding error would move a replica for nothing.
"""

import bisect
import dataclasses
import heapq
import itertools
from collections.abc import Sequence
from fractions import Fraction


@dataclasses.dataclass(frozen=True)
class DomainLevels:
    """How many replicas of one partition each domain takes, at least and at most.

    `extras` are the replicas left when every domain has its least; each domain takes at most
    one of them more, so a partition's replicas are as even over the domains as can be.
    """

    least: tuple[int, ...]
    most: tuple[int, ...]
    extras: int


def domain_levels(replicas: int, domain_sizes: Sequence[int]) -> DomainLevels:
    """Return the levels for domains of so many nodes; with enough domains, 0 to 1 in each.

    Needs at least `replicas` nodes in all.
    """
    level = next(
        k for k in range(1, replicas + 1) if sum(min(n, k) for n in domain_sizes) >= replicas
    )
    least = tuple(min(n, level - 1) for n in domain_sizes)
    most = tuple(min(n, level) for n in domain_sizes)
    return DomainLevels(least=least, most=most, extras=replicas - sum(least))


class _Domain:
    """The nodes of one domain, heaviest first, and what they take at a common level.

    At level x a node of weight w takes w * x replicas, at most one of each partition.
    """

    def __init__(self, weights: Sequence[int], partitions: int, levels: tuple[int, int]) -> None:
        self.weights = sorted(weights, reverse=True)
        self.partitions = partitions
        self.least, self.most = (partitions * level for level in levels)
        sums = itertools.accumulate(reversed(self.weights), initial=0)
        self.rest = list(sums)[::-1]  # rest[j]: the weight of all but the j heaviest

    def taken(self, level: Fraction) -> Fraction:
        """Return how many replicas the nodes take at a level, without the domain's limits."""
        full = bisect.bisect_right(
            self.weights, Fraction(0), key=lambda weight: self.partitions - weight * level
        )
        return full * self.partitions + self.rest[full] * level

    def total(self, level: Fraction) -> Fraction:
        """Return how many replicas the domain takes at a level."""
        return min(max(self.taken(level), Fraction(self.least)), Fraction(self.most))

    def level_of(self, total: Fraction) -> Fraction:
        """Return the level at which the nodes take `total`."""
        for full, weight in enumerate(self.weights):
            level = (total - full * self.partitions) / self.rest[full]
            if weight * level <= self.partitions:
                return level
        return Fraction(self.partitions, self.weights[-1])


def fair_shares(
    partitions: int, replicas: int, weights: Sequence[int], domains: Sequence[int]
) -> list[Fraction]:
    """Return each node's share of partitions x replicas; `domains[n]` is node n's domain number.

    Shares are proportional to weights within a domain and between domains, save where a node
    would have a partition twice or a domain more or less of each partition than its levels say;
    what one cannot take is spread over the others in the same proportion (water-filling).
    """
    members: list[list[int]] = [[] for _ in range(max(domains) + 1)]
    for node, domain in enumerate(domains):
        members[domain].append(weights[node])
    levels = domain_levels(replicas, [len(m) for m in members])
    parts = [
        _Domain(m, partitions, limits)
        for m, limits in zip(members, zip(levels.least, levels.most, strict=True), strict=True)
    ]
    common = _common_level(parts, Fraction(partitions * replicas))
    own = [part.level_of(part.total(common)) for part in parts]
    whole = Fraction(partitions)
    by_kind = {
        (weight, domain): min(whole, weight * own[domain])
        for weight, domain in set(zip(weights, domains, strict=True))
    }
    return [by_kind[kind] for kind in zip(weights, domains, strict=True)]


def _common_level(parts: Sequence[_Domain], total: Fraction) -> Fraction:
    """Return the level at which all domains together take `total`.

    What they take is linear between the breakpoints: a node is full, a domain is at a limit.
    """
    points = {Fraction(0)}
    for part in parts:
        points |= {Fraction(part.partitions, weight) for weight in set(part.weights)}
        points |= {part.level_of(Fraction(limit)) for limit in (part.least, part.most)}
    ordered = sorted(points)
    at = bisect.bisect_left(ordered, total, key=lambda level: _total(parts, level))
    if at == 0:
        return ordered[0]
    low, high = ordered[at - 1], ordered[at]
    below, above = _total(parts, low), _total(parts, high)
    return low + (total - below) / (above - below) * (high - low)


def _total(parts: Sequence[_Domain], level: Fraction) -> Fraction:
    return sum((part.total(level) for part in parts), Fraction(0))


@dataclasses.dataclass(frozen=True)
class Bounds:
    """How many replicas each node may end with, and each domain; `fair` is the exact share."""

    low: tuple[int, ...]
    high: tuple[int, ...]
    fair: tuple[float, ...]
    domain_low: tuple[int, ...]
    domain_high: tuple[int, ...]


def targets(bounds: Bounds, domains: Sequence[int], counts: Sequence[int], total: int) -> list[int]:
    """Return how many replicas each node shall have, `total` in all, as near `counts` as can be.

    Every count is first brought within its bounds; what is then missing or too much goes to, or
    comes from, the domain and in it the node that is furthest from its share.
    """
    wanted = [
        min(max(count, low), high)
        for count, low, high in zip(counts, bounds.low, bounds.high, strict=True)
    ]
    sums = [0] * len(bounds.domain_low)
    fair_sums = [0.0] * len(sums)
    for node, domain in enumerate(domains):
        sums[domain] += wanted[node]
        fair_sums[domain] += bounds.fair[node]
    step = _Steps(bounds, domains, wanted, sums, fair_sums)
    for domain, (low, high) in enumerate(zip(bounds.domain_low, bounds.domain_high, strict=True)):
        step.change(low - sums[domain], 1, only=domain)
        step.change(sums[domain] - high, -1, only=domain)
    missing = total - sum(wanted)
    step.change(missing, 1)
    step.change(-missing, -1)
    return wanted


class _Steps:
    """Raises or lowers targets by ones, always where the distance to the fair share is largest."""

    def __init__(
        self,
        bounds: Bounds,
        domains: Sequence[int],
        wanted: list[int],
        sums: list[int],
        fair_sums: list[float],
    ) -> None:
        self.bounds, self.wanted, self.sums, self.fair_sums = bounds, wanted, sums, fair_sums
        self.members: list[list[int]] = [[] for _ in sums]
        for node, domain in enumerate(domains):
            self.members[domain].append(node)

    def change(self, count: int, sign: int, only: int | None = None) -> None:
        """Take `count` steps up (sign 1) or down (-1), in one domain or wherever there is room."""
        if count <= 0:
            return
        chosen = range(len(self.sums)) if only is None else (only,)
        nodes = {domain: self._node_heap(domain, sign) for domain in chosen}
        heap = [(self._domain_key(domain, sign), domain) for domain in chosen]
        heapq.heapify(heap)
        while count > 0 and heap:
            _, domain = heapq.heappop(heap)
            limit = self.bounds.domain_high if sign > 0 else self.bounds.domain_low
            # A target below the domain's least is being raised to it: only the far limit counts.
            if not nodes[domain] or (limit[domain] - self.sums[domain]) * sign <= 0:
                continue
            _, node = heapq.heappop(nodes[domain])
            self.wanted[node] += sign
            self.sums[domain] += sign
            count -= 1
            if self._may_step(node, sign):
                heapq.heappush(nodes[domain], (self._node_key(node, sign), node))
            heapq.heappush(heap, (self._domain_key(domain, sign), domain))

    def _node_heap(self, domain: int, sign: int) -> list[tuple[float, int]]:
        heap = [
            (self._node_key(node, sign), node)
            for node in self.members[domain]
            if self._may_step(node, sign)
        ]
        heapq.heapify(heap)
        return heap

    def _may_step(self, node: int, sign: int) -> bool:
        limit = self.bounds.high if sign > 0 else self.bounds.low
        return (limit[node] - self.wanted[node]) * sign > 0

    def _node_key(self, node: int, sign: int) -> float:
        return (self.wanted[node] - self.bounds.fair[node]) * sign

    def _domain_key(self, domain: int, sign: int) -> float:
        return (self.sums[domain] - self.fair_sums[domain]) * sign
