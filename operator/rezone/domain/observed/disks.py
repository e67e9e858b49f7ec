"""What is wrong with the disks of a zone's data nodes, for people (NW-04)."""

import heapq
from collections.abc import Mapping

from rezone.domain.model.node_texts import of_nodes
from rezone.domain.model.world import ZoneView
from rezone.domain.observed.disk_speed import is_slow
from rezone.wire.messages import DiskTrouble, NodeId

_WORST_FIRST = (DiskTrouble.FAILED, DiskTrouble.FULL, DiskTrouble.SLOW)
_WHY_CHARACTERS = 200


def slow_nodes(slow_ms: Mapping[NodeId, int], sync_ms: Mapping[NodeId, int]) -> frozenset[NodeId]:
    """Return the nodes whose disks are slow beside the best of the others.

    `slow_ms` is what the nodes say whose syncs take long, 0 for others; `sync_ms` what all say.
    """
    # The best of all others is one of the best two; a zone may have a thousand nodes.
    best = heapq.nsmallest(2, ((ms, node) for node, ms in sync_ms.items() if ms))
    return frozenset(
        node
        for node, slow in slow_ms.items()
        if is_slow(slow, (ms for ms, other in best if other != node))
    )


def disk_trouble(view: ZoneView) -> tuple[DiskTrouble, str] | None:
    """Return the worst trouble of any data node's disk, and who has it; None when all are well.

    A text that stays while the trouble does: replicas come and go in it.
    """
    found: dict[DiskTrouble, dict[int, str]] = {}
    for node, seen in sorted(view.nodes.items()):
        if seen.disk:
            found.setdefault(seen.disk, {})[node] = seen.disk_text
        for report in seen.replicas.values() if seen.reachable else ():
            if report.disk:
                found.setdefault(report.disk, {}).setdefault(node, report.error[:_WHY_CHARACTERS])
    trouble = next((each for each in _WORST_FIRST if each in found), None)
    if trouble is None:
        return None
    texts = ", ".join(of_nodes(found[trouble]))
    return trouble, f"{trouble.value}: {texts}; others lead what it led if they can"
