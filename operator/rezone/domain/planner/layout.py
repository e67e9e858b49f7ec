"""The replicas while they are being planned: which nodes hold a partition and where one may go.

Nodes and domains are numbered from 0 here. A `Layout` starts as what is kept of the current
assignment and is changed in place by the planner's steps; it belongs to one call of the planner.
"""

import dataclasses
from collections.abc import Collection, Sequence

from rezone.domain.planner.shares import DomainLevels


@dataclasses.dataclass(frozen=True)
class Openings:
    """The domains that may take one more replica of a partition.

    Either all but `closed`, or only those `named`: a partition touches few domains, a zone may
    have a thousand.
    """

    closed: frozenset[int]
    named: frozenset[int] | None = None

    def has(self, domain: int) -> bool:
        """Return whether the domain may take one more."""
        return domain not in self.closed if self.named is None else domain in self.named


class Layout:
    """The nodes of each partition, the partitions of each node, and the rule of the domains.

    `origin[p]` are the usable nodes that hold p now: a replica elsewhere has to be copied.
    Partitions in `pinned` are as a person wants them and are not touched, and so are the replicas
    of `frozen` nodes, which get no others.
    """

    def __init__(
        self,
        origin: Sequence[Sequence[int]],
        domains: Sequence[int],
        levels: DomainLevels,
        pinned: Collection[int] = (),
        frozen: Collection[int] = (),
    ) -> None:
        self.origin = [frozenset(nodes) for nodes in origin]
        self.rows = [list(nodes) for nodes in origin]
        self.domains = tuple(domains)
        self.levels = levels
        self.pinned = frozenset(pinned)
        self.frozen = frozenset(frozen)
        self.held: list[set[int]] = [set() for _ in domains]
        for partition, nodes in enumerate(self.rows):
            for node in nodes:
                self.held[node].add(partition)
        self._forced = frozenset(d for d, least in enumerate(levels.least) if least)

    def count(self, node: int) -> int:
        """Return how many replicas a node holds."""
        return len(self.held[node])

    def counts(self) -> list[int]:
        """Return how many replicas each node holds."""
        return [len(partitions) for partitions in self.held]

    def add(self, partition: int, node: int) -> None:
        """Place a replica."""
        self.rows[partition].append(node)
        self.held[node].add(partition)

    def remove(self, partition: int, node: int) -> None:
        """Take a replica away."""
        self.rows[partition].remove(node)
        self.held[node].remove(partition)

    def is_copy(self, partition: int, node: int) -> bool:
        """Return whether a replica of the partition on this node has to be copied there."""
        return node not in self.origin[partition]

    def copies(self) -> int:
        """Return how many replicas have to be copied in all."""
        return sum(
            node not in origin
            for nodes, origin in zip(self.rows, self.origin, strict=True)
            for node in nodes
        )

    def domain_counts(self, partition: int, without: int | None = None) -> dict[int, int]:
        """Return how many replicas of a partition each domain has, leaving one node out."""
        found: dict[int, int] = {}
        for node in self.rows[partition]:
            if node != without:
                domain = self.domains[node]
                found[domain] = found.get(domain, 0) + 1
        return found

    def openings(self, partition: int, without: int | None = None) -> Openings:
        """Return where the partition may get a replica, once it has left the node `without`."""
        levels = self.levels
        found = self.domain_counts(partition, without)
        extras = sum(max(0, count - levels.least[domain]) for domain, count in found.items())
        if extras < levels.extras:
            return Openings(frozenset(d for d, count in found.items() if count >= levels.most[d]))
        # All extras are taken: only a domain that lacks its least may take one.
        needy = frozenset(d for d in self._forced if found.get(d, 0) < levels.least[d])
        return Openings(frozenset(), needy)

    def surplus_domains(self, partition: int) -> frozenset[int]:
        """Return the domains of which the partition must give up a replica; empty when it fits."""
        levels, row = self.levels, self.rows[partition]
        if len(row) <= levels.extras and len({self.domains[node] for node in row}) == len(row):
            return frozenset()  # each in a domain of its own: by far the most
        found = self.domain_counts(partition)
        over = frozenset(d for d, count in found.items() if count > levels.most[d])
        if over:
            return over
        above = [d for d, count in found.items() if count > levels.least[d]]
        return frozenset(above) if len(above) > levels.extras else frozenset()


def mix(partition: int, node: int) -> int:
    """Return a number that depends on both in no visible pattern, to break ties evenly.

    Ties broken by node id would put the same nodes together again and again: when one of them
    is lost, only its few partners would take its load.
    """
    x = ((partition + 1) * 0x9E3779B97F4A7C15 + (node + 1) * 0xC2B2AE3D27D4EB4F) & _MASK
    x = ((x ^ (x >> 31)) * 0x94D049BB133111EB) & _MASK
    return x >> 32


_MASK = (1 << 64) - 1
