"""The plan of a backfill by Spark: what the coordinator hands to the job (docs/decisions/0486).

A JSON object: the data nodes' addresses by their ids, and the ranges: pairs of a new partition and
an old one that overlap. It travels as that of a copy does (`plan`).
"""

import msgspec

from rezone.wire.copying.plan import decoded, packed
from rezone.wire.messages import NodeId, PartitionId


class BackfillRange(msgspec.Struct, frozen=True, array_like=True):
    """The rows that a new partition (`target`) has of an old one (`source`)."""

    target: PartitionId
    source: PartitionId


class BackfillPlan(msgspec.Struct, frozen=True, kw_only=True):
    """All ranges of a re-sharding that were not backfilled when the plan was made."""

    nodes: dict[NodeId, str]
    ranges: tuple[BackfillRange, ...]


def dumps(plan: BackfillPlan) -> str:
    """Return the plan as text: JSON, or base64 of gzipped JSON when it is big."""
    return packed(msgspec.json.encode(plan))


def loads(text: str) -> BackfillPlan:
    """Return the plan in `text`; ValueError says what is wrong with it."""
    plan = decoded(text, BackfillPlan, "backfill plan", strict=False)
    if not plan.nodes or not plan.ranges:
        raise ValueError("not a backfill plan: it has no data nodes or no ranges")
    return plan
