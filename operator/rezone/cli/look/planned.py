"""The view of `rezone what-if`, of what the planner has answered."""

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final, NamedTuple

from rezone.cli.look.views import LoadChange, MovedPartition, WhatIf
from rezone.domain.planner.types import NotPlaceableError
from rezone.domain.rebalance.estimates import (
    BACKFILL_BYTES_PER_SECOND_GUESSED,
    COPY_BYTES_PER_SECOND_GUESSED,
    seconds_for,
)
from rezone.domain.routing.route_records import RouteRecords
from rezone.domain.zone.what_if import Answer, Joining, Question, answer
from rezone.resources.task import RebalanceTask, TaskType
from rezone.resources.zone import DistributionZone

_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)
WEIGHT_DIGITS_MAX: Final = 6


class Size(NamedTuple):
    """The bytes of one replica, None when that is not known, and whose word that is."""

    partition_bytes: int | None
    told_by: str = ""


def joining(text: str) -> Joining:
    """Return the data node that `DOMAIN[=WEIGHT]` describes. Raises ValueError."""
    domain, _, weight = text.partition("=")
    if weight and not (weight.isascii() and weight.isdigit() and len(weight) <= WEIGHT_DIGITS_MAX):
        raise ValueError(f"{text}: a weight is a whole number")
    return Joining("" if domain == "-" else domain, int(weight or 1))


def size_of(tasks: Iterable[RebalanceTask], told: int | None) -> Size:
    """Return how large a partition is: as the user says, or by the newest task's plan."""
    if told is not None:
        return Size(told, "as you say")
    newest = sorted(tasks, key=lambda task: task.metadata.creation_timestamp or _LONG_AGO)
    for task in reversed(newest):
        plan = task.status.plan if task.status is not None else None
        # What a re-sharding copies are partitions of another size.
        if plan is not None and plan.moves and task.spec.type is not TaskType.RESHARD:
            return Size(plan.bytes_estimate // plan.moves, f"by the plan of {task.metadata.name}")
    return Size(None)


def what_if(
    zone: DistributionZone, records: RouteRecords, question: Question, size: Size, now: datetime
) -> WhatIf:
    """Return what would be done. Raises ValueError when the question contradicts the zone."""
    leaders = tuple(record.leader for record in records.of(records.layout.generation))
    view = WhatIf(
        namespace=zone.metadata.namespace,
        zone=zone.metadata.name,
        partitions=question.partitions or zone.spec.partitions,
        replicas=question.replicas or zone.spec.replicas,
    )
    try:
        made = answer(zone, leaders, question, now)
    except NotPlaceableError as error:
        return view.model_copy(update={"possible": False, "why_not": str(error)})
    moved, seconds = _cost(made, zone.spec.rebalance.max_bytes_per_second, size)
    return view.model_copy(
        update={
            "base": made.base,
            "trigger": made.trigger,
            "partitions": len(made.target),
            "resharding": made.resharding,
            "copies": made.copies,
            "copies_lower_bound": made.copies_lower_bound,
            "leader_moves": made.leader_moves,
            "bytes": moved,
            "seconds": seconds,
            "partition_bytes": size.partition_bytes,
            "partition_bytes_from": size.told_by,
            "domain_conflicts": made.domain_conflicts,
            "nodes": _loads(made, question),
            "moves": tuple(
                MovedPartition(
                    partition=move.partition, added=move.added, removed=move.removed, why=move.why
                )
                for move in made.moves
            ),
        }
    )


def _cost(made: Answer, rate: int, size: Size) -> tuple[int | None, int | None]:
    """Return the bytes to be copied, and in how many seconds."""
    if size.partition_bytes is None and made.partitions_copied:
        return None, None
    moved = int(made.partitions_copied * (size.partition_bytes or 0))
    guessed = (
        BACKFILL_BYTES_PER_SECOND_GUESSED if made.resharding else COPY_BYTES_PER_SECOND_GUESSED
    )
    return moved, seconds_for(moved, rate, guessed)


def _loads(made: Answer, question: Question) -> tuple[LoadChange, ...]:
    before = Counter(node for row in made.before for node in row)
    after = Counter(node for row in made.target for node in row)
    led, leads = Counter(made.leaders), Counter(row[0] for row in made.target if row)
    old = len(made.nodes) - len(question.added)
    return tuple(
        LoadChange(
            id=node.id,
            failure_domain=node.failure_domain,
            change=_change(goes=node.id in question.without, joins=index >= old),
            replicas_before=before[node.id],
            replicas_after=after[node.id],
            leaders_before=led[node.id],
            leaders_after=leads[node.id],
        )
        for index, node in enumerate(made.nodes)
    )


def _change(*, goes: bool, joins: bool) -> str:
    if goes:
        return "Removed"
    return "Added" if joins else ""
