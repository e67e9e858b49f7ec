"""Overwrites of a zone: re-shardings whose rows a job brings (docs/decisions/0500).

A driver tells all data nodes the name of its overwrite while it lives, and they say so. What is
different from a re-sharding is here, and where `ReshardingView.filled_by` is asked for.
"""

from collections.abc import Iterable

from rezone.domain.model.resharding_view import ReshardingView
from rezone.domain.model.world import NodeView
from rezone.resources.zone_status import Assignments

NOBODY_ASKS = "no driver has asked for the overwrite for ten minutes"


def asked_for(nodes: Iterable[NodeView], keys: Assignments) -> str:
    """Return the overwrite that is to be begun, empty for none.

    All data nodes must say that they are asked for it: one that says nothing, such as one of an
    earlier release, would backfill the old rows. One that is done or cancelled is not begun again.
    """
    if keys.stable is None or keys.pending is not None:
        return ""
    there = [node for node in nodes if not node.lost]
    names = {node.overwrite if node.reachable else "" for node in there}
    name = names.pop() if len(names) == 1 else ""
    done = keys.overwrite.name if keys.overwrite is not None else ""
    return "" if name in {done, keys.cancelled_overwrite} else name


def is_abandoned(nodes: Iterable[NodeView]) -> bool:
    """Return whether all data nodes that answer say that nobody asks for an overwrite any more."""
    there = [node for node in nodes if node.reachable]
    return bool(there) and all(node.overwrite_silent for node in there)


def readable_from(view: ReshardingView) -> int:
    """Return the earliest commit time as of which the new partitions may be read; 0 if unknown.

    It is after all seals, and after all that was written at the new partitions by then.
    """
    times = [each.sealed_time for target in view.targets.values() for each in target.ranges]
    return max(times) + 1 if times and all(times) else 0
