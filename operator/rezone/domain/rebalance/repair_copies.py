"""Copies that a zone makes by itself of what it has lost (B-06): by Spark when they are many.

A replica whose data is gone is assigned, so no task moves it: the zone looks after it. What it
decides stands in its status before anything is done for it, as a task's copies do (`bulk_copies`).
"""

import dataclasses
from datetime import datetime

from rezone.domain.model.world import Action, Copy, DeleteSparkApplication, PullSnapshots, ZoneView
from rezone.domain.observed.spark_states import ENDED
from rezone.domain.rebalance.bulk_copies import BulkCopies
from rezone.domain.rebalance.run import child_name
from rezone.domain.rebalance.survey import Needed
from rezone.domain.repair.repairs import missing_copies, replicas_in_need
from rezone.resources.machine_status import SparkCopies
from rezone.wire.messages import NodeId, PartitionId


@dataclasses.dataclass(frozen=True, kw_only=True)
class Repairs:
    """What a pass decides: what to persist first, what to do then, and what a person has to do."""

    state: SparkCopies | None
    actions: tuple[Action, ...] = ()
    unavailable: str = ""


def repair_copies(
    view: ZoneView, state: SparkCopies | None, now: datetime, *, task_copies: bool
) -> Repairs:
    """Return how replicas without data get it; `state` is None while no application was made."""
    needed = () if task_copies else _needed(view)
    if not needed:
        return _at_rest(view, state)
    bulk = _bulk(view, state or SparkCopies(), needed, now)
    if state is None:
        # What streams already stays a stream: it would be copied twice.
        bulk.needed = [need for need in needed if not need.started]
        bulk.choose()
        if not bulk.state.application:
            bulk.needed = needed
    bulk.run()
    if bulk.failed:
        # A zone that is short of replicas gives none up: streams are left.
        bulk.state = SparkCopies(attempt=bulk.state.attempt)
        bulk.run()
    decided = bulk.state if state is not None or bulk.state.application else None
    unavailable = bulk.taken.taken if bulk.taken is not None else bulk.unavailable
    return Repairs(
        state=decided,
        actions=tuple(_not_under_way(view, action) for action in bulk.actions),
        unavailable=unavailable,
    )


def _at_rest(view: ZoneView, state: SparkCopies | None) -> Repairs:
    """Forget how the last copies went; an application that may still copy is deleted before."""
    spark = view.spark
    if state is None or spark is None or spark.name != state.application or not spark.state:
        return Repairs(state=None)
    if spark.state in ENDED:
        return Repairs(state=None)
    return Repairs(state=state, actions=(DeleteSparkApplication(name=spark.name),))


def _bulk(
    view: ZoneView, state: SparkCopies, needed: tuple[Needed, ...], now: datetime
) -> BulkCopies:
    # Persisted before it is used, so any name does that no earlier repair has had.
    stem = state.application.rpartition("-")[0] or child_name(
        view.name, f"repair-{int(now.timestamp()) % 10**8}"
    )
    reports = [view.report(n.copy.partition, t) for n in needed for t in n.copy.targets]
    arrived = (r.copy.bytes for r in reports if r is not None and r.copy is not None)
    return BulkCopies(
        view=view,
        state=state,
        needed=needed,
        bytes_done=sum(arrived),
        paused=view.paused or view.hands_off,
        now=now,
        name_of=lambda attempt: f"{stem}-{attempt}",
    )


def _needed(view: ZoneView) -> tuple[Needed, ...]:
    """Return all copies that the zone has to make, those under way among them."""
    found, moving = [], candidates(view)
    for partition, source, targets in replicas_in_need(view):
        own = tuple(n for n in targets if (partition, n) not in moving)
        if not own:
            continue
        leader = view.report(partition, source)
        size = leader.bytes_estimate * len(own) if leader is not None else 0
        reports = [view.report(partition, n) for n in own]
        copies = [r.copy for r in reports if r is not None and r.copy is not None]
        under_way = any(not c.done and not c.error for c in copies)
        found.append(Needed(Copy(partition=partition, source=source, targets=own), size, under_way))
    return tuple(found)


def candidates(view: ZoneView) -> frozenset[tuple[PartitionId, NodeId | None]]:
    """Return the replicas that migrations look after: a copy may be a large one, by Spark."""
    return frozenset((m.partition, m.candidate) for m in view.migrations if not m.terminal)


def _not_under_way(view: ZoneView, action: Action) -> Action:
    """Return pulls without those under way: others may be at work on them."""
    if not isinstance(action, PullSnapshots):
        return action
    missing = {c.partition: c for c in missing_copies(view, task_copies=False)}
    chosen = [(missing.get(copy.partition), copy) for copy in action.copies]
    return PullSnapshots(
        copies=tuple(
            dataclasses.replace(copy, targets=tuple(n for n in left.targets if n in copy.targets))
            for left, copy in chosen
            if left is not None
        )
    )
