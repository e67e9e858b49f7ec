"""Where the partitions of the next layout shall live, and from where their rows come.

A new partition inherits the nodes that hold most of its range, and the planner makes of that
an assignment like any other: even, spread over failure domains, with the fewest replicas on nodes
that inherit nothing. Its leader backfills it from the old partitions, and its followers take the
rows from its log (docs/decisions/0120).

Bytes are taken as spread evenly over an old partition's range, as hashes are.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from rezone.domain.planner.outcome import plan_hash
from rezone.domain.planner.plan import NodeInfo, PlanRequest, plan
from rezone.domain.routing.topology_text import Topology
from rezone.wire.layouts import Layout, Overlap, index_of, sources_of
from rezone.wire.messages import NodeId


@dataclasses.dataclass(frozen=True, kw_only=True)
class OldZone:
    """A zone before it is re-sharded; all by index: assignment, who leads now, bytes."""

    layout: Layout
    topology: Topology
    leaders: tuple[NodeId, ...]
    partition_bytes: tuple[int, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReshardingPlan:
    """The next layout's assignment, and what it moves.

    `replicas` are all new ones. `bytes_copied` are theirs; `bytes_sent` only those of ranges that
    their node does not hold yet. `hash` is what a person approves (B-01).
    """

    layout: Layout
    target: Topology
    replicas: int
    bytes_copied: int
    bytes_sent: int
    hash: str


def plan_resharding(
    old: OldZone,
    layout: Layout,
    *,
    replicas: int,
    nodes: tuple[NodeInfo, ...],
    revision: int,
) -> ReshardingPlan:
    """Return the plan from one layout to `layout`; NotPlaceableError as the planner's."""
    sources = {p: tuple(sources_of(p, old.layout, layout)) for p in layout.ids}
    usable = frozenset(node.id for node in nodes if node.available)
    inherited = tuple(_inherited(old, sources[p], replicas, usable) for p in layout.ids)
    made = plan(
        PlanRequest(
            partitions=layout.partitions,
            replicas=replicas,
            nodes=nodes,
            current=inherited,
            partition_bytes=tuple(_bytes_of(old, sources[p]) for p in layout.ids),
            revision=revision,
        )
    )
    return plan_for(old, layout, made.target, revision)


def plan_for(old: OldZone, layout: Layout, target: Topology, revision: int) -> ReshardingPlan:
    """Return the plan that leads to an assignment which stands already."""
    copied, sent = _traffic(old, layout, target)
    return ReshardingPlan(
        layout=layout,
        target=target,
        replicas=sum(map(len, target)),
        bytes_copied=copied,
        bytes_sent=sent,
        hash=plan_hash(old.topology, target, revision),
    )


def _inherited(
    old: OldZone, overlaps: Sequence[Overlap], replicas: int, usable: frozenset[NodeId]
) -> tuple[NodeId, ...]:
    """Return the nodes that hold most of a range, whoever leads most of it first.

    Nodes that are not usable stand in only for want of others: the planner takes them out.
    """
    held = _held(old, overlaps)
    led: dict[NodeId, int] = {}
    for overlap in overlaps:
        leader = old.leaders[index_of(overlap.old)]
        led[leader] = led.get(leader, 0) + _range_bytes(old, overlap)
    best = sorted(held, key=lambda n: (n not in usable, -held[n], -led.get(n, 0), n))
    return tuple(sorted(best[:replicas], key=lambda n: (-led.get(n, 0), -held[n], n)))


def _held(old: OldZone, overlaps: Iterable[Overlap]) -> Mapping[NodeId, int]:
    """Return how many bytes of these ranges each node holds."""
    held: dict[NodeId, int] = {}
    for overlap in overlaps:
        for node in old.topology[index_of(overlap.old)]:
            held[node] = held.get(node, 0) + _range_bytes(old, overlap)
    return held


def _range_bytes(old: OldZone, overlap: Overlap) -> int:
    start, end = old.layout.range_of(overlap.old)
    size = old.partition_bytes[index_of(overlap.old)]
    # One byte at least, so that empty zones keep their places too.
    return max(1, size * (overlap.end - overlap.start) // (end - start))


def _bytes_of(old: OldZone, overlaps: Iterable[Overlap]) -> int:
    return sum(_range_bytes(old, overlap) for overlap in overlaps)


def _traffic(old: OldZone, layout: Layout, target: Topology) -> tuple[int, int]:
    """Return the bytes of all new replicas, and of what their nodes do not hold yet."""
    copied = sent = 0
    for partition in layout.ids:
        overlaps = tuple(sources_of(partition, old.layout, layout))
        size, held = _bytes_of(old, overlaps), _held(old, overlaps)
        for node in target[index_of(partition)]:
            copied += size
            sent += size - held.get(node, 0)
    return copied, sent
