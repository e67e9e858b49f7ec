"""A request in the planner's own numbers, and the way back from them to a plan.

The planner's steps number nodes from 0 in the order of their ids, available ones only; failure
domains likewise in the order of their names.
"""

import dataclasses
import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

from rezone.domain.assignment.assignments import compact
from rezone.domain.planner.layout import Layout
from rezone.domain.planner.shares import domain_levels, fair_shares
from rezone.domain.planner.types import Goal, Imbalance, LeaderMove, Move, Plan, PlanRequest
from rezone.domain.routing.topology_text import Topology
from rezone.resources.task import RANGES_MAX, MoveReason, PartitionRange, Why
from rezone.wire.messages import NodeId, PartitionId


class Setting:
    """A checked request in numbers; `layout` is what the planner's steps change.

    `leaders` are the numbers of the nodes that lead now, None where that one is not available.
    """

    def __init__(self, request: PlanRequest) -> None:
        self.request = request
        self.nodes = sorted((node for node in request.nodes if node.available), key=lambda n: n.id)
        self.number = {node.id: number for number, node in enumerate(self.nodes)}
        self.weights = [node.weight for node in self.nodes]
        names = sorted({node.failure_domain for node in self.nodes})
        domain_number = {name: number for number, name in enumerate(names)}
        self.domains = [domain_number[node.failure_domain] for node in self.nodes]
        sizes = Counter(self.domains)
        # With fewer nodes than replicas only leaders or moves are asked for; shares do not matter.
        placed = min(request.replicas, len(self.nodes))
        self.levels = domain_levels(placed, [sizes[domain] for domain in range(len(names))])
        self.fair = fair_shares(request.partitions, placed, self.weights, self.domains)
        self.source: Sequence[tuple[NodeId, ...]] = request.current or ((),) * request.partitions
        number = self.number
        origin = [[number[node] for node in row if node in number] for row in self.source]
        self.leader_ids: Sequence[NodeId | None] = request.leaders or [
            row[0] if row else None for row in self.source
        ]
        self.leaders = [None if node is None else number.get(node) for node in self.leader_ids]
        frozen = [number for number, node in enumerate(self.nodes) if node.frozen]
        self.layout = Layout(origin, self.domains, self.levels, request.pinned, frozen)
        self.conflicts = _conflicts(self.layout)
        self.before = imbalance(self, self.layout, self.leaders)
        for partition, nodes in request.pinned.items():
            for node in tuple(self.layout.rows[partition]):
                self.layout.remove(partition, node)
            for node in nodes:
                self.layout.add(partition, number[node])

    def prefer(self, partition: PartitionId, node: int) -> tuple[int, int]:
        """Return the price of moving this replica beyond its copy: a leader's costs a takeover."""
        sizes = self.request.partition_bytes
        leader = self.leader_ids[partition]
        return int(leader == self.nodes[node].id), sizes[partition] if sizes else 0

    def leader_shares(self, partitions: int) -> list[Fraction]:
        """Return how many of so many partitions each node should lead, by weight."""
        frozen = self.layout.frozen
        weights = [0 if node in frozen else weight for node, weight in enumerate(self.weights)]
        total = sum(weights) or 1
        return [Fraction(partitions * weight, total) for weight in weights]


def imbalance(setting: Setting, layout: Layout, leaders: Sequence[int | None]) -> Imbalance:
    """Return how uneven a layout with these leaders is."""
    led = Counter(leaders)
    replicas = setting.request.replicas
    return Imbalance(
        replicas_off=_off(setting.fair, layout.counts()),
        leaders_off=_off(
            setting.leader_shares(len(layout.rows)),
            [led[node] for node in range(len(setting.nodes))],
        ),
        domain_conflicts=len(_conflicts(layout)),
        missing=sum(max(0, replicas - len(row)) for row in layout.rows),
    )


def _conflicts(layout: Layout) -> frozenset[PartitionId]:
    partitions = range(len(layout.rows))
    return frozenset(partition for partition in partitions if layout.surplus_domains(partition))


def _off(shares: Sequence[Fraction], counts: Sequence[int]) -> int:
    return max(
        max(math.floor(share) - count, count - math.ceil(share), 0)
        for share, count in zip(shares, counts, strict=True)
    )


def outcome(setting: Setting, leaders: Sequence[int | None], lower_bound: int) -> Plan:
    """Return the plan for the setting's layout and these leaders (None: as now)."""
    request, layout = setting.request, setting.layout
    target = tuple(
        _target_row(setting, partition, leader) for partition, leader in enumerate(leaders)
    )
    moves = tuple(_moves(setting, target))
    sizes = request.partition_bytes
    moved = sum(len(move.added) * sizes[move.partition] for move in moves) if sizes else 0
    led = [setting.number.get(row[0]) for row in target]
    return Plan(
        target=target,
        moves=moves,
        leader_moves=tuple(_leader_moves(setting, target, leaders)),
        copies=sum(len(move.added) for move in moves),
        lower_bound=lower_bound,
        bytes_moved=moved,
        before=None if request.current is None else setting.before,
        after=imbalance(setting, layout, led),
        hash=plan_hash(request.current, target, request.revision),
    )


def described(request: PlanRequest, target: Topology, made: Plan) -> Plan:
    """Return the plan that leads to `target`, which was decided before; `made` is today's best.

    Its moves, hash and costs are those of `target`; what is the best is known from `made` alone.
    """
    setting = Setting(dataclasses.replace(request, pinned={}))
    moves = tuple(_moves(setting, target))
    sizes = request.partition_bytes
    return dataclasses.replace(
        made,
        target=target,
        moves=moves,
        leader_moves=tuple(_leader_moves(setting, target, [0] * len(target))),
        copies=sum(len(move.added) for move in moves),
        bytes_moved=sum(len(m.added) * sizes[m.partition] for m in moves) if sizes else 0,
        hash=plan_hash(request.current, target, request.revision),
    )


def reasons_of(moves: Sequence[Move]) -> tuple[MoveReason, ...]:
    """Return why each partition moves, by ranges: at most `RANGES_MAX`, those left out counted."""
    room = RANGES_MAX
    found = []
    for why in Why:
        partitions = [move.partition for move in moves if move.why is why]
        if not partitions:
            continue
        ranges: list[PartitionRange] = []
        for partition in partitions:
            if ranges and partition == ranges[-1].last + 1:
                ranges[-1] = PartitionRange(first=ranges[-1].first, last=partition)
            elif len(ranges) < room:
                ranges.append(PartitionRange(first=partition, last=partition))
            else:
                break
        room -= len(ranges)
        found.append(MoveReason(reason=why, partitions=len(partitions), ranges=tuple(ranges)))
    return tuple(found)


def plan_hash(source: Topology | None, target: Topology, revision: int) -> str:
    """Return the hash that names a plan: the SHA-256 of revision, source and target (B-01)."""
    before = "" if source is None else compact(source)
    text = f"rezone plan 1\n{revision}\n{before}\n{compact(target)}\n"
    return hashlib.sha256(text.encode()).hexdigest()


def _target_row(setting: Setting, partition: PartitionId, leader: int | None) -> tuple[NodeId, ...]:
    """Return a partition's nodes: the leader, then those it has in their order, then new ones."""
    request, source = setting.request, setting.source[partition]
    if partition in request.pinned:
        return request.pinned[partition]
    if request.goal in (Goal.LEADERS, Goal.MOVES):
        nodes = source
    else:
        ids = {setting.nodes[number].id for number in setting.layout.rows[partition]}
        kept = tuple(node for node in source if node in ids)
        nodes = (*kept, *sorted(ids.difference(kept)))
    if leader is None:
        return nodes
    first = setting.nodes[leader].id
    return (first, *(node for node in nodes if node != first))


def _moves(setting: Setting, target: Topology) -> list[Move]:
    moves = []
    for partition, (before, after) in enumerate(zip(setting.source, target, strict=True)):
        if before == after or set(before) == set(after):
            continue
        added = tuple(node for node in after if node not in before)
        removed = tuple(node for node in before if node not in after)
        moves.append(Move(partition, added, removed, _why(setting, partition, removed)))
    return moves


def _why(setting: Setting, partition: PartitionId, removed: Sequence[NodeId]) -> Why:
    request = setting.request
    before = setting.source[partition]
    if partition in request.pinned:
        return Why.PINNED
    if not before:
        return Why.INITIAL
    if any(node not in setting.number for node in removed):
        return Why.NODE_UNAVAILABLE
    if len(before) != request.replicas:
        return Why.REPLICA_COUNT
    return Why.FAILURE_DOMAIN if partition in setting.conflicts else Why.BALANCE


def _leader_moves(
    setting: Setting, target: Topology, leaders: Sequence[int | None]
) -> list[LeaderMove]:
    return [
        LeaderMove(partition, source, row[0])
        for partition, (source, row) in enumerate(zip(setting.leader_ids, target, strict=True))
        if source != row[0] and leaders[partition] is not None
    ]
