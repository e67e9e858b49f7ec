"""The planner's promises worked out by trying everything: for zones of a few partitions only."""

import itertools
import math
from collections import Counter
from operator import add, gt

from rezone.domain.planner.plan import PlanRequest
from rezone.domain.planner.shares import domain_levels, fair_shares


def sets_of_nodes(request: PlanRequest) -> list[frozenset[int]]:
    """Return all sets of available nodes that may hold one partition, by the domain rule."""
    nodes = [node for node in request.nodes if node.available]
    names = sorted({node.failure_domain for node in nodes})
    sizes = [sum(n.failure_domain == name for n in nodes) for name in names]
    levels = domain_levels(request.replicas, sizes)
    found = []
    for chosen in itertools.combinations(nodes, request.replicas):
        counts = Counter(node.failure_domain for node in chosen)
        if all(
            least <= counts[name] <= most
            for name, least, most in zip(names, levels.least, levels.most, strict=True)
        ):
            found.append(frozenset(node.id for node in chosen))
    return found


def bounds(request: PlanRequest) -> dict[int, tuple[int, int]]:
    """Return floor and ceiling of each available node's fair share."""
    nodes = sorted((node for node in request.nodes if node.available), key=lambda n: n.id)
    names = sorted({node.failure_domain for node in nodes})
    shares = fair_shares(
        request.partitions,
        request.replicas,
        [node.weight for node in nodes],
        [names.index(node.failure_domain) for node in nodes],
    )
    return {
        node.id: (math.floor(share), math.ceil(share))
        for node, share in zip(nodes, shares, strict=True)
    }


def fewest_copies(request: PlanRequest) -> int | None:
    """Return the fewest copies of all assignments within the rules; None when there is none."""
    limits = bounds(request)
    ids = sorted(limits)
    ceilings = tuple(limits[i][1] for i in ids)
    choices = [(chosen, tuple(i in chosen for i in ids)) for chosen in sets_of_nodes(request)]
    states: dict[tuple[int, ...], int] = {(0,) * len(ids): 0}
    for partition in range(request.partitions):
        before = set(request.current[partition]) if request.current else set()
        after: dict[tuple[int, ...], int] = {}
        costs = [(len(chosen - before), more) for chosen, more in choices]
        for counts, copies in states.items():
            for cost, more in costs:
                key = tuple(map(add, counts, more))
                if any(map(gt, key, ceilings)):
                    continue
                after[key] = min(copies + cost, after.get(key, copies + cost))
        states = after
    fits = [
        copies
        for counts, copies in states.items()
        if all(n >= limits[i][0] for n, i in zip(counts, ids, strict=True))
    ]
    return min(fits, default=None)


def fewest_leader_changes(
    rows: tuple[tuple[int, ...], ...], leaders: tuple[int, ...], ids: tuple[int, ...]
) -> int | None:
    """Return the fewest changes that make leaders even to within one; None when nothing does."""
    low, high = len(rows) // len(ids), -(-len(rows) // len(ids))
    states: dict[tuple[int, ...], int] = {(0,) * len(ids): 0}
    for row, leader in zip(rows, leaders, strict=True):
        after: dict[tuple[int, ...], int] = {}
        for counts, changes in states.items():
            for node in row:
                key = tuple(n + (i == node) for n, i in zip(counts, ids, strict=True))
                # A leader that leaves the row must change: that is no choice and no cost here.
                cost = changes + (leader in row and node != leader)
                if max(key) <= high:
                    after[key] = min(cost, after.get(key, cost))
        states = after
    return min((c for counts, c in states.items() if min(counts) >= low), default=None)
