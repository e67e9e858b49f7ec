"""Other nodes for targets that failed, while all else of a plan stays as it is.

A node is as good as the failed one if the partition's replicas are in at least as many failure
domains with it. Of these the one takes the replica that has the fewest by its weight.
"""

import collections
import dataclasses
from collections.abc import Mapping
from fractions import Fraction

from rezone.domain.planner.layout import mix
from rezone.domain.routing.topology_text import Topology
from rezone.wire.messages import NodeId


@dataclasses.dataclass(frozen=True)
class Substitutes:
    """The nodes that may take a replica, with their weights, and the domains of all nodes."""

    weights: Mapping[NodeId, int]
    domains: Mapping[NodeId, str]


def substitute(
    topology: Topology,
    failed: Mapping[int, frozenset[NodeId]],
    substitutes: Substitutes,
    source: Topology,
) -> dict[int, tuple[NodeId, ...]]:
    """Return the new nodes of partitions by index; without those that have no node as good.

    A node that a partition is to leave, by `source`, does not stand in: then it had better stay.
    """
    held = collections.Counter(node for row in topology for node in row)
    found: dict[int, tuple[NodeId, ...]] = {}
    for index, gone in sorted(failed.items()):
        row = topology[index]
        for node in (n for n in row if n in gone):
            able = {n: w for n, w in substitutes.weights.items() if n not in source[index]}
            other = _other(index, row, node, held, dataclasses.replace(substitutes, weights=able))
            if other is None:
                break
            row = tuple(other if n == node else n for n in row)
            held[other] += 1
        else:
            found[index] = row
    return found


def _other(
    index: int,
    row: tuple[NodeId, ...],
    failed: NodeId,
    held: Mapping[NodeId, int],
    substitutes: Substitutes,
) -> NodeId | None:
    domains = substitutes.domains
    beside = {domains.get(n, "") for n in row if n != failed}
    least = len(beside | {domains.get(failed, "")})
    able = [
        (Fraction(held[node] + 1, weight), mix(index, node), node)
        for node, weight in substitutes.weights.items()
        if node not in row and len(beside | {domains.get(node, "")}) >= least
    ]
    return min(able)[2] if able else None
